//! What the steps of a process have in common: which calls it makes, and in which order. By this a
//! step that lacks a record is made whole.
//!
//! A call is sought at its place in its lane (process, communicator, function): lanes count their
//! calls, and most steps make the same number of each. A call that was not recorded is put between
//! those before and after it, as far from them as it is in other steps. Where two in a row are
//! missing, or a step does not fit, the lanes with gaps are said to be unknown: what the others
//! tell still holds.

use std::collections::BTreeSet;

/// Steps in a row that do not fit before another pattern is sought.
const MOST_ODD: u32 = 2;
/// Weight of the latest step in where a call lies between its neighbours.
const LATEST: f64 = 0.125;

/// A call of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Called {
    /// Which lane, by a number that the caller gives it.
    pub(super) lane: usize,
    /// The rank that is sent to or received from.
    pub(super) peer: Option<i32>,
    pub(super) seq: u64,
    /// When it was entered, from the begin of the step on.
    pub(super) after_ns: i64,
}

/// A step as far as it is known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Made {
    /// Its calls in order, those of lanes that are not known left out.
    pub(super) calls: Vec<Called>,
    /// Lanes of which records are missing that could not be filled in.
    pub(super) unknown: BTreeSet<usize>,
}

/// The pattern of a process's steps; empty before it is found.
#[derive(Debug, Default)]
pub(super) struct Pattern {
    usual: Vec<Usual>,
    /// By lane.
    lanes: Vec<Lane>,
    odd: u32,
    /// The step before, where it may be the pattern.
    candidate: Option<Vec<Called>>,
}

/// A call of the pattern.
#[derive(Debug, Clone, Copy)]
struct Usual {
    lane: usize,
    peer: Option<i32>,
    /// Where it is entered between the call before and the one after it.
    share: f64,
}

#[derive(Debug, Default)]
struct Lane {
    /// Number after the last call that was seen.
    next: Option<u64>,
    /// Number of the first call in the step under way, as the pattern says.
    base: u64,
    /// Places in the pattern.
    places: Vec<usize>,
}

impl Pattern {
    /// Steps were passed over: their ends were not seen, or they cannot be told.
    pub(super) fn skip(&mut self, steps: u64) {
        self.candidate = None;
        for lane in &mut self.lanes {
            lane.base = lane.base.wrapping_add(steps.wrapping_mul(lane.places.len() as u64));
            lane.next = None;
        }
    }

    /// Take a step of this length, with the calls that were recorded; gives what is known of it.
    pub(super) fn step(&mut self, calls: Vec<Called>, length_ns: i64) -> Made {
        let lanes = calls.iter().map(|call| call.lane + 1).max().unwrap_or(0);
        if self.lanes.len() < lanes {
            self.lanes.resize_with(lanes, Lane::default);
        }
        self.adopt(&calls);
        if let Some(made) = self.fit(&calls, length_ns) {
            self.odd = 0;
            self.ended(&calls);
            return made;
        }
        self.odd += 1;
        if self.odd >= MOST_ODD {
            self.usual.clear();
            self.lanes.iter_mut().for_each(|lane| lane.places.clear());
        }
        let (made, gaps) = self.alone(&calls);
        self.ended(&calls);
        for lane in &mut self.lanes {
            lane.base = lane.next.unwrap_or(lane.base);
        }
        self.candidate = (self.usual.is_empty() && !gaps).then_some(calls);
        made
    }

    fn ended(&mut self, calls: &[Called]) {
        for call in calls {
            self.lanes[call.lane].next = call.seq.checked_add(1);
        }
    }

    /// The step before is the pattern if nothing of it was lost: the next calls of all its lanes
    /// follow.
    fn adopt(&mut self, calls: &[Called]) {
        let Some(candidate) = self.candidate.take() else { return };
        let first = |lane: usize| calls.iter().find(|call| call.lane == lane).map(|call| call.seq);
        let follows = |lane: &usize| self.lanes[*lane].next.is_some() && self.lanes[*lane].next == first(*lane);
        let of: BTreeSet<usize> = candidate.iter().map(|call| call.lane).collect();
        if of.is_empty() || !of.iter().all(follows) {
            return;
        }
        for (place, call) in candidate.iter().enumerate() {
            let from = place.checked_sub(1).map_or(0, |before| candidate[before].after_ns);
            // The last lies in the middle until it was seen.
            let until = candidate.get(place + 1).map_or(from, |after| after.after_ns);
            let share = share(from, call.after_ns, until).unwrap_or(0.5);
            self.usual.push(Usual { lane: call.lane, peer: call.peer, share });
            let lane = &mut self.lanes[call.lane];
            lane.places.push(place);
            lane.base = lane.next.unwrap_or(0);
        }
        self.odd = 0;
    }

    /// The step by the pattern; none where it does not fit.
    fn fit(&mut self, calls: &[Called], length_ns: i64) -> Option<Made> {
        if self.usual.is_empty() {
            return None;
        }
        let mut seen: Vec<Option<i64>> = vec![None; self.usual.len()];
        for call in calls {
            let lane = &self.lanes[call.lane];
            let ordinal = call.seq.checked_sub(lane.base).and_then(|ordinal| usize::try_from(ordinal).ok())?;
            let place = *lane.places.get(ordinal)?;
            if self.usual[place].peer != call.peer || seen[place].replace(call.after_ns).is_some() {
                return None;
            }
        }
        let mut made = Made::default();
        for place in 0..seen.len() {
            let before = place.checked_sub(1).map_or(Some(0), |before| seen[before]);
            let after = if place + 1 < seen.len() { seen[place + 1] } else { Some(length_ns) };
            let usual = &mut self.usual[place];
            let after_ns = match (seen[place], before.zip(after)) {
                (Some(at), between) => {
                    if let Some(now) = between.and_then(|(from, until)| share(from, at, until)) {
                        usual.share += LATEST * (now - usual.share);
                    }
                    Some(at)
                }
                (None, Some((from, until))) => {
                    Some(from.saturating_add((until.saturating_sub(from) as f64 * usual.share) as i64))
                }
                (None, None) => None,
            };
            let lane = &self.lanes[usual.lane];
            match after_ns {
                Some(after_ns) => {
                    let ordinal = lane.places.binary_search(&place).unwrap_or(0) as u64;
                    let seq = lane.base.saturating_add(ordinal);
                    made.calls.push(Called { lane: usual.lane, peer: usual.peer, seq, after_ns });
                }
                None => {
                    made.unknown.insert(usual.lane);
                }
            }
        }
        made.calls.retain(|call| !made.unknown.contains(&call.lane));
        for lane in &mut self.lanes {
            lane.base = lane.base.saturating_add(lane.places.len() as u64);
        }
        Some(made)
    }

    /// The step without a pattern: one lost record between two calls like it is filled in. And
    /// whether anything is missing in it.
    fn alone(&self, calls: &[Called]) -> (Made, bool) {
        let (mut made, mut gaps) = (Made::default(), false);
        let mut last: Vec<Option<Called>> = vec![None; self.lanes.len()];
        for call in calls {
            let before = last[call.lane].replace(*call);
            let expected = before.map_or(self.lanes[call.lane].next, |before| before.seq.checked_add(1));
            if expected.is_some_and(|expected| expected != call.seq) {
                gaps = true;
                match before.filter(|before| before.seq.checked_add(2) == Some(call.seq) && before.peer == call.peer) {
                    Some(before) => {
                        let after_ns = before.after_ns.midpoint(call.after_ns);
                        made.calls.push(Called { seq: before.seq + 1, after_ns, ..*call });
                    }
                    None => {
                        made.unknown.insert(call.lane);
                    }
                }
            }
            made.calls.push(*call);
        }
        made.calls.retain(|call| !made.unknown.contains(&call.lane));
        (made, gaps)
    }
}

/// Where a time lies between two others.
fn share(from_ns: i64, at_ns: i64, until_ns: i64) -> Option<f64> {
    let length = until_ns.saturating_sub(from_ns);
    (length > 0).then(|| (at_ns.saturating_sub(from_ns) as f64 / length as f64).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Step `step` of a process: twice a receive (lane 0), a meeting (lane 1), and a send (lane 2),
    /// then a meeting of its own (lane 3).
    fn step(step: u64) -> Vec<Called> {
        let call = |lane, peer, seq, after_ns| Called { lane, peer, seq, after_ns };
        let part = |i: u64| {
            let (seq, at) = (step * 2 + i, 1_000 * i.cast_signed());
            [call(0, Some(1), seq, at + 10), call(1, None, seq, at + 800), call(2, Some(2), seq, at + 810)]
        };
        [part(0).to_vec(), part(1).to_vec(), vec![call(3, None, step, 2_000)]].concat()
    }

    fn without(mut calls: Vec<Called>, lost: &[usize]) -> Vec<Called> {
        let mut place = 0..;
        calls.retain(|_| !lost.contains(&place.next().unwrap_or(0)));
        calls
    }

    #[test]
    fn any_one_lost_record_is_put_where_it_is_in_other_steps() {
        let mut pattern = Pattern::default();
        for number in 0..20 {
            assert_eq!(pattern.step(step(number), 2_100).calls, step(number));
        }
        for (number, lost) in (20..).zip(0..7) {
            let made = pattern.step(without(step(number), &[lost]), 2_100);
            assert!(made.unknown.is_empty(), "{lost}: {made:?}");
            for (a, b) in made.calls.iter().zip(step(number)) {
                assert!(
                    (a.lane, a.peer, a.seq) == (b.lane, b.peer, b.seq) && a.after_ns.abs_diff(b.after_ns) < 20,
                    "{a:?} {b:?}"
                );
            }
        }
        // The ends of three steps were not seen.
        pattern.skip(3);
        assert_eq!(pattern.step(step(30), 2_100).calls, step(30));
    }

    #[test]
    fn of_two_in_a_row_the_lanes_are_unknown_and_the_others_still_told() {
        let mut pattern = Pattern::default();
        (0..4).for_each(|number| drop(pattern.step(step(number), 2_100)));
        let made = pattern.step(without(step(4), &[1, 2]), 2_100);
        assert_eq!(made.unknown, BTreeSet::from([1, 2]));
        assert_eq!(made.calls, without(step(4), &[1, 2, 4, 5]));
        assert_eq!(pattern.step(step(5), 2_100).calls, step(5));
    }

    #[test]
    fn a_step_of_which_the_end_was_lost_is_no_pattern_for_long_and_another_way_is_learned() {
        let mut pattern = Pattern::default();
        // The last call of the first step is missing, and nothing shows it yet.
        pattern.step(without(step(0), &[6]), 2_100);
        for number in 1..5 {
            assert_eq!(pattern.step(step(number), 2_100).calls, step(number));
        }
        // From now on it receives from another.
        let other = |number| {
            let mut calls = step(number);
            calls.iter_mut().filter(|call| call.lane == 0).for_each(|call| call.peer = Some(9));
            calls
        };
        for number in 5..9 {
            assert_eq!(pattern.step(other(number), 2_100).calls, other(number));
        }
        let made = pattern.step(without(other(9), &[3]), 2_100);
        assert_eq!((made.unknown.len(), made.calls[3].peer), (0, Some(9)), "{made:?}");
    }
}
