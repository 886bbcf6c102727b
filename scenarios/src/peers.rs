//! What an engineer has without us: the same question asked of every host by a parallel shell
//! (clush, pdsh: `sqlite3` over ssh) or by `serf query`, on loopback addresses of this machine.
//! They print the rows of each host; nothing is merged.
//!
//! Each host is an address 127.0.0.N with a database of its own. One sshd with keys of its own
//! serves them all.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

/// How long servers may take to be there.
const PATIENCE: Duration = Duration::from_secs(60);

/// The address of the host with this number (from 0).
pub fn address(host: usize) -> String {
    format!("127.0.0.{}", host + 1)
}

/// The database of a host in `dir`, by its address: what runs there learns its own address from
/// ssh.
pub fn database(dir: &Path, host: usize) -> PathBuf {
    dir.join(format!("{}.db", address(host)))
}

/// Where a program lies; the sbin directories are looked at, too.
pub fn installed(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// A process that ends with us.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("0.0.0.0:0")?.local_addr()?.port())
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        ensure!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Hosts behind ssh, asked by parallel shells.
pub struct Ssh {
    dir: PathBuf,
    hosts: usize,
    _server: Server,
}

impl Ssh {
    /// One sshd for `hosts` addresses, in `dir`, where the databases are.
    ///
    /// # Errors
    /// It is not installed or does not start.
    pub fn start(dir: &Path, hosts: usize) -> anyhow::Result<Self> {
        let sshd = installed("sshd").context("sshd is not installed (openssh-server)")?;
        ensure!(installed("sqlite3").is_some(), "sqlite3 is not installed");
        for key in ["host_key", "user_key"] {
            let made =
                Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(key)).status()?;
            ensure!(made.success(), "ssh-keygen failed");
        }
        // As root sshd wants its empty directory, which the distribution's service would make.
        let _ = fs::create_dir("/run/sshd");
        let port = free_port()?;
        let at = |name: &str| dir.join(name).display().to_string();
        let config = format!(
            "Port {port}\nListenAddress 0.0.0.0\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\nStrictModes no\n\
             PermitRootLogin prohibit-password\nPasswordAuthentication no\nMaxStartups 200\nLogLevel ERROR\n",
            at("host_key"),
            at("user_key.pub")
        );
        fs::write(dir.join("sshd_config"), config)?;
        for (name, kept) in [("ssh_fresh", "no"), ("ssh_kept", "auto")] {
            let config = format!(
                "Port {port}\nIdentityFile {}\nBatchMode yes\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n\
                 ControlMaster {kept}\nControlPath {}\nControlPersist 20\n",
                at("user_key"),
                at("to_%h")
            );
            fs::write(dir.join(name), config)?;
        }
        let child = Command::new(sshd).args(["-D", "-f"]).arg(dir.join("sshd_config")).stderr(Stdio::null()).spawn()?;
        let ssh = Self { dir: dir.to_owned(), hosts, _server: Server(child) };
        until("sshd serves", || {
            let mut command = Command::new("ssh");
            command.args(ssh.options(false).split(' ')).arg(address(0)).arg("true");
            command.stderr(Stdio::null()).status().ok()?.success().then_some(())
        })?;
        Ok(ssh)
    }

    /// Options of ssh: a configuration, which keeps connections for the next command or does not.
    /// In a file: clush and ssh read `%` differently.
    fn options(&self, kept: bool) -> String {
        format!("-F {}", self.dir.join(if kept { "ssh_kept" } else { "ssh_fresh" }).display())
    }

    fn hosts(&self) -> String {
        format!("127.0.0.[1-{}]", self.hosts)
    }

    /// What each host runs.
    fn remote(&self, sql: &str) -> String {
        // SSH_CONNECTION: client address and port, server address and port (sshd(8)).
        let dir = self.dir.display();
        format!("set -- $SSH_CONNECTION; sqlite3 -readonly {dir}/$3.db '{sql}'")
    }

    fn timed(&self, command: &mut Command) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let output = command.stdin(Stdio::null()).output()?;
        let took = began.elapsed();
        let rows = String::from_utf8_lossy(&output.stdout).lines().count();
        ensure!(rows == self.hosts, "{rows} rows of {} hosts: {}", self.hosts, String::from_utf8_lossy(&output.stderr));
        Ok(took)
    }

    /// Asks every host once with clush; `kept`: over connections that ssh keeps from one command to
    /// the next.
    ///
    /// # Errors
    /// A host did not answer.
    pub fn clush(&self, sql: &str, kept: bool) -> anyhow::Result<Duration> {
        let options = self.options(kept);
        let fanout = self.hosts.to_string();
        let mut command = Command::new("clush");
        command.args(["-f", &fanout, "-o", &options, "-w", &self.hosts(), &self.remote(sql)]);
        self.timed(&mut command)
    }

    /// Asks every host once with pdsh.
    ///
    /// # Errors
    /// A host did not answer.
    pub fn pdsh(&self, sql: &str) -> anyhow::Result<Duration> {
        let fanout = self.hosts.to_string();
        let mut command = Command::new("pdsh");
        command.env("PDSH_SSH_ARGS_APPEND", self.options(false));
        command.args(["-R", "ssh", "-f", &fanout, "-w", &self.hosts(), &self.remote(sql)]);
        self.timed(&mut command)
    }
}

/// Agents of serf, each with a handler that asks its own database.
pub struct Serf {
    rpc: String,
    _agents: Vec<Server>,
}

impl Serf {
    /// One agent a host, which all know each other.
    ///
    /// # Errors
    /// It is not installed or they do not meet.
    pub fn start(dir: &Path, hosts: usize, sql: &str) -> anyhow::Result<Self> {
        let serf = installed("serf").context("serf is not installed")?;
        let (bind, rpc) = (free_port()?, free_port()?);
        let mut agents = Vec::with_capacity(hosts);
        for host in 0..hosts {
            let (at, database) = (address(host), database(dir, host));
            let child = Command::new(&serf)
                .args(["agent", "-profile=local", "-log-level=err"])
                .arg(format!("-node=n{host}"))
                .arg(format!("-bind={at}:{bind}"))
                .arg(format!("-rpc-addr={at}:{rpc}"))
                .arg(format!("-retry-join={}:{bind}", address(0)))
                .arg(format!("-event-handler=query:count=sqlite3 -readonly {} '{sql}'", database.display()))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            agents.push(Server(child));
        }
        let serf = Self { rpc: format!("-rpc-addr={}:{rpc}", address(0)), _agents: agents };
        until("serf's agents meet", || {
            let output = Command::new("serf").args(["members", &serf.rpc]).output().ok()?;
            let alive = String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.contains("alive")).count();
            (alive == hosts).then_some(())
        })?;
        Ok(serf)
    }

    /// Asks every agent once: how many answered, and when the last of their answers was there. Serf
    /// does not wait for one that is lost; it ends when its whole timeout is over.
    ///
    /// # Errors
    /// Nobody answered.
    pub fn query(&self) -> anyhow::Result<(usize, Duration)> {
        let began = Instant::now();
        let mut child = Command::new("serf").args(["query", &self.rpc, "count"]).stdout(Stdio::piped()).spawn()?;
        let mut last = None;
        let mut answers = 0;
        for line in BufReader::new(child.stdout.take().context("no pipe")?).lines() {
            if line?.contains("Response from") {
                answers += 1;
                last = Some(began.elapsed());
            }
        }
        child.wait()?;
        Ok((answers, last.context("no agent answered")?))
    }
}
