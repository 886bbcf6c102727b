//! The part of a digest behind its lanes: steps of processes whose calls only enqueue.
//!
//! The ranks of a stage on one host meet the same neighbours alike, so one is written against the
//! one before.

use super::super::{Digest, Lane, MAX_LEVEL, StepCalls, Steps};
use super::read::Reader;
use super::write::Writer;
use super::{DecodeError, LARGEST, fold, unfold};

impl Writer {
    pub(super) fn steps(&mut self, digest: &Digest) {
        self.unsigned(digest.steps.len() as u64);
        let mut before: Option<&Steps> = None;
        for steps in &digest.steps {
            let from = first_lane(&digest.lanes, steps.process);
            let alike = before.filter(|before| shape(&digest.lanes, before) == shape(&digest.lanes, steps));
            let process = steps.process - before.map_or(0, |before| before.process);
            self.unsigned((process as u64) << 1 | u64::from(alike.is_some()));
            let at = before.map_or(0, |before| before.number);
            self.unsigned(fold(steps.number.wrapping_sub(at).cast_signed()).wrapping_mul(32) | u64::from(steps.level));
            self.signed(steps.end_us.wrapping_sub(before.map_or(0, |before| before.end_us)));
            if alike.is_none() {
                self.unsigned((steps.ends - from) as u64);
                self.unsigned(steps.calls.len() as u64);
                for of in &steps.calls {
                    let lane = (of.lane - from) as u64;
                    self.unsigned(lane << 2 | u64::from(of.first) << 1 | u64::from(of.peer.is_some()));
                    if let Some(peer) = of.peer {
                        let rank = digest.lanes.get(of.lane).map_or(0, |lane| lane.rank);
                        self.signed(i64::from(peer) - i64::from(rank));
                    }
                    self.unsigned(of.calls.into());
                }
            }
            let step = |now: u64, then: Option<u64>| now.wrapping_sub(then.unwrap_or(0)).cast_signed();
            self.signed(step(steps.length_us, before.map(|before| before.length_us)));
            self.signed(step(steps.called_us, alike.map(|like| like.called_us)));
            for (i, of) in steps.calls.iter().enumerate() {
                self.signed(step(of.before_us, alike.and_then(|like| Some(like.calls.get(i)?.before_us))));
            }
            before = Some(steps);
        }
    }
}

impl Reader<'_> {
    pub(super) fn steps(&mut self, digest: &Digest) -> Result<Steps, DecodeError> {
        let before = digest.steps.last();
        let head = self.small("process")?;
        let process = before.map_or(0, |before| before.process) + (head >> 1) as usize;
        let like = before.filter(|_| head & 1 != 0);
        if process >= digest.processes.len() || like.is_none() && head & 1 != 0 {
            return Err(DecodeError::Value("process"));
        }
        let which = self.unsigned()?;
        let number = before.map_or(0, |before| before.number).wrapping_add_signed(unfold(which >> 5));
        let level = (which & 31) as u8;
        if level > MAX_LEVEL || number > LARGEST {
            return Err(DecodeError::Value("step"));
        }
        let end_us = before.map_or(0, |before| before.end_us).wrapping_add(self.time("end")?);
        if end_us.unsigned_abs() > LARGEST {
            return Err(DecodeError::Value("time"));
        }
        // Lanes are those of the process.
        let lane_at = |ordinal: usize| {
            let place = first_lane(&digest.lanes, process).checked_add(ordinal);
            let lane = place.and_then(|place| Some((place, digest.lanes.get(place)?)));
            lane.filter(|(_, lane)| lane.process == process).ok_or(DecodeError::Value("lane"))
        };
        let peer_of = |lane: &Lane, away: i64| {
            let peer = i64::from(lane.rank).checked_add(away).and_then(|peer| i32::try_from(peer).ok());
            peer.ok_or(DecodeError::Value("rank"))
        };
        let mut calls = Vec::new();
        let ends = if let Some(like) = like {
            let (ends, kinds) = shape(&digest.lanes, like);
            for (ordinal, first, away, count) in kinds {
                let (lane, of) = lane_at(ordinal)?;
                let peer = away.map(|away| peer_of(of, away)).transpose()?;
                calls.push(StepCalls { lane, peer, first, calls: count, before_us: 0 });
            }
            lane_at(ends)?.0
        } else {
            let ends = lane_at(self.small("lane")? as usize)?.0;
            for _ in 0..self.count(3)? {
                let what = self.small("lane")?;
                let (lane, of) = lane_at((what >> 2) as usize)?;
                let first = what & 2 != 0;
                let peer = if what & 1 != 0 { Some(peer_of(of, self.time("rank")?)?) } else { None };
                calls.push(StepCalls { lane, peer, first, calls: self.small("number of calls")?, before_us: 0 });
            }
            ends
        };
        let length_us = self.length(before.map_or(0, |before| before.length_us))?;
        let called_us = self.length(like.map_or(0, |like| like.called_us))?;
        for (i, of) in calls.iter_mut().enumerate() {
            let then = like.and_then(|like| Some(like.calls.get(i)?.before_us));
            of.before_us = self.length(then.unwrap_or(0))?;
        }
        Ok(Steps { process, ends, number, level, end_us, length_us, called_us, calls })
    }

    /// A length of time, given against another.
    fn length(&mut self, to: u64) -> Result<u64, DecodeError> {
        let length = to.wrapping_add_signed(self.time("duration")?);
        if length <= LARGEST { Ok(length) } else { Err(DecodeError::Value("duration")) }
    }
}

/// Place of the first lane of a process.
fn first_lane(lanes: &[Lane], process: usize) -> usize {
    lanes.iter().position(|lane| lane.process == process).unwrap_or(0)
}

/// Lane that ends steps, counted among those of the process, and of each kind of calls: lane,
/// whether it is the first, distance to the peer, calls.
type Shape = (usize, Vec<(usize, bool, Option<i64>, u32)>);

/// What the processes of a stage have in common: which of their lanes end steps and meet whom, how
/// often.
fn shape(lanes: &[Lane], steps: &Steps) -> Shape {
    let from = first_lane(lanes, steps.process);
    let rank = |of: &StepCalls| lanes.get(of.lane).map_or(0, |lane| lane.rank);
    let away = |of: &StepCalls| of.peer.map(|peer| i64::from(peer) - i64::from(rank(of)));
    (steps.ends - from, steps.calls.iter().map(|of| (of.lane - from, of.first, away(of), of.calls)).collect())
}
