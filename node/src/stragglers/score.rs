//! Scores the ranks of one communicator, window by window: lateness, wait, own time, and who is flagged.
//!
//! The figures of a window ([`Tally`]) are sums and merge by addition. What follows from the flags over many windows
//! is decided in `verdict.rs`.

use serde::Serialize;

use super::matching::{Comm, Member, Met};
use super::rules::Rules;
use super::stats::{Moments, median, median_without, robust_z};
use super::windows::{Window, WindowKind, cut};

/// Whether the time inside the calls shows the wait for the other ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Waits {
    /// Nobody left before everybody had entered: durations hold the wait.
    Seen,
    /// The clocks cannot tell (all entries lie within their bounds): durations are used where they are long.
    Assumed,
    /// Ranks leave before others enter: the calls only enqueue. Entry times alone are evidence.
    Enqueued,
    /// Calls of a blocking library whose times do not fit together: the numbering of the ranks' calls does not agree,
    /// or a clock is wrong by more than its bound. Nothing follows from them.
    Inconsistent,
}

/// Share of telling collectives that may break the rule "nobody leaves before everybody has entered".
const TOLERATED: f64 = 0.2;
/// Least mean excess that counts where waits are only assumed.
const ASSUMED_FLOOR_NS: f64 = 200_000.0;

/// What a window keeps of one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Tally {
    /// Time in the calls.
    pub(crate) duration: Moments,
    /// Aligned entry minus the first entry.
    pub(crate) lateness: Moments,
    /// Duration minus the group's shortest.
    pub(crate) wait: Moments,
    /// How much less this rank waited than the median of the others: clock-free lateness.
    pub(crate) less_wait: Moments,
    /// How much later it entered than the median of the others.
    pub(crate) later: Moments,
    /// How much more own time it took than the median of the others.
    pub(crate) more_own: Moments,
}

impl Tally {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.duration.merge(&other.duration);
        self.lateness.merge(&other.lateness);
        self.wait.merge(&other.wait);
        self.less_wait.merge(&other.less_wait);
        self.later.merge(&other.later);
        self.more_own.merge(&other.more_own);
    }
}

/// What a rank looks like over some windows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Score {
    /// Robust z of its wait (low side) or lateness (high side); none below four ranks.
    pub(crate) z: Option<f64>,
    /// Mean excess over the median of the others, per collective.
    pub(crate) excess_ns: f64,
    /// The excess as a share of wall time.
    pub(crate) share: f64,
    /// How consistent the excess is over the collectives, as a normal deviate.
    pub(crate) consistency: f64,
    /// Share of its collectives in which it was later than the median of the others.
    pub(crate) mostly: f64,
    /// All of z (or ratio) and effect are met, and the two kinds of evidence do not contradict each other.
    pub(crate) flagged: bool,
    /// It enters late by the aligned clocks, yet waits as long as the others.
    pub(crate) late_but_waits: bool,
}

/// A communicator with its windows scored.
pub(crate) struct Scored {
    pub(crate) comm: Comm,
    pub(crate) waits: Waits,
    pub(crate) kind: WindowKind,
    pub(crate) windows: Vec<Window>,
    /// By window, then member.
    pub(crate) tallies: Vec<Vec<Tally>>,
    /// By window, then member.
    pub(crate) scores: Vec<Vec<Score>>,
    /// For each member, how far its aligned lateness may be wrong; none where clocks are not known.
    pub(crate) bounds: Vec<Option<f64>>,
}

/// Score a communicator; gives it back where it holds too few collectives.
pub(crate) fn score(comm: Comm, rules: &Rules) -> Result<Scored, Box<Comm>> {
    let Some((kind, windows)) = cut(&comm, rules) else {
        return Err(Box::new(comm));
    };
    let waits = waits(&comm);
    let bounds = bounds(&comm.members);
    let tallies: Vec<Vec<Tally>> = windows
        .iter()
        .map(|w| {
            let mut tally = vec![Tally::default(); comm.members.len()];
            comm.met[w.met.clone()].iter().for_each(|met| add(met, &bounds, &mut tally));
            tally
        })
        .collect();
    let scores = windows
        .iter()
        .zip(&tallies)
        .map(|(w, tally)| rate(tally, w.met.len(), w.wall_ns, waits, &bounds, rules))
        .collect();
    Ok(Scored { comm, waits, kind, windows, tallies, scores, bounds })
}

impl Scored {
    /// The figures over a run of windows together.
    pub(crate) fn pooled(&self, windows: std::ops::Range<usize>, rules: &Rules) -> (Vec<Tally>, Vec<Score>) {
        let mut sum = vec![Tally::default(); self.comm.members.len()];
        let (mut met, mut wall_ns) = (0, 0.0);
        for w in windows {
            sum.iter_mut().zip(&self.tallies[w]).for_each(|(all, one)| all.merge(one));
            met += self.windows[w].met.len();
            wall_ns += self.windows[w].wall_ns;
        }
        let scores = rate(&sum, met, wall_ns, self.waits, &self.bounds, rules);
        (sum, scores)
    }
}

/// Do the durations hold the wait? In a coupling collective nobody can leave before the last one has entered; where
/// some do (by more than the clock bounds), the call does not wait.
fn waits(comm: &Comm) -> Waits {
    let (mut telling, mut broken) = (0u32, 0u32);
    for met in &comm.met {
        let present = || met.cells.iter().zip(&comm.members).filter_map(|(c, m)| c.as_ref().map(|c| (c, m)));
        let Some((last, late)) = present().filter(|(_, m)| m.clock.is_some()).max_by_key(|(c, _)| c.entry_ns) else {
            continue;
        };
        let mut tells = false;
        let mut breaks = false;
        for (cell, member) in present() {
            let Some(bound) = member.bound_to(late) else {
                continue;
            };
            let ahead = last.entry_ns.saturating_sub(cell.entry_ns);
            if ahead > bound {
                tells = true;
                breaks |= cell.duration_ns.saturating_add(bound) < ahead;
            }
        }
        telling += u32::from(tells);
        broken += u32::from(breaks);
    }
    let lie = f64::from(broken) > TOLERATED * f64::from(telling);
    match (comm.tier, telling) {
        (1.., _) if telling >= 3 && lie => Waits::Inconsistent,
        (1.., _) => Waits::Seen,
        (0, 0..3) => Waits::Assumed,
        (0, _) if lie => Waits::Enqueued,
        (0, _) => Waits::Seen,
    }
}

/// How far each member's lateness against the others may be wrong: the widest pairwise bound to any member whose clock
/// is known.
fn bounds(members: &[Member]) -> Vec<Option<f64>> {
    members
        .iter()
        .map(|m| {
            m.clock?;
            members.iter().filter_map(|o| m.bound_to(o)).max().map(|b| b as f64)
        })
        .collect()
}

fn add(met: &Met, bounds: &[Option<f64>], tally: &mut [Tally]) {
    let spread = |value: &dyn Fn(usize) -> Option<f64>| {
        let mut all: Vec<(f64, usize)> = (0..met.cells.len()).filter_map(|r| value(r).map(|v| (v, r))).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all
    };
    let durations = spread(&|r| met.cells[r].map(|c| c.duration_ns as f64));
    each_excess(&durations, |r, value, excess| {
        tally[r].duration.add(value);
        tally[r].wait.add(value - durations[0].0);
        if let Some(excess) = excess {
            tally[r].less_wait.add(-excess);
        }
    });
    // Entries relative to this collective: absolute times would lose their low digits in a double.
    let entries = spread(&|r| {
        bounds[r]?;
        met.cells[r].map(|c| (c.entry_ns - met.at_ns) as f64)
    });
    each_excess(&entries, |r, value, excess| {
        tally[r].lateness.add(value - entries[0].0);
        if let Some(excess) = excess {
            tally[r].later.add(excess);
        }
    });
    let own = spread(&|r| met.cells[r].and_then(|c| c.own_ns).map(|v| v as f64));
    each_excess(&own, |r, _, excess| {
        if let Some(excess) = excess {
            tally[r].more_own.add(excess);
        }
    });
}

/// For each value of a sorted list: its rank, itself, and how far it lies above the median of the others.
fn each_excess(sorted: &[(f64, usize)], mut each: impl FnMut(usize, f64, Option<f64>)) {
    let values: Vec<f64> = sorted.iter().map(|v| v.0).collect();
    for (place, &(value, r)) in sorted.iter().enumerate() {
        each(r, value, median_without(&values, place).map(|m| value - m));
    }
}

fn rate(
    tally: &[Tally],
    collectives: usize,
    wall_ns: f64,
    waits: Waits,
    bounds: &[Option<f64>],
    rules: &Rules,
) -> Vec<Score> {
    let per_wall = |mean: f64| {
        if wall_ns > 0.0 { mean * collectives as f64 / wall_ns } else { 0.0 }
    };
    let shorter: Vec<Option<f64>> = tally.iter().map(|t| t.duration.mean().map(|d| -d)).collect();
    let later: Vec<Option<f64>> = tally.iter().map(|t| t.lateness.mean()).collect();
    let waited: Vec<Option<f64>> = tally.iter().map(|t| t.wait.mean()).collect();
    let (z_wait, z_late) = (outliers(&shorter, |_| 0.0), outliers(&later, |r| bounds[r].unwrap_or(0.0)));
    let ranks = shorter.iter().flatten().count();

    (0..tally.len())
        .map(|r| {
            let t = &tally[r];
            let mut score = Score::default();
            // A rank that took part in less than half of the window says nothing.
            if t.duration.n * 2.0 < collectives as f64 {
                return score;
            }
            let less_wait = t.less_wait.mean().unwrap_or(0.0);
            let late = t.later.mean().zip(bounds[r]);
            let late_enough = late.is_some_and(|(mean, bound)| {
                mean > bound
                    && per_wall(mean) >= rules.effect
                    && if ranks >= 4 { z_late[r].is_some_and(|z| z > rules.z) } else { stands_out(&later, r, rules) }
            });
            match waits {
                Waits::Seen | Waits::Assumed => {
                    score.z = if ranks >= 4 { z_wait[r] } else { None };
                    score.excess_ns = less_wait;
                    score.consistency = t.less_wait.consistency().unwrap_or(0.0);
                    score.mostly = t.less_wait.positive / t.less_wait.n.max(1.0);
                    let stands = if ranks >= 4 {
                        z_wait[r].is_some_and(|z| z > rules.z)
                    } else {
                        waits_least(&waited, r, rules)
                    };
                    // By the clocks it does not enter late: it leaves early, which holds nobody up.
                    let contradicted = late.is_some_and(|(mean, bound)| mean + bound < less_wait / 2.0);
                    let floor = if waits == Waits::Assumed { ASSUMED_FLOOR_NS } else { 0.0 };
                    score.share = per_wall(less_wait);
                    score.flagged = stands && score.share >= rules.effect && less_wait > floor && !contradicted;
                    score.late_but_waits =
                        late_enough && late.is_some_and(|(mean, bound)| less_wait < (mean - bound) / 2.0);
                }
                Waits::Enqueued => {
                    score.z = if ranks >= 4 { z_late[r] } else { None };
                    score.excess_ns = late.map_or(0.0, |(mean, _)| mean);
                    score.consistency = t.later.consistency().unwrap_or(0.0);
                    score.mostly = t.later.positive / t.later.n.max(1.0);
                    score.share = per_wall(score.excess_ns);
                    score.flagged = late_enough;
                }
                Waits::Inconsistent => {}
            }
            score
        })
        .collect()
}

/// z of each value over the other ones.
fn outliers(values: &[Option<f64>], floor: impl Fn(usize) -> f64) -> Vec<Option<f64>> {
    let known: Vec<(usize, f64)> = values.iter().enumerate().filter_map(|(r, v)| v.map(|v| (r, v))).collect();
    let mut all = vec![None; values.len()];
    let mut others = Vec::with_capacity(known.len());
    for &(r, value) in &known {
        others.clear();
        others.extend(known.iter().filter(|(o, _)| *o != r).map(|(_, v)| *v));
        all[r] = robust_z(value, &others, floor(r));
    }
    all
}

/// Two or three ranks: every other rank waits at least `ratio` times what this one waits.
fn waits_least(waited: &[Option<f64>], r: usize, rules: &Rules) -> bool {
    let Some(own) = waited[r] else { return false };
    let mut others = waited.iter().enumerate().filter(|(o, _)| *o != r).filter_map(|(_, w)| *w).peekable();
    others.peek().is_some() && others.all(|w| w > 0.0 && w >= rules.ratio * own)
}

/// Two or three ranks, entries only: it is at least `ratio` times as late as any other.
fn stands_out(lateness: &[Option<f64>], r: usize, rules: &Rules) -> bool {
    let Some(own) = lateness[r] else { return false };
    let mut others = lateness.iter().enumerate().filter(|(o, _)| *o != r).filter_map(|(_, l)| *l).peekable();
    others.peek().is_some() && others.all(|l| own >= rules.ratio * l)
}

/// Robust deviation of a rank's own earlier windows: median and scale of its excess.
pub(crate) fn history(excess: impl Iterator<Item = f64> + Clone) -> Option<(f64, f64)> {
    let mid = median(excess.clone())?;
    let mad = median(excess.map(|e| (e - mid).abs()))?;
    Some((mid, 1.4826 * mad))
}
