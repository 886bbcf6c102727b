//! Where time went, in words: a sentence for where nobody is named, and a table of ranks.

use std::fmt::Write as _;

use observed::units::percent;
use record::{COLUMNS, add_line, short_name};

use super::{PointToPoint, RankTime};
use crate::report::{Report, Verdict};

/// Ranks shown; of more the first that compute longest.
const ROWS: usize = 8;
/// Width of the longest bar.
const BAR: usize = 24;
/// Widest name of a host.
const WIDEST_HOST: usize = 28;

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
    let heading = format!(
        "{}, {of}: {} of their time; {} in calls in which all meet",
        match (about.enqueued, about.unknown) {
            (true, _) => "waits for devices after sends and receives",
            (_, true) => "calls on communicators that are not known",
            _ => "sends, receives and waits",
        },
        percent(about.unscored_share),
        percent(about.scored_share)
    );
    add_line(out, 0, &heading);
    let mut ranks: Vec<_> = about.ranks.iter().collect();
    ranks.sort_by(|a, b| b.compute.total_cmp(&a.compute).then(a.rank.cmp(&b.rank)));
    let host = |rank: &RankTime| short_name(&rank.node, WIDEST_HOST);
    let shown = || ranks.iter().take(ROWS);
    let width = shown().map(|rank| host(rank).chars().count()).max().unwrap_or(0).max(4);
    let room = COLUMNS - 34 - width;
    let held: Vec<String> = shown().map(|rank| held(rank, room)).collect();
    let held_width = held.iter().map(|text| text.chars().count()).max().unwrap_or(0).max(20).min(room);
    let _ = writeln!(out, " rank  {:width$}  outside calls  in calls  held off the CPU", "host");
    for (rank, held) in shown().zip(&held) {
        let mut line = format!(
            "{:>5}  {:width$}  {:>13}  {:>8}  {:<held_width$} ",
            rank.rank,
            host(rank),
            percent(rank.compute),
            percent(rank.unscored + rank.scored),
            held,
        );
        let most = COLUMNS.saturating_sub(line.chars().count()).min(BAR);
        line.push_str(&"█".repeat((rank.compute.clamp(0.0, 1.0) * most as f64).round() as usize));
        let _ = writeln!(out, "{}", line.trim_end());
    }
    if ranks.len() > ROWS {
        let _ = writeln!(out, "  … and {} ranks that spend less time outside calls", ranks.len() - ROWS);
    }
}

/// For how much of its time a rank was kept from its CPU, by what: what took most first, as many as
/// `room` columns hold.
fn held(rank: &RankTime, room: usize) -> String {
    let Some(kinds) = &rank.held else { return "not known".to_owned() };
    let mut kinds: Vec<_> = kinds.iter().filter(|(_, share)| *share >= 0.005).collect();
    kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut out = String::new();
    for (at, (kind, share)) in kinds.iter().enumerate() {
        let one = format!("{}{} {}", if at > 0 { ", " } else { "" }, kind.name(), percent(*share));
        let rest = if at + 1 < kinds.len() { ", …".chars().count() } else { 0 };
        if at > 0 && out.chars().count() + one.chars().count() + rest > room {
            out.push_str(", …");
            break;
        }
        out.push_str(&one);
    }
    if out.is_empty() { "-".to_owned() } else { out }
}
