//! The asker's side of a tree: the nodes to ask are split into groups, one node of each asks the others and passes on what
//! they say (`relay`). Each piece names its leaf, so that coverage is exact per leaf and nothing counts twice: a leaf's
//! answer counts when it is whole, once; what was not whole when its inner node was lost is asked for again, directly.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use certs::NodeName;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::leaf::{Gathered, Held, LeafAsk, Lost, Target, Whole};
use super::relay::PULSE;
use crate::mesh::wire::{Leaf, LeafSaid, Request, Response};

/// An inner node that says nothing for this long is lost.
const SILENCE: Duration = Duration::from_secs(3);
const _: () = assert!(SILENCE.as_millis() > 4 * PULSE.as_millis());

/// Of the time left, what an inner node may not use: then it tells what it has and the asker can still take it.
const KEPT_BACK_SHARE: u32 = 10;
const KEPT_BACK_MOST: Duration = Duration::from_millis(250);

/// How a mesh is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FanoutPolicy {
    /// More nodes than this are asked through inner nodes.
    pub tree_above: usize,
}

impl Default for FanoutPolicy {
    fn default() -> Self {
        Self { tree_above: TREE_ABOVE }
    }
}

/// Never by itself: a tree was not measured faster yet (docs/measurements.md).
const TREE_ABOVE: usize = usize::MAX;

/// Splits `targets` into groups of about the square root of their number, so that the asker and each inner node ask
/// about as many.
pub(super) fn groups(targets: Vec<usize>) -> Vec<Vec<usize>> {
    let size = targets.len().isqrt().max(1);
    targets.chunks(size).map(<[usize]>::to_vec).collect()
}

/// What came of a leaf: its number among all targets, and its answer or why there is none.
pub(super) type Outcome = (usize, Result<Whole, Lost>);

/// Asks the nodes of a group through one of them, and hands each leaf's outcome to `ended`. Returns the leaves that have
/// to be asked directly: those without an outcome when the inner node was lost, and those it could not reach.
pub(super) async fn ask(
    ask: &LeafAsk,
    group: &[(usize, Target)],
    gathered: &Gathered,
    ended: &mpsc::Sender<Outcome>,
) -> Vec<(usize, Target)> {
    let mut waiting: Vec<Option<Held>> = group.iter().map(|_| Some(Held::new(gathered))).collect();
    let mut again = Vec::new();
    if let Err(why) = through_inner(ask, group, &mut waiting, &mut again, ended).await {
        tracing::debug!(%why, "a subtree was lost; its open leaves are asked directly");
    }
    again.extend(waiting.iter().enumerate().filter(|(_, held)| held.is_some()).map(|(at, _)| at));
    again.into_iter().filter_map(|at| group.get(at).cloned()).collect()
}

/// The one of the group that asks for `asker`: always the same, since its connections to the others are warm then; for
/// another asker another.
fn inner_of<'g>(asker: &NodeName, group: &'g [(usize, Target)]) -> Option<&'g Target> {
    let weight =
        |name: &NodeName| BuildHasherDefault::<DefaultHasher>::default().hash_one((asker.as_str(), name.as_str()));
    group.iter().map(|(_, target)| target).max_by_key(|target| weight(&target.name))
}

async fn through_inner(
    ask: &LeafAsk,
    group: &[(usize, Target)],
    waiting: &mut [Option<Held>],
    again: &mut Vec<usize>,
    ended: &mpsc::Sender<Outcome>,
) -> Result<(), String> {
    let inner = inner_of(ask.mesh.identity().node(), group).ok_or("an empty group")?;
    let left = Duration::from_millis(ask.left_ms().into());
    let left = left.saturating_sub((left / KEPT_BACK_SHARE).min(KEPT_BACK_MOST));
    let deadline_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
    let task = ask.task.clone();
    let leaves =
        group.iter().map(|(_, target)| Leaf { node: target.name.to_string(), address: target.address }).collect();
    let request = match ask.snapshot {
        None => Request::Relay { deadline_ms, task, leaves },
        Some(snapshot) => Request::RoundRelay { deadline_ms, task, leaves, snapshot },
    };
    let asked = ask.mesh.ask(&inner.name, inner.address, request, ask.deadline.into());
    let mut responses = asked.await.map_err(|error| error.to_string())?;
    loop {
        let response = timeout(SILENCE, responses.next()).await.map_err(|_| "no sign of life")?;
        let pieces = match response.map_err(|error| error.to_string())? {
            Some(Response::Leaves(pieces)) => pieces,
            Some(Response::Done(_)) => return Ok(()),
            other => return Err(format!("{other:?}")),
        };
        for piece in pieces {
            let at = piece.leaf as usize;
            let held = waiting.get_mut(at).ok_or("it names a leaf that it was not given")?;
            let rows = held.as_mut().ok_or("it says more of a leaf that has ended")?;
            let (target, _) = group.get(at).ok_or("it names a leaf that it was not given")?;
            let outcome = match piece.said {
                LeafSaid::Batch { part, batch } => match rows.push(part as usize, batch) {
                    Ok(()) => continue,
                    Err(lost) => Err(lost),
                },
                LeafSaid::Done(stats) => match held.take() {
                    Some(held) => Ok(held.into_whole(stats)),
                    None => continue,
                },
                LeafSaid::Failed(error) => Err(Lost::of(error)),
                LeafSaid::Missing(why) if why.starts_with("unreachable") => {
                    *held = None;
                    again.push(at);
                    continue;
                }
                LeafSaid::Missing(why) => Err(Lost::Missing(why)),
            };
            *held = None;
            // Nobody waits any more: the question is over.
            ended.send((*target, outcome)).await.map_err(|_| "the question is over")?;
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
