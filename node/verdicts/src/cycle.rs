//! Tells steps: the cycle of collectives that a communicator repeats, and what a culprit costs each
//! turn of it.
//!
//! Knows only which function is called when. What the culprit costs altogether is summed up in
//! `verdict.rs`.

use std::collections::HashMap;

use observed::Rules;

use super::comm::Met;
use super::report::PerStep;

/// What each step costs, from what all collectives of an episode cost together: `longer_ns` of wall
/// time, `wasted_ns` of the time of ranks. None where no cycle shows.
pub(crate) fn per_step(met: &[Met], longer_ns: f64, wasted_ns: f64) -> Option<PerStep> {
    let collectives = cycle(met)?;
    let calls: f64 = met.iter().map(|m| f64::from(m.weight)).sum();
    let steps = (calls / collectives as f64).round().max(1.0);
    let step_ns = cycle_ns(met, collectives)?;
    let wasted = longer_ns / steps;
    Some(PerStep {
        steps: steps as u64,
        collectives,
        step_ns: step_ns as i64,
        wasted_ns: wasted as i64,
        gpu_seconds_wasted: wasted_ns / steps / 1e9,
        slowdown: (wasted < step_ns).then(|| step_ns / (step_ns - wasted)),
    })
}

/// After how many collectives the same functions are called again: of the distances at which almost
/// all calls find the same function, the shortest. Runs of calls by their means do not tell their
/// order: only where one function is called.
fn cycle(met: &[Met]) -> Option<usize> {
    let first = met.first()?;
    if met.len() < Rules::CYCLE_REPEATS {
        return None;
    }
    if met.iter().all(|m| m.func == first.func) {
        return Some(1);
    }
    if met.iter().any(|m| m.weight > 1) {
        return None;
    }
    cycle_of(met.iter().map(|m| &*m.func))
}

/// The same of calls one by one, by their functions' names: how many make a step. None where no
/// cycle shows.
pub fn cycle_of<'a>(funcs: impl Iterator<Item = &'a str>) -> Option<usize> {
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut called = Vec::new();
    for func in funcs {
        let next = numbers.len();
        called.push(*numbers.entry(func).or_insert(next));
    }
    if called.len() < Rules::CYCLE_REPEATS {
        return None;
    }
    if numbers.len() == 1 {
        return Some(1);
    }
    let broken = |length: usize| {
        let pairs = called.iter().zip(&called[length..]);
        let unlike = pairs.filter(|(one, other)| one != other).count();
        (length, unlike as f64 / (called.len() - length) as f64)
    };
    let lengths: Vec<(usize, f64)> = (1..=(called.len() / Rules::CYCLE_REPEATS).min(Rules::CYCLE_LONGEST))
        .map(broken)
        .filter(|(_, part)| *part <= Rules::CYCLE_BROKEN)
        .collect();
    let best = lengths.iter().map(|(_, part)| *part).min_by(f64::total_cmp)?;
    lengths.iter().find(|(_, part)| *part <= best + Rules::CYCLE_BETTER).map(|(length, _)| *length)
}

/// How long a cycle takes: the mean over the complete ones.
fn cycle_ns(met: &[Met], collectives: usize) -> Option<f64> {
    let end = (met.len() - 1) / collectives * collectives;
    let (first, last) = (met.first()?, met.get(end)?);
    // The time of a run of calls is its middle.
    let ends = f64::from(first.weight) + f64::from(last.weight);
    let calls = met[..=end].iter().map(|m| f64::from(m.weight)).sum::<f64>() - ends / 2.0;
    let repeats = calls / collectives as f64;
    (repeats > 0.0).then(|| (last.at_ns - first.at_ns) as f64 / repeats).filter(|ns| *ns > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// Collectives 10 ms apart: a letter names the function.
    fn met(calls: &str) -> Vec<Met> {
        let one = |(i, c): (usize, char)| Met {
            at_ns: i as i64 * 10 * MS,
            func: c.to_string().into(),
            seq: 0,
            weight: 1,
            cells: Vec::new(),
        };
        calls.chars().enumerate().map(one).collect()
    }

    #[test]
    fn a_step_is_what_repeats() {
        assert_eq!(cycle(&met("aaaa")), Some(1));
        assert_eq!(cycle(&met(&"ab".repeat(20))), Some(2));
        assert_eq!(cycle(&met(&("a".repeat(25) + "b").repeat(4))), Some(26), "not one, though most calls repeat");
        assert_eq!(cycle(&met(&("a".repeat(200) + "b"))), Some(1), "what comes once is no part of a step");
        let lost = "ab".repeat(20) + &"ba".repeat(20);
        assert_eq!(cycle(&met(&lost)), Some(2), "one call was lost in the middle");
        assert_eq!(cycle(&met("abbabaaabbbabaab")), None);
        assert_eq!(cycle(&met("ababa")), None, "seen twice only");
        assert_eq!((cycle(&met("aa")), cycle(&[])), (None, None));
    }

    #[test]
    fn a_turn_counts_whole_turns_and_runs_by_their_weight() {
        assert_eq!(cycle_ns(&met(&"ab".repeat(20)), 2), Some(20e6));
        let mut runs = met("aaa");
        // 4, 2 and 4 calls, 10 ms apart each: middles at 15, 45 and 75 ms.
        for (run, (at, weight)) in runs.iter_mut().zip([(15, 4), (45, 2), (75, 4)]) {
            (run.at_ns, run.weight) = (at * MS, weight);
        }
        assert_eq!(cycle_ns(&runs, 1), Some(10e6));
        runs[1].func = "b".into();
        assert_eq!(cycle(&runs), None, "means of two functions do not tell who follows whom");
    }
}
