//! Rates the ranks of a window (or of many together) by its tallies: how far each stands out, and
//! whether that flags it.
//!
//! Two ratings a rank: by its lateness (waits where they are seen, else entries) and by its compute
//! time. Tallies come from `score.rs`, thresholds from `rules.rs`.

use std::collections::BTreeMap;

use observed::Rules;
use stats::{Moments, Population};

use super::comm::Member;
use super::tally::{Tally, Waits};

/// How far one figure of a rank stands out from the others'.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Rating {
    /// Robust z over the others; none where there are fewer than three.
    pub(crate) z: Option<f64>,
    /// Mean excess over the median of the others, per collective.
    pub(crate) excess_ns: f64,
    /// The excess as a share of wall time.
    pub(crate) share: f64,
    /// The mean excess that ranks usually have, 0 and more: where delays are skewed, the mean of
    /// every rank lies above the others' median.
    pub(crate) usual_ns: f64,
    /// What the share is over that of the usual excess.
    pub(crate) beyond: f64,
    /// How consistently the excess is more than the usual one over the collectives, as a normal
    /// deviate.
    pub(crate) consistency: f64,
    /// Share of its collectives in which it lay above the median of the others.
    pub(crate) mostly: f64,
    /// It stands out by z (or ratio), costs enough, and no other evidence contradicts it.
    pub(crate) flagged: bool,
}

/// What a rank looks like over some windows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Score {
    /// By how late it is, compared with all others of the communicator.
    pub(crate) late: Rating,
    /// By its compute time, compared with the others of its class.
    pub(crate) compute: Rating,
}

/// What is kept of a rank's score in one window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) late: bool,
    pub(crate) compute: bool,
}

impl Score {
    /// Whether it is flagged.
    pub(crate) fn flags(&self) -> Flags {
        Flags { late: self.late.flagged, compute: self.compute.flagged }
    }

    /// Whether it costs enough.
    pub(crate) fn costs(&self, rules: &Rules) -> Flags {
        Flags { late: self.late.share >= rules.effect, compute: self.compute.share >= rules.effect }
    }
}

/// What the tallies to be rated stand for.
pub(crate) struct Frame<'a> {
    /// Collectives in them.
    pub(crate) collectives: usize,
    /// Collectives that these stand for.
    pub(crate) stands_for: f64,
    /// Wall time that they stand for.
    pub(crate) wall_ns: f64,
    /// Whether durations hold the wait.
    pub(crate) waits: Waits,
    /// How far each member's lateness may be wrong.
    pub(crate) bounds: &'a [Option<f64>],
    /// The members.
    pub(crate) members: &'a [Member],
    /// Compute time was derived from aligned entries.
    pub(crate) reconstructed: bool,
    /// z of every rank is wanted, also of those whose excess is too small to flag them.
    pub(crate) all_z: bool,
}

impl Frame<'_> {
    /// What needs the others is only worked out where it can matter.
    fn wanted(&self, rating: &Rating, rules: &Rules) -> bool {
        self.all_z || rating.share >= rules.effect
    }

    /// Of a rank's excess among the mean excesses of all that are compared, its own one of them.
    fn rating(&self, excess: &Moments, rules: &Rules, all: &mut Figure<'_>) -> Rating {
        let excess_ns = excess.mean().unwrap_or(0.0);
        let share = |excess_ns: f64| if self.wall_ns > 0.0 { excess_ns * self.stands_for / self.wall_ns } else { 0.0 };
        let mut rating = Rating {
            z: None,
            excess_ns,
            share: share(excess_ns),
            usual_ns: 0.0,
            beyond: share(excess_ns),
            consistency: 0.0,
            mostly: excess.positive / excess.n.max(1.0),
            flagged: false,
        };
        if self.wanted(&rating, rules) {
            let (own, all) = (excess.mean(), all.all());
            // Two or three ranks: what the others have is nothing but the other side of what this
            // one has.
            let population = all.count() + usize::from(own.is_none()) >= Rules::POPULATION;
            rating.usual_ns = all.median_of_others(own).filter(|_| population).unwrap_or(0.0).max(0.0);
            rating.beyond = share(excess_ns - rating.usual_ns);
            rating.consistency = excess.consistency(rating.usual_ns).unwrap_or(0.0);
        }
        rating
    }
}

/// Rate each member.
pub(crate) fn rate(tally: &[Tally], frame: &Frame<'_>, rules: &Rules) -> Vec<Score> {
    let everybody: Vec<usize> = (0..tally.len()).collect();
    let of = |value: fn(&Tally) -> Option<f64>| Figure { tally, of: &everybody, value, known: None };
    let mut waits = of(|t| t.duration.mean().map(|d| -d));
    let waited = of(|t| t.wait.mean());
    let mut entries = of(|t| t.lateness.mean());
    let mut later = of(|t| t.later.mean());
    let mut less_wait = of(|t| t.less_wait.mean());
    let mut compute = vec![Rating::default(); tally.len()];
    rate_compute(tally, frame, rules, &mut compute);

    (0..tally.len())
        .map(|r| {
            let t = &tally[r];
            // A rank that took part in less than half of the window is not rated.
            if t.duration.n * 2.0 < frame.collectives as f64 {
                return Score::default();
            }
            let bound = frame.bounds[r];
            let mut late = frame.rating(&t.later, rules, &mut later);
            late.z = frame.wanted(&late, rules).then(|| entries.z(r, bound.unwrap_or(0.0))).flatten();
            late.flagged = bound.is_some_and(|b| late.excess_ns > b)
                && late.share >= rules.effect
                && late.z.map_or_else(|| times_all(&entries, r, 0.0, rules.ratio), |z| z > rules.z);
            match frame.waits {
                Waits::Seen | Waits::Assumed => {
                    let mut least = frame.rating(&t.less_wait, rules, &mut less_wait);
                    least.z = frame.wanted(&least, rules).then(|| waits.z(r, 0.0)).flatten();
                    let stands_out = || least.z.map_or_else(|| waits_least(&waited, r, rules), |z| z > rules.z);
                    // By the clocks it does not enter late: it leaves early, which holds nobody up.
                    let contradicted = bound.is_some_and(|b| late.excess_ns + b < least.excess_ns / 2.0);
                    let floor = if frame.waits == Waits::Assumed { Rules::ASSUMED_WAITS_FLOOR_NS } else { 0.0 };
                    least.flagged =
                        least.share >= rules.effect && least.excess_ns > floor && !contradicted && stands_out();
                    Score { late: least, compute: compute[r] }
                }
                Waits::Enqueued => Score { late, compute: compute[r] },
                Waits::Inconsistent => Score::default(),
            }
        })
        .collect()
}

/// By how much a rank's excess of compute time may be too large where compute times were derived from
/// entries: were all clocks wrong by their bounds at every wait, its own would be less, and that of
/// the others of its class more. Of two ranks that wait for each other alone, this is at each
/// meeting the sum of their clocks' bounds, whoever comes first.
pub(crate) fn unsure(tally: &[Tally], members: &[Member], r: usize) -> f64 {
    let peers = tally.iter().zip(members).filter(|(_, m)| m.class == members[r].class);
    unsure_among(&tally[r], &mut Population::new(peers.filter_map(|(t, _)| t.compute_more.mean())))
}

/// The same, where `more` has the `compute_more` of all of the class.
fn unsure_among(tally: &Tally, more: &mut Population) -> f64 {
    let more = more.median_of_others(tally.compute_more.mean()).unwrap_or(0.0);
    tally.compute_less.mean().unwrap_or(0.0) + more
}

/// Compute time, class by class. Where calls only enqueue, ranks wait outside them, and the gaps
/// are not their own.
fn rate_compute(tally: &[Tally], frame: &Frame<'_>, rules: &Rules, ratings: &mut [Rating]) {
    if frame.waits == Waits::Enqueued && !frame.reconstructed {
        return;
    }
    let mut classes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (r, member) in frame.members.iter().enumerate() {
        classes.entry(member.class).or_default().push(r);
    }
    for class in classes.values() {
        let of = |value: fn(&Tally) -> Option<f64>| Figure { tally, of: class, value, known: None };
        let mut excess = of(|t| t.more_compute.mean());
        let mut more = of(|t| t.compute_more.mean());
        let mut figure = of(|t| t.compute.mean());
        for &r in class {
            let t = &tally[r];
            if t.compute.n * 2.0 < frame.collectives as f64 {
                continue;
            }
            ratings[r] = frame.rating(&t.more_compute, rules, &mut excess);
            if !frame.wanted(&ratings[r], rules) {
                continue;
            }
            // What the clocks may make of it is no evidence.
            let unsure = if frame.reconstructed { unsure_among(t, more.all()) } else { 0.0 };
            ratings[r].z = figure.z_less(r, unsure, 0.0);
            ratings[r].flagged = ratings[r].share >= rules.effect
                && ratings[r].excess_ns > unsure
                && ratings[r].z.map_or_else(|| times_all(&figure, r, unsure, rules.compute_ratio), |z| z > rules.z);
        }
    }
}

/// One figure of ranks that are compared.
struct Figure<'a> {
    tally: &'a [Tally],
    /// Which ranks.
    of: &'a [usize],
    value: fn(&Tally) -> Option<f64>,
    /// Those that are known, once they were asked for: mostly nobody stands out.
    known: Option<Population>,
}

impl Figure<'_> {
    fn value(&self, r: usize) -> Option<f64> {
        (self.value)(&self.tally[r])
    }

    fn all(&mut self) -> &mut Population {
        let (tally, of, value) = (self.tally, self.of, self.value);
        self.known.get_or_insert_with(|| Population::new(of.iter().filter_map(|r| value(&tally[*r]))))
    }

    /// Those of all others that are known.
    fn others(&self, r: usize) -> impl Iterator<Item = f64> {
        self.of.iter().filter(move |other| **other != r).filter_map(|other| self.value(*other))
    }

    /// z of one rank over the others; none below a population.
    fn z(&mut self, r: usize, floor: f64) -> Option<f64> {
        self.z_less(r, 0.0, floor)
    }

    /// The same of a value that is less by so much.
    fn z_less(&mut self, r: usize, less: f64, floor: f64) -> Option<f64> {
        let value = self.value(r)?;
        let all = self.all();
        if all.count() < Rules::POPULATION { None } else { all.z(value, value - less, floor) }
    }
}

/// Two or three ranks: every other rank waits at least `ratio` times what this one waits.
fn waits_least(waited: &Figure<'_>, r: usize, rules: &Rules) -> bool {
    let Some(own) = waited.value(r) else { return false };
    let mut others = waited.others(r).peekable();
    others.peek().is_some() && others.all(|w| w > 0.0 && w >= rules.ratio * own)
}

/// Two or three ranks: its figure, less so much, is at least `ratio` times that of any other.
fn times_all(values: &Figure<'_>, r: usize, less: f64, ratio: f64) -> bool {
    let Some(own) = values.value(r).map(|own| own - less) else { return false };
    let mut others = values.others(r).peekable();
    others.peek().is_some() && others.all(|l| own >= ratio * l)
}
