//! What each rank did in each window: how late it entered the collectives of its communicators, how
//! long it waited in them, how long it computed. The figures of a heat map.
//!
//! They are those that verdicts are made of, by the same matching (`matching`) of the same cells,
//! before anything is compared. A collective counts in the window in which it ended: ranks leave
//! together, and a digest holds a call once it is over.

use std::collections::BTreeMap;
use std::sync::Arc;

use observed::{Input, Rules, TimeUse};

use super::clocks::{by_calls, widest_bound_ns};
use super::comm::{Comm, Met};
use super::matching::communicators;
use super::number::number;
use super::score::waits_of;
use super::tally::Waits;

/// A rank: one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowRank {
    /// Its host.
    pub node: Arc<str>,
    /// Its process there.
    pub pid: i64,
    /// Its rank in the largest communicator in which it was seen.
    pub rank: i32,
    /// How many ranks that has.
    pub nranks: i32,
}

/// What a rank did in a window, nanoseconds. None: not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// Sum over the window's collectives of its entry minus the first entry, on aligned clocks; in
    /// the communicator in which that is most.
    pub late_ns: Option<i64>,
    /// Time in calls beyond what the rank took that waited least, over all communicators. Of ranks
    /// that meet in calls to single ranks, their time in communication calls.
    pub wait_ns: Option<i64>,
    /// Time outside communication calls before the window's collectives.
    pub compute_ns: Option<i64>,
}

/// One window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpentWindow {
    /// Collectives: the most of any rank.
    pub collectives: u64,
    /// What ranks did, by their place in [`RankWindows::ranks`], in order.
    pub spent: Vec<(usize, Spent)>,
}

/// What ranks did, window by window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RankWindows {
    /// By host and process.
    pub ranks: Vec<WindowRank>,
    /// By number: window n lasts from n times the length. Those of which nothing is known are left
    /// out.
    pub windows: BTreeMap<i64, SpentWindow>,
    /// How far entries on different hosts may be wrong against each other; none where a clock is
    /// not known.
    pub clock_bound_ns: Option<i64>,
}

/// What a process did in one communicator in a window.
#[derive(Debug, Clone, Copy, Default)]
struct InComm {
    collectives: u64,
    late_ns: Option<i64>,
    wait_ns: Option<i64>,
    compute_ns: Option<i64>,
}

/// Figures of processes by window.
type Sums = BTreeMap<i64, BTreeMap<usize, Vec<InComm>>>;

/// What ranks did in windows of `length_ns`, on the coordinator's clock.
#[must_use]
pub fn rank_windows(mut input: Input, length_ns: i64) -> RankWindows {
    let length_ns = length_ns.max(1);
    if let Some(clocks) = by_calls(&input) {
        input.clocks = clocks;
    }
    number(&mut input);
    let mut comms = communicators(&input, &Rules::default());
    let mut places: BTreeMap<(Arc<str>, i64), WindowRank> = BTreeMap::new();
    for comm in &comms {
        let nranks = comm.nranks.unwrap_or_else(|| i32::try_from(comm.members.len()).unwrap_or(i32::MAX));
        for m in &comm.members {
            largest(&mut places, &m.node, m.pid, m.rank, nranks);
        }
    }
    for time in &input.times {
        largest(&mut places, &time.node, time.pid, time.rank, time.nranks);
    }
    let place_of: BTreeMap<(Arc<str>, i64), usize> =
        places.keys().enumerate().map(|(place, process)| (process.clone(), place)).collect();
    let mut sums = Sums::new();
    for comm in &mut comms {
        let places: Vec<usize> = comm.members.iter().map(|m| place_of[&(Arc::clone(&m.node), m.pid)]).collect();
        add(comm, &places, length_ns, &mut sums);
    }
    let mut windows: BTreeMap<i64, SpentWindow> = BTreeMap::new();
    for (window, by_place) in sums {
        let collectives = by_place.values().flatten().map(|of| of.collectives).max().unwrap_or(0);
        let spent = by_place.into_iter().map(|(place, all)| (place, together(&all))).collect();
        windows.insert(window, SpentWindow { collectives, spent });
    }
    let mut otherwise: BTreeMap<i64, BTreeMap<usize, Spent>> = BTreeMap::new();
    for time in &input.times {
        let place = place_of[&(Arc::clone(&time.node), time.pid)];
        of_time_use(time, place, &input, length_ns, &mut otherwise);
    }
    for (window, by_place) in otherwise {
        let known = &mut windows.entry(window).or_default().spent;
        for (place, spent) in by_place {
            // What its collectives show is more.
            if let Err(at) = known.binary_search_by_key(&place, |(place, _)| *place) {
                known.insert(at, (place, spent));
            }
        }
    }
    let clocks = comms.iter().flat_map(|comm| &comm.members).map(|m| (&*m.node, m.clock)).collect();
    let clock_bound_ns = widest_bound_ns(&clocks);
    RankWindows { ranks: places.into_values().collect(), windows, clock_bound_ns }
}

fn largest(places: &mut BTreeMap<(Arc<str>, i64), WindowRank>, node: &Arc<str>, pid: i64, rank: i32, nranks: i32) {
    let new = WindowRank { node: Arc::clone(node), pid, rank, nranks };
    let known = places.entry((Arc::clone(node), pid)).or_insert_with(|| new.clone());
    if nranks > known.nranks {
        *known = new;
    }
}

/// Adds a communicator's collectives to the windows in which they ended.
fn add(comm: &mut Comm, places: &[usize], length_ns: i64, sums: &mut Sums) {
    let seen = match waits_of(comm) {
        Waits::Seen => true,
        // A call that only enqueues shows no wait.
        Waits::Assumed => comm.tier > 0,
        Waits::Enqueued => false,
        // Nothing follows from such calls.
        Waits::Inconsistent => return,
    };
    let mut of_comm: BTreeMap<(i64, usize), InComm> = BTreeMap::new();
    for met in &comm.met {
        let window = ended_ns(met).div_euclid(length_ns);
        let known = |member: usize| comm.members[member].clock.is_some();
        let cells = || met.cells.iter().enumerate().filter_map(|(member, cell)| Some((member, (*cell)?)));
        let first_ns = cells().filter(|(member, _)| known(*member)).map(|(_, cell)| cell.entry_ns).min();
        let shortest_ns = cells().map(|(_, cell)| cell.duration_ns).min().unwrap_or(0);
        let calls = i64::from(met.weight);
        for (member, cell) in cells() {
            let sum = of_comm.entry((window, places[member])).or_default();
            sum.collectives += u64::from(met.weight);
            let more = |sum: &mut Option<i64>, ns: i64| {
                *sum = Some(sum.unwrap_or(0).saturating_add(ns.saturating_mul(calls)));
            };
            if let Some(first_ns) = first_ns.filter(|_| known(member)) {
                more(&mut sum.late_ns, cell.entry_ns.saturating_sub(first_ns));
            }
            if seen {
                more(&mut sum.wait_ns, cell.duration_ns.saturating_sub(shortest_ns));
            }
            if let Some(compute_ns) = cell.compute_ns {
                more(&mut sum.compute_ns, compute_ns);
            }
        }
    }
    for ((window, place), sum) in of_comm {
        sums.entry(window).or_default().entry(place).or_default().push(sum);
    }
}

/// When a collective ended: the median of the ranks' ends.
fn ended_ns(met: &Met) -> i64 {
    let mut ends: Vec<i64> =
        met.cells.iter().flatten().map(|cell| cell.entry_ns.saturating_add(cell.duration_ns)).collect();
    ends.sort_unstable();
    ends.get(ends.len() / 2).copied().unwrap_or(met.at_ns)
}

/// What a process did in all its communicators. Compute time counts once: between the collectives
/// of the communicator that it calls most often.
fn together(all: &[InComm]) -> Spent {
    let sum = |figure: fn(&InComm) -> Option<i64>| all.iter().filter_map(figure).reduce(i64::saturating_add);
    let often = all.iter().filter(|of| of.compute_ns.is_some()).max_by_key(|of| of.collectives);
    Spent {
        late_ns: all.iter().filter_map(|of| of.late_ns).max(),
        wait_ns: sum(|of| of.wait_ns),
        compute_ns: often.and_then(|of| of.compute_ns),
    }
}

/// Where the time of a process went that meets others in calls to single ranks, spread over the
/// windows in which it was spent.
fn of_time_use(
    time: &TimeUse,
    place: usize,
    input: &Input,
    length_ns: i64,
    windows: &mut BTreeMap<i64, BTreeMap<usize, Spent>>,
) {
    let until_ns = input.clocks.get(&*time.node).map_or(time.until_ns, |clock| clock.align(time.until_ns));
    let span_ns = time.span_ns.max(1);
    let since_ns = until_ns.saturating_sub(span_ns);
    let compute_ns = span_ns.saturating_sub(time.in_calls_ns()).max(0);
    let (first, last) = (since_ns.div_euclid(length_ns), until_ns.saturating_sub(1).div_euclid(length_ns));
    for window in first..=last.min(first.saturating_add(MOST_WINDOWS_OF_ONE)) {
        let from = since_ns.max(window.saturating_mul(length_ns));
        let to = until_ns.min(window.saturating_add(1).saturating_mul(length_ns));
        let part = |ns: i64| i64::try_from(i128::from(ns) * i128::from(to - from) / i128::from(span_ns)).unwrap_or(0);
        let spent = windows.entry(window).or_default().entry(place).or_default();
        let more = |known: &mut Option<i64>, ns: i64| *known = Some(known.unwrap_or(0).saturating_add(ns));
        more(&mut spent.wait_ns, part(time.in_calls_ns()));
        more(&mut spent.compute_ns, part(compute_ns));
    }
}

/// Windows over which one statement of time use is spread, at most.
const MOST_WINDOWS_OF_ONE: i64 = 7_200;

#[cfg(test)]
#[path = "../tests/common/steps.rs"]
mod steps;

#[cfg(test)]
mod tests {
    use super::steps::{MS, W, call, input, steps};
    use super::*;
    use crate::Observation;

    #[test]
    fn each_window_has_what_each_rank_did_in_it() {
        let found = rank_windows(input(steps(20)), W);
        assert_eq!(
            found.ranks.iter().map(|r| (r.rank, r.nranks)).collect::<Vec<_>>(),
            [(0, 4), (1, 4), (2, 4), (3, 4)]
        );
        assert_eq!(found.windows.len(), 5, "steps end at 100, 200, …, 2000 ms: {:?}", found.windows.keys());
        let second = &found.windows[&1];
        assert_eq!(second.collectives, 5);
        let of = |place: usize| second.spent[place].1;
        let spent = |late: i64, wait: i64, compute: i64| Spent {
            late_ns: Some(late * MS),
            wait_ns: Some(wait * MS),
            compute_ns: Some(compute * MS),
        };
        assert_eq!(of(0), spent(0, 5 * 40, 5 * 50));
        assert_eq!(of(3), spent(5 * 40, 0, 5 * 90));
        assert!(found.clock_bound_ns.is_some());
    }

    #[test]
    fn a_collective_counts_where_it_ended_and_what_is_not_known_is_not_zero() {
        let mut calls = vec![call(0, 1, 0, 100, 3_000), call(1, 1, 0, 3_050, 50)];
        // Of this host's clock nothing is known.
        calls.push(Observation { node: "n9".into(), ..call(2, 1, 0, 7, 20) });
        let found = rank_windows(input(calls), W);
        let (window, spent) = found.windows.first_key_value().unwrap();
        assert_eq!((*window, found.windows.len()), (6, 1));
        let unknown = spent.spent.iter().find(|(place, _)| &*found.ranks[*place].node == "n9").unwrap().1;
        assert_eq!(unknown.late_ns, None);
        assert_eq!(found.clock_bound_ns, None);
        assert!(spent.spent.iter().all(|(_, spent)| spent.compute_ns.is_none()), "no call was before it");
    }

    #[test]
    fn two_communicators_share_one_compute_time() {
        let mut calls = steps(10);
        // Of pairs, each after the steps' call.
        for step in 0..10 {
            for rank in 0..4 {
                let ahead = if rank > 1 { 1_000 } else { 0 };
                let seq = step as u64;
                calls.push(Observation {
                    rank: rank % 2,
                    ..call(rank, 2 + rank as u64 / 2, seq, step * 100 + 101 + ahead, 9)
                });
                calls.last_mut().unwrap().pid = 100 + i64::from(rank);
            }
        }
        calls.iter_mut().for_each(|c| c.entry_ns += i64::from(c.comm_hash == 1 && c.seq > 0) * 10 * MS);
        calls.iter_mut().filter(|c| c.comm_hash == 1 && c.seq > 0).for_each(|c| c.duration_ns -= 10 * MS);
        let found = rank_windows(input(calls), W);
        assert_eq!(found.ranks[3].rank, 3, "its rank in the largest communicator");
        let of = found.windows[&1].spent[1].1;
        assert!(of.compute_ns.unwrap() <= 500 * MS, "{of:?}");
    }
}
