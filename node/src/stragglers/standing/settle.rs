//! Keeps verdicts from flapping: the verdict of a window by its own raw verdict and those of the windows before.
//!
//! A hang counts at once. A rank is named when it costs much, or when it was late in half of the look back and was named in a window
//! just before as well (what costs little and is over in seconds is a busy host); it is held for two seconds after it was last named.
//! Imbalances and the network must show in three of four windows.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::LOOKBACK;
use super::change::Key;
use crate::stragglers::{Culprit, Report, Verdict, WindowKind};

/// From this share of the time on a rank is named by one window's verdict.
const PLAIN: f64 = 0.2;
/// Windows before, one of which must name the same rank otherwise.
const BEFORE: usize = 3;
/// Windows for which a named rank stays named.
const HOLD: usize = 4;
/// Windows in which an imbalance must show, of the last `IMBALANCE_OF`.
const IMBALANCE: usize = 3;
const IMBALANCE_OF: usize = 4;

/// The verdict of a window; every `stride`-th is judged.
pub(super) fn settle(raw: &BTreeMap<i64, Arc<Report>>, window: i64, stride: i64) -> Arc<Report> {
    // Newest first.
    let judged: Vec<&Arc<Report>> =
        raw.range(window - (HOLD + BEFORE) as i64 * stride..=window).rev().map(|(_, report)| report).collect();
    let Some(report) = judged.first().filter(|_| raw.contains_key(&window)) else {
        let why = "no window was judged yet".to_owned();
        return Arc::new(Report { verdict: Verdict::Unknown { why }, ..Report::default() });
    };
    if matches!(report.verdict, Verdict::Hang(_)) {
        return Arc::clone(report);
    }
    if let Some(held) = (0..=HOLD).find_map(|back| raised(judged.get(back..)?)) {
        return Arc::clone(held);
    }
    let quiet = match &report.verdict {
        Verdict::Rank { culprit, .. } => Some(if culprit.ongoing {
            format!(
                "rank {} on {} was late in the last windows: not for long enough to be named",
                culprit.rank, culprit.node
            )
        } else {
            format!("rank {} on {} was late, and is not any more", culprit.rank, culprit.node)
        }),
        Verdict::StageImbalance { .. } | Verdict::DataImbalance { .. } | Verdict::Network(_) => {
            let alike = |r: &&&Arc<Report>| Key::of(&r.verdict) == Key::of(&report.verdict);
            let times = judged.iter().take(IMBALANCE_OF).filter(alike).count();
            (times < IMBALANCE).then(|| {
                format!("{} showed in the last windows: not for long enough to be said", Key::name(&report.verdict))
            })
        }
        _ => None,
    };
    match quiet {
        None => Arc::clone(report),
        Some(note) => {
            let mut report = Report::clone(report);
            report.verdict = Verdict::None;
            report.cost = Default::default();
            report.evidence.notes.push(note);
            Arc::new(report)
        }
    }
}

/// The verdict that a window raises, by it and those judged before: a rank that is late now, much or not for the first time.
fn raised<'a>(judged: &[&'a Arc<Report>]) -> Option<&'a Arc<Report>> {
    let (report, before) = judged.split_first()?;
    let Verdict::Rank { culprit, .. } = &report.verdict else { return None };
    if !culprit.ongoing {
        return None;
    }
    let same = |r: &&Arc<Report>| match &r.verdict {
        Verdict::Rank { culprit: c, .. } => c.ongoing && (&c.node, c.pid) == (&culprit.node, culprit.pid),
        _ => false,
    };
    let again = || before.iter().take(BEFORE).any(same);
    (culprit.share >= PLAIN || lasting(report, culprit) && again()).then_some(report)
}

/// Whether a rank was late in half of the windows looked back on.
fn lasting(report: &Report, culprit: &Culprit) -> bool {
    let comm = report.per_comm.iter().find(|comm| comm.comm_hash == culprit.comm_hash);
    let half = match comm.map(|comm| (comm.windowed, comm.windows)) {
        Some((Some(WindowKind::Time { .. }), _)) => usize::try_from(LOOKBACK / 2).unwrap_or(usize::MAX),
        Some((_, windows)) => windows.div_ceil(2),
        None => return true,
    };
    culprit.flagged >= half
}
