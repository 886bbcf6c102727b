//! What a suspicion is tested with: how late ranks are, collective by collective of an episode,
//! and how surely that is no chance.

use std::collections::HashMap;
use std::ops::Range;

use observed::Rules;
use stats::median;

use crate::comm::{Cell, Met};
use crate::report::Basis;
use crate::score::Scored;
use crate::tally::Waits;

/// The collectives of an episode.
pub(crate) fn of_run<'a>(s: &'a Scored, run: &Range<usize>) -> &'a [Met] {
    match (s.windows.get(run.start), run.end.checked_sub(1).and_then(|w| s.windows.get(w))) {
        (Some(first), Some(last)) => &s.comm.met[first.met.start..last.met.end],
        _ => &[],
    }
}

/// How late each rank that can be compared with `m` is in a collective; larger is later, and
/// nothing else: minus its duration, its aligned entry, or its compute time.
pub(crate) fn order(s: &Scored, m: usize, basis: Basis, met: &Met) -> Vec<(usize, i64)> {
    let place = |(r, cell): (usize, &Option<Cell>)| {
        let cell = cell.as_ref()?;
        let value = match basis {
            Basis::Waits => Some(-cell.duration_ns),
            Basis::Entries => s.bounds[r].map(|_| cell.entry_ns),
            Basis::OwnTime => cell.compute_ns.filter(|_| s.comm.members[r].class == s.comm.members[m].class),
            Basis::PointToPoint => None,
        };
        value.map(|v| (r, v))
    };
    met.cells.iter().enumerate().filter_map(place).collect()
}

/// Over the collectives in which `m` was the last: by how much it came after the median of the
/// others, in how many it was the last, of how many. The lateness is the one from which on half of
/// the lost time comes: where all are alike the median, and in a step of one long and many short
/// phases that of the long one.
pub(super) fn late_by(s: &Scored, m: usize, basis: Basis, run: &Range<usize>) -> (i64, usize, usize) {
    let met = of_run(s, run);
    let mut late: Vec<f64> = Vec::new();
    for collective in met {
        let order = order(s, m, basis, collective);
        let Some(own) = order.iter().find(|(r, _)| *r == m).map(|(_, v)| *v) else {
            continue;
        };
        if order.iter().any(|(r, v)| *r != m && *v > own) {
            continue;
        }
        if let Some(mid) = median(order.iter().filter(|(r, _)| *r != m).map(|(_, v)| *v as f64)) {
            late.push(own as f64 - mid);
        }
    }
    let last_in = late.len();
    late.sort_by(f64::total_cmp);
    let half = late.iter().sum::<f64>() / 2.0;
    let mut sum = 0.0;
    let typical = late.iter().find(|v| {
        sum += **v;
        sum >= half
    });
    (typical.map_or(0, |v| *v as i64), last_in, met.len())
}

/// How long all other ranks of a collective waited for one alone, nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeptWaiting {
    /// From the entry of the last of them until its own.
    pub(super) alone_ns: f64,
    /// Of that what would not have been, had it had its CPU as the last of them had: no longer than it
    /// was held off its CPU or halted more than that one since the collective before.
    pub(super) held_ns: f64,
}

/// How long the others waited for `m` alone; where ranks leave together, who entered last is who waits
/// least. None where it is not in the collective, or alone.
pub(super) fn kept_waiting(m: usize, met: &Met) -> Option<KeptWaiting> {
    let mine = met.cells[m]?;
    let others = met.cells.iter().enumerate().filter(|(r, _)| *r != m).filter_map(|(_, cell)| *cell);
    let last = others.min_by_key(|other| other.duration_ns)?;
    let alone_ns = last.duration_ns.saturating_sub(mine.duration_ns).max(0);
    let held_ns = alone_ns.min(mine.off_cpu_ns().saturating_sub(last.off_cpu_ns())).max(0);
    let all = |ns: i64| f64::from(met.weight) * ns as f64;
    Some(KeptWaiting { alone_ns: all(alone_ns), held_ns: all(held_ns) })
}

/// Enqueue times only: whether the rank's calls are numbered less than the others'. Then its lateness
/// says nothing. It enters about as often before as after the others (median) enter a later
/// collective, and hardly apart from them. Where hosts run ahead a rank may come after the next
/// collective as well, but the later the longer its host has not waited, and not after it waited:
/// its lateness adds up.
pub(super) fn is_numbered_less(s: &Scored, m: usize, run: &Range<usize>) -> bool {
    let entries = |met: &Met| {
        let mine = met.cells[m]?.entry_ns;
        let others = met.cells.iter().enumerate().filter(|(r, _)| *r != m && s.bounds[*r].is_some());
        let later = median(others.filter_map(|(_, c)| c.map(|c| (c.entry_ns - mine) as f64)))?;
        Some((mine, mine + later as i64))
    };
    let (mine, others): (Vec<i64>, Vec<i64>) = of_run(s, run).iter().filter_map(entries).unzip();
    // How many collectives further on the others are when it enters; not known after their last.
    let ahead = |(place, at_ns): (usize, &i64)| {
        let after = others.partition_point(|other| other < at_ns);
        let next = others.get(after)?.abs_diff(*at_ns);
        let nearest = if after > 0 && others[after - 1].abs_diff(*at_ns) < next { after - 1 } else { after };
        Some(nearest as f64 - place as f64)
    };
    let ahead: Vec<f64> = mine.iter().enumerate().filter_map(ahead).collect();
    if 2 * ahead.len() < mine.len() {
        return true;
    }
    let by = median(ahead).map_or(0, |by| by.max(0.0) as usize);
    if by == 0 {
        return false;
    }
    let behind = |by: usize| mine.iter().zip(others.iter().skip(by)).map(|(mine, other)| (mine - other) as f64);
    let apart = |by: usize| median(behind(by).map(f64::abs));
    let after = behind(by).filter(|late| *late >= -s.bounds[m].unwrap_or(0.0)).count();
    after as f64 > Rules::AFTER_LATER * behind(by).count() as f64
        && apart(by).zip(apart(0)).is_none_or(|(apart, late)| apart <= Rules::COINCIDES * late)
        && added_part(s, m, run).is_none()
}

/// By collective of an episode: how far each member that can be compared with `m` lies above the
/// median there.
pub(super) fn excesses(s: &Scored, m: usize, basis: Basis, run: &Range<usize>) -> Vec<Vec<(usize, f64)>> {
    let above = |met: &Met| {
        let order = order(s, m, basis, met);
        // From the first: as floats, times since 1970 lose digits.
        let &(_, from) = order.first()?;
        let apart: Vec<(usize, f64)> = order.iter().map(|(r, v)| (*r, v.saturating_sub(from) as f64)).collect();
        let mid = median(apart.iter().map(|(_, v)| *v))?;
        Some(apart.into_iter().map(|(r, v)| (r, v - mid)).collect())
    };
    of_run(s, run).iter().filter_map(above).collect()
}

/// The same by member.
pub(super) fn by_member(mets: &[Vec<(usize, f64)>], members: usize) -> Vec<Vec<f64>> {
    let mut series: Vec<Vec<f64>> = vec![Vec::new(); members];
    mets.iter().flatten().for_each(|(r, excess)| series[*r].push(*excess));
    series
}

/// How far the members are apart in each of them.
fn spreads(mets: &[Vec<(usize, f64)>]) -> Vec<f64> {
    let spread = |met: &Vec<(usize, f64)>| {
        let values = || met.iter().map(|(_, excess)| *excess);
        values().fold(f64::MIN, f64::max) - values().fold(f64::MAX, f64::min)
    };
    mets.iter().map(spread).collect()
}

/// Of these the collectives in which members are apart by at least half of what they are on average:
/// one that follows another at once, such as a second value that is read after the loss, makes no
/// rank wait, whoever is slow. All members are looked at alike, so that nothing favours that one of
/// them is late.
pub(super) fn telling(mets: &[Vec<(usize, f64)>]) -> Vec<Vec<(usize, f64)>> {
    let spreads = spreads(mets);
    let least = spreads.iter().sum::<f64>() / spreads.len().max(1) as f64 / 2.0;
    mets.iter().zip(spreads).filter(|(_, spread)| *spread >= least).map(|(met, _)| met.clone()).collect()
}

/// What each of these adds to the ranks' lateness: all of it in the first after each wait for all,
/// after which the entries lie less far apart ([`Rules::WAITED`]) than they came to lie before.
/// Where hosts run ahead lateness adds up, and only what is added is of a collective itself. All
/// members are looked at alike, as by [`telling`].
pub(super) fn added(mets: &[Vec<(usize, f64)>]) -> Vec<Vec<(usize, f64)>> {
    let spreads = spreads(mets);
    let mut widest = 0.0f64;
    let mut before: HashMap<usize, f64> = HashMap::new();
    let mut each = Vec::with_capacity(mets.len());
    for (met, spread) in mets.iter().zip(spreads) {
        if spread < Rules::WAITED * widest {
            widest = 0.0;
            before.clear();
        }
        widest = widest.max(spread);
        each.push(met.iter().map(|(r, late)| (*r, late - before.get(r).unwrap_or(&0.0))).collect());
        before.extend(met.iter().copied());
    }
    each
}

/// Of a rank's lateness over an episode the part that it added, where three in four collectives add
/// at least half of what they do on average; none where lateness does not add up.
pub(crate) fn added_part(s: &Scored, m: usize, run: &Range<usize>) -> Option<f64> {
    let late = excesses(s, m, Basis::Entries, run);
    let of = |mets: &[Vec<(usize, f64)>]| by_member(mets, s.comm.members.len()).swap_remove(m);
    let (late, each) = (of(&late), of(&added(&late)));
    let sum = |of: &[f64]| of.iter().sum::<f64>();
    let adds_up = steadiness(&each) >= (each.len() as f64).sqrt() / 2.0;
    (adds_up && sum(&each) < sum(&late)).then(|| sum(&each) / sum(&late))
}

/// How surely a rank is usually late, however far single collectives lie out: the sign test (Dixon
/// and Mood, "The statistical sign test", 1946) of its excess against half of its mean, as a normal
/// deviate. Delays with heavy tails leave a mean no finite variance, and one of them, of whichever
/// rank, hides from Student's t what is there in every collective.
pub(super) fn steadiness(excess: &[f64]) -> f64 {
    let n = excess.len() as f64;
    let half = excess.iter().sum::<f64>() / n.max(1.0) / 2.0;
    if half <= 0.0 {
        return 0.0;
    }
    let above = excess.iter().filter(|x| **x > half).count() as f64;
    (2.0 * above - n) / n.max(1.0).sqrt()
}

/// Which part of an episode's collectives count as independent: (1 - r) / (1 + r) for the lag-1
/// autocorrelation r of the ranks' excess (Bartlett 1946; median over the ranks). Uneven data keeps
/// a rank late for all the collectives of a step.
pub(super) fn independent(series: &[Vec<f64>]) -> f64 {
    let length = median(series.iter().map(|x| x.len() as f64)).unwrap_or(0.0);
    let r = median(series.iter().filter_map(|x| autocorrelation(x))).unwrap_or(0.0).clamp(0.0, 0.95);
    // Within what independent values show by chance, nothing is taken off.
    if r * length.sqrt() < 2.0 { 1.0 } else { effective(r) }
}

/// Which part of the values of a series with this lag-1 autocorrelation count as independent.
pub(super) fn effective(r: f64) -> f64 {
    (1.0 - r.max(0.0)) / (1.0 + r.max(0.0))
}

/// Whether hosts wait for the calls that they enqueue. Where they do not, a rank that is late in one
/// is as late in the next, until all wait once. Derived from how the ranks' lateness changes from one
/// collective to the next (median over all ranks and communicators of the lag-1 autocorrelation):
/// -1/2 where each collective lets all go together, for then a difference has the noise of both; 0
/// where lateness adds up, and about -1/4 where it does so over two.
pub(crate) fn hosts_wait<'a>(scored: impl Iterator<Item = &'a Scored>) -> bool {
    let changes = |x: &Vec<f64>| x.windows(2).map(|w| w[1] - w[0]).collect::<Vec<f64>>();
    let enqueued = scored.filter(|s| s.waits == Waits::Enqueued && s.comm.members.len() > 1);
    let series =
        enqueued.flat_map(|s| by_member(&excesses(s, 0, Basis::Entries, &(0..s.windows.len())), s.comm.members.len()));
    let series: Vec<Vec<f64>> = series.map(|x| changes(&x)).filter(|x| x.len() >= Rules::CHANGES_SEEN).collect();
    let pairs: f64 = series.iter().map(|x| x.len() as f64 - 1.0).sum();
    let r = median(series.iter().filter_map(|x| autocorrelation(x)));
    r.is_some_and(|r| (Rules::RUNS_AHEAD - r) * pairs.sqrt() >= Rules::HOSTS_WAIT_ERRORS)
}

/// Lag-1 autocorrelation; none where nothing varies.
pub(super) fn autocorrelation(x: &[f64]) -> Option<f64> {
    let mean = x.iter().sum::<f64>() / x.len().max(1) as f64;
    let square: f64 = x.iter().map(|v| (v - mean).powi(2)).sum();
    let product: f64 = x.windows(2).map(|w| (w[0] - mean) * (w[1] - mean)).sum();
    (square > 0.0).then(|| product / square)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::{Comm, Member};
    use crate::windows::Window;
    use stats::Moments;

    #[test]
    fn one_delay_far_out_does_not_hide_what_is_always_there() {
        let steady: Vec<f64> = (0..36).map(|i| if i == 7 { -2_000.0 } else { 100.0 + f64::from(i % 5) }).collect();
        assert!(steady.iter().sum::<f64>() > 0.0 && steadiness(&steady) > 5.0, "{}", steadiness(&steady));
        let spikes: Vec<f64> = (0..36).map(|i| if i % 9 == 0 { 2_000.0 } else { 1.0 }).collect();
        assert!(steadiness(&spikes) < 0.0);
        assert_eq!((steadiness(&[]), steadiness(&[-1.0; 9])), (0.0, 0.0));
    }

    #[test]
    fn a_collective_right_after_another_hides_nobody() {
        // A job that reads two values every ten steps: the second makes nobody wait.
        let mets = (0..14).map(|i| {
            let late = if i % 2 == 0 { 100.0 + f64::from(i) } else { f64::from(i % 3) };
            vec![(0, 0.0), (1, late), (2, f64::from(i % 5))]
        });
        let mets: Vec<Vec<(usize, f64)>> = mets.collect();
        let own = |mets: &[Vec<(usize, f64)>]| Moments::of(&by_member(mets, 3)[1]).consistency(0.0);
        assert!(own(&mets) < Some(3.5) && own(&telling(&mets)) > Some(4.0), "{:?}", own(&telling(&mets)));
        // One that lies far out tells by itself, and one is no habit.
        let once: Vec<_> = (0..14).map(|i| vec![(0, 0.0), (1, if i == 5 { 500.0 } else { 1.0 })]).collect();
        assert_eq!(own(&telling(&once)), None);
    }

    #[test]
    fn what_a_rank_that_runs_ahead_costs_is_what_it_adds() {
        let scored = |lateness_ms: &[i64]| {
            let cell = |entry_ns| Some(Cell { entry_ns, ..Cell::default() });
            let met = lateness_ms.iter().zip(0..).map(|(late_ms, seq): (&i64, i64)| {
                let at_ns = seq * 100_000_000;
                let cells = vec![cell(at_ns), cell(at_ns + late_ms * 1_000_000), cell(at_ns)];
                Met { at_ns, func: "all_reduce".into(), seq: seq.unsigned_abs(), weight: 1, cells }
            });
            let met: Vec<Met> = met.collect();
            let all = Window { met: 0..met.len(), wall_ns: 1e9, start_ns: 0, end_ns: 1_000_000_000 };
            let member = |rank| Member { rank, node: "n".into(), pid: rank.into(), clock: None, class: 0 };
            let comm = Comm { met, members: (0..3).map(member).collect(), ..Comm::default() };
            Scored { windows: vec![all], bounds: vec![Some(0.0); 3], ..Scored::test_of(comm, Waits::Enqueued) }
        };
        let part = |lateness_ms: &[i64]| added_part(&scored(lateness_ms), 1, &(0..1));
        // It adds 10 ms in each of four, after which all wait: 80 of 200.
        assert_eq!(part(&[10, 20, 30, 40, 10, 20, 30, 40]), Some(0.4));
        assert_eq!(part(&[10, 20, 10, 20, 10, 20]), Some(20.0 / 30.0), "half of what it had come to");
        assert_eq!(part(&[40, 41, 39, 40, 40, 42, 38, 40]), None, "all wait for each");
        assert_eq!(part(&[0, 0, 0, 90, 0, 0, 0, 90]), None);
    }

    #[test]
    fn where_lateness_adds_up_what_each_collective_adds_counts() {
        let met = |late: f64| vec![(0, 0.0), (1, late)];
        let lateness = [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.5, 0.5, 1.5];
        let each = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.5, 0.5, 1.0];
        assert_eq!(added(&lateness.map(met)), each.map(met));
    }
}
