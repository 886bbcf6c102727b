//! The layout of a digest up to its steps, for writing and reading: docs/wire.md has it in words.

use std::collections::HashMap;
use std::sync::Arc;

use observed::Activity;

use super::super::{Digest, Lane, MAX_LEVEL, ReferenceClock};
use super::coder::{Coded, Coder};
use super::expected::Before;
use super::neighbour::Neighbour;
use super::{
    CommKey, DecodeError, HEADS, LARGEST, LIBRARIES, MOST_BLOCKS, NEXT_COMM, NEXT_RANK, OTHER_COMM, OTHER_LIBRARY,
    VERSION, fold, still, unfold,
};

impl Coder<'_> {
    pub(super) fn digest(&mut self, digest: &mut Digest) -> Coded<()> {
        let version = self.byte(VERSION)?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        digest.window = self.time("window", digest.window)?;
        let window = digest.window;
        let [clock, cut, counts, gone, resent, steps, stepped, still] = self.flags([
            digest.clock.is_some(),
            digest.cut,
            digest.lost > 0 || digest.unplaced > 0,
            !digest.gone.is_empty(),
            !digest.resent.is_empty(),
            !digest.steps.is_empty(),
            digest.wall_ahead_ms != 0,
            !digest.long_calls.is_empty() || !digest.recent.is_empty(),
        ])?;
        digest.cut = cut;
        if clock {
            let ReferenceClock { reference, offset_us, bound_us } = digest.clock.unwrap_or_default();
            digest.clock = Some(ReferenceClock {
                reference: u16::from_le_bytes(self.array(reference.to_le_bytes())?),
                offset_us: self.time("clock offset", offset_us)?,
                bound_us: self.small("clock bound", bound_us)?,
            });
        }
        if stepped {
            digest.wall_ahead_ms = self.time("wall clock", digest.wall_ahead_ms)?;
        }
        if counts {
            (digest.lost, digest.unplaced) = (self.unsigned(digest.lost)?, self.unsigned(digest.unplaced)?);
        }
        if gone {
            self.list(&mut digest.gone, 2, |coder, all, at| {
                all[at].pid = coder.small("pid", all[at].pid)?;
                all[at].window = window.wrapping_sub(coder.time("window", window.wrapping_sub(all[at].window))?);
                Ok(())
            })?;
        }
        if resent {
            self.list(&mut digest.resent, 12, |coder, all, at| {
                (all[at].from, all[at].to) = (coder.address(all[at].from)?, coder.address(all[at].to)?);
                all[at].segments = coder.unsigned(all[at].segments)?;
                coder.list(&mut all[at].at_ms, 1, |coder, times, at| {
                    let at_ms = coder.unsigned(times[at].into())?;
                    times[at] = u16::try_from(at_ms).map_err(|_| DecodeError::Value("time"))?;
                    Ok(())
                })
            })?;
        }
        let (mut pid, mut rank) = (0i64, 0i32);
        self.list(&mut digest.processes, 1, |coder, all, at| {
            let process = &mut all[at];
            let step = fold(i64::from(process.pid).wrapping_sub(pid));
            let more = process.of_job.is_some() || process.device_ms.is_some();
            let given = [process.opens.is_some(), process.activity.is_some(), more];
            let given = given.iter().rev().fold(0, |bits, flag| bits << 1 | u64::from(*flag));
            let head = coder.unsigned(step << 3 | given)?;
            pid = pid.wrapping_add(unfold(head >> 3));
            process.pid = u32::try_from(pid).map_err(|_| DecodeError::Value("pid"))?;
            if head & 2 != 0 {
                // One that a later version knows is none to this.
                let number = coder.byte(process.activity.map_or(0, |activity| activity.number() + 1))?;
                process.activity = number.checked_sub(1).and_then(Activity::of_number);
            }
            if head & 1 != 0 {
                process.opens = coder.name(process.opens.as_ref())?;
            }
            if head & 4 != 0 {
                coder.standing_still(process, &mut rank)?;
            }
            Ok(())
        })?;
        let comms = self.lanes(digest)?;
        if steps {
            self.steps(digest)?;
        }
        if still {
            self.still(digest, &comms)?;
        }
        Ok(())
    }

    /// The lanes; gives the communicators in their order.
    fn lanes(&mut self, digest: &mut Digest) -> Coded<Vec<CommKey>> {
        let mut comms: Vec<CommKey> = Vec::new();
        let mut places: HashMap<CommKey, usize> = HashMap::new();
        let of_lanes = digest.lanes.iter().map(|lane| (lane.comm_hash, lane.nranks));
        for comm in of_lanes {
            places.entry(comm).or_insert_with(|| {
                comms.push(comm);
                comms.len() - 1
            });
        }
        comms.extend(still::comms(digest, &comms));
        self.list(&mut comms, 9, |coder, all, at| {
            let (hash, nranks) = all[at];
            let hash = u64::from_le_bytes(coder.array(hash.to_le_bytes())?);
            let size = coder.small("communicator size", nranks.map_or(0, |n| n.unsigned_abs() + 1))?;
            let nranks = size.checked_sub(1).map(i32::try_from).transpose();
            all[at] = (hash, nranks.map_err(|_| DecodeError::Value("communicator size"))?);
            Ok(())
        })?;
        places.extend(comms.iter().enumerate().rev().map(|(place, comm)| (*comm, place)));
        let processes = digest.processes.len();
        let mut before: HashMap<(u64, Arc<str>), Before> = HashMap::new();
        let (mut neighbour, mut unused) = (Neighbour::default(), 0);
        self.list(&mut digest.lanes, 2, |coder, all, at| {
            let (earlier, later) = all.split_at_mut(at);
            let Some(lane) = later.first_mut() else { return Ok(()) };
            let like = coder.head(lane, neighbour.like(earlier), (&comms, &places), unused)?;
            if lane.process >= processes {
                return Err(DecodeError::Value("process"));
            }
            unused = unused.max(places.get(&(lane.comm_hash, lane.nranks)).map_or(0, |place| place + 1));
            let key = (lane.comm_hash, Arc::clone(&lane.func));
            if !before.contains_key(&key) {
                let known = like.and_then(|like| before.get(&(like.comm_hash, Arc::clone(&like.func)))).cloned();
                before.insert(key.clone(), known.unwrap_or_default());
            }
            coder.lane(lane, like, before.entry(key).or_default())?;
            neighbour.added(&all[..=at]);
            Ok(())
        })?;
        Ok(comms)
    }

    /// What a lane is of. Returns the lane before, where it was written by its difference to that
    /// one, and the place of the process.
    fn head<'l>(
        &mut self,
        lane: &mut Lane,
        known: Option<(&'l Lane, usize)>,
        (comms, places): (&[CommKey], &HashMap<CommKey, usize>),
        unused: usize,
    ) -> Coded<Option<&'l Lane>> {
        let comm = places.get(&(lane.comm_hash, lane.nranks)).copied().unwrap_or(0);
        let alike = |(like, process): &(&Lane, usize)| {
            (*process, &like.func, &like.library, like.tier) == (lane.process, &lane.func, &lane.library, lane.tier)
        };
        let code = known.filter(alike).map_or(lane.process as u64 + HEADS, |(like, _)| {
            match i64::from(lane.rank) - i64::from(like.rank) {
                1 if (lane.comm_hash, lane.nranks) == (like.comm_hash, like.nranks) => NEXT_RANK,
                0 if comm == unused => NEXT_COMM,
                _ => OTHER_COMM,
            }
        });
        let code = self.small("process", u32::try_from(code).unwrap_or(u32::MAX))?.into();
        let like = if code < HEADS { Some(known.ok_or(DecodeError::Value("process"))?) } else { None };
        let comm = match (code, like) {
            (NEXT_COMM, _) => unused,
            (NEXT_RANK, Some((like, _))) => places.get(&(like.comm_hash, like.nranks)).copied().unwrap_or(0),
            (OTHER_COMM, _) => self.place("communicator", comm)?,
            (process, _) => {
                lane.process = (process - HEADS) as usize;
                self.place("communicator", comm)?
            }
        };
        let of_comm = comms.get(comm).copied().ok_or(DecodeError::Value("communicator"))?;
        (lane.comm_hash, lane.nranks) = of_comm;
        let base = like.map_or(0, |(like, _)| like.rank.into());
        if let Some((like, process)) = like {
            lane.process = process;
            (lane.func, lane.library, lane.tier) = (Arc::clone(&like.func), Arc::clone(&like.library), like.tier);
        } else {
            lane.func = self.name(Some(&lane.func))?.ok_or(DecodeError::Value("function"))?;
            let library = LIBRARIES.iter().position(|library| *library == &*lane.library);
            let library = library.and_then(|place| u8::try_from(place).ok()).unwrap_or(OTHER_LIBRARY);
            let kind = self.byte(library << 4 | lane.tier.min(15))?;
            lane.tier = kind & 15;
            lane.library = match LIBRARIES.get(usize::from(kind >> 4)) {
                Some(library) => (*library).into(),
                None if kind >> 4 == OTHER_LIBRARY => self.text(&lane.library)?,
                None => return Err(DecodeError::Value("library")),
            };
        }
        let away = match code {
            NEXT_RANK => 1,
            NEXT_COMM => 0,
            _ => self.time("rank", i64::from(lane.rank) - base)?,
        };
        let rank = base.checked_add(away).and_then(|rank| i32::try_from(rank).ok());
        lane.rank = rank.ok_or(DecodeError::Value("rank"))?;
        Ok(like.map(|(like, _)| like))
    }

    /// The rest of a lane, as differences to its neighbour and to the one of its kind before.
    fn lane(&mut self, lane: &mut Lane, like: Option<&Lane>, before: &mut Before) -> Coded<()> {
        let of = |lane: &Lane| (lane.calls, lane.last_seq, lane.place);
        let same = like.is_some_and(|like| of(like) == of(lane));
        let runs = lane.blocks.iter().map(|b| (b.start, b.level));
        let alike = !lane.blocks.is_empty() && runs.eq(before.blocks.iter().map(|b| (b.start, b.level)));
        let waited = lane.blocks.iter().any(|block| block.waited.is_some());
        let halted = lane.blocks.iter().any(|block| block.halted_us > 0);
        let held = lane.blocks.iter().any(|block| block.held_us > 0);
        let flags = [lane.place.is_some(), lane.last_seq.is_some(), alike, waited, same, halted, held];
        let flags = flags.iter().rev().fold(0, |bits, flag| bits << 1 | u64::from(*flag));
        let what = self.unsigned((if alike { 0 } else { lane.blocks.len() as u64 }) << 7 | flags)?;
        let [placed, last, alike, waited, same, halted, held] = std::array::from_fn(|place| what >> place & 1 != 0);
        if same {
            let like = like.ok_or(DecodeError::Value("lane"))?;
            (lane.calls, lane.last_seq, lane.place) = of(like);
        } else {
            lane.calls = self.unsigned(lane.calls)?;
            if last {
                lane.last_seq = Some(self.number_to(lane.last_seq.unwrap_or(0), before.last_seq)?);
            }
            if placed {
                lane.place = Some(self.number_to(lane.place.unwrap_or(0), before.place)?);
            }
        }
        before.last_seq = lane.last_seq.unwrap_or(before.last_seq);
        before.place = lane.place.unwrap_or(before.place);
        let count = if alike { before.blocks.len() as u64 } else { what >> 7 };
        if count > MOST_BLOCKS {
            return Err(DecodeError::Length);
        }
        let mut at = before.blocks.first().map_or(before.last_seq, |b| b.start);
        self.items(&mut lane.blocks, count, 3, |coder, all, place| {
            let (earlier, later) = all.split_at_mut(place);
            let (previous, Some(block)) = (earlier.last(), later.first_mut()) else { return Ok(()) };
            match before.blocks.get(place).filter(|_| alike) {
                Some(like) => (block.start, block.level) = (like.start, like.level),
                None => {
                    let gap = fold(block.start.wrapping_sub(at).cast_signed()).wrapping_mul(32);
                    let head = coder.unsigned(gap | u64::from(block.level & 31))?;
                    (block.start, block.level) = (at.wrapping_add_signed(unfold(head >> 5)), (head & 31) as u8);
                }
            }
            let (start, level) = (block.start, block.level);
            if level > MAX_LEVEL || start % (1 << level) != 0 || start > LARGEST {
                return Err(DecodeError::Value("run of calls"));
            }
            at = start + block.size();
            let expected = before.expected(start, level, previous);
            block.exit_us = coder.time_to("exit", block.exit_us, expected.exit_us)?;
            block.duration_us = coder.length_to(block.duration_us, expected.duration_us)?;
            let own = expected.compute_us(level, block.exit_us, block.duration_us);
            let more = |us: u64| fold(us.cast_signed().wrapping_sub(own)).wrapping_add(1);
            let more = coder.unsigned(block.compute_us.map_or(0, more))?.checked_sub(1);
            let compute_us = more.map(|more| u64::try_from(unfold(more).wrapping_add(own)));
            let compute_us = compute_us.transpose().ok().filter(|us| us.is_none_or(|us| us <= LARGEST));
            block.compute_us = compute_us.ok_or(DecodeError::Value("compute time"))?;
            if waited {
                let fewer = block.waited.map_or(0, |calls| block.size().saturating_sub(calls.into()) + 1);
                let fewer = coder.unsigned(fewer)?.checked_sub(1);
                let calls = fewer.map(|fewer| block.size().checked_sub(fewer).filter(|calls| *calls > 0));
                let calls = calls.map(|calls| calls.and_then(|calls| u32::try_from(calls).ok()));
                block.waited = calls.map(|calls| calls.ok_or(DecodeError::Value("number of calls"))).transpose()?;
            }
            if halted {
                block.halted_us = coder.unsigned(block.halted_us)?;
                if block.halted_us > block.duration_us {
                    return Err(DecodeError::Value("time halted"));
                }
            }
            if held {
                block.held_us = coder.unsigned(block.held_us)?;
                if block.held_us > LARGEST {
                    return Err(DecodeError::Value("time held"));
                }
            }
            Ok(())
        })?;
        if !lane.blocks.is_empty() {
            before.blocks.clone_from(&lane.blocks);
        }
        Ok(())
    }
}
