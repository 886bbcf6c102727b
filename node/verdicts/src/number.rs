//! Numbers calls whose communicator's start was not seen (the recorder came late): by when they
//! end.
//!
//! In a collective that makes all ranks meet, the ranks leave together. So with aligned clocks a
//! call belongs to the collective that ends at the same time on the other ranks. Only what
//! coincides closely is numbered; calls that only enqueue end with the synchronise call after them;
//! where that was not seen they end when they like, and a late rank's calls then coincide with
//! nothing: they stay out.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use observed::{Coupling, Input, Observation, Process, Rules};
use stats::median;

/// What is counted together: a function of a communicator.
type Lane = (u64, Arc<str>);
/// When calls ended, with their numbers.
type Ends = Vec<(i64, u64)>;

/// What came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Numbered {
    /// Calls that were given a number.
    pub(crate) by_time: u64,
    /// Calls that could not be.
    pub(crate) left_out: u64,
}

/// Give the unnumbered calls numbers, in the input's own list of observations. What cannot be
/// numbered stays where it is.
pub(crate) fn number(input: &mut Input) -> Numbered {
    let mut result = Numbered::default();
    let mut lanes: BTreeMap<Lane, BTreeMap<Process, Vec<Observation>>> = BTreeMap::new();
    let mut left_out: Vec<Observation> = Vec::new();
    let mut others: BTreeMap<(Process, Lane), Vec<Observation>> = BTreeMap::new();
    for seen in std::mem::take(&mut input.unnumbered) {
        let process = (Arc::clone(&seen.node), seen.pid);
        let lane = (seen.comm_hash, Arc::clone(&seen.func));
        if Coupling::of(&seen.func) != Coupling::All {
            others.entry((process, lane)).or_default().push(seen);
        } else if input.clocks.contains_key(&*seen.node) {
            lanes.entry(lane).or_default().entry(process).or_default().push(seen);
        } else {
            left_out.push(seen);
        }
    }
    // These are not matched across ranks: any number will do that leaves no gap.
    for mut calls in others.into_values() {
        calls.sort_by_key(|seen| seen.entry_ns);
        input.observations.extend((0..).zip(calls).map(|(seq, seen)| Observation { seq, ..seen }));
    }
    let syncs = sync_ends(input);
    // Where some rank's start was seen, its numbers are the reference.
    // In order of the processes: of equals it is always the same one that counts.
    let mut known: HashMap<Lane, BTreeMap<Process, Vec<&Observation>>> = HashMap::new();
    for seen in &input.observations {
        let lane = (seen.comm_hash, Arc::clone(&seen.func));
        if lanes.contains_key(&lane) && input.clocks.contains_key(&*seen.node) {
            let lane = known.entry(lane).or_default();
            lane.entry((Arc::clone(&seen.node), seen.pid)).or_default().push(seen);
        }
    }
    let mut placed = Vec::new();
    for (lane, mut ranks) in lanes {
        let numbered = known.remove(&lane).and_then(|r| r.into_values().max_by_key(Vec::len));
        let reference = match numbered {
            Some(mut calls) => {
                calls.sort_by_key(|seen| seen.entry_ns);
                Reference::of(&calls.into_iter().cloned().collect::<Vec<_>>(), &syncs, input)
            }
            None => {
                // The rank with most calls counts.
                let longest = ranks.iter().max_by_key(|(_, calls)| calls.len()).map(|(process, _)| process.clone());
                let Some(mut calls) = longest.and_then(|process| ranks.remove(&process)) else { continue };
                calls.sort_by_key(|seen| seen.entry_ns);
                (0..).zip(&mut calls).for_each(|(seq, seen)| seen.seq = seq);
                result.by_time += calls.len() as u64;
                let reference = Reference::of(&calls, &syncs, input);
                placed.extend(calls);
                reference
            }
        };
        for mut calls in ranks.into_values() {
            calls.sort_by_key(|seen| seen.entry_ns);
            let by_ends = reference.as_ref().and_then(|reference| reference.align(&calls, &syncs, input));
            match by_ends.or_else(|| reference.as_ref().and_then(|reference| reference.overlap(&calls, input))) {
                Some(numbers) => {
                    for (mut seen, seq) in calls.into_iter().zip(numbers) {
                        if let Some(seq) = seq {
                            seen.seq = seq;
                            result.by_time += 1;
                            placed.push(seen);
                        } else {
                            left_out.push(seen);
                        }
                    }
                }
                None => left_out.extend(calls),
            }
        }
    }
    input.observations.append(&mut placed);
    result.left_out = left_out.len() as u64;
    input.unnumbered = left_out;
    result
}

/// Synchronise calls by process: start and end on the node's own clock, in order.
type Syncs = HashMap<Process, Vec<(i64, i64)>>;

fn sync_ends(input: &Input) -> Syncs {
    let mut syncs = Syncs::new();
    for sync in &input.syncs {
        let end = sync.start_ns.saturating_add(sync.duration_ns.max(0));
        syncs.entry((Arc::clone(&sync.node), sync.pid)).or_default().push((sync.start_ns, end));
    }
    syncs.values_mut().for_each(|list| list.sort_unstable());
    syncs
}

/// When each call ended, on the coordinator's clock, and how many calls of the lane share that end
/// after it: a call that enqueues ends with the synchronise call after it, where that was seen.
/// Calls are in order of entry.
fn ends(calls: &[Observation], syncs: &Syncs, input: &Input) -> Vec<(i64, usize)> {
    let Some(first) = calls.first() else { return Vec::new() };
    let none = Vec::new();
    let list = syncs.get(&(Arc::clone(&first.node), first.pid)).unwrap_or(&none);
    let mut ends: Vec<(i64, usize)> = calls
        .iter()
        .map(|seen| {
            let returned = seen.entry_ns.saturating_add(seen.duration_ns);
            let sync = list.get(list.partition_point(|(start, _)| *start < seen.entry_ns)).filter(|_| seen.tier == 0);
            let end = sync.map_or(returned, |(_, end)| *end);
            (input.clocks.get(&*seen.node).map_or(end, |c| c.align(end)), 0)
        })
        .collect();
    for i in (1..ends.len()).rev() {
        if ends[i - 1].0 == ends[i].0 {
            ends[i - 1].1 = ends[i].1 + 1;
        }
    }
    ends
}

/// From when to when a call lasted, on the coordinator's clock.
fn span_of(seen: &Observation, input: &Input) -> (i64, i64) {
    let align = |ns: i64| input.clocks.get(&*seen.node).map_or(ns, |c| c.align(ns));
    (align(seen.entry_ns), align(seen.entry_ns.saturating_add(seen.duration_ns.max(0))))
}

/// The calls of a rank by which the others' are numbered.
struct Reference {
    node: Arc<str>,
    /// By how many calls share the end after it: ends with numbers, in order.
    ends: BTreeMap<usize, Ends>,
    /// Beginning, end and number of each call, in order; empty where calls only enqueue.
    calls: Vec<(i64, i64, u64)>,
    period_ns: f64,
}

impl Reference {
    fn of(calls: &[Observation], syncs: &Syncs, input: &Input) -> Option<Self> {
        let node = Arc::clone(&calls.first()?.node);
        let mut by_place: BTreeMap<usize, Ends> = BTreeMap::new();
        for (seen, (end, place)) in calls.iter().zip(ends(calls, syncs, input)) {
            by_place.entry(place).or_default().push((end, seen.seq));
        }
        by_place.values_mut().for_each(|ends| ends.sort_unstable());
        let period_ns = median(by_place.get(&0)?.windows(2).map(|w| (w[1].0 - w[0].0) as f64))?;
        let waits = calls.iter().all(|seen| seen.tier > 0);
        let of_calls = calls.iter().filter(|_| waits).map(|seen| {
            let (start, end) = span_of(seen, input);
            (start, end, seen.seq)
        });
        Some(Self { node, ends: by_place, calls: of_calls.collect(), period_ns })
    }

    /// What the clocks of this rank's host and another may be apart.
    fn bound_ns(&self, node: &str, input: &Input) -> i64 {
        let bound = |node: &str| input.clocks.get(node).map_or(0, |c| c.bound_within(input.since_ns, input.until_ns));
        if node == &*self.node { 0 } else { bound(node).saturating_add(bound(&self.node)) }
    }

    /// The numbers of one rank's calls where it made the same calls as this one, one after the other:
    /// in a call in which all meet nobody leaves before all have entered, so the calls of one
    /// collective overlap, however late a rank gets its CPU back to leave. None where a record is
    /// lost, where calls overlap likewise when they are counted differently, or where the clocks may
    /// be apart by as much as calls are.
    fn overlap(&self, calls: &[Observation], input: &Input) -> Option<Vec<Option<u64>>> {
        let node = &calls.first()?.node;
        let bound_ns = self.bound_ns(node, input);
        if calls.iter().any(|seen| seen.tier == 0) || 4.0 * bound_ns as f64 > self.period_ns {
            return None;
        }
        let overlaps = |seen: &Observation, of: &(i64, i64, u64)| {
            let (start, end) = span_of(seen, input);
            of.0.saturating_sub(bound_ns) <= end && start <= of.1.saturating_add(bound_ns)
        };
        // The first that overlaps with several of these says by how many calls they may be apart.
        let (first_at, first) =
            calls.iter().enumerate().find(|(_, seen)| self.calls.iter().any(|of| overlaps(seen, of)))?;
        let of_first = self.calls.iter().enumerate().filter(|(_, of)| overlaps(first, of)).map(|(at, _)| at);
        let all_overlap = |at: &usize| {
            let mut pairs = calls.iter().skip(first_at).zip(self.calls.iter().skip(*at));
            pairs.all(|(seen, of)| overlaps(seen, of))
        };
        let mut fitting = of_first.filter(all_overlap);
        let (at, None) = (fitting.next()?, fitting.next()) else { return None };
        // Where a record is lost, they are counted so on one side of it alone: a stretch in which they
        // overlap likewise when they are counted by one more or less may be that side.
        let beside = [at.checked_sub(1), Some(at + 1)];
        let doubtful = beside.into_iter().flatten().any(|at| {
            let pairs = calls.iter().skip(first_at).zip(self.calls.iter().skip(at));
            let mut stretch = 0;
            pairs.into_iter().any(|(seen, of)| {
                stretch = if overlaps(seen, of) { stretch + 1 } else { 0 };
                stretch >= Rules::FEW_COLLECTIVES
            })
        });
        if doubtful {
            return None;
        }
        let numbers = calls.iter().enumerate().map(|(place, _)| {
            let of = (place + at).checked_sub(first_at)?;
            self.calls.get(of).map(|(.., number)| *number)
        });
        let numbers: Vec<Option<u64>> = numbers.collect();
        let met = numbers.iter().flatten().count();
        (met >= Rules::FEW_COLLECTIVES).then_some(numbers)
    }

    /// The numbers of one rank's calls; none when they do not coincide with these.
    fn align(&self, calls: &[Observation], syncs: &Syncs, input: &Input) -> Option<Vec<Option<u64>>> {
        let node = &calls.first()?.node;
        let bound_ns = self.bound_ns(node, input);
        let close = (Rules::ENDS_CLOSE * self.period_ns).max(bound_ns as f64);
        // Where collectives follow each other as closely as the clocks are uncertain, nothing can
        // be distinguished.
        if close * 4.0 > self.period_ns {
            return None;
        }
        let all = self.ends.get(&0)?;
        let (first, last) = (all.first()?.0, all.last()?.0);
        let (mut inside, mut met) = (0usize, 0usize);
        let numbers = ends(calls, syncs, input)
            .into_iter()
            .map(|(at, place)| {
                let reference = self.ends.get(&place).map_or(&[][..], Vec::as_slice);
                let after = reference.partition_point(|(end, _)| *end < at);
                let nearest = [after.checked_sub(1), Some(after)]
                    .into_iter()
                    .flatten()
                    .filter_map(|i| reference.get(i))
                    .min_by_key(|(end, _)| (end - at).abs());
                let number = nearest.filter(|(end, _)| (end - at).abs() as f64 <= close).map(|(_, seq)| *seq);
                if (first..=last).contains(&at) {
                    inside += 1;
                    met += usize::from(number.is_some());
                }
                number
            })
            .collect();
        (inside > 0 && met as f64 >= Rules::CALLS_COINCIDE * inside as f64).then_some(numbers)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use observed::ClockOffset;

    /// Two ranks of one host that meet every so often; the second enters late, and either may get
    /// its CPU back late to leave. Lost records are left out.
    fn input(steps: &[(i64, [i64; 2], [bool; 2])]) -> Input {
        let mut input = Input { until_ns: i64::MAX, ..Input::default() };
        input.clocks.insert("n".to_owned(), ClockOffset::default());
        let mut at = [1_000_000; 2];
        for (step, (late_ns, leaves_ns, lost)) in steps.iter().enumerate() {
            let entries = [at[0], at[1] + late_ns];
            let met = entries[0].max(entries[1]) + 1_000;
            for rank in 0..2 {
                let exit = met + leaves_ns[rank];
                at[rank] = exit + 50_000;
                if !lost[rank] {
                    input.unnumbered.push(Observation {
                        node: "n".into(),
                        pid: rank as i64,
                        rank: rank as i32,
                        comm_hash: 7,
                        func: "all_reduce".into(),
                        entry_ns: entries[rank],
                        duration_ns: exit - entries[rank],
                        tier: 1,
                        seq: step as u64, // to be found
                        ..Observation::default()
                    });
                }
            }
        }
        input
    }

    proptest! {
        /// However late ranks leave, each two calls of one step meet, or none do.
        #[test]
        fn calls_that_overlap_one_after_the_other_are_of_one_step(
            steps in prop::collection::vec(
                (
                    5_000i64..200_000,
                    prop::array::uniform2(prop_oneof![8 => 0i64..20_000, 1 => 0i64..300_000]),
                    Just([false; 2]),
                ),
                20..200,
            )
        ) {
            let mut found = input(&steps);
            let truth: BTreeMap<(i64, i64), u64> =
                found.unnumbered.iter().map(|seen| ((seen.pid, seen.entry_ns), seen.seq)).collect();
            let numbered = number(&mut found);
            let mut steps_of: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for seen in &found.observations {
                steps_of.entry(seen.seq).or_default().push(truth[&(seen.pid, seen.entry_ns)]);
            }
            prop_assert!(steps_of.values().all(|of| of.iter().all(|step| *step == of[0])), "{steps_of:?}");
            let both = steps_of.values().filter(|of| of.len() == 2).count();
            prop_assert!(both == steps.len() || both * 10 >= steps.len() * 9, "{both} of {}, {numbered:?}", steps.len());
        }
    }

    #[test]
    fn where_a_record_is_lost_nothing_is_guessed() {
        let lost = |step: i64| (20_000, [step * 977 % 60_000 + 5_000, 0], [step == 20, false]);
        let mut found = input(&(0..50).map(lost).collect::<Vec<_>>());
        assert_eq!(number(&mut found).left_out, 49);
    }

    #[test]
    fn calls_that_only_enqueue_are_not_matched_so() {
        let steps: Vec<_> = (0..50).map(|step| (20_000, [step * 977 % 90_000, 0], [false; 2])).collect();
        let mut found = input(&steps);
        found.unnumbered.iter_mut().for_each(|seen| seen.tier = 0);
        let numbered = number(&mut found);
        assert_eq!(numbered.left_out, 50, "{numbered:?}");
    }
}
