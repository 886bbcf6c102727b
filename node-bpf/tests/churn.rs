//! Where programs begin all the time the recorder wakes up a few times a second, and still finds a
//! rank among them. Alone in its program: it looks at the threads of all of this process's
//! recorders.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Cgroup, Job, Recorder, can_capture, nccl_ranks, wait_for, workloads};
use node_bpf::{CaptureConfig, Record};

/// Programs that the script starts, and wake-ups a second of the thread that looks for libraries in
/// them: a hundred looks, and what the ring's reader hands over.
const PROGRAMS: u32 = 400;
const MOST_A_SECOND: f64 = 300.0;

/// How often the threads of this name went to sleep by themselves.
fn waits_of(thread: &str) -> u64 {
    let of = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let waits = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        (name.trim() == thread).then(|| waits.trim().parse::<u64>().ok()).flatten()
    };
    fs::read_dir("/proc/self/task").unwrap().flatten().filter_map(of).sum()
}

#[test]
fn programs_that_begin_all_the_time_wake_the_recorder_now_and_then() {
    if !can_capture() {
        return;
    }
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(CaptureConfig { system_libraries: false, ..cgroup.capturing([]) });
    let script = format!("echo $$ > \"$0\"; i=0; while [ $i -lt {PROGRAMS} ]; do /bin/true; i=$((i + 1)); done");
    let (before, began) = (waits_of("capture-find"), Instant::now());
    let ran = Command::new("sh").args(["-c", &script]).arg(cgroup.0.join("cgroup.procs")).status().unwrap();
    let seconds = began.elapsed().max(Duration::from_millis(200)).as_secs_f64();
    let waits = waits_of("capture-find") - before;
    assert!(ran.success() && waits > 0, "the thread was not found");
    assert!(waits as f64 / seconds < MOST_A_SECOND, "{waits} wake-ups in {seconds:.2} s for {PROGRAMS} programs");

    // A rank among them, of a library that nobody has used before.
    let endless = "echo $$ > \"$0\"; while :; do /bin/true; done";
    let churn = Command::new("sh").args(["-c", endless]).arg(cgroup.0.join("cgroup.procs")).spawn().unwrap();
    let _churn = Job(churn);
    let mut ranks = nccl_ranks(&workloads(), &[&cgroup], &["--ranks", "2", "--iters", "100000", "--work-ms", "5"]);
    let _ranks = Job(ranks.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    let is_call = |record: &Record| matches!(record, Record::Collective(_));
    wait_for("calls of the ranks", || recorder.so_far().iter().filter(|record| is_call(record)).count() >= 10);
    recorder.stop();
}
