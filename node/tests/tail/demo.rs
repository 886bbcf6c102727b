//! `rankmesh demo`: what it says of serving, and what it leaves behind when it ends in one way or another.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::{Killed, can_capture, rankmesh, stderr, stdout, wait_for};
use crate::until;

fn start(temporary: &Path, flags: &[&str]) -> Killed {
    let mut demo = rankmesh();
    demo.arg("demo").args(flags).env("TMPDIR", temporary).stdout(Stdio::piped()).stderr(Stdio::piped());
    Killed(demo.spawn().expect("the demo starts"))
}

/// Its output when it has ended. (It is less than a pipe holds.)
fn wait_with_output(mut demo: Killed) -> Output {
    // Both at once: a pipe holds 64 KiB, and who writes more waits for a reader.
    let (mut errors, mut stderr) = (demo.0.stderr.take().expect("piped"), vec![]);
    let reader = std::thread::spawn(move || errors.read_to_end(&mut stderr).map(|_| stderr));
    let mut stdout = vec![];
    demo.0.stdout.take().expect("piped").read_to_end(&mut stdout).expect("read");
    let stderr = reader.join().expect("no panic").expect("read");
    let status = demo.0.wait().expect("it ends");
    Output { status, stdout, stderr }
}

/// Processes that have its folder for temporary files in their command line.
fn processes(temporary: &Path) -> Vec<String> {
    let folder = temporary.display().to_string();
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let lines = all.filter_map(|of| std::fs::read_to_string(of.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(&folder)).map(|line| line.replace('\0', " ")).collect()
}

/// The cgroup that a demo with this process ID makes others in.
fn cgroup(pid: u32) -> PathBuf {
    let root = node_bpf::cgroup_mount_point().unwrap_or_else(|| PathBuf::from("/sys/fs/cgroup"));
    root.join(format!("rankmesh-demo-{pid}"))
}

/// Nothing, in a moment: what was killed takes that long.
fn wait_until_nothing_is_left(temporary: &Path, pid: u32) {
    wait_for("nothing to be left", || match left(temporary, pid) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
}

/// What a demo with this process ID has left: processes, files and cgroups.
fn left(temporary: &Path, pid: u32) -> Vec<String> {
    let files = std::fs::read_dir(temporary).expect("readable").flatten().map(|of| of.path().display().to_string());
    let group = cgroup(pid);
    let groups = group.exists().then(|| group.display().to_string());
    processes(temporary).into_iter().chain(files).chain(groups).collect()
}

#[test]
fn a_demo_that_is_told_to_end_leaves_nothing_and_one_that_is_killed_no_process() {
    let is_live = can_capture("a_demo_that_is_told_to_end_leaves_nothing_and_one_that_is_killed_no_process, live");
    let demos: &[&[&str]] = if is_live { &[&["--serving"], &[]] } else { &[&["--replay"]] };
    for flags in demos {
        for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGKILL] {
            let temporary = tempfile::tempdir().expect("a directory");
            let mut demo = start(temporary.path(), flags);
            wait_for("an agent of the demo", || {
                let found = processes(temporary.path());
                if found.iter().any(|line| line.contains(" up ")) { Ok(()) } else { Err(format!("{found:?}")) }
            });
            let pid = demo.0.id();
            kill(Pid::from_raw(i32::try_from(pid).expect("a pid")), signal).expect("it is there");
            let status = demo.0.wait().expect("it ends");
            if signal == Signal::SIGKILL {
                // (Its files and cgroups stay: there is nobody to remove them.)
                wait_for("its processes to end", || match processes(temporary.path()) {
                    left if left.is_empty() => Ok(()),
                    left => Err(format!("{flags:?}: {left:?}")),
                });
                let inner = std::fs::read_dir(cgroup(pid)).into_iter().flatten().flatten().map(|of| of.path());
                inner
                    .filter(|path| path.is_dir())
                    .chain([cgroup(pid)])
                    .for_each(|path| drop(std::fs::remove_dir(path)));
            } else {
                wait_until_nothing_is_left(temporary.path(), pid);
                assert_eq!(status.code(), Some(1), "{flags:?} {signal}");
            }
        }
    }
}

#[test]
fn the_demo_on_serving_says_what_was_injected_and_leaves_nothing_behind() {
    if !can_capture("the_demo_on_serving_says_what_was_injected_and_leaves_nothing_behind") {
        return;
    }
    // Where other programs take the CPU for longer than what is injected takes, that is what is told.
    let (_, text) = until(|| {
        let temporary = tempfile::tempdir().expect("a directory");
        let demo = start(temporary.path(), &["--serving"]);
        let pid = demo.0.id();
        let demo = wait_with_output(demo);
        wait_until_nothing_is_left(temporary.path(), pid);
        let (text, errors) = (stdout(&demo), stderr(&demo));
        if demo.status.success() { Ok(text) } else { Err(Value::String(text + &errors)) }
    });
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for told in [
        "Live: 2 agents on loopback record the requests of two servers",
        "$ rankmesh tail --by cause",
        "asleep in a timer, thread cache-refresh of model-server, while another waited in a lock or queue",
        "That is what was injected",
    ] {
        assert!(words.contains(told), "no {told:?} in {text}");
    }
}
