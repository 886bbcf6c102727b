//! Calls of Slurm's own commands: the job step that runs the agents, and scontrol's description of
//! a job.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use front::slurm_command::plain;

use super::Job;

/// A further step of the job: it takes no share of resources from the others.
fn step(id: u32) -> Command {
    let mut command = plain("srun");
    command.arg(format!("--jobid={id}"));
    command.args(["--overlap", "--cpus-per-task=1", "--mem=0", "--gres=none", "--mpi=none", "--quiet"]);
    command
}

/// One task a node of the job; the loss of a node does not end the other tasks. Of a het job a step
/// for each component: one step for several passes its input to the first component's tasks alone
/// (Slurm 22.05).
pub(super) fn on_every_node(job: &Job, program: &Path, arguments: &[&std::ffi::OsStr]) -> Vec<Command> {
    let of = |group: Option<usize>, nodes: &[&str]| {
        let mut command = step(job.id);
        if let Some(group) = group {
            command.args([format!("--het-group={group}"), format!("--nodelist={}", nodes.join(","))]);
        }
        command.args([format!("--nodes={}", nodes.len()), format!("--ntasks={}", nodes.len())]);
        // not bound to a core: the one that the step is counted with is used by a rank, too
        command.args([
            "--cpu-bind=none",
            "--ntasks-per-node=1",
            "--no-kill",
            "--kill-on-bad-exit=0",
            "--wait=0",
            "--job-name=rankmesh",
        ]);
        command.arg(program).args(arguments);
        command
    };
    if job.groups.is_empty() {
        return vec![of(None, &job.nodes.iter().map(String::as_str).collect::<Vec<_>>())];
    }
    // a node that two components share gets one agent: in the step of the first
    let mut seen = std::collections::BTreeSet::new();
    let mut steps = vec![];
    for (group, part) in job.groups.iter().enumerate() {
        let nodes: Vec<&str> = part.nodes.iter().map(String::as_str).filter(|node| seen.insert(*node)).collect();
        if !nodes.is_empty() {
            steps.push(of(Some(group), &nodes));
        }
    }
    steps
}

/// One task on one node of the job.
pub(super) fn on_one_node(id: u32, node: Option<&str>) -> Command {
    let mut command = step(id);
    command.args(["--nodes=1", "--ntasks=1", "--job-name=rankmesh-ask"]);
    command.args(node.map(|node| format!("--nodelist={node}")));
    command
}

/// Slurm's own default for [`kill_wait`] (slurm.conf(5)).
const KILL_WAIT: Duration = Duration::from_secs(30);

/// How long this cluster's Slurm lets a step that ends live on after SIGTERM (KillWait in slurm.conf).
pub(super) fn kill_wait() -> Duration {
    let shown = plain("scontrol").args(["show", "config"]).stdin(Stdio::null()).output();
    shown.ok().and_then(|shown| kill_wait_in(&String::from_utf8_lossy(&shown.stdout))).unwrap_or(KILL_WAIT)
}

/// That in the output of `scontrol show config`: a line `KillWait                = 30 sec`.
fn kill_wait_in(shown: &str) -> Option<Duration> {
    let line = shown.lines().find_map(|line| line.trim().strip_prefix("KillWait"))?;
    let seconds = line.trim_start().strip_prefix('=')?.trim().strip_suffix("sec")?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// scontrol's description of a job: `id` as users write it (`4711`, `4700_3`).
///
/// # Errors
/// There is no such job, it does not run, or scontrol cannot be run.
pub(super) fn job(id: &str) -> anyhow::Result<Job> {
    let shown = plain("scontrol")
        .args(["--oneliner", "show", "job", id])
        .stdin(Stdio::null())
        .output()
        .context("running scontrol: is this a host of the cluster?")?;
    if !shown.status.success() {
        bail!("scontrol show job {id}: {}", String::from_utf8_lossy(&shown.stderr).trim());
    }
    let job = Job::from_scontrol(&String::from_utf8_lossy(&shown.stdout));
    job.with_context(|| format!("job {id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_end_is_read_from_what_scontrol_shows() {
        let shown = "Configuration data as of 2026-11-29T09:00:00\nKillOnBadExit           = 0\nKillWait                = 45 sec\n";
        assert_eq!(kill_wait_in(shown), Some(Duration::from_secs(45)));
        assert_eq!(kill_wait_in("KillWait = soon"), None);
        assert_eq!(kill_wait_in(""), None);
    }
}
