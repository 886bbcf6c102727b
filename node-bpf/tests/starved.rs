//! A host that cannot keep up: too much to record, so that point-to-point calls are left out and
//! come back; and too few CPUs, so that the ranks' waiting for one is recorded as the kernel itself
//! counts it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::collections::HashMap;
use std::process::{Command, Stdio};

use common::{Cgroup, Job, Rank, Recorded, Recorder, can_capture, first_cpu, nccl_ranks, run, wait_for, workloads};
use node_bpf::{Backlog, CaptureConfig, HostRecord, Record};

/// Calls of a function: as the ranks counted them, and as recorded.
fn made_and_recorded(ranks: &[Rank], recorded: &Recorded, func: &str) -> (u64, u64) {
    let made = ranks.iter().map(|rank| rank.calls[func].as_u64().unwrap()).sum();
    (made, ranks.iter().map(|rank| recorded.count(rank.pid, func)).sum())
}

#[test]
fn under_load_point_to_point_calls_are_left_out_counted_and_come_back() {
    if !can_capture() {
        return;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let backlog = Backlog::default();
    let recorder = Recorder::start(CaptureConfig {
        backlog: backlog.clone(),
        ..cgroup.capturing([workloads.join("libnccl.so.2")])
    });
    // a pipeline of two stages that send to each other, and reduce in pairs
    let job =
        || run(&mut nccl_ranks(&workloads, &[&cgroup], &["--pp", "2", "--dp", "2", "--iters", "50", "--work-ms", "1"]));
    let left_out = || {
        let last = recorder.so_far().into_iter().rev().find_map(|record| match record {
            Record::Host(HostRecord::SelfStat(stat)) if stat.name == "capture.point_to_point_shed" => Some(stat.value),
            _ => None,
        });
        last.unwrap_or(0.0) == 1.0
    };
    let before = job();
    backlog.set(900);
    wait_for("point-to-point calls to be left out", left_out);
    let during = job();
    backlog.set(0);
    wait_for("them to come back", || !left_out());
    let after = job();
    let recorded = recorder.stop();

    for (ranks, sends) in [(&before, true), (&during, false), (&after, true)] {
        for func in ["send", "recv"] {
            let (made, stored) = made_and_recorded(ranks, &recorded, func);
            assert!(made >= 100, "{made} of {func}");
            assert_eq!(stored, if sends { made } else { 0 }, "{func}");
        }
        let (made, stored) = made_and_recorded(ranks, &recorded, "all_reduce");
        assert!(made > 0 && made == stored, "collectives are never left out: {stored} of {made}");
    }
    // the number of left-out calls is recorded exactly
    let mut shed: HashMap<&str, u64> = HashMap::new();
    for loss in recorded.losses().into_iter().filter(|loss| loss.reason == "shed" && loss.probe.starts_with("lib")) {
        *shed.entry(&loss.probe).or_default() += loss.lost;
    }
    let of = |func| made_and_recorded(&during, &recorded, func).0;
    assert_eq!(shed, HashMap::from([("libnccl:ncclSend", of("send")), ("libnccl:ncclRecv", of("recv"))]));
    assert!(recorded.losses().iter().all(|loss| loss.reason == "shed"), "{:?}", recorded.losses());
}

/// `program`, allowed on the first CPU only.
fn on_one_cpu(program: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &first_cpu().to_string(), program]).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Time that a process's main thread has waited for a CPU, as the kernel counts it (proc(5),
/// `schedstat`).
fn waited_ns(pid: u32) -> Option<i64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    text.split(' ').nth(1)?.parse().ok()
}

#[test]
fn ranks_starved_of_cpu_lose_no_call_and_their_waits_add_up_to_the_kernels() {
    if !can_capture() {
        return;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let recorder = Recorder::of_nccl(&cgroup, &workloads);
    let busy = ["-c", "while :; do :; done"];
    let hogs: Vec<Job> = (0..6).map(|_| Job(on_one_cpu("sh").args(busy).spawn().unwrap())).collect();
    let job = nccl_ranks(&workloads, &[&cgroup], &["--ranks", "2", "--iters", "1000000", "--work-ms", "20", "--burn"]);
    let job = Job(on_one_cpu(job.get_program().to_str().unwrap()).args(job.get_args()).spawn().unwrap());

    let recorded = |pid: u32| -> i64 {
        let off = recorder.so_far().into_iter().filter_map(|r| if let Record::OffCpu(o) = r { Some(o) } else { None });
        off.filter(|o| o.pid == pid && o.tid == pid).filter_map(|o| o.run_delay_ns).sum()
    };
    let ranks = || -> Vec<(i32, u32)> {
        let found = recorder.so_far().into_iter().filter_map(|r| match r {
            Record::Process(p) => Some((p.rank?, p.pid)),
            _ => None,
        });
        found.collect()
    };
    wait_for("both ranks", || ranks().len() == 2);
    let second = 1_000_000_000;
    for (rank, pid) in ranks() {
        let mut seen = (0, 0, 0);
        wait_for("a second's waiting that is recorded as the kernel counts it", || {
            let Some(least) = waited_ns(pid) else { return false };
            let recorded = recorded(pid);
            seen = (least, recorded, waited_ns(pid).unwrap_or(0));
            // waits of less than a millisecond make no row; one that goes on at this moment may be
            // recorded and not counted yet
            least > second && recorded > least / 10 * 9 && recorded < seen.2 + second / 10
        });
        eprintln!("rank {rank}: {seen:?} ns (counted by the kernel before, recorded, counted after)");
    }
    // who starves it is named
    let hogs_ids: Vec<u32> = hogs.iter().map(|hog| hog.0.id()).collect();
    let by_hogs =
        |r: &Record| matches!(r, Record::OffCpu(o) if o.reason == "preempted" && hogs_ids.contains(&o.next_pid));
    wait_for("a hog that pushed a rank off", || recorder.so_far().iter().any(by_hogs));
    wait_for("six calls of both", || {
        let calls =
            |pid| recorder.so_far().iter().filter(|r| matches!(r, Record::Collective(c) if c.pid == pid)).count();
        ranks().into_iter().all(|(_, pid)| calls(pid) >= 6)
    });
    drop(job);
    drop(hogs);
    // they end with the job, but not at once, and the call that one ends in is a row when it has
    wait_for("the ranks to end", || recorder.status().processes == 0);
    let recorded = recorder.stop();
    for (rank, pid) in
        recorded.0.iter().filter_map(|r| if let Record::Process(p) = r { Some((p.rank, p.pid)) } else { None })
    {
        let calls: Vec<_> = recorded.calls().into_iter().filter(|call| call.pid == pid).collect();
        let last = calls.iter().filter_map(|call| call.seq).max().unwrap();
        assert!(
            calls.len() as u64 == last + 1 && last >= 5,
            "rank {rank:?}: {} calls, the last is {last}",
            calls.len()
        );
    }
    assert!(recorded.lost().is_empty(), "{:?}", recorded.losses());
}
