//! Processes that this one talks to by lines: callers, MPI jobs and the recorder.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, ensure};

/// A process that answers each line with a line.
pub(super) struct LineProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl LineProcess {
    pub(super) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.with_context(|| format!("starting {command:?}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take().context("its output")?);
        Ok(LineProcess { child, input, output: BufReader::new(output) })
    }

    pub(super) fn recorder(libraries: &[PathBuf]) -> anyhow::Result<Self> {
        let mut recorder =
            LineProcess::start(Command::new(std::env::current_exe()?).args(["capture", "--record"]).args(libraries))?;
        ensure!(recorder.line()? == "ready", "the recorder did not start");
        Ok(recorder)
    }

    pub(super) fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "the process ended");
        Ok(line.trim().to_owned())
    }

    pub(super) fn ask(&mut self, line: &str) -> anyhow::Result<f64> {
        writeln!(self.input.as_mut().context("its input")?, "{line}")?;
        Ok(self.line()?.parse()?)
    }

    /// Closes its input; returns the rest of its output.
    pub(super) fn end(mut self) -> anyhow::Result<String> {
        drop(self.input.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest)?;
        self.child.wait()?;
        Ok(rest)
    }
}

impl Drop for LineProcess {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill(); // gone already is as good
        let _ = self.child.wait();
    }
}
