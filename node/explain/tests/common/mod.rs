//! Programs that run on the interpreters of this machine.
#![allow(dead_code, unused_imports, missing_docs, clippy::unwrap_used)]

mod pythons;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) use pythons::pythons;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// A running scenes.py; killed when dropped.
pub(crate) struct Scenes {
    pub(crate) child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(crate) threads: BTreeMap<String, u32>,
}

impl Scenes {
    pub(crate) fn start(mut command: Command, arguments: &[&str]) -> Scenes {
        let mut child = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .env("PYTHONIOENCODING", "utf-8")
            .env("PYTHONUTF8", "1")
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let threads = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        Scenes { child, input, output, threads }
    }

    /// CPython's own view of its threads: by thread id (function, file, line), innermost first.
    pub(crate) fn own_view(&mut self) -> BTreeMap<u32, Vec<(String, String, u32)>> {
        self.input.write_all(b"\n").unwrap();
        self.input.flush().unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }
}

impl Drop for Scenes {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tries until it succeeds; after PATIENCE fails with the error of the last attempt.
pub(crate) fn eventually<T>(mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(why) if start.elapsed() > PATIENCE => panic!("{why}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
