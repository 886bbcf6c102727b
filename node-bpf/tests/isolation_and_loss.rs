//! Several captures in one kernel record only their own; losses are counted exactly.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::collections::HashSet;
use std::process::Stdio;

use common::{Cgroup, Job, Recorded, Recorder, can_capture, nccl_ranks, run, run_watched, wait_for, workloads};
use node_bpf::{CaptureConfig, Collective, HostRecord, Record};

fn made(ranks: &[common::Rank]) -> u64 {
    ranks.iter().map(|r| r.calls.values().map(|n| n.as_u64().unwrap()).sum::<u64>()).sum()
}

#[test]
fn two_captures_see_their_own_cgroups_only() {
    if !can_capture() {
        return;
    }
    let workloads = workloads();
    let cgroups = [Cgroup::new(), Cgroup::new()];
    let recorders = [0, 1].map(|i: usize| {
        Recorder::start(CaptureConfig {
            cgroup: Some(cgroups[i].0.clone()),
            libraries: vec![workloads.join("libnccl.so.2")],
            ..CaptureConfig::default()
        })
    });
    let flags = ["--ranks", "4", "--iters", "30", "--work-ms", "2"];
    let [first, second] = &recorders;
    let ranks = run_watched(&mut nccl_ranks(&workloads, &[&cgroups[0], &cgroups[1]], &flags), 4, &[first, second]);
    let recorded = recorders.map(Recorder::stop);
    for (i, own) in recorded.iter().enumerate() {
        let want: HashSet<u32> = ranks.iter().filter(|r| r.rank / 2 == i as i32).map(|r| r.pid).collect();
        let calls: HashSet<u32> = own.calls().iter().map(|c| c.pid).collect();
        assert_eq!((calls, own.calls().len()), (want.clone(), 60), "cgroup {i}");
        assert!(own.off_cpu().iter().all(|o| want.contains(&o.pid)));
        let seen: HashSet<u32> =
            own.0.iter().filter_map(|r| if let Record::Process(p) = r { Some(p.pid) } else { None }).collect();
        assert_eq!(seen, want);
        let ids: HashSet<u64> = own.calls().iter().map(|c| c.cgroup_id).collect();
        let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(&cgroups[i].0).unwrap());
        assert_eq!(ids, HashSet::from([inode]));
    }
    assert_eq!(recorded[0].calls()[0].comm_hash, recorded[1].calls()[0].comm_hash, "one communicator");
}

#[test]
fn stored_and_lost_make_up_what_was_done() {
    if !can_capture() {
        return;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(CaptureConfig {
        ring_bytes: 1, // one page
        offcpu: false,
        tcp: false,
        ..cgroup.capturing([workloads.join("libnccl.so.2")])
    });
    let paused = recorder.hold();
    let ranks = run(&mut nccl_ranks(&workloads, &[&cgroup], &["--ranks", "4", "--iters", "3000", "--work-ms", "0"]));
    drop(paused);
    let status_probes = || recorder.status().probes;
    wait_for("the counters", || {
        status_probes().iter().any(|p| p.probe == "libnccl:ncclAllReduce" && p.hits == made(&ranks))
    });
    let recorded = recorder.stop();
    let lost: u64 = recorded.losses().iter().filter(|l| l.probe == "libnccl:ncclAllReduce").map(|l| l.lost).sum();
    let stored = recorded.calls().len() as u64;
    eprintln!("made {}, stored {stored}, lost {lost}", made(&ranks));
    assert!(lost > 0, "a page holds 20-odd calls: some of {} must be lost", made(&ranks));
    assert_eq!(stored + lost, made(&ranks));
    assert!(recorded.lost().iter().all(|l| l.reason == "ringbuf"), "{:?}", recorded.losses());
    assert!(stored > 0);
    // sequence numbers count on through the loss
    for rank in &ranks {
        let seqs: Vec<u64> = calls_of(&recorded, rank.pid);
        assert!(seqs.is_sorted_by(|a, b| a < b) && seqs.last().is_none_or(|last| *last < 3000));
    }
}

fn calls_of(recorded: &Recorded, pid: u32) -> Vec<u64> {
    recorded.calls().iter().filter(|c| c.pid == pid).map(|c| c.seq.unwrap()).collect()
}

#[test]
fn a_call_under_way_shows_and_is_a_row_when_its_rank_dies_in_it() {
    if !can_capture() {
        return;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let recorder = Recorder::of_nccl(&cgroup, &workloads);
    let flags = ["--ranks", "2", "--iters", "1", "--work-ms", "1", "--late-rank", "1", "--late-ms", "600000"];
    let mut job = nccl_ranks(&workloads, &[&cgroup], &flags);
    let job = Job(job.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    // rank 0 waits in its first all_reduce for the late rank 1: that shows before the call returns,
    // with its rank once it is known
    let is_it = |c: &Collective| c.rank == Some(0) && c.local_rank.is_some() && c.duration_ns > 5_000_000;
    let waiting = || recorder.in_flight().into_iter().find(is_it);
    wait_for("rank 0 in its call", || waiting().is_some());
    let call = waiting().unwrap();
    assert_eq!((call.func, call.nranks, call.seq, call.bytes), ("all_reduce", Some(2), Some(0), Some(4096)));
    assert!(call.comm_hash.is_some() && call.local_rank == Some(0) && call.ret.is_none());
    // SAFETY: a process of our own workload, alive because it waits for the other rank.
    unsafe { libc::kill(call.pid as i32, libc::SIGKILL) };
    let its_end = |r: &Record| matches!(r, Record::Host(HostRecord::Life(l)) if l.pid == call.pid && l.event == "exit");
    wait_for("its end", || recorder.so_far().iter().any(its_end));
    drop(job);
    let recorded = recorder.stop();
    assert!(
        recorded.lost().iter().all(|l| l.reason == "in_flight"),
        "of the other rank at most: {:?}",
        recorded.losses()
    );
    let last: Vec<_> = recorded.calls().into_iter().filter(|c| c.pid == call.pid).cloned().collect();
    let [died] = &last[..] else { panic!("one row, of the call that it died in: {last:?}") };
    assert!(died.duration_ns >= call.duration_ns, "{died:?} was under way as {call:?}");
    assert_eq!(*died, Collective { duration_ns: died.duration_ns, ts_ns: died.ts_ns, ..call.clone() });
    assert!((died.ts_ns - call.ts_ns).abs() < 50_000_000, "{died:?} {call:?}");
    let ends = recorded.0.iter().filter_map(|r| match r {
        Record::Host(HostRecord::Life(life)) if life.pid == call.pid && life.event == "exit" => Some(life),
        _ => None,
    });
    let ends: Vec<_> = ends.map(|end| (end.rank, end.signal, end.exit_code)).collect();
    assert_eq!(ends, [(Some(0), Some(libc::SIGKILL), None)], "the row has the rank that ended, and the signal");
}
