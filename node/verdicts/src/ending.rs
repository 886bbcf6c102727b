//! When a job made its last call, where that is long before the end of the time that was asked
//! about: what was going on then does not any more.

use std::collections::BTreeSet;

use observed::{ClockOffset, Input, Process, Run, Sampled};

use super::report::{Report, Verdict};

/// A job without a call for so long has ended, makes no progress, or computes long.
const SILENT_NS: i64 = 10_000_000_000;
/// As many times as long as any time before without one.
const LONGER: i64 = 3;
/// How finely times without a call are looked at.
const SECOND_NS: i64 = 1_000_000_000;

/// Sets in the report when the last call ended, where the job is silent since.
pub(crate) fn settle(input: &Input, report: &mut Report) {
    let (mut last_ns, mut seconds) = (None, BTreeSet::new());
    // Calls mostly lie in the second in which another did.
    let mut within: Option<(i64, i64)> = None;
    for end_ns in ends(input) {
        last_ns = last_ns.max(Some(end_ns));
        if within.is_none_or(|(from_ns, to_ns)| end_ns < from_ns || end_ns >= to_ns) {
            let second = end_ns.div_euclid(SECOND_NS);
            seconds.insert(second);
            let from_ns = second.saturating_mul(SECOND_NS);
            within = Some((from_ns, from_ns.saturating_add(SECOND_NS)));
        }
    }
    report.evidence.last_call_ns = last_ns;
    let Some(last_ns) = last_ns else { return };
    let longest = seconds.iter().zip(seconds.iter().skip(1)).map(|(one, next)| next - one).max().unwrap_or(0);
    let silent_ns = input.until_ns.saturating_sub(last_ns);
    report.evidence.is_silent = silent_ns >= SILENT_NS.max(longest.saturating_mul(LONGER * SECOND_NS));
    if report.evidence.is_silent {
        report.over(|_, _| true);
    }
}

/// When each call ended, on the coordinator's clock; of runs of calls, when they did on average, and
/// the last of the last run.
fn ends(input: &Input) -> impl Iterator<Item = i64> {
    let aligned = |clock: Option<&ClockOffset>, end_ns: i64| clock.map_or(end_ns, |clock| clock.align(end_ns));
    let clock = |node: &str| input.clocks.get(node);
    let calls = input.observations.iter().chain(&input.unnumbered);
    let calls = calls.map(move |seen| aligned(clock(&seen.node), seen.entry_ns.saturating_add(seen.duration_ns)));
    let runs = input.sampled.iter().flat_map(move |of| {
        let clock = clock(&of.node);
        run_ends(of).map(move |end_ns| aligned(clock, end_ns))
    });
    calls.chain(runs)
}

/// The mean end of each run, and the end of the last call of the last one: the calls of a run are taken
/// to lie as far apart as they do from the run before to it.
fn run_ends(of: &Sampled) -> impl Iterator<Item = i64> {
    let end = |run: &Run| run.entry_ns.saturating_add(run.duration_ns);
    let last = of.runs.last_chunk().map(|[before, last]: &[Run; 2]| {
        let apart = end(last).saturating_sub(end(before)).max(0) as f64;
        let (calls, of_last) = (f64::from(before.weight) + f64::from(last.weight), f64::from(last.weight));
        end(last).saturating_add((apart / calls.max(1.0) * (of_last - 1.0)) as i64)
    });
    of.runs.iter().map(end).chain(last)
}

impl Report {
    /// Says that the processes of the job that are known to have ended did. `all`: these are all
    /// that made calls.
    pub fn set_ended(&mut self, ended: &BTreeSet<Process>, all: bool) {
        self.evidence.ended = all;
        self.over(|node, pid| all || ended.iter().any(|(of, process)| &**of == node && *process == pid));
    }

    /// What the ranks did of which that is said does not go on.
    fn over(&mut self, is_over: impl Fn(&str, i64) -> bool) {
        if let Verdict::Rank { culprit, also, .. } = &mut self.verdict {
            for late in std::iter::once(culprit).chain(also) {
                late.ongoing &= !is_over(&late.node, late.pid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use observed::Observation;

    const S: i64 = 1_000_000_000;

    #[test]
    fn a_job_is_silent_when_it_makes_no_call_for_much_longer_than_before() {
        let of = |entries_s: &[i64], until_s: i64| {
            let calls = entries_s.iter().zip(0..);
            let observations =
                calls.map(|(at, seq)| Observation::test_call(0, 1, "all_reduce", seq, at * S, 0)).collect();
            let mut report = Report::default();
            settle(&Input { observations, until_ns: until_s * S, ..Input::default() }, &mut report);
            (report.evidence.last_call_ns.map(|at| at / S), report.evidence.is_silent)
        };
        assert_eq!(of(&[100, 101, 102], 111), (Some(102), false));
        assert_eq!(of(&[100, 101, 102], 112), (Some(102), true));
        assert_eq!(of(&[100, 120, 140], 190), (Some(140), false), "its steps take 20 s");
        assert_eq!(of(&[100, 120, 140], 200), (Some(140), true));
        assert_eq!(of(&[], 200), (None, false));
    }

    #[test]
    fn runs_of_calls_tell_when_the_last_one_ended() {
        // Runs of 10 calls, one each 100 ms: the last call of the last one ends half a second after its
        // mean.
        let run = |at: i64| Run { seq: 0, entry_ns: at * S, weight: 10, ..Run::default() };
        let of = |until_s: i64| {
            let sampled = vec![Sampled { runs: vec![run(100), run(101), run(102)], ..Sampled::default() }];
            let mut report = Report::default();
            settle(&Input { sampled, until_ns: until_s * S, ..Input::default() }, &mut report);
            (report.evidence.last_call_ns.map(|at| at / (S / 100)), report.evidence.is_silent)
        };
        assert_eq!((of(112), of(113)), ((Some(10_245), false), (Some(10_245), true)));
    }

    #[test]
    fn who_has_ended_does_not_go_on() {
        let late = |pid: i64| crate::Culprit { node: "n1".into(), pid, ongoing: true, ..crate::Culprit::default() };
        let verdict = Verdict::Rank { culprit: late(1), also: vec![late(2)], held_up: Vec::new() };
        let mut report = Report { verdict, ..Report::default() };
        report.set_ended(&BTreeSet::from([("n1".into(), 2)]), false);
        let going = |report: &Report| report.verdict.named().iter().map(|late| late.ongoing).collect::<Vec<_>>();
        assert_eq!((going(&report), report.evidence.ended), (vec![true, false], false));
        report.set_ended(&BTreeSet::new(), true);
        assert_eq!((going(&report), report.evidence.ended), (vec![false, false], true));
    }
}
