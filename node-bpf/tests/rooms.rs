//! A user who would fill the programs' maps, which are everybody's: communicators without end, more
//! followed processes than there may be. She is stopped at her share, what she loses is counted, and
//! another user's rank that comes after her loses nothing.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::{Cgroup, Job, Recorder, can_be_others, compiled, kernel_keys, kernel_maps, open_directory, wait_for};
use libbpf_rs::{MapCore, MapFlags};
use node_bpf::{CaptureConfig, Collective, Record};

const MALLORY: u32 = 65_534;
const ALICE: u32 = 54_321;
/// `RM_EVERYBODY`.
const ALL: u32 = u32::MAX;
/// `RM_ROOM_PROCESS`, `RM_ROOM_COMM`, `RM_ROOM_BEGUN`.
const PROCESS: usize = 0;
const COMM: usize = 2;
const BEGUN: usize = 6;
/// `RM_MOST_COMMS` and `RM_MOST_PROCESSES`; of a user who is alone, half.
const MOST_COMMS: i64 = 32_768;
const MOST_PROCESSES: i64 = 16_384;
/// `MOST_OF_PROCESS`.
const OF_PROCESS: i64 = 1_024;

/// In the form of Open MPI's.
const LIBRARY: &str = r#"
int ompi_mpi_comm_world[64];
static char made[1 << 16];
static int count;
int MPI_Init(void *argc, void *argv) { return argc != argv; }
int MPI_Barrier(void *comm) { return comm == 0; }
int MPI_Comm_dup(void *comm, void **copy) { *copy = made + 8 * count++; return comm == 0; }
int MPI_Comm_free(void **comm) { return *comm == 0; }
int MPI_Ibarrier(void *comm, void **request) { *request = made + 8 * count++; return comm == 0; }
int MPI_Wait(void **request, void *status) { *request = 0; return status != 0; }
int MPI_Waitall(int n, void **requests, void *status) { while (n-- > 0) requests[n] = 0; return status != 0; }
"#;

/// Makes so many communicators as it is told, and a barrier on each, keeps them (1) or frees them (0);
/// or begins so many barriers and waits for each (2) or for 16 at a time (3). With an argument it makes a user namespace, and begins anew as the user that it is given there.
const RANK: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <unistd.h>
extern int ompi_mpi_comm_world[];
int MPI_Init(void *, void *), MPI_Barrier(void *), MPI_Comm_dup(void *, void **), MPI_Comm_free(void **);
int MPI_Ibarrier(void *, void **), MPI_Wait(void **, void *), MPI_Waitall(int, void **, void *);
int main(int args, char **arg) {
  int count, keeps, begun = 0;
  if (args > 1) {
    puts(unshare(CLONE_NEWUSER) ? "refused" : arg[1]);
    fflush(stdout);
    if (scanf("%d", &count) != 1 || setuid(count)) return 1;
    execl("/proc/self/exe", arg[0], (char *)0);
  }
  while (scanf("%d %d", &count, &keeps) == 2) {
    if (!begun++) MPI_Init(0, 0);
    MPI_Barrier(ompi_mpi_comm_world);
    for (int i = 0; keeps >= 2 && i < count; i++) {
      static void *requests[16];
      MPI_Ibarrier(ompi_mpi_comm_world, &requests[i % 16]);
      if (keeps == 2) MPI_Wait(&requests[i % 16], 0);
      else if (i % 16 == 15) MPI_Waitall(16, requests, 0);
    }
    for (int i = 0; keeps < 2 && i < count; i++) {
      void *copy;
      MPI_Comm_dup(ompi_mpi_comm_world, &copy);
      MPI_Barrier(copy);
      if (!keeps) MPI_Comm_free(&copy);
    }
    puts("done");
    fflush(stdout);
  }
  return 0;
}
"#;

/// The maps that are looked at are those of all recorders of this process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Rank {
    job: Job,
    printed: BufReader<ChildStdout>,
}

impl Rank {
    fn start(dir: &Path, cgroup: &Cgroup, user: u32) -> Rank {
        let rank = Rank::outside(dir, user, &[]);
        rank.join(cgroup);
        rank
    }

    fn join(&self, cgroup: &Cgroup) {
        fs::write(cgroup.0.join("cgroup.procs"), self.job.0.id().to_string()).unwrap();
    }

    /// In no cgroup whose processes are recorded.
    fn outside(dir: &Path, user: u32, arguments: &[&str]) -> Rank {
        let mut command = Command::new(dir.join("rank"));
        command.args(arguments);
        command.env("LD_LIBRARY_PATH", dir).env("PMIX_NAMESPACE", "prterun-h1-4711@1").env("PMIX_RANK", "0");
        command.env("OMPI_COMM_WORLD_SIZE", "1").env("OMPI_COMM_WORLD_RANK", "0");
        command.uid(user).gid(user).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut job = Job(command.spawn().unwrap());
        let printed = BufReader::new(job.0.stdout.take().unwrap());
        Rank { job, printed }
    }

    /// Has called MPI_Init, and the programs know its handle of MPI_COMM_WORLD.
    fn ready(dir: &Path, cgroup: &Cgroup, user: u32) -> Rank {
        let mut rank = Rank::start(dir, cgroup, user);
        rank.makes(0, true);
        wait_for("its library to be read", || kernel_keys("mpi_processes").contains(&rank.job.0.id()));
        rank
    }

    fn makes(&mut self, communicators: u32, keeps: bool) {
        self.tell(&format!("{communicators} {}\n", u8::from(keeps)));
        assert_eq!(self.says(), "done\n");
    }

    fn tell(&mut self, line: &str) {
        self.job.0.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        self.printed.read_line(&mut line).unwrap();
        line
    }

    fn calls(&self, recorder: &Recorder) -> Vec<Collective> {
        let of = |record: &Record| match record {
            Record::Collective(call) if call.pid == self.job.0.id() => Some(call.clone()),
            _ => None,
        };
        recorder.hold().iter().filter_map(of).collect()
    }
}

/// What a user holds by the kernel's maps, in entries of a kind.
fn held(user: u32, kind: usize) -> i64 {
    let word = |value: Vec<u8>| i64::from_ne_bytes(value[kind * 8..kind * 8 + 8].try_into().unwrap());
    let maps = ["users", "users_by_agent"].into_iter().flat_map(kernel_maps);
    maps.filter_map(|map| map.lookup(&user.to_ne_bytes(), MapFlags::ANY).unwrap()).map(word).sum()
}

fn prepared() -> (tempfile::TempDir, Cgroup, PathBuf) {
    let (dir, cgroup) = (open_directory(), Cgroup::new());
    let library = compiled(dir.path(), "libmpi.so.40", LIBRARY, &["-shared", "-fPIC"]);
    compiled(dir.path(), "rank", RANK, &[&library.display().to_string()]);
    (dir, cgroup, library)
}

fn lost(recorder: &Recorder, probe: &str) -> u64 {
    recorder.status().probes.iter().find(|of| of.probe == probe).map_or(0, |of| of.lost_map)
}

#[test]
fn communicators_without_end_leave_room_for_others_and_are_given_back() {
    if !can_be_others() {
        return;
    }
    let _alone = alone();
    let (dir, cgroup, library) = prepared();
    // what she does fits into the ring, however late it is read: this is not about the ring
    let recorder = Recorder::start(CaptureConfig { ring_bytes: 64 << 20, ..cgroup.capturing([library]) });
    let mut hers: Vec<Rank> = (0..17).map(|_| Rank::ready(dir.path(), &cgroup, MALLORY)).collect();
    hers[0].makes(1_100, true);
    assert_eq!(held(MALLORY, COMM), OF_PROCESS + 16, "one process has its own share, the others their world");
    for rank in &mut hers[1..] {
        rank.makes(1_100, true);
    }
    assert_eq!(held(MALLORY, COMM), MOST_COMMS / 2, "as many as she leaves free");
    let refused = 17 * 1_100 + 17 - MOST_COMMS.unsigned_abs() / 2;
    // of each that is refused, its making loses it and then the first call on it
    wait_for("her losses to be counted", || lost(&recorder, "libmpi:MPI_Comm_dup") >= refused);
    assert_eq!(lost(&recorder, "libmpi:MPI_Comm_dup"), refused);

    let mut alice = Rank::ready(dir.path(), &cgroup, ALICE);
    alice.makes(20, true);
    alice.makes(1_100, false);
    let made = |calls: &[Collective], func: &str| calls.iter().filter(|call| call.func == func).count();
    let all = |calls: Vec<Collective>| (made(&calls, "barrier"), made(&calls, "comm_dup")) == (1_123, 1_120);
    wait_for("all calls of the other user's rank", || all(alice.calls(&recorder)));
    let mut calls = alice.calls(&recorder);
    calls.retain(|call| ["barrier", "comm_dup"].contains(&call.func));
    assert!(calls.iter().all(|call| call.comm_hash.is_some() && call.seq.is_some() && call.comm_seq.is_some()));
    let comms: HashSet<_> = calls.iter().filter(|call| call.func == "barrier").map(|call| call.comm_hash).collect();
    assert_eq!(comms.len(), 1 + 20 + 1_100);
    assert_eq!(held(ALICE, COMM), 21, "what is freed takes no room");

    drop(hers);
    wait_for("her room to be given back", || held(MALLORY, COMM) == 0 && held(MALLORY, PROCESS) == 0);
    assert_eq!((held(ALL, COMM), held(ALL, PROCESS)), (21, 1));
    let mut again = Rank::ready(dir.path(), &cgroup, MALLORY);
    again.makes(10, true);
    assert_eq!(held(MALLORY, COMM), 11);
    drop((again, alice));
    wait_for("all room to be given back", || held(ALL, COMM) == 0 && held(ALL, PROCESS) == 0);
}

#[test]
fn what_is_not_made_and_requests_that_have_ended_take_no_room() {
    if !can_be_others() {
        return;
    }
    let _alone = alone();
    let (dir, cgroup, library) = prepared();
    let recorder = Recorder::start(CaptureConfig { ring_bytes: 64 << 20, ..cgroup.capturing([library]) });
    let mut rank = Rank::ready(dir.path(), &cgroup, ALICE);
    for (count, how, left) in [(1_600, 2, 0), (1_605, 3, 5)] {
        rank.tell(&format!("{count} {how}\n"));
        assert_eq!(rank.says(), "done\n");
        assert_eq!(held(ALICE, BEGUN), left, "those that nobody has waited for");
    }
    assert_eq!(lost(&recorder, "libmpi:MPI_Ibarrier"), 0);
    // The map takes no more: as if others had filled it.
    let maps = kernel_maps("comms");
    let key = |number: u64| [7_u64.to_ne_bytes(), number.to_ne_bytes()].concat();
    for map in &maps {
        let value = vec![0; map.value_size() as usize];
        let full = (0..100_000).find(|number| map.update(&key(*number), &value, MapFlags::NO_EXIST).is_err());
        assert!(full.is_some());
    }
    rank.makes(20, true);
    assert_eq!(held(ALICE, COMM), 1, "its world");
    wait_for("the losses to be counted", || lost(&recorder, "libmpi:MPI_Comm_dup") >= 20);
}

#[test]
fn the_users_of_her_own_namespace_are_counted_as_hers() {
    const WITHIN: u32 = 100_000;
    if !can_be_others() {
        return;
    }
    let _alone = alone();
    let (dir, cgroup, library) = prepared();
    let recorder = Recorder::start(cgroup.capturing([library]));
    let mut rank = Rank::outside(dir.path(), MALLORY, &["within"]);
    if rank.says() != "within\n" {
        return eprintln!("skipped: users may make no user namespaces here");
    }
    let pid = rank.job.0.id();
    fs::write(format!("/proc/{pid}/uid_map"), format!("7 {WITHIN} 1")).unwrap();
    rank.join(&cgroup);
    assert!(!kernel_keys("rooms").contains(&pid));
    rank.tell("7\n");
    wait_for("it to be followed before its first call", || kernel_keys("tracked").contains(&pid));
    assert_eq!([MALLORY, WITHIN].map(|user| held(user, PROCESS)), [1, 0], "as user space counts");
    let mut other = Rank::outside(dir.path(), MALLORY, &["within"]);
    assert_eq!(other.says(), "within\n");
    fs::write(format!("/proc/{}/uid_map", other.job.0.id()), format!("7 {} 1", WITHIN + 1)).unwrap();
    other.tell("7\n");
    let exe = || fs::read(format!("/proc/{}/cmdline", other.job.0.id())).unwrap();
    wait_for("it to begin anew", || !exe().ends_with(b"within\0"));
    std::thread::sleep(Duration::from_secs(1)); // it is new no more: nobody looks at it
    other.join(&cgroup);
    other.makes(3, true);
    assert_eq!([MALLORY, WITHIN, WITHIN + 1].map(|user| held(user, PROCESS)), [2, 0, 0], "as the programs do");
    assert_eq!([MALLORY, WITHIN, WITHIN + 1].map(|user| held(user, COMM)), [4, 0, 0]);
    let users = |record: Record| if let Record::Process(of) = record { of.uid } else { None };
    let known = || recorder.so_far().into_iter().filter_map(users).collect::<HashSet<_>>();
    wait_for("both to be known as whom they are", || known() == HashSet::from([WITHIN, WITHIN + 1]));
}

/// As if a user had so many processes more than there are.
fn pretend(user: u32, processes: i64) {
    for map in kernel_maps("users") {
        for user in [user, ALL] {
            let key = user.to_ne_bytes();
            let mut value = map.lookup(&key, MapFlags::ANY).unwrap().unwrap_or_else(|| vec![0; 128]);
            value[..8].copy_from_slice(&processes.to_ne_bytes());
            map.update(&key, &value, MapFlags::ANY).unwrap();
        }
    }
}

#[test]
fn processes_without_end_leave_room_for_others_and_she_is_told() {
    if !can_be_others() {
        return;
    }
    let _alone = alone();
    let (dir, cgroup, library) = prepared();
    let recorder = Recorder::start(cgroup.capturing([library]));
    pretend(MALLORY, MOST_PROCESSES / 2 - 2);
    let _two = [0; 2].map(|_| Rank::ready(dir.path(), &cgroup, MALLORY));
    assert_eq!(held(MALLORY, PROCESS), MOST_PROCESSES / 2);
    let mut third = Rank::start(dir.path(), &cgroup, MALLORY);
    third.makes(5, true);
    let mut alice = Rank::ready(dir.path(), &cgroup, ALICE);
    alice.makes(5, true);
    wait_for("both ranks' calls", || alice.calls(&recorder).len() >= 12 && third.calls(&recorder).len() >= 11);
    let followed = kernel_keys("tracked");
    assert!(followed.contains(&alice.job.0.id()) && !followed.contains(&third.job.0.id()));
    assert!(third.calls(&recorder).iter().all(|call| call.seq.is_none()), "of no communicator that is known");
    for map in ["rooms", "comms", "mpi_processes", "capturing"] {
        assert!(!kernel_keys(map).contains(&third.job.0.id()), "{map}: what is not followed has no entries");
    }
    assert!(alice.calls(&recorder).iter().filter(|call| call.func == "barrier").all(|call| call.seq.is_some()));
    wait_for("a note of hers", || recorder.status().problems.iter().any(|note| note.contains("user 65534 has 8192")));
    wait_for("the loss to be counted", || lost(&recorder, "sched_process") > 0);
}
