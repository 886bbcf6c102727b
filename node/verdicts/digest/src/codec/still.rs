//! The layout of what is said of processes that do not get on: the calls that they are in, and what
//! they did last.

use std::collections::BTreeSet;

use super::super::{Digest, Membership, Process};
use super::coder::{Coded, Coder};
use super::{CommKey, DecodeError, LARGEST};
use observed::Payload;

/// Longest duration, milliseconds.
const LONGEST_MS: u64 = LARGEST / 1_000;

/// The communicators of these parts that are not among those of lanes, and so follow them.
pub(super) fn comms(digest: &Digest, of_lanes: &[CommKey]) -> Vec<CommKey> {
    let mut known: BTreeSet<u64> = of_lanes.iter().map(|(hash, _)| *hash).collect();
    let calls = digest.long_calls.iter().filter_map(|call| call.comm).map(|of| (of.comm_hash, of.nranks));
    let recent = digest.recent.iter().map(|of| (of.comm_hash, None));
    calls.chain(recent).filter(|(hash, _)| known.insert(*hash)).collect()
}

impl Coder<'_> {
    pub(super) fn standing_still(&mut self, process: &mut Process, before: &mut i32) -> Coded<()> {
        let given = u8::from(process.of_job.is_some()) | u8::from(process.device_ms.is_some()) << 1;
        let given = self.byte(given)?;
        if given & 1 != 0 {
            let (rank, nranks) = process.of_job.unwrap_or_default();
            let rank = self.rank(rank, *before)?;
            process.of_job = Some((rank, self.rank(nranks, 0)?));
            *before = rank;
        }
        if given & 2 != 0 {
            process.device_ms = Some(self.lasted(process.device_ms.unwrap_or(0))?);
        }
        Ok(())
    }

    pub(super) fn still(&mut self, digest: &mut Digest, comms: &[CommKey]) -> Coded<()> {
        let processes = digest.processes.len();
        let place_of = |hash: u64| comms.iter().position(|(of, _)| *of == hash).unwrap_or(0);
        let is_there = |process: usize| (process < processes).then_some(process).ok_or(DecodeError::Value("process"));
        let comm_at = |place: usize| comms.get(place).copied().ok_or(DecodeError::Value("communicator"));
        let mut seq_before = 0;
        self.list(&mut digest.long_calls, 8, |coder, all, at| {
            let call = &mut all[at];
            call.process = is_there(coder.place("process", call.process)?)?;
            call.func = coder.name(Some(&call.func))?.ok_or(DecodeError::Value("function"))?;
            let place = coder.place("communicator", call.comm.map_or(0, |of| place_of(of.comm_hash) + 1))?;
            call.comm = match place.checked_sub(1) {
                Some(place) => {
                    let (comm_hash, nranks) = comm_at(place)?;
                    Some(Membership { comm_hash, nranks, rank: coder.rank(call.comm.map_or(0, |of| of.rank), 0)? })
                }
                None => None,
            };
            call.comm_seq = coder.maybe_number(call.comm_seq, &mut seq_before)?;
            call.root = coder.maybe_rank(call.root)?;
            call.tag = coder.maybe_rank(call.tag)?;
            coder.payload(&mut call.payload)?;
            call.for_ms = coder.lasted(call.for_ms)?;
            Ok(())
        })?;
        self.list(&mut digest.recent, 4, |coder, all, at| {
            let recent = &mut all[at];
            recent.process = is_there(coder.place("process", recent.process)?)?;
            recent.comm_hash = comm_at(coder.place("communicator", place_of(recent.comm_hash))?)?.0;
            coder.list(&mut recent.made, 5, |coder, all, at| {
                let made = &mut all[at];
                made.position = coder.number_to(made.position, seq_before)?;
                seq_before = made.position;
                made.func = coder.name(Some(&made.func))?.ok_or(DecodeError::Value("function"))?;
                made.root = coder.maybe_rank(made.root)?;
                coder.payload(&mut made.payload)
            })?;
            coder.list(&mut recent.pairs, 3, |coder, all, at| {
                let pair = &mut all[at];
                pair.peer = coder.rank(pair.peer, 0)?;
                pair.sent = coder.number_to(pair.sent, 0)?;
                pair.received = coder.number_to(pair.received, pair.sent)?;
                Ok(())
            })
        })
    }

    fn rank(&mut self, rank: i32, before: i32) -> Coded<i32> {
        let rank = self.time("rank", i64::from(rank) - i64::from(before))?.saturating_add(before.into());
        i32::try_from(rank).map_err(|_| DecodeError::Value("rank"))
    }

    fn maybe_rank(&mut self, rank: Option<i32>) -> Coded<Option<i32>> {
        let given = rank.map_or(0, |rank| super::fold(rank.into()) + 1);
        let rank = self.unsigned(given)?.checked_sub(1).map(super::unfold);
        rank.map(i32::try_from).transpose().map_err(|_| DecodeError::Value("rank"))
    }

    fn maybe_number(&mut self, number: Option<u64>, before: &mut u64) -> Coded<Option<u64>> {
        if self.byte(u8::from(number.is_some()))? == 0 {
            return Ok(None);
        }
        *before = self.number_to(number.unwrap_or(0), *before)?;
        Ok(Some(*before))
    }

    fn lasted(&mut self, ms: u64) -> Coded<u64> {
        let ms = self.unsigned(ms)?;
        if ms <= LONGEST_MS { Ok(ms) } else { Err(DecodeError::Value("duration")) }
    }

    fn payload(&mut self, payload: &mut Payload) -> Coded<()> {
        let bytes = payload.bytes.map_or(0, |bytes| bytes.min(LARGEST) + 1);
        payload.bytes = self.unsigned(bytes)?.checked_sub(1);
        payload.datatype = self.name(payload.datatype.as_ref())?;
        payload.reduce_op = self.name(payload.reduce_op.as_ref())?;
        Ok(())
    }
}
