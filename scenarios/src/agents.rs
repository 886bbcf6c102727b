//! Agents as processes on loopback, asked through the command line.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use certs::Authority;
use query_planner::Value;

use crate::day::oracle::of_json;
use crate::figures::{cpu_time_of, memory_bytes};

/// An agent is waited for at most this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// `rankmesh` beside this program, or RANKMESH_BINARY.
///
/// # Errors
/// It is not there.
pub fn binary() -> anyhow::Result<PathBuf> {
    let binary = match std::env::var_os("RANKMESH_BINARY") {
        Some(path) => path.into(),
        None => std::env::current_exe()?.with_file_name("rankmesh"),
    };
    ensure!(binary.exists(), "{} is not there: build it beside this program", binary.display());
    Ok(binary)
}

/// What a command prints as JSON.
///
/// # Errors
/// It fails, or prints something else.
pub fn rankmesh<S: AsRef<OsStr>>(
    what: &str,
    arguments: impl IntoIterator<Item = S>,
) -> anyhow::Result<serde_json::Value> {
    let mut command = Command::new(binary()?);
    command.args([what, "--format", "json"]).args(arguments);
    let output = command.stdin(Stdio::null()).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {} {stderr}", output.status);
    serde_json::from_slice(&output.stdout).with_context(|| format!("{command:?}: {stderr}"))
}

/// Makes the directory of the agent `name`, with an identity of `authority`.
///
/// # Errors
/// It cannot be written.
pub fn place(below: &Path, name: &str, authority: &Authority) -> anyhow::Result<PathBuf> {
    let dir = below.join(format!("{name}.agent"));
    std::fs::create_dir(&dir)?;
    authority.issue(&name.parse()?, Duration::from_secs(86_400))?.save(&dir.join("identity"))?;
    Ok(dir)
}

/// `rankmesh up` for the agent `name`, whose identity and socket are in `dir`.
///
/// # Errors
/// There is no binary.
pub fn up(name: &str, dir: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(binary()?);
    command.args(["up", "--name", name, "--listen", "127.0.0.1:0"]);
    command.arg("--identity").arg(dir.join("identity")).arg("--socket").arg(dir.join("socket"));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command)
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

impl Agent {
    /// Starts the agent of the directory `dir` by a command and waits until it answers. What it says
    /// is in the file `log` there.
    ///
    /// # Errors
    /// It does not.
    pub fn start(name: &str, dir: &Path, mut command: Command) -> anyhow::Result<Self> {
        let child = command.stderr(File::create(dir.join("log"))?).spawn().context("starting an agent")?;
        let mut agent = Self { name: name.to_owned(), child, dir: dir.to_path_buf() };
        let until = Instant::now() + PATIENCE;
        while agent.nodes().map_or(true, |nodes| nodes.is_empty()) {
            let ended = agent.child.try_wait()?;
            if ended.is_some() || Instant::now() >= until {
                bail!("{} does not answer ({ended:?}): {}", agent.name, agent.log()?);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(agent)
    }

    /// What it has said so far.
    ///
    /// # Errors
    /// Its log cannot be read.
    pub fn log(&self) -> anyhow::Result<String> {
        Ok(std::fs::read_to_string(self.dir.join("log"))?)
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join("socket")
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
        command.arg(what).arg("--socket").arg(self.socket()).stdin(Stdio::null());
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
        let socket = self.socket().display().to_string();
        let report =
            rankmesh("stragglers", ["--socket", &socket, "--since", &since, "--show-sql", "--timeout", "100s"])?;
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
        Ok(cpu_time_of(self.pid())?)
    }

    /// The most memory that it ever had, bytes.
    ///
    /// # Errors
    /// The process is gone.
    pub fn peak_bytes(&self) -> anyhow::Result<u64> {
        memory_bytes(&self.pid().to_string(), "VmHWM:")
    }

    /// Ends it in good order.
    ///
    /// # Errors
    /// It ends otherwise.
    pub fn stop(mut self) -> anyhow::Result<()> {
        // SAFETY: a signal to our own child, which was not yet waited for.
        unsafe { libc::kill(self.child.id().cast_signed(), libc::SIGTERM) };
        let status = self.child.wait()?;
        ensure!(status.success(), "the agent ended with {status}: {}", self.log()?);
        Ok(())
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
