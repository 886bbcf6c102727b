//! Relative scores from timed work: how a rank's kernels compare with the fastest rank's, and with its own best.
//!
//! The scores that NVIDIA's resiliency extension prints, for those who know them. 1 is as fast as the fastest, 0.5
//! takes twice as long. They stand beside a verdict and do not make one: somebody always has the lowest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::classes::Process;
use super::observation::Work;
use super::stats::median;

/// Score of each process by what all of them have timed: for each name the fastest median over its own median, averaged
/// with the time spent in it as weight. Communication kernels ("nccl…", "rccl…") are left out: they contain waits. None
/// for a process that shares no name with all others.
#[must_use]
pub fn relative_scores(work: &[Work]) -> BTreeMap<Process, Option<f64>> {
    let mut times: BTreeMap<Process, BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    for w in work {
        let names = times.entry((Arc::clone(&w.node), w.pid)).or_default();
        if !w.name.starts_with("nccl") && !w.name.starts_with("rccl") {
            names.entry(&w.name).or_default().push(w.duration_ns.max(0) as f64);
        }
    }
    let mut common: Option<BTreeSet<&str>> = None;
    for names in times.values() {
        let mine: BTreeSet<&str> = names.keys().copied().collect();
        common = Some(common.map_or_else(|| mine.clone(), |c| c.intersection(&mine).copied().collect()));
    }
    let common = common.unwrap_or_default();
    let middle = |names: &BTreeMap<&str, Vec<f64>>, name: &str| median(names.get(name)?.iter().copied());
    let fastest: BTreeMap<&str, f64> = common
        .iter()
        .filter_map(|&name| Some((name, times.values().filter_map(|n| middle(n, name)).min_by(f64::total_cmp)?)))
        .collect();
    times
        .iter()
        .map(|(process, names)| {
            let (mut sum, mut weights) = (0.0, 0.0);
            for (&name, &best) in &fastest {
                let (Some(own), Some(all)) = (middle(names, name), names.get(name)) else { continue };
                let weight: f64 = all.iter().sum();
                if own > 0.0 {
                    sum += weight * best / own;
                    weights += weight;
                }
            }
            (process.clone(), (weights > 0.0).then(|| sum / weights))
        })
        .collect()
}

/// Scores of one process against its own past: after each value, the smallest so far over it.
#[must_use]
pub fn individual_scores(durations_ns: &[f64]) -> Vec<f64> {
    let mut best = f64::INFINITY;
    durations_ns
        .iter()
        .map(|&d| {
            best = best.min(d);
            if d > 0.0 { best / d } else { 1.0 }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(rank: usize, name: &str, durations: impl IntoIterator<Item = i64>) -> Vec<Work> {
        let one =
            |duration_ns| Work { node: format!("n{rank}").into(), pid: 1, name: name.into(), start_ns: 0, duration_ns };
        durations.into_iter().map(one).collect()
    }

    #[test]
    fn the_published_table_is_reproduced() {
        // NVIDIA/nvidia-resiliency-ext, tests/straggler/unit/test_relative_gpu_scores.py.
        let mut all = Vec::new();
        for r in 0..4 {
            let k = r as i64 + 1;
            all.extend(work(r, "kernel0", [k, k, 2 * k]));
            all.extend(work(r, "kernel1", [2 * k, 2 * k, 3 * k]));
            all.extend(work(r, "ncclDevKernel_AllReduce_Sum", [10, 20, 30].map(|d| d * (4 - r as i64))));
        }
        let scores: Vec<f64> = relative_scores(&all).into_values().flatten().collect();
        for (score, expected) in scores.iter().zip([1.0, 0.5, 1.0 / 3.0, 0.25]) {
            assert!((score - expected).abs() < 1e-9, "{scores:?}");
        }
        assert_eq!(scores.len(), 4);
        all.extend(work(4, "something else", [1]));
        assert!(relative_scores(&all).values().all(Option::is_none), "nothing in common, nothing to say");
        let own = individual_scores(&[1.0, 1.25, 2.0, 3.0]);
        assert!(own.iter().zip([1.0, 0.8, 0.5, 1.0 / 3.0]).all(|(a, b)| (a - b).abs() < 1e-9), "{own:?}");
    }
}
