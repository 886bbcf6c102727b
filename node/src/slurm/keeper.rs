//! The keeper: runs the job step with the agents, sends them each other's addresses, and passes on
//! their messages.
//!
//! It runs detached from the batch script, next to it (or on the login node) until the step ends.
//! Agents and keeper exchange lines of JSON through srun's standard streams: an agent sends
//! [`AgentMessage`]s, the keeper answers with [`KeeperMessage`]s; keys do not travel this way. When
//! the keeper dies the agents go on: they need it only to find each other at the start.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use agent::RecordingState;
use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::{commands, lines, run_dir};

/// Lines of agents that wait for the keeper; further ones wait in the pipe.
const WAITING: usize = 256;

/// A message on an agent's standard output, which the keeper passes on to `up`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentMessage {
    /// Its process runs; the agent starts.
    Started {
        /// Its node.
        node: String,
    },
    /// It is up and listens at this address.
    Hello {
        /// Its node.
        node: String,
        /// Where it listens.
        address: SocketAddr,
    },
    /// It knows this many live members, itself included.
    Live {
        /// Its node.
        node: String,
        /// How many.
        members: usize,
        /// How it is recorded.
        recording: RecordingState,
    },
    /// It could not start.
    Failed {
        /// Its node.
        node: String,
        /// Why.
        why: String,
    },
    /// From the keeper: the step has ended.
    Ended {
        /// The end of what srun printed on standard error.
        why: String,
    },
}

/// A message of the keeper to the agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeeperMessage {
    /// Agents to call first.
    Seeds(Vec<SocketAddr>),
}

/// How many addresses every agent gets: enough that some of these agents are live.
const SEEDS: usize = 8;
/// How long the keeper gathers addresses before it sends the first ones.
const GATHER: Duration = Duration::from_millis(1_500);
/// How long it gathers addresses of agents that start later.
const GATHER_LATER: Duration = Duration::from_millis(100);
/// Bytes of srun's messages that are passed on.
const LAST_WORDS_BYTES: usize = 2_000;

/// Runs the step of the mesh in `directory` until it ends.
///
/// # Errors
/// There is no charter there, or srun cannot be started.
pub fn run(directory: &Path) -> anyhow::Result<()> {
    // Out of the shell's session: Ctrl-C in it, or its end, must not end the mesh.
    let _ = nix::unistd::setsid();
    let (run_dir, charter) = run_dir::charter_in(directory)?;
    let binary = std::env::current_exe().context("finding this program's file")?;
    let log = run_dir.log("srun");
    let errors = std::fs::File::create(&log).with_context(|| format!("writing {}", log.display()))?;
    let arguments = ["slurm", "agent", "--dir"].map(std::ffi::OsStr::new);
    let mut arguments = arguments.to_vec();
    arguments.push(run_dir.path().as_os_str());
    let (sender, received) = mpsc::sync_channel(WAITING);
    let (mut steps, mut to_agents) = (vec![], vec![]);
    for mut command in commands::on_every_node(&charter.job, &binary, &arguments) {
        let mut srun = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors.try_clone().with_context(|| format!("writing {}", log.display()))?)
            .spawn()
            .context("running srun: is this a host of the cluster?")?;
        let (Some(to), Some(from)) = (srun.stdin.take(), srun.stdout.take()) else {
            anyhow::bail!("srun was started without its streams");
        };
        to_agents.push(to);
        steps.push(srun);
        let sender = sender.clone();
        std::thread::spawn(move || {
            lines::each(from, |line| sender.send(line.to_owned()).is_ok());
        });
    }
    drop(sender);
    keep(&received, to_agents, charter.job.nodes.len());
    for mut srun in steps {
        let _ = srun.wait();
    }
    let words = std::fs::read_to_string(&log).unwrap_or_default();
    let from = words.len().saturating_sub(LAST_WORDS_BYTES);
    let why = words.get(from..).unwrap_or(&words).trim().to_owned();
    pass_on(&AgentMessage::Ended { why });
    Ok(())
}

/// Gathers addresses and sends them to the agents until these are gone.
fn keep(received: &mpsc::Receiver<String>, mut to_agents: Vec<impl Write>, nodes: usize) {
    let mut addresses = BTreeMap::new();
    let mut send_at: Option<Instant> = None;
    let mut gather = GATHER;
    loop {
        let wait = send_at.map_or(Duration::from_secs(3_600), |at| at.saturating_duration_since(Instant::now()));
        match received.recv_timeout(wait) {
            Ok(line) => {
                let Ok(message) = serde_json::from_str::<AgentMessage>(&line) else { continue };
                if let AgentMessage::Hello { node, address } = &message
                    && (addresses.len() < nodes || addresses.contains_key(node))
                {
                    addresses.insert(node.clone(), *address);
                    send_at.get_or_insert(Instant::now() + gather);
                    if addresses.len() >= nodes {
                        send_at = Some(Instant::now());
                    }
                }
                pass_on(&message);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                if send_at.take().is_some() {
                    gather = GATHER_LATER;
                    let seeds = KeeperMessage::Seeds(addresses.values().take(SEEDS).copied().collect());
                    let Ok(mut line) = serde_json::to_vec(&seeds) else { continue };
                    line.push(b'\n');
                    // srun gives it to every task
                    for to in &mut to_agents {
                        let _ = to.write_all(&line).and_then(|()| to.flush());
                    }
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Passes a message on to `up`, as long as it reads.
fn pass_on(message: &AgentMessage) {
    let Ok(line) = serde_json::to_string(message) else { return };
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_get_each_others_addresses_once_all_are_there() {
        let (sender, received) = mpsc::channel();
        for (node, port) in [("n1", 1), ("n2", 2)] {
            let hello = AgentMessage::Hello { node: node.into(), address: ([127, 0, 0, 1], port).into() };
            sender.send(serde_json::to_string(&hello).unwrap()).unwrap();
        }
        sender.send("srun: some noise".into()).unwrap();
        let mut written = vec![];
        std::thread::scope(|scope| {
            let written = &mut written;
            scope.spawn(move || keep(&received, vec![written], 2));
            // long enough that the addresses of fewer would have been sent
            std::thread::sleep(GATHER / 4);
            drop(sender);
        });
        let line = String::from_utf8(written).unwrap();
        let KeeperMessage::Seeds(seeds) = serde_json::from_str(line.lines().next().unwrap()).unwrap();
        assert_eq!(seeds.len(), 2, "{line}");
    }
}
