//! The list of members as the rest of the agent sees it: one entry a name, judged live or dead.
//!
//! chitchat knows incarnations (name, generation, address). Several of one name may be known at a
//! time, and chitchat counts a new one as dead until its heartbeat has moved twice. This module
//! makes a list for people of that: of each name the highest generation, from the first message
//! about it on, and as dead only where there was time enough to judge it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chitchat::{Chitchat, ChitchatId, NodeState};
use foldhash::fast::RandomState;

use crate::cells::{CellId, Entry, Mate, Tells};
use crate::config::CellsUse;
use crate::facts::{KEY_LEFT, NodeFacts};
use crate::member::{Member, MemberState, Seat};
use crate::part::{self, KEY_CARD};
use crate::remembered::Remembered;
use crate::seal::{KEY_SEAL, Sealing};

/// State of each incarnation between two looks.
struct Seen {
    first: Instant,
    ever_live: bool,
    /// Since when it is not alive.
    silent_since: Option<Instant>,
    /// Version of the state that was read last, and the sealer's epoch then.
    version: u64,
    epoch: u64,
    /// Whether its owner sealed it with a certificate that is good.
    believed: bool,
    left: bool,
    facts: Arc<NodeFacts>,
    /// Its card as it stands in the key, what that is, and what it tells, where there are cells.
    card_text: String,
    card: Option<(Arc<Entry>, Arc<str>)>,
    tells: Arc<Tells>,
    /// The facts were read anew since the last look.
    fresh: bool,
    /// It has been known for so long that an earlier life of its name would not look alive any more.
    settled: bool,
    /// Its state in the list after the last look; `None`: not listed yet, or not under a good seal.
    standing: Option<MemberState>,
}

/// Hashes well below what SipHash costs: all members are looked up several times a round. Seeded at
/// random, since names come from outside.
type FastMap<K, V> = HashMap<K, V, RandomState>;
type FastSet<K> = HashSet<K, RandomState>;

/// Builds the list; keeps parsed facts and which incarnations have been live.
pub(crate) struct Directory {
    self_id: ChitchatId,
    /// How long an incarnation may stay unjudged before it is listed as dead.
    patience: Duration,
    sealing: Sealing,
    within: Option<(CellId, CellsUse)>,
    seen: FastMap<ChitchatId, Seen>,
    remembered: Remembered,
    /// When the last look was, and until when missing heartbeats may be this node's own fault.
    looked: Option<Instant>,
    excused_until: Option<Instant>,
}

/// One look at the mesh.
pub(crate) struct Look {
    /// Sorted by name; `None` where nothing has changed since the last look.
    pub(crate) members: Option<Vec<Member>>,
    /// A generation of this node's own name above its own that is not alive: an earlier life with a
    /// clock ahead of ours. Others would go on listing that one.
    pub(crate) outranked_by: Option<u64>,
}

impl Directory {
    /// `within` is this node's cell, where the mesh may have several.
    pub(crate) fn new(
        self_id: ChitchatId,
        patience: Duration,
        sealing: Sealing,
        within: Option<(CellId, CellsUse)>,
        remembered: Remembered,
    ) -> Self {
        let seen = FastMap::default();
        Self { self_id, patience, sealing, within, seen, remembered, looked: None, excused_until: None }
    }

    /// Whether anybody is remembered whom gossip does not know.
    pub(crate) fn remembers(&self) -> bool {
        !self.remembered.is_empty()
    }

    /// Whom the earlier life knew, for a life in another cell.
    pub(crate) fn take_remembered(&mut self) -> Remembered {
        std::mem::take(&mut self.remembered)
    }

    /// The members of the own cell but this node, for the protocol between cells.
    pub(crate) fn mates(&self) -> Vec<Mate> {
        let newest = self.newest().into_values().filter(|(id, ..)| **id != self.self_id);
        let mate = |(id, seen, state): (&ChitchatId, &Seen, MemberState)| {
            let card = || (Arc::new(part::entry_without_card(id, &seen.facts)), Arc::from(""));
            let (entry, seal) = seen.card.clone().unwrap_or_else(card);
            Mate { entry, seal, state, tells: Arc::clone(&seen.tells) }
        };
        newest.map(mate).collect()
    }

    /// Whether missing heartbeats prove nothing about others now. There are many looks within
    /// [`Self::patience`]: where one is late by half of it, this node itself was suspended while
    /// its clock went on, and received nothing. Members that were live get as long again as any
    /// member may be silent.
    fn stood_still(&mut self, now: Instant) -> bool {
        if self.looked.replace(now).is_some_and(|last| now.duration_since(last) >= self.patience / 2) {
            self.excused_until = Some(now + self.patience);
        }
        self.excused_until.is_some_and(|until| now < until)
    }

    /// The members, where anything about them has changed since the last look: most looks find
    /// nothing new, and then cost little however many there are.
    /// `elsewhere` are members of other cells: they need not be remembered. For `unsettled` from the
    /// beginning of its silence on a member may be on its way to another cell, or to this one.
    pub(crate) fn look(
        &mut self,
        chitchat: &Chitchat,
        now: Instant,
        elsewhere: &HashSet<String>,
        unsettled: Option<Duration>,
    ) -> Look {
        let live: FastSet<&ChitchatId> = chitchat.live_nodes().collect();
        let states = chitchat.node_states();
        let own = Sealing::default();
        let (mut changed, mut outranked_by) = (false, None);
        let excused = self.stood_still(now);
        for (id, state) in states {
            let is_self = *id == self.self_id;
            if !self.seen.contains_key(id) {
                self.seen.insert(id.clone(), Seen::new(now));
            }
            let Some(seen) = self.seen.get_mut(id) else { continue };
            seen.read(id, state, if is_self { &own } else { &self.sealing }, self.within.filter(|_| !is_self));
            // An incarnation without a good seal is not listed.
            let beating = live.contains(id) || (excused && seen.standing == Some(MemberState::Live));
            let alive = seen.believed && (is_self || (beating && !seen.left));
            seen.ever_live |= alive;
            if alive {
                seen.silent_since = None;
            } else {
                seen.silent_since.get_or_insert(now);
            }
            let silent = seen.silent_since.map_or(Duration::ZERO, |since| now.duration_since(since));
            // Who was never heard here has gone nowhere from here.
            let may_have_gone = seen.ever_live && !seen.left && unsettled.is_some_and(|unsettled| silent < unsettled);
            let judged = seen.ever_live || now.duration_since(seen.first) >= self.patience;
            let standing = match (seen.believed, alive) {
                (false, _) => None,
                (true, true) => Some(MemberState::Live),
                (true, false) if may_have_gone => Some(MemberState::Unconfirmed),
                (true, false) if judged || seen.left => Some(MemberState::Dead),
                (true, false) => Some(MemberState::Unconfirmed),
            };
            changed |= std::mem::take(&mut seen.fresh) || standing != seen.standing;
            seen.standing = standing;
            let settled = now.duration_since(seen.first) >= self.patience;
            changed |= std::mem::replace(&mut seen.settled, settled) != settled;
            let above_self = id.node_id == self.self_id.node_id && id.generation_id > self.self_id.generation_id;
            if above_self && standing == Some(MemberState::Dead) {
                outranked_by = outranked_by.max(Some(id.generation_id));
            }
        }
        if self.seen.len() != states.len() {
            self.seen.retain(|id, _| states.contains_key(id));
            changed = true;
        }
        if !self.remembered.is_empty() {
            let listed = self.seen.iter().filter(|(_, seen)| seen.standing.is_some());
            let known: FastSet<&str> = listed.map(|(id, _)| &*id.node_id).collect();
            let is_known = |name: &str| known.contains(name) || elsewhere.contains(name);
            changed |= self.remembered.look(now, excused, unsettled, is_known);
        }
        Look { members: changed.then(|| self.list()), outranked_by }
    }

    /// The members for a further life of this node.
    pub(crate) fn for_next_life(&self) -> Vec<(Member, Duration)> {
        self.list().into_iter().map(|member| (member, Duration::ZERO)).collect()
    }

    /// Whom to call where nobody lives but this node.
    pub(crate) fn remembered(&mut self) -> Vec<SocketAddr> {
        self.remembered.whom()
    }

    /// Of each name the highest generation, and of this node's own only this life.
    fn newest(&self) -> BTreeMap<&str, (&ChitchatId, &Seen, MemberState)> {
        let mut newest: BTreeMap<&str, (&ChitchatId, &Seen, MemberState)> = BTreeMap::new();
        for (id, seen) in &self.seen {
            let Some(standing) = seen.standing else { continue };
            let other_self = id.node_id == self.self_id.node_id && *id != self.self_id;
            let outdone = |(known, ..): &(&ChitchatId, &Seen, MemberState)| {
                (known.generation_id, known.gossip_advertise_addr) > (id.generation_id, id.gossip_advertise_addr)
            };
            if !other_self && !newest.get(&*id.node_id).is_some_and(outdone) {
                newest.insert(&id.node_id, (id, seen, standing));
            }
        }
        newest
    }

    /// The members that are known here, of each name one.
    pub(crate) fn list(&self) -> Vec<Member> {
        let mut alive: FastMap<&str, u32> = FastMap::default();
        for (id, _) in self.seen.iter().filter(|(_, seen)| seen.is_surely_alive()) {
            *alive.entry(&id.node_id).or_default() += 1;
        }
        let cell = self.within.map_or(CellId::WHOLE, |(cell, _)| cell);
        let mut members: Vec<Member> = self
            .newest()
            .into_values()
            .map(|(id, seen, state)| {
                let double = alive.get(&*id.node_id).filter(|lives| **lives > 1).and_then(|_| self.double(id, seen));
                Member { double, seat: Seat { cell, ..Seat::default() }, ..seen.member(id, state, *id == self.self_id) }
            })
            .collect();
        if !self.remembered.is_empty() {
            members.extend(self.remembered.members().cloned());
            members.sort_by(|a, b| a.name.cmp(&b.name));
        }
        members
    }

    /// Where another life of this one's name lives beside it.
    fn double(&self, of: &ChitchatId, seen: &Seen) -> Option<SocketAddr> {
        let is_another = |id: &ChitchatId| id.node_id == of.node_id && id != of && seen.is_surely_alive();
        let others = self.seen.iter().filter(|(id, other)| is_another(id) && other.is_surely_alive());
        others.map(|(id, _)| id.gossip_advertise_addr).min()
    }
}

impl Seen {
    fn new(now: Instant) -> Self {
        Self {
            first: now,
            ever_live: false,
            silent_since: None,
            version: u64::MAX,
            epoch: 0,
            believed: false,
            left: false,
            facts: Arc::default(),
            card_text: String::new(),
            card: None,
            tells: Arc::default(),
            fresh: false,
            settled: false,
            standing: None,
        }
    }

    /// Reads what changed since the last look. Its seal was good when it came in (`intake`); it is
    /// judged again when certificates may be judged otherwise.
    /// `within` is the cell that a member has to be of, where there are several: its card says so.
    fn read(&mut self, id: &ChitchatId, state: &NodeState, sealing: &Sealing, within: Option<(CellId, CellsUse)>) {
        let (version, epoch) = (state.max_version(), sealing.epoch());
        if self.version == version && self.epoch == epoch {
            return;
        }
        let before = self.believed;
        if self.epoch != epoch || !before {
            let sealed =
                sealing.check(id, version, state.get_versioned(KEY_SEAL), state.key_values_including_deleted());
            self.believed = sealed.is_ok();
            if let (Err(reason), true) = (sealed, before) {
                tracing::warn!(node = &*id.node_id, reason, "a member is believed no more");
            }
        }
        (self.version, self.epoch) = (version, epoch);
        if self.believed {
            self.fresh = true;
            self.left = state.contains_key(KEY_LEFT);
            self.facts = Arc::new(NodeFacts::decode(state.key_values()));
        }
        if let (true, Some((cell, using))) = (self.believed, within) {
            self.believed = self.read_card(id, state.get(KEY_CARD).unwrap_or_default(), sealing, cell);
            self.tells = Arc::new(part::tells_of(&self.facts, using));
        }
    }

    /// Whether the member is of the cell. Before the mesh has several nobody tells a card.
    fn read_card(&mut self, id: &ChitchatId, text: &str, sealing: &Sealing, cell: CellId) -> bool {
        if text.is_empty() {
            self.card = None;
            self.card_text.clear();
            return cell == CellId::WHOLE;
        }
        if self.card_text != text || self.card.is_none() {
            self.card = part::card_of(text, id, cell, sealing).map(|(entry, seal)| (Arc::new(entry), seal));
        }
        text.clone_into(&mut self.card_text);
        self.card.is_some()
    }

    fn is_surely_alive(&self) -> bool {
        self.settled && self.standing == Some(MemberState::Live)
    }

    fn member(&self, id: &ChitchatId, state: MemberState, is_self: bool) -> Member {
        Member {
            name: id.node_id.to_string(),
            address: self.facts.address.unwrap_or(id.gossip_advertise_addr),
            generation: id.generation_id,
            state,
            facts: Arc::clone(&self.facts),
            is_self,
            double: None,
            seat: Seat::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use chitchat::{ChitchatConfig, FailureDetectorConfig};

    use super::*;

    #[test]
    fn who_was_never_heard_is_dead_after_the_usual_silence_while_cells_change() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let id = |n: u16| ChitchatId::new(format!("n{n}"), 1, ([127, 0, 0, 1], n).into());
        let (_seeds, seed_addrs) = tokio::sync::watch::channel(std::collections::HashSet::new());
        let config = ChitchatConfig {
            chitchat_id: id(1),
            cluster_id: "m".to_owned(),
            gossip_interval: second / 2,
            listen_addr: id(1).gossip_advertise_addr,
            seed_nodes: Vec::new(),
            failure_detector_config: FailureDetectorConfig::default(),
            marked_for_deletion_grace_period: 3_600 * second,
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let mut chitchat = Chitchat::with_chitchat_id_and_seeds(config, seed_addrs, Vec::new());
        // Another tells of it, and no heartbeat comes.
        chitchat.reset_node_state_if_update(&id(2), std::iter::empty(), 1, 0);
        let mut directory = Directory::new(id(1), 5 * second, Sealing::default(), None, Remembered::default());
        let mut state = |at: u32| {
            directory.look(&chitchat, start + at * second, &HashSet::new(), Some(30 * second));
            directory.list().into_iter().find(|member| member.name == "n2").map(|member| member.state)
        };
        let states = [0, 2, 4, 6].map(&mut state);
        let [unconfirmed, dead] = [MemberState::Unconfirmed, MemberState::Dead].map(Some);
        assert_eq!(states, [unconfirmed, unconfirmed, unconfirmed, dead]);
    }
}
