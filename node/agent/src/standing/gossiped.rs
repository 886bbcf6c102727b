//! Digests by gossip, to everybody: how agents of an earlier release send them. While a live
//! member is one, all do so, and each judges the whole mesh as one job, as that one does.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use digest::time_use::{self, EVERY_WINDOWS, TimeUse};
use digest::{Digest, end_of};
use gossip::Member;
use record::{steady_now_ns, wall_ahead_ns};
use standing::{NO_JOB, NODE_WINDOWS};

use super::super::Shared;
use super::{LARGEST, LARGEST_TIMES};

/// Gossips a window of this host.
pub(super) async fn publish(shared: &Shared, own: &Arc<str>, window: i64, digest: Option<Digest>, times: Vec<TimeUse>) {
    let standing = &shared.standing;
    if !times.is_empty() {
        let text = time_use::encode(&times, LARGEST_TIMES);
        standing.count_published(text.len());
        if let Ok(read) = time_use::decode(own, &text) {
            standing.boards.with(NO_JOB, |board| board.receive_times(own, window, read));
        }
        shared.coordinator.gossip.publish(times_slot(window), format!("{window} {text}")).await;
    }
    let Some(mut digest) = digest else { return };
    let reference = standing.boards.board(NO_JOB);
    let reference = reference.as_ref().and_then(|board| board.reference(steady_now_ns()));
    digest.clock = reference.and_then(|reference| standing.clocks.now(reference, own, end_of(window)));
    digest.wall_ahead_ms = wall_ahead_ns() / 1_000_000;
    let text = digest::encode_within(digest, LARGEST);
    standing.count_published(text.len());
    // As the others will read it.
    if let Ok(read) = digest::decode(&text) {
        standing.boards.with(NO_JOB, |board| board.receive(own, read, steady_now_ns()));
    }
    shared.coordinator.gossip.publish(slot(window), text).await;
}

/// What members gossip, each text once.
#[derive(Debug, Default)]
pub(super) struct Gossiped {
    received: BTreeMap<(String, String), String>,
}

impl Gossiped {
    /// Takes in what is new in a list of members.
    pub(super) fn receive(&mut self, shared: &Shared, list: &[Member]) {
        let digests: Vec<String> = (0..NODE_WINDOWS).map(slot).collect();
        let times: Vec<String> =
            (0..NODE_WINDOWS / EVERY_WINDOWS).map(|slot| times_slot(slot * EVERY_WINDOWS)).collect();
        for member in list.iter().filter(|member| !member.is_self) {
            let node = member.name.as_str();
            for name in &digests {
                let Some(text) = self.news(member, name) else { continue };
                let digest = digest::decode(text);
                shared.standing.boards.with(NO_JOB, |board| match digest {
                    Ok(digest) => drop(board.receive(node, digest, steady_now_ns())),
                    Err(error) => {
                        tracing::debug!("digest of {node}: {error}");
                        board.refuse(node, error.to_string());
                    }
                });
            }
            for name in &times {
                let Some((window, times)) = self.news(member, name).and_then(|text| read_times(node, text)) else {
                    continue;
                };
                shared.standing.boards.with(NO_JOB, |board| board.receive_times(node, window, times));
            }
        }
        let listed: HashSet<&str> = list.iter().map(|member| member.name.as_str()).collect();
        self.received.retain(|(name, _), _| listed.contains(name.as_str()));
    }

    /// What a member publishes under a name, where that is new.
    fn news<'a>(&mut self, member: &'a Member, name: &str) -> Option<&'a str> {
        let text = member.facts.extra.get(name)?;
        let key = (member.name.clone(), name.to_owned());
        let is_new = self.received.get(&key) != Some(text);
        is_new.then(|| {
            self.received.insert(key, text.clone());
            text.as_str()
        })
    }
}

fn slot(window: i64) -> String {
    format!("d{}", window.rem_euclid(NODE_WINDOWS))
}

/// The name under which it is gossiped where time went: windows of a second, as many as digests.
fn times_slot(window: i64) -> String {
    format!("t{}", window.div_euclid(EVERY_WINDOWS).rem_euclid(NODE_WINDOWS / EVERY_WINDOWS))
}

/// A node's window and where its processes' time went in it.
fn read_times(node: &str, text: &str) -> Option<(i64, Vec<TimeUse>)> {
    let (window, body) = text.split_once(' ')?;
    let times = time_use::decode(node, body);
    let times = times.inspect_err(|error| tracing::debug!("where time went on {node}: {error}")).ok()?;
    Some((window.parse().ok()?, times))
}
