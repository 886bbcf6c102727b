//! Keeps verdicts from flapping: the verdict of a window by its own raw verdict and those of the
//! windows before.
//!
//! A hang counts at once. A rank is named when it costs much, or when it was late in half of the
//! look back and was named in a window just before as well (what costs little and is over in
//! seconds is a busy host); it is held for two seconds after it was last named. What is much
//! depends on whether other ranks stand out now and then, too. Of several that are named each has to
//! pass this. Imbalances and the network must show
//! in three of four windows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::LOOKBACK;
use super::change::Key;
use observed::Rules;
use verdicts::{Cost, Culprit, Report, Role, Verdict, point_to_point};

/// Processes: node and pid.
type Processes<'a> = BTreeSet<(&'a str, i64)>;

/// The verdict of a window; every `stride`-th is judged. `gone` are processes that have ended: none
/// of these is named any more.
pub(super) fn settle(raw: &BTreeMap<i64, Arc<Report>>, window: i64, stride: i64, gone: &Processes<'_>) -> Arc<Report> {
    // Newest first.
    let judged: Vec<&Arc<Report>> = raw
        .range(window - (Rules::STAYS_NAMED + Rules::NAMED_BEFORE) as i64 * stride..=window)
        .rev()
        .map(|(_, report)| report)
        .collect();
    let Some(report) = judged.first().filter(|_| raw.contains_key(&window)) else {
        let why = "no window was judged yet".to_owned();
        return Arc::new(Report { verdict: Verdict::Unknown { why }, ..Report::default() });
    };
    if matches!(report.verdict, Verdict::Hang(_)) {
        return Arc::clone(report);
    }
    if let Some(held) = (0..=Rules::STAYS_NAMED).find_map(|back| raised(judged.get(back..)?, gone)) {
        return held;
    }
    let quiet = match &report.verdict {
        Verdict::Rank { culprit, .. } if has_ended(culprit, gone) => {
            Some(format!("rank {} on {} was late, and has ended", culprit.rank, culprit.node))
        }
        Verdict::Rank { culprit, .. } => Some(if culprit.ongoing {
            format!(
                "rank {} on {} was late in the last windows: not for long enough to be named",
                culprit.rank, culprit.node
            )
        } else {
            format!("rank {} on {} was late, and is not any more", culprit.rank, culprit.node)
        }),
        Verdict::StageImbalance { .. }
        | Verdict::DataImbalance { .. }
        | Verdict::WorkImbalance { .. }
        | Verdict::Network(_) => {
            let alike = |r: &&&Arc<Report>| Key::of(&r.verdict) == Key::of(&report.verdict);
            let times = judged.iter().take(Rules::IMBALANCE_OF).filter(alike).count();
            (times < Rules::IMBALANCE_IN).then(|| {
                format!("{} showed in the last windows: not for long enough to be said", Key::name(&report.verdict))
            })
        }
        _ => None,
    };
    match quiet {
        None => Arc::clone(report),
        Some(note) => {
            let mut report = Report::clone(report);
            // Much waiting in calls that are not compared one by one is never nobody's.
            let waited =
                report.point_to_point.as_ref().is_some_and(|about| about.unscored_share >= point_to_point::WAITED);
            report.verdict = if waited { Verdict::Unknown { why: note.clone() } } else { Verdict::None };
            report.cost = Default::default();
            report.evidence.notes.push(note);
            Arc::new(report)
        }
    }
}

/// The verdict that a window raises, by it and those judged before, of the ranks that are late now,
/// much or not for the first time: each by itself.
fn raised(judged: &[&Arc<Report>], gone: &Processes<'_>) -> Option<Arc<Report>> {
    let (report, before) = judged.split_first()?;
    let Verdict::Rank { culprit, also, held_up } = &report.verdict else { return None };
    let before: Processes<'_> = before.iter().take(Rules::NAMED_BEFORE).flat_map(|report| late_in(report)).collect();
    let stays = |late: &&Culprit| {
        let again = || before.contains(&(late.node.as_str(), late.pid));
        let plain = Rules::NAMED_AT_ONCE + Rules::RESTLESS_OTHERS * restless(report, late);
        late.ongoing && !has_ended(late, gone) && (late.share >= plain || lasting(report, late) && again())
    };
    let mut left: Vec<Culprit> = std::iter::once(culprit).chain(also).filter(stays).cloned().collect();
    if left.is_empty() || left.len() > also.len() {
        return (!left.is_empty()).then(|| Arc::clone(report));
    }
    let mut report = Report::clone(report);
    // What all of them cost was worked out in the first one's communicator.
    report.cost.upper_bound = true;
    let first = left.remove(0);
    if first != *culprit {
        report.cost = Cost::default();
    }
    report.verdict = Verdict::Rank { culprit: first, also: left, held_up: held_up.clone() };
    Some(Arc::new(report))
}

/// The processes that a window's verdict names, and that were late to its end.
fn late_in(report: &Report) -> impl Iterator<Item = (&str, i64)> {
    let named = report.verdict.named().into_iter().filter(|late| late.ongoing);
    named.map(|late| (late.node.as_str(), late.pid))
}

fn has_ended(culprit: &Culprit, gone: &Processes<'_>) -> bool {
    gone.contains(&(culprit.node.as_str(), culprit.pid))
}

/// In which part of the windows looked back on the ranks that are not named were flagged.
fn restless(report: &Report, culprit: &Culprit) -> f64 {
    let Some(comm) = report.per_comm.iter().find(|comm| comm.comm_hash == culprit.comm_hash) else { return 0.0 };
    let others = || comm.ranks.iter().filter(|rank| rank.role != Role::Culprit);
    let (flagged, all) = (others().map(|rank| rank.flagged).sum::<usize>(), others().count() * comm.windows);
    if all == 0 { 0.0 } else { flagged as f64 / all as f64 }
}

/// Whether a rank was late in half of the windows looked back on, in one stretch or in several, as
/// far as the job has run for so long; five seconds are enough.
fn lasting(report: &Report, culprit: &Culprit) -> bool {
    let Some(comm) = report.per_comm.iter().find(|comm| comm.comm_hash == culprit.comm_hash) else { return true };
    let own = comm.ranks.iter().find(|rank| rank.pid == culprit.pid && rank.node == culprit.node);
    let flagged = own.map_or(0, |own| own.flagged).max(culprit.flagged);
    flagged >= comm.windows.div_ceil(2).min(usize::try_from(LOOKBACK / 2).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use verdicts::{CommReport, RankScore, WindowKind};

    /// Rank 0 of eight costs `share`, late in six of 17 windows; the others were flagged so often.
    fn report(share: f64, others: [usize; 7]) -> Report {
        with(share, 6, others)
    }

    /// The same, where it was flagged in so many windows altogether.
    fn with(share: f64, all: usize, others: [usize; 7]) -> Report {
        let score = |(rank, flagged): (usize, usize)| RankScore {
            flagged,
            role: if rank == 0 { Role::Culprit } else { Role::Victim },
            ..RankScore::default()
        };
        let culprit = Culprit { comm_hash: "a".into(), share, ongoing: true, flagged: 6, ..Culprit::default() };
        let comm = CommReport {
            comm_hash: "a".into(),
            windows: 17,
            windowed: Some(WindowKind::Time { length_ns: 500_000_000 }),
            ranks: std::iter::once(all).chain(others).enumerate().map(score).collect(),
            ..CommReport::default()
        };
        let verdict = Verdict::Rank { culprit, also: Vec::new(), held_up: Vec::new() };
        Report { verdict, per_comm: vec![comm], ..Report::default() }
    }

    fn is_named(share: f64, others: [usize; 7]) -> bool {
        stays(&report(share, others))
    }

    fn stays(report: &Report) -> bool {
        let raw = (0..3).map(|window| (window, Arc::new(report.clone()))).collect();
        let gone = BTreeSet::new();
        matches!(settle(&raw, 2, 1, &gone).verdict, Verdict::Rank { .. })
    }

    #[test]
    fn who_stands_out_for_seconds_where_everybody_does_is_not_named_for_little() {
        assert!(is_named(0.28, [0; 7]), "a quiet job");
        // As seen on two cores with a load of 37.
        let busy = [1, 1, 2, 4, 1, 2, 2];
        assert!(!is_named(0.28, busy));
        assert!(is_named(0.75, busy), "three quarters of the time are no noise");
        assert!(!is_named(0.15, [0; 7]), "little, and not for long");
        assert!(stays(&with(0.15, 9, [0; 7])), "little, in half of the windows, in stretches");
    }

    #[test]
    fn what_does_not_last_is_not_nobody_where_ranks_wait_in_calls_that_are_not_compared() {
        let with = |unscored_share: f64| {
            let about = verdicts::point_to_point::PointToPoint { unscored_share, ..Default::default() };
            let mut report = report(0.1, [0; 7]);
            report.point_to_point = Some(about);
            let raw = BTreeMap::from([(0, Arc::new(report))]);
            settle(&raw, 0, 1, &BTreeSet::new()).verdict.clone()
        };
        let Verdict::Unknown { why } = with(0.5) else { panic!() };
        assert!(why.contains("not for long enough"), "{why}");
        assert_eq!(with(0.05), Verdict::None);
    }
}
