//! The NCCL profiler plugin and its ring, without NCCL and without a GPU: a stand-in calls the
//! plugin as NCCL does (tests/c/nccl_host.c has the order). `real_libs` tests that the real library
//! loads it.

#[path = "common/rings.rs"]
mod rings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use node_bpf::rings::{NCCL_PLUGIN, Rings};
use node_bpf::{Collective, Library, Record};
use rings::Program;

const PATIENCE: Duration = Duration::from_secs(60);
/// How long an operation runs on the stand-in's device (RUNS_NS).
const RUNS_NS: i64 = 200_000;

struct Built(tempfile::TempDir);

impl Built {
    fn new() -> Built {
        let built = Built(tempfile::tempdir().expect("works"));
        std::fs::write(built.path("plugin.so"), NCCL_PLUGIN).expect("works");
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let made = Command::new("cc")
            .args(["-O1", "-pthread", "-o"])
            .arg(built.path("host"))
            .arg("-I")
            .arg(here.join("src/shim"))
            .arg(here.join("tests/c/nccl_host.c"))
            .arg("-ldl")
            .status();
        assert!(made.expect("works").success());
        built
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs operations through an interface version; returns when all are made, with the time of
    /// the first on the device.
    fn run(&self, version: u32, threads: u32, operations: u32, more: &[&str]) -> (Program, i64) {
        self.run_with(version, threads, operations, more, &[])
    }

    fn run_with(
        &self,
        version: u32,
        threads: u32,
        operations: u32,
        more: &[&str],
        environment: &[(&str, &str)],
    ) -> (Program, i64) {
        let mut command = Program::command(&self.path("host"), &self.path("rings"));
        command
            .arg(self.path("plugin.so"))
            .args([version, threads, operations, 3].map(|n| n.to_string()))
            .args(more)
            .envs(environment.iter().copied());
        Program::start(&mut command, "done ")
    }

    fn read(&self) -> (Rings, Receiver<Record>) {
        rings::read(&self.path("rings"))
    }
}

/// Calls and losses until there are as many as wanted together.
fn gather(records: &Receiver<Record>, wanted: u64) -> (Vec<Collective>, u64) {
    let until = Instant::now() + PATIENCE;
    let (mut calls, mut lost) = (vec![], 0);
    while calls.len() as u64 + lost < wanted {
        match records.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Record::Collective(call)) => calls.push(call),
            Ok(Record::Loss(loss)) => lost += loss.lost,
            Ok(_) => {}
            Err(_) => panic!("{} calls and {lost} lost, not {wanted}", calls.len()),
        }
    }
    assert_eq!(calls.len() as u64 + lost, wanted);
    (calls, lost)
}

#[test]
fn every_version_of_the_interface_gives_the_same_rows() {
    let built = Built::new();
    for version in 1..=7 {
        let (_rings, records) = built.read();
        let (program, first_ns) = built.run(version, 1, 8, &[]);
        let (calls, lost) = gather(&records, 8);
        program.end();
        assert_eq!(lost, 0);
        let device_times = version >= 4;
        let (sends, reduces): (Vec<_>, Vec<_>) = calls.iter().partition(|call| call.func == "send");
        assert_eq!((sends.len(), reduces.len()), (2, 6), "version {version}");
        for (seq, call) in (0..).zip(&reduces) {
            assert_eq!((call.func, call.seq, call.library), ("all_reduce", Some(seq), Library::Nccl), "{version}");
            assert_eq!((call.comm_hash, call.rank), (Some(0xabcd_ef00), Some(0)), "{version}");
            assert_eq!((call.count, call.datatype, call.bytes), (Some(100), Some("bfloat16"), Some(200)), "{version}");
            assert_eq!((call.reduce_op, call.root), (None, None), "not given");
            assert_eq!(call.stream, (version >= 5).then_some(0x7f00_0000_1230), "{version}");
            assert_eq!(call.nranks, device_times.then_some(8), "{version}");
            assert_eq!((call.tier, call.captured), if device_times { (3, Some(false)) } else { (0, None) });
            if device_times {
                assert_eq!(call.duration_ns, RUNS_NS, "from the first channel's start to the last one's end");
            }
        }
        assert_eq!((sends[1].seq, sends[1].root, sends[1].bytes), (Some(1), Some(1), Some(100)));
        if device_times {
            // the device's clock is eleven days ahead
            let off_ns = calls[0].ts_ns - first_ns;
            assert!(off_ns.abs() < 1_000_000_000, "version {version}: off by {off_ns} ns");
        }
    }
    assert!(!built.path("rings").exists(), "nothing is left behind");
}

#[test]
fn the_operation_that_does_not_end_is_the_one_in_flight() {
    let built = Built::new();
    let (rings, records) = built.read();
    let (program, _) = built.run(7, 1, 6, &["open"]);
    let (calls, _) = gather(&records, 5);
    let open = rings.in_flight();
    assert_eq!(open.len(), 1, "{open:?}");
    let call = &open[0];
    assert_eq!((call.func, call.seq, call.tier), ("all_reduce", Some(4), 3));
    assert_eq!((call.comm_hash, call.rank, call.nranks), (Some(0xabcd_ef00), Some(0), Some(8)));
    let last_ns = calls.iter().map(|call| call.ts_ns + call.duration_ns).max();
    assert!(Some(call.ts_ns) >= last_ns && call.duration_ns >= 0, "{call:?}");
    program.end();
}

#[test]
fn every_operation_of_every_communicator_is_read_or_counted_as_lost() {
    let built = Built::new();
    let (_rings, records) = built.read();
    let (program, _) = built.run_with(6, 4, 20_000, &[], &[("RANKMESH_NCCL_DEVICE_TIMES", "0")]);
    let (calls, _) = gather(&records, 80_000);
    program.end();
    let mut next: BTreeMap<(Option<u64>, &str), u64> = BTreeMap::new();
    for call in &calls {
        assert_eq!((call.tier, call.captured), (0, Some(false)), "times of the device are not wanted");
        let next = next.entry((call.comm_hash, call.func)).or_default();
        assert!(call.seq >= Some(*next), "in order: {call:?}");
        *next = call.seq.unwrap_or(0) + 1;
    }
    assert!((1..=8).contains(&next.len()), "{next:?}");
}

#[test]
fn without_an_agent_nothing_waits_and_without_a_directory_nothing_is_made() {
    let built = Built::new();
    let (program, _) = built.run_with(5, 2, 10_000, &[], &[("RANKMESH_NCCL_DEVICE_TIMES", "0")]);
    {
        let (_rings, records) = built.read(); // an agent that comes late
        let (calls, lost) = gather(&records, 20_000);
        assert_eq!((calls.len(), lost), (8192, 20_000 - 8192));
    }
    program.end();
    let (program, first_ns) = built.run_with(5, 1, 100, &[], &[("RANKMESH_RING_DIR", "")]);
    assert_eq!(first_ns, 0, "NCCL is asked for no events");
    program.end();
    assert!(!built.path("rings").exists());
}
