//! Time use on common windows: one row a rank, one column a second.

use std::collections::BTreeMap;
use std::ops::Range;

use observed::{ClockOffset, HELD, RankRef, TimeUse};

/// Length of a window.
pub(super) const WINDOW_NS: i64 = 1_000_000_000;
/// Windows at most, the latest: an hour.
const MOST_WINDOWS: i64 = 3_600;
/// Least part of a window of which a rank's time must be known for the window to count.
const KNOWN: f64 = 0.5;
/// Time of which it is enough to know whether a rank was held.
const ENOUGH_NS: f64 = 5e9;

/// What a rank did in some time. Nanoseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Sum {
    pub(super) span: f64,
    pub(super) calls: f64,
    pub(super) scored: f64,
    pub(super) unscored: f64,
    /// By kind, and of how much time that is known.
    pub(super) held: [f64; HELD.len()],
    pub(super) held_known: f64,
    pub(super) peers: BTreeMap<i32, f64>,
}

impl Sum {
    fn add(&mut self, time: &TimeUse, part: f64) {
        let of = |ns: i64| ns as f64 * part;
        self.span += of(time.span_ns);
        self.calls += time.calls as f64 * part;
        self.scored += of(time.scored_ns);
        self.unscored += of(time.unscored_ns);
        if let Some(held) = time.held_ns {
            self.held.iter_mut().zip(held).for_each(|(sum, ns)| *sum += of(ns));
            self.held_known += of(time.span_ns);
        }
        for (rank, ns) in &time.peers {
            *self.peers.entry(*rank).or_default() += of(*ns);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.span += other.span;
        self.calls += other.calls;
        self.scored += other.scored;
        self.unscored += other.unscored;
        self.held.iter_mut().zip(other.held).for_each(|(sum, ns)| *sum += ns);
        self.held_known += other.held_known;
        for (rank, ns) in &other.peers {
            *self.peers.entry(*rank).or_default() += ns;
        }
    }

    /// Share of the time outside calls.
    pub(super) fn compute(&self) -> f64 {
        if self.span > 0.0 { 1.0 - (self.scored + self.unscored) / self.span } else { 0.0 }
    }

    /// Share of the time held, by kind; none where it is not known of most of it.
    pub(super) fn held(&self) -> Option<[f64; HELD.len()]> {
        let enough = (KNOWN * self.span).min(ENOUGH_NS);
        (self.held_known > 0.0 && self.held_known >= enough).then(|| self.held.map(|ns| ns / self.held_known))
    }
}

/// The reports of each rank of a job: by rank, node and process.
type Ranks<'a> = BTreeMap<(i32, &'a str, i64), Vec<&'a TimeUse>>;

/// The ranks of one job.
#[derive(Debug, Clone)]
pub(super) struct Series {
    /// Ranks of the job.
    pub(super) nranks: i32,
    /// Number of the first window: its start over [`WINDOW_NS`], of the coordinator's clock.
    pub(super) first: i64,
    pub(super) who: Vec<RankRef>,
    /// By rank, then window.
    pub(super) cells: Vec<Vec<Sum>>,
}

impl Series {
    /// The jobs, those with most time in calls that are not compared one by one first.
    pub(super) fn of(times: &[TimeUse], clocks: &BTreeMap<String, ClockOffset>) -> Vec<Self> {
        let mut jobs: BTreeMap<u64, Ranks<'_>> = BTreeMap::new();
        for time in times {
            jobs.entry(time.job).or_default().entry((time.rank, &time.node, time.pid)).or_default().push(time);
        }
        let mut all: Vec<Self> = jobs.into_values().filter_map(|ranks| Self::of_job(&ranks, clocks)).collect();
        all.sort_by(|a, b| b.unscored().total_cmp(&a.unscored()));
        all
    }

    fn of_job(ranks: &Ranks<'_>, clocks: &BTreeMap<String, ClockOffset>) -> Option<Self> {
        let aligned = |node: &str, at_ns: i64| clocks.get(node).map_or(at_ns, |clock| clock.align(at_ns));
        let ends = || {
            ranks
                .iter()
                .flat_map(|((_, node, _), of)| of.iter().map(|time| (aligned(node, time.until_ns), time.span_ns)))
        };
        let last = ends().map(|(end_ns, _)| end_ns.saturating_sub(1)).max()?.div_euclid(WINDOW_NS);
        let first = ends().map(|(end_ns, span_ns)| end_ns.saturating_sub(span_ns)).min()?;
        let first = first.div_euclid(WINDOW_NS).max(last - MOST_WINDOWS);
        let windows = usize::try_from(last - first + 1).ok()?;
        let (mut who, mut cells) = (Vec::new(), Vec::new());
        for ((rank, node, pid), of) in ranks {
            let mut row = vec![Sum::default(); windows];
            for time in of {
                let to = aligned(node, time.until_ns);
                let from = to.saturating_sub(time.span_ns);
                let mut window = from.div_euclid(WINDOW_NS).max(first);
                while window <= last && window * WINDOW_NS < to {
                    let (start, end) = (window * WINDOW_NS, (window + 1) * WINDOW_NS);
                    let inside = to.min(end) - from.max(start);
                    let place = usize::try_from(window - first).ok().and_then(|at| row.get_mut(at));
                    if let Some(cell) = place.filter(|_| time.span_ns > 0) {
                        cell.add(time, inside as f64 / time.span_ns as f64);
                    }
                    window += 1;
                }
            }
            who.push(RankRef { rank: *rank, node: (*node).to_owned(), pid: *pid });
            cells.push(row);
        }
        let nranks = ranks.values().flatten().map(|time| time.nranks).max()?;
        Some(Self { nranks, first, who, cells })
    }

    pub(super) fn windows(&self) -> usize {
        self.cells.first().map_or(0, Vec::len)
    }

    fn unscored(&self) -> f64 {
        self.cells.iter().flatten().map(|cell| cell.unscored).sum()
    }

    /// Start of a window, of the coordinator's clock.
    pub(super) fn at_ns(&self, window: usize) -> i64 {
        self.first.saturating_add(i64::try_from(window).unwrap_or(i64::MAX)).saturating_mul(WINDOW_NS)
    }

    /// The share of compute time of each rank in a window; none where it is not known of all.
    pub(super) fn compute(&self, window: usize) -> Option<Vec<f64>> {
        let cells = self.cells.iter().map(|row| row.get(window));
        let known = |cell: &&Sum| cell.span >= KNOWN * WINDOW_NS as f64;
        cells.map(|cell| cell.filter(known).map(Sum::compute)).collect()
    }

    /// Sums of each rank over windows.
    pub(super) fn sums(&self, windows: Range<usize>) -> Vec<Sum> {
        let over = |row: &Vec<Sum>| {
            let mut sum = Sum::default();
            row.get(windows.clone()).unwrap_or_default().iter().for_each(|cell| sum.merge(cell));
            sum
        };
        self.cells.iter().map(over).collect()
    }
}
