//! The MPI shim and its ring, without eBPF and without MPI: a stand-in library is called through
//! the shim.

#[path = "common/rings.rs"]
mod rings;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use node_bpf::rings::{MPI_SHIM, Rings};
use node_bpf::{Collective, Library, Record};
use rings::Program;

const PATIENCE: Duration = Duration::from_secs(60);
/// Slots of a ring.
const ROOM: u64 = 8192;

struct Built {
    dir: tempfile::TempDir,
}

impl Built {
    fn new() -> Built {
        Built::of("shim_mpi.c", &[])
    }

    /// A library and a program linked with it, both of one source.
    fn of(source: &str, defined: &[&str]) -> Built {
        let built = Built { dir: tempfile::tempdir().expect("works") };
        std::fs::write(built.path("shim.so"), MPI_SHIM).expect("works");
        built.cc(source, &[defined, &["-DLIBRARY", "-shared", "-fPIC", "-o", "libmpi.so"]].concat());
        let library = built.path("libmpi.so").display().to_string();
        built.cc(source, &["-o", "program", "-pthread", &library, "-Wl,-rpath,$ORIGIN"]);
        built
    }

    fn cc(&self, source: &str, arguments: &[&str]) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
        let made = Command::new("cc").arg("-O1").arg(&source).args(arguments).current_dir(self.dir.path()).status();
        assert!(made.expect("works").success(), "cc {arguments:?}");
    }

    /// Runs the program to its end.
    fn run(&self) -> std::process::Output {
        let mut command = Command::new("timeout");
        command.args(["60", "./program", "1", "10"]).current_dir(self.dir.path()).stdin(Stdio::null());
        let preload = self.path("shim.so");
        // of the program alone: not of who starts it
        command.env("RANKMESH_RING_DIR", self.path("rings")).env_remove("SLURMD_NODENAME");
        command.env("LD_PRELOAD", preload).output().expect("runs")
    }

    /// The rings that are there.
    fn rings(&self) -> usize {
        std::fs::read_dir(self.path("rings/host")).map_or(0, Iterator::count)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs `threads` times `calls`; returns when all are made, with the time in nanoseconds.
    fn call(&self, threads: u32, calls: u32) -> (Program, u64) {
        let mut command = Program::command(&self.path("program"), &self.path("rings"));
        command
            .args([threads.to_string(), calls.to_string()])
            .env("LD_PRELOAD", self.path("shim.so"))
            .env("OMPI_COMM_WORLD_RANK", "3");
        Program::start(&mut command, "called ")
    }

    fn read(&self) -> (Rings, Receiver<Record>) {
        rings::read(&self.path("rings"))
    }
}

#[derive(Default)]
struct Got {
    calls: Vec<Collective>,
    lost: u64,
}

impl Got {
    /// Takes records until there are as many calls and losses.
    fn until(&mut self, records: &Receiver<Record>, calls: u64) {
        let until = Instant::now() + PATIENCE;
        while self.total() < calls {
            let left = until.saturating_duration_since(Instant::now());
            match records.recv_timeout(left) {
                Ok(Record::Collective(call)) => self.calls.push(call),
                Ok(Record::Loss(loss)) => self.lost += loss.lost,
                Ok(_) => {}
                Err(_) => panic!("{} calls and {} lost, not {calls}", self.calls.len(), self.lost),
            }
        }
        assert_eq!(self.total(), calls);
    }

    fn total(&self) -> u64 {
        self.calls.len() as u64 + self.lost
    }
}

#[test]
fn every_call_of_every_thread_is_read_or_counted_as_lost() {
    let built = Built::new();
    let (rings, records) = built.read();
    let (program, _) = built.call(4, 20_000);
    let mut got = Got::default();
    // and MPI_Init and the one MPI_Sendrecv; what MPI_Allreduce calls itself is none of its own
    got.until(&records, 80_002);
    program.end();
    let reduces: Vec<&Collective> = got.calls.iter().filter(|call| call.func == "all_reduce").collect();
    let seqs: BTreeSet<u64> = reduces.iter().filter_map(|call| call.seq).collect();
    assert_eq!(seqs.len(), reduces.len(), "each has a number of its own");
    assert!(seqs.last().is_some_and(|last| *last < 80_000));
    let first = reduces[0];
    assert_eq!((first.library, first.tier, first.count, first.ret), (Library::Mpi, 1, Some(16), Some(16)));
    assert!(reduces.iter().all(|call| call.duration_ns >= 0 && call.ts_ns > 1_600_000_000_000_000_000));
    assert!(got.calls.iter().all(|call| ["init", "send_recv", "all_reduce"].contains(&call.func)));
    drop(rings);
    assert!(!built.path("rings").exists(), "nothing is left behind");
}

#[test]
fn without_a_reader_the_rank_goes_on_and_what_it_loses_is_counted() {
    let built = Built::new();
    let (program, _) = built.call(1, 20_000);
    let mut got = Got::default();
    {
        let (_rings, records) = built.read(); // an agent that comes late
        got.until(&records, 20_002);
        assert_eq!((got.calls.len() as u64, got.lost), (ROOM, 20_002 - ROOM));
        let first = got.calls[1].clone();
        assert_eq!((got.calls[0].func, first.func, first.seq), ("init", "send_recv", Some(0)));
    }
    // The agent is gone, and with it the ring's name; the rank still runs, and the next agent finds
    // it.
    let (_rings, records) = built.read();
    let until = Instant::now() + PATIENCE;
    let found = std::iter::from_fn(|| records.recv_timeout(until.saturating_duration_since(Instant::now())).ok())
        .find_map(|record| match record {
            Record::Process(process) => Some(process),
            _ => None,
        });
    assert_eq!(found.and_then(|process| process.rank), Some(3));
    program.end();
}

#[test]
fn nothing_in_a_ring_is_trusted() {
    let built = Built::new();
    let rings = built.path("rings/host");
    let (program, _) = built.call(1, 10);
    let ring = std::fs::read_dir(&rings).unwrap().flatten().map(|entry| entry.path()).next().unwrap();
    let good = std::fs::read(&ring).unwrap();
    for (name, change) in [
        ("ring-short", (|bytes: &mut Vec<u8>| bytes.truncate(100)) as fn(&mut Vec<u8>)),
        ("ring-noise", |bytes| bytes[512..].fill(0xff)),
        ("ring-head", |bytes| bytes[64..72].fill(0xff)),
        ("ring-tail", |bytes| bytes[128..136].fill(0xff)),
        ("ring-names", |bytes| bytes[20..24].fill(0xff)),
        ("ring-magic", |bytes| bytes[0] = 0),
        ("ring-pid", |bytes| bytes[12..16].fill(0xff)),
    ] {
        let mut bytes = good.clone();
        change(&mut bytes);
        std::fs::write(rings.join(name), bytes).unwrap();
    }
    std::os::unix::fs::symlink(&ring, rings.join("ring-link")).unwrap();
    let (reader, records) = built.read();
    let until = Instant::now() + PATIENCE;
    let mut calls = 0;
    // at least those of the good one are read, whatever else is in the directory
    while calls < 11 && Instant::now() < until {
        calls += usize::from(matches!(records.recv_timeout(Duration::from_secs(1)), Ok(Record::Collective(_))));
    }
    assert!(calls >= 11, "{calls}");
    assert!(reader.in_flight().len() <= 8 * 32);
    assert!(rings.join("ring-short").exists() && rings.join("ring-magic").exists(), "what is no ring is left alone");
    program.end();
}

/// A user may give any file the name of a ring that was unlinked. Who opens it wakes whoever waits
/// for the other end of it: a FIFO is, as a device may be, no file to open in vain.
#[test]
fn a_path_made_up_in_another_mount_namespace_is_not_opened() {
    let built = Built::new();
    let (rings, fifo) = (built.path("rings"), built.path("fifo"));
    drop(built.read()); // makes nothing that stays
    std::fs::create_dir(&rings).unwrap();
    std::fs::set_permissions(&rings, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    built.cc("made_up_ring.c", &["-o", "made_up"]);
    let mut command = Program::command(&built.path("made_up"), &rings);
    let (program, found): (Program, u32) = Program::start(command.args([&rings, &fifo]), "found ");
    if found == 0 {
        eprintln!("SKIP: no mount namespace may be made");
        return;
    }
    let links =
        std::fs::read_dir("/proc").unwrap().flatten().flat_map(|process| std::fs::read_dir(process.path().join("fd")));
    let name = rings.join("host/ring-7 (deleted)");
    let is_seen = links.flatten().flatten().any(|link| std::fs::read_link(link.path()).is_ok_and(|to| to == name));
    assert!(is_seen, "the name is one that is looked for");
    let (sender, opened) = std::sync::mpsc::channel();
    let waits_for = fifo.clone();
    let waiting = std::thread::spawn(move || {
        let file = std::fs::OpenOptions::new().write(true).open(waits_for); // until somebody reads
        sender.send(()).unwrap();
        file.is_ok()
    });
    std::thread::sleep(Duration::from_millis(300));
    drop(built.read());
    assert!(opened.recv_timeout(Duration::from_secs(1)).is_err(), "what is no ring was opened");
    let mut reads = std::fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::custom_flags(reads.read(true), 0o4000); // O_NONBLOCK
    let _end = reads.open(&fifo).unwrap();
    assert!(waiting.join().unwrap());
    program.end();
}

/// One thread of a program loads a library; another calls MPI for the first time, whose library was
/// loaded with dlopen: the shim looks for it among all libraries.
#[test]
fn a_library_loaded_by_another_thread_meanwhile_stops_nobody() {
    let built = Built::new();
    let source = "shim_loads.c";
    built.cc(source, &["-DOTHER", "-shared", "-fPIC", "-o", "libother.so"]);
    built.cc(source, &["-o", "program", "-pthread", "-rdynamic", "-ldl"]);
    let output = built.run();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"called 1\n", "{:?} (124: it hangs): {said}", output.status);
    assert_eq!(built.rings(), 1, "its call was recorded");
}

#[test]
fn more_windows_than_are_kept_stop_no_program() {
    let built = Built::of("shim_windows.c", &[]);
    let output = built.run();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout == b"called 21001\n", "{:?}: {said}", output.status);
    assert_eq!(built.rings(), 1);
}

#[test]
fn an_mpi_that_is_not_known_is_left_alone() {
    for (version, is_recorded) in [
        ("Some MPI 3.1\u{1b}[31m", false),
        ("", false),
        ("Intel(R) MPI Library 2021.14 for Linux* OS", true),
        ("MVAPICH Version      :\t4.0", true),
        ("CRAY MPICH version 8.1.30", true),
    ] {
        let built = Built::of("shim_mpi.c", &[&format!("-DVERSION=\"{version}\"")]);
        let output = built.run();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && output.stdout.starts_with(b"called "), "{:?}: {said}", output.status);
        assert_eq!(built.rings(), usize::from(is_recorded), "{version}: {said}");
        assert_eq!(
            said.matches("calls of MPI are not recorded in this process").count(),
            usize::from(!is_recorded),
            "{said}"
        );
        assert!(!said.contains('\u{1b}'), "{said}");
    }
    // MPI's own interface has other handles
    let built = Built::new();
    std::fs::rename(built.path("libmpi.so"), built.path("libmpi_abi.so.0")).unwrap();
    let library = built.path("libmpi_abi.so.0").display().to_string();
    built.cc("shim_mpi.c", &["-o", "program", "-pthread", &library, "-Wl,-rpath,$ORIGIN"]);
    assert!(built.run().status.success());
    assert_eq!(built.rings(), 0);
}
