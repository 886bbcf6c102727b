//! Questions about a job from anywhere in the cluster: through the agent of the job on this host
//! when there is one, else by asking on one of the job's nodes, through srun. So Slurm itself
//! decides who may ask, and no port is opened.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, bail};

use super::{commands, run_dir};

/// Set for a command that another host passed on: it is not passed on again.
const HANDED_ON: &str = "RANKMESH_HANDED_ON";
/// Exit code of a command that was passed on to a node without an agent of the job (EX_UNAVAILABLE
/// of sysexits.h).
const NO_AGENT: i32 = 69;
/// Nodes that are asked one after the other when the first has no agent.
const MOST_TRIES: usize = 3;

/// How the agents of a job are reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// Through this socket.
    Socket(PathBuf),
    /// The command ran on a node of the job, and ended with this code.
    HandedOn(i32),
}

/// Reaches the mesh of a job; where that takes another host, this very command runs there and
/// prints its answer.
///
/// # Errors
/// No mesh of the job is known, or no node of it has an agent.
pub fn reach(job: &str) -> anyhow::Result<Reach> {
    let id = id_of(job)?;
    if let Some(socket) = local(id) {
        return Ok(Reach::Socket(socket));
    }
    if std::env::var_os(HANDED_ON).is_some() {
        eprintln!("rankmesh: there is no agent of job {job} on this node");
        std::process::exit(NO_AGENT);
    }
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let none = || {
        format!("job {job} has no mesh: put `rankmesh slurm up` into its script, or run `rankmesh slurm attach {job}`")
    };
    // the first node first; where others are needed Slurm is asked which they are
    let mut nodes: Vec<Option<String>> = vec![None];
    let mut tried = 0;
    while let Some(node) = nodes.get(tried).cloned() {
        let binary = std::env::current_exe().context("finding this program's file")?;
        let mut srun = commands::on_one_node(id, node.as_deref());
        if wants_screen(&arguments) {
            srun.arg("--pty");
        }
        srun.arg(binary).args(&arguments).env(HANDED_ON, "1");
        let code = srun.status().context("running srun: is this a host of the cluster?")?.code().unwrap_or(1);
        if code != NO_AGENT {
            return Ok(Reach::HandedOn(code));
        }
        tried += 1;
        if tried == 1 {
            let others = commands::job(job)?.nodes.into_iter().skip(1).take(MOST_TRIES - 1);
            nodes.extend(others.map(Some));
        }
    }
    bail!(none())
}

/// Whether the command draws on this terminal and reads its keys: then srun has to pass on its
/// size, too.
fn wants_screen(arguments: &[std::ffi::OsString]) -> bool {
    let is_drawn = arguments.first().is_some_and(|command| command == "top" || command == "shell");
    let is_once = arguments.iter().any(|argument| argument == "--once");
    is_drawn && !is_once && std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

/// The agent of the job on this host, when this user may ask one. Root asks that of the user whom
/// Slurm names as the job's: another who says to run one is not believed.
#[must_use]
pub fn local(id: u32) -> Option<PathBuf> {
    let node = std::env::var("SLURMD_NODENAME").ok();
    let own = nix::unistd::geteuid();
    let first = |user| run_dir::sockets_of(id, user, node.as_deref()).into_iter().next();
    let mine = first(own.as_raw());
    if mine.is_some() || !own.is_root() || !run_dir::others_users().any(|user| first(user).is_some()) {
        return mine;
    }
    first(commands::job(&id.to_string()).ok()?.user?)
}

/// Whether this user has a mesh for the job, here or elsewhere.
#[must_use]
pub fn is_known(job: &str) -> bool {
    std::env::var_os(HANDED_ON).is_some()
        || job.parse().is_ok_and(|id| local(id).is_some() || run_dir::remembered(id).is_some_and(|p| p.has_charter()))
}

/// Whether an agent of the job answers, on this host or on the job's first node.
pub(super) fn answers(id: u32) -> bool {
    if local(id).is_some() {
        return true;
    }
    let Ok(binary) = std::env::current_exe() else { return false };
    let mut srun = commands::on_one_node(id, None);
    srun.arg(binary).args(["nodes", "--format", "json", "--job", &id.to_string()]).env(HANDED_ON, "1");
    srun.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    srun.status().is_ok_and(|status| status.success())
}

/// `4711` is a job's own id; of `4700_3`, a task of an array, Slurm knows it.
fn id_of(job: &str) -> anyhow::Result<u32> {
    match job.parse() {
        Ok(id) => Ok(id),
        Err(_) if job.contains(['_', '+']) => Ok(commands::job(job)?.id),
        Err(_) => bail!("'{job}' is not a Slurm job id"),
    }
}
