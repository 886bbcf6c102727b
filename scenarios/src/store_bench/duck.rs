//! DuckDB in a Python process of its own, given the same rows, asked in turns with the store.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::Value;

use super::generate::{Generator, write_csv};

const SCRIPT: &str = include_str!("duck.py");

/// A DuckDB database with the generated rows.
#[derive(Debug)]
pub struct Duck {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Size of its file.
    pub file_bytes: u64,
    /// Its version.
    pub version: String,
}

impl Duck {
    /// Starts Python from the virtual environment that `make bench NAME=store` made (or `python3`), and
    /// loads `rows` rows through a pipe.
    ///
    /// # Errors
    /// There is no Python with the `duckdb` package, or loading failed.
    pub fn load(python: &Path, dir: &Path, rows: u64) -> anyhow::Result<Self> {
        let pipe = dir.join("rows.csv");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).context("making a pipe")?;
        let duck = Self::start(python, &dir.join("duck.db"), &pipe)?;
        let mut out = BufWriter::with_capacity(1 << 20, std::fs::OpenOptions::new().write(true).open(&pipe)?);
        for row in Generator::new(rows) {
            write_csv(&row, &mut out)?;
        }
        out.flush()?;
        drop(out);
        duck.ready()
    }

    /// Starts Python as [`Duck::load`] does, with a view for each Parquet file of `directory`, by
    /// its name. Integers divide as in SQLite, and NULL comes where SQLite has it.
    ///
    /// # Errors
    /// There is no Python with the `duckdb` package, or the files cannot be read.
    pub fn over_parquet(python: &Path, directory: &Path) -> anyhow::Result<Self> {
        Self::start(python, Path::new(":memory:"), directory)?.ready()
    }

    fn start(python: &Path, database: &Path, source: &Path) -> anyhow::Result<Self> {
        let checked = Command::new(python).args(["-c", "import duckdb"]).output();
        ensure!(
            checked.as_ref().is_ok_and(|output| output.status.success()),
            "{} has no duckdb package: pip install duckdb",
            python.display()
        );
        let mut child = Command::new(python)
            .arg("-c")
            .arg(SCRIPT)
            .args([database, source])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let commands = child.stdin.take().context("no pipe to Python")?;
        let answers = BufReader::new(child.stdout.take().context("no pipe from Python")?);
        Ok(Self { child, commands, answers, file_bytes: 0, version: String::new() })
    }

    /// Its rows are there.
    fn ready(mut self) -> anyhow::Result<Self> {
        let loaded = self.answer()?;
        self.file_bytes = loaded["bytes"].as_u64().context("no size")?;
        self.version = loaded["version"].as_str().unwrap_or("?").to_owned();
        Ok(self)
    }

    fn answer(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        ensure!(self.answers.read_line(&mut line)? > 0, "DuckDB ended; its words are above");
        Ok(serde_json::from_str(&line)?)
    }

    /// Runs a statement; the seconds it took and its rows.
    ///
    /// # Errors
    /// DuckDB refused it.
    pub fn run(&mut self, sql: &str) -> anyhow::Result<(f64, Vec<Value>)> {
        writeln!(self.commands, "{}", sql.replace('\n', " "))?;
        let mut answer = self.answer()?;
        let seconds = answer["seconds"].as_f64().context("no time")?;
        let Value::Array(rows) = answer["rows"].take() else { anyhow::bail!("no rows") };
        Ok((seconds, rows))
    }
}

impl Drop for Duck {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The Python of the virtual environment that the Makefile makes, else the system's.
#[must_use]
pub fn python() -> PathBuf {
    let own = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/duckdb/bin/python"));
    if own.exists() { own } else { PathBuf::from("python3") }
}
