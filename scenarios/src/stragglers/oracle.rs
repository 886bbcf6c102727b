//! Whether a culprit's lateness is in what was recorded: by the truth of where its host waits,
//! which no analysis has, and by tests that the analysis does not use.
//!
//! A rank's own work in a step is the time between the calls that end steps, less all calls and
//! waits in it. It is in the data where, over the steps in which the rank is slow, it is more than
//! that of the ranks which do the same work, surer than chance. Where hosts wait unseen, own work
//! can only be told from when ranks of other hosts enter: what the clocks leave open at each wait
//! does not count, and with a host that is not heard it is not told whether that one was waited
//! for.

use std::collections::BTreeMap;

use verdicts::Observation;

use super::draw::{Drawn, Mode};
use crate::simulate::{self, Grid};

/// A normal deviate that one of 30,000 reaches by chance.
const SURE: f64 = 4.0;
/// Steps in which it is slow, at least.
const FEWEST: usize = 3;

/// Own work of a process, step by step; by how many steps before the last one.
type Steps = BTreeMap<usize, f64>;

/// Whether one of the culprits of a job shows in what was recorded of it.
#[must_use]
pub fn in_the_data(drawn: &Drawn) -> bool {
    let Grid { tensor, data, job, .. } = &drawn.grid;
    let mut grid = drawn.grid.clone();
    // The same job, whose waits are told and of which no record is lost.
    (grid.job.syncs_seen, grid.job.loss) = (!grid.job.syncs, 0.0);
    let observed = grid.observe(drawn.seed());
    let mut calls: BTreeMap<i64, Vec<&Observation>> = BTreeMap::new();
    for seen in observed.observations.iter().chain(&observed.unnumbered) {
        calls.entry(seen.pid).or_default().push(seen);
    }
    let mut waits: BTreeMap<i64, Vec<(i64, i64)>> = BTreeMap::new();
    for sync in &observed.syncs {
        waits.entry(sync.pid).or_default().push((sync.start_ns, sync.duration_ns));
    }
    let mut calls_a_step = 0;
    let steps: BTreeMap<usize, Steps> = (0..job.ranks)
        .filter_map(|rank| {
            let pid = simulate::pid(rank);
            let mut calls = calls.remove(&pid)?;
            calls.sort_by_key(|seen| seen.entry_ns);
            calls_a_step = calls.len() / job.steps.max(1);
            Some((rank, own_work(&calls, &waits.remove(&pid).unwrap_or_default())))
        })
        .collect();
    let unseen = drawn.mode == Mode::Enqueueing && !job.runs_ahead;
    if unseen && !job.missing_nodes.is_empty() {
        return false;
    }
    let open_ns = if unseen { (2 * calls_a_step as i64 * job.clock_bound_ns) as f64 } else { 0.0 };
    let culprits: Vec<usize> = drawn.culprits.iter().filter_map(|rank| usize::try_from(*rank).ok()).collect();
    let stage = |rank: usize| rank / (tensor * data);
    culprits.iter().any(|&rank| {
        let Some(own) = steps.get(&rank) else { return false };
        let slow = |before: &usize| job.steps.checked_sub(before + 1).is_some_and(|step| job.extra_ns(rank, step) > 0);
        let peers = || steps.iter().filter(|(r, _)| stage(**r) == stage(rank) && !culprits.contains(r));
        let mine: Vec<f64> = own.iter().filter(|(before, _)| slow(before)).map(|(_, ns)| ns - open_ns).collect();
        let theirs = peers().flat_map(|(_, of)| of.iter().filter(|(before, _)| slow(before)).map(|(_, ns)| *ns));
        let theirs: Vec<f64> = theirs.collect();
        mine.len() >= FEWEST
            && theirs.len() >= FEWEST
            && (welch(&mine, &theirs) >= SURE || mann_whitney(&mine, &theirs) >= SURE)
    })
}

/// Of a process's calls, in order, and waits: start and length.
fn own_work(calls: &[&Observation], waits: &[(i64, i64)]) -> Steps {
    let size = |seen: &Observation| seen.nranks;
    let largest = calls.iter().map(|seen| size(seen)).max().flatten();
    let ends = |seen: &Observation| size(seen) == largest && &*seen.func == "all_reduce";
    // A tensor parallel group of all ranks has the size of the job: the job's own comes last.
    let last = calls.iter().rfind(|seen| ends(seen)).map(|seen| seen.comm_hash);
    let places: Vec<usize> =
        (0..calls.len()).filter(|at| Some(calls[*at].comm_hash) == last && ends(calls[*at])).collect();
    let mut steps = Steps::new();
    for (before, pair) in places.windows(2).rev().enumerate() {
        let (from, to) = (calls[pair[0]].entry_ns, calls[pair[1]].entry_ns);
        let called: i64 = calls[pair[0]..pair[1]].iter().map(|seen| seen.duration_ns).sum();
        let waited: i64 = waits.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, ns)| *ns).sum();
        steps.insert(before, (to - from - called - waited) as f64);
    }
    steps
}

/// Welch's t of two samples' means (1947): how much larger the first is.
fn welch(a: &[f64], b: &[f64]) -> f64 {
    let moments = |x: &[f64]| {
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        (mean, x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0) / n)
    };
    let ((a, of_a), (b, of_b)) = (moments(a), moments(b));
    (a - b) / (of_a + of_b).sqrt().max(1.0)
}

/// Mann and Whitney's U (1947) as a normal deviate: how much more often a value of the first sample
/// is the larger one.
fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    let mut b = b.to_vec();
    b.sort_by(f64::total_cmp);
    let larger: usize = a.iter().map(|x| b.partition_point(|y| y < x)).sum();
    let (n, m) = (a.len() as f64, b.len() as f64);
    (larger as f64 - n * m / 2.0) / (n * m * (n + m + 1.0) / 12.0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::super::draw_hard;
    use super::*;

    #[test]
    fn two_samples_differ_where_one_is_larger() {
        let a: Vec<f64> = (0..20).map(|i| 110.0 + f64::from(i % 5)).collect();
        let b: Vec<f64> = (0..20).map(|i| 100.0 + f64::from(i % 5)).collect();
        assert!(welch(&a, &b) > SURE && mann_whitney(&a, &b) > SURE);
        assert!(welch(&b, &b).abs() < 0.1 && mann_whitney(&b, &b) < 1.0 && welch(&b, &a) < -SURE);
    }

    #[test]
    fn the_oracle_sees_most_culprits_and_none_of_the_others() {
        let all: Vec<Drawn> = (0..130).map(|number| draw_hard(1, number)).filter(|d| d.grid.job.ranks <= 16).collect();
        let shown: Vec<&Drawn> = all.iter().filter(|drawn| drawn.shown).collect();
        let seen = shown.iter().filter(|drawn| in_the_data(drawn)).count();
        assert!(seen * 10 >= shown.len() * 8, "{seen} of {}", shown.len());
        // A rank that is slow by nothing does not show.
        let quiet = shown.iter().filter(|drawn| {
            let mut drawn = (**drawn).clone();
            drawn.grid.job.slow.iter_mut().for_each(|slow| slow.extra_ns = slow.extra_ns.signum());
            in_the_data(&drawn)
        });
        assert_eq!(quiet.count(), 0);
    }
}
