//! Communicators of MPI, by eBPF and by the shim, with Open MPI and MPICH: what is recorded of each
//! call is compared with what MPI itself says of its communicator.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;
#[path = "mpi_comms/persistent.rs"]
mod persistent;
#[path = "common/rings.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod rings;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use common::{Cgroup, Job, Recorder, can_capture, wait_for};
use node_bpf::rings::{MPI_SHIM, Rings};
use node_bpf::{Collective, Record};

const RANKS: usize = 4;

/// An MPI library, and how its programs are built and started.
#[derive(Debug, Clone, Copy)]
struct Mpi {
    compiler: &'static str,
    launcher: &'static [&'static str],
    /// Whether its requests are for collectives or for messages for good (as in Open MPI).
    tells_requests_apart: bool,
}

const OPEN_MPI: Mpi = Mpi {
    compiler: "mpicc.openmpi",
    launcher: &[
        "mpirun.openmpi",
        "--allow-run-as-root",
        "--oversubscribe",
        "--mca",
        "oob_tcp_if_include",
        "lo",
        "--mca",
        "btl",
        "self,vader,tcp",
    ],
    tells_requests_apart: true,
};
const MPICH: Mpi = Mpi { compiler: "mpicc.mpich", launcher: &["mpirun.mpich"], tells_requests_apart: false };

impl Mpi {
    fn is_here(self) -> bool {
        let found = Command::new("which").args([self.compiler, self.launcher[0]]).stdout(Stdio::null()).status();
        let found = found.is_ok_and(|status| status.success());
        if !found {
            eprintln!(
                "SKIPPED: needs {} (apt-get install mpich libmpich-dev openmpi-bin libopenmpi-dev)",
                self.compiler
            );
        }
        found
    }

    fn build(self, compiler: &str, source: &str, into: &Path) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
        let program = into.join("comms");
        let made = Command::new(compiler).args(["-O1", "-w", "-o"]).arg(&program).arg(&source).status().unwrap();
        assert!(made.success(), "{compiler} {}", source.display());
        program
    }

    /// The library that a program is linked to.
    fn library(program: &Path) -> PathBuf {
        let ldd = Command::new("ldd").arg(program).output().unwrap();
        let text = String::from_utf8(ldd.stdout).unwrap();
        let is_library = |line: &str| ["libmpi.so", "libmpich.so"].iter().any(|name| line.starts_with(name));
        let line = text.lines().find(|line| is_library(line.trim())).unwrap();
        PathBuf::from(line.split_whitespace().nth(2).unwrap())
    }

    /// The program on its ranks, all of it in the cgroup if there is one.
    fn command(self, program: &[&Path], cgroup: Option<&Cgroup>) -> Command {
        let mut command = Command::new("sh");
        let procs = cgroup.map_or(PathBuf::from("/dev/null"), |cgroup| cgroup.0.join("cgroup.procs"));
        command.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(procs).args(self.launcher);
        command.args(["-n", &RANKS.to_string()]).args(program).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }
}

/// What MPI says of a communicator in one process.
#[derive(Debug, Clone, PartialEq)]
struct Said {
    pid: u32,
    name: String,
    label: u64,
    rank: i32,
    size: i32,
    id: i64,
}

/// Starts it; returns when every rank has printed that it is done, with what they said.
fn run(command: &mut Command) -> (Job, Vec<Said>) {
    let mut job = Job(command.spawn().unwrap());
    let said = until_done(&mut job);
    (job, said)
}

fn until_done(job: &mut Job) -> Vec<Said> {
    let (mut all, mut done) = (vec![], 0);
    let lines = BufReader::new(job.0.stdout.take().unwrap()).lines();
    for line in lines.map(Result::unwrap) {
        if line.starts_with("done") {
            done += 1;
        } else {
            let json: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
            let number = |name: &str| json[name].as_i64().unwrap();
            all.push(Said {
                pid: number("pid") as u32,
                name: json["name"].as_str().unwrap().to_owned(),
                label: number("label") as u64,
                rank: number("rank") as i32,
                size: number("size") as i32,
                id: number("id"),
            });
        }
        if done == RANKS {
            return all;
        }
    }
    panic!("it ended before its ranks were done: {all:?}");
}

/// Asserts that every call is of the communicator that MPI says it is of. `nameless`: labels of
/// communicators that have no identity in this way of recording.
fn assert_as_said(calls: &[Collective], said: &[Said], nameless: &[u64]) {
    let pids: BTreeSet<u32> = said.iter().map(|s| s.pid).collect();
    assert_eq!(pids.len(), RANKS);
    let of = |said: &Said| -> Vec<&Collective> {
        let is_it = |c: &&Collective| c.pid == said.pid && c.func == "all_reduce" && c.count == Some(said.label);
        calls.iter().filter(is_it).collect()
    };
    // by what MPI calls one communicator: its hash, and the positions of its calls, of each rank
    type HashAndPositions = (u64, Vec<u64>);
    let mut by_id: BTreeMap<(u64, i64), Vec<HashAndPositions>> = BTreeMap::new();
    for s in said {
        let calls = of(s);
        assert_eq!(calls.len(), 5, "{s:?}: {calls:?}");
        let hashes: BTreeSet<Option<u64>> = calls.iter().map(|c| c.comm_hash).collect();
        for (n, call) in (0..).zip(&calls) {
            assert_eq!((call.rank, call.nranks), (Some(s.rank), Some(s.size)), "{s:?}: {call:?}");
            // of another communicator before the handle was used again, or of none
            let before = calls[0].seq.unwrap();
            assert_eq!(call.seq, Some(before + n), "{s:?}: {call:?}");
            assert!(s.name == "world" || before == 0, "{s:?}: {call:?}");
        }
        if nameless.contains(&s.label) {
            assert_eq!(hashes, BTreeSet::from([None]), "{s:?}");
            continue;
        }
        assert_eq!(hashes.len(), 1, "{s:?}: {hashes:x?}");
        let hash = calls[0].comm_hash.unwrap_or_else(|| panic!("{s:?} has no communicator"));
        let positions = calls.iter().map(|c| c.comm_seq.unwrap_or_else(|| panic!("{s:?}: {c:?}"))).collect();
        by_id.entry((s.label, s.id)).or_default().push((hash, positions));
    }
    let mut hashes: HashMap<u64, (u64, i64)> = HashMap::new();
    for (id, ranks) in by_id {
        for rank in &ranks {
            assert_eq!(rank, &ranks[0], "communicator {id:?} on its ranks");
        }
        let (hash, positions) = &ranks[0];
        // a barrier between the third and the fourth
        let first = positions[0];
        assert_eq!(*positions, [0, 1, 2, 4, 5].map(|n| first + n), "communicator {id:?}");
        let other = hashes.insert(*hash, id);
        assert_eq!(other, None, "communicators {id:?} and {other:?} are told as one");
    }
}

/// Every rank is said to be a member of its communicators when these are made, once for each.
fn assert_members(calls: &[Collective], said: &[Said], nameless: &[u64]) {
    let made = said.iter().filter(|s| !["world", "self"].contains(&&*s.name) && !nameless.contains(&s.label));
    for s in made {
        let is_on = |c: &&Collective| c.pid == s.pid && c.func == "all_reduce" && c.count == Some(s.label);
        let first = calls.iter().find(is_on).unwrap();
        let begins = |c: &&Collective| c.func == "comm_begin" && (c.pid, c.comm_hash) == (s.pid, first.comm_hash);
        let begun: Vec<_> = calls.iter().filter(begins).collect();
        assert_eq!(begun.len(), 1, "{s:?}: {begun:?}");
        let (begun, member) = (begun[0], (Some(s.rank), Some(s.size), Some(0), None));
        assert_eq!((begun.rank, begun.nranks, begun.seq, begun.comm_seq), member, "{s:?}: {begun:?}");
        assert!(begun.ts_ns <= first.ts_ns, "{begun:?} after {first:?}");
    }
}

/// Calls that make communicators are calls of one themselves, at a position that is the same on all
/// ranks, as nonblocking collectives are.
fn assert_makers_and_begun(calls: &[Collective]) {
    let mut makers: BTreeMap<(u64, u64), BTreeMap<&str, usize>> = BTreeMap::new();
    for call in calls.iter().filter(|c| c.func.contains("comm_") || c.func.contains("cart_")) {
        if let (Some(hash), Some(position)) = (call.comm_hash, call.comm_seq) {
            *makers.entry((hash, position)).or_default().entry(call.func).or_default() += 1;
        }
    }
    assert!(makers.len() > 40, "{makers:?}");
    for (at, made) in &makers {
        assert_eq!(made.len(), 1, "{at:x?}: {made:?}");
    }
    let begun: Vec<_> = calls.iter().filter(|c| c.func == "iall_reduce").collect();
    assert_eq!(begun.len(), RANKS);
    assert!(begun.iter().all(|c| c.tier == 0 && c.comm_hash.is_some() && c.comm_seq.is_some()), "{begun:?}");
}

/// Whoever waits for a nonblocking collective is seen to wait for that one, the last on the world.
fn assert_waits(mpi: Mpi, open: &[Collective], before: &[Collective]) {
    let world = before.iter().find(|c| c.func == "all_reduce" && c.count == Some(100)).unwrap().comm_hash;
    for wait in open {
        let of_world = before.iter().filter(|c| c.pid == wait.pid && c.comm_hash == world && c.func != "wait");
        let last = of_world.filter_map(|c| c.comm_seq).max();
        if !mpi.tells_requests_apart {
            assert_eq!((wait.comm_hash, wait.comm_seq), (None, None), "its requests may be of messages");
        } else {
            assert_eq!((wait.comm_hash, wait.comm_seq), (world, last), "{wait:?}");
        }
    }
}

fn by_ebpf(mpi: Mpi, nameless: &[u64]) {
    if !can_capture() || !mpi.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = mpi.build(mpi.compiler, "mpi_comms.c", dir.path());
    let go_on = dir.path().join("go-on");
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(cgroup.capturing([Mpi::library(&program)]));
    let begin = dir.path().join("begin");
    let mut job = Job(mpi.command(&[&program, &go_on, &begin], Some(&cgroup)).spawn().unwrap());
    // that of a process's library is known a moment after the first MPI_Init with it: a communicator
    // that is freed before has no rank
    wait_for("every rank to have begun", || {
        let begun = |r: &&Record| matches!(r, Record::Collective(c) if c.func == "init");
        recorder.so_far().iter().filter(begun).count() == RANKS
    });
    fs::write(&begin, "").unwrap();
    let said = until_done(&mut job);
    let calls = |recorder: &Recorder| -> Vec<Collective> {
        let records = recorder.so_far().into_iter();
        records.filter_map(|r| if let Record::Collective(c) = r { Some(c) } else { None }).collect()
    };
    wait_for("all calls", || {
        let calls = calls(&recorder);
        let count = |func: &str| calls.iter().filter(|c| c.func == func).count();
        count("all_reduce") >= 5 * said.len() && count("ibarrier") == 2 * RANKS - 1
    });
    let made = calls(&recorder);
    let mut open = vec![];
    wait_for("the others to wait for rank 0", || {
        open = recorder.in_flight();
        open.len() == RANKS - 1 && open.iter().all(|c| c.func == "wait")
    });
    fs::write(&go_on, "").unwrap();
    assert!(job.0.wait().unwrap().success());
    assert_as_said(&made, &said, nameless);
    assert_members(&made, &said, nameless);
    assert_waits(mpi, &open, &made);
    assert_makers_and_begun(&made);
    wait_for("every rank's end", || {
        let ends = calls(&recorder);
        ends.iter().filter(|c| c.func == "finalize" && c.comm_seq.is_some() && c.comm_hash.is_some()).count() == RANKS
    });
    let recorded = recorder.stop();
    assert!(recorded.lost().is_empty(), "{:?}", recorded.losses());
}

#[test]
fn every_communicator_of_open_mpi_by_ebpf() {
    by_ebpf(OPEN_MPI, &[]);
}

#[test]
fn every_communicator_of_mpich_by_ebpf() {
    by_ebpf(MPICH, &[121, 122]); // the members of the other side's group are not seen
}

/// A program in Fortran: its bindings call the C functions.
fn in_fortran(mpi: Mpi, compiler: &str) {
    let here = Command::new("which").arg(compiler).stdout(Stdio::null()).status().unwrap().success();
    if !can_capture() || !mpi.is_here() {
        return;
    }
    if !here {
        return eprintln!("SKIPPED: needs {compiler} (apt-get install gfortran)");
    }
    let dir = tempfile::tempdir().unwrap();
    let program = mpi.build(compiler, "mpi_comms.f90", dir.path());
    let go_on = dir.path().join("go-on");
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(cgroup.capturing([Mpi::library(&program)]));
    let (mut job, said) = run(&mut mpi.command(&[&program, &go_on], Some(&cgroup)));
    let calls = || -> Vec<Collective> {
        let records = recorder.so_far().into_iter();
        records.filter_map(|r| if let Record::Collective(c) = r { Some(c) } else { None }).collect()
    };
    wait_for("all calls", || calls().iter().filter(|c| c.func == "all_reduce").count() >= 5 * said.len());
    assert_as_said(&calls(), &said, &[]);
    fs::write(&go_on, "").unwrap();
    assert!(job.0.wait().unwrap().success());
}

#[test]
fn a_fortran_program_of_open_mpi() {
    in_fortran(OPEN_MPI, "mpif90.openmpi");
}

#[test]
fn a_fortran_program_of_mpich() {
    in_fortran(MPICH, "mpif90.mpich");
}

/// Takes records until there are as many calls of the function.
fn until(records: &Receiver<Record>, calls: &mut Vec<Collective>, func: &str, wanted: usize) {
    while calls.iter().filter(|c| c.func == func).count() < wanted {
        match records.recv_timeout(Duration::from_secs(120)) {
            Ok(Record::Collective(call)) => calls.push(call),
            Ok(_) => {}
            Err(_) => panic!("{} calls, not {wanted} of {func}", calls.len()),
        }
    }
}

fn by_the_shim(mpi: Mpi) {
    if !mpi.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = mpi.build(mpi.compiler, "mpi_comms.c", dir.path());
    let (shim, ring_dir, go_on) = (dir.path().join("shim.so"), dir.path().join("rings"), dir.path().join("go-on"));
    fs::write(&shim, MPI_SHIM).unwrap();
    let (rings, records): (Rings, _) = rings::read(&ring_dir);
    let mut command = mpi.command(&[&program, &go_on], None);
    command.env("LD_PRELOAD", &shim).env("RANKMESH_RING_DIR", &ring_dir).env_remove("SLURMD_NODENAME");
    let (mut job, said) = run(&mut command);
    let mut calls = vec![];
    until(&records, &mut calls, "all_reduce", 5 * said.len());
    until(&records, &mut calls, "ibarrier", 2 * RANKS - 1);
    let mut open = vec![];
    wait_for("the others to wait for rank 0", || {
        open = rings.in_flight();
        open.len() == RANKS - 1 && open.iter().all(|c| c.func == "wait")
    });
    fs::write(&go_on, "").unwrap();
    assert!(job.0.wait().unwrap().success());
    assert_as_said(&calls, &said, &[]);
    assert_members(&calls, &said, &[]);
    assert_waits(mpi, &open, &calls);
    assert_makers_and_begun(&calls);
    until(&records, &mut calls, "finalize", RANKS);
    drop(rings);
}

#[test]
fn every_communicator_of_open_mpi_by_the_shim() {
    by_the_shim(OPEN_MPI);
}

#[test]
fn every_communicator_of_mpich_by_the_shim() {
    by_the_shim(MPICH);
}
