//! Digests as text, for gossip: a compact binary form, seven bits to a character.
//!
//! Integers are variable-length (seven bits a byte, lowest first); signed ones are folded (zigzag). What can be guessed from what went
//! before is written as the difference: the ranks of a host leave a collective together, and own time is mostly what lies between two
//! calls. docs/wire.md has the layout. Reading takes any bytes: every count is bounded by what is left to read.

mod steps;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::super::activity::Activity;
use super::{Block, Digest, Gone, Lane, MAX_LEVEL, Open, Process, ReferenceClock, Resent};

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

/// Seven bits to a character: ASCII, so that gossip's strings hold it as it is.
fn to_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 8 / 7 + 1);
    let (mut held, mut bits) = (0u16, 0);
    for byte in bytes {
        held |= u16::from(*byte) << bits;
        bits += 8;
        while bits >= 7 {
            text.push(char::from((held & 0x7f) as u8));
            held >>= 7;
            bits -= 7;
        }
    }
    if bits > 0 {
        text.push(char::from((held & 0x7f) as u8));
    }
    text
}

fn from_text(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 7 / 8);
    let (mut held, mut bits) = (0u16, 0);
    for byte in text.bytes() {
        if byte > 0x7f {
            return None;
        }
        held |= u16::from(byte) << bits;
        bits += 7;
        if bits >= 8 {
            bytes.push((held & 0xff) as u8);
            held >>= 8;
            bits -= 8;
        }
    }
    // What is left are the padding bits of the last character.
    (held == 0).then_some(bytes)
}

/// Whether a lane is that of the next process and the next rank, in all else like the one before.
fn follows(last: &Lane, lane: &Lane) -> bool {
    lane.process == last.process + 1
        && last.rank.checked_add(1) == Some(lane.rank)
        && (lane.comm_hash, lane.nranks, &lane.func) == (last.comm_hash, last.nranks, &last.func)
        && (&lane.library, lane.tier) == (&last.library, last.tier)
}

/// The previous lane of the same communicator and function: what the next one is written against.
#[derive(Default)]
struct Before {
    last_seq: u64,
    blocks: Vec<Block>,
}

impl Before {
    /// What to expect of a block: the lane before leaves alike; else the block before says how far apart calls are.
    fn expected(&self, start: u64, level: u8, previous: Option<&Block>) -> Expected {
        let place = self.blocks.iter().position(|b| (b.start, b.level) == (start, level));
        let beside = place.and_then(|place| self.blocks.get(place));
        let beside_before = place.and_then(|place| self.blocks.get(place.checked_sub(1)?));
        let previous = previous.filter(|p| p.level == level);
        let took = |b: &Block| b.duration_us.cast_signed();
        let exit_us = match (beside, previous) {
            (Some(beside), _) => beside.exit_us,
            (None, Some(previous)) => previous.exit_us.wrapping_add(distance(previous).wrapping_shl(level.into())),
            (None, None) => 0,
        };
        let duration_us = match (previous, beside, beside_before) {
            (Some(p), Some(b), Some(before)) => took(p).wrapping_add(took(b)).wrapping_sub(took(before)),
            (Some(p), ..) => took(p),
            (None, Some(b), _) => took(b),
            (None, None, _) => 0,
        };
        Expected {
            exit_us,
            duration_us: duration_us.max(0),
            previous: previous.map(|p| p.exit_us),
            distance: beside.map_or(0, distance),
        }
    }
}

/// How far apart the calls of a block are, as far as is known.
fn distance(block: &Block) -> i64 {
    block.own_us.map_or(0, |own| own.wrapping_add(block.duration_us).cast_signed())
}

/// What a block is written against.
struct Expected {
    exit_us: i64,
    duration_us: i64,
    /// Exit of the block before.
    previous: Option<i64>,
    /// Distance of two calls in the lane before.
    distance: i64,
}

impl Expected {
    /// Own time: what lies between two exits and is not spent in calls.
    fn own_us(&self, level: u8, exit_us: i64, duration_us: u64) -> i64 {
        let distance = match self.previous {
            Some(before) => exit_us.wrapping_sub(before) >> level,
            None => self.distance,
        };
        distance.wrapping_sub(duration_us.cast_signed())
    }
}

fn fold(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn unfold(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn digest(mut self, digest: &Digest) -> Vec<u8> {
        let late = digest.lanes.iter().any(|lane| lane.last_seq.is_none() && lane.open.is_none());
        self.bytes.push(match digest.steps.is_empty() {
            false => WITH_STEPS,
            true if late => WITH_LATE,
            true => VERSION,
        });
        self.signed(digest.window);
        let said = [!digest.gone.is_empty(), !digest.resent.is_empty()];
        let flags = [digest.clock.is_some(), digest.cut, digest.lost > 0, digest.unplaced > 0, said[0], said[1]];
        self.bytes.push(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
        if let Some(clock) = digest.clock {
            self.bytes.extend(clock.reference.to_le_bytes());
            self.signed(clock.offset_us);
            self.unsigned(clock.bound_us.into());
        }
        for count in [digest.lost, digest.unplaced, digest.gone.len() as u64].into_iter().filter(|count| *count > 0) {
            self.unsigned(count);
        }
        for gone in &digest.gone {
            self.unsigned(gone.pid.into());
            self.signed(digest.window.wrapping_sub(gone.window));
        }
        if !digest.resent.is_empty() {
            self.unsigned(digest.resent.len() as u64);
        }
        for resent in &digest.resent {
            self.resent(resent);
        }
        self.unsigned(digest.processes.len() as u64);
        let mut pid = 0;
        for process in &digest.processes {
            let step = fold(i64::from(process.pid) - pid);
            self.unsigned(step << 2 | u64::from(process.activity.is_some()) << 1 | u64::from(process.opens.is_some()));
            pid = process.pid.into();
            if let Some(activity) = process.activity {
                self.bytes.push(activity.number() + 1);
            }
            if process.opens.is_some() {
                self.name(process.opens.as_deref());
            }
        }
        let mut comms: Vec<(u64, Option<i32>)> = Vec::new();
        let mut place: HashMap<(u64, Option<i32>), usize> = HashMap::new();
        for lane in &digest.lanes {
            place.entry((lane.comm_hash, lane.nranks)).or_insert_with(|| {
                comms.push((lane.comm_hash, lane.nranks));
                comms.len() - 1
            });
        }
        self.unsigned(comms.len() as u64);
        for (hash, nranks) in &comms {
            self.bytes.extend(hash.to_le_bytes());
            self.unsigned(nranks.map_or(0, |n| u64::from(n.unsigned_abs()) + 1));
        }
        self.unsigned(digest.lanes.len() as u64);
        let mut before: HashMap<(u64, &str), Before> = HashMap::new();
        let mut last: Option<&Lane> = None;
        for lane in &digest.lanes {
            // Mostly the lanes of a host are those of consecutive ranks in one communicator.
            if last.is_some_and(|last| follows(last, lane)) {
                self.bytes.push(0);
            } else {
                self.unsigned(lane.process as u64 + 1);
                self.unsigned(place[&(lane.comm_hash, lane.nranks)] as u64);
                self.head(lane);
            }
            self.lane(lane, before.entry((lane.comm_hash, &lane.func)).or_default());
            last = Some(lane);
        }
        if !digest.steps.is_empty() {
            self.steps(digest);
        }
        self.bytes
    }

    fn head(&mut self, lane: &Lane) {
        self.name(Some(&lane.func));
        let library = LIBRARIES.iter().position(|l| *l == &*lane.library);
        let library = library.and_then(|l| u8::try_from(l).ok()).unwrap_or(OTHER_LIBRARY);
        self.bytes.push(library << 4 | lane.tier.min(15));
        if library == OTHER_LIBRARY {
            self.text(&lane.library);
        }
        self.signed(lane.rank.into());
    }

    fn lane(&mut self, lane: &Lane, before: &mut Before) {
        self.unsigned(lane.calls);
        let runs = |blocks: &[Block]| blocks.iter().map(|b| (b.start, b.level)).collect::<Vec<_>>();
        let alike = !lane.blocks.is_empty() && runs(&lane.blocks) == runs(&before.blocks);
        let waited = lane.blocks.iter().any(|block| block.waited.is_some());
        self.unsigned(
            (if alike { 0 } else { lane.blocks.len() as u64 }) << 4
                | u64::from(waited) << 3
                | u64::from(alike) << 2
                | u64::from(lane.last_seq.is_some()) << 1
                | u64::from(lane.open.is_some()),
        );
        if let Some(last) = lane.last_seq {
            self.signed(last.wrapping_sub(before.last_seq).cast_signed());
            before.last_seq = last;
        }
        if let Some(open) = lane.open {
            self.signed(open.seq.wrapping_sub(before.last_seq).cast_signed());
            self.unsigned(open.for_ms);
        }
        let mut at = before.blocks.first().map_or(before.last_seq, |b| b.start);
        let mut previous: Option<&Block> = None;
        for block in &lane.blocks {
            if !alike {
                let gap = fold(block.start.wrapping_sub(at).cast_signed());
                self.unsigned(gap.wrapping_mul(32) | u64::from(block.level & 31));
            }
            at = block.start.wrapping_add(block.size());
            let expected = before.expected(block.start, block.level, previous);
            self.signed(block.exit_us.wrapping_sub(expected.exit_us));
            self.signed(block.duration_us.cast_signed().wrapping_sub(expected.duration_us));
            let own = expected.own_us(block.level, block.exit_us, block.duration_us);
            self.unsigned(block.own_us.map_or(0, |us| fold(us.cast_signed().wrapping_sub(own)).wrapping_add(1)));
            if waited {
                self.unsigned(block.waited.map_or(0, |calls| block.size().saturating_sub(calls.into()) + 1));
            }
            previous = Some(block);
        }
        if !lane.blocks.is_empty() {
            before.blocks.clone_from(&lane.blocks);
        }
    }

    fn resent(&mut self, resent: &Resent) {
        for address in [resent.from, resent.to] {
            match address {
                IpAddr::V4(address) => {
                    self.bytes.push(4);
                    self.bytes.extend(address.octets());
                }
                IpAddr::V6(address) => {
                    self.bytes.push(16);
                    self.bytes.extend(address.octets());
                }
            }
        }
        self.unsigned(resent.segments);
        self.unsigned(resent.at_ms.len() as u64);
        resent.at_ms.iter().for_each(|at_ms| self.unsigned((*at_ms).into()));
    }

    fn unsigned(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn signed(&mut self, value: i64) {
        self.unsigned(fold(value));
    }

    fn name(&mut self, name: Option<&str>) {
        match (name, name.and_then(|n| FUNCS.iter().position(|f| *f == n))) {
            (None, _) => self.bytes.push(0),
            (_, Some(place)) => self.bytes.push(place as u8 + 2),
            (Some(name), None) => {
                self.bytes.push(1);
                self.text(name);
            }
        }
    }

    fn text(&mut self, text: &str) {
        let mut end = text.len().min(LONGEST_NAME);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.unsigned(end as u64);
        self.bytes.extend(&text.as_bytes()[..end]);
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

/// What a lane is of.
struct Head {
    process: usize,
    comm_hash: u64,
    nranks: Option<i32>,
    func: Arc<str>,
    library: Arc<str>,
    tier: u8,
    rank: i32,
}

impl Head {
    /// The next process and rank.
    fn after(last: &Lane) -> Result<Self, DecodeError> {
        Ok(Self {
            process: last.process + 1,
            comm_hash: last.comm_hash,
            nranks: last.nranks,
            func: Arc::clone(&last.func),
            library: Arc::clone(&last.library),
            tier: last.tier,
            rank: last.rank.checked_add(1).ok_or(DecodeError::Value("rank"))?,
        })
    }
}

impl Reader<'_> {
    fn digest(&mut self) -> Result<Digest, DecodeError> {
        let version = self.byte()?;
        if !(VERSION..=WITH_STEPS).contains(&version) {
            return Err(DecodeError::Version(version));
        }
        let mut digest = Digest { window: self.time("window")?, ..Digest::default() };
        let flags = self.byte()?;
        digest.cut = flags & 2 != 0;
        if flags & 1 != 0 {
            digest.clock = Some(ReferenceClock {
                reference: u16::from_le_bytes(self.array()?),
                offset_us: self.time("clock offset")?,
                bound_us: self.small("clock bound")?,
            });
        }
        digest.lost = if flags & 4 != 0 { self.unsigned()? } else { 0 };
        digest.unplaced = if flags & 8 != 0 { self.unsigned()? } else { 0 };
        let gone = if flags & 16 != 0 { self.count(2)? } else { 0 };
        for _ in 0..gone {
            let pid = self.small("pid")?;
            let window = digest.window - self.time("window")?;
            digest.gone.push(Gone { pid, window });
        }
        let resent = if flags & 32 != 0 { self.count(12)? } else { 0 };
        for _ in 0..resent {
            let (from, to) = (self.address()?, self.address()?);
            let segments = self.unsigned()?;
            let times = self.count(1)?;
            let at_ms = (0..times).map(|_| u16::try_from(self.unsigned()?).map_err(|_| DecodeError::Value("time")));
            let at_ms = at_ms.collect::<Result<_, _>>()?;
            digest.resent.push(Resent { from, to, segments, at_ms });
        }
        let mut pid = 0i64;
        for _ in 0..self.count(1)? {
            let head = self.unsigned()?;
            let acts = head & 2 != 0;
            pid = pid.wrapping_add(unfold(head >> 2));
            let process = u32::try_from(pid).map_err(|_| DecodeError::Value("pid"))?;
            // One that a later version knows is none to this.
            let number = if acts { self.byte()? } else { NO_ACTIVITY };
            let activity = number.checked_sub(1).and_then(Activity::of_number);
            let opens = if head & 1 != 0 { self.name()? } else { None };
            digest.processes.push(Process { pid: process, opens, activity });
        }
        let mut comms = Vec::new();
        for _ in 0..self.count(9)? {
            let hash = u64::from_le_bytes(self.array()?);
            let nranks: u32 = self.small("communicator size")?;
            let nranks = match nranks.checked_sub(1) {
                Some(n) => Some(i32::try_from(n).map_err(|_| DecodeError::Value("communicator size"))?),
                None => None,
            };
            comms.push((hash, nranks));
        }
        let mut before: HashMap<(u64, Arc<str>), Before> = HashMap::new();
        for _ in 0..self.count(3)? {
            let head = match (self.small("process")?.checked_sub(1), digest.lanes.last()) {
                (None, Some(last)) => Head::after(last)?,
                (None, None) => return Err(DecodeError::Value("process")),
                (Some(process), _) => self.head(process as usize, &comms)?,
            };
            if head.process >= digest.processes.len() {
                return Err(DecodeError::Value("process"));
            }
            let lane = self.lane(&head, before.entry((head.comm_hash, Arc::clone(&head.func))).or_default())?;
            digest.lanes.push(lane);
        }
        if version == WITH_STEPS {
            for _ in 0..self.count(4)? {
                let steps = self.steps(&digest)?;
                digest.steps.push(steps);
            }
            if digest.steps.is_empty() {
                return Err(DecodeError::Value("version"));
            }
        }
        Ok(digest)
    }

    fn head(&mut self, process: usize, comms: &[(u64, Option<i32>)]) -> Result<Head, DecodeError> {
        let comm = self.small("communicator")? as usize;
        let (comm_hash, nranks) = *comms.get(comm).ok_or(DecodeError::Value("communicator"))?;
        let func = self.name()?.ok_or(DecodeError::Value("function"))?;
        let kind = self.byte()?;
        let library = match LIBRARIES.get(usize::from(kind >> 4)) {
            Some(library) => (*library).into(),
            None if kind >> 4 == OTHER_LIBRARY => self.text()?,
            None => return Err(DecodeError::Value("library")),
        };
        let rank = i32::try_from(self.time("rank")?).map_err(|_| DecodeError::Value("rank"))?;
        Ok(Head { process, comm_hash, nranks, func, library, tier: kind & 15, rank })
    }

    fn lane(&mut self, head: &Head, before: &mut Before) -> Result<Lane, DecodeError> {
        let calls = self.unsigned()?;
        let what = self.unsigned()?;
        let last_seq = (what & 2 != 0).then(|| self.relative(before.last_seq)).transpose()?;
        before.last_seq = last_seq.unwrap_or(before.last_seq);
        let open = if what & 1 != 0 {
            let seq = self.relative(before.last_seq)?;
            let for_ms = self.unsigned()?;
            if for_ms > LARGEST / 1000 {
                return Err(DecodeError::Value("duration"));
            }
            Some(Open { seq, for_ms })
        } else {
            None
        };
        // The same runs as the lane before has.
        let alike = what & 4 != 0;
        let waits = what & 8 != 0;
        let count = if alike { before.blocks.len() as u64 } else { what >> 4 };
        // A block takes three bytes and more.
        if count > MOST_BLOCKS || count * 3 > self.bytes.len() as u64 {
            return Err(DecodeError::Length);
        }
        let mut at = before.blocks.first().map_or(before.last_seq, |b| b.start);
        let mut blocks: Vec<Block> = Vec::with_capacity(count as usize);
        for i in 0..count as usize {
            let (start, level) = match before.blocks.get(i).filter(|_| alike) {
                Some(like) => (like.start, like.level),
                None => {
                    let head = self.unsigned()?;
                    (at.wrapping_add_signed(unfold(head >> 5)), (head & 31) as u8)
                }
            };
            if level > MAX_LEVEL || start & ((1 << level) - 1) != 0 || start > LARGEST {
                return Err(DecodeError::Value("run of calls"));
            }
            at = start + (1 << level);
            let previous = blocks.last();
            let expected = before.expected(start, level, previous);
            let exit_us = self.time("exit")?.wrapping_add(expected.exit_us);
            let duration_us = self.time("duration")?.wrapping_add(expected.duration_us);
            let duration_us = u64::try_from(duration_us).map_err(|_| DecodeError::Value("duration"))?;
            if exit_us.unsigned_abs() > LARGEST || duration_us > LARGEST {
                return Err(DecodeError::Value("time"));
            }
            let own_us = match self.unsigned()?.checked_sub(1) {
                Some(folded) => {
                    let own = unfold(folded).wrapping_add(expected.own_us(level, exit_us, duration_us));
                    let own = u64::try_from(own).ok().filter(|own| *own <= LARGEST);
                    Some(own.ok_or(DecodeError::Value("own time"))?)
                }
                None => None,
            };
            let waited = match if waits { self.unsigned()? } else { 0 }.checked_sub(1) {
                Some(fewer) => {
                    let calls = (1u64 << level).checked_sub(fewer).filter(|calls| *calls > 0);
                    let calls = calls.and_then(|calls| u32::try_from(calls).ok());
                    Some(calls.ok_or(DecodeError::Value("number of calls"))?)
                }
                None => None,
            };
            blocks.push(Block { start, level, exit_us, duration_us, own_us, waited });
        }
        if !blocks.is_empty() {
            before.blocks.clone_from(&blocks);
        }
        Ok(Lane {
            process: head.process,
            comm_hash: head.comm_hash,
            nranks: head.nranks,
            rank: head.rank,
            func: Arc::clone(&head.func),
            library: Arc::clone(&head.library),
            tier: head.tier,
            calls,
            last_seq,
            open,
            blocks,
        })
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        let (first, rest) = self.bytes.split_first().ok_or(DecodeError::Length)?;
        self.bytes = rest;
        Ok(*first)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.bytes.split_first_chunk().ok_or(DecodeError::Length)?;
        self.bytes = rest;
        Ok(*head)
    }

    fn unsigned(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return Err(DecodeError::Value("number"));
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Value("number"))
    }

    /// A signed number of bounded magnitude.
    fn time(&mut self, what: &'static str) -> Result<i64, DecodeError> {
        let value = unfold(self.unsigned()?);
        if value.unsigned_abs() <= 2 * LARGEST { Ok(value) } else { Err(DecodeError::Value(what)) }
    }

    fn address(&mut self) -> Result<IpAddr, DecodeError> {
        match self.byte()? {
            4 => Ok(self.array::<4>()?.into()),
            16 => Ok(self.array::<16>()?.into()),
            _ => Err(DecodeError::Value("address")),
        }
    }

    fn small(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        u32::try_from(self.unsigned()?).map_err(|_| DecodeError::Value(what))
    }

    /// A sequence number, given against another.
    fn relative(&mut self, to: u64) -> Result<u64, DecodeError> {
        let seq = to.wrapping_add_signed(unfold(self.unsigned()?));
        if seq <= LARGEST { Ok(seq) } else { Err(DecodeError::Value("number of a call")) }
    }

    /// How many entries of at least `each` bytes follow.
    fn count(&mut self, each: u64) -> Result<u64, DecodeError> {
        let count = self.unsigned()?;
        if count.saturating_mul(each) > self.bytes.len() as u64 { Err(DecodeError::Length) } else { Ok(count) }
    }

    fn name(&mut self) -> Result<Option<Arc<str>>, DecodeError> {
        Ok(match self.byte()? {
            0 => None,
            1 => Some(self.text()?),
            code => Some((*FUNCS.get(usize::from(code) - 2).ok_or(DecodeError::Value("function"))?).into()),
        })
    }

    fn text(&mut self) -> Result<Arc<str>, DecodeError> {
        let length = self.count(1)? as usize;
        if length > LONGEST_NAME {
            return Err(DecodeError::Value("name"));
        }
        let (head, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        std::str::from_utf8(head).map(Into::into).map_err(|_| DecodeError::Value("name"))
    }
}
