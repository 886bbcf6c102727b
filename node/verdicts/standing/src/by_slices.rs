//! Verdicts on calls that were recorded in time slices: one for each slice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use verdicts::Report;

use super::settle::settle;

/// Slices that a verdict rests on: a rank that costs little must be late in the one before, too, and
/// stays named for as many after it was late last.
const SLICES: usize = 3;

/// Keeps the verdicts of slices from flapping, as those of windows are.
#[derive(Debug, Default)]
pub struct BySlices {
    raw: BTreeMap<i64, Arc<Report>>,
    began_ns: Option<i64>,
}

impl BySlices {
    /// Takes in the verdict of a slice that began at this time, and returns the one that stands. The
    /// slice that was judged last may be judged again. `gone` are processes that have ended.
    pub fn settle(&mut self, began_ns: i64, report: Report, gone: &BTreeSet<(&str, i64)>) -> Arc<Report> {
        let last = self.raw.last_key_value().map_or(0, |(number, _)| *number);
        let number = if self.began_ns == Some(began_ns) { last } else { last + 1 };
        self.began_ns = Some(began_ns);
        self.raw.insert(number, Arc::new(report));
        while self.raw.len() > SLICES {
            self.raw.pop_first();
        }
        settle(&self.raw, number, 1, gone)
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

    #[test]
    fn who_costs_little_is_named_by_two_slices_and_not_by_one_that_is_judged_twice() {
        let (mut slices, nobody) = (BySlices::default(), BTreeSet::new());
        assert!(!names(&slices.settle(10, late(0.1), &nobody)));
        assert!(!names(&slices.settle(10, late(0.1), &nobody)), "the same slice");
        assert!(names(&slices.settle(20, late(0.1), &nobody)));
        assert!(names(&BySlices::default().settle(10, late(0.5), &nobody)), "much at once");
    }

    #[test]
    fn a_rank_stays_named_for_two_slices_unless_it_has_ended() {
        let (mut slices, nobody) = (BySlices::default(), BTreeSet::new());
        assert!(names(&slices.settle(10, late(0.5), &nobody)));
        assert!(names(&slices.settle(20, Report::default(), &nobody)));
        assert!(!names(&slices.settle(30, Report::default(), &BTreeSet::from([("n", 11)]))));
        assert!(names(&slices.settle(30, Report::default(), &nobody)));
        assert!(!names(&slices.settle(40, Report::default(), &nobody)));
    }
}
