//! The table of a communicator's ranks, with bars.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use observed::units::{duration, tenths};

use super::Rows;
use crate::report::{CommReport, RankScore, Report, Role, Verdict};
use crate::tally::Waits;
use crate::windows::WindowKind;
use record::{COLUMNS, add_line, printable, short_name};

/// Part of the distance between collectives that fills a bar where no rank is later.
const LITTLE: f64 = 0.05;
/// Width of the longest bar.
pub(super) const BAR: usize = 24;
/// The least width of the longest bar, and of a host's name, whatever else is in their line.
const LEAST_BAR: usize = 4;
const LEAST_HOST: usize = 12;
/// The column of the host.
const HOST: usize = 1;

/// The communicators worth a table: those of the named ranks, else the largest that was scored.
pub(super) fn shown(report: &Report) -> Vec<&CommReport> {
    let scored = || report.per_comm.iter().filter(|c| !c.ranks.is_empty());
    if let Verdict::Rank { culprit, also, .. } = &report.verdict {
        let named: Vec<&str> = std::iter::once(culprit).chain(also).map(|c| c.comm_hash.as_str()).collect();
        scored().filter(|c| named.contains(&c.comm_hash.as_str())).collect()
    } else {
        scored().take(1).collect()
    }
}

/// How late a rank is on average, for the bar: by its waits where they were seen, else by its
/// entries; by its compute time where that is what names somebody.
fn lateness(comm: &CommReport, rank: &RankScore, own: bool) -> i64 {
    if own {
        return rank.own_excess_ns.unwrap_or(0);
    }
    if comm.waits == Some(Waits::Enqueued) {
        return rank.lateness.mean_ns;
    }
    comm.ranks.iter().map(|r| r.wait.mean_ns).max().unwrap_or(0) - rank.wait.mean_ns
}

pub(super) fn table(comm: &CommReport, own: bool, rows: Rows, out: &mut String) {
    let heard = match comm.nranks {
        Some(n) if usize::try_from(n) != Ok(comm.heard) => format!("{} of {n} ranks heard", comm.heard),
        _ => format!("{} ranks", comm.heard),
    };
    let windows = match comm.windowed {
        Some(WindowKind::Time { length_ns }) => {
            format!("{} windows of {} s", comm.windows, length_ns as f64 / 1e9)
        }
        Some(WindowKind::Collectives { each: 1 }) => format!("{} windows of one collective", comm.windows),
        Some(WindowKind::Collectives { each }) => {
            format!("{} windows of {each} collectives (too few for windows of time)", comm.windows)
        }
        None => "no windows".to_owned(),
    };
    let about = format!(
        "communicator {}, {}, {heard}, a collective every {}, {windows}",
        comm.comm_hash,
        comm.library,
        duration(comm.period_ns)
    );
    add_line(out, 0, &about);
    let mut ranks: Vec<&RankScore> = comm.ranks.iter().collect();
    ranks.sort_by_key(|r| (r.role != Role::Culprit, std::cmp::Reverse(lateness(comm, r, own))));
    // Where nobody is noticeably late, no bar is long.
    let little = (comm.period_ns as f64 * LITTLE) as i64;
    let longest = ranks.iter().map(|r| lateness(comm, r, own)).max().unwrap_or(0).max(little).max(1);
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let header = ["rank", "host", if own { "own excess" } else { "late by" }, "waits", "z", "flagged"];
    table.set_header(header.into_iter().chain([""]));
    let shown = rows.of(ranks.len());
    let waits = |ns: i64| if comm.waits == Some(Waits::Enqueued) { "?".to_owned() } else { duration(ns) };
    let mut lines: Vec<Line> = Vec::with_capacity(shown + 1);
    for rank in &ranks[..shown] {
        let late = lateness(comm, rank, own);
        let role = match rank.role {
            Role::Culprit => " culprit",
            Role::HeldUp => " held up itself",
            Role::Victim | Role::Peer => "",
        };
        let cells = [
            rank.rank.to_string(),
            printable(&rank.node),
            duration(late),
            waits(rank.wait.mean_ns),
            rank.z.map_or("-".to_owned(), tenths),
            format!("{}/{}", rank.flagged, comm.windows),
        ];
        lines.push(Line { cells, late, role });
    }
    if shown < ranks.len() {
        let median = |of: &dyn Fn(&RankScore) -> i64| {
            let mut all: Vec<i64> = ranks.iter().map(|rank| of(rank)).collect();
            all.sort_unstable();
            all[all.len() / 2]
        };
        let late = median(&|rank| lateness(comm, rank, own));
        let cells = [
            "median".to_owned(),
            format!("of {}", ranks.len()),
            duration(late),
            waits(median(&|rank| rank.wait.mean_ns)),
            String::new(),
            String::new(),
        ];
        lines.push(Line { cells, late, role: "" });
    }
    let most = fit(&header, &mut lines);
    for Line { cells, late, role } in lines {
        table.add_row(cells.into_iter().chain([format!("{}{role}", bar(late, longest, most))]));
    }
    for column in [0, 2, 3, 4, 5] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let _ = writeln!(out, "{}", table.trim_fmt());
    if shown < ranks.len() {
        let _ = writeln!(out, "… and {} ranks more (--all)", ranks.len() - shown);
    }
}

/// One row of the table: its cells, and what its bar shows.
struct Line {
    cells: [String; 6],
    late: i64,
    role: &'static str,
}

/// Shortens the names of hosts, where they are long, and gives the width of the longest bar, so that
/// lines fit their columns.
fn fit(header: &[&str; 6], lines: &mut [Line]) -> usize {
    let width = |lines: &[Line], at: usize| {
        let cells = lines.iter().map(|line| line.cells[at].chars().count());
        cells.chain([header[at].chars().count()]).max().unwrap_or(0)
    };
    // A space on each side of a cell, and before the bar.
    let others: usize = (0..header.len()).filter(|at| *at != HOST).map(|at| width(lines, at) + 2).sum::<usize>() + 3;
    let role = lines.iter().map(|line| line.role.chars().count()).max().unwrap_or(0);
    let room = COLUMNS.saturating_sub(others + role);
    for line in &mut *lines {
        line.cells[HOST] = short_name(&line.cells[HOST], room.saturating_sub(LEAST_BAR).max(LEAST_HOST));
    }
    room.saturating_sub(width(lines, HOST)).clamp(LEAST_BAR, BAR)
}

/// A bar of `most` columns where a value is the longest.
pub(super) fn bar(value: i64, longest: i64, most: usize) -> String {
    let eighths = (value.max(0) as f64 / longest as f64 * (most * 8) as f64).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    if let Some(part) = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"].get(eighths % 8) {
        bar.push_str(part);
    }
    bar
}
