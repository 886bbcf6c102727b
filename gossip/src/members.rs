//! The list of members as the rest of the agent sees it: one entry a name, judged live or dead.
//!
//! chitchat knows incarnations (name, generation, address); several of one name may be known at a time, and one that was
//! only just heard of counts as dead until its heartbeat has moved twice. This module turns that into a list a person can
//! read: of each name the highest generation, and nobody before they could be judged.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use chitchat::{Chitchat, ChitchatId, NodeState};
use serde::{Deserialize, Serialize};

use crate::facts::{KEY_LEFT, NodeFacts};
use crate::seal::{Reading, Sealing};

/// Whether a member is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// Its heartbeat arrives.
    Live,
    /// Its heartbeat has stopped, or it said good-bye.
    Dead,
}

/// One member of the mesh.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Where it is asked.
    pub address: SocketAddr,
    /// Its incarnation.
    pub generation: u64,
    /// Live or dead.
    pub state: MemberState,
    /// What it last said about itself.
    pub facts: NodeFacts,
    /// Whether it is this node.
    pub is_self: bool,
}

impl Member {
    /// Whether it is live.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.state == MemberState::Live
    }
}

/// What is remembered of each incarnation between two looks.
struct Seen {
    first: Instant,
    ever_live: bool,
    /// Of the state that was read last, and what was made of it.
    version: u64,
    epoch: u64,
    /// The owner's last statement that was believed, by its number; `None`: none so far.
    believed: Option<u64>,
    /// Since when keys are there whose seal is not.
    incomplete: Option<Instant>,
    left: bool,
    facts: NodeFacts,
}

/// Builds the list, remembering what it has parsed and whom it has seen alive.
pub(crate) struct Directory {
    self_id: ChitchatId,
    /// How long an incarnation may stay unjudged before it is listed as dead.
    patience: Duration,
    sealing: Sealing,
    seen: HashMap<ChitchatId, Seen>,
}

/// One look at the mesh.
pub(crate) struct Look {
    /// Sorted by name.
    pub(crate) members: Vec<Member>,
    /// A generation of this node's own name above its own that is not alive: an earlier life with a clock ahead of
    /// ours. Others would go on listing that one.
    pub(crate) outranked_by: Option<u64>,
}

impl Directory {
    pub(crate) fn new(self_id: ChitchatId, patience: Duration, sealing: Sealing) -> Self {
        Self { self_id, patience, sealing, seen: HashMap::new() }
    }

    pub(crate) fn look(&mut self, chitchat: &Chitchat, now: Instant) -> Look {
        let live: HashSet<&ChitchatId> = chitchat.live_nodes().collect();
        let states = chitchat.node_states();
        self.seen.retain(|id, _| states.contains_key(id));
        let mut newest: BTreeMap<&str, Member> = BTreeMap::new();
        let mut outranked_by = None;
        for (id, state) in states {
            let is_self = *id == self.self_id;
            let seen = self.seen.entry(id.clone()).or_insert_with(|| Seen::new(now));
            let own = Sealing::default();
            seen.read(id, state, if is_self { &own } else { &self.sealing }, now, self.patience);
            if seen.believed.is_none() {
                // Nobody vouches for it, so it is not there.
                continue;
            }
            let alive = is_self || (live.contains(id) && !seen.left);
            seen.ever_live |= alive;
            let judged = seen.ever_live || now.duration_since(seen.first) >= self.patience;
            if id.node_id == self.self_id.node_id && !is_self {
                if judged && !alive && id.generation_id > self.self_id.generation_id {
                    outranked_by = outranked_by.max(Some(id.generation_id));
                }
                continue;
            }
            if !judged || newest.get(&*id.node_id).is_some_and(|known| known.generation > id.generation_id) {
                continue;
            }
            newest.insert(&id.node_id, seen.member(id, alive, is_self));
        }
        Look { members: newest.into_values().collect(), outranked_by }
    }
}

impl Seen {
    fn new(now: Instant) -> Self {
        Self {
            first: now,
            ever_live: false,
            version: u64::MAX,
            epoch: 0,
            believed: None,
            incomplete: None,
            left: false,
            facts: NodeFacts::default(),
        }
    }

    /// Reads what changed since the last look, if its owner said it.
    fn read(&mut self, id: &ChitchatId, state: &NodeState, sealing: &Sealing, now: Instant, patience: Duration) {
        let (version, epoch) = (state.max_version(), sealing.epoch());
        if self.version == version && self.epoch == epoch {
            // A seal that does not come is no delay any more.
            if self.incomplete.is_some_and(|since| now.duration_since(since) >= patience) {
                self.incomplete = None;
                Self::refuse(id, sealing, "its keys are not sealed");
            }
            return;
        }
        let trust_changed = self.epoch != epoch;
        (self.version, self.epoch) = (version, epoch);
        match sealing.read(id, state, self.believed.unwrap_or(0)) {
            Reading::Good(number) => {
                self.believed = Some(number);
                self.incomplete = None;
                self.left = state.contains_key(KEY_LEFT);
                self.facts = NodeFacts::decode(state.key_values());
            }
            Reading::Incomplete => {
                self.incomplete.get_or_insert(now);
            }
            Reading::Forged(reason) => {
                self.incomplete = None;
                if trust_changed && self.believed.is_some() {
                    tracing::warn!(node = &*id.node_id, reason, "a member is believed no more");
                    self.believed = None;
                } else {
                    Self::refuse(id, sealing, &reason);
                }
            }
        }
    }

    fn refuse(id: &ChitchatId, sealing: &Sealing, reason: &str) {
        sealing.count_forged();
        let forged = sealing.forged();
        tracing::warn!(node = &*id.node_id, reason, forged, "ignored gossip that the node did not say");
    }

    fn member(&self, id: &ChitchatId, alive: bool, is_self: bool) -> Member {
        Member {
            name: id.node_id.to_string(),
            address: self.facts.address.unwrap_or(id.gossip_advertise_addr),
            generation: id.generation_id,
            state: if alive { MemberState::Live } else { MemberState::Dead },
            facts: self.facts.clone(),
            is_self,
        }
    }
}
