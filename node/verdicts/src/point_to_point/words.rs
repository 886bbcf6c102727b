//! Where time went, in words: a sentence for where nobody is named, and a table of ranks.

use std::fmt::Write as _;

use observed::units::percent;
use record::printable;

use super::PointToPoint;
use crate::report::{Report, Verdict};

/// Ranks shown; of more the first that compute longest.
const ROWS: usize = 8;
/// Width of the longest bar.
const BAR: usize = 24;

/// How "nobody" was found, where by time in calls.
pub(crate) fn summary(report: &Report) -> Option<String> {
    let about = report.point_to_point.as_ref().filter(|_| matches!(report.verdict, Verdict::None))?;
    Some(format!("{} ranks compared by where they spend their time", about.heard))
}

/// The ranks with their shares.
pub(crate) fn table(about: &PointToPoint, out: &mut String) {
    let of = match usize::try_from(about.nranks) {
        Ok(all) if all > about.heard => format!("{} of {all} ranks", about.heard),
        _ => format!("{} ranks", about.heard),
    };
    let _ = writeln!(
        out,
        "{}, {of}: {} of their time; {} in calls in which all meet",
        match (about.enqueued, about.unknown) {
            (true, _) => "waits for devices after sends and receives",
            (_, true) => "calls on communicators that are not known",
            _ => "sends, receives and waits",
        },
        percent(about.unscored_share),
        percent(about.scored_share)
    );
    let mut ranks: Vec<_> = about.ranks.iter().collect();
    ranks.sort_by(|a, b| b.compute.total_cmp(&a.compute).then(a.rank.cmp(&b.rank)));
    let width = ranks.iter().take(ROWS).map(|rank| rank.node.chars().count()).max().unwrap_or(0).max(4);
    let _ = writeln!(out, " rank  {:width$}  outside calls  in calls  held off the CPU", "host");
    for rank in ranks.iter().take(ROWS) {
        let held = match &rank.held {
            None => "not known".to_owned(),
            Some(kinds) if kinds.iter().all(|(_, share)| *share < 0.005) => "-".to_owned(),
            Some(kinds) => {
                let mut kinds: Vec<_> = kinds.iter().filter(|(_, share)| *share >= 0.005).collect();
                kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
                kinds
                    .iter()
                    .map(|(kind, share)| format!("{} {}", kind.name(), percent(*share)))
                    .collect::<Vec<_>>()
                    .join(", ")
            }
        };
        let bar = "█".repeat((rank.compute.clamp(0.0, 1.0) * BAR as f64).round() as usize);
        let _ = writeln!(
            out,
            "{:>5}  {:width$}  {:>13}  {:>8}  {held:<20} {bar}",
            rank.rank,
            printable(&rank.node),
            percent(rank.compute),
            percent(rank.unscored + rank.scored),
        );
    }
    if ranks.len() > ROWS {
        let _ = writeln!(out, "  … and {} ranks that spend less time outside calls", ranks.len() - ROWS);
    }
}
