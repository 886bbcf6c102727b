//! chitchat's messages as bytes. They are read here before chitchat gets anything: it believes its
//! peers, and some of its arithmetic panics on what a peer may say. `intake` decides what of a
//! message counts.
//!
//! The layout is that of chitchat 0.11.2 (its `serialize.rs`, `message.rs`, `delta.rs`): magic
//! number, version, kind; a digest is a count and entries; a delta is a stream of operations in
//! blocks, each compressed with zstd or not.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use chitchat::{ChitchatId, ChitchatMessage, Deserializable, Serializable};

/// Magic number (45,139, little endian) and protocol version.
const PREFIX: [u8; 3] = [0x53, 0xB0, 0];
pub(crate) const SYN: u8 = 0;
pub(crate) const SYN_ACK: u8 = 1;
pub(crate) const ACK: u8 = 2;
pub(crate) const BAD_CLUSTER: u8 = 3;

/// Kinds of blocks of a delta, and of its operations.
pub(crate) const END: u8 = 0;
const COMPRESSED: u8 = 1;
pub(crate) const PLAIN: u8 = 2;
pub(crate) const NODE: u8 = 0;
pub(crate) const KEY: u8 = 1;
pub(crate) const MAX_VERSION: u8 = 2;

/// A block is never larger than this when it is unpacked.
const BLOCK_BYTES: usize = u16::MAX as usize;
/// A delta when it is unpacked: chitchat fills 65,507 bytes in compressed blocks of 16 KiB.
const DELTA_BYTES: usize = 2 << 20;

/// What a digest says of one incarnation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Entry {
    /// Counts on while the node lives.
    pub heartbeat: u64,
    /// Keys deleted up to this version were forgotten.
    pub last_gc: u64,
    /// The highest version of a key.
    pub max_version: u64,
}

/// What a node knows of each incarnation.
pub type Digest = BTreeMap<ChitchatId, Entry>;

/// Whether a key has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It has.
    Set,
    /// It has been deleted.
    Deleted,
}

/// A key of an incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: String,
    /// Its value; empty where it was deleted.
    pub value: String,
    /// From its owner's counter.
    pub version: u64,
    /// Whether it was deleted.
    pub status: Status,
}

/// News of one incarnation: everything after the version `from`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delta {
    /// Whose.
    pub id: ChitchatId,
    /// Keys deleted up to this version are not in it.
    pub last_gc: u64,
    /// It is for who knows everything up to this version.
    pub from: u64,
    /// Versions rise.
    pub keys: Vec<Key>,
    /// Not below the last key's version.
    pub max_version: u64,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Begins an exchange.
    Syn {
        /// Name of the sender's mesh.
        mesh: String,
        /// What the sender knows.
        digest: Digest,
    },
    /// Answers it.
    SynAck {
        /// What the sender knows.
        digest: Digest,
        /// What the receiver lacks.
        deltas: Vec<Delta>,
    },
    /// Ends it.
    Ack {
        /// What the receiver lacks.
        deltas: Vec<Delta>,
    },
    /// Answers one of a differently named mesh.
    OtherMesh,
}

/// Whether it begins an exchange.
pub(crate) fn is_syn(payload: &[u8]) -> bool {
    payload.starts_with(&head(SYN))
}

/// Reads a message.
pub(crate) fn read(payload: &[u8]) -> anyhow::Result<Message> {
    let buf = &mut payload.strip_prefix(&PREFIX[..]).context("no gossip message")?;
    Ok(match u8::deserialize(buf)? {
        SYN => {
            let digest = read_digest(buf)?;
            Message::Syn { mesh: String::deserialize(buf)?, digest }
        }
        SYN_ACK => {
            let digest = read_digest(buf)?;
            Message::SynAck { digest, deltas: read_deltas(buf)? }
        }
        ACK => Message::Ack { deltas: read_deltas(buf)? },
        BAD_CLUSTER => Message::OtherMesh,
        kind => anyhow::bail!("a message of kind {kind}"),
    })
}

fn read_digest(buf: &mut &[u8]) -> anyhow::Result<Digest> {
    let count = u16::deserialize(buf)?;
    let mut digest = Digest::new();
    for _ in 0..count {
        let id = ChitchatId::deserialize(buf)?;
        let [heartbeat, last_gc, max_version] =
            [u64::deserialize(buf)?, u64::deserialize(buf)?, u64::deserialize(buf)?];
        digest.insert(id, Entry { heartbeat, last_gc, max_version });
    }
    Ok(digest)
}

fn read_deltas(buf: &mut &[u8]) -> anyhow::Result<Vec<Delta>> {
    let stream = unpack(buf)?;
    let buf = &mut &stream[..];
    let mut deltas: Vec<Delta> = Vec::new();
    while !buf.is_empty() {
        match u8::deserialize(buf)? {
            NODE => {
                let id = ChitchatId::deserialize(buf)?;
                let (last_gc, from) = (u64::deserialize(buf)?, u64::deserialize(buf)?);
                deltas.push(Delta { id, last_gc, from, keys: Vec::new(), max_version: 0 });
            }
            KEY => {
                let (name, value) = (String::deserialize(buf)?, String::deserialize(buf)?);
                let version = u64::deserialize(buf)?;
                let status = match u8::deserialize(buf)? {
                    0 => Status::Set,
                    1 => Status::Deleted,
                    // Keys that end by themselves: nobody sets such.
                    status => anyhow::bail!("a key of status {status}"),
                };
                let delta = deltas.last_mut().context("a key of no node")?;
                ensure!(delta.max_version < version, "versions do not rise");
                delta.max_version = version;
                delta.keys.push(Key { name, value, version, status });
            }
            MAX_VERSION => {
                let version = u64::deserialize(buf)?;
                let delta = deltas.last_mut().context("a version of no node")?;
                ensure!(delta.max_version <= version, "a version below a key's");
                delta.max_version = version;
            }
            tag => anyhow::bail!("an operation of kind {tag}"),
        }
    }
    Ok(deltas)
}

/// The operations of a delta.
fn unpack(buf: &mut &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut stream = Vec::new();
    loop {
        let kind = u8::deserialize(buf)?;
        if kind == END {
            return Ok(stream);
        }
        let length = usize::from(u16::deserialize(buf)?);
        let (block, rest) = buf.split_at_checked(length).context("a block is cut short")?;
        *buf = rest;
        match kind {
            COMPRESSED => {
                let at = stream.len();
                stream.resize(at + BLOCK_BYTES, 0);
                let unpacked = zstd::bulk::decompress_to_buffer(block, &mut stream[at..]).context("a block")?;
                stream.truncate(at + unpacked);
            }
            PLAIN => stream.extend_from_slice(block),
            kind => anyhow::bail!("a block of kind {kind}"),
        }
        ensure!(stream.len() <= DELTA_BYTES, "a delta of more than {DELTA_BYTES} bytes");
    }
}

/// A digest that begins an exchange, for chitchat.
pub(crate) fn syn(mesh: &str, digest: &Digest) -> anyhow::Result<ChitchatMessage> {
    let mut bytes = head(SYN);
    put(&mut bytes, digest);
    mesh.serialize(&mut bytes);
    ChitchatMessage::deserialize(&mut &bytes[..])
}

/// A digest that answers one, without news.
pub(crate) fn syn_ack(digest: &Digest) -> anyhow::Result<ChitchatMessage> {
    let mut bytes = head(SYN_ACK);
    put(&mut bytes, digest);
    bytes.push(END);
    ChitchatMessage::deserialize(&mut &bytes[..])
}

/// The end of an exchange, without news.
pub(crate) fn ack() -> anyhow::Result<ChitchatMessage> {
    let mut bytes = head(ACK);
    bytes.push(END);
    ChitchatMessage::deserialize(&mut &bytes[..])
}

pub(crate) fn head(kind: u8) -> Vec<u8> {
    [&PREFIX[..], &[kind]].concat()
}

pub(crate) fn put(bytes: &mut Vec<u8>, digest: &Digest) {
    // As many as came in, or as are known: both fit.
    u16::try_from(digest.len()).unwrap_or(u16::MAX).serialize(bytes);
    for (id, entry) in digest.iter().take(usize::from(u16::MAX)) {
        id.serialize(bytes);
        [entry.heartbeat, entry.last_gc, entry.max_version].iter().for_each(|number| number.serialize(bytes));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hostile;

    fn id(name: &str) -> ChitchatId {
        ChitchatId::new(name, 3, ([127, 0, 0, 1], 7117).into())
    }

    fn delta() -> Delta {
        let key = |name: &str, version, status| Key { name: name.into(), value: "v".into(), version, status };
        let keys = vec![key("a", 2, Status::Set), key("b", 5, Status::Deleted)];
        Delta { id: id("n"), last_gc: 1, from: 0, keys, max_version: 9 }
    }

    #[test]
    fn what_is_written_is_read_and_chitchat_reads_the_same() {
        let digest =
            Digest::from([(id("a"), Entry { heartbeat: 1, last_gc: 2, max_version: 3 }), (id("b"), Entry::default())]);
        for message in [
            Message::Syn { mesh: "m".into(), digest: digest.clone() },
            Message::SynAck { digest, deltas: vec![delta()] },
            Message::Ack { deltas: vec![delta()] },
            Message::OtherMesh,
        ] {
            let bytes = hostile::bytes(&message);
            assert_eq!(read(&bytes).unwrap(), message);
            // chitchat's own writing is read, too: it compresses.
            let theirs = ChitchatMessage::deserialize(&mut &bytes[..]).unwrap();
            if !matches!(message, Message::SynAck { .. } | Message::Ack { .. }) {
                assert_eq!(read(&theirs.serialize_to_vec()).unwrap(), message);
            }
        }
    }

    #[test]
    fn what_would_panic_in_the_library_is_no_message() {
        let mut falling = delta();
        falling.keys[1].version = 1;
        let mut below = delta();
        below.max_version = 4;
        for wrong in [falling, below] {
            assert!(read(&hostile::bytes(&Message::Ack { deltas: vec![wrong] })).is_err());
        }
    }

    #[test]
    fn a_few_bytes_do_not_unpack_into_hundreds_of_megabytes() {
        let block = zstd::bulk::compress(&vec![0; BLOCK_BYTES], 0).unwrap();
        let mut bomb = head(ACK);
        while bomb.len() + block.len() + 4 < crate::MAX_PAYLOAD_BYTES {
            bomb.push(COMPRESSED);
            u16::try_from(block.len()).unwrap().serialize(&mut bomb);
            bomb.extend(&block);
        }
        bomb.push(END);
        assert!(read(&bomb).unwrap_err().to_string().contains("more than"));
    }

    proptest! {
        #[test]
        fn no_payload_breaks_the_reader(tail in proptest::collection::vec(any::<u8>(), 0..400), kind in 0u8..5) {
            let mut payload = head(kind);
            payload.extend(tail);
            let _ = read(&payload);
        }
    }
}
