//! Off-CPU stretches of ranks: sleeping, and pushed off by somebody else.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::collections::HashSet;
use std::process::{Child, Command, Stdio};

use common::{Cgroup, Recorder, can_capture, nccl_ranks, run, workloads};
use node_bpf::CaptureConfig;

#[test]
fn a_sleeping_rank_is_off_the_cpu_voluntarily() {
    if !can_capture() {
        return;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(CaptureConfig {
        cgroup: Some(cgroup.0.clone()),
        libraries: vec![workloads.join("libnccl.so.2")],
        ..CaptureConfig::default()
    });
    let ranks = run(&mut nccl_ranks(&workloads, &[&cgroup], &["--ranks", "2", "--iters", "10", "--work-ms", "20"]));
    let recorded = recorder.stop();
    for rank in &ranks {
        let slept: Vec<_> = recorded
            .off_cpu()
            .into_iter()
            .filter(|o| o.pid == rank.pid && o.voluntary && o.duration_ns >= 18_000_000)
            .collect();
        assert!(slept.len() >= 7, "rank {} slept ten times 20 ms: {slept:?}", rank.rank);
        assert!(slept.iter().all(|o| o.rank == Some(rank.rank)));
    }
    assert!(recorded.off_cpu().iter().all(|o| o.duration_ns >= 1_000_000), "shorter ones are not recorded");
}

/// A process that takes the CPU it is pinned to.
struct Hog(Child);

impl Hog {
    fn start() -> Hog {
        let child =
            Command::new("taskset").args(["-c", "0", "sh", "-c", "while :; do :; done"]).stdin(Stdio::null()).spawn();
        Hog(child.unwrap())
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_rank_pushed_off_names_who_took_the_cpu() {
    if !can_capture() {
        return;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(CaptureConfig {
        cgroup: Some(cgroup.0.clone()),
        libraries: vec![workloads.join("libnccl.so.2")],
        ..CaptureConfig::default()
    });
    let hog = Hog::start();
    let mut pinned = Command::new("taskset");
    let job = nccl_ranks(&workloads, &[&cgroup], &["--ranks", "1", "--iters", "4", "--work-ms", "250", "--burn"]);
    pinned.args(["-c", "0"]).arg(job.get_program()).args(job.get_args());
    let ranks = run(&mut pinned);
    let hog_pid = hog.0.id();
    drop(hog);
    let recorded = recorder.stop();
    let pushed: Vec<_> = recorded.off_cpu().into_iter().filter(|o| o.pid == ranks[0].pid && !o.voluntary).collect();
    let by: HashSet<u32> = pushed.iter().map(|o| o.next_pid).collect();
    assert!(by.contains(&hog_pid), "the hog {hog_pid} is not among {by:?}");
    assert!(pushed.iter().any(|o| o.next_pid == hog_pid && o.next_comm == "sh" && o.cpu == 0));
}
