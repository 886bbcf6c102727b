//! Real Open MPI under mpirun and real eBPF.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::process::Command;

use common::{Cgroup, Recorded, Recorder, assert_late, can_capture, has_mpi, mpi_ranks, run_watched, workloads};
use node_bpf::Library;

/// The libmpi that the workload is linked to: probed ahead, so that not even MPI_Init is missed.
fn libmpi(workload: &std::path::Path) -> PathBuf {
    let ldd = Command::new("ldd").arg(workload).output().unwrap();
    let text = String::from_utf8(ldd.stdout).unwrap();
    let line = text.lines().find(|line| line.contains("libmpi.so")).unwrap();
    PathBuf::from(line.split_whitespace().nth(2).unwrap())
}

#[test]
fn every_call_once_with_rank_and_world() {
    if !can_capture() || !has_mpi() {
        return;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let config = cgroup.capturing([libmpi(&workloads.join("mpi-ranks"))]);
    let recorder = Recorder::start(config);
    let ranks =
        run_watched(&mut mpi_ranks(&workloads, &cgroup, 4, &["--all-functions", "--count", "500"]), 4, &[&recorder]);
    let recorded = recorder.stop();
    assert_eq!(ranks.len(), 4);
    for rank in &ranks {
        for (func, made) in &rank.calls {
            assert_eq!(recorded.count(rank.pid, func), made.as_u64().unwrap(), "rank {} {func}", rank.rank);
            let of_func = recorded.calls().into_iter().filter(|c| c.pid == rank.pid && c.func == func);
            let seqs: Vec<_> = of_func.map(|c| c.seq).collect();
            assert_eq!(seqs, (0..seqs.len() as u64).map(Some).collect::<Vec<_>>(), "rank {} {func}", rank.rank);
        }
    }
    let made: u64 = ranks.iter().map(|r| r.calls.values().map(|n| n.as_u64().unwrap()).sum::<u64>()).sum();
    // each rank's beginning and end are calls, too
    for rank in &ranks {
        for func in ["init", "finalize"] {
            assert_eq!(recorded.count(rank.pid, func), 1, "rank {} {func}", rank.rank);
        }
    }
    assert_eq!(recorded.calls().len() as u64, made + 2 * 4, "calls of nobody, or calls within calls");
    assert!(recorded.lost().is_empty(), "{:?}", recorded.losses());
    let hashes: HashSet<_> = recorded.calls().iter().map(|c| c.comm_hash).collect();
    assert!(hashes.len() == 1 && !hashes.contains(&None), "one world: {hashes:?}");
    let jobs: HashSet<_> = recorded.calls().iter().map(|c| c.job_id.clone()).collect();
    assert!(jobs.len() == 1 && !jobs.contains(&None), "{jobs:?}");
    assert_sites(&recorded);
    for call in recorded.calls() {
        let rank = ranks.iter().find(|rank| rank.pid == call.pid).unwrap();
        assert_eq!((call.rank, call.nranks, call.local_rank), (Some(rank.rank), Some(4), Some(rank.rank)));
        assert_eq!((call.library, call.tier, call.ret), (Library::Mpi, 1, Some(0)));
        match call.func {
            "barrier" | "all_to_all_w" | "init" | "finalize" => assert_eq!((call.count, call.datatype), (None, None)),
            "all_to_all_v" | "reduce_scatter" => assert_eq!((call.count, call.datatype), (None, Some("float64"))),
            _ => {
                assert_eq!(
                    (call.count, call.datatype, call.bytes),
                    (Some(500), Some("float64"), Some(4000)),
                    "{call:?}"
                );
            }
        }
        let op = match call.func {
            "all_reduce" | "reduce_scatter" | "reduce_scatter_block" | "scan" | "exscan" => Some("sum"),
            "reduce" => Some("max"),
            _ => None,
        };
        assert_eq!(call.reduce_op, op, "{call:?}");
    }
}

/// Every call has a place in the program; it is the same on every rank, and another for each
/// function.
fn assert_sites(recorded: &Recorded) {
    let mut places: HashMap<(u32, &str), HashSet<&str>> = HashMap::new();
    // the process may be gone when the record of its end is read
    for call in recorded.calls().into_iter().filter(|call| call.func != "finalize") {
        let site = call.site.as_deref().unwrap_or_else(|| panic!("no site: {call:?}"));
        let is_it =
            (site.starts_with("call_everything+0x") || site.starts_with("main+0x")) && site.ends_with(" (mpi-ranks)");
        assert!(is_it, "{site}");
        places.entry((call.pid, call.func)).or_default().insert(site);
    }
    for ((pid, func), sites) in &places {
        for ((other, of), others) in &places {
            match (pid == other, func == of) {
                // even ranks send first, odd ones receive
                (false, true) if !["send", "recv"].contains(func) => assert_eq!(sites, others, "{func}"),
                (true, false) => assert!(sites.is_disjoint(others), "{func} and {of}: {sites:?}"),
                _ => {}
            }
        }
    }
}

#[test]
fn what_ranks_do_between_calls_is_as_long_as_it_was() {
    if !can_capture() || !has_mpi() {
        return;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let config = cgroup.capturing([libmpi(&workloads.join("mpi-ranks"))]);
    let recorder = Recorder::start(config);
    let flags = ["--iters", "12", "--work-ms", "10", "--late-rank", "2", "--late-ms", "60"];
    let ranks = run_watched(&mut mpi_ranks(&workloads, &cgroup, 4, &flags), 4, &[&recorder]);
    assert_eq!(ranks.len(), 4);
    assert_late(&recorder.stop(), 4, 2, 12);
}

#[test]
fn a_job_that_was_already_running_is_found() {
    if !can_capture() || !has_mpi() {
        return;
    }
    let workloads = workloads();
    let cgroup = Cgroup::new();
    let mut job = mpi_ranks(&workloads, &cgroup, 2, &["--iters", "1000000", "--work-ms", "5"]).spawn().unwrap();
    let seen = std::panic::catch_unwind(|| {
        common::wait_for("the ranks to start", || {
            let procs = std::fs::read_to_string(cgroup.0.join("cgroup.procs")).unwrap_or_default();
            let names = procs.lines().filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
            names.filter(|name| name.trim() == "mpi-ranks").count() == 2
        });
        let recorder = Recorder::start(cgroup.capturing([]));
        common::wait_for("ten calls", || {
            let calls = recorder.so_far();
            calls.iter().filter(|r| matches!(r, node_bpf::Record::Collective(_))).count() >= 10
        });
        recorder.stop()
    });
    // SAFETY: our own child, which has not been waited for.
    unsafe { libc::kill(job.id() as i32, libc::SIGTERM) };
    job.wait().unwrap();
    let recorded = seen.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let ranks: HashSet<_> = recorded.calls().iter().map(|c| c.rank).collect();
    assert_eq!(ranks, HashSet::from([Some(0), Some(1)]));
    assert!(recorded.calls().iter().all(|c| c.comm_hash.is_some()));
}
