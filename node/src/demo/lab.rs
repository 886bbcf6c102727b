//! The demo's parts on this machine, and their removal: a directory, agents, cgroups, ranks.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use ask::Exit;
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

use super::{ITERATIONS, LATE_MS, LATE_RANK, LONGEST_WAIT, RANKS, WORK_MS};

/// The workload, compiled from `scenarios/` when this crate was built.
const NCCL_SIM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libnccl.so.2"));
const NCCL_RANKS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/nccl-ranks"));

/// Everything the demo made; dropping it removes all of it.
#[derive(Debug)]
pub(super) struct Lab {
    exe: PathBuf,
    agents: Vec<(String, Child)>,
    ranks: Option<Child>,
    servers: Vec<Child>,
    /// Flags that all agents get besides.
    pub(super) flags: Vec<String>,
    cgroups: Vec<PathBuf>,
    // Last: agents have files in it open.
    dir: TempDir,
}

/// Whether ranks can be recorded live here; the error says why not.
pub(super) fn can_capture() -> Result<(), String> {
    if !nix::unistd::geteuid().is_root() {
        return Err("not root".into());
    }
    node_bpf::supported().map_err(|error| error.to_string())?;
    node_bpf::cgroup_mount_point().map(|_| ()).ok_or_else(|| "no cgroup v2 hierarchy is mounted".to_owned())
}

impl Lab {
    pub(super) fn new() -> anyhow::Result<Self> {
        let dir =
            tempfile::Builder::new().prefix("rankmesh-demo-").tempdir().context("making a directory for the demo")?;
        let exe = std::env::current_exe().context("finding this binary")?;
        Ok(Self {
            exe,
            agents: Vec::new(),
            ranks: None,
            servers: Vec::new(),
            flags: Vec::new(),
            cgroups: Vec::new(),
            dir,
        })
    }

    pub(super) fn store(&self, agent: &str) -> PathBuf {
        self.dir.path().join(format!("{agent}.db"))
    }

    fn socket(&self, agent: &str) -> PathBuf {
        self.dir.path().join(format!("{agent}.sock"))
    }

    fn cgroup(&self, agent: &str) -> Option<&PathBuf> {
        self.cgroups.iter().find(|path| path.file_name().is_some_and(|name| name == agent))
    }

    /// One cgroup an agent, so that each sees only its own ranks, as if it had a host to itself.
    pub(super) fn make_cgroups(&mut self, agents: &[&str]) -> anyhow::Result<()> {
        let root = node_bpf::cgroup_mount_point().context("no cgroup v2 hierarchy is mounted")?;
        let top = root.join(format!("rankmesh-demo-{}", std::process::id()));
        std::fs::create_dir(&top).with_context(|| format!("creating the cgroup {}", top.display()))?;
        self.cgroups.push(top.clone());
        for agent in agents {
            let path = top.join(agent);
            std::fs::create_dir(&path).with_context(|| format!("creating the cgroup {}", path.display()))?;
            self.cgroups.push(path);
        }
        Ok(())
    }

    /// The first agent founds a mesh, the others join it with the line it prints.
    pub(super) async fn start_agents(&mut self, agents: &[&str], live: bool) -> anyhow::Result<()> {
        let mut join: Vec<String> = Vec::new();
        for agent in agents {
            let mut command = Command::new(&self.exe);
            command
                .args(["up", "--name", agent, "--listen", "127.0.0.1:0", "--label", "job=demo"])
                .arg("--identity")
                .arg(self.dir.path().join(format!("{agent}.id")))
                .arg("--store")
                .arg(self.store(agent))
                .arg("--socket")
                .arg(self.socket(agent))
                .args(["--capture", if live { "auto" } else { "off" }])
                // It may be a build that is not optimised.
                .args(["--budget", "none"])
                .args(&self.flags)
                .args(&join)
                .env("RANKMESH_LOG", "warn")
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(log_file(&self.dir.path().join(format!("{agent}.log")))?)
                .kill_on_drop(true);
            ends_with_us(&mut command, Signal::SIGTERM);
            if let Some(cgroup) = self.cgroup(agent) {
                command.arg("--cgroup").arg(cgroup);
            }
            let mut child = command.spawn().with_context(|| format!("starting {}", self.exe.display()))?;
            let stdout = child.stdout.take().context("the agent has no standard output")?;
            self.agents.push(((*agent).to_owned(), child));
            if join.is_empty() {
                let mut lines = BufReader::new(stdout).lines();
                let line =
                    tokio::time::timeout(LONGEST_WAIT, lines.next_line()).await.ok().and_then(Result::ok).flatten();
                let Some(line) = line else { bail!("{agent} did not found a mesh:\n{}", self.log(agent)) };
                join = line.split_whitespace().skip_while(|word| *word != "--join").map(str::to_owned).collect();
                ensure!(join.len() == 4, "{agent} printed no join line but: {line}");
            }
        }
        Ok(())
    }

    /// Every agent lists all of them as live.
    pub(super) async fn wait_for_members(&mut self, agents: &[&str], wait: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + wait;
        for agent in agents {
            loop {
                let live = match self.json(agent, &["nodes", "--format", "json"]).await {
                    Ok((Value::Array(nodes), _)) => nodes.iter().filter(|node| node["state"] == "live").count(),
                    _ => 0,
                };
                if live == agents.len() {
                    break;
                }
                if let Some((name, status)) = self.ended_agent()? {
                    bail!("{name} ended with {status}:\n{}", self.log(&name));
                }
                ensure!(Instant::now() < until, "{agent} knows {live} of {} nodes:\n{}", agents.len(), self.log(agent));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    fn ended_agent(&mut self) -> anyhow::Result<Option<(String, ExitStatus)>> {
        for (name, child) in &mut self.agents {
            if let Some(status) = child.try_wait()? {
                return Ok(Some((name.clone(), status)));
            }
        }
        Ok(None)
    }

    pub(super) fn log(&self, agent: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(format!("{agent}.log"))).unwrap_or_default()
    }

    /// Starts the job: `RANKS` processes, spread over the agents' cgroups in order.
    pub(super) async fn start_ranks(&mut self, agents: &[&str]) -> anyhow::Result<()> {
        let bin = self.dir.path().join("job");
        std::fs::create_dir(&bin)?;
        for (name, bytes) in [("libnccl.so.2", NCCL_SIM), ("nccl-ranks", NCCL_RANKS)] {
            let path = bin.join(name);
            std::fs::write(&path, bytes)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        }
        let cgroups: Vec<String> =
            agents.iter().filter_map(|agent| self.cgroup(agent)).map(|path| path.display().to_string()).collect();
        let mut command = Command::new(bin.join("nccl-ranks"));
        ends_with_us(&mut command, Signal::SIGKILL);
        let child = command
            .args(["--ranks", &RANKS.to_string(), "--iters", &ITERATIONS.to_string()])
            .args([
                "--work-ms",
                &WORK_MS.to_string(),
                "--late-rank",
                &LATE_RANK.to_string(),
                "--late-ms",
                &LATE_MS.to_string(),
            ])
            // A job loads its libraries some time before its first communicator; so does this one.
            .args(["--start-ms", "2000", "--cgroups", &cgroups.join(",")])
            .env("LD_LIBRARY_PATH", &bin)
            .stdin(Stdio::null())
            .stdout(log_file(&self.dir.path().join("ranks.out"))?)
            .stderr(log_file(&self.dir.path().join("ranks.log"))?)
            .kill_on_drop(true)
            .spawn()
            .context("starting the ranks")?;
        self.ranks = Some(child);
        Ok(())
    }

    /// Starts a server in an agent's cgroup; its port.
    pub(super) async fn start_server(&mut self, agent: &str, is_faulty: bool) -> anyhow::Result<u16> {
        // Its process is called after the file.
        let program = self.dir.path().join("model-server");
        if !program.exists() {
            std::os::unix::fs::symlink(&self.exe, &program).context("naming the server")?;
        }
        let mut command = Command::new(program);
        ends_with_us(&mut command, Signal::SIGKILL);
        let mut child = command
            .args(["demo", "--server", if is_faulty { "faulty" } else { "well" }])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file(&self.dir.path().join(format!("{agent}.server.log")))?)
            .kill_on_drop(true)
            .spawn()
            .context("starting a server")?;
        let (pid, stdin, stdout) = (child.id(), child.stdin.as_mut(), child.stdout.take());
        let (Some(pid), Some(stdin), Some(stdout)) = (pid, stdin, stdout) else { bail!("a server ended at once") };
        let cgroup = self.cgroup(agent).context("no cgroup was made for the server")?;
        std::fs::write(cgroup.join("cgroup.procs"), pid.to_string()).context("putting the server into its cgroup")?;
        stdin.write_all(b"\n").await.context("starting a server")?;
        let mut lines = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(LONGEST_WAIT, lines.next_line()).await.ok().and_then(Result::ok).flatten();
        self.servers.push(child);
        let port = line.and_then(|line| line.trim().parse().ok());
        port.with_context(|| format!("the server of {agent} does not listen"))
    }

    /// True when the job has ended well; an error when it failed.
    pub(super) fn ranks_ended(&mut self) -> anyhow::Result<bool> {
        let Some(ranks) = &mut self.ranks else { return Ok(true) };
        match ranks.try_wait()? {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(status) => {
                let log = std::fs::read_to_string(self.dir.path().join("ranks.log")).unwrap_or_default();
                bail!("the job ended with {status}:\n{log}")
            }
        }
    }

    fn command(&self, agent: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.exe);
        command
            .args(&arguments[..1])
            .arg("--socket")
            .arg(self.socket(agent))
            .args(&arguments[1..])
            .stdin(Stdio::null());
        command
    }

    /// Runs a command against an agent, with our standard output.
    pub(super) async fn ask(&self, agent: &str, arguments: &[&str]) -> anyhow::Result<ExitStatus> {
        Ok(self.command(agent, arguments).status().await?)
    }

    /// Runs a command against an agent and parses its JSON; also returns whether the answer is
    /// complete.
    pub(super) async fn json(&self, agent: &str, arguments: &[&str]) -> anyhow::Result<(Value, bool)> {
        let output = self.command(agent, arguments).output().await?;
        ensure!(
            answered(output.status),
            "it ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok((serde_json::from_slice(&output.stdout)?, output.status.success()))
    }

    /// Stops agents in order, so that stores are closed, then removes everything.
    pub(super) async fn close(mut self) {
        for (_, child) in &mut self.agents {
            if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGTERM);
            }
        }
        for (_, child) in &mut self.agents {
            let _ = tokio::time::timeout(Duration::from_secs(10), child.wait()).await;
        }
    }
}

/// Whether a command had an answer, also a partial one (as on a machine that was suspended for
/// seconds).
pub(super) fn answered(status: ExitStatus) -> bool {
    status.success() || status.code() == Some(Exit::Partial as i32)
}

impl Drop for Lab {
    fn drop(&mut self) {
        for child in
            self.ranks.iter_mut().chain(&mut self.servers).chain(self.agents.iter_mut().map(|(_, child)| child))
        {
            let _ = child.start_kill();
        }
        // A cgroup can be removed once its last process is gone, which the kernel does a moment
        // after the kill.
        let until = Instant::now() + Duration::from_secs(5);
        for path in self.cgroups.iter().rev() {
            let _ = std::fs::write(path.join("cgroup.kill"), "1");
            while let Err(error) = std::fs::remove_dir(path) {
                if error.kind() == std::io::ErrorKind::NotFound || Instant::now() >= until {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Has a process get a signal when this one is gone, also where it was killed. (The thread that starts
/// it must be one that lasts: the demo's main thread.)
fn ends_with_us(command: &mut Command, with: Signal) {
    // SAFETY: between fork and exec only prctl is called, which is safe there and takes no memory.
    unsafe {
        command.pre_exec(move || match libc::prctl(libc::PR_SET_PDEATHSIG, with as libc::c_ulong) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

fn log_file(path: &Path) -> anyhow::Result<Stdio> {
    Ok(std::fs::File::create(path).with_context(|| format!("creating {}", path.display()))?.into())
}
