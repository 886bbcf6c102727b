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
            match reference.as_ref().and_then(|reference| reference.align(&calls, &syncs, input)) {
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

/// The calls of a rank by which the others' are numbered.
struct Reference {
    node: Arc<str>,
    /// By how many calls share the end after it: ends with numbers, in order.
    ends: BTreeMap<usize, Ends>,
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
        Some(Self { node, ends: by_place, period_ns })
    }

    /// The numbers of one rank's calls; none when they do not coincide with these.
    fn align(&self, calls: &[Observation], syncs: &Syncs, input: &Input) -> Option<Vec<Option<u64>>> {
        let node = &calls.first()?.node;
        let bound = |node: &str| input.clocks.get(node).map_or(0, |c| c.bound_within(input.since_ns, input.until_ns));
        let bound_ns = if *node == self.node { 0 } else { bound(node).saturating_add(bound(&self.node)) };
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
