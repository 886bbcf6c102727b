//! `rankmesh slurm up` and `attach`: founds the mesh of a job, starts its agents and waits until
//! they know each other.
//!
//! The mesh has a CA of its own whose key is never written: it signs one identity a node, for
//! little longer than the job may run, and is forgotten. See [`super::run_dir`] for the files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use agent::RecordingState;
use anyhow::{Context, bail, ensure};
use ask::paths;
use certs::{Authority, MeshName, NodeName};
use node_bpf::Budget;
use rand::RngExt;
use trusted::Refused;

use super::keeper::AgentMessage;
use super::run_dir::{self, Charter, RunDir};
use super::{Job, ask as agents, commands, lines};

/// Certificates outlive the job's time limit by this factor (limits are raised), and by a day.
const LIFE_FACTOR: u32 = 2;
const LIFE_MORE: Duration = Duration::from_secs(86_400);
/// Validity where the job's time is not limited.
const LIFE_UNLIMITED: Duration = Duration::from_secs(30 * 86_400);
/// How long `up` goes on waiting for all nodes once the wanted number is there.
const MOST_NODES_PER_LINE: usize = 8;

/// The user's settings.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// The job's directory, instead of `rankmesh-RUN` where the job was submitted.
    pub directory: Option<PathBuf>,
    /// Where stores are written, instead of there.
    pub store_dir: Option<PathBuf>,
    /// This many nodes are enough; none: all.
    pub wait_for: Option<usize>,
    /// How long to wait for them.
    pub timeout: Duration,
    /// Whether to record.
    pub capture: bool,
    /// What that may take; none is without bound.
    pub budget: Option<Budget>,
    /// Largest size of a store.
    pub store_max_mib: u64,
    /// Whether a report is written when the job ends.
    pub report: bool,
    /// Further labels.
    pub labels: Vec<(String, String)>,
}

/// The result of founding a mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Founded {
    /// The job's directory.
    pub directory: PathBuf,
    /// Nodes of the job.
    pub nodes: usize,
    /// Those that know as many others as were waited for.
    pub ready: usize,
    /// Each node that does not, and its state.
    pub missing: BTreeMap<String, String>,
    /// Nodes that do not record everything, by how they are recorded.
    pub not_recording: BTreeMap<RecordingState, BTreeSet<String>>,
    /// The wanted nodes are there.
    pub complete: bool,
    /// It was there already.
    pub already: bool,
    /// From the call to the end.
    pub took: Duration,
}

/// The mesh of the job that this process is in.
///
/// # Errors
/// This is no job; the directory cannot be used; srun failed.
pub fn here(wanted: &Wanted) -> anyhow::Result<Founded> {
    let mut job = Job::of_environment()?;
    if job.left.is_none() {
        // older Slurm does not have it in the environment
        match commands::job(&job.id.to_string()) {
            Ok(shown) => job.left = shown.left,
            Err(error) => tracing::warn!("the job's time limit is not known: {error:#}"),
        }
    }
    found(&job, wanted)
}

/// The mesh of a running job, from anywhere in the cluster. `id` as users write it.
///
/// # Errors
/// There is no such job, or it does not run; else as [`here`].
pub fn attach(id: &str, wanted: &Wanted) -> anyhow::Result<Founded> {
    found(&commands::job(id)?, wanted)
}

fn found(job: &Job, wanted: &Wanted) -> anyhow::Result<Founded> {
    let started = Instant::now();
    let enough = wanted.wait_for.unwrap_or(job.nodes.len());
    ensure!((1..=job.nodes.len()).contains(&enough), "--wait-for {enough}: the job has {} nodes", job.nodes.len());
    let directory = directory(job, wanted)?;
    let run_dir = RunDir::make(&directory)?;
    let _alone = run_dir.lock();
    if let Err(error) = run_dir::remember(job.id, &run_dir) {
        tracing::warn!("questions from other hosts need `srun` in a step of the job: {error:#}");
    }
    if run_dir.has_charter() {
        let charter = run_dir.charter()?;
        ensure!(
            charter.job.id == job.id && charter.job.nodes == job.nodes,
            "{} holds the mesh of other nodes than job {} has now: give another --dir",
            directory.display(),
            job.id
        );
        if agents::answers(job.id) {
            let nodes = job.nodes.len();
            return Ok(Founded {
                directory,
                nodes,
                ready: nodes,
                missing: BTreeMap::new(),
                not_recording: BTreeMap::new(),
                complete: true,
                already: true,
                took: started.elapsed(),
            });
        }
    } else {
        charter(job, wanted, &run_dir)?;
    }
    let (keeper, lines) = start_keeper(&run_dir)?;
    let mut roll = Roll::new(&job.nodes, enough);
    let until = started + wanted.timeout;
    while !roll.complete() {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(AgentMessage::Ended { why }) => {
                bail!("{}", step_ended(&why, &roll, &run_dir));
            }
            Ok(message) => roll.take(message),
            Err(mpsc::RecvTimeoutError::Timeout) => break,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                bail!("the keeper of the mesh ended; see {}", run_dir.log("keeper").display())
            }
        }
    }
    drop(keeper); // it goes on by itself
    Ok(Founded {
        directory,
        nodes: job.nodes.len(),
        ready: roll.ready(),
        missing: roll.missing(),
        not_recording: roll.not_recording(),
        complete: roll.complete(),
        already: false,
        took: started.elapsed(),
    })
}

fn step_ended(why: &str, roll: &Roll, run_dir: &RunDir) -> String {
    let mut text = String::from("the job step of the mesh ended");
    let failed: Vec<String> = roll.failed.iter().map(|(node, why)| format!("{node}: {why}")).collect();
    for part in failed.iter().map(String::as_str).chain([why]).filter(|part| !part.is_empty()).take(MOST_NODES_PER_LINE)
    {
        text.push_str("; ");
        text.push_str(part);
    }
    text.push_str(&format!(" (logs in {})", run_dir.path().join("log").display()));
    text
}

/// The default directory of a job's mesh: where the job was submitted, or the current one if its
/// user may not write there (as with `sbatch -D`; Slurm reports that directory only by starting the
/// script in it). Where others could exchange it, it is in the user's state directory, and the
/// reason is returned.
///
/// # Errors
/// The job may not write where it was submitted, or its environment does not name that directory,
/// and the current one is gone; or there is no other place.
pub fn default_directory(job: &Job) -> anyhow::Result<(PathBuf, Option<Refused>)> {
    let submitted =
        job.directory.clone().filter(|path| nix::unistd::access(path, nix::unistd::AccessFlags::W_OK).is_ok());
    let base = submitted.map_or_else(std::env::current_dir, Ok).context("finding this directory")?;
    let name = format!("rankmesh-{}", job.run_name());
    match trusted::place(&base) {
        Ok(()) => Ok((base.join(name), None)),
        // Root's state is each host's own.
        Err(refused) if nix::unistd::geteuid().is_root() => {
            Err(refused).context("this job's mesh is made by the job's own user, or with --dir")
        }
        Err(refused) => {
            let jobs = paths::state_dir()?.join("jobs");
            trusted::Dir::make_all(&jobs)?;
            Ok((jobs.join(name), Some(refused)))
        }
    }
}

fn directory(job: &Job, wanted: &Wanted) -> anyhow::Result<PathBuf> {
    let chosen = match &wanted.directory {
        Some(directory) => directory.clone(),
        None => {
            let (directory, refused) = default_directory(job)?;
            if let Some(refused) = refused {
                tracing::warn!("{refused}; the job's mesh is in {}", directory.display());
            }
            directory
        }
    };
    std::path::absolute(&chosen).with_context(|| format!("--dir {}", chosen.display()))
}

/// Makes the mesh's CA, signs every node's identity, and writes what the agents need.
fn charter(job: &Job, wanted: &Wanted, run_dir: &RunDir) -> anyhow::Result<()> {
    let mesh = format!("job-{}-{:08x}", job.run_name(), rand::rng().random::<u32>());
    let name: MeshName = mesh.parse().with_context(|| format!("the mesh's name, {mesh}"))?;
    let authority = Authority::create(&name).context("making the mesh's CA")?;
    let validity = match job.left {
        Some(left) => left.saturating_mul(LIFE_FACTOR).saturating_add(LIFE_MORE),
        None => LIFE_UNLIMITED,
    };
    for node in &job.nodes {
        let named: NodeName = node.parse().with_context(|| format!("the node's name, {node}"))?;
        let identity = run_dir.identity(node);
        if identity.exists() {
            // of a founding that was interrupted before it wrote its charter
            std::fs::remove_dir_all(&identity).with_context(|| format!("removing {}", identity.display()))?;
        }
        let issued = authority.issue(&named, validity).with_context(|| format!("the certificate of {node}"))?;
        issued.save(&identity).with_context(|| format!("saving the identity of {node}"))?;
    }
    let store_dir = wanted.store_dir.as_deref().map(std::path::absolute).transpose().context("--store-dir")?;
    run_dir.write_charter(&Charter {
        job: job.clone(),
        mesh,
        capture: wanted.capture,
        budget_ppm: wanted.budget.map(Budget::ppm),
        store_max_mib: wanted.store_max_mib,
        labels: wanted.labels.clone(),
        store_dir,
        report: wanted.report,
        kill_wait: commands::kill_wait(),
    })
}

fn start_keeper(run_dir: &RunDir) -> anyhow::Result<(std::process::Child, mpsc::Receiver<AgentMessage>)> {
    let log = run_dir.log("keeper");
    let errors = std::fs::File::create(&log).with_context(|| format!("writing {}", log.display()))?;
    let mut keeper = Command::new(std::env::current_exe().context("finding this program's file")?)
        .args(["slurm", "keep", "--dir"])
        .arg(run_dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .context("starting the keeper")?;
    let from = keeper.stdout.take().context("the keeper was started without its output")?;
    let (sender, messages) = mpsc::channel();
    std::thread::spawn(move || {
        lines::each(from, |line| serde_json::from_str(line).map_or(true, |message| sender.send(message).is_ok()));
    });
    Ok((keeper, messages))
}

/// The state of each node.
#[derive(Debug)]
struct Roll {
    nodes: Vec<String>,
    enough: usize,
    started: BTreeSet<String>,
    live: BTreeMap<String, (usize, RecordingState)>,
    failed: BTreeMap<String, String>,
}

impl Roll {
    fn new(nodes: &[String], enough: usize) -> Self {
        Self { nodes: nodes.to_vec(), enough, started: BTreeSet::new(), live: BTreeMap::new(), failed: BTreeMap::new() }
    }

    fn take(&mut self, message: AgentMessage) {
        match message {
            AgentMessage::Started { node } | AgentMessage::Hello { node, .. } => {
                self.started.insert(node);
            }
            AgentMessage::Live { node, members, recording } => {
                self.live.insert(node, (members, recording));
            }
            AgentMessage::Failed { node, why } => {
                self.failed.insert(node, why);
            }
            AgentMessage::Ended { .. } => {}
        }
    }

    fn is_ready(&self, node: &str) -> bool {
        self.live.get(node).is_some_and(|(members, _)| *members >= self.enough)
    }

    fn ready(&self) -> usize {
        self.nodes.iter().filter(|node| self.is_ready(node)).count()
    }

    fn complete(&self) -> bool {
        self.ready() >= self.enough
    }

    fn missing(&self) -> BTreeMap<String, String> {
        let what = |node: &String| {
            if let Some(why) = self.failed.get(node) {
                return why.clone();
            }
            match self.live.get(node) {
                Some((members, _)) => format!("runs, but knows only {members} of {} nodes", self.nodes.len()),
                None if self.started.contains(node) => "was started, but its agent is not up yet".to_owned(),
                None => "has not been heard of: srun has started no agent there yet".to_owned(),
            }
        };
        self.nodes.iter().filter(|node| !self.is_ready(node)).map(|node| (node.clone(), what(node))).collect()
    }

    fn not_recording(&self) -> BTreeMap<RecordingState, BTreeSet<String>> {
        let mut reasons: BTreeMap<RecordingState, BTreeSet<String>> = BTreeMap::new();
        for (node, (_, recording)) in &self.live {
            if !matches!(recording, RecordingState::On | RecordingState::Off) {
                reasons.entry(recording.clone()).or_default().insert(node.clone());
            }
        }
        reasons
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(node: &str, members: usize) -> AgentMessage {
        AgentMessage::Live { node: node.into(), members, recording: RecordingState::Failed("no CAP_BPF".into()) }
    }

    #[test]
    fn complete_means_that_enough_know_enough() {
        let nodes: Vec<String> = ["a", "b", "c"].map(str::to_owned).into();
        let mut roll = Roll::new(&nodes, 2);
        roll.take(live("a", 2));
        assert!(!roll.complete());
        roll.take(AgentMessage::Failed { node: "c".into(), why: "no such file".into() });
        roll.take(AgentMessage::Hello { node: "b".into(), address: ([127, 0, 0, 1], 1).into() });
        assert!(roll.missing()["b"].contains("not up yet"));
        roll.take(live("b", 1));
        assert!(!roll.complete() && roll.missing()["b"].contains("only 1 of 3"));
        roll.take(live("b", 2));
        assert!(roll.complete());
        assert_eq!(roll.missing()["c"], "no such file");
        assert_eq!(roll.not_recording()[&RecordingState::Failed("no CAP_BPF".into())].len(), 2);
    }

    #[test]
    fn the_key_of_the_ca_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::make(&dir.path().join("run")).unwrap();
        let job =
            Job { id: 7, nodes: vec!["n1".into(), "n2".into()], left: Some(Duration::from_secs(60)), ..Job::default() };
        charter(&job, &Wanted { capture: true, ..Wanted::default() }, &run_dir).unwrap();
        let one = certs::Identity::load(&run_dir.identity("n1")).unwrap();
        let other = certs::Identity::load(&run_dir.identity("n2")).unwrap();
        assert_eq!(one.ca_fingerprint(), other.ca_fingerprint());
        let left = one.not_after().duration_since(std::time::SystemTime::now()).unwrap();
        assert!(left < Duration::from_secs(2 * 86_400), "{left:?}");
        assert!(!Authority::exists(run_dir.path()) && !Authority::exists(&run_dir.identity("n1")));
        assert_eq!(run_dir.charter().unwrap().job, job);
    }
}
