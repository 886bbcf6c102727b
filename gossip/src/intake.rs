//! What of a member's message is taken into this node's state. chitchat believes its peers: it
//! makes room for whatever incarnation a digest names, and applies whatever a delta says of
//! anybody. So a message is judged here first:
//!
//! - An incarnation is taken up once its own sealed words are there, never for being named: only
//!   who has a certificate of the mesh can seal. A name has [`MAX_LIVES`] at most, and all digests
//!   together stay small enough that chitchat can answer ([`MAX_DIGEST_BYTES`]).
//! - News count whole or not at all: with them the incarnation's keys must be what its owner
//!   sealed, each in its version. So nobody can set another's keys, push versions up so that the
//!   owner's next words look old, or bring back what the owner said before.
//! - Of this life of this node nobody says anything.
//!
//! What counts is put into chitchat's state here; chitchat itself only gets digests of incarnations
//! that it has.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};

use chitchat::{Chitchat, ChitchatId, ChitchatMessage, DeletionStatus, NodeState, VersionedValue};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::quiet::Quiet;
use crate::seal::{KEY_SEAL, Sealing};
use crate::wire::{self, Delta, Digest, Entry, Message, Status};

/// Incarnations of one name that are kept at a time.
pub const MAX_LIVES: usize = 32;

/// Largest digest that a SYN-ACK has room for, with some left for keys.
const MAX_DIGEST_BYTES: usize = 64_000;

/// Keys and values of one incarnation, deleted ones included, bytes. `say` keeps to less.
pub(crate) const MAX_STATE_BYTES: usize = 128 << 10;
/// Bytes that a key takes besides name and value.
pub(crate) const KEY_BYTES: usize = 16;

/// Statements in one message whose seal is not good; beyond, the rest is not looked at. A member
/// that has not heard of a revocation yet may pass on a few.
const MAX_REFUSED: usize = 16;

/// Incarnations remembered for having been announced; see [`Intake::announced`].
const MAX_ANNOUNCED: usize = 4_096;
/// Incarnations remembered for having been taken up once, besides those that are there.
const MAX_FORGOTTEN: usize = 8_192;

/// What chitchat gets of a message.
pub(crate) struct Taken {
    pub(crate) message: ChitchatMessage,
    /// Whether its answer goes out.
    pub(crate) answer: bool,
}

/// Judges messages.
pub(crate) struct Intake {
    mesh: String,
    sealing: Sealing,
    /// Heartbeats of incarnations that were named before their words came. Those come with the
    /// third message of an exchange, which has no heartbeats.
    announced: HashMap<ChitchatId, u64>,
    /// Incarnations whose words were good once. chitchat forgets the dead after a while and takes
    /// them up again only by a heartbeat.
    taken: HashSet<ChitchatId>,
    forgeries: Quiet,
    full: Quiet,
}

/// The keys of an incarnation, as they are with news.
struct Whole {
    keys: BTreeMap<String, VersionedValue>,
    max_version: u64,
    last_gc: u64,
}

/// Why news do not count.
enum Refusal {
    /// Its owner did not say so.
    Forged(String),
    /// There is no room.
    Full(String),
}

impl Intake {
    pub(crate) fn new(mesh: &str, sealing: Sealing) -> Self {
        Self {
            mesh: mesh.to_owned(),
            sealing,
            announced: HashMap::new(),
            taken: HashSet::new(),
            forgeries: Quiet::default(),
            full: Quiet::default(),
        }
    }

    /// Takes in a message that came from `from`. `None`: chitchat gets nothing of it.
    pub(crate) fn take(&mut self, chitchat: &mut Chitchat, from: SocketAddr, payload: &[u8]) -> Option<Taken> {
        let message = match wire::read(payload) {
            Ok(message) => message,
            Err(error) => {
                debug!(%from, %error, bytes = payload.len(), "ignored a gossip message");
                return None;
            }
        };
        let (message, answer) = match message {
            Message::Syn { mesh, .. } if mesh != self.mesh => {
                debug!(%from, "ignored gossip of another mesh");
                return None;
            }
            Message::Syn { mesh, digest } => (wire::syn(&mesh, &self.known(chitchat, digest)), true),
            Message::SynAck { digest, deltas } => {
                self.apply(chitchat, from, deltas);
                (wire::syn_ack(&self.known(chitchat, digest)), true)
            }
            Message::Ack { deltas } => {
                let mut digest = Digest::new();
                for id in self.apply(chitchat, from, deltas) {
                    if let Some(heartbeat) = self.announced.remove(&id) {
                        digest.insert(id, Entry { heartbeat, ..Entry::default() });
                    }
                }
                if digest.is_empty() {
                    (wire::ack(), true)
                } else {
                    // Heartbeats travel in digests only. That nobody lacks anything spares an
                    // answer's making.
                    for (id, state) in chitchat.node_states() {
                        let entry = digest.entry(id.clone()).or_default();
                        (entry.last_gc, entry.max_version) = (state.last_gc_version(), u64::MAX);
                    }
                    (wire::syn_ack(&digest), false)
                }
            }
            Message::OtherMesh => {
                debug!(%from, "it says that it is of another mesh");
                return None;
            }
        };
        match message {
            Ok(message) => Some(Taken { message, answer }),
            Err(error) => {
                warn!(%error, "a gossip message could not be handed on");
                None
            }
        }
    }

    /// What a digest says of incarnations that are taken up.
    fn known(&mut self, chitchat: &Chitchat, mut digest: Digest) -> Digest {
        digest.retain(|id, entry| {
            if chitchat.node_state(id).is_some() || self.taken.contains(id) {
                return true;
            }
            if self.announced.len() >= MAX_ANNOUNCED {
                self.announced.clear();
            }
            self.announced.insert(id.clone(), entry.heartbeat);
            false
        });
        digest
    }

    /// Applies the news that count. Returns the incarnations that are new.
    fn apply(&mut self, chitchat: &mut Chitchat, from: SocketAddr, deltas: Vec<Delta>) -> Vec<ChitchatId> {
        let (mut new, mut refused) = (Vec::new(), 0);
        for delta in deltas {
            if delta.id == *chitchat.self_chitchat_id() {
                continue;
            }
            let id = delta.id.clone();
            let state = chitchat.node_state(&id);
            let is_new = state.is_none();
            // chitchat takes up who was dead and forgotten only by a heartbeat.
            if is_new && self.taken.contains(&id) {
                continue;
            }
            let Some(whole) = whole(state, delta) else { continue };
            let judged = self.judge(&id, &whole);
            let judged = judged.and_then(|()| if is_new { has_room(chitchat, &id) } else { Ok(()) });
            match judged {
                Ok(()) => {
                    chitchat.reset_node_state_if_update(&id, whole.keys.into_iter(), whole.max_version, whole.last_gc);
                    if is_new {
                        self.remember(chitchat, &id);
                        new.push(id);
                    }
                }
                Err(Refusal::Forged(reason)) => {
                    self.sealing.count_forged();
                    if let Some(before) = self.forgeries.may_say() {
                        let node = &*id.node_id;
                        warn!(node, %from, reason, before, "ignored gossip that the node did not say");
                    }
                    refused += 1;
                    if refused == MAX_REFUSED {
                        break;
                    }
                }
                Err(Refusal::Full(reason)) => {
                    if let Some(before) = self.full.may_say() {
                        warn!(node = &*id.node_id, %from, reason, before, "gossip has no room for this node");
                    }
                }
            }
        }
        new
    }

    fn remember(&mut self, chitchat: &Chitchat, id: &ChitchatId) {
        if self.taken.len() >= chitchat.node_states().len() + MAX_FORGOTTEN {
            self.taken.retain(|id| chitchat.node_state(id).is_some());
        }
        self.taken.insert(id.clone());
        if id.node_id == chitchat.self_chitchat_id().node_id {
            info!(generation = id.generation_id, "heard of another life of this node");
        }
    }

    /// Whether its owner says so, and not too much.
    fn judge(&self, id: &ChitchatId, whole: &Whole) -> Result<(), Refusal> {
        let bytes: usize = whole.keys.iter().map(|(key, value)| key.len() + value.value.len() + KEY_BYTES).sum();
        if bytes > MAX_STATE_BYTES {
            return Err(Refusal::Full(format!("its facts have {bytes} bytes")));
        }
        let keys = whole.keys.iter().map(|(key, value)| (key.as_str(), value));
        self.sealing.check(id, whole.max_version, whole.keys.get(KEY_SEAL), keys).map_err(Refusal::Forged)
    }
}

/// The keys of an incarnation of which `state` is known, with the news; `None` where these bring
/// nothing or are not for that state.
fn whole(state: Option<&NodeState>, delta: Delta) -> Option<Whole> {
    let (known, known_gc) = state.map_or((0, 0), |state| (state.max_version(), state.last_gc_version()));
    // A node's keys are whole only with the last one: it deletes none after that.
    if delta.from > known || delta.max_version <= known || delta.last_gc > delta.max_version {
        return None;
    }
    // Keys were deleted and forgotten that are known here: everything comes anew.
    let anew = delta.last_gc > known_gc && delta.last_gc > known;
    if anew && delta.from != 0 {
        return None;
    }
    let (known, last_gc) = if anew { (0, delta.last_gc) } else { (known, known_gc) };
    let mut keys: BTreeMap<String, VersionedValue> = match state {
        Some(state) if !anew => {
            state.key_values_including_deleted().map(|(key, value)| (key.to_owned(), value.clone())).collect()
        }
        _ => BTreeMap::new(),
    };
    let now = Instant::now();
    for key in delta.keys.into_iter().filter(|key| key.version > known) {
        let status = match key.status {
            Status::Set => DeletionStatus::Set,
            Status::Deleted if key.version <= last_gc => continue,
            Status::Deleted => DeletionStatus::Deleted(now),
        };
        keys.insert(key.name, VersionedValue { value: key.value, version: key.version, status });
    }
    Some(Whole { keys, max_version: delta.max_version, last_gc })
}

/// Whether one more incarnation can be taken up.
fn has_room(chitchat: &Chitchat, id: &ChitchatId) -> Result<(), Refusal> {
    let states = chitchat.node_states();
    let first = ChitchatId::new(id.node_id.clone(), 0, (Ipv4Addr::UNSPECIFIED, 0).into());
    let lives = states.range(first..).take_while(|(other, _)| other.node_id == id.node_id).count();
    if lives >= MAX_LIVES {
        return Err(Refusal::Full(format!("it has had {lives} lives of late")));
    }
    let bytes: usize = states.keys().chain([id]).map(entry_bytes).sum();
    if bytes > MAX_DIGEST_BYTES {
        return Err(Refusal::Full(format!(
            "the mesh is larger than gossip can tell in one message: {bytes} bytes of digest, {MAX_DIGEST_BYTES} at most"
        )));
    }
    Ok(())
}

/// What an incarnation takes in a digest, bytes.
fn entry_bytes(id: &ChitchatId) -> usize {
    use chitchat::Serializable;
    id.serialized_len() + 3 * size_of::<u64>()
}
