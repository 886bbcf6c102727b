//! State of this node, and which others it reaches: its part of `rankmesh doctor`, and the asking
//! of all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use gossip::Member;
use model::health::{Health, Reached};
use model::wire::{Request, Response};
use model::{Failure, FailureKind};
use record::unix_now_ns;
use serde::Serialize;
use tokio::time::Instant;

use super::Shared;

/// Time in which a node tries to reach the others: a dial is given up after 3 s.
const TO_REACH: Duration = Duration::from_secs(5);
/// Time of a node for its answer, and of the examination with a second round.
const TO_ANSWER: Duration = Duration::from_secs(7);
/// In a larger mesh, each node tries this many of the others, and each is tried by as many.
const ALL_PAIRS: usize = 64;
const NEIGHBOURS: usize = 16;

/// The answers of all nodes.
#[derive(Debug, Serialize)]
pub(super) struct Examination {
    /// The node that asked.
    asked_by: String,
    /// Members that did not send a farewell, whether they answered or not.
    members: Vec<Examined>,
    /// None where every node tried every other; else each tried this many neighbours.
    neighbours: Option<usize>,
}

/// One of them.
#[derive(Debug, Serialize)]
struct Examined {
    name: String,
    address: String,
    state: gossip::MemberState,
    version: String,
    /// Its answer.
    health: Option<Health>,
    /// The node by way of which it was asked, where it did not answer this node.
    by_way_of: Option<String>,
    /// Why it did not answer this node,
    error: Option<String>,
    /// and of what kind that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<FailureKind>,
}

/// Names that a node is asked to reach, at most: more than a mesh has.
const MOST_NAMED: usize = 4_096;

/// State of this node; `reach` names the nodes that it tries to reach first.
pub(super) async fn own(shared: &Shared, reach: &[String], deadline: Instant) -> Health {
    let members = shared.coordinator.gossip.members();
    let deadline = deadline.min(Instant::now() + TO_REACH);
    // Each once, however often it is named.
    let names: BTreeSet<&String> = reach.iter().take(MOST_NAMED).collect();
    let tried = names.into_iter().filter(|name| *name != shared.identity.node().as_str()).map(|name| {
        let member = members.iter().find(|member| member.name == *name);
        reached(shared, name, member, deadline)
    });
    let mut reached: Vec<Reached> = tried.collect::<FuturesUnordered<_>>().collect().await;
    reached.sort_by(|a, b| a.node.cmp(&b.node));
    let (identity, cost) = (shared.mesh.identity(), shared.recording.cost());
    Health {
        node: identity.node().to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        wire: model::frame::VERSION.into(),
        schema: store::SCHEMA_VERSION,
        kernel: nix::sys::utsname::uname()
            .map_or_else(|_| String::new(), |uname| uname.release().to_string_lossy().into_owned()),
        capture: shared.recording.shown(),
        recording_ppm: cost.map(|cost| cost.share_ppm),
        recorded_call_ns: cost.map(|cost| cost.call_ns),
        recorded_calls_per_second: cost.map(|cost| cost.calls_per_second),
        certificate_ends_ns: unix_ns(identity.not_after()),
        certificate_renews_ns: unix_ns(identity.renew_at()),
        now_ns: unix_now_ns(),
        reached,
        callers: shared.mesh.callers(),
    }
}

fn unix_ns(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}

async fn reached(shared: &Shared, name: &str, member: Option<&Member>, deadline: Instant) -> Reached {
    let reached = async {
        let not_known = || Failure::new(FailureKind::NotKnown, "not known here: gossip has not brought it");
        let address = member.ok_or_else(not_known)?.address;
        let node = name.parse().map_err(|_| "its name is no node name")?;
        Ok::<_, Failure>(shared.mesh.reach(&node, address, deadline).await?)
    };
    let (way, failure) = match reached.await {
        Ok(way) => (Some(way), None),
        Err(failure) => (None, Some(failure)),
    };
    let (error, kind) = failure.map(|failure| (failure.message, failure.kind)).unzip();
    Reached { node: name.to_owned(), address: member.map(|member| member.address), way, error, kind }
}

/// Answers another node: `of` are those whose health it wants by way of this one; if empty, this
/// one's own.
pub(super) async fn answer(shared: &Shared, reach: &[String], of: &[String], deadline: Instant) -> Response {
    if of.is_empty() {
        let health = own(shared, reach, deadline).await;
        return encoded(&[health]);
    }
    let members = shared.coordinator.gossip.members();
    let asked = members.iter().filter(|member| of.contains(&member.name) && !member.is_self);
    let answers: Vec<_> = asked
        .map(|member| ask(shared, member, reach.to_vec(), deadline))
        .collect::<FuturesUnordered<_>>()
        .filter_map(|(_, health)| std::future::ready(health.ok()))
        .collect()
        .await;
    encoded(&answers)
}

fn encoded(healths: &[Health]) -> Response {
    match serde_json::to_vec(healths) {
        Ok(json) => Response::Health(json),
        Err(error) => Response::failed(error),
    }
}

async fn ask(
    shared: &Shared,
    member: &Member,
    reach: Vec<String>,
    deadline: Instant,
) -> (String, Result<Health, Failure>) {
    let answer = put(shared, member, reach, vec![], deadline).await;
    let health = answer.and_then(|healths| healths.into_iter().next().ok_or_else(|| "an empty answer".into()));
    // It speaks for itself only.
    (member.name.clone(), health.map(|health| Health { node: member.name.clone(), ..health }))
}

async fn put(
    shared: &Shared,
    member: &Member,
    reach: Vec<String>,
    of: Vec<String>,
    deadline: Instant,
) -> Result<Vec<Health>, Failure> {
    let node = member.name.parse().map_err(|_| "its name is no node name")?;
    let left = deadline.saturating_duration_since(Instant::now());
    let request = Request::Health { deadline_ms: u32::try_from(left.as_millis()).unwrap_or(u32::MAX), reach, of };
    let mut stream = shared.mesh.ask(&node, member.address, request, deadline).await?;
    match stream.next().await? {
        Some(Response::Health(json)) => {
            Ok(serde_json::from_slice(&json).map_err(|error| format!("its answer: {error}"))?)
        }
        Some(Response::Unsupported(_)) => {
            Err(Failure::new(FailureKind::OtherRelease, "an older release: it does not know this question"))
        }
        Some(other) => Err(other.summary().into()),
        None => Err("no answer".into()),
    }
}

/// Which nodes each node tries: all, or in a large mesh the next ones in the order of names.
fn wanted(names: &[String], of: &str) -> Vec<String> {
    if names.len() <= ALL_PAIRS {
        return names.to_vec();
    }
    let at = names.iter().position(|name| name == of).unwrap_or(0);
    (1..=NEIGHBOURS).map(|step| names[(at + step) % names.len()].clone()).collect()
}

/// Asks every member for its health. Members that this node does not reach are asked by way of
/// others that do.
pub(super) async fn examine(shared: &Shared) -> Examination {
    let mut members = shared.coordinator.gossip.members();
    members.sort_by(|a, b| a.name.cmp(&b.name));
    let names: Vec<String> = members.iter().map(|member| member.name.clone()).collect();
    let deadline = Instant::now() + TO_ANSWER;
    let others = members.iter().filter(|member| !member.is_self);
    let asked = others.map(|member| ask(shared, member, wanted(&names, &member.name), deadline));
    // This node tries all of them: it asks them anyway.
    let (mut own, answers) =
        tokio::join!(own(shared, &names, deadline), asked.collect::<FuturesUnordered<_>>().collect::<Vec<_>>());
    let mut answers: BTreeMap<String, Result<Health, Failure>> = answers.into_iter().collect();
    let roundabout = by_way_of_others(shared, &members, &names, &answers).await;
    // Nodes that tried to call back have done so by now.
    own.callers = shared.mesh.callers();
    answers.insert(own.node.clone(), Ok(own.clone()));
    let members = members.into_iter().map(|member| {
        let (health, failure) = match answers.remove(&member.name) {
            Some(Ok(health)) => (Some(health), None),
            Some(Err(failure)) => (None, Some(failure)),
            None => (None, None),
        };
        let (error, kind) = failure.map(|failure| (failure.message, failure.kind)).unzip();
        let (health, by_way_of) = match (health, roundabout.get(&member.name)) {
            (None, Some((by, health))) => (Some(health.clone()), Some(by.clone())),
            (health, _) => (health, None),
        };
        Examined {
            address: member.address.to_string(),
            state: member.state,
            version: member.facts.version.clone(),
            health,
            by_way_of,
            error,
            kind,
            name: member.name,
        }
    });
    let members: Vec<Examined> = members.collect();
    let neighbours = (members.len() > ALL_PAIRS).then_some(NEIGHBOURS);
    Examination { asked_by: own.node, members, neighbours }
}

/// The health of those that did not answer, from a node that reaches them.
async fn by_way_of_others(
    shared: &Shared,
    members: &[Member],
    names: &[String],
    answers: &BTreeMap<String, Result<Health, Failure>>,
) -> BTreeMap<String, (String, Health)> {
    let mut through: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (missing, _) in answers.iter().filter(|(_, answer)| answer.is_err()) {
        let reaches = |health: &&Health| health.reached.iter().any(|r| r.node == *missing && r.way.is_some());
        if let Some(by) = answers.values().filter_map(|answer| answer.as_ref().ok()).find(reaches) {
            through.entry(&by.node).or_default().push(missing.clone());
        }
    }
    let deadline = Instant::now() + TO_ANSWER;
    let asked = through.into_iter().filter_map(|(by, of)| {
        let member = members.iter().find(|member| member.name == by)?;
        Some(async move { (by.to_owned(), put(shared, member, names.to_vec(), of, deadline).await) })
    });
    let indirect: Vec<_> = asked.collect::<FuturesUnordered<_>>().collect().await;
    let healths = indirect.into_iter().flat_map(|(by, healths)| {
        healths.unwrap_or_default().into_iter().map(move |health| (health.node.clone(), (by.clone(), health)))
    });
    healths.filter(|(name, _)| answers.get(name).is_some_and(Result::is_err)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_large_mesh_each_node_is_tried_by_as_many() {
        let names: Vec<String> = (0..100).map(|n| format!("n{n:03}")).collect();
        let mut tried: BTreeMap<String, usize> = BTreeMap::new();
        for name in &names {
            let wanted = wanted(&names, name);
            assert!(!wanted.contains(name));
            wanted.into_iter().for_each(|other| *tried.entry(other).or_default() += 1);
        }
        assert_eq!(tried.len(), 100);
        assert!(tried.values().all(|times| *times == NEIGHBOURS));
        assert_eq!(wanted(&names[..64], "n001"), names[..64]);
    }
}
