//! A small lab for tests of the real binary: agents as processes on loopback, each with its own
//! identity, asked through the command line. Everything waits on predicates with a deadline;
//! dropping the lab kills what it started.
// Each test binary uses its own part of it.
#![allow(dead_code, unreachable_pub)]

pub mod chromium;
pub mod http;
pub mod job_stores;
pub mod jobs;
pub mod netns;
pub mod pair;
pub mod python;
pub mod requests;
pub mod slurm;
pub mod terminal;
pub mod trace_processor;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Long enough for a busy two-core machine; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The binary under test: this build's, or for a bench that of `RANKMESH_BINARY` (an optimised
/// one).
pub fn rankmesh() -> Command {
    let binary = std::env::var_os("RANKMESH_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_rankmesh").into());
    let mut command = Command::new(binary);
    command.stdin(Stdio::null()).env_remove("RANKMESH_SOCKET").env_remove("RANKMESH_LOG");
    command
}

/// Runs a command of the binary to its end.
pub fn run(arguments: &[&str]) -> Output {
    rankmesh().args(arguments).output().expect("the binary runs")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Waits until `probe` gives a value.
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Result<T, String>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        match probe() {
            Ok(value) => return value,
            Err(last) if Instant::now() >= until => panic!("{what}: not within {PATIENCE:?}; last: {last}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// True when a program is installed; else prints on stderr that the test is skipped.
pub fn has(program: &str, test: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: {test}: there is no {program}");
    }
    found
}

/// A process that ends with this.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// True when this test may use eBPF; else prints on stderr that it is skipped.
pub fn can_capture(test: &str) -> bool {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: {test}: needs root");
        return false;
    }
    if let Err(error) = node_bpf::supported() {
        eprintln!("skipped: {test}: {error}");
        return false;
    }
    true
}

/// One agent process.
pub struct Agent {
    pub name: String,
    child: Child,
    arguments: Vec<String>,
    /// Where it runs; none: in this process's network.
    netns: Option<String>,
}

/// Agents of one mesh, with the CA they share.
pub struct Lab {
    pub dir: tempfile::TempDir,
    pub agents: Vec<Agent>,
    /// Agents that are started from now on load this library first; see [`Lab::step_clocks`].
    preload: Option<PathBuf>,
    first_address: Option<String>,
}

impl Lab {
    /// An empty lab with a CA of its own.
    pub fn new() -> Self {
        let lab = Self {
            dir: tempfile::tempdir().expect("a directory"),
            agents: Vec::new(),
            preload: None,
            first_address: None,
        };
        let made = rankmesh().args(["identity", "init", "--dir"]).arg(lab.path("ca")).output().expect("runs");
        assert!(made.status.success(), "{}", stderr(&made));
        lab
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.sock"))
    }

    /// Issues an identity offline from the lab's CA.
    pub fn issue(&self, name: &str) -> PathBuf {
        let out = self.path(&format!("{name}.id"));
        if !out.exists() {
            self.issue_into(&out, "ca", &["--name", name]);
        }
        out
    }

    /// Issues an identity with the CA in the lab's directory `ca`; `flags` are those of the
    /// command.
    pub fn issue_into(&self, out: &Path, ca: &str, flags: &[&str]) {
        let mut issue = rankmesh();
        issue.args(["identity", "issue"]).args(flags).arg("--dir").arg(self.path(ca)).arg("--out").arg(out);
        let made = issue.output().expect("runs");
        assert!(made.status.success(), "{}", stderr(&made));
    }

    /// Starts an agent with an identity of the lab's CA; it joins the first one. `more` are further
    /// flags.
    pub fn start(&mut self, name: &str, more: &[&str]) {
        self.start_at(name, None, "127.0.0.1", more);
    }

    /// As [`Lab::start`], in a network namespace where it listens at `address`, on any port or on
    /// the one it names.
    pub fn start_at(&mut self, name: &str, netns: Option<&str>, address: &str, more: &[&str]) {
        let identity = self.issue(name);
        let listen = if address.contains(':') { address.to_owned() } else { format!("{address}:0") };
        let mut arguments: Vec<String> =
            ["up", "--name", name, "--listen", &listen, "--identity"].iter().map(|word| (*word).to_owned()).collect();
        arguments.push(identity.display().to_string());
        arguments.push("--socket".into());
        arguments.push(self.socket(name).display().to_string());
        if !more.contains(&"--serve-db") && !more.contains(&"--store") {
            arguments.push("--store".into());
            arguments.push(self.path(&format!("{name}.db")).display().to_string());
        }
        if !more.contains(&"--capture") && !more.contains(&"--cgroup") {
            arguments.extend(["--capture".into(), "off".into()]);
        }
        // An agent that is not optimised takes more: a test's ranks are recorded whole on any machine.
        if !more.contains(&"--budget") {
            arguments.extend(["--budget".into(), "none".into()]);
        }
        arguments.extend(more.iter().map(|word| (*word).to_owned()));
        if let Some(first) = &self.first_address {
            arguments.extend(["--join".into(), first.clone()]);
        }
        self.spawn(name, arguments, netns.map(str::to_owned));
        if self.first_address.is_none() {
            let address = wait_for("the first agent answers", || {
                let nodes = self.nodes(name)?;
                nodes.first().and_then(|node| node["address"].as_str().map(str::to_owned)).ok_or("no address".into())
            });
            self.first_address = Some(address);
        }
    }

    fn spawn(&mut self, name: &str, arguments: Vec<String>, netns: Option<String>) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path(&format!("{name}.log")))
            .expect("a log file");
        let mut command = rankmesh();
        if let Some(netns) = &netns {
            let program = command.get_program().to_owned();
            command = Command::new("ip");
            // It becomes the agent itself, under the same process id.
            command.args(["netns", "exec", netns]).arg(program).stdin(Stdio::null());
            command.env_remove("RANKMESH_SOCKET").env_remove("RANKMESH_LOG");
        }
        if let Some(preload) = &self.preload {
            let step = self.path(&format!("{name}.step"));
            std::fs::write(&step, 0i64.to_ne_bytes()).expect("written");
            command.env("LD_PRELOAD", preload).env("CLOCK_STEP_FILE", step);
        }
        let child = command
            .args(&arguments)
            .stdout(log.try_clone().expect("clone"))
            .stderr(log)
            .spawn()
            .expect("the agent starts");
        self.agents.push(Agent { name: name.to_owned(), child, arguments, netns });
    }

    /// Agents that are started from now on have a wall clock each that [`Lab::step_clock`] sets;
    /// `bin` holds the workloads.
    pub fn step_clocks(&mut self, bin: &Path) {
        self.preload = Some(bin.join("libclock-step.so"));
    }

    /// Sets an agent's wall clock: this far ahead of this machine's.
    pub fn step_clock(&self, name: &str, ahead_ns: i64) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(self.path(&format!("{name}.step"))).expect("its file");
        file.write_all_at(&ahead_ns.to_ne_bytes(), 0).expect("written");
    }

    /// Runs a command made elsewhere as an agent of this lab.
    pub fn adopt(&mut self, name: &str, mut command: Command) {
        let child = command.spawn().expect("the agent starts");
        self.agents.push(Agent { name: name.to_owned(), child, arguments: Vec::new(), netns: None });
    }

    /// SIGKILL.
    pub fn kill(&mut self, name: &str) {
        let agent = self.agents.iter_mut().find(|agent| agent.name == name).expect("a started agent");
        agent.child.kill().expect("kill");
        agent.child.wait().expect("wait");
    }

    /// SIGTERM, and waits for its end.
    pub fn terminate(&mut self, name: &str) {
        let agent = self.agents.iter_mut().find(|agent| agent.name == name).expect("a started agent");
        let pid = nix::unistd::Pid::from_raw(agent.child.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("kill");
        let until = Instant::now() + PATIENCE;
        while agent.child.try_wait().expect("wait").is_none() {
            assert!(Instant::now() < until, "{name} does not end after SIGTERM");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts a killed agent again with the same flags.
    pub fn restart(&mut self, name: &str) {
        let index = self.agents.iter().position(|agent| agent.name == name).expect("a started agent");
        let agent = self.agents.remove(index);
        self.spawn(name, agent.arguments, agent.netns);
    }

    /// Its process id.
    pub fn pid(&self, name: &str) -> u32 {
        self.agents.iter().find(|agent| agent.name == name).expect("a started agent").child.id()
    }

    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
    }

    /// Runs `rankmesh COMMAND --socket … ARGUMENTS` against an agent.
    pub fn ask(&self, name: &str, command: &str, arguments: &[&str]) -> Output {
        rankmesh().arg(command).arg("--socket").arg(self.socket(name)).args(arguments).output().expect("runs")
    }

    /// The members as an agent lists them.
    pub fn nodes(&self, name: &str) -> Result<Vec<Value>, String> {
        let output = self.ask(name, "nodes", &["--format", "json"]);
        if !output.status.success() {
            return Err(format!("{}{}", stderr(&output), self.log(name)));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
    }

    /// Every agent lists exactly `names` as live.
    pub fn wait_for_members(&self, names: &[&str]) {
        for coordinator in names {
            wait_for(&format!("{coordinator} knows {names:?}"), || {
                let nodes = self.nodes(coordinator)?;
                let mut live: Vec<&str> = nodes
                    .iter()
                    .filter(|node| node["state"] == "live")
                    .filter_map(|node| node["name"].as_str())
                    .collect();
                live.sort_unstable();
                if live == names { Ok(()) } else { Err(format!("{nodes:?}")) }
            });
        }
    }

    /// A query's JSON and its exit code. It has a minute, so that on a busy machine no answer is
    /// missing.
    pub fn query(&self, name: &str, sql: &str, more: &[&str]) -> (Value, i32) {
        let mut arguments = vec!["--format", "json"];
        if !more.contains(&"--timeout") {
            arguments.extend(["--timeout", "60s"]);
        }
        arguments.extend(more);
        arguments.push(sql);
        let output = self.ask(name, "query", &arguments);
        let code = output.status.code().unwrap_or(-1);
        let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{sql}: {error}: {}{}\n{}", stdout(&output), stderr(&output), self.log(name))
        });
        (value, code)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            let _ = agent.child.kill();
            let _ = agent.child.wait();
        }
        if std::thread::panicking() {
            for agent in &self.agents {
                let log =
                    std::fs::read_to_string(self.dir.path().join(format!("{}.log", agent.name))).unwrap_or_default();
                eprintln!("--- log of {}\n{log}", agent.name);
            }
        }
    }
}

/// A job hangs: how far each rank got comes out of the SQL that `--show-sql` prints, too. Who waits
/// has made all calls before the one in which it waits, and who has not entered that call has made
/// none from there on.
pub fn assert_hang_by_sql(lab: &Lab, coordinator: &str) {
    let answer = wait_for("the hang in a complete answer", || {
        let output = lab.ask(coordinator, "stragglers", &["--since", "30s", "--format", "json", "--show-sql"]);
        let answer: Value = serde_json::from_slice(&output.stdout).map_err(|_| stderr(&output))?;
        let complete = output.status.success() && answer["verdict"]["kind"] == "hang";
        if complete { Ok(answer) } else { Err(format!("{} {}", answer["verdict"], answer["coverage"])) }
    });
    let verdict = &answer["verdict"];
    let shown = answer["sql"].as_array().expect("questions");
    // The call's position, and the last position of this process that is in the stores; -1: none.
    let ask = |of: &Value| {
        let position = of["call"]["position"].as_i64().expect("a position");
        let title = format!(
            "how far each rank got on communicator {}",
            of["call"]["comm_hash"].as_str().expect("a communicator")
        );
        let shown =
            shown.iter().find(|shown| shown["title"] == title).unwrap_or_else(|| panic!("no {title:?}: {shown:?}"));
        let (result, code) = lab.query(coordinator, shown["sql"].as_str().expect("SQL"), &["--timeout", "50s"]);
        assert_eq!(code, 0, "{result}");
        let place = |name: &str| {
            result["columns"].as_array().expect("columns").iter().position(|c| c["name"] == name).expect(name)
        };
        let mut rows = result["rows"].as_array().expect("rows").iter();
        let row = rows.find(|row| row[place("pid")] == of["pid"] && row[place("node")] == of["node"]);
        (position, row.and_then(|row| row[place("entered")].as_i64()).unwrap_or(-1), result.to_string())
    };
    for waiting in verdict["waiting"].as_array().expect("who waits") {
        let (position, entered, result) = ask(waiting);
        assert!(entered >= position - 1, "{waiting}\n{result}");
    }
    let missing = verdict["missing"].as_array().expect("who is missing");
    for missing in missing.iter().filter(|missing| missing["absence"] == "not_entered") {
        let (position, entered, result) = ask(missing);
        assert!(entered < position, "{missing}\n{result}");
    }
}

/// Makes a SQLite file from SQL.
pub fn make_db(path: &Path, sql: &str) {
    let connection = rusqlite::Connection::open(path).expect("a new database");
    connection.execute_batch(sql).expect("valid SQL");
}
