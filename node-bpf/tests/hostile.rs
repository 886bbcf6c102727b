//! A user who would harm the recorder of everybody: files that claim gigabytes, hundreds of files,
//! probes on a file system that is to be unmounted, a process that says it is of another's job.
//! The attacker is uid 65534; each runs beside somebody innocent, who is recorded.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Cgroup, Job, Recorder, can_be_others, compiled, open_directory, wait_for, workloads};
use node_bpf::{CaptureConfig, Collective, Record};

const MALLORY: u32 = 65_534;
const ALICE: u32 = 54_321;

/// Maps a page of each of its arguments as code.
const MAPS: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int count, char **paths) {
  for (int i = 1; i < count; i++) {
    int file = open(paths[i], O_RDONLY);
    if (file < 0 || mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED) return perror(paths[i]), 1;
    close(file);
  }
  puts("mapped");
  fflush(stdout);
  getchar();
  return 0;
}
"#;

/// A process of a user that has these files mapped until it is dropped.
fn maps(dir: &Path, user: u32, files: &[PathBuf]) -> Job {
    let program = dir.join("maps");
    let program = if program.exists() { program } else { compiled(dir, "maps", MAPS, &[]) };
    let mut command = Command::new(program);
    command.args(files).uid(user).gid(user).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut job = Job(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(job.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "mapped\n");
    job
}

fn copies(library: &Path, dir: &Path, name: &str, count: usize) -> Vec<PathBuf> {
    let copy = |n: usize| {
        let of = dir.join(format!("{name}-{n}"));
        fs::create_dir_all(&of).unwrap();
        let path = of.join("libnccl.so.2");
        fs::copy(library, &path).unwrap();
        path
    };
    (0..count).map(copy).collect()
}

fn probes(recorder: &Recorder, path: &Path) -> bool {
    recorder.status().files.iter().any(|file| file.path == path)
}

fn nobodys_processes() -> CaptureConfig {
    CaptureConfig { system_libraries: false, ..CaptureConfig::default() }
}

fn peak_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

/// A library whose `.dynsym` is said to have two gigabytes; the file has a few kilobytes.
fn claims_gigabytes(library: &Path, path: &Path) {
    const CLAIMED: u64 = (2 << 30) / 24 * 24;
    fs::copy(library, path).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut bytes = vec![];
    File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let half = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap());
    let (headers, count) = (word(40) as usize, usize::from(half(60)));
    let kind = |n: usize| u32::from_le_bytes(bytes[headers + n * 64 + 4..headers + n * 64 + 8].try_into().unwrap());
    let dynsym = (0..count).find(|n| kind(*n) == 11).unwrap();
    let at = (headers + dynsym * 64) as u64;
    file.set_len(bytes.len() as u64 + CLAIMED).unwrap();
    file.write_at(&(bytes.len() as u64).to_le_bytes(), at + 24).unwrap();
    file.write_at(&CLAIMED.to_le_bytes(), at + 32).unwrap();
}

#[test]
fn a_file_that_claims_gigabytes_costs_no_memory_and_hinders_nobody() {
    if !can_be_others() {
        return;
    }
    let (dir, library) = (open_directory(), workloads().join("libnccl.so.2"));
    let recorder = Recorder::start(nobodys_processes());
    let hostile = copies(&library, dir.path(), "hostile", 1).remove(0);
    claims_gigabytes(&library, &hostile);
    let before = peak_mib();
    let _mallory = maps(dir.path(), MALLORY, &[hostile]);
    let innocent = copies(&library, dir.path(), "innocent", 1).remove(0);
    let _alice = maps(dir.path(), ALICE, std::slice::from_ref(&innocent));
    wait_for("another user's library to be probed", || probes(&recorder, &innocent));
    wait_for("the file to be refused", || {
        recorder.status().problems.iter().any(|problem| problem.contains(".dynsym claims"))
    });
    let grown = peak_mib() - before;
    assert!(grown < 512, "it took {grown} MiB");
}

#[test]
fn hundreds_of_files_of_one_user_leave_room_for_others_and_are_given_back() {
    if !can_be_others() {
        return;
    }
    let (dir, library) = (open_directory(), workloads().join("libnccl.so.2"));
    let recorder = Recorder::start(nobodys_processes());
    let many = copies(&library, dir.path(), "\x1b[31mmany", 300);
    let mallory = maps(dir.path(), MALLORY, &many);
    let of_hers = |recorder: &Recorder| {
        let files = recorder.status().files;
        files.iter().filter(|file| many.contains(&file.path)).count()
    };
    wait_for("her share to be probed", || of_hers(&recorder) >= 64);
    let innocent = copies(&library, dir.path(), "innocent", 1).remove(0);
    let _alice = maps(dir.path(), ALICE, std::slice::from_ref(&innocent));
    wait_for("another user's library to be probed", || probes(&recorder, &innocent));
    assert_eq!(of_hers(&recorder), 64);
    let problems = recorder.status().problems;
    let of_user = problems.iter().filter(|problem| problem.contains("65534"));
    assert_eq!(of_user.count(), 1, "one note: {problems:?}");
    assert!(problems.len() < 20 && problems.iter().all(|p| !p.contains('\x1b') && p.len() < 1_000), "{problems:?}");
    drop(mallory);
    wait_for("her share to be given back", || of_hers(&recorder) == 0);
    let _again = maps(dir.path(), MALLORY, &many[299..]);
    wait_for("her next library to be probed", || probes(&recorder, &many[299]));
}

/// A file system that is unmounted when this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn unmount(&self) -> bool {
        Command::new("umount").arg(&self.0).stderr(Stdio::null()).status().unwrap().success()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let lazily = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
        assert!(lazily.is_ok());
    }
}

#[test]
fn a_file_system_of_a_job_can_be_unmounted_when_the_job_has_ended() {
    if !can_be_others() {
        return;
    }
    let (dir, library) = (open_directory(), workloads().join("libnccl.so.2"));
    let at = dir.path().join("job");
    fs::create_dir(&at).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&at).status().unwrap();
    if !mounted.success() {
        return eprintln!("skipped: no tmpfs can be mounted here");
    }
    let mounted = Mounted(at.clone());
    let path = copies(&library, &at, "its", 1).remove(0);
    let recorder = Recorder::start(nobodys_processes());
    let job = maps(dir.path(), ALICE, std::slice::from_ref(&path));
    wait_for("the library to be probed", || probes(&recorder, &path));
    assert!(!mounted.unmount(), "it is in use");
    drop(job);
    wait_for("the file system to be unmounted", || mounted.unmount());
    assert!(!probes(&recorder, &path));
}

/// A library and a program in the form of Open MPI's: it makes a barrier for each line it is given.
const FAKE_MPI: &str = "int ompi_mpi_comm_world[64]; int MPI_Barrier(void *comm) { return comm == 0; }\n";
const FAKE_RANK: &str = r#"
#include <stdio.h>
extern int ompi_mpi_comm_world[];
int MPI_Barrier(void *);
int main(void) {
  char line[16];
  while (fgets(line, sizeof line, stdin)) {
    MPI_Barrier(ompi_mpi_comm_world);
    puts("done");
    fflush(stdout);
  }
  return 0;
}
"#;

struct FakeRank {
    job: Job,
    printed: BufReader<std::process::ChildStdout>,
}

impl FakeRank {
    /// Rank 0 of four, by its own words.
    fn start(dir: &Path, cgroup: &Cgroup, user: u32) -> FakeRank {
        let mut command = Command::new(dir.join("rank"));
        command.env("LD_LIBRARY_PATH", dir).env("PMIX_NAMESPACE", "prterun-h1-4711@1").env("PMIX_RANK", "0");
        command.env("OMPI_COMM_WORLD_SIZE", "4").env("OMPI_COMM_WORLD_RANK", "0").env("SLURM_JOB_ID", "812");
        command.uid(user).gid(user).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut job = Job(command.spawn().unwrap());
        fs::write(cgroup.0.join("cgroup.procs"), job.0.id().to_string()).unwrap();
        let printed = BufReader::new(job.0.stdout.take().unwrap());
        FakeRank { job, printed }
    }

    fn call(&mut self) {
        self.job.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        self.printed.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }
}

#[test]
fn a_process_of_another_user_that_claims_a_rank_of_a_job_is_in_no_communicator_of_it() {
    if !can_be_others() {
        return;
    }
    let (dir, cgroup) = (open_directory(), Cgroup::new());
    let library = compiled(dir.path(), "libmpi.so.40", FAKE_MPI, &["-shared", "-fPIC"]);
    compiled(dir.path(), "rank", FAKE_RANK, &[&library.display().to_string()]);
    let recorder = Recorder::start(cgroup.capturing([library]));
    let mut ranks: Vec<FakeRank> =
        [ALICE, ALICE, MALLORY].map(|user| FakeRank::start(dir.path(), &cgroup, user)).into();
    let mut calls: Vec<Collective> = vec![];
    for rank in &mut ranks {
        rank.call();
        let pid = rank.job.0.id();
        wait_for("its call to be recorded", || {
            let records = recorder.so_far();
            let of = |record| if let Record::Collective(call) = record { Some(call) } else { None };
            let found = records.into_iter().filter_map(of).find(|call| call.pid == pid);
            calls.extend(found.clone());
            found.is_some()
        });
    }
    let hashes: Vec<_> = calls.iter().map(|call| call.comm_hash.unwrap()).collect();
    assert_eq!(hashes[0], hashes[1], "one job of one user");
    assert_ne!(hashes[0], hashes[2], "another user's is another");
    assert!(calls.iter().all(|call| call.rank == Some(0) && call.nranks == Some(4)));
}
