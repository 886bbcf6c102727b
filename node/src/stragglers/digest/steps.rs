//! What a process does in a step, where its calls only enqueue and nothing shows how long it waits for them: how long it is outside calls, and
//! when it enters those calls by which others can tell whom it waits for.
//!
//! A step goes from one call of the largest communicator that a process is in to the next; every rank counts these alike. One step a window is
//! told, chosen by its number, so that all ranks tell the same ones: waits are no sums of what single ranks know, and means over steps would
//! hide them. What is made of the steps of all ranks lies in `told.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Lane, MAX_LEVEL, StepCalls, Steps, WINDOW_NS};
use crate::stragglers::Observation;
use crate::stragglers::observation::Coupling;

/// Kinds of calls in a step, at most: a process that sends to more peers than this is no stage of a pipeline.
const MOST_KINDS: usize = 32;
/// Steps kept until they are told, at most.
const MOST_STEPS: usize = 64;
/// A lane that has not ended a step for so long ends none any more.
const FORGET_NS: i64 = 120 * WINDOW_NS;
/// A level is kept while that many steps last between these parts of a window, so that hosts do not change it back and forth.
const SHORTEST: f64 = 0.7;
const LONGEST: f64 = 2.8;
/// Weight of the latest step in the mean length of steps.
const LATEST: f64 = 0.125;

/// A lane: size of the communicator, communicator, function. Of two the larger one ends steps.
type Which = (Option<i32>, u64, Arc<str>);
/// Calls that are summed: communicator, function, peer, whether they are the first in the step. While a pipeline fills, its stages wait
/// otherwise than later.
type Kind = (u64, Arc<str>, Option<i32>, bool);

/// Follows the steps of one process.
#[derive(Debug, Default)]
pub(super) struct Stepping {
    ends: Option<Which>,
    /// The last call that ended a step: number, entry, time outside calls up to then.
    last: Option<(u64, i64, i64)>,
    /// Mean length of a step.
    length_ns: f64,
    level: u8,
    /// Of the step that is under way: calls and the sum of their entries, from the last step's end.
    kinds: BTreeMap<Kind, (u32, i64)>,
    /// By communicator and function: the last call.
    lanes: BTreeMap<(u64, Arc<str>), Before>,
    /// Records of it are missing.
    broken: bool,
    done: Vec<Step>,
}

/// The last call of a lane.
#[derive(Debug, Clone, Copy)]
struct Before {
    seq: u64,
    entry_ns: i64,
    peer: Option<i32>,
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
    pub(super) fn take(&mut self, seen: &Observation, outside_ns: i64) {
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
                return self.end(seen, outside_ns);
            }
        }
        let Some((number, from_ns, _)) = self.last else { return };
        let peer = match (coupling, &*seen.func, seen.root) {
            (Coupling::All, ..) => None,
            (Coupling::Pair, "send" | "recv", Some(peer)) => Some(peer),
            // Whom it waits for in it is not known.
            (Coupling::Pair, ..) => return self.interrupt(),
            _ => return,
        };
        let now = Before { seq: seen.seq, entry_ns: seen.entry_ns, peer };
        let before = self.lanes.insert((seen.comm_hash, Arc::clone(&seen.func)), now);
        if self.broken || !self.told(number.wrapping_add(1)) {
            return;
        }
        if let Some(before) = before.filter(|before| before.seq.wrapping_add(1) != seen.seq) {
            // One lost record between two calls like it is filled in.
            self.broken |= before.seq.wrapping_add(2) != seen.seq || before.entry_ns < from_ns || before.peer != peer;
            self.sum(seen, peer, (before.entry_ns / 2 + seen.entry_ns / 2).saturating_sub(from_ns));
        }
        self.sum(seen, peer, seen.entry_ns.saturating_sub(from_ns));
    }

    fn sum(&mut self, seen: &Observation, peer: Option<i32>, after_ns: i64) {
        let kind = |first| (seen.comm_hash, Arc::clone(&seen.func), peer, first);
        let first = !self.kinds.contains_key(&kind(true));
        let of = self.kinds.entry(kind(first)).or_default();
        of.0 += 1;
        of.1 = of.1.saturating_add(after_ns);
        self.broken |= self.kinds.len() > MOST_KINDS;
    }

    /// A call that cannot be placed: the step is not whole.
    pub(super) fn interrupt(&mut self) {
        self.broken = true;
    }

    /// Whether the step of this number is told.
    fn told(&self, number: u64) -> bool {
        number & ((1 << self.level) - 1) == 0
    }

    fn end(&mut self, seen: &Observation, outside_ns: i64) {
        let kinds = std::mem::take(&mut self.kinds);
        let broken = std::mem::take(&mut self.broken);
        let Some((number, from_ns, before_ns)) = self.last.replace((seen.seq, seen.entry_ns, outside_ns)) else {
            return;
        };
        let length_ns = seen.entry_ns.saturating_sub(from_ns);
        if number.checked_add(1) != Some(seen.seq) {
            return;
        }
        if !broken && self.told(seen.seq) && !kinds.is_empty() && self.done.len() < MOST_STEPS {
            let before = |(calls, sum): (u32, i64)| (calls, length_ns.saturating_sub(sum / i64::from(calls.max(1))));
            self.done.push(Step {
                number: seen.seq,
                level: self.level,
                end_ns: seen.entry_ns,
                length_ns,
                outside_ns: outside_ns.saturating_sub(before_ns),
                kinds: kinds.into_iter().map(|(kind, sums)| (kind, before(sums))).collect(),
            });
        }
        let mean = if self.length_ns > 0.0 { self.length_ns } else { length_ns as f64 };
        self.length_ns = mean + LATEST * (length_ns as f64 - mean);
        let windows = |level: u8| self.length_ns * f64::from(1u32 << level) / WINDOW_NS as f64;
        let fits = windows(self.level) >= SHORTEST && (self.level == 0 || windows(self.level) < LONGEST);
        if !fits {
            self.level = (0..MAX_LEVEL).find(|level| windows(*level) >= 1.0).unwrap_or(MAX_LEVEL);
        }
    }

    /// Whether there is a step to be told.
    pub(super) fn ready(&self) -> bool {
        !self.done.is_empty()
    }

    /// The steps to be told, once. `lanes` are those of the process in the digest of the window that begins at `base_us`, with their places.
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
                let calls = step.kinds.into_iter().map(|((comm, func, peer, first), (calls, before_ns))| {
                    Some(StepCalls { lane: place(comm, &func)?, peer, first, calls, before_us: micros(before_ns) })
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
