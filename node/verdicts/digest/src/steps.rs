//! What a process does in a step, where its calls only enqueue and nothing shows how long it waits
//! for them: how long it is outside calls, and when it enters those calls by which others can tell
//! whom it waits for.
//!
//! Of a lane in which a record is missing nothing of that step is shipped; what its other lanes
//! show still holds.
//!
//! A step goes from one call of the largest communicator that a process is in to the next; every
//! rank counts these alike. One step a window is shipped, chosen by its number, so that all ranks
//! ship the same ones: waits are no sums of what single ranks know, and means over steps would hide
//! them. What is made of the steps of all ranks lies in `step_times.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use observed::{Coupling, Observation};

use super::{Lane, MAX_LEVEL, StepCalls, Steps, WINDOW_NS};

/// Kinds of calls in a step, at most: a process that sends to more peers than this is no stage of a
/// pipeline.
const MOST_KINDS: usize = 32;
/// Calls in a step, at most: a longer one is not shipped.
const MOST_CALLS: usize = 16_384;
/// Steps kept until they are shipped, at most.
const MOST_STEPS: usize = 64;
/// A lane that has not ended a step for so long ends none any more.
const FORGET_NS: i64 = 120 * WINDOW_NS;
/// A level is kept while that many steps last between these parts of a window, so that hosts do not
/// change it back and forth.
const SHORTEST: f64 = 0.7;
const LONGEST: f64 = 2.8;
/// Weight of the latest step in the mean length of steps.
const LATEST: f64 = 0.125;

/// A lane: size of the communicator, communicator, function. Of two the larger one ends steps.
type Which = (Option<i32>, u64, Arc<str>);
/// Calls that are summed: communicator, function, peer, and which part of the step's calls of that
/// kind they are. While a pipeline fills, its stages wait otherwise than later, so that the first is
/// a part by itself; where every step is shipped every call is.
type Kind = (u64, Arc<str>, Option<i32>, u32);

/// A call of a step.
#[derive(Debug, Clone, Copy)]
struct Called {
    /// Place in [`Stepping::lanes`].
    lane: usize,
    /// The rank that is sent to or received from.
    peer: Option<i32>,
    /// When it was entered, from the begin of the step on.
    after_ns: i64,
}

/// Follows the steps of one process.
#[derive(Debug, Default)]
pub(super) struct Stepping {
    ends: Option<Which>,
    /// The last call that ended a step: number, entry, time outside calls up to then.
    last: Option<(u64, i64, i64)>,
    /// Mean length of a step.
    length_ns: f64,
    level: u8,
    /// The calls of the step that is under way.
    calls: Vec<Called>,
    /// Communicators and functions of calls, and the number that follows the last one; none after
    /// a step that was not seen completely.
    lanes: Vec<(u64, Arc<str>, Option<u64>)>,
    /// Lanes of which a record is missing in the step that is under way.
    unknown: BTreeSet<usize>,
    /// It cannot be shipped.
    broken: bool,
    done: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    number: u64,
    level: u8,
    end_ns: i64,
    length_ns: i64,
    outside_ns: i64,
    /// Calls, and the mean distance of their entries to the end of the step.
    kinds: BTreeMap<Kind, (u32, i64)>,
}

impl Stepping {
    /// Take the next call, in order of entry; `outside_ns` is the time outside calls up to it.
    /// `each`: every step is shipped.
    pub(super) fn take(&mut self, seen: &Observation, outside_ns: i64, each: bool) {
        if seen.tier > 0 {
            // Its duration shows what it waits.
            return;
        }
        let coupling = Coupling::of(&seen.func);
        if coupling == Coupling::All {
            let which = (seen.nranks, seen.comm_hash, Arc::clone(&seen.func));
            let idle = self.last.is_some_and(|(_, at, _)| seen.entry_ns.saturating_sub(at) > FORGET_NS);
            if idle || self.ends.as_ref().is_none_or(|ends| *ends < which) {
                *self = Self { ends: Some(which.clone()), ..Self::default() };
            }
            if self.ends.as_ref() == Some(&which) {
                return self.end(seen, outside_ns, each);
            }
        }
        let Some((_, from_ns, _)) = self.last else { return };
        let peer = match (coupling, &*seen.func, seen.root) {
            (Coupling::All, ..) => None,
            (Coupling::Pair, "send" | "recv", Some(peer)) => Some(peer),
            // Whom it waits for in it is not known.
            (Coupling::Pair, ..) => return self.interrupt(),
            _ => return,
        };
        if self.calls.len() >= MOST_CALLS {
            return self.interrupt();
        }
        let of = |lane: &(u64, Arc<str>, Option<u64>)| lane.0 == seen.comm_hash && lane.1 == seen.func;
        let lane = self.lanes.iter().position(of).unwrap_or_else(|| {
            self.lanes.push((seen.comm_hash, Arc::clone(&seen.func), None));
            self.lanes.len() - 1
        });
        let call = Called { lane, peer, after_ns: seen.entry_ns.saturating_sub(from_ns) };
        let next = self.lanes[lane].2.replace(seen.seq.saturating_add(1));
        if next.is_some_and(|next| next != seen.seq) {
            self.unknown.insert(lane);
        }
        self.calls.push(call);
    }

    /// The calls of a step by kind: how many, and the mean distance of their entries to its end;
    /// none where there are too many kinds. `each`: every call is a kind of its own.
    fn kinds(&self, calls: &[Called], length_ns: i64, each: bool) -> Option<BTreeMap<Kind, (u32, i64)>> {
        let mut kinds: BTreeMap<Kind, (u32, i64)> = BTreeMap::new();
        let mut before: BTreeMap<(usize, Option<i32>), u32> = BTreeMap::new();
        for call in calls {
            let (comm, func, _) = self.lanes.get(call.lane)?;
            let before = before.entry((call.lane, call.peer)).or_default();
            let part = if each { *before } else { (*before).min(1) };
            *before += 1;
            let of = kinds.entry((*comm, Arc::clone(func), call.peer, part)).or_default();
            of.0 += 1;
            of.1 = of.1.saturating_add(call.after_ns);
        }
        let before = |(calls, sum): (u32, i64)| (calls, length_ns.saturating_sub(sum / i64::from(calls.max(1))));
        let few = each || kinds.len() <= MOST_KINDS;
        few.then(|| kinds.into_iter().map(|(kind, sums)| (kind, before(sums))).collect())
    }

    /// A call that cannot be placed: the step is incomplete.
    pub(super) fn interrupt(&mut self) {
        self.broken = true;
    }

    /// Whether the step of this number is shipped.
    fn is_shipped(&self, number: u64) -> bool {
        number & ((1 << self.level) - 1) == 0
    }

    fn end(&mut self, seen: &Observation, outside_ns: i64, each: bool) {
        let mut calls = std::mem::take(&mut self.calls);
        let unknown = std::mem::take(&mut self.unknown);
        let broken = std::mem::take(&mut self.broken);
        let Some((number, from_ns, before_ns)) = self.last.replace((seen.seq, seen.entry_ns, outside_ns)) else {
            return;
        };
        let length_ns = seen.entry_ns.saturating_sub(from_ns);
        let steps = seen.seq.wrapping_sub(number);
        if broken || steps != 1 {
            self.lanes.iter_mut().for_each(|lane| lane.2 = None);
        }
        if broken || steps != 1 {
            return;
        }
        // Of steps without calls a digest would hold nothing that their runs do not.
        let few = self.done.len() < MOST_STEPS && !calls.is_empty();
        calls.retain(|call| !unknown.contains(&call.lane));
        if self.is_shipped(seen.seq)
            && (each || few)
            && let Some(kinds) = self.kinds(&calls, length_ns, each)
        {
            self.done.push(Step {
                number: seen.seq,
                level: self.level,
                end_ns: seen.entry_ns,
                length_ns,
                outside_ns: outside_ns.saturating_sub(before_ns),
                kinds,
            });
        }
        if each {
            return;
        }
        let mean = if self.length_ns > 0.0 { self.length_ns } else { length_ns as f64 };
        self.length_ns = mean + LATEST * (length_ns as f64 - mean);
        let windows = |level: u8| self.length_ns * f64::from(1u32 << level) / WINDOW_NS as f64;
        let fits = windows(self.level) >= SHORTEST && (self.level == 0 || windows(self.level) < LONGEST);
        if !fits {
            self.level = (0..MAX_LEVEL).find(|level| windows(*level) >= 1.0).unwrap_or(MAX_LEVEL);
        }
    }

    /// Whether there is a step to be shipped.
    pub(super) fn ready(&self) -> bool {
        !self.done.is_empty()
    }

    /// The steps to be shipped, once. `lanes` are those of the process in the digest of the window
    /// that begins at `base_us`, with their places.
    pub(super) fn ship(&mut self, process: usize, lanes: &[(usize, &Lane)], base_us: i64) -> Vec<Steps> {
        let place = |comm: u64, func: &str| {
            lanes.iter().find(|(_, lane)| lane.comm_hash == comm && &*lane.func == func).map(|(place, _)| *place)
        };
        let done = std::mem::take(&mut self.done);
        let Some((_, comm, func)) = &self.ends else { return Vec::new() };
        let Some(ends) = place(*comm, func) else { return Vec::new() };
        let micros = |ns: i64| u64::try_from(ns / 1_000).unwrap_or(0);
        done.into_iter()
            .filter_map(|step| {
                let calls = step.kinds.into_iter().map(|((comm, func, peer, part), (calls, before_ns))| {
                    Some(StepCalls { lane: place(comm, &func)?, peer, part, calls, before_us: micros(before_ns) })
                });
                Some(Steps {
                    process,
                    ends,
                    number: step.number,
                    level: step.level,
                    end_us: step.end_ns / 1_000 - base_us,
                    length_us: micros(step.length_ns),
                    called_us: micros(step.length_ns.saturating_sub(step.outside_ns)),
                    calls: calls.collect::<Option<_>>()?,
                })
            })
            .collect()
    }
}
