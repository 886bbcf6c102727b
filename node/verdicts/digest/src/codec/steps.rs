//! The part of a digest behind its lanes: steps of processes whose calls only enqueue.
//!
//! The ranks of a stage on one host meet the same neighbours alike, so one is written against the
//! one before.

use super::super::{Digest, Lane, MAX_LEVEL, Steps};
use super::coder::{Coded, Coder};
use super::{DecodeError, LARGEST, fold, unfold};

impl Coder<'_> {
    pub(super) fn steps(&mut self, digest: &mut Digest) -> Coded<()> {
        let (lanes, processes) = (&digest.lanes, digest.processes.len());
        self.list(&mut digest.steps, 4, |coder, all, at| {
            let (earlier, later) = all.split_at_mut(at);
            let Some(steps) = later.first_mut() else { return Ok(()) };
            coder.step(steps, earlier.last(), lanes)?;
            if steps.process < processes { Ok(()) } else { Err(DecodeError::Value("process")) }
        })?;
        if digest.steps.is_empty() { Err(DecodeError::Value("steps")) } else { Ok(()) }
    }

    fn step(&mut self, steps: &mut Steps, before: Option<&Steps>, lanes: &[Lane]) -> Coded<()> {
        let none = Steps::default();
        let last = before.unwrap_or(&none);
        let alike = before.is_some_and(|before| shape(lanes, before) == shape(lanes, steps));
        let process = steps.process.saturating_sub(last.process);
        let head = self.small("process", (process as u32) << 1 | u32::from(alike))?;
        steps.process = last.process + (head >> 1) as usize;
        let like = before.filter(|_| head & 1 != 0);
        if like.is_none() && head & 1 != 0 {
            return Err(DecodeError::Value("process"));
        }
        let number = fold(steps.number.wrapping_sub(last.number).cast_signed()).wrapping_mul(32);
        let which = self.unsigned(number | u64::from(steps.level))?;
        steps.number = last.number.wrapping_add_signed(unfold(which >> 5));
        steps.level = (which & 31) as u8;
        if steps.level > MAX_LEVEL || steps.number > LARGEST {
            return Err(DecodeError::Value("step"));
        }
        steps.end_us = self.time_to("end", steps.end_us, last.end_us)?;
        // Lanes are those of the process.
        let from = first_lane(lanes, steps.process);
        let lane_at = |ordinal: usize| {
            let lane = from.checked_add(ordinal).and_then(|place| Some((place, lanes.get(place)?)));
            lane.filter(|(_, lane)| lane.process == steps.process).ok_or(DecodeError::Value("lane"))
        };
        let peer_of = |lane: &Lane, away: i64| {
            let peer = i64::from(lane.rank).checked_add(away).and_then(|peer| i32::try_from(peer).ok());
            peer.ok_or(DecodeError::Value("rank"))
        };
        if let Some(like) = like {
            let (ends, kinds) = shape(lanes, like);
            steps.calls.resize_with(kinds.len(), Default::default);
            for (of, (ordinal, part, away, calls)) in steps.calls.iter_mut().zip(kinds) {
                let (place, lane) = lane_at(ordinal)?;
                let peer = away.map(|away| peer_of(lane, away)).transpose()?;
                (of.lane, of.peer, of.part, of.calls) = (place, peer, part, calls);
            }
            steps.ends = lane_at(ends)?.0;
        } else {
            steps.ends = lane_at(self.place("lane", steps.ends.saturating_sub(from))?)?.0;
            self.list(&mut steps.calls, 3, |coder, all, at| {
                let of = &mut all[at];
                let flags = usize::from(of.part == 0) << 1 | usize::from(of.peer.is_some());
                let what = coder.place("lane", of.lane.saturating_sub(from) << 2 | flags)?;
                let (place, lane) = lane_at(what >> 2)?;
                (of.lane, of.part) = (place, u32::from(what & 2 == 0));
                if what & 1 != 0 {
                    let away = i64::from(of.peer.unwrap_or(0)) - i64::from(lane.rank);
                    of.peer = Some(peer_of(lane, coder.time("rank", away)?)?);
                }
                of.calls = coder.small("number of calls", of.calls)?;
                Ok(())
            })?;
        }
        steps.length_us = self.length_to(steps.length_us, last.length_us.cast_signed())?;
        steps.called_us = self.length_to(steps.called_us, like.map_or(0, |like| like.called_us.cast_signed()))?;
        for (i, of) in steps.calls.iter_mut().enumerate() {
            let then = like.and_then(|like| like.calls.get(i)).map_or(0, |of| of.before_us.cast_signed());
            of.before_us = self.length_to(of.before_us, then)?;
        }
        Ok(())
    }
}

/// Place of the first lane of a process.
fn first_lane(lanes: &[Lane], process: usize) -> usize {
    lanes.iter().position(|lane| lane.process == process).unwrap_or(0)
}

/// Lane that ends steps, counted among those of the process, and of each kind of calls: lane,
/// which part of them, distance to the peer, calls.
type Shape = (usize, Vec<(usize, u32, Option<i64>, u32)>);

/// What the processes of a stage have in common: which of their lanes end steps and meet whom, how
/// often.
fn shape(lanes: &[Lane], steps: &Steps) -> Shape {
    let from = first_lane(lanes, steps.process);
    let ordinal = |lane: usize| lane.saturating_sub(from);
    let rank = |lane: usize| lanes.get(lane).map_or(0, |lane| i64::from(lane.rank));
    let kinds = steps.calls.iter().map(|of| {
        let away = of.peer.map(|peer| i64::from(peer) - rank(of.lane));
        (ordinal(of.lane), of.part, away, of.calls)
    });
    (ordinal(steps.ends), kinds.collect())
}
