//! Digests as text, for gossip: a compact binary form, seven bits to a character.
//!
//! Integers are variable-length (seven bits a byte, lowest first); signed ones are folded (zigzag). What can be guessed from what went
//! before is written as the difference: the ranks of a host leave a collective together, and own time is mostly what lies between two
//! calls. docs/wire.md has the layout. Reading takes any bytes: every count is bounded by what is left to read.
//!
//! `write` writes and `read` reads, `expected` says what both expect of a run, `steps` is the part behind the lanes, `text` makes characters of bytes.

mod expected;
mod read;
mod steps;
mod text;
mod write;

use read::Reader;
use text::{from_text, to_text};
use write::Writer;

use super::{Digest, Lane};

/// Version of the layout. 1 was never in a release and is not read.
const VERSION: u8 = 2;
/// The same layout with lanes in it that say nothing of how far they got: who knows only [`VERSION`] would take them to be at their start.
const WITH_LATE: u8 = 3;
/// The same with steps behind the lanes, which who knows only the others would take for bytes left over.
const WITH_STEPS: u8 = 4;
/// What a process does, where this version has no word for it: nothing.
const NO_ACTIVITY: u8 = 0;
/// Largest magnitude of a time or a sum: 2^55 us is more than a thousand years.
const LARGEST: u64 = 1 << 55;
/// Longest name of a function or library that is not in the tables.
const LONGEST_NAME: usize = 64;
/// Most blocks of one lane.
const MOST_BLOCKS: u64 = 4096;

/// Functions with a number of their own; add at the end. 0 is none, 1 a name in full.
const FUNCS: [&str; 29] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "isend",
    "irecv",
    "sendrecv",
    "all_gather_v",
    "reduce_scatter_block",
    "all_to_all_v",
    "bcast",
    "allreduce",
    "allgather",
    "alltoall",
    "allgatherv",
    "alltoallv",
    "gatherv",
    "scatterv",
    "scan",
    "exscan",
    "ssend",
    "reduce_scatter_v",
];
const LIBRARIES: [&str; 3] = ["nccl", "rccl", "mpi"];
const OTHER_LIBRARY: u8 = 15;

/// A text that is not a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Of another version.
    #[error(
        "a digest of layout {0}, this version reads {VERSION} to {WITH_STEPS}: the sender runs another version of rankmesh"
    )]
    Version(u8),
    /// It ends too early, or has something left over.
    #[error("a digest that is cut off or has bytes left over")]
    Length,
    /// A value that cannot be.
    #[error("a digest with an impossible {0}")]
    Value(&'static str),
}

/// Write a digest.
#[must_use]
pub fn encode(digest: &Digest) -> String {
    to_text(&Writer::default().digest(digest))
}

/// Write a digest in at most `limit` bytes: if it does not fit, steps are left out, then the earlier runs of each lane, then the lanes with
/// fewest calls, and the digest says that it was cut.
#[must_use]
pub fn encode_within(mut digest: Digest, limit: usize) -> String {
    let mut text = encode(&digest);
    if text.len() > limit && !digest.steps.is_empty() {
        (digest.cut, digest.steps) = (true, Vec::new());
        text = encode(&digest);
    }
    while text.len() > limit && !digest.lanes.is_empty() {
        digest.cut = true;
        let blocks: usize = digest.lanes.iter().map(|lane| lane.blocks.len()).sum();
        if blocks > digest.lanes.len() {
            for lane in &mut digest.lanes {
                let keep = lane.blocks.len().div_ceil(2);
                // The latest blocks tell what is going on.
                lane.blocks.drain(..lane.blocks.len() - keep);
            }
        } else {
            digest.lanes.sort_by_key(|lane| std::cmp::Reverse(lane.calls));
            digest.lanes.truncate(digest.lanes.len() / 2);
        }
        text = encode(&digest);
    }
    text
}

/// Read a digest.
///
/// # Errors
/// [`DecodeError`] for whatever [`encode`] does not write.
pub fn decode(text: &str) -> Result<Digest, DecodeError> {
    let bytes = from_text(text).ok_or(DecodeError::Value("character"))?;
    let mut reader = Reader { bytes: &bytes };
    let digest = reader.digest()?;
    if reader.bytes.is_empty() { Ok(digest) } else { Err(DecodeError::Length) }
}

/// Whether a lane is that of the next process and the next rank, in all else like the one before.
fn follows(last: &Lane, lane: &Lane) -> bool {
    lane.process == last.process + 1
        && last.rank.checked_add(1) == Some(lane.rank)
        && (lane.comm_hash, lane.nranks, &lane.func) == (last.comm_hash, last.nranks, &last.func)
        && (&lane.library, lane.tier) == (&last.library, last.tier)
}

fn fold(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn unfold(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}
