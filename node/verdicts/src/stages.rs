//! What holds a job up when no rank does: a stage that has more to do, or lateness that goes round.
//!
//! Jobs and stages are recognised from communicators alone: processes that share a communicator
//! belong to one job; those that share one in which all do the same work (a data or tensor parallel
//! group) are replicas of one stage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use observed::{Process, RankRef, Rules, hex};
use stats::{Mean, median};

use super::classes::Union;
use super::comm::{Cell, Comm, Met};
use super::report::{Stage, StageRank, Verdict};
use super::score::Scored;
use super::suspects::{Elsewhere, of_run};
use super::tally::Waits;

/// The processes in the data of the job that a communicator belongs to; `all` are the
/// communicators of the input.
pub(crate) fn job_of<'a>(all: impl Iterator<Item = &'a Comm>, comm: &Comm) -> BTreeSet<Process> {
    let mut jobs = Union::default();
    all.for_each(|c| jobs.join(c));
    let Some(m) = comm.members.first() else { return BTreeSet::new() };
    let root = jobs.root(&(Arc::clone(&m.node), m.pid));
    jobs.parent.keys().filter(|p| jobs.root(p) == root).cloned().collect()
}

/// By how much the ranks to blame compute longer between two instants than any other rank of the
/// job, as a share of wall time: by more they cannot make it longer, for a step takes at least as
/// long as each of its ranks computes in it. None where nobody else's compute time is known.
pub(crate) fn beyond_the_job(
    scored: &[Scored],
    job: &BTreeSet<Process>,
    blamed: &BTreeSet<Process>,
    within_ns: (i64, i64),
    rules: &Rules,
) -> Option<f64> {
    let shares = compute_shares(scored, rules, within_ns);
    let of_job = |is_blamed: bool| {
        let of = shares.iter().filter(move |(p, _)| job.contains(*p) && blamed.contains(*p) == is_blamed);
        of.map(|(_, (share, _))| share.measured).max_by(f64::total_cmp)
    };
    Some((of_job(true)? - of_job(false)?).max(0.0))
}

/// One stage whose replicas all take clearly longer than any other stage's.
pub(crate) fn stage_imbalance(
    scored: &[Scored],
    thin: &[Comm],
    elsewhere: &Elsewhere<'_>,
    rules: &Rules,
) -> Option<Verdict> {
    if scored.len() < 2 {
        // The ranks of one communicator are one stage, or, where they do different work, alone.
        return None;
    }
    let (mut jobs, mut stages) = (Union::default(), Union::default());
    thin.iter().for_each(|c| jobs.join(c));
    for s in scored {
        jobs.join(&s.comm);
        if !s.comm.mixed() {
            stages.join(&s.comm);
        }
    }
    let shares = compute_shares(scored, rules, (i64::MIN, i64::MAX));
    // By job, then stage: the processes and their share of compute time.
    let mut by_job: BTreeMap<Process, BTreeMap<Process, Vec<ComputeShare>>> = BTreeMap::new();
    for (process, (share, comm)) in shares {
        let (job, stage) = (jobs.root(&process), stages.root(&process));
        by_job.entry(job).or_default().entry(stage).or_default().push((process, share, comm));
    }
    by_job.into_values().filter_map(|stages| slowest_stage(stages.into_values().collect(), elsewhere, rules)).max_by(
        |a, b| match (a, b) {
            (Verdict::StageImbalance { share: a, .. }, Verdict::StageImbalance { share: b, .. }) => a.total_cmp(b),
            _ => std::cmp::Ordering::Equal,
        },
    )
}

/// A process, its share of compute time, and the communicator that shows it.
type ComputeShare = (Process, Share, u64);

/// Compute time as a share of wall time, and between which shares the clocks leave it, where it was
/// derived from entries.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    measured: f64,
    least: f64,
    most: f64,
}

fn slowest_stage(mut stages: Vec<Vec<ComputeShare>>, elsewhere: &Elsewhere<'_>, rules: &Rules) -> Option<Verdict> {
    let median_of = |stage: &[ComputeShare], of: fn(&Share) -> f64| {
        median(stage.iter().map(|(_, share, _)| of(share))).unwrap_or(0.0)
    };
    let middle = |stage: &[ComputeShare]| median_of(stage, |share| share.measured);
    stages.sort_by(|a, b| middle(b).total_cmp(&middle(a)));
    let (slowest, others) = stages.split_first()?;
    // One process alone could as well be a slow rank.
    if slowest.len() < 2 || others.is_empty() {
        return None;
    }
    // Whatever the clocks leave open counts against it.
    let most = |stage: &[ComputeShare]| median_of(stage, |share| share.most);
    let (surely, at_most) = (median_of(slowest, |share| share.least), median(others.iter().map(|stage| most(stage)))?);
    let next = others.iter().map(|stage| most(stage)).fold(0.0, f64::max);
    let least = slowest.iter().map(|(_, share, _)| share.least).fold(f64::INFINITY, f64::min);
    // And all of its ranks have more to do than any other stage, by half of it at least: a slow
    // link takes time of a part of them.
    let all = least - next >= (surely - at_most) / 2.0;
    if surely - at_most < rules.effect || surely < rules.stage_ratio * at_most || !all {
        return None;
    }
    let usual = median(others.iter().map(|stage| middle(stage)))?;
    let (share, ratio) = (middle(slowest) - usual, middle(slowest) / usual.max(f64::MIN_POSITIVE));
    let who =
        |p: &Process| RankRef { rank: elsewhere.job_rank(&p.0, p.1).unwrap_or(-1), node: p.0.to_string(), pid: p.1 };
    let mut ranks: Vec<RankRef> = slowest.iter().map(|(p, ..)| who(p)).collect();
    ranks.sort();
    let of_stage = |stage: &Vec<ComputeShare>| {
        let one = |(p, share, comm): &ComputeShare| StageRank {
            who: who(p),
            comm_hash: hex(*comm),
            own_share: share.measured,
        };
        let mut ranks: Vec<StageRank> = stage.iter().map(one).collect();
        ranks.sort_by(|a, b| a.who.cmp(&b.who));
        Stage { ranks, own_share: middle(stage) }
    };
    let stages = stages.iter().map(of_stage).collect();
    Some(Verdict::StageImbalance { ranks, ratio, share, stages })
}

/// The share of wall time that each process spends on its own between two instants, in the
/// communicator that shows most of it, and which that is.
fn compute_shares(scored: &[Scored], rules: &Rules, within_ns: (i64, i64)) -> BTreeMap<Process, (Share, u64)> {
    let mut best: BTreeMap<Process, (f64, Share, u64)> = BTreeMap::new();
    for s in scored.iter().filter(|s| s.waits == Waits::Seen || s.comm.reconstructed) {
        let run = s.between(within_ns.0, within_ns.1);
        let (tallies, _) = s.pooled(run.clone(), rules);
        let wall_ns: f64 = s.windows[run.clone()].iter().map(|w| w.wall_ns).sum();
        let collectives: f64 = of_run(s, &run).iter().map(|met| f64::from(met.weight)).sum();
        for (m, tally) in s.comm.members.iter().zip(&tallies) {
            let Some(mean) = tally.compute.mean().filter(|_| wall_ns > 0.0) else { continue };
            let share = |compute_ns: f64| compute_ns * collectives / wall_ns;
            let unsure = |open: &Mean| open.mean().unwrap_or(0.0);
            let (less, more) = (unsure(&tally.compute_less), unsure(&tally.compute_more));
            let share = Share { measured: share(mean), least: share(mean - less), most: share(mean + more) };
            let entry = best.entry((Arc::clone(&m.node), m.pid)).or_default();
            if tally.compute.n > entry.0 {
                *entry = (tally.compute.n, share, s.comm.hash);
            }
        }
    }
    best.into_iter().map(|(process, (_, share, comm))| (process, (share, comm))).collect()
}

/// Lateness that goes round in one communicator.
pub(crate) struct Rotation {
    /// Which scored communicator.
    comm: usize,
    /// Share of wall time by which the last comes after the median.
    share: f64,
    /// Ranks that were last in at least half as many collectives as their due.
    taking_turns: usize,
    /// How alike a rank's excess of compute time is from one collective to the next: about 0 for
    /// noise, towards 1 where what a rank has to do differs from step to step.
    carries_over: f64,
}

impl Rotation {
    /// Its compute time carries over from collective to collective: that is what the ranks were
    /// given to do, not noise.
    pub(crate) fn verdict(&self, scored: &[Scored], rules: &Rules) -> Option<Verdict> {
        (self.carries_over >= rules.carries_over).then(|| Verdict::DataImbalance {
            comm_hash: hex(scored[self.comm].comm.hash),
            share: self.share,
            taking_turns: self.taking_turns,
        })
    }

    /// The same as a remark, where noise would look alike.
    pub(crate) fn note(&self, scored: &[Scored]) -> String {
        format!(
            "{:.0} % of the time goes into waiting for whoever is last in communicator {}, and {} ranks take turns at it: \
             noise, or uneven data",
            100.0 * self.share,
            hex(scored[self.comm].comm.hash),
            self.taking_turns
        )
    }
}

/// Lateness that goes round: in most collectives somebody is clearly late, but not the same rank,
/// and the time lost so is worth speaking of. The communicator where it costs most.
pub(crate) fn rotation(scored: &[Scored], rules: &Rules) -> Option<Rotation> {
    let all = scored.iter().enumerate().filter_map(|(comm, s)| rotates(comm, s, rules));
    all.max_by(|a, b| a.share.total_cmp(&b.share))
}

fn rotates(comm: usize, s: &Scored, rules: &Rules) -> Option<Rotation> {
    let members = s.comm.members.len();
    let period = s.comm.period_ns().filter(|p| *p > 0.0)?;
    // Where calls only enqueue, entries tell who comes last, beyond what the clocks may be wrong.
    let by_entries = s.waits == Waits::Enqueued;
    let bound_ns =
        if by_entries { s.bounds.iter().try_fold(0.0, |widest: f64, b| Some(widest.max((*b)?)))? } else { 0.0 };
    if members < Rules::ROTATION_RANKS || !(s.waits == Waits::Seen || by_entries) || s.comm.mixed() {
        return None;
    }
    // Of each collective: who came last, and by how much.
    let waited = |c: &Cell| if by_entries { -c.entry_ns } else { c.duration_ns };
    let came_last = |met: &Met| {
        let durations = || met.cells.iter().enumerate().filter_map(|(r, c)| Some((waited(c.as_ref()?), r)));
        let (least, r) = durations().min()?;
        // From the first one: as floats, times since 1970 lose digits.
        let mid = median(durations().map(|(d, _)| d.saturating_sub(least) as f64))?;
        Some((r, (mid - bound_ns).max(0.0)))
    };
    let lasts: Vec<Option<(usize, f64)>> = s.comm.met.iter().map(came_last).collect();
    let wall_ns: f64 = s.windows.iter().map(|w| w.wall_ns).sum();
    let share = |lost: f64| if wall_ns > 0.0 { lost / wall_ns } else { 0.0 };
    let lost_ns = |met: &Met, late: f64| late * f64::from(met.weight);
    // Whoever's doing it is: no more than this.
    let most: f64 = s.comm.met.iter().zip(&lasts).filter_map(|(met, last)| Some(lost_ns(met, last.as_ref()?.1))).sum();
    if share(most) < rules.rotating {
        return None;
    }
    let own_known = !by_entries || s.comm.reconstructed;
    let mut last = vec![0usize; members];
    let (mut lost, mut clear, mut count) = (0.0, 0usize, 0usize);
    // Per rank, the excess of compute time in the previous collective.
    let mut before: Vec<Option<f64>> = vec![None; members];
    let (mut product, mut square) = (0.0, 0.0);
    for (met, came_last) in s.comm.met.iter().zip(lasts) {
        let own = |r: usize| met.cells[r].as_ref().and_then(|c| c.compute_ns).map(|v| v as f64);
        let usual = median((0..members).filter_map(own));
        let excess: Vec<Option<f64>> = (0..members).map(|r| Some(own(r)? - usual?)).collect();
        for (now, then) in excess.iter().zip(&before) {
            if let Some((now, then)) = now.zip(*then) {
                product += now * then;
                square += then * then;
            }
        }
        let Some((r, late)) = came_last else { continue };
        count += 1;
        // Only what its compute time explains: a rank that is passed a delay is not taking its
        // turn.
        if !own_known || excess[r].map_or(s.comm.reconstructed, |own| own >= rules.compute_share * late) {
            lost += lost_ns(met, late);
            clear += usize::from(late >= rules.effect * period);
            last[r] += 1;
        }
        before = excess;
    }
    let share = share(lost);
    let due = count as f64 / members as f64;
    let taking_turns = last.iter().filter(|n| **n > 0 && **n as f64 * 2.0 >= due).count();
    // So many different ones are last in so many collectives where it is chance who is.
    let by_chance = members as f64 * (1.0 - (1.0 - 1.0 / members as f64).powf(count as f64));
    let most = last.iter().max().copied().unwrap_or(0);
    if share < rules.rotating
        || count < Rules::ROTATION_COLLECTIVES
        || clear * 2 < count
        || (taking_turns as f64) * 2.0 < by_chance
        || most * 2 > count
    {
        return None;
    }
    let carries_over = if square > 0.0 { product / square } else { 0.0 };
    // Few collectives carry over by chance.
    let carries_over =
        if carries_over * (count as f64).sqrt() >= Rules::AUTOCORRELATION_ERRORS { carries_over } else { 0.0 };
    Some(Rotation { comm, share, taking_turns, carries_over })
}
