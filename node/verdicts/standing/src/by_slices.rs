//! Verdicts on calls that were recorded in time slices: one for each slice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use observed::Rules;
use verdicts::{Report, Verdict};

use super::settle::settle;

/// Slices that a verdict rests on: a rank that costs little must be late in the one before, too, and
/// stays named for as many after it was late last.
const SLICES: usize = 3;

/// Two slices that begin within this are one: clocks are measured anew for each question.
const SAME_NS: u64 = 1_000_000_000;

/// Keeps the verdicts of slices from flapping, as those of windows are.
#[derive(Debug, Default)]
pub struct BySlices {
    raw: BTreeMap<i64, Arc<Report>>,
    began_ns: Option<i64>,
    /// For how long ranks have been seen to wait, where they do.
    waits_ns: Option<i64>,
    /// The longest such wait that ended by itself.
    usual_ns: i64,
}

impl BySlices {
    /// Takes in the verdict of a slice that began at a time and of which the calls up to another are
    /// known, and returns the one that stands. The slice that was judged last may be judged again.
    /// `gone` are processes that have ended.
    pub fn settle(
        &mut self,
        (began_ns, until_ns): (i64, i64),
        mut report: Report,
        gone: &BTreeSet<(&str, i64)>,
    ) -> Arc<Report> {
        self.learn_waits(&mut report, until_ns);
        let last = self.raw.last_key_value().map_or(0, |(number, _)| *number);
        let is_same = self.began_ns.is_some_and(|before_ns| before_ns.abs_diff(began_ns) < SAME_NS);
        let number = if is_same { last } else { last + 1 };
        let first = self.raw.is_empty();
        self.began_ns = Some(began_ns);
        self.raw.insert(number, Arc::new(report));
        while self.raw.len() > SLICES {
            self.raw.pop_first();
        }
        let settled = settle(&self.raw, number, 1, gone);
        // Another judge may have named a rank by the slices before.
        if first && matches!(settled.verdict, Verdict::None) {
            let mut report = Report::clone(&settled);
            report.verdict = Verdict::Unknown { why: "one slice was judged, which names nobody".to_owned() };
            return Arc::new(report);
        }
        settled
    }

    /// A hang is one where ranks wait for some times longer than they were seen to wait without
    /// hanging (a checkpoint, say).
    fn learn_waits(&mut self, report: &mut Report, until_ns: i64) {
        match &report.verdict {
            Verdict::Hang(hang) => {
                let lasted_ns = hang.since_ns.map_or(0, |since_ns| until_ns.saturating_sub(since_ns));
                self.waits_ns = Some(lasted_ns);
                let least_ns = self.usual_ns.saturating_mul(Rules::USUAL_WAITS).min(Rules::LONGEST_HANG_NS);
                if lasted_ns < least_ns {
                    let seconds = |ns: i64| ns as f64 / 1e9;
                    let why = format!(
                        "ranks have waited for {:.0} s, and this job has waited for {:.0} s before without hanging",
                        seconds(lasted_ns),
                        seconds(self.usual_ns)
                    );
                    report.verdict = Verdict::Unknown { why };
                }
            }
            Verdict::Unknown { .. } => {}
            _ => self.usual_ns = self.waits_ns.take().unwrap_or(0).max(self.usual_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use verdicts::{CommReport, Culprit, RankScore, Role, Verdict, WindowKind};

    use super::*;

    /// Rank 1 costs this share, late in half of the slice.
    fn late(share: f64) -> Report {
        let culprit = Culprit {
            rank: 1,
            pid: 11,
            node: "n".into(),
            comm_hash: "a".into(),
            share,
            ongoing: true,
            flagged: 4,
            ..Culprit::default()
        };
        let score =
            RankScore { rank: 1, pid: 11, node: "n".into(), flagged: 4, role: Role::Culprit, ..RankScore::default() };
        let comm = CommReport {
            comm_hash: "a".into(),
            windows: 8,
            windowed: Some(WindowKind::Time { length_ns: 250_000_000 }),
            ranks: vec![score],
            ..CommReport::default()
        };
        let verdict = Verdict::Rank { culprit, also: Vec::new(), held_up: Vec::new() };
        Report { verdict, per_comm: vec![comm], ..Report::default() }
    }

    fn names(report: &Report) -> bool {
        matches!(report.verdict, Verdict::Rank { .. })
    }

    const S: i64 = 1_000_000_000;

    fn settle(slices: &mut BySlices, began_s: i64, report: Report) -> Arc<Report> {
        slices.settle((began_s * S, (began_s + 4) * S), report, &BTreeSet::new())
    }

    #[test]
    fn who_costs_little_is_named_by_two_slices_and_not_by_one_that_is_judged_twice() {
        let mut slices = BySlices::default();
        assert!(!names(&settle(&mut slices, 10, late(0.1))));
        let again = slices.settle((10 * S + 900, 15 * S), late(0.1), &BTreeSet::new());
        assert!(!names(&again), "the same slice, by a clock that was measured anew");
        assert!(names(&settle(&mut slices, 20, late(0.1))));
        assert!(names(&settle(&mut BySlices::default(), 10, late(0.5))), "much at once");
    }

    #[test]
    fn a_rank_stays_named_for_two_slices_unless_it_has_ended() {
        let mut slices = BySlices::default();
        assert!(names(&settle(&mut slices, 10, late(0.5))));
        assert!(names(&settle(&mut slices, 20, Report::default())));
        let ended = slices.settle((30 * S, 34 * S), Report::default(), &BTreeSet::from([("n", 11)]));
        assert!(!names(&ended));
        assert!(names(&settle(&mut slices, 30, Report::default())));
        assert!(!names(&settle(&mut slices, 40, Report::default())));
    }

    #[test]
    fn the_first_slice_clears_nobody() {
        let mut slices = BySlices::default();
        assert!(matches!(settle(&mut slices, 10, Report::default()).verdict, Verdict::Unknown { .. }));
        assert_eq!(settle(&mut slices, 20, Report::default()).verdict, Verdict::None);
    }

    #[test]
    fn who_waits_as_long_as_usual_does_not_hang() {
        let waits = |since_s: i64| {
            let hang = verdicts::Hang { since_ns: Some(since_s * S), ..verdicts::Hang::default() };
            Report { verdict: Verdict::Hang(hang), ..Report::default() }
        };
        let hangs = |report: &Report| matches!(report.verdict, Verdict::Hang(_));
        let mut slices = BySlices::default();
        assert!(hangs(&settle(&mut slices, 10, waits(4))), "10 s, and nothing is known of usual waits");
        settle(&mut slices, 20, Report::default());
        assert!(!hangs(&settle(&mut slices, 30, waits(20))), "14 s: the next checkpoint");
        assert!(!hangs(&settle(&mut slices, 40, waits(20))), "24 s");
        assert!(hangs(&settle(&mut slices, 50, waits(20))), "34 s: more than three times as long");
    }
}
