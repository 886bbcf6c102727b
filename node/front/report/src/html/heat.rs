//! Ranks over time: the values that the script draws, and a table for readers without it.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::board::{Board, BoardWindow, Time};
use serde_json::{Value as Json, json};

use super::parts::{lacks, named};
use super::{Page, escape};
use record::units::{clock, duration};

/// A rank's sums over the whole board.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// None where no window has it.
    pub(super) late_ns: Option<i64>,
    pub(super) wait_ns: Option<i64>,
    pub(super) compute_ns: Option<i64>,
    /// By how much the others waited longer, summed.
    pub(super) delay_ns: i64,
    /// Windows in which it delayed the others most (where clocks are known: in which it came
    /// latest).
    pub(super) worst_in: usize,
}

/// What the map shows first: lateness needs the clocks of all hosts, waits need none.
pub(super) fn by_lateness(board: &Board) -> bool {
    board.clock_bound_ns.is_some()
}

/// By how much the others waited longer than each rank, their median: in calls in which ranks wait
/// for each other this is its lateness, by no clock but each host's own.
pub fn delays(window: &BoardWindow) -> Vec<Time> {
    let mut sorted: Vec<i64> = window.wait.iter().filter_map(|wait| wait.ns()).collect();
    sorted.sort_unstable();
    let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0);
    window.wait.iter().map(|wait| Time::of_ns(wait.ns().map(|ns| (median - ns).max(0)))).collect()
}

/// The sums of each position of the board.
pub(super) fn sums(board: &Board) -> Vec<Sums> {
    let mut sums = vec![Sums::default(); board.ranks.len()];
    let ns = |times: &[Time], place: usize| times.get(place).and_then(|time| time.ns());
    let add = |sum: &mut Option<i64>, more: Option<i64>| {
        *sum = match (*sum, more) {
            (sum, None) => sum,
            (sum, Some(more)) => Some(sum.unwrap_or(0).saturating_add(more)),
        };
    };
    for window in &board.windows {
        let delays = delays(window);
        let mut worst: Option<(i64, usize)> = None;
        for (place, sum) in sums.iter_mut().enumerate() {
            let late_ns = ns(&window.late, place);
            let delay_ns = ns(&delays, place).unwrap_or(0);
            add(&mut sum.late_ns, late_ns);
            add(&mut sum.wait_ns, ns(&window.wait, place));
            add(&mut sum.compute_ns, ns(&window.compute, place));
            sum.delay_ns = sum.delay_ns.saturating_add(delay_ns);
            let shown = if by_lateness(board) { late_ns.unwrap_or(0) } else { delay_ns };
            if shown > worst.map_or(0, |(most, _)| most) {
                worst = Some((shown, place));
            }
        }
        if let Some((_, place)) = worst {
            sums[place].worst_in += 1;
        }
    }
    sums
}

impl Sums {
    /// The value by which ranks are sorted.
    pub(super) fn shown_ns(&self, by_lateness: bool) -> i64 {
        if by_lateness { self.late_ns.unwrap_or(0) } else { self.delay_ns }
    }
}

/// Positions in the order of rows: named ranks first, then those that are late most.
fn order(page: &Page, board: &Board) -> Vec<usize> {
    let sums = sums(board);
    let all = named(page);
    let mut order: Vec<usize> = (0..board.ranks.len()).collect();
    let is_named = |place: &usize| {
        let rank = &board.ranks[*place];
        all.iter().any(|(node, pid)| *node == rank.node && *pid == rank.pid)
    };
    order.sort_by_key(|place| {
        (
            !is_named(place),
            std::cmp::Reverse(sums[*place].shown_ns(by_lateness(board))),
            board.ranks[*place].rank,
            *place,
        )
    });
    order
}

/// The data for the script: times are packed in two bytes each, row by row.
pub(super) fn values(page: &Page) -> Json {
    let Some(board) = &page.board else { return Json::Null };
    let order = order(page, board);
    let packed = |times: &dyn Fn(&BoardWindow) -> Vec<Time>| {
        let columns: Vec<Vec<Time>> = board.windows.iter().map(times).collect();
        let of = |place: &usize| {
            let place = *place;
            columns.iter().flat_map(move |times| times.get(place).copied().unwrap_or_default().bits().to_le_bytes())
        };
        STANDARD.encode(order.iter().flat_map(of).collect::<Vec<u8>>())
    };
    let since_ns = board.windows.first().map_or(0, |window| window.end_ns - board.window_ns);
    let ends: Vec<i64> = board.windows.iter().map(|window| (window.end_ns - since_ns) / 1_000_000).collect();
    json!({
        "since_ms": since_ns / 1_000_000,
        "window_ms": board.window_ns / 1_000_000,
        "end_ms": ends,
        "ranks": order.iter().map(|place| {
            let rank = &board.ranks[*place];
            json!([rank.rank, record::printable(&rank.node), rank.pid])
        }).collect::<Vec<_>>(),
        "named": named(page).len(),
        "first": if by_lateness(board) { "late" } else { "held" },
        "late": packed(&|window| window.late.clone()),
        "held": packed(&delays),
        "wait": packed(&|window| window.wait.clone()),
        "compute": packed(&|window| window.compute.clone()),
    })
}

/// The element of the map on the page.
pub(super) fn section(page: &Page) -> String {
    let Some(board) = page.board.as_ref().filter(|board| !board.windows.is_empty() && !board.ranks.is_empty()) else {
        return format!(
            "<p>{}</p>",
            lacks(page, "heat map", "Of this time nothing was recorded that tells how late ranks were.")
        );
    };
    let mut out = String::new();
    let worst = order(page, board).first().map(|place| (&board.ranks[*place], sums(board)[*place]));
    let (first, last) = (board.windows.first(), board.windows.last());
    let words = worst.map_or_else(String::new, |(rank, sums)| {
        let what = if by_lateness(board) { "enters latest" } else { "holds the others up longest" };
        format!(
            "Of {} ranks in {} windows of {} rank {} on {} {what}: {} in all, and longer than any other in {} windows.",
            board.ranks.len(),
            board.windows.len(),
            duration(board.window_ns),
            rank.rank,
            rank.node,
            duration(sums.shown_ns(by_lateness(board))),
            sums.worst_in
        )
    });
    let bound = match board.clock_bound_ns {
        Some(bound_ns) => {
            format!("Entries on different hosts are known against each other within ± {}.", duration(bound_ns))
        }
        None => {
            "The clocks of some hosts are not known against each other, so entries are compared within a host only; by how much the others waited longer needs no clock.".to_owned()
        }
    };
    let _ = write!(
        out,
        "<p id=\"heat-words\">{} {}</p>\n\
         <div class=\"tools needs-script\" hidden>\n<fieldset><legend>Shown</legend>\n\
         <label><input type=\"radio\" name=\"metric\" value=\"late\"> how late ranks entered</label>\n\
         <label><input type=\"radio\" name=\"metric\" value=\"held\"> how much longer the others waited</label>\n\
         <label><input type=\"radio\" name=\"metric\" value=\"wait\"> how long they waited</label>\n\
         <label><input type=\"radio\" name=\"metric\" value=\"compute\"> how long they computed</label>\n</fieldset>\n</div>\n\
         <div class=\"needs-script\" hidden>\n\
         <div id=\"map-frame\"><canvas id=\"map-labels\" aria-hidden=\"true\"></canvas><canvas id=\"map\" tabindex=\"0\" role=\"img\" aria-label=\"Heat map, a row a rank, from {} to {}\" aria-describedby=\"heat-words cell\"></canvas></div>\n\
         <p class=\"scale\">Colour: <span id=\"scale-means\"></span> <span id=\"scale-low\">0</span> <canvas id=\"scale\" width=\"240\" height=\"10\" aria-hidden=\"true\"></canvas> \
         <span id=\"scale-high\"></span> in a window; hatched: not known</p>\n\
         <p id=\"cell\" role=\"status\" aria-live=\"polite\">Point at a cell, or go there with the arrow keys.</p>\n</div>\n\
         <noscript><p>The map is drawn by a script, which is not allowed to run here; the table of ranks has the sums.</p></noscript>",
        escape::text(&words),
        escape::text(&bound),
        first.map_or_else(String::new, |window| clock(window.end_ns - board.window_ns)),
        last.map_or_else(String::new, |window| clock(window.end_ns)),
    );
    out
}
