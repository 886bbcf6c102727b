//! Agents as processes on loopback that serve the stores of a day, asked through the command line.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use certs::Authority;
use query_planner::Value;

use super::oracle::of_json;
use crate::store_bench::child::memory_bytes;

/// An agent is waited for at most this long.
const PATIENCE: Duration = Duration::from_secs(120);
/// Older than any row: nothing is dropped while answers are compared.
const KEEP: &str = "36500d";

/// `rankmesh` beside this program, or RANKMESH_BINARY.
///
/// # Errors
/// This program's own place is not known.
pub fn binary() -> anyhow::Result<PathBuf> {
    Ok(match std::env::var_os("RANKMESH_BINARY") {
        Some(path) => path.into(),
        None => std::env::current_exe()?.with_file_name("rankmesh"),
    })
}

/// A running agent; killed when dropped.
#[derive(Debug)]
pub struct Agent {
    /// Its node's name.
    pub name: String,
    child: Child,
    dir: PathBuf,
}

/// What came of a question.
#[derive(Debug)]
pub enum Outcome {
    /// Every node is in it.
    Complete(Vec<Vec<Value>>),
    /// It failed, or a node is missing: why.
    Failed(String),
}

/// What an agent is started with: its place, its store and whom to join.
#[derive(Debug, Clone)]
pub struct AgentPaths {
    /// Its node's name.
    pub name: String,
    /// Its directory: identity, socket, log.
    pub dir: PathBuf,
    /// Its store.
    pub store: PathBuf,
    /// An agent of the mesh.
    pub join: Option<String>,
}

impl AgentPaths {
    /// A directory with an identity of `authority` for the agent of `store`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn prepare(
        below: &Path,
        name: &str,
        store: &Path,
        authority: &Authority,
        join: Option<String>,
    ) -> anyhow::Result<Self> {
        let dir = below.join(format!("{name}.agent"));
        std::fs::create_dir(&dir)?;
        authority.issue(&name.parse()?, Duration::from_secs(86_400))?.save(&dir.join("identity"))?;
        Ok(Self { name: name.to_owned(), dir, store: store.to_path_buf(), join })
    }

    /// `rankmesh up` for it.
    ///
    /// # Errors
    /// The binary's place is not known.
    pub fn up(&self) -> anyhow::Result<Command> {
        let mut command = Command::new(binary()?);
        command.args(["up", "--name", &self.name, "--listen", "127.0.0.1:0", "--capture", "off"]);
        command.args(["--store-max-age", KEEP, "--store-max-mib", "1048576"]);
        command.arg("--identity").arg(self.dir.join("identity"));
        command.arg("--socket").arg(self.dir.join("socket")).arg("--store").arg(&self.store);
        if let Some(join) = &self.join {
            command.args(["--join", join]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(command)
    }
}

impl Agent {
    /// Starts an agent by a command and waits until it answers.
    ///
    /// # Errors
    /// It does not.
    pub fn start(place: &AgentPaths, mut command: Command) -> anyhow::Result<Self> {
        let child = command.stderr(File::create(place.dir.join("log"))?).spawn().context("starting an agent")?;
        let mut agent = Self { name: place.name.clone(), child, dir: place.dir.clone() };
        let until = Instant::now() + PATIENCE;
        while agent.nodes().map_or(true, |nodes| nodes.is_empty()) {
            let ended = agent.child.try_wait()?;
            if ended.is_some() || Instant::now() >= until {
                let log = std::fs::read_to_string(agent.dir.join("log")).unwrap_or_default();
                bail!("{} does not answer ({ended:?}): {log}", agent.name);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(agent)
    }

    /// Waits until it lists `count` live nodes.
    ///
    /// # Errors
    /// It does not.
    pub fn wait_for(&self, count: usize) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let live = self.nodes()?.iter().filter(|node| node["state"] == "live").count();
            if live == count {
                return Ok(());
            }
            ensure!(Instant::now() < until, "{} knows {live} of {count} nodes", self.name);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn command(&self, what: &str) -> anyhow::Result<Command> {
        let mut command = Command::new(binary()?);
        command.arg(what).arg("--socket").arg(self.dir.join("socket")).stdin(Stdio::null());
        Ok(command)
    }

    fn nodes(&self) -> anyhow::Result<Vec<serde_json::Value>> {
        let nodes = self.command("nodes")?.args(["--format", "json"]).stderr(Stdio::null()).output()?;
        Ok(serde_json::from_slice(&nodes.stdout)?)
    }

    /// Where others reach it.
    ///
    /// # Errors
    /// It does not say.
    pub fn address(&self) -> anyhow::Result<String> {
        let nodes = self.nodes()?;
        let own = nodes.iter().find(|node| node["name"] == self.name.as_str());
        own.and_then(|node| node["address"].as_str()).map(str::to_owned).context("no address")
    }

    /// Asks as a person at the command line does; how long that took from its start to its end.
    ///
    /// # Errors
    /// The command line cannot be run, or prints what is no JSON.
    pub fn ask(&self, sql: &str, timeout: &str) -> anyhow::Result<(Outcome, Duration)> {
        let began = Instant::now();
        let output = self.command("query")?.args(["--format", "json", "--timeout", timeout, "--", sql]).output()?;
        let took = began.elapsed();
        if output.status.code() != Some(0) {
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            return Ok((Outcome::Failed(format!("exit code {:?}: {}", output.status.code(), stderr.trim())), took));
        }
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).context("the answer's JSON")?;
        let rows = answer["rows"].as_array().context("rows")?.iter();
        let cells = |row: &serde_json::Value| row.as_array().into_iter().flatten().map(of_json).collect();
        Ok((Outcome::Complete(rows.map(cells).collect()), took))
    }

    /// The questions behind the verdict on the last seconds, with their titles, and the verdict's
    /// kind.
    ///
    /// # Errors
    /// There is no verdict.
    pub fn investigation(&self, since: Duration) -> anyhow::Result<(String, Vec<(String, String)>)> {
        let since = format!("{}s", since.as_secs());
        let flags = ["--since", &since, "--format", "json", "--show-sql", "--timeout", "100s"];
        let output = self.command("stragglers")?.args(flags).output()?;
        ensure!(output.status.success(), "stragglers: {}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let shown = report["sql"].as_array().context("no questions are shown")?.iter();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let shown = shown.map(|shown| (text(&shown["title"]), text(&shown["sql"]))).filter(|(_, sql)| !sql.is_empty());
        Ok((report["verdict"]["kind"].to_string(), shown.collect()))
    }

    /// Processor time so far, user and system.
    ///
    /// # Errors
    /// The process is gone.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // Fields 14 and 15, in hundredths of a second on Linux; the second, in parentheses, may
        // hold blanks.
        let after = stat.rsplit_once(')').context("a process's line")?.1;
        let ticks: u64 = after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        Ok(Duration::from_millis(ticks * 10))
    }

    /// The most memory that it ever had, bytes.
    ///
    /// # Errors
    /// The process is gone.
    pub fn peak_bytes(&self) -> anyhow::Result<u64> {
        memory_bytes(&self.child.id().to_string(), "VmHWM:")
    }

    /// Tells a child that reads lines one word.
    ///
    /// # Errors
    /// It reads none.
    pub fn tell(&mut self, word: &str) -> anyhow::Result<()> {
        let stdin = self.child.stdin.as_mut().context("it reads nothing")?;
        writeln!(stdin, "{word}")?;
        Ok(stdin.flush()?)
    }

    /// What a child prints.
    pub fn stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
