//! Clocks, refined from the ends of collectives: nobody leaves a call in which all ranks meet
//! before everybody has entered.
//!
//! Where that is sure (tier 1 and above: the call returns when the ranks have met), each collective
//! bounds the clocks of its hosts against each other. With the offsets that were measured, these
//! are difference constraints; an interval for each clock is narrowed by them until nothing changes
//! (as in Cormen et al., "Introduction to Algorithms", on systems of difference constraints).
//! Nothing is estimated: the true offset stays within.

use std::collections::{BTreeMap, HashMap};

use observed::{ClockOffset, Coupling, Input, Rules};

/// Rounds of narrowing. Each is sound by itself; chains of more hosts than this are rare.
const ROUNDS: usize = 16;

/// The calls of one host in a collective, on aligned clocks: the last entry, the first end, and how
/// far its clock may have drifted since it was measured.
#[derive(Clone, Copy)]
struct There {
    host: usize,
    entered_ns: i64,
    ended_ns: i64,
    drifted_ns: i64,
}

impl There {
    /// Joins those of a collective, which are in order of their hosts.
    fn join(self, hosts: &mut Vec<Self>) {
        // Digests come in that order.
        let behind = hosts.last().is_none_or(|last| last.host < self.host);
        let at = if behind { hosts.len() } else { hosts.partition_point(|there| there.host < self.host) };
        match hosts.get_mut(at).filter(|there| there.host == self.host) {
            Some(there) => {
                there.entered_ns = there.entered_ns.max(self.entered_ns);
                there.ended_ns = there.ended_ns.min(self.ended_ns);
                there.drifted_ns = there.drifted_ns.max(self.drifted_ns);
            }
            None => hosts.insert(at, self),
        }
    }
}

/// [`refined`], of an input that has single calls. What has runs alone is refined only where these
/// contradict its clocks: of 8,000 ranks it takes half as long as all of the analysis.
pub(crate) fn by_calls(input: &Input) -> Option<BTreeMap<String, ClockOffset>> {
    if input.observations.is_empty() { None } else { refined(input) }
}

/// The clocks of an input with the bounds that its collectives leave, where they change any; none
/// where they do not. Where they contradict what was measured, the bounds that were stated are not
/// true, or calls are numbered differently: wider ones are tried, up to so many times as wide, and
/// where these contradict them, too, others say so.
pub(crate) fn refined(input: &Input) -> Option<BTreeMap<String, ClockOffset>> {
    let wider = (0..=Rules::CLOCKS_WIDER).map(|twice| {
        let wider = |clock: &ClockOffset| ClockOffset {
            bound_ns: clock.bound_ns.saturating_mul(1 << twice),
            drift_bound_ppb: clock.drift_bound_ppb.saturating_mul(1 << twice),
            ..*clock
        };
        input.clocks.values().map(wider).collect::<Vec<_>>()
    });
    let within = |clocks: Vec<ClockOffset>| Some((narrowed(input, &clocks)?, clocks));
    let (within, clocks) = wider.filter(|clocks| clocks.len() > 1).find_map(within)?;
    let refine = |(clock, [low, high]): (&ClockOffset, [i64; 2])| {
        // An error e of the aligned time is an offset that is e less.
        let offset_ns = clock.offset_ns.saturating_sub(low.midpoint(high));
        ClockOffset { offset_ns, bound_ns: (high - low + 1) / 2, ..*clock }
    };
    let all: BTreeMap<String, ClockOffset> =
        input.clocks.keys().cloned().zip(clocks.iter().zip(within).map(refine)).collect();
    (all != input.clocks).then_some(all)
}

/// Between what the error of each clock lies; none where that contradicts itself.
fn narrowed(input: &Input, clocks: &[ClockOffset]) -> Option<Vec<[i64; 2]>> {
    // In order: where rounds end before all is narrowed, two judges of the same calls still say the same.
    let mut least: Vec<((usize, usize), i64)> = constraints(input, clocks).into_iter().collect();
    least.sort_unstable();
    let mut within: Vec<[i64; 2]> = clocks.iter().map(|c| [c.bound_ns.saturating_neg(), c.bound_ns]).collect();
    for _ in 0..ROUNDS {
        let mut narrowed = false;
        for &((a, b), most_ns) in &least {
            // The error of b's clock is at most that of a's and `most_ns`.
            let (high, low) = (within[a][1].saturating_add(most_ns), within[b][0].saturating_sub(most_ns));
            narrowed |= high < within[b][1] || low > within[a][0];
            within[b][1] = within[b][1].min(high);
            within[a][0] = within[a][0].max(low);
        }
        if within.iter().any(|[low, high]| low > high) {
            return None;
        }
        if !narrowed {
            break;
        }
    }
    Some(within)
}

/// How far aligned times of any two hosts may be wrong against each other; none where a clock is not
/// known.
pub(crate) fn widest_bound_ns(clocks: &BTreeMap<&str, Option<ClockOffset>>) -> Option<i64> {
    let bounds: Option<Vec<i64>> = clocks.values().map(|clock| clock.map(|clock| clock.bound_ns)).collect();
    if clocks.len() < 2 {
        return Some(0);
    }
    let mut bounds = bounds?;
    bounds.sort_unstable_by(|a, b| b.cmp(a));
    Some(bounds.iter().take(2).sum())
}

/// For pairs of hosts (a, b), the most by which the error of b's clock may exceed that of a's: true
/// time is aligned time and error, and a left no collective before b had entered it.
fn constraints(input: &Input, clocks: &[ClockOffset]) -> HashMap<(usize, usize), i64> {
    let place: HashMap<&str, usize> =
        input.clocks.keys().enumerate().map(|(place, name)| (name.as_str(), place)).collect();
    let there = |node: &str, entry_ns: i64, duration_ns: i64| {
        let host = *place.get(node)?;
        let clock = &clocks[host];
        let entered_ns = clock.align(entry_ns);
        let ended_ns = clock.align(entry_ns.saturating_add(duration_ns));
        let drifted_ns = clock.bound_within(entered_ns, ended_ns).saturating_sub(clock.bound_ns);
        Some(There { host, entered_ns, ended_ns, drifted_ns })
    };
    let waits = |tier: u8, func: &str| tier > 0 && Coupling::of(func) == Coupling::All;
    // By function of a communicator and number.
    let mut met: HashMap<(u64, &str), HashMap<u64, Vec<There>>> = HashMap::new();
    for seen in input.observations.iter().filter(|seen| waits(seen.tier, &seen.func)) {
        let Some(there) = there(&seen.node, seen.entry_ns, seen.duration_ns) else { continue };
        there.join(met.entry((seen.comm_hash, &seen.func)).or_default().entry(seen.seq).or_default());
    }
    // Of means over the same calls it holds as well.
    for lane in input.sampled.iter().filter(|lane| waits(lane.tier, &lane.func)) {
        let met = met.entry((lane.comm_hash, &lane.func)).or_default();
        for run in &lane.runs {
            let Some(there) = there(&lane.node, run.entry_ns, run.duration_ns) else { break };
            there.join(met.entry(run.seq).or_default());
        }
    }
    let mut least: HashMap<(usize, usize), i64> = HashMap::new();
    for hosts in met.values().flat_map(HashMap::values).filter(|hosts| hosts.len() > 1) {
        let mut take = |a: &There, b: &There| {
            let slack_ns = a.drifted_ns.saturating_add(b.drifted_ns);
            let most_ns = a.ended_ns.saturating_sub(b.entered_ns).saturating_add(slack_ns);
            let known = least.entry((a.host, b.host)).or_insert(most_ns);
            *known = most_ns.min(*known);
        };
        // Of all pairs those say most that have the last entry, or the first end.
        let (last, first) = (two(hosts, |there| -there.entered_ns), two(hosts, |there| there.ended_ns));
        for there in hosts {
            last.iter().filter(|b| b.host != there.host).for_each(|b| take(there, b));
            first.iter().filter(|a| a.host != there.host).for_each(|a| take(a, there));
        }
    }
    least
}

/// The two of least key, in order.
fn two(hosts: &[There], key: impl Fn(&There) -> i64) -> Vec<There> {
    let mut least: Vec<There> = Vec::with_capacity(3);
    for there in hosts {
        let at = least.partition_point(|known| key(known) <= key(there));
        least.insert(at, *there);
        least.truncate(2);
    }
    least
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::sync::Arc;

    use super::*;
    use observed::Observation;
    use observed::{Run, Sampled};

    const US: i64 = 1_000;

    /// Hosts with clocks that are ahead by `truth`, taken for `truth + error`; in each collective
    /// they enter so late and all leave when the last has entered and the transfer is over.
    fn input(truth: &[i64], error: &[i64], bound_ns: i64, entries: &[Vec<i64>], transfer_ns: i64) -> Input {
        let mut input = Input::default();
        for (host, (ahead, error)) in truth.iter().zip(error).enumerate() {
            input.clocks.insert(format!("n{host}"), ClockOffset::steady(ahead + error, bound_ns));
        }
        for (seq, late) in entries.iter().enumerate() {
            let start_ns = 1_000_000_000_000 + seq as i64 * 100_000_000;
            let end_ns = start_ns + late.iter().max().unwrap() + transfer_ns;
            input.observations.extend(late.iter().zip(truth).enumerate().map(|(host, (late, ahead))| {
                let (entry_ns, duration_ns) = (start_ns + late + ahead, end_ns - start_ns - late);
                let call = Observation::test_call(host as i32, 7, "all_reduce", seq as u64, entry_ns, duration_ns);
                Observation { nranks: i32::try_from(truth.len()).ok(), ..call }
            }));
        }
        input
    }

    /// The same by the means of so many calls, as digests hold them.
    fn by_means(mut input: Input, size: usize) -> Input {
        let hosts: Vec<String> = input.clocks.keys().cloned().collect();
        let calls = std::mem::take(&mut input.observations);
        input.sampled = hosts
            .iter()
            .map(|host| {
                let own: Vec<&Observation> = calls.iter().filter(|call| *call.node == **host).collect();
                let first = own[0];
                let mean = |of: &[&Observation], value: fn(&Observation) -> i64| {
                    of.iter().map(|call| value(call)).sum::<i64>() / of.len() as i64
                };
                let run = |of: &[&Observation]| Run {
                    seq: of[0].seq,
                    entry_ns: mean(of, |call| call.entry_ns),
                    duration_ns: mean(of, |call| call.duration_ns),
                    halted_ns: 0,
                    held_ns: 0,
                    compute_ns: None,
                    unsure: None,
                    weight: of.len() as u32,
                    waited: false,
                };
                Sampled {
                    node: Arc::clone(&first.node),
                    pid: first.pid,
                    rank: first.rank,
                    comm_hash: first.comm_hash,
                    func: Arc::clone(&first.func),
                    tier: first.tier,
                    library: Arc::clone(&first.library),
                    runs: own.chunks(size).map(run).collect(),
                }
            })
            .collect();
        input
    }

    proptest! {
        #[test]
        fn the_true_offset_stays_within_the_bound(
            hosts in prop::collection::vec((-50_000 * US..50_000 * US, -1_000 * US..=1_000 * US), 2..6),
            late in prop::collection::vec(prop::collection::vec(0..20_000 * US, 6), 1..40),
            transfer_ns in 0..500 * US,
            means_of in 0usize..5,
        ) {
            let (truth, error): (Vec<i64>, Vec<i64>) = hosts.into_iter().unzip();
            let late: Vec<Vec<i64>> = late.into_iter().map(|late| late[..truth.len()].to_vec()).collect();
            let input = input(&truth, &error, 1_000 * US, &late, transfer_ns);
            let input = if means_of > 0 { by_means(input, means_of) } else { input };
            for (clock, truth) in refined(&input).unwrap_or(input.clocks).values().zip(truth) {
                // Each mean of whole nanoseconds is up to one less.
                prop_assert!((clock.offset_ns - truth).abs() <= clock.bound_ns + 2, "{clock:?} and {truth}");
                prop_assert!(clock.bound_ns <= 1_000 * US);
            }
        }
    }

    #[test]
    fn hosts_that_come_last_in_turns_are_known_up_to_the_transfer() {
        let one_late = |host: usize| (0..3).map(|h| if h == host { 9_000 * US } else { h as i64 * US }).collect();
        let late: Vec<Vec<i64>> = (0..3).map(one_late).collect();
        let mut input = input(&[0, 40_000 * US, -3_000 * US], &[0, 900 * US, -700 * US], 1_000 * US, &late, 30 * US);
        input.clocks.insert("n0".to_owned(), ClockOffset::steady(0, 0));
        let clocks = refined(&input).unwrap();
        for (node, truth) in [("n1", 40_000 * US), ("n2", -3_000 * US)] {
            let clock = clocks[node];
            assert!(clock.bound_ns <= 30 * US && (clock.offset_ns - truth).abs() <= 30 * US, "{node}: {clock:?}");
        }
        // By the mean of one turn of each nobody comes last: the bounds stay.
        let all = by_means(input.clone(), 3);
        assert_eq!(refined(&all).map_or(all.clocks["n1"].bound_ns, |clocks| clocks["n1"].bound_ns) / US, 1_000);
        // Calls that only enqueue return when they like.
        input.observations.iter_mut().for_each(|seen| seen.tier = 0);
        assert_eq!(refined(&input), None);
    }

    #[test]
    fn the_same_calls_refine_clocks_alike_however_long_the_chain_of_hosts() {
        // Neighbours of a hundred meet, each once as the last; only the first one's clock is known well.
        let hosts: usize = 100;
        let mut chain = input(&vec![0; hosts], &vec![0; hosts], 1_000 * US, &[], 0);
        chain.clocks.insert("n0".to_owned(), ClockOffset::steady(0, 0));
        for (pair, last) in (0..hosts - 1).flat_map(|pair| [(pair, 0), (pair, 1)]) {
            let (seq, start_ns) = ((2 * pair + last) as u64, 1_000_000_000_000 + pair as i64 * 100_000_000);
            for host in [pair, pair + 1] {
                let late_ns = if host == pair + last { 9_000 * US } else { 0 };
                let entry_ns = start_ns + last as i64 * 50_000_000 + late_ns;
                let duration_ns = 9_010 * US - late_ns;
                chain.observations.push(Observation::test_call(
                    host as i32,
                    7,
                    "all_reduce",
                    seq,
                    entry_ns,
                    duration_ns,
                ));
            }
        }
        let first = refined(&chain);
        assert!(first.as_ref().is_some_and(|clocks| clocks["n3"].bound_ns < 100 * US), "{first:?}");
        for _ in 0..16 {
            assert_eq!(refined(&chain), first);
        }
    }

    #[test]
    fn bounds_that_collectives_contradict_are_widened_sixteen_times_at_most() {
        let late = vec![vec![0, 5_000 * US], vec![5_000 * US, 0]];
        let off = |error_us: i64| refined(&input(&[0, 0], &[0, error_us * US], 1_000 * US, &late, 30 * US));
        let clocks = off(8_000).unwrap();
        let (a, b) = (clocks["n0"], clocks["n1"]);
        assert!((a.offset_ns - b.offset_ns).abs() <= a.bound_ns + b.bound_ns && a.bound_ns <= 30 * US, "{a:?} {b:?}");
        assert_eq!(off(50_000), None, "calls are numbered differently");
    }

    #[test]
    fn a_drift_that_was_not_measured_leaves_what_it_allows() {
        let late = vec![vec![0, 5_000 * US], vec![5_000 * US, 0]];
        let mut input = input(&[0, 0], &[0, 0], 1_000 * US, &late, 0);
        input.clocks.insert("n0".to_owned(), ClockOffset::steady(0, 0));
        if let Some(clock) = input.clocks.get_mut("n1") {
            // Measured four seconds after the collectives.
            (clock.at_ns, clock.drift_bound_ppb) = (1_004_000_000_000, ClockOffset::DRIFT_BOUND_PPB);
        }
        let bound_ns = refined(&input).unwrap()["n1"].bound_ns;
        assert!((190 * US..=200 * US).contains(&bound_ns), "{bound_ns}");
    }
}
