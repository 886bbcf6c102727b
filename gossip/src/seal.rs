//! Facts bound to their owner. In gossip every member passes on, and so could change, the facts of
//! others. A seal is the owner's signature over all its facts, set last under a key of its own.
//! `intake` takes in no others.
//!
//! How a seal is made and judged is the agent's ([`Sealer`]). Without one, facts are taken as they
//! come.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chitchat::{ChitchatId, NodeState, VersionedValue};

/// The key of the seal.
pub(crate) const KEY_SEAL: &str = "~";

/// Prefix of everything that is sealed.
const CONTEXT: &[u8] = b"rankmesh gossip 2\0";

/// Makes this node's seals and verifies those of others.
pub trait Sealer: Send + Sync + 'static {
    /// A seal of `statement`: printable text, another for another statement.
    ///
    /// # Errors
    /// Why it cannot be made.
    fn seal(&self, statement: &[u8]) -> Result<String, String>;

    /// Whether `seal` is a seal of `statement` by `node`.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, node: &str, statement: &[u8], seal: &str) -> Result<(), String>;

    /// A number that changes when seals may be judged otherwise than before.
    fn epoch(&self) -> u64;

    /// Whether this node is known to be shut out, whatever others say of it.
    fn shuts_out(&self, _node: &str) -> bool {
        false
    }
}

/// The sealer of a mesh, if it has one, and the count of what it refused.
#[derive(Clone, Default)]
pub(crate) struct Sealing {
    sealer: Option<Arc<dyn Sealer>>,
    forged: Arc<AtomicU64>,
}

impl fmt::Debug for Sealing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealing").field("sealer", &self.sealer.is_some()).finish_non_exhaustive()
    }
}

impl Sealing {
    pub(crate) fn of(sealer: Option<Arc<dyn Sealer>>) -> Self {
        Self { sealer, ..Self::default() }
    }

    /// Statements refused since the start.
    pub(crate) fn forged(&self) -> u64 {
        self.forged.load(Ordering::Relaxed)
    }

    pub(crate) fn count_forged(&self) {
        self.forged.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.sealer.as_ref().map_or(0, |sealer| sealer.epoch())
    }

    pub(crate) fn shuts_out(&self, node: &str) -> bool {
        self.sealer.as_ref().is_some_and(|sealer| sealer.shuts_out(node))
    }

    /// The seal of `keys`, set at `version`; none without a sealer.
    fn seal<'a>(
        &self,
        id: &ChitchatId,
        version: u64,
        keys: impl Iterator<Item = (&'a str, &'a str, u64)>,
    ) -> Option<String> {
        match self.sealer.as_ref()?.seal(&statement(id, version, keys)) {
            Ok(seal) => Some(seal),
            Err(error) => {
                tracing::error!(error, "this node's facts cannot be sealed: nobody will believe them");
                None
            }
        }
    }

    /// A seal of a statement of another kind; `None` without a sealer, or where it cannot be made.
    pub(crate) fn word(&self, statement: &[u8]) -> Option<String> {
        self.sealer.as_ref()?.seal(statement).inspect_err(|error| tracing::error!(error, "a seal cannot be made")).ok()
    }

    /// Whether `seal` is the node's of such a statement; counted where it is not. Without a sealer
    /// all are.
    pub(crate) fn is_word(&self, node: &str, statement: &[u8], seal: &str) -> bool {
        let good = self.sealer.as_ref().is_none_or(|sealer| sealer.check(node, statement, seal).is_ok());
        if !good {
            self.count_forged();
        }
        good
    }

    /// The first keys of a life, the seal last: chitchat gives them the versions from 1 on.
    pub(crate) fn first(&self, id: &ChitchatId, mut keys: Vec<(String, String)>) -> Vec<(String, String)> {
        keys.sort();
        let versioned = keys.iter().zip(1..).map(|((key, value), version)| (key.as_str(), value.as_str(), version));
        let seal = self.seal(id, keys.len() as u64 + 1, versioned);
        keys.extend(seal.map(|seal| (KEY_SEAL.to_owned(), seal)));
        keys
    }

    /// Makes `keys` all that this node says, and seals them where anything is new, or `anew` in any
    /// case. Whatever else stands in its state is no word of its own, and is deleted.
    pub(crate) fn say(&self, state: &mut NodeState, keys: &[(String, String)], anew: bool) {
        let meant: HashSet<&str> = keys.iter().map(|(key, _)| key.as_str()).chain([KEY_SEAL]).collect();
        let gone: Vec<String> =
            state.key_values().filter(|(key, _)| !meant.contains(key)).map(|(key, _)| key.to_owned()).collect();
        for key in gone {
            state.delete(&key);
        }
        for (key, value) in keys {
            state.set(key, value);
        }
        let sealed = state.get_versioned(KEY_SEAL).is_some_and(|seal| seal.version == state.max_version());
        if sealed && !anew {
            return;
        }
        let (id, version) = (state.chitchat_id().clone(), state.max_version() + 1);
        if let Some(seal) = self.seal(&id, version, live(state.key_values_including_deleted())) {
            state.set(KEY_SEAL, seal);
        }
    }

    /// Whether these keys of another incarnation, the highest at `max_version`, are what its owner
    /// sealed with `seal`, which is one of them.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check<'a>(
        &self,
        id: &ChitchatId,
        max_version: u64,
        seal: Option<&VersionedValue>,
        keys: impl Iterator<Item = (&'a str, &'a VersionedValue)>,
    ) -> Result<(), String> {
        let Some(sealer) = &self.sealer else { return Ok(()) };
        // The seal is the last that the owner sets.
        match seal {
            Some(seal) if seal.version == max_version && !seal.is_deleted() => {
                sealer.check(&id.node_id, &statement(id, max_version, live(keys)), &seal.value)
            }
            _ => Err("they are not sealed".to_owned()),
        }
    }
}

/// The keys that have a value.
fn live<'a>(
    keys: impl Iterator<Item = (&'a str, &'a VersionedValue)>,
) -> impl Iterator<Item = (&'a str, &'a str, u64)> {
    let live = keys.filter(|(_, value)| !value.is_deleted());
    live.map(|(key, value)| (key, value.value.as_str(), value.version))
}

/// The bytes that are sealed: who, in which life, where, at which version the seal is set, and
/// every key but the seal's with its version, in the order of the keys, each text with its length
/// before it. The versions are in it so that nobody can make an owner's words look newer than they
/// are: the owner's next ones would then count as old.
pub(crate) fn statement<'a>(
    id: &ChitchatId,
    version: u64,
    keys: impl Iterator<Item = (&'a str, &'a str, u64)>,
) -> Vec<u8> {
    let mut bytes = CONTEXT.to_vec();
    let mut push = |text: &str| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    push(&id.node_id);
    push(&id.generation_id.to_string());
    push(&id.gossip_advertise_addr.to_string());
    push(&version.to_string());
    for (key, value, version) in keys.filter(|(key, ..)| *key != KEY_SEAL) {
        push(key);
        push(value);
        push(&version.to_string());
    }
    bytes
}
