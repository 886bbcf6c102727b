//! Messages of any contents, for tests and fuzzing: what a hostile member can send. `wire` reads
//! them.

use chitchat::Serializable;

pub use chitchat::ChitchatId;

use crate::wire::{ACK, BAD_CLUSTER, END, KEY, MAX_VERSION, NODE, PLAIN, SYN, SYN_ACK, head, put};
pub use crate::wire::{Delta, Digest, Entry, Key, Message, Status};

/// Bytes of a block of a delta.
const BLOCK_BYTES: usize = 16_384;

/// The bytes of a message.
#[must_use]
pub fn bytes(message: &Message) -> Vec<u8> {
    match message {
        Message::Syn { mesh, digest } => {
            let mut bytes = head(SYN);
            put(&mut bytes, digest);
            mesh.as_str().serialize(&mut bytes);
            bytes
        }
        Message::SynAck { digest, deltas } => {
            let mut bytes = head(SYN_ACK);
            put(&mut bytes, digest);
            stream(&mut bytes, deltas);
            bytes
        }
        Message::Ack { deltas } => {
            let mut bytes = head(ACK);
            stream(&mut bytes, deltas);
            bytes
        }
        Message::OtherMesh => head(BAD_CLUSTER),
    }
}

fn stream(bytes: &mut Vec<u8>, deltas: &[Delta]) {
    let mut operations = Vec::new();
    for delta in deltas {
        operations.push(NODE);
        delta.id.serialize(&mut operations);
        delta.last_gc.serialize(&mut operations);
        delta.from.serialize(&mut operations);
        for key in &delta.keys {
            operations.push(KEY);
            key.name.serialize(&mut operations);
            key.value.serialize(&mut operations);
            key.version.serialize(&mut operations);
            operations.push(u8::from(key.status == Status::Deleted));
        }
        if delta.keys.last().is_none_or(|key| key.version != delta.max_version) {
            operations.push(MAX_VERSION);
            delta.max_version.serialize(&mut operations);
        }
    }
    for block in operations.chunks(BLOCK_BYTES) {
        bytes.push(PLAIN);
        u16::try_from(block.len()).unwrap_or(0).serialize(bytes);
        bytes.extend_from_slice(block);
    }
    bytes.push(END);
}

/// A message as its bytes are read.
///
/// # Errors
/// They are none; in words.
pub fn read(payload: &[u8]) -> Result<Message, String> {
    crate::wire::read(payload).map_err(|error| error.to_string())
}

/// The bytes that the seal of an incarnation's keys is over, where the seal is set at `version`;
/// each key with its value and its version, in the order of the keys.
#[must_use]
pub fn statement(id: &ChitchatId, version: u64, keys: &[(String, String, u64)]) -> Vec<u8> {
    let keys = keys.iter().map(|(key, value, version)| (key.as_str(), value.as_str(), *version));
    crate::seal::statement(id, version, keys)
}

/// The key under which a seal travels.
pub const SEAL: &str = crate::seal::KEY_SEAL;
