//! Digests as text, for gossip: a compact binary form, seven bits to a character.
//!
//! Integers are variable-length (seven bits a byte, lowest first); signed ones are folded (zigzag).
//! What can be guessed from what went before is written as the difference: the ranks of a host
//! leave a collective together, and compute time is mostly what lies between two calls.
//! docs/wire.md has the layout. Reading takes any bytes: every count is bounded by what is left to
//! read.
//!
//! `layout` (with `steps` and `still`, the parts behind the lanes) describes the bytes once for writing and
//! reading, `coder` does either, `neighbour` finds which lane another is like, `expected` what a run
//! is expected to be, `text` makes characters of bytes.

mod coder;
mod expected;
mod layout;
mod neighbour;
mod steps;
mod still;
pub(crate) mod text;

use coder::Coder;
use text::{from_text, to_text};

use super::Digest;

/// A communicator: hash and size.
type CommKey = (u64, Option<i32>);

/// Version of the layout.
const VERSION: u8 = 8;
/// Largest magnitude of a time or a sum: 2^55 us is more than a thousand years.
const LARGEST: u64 = 1 << 55;
/// Longest name of a function or library that is not in the tables.
const LONGEST_NAME: usize = 64;
/// Most blocks of one lane.
const MOST_BLOCKS: u64 = 4096;

/// Names with a number of their own: functions, reductions, datatypes; add at the end. 0 is none, 1
/// a name in full.
const NAMES: [&str; 48] = [
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
    "wait",
    "wait_all",
    "finalize",
    "comm_split",
    "comm_dup",
    "comm_create",
    "sum",
    "max",
    "min",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float",
    "double",
    "int32",
    "int64",
    "uint8",
    "byte",
];
const LIBRARIES: [&str; 3] = ["nccl", "rccl", "mpi"];
const OTHER_LIBRARY: u8 = 15;

/// A text that is not a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Of another version.
    #[error("a digest of layout {0}, this version reads {VERSION}: the sender runs another version of rankmesh")]
    Version(u8),
    /// It ends too early, or has something left over.
    #[error("a digest that is cut off or has bytes left over")]
    Length,
    /// A value that cannot be.
    #[error("a digest with an impossible {0}")]
    Value(&'static str),
}

/// Write a digest. One that holds what no digest can is cut off there, and refused by readers.
#[must_use]
pub fn encode(digest: &Digest) -> String {
    let mut writer = Coder::writing();
    let written = writer.digest(&mut digest.clone());
    debug_assert_eq!(written, Ok(()));
    to_text(&writer.into_bytes())
}

/// Write a digest in at most `limit` bytes: if it does not fit, steps are left out, then the
/// earlier runs of each lane, then the lanes with fewest calls, and the digest is marked as
/// cut.
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
                // The latest blocks matter most.
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
    let (mut reader, mut digest) = (Coder::reading(&bytes), Digest::default());
    reader.digest(&mut digest)?;
    reader.finish().map(|()| digest)
}

/// How a lane is written by its neighbour: the same function, library and tier, and the
/// same communicator and the next rank.
const NEXT_RANK: u64 = 0;
/// Or the next communicator of which no lane was written yet, and the same rank.
const NEXT_COMM: u64 = 1;
/// Or another communicator and rank, which follow.
const OTHER_COMM: u64 = 2;
/// Above are the places of processes: like no other.
const HEADS: u64 = 3;

fn fold(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn unfold(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::super::{
        Block, Gone, Lane, LongCall, Membership, Process, Recent, ReferenceClock, Resent, StepCalls, Steps,
    };
    use super::*;
    use observed::{Activity, Made, Payload};

    #[test]
    fn another_layout_is_refused() {
        let stepped = Digest { window: 7, wall_ahead_ms: -3_600_000, ..Digest::default() };
        assert_eq!(decode(&encode(&stepped)), Ok(stepped));
        for version in [7, 9] {
            assert_eq!(decode(&to_text(&[version, 0, 0, 0, 0, 0])), Err(DecodeError::Version(version)));
        }
    }

    /// Of layout 8, in hexadecimal digits, as other agents of this layout write and read it.
    const WRITTEN: &str = "080052070856465f6f7d0e1d213f400202020c231100010500000400611f2000000000000000000000000000\
            0020000f0206081e2060207a03102c20374000045c1708380000000000000000502002000000000000004002\
            04060010000000750228380e207400680f4835770000002d02200e2001404003000604580040400103206002\
            604f03000100005065010000020e0020102040056d727d7a764e5b2f63423163060001000104001848062075\
            30000438402000507e150066003c3104020658001060010101005866603e3104010030102000400202000000\
            40784400000004601c6041000000000000";

    #[test]
    fn what_agents_of_this_layout_wrote_is_read_and_written_the_same() {
        let block = |start, exit_us, duration_us, compute_us, waited| Block {
            start,
            level: 2,
            exit_us,
            duration_us,
            compute_us,
            waited,
            halted_us: u64::from(waited.is_some()) * 7,
            held_us: u64::from(compute_us.is_some()) * 90,
        };
        let lane = |process, comm_hash, rank, func: &str, calls, last_seq, blocks| Lane {
            process,
            comm_hash,
            nranks: Some(4),
            rank,
            func: func.into(),
            library: "nccl".into(),
            calls,
            last_seq,
            blocks,
            ..Lane::default()
        };
        let runs =
            |more: i64| vec![block(96, 1_000 + more, 50, Some(900), None), block(100, 5_000 + more, 60, None, Some(3))];
        let step = |process, ends, lane, more: u64| Steps {
            process,
            ends,
            number: 104,
            level: 3,
            end_us: 400_000 + more.cast_signed(),
            length_us: 90_000,
            called_us: 800 + more,
            calls: vec![StepCalls { lane, peer: Some(3), part: 0, calls: 1, before_us: 70_000 + more }],
        };
        let comm = Some(Membership { comm_hash: 9, nranks: Some(4), rank: 1 });
        let call =
            LongCall { func: "recv".into(), comm, root: Some(2), tag: Some(-1), for_ms: 2_500, ..LongCall::default() };
        let made = Made { position: 102, func: "broadcast".into(), root: Some(0), payload: Payload::default() };
        let recent = Recent { process: 0, comm_hash: 7, made: vec![made], pairs: Vec::new() };
        let lanes = vec![
            lane(0, 7, 0, "all_reduce", 20, Some(103), runs(0)),
            Lane { place: Some(44), ..lane(0, 9, 1, "send", 3, Some(8), Vec::new()) },
            lane(1, 7, 1, "all_reduce", 20, Some(103), runs(7)),
            lane(1, 9, 2, "my_own_call", 1, None, Vec::new()),
        ];
        let (from, to) = ([10, 0, 0, 1].into(), [0xfe80u16, 0, 0, 0, 0, 0, 0, 1].into());
        let digest = Digest {
            window: 3_540_000_000,
            clock: Some(ReferenceClock { reference: 0xbeef, offset_us: -1_234, bound_us: 250 }),
            wall_ahead_ms: 0,
            lost: 5,
            unplaced: 2,
            cut: true,
            gone: vec![Gone { pid: 99, window: 3_539_999_990 }],
            resent: vec![Resent { from, to, segments: 30, at_ms: vec![3, 450] }],
            processes: vec![
                Process {
                    pid: 4_000,
                    opens: Some("send".into()),
                    activity: Some(Activity::Running),
                    ..Process::default()
                },
                Process { pid: 4_007, of_job: Some((1, 4)), device_ms: Some(1_500), ..Process::default() },
            ],
            lanes,
            steps: vec![step(0, 0, 1, 0), step(1, 2, 3, 11)],
            long_calls: vec![call],
            recent: vec![recent],
        };
        let written: String = encode(&digest).bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(written, WRITTEN);
        assert_eq!(decode(&encode(&digest)), Ok(digest));
    }

    #[test]
    fn lanes_like_those_of_the_process_before_take_few_bytes() {
        // Eight ranks, each in a communicator of all and in one of its own with the same rank on
        // other hosts.
        let lane = |process: usize, comm_hash: u64, rank: i32| Lane {
            process,
            comm_hash,
            nranks: Some(8),
            rank,
            func: "all_reduce".into(),
            library: "nccl".into(),
            tier: 0,
            calls: 20,
            last_seq: Some(100_000),
            place: Some(100_000),
            blocks: Vec::new(),
        };
        let process = |pid: u32| Process { pid, ..Process::default() };
        let lanes = (0..8).flat_map(|p| [lane(p, 5, p as i32), lane(p, u64::MAX - p as u64, 3)]);
        let digest = Digest { processes: (0..8).map(process).collect(), lanes: lanes.collect(), ..Digest::default() };
        let one = Digest { processes: vec![process(0)], lanes: digest.lanes[..2].to_vec(), ..Digest::default() };
        let (all, first) = (encode(&digest).len(), encode(&one).len());
        assert_eq!(decode(&encode(&digest)).as_ref(), Ok(&digest));
        // Of each further one its process, two bytes a lane, and the communicator of its own: nine
        // bytes.
        assert!((all - first) * 7 / 8 <= 7 * (1 + 4 + 9), "{first} {all}");
        // A lane that lacks does not disturb what follows.
        for gap in 0..16 {
            let mut lanes = digest.lanes.clone();
            lanes.remove(gap);
            let less = Digest { lanes, ..digest.clone() };
            assert_eq!(decode(&encode(&less)).as_ref(), Ok(&less));
        }
    }
}
