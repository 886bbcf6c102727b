//! Reads native programs, workers, processes of others and processes that end.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Scenes, eventually, program, pythons};
use explain::stacks::{
    Frame, Limits, MemberStacks, Plan, Sampler, ShortReason, StackReader, StacksError, ThreadState, Trust, merge, text,
};

/// Ends its process when dropped.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_native_thread_that_sleeps_is_followed_to_its_start_and_one_that_runs_is_named_so() {
    let folder = tempfile::tempdir().unwrap();
    for level in ["-O0", "-O2"] {
        let binary = folder.path().join(format!("native{level}"));
        let built = Command::new("c++").args([level, "-pthread", "-o"]).arg(&binary).arg(program("native.cc")).status();
        if !built.is_ok_and(|status| status.success()) {
            eprintln!("skipped: no C++ compiler");
            return;
        }
        let job = Running(Command::new(&binary).stdout(Stdio::null()).spawn().unwrap());
        let mut reader = StackReader::new(Limits::default());
        eventually(|| {
            let stacks = reader.read(job.0.id()).map_err(|error| error.to_string())?;
            let names = |at: usize| -> Vec<String> {
                let frames = stacks.threads.get(at).map(|thread| &thread.frames[..]).unwrap_or_default();
                frames
                    .iter()
                    .map(|frame| match frame {
                        Frame::Native { function, .. } => function.clone(),
                        other => panic!("not native: {other:?}"),
                    })
                    .collect()
            };
            let (main, sleeper) = (names(0), names(1));
            let has = |names: &[String], wanted: &[&str]| {
                let mut rest = names.iter();
                wanted.iter().all(|wanted| rest.any(|name| name.starts_with(wanted)))
            };
            let wanted = ["job::step(int)", "job::Exchange::wait_for_halo(int)", "sleep"];
            let right = stacks.runtime == "native"
                && has(&main, &["_start", "main"])
                && has(&sleeper, &wanted)
                && stacks.threads[..2].iter().all(|thread| thread.trust == Trust::Proven && !thread.outer_missing)
                && stacks.threads.get(2).is_some_and(|runner| {
                    runner.state == ThreadState::Running && runner.trust == Trust::Unread && runner.note.is_some()
                });
            if right { Ok(()) } else { Err(format!("{level}: {stacks:#?}")) }
        });
    }
}

#[test]
fn a_process_that_ends_or_runs_another_program_is_no_fault() {
    let python = &pythons()[0];
    let mut command = Command::new(&python.path);
    command.arg(program("scenes.py"));
    let mut scenes = Scenes::start(command, &[]);
    let pid = scenes.child.id();
    let mut reader = StackReader::new(Limits::default());
    assert!(reader.read(pid).unwrap().runtime.starts_with("CPython"));
    scenes.child.kill().unwrap();
    // Dead but not waited for, then gone.
    eventually(|| match reader.read(pid) {
        Err(StacksError::Ended { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    scenes.child.wait().unwrap();
    assert_eq!(reader.read(pid), Err(StacksError::Ended { pid }));

    let shell = Command::new("sh").args(["-c", "read line; exec sleep 3600"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut shell = Running(shell);
    let pid = shell.0.id();
    let in_program = |reader: &mut StackReader, wanted: &str| {
        eventually(|| {
            let stacks = reader.read(pid).map_err(|error| error.to_string())?;
            let found = stacks.threads[0]
                .frames
                .iter()
                .any(|frame| matches!(frame, Frame::Native { module, .. } if module.contains(wanted)));
            if found { Ok(()) } else { Err(format!("{stacks:#?}")) }
        });
    };
    in_program(&mut reader, "sh");
    drop(shell.0.stdin.take());
    in_program(&mut reader, "sleep");
}

#[test]
fn a_missing_right_is_named() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can start a process of another user");
        return;
    }
    // The reader is this test's program, started again as another user: it is to read its parent.
    const NOBODY: u32 = 65534;
    let folder = tempfile::tempdir().unwrap();
    let example = folder.path().join("reader");
    std::fs::copy(std::env::current_exe().unwrap(), &example).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), mode).unwrap();
    // Another test's child may still have the copy open for writing, and then the kernel refuses to
    // run it.
    let output = eventually(|| {
        Command::new(&example)
            .args(["--exact", "helper_reads_a_process", "--nocapture", "--ignored"])
            .env("STACKS_TEST_HELPER", std::process::id().to_string())
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .map_err(|error| error.to_string())
    });
    let stdout = String::from_utf8_lossy(&output.stdout);
    let line = stdout.lines().find(|line| line.contains("result: ")).unwrap_or_else(|| panic!("{output:?}"));
    assert!(line.contains("may not be read: CAP_SYS_PTRACE is missing"), "{line}");
    assert!(line.contains("another user"), "{line}");
}

#[test]
#[ignore = "started by a_missing_right_is_named"]
fn helper_reads_a_process() {
    let Ok(pid) = std::env::var("STACKS_TEST_HELPER") else { return };
    let result = StackReader::new(Limits::default()).read(pid.parse().unwrap());
    match result {
        Ok(_) => println!("result: read"),
        Err(error) => println!("result: {error}"),
    }
}

#[test]
fn samples_of_a_job_become_classes() {
    let python = pythons().pop().unwrap();
    let start = || {
        let mut command = Command::new(&python.path);
        command.arg(program("scenes.py"));
        Scenes::start(command, &[])
    };
    let (one, other) = (start(), start());
    let pids = [one.child.id(), other.child.id()];
    let plan = Plan { samples: 20, every: Duration::from_millis(5), cpu_budget: Duration::from_secs(20) };
    let mut sampler = Sampler::new(Limits::default());
    eventually(|| {
        let profiles = sampler.profile(&pids, &plan, || false);
        let members: Vec<MemberStacks> = profiles
            .into_iter()
            .enumerate()
            .flat_map(|(rank, profile)| {
                assert_eq!((profile.samples, &profile.short_because), (20, &None));
                assert!(profile.cpu_ns > 0);
                MemberStacks::of(profile, Some(rank as u32), "node-1", |thread| thread.main)
            })
            .collect();
        let merged = merge(&members);
        let shown = text(&merged);
        let expected = "2 ranks (0-1 on node-1): scenes.py:";
        if shown.starts_with(expected) && shown.contains("in 40 of 40 samples") { Ok(()) } else { Err(shown) }
    });
    drop(one);
    let profile = &sampler.profile(&pids[..1], &plan, || false)[0];
    assert_eq!(profile.short_because, Some(ShortReason::Failed(StacksError::Ended { pid: pids[0] })));
}

/// As LAMMPS: its libpython is there for scripts that most inputs do not have.
#[test]
fn a_program_that_links_python_and_does_not_start_it_is_read_as_native() {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("links.c"), dir.path().join("links"));
    std::fs::write(&source, "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n").unwrap();
    let built = Command::new("cc")
        .args(["-O2", "-Wl,--no-as-needed", "-o"])
        .args([&program, &source])
        .arg("-l:libpython3.11.so.1.0")
        .status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no C compiler, or no libpython3.11");
        return;
    }
    let mut child = Command::new(&program).spawn().unwrap();
    let pid = child.id();
    let mut reader = StackReader::new(Limits::default());
    // Until the loader has begun main, its own frames are all there is.
    let is_main = |frame: &Frame| matches!(frame, Frame::Native { function, .. } if function == "main");
    let read = eventually(|| match reader.read(pid) {
        Ok(stacks) if stacks.threads.iter().any(|thread| thread.frames.iter().any(is_main)) => Ok(stacks),
        other => Err(format!("{other:?}")),
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(read.runtime, "native");
}
