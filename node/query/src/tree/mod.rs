//! The coordinator's side of a tree: the nodes to ask are split into groups, one node of each asks the others and passes on what
//! they say (`relay`). Each piece names its leaf, so that coverage is exact per leaf and nothing counts twice: a leaf's
//! answer counts when it is whole, once; what was not whole when its intermediate aggregator was lost is asked for again, directly.

mod combining;

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use certs::NodeName;
use model::wire::{Leaf, LeafReply, Request, Response};

use tokio::time::timeout;

use super::inbox::ResponseSender;
use super::keepalive::silence_limit;
use super::leaf::{LeafEvent, LeafFailure, LeafRequest, RowSink, Target};

/// Of the time left, what an intermediate aggregator may not use: then it tells what it has and the coordinator can still take it.
const KEPT_BACK_SHARE: u32 = 10;
const KEPT_BACK_MOST: Duration = Duration::from_millis(250);

/// How a mesh is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FanoutPolicy {
    /// More nodes than this are asked through intermediate aggregators.
    pub tree_above: usize,
}

impl Default for FanoutPolicy {
    fn default() -> Self {
        Self { tree_above: TREE_ABOVE }
    }
}

/// Where asking directly begins to cost an coordinator more than a host should pay for a question: 512 connections of some 100 KB are half
/// of an agent's budget (docs/decisions/0012-trees-above-512.md).
const TREE_ABOVE: usize = 512;

/// Splits `targets` into groups of about the square root of their number, so that the coordinator and each intermediate aggregator ask
/// about as many.
pub(super) fn groups(targets: Vec<usize>) -> Vec<Vec<usize>> {
    let size = targets.len().isqrt().max(1);
    targets.chunks(size).map(<[usize]>::to_vec).collect()
}

/// Asks the nodes of a group through one of them, gathers each leaf's rows in `rows_of` it, and hands its end to `ended`. The leaves
/// that have to be asked directly go to `direct`: at once those that the intermediate aggregator cannot reach, at the end those without an outcome
/// when it was lost.
pub(super) async fn ask(
    ask: &LeafRequest,
    group: &[(usize, Target)],
    rows_of: &(impl Fn(usize) -> RowSink + Sync),
    ended: &ResponseSender,
    direct: &(impl Fn((usize, Target)) + Sync),
) {
    if combining::ask(ask, group, rows_of, ended, direct).await {
        return;
    }
    let mut waiting: Vec<Option<RowSink>> = group.iter().map(|(target, _)| Some(rows_of(*target))).collect();
    let lost = ask_through(ask, group, &mut waiting, ended, direct).await.err();
    if let Some(why) = &lost {
        tracing::debug!(%why, "a subtree was lost; its open leaves are asked directly");
    }
    for (leaf, rows) in group.iter().zip(waiting) {
        match rows {
            Some(rows) if rows.sent_rows() > 0 => {
                let why = format!("the node that asked it was lost: {}", lost.as_deref().unwrap_or("it ended early"));
                let _ = ended.send(LeafEvent::Finished(leaf.0, rows.finish(Err(LeafFailure::Missing(why))))).await;
            }
            Some(_) => direct(leaf.clone()),
            None => {}
        }
    }
}

/// The one of the group that asks for `coordinator`: always the same, since its connections to the others are warm then; for
/// another coordinator another.
pub(super) fn aggregator_of<'g>(coordinator: &NodeName, group: &'g [(usize, Target)]) -> Option<&'g Target> {
    let weight = |name: &NodeName| {
        BuildHasherDefault::<DefaultHasher>::default().hash_one((coordinator.as_str(), name.as_str()))
    };
    group.iter().map(|(_, target)| target).max_by_key(|target| weight(&target.name))
}

/// Time that an intermediate aggregator is given, milliseconds.
pub(super) fn aggregator_time_ms(ask: &LeafRequest) -> u32 {
    let left = Duration::from_millis(ask.left_ms().into());
    let left = left.saturating_sub((left / KEPT_BACK_SHARE).min(KEPT_BACK_MOST));
    u32::try_from(left.as_millis()).unwrap_or(u32::MAX)
}

/// A group as its intermediate aggregator is told it.
pub(super) fn leaves_of(group: &[(usize, Target)]) -> Vec<Leaf> {
    group.iter().map(|(_, target)| Leaf { node: target.name.to_string(), address: target.address }).collect()
}

async fn ask_through(
    ask: &LeafRequest,
    group: &[(usize, Target)],
    waiting: &mut [Option<RowSink>],
    ended: &ResponseSender,
    direct: &(impl Fn((usize, Target)) + Sync),
) -> Result<(), String> {
    let inner = aggregator_of(ask.mesh.identity().node(), group).ok_or("an empty group")?;
    let (deadline_ms, task, leaves) = (aggregator_time_ms(ask), ask.task.clone(), leaves_of(group));
    let request = match ask.snapshot {
        None => Request::Relay { deadline_ms, task, leaves },
        Some(snapshot) => Request::RoundRelay { deadline_ms, task, leaves, snapshot },
    };
    let silence = silence_limit(ask);
    let asked = timeout(silence, ask.mesh.ask(&inner.name, inner.address, request, ask.deadline.into()));
    let mut responses = asked.await.map_err(|_| "no sign of life")?.map_err(|error| error.to_string())?;
    loop {
        let response = timeout(silence, responses.next()).await.map_err(|_| "no sign of life")?;
        let pieces = match response.map_err(|error| error.to_string())? {
            Some(Response::Leaves(pieces)) => pieces,
            Some(Response::Done(_)) => return Ok(()),
            Some(other) => return Err(other.summary()),
            None => return Err("its answer ended early".to_owned()),
        };
        for piece in pieces {
            let at = piece.leaf as usize;
            let held = waiting.get_mut(at).ok_or("it names a leaf that it was not given")?;
            // What is left of one that is asked directly by now says nothing new.
            let Some(rows) = held.as_mut() else { continue };
            let leaf = group.get(at).ok_or("it names a leaf that it was not given")?;
            let outcome = match piece.reply {
                LeafReply::Batch { fragment, batch } => match ask.take(rows, fragment, batch).await {
                    Ok(()) => continue,
                    // Whether the leaf said so, or the intermediate aggregator: that one is asked itself.
                    Err(LeafFailure::Missing(why)) if rows.sent_rows() == 0 => {
                        tracing::debug!(leaf = %leaf.1.name, %why, "asked directly");
                        *held = None;
                        direct(leaf.clone());
                        continue;
                    }
                    Err(lost) => Err(lost),
                },
                LeafReply::Done(stats) => Ok(stats),
                LeafReply::Failed(error) => Err(LeafFailure::of(error)),
                LeafReply::Missing(why) if why.starts_with("unreachable") && rows.sent_rows() == 0 => {
                    *held = None;
                    direct(leaf.clone());
                    continue;
                }
                LeafReply::Missing(why) => Err(LeafFailure::missing(&why)),
            };
            let Some(rows) = held.take() else { continue };
            // Nobody waits any more: the question is over.
            ended.send(LeafEvent::Finished(leaf.0, rows.finish(outcome))).await.map_err(|_| "the question is over")?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_hold_everyone_once() {
        for n in [1, 2, 3, 257, 1_000] {
            let all: Vec<usize> = (0..n).collect();
            let groups = groups(all.clone());
            assert_eq!(groups.concat(), all);
            assert!(groups.len() <= n.isqrt() + 2, "{n}: {}", groups.len());
        }
    }
}
