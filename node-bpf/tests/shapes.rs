//! Communicators in every way they come about, and calls that end in odd ways.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Cgroup, Recorded, Recorder, can_capture, wait_for, workloads};
use node_bpf::{CaptureConfig, Collective, HashStyle, Record, comm_hash, split_hash, split_hash_text};

/// tests/c/shapes.c with an nccl-sim that reports this version, with debug information as in NCCL's
/// wheels.
fn compile(version: &str) -> PathBuf {
    compile_with(version, "-g")
}

fn compile_with(version: &str, debug: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sim = here.join("../scenarios/nccl-sim");
    let name = format!("shapes-{version}-{}-{:?}", std::process::id(), std::thread::current().id());
    let out = workloads().join(name.replace(['(', ')'], ""));
    std::fs::create_dir_all(&out).unwrap();
    let cc = |arguments: &mut Command| {
        let output = arguments.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let library = out.join("libnccl.so.2");
    let sources = ["comm.c", "coll.c", "enqueue.c", "hash.c", "run.c", "shm.c", "reduce.c"].map(|file| sim.join(file));
    cc(Command::new("cc")
        .args(["-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-Wl,-soname,libnccl.so.2"])
        .arg(debug)
        .arg(format!("-DNCCL_SIM_VERSION=\"{version}\""))
        .arg("-o")
        .arg(&library)
        .args(sources)
        .args(["-lpthread", "-lrt", "-lm", "-ldl"]));
    cc(Command::new("cc")
        .args(["-std=gnu11", "-O2", "-I"])
        .arg(&sim)
        .arg("-o")
        .arg(out.join("shapes"))
        .arg(here.join("tests/c/shapes.c"))
        .arg(&library)
        .args(["-Wl,-rpath,$ORIGIN", "-lpthread", "-lrt"]));
    cc(Command::new("cc")
        .args(["-std=gnu11", "-O2", "-I"])
        .arg(&sim)
        .arg("-o")
        .arg(out.join("plugin"))
        .arg(here.join("tests/c/plugin.c"))
        .arg("-ldl"));
    out
}

fn config(cgroup: &Cgroup, library: Option<PathBuf>) -> CaptureConfig {
    CaptureConfig { libraries: library.into_iter().collect(), ..cgroup.capturing([]) }
}

fn shape(built: &Path, cgroup: &Cgroup, shape: &str) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(cgroup.0.join("cgroup.procs"));
    command.arg(built.join("shapes")).arg(shape);
    command
}

/// The records of a shape, and its output; none where capture does not work.
fn trace(version: &str, name: &str) -> Option<(Recorded, String)> {
    if !can_capture() {
        return None;
    }
    let built = compile(version);
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(config(&cgroup, Some(built.join("libnccl.so.2"))));
    let output = shape(&built, &cgroup, name).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let recorded = recorder.stop();
    std::fs::remove_dir_all(&built).unwrap();
    Some((recorded, String::from_utf8(output.stdout).unwrap()))
}

#[test]
fn init_all_knows_each_communicator() {
    for (version, shape) in [("2.21.5", "all"), ("2.27.5", "all"), ("2.21.5", "grouped")] {
        let Some((recorded, _)) = trace(version, shape) else { return };
        let ranks: Vec<_> = recorded.calls().iter().map(|c| (c.rank, c.nranks, c.seq, c.datatype)).collect();
        let want: Vec<_> = (0..3).map(|rank| (Some(rank), Some(3), Some(0), Some("float16"))).collect();
        assert_eq!(ranks, want);
        let hashes: HashSet<_> = recorded.calls().iter().map(|c| c.comm_hash).collect();
        assert!(hashes.len() == 1 && !hashes.contains(&None), "{hashes:?}");
    }
}

/// The shape "split" or "resized": its process lives until all of its calls are here and can be looked
/// up in its memory.
fn trace_children(version: &str, debug: &str, name: &str) -> Option<Recorded> {
    if !can_capture() {
        return None;
    }
    let built = compile_with(version, debug);
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(config(&cgroup, Some(built.join("libnccl.so.2"))));
    let mut child = shape(&built, &cgroup, name).stdin(Stdio::piped()).spawn().unwrap();
    let complete = |r: &Record| matches!(r, Record::Collective(c) if c.rank.is_some() && c.comm_hash.is_some());
    wait_for("3 + 3 + 2 calls", || recorder.so_far().iter().filter(|r| complete(r)).count() == 8);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    std::fs::remove_dir_all(&built).unwrap();
    Some(recorder.stop())
}

/// Rank, size and number of each call, by rank.
fn ranks(calls: &[Collective]) -> Vec<(i32, i32, u64)> {
    let mut ranks: Vec<_> = calls.iter().map(|c| (c.rank.unwrap(), c.nranks.unwrap(), c.seq.unwrap())).collect();
    ranks.sort_unstable();
    ranks
}

/// The splits of one communicator by two colors: the hash each should have, from the parent's.
fn splits((version, debug): (&str, &str), first: impl Fn(u64) -> Option<u64>, second: impl Fn(u64) -> Option<u64>) {
    let Some(recorded) = trace_children(version, debug, "split") else { return };
    let of = |func: &str| recorded.calls().into_iter().filter(|c| c.func == func).cloned().collect::<Vec<_>>();
    let parent = of("reduce")[0].comm_hash.unwrap();
    let (in_first, in_second) = (of("all_reduce"), of("broadcast"));
    assert_eq!((in_first.len(), in_second.len()), (3, 2));
    assert!(in_first.iter().all(|c| first(parent).is_none_or(|hash| c.comm_hash == Some(hash))), "{version}");
    assert!(in_second.iter().all(|c| second(parent).is_none_or(|hash| c.comm_hash == Some(hash))), "{version}");
    // ranks in a split depend on what the others passed: read from the communicators
    assert_eq!(ranks(&in_first), [(0, 3, 0), (1, 3, 0), (2, 3, 0)]);
    assert_eq!(ranks(&in_second), [(0, 2, 0), (1, 2, 0)]);
    let hashes: HashSet<_> = in_second.iter().map(|c| c.comm_hash).collect();
    assert!(hashes.len() == 1 && !hashes.contains(&None), "{version}: {hashes:?}");
}

#[test]
fn a_split_has_the_hash_its_nccl_gives_it() {
    splits(("2.27.5", "-g"), |p| Some(split_hash(p, 1, 7012)), |p| Some(split_hash(p, 2, 0)));
    splits(("2.21.5", "-g"), |p| Some(split_hash_text(p, 7012)), |p| Some(split_hash_text(p, 0)));
}

#[test]
fn a_split_hashed_in_a_way_not_known_has_what_its_memory_says() {
    splits(("2.24.3", "-g"), |_| None, |_| None);
}

#[test]
fn a_split_of_a_stripped_library_has_what_its_memory_says() {
    splits(("2.27.5", "-s"), |p| Some(split_hash(p, 1, 7012)), |p| Some(split_hash(p, 2, 0)));
    splits(("2.24.3", "-s"), |_| None, |_| None);
}

#[test]
fn a_communicator_made_smaller_or_larger_has_what_its_memory_says() {
    for debug in ["-g", "-s"] {
        let Some(recorded) = trace_children("2.27.5", debug, "resized") else { return };
        let of = |func: &str| recorded.calls().into_iter().filter(|c| c.func == func).cloned().collect::<Vec<_>>();
        let (all, fewer, more) = (of("reduce"), of("broadcast"), of("all_reduce"));
        assert_eq!(ranks(&fewer), [(0, 2, 0), (1, 2, 0)], "{debug}");
        assert_eq!(ranks(&more), [(0, 3, 0), (1, 3, 0), (2, 3, 0)], "{debug}");
        let hashes = |calls: &[Collective]| calls.iter().map(|c| c.comm_hash.unwrap()).collect::<HashSet<_>>();
        let each = [&all, &fewer, &more].map(|calls| hashes(calls));
        assert!(each.iter().all(|hashes| hashes.len() == 1), "{debug}: {each:?}");
        assert_eq!(each.iter().flatten().collect::<HashSet<_>>().len(), 3, "{debug}: {each:?}");
    }
}

#[test]
fn the_hash_follows_the_version_and_the_first_id() {
    for (version, style) in [("2.21.5", HashStyle::Djb), ("2.27.5", HashStyle::Mix)] {
        let Some((recorded, printed)) = trace(version, "inits") else { return };
        let id: [u8; 128] = std::array::from_fn(|i| u8::from_str_radix(&printed[2 * i..2 * i + 2], 16).unwrap());
        let calls: Vec<_> = recorded.calls().iter().map(|c| (c.comm_hash, c.seq, c.stream)).collect();
        let hash = Some(comm_hash(&id, style));
        // the second communicator may get the first one's address: its count starts over all the
        // same
        assert_eq!(
            calls,
            [(hash, Some(0), Some(0x1234)), (hash, Some(1), Some(0x1234)), (hash, Some(0), Some(0x1234))]
        );
    }
}

#[test]
fn a_call_left_by_a_jump_hides_no_later_call() {
    let Some((recorded, _)) = trace("2.21.5", "jump") else { return };
    let seqs: Vec<_> = recorded.calls().iter().map(|c| c.seq).collect();
    assert_eq!(seqs, (0..5).map(Some).collect::<Vec<_>>());
    let losses: Vec<_> = recorded.lost().iter().map(|l| (l.probe.as_str(), l.reason.as_str(), l.lost)).collect();
    assert_eq!(losses, [("libnccl:ncclCommInitRank", "unmatched", 1)]);
}

#[test]
fn a_helper_threads_sleep_is_nobodys_business() {
    let Some((recorded, _)) = trace("2.21.5", "naps") else { return };
    let slept: Vec<_> =
        recorded.off_cpu().into_iter().filter(|o| o.reason == "sleep" && o.duration_ns >= 9_000_000).collect();
    assert!(slept.len() >= 7, "ten naps, but one may be cut by being pushed off before it: {slept:?}");
    assert!(slept.iter().all(|o| o.tid == o.pid), "{slept:?}");
}

#[test]
fn attached_late_the_communicator_is_read_from_memory() {
    attached_late("-g", true);
}

#[test]
fn attached_late_to_a_stripped_library_the_rank_is_the_environments_and_the_rest_unknown() {
    attached_late("-s", false);
}

fn attached_late(debug: &str, readable: bool) {
    if !can_capture() {
        return;
    }
    let built = compile_with("2.21.5", debug);
    let cgroup = Cgroup::new();
    let mut child =
        shape(&built, &cgroup, "late").env("RANK", "5").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut printed = BufReader::new(child.stdout.take().unwrap());
    printed.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    // without the path of the library: it is found in the running process
    let recorder = Recorder::start(config(&cgroup, None));
    assert!(recorder.status().files.iter().any(|f| f.path == built.join("libnccl.so.2")));
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"go\n").unwrap();
    let collectives = |records: &[Record]| records.iter().filter(|r| matches!(r, Record::Collective(_))).count();
    wait_for("three calls", || collectives(&recorder.so_far()) == 3);
    let is_said = || recorder.status().problems.iter().any(|problem| problem.contains("no debug information"));
    if readable {
        assert!(!is_said());
    } else {
        wait_for("it to be said that the library has no debug information", is_said);
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
    let recorded = recorder.stop();
    let calls: Vec<_> = recorded.calls().iter().map(|c| (c.rank, c.nranks, c.comm_hash, c.seq, c.bytes)).collect();
    let mut hex = String::new();
    printed.read_line(&mut hex).unwrap();
    let id: [u8; 128] = std::array::from_fn(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap());
    let hash = comm_hash(&id, HashStyle::Djb);
    // the number of earlier calls is not known
    let want =
        if readable { (Some(0), Some(1), Some(hash), None, Some(64)) } else { (Some(5), None, None, None, Some(64)) };
    assert_eq!(calls, [want; 3]);
    std::fs::remove_dir_all(&built).unwrap();
}

#[test]
fn a_library_in_a_new_process_is_found_without_its_path() {
    if !can_capture() {
        return;
    }
    let built = compile("2.21.5");
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(config(&cgroup, None));
    let mut child = shape(&built, &cgroup, "late").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let pid = child.id(); // the shell becomes the program
    wait_for("the file to be probed", || recorder.status().files.iter().any(|f| f.path == built.join("libnccl.so.2")));
    wait_for("the process to be announced", || {
        recorder.so_far().iter().any(|r| matches!(r, Record::Process(p) if p.pid == pid && p.exe.ends_with("shapes")))
    });
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(recorder.stop().count(pid, "all_reduce"), 3);
    std::fs::remove_dir_all(&built).unwrap();
}

#[test]
fn a_library_loaded_long_after_the_start_is_found() {
    if !can_capture() {
        return;
    }
    let built = compile("2.21.5");
    let cgroup = Cgroup::new();
    let library = built.join("libnccl.so.2");
    let mut command = Command::new("sh");
    command.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(cgroup.0.join("cgroup.procs"));
    command.arg(built.join("plugin")).arg(&library);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let comm = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    wait_for("the program to run", || comm().trim() == "plugin");
    let recorder = Recorder::start(config(&cgroup, None));
    let probed = || recorder.status().files.iter().any(|f| f.path == library);
    assert!(!probed());
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"load\n").unwrap();
    wait_for("the file to be probed", probed);
    stdin.write_all(b"call\n").unwrap();
    assert!(child.wait().unwrap().success());
    let recorded = recorder.stop();
    let seqs: Vec<_> = recorded.calls().iter().map(|c| c.seq).collect();
    assert_eq!(seqs, (0..4).map(Some).collect::<Vec<_>>(), "from the communicator's start on");
    std::fs::remove_dir_all(&built).unwrap();
}

/// Copies the files into a file system that only this process sees, runs the program there and
/// deletes the files.
const ELSEWHERE: &str = "mount -t tmpfs none /mnt && cp $0/* /mnt/ && mkdir /mnt/gone && mv /mnt/libnccl.so.2 /mnt/gone/ && \
    export LD_LIBRARY_PATH=/mnt/gone && exec /mnt/shapes late";

#[test]
fn a_library_no_path_leads_to_is_found() {
    if !can_capture() {
        return;
    }
    let built = compile("2.21.5");
    let cgroup = Cgroup::new();
    std::fs::remove_file(built.join("plugin")).unwrap();
    let mut command = Command::new("sh");
    command.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(cgroup.0.join("cgroup.procs"));
    command.args(["unshare", "-m", "sh", "-c", ELSEWHERE]).arg(&built);
    // linked so that $ORIGIN does not help: the copy is in another directory than the program
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    std::fs::remove_file(format!("/proc/{pid}/root/mnt/gone/libnccl.so.2")).unwrap();
    let recorder = Recorder::start(config(&cgroup, None));
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(recorder.stop().count(pid, "all_reduce"), 3);
    std::fs::remove_dir_all(&built).unwrap();
}
