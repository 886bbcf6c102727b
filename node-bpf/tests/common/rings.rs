//! Shared parts of the tests of shims: a program that has one in it, and the rings with its
//! records.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver};

use node_bpf::Record;
use node_bpf::rings::Rings;

/// A program that prints a line when its work is done, then waits until it is ended.
pub(crate) struct Program(Child);

impl Program {
    /// A program at `path` that finds its rings in `rings`.
    pub(crate) fn command(path: &Path, rings: &Path) -> Command {
        let mut command = Command::new(path);
        command.env("RANKMESH_RING_DIR", rings).env_remove("SLURMD_NODENAME");
        command
    }

    /// Starts `command`; returns when it has printed `word` and a number.
    pub(crate) fn start<N: FromStr>(command: &mut Command, word: &str) -> (Program, N) {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("works");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("works")).read_line(&mut line).expect("works");
        let number = line.trim().strip_prefix(word).expect("every call returned what it should");
        (Program(child), number.trim().parse().ok().expect("a number"))
    }

    /// Ends it and asserts success.
    pub(crate) fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("works").success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads the rings in a directory.
pub(crate) fn read(rings: &Path) -> (Rings, Receiver<Record>) {
    let (sender, receiver) = mpsc::channel();
    let sink = Box::new(move |record| drop(sender.send(record)));
    (Rings::start(rings, None, sink).expect("works"), receiver)
}
