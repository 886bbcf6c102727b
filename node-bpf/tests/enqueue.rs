//! NCCL calls that only enqueue, as the real library's do, with a CUDA runtime whose synchronise
//! calls wait: the calls are short, the waits are seen after them, and what goes into a graph is
//! marked.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::path::Path;
use std::process::Stdio;

use common::{
    CLOCKS_NS, Cgroup, Job, Rank, Recorded, Recorder, can_capture, nccl_ranks, run_watched, wait_for, workloads,
};
use node_bpf::{Collective, CudaCall, Record};

fn recorder(cgroup: &Cgroup, workloads: &Path) -> Recorder {
    Recorder::start(cgroup.capturing([workloads.join("libnccl.so.2"), workloads.join("libcudart.so.12")]))
}

fn trace(ranks: usize, flags: &[&str]) -> Option<(Vec<Rank>, Recorded)> {
    if !can_capture() {
        return None;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let recorder = recorder(&cgroup, &workloads);
    let ranks = run_watched(&mut nccl_ranks(&workloads, &[&cgroup], flags), ranks, &[&recorder]);
    Some((ranks, recorder.stop()))
}

fn syncs(recorded: &Recorded, pid: u32) -> Vec<&CudaCall> {
    let calls = recorded.0.iter().filter_map(|r| if let Record::CudaCall(c) = r { Some(c) } else { None });
    calls.filter(|c| c.pid == pid && c.kind == Some("after_collective")).collect()
}

fn of<'r>(recorded: &'r Recorded, rank: &Rank, func: &str) -> Vec<&'r Collective> {
    recorded.calls().into_iter().filter(|c| c.pid == rank.pid && c.func == func).collect()
}

#[test]
fn the_wait_is_in_the_synchronise_call_after_the_collective() {
    let flags = ["--ranks", "4", "--iters", "12", "--work-ms", "10", "--late-rank", "2", "--late-ms", "60"];
    let Some((ranks, recorded)) = trace(4, &[&flags[..], &["--mode", "enqueue"]].concat()) else { return };
    let mut last_in = [0; 12];
    for call in recorded.calls() {
        let last = &mut last_in[call.seq.unwrap() as usize];
        *last = call.ts_ns.max(*last);
    }
    for rank in &ranks {
        let (calls, syncs) = (of(&recorded, rank, "all_reduce"), syncs(&recorded, rank.pid));
        assert_eq!((calls.len(), syncs.len()), (12, 12), "rank {}", rank.rank);
        let mut waited_ms = vec![];
        for ((call, sync), last_in) in calls.iter().zip(&syncs).zip(last_in) {
            // before the first of them nothing is known of the process's streams
            let captured = (call.seq > Some(0)).then_some(false);
            assert_eq!((call.tier, call.captured, call.ret, sync.ret), (0, captured, Some(0), 0));
            assert!(call.ts_ns + call.duration_ns <= sync.ts_ns, "{call:?} {sync:?}");
            assert_eq!((call.stream, call.tid), (sync.stream, sync.tid));
            assert!(sync.ts_ns + sync.duration_ns + CLOCKS_NS >= last_in, "over before all have come: {sync:?}");
            waited_ms.push(sync.duration_ns / 1_000_000);
        }
        // the others wait for the late one, and it waits for nobody, at least in one step on
        // however busy a host
        let (least, most) = (waited_ms.iter().min().unwrap(), waited_ms.iter().max().unwrap());
        assert!(if rank.rank == 2 { *least < 40 } else { *most >= 40 }, "rank {}: {waited_ms:?}", rank.rank);
    }
}

#[test]
fn groups_of_large_models_have_their_own_communicators() {
    let flags = ["--tp", "2", "--pp", "2", "--dp", "2", "--iters", "20", "--work-ms", "5", "--mode", "enqueue"];
    let Some((ranks, recorded)) = trace(8, &flags) else { return };
    assert_eq!(ranks.len(), 8);
    for rank in &ranks {
        for (func, made) in &rank.calls {
            assert_eq!(recorded.count(rank.pid, func), made.as_u64().unwrap(), "rank {} {func}", rank.rank);
        }
        let mut sizes: Vec<_> = of(&recorded, rank, "all_reduce").iter().map(|c| (c.comm_hash, c.nranks)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        assert!(sizes.iter().all(|(hash, _)| hash.is_some()), "{sizes:?}");
        let of_size = |n| sizes.iter().filter(|(_, nranks)| *nranks == Some(n)).count();
        // tensor (by split) and data (by an id of its own) of two ranks, and the world
        assert_eq!((of_size(8), of_size(2)), (1, 2), "rank {}: {sizes:?}", rank.rank);
    }
}

#[test]
fn what_goes_into_a_graph_is_marked_and_launches_are_counted() {
    let flags = ["--ranks", "2", "--iters", "20", "--work-ms", "5", "--mode", "graph"];
    let Some((ranks, recorded)) = trace(2, &flags) else { return };
    for rank in &ranks {
        let captured: Vec<_> = of(&recorded, rank, "all_reduce").iter().map(|c| c.captured).collect();
        assert_eq!(captured, [None, Some(false), Some(false), Some(true)], "rank {}", rank.rank);
        let launches = recorded.0.iter().filter_map(|r| match r {
            Record::CallTally(t) if t.pid == rank.pid && t.func == "cudaGraphLaunch" => Some(t.count),
            _ => None,
        });
        assert_eq!(launches.sum::<u64>(), 17, "rank {}", rank.rank);
    }
}

#[test]
fn a_job_that_was_already_running_is_counted_from_the_first_look_on() {
    if !can_capture() {
        return;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let flags = ["--ranks", "6", "--iters", "100000", "--work-ms", "2", "--late-rank", "1", "--late-ms", "2"];
    let mut command = nccl_ranks(&workloads, &[&cgroup], &[&flags[..], &["--mode", "enqueue"]].concat());
    let _job = Job(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    let mapped = || {
        let procs = std::fs::read_to_string(cgroup.0.join("cgroup.procs")).unwrap_or_default();
        let maps = procs.lines().filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/maps")).ok());
        maps.filter(|maps| maps.contains("libcudart")).count()
    };
    wait_for("the ranks to run", || mapped() == 6);
    for _ in 0..5 {
        let recorder = Recorder::start(cgroup.capturing([]));
        wait_for("calls of every rank", || {
            let mut pids = [vec![], vec![]];
            for record in recorder.so_far() {
                match record {
                    Record::CallTally(t) if t.func == "cudaStreamSynchronize" => pids[0].push(t.pid),
                    Record::CudaCall(c) if c.kind == Some("after_collective") => pids[1].push(c.pid),
                    _ => {}
                }
            }
            pids.iter_mut().all(|pids| {
                pids.sort_unstable();
                pids.dedup();
                pids.len() == 6
            })
        });
    }
}

#[test]
fn who_waits_for_the_device_now_is_known() {
    if !can_capture() {
        return;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let recorder = recorder(&cgroup, &workloads);
    // many, since it matters in which order the threads of a rank end
    let flags = ["--ranks", "32", "--iters", "1", "--work-ms", "0", "--late-rank", "31", "--late-ms", "600000"];
    let mut command = nccl_ranks(&workloads, &[&cgroup], &[&flags[..], &["--mode", "enqueue"]].concat());
    let job = Job(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    let waiting = || {
        let mut ranks: Vec<_> = recorder.device_waits().iter().filter_map(|wait| wait.rank).collect();
        ranks.sort_unstable();
        ranks
    };
    wait_for("all but the late rank to wait", || waiting().len() >= 31);
    assert!(waiting().into_iter().eq(0..31), "{:?}", waiting());
    assert!(recorder.in_flight().is_empty(), "the calls themselves have returned");
    drop(job);
    wait_for("nobody to wait", || recorder.device_waits().is_empty());
}
