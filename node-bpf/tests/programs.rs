//! Programs that change what /proc says of them: `setproctitle` writes over the environment, `exec`
//! puts another program into the same process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Cgroup, Job, Recorder, can_capture, wait_for};
use node_bpf::{Collective, Record};

/// In the form of Open MPI's library.
const FAKE_MPI: &str = "int ompi_mpi_comm_world[64]; int MPI_Barrier(void *comm) { return comm == 0; }\n";

/// Does what it reads, a line each: `title` as the Python module setproctitle and PostgreSQL do it,
/// `lose` the same without keeping the variables, `call` loads the library and makes a barrier,
/// `exec N` begins this program anew with another rank.
const RANK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
extern char **environ;
static void title(char **words, int keep) {
  int count = 0;
  while (environ[count]) count++;
  char *end = environ[count - 1] + strlen(environ[count - 1]);
  char **moved = calloc(count + 1, sizeof *moved);
  for (int i = 0; keep && i < count; i++) moved[i] = strdup(environ[i]);
  environ = moved;
  memset(words[0], 0, end - words[0]);
  strcpy(words[0], "train: worker");
}
int main(int count, char **words) {
  char line[64], library[4096];
  strcpy(library, words[1]);
  setvbuf(stdin, 0, _IONBF, 0);
  while (fgets(line, sizeof line, stdin)) {
    if (!strcmp(line, "title\n")) title(words, 1);
    if (!strcmp(line, "lose\n")) title(words, 0);
    if (!strcmp(line, "call\n")) {
      void *mpi = dlopen(library, RTLD_NOW);
      int (*barrier)(void *) = (int (*)(void *))dlsym(mpi, "MPI_Barrier");
      barrier(dlsym(mpi, "ompi_mpi_comm_world"));
    }
    if (!strncmp(line, "exec ", 5)) {
      line[strlen(line) - 1] = 0;
      setenv("OMPI_COMM_WORLD_RANK", line + 5, 1);
      setenv("PMIX_RANK", line + 5, 1);
      puts("done");
      fflush(stdout);
      execl("/proc/self/exe", words[0], library, (char *)0);
    }
    puts("done");
    fflush(stdout);
  }
  return 0;
}
"#;

fn compiled(dir: &Path, name: &str, source: &str, flags: &[&str]) {
    let code = dir.join(format!("{name}.c"));
    fs::write(&code, source).unwrap();
    let made = Command::new("cc").arg("-o").arg(dir.join(name)).arg(&code).args(flags).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// The programs, in a directory that is removed with the value.
fn programs() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    compiled(dir.path(), "libmpi.so.40", FAKE_MPI, &["-shared", "-fPIC"]);
    compiled(dir.path(), "rank", RANK, &["-ldl"]);
    compiled(dir.path(), "rank-with-its-own-environ", RANK, &["-ldl", "-no-pie", "-fno-pie"]);
    dir
}

struct Rank {
    job: Job,
    printed: BufReader<std::process::ChildStdout>,
}

impl Rank {
    /// Rank 3 of eight.
    fn start(dir: &Path, cgroup: &Cgroup, program: &str) -> Rank {
        let library = dir.join("libmpi.so.40");
        let mut command = Command::new(dir.join(program));
        command.arg(&library).env("PMIX_NAMESPACE", "prterun-h1-4711@1");
        command.env("PMIX_RANK", "3").env("OMPI_COMM_WORLD_RANK", "3").env("OMPI_COMM_WORLD_SIZE", "8");
        command.env("SLURM_JOB_ID", "812").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut job = Job(command.spawn().unwrap());
        fs::write(cgroup.0.join("cgroup.procs"), job.0.id().to_string()).unwrap();
        let printed = BufReader::new(job.0.stdout.take().unwrap());
        Rank { job, printed }
    }

    fn does(&mut self, what: &str) {
        writeln!(self.job.0.stdin.as_mut().unwrap(), "{what}").unwrap();
        let mut line = String::new();
        self.printed.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }

    /// Its recorded calls, when there are so many.
    fn calls(&self, recorder: &Recorder, count: usize) -> Vec<Collective> {
        let mut calls = vec![];
        wait_for("its calls to be recorded", || {
            let of = |record| if let Record::Collective(call) = record { Some(call) } else { None };
            let made = recorder.so_far().into_iter().filter_map(of).filter(|call| call.pid == self.job.0.id());
            calls = made.collect();
            calls.len() >= count
        });
        calls
    }
}

#[test]
fn a_rank_that_has_changed_its_title_is_the_rank_that_it_was() {
    if !can_capture() {
        return;
    }
    let dir = programs();
    for program in ["rank", "rank-with-its-own-environ"] {
        let cgroup = Cgroup::new();
        let recorder = Recorder::start(cgroup.capturing([dir.path().join("libmpi.so.40")]));
        let mut rank = Rank::start(dir.path(), &cgroup, program);
        rank.does("title");
        let shown = fs::read(format!("/proc/{}/environ", rank.job.0.id())).unwrap();
        assert!(!shown.windows(9).any(|part| part == b"PMIX_RANK"), "its environment is overwritten");
        rank.does("call");
        let call = rank.calls(&recorder, 1).remove(0);
        assert_eq!((call.rank, call.nranks, call.job_id.as_deref()), (Some(3), Some(8), Some("812")), "{program}");
        assert!(call.comm_hash.is_some(), "{call:?}");
        let pid = rank.job.0.id();
        wait_for("the process to be reported with its rank", || {
            recorder.so_far().iter().any(|r| matches!(r, Record::Process(p) if p.pid == pid && p.rank == Some(3)))
        });
        let problems = recorder.status().problems;
        assert!(!problems.iter().any(|problem| problem.contains("setproctitle")), "{problems:?}");
    }
}

#[test]
fn a_rank_whose_environment_is_gone_is_said_to_be_unknown_and_why() {
    if !can_capture() {
        return;
    }
    let (dir, cgroup) = (programs(), Cgroup::new());
    let recorder = Recorder::start(cgroup.capturing([dir.path().join("libmpi.so.40")]));
    let mut rank = Rank::start(dir.path(), &cgroup, "rank");
    rank.does("lose");
    rank.does("call");
    assert_eq!(rank.calls(&recorder, 1).remove(0).rank, None);
    wait_for("a note", || recorder.status().problems.iter().any(|problem| problem.contains("setproctitle")));
}

#[test]
fn two_programs_of_one_process_are_two_rows() {
    if !can_capture() {
        return;
    }
    let (dir, cgroup) = (programs(), Cgroup::new());
    let recorder = Recorder::start(cgroup.capturing([dir.path().join("libmpi.so.40")]));
    let mut rank = Rank::start(dir.path(), &cgroup, "rank");
    rank.does("call");
    rank.calls(&recorder, 1);
    rank.does("exec 5");
    rank.does("call");
    let calls = rank.calls(&recorder, 2);
    assert_eq!(calls.iter().map(|call| call.rank).collect::<Vec<_>>(), [Some(3), Some(5)]);
    let pid = rank.job.0.id();
    let recorded = recorder.stop();
    let of = |record: &Record| if let Record::Process(p) = record { Some((p.pid, p.start_ns, p.rank)) } else { None };
    let rows: Vec<_> = recorded.0.iter().filter_map(of).filter(|(of, ..)| *of == pid).collect();
    let (first, last) = (rows.first().unwrap(), rows.last().unwrap());
    assert_eq!((first.2, last.2), (Some(3), Some(5)), "{rows:?}");
    assert!(calls[0].ts_ns < last.1 && last.1 <= calls[1].ts_ns, "the second began with its exec: {rows:?}");
    assert!(first.1 <= calls[0].ts_ns);
}

/// Of what one program may take of the verifier: a fifth of the limit of a million.
const MOST_VERIFIED: u64 = 200_000;

#[test]
fn programs_are_far_from_what_the_verifier_looks_at_at_most() {
    if !can_capture() {
        return;
    }
    let cgroup = Cgroup::new();
    let recorder = Recorder::start(cgroup.capturing([]));
    // Descriptors of programs say it (Linux 5.16 and later).
    let of_descriptor = |entry: std::io::Result<fs::DirEntry>| -> Option<u64> {
        let text = fs::read_to_string(entry.ok()?.path()).ok()?;
        text.lines().find_map(|line| line.strip_prefix("verified_insns:")?.trim().parse().ok())
    };
    let mut verified: Vec<u64> = fs::read_dir("/proc/self/fdinfo").unwrap().filter_map(of_descriptor).collect();
    drop(recorder);
    verified.sort_unstable();
    if verified.is_empty() {
        return eprintln!("skipped: what the verifier looked at: this kernel does not say");
    }
    assert!(verified.len() > 10 && verified.iter().all(|of| *of < MOST_VERIFIED), "{verified:?}");
}
