//! The coordinator's side of a tree: the nodes to ask are split into groups, and one node of each,
//! the intermediate aggregator, asks the others and sends on what they answer (`aggregator`).
//!
//! Everything that comes names the leaves it is of, so that coverage is exact per leaf and nothing
//! counts twice: a leaf's rows count when its answer is complete, once. Leaves whose answers were
//! not complete when their aggregator was lost are asked directly.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use certs::NodeName;
use gossip::cells::CellId;
use model::wire::{FromLeaf, Leaf, LeafReply, Request, Response};
use model::{Failure, FailureKind};
use query_planner::{Combine, NodeTask};
use tokio::time::timeout;

use super::inbox::ResponseSender;
use super::keepalive::silence_limit;
use super::leaf::{LeafEvent, LeafFailure, LeafRequest, RowSink, Target};

/// Of the time left, what an aggregator may not use: then it sends what it has, and the coordinator
/// can still take it.
const RESERVE_SHARE: u32 = 10;
const MAX_RESERVE: Duration = Duration::from_millis(250);

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

/// Where asking directly begins to cost a coordinator more than a host should pay for a question:
/// 512 connections of some 100 KB are half of an agent's budget
/// (docs/decisions/0012-trees-above-512.md).
const TREE_ABOVE: usize = 512;

/// Splits `targets`, each with its cell, into groups of about the square root of their number, so
/// that the coordinator and each aggregator ask about as many; in a mesh of several cells into whole
/// cells, of at least so many together: their members are connected, and their delegates know best
/// who is there.
pub(super) fn groups(targets: &[(usize, CellId)]) -> Vec<Vec<usize>> {
    let size = targets.len().isqrt().max(1);
    let mut cells: BTreeMap<CellId, Vec<usize>> = BTreeMap::new();
    targets.iter().for_each(|(target, cell)| cells.entry(*cell).or_default().push(*target));
    if cells.len() == 1 {
        return cells
            .into_values()
            .flat_map(|all| all.chunks(size).map(<[usize]>::to_vec).collect::<Vec<_>>())
            .collect();
    }
    cells.into_values().fold(Vec::new(), |mut groups: Vec<Vec<usize>>, cell| {
        match groups.last_mut().filter(|group| group.len() < size) {
            Some(group) => group.extend(cell),
            None => groups.push(cell),
        }
        groups
    })
}

/// The member of the group that asks for `coordinator`, a delegate of its cell where there is one:
/// always the same, so that its connections to the others are open already; another one for another
/// coordinator.
pub(super) fn aggregator_of<'g>(coordinator: &NodeName, group: &'g [(usize, Target)]) -> Option<&'g Target> {
    let weight = |name: &NodeName| {
        BuildHasherDefault::<DefaultHasher>::default().hash_one((coordinator.as_str(), name.as_str()))
    };
    group.iter().map(|(_, target)| target).max_by_key(|target| (target.seat.speaks, weight(&target.name)))
}

/// A group as its aggregator is given it.
pub(super) fn leaves_of(group: &[(usize, Target)]) -> Vec<Leaf> {
    group.iter().map(|(_, target)| Leaf { node: target.name.to_string(), address: target.address }).collect()
}

/// Asks the nodes of a group through one of them. Each leaf's rows go to what `sink_of` makes for
/// its number, and its end to `events`; where leaves' rows are combined, all rows of several come
/// with one of them. Leaves that have to be asked directly go to `direct`: at once those that the
/// aggregator cannot reach, at the end those that are still open.
pub(super) async fn ask(
    request: &LeafRequest,
    group: &[(usize, Target)],
    sink_of: &(impl Fn(usize) -> RowSink + Sync),
    events: &ResponseSender,
    direct: &(impl Fn((usize, Target)) + Sync),
) {
    let mut open: Vec<Option<RowSink>> = group.iter().map(|(target, _)| Some(sink_of(*target))).collect();
    let lost = ask_through(request, group, sink_of, &mut open, events, direct).await.err();
    if let Some(why) = &lost {
        tracing::debug!(%why, "a subtree was lost; its open leaves are asked directly");
    }
    for (leaf, rows) in group.iter().zip(open) {
        match rows {
            Some(rows) if rows.sent_rows() > 0 => {
                let why = format!("the node that asked it was lost: {}", lost.as_deref().unwrap_or("it ended early"));
                let broke_off = rows.finish(Err(LeafFailure::of(why)));
                let _ = events.send(LeafEvent::Finished(leaf.0, broke_off)).await;
            }
            Some(_) => direct(leaf.clone()),
            None => {}
        }
    }
}

/// How the rows of a task's fragments combine, if those of all fragments do.
fn combines(task: &NodeTask) -> Option<Vec<Combine>> {
    let combines: Option<Vec<Combine>> = task.fragments.iter().map(|fragment| fragment.combine.clone()).collect();
    combines.filter(|combines| !combines.is_empty())
}

/// Time that an aggregator is given, milliseconds.
fn aggregator_time_ms(request: &LeafRequest) -> u32 {
    let left = Duration::from_millis(request.left_ms().into());
    let left = left.saturating_sub((left / RESERVE_SHARE).min(MAX_RESERVE));
    u32::try_from(left.as_millis()).unwrap_or(u32::MAX)
}

fn request_to_aggregator(request: &LeafRequest, group: &[(usize, Target)]) -> Request {
    let (deadline_ms, task, leaves) = (aggregator_time_ms(request), request.task.clone(), leaves_of(group));
    match (combines(&request.task), request.snapshot) {
        (Some(combine), snapshot) => Request::Combine { deadline_ms, task, leaves, combine, snapshot },
        (None, None) => Request::Relay { deadline_ms, task, leaves },
        (None, Some(snapshot)) => Request::RoundRelay { deadline_ms, task, leaves, snapshot },
    }
}

/// Asks the aggregator until it has sent everything. Leaves that are dealt with are taken out of
/// `open`.
async fn ask_through(
    request: &LeafRequest,
    group: &[(usize, Target)],
    sink_of: &(impl Fn(usize) -> RowSink + Sync),
    open: &mut [Option<RowSink>],
    events: &ResponseSender,
    direct: &(impl Fn((usize, Target)) + Sync),
) -> Result<(), String> {
    let mesh = request.way.mesh().ok_or("there is no mesh to ask it through")?;
    let aggregator = aggregator_of(mesh.identity().node(), group).ok_or("an empty group")?;
    let first = group.first().map(|(target, _)| *target).ok_or("an empty group")?;
    let silence = silence_limit(request);
    let to_aggregator = request_to_aggregator(request, group);
    let combining = matches!(to_aggregator, Request::Combine { .. });
    let asked = mesh.ask(&aggregator.name, aggregator.address, to_aggregator, request.deadline.into());
    let asked = timeout(silence, asked).await.map_err(|_| "no sign of life")?;
    let mut responses = asked.map_err(|error| error.to_string())?;
    // Rows of leaves that the next `Combined` names.
    let mut combined = sink_of(first);
    // The coordinator has stopped waiting.
    let over = |_| "the question is over".to_owned();
    loop {
        let response = timeout(silence, responses.next()).await.map_err(|_| "no sign of life")?;
        match response.map_err(|error| error.to_string())? {
            Some(Response::Batch { fragment, batch }) if combining => {
                match request.accept(&mut combined, group.len(), fragment, batch).await {
                    Ok(()) => {}
                    // Of all its leaves' rows none are known to be complete: they are asked
                    // themselves.
                    Err(LeafFailure::Failed(failure)) => return Err(failure.message),
                    Err(failure) => {
                        open.fill_with(|| None);
                        let failed = combined.finish(Err(failure));
                        return events.send(LeafEvent::Finished(first, failed)).await.map_err(over);
                    }
                }
            }
            Some(Response::Combined(leaves)) if combining => {
                let is_open = |at: &u32| open.get(*at as usize).is_some_and(Option::is_some);
                let named: BTreeSet<u32> = leaves.iter().map(|(at, _)| *at).filter(is_open).collect();
                if named.len() != leaves.len() {
                    return Err("it names a leaf twice, or one that it was not given".to_owned());
                }
                let mut rows = Some(std::mem::replace(&mut combined, sink_of(first)));
                for (at, stats) in leaves {
                    let empty = open.get_mut(at as usize).and_then(Option::take);
                    let (Some(rows), Some((target, _))) = (rows.take().or(empty), group.get(at as usize)) else {
                        continue;
                    };
                    events.send(LeafEvent::Finished(*target, rows.finish(Ok(stats)))).await.map_err(over)?;
                }
            }
            Some(Response::Leaves(messages)) => {
                for FromLeaf { leaf: at, reply } in messages {
                    let not_given = || "it names a leaf that it was not given".to_owned();
                    let sink = open.get_mut(at as usize).ok_or_else(not_given)?;
                    let leaf = group.get(at as usize).ok_or_else(not_given)?;
                    // What is left of one that is asked directly by now is nothing new.
                    let Some(rows) = sink.as_mut() else { continue };
                    let outcome = match reply {
                        LeafReply::Batch { fragment, batch } => match request.accept(rows, 1, fragment, batch).await {
                            Ok(()) => continue,
                            // Whether the leaf sent it, or the aggregator made it: that one is
                            // asked itself.
                            Err(LeafFailure::Failed(failure)) if rows.sent_rows() == 0 => {
                                Err(LeafFailure::Failed(Failure { kind: FailureKind::Unreachable, ..failure }))
                            }
                            Err(failure) => Err(failure),
                        },
                        LeafReply::Done(stats) => Ok(stats),
                        LeafReply::Failed(failure) => Err(LeafFailure::of(failure)),
                    };
                    let Some(rows) = sink.take() else { continue };
                    match outcome {
                        Err(LeafFailure::Failed(why)) if why.is_unreachable() && rows.sent_rows() == 0 => {
                            tracing::debug!(leaf = %leaf.1.name, %why, "asked directly");
                            direct(leaf.clone());
                        }
                        outcome => {
                            let ended = LeafEvent::Finished(leaf.0, rows.finish(outcome));
                            events.send(ended).await.map_err(over)?;
                        }
                    }
                }
            }
            Some(Response::Done(_)) => return Ok(()),
            Some(other) => return Err(other.summary()),
            None => return Err("its answer ended early".to_owned()),
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
            let of_one_cell: Vec<_> = all.iter().map(|target| (*target, CellId::WHOLE)).collect();
            let groups = groups(&of_one_cell);
            assert_eq!(groups.concat(), all);
            assert!(groups.len() <= n.isqrt() + 2, "{n}: {}", groups.len());
        }
    }

    #[test]
    fn groups_of_a_mesh_of_cells_are_whole_cells() {
        let cell = |target: usize| CellId::of((target as u64 % 16) << 60, 4);
        let all: Vec<_> = (0..1_600).map(|target| (target, cell(target))).collect();
        let groups = groups(&all);
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [100; 16]);
        assert!(groups.iter().all(|group| group.iter().all(|target| cell(*target) == cell(group[0]))));
        // Of a few nodes in each of many cells as many as in a mesh of one.
        let few: Vec<_> = all[..64].to_vec();
        let groups = super::groups(&few);
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [8; 8]);
        // A delegate asks the others, whoever the coordinator is.
        let target = |at: u16| Target {
            name: format!("n{at}").parse().unwrap(),
            address: ([127, 0, 0, 1], at).into(),
            local: false,
            seat: gossip::Seat { speaks: at == 7, ..Default::default() },
        };
        let group: Vec<_> = (0..16).map(|at| (usize::from(at), target(at))).collect();
        for coordinator in ["a", "b", "c"] {
            let aggregator = aggregator_of(&coordinator.parse().unwrap(), &group).unwrap();
            assert_eq!(aggregator.name.as_str(), "n7");
        }
    }
}
