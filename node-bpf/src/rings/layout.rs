//! The bytes of a ring file. `shim/ring.h` defines them; sizes and offsets are asserted there and
//! used here. Nothing in a ring is trusted: a rank may write any bytes into its ring.

use crate::bytes::Reader;
use crate::functions::FUNCTIONS;
use crate::wire::{HAVE_HASH, HAVE_RANK, LARGE_COUNTS, MAX_ARGS};

/// `RM_RING_MAGIC`.
const MAGIC: u64 = 0x3147_4e49_5253_4d52;
const VERSION: u32 = 2;
pub(super) const HEADER_BYTES: usize = 8192;
pub(super) const SLOTS: u64 = 8192;
pub(super) const HEAD_AT: u64 = 64;
pub(super) const TAIL_AT: u64 = 128;
pub(super) const LOST_AT: u64 = 192;
const NAMES_AT: usize = 512;
const NAMES: usize = 192;
const NAME_BYTES: usize = 32;
pub(super) const THREADS_AT: u64 = 8192;
pub(super) const THREADS: usize = 32;
pub(super) const THREAD_BYTES: usize = 152;
pub(super) const SLOTS_AT: u64 = 16384;
pub(super) const SLOT_BYTES: usize = 184;
/// `RM_DEVICE_TIMES`, a flag of a call, and where among its arguments they are.
pub(super) const DEVICE_TIMES: u8 = 128;
pub(super) const DEVICE_FIRST: usize = 8;
pub(super) const DEVICE_LAST: usize = 9;
pub(super) const DEVICE_OFFSET: usize = 10;
/// The size of a ring file.
pub(super) const RING_BYTES: u64 = SLOTS_AT + SLOTS * SLOT_BYTES as u64;

/// The constant parts of a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) pid: u32,
    /// Of each function in the ring, its index in [`FUNCTIONS`].
    pub(super) functions: Vec<Option<u8>>,
}

impl Header {
    /// None when it is not a ring, or not yet.
    pub(super) fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let mut r = Reader::new(bytes);
        let (magic, version, pid) = (r.u64()?, r.u32()?, r.u32()?);
        let (slots, names) = (r.u32()?, r.u32()?);
        if magic != MAGIC || version != VERSION || u64::from(slots) != SLOTS {
            return None;
        }
        let names = bytes.get(NAMES_AT..NAMES_AT + NAMES * NAME_BYTES)?.chunks(NAME_BYTES).take(names as usize);
        Some(Header { pid, functions: names.map(function).collect() })
    }
}

/// The index of a function that ends in a zero byte.
fn function(name: &[u8]) -> Option<u8> {
    let end = name.iter().position(|&byte| byte == 0)?;
    let name = std::str::from_utf8(&name[..end]).ok()?;
    let at = FUNCTIONS.iter().position(|function| function.role.is_recorded() && function.symbols.contains(&name))?;
    u8::try_from(at).ok()
}

/// A call that a thread is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InCall {
    pub(super) tid: u32,
    /// Index in the ring's names.
    pub(super) func: usize,
    pub(super) enter_ns: u64,
    pub(super) seq: Option<u64>,
    /// As in a call's record.
    pub(super) comm_seq: u64,
    pub(super) comm_hash: u64,
    pub(super) rank: i32,
    pub(super) nranks: i32,
    pub(super) flags: u8,
    pub(super) args: [u64; MAX_ARGS],
}

impl InCall {
    /// `struct rm_ring_thread`; none when the thread is in no call.
    pub(super) fn parse(bytes: &[u8]) -> Option<InCall> {
        let mut r = Reader::new(bytes);
        let (tid, func, enter_ns, seq) = (r.u32()?, r.u32()?, r.u64()?, r.u64()?);
        let (comm_seq, comm_hash) = (r.u64()?, r.u64()?);
        let (rank, nranks) = (r.u32()? as i32, r.u32()? as i32);
        let (flags, _pad) = (r.u32()? as u8 & (HAVE_HASH | HAVE_RANK | LARGE_COUNTS), r.u32()?);
        let mut args = [0; MAX_ARGS];
        for arg in &mut args {
            *arg = r.u64()?;
        }
        let func = (func as usize).checked_sub(1)?;
        let seq = (seq != u64::MAX).then_some(seq);
        Some(InCall { tid, func, enter_ns, seq, comm_seq, comm_hash, rank, nranks, flags, args })
    }
}
