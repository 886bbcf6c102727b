//! NCCL calls of real processes under real eBPF: every call once, with the right rank, size, hash
//! and sequence.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::collections::HashSet;

use common::{Cgroup, Recorder, assert_late, can_capture, nccl_ranks, run, run_watched, workloads};
use node_bpf::{AttachMode, CaptureConfig, HashStyle, Library, Record, comm_hash};

fn every_call_is_recorded_once(mode: Option<AttachMode>) {
    if !can_capture() {
        return;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let library = workloads.join("libnccl.so.2");
    // Of the system's libraries each probe would be a link that the kernel takes a tenth of a second to end.
    let config = CaptureConfig { attach_mode: mode, system_libraries: false, ..cgroup.capturing([library.clone()]) };
    let recorder = Recorder::start(config);
    let status = recorder.status();
    assert!(mode.is_none_or(|mode| mode == status.mode));
    assert_eq!(status.files.iter().filter(|f| f.path == library).count(), 1);
    let file = status.files.iter().find(|f| f.path == library).unwrap();
    assert!(file.symbols.iter().any(|s| s == "ncclAllReduce") && !file.symbols.iter().any(|s| s == "pncclAllReduce"));

    let flags = ["--ranks", "4", "--all-functions", "--count", "700"];
    let ranks = run_watched(&mut nccl_ranks(&workloads, &[&cgroup], &flags), 4, &[&recorder]);
    let recorded = recorder.stop();
    assert_eq!(ranks.len(), 4);
    for rank in &ranks {
        for (func, made) in rank.calls.iter().filter(|(func, _)| *func != "group_end") {
            assert_eq!(recorded.count(rank.pid, func), made.as_u64().unwrap(), "rank {} {func}", rank.rank);
        }
    }
    let made: u64 = ranks.iter().map(|r| r.calls.values().map(|n| n.as_u64().unwrap()).sum::<u64>()).sum();
    let group_ends: u64 = ranks.iter().map(|r| r.calls["group_end"].as_u64().unwrap()).sum();
    assert_eq!(recorded.calls().len() as u64, made - group_ends, "calls of nobody");
    assert!(recorded.lost().is_empty(), "{:?}", recorded.losses());

    // an independent computation, on the id that the workload printed
    let hash = comm_hash(&ranks[0].id.unwrap(), HashStyle::Djb);
    for call in recorded.calls() {
        let rank = ranks.iter().find(|rank| rank.pid == call.pid).unwrap();
        assert_eq!((call.rank, call.nranks, call.comm_hash), (Some(rank.rank), Some(4), Some(hash)), "{call:?}");
        assert_eq!((call.library, call.ret, call.tier), (Library::Nccl, Some(0), 0));
        assert_eq!((call.count, call.datatype, call.bytes), (Some(700), Some("float32"), Some(rank.bytes)), "{call:?}");
        assert_eq!(call.local_rank, Some(rank.rank));
        let op = match call.func {
            "all_reduce" | "reduce_scatter" => Some("sum"),
            "reduce" => Some("max"),
            _ => None,
        };
        assert_eq!(call.reduce_op, op, "{call:?}");
        match call.func {
            "send" => assert_eq!(call.root, Some((rank.rank + 1) % 4)),
            "recv" => assert_eq!(call.root, Some((rank.rank + 3) % 4)),
            "reduce" => assert_eq!(call.root, Some(0)),
            "broadcast" => assert!(matches!(call.root, Some(0 | 3))),
            _ => assert_eq!(call.root, None),
        }
    }
    // a send and a receive in one group end together
    for rank in &ranks {
        let of = |func: &str| -> Vec<_> {
            let calls = recorded.calls().into_iter().filter(|c| c.pid == rank.pid && c.func == func);
            calls.map(|c| (c.ts_ns, c.ts_ns + c.duration_ns)).collect()
        };
        for (send, recv) in of("send").iter().zip(of("recv")) {
            assert!(send.0 < recv.0 && send.1 == recv.1, "{send:?} {recv:?}");
        }
    }
    // the numbers per rank and function run from 0 without a gap, in the order of the calls
    for rank in &ranks {
        let mut functions: HashSet<&str> = HashSet::new();
        for call in recorded.calls() {
            functions.insert(call.func);
        }
        for func in &functions {
            let seqs: Vec<_> =
                recorded.calls().iter().filter(|c| c.pid == rank.pid && c.func == *func).map(|c| c.seq).collect();
            let want: Vec<_> = (0..seqs.len() as u64).map(Some).collect();
            assert_eq!(seqs, want, "rank {} {func}", rank.rank);
        }
    }
    let processes: HashSet<_> = recorded
        .0
        .iter()
        .filter_map(|r| if let Record::Process(p) = r { Some((p.pid, p.rank, p.world_size)) } else { None })
        .collect();
    for rank in &ranks {
        assert!(processes.contains(&(rank.pid, Some(rank.rank), Some(4))), "{processes:?}");
    }
}

#[test]
fn every_call_once_by_the_best_mode() {
    every_call_is_recorded_once(None);
}

#[test]
fn every_call_once_by_multi_links() {
    every_call_is_recorded_once(Some(AttachMode::Multi));
}

#[test]
fn every_call_once_by_single_probes() {
    every_call_is_recorded_once(Some(AttachMode::Single));
}

#[test]
fn every_call_once_by_probes_without_cookies() {
    every_call_is_recorded_once(Some(AttachMode::Stub));
}

#[test]
fn what_ranks_do_between_calls_is_as_long_as_it_was() {
    if !can_capture() {
        return;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let recorder = Recorder::of_nccl(&cgroup, &workloads);
    let flags = ["--ranks", "4", "--iters", "12", "--work-ms", "10", "--late-rank", "1", "--late-ms", "60"];
    run(&mut nccl_ranks(&workloads, &[&cgroup], &flags));
    assert_late(&recorder.stop(), 4, 1, 12);
}
