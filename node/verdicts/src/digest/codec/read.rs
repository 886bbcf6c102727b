//! Reads a digest. It takes any bytes: every count is bounded by what is left to read.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::super::super::activity::Activity;
use super::super::{Block, Digest, Gone, Lane, MAX_LEVEL, Open, Process, ReferenceClock, Resent};
use super::expected::Before;
use super::neighbour::Neighbour;
use super::{
    DecodeError, FUNCS, HEADS, LARGEST, LIBRARIES, LONGEST_NAME, MOST_BLOCKS, NEXT_COMM, NO_ACTIVITY, OTHER_COMM,
    OTHER_LIBRARY, VERSION, WITH_WALL, unfold,
};

pub(super) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
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
    /// Of another rank or communicator, in all else like a lane.
    fn like(
        lane: &Lane,
        process: usize,
        (comm_hash, nranks): (u64, Option<i32>),
        away: i64,
    ) -> Result<Self, DecodeError> {
        let rank = i64::from(lane.rank).checked_add(away).and_then(|rank| i32::try_from(rank).ok());
        Ok(Self {
            process,
            comm_hash,
            nranks,
            func: Arc::clone(&lane.func),
            library: Arc::clone(&lane.library),
            tier: lane.tier,
            rank: rank.ok_or(DecodeError::Value("rank"))?,
        })
    }
}

impl Reader<'_> {
    pub(super) fn digest(&mut self) -> Result<Digest, DecodeError> {
        let version = self.byte()?;
        if version != VERSION && version != WITH_WALL {
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
        if flags & 128 != 0 {
            if version < WITH_WALL {
                return Err(DecodeError::Value("flag"));
            }
            digest.wall_ahead_ms = self.time("wall clock")?;
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
        let (mut neighbour, mut unused) = (Neighbour::default(), 0);
        for _ in 0..self.count(2)? {
            let (head, like) = self.any_head(neighbour.like(&digest.lanes), &comms, unused)?;
            if head.process >= digest.processes.len() {
                return Err(DecodeError::Value("process"));
            }
            let used = comms.iter().position(|comm| *comm == (head.comm_hash, head.nranks));
            unused = unused.max(used.map_or(0, |used| used + 1));
            let known = like.and_then(|like| before.get(&(like.comm_hash, Arc::clone(&like.func)))).cloned();
            let key = (head.comm_hash, Arc::clone(&head.func));
            let before = before.entry(key).or_insert_with(|| known.unwrap_or_default());
            let lane = self.lane(&head, like.map(|like| (like.calls, like.last_seq)), before)?;
            digest.lanes.push(lane);
            neighbour.added(&digest.lanes);
        }
        if flags & 64 != 0 {
            for _ in 0..self.count(4)? {
                let steps = self.steps(&digest)?;
                digest.steps.push(steps);
            }
            if digest.steps.is_empty() {
                return Err(DecodeError::Value("steps"));
            }
        }
        Ok(digest)
    }

    /// What the next lane is of, and the lane that it was written against.
    fn any_head<'l>(
        &mut self,
        like: Option<(&'l Lane, usize)>,
        comms: &[(u64, Option<i32>)],
        unused: usize,
    ) -> Result<(Head, Option<&'l Lane>), DecodeError> {
        let code = u64::from(self.small("process")?);
        if let Some(process) = code.checked_sub(HEADS) {
            return Ok((self.head(process as usize, comms)?, None));
        }
        let (like, process) = like.ok_or(DecodeError::Value("process"))?;
        let comm = |place: usize| comms.get(place).copied().ok_or(DecodeError::Value("communicator"));
        let head = match code {
            NEXT_COMM => Head::like(like, process, comm(unused)?, 0),
            OTHER_COMM => {
                let comm = comm(self.small("communicator")? as usize)?;
                Head::like(like, process, comm, self.time("rank")?)
            }
            _ => Head::like(like, process, (like.comm_hash, like.nranks), 1),
        };
        Ok((head?, Some(like)))
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

    /// The rest of a lane. `like` has the number of calls and the last number of the lane that it
    /// was written against.
    fn lane(
        &mut self,
        head: &Head,
        like: Option<(u64, Option<u64>)>,
        before: &mut Before,
    ) -> Result<Lane, DecodeError> {
        let what = self.unsigned()?;
        let (calls, last_seq) = if what & 16 != 0 {
            like.ok_or(DecodeError::Value("lane"))?
        } else {
            let calls = self.unsigned()?;
            (calls, (what & 2 != 0).then(|| self.relative(before.last_seq)).transpose()?)
        };
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
        let count = if alike { before.blocks.len() as u64 } else { what >> 5 };
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
            let compute_us = match self.unsigned()?.checked_sub(1) {
                Some(folded) => {
                    let own = unfold(folded).wrapping_add(expected.compute_us(level, exit_us, duration_us));
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
            blocks.push(Block { start, level, exit_us, duration_us, compute_us, waited });
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

    pub(super) fn unsigned(&mut self) -> Result<u64, DecodeError> {
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
    pub(super) fn time(&mut self, what: &'static str) -> Result<i64, DecodeError> {
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

    pub(super) fn small(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        u32::try_from(self.unsigned()?).map_err(|_| DecodeError::Value(what))
    }

    /// A sequence number, given against another.
    fn relative(&mut self, to: u64) -> Result<u64, DecodeError> {
        let seq = to.wrapping_add_signed(unfold(self.unsigned()?));
        if seq <= LARGEST { Ok(seq) } else { Err(DecodeError::Value("number of a call")) }
    }

    /// How many entries of at least `each` bytes follow.
    pub(super) fn count(&mut self, each: u64) -> Result<u64, DecodeError> {
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
