//! `rankmesh slurm agent`: the process on each node of the job, started by the keeper through srun.
//!
//! Owned here: which node this is, when to start, and when to end: with SIGTERM, or when
//! slurmstepd is gone. The agent itself is `agent::Agent`.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use agent::scope::{JobScope, job_cgroup};
use agent::{Agent, AgentConfig, CaptureChoice, SourceConfig, config};
use anyhow::{Context, bail};
use gossip::MemberState;
use node_bpf::Budget;
use store::StoreConfig;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::keeper::{AgentMessage, KeeperMessage};
use super::lines;
use super::run_dir::{self, Charter, RunDir};
use crate::privileges::{self, Plan};

/// Time between two checks whether slurmstepd still runs.
const PARENT_LOOK: Duration = Duration::from_millis(500);

/// Runs this node's agent of the mesh in `directory` until the job step ends.
///
/// # Errors
/// The directory is not shared, this is no node of the job, the agent cannot start. The keeper gets
/// the error, too.
pub fn run(directory: &Path) -> anyhow::Result<()> {
    let node = std::env::var("SLURMD_NODENAME").context(
        "$SLURMD_NODENAME is not set: this command is for `rankmesh slurm up`, which starts it through srun",
    )?;
    let ran = run_on(directory, &node);
    if let Err(error) = &ran {
        send(&AgentMessage::Failed { node, why: format!("{error:#}") });
    }
    ran
}

fn run_on(directory: &Path, node: &str) -> anyhow::Result<()> {
    let (run_dir, charter) = run_dir::charter_in(directory)?;
    if !charter.job.nodes.iter().any(|name| name == node) {
        bail!("{node} is not among the nodes of job {}", charter.job.id);
    }
    log_to(&run_dir.log(node))?;
    let runtime_dir = run_dir::runtime_dir()?;
    run_dir::tidy(&runtime_dir);
    run_dir::tidy_rings();
    let socket = run_dir::socket(&runtime_dir, &charter.job.run_name(), node);
    let mut config = configure(&run_dir, &charter, node)?;
    config.socket = Some(socket.clone());
    query_planner::memory::bound_all(agent::QUESTIONS_MIB << 20);
    let plan = Plan {
        capture: charter.capture,
        files: [run_dir.path().to_owned(), config.identity.clone(), socket.clone()].into(),
        port: config.listen.port(),
    };
    // Before the runtime: capabilities are each thread's own.
    privileges::give_up_all_but(&plan).context("giving up privileges")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    let served = runtime.block_on(serve(config, node, charter.job.nodes.len()));
    runtime.shutdown_timeout(Duration::from_millis(500));
    if let Some(directory) = socket.parent() {
        let _ = std::fs::remove_file(&socket);
        let _ = std::fs::remove_dir(directory);
        let _ = std::fs::remove_dir(&runtime_dir); // the last one on this host
    }
    served?;
    if charter.report && charter.job.nodes.first().is_some_and(|first| first == node) {
        match super::report::write(&run_dir, &charter) {
            Ok(page) => tracing::info!("wrote {}", page.display()),
            Err(error) => tracing::warn!("no report of the job: {error:#}"),
        }
    }
    Ok(())
}

fn configure(run_dir: &RunDir, charter: &Charter, node: &str) -> anyhow::Result<AgentConfig> {
    let mut labels = charter.job.labels(node);
    labels.extend(charter.labels.iter().cloned());
    let ids = charter.job.ids();
    let limits = StoreConfig { max_bytes: charter.store_max_mib.saturating_mul(1 << 20), ..StoreConfig::default() };
    Ok(AgentConfig {
        listen: ([0, 0, 0, 0], 0).into(),
        capture: if charter.capture {
            let cgroup = job_cgroup(&ids);
            CaptureChoice::Auto {
                cgroup,
                probes: vec![],
                job: Some(JobScope { ids, node: node.to_owned() }),
                rings: Some(run_dir::ring_dir(Some(&charter.job.run_name()))),
                budget: charter.budget_ppm.and_then(|ppm| Budget::percent(f64::from(ppm) / 1e4)),
                serving: Some(Box::default()),
            }
        } else {
            CaptureChoice::Off
        },
        labels,
        ..AgentConfig::new(
            node.parse().with_context(|| format!("the node's name, {node}"))?,
            run_dir.identity(node),
            SourceConfig::Store { path: run_dir.store(charter, node), limits },
        )
    })
}

async fn serve(mut config: AgentConfig, node: &str, nodes: usize) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?; // of a terminal that is not ours
    let parent = nix::unistd::getppid();
    let mut received = listen_to_keeper();
    send(&AgentMessage::Started { node: node.to_owned() });
    config.advertise = Some(SocketAddr::new(own_address()?, 0));
    let agent = tokio::select! {
        agent = Agent::start(config) => agent?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
        () = orphaned(parent) => return Ok(()),
    };
    let shared = agent.shared();
    tracing::info!("node {node} listens on UDP {}, recording {}", shared.advertise, shared.recording.state);
    send(&AgentMessage::Hello { node: node.to_owned(), address: shared.advertise });
    let mut members = shared.coordinator.gossip.watch();
    let (mut reported, mut met, mut keeper) = (0, false, true);
    loop {
        let live = members.borrow_and_update().iter().filter(|member| member.state == MemberState::Live).count();
        // Once all are there `up` waits no longer: nothing is written into a pipe without a reader.
        if live != reported && reported < nodes {
            reported = live;
            send(&AgentMessage::Live {
                node: node.to_owned(),
                members: live,
                recording: shared.recording.state.clone(),
            });
        }
        tokio::select! {
            changed = members.changed() => if changed.is_err() { break },
            line = received.recv(), if keeper => match line {
                Some(KeeperMessage::Seeds(seeds)) => {
                    met = true;
                    shared.coordinator.gossip.meet(seeds, nodes).await;
                }
                // It is needed for the start alone.
                None if met => keeper = false,
                None => {
                    agent.shutdown().await;
                    bail!("the keeper of the job's mesh went away before the start")
                }
            },
            _ = hang_up.recv() => {}
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            () = orphaned(parent) => break,
        }
    }
    tracing::info!("leaving");
    agent.shutdown().await;
    Ok(())
}

/// Returns when this process has another parent: slurmstepd is gone, and will not end this agent
/// with the job.
async fn orphaned(parent: nix::unistd::Pid) {
    let mut tick = tokio::time::interval(PARENT_LOOK);
    while nix::unistd::getppid() == parent {
        tick.tick().await;
    }
}

/// The address at which other nodes reach this one: that towards the host that started the step.
fn own_address() -> anyhow::Result<IpAddr> {
    let launcher = std::env::var("SLURM_LAUNCH_NODE_IPADDR").ok().and_then(|text| text.parse::<IpAddr>().ok());
    let towards: Vec<SocketAddr> = launcher.map(|ip| SocketAddr::new(ip, 9)).into_iter().collect();
    Ok(config::advertised(None, ([0, 0, 0, 0], 0).into(), &towards)?.ip())
}

/// The keeper's messages, line by line; ends with the keeper.
fn listen_to_keeper() -> mpsc::Receiver<KeeperMessage> {
    let (sender, receiver) = mpsc::channel(4);
    std::thread::spawn(move || {
        lines::each(std::io::stdin(), |line| {
            serde_json::from_str(line).map_or(true, |message| sender.blocking_send(message).is_ok())
        });
    });
    receiver
}

fn send(message: &AgentMessage) {
    let Ok(line) = serde_json::to_string(message) else { return };
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Redirects standard error to this node's log: srun may be gone long before the agent.
fn log_to(path: &Path) -> anyhow::Result<()> {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let file = file.with_context(|| format!("writing {}", path.display()))?;
    nix::unistd::dup2_stderr(&file).with_context(|| format!("redirecting to {}", path.display()))
}
