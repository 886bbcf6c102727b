//! Off-CPU stretches of ranks: sleeping, and preempted by another process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::collections::HashSet;
use std::process::{Child, Command, Stdio};

use common::{Cgroup, Recorder, can_capture, first_cpu, nccl_ranks, run_watched, workloads};
use node_bpf::Record;

#[test]
fn a_sleeping_rank_is_off_the_cpu_voluntarily() {
    if !can_capture() {
        return;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let recorder = Recorder::of_nccl(&cgroup, &workloads);
    let flags = ["--ranks", "2", "--iters", "10", "--work-ms", "20"];
    let ranks = run_watched(&mut nccl_ranks(&workloads, &[&cgroup], &flags), 2, &[&recorder]);
    let recorded = recorder.stop();
    for rank in &ranks {
        let slept: Vec<_> = recorded
            .off_cpu()
            .into_iter()
            .filter(|o| o.pid == rank.pid && o.voluntary && o.duration_ns >= 18_000_000)
            // on a host at its limits it may wait so long for a disk or for memory, too
            .filter(|o| ["sleep", "lock"].contains(&o.reason))
            .collect();
        assert!(slept.len() >= 7, "rank {} slept ten times 20 ms, by a timer or a peer's futex: {slept:?}", rank.rank);
        assert!(slept.iter().all(|o| o.rank == Some(rank.rank)));
        let known = slept.iter().filter(|o| o.run_delay_ns.is_some_and(|delay| delay < o.duration_ns));
        assert!(known.count() >= 7, "who sleeps is not runnable all the time: {slept:?}");
    }
    assert!(recorded.off_cpu().iter().all(|o| o.duration_ns >= 1_000_000), "shorter ones are not recorded");
}

/// A process that takes the CPU it is pinned to, until dropped.
struct Hog(Child);

fn pinned(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("taskset");
    command.arg("-c").arg(first_cpu().to_string()).arg(program).stdin(Stdio::null());
    command
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
    let recorder = Recorder::of_nccl(&cgroup, &workloads);
    let hog = Hog(pinned("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
    let job = nccl_ranks(&workloads, &[&cgroup], &["--ranks", "1", "--iters", "100000", "--work-ms", "50", "--burn"]);
    let job = Hog(pinned(job.get_program()).args(job.get_args()).stdout(Stdio::null()).spawn().unwrap());
    // on a busy machine others take the CPU, too: wait for the hog to be among them
    common::wait_for("the hog to push the rank off", || {
        recorder.so_far().iter().any(|record| match record {
            Record::OffCpu(o) => {
                let by_hog = !o.voluntary && o.next_pid == hog.0.id() && o.next_comm == "sh" && o.cpu == first_cpu();
                by_hog && o.reason == "preempted" && o.run_delay_ns == Some(o.duration_ns)
            }
            _ => false,
        })
    });
    drop(job);
    drop(hog);
    let ranks: HashSet<_> = recorder.stop().off_cpu().iter().map(|o| o.rank).collect();
    assert!(ranks.contains(&Some(0)), "{ranks:?}");
}
