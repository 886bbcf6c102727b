//! Ranks, worst first, with a sparkline of how late they were in the last minute.

use std::iter;

use model::board::BoardWindow;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;

use super::table::{self, Column, right};
use crate::app::App;
use crate::data::{Data, Figure, Medians, excess, figure_us};
use crate::look::Look;
use crate::units::{harmless, maybe, percent, tenths};

/// Windows of a minute.
const MINUTE: usize = 120;

pub(super) fn draw(to: &mut Buffer, area: Rect, app: &mut App, data: &Data, look: &Look) {
    let Some(watched) = data.watched.as_ref() else { return };
    let wide = area.width >= 110;
    let spark = usize::from(area.width.saturating_sub(if wide { 90 } else { 66 })).clamp(12, 60);
    let mut columns: Vec<Column> = vec![
        ("rank", 6),
        ("host", if wide { 16 } else { 10 }),
        ("role", 8),
        ("late", 7),
        ("wait", 7),
        ("lost", 5),
        ("z", 5),
    ];
    if wide {
        columns.extend([("pid", 8), ("compute+", 8), ("flagged", 8)]);
    }
    columns.push(("last minute", u16::try_from(spark).unwrap_or(12)));
    let selected = app.selected().min(app.order.len().saturating_sub(1));
    let range = table::shown(selected, app.order.len(), area);
    let minute = Minute::of(spark);
    let row = |at: usize| {
        let rank = &watched.ranks[app.order[at] as usize];
        let style = role_style(&rank.role, look);
        let shown =
            if rank.compute_share.is_some() && rank.late_ns.is_none() { "-".to_owned() } else { maybe(rank.late_ns) };
        let mut cells = vec![
            right(rank.rank.to_string()),
            Line::raw(harmless(&rank.node, 16)),
            Line::raw(role(&rank.role)),
            right(shown),
            right(maybe(rank.wait_ns)),
            right(percent(rank.share)),
            right(rank.z.map_or_else(|| "-".to_owned(), tenths)),
        ];
        if wide {
            cells.push(right(rank.pid.to_string()));
            cells.push(right(maybe(rank.compute_excess_ns)));
            cells.push(right(format!("{}/{}", rank.flagged, rank.windows)));
        }
        cells.push(Line::raw(minute.line(data, data.windows().place(&rank.node, rank.pid), look)));
        (cells, style)
    };
    table::draw(to, area, look, &columns, (range, selected), row);
    if app.order.is_empty() {
        let why = match (&watched.job, app.filter.is_empty()) {
            (None, _) => "no job",
            (_, false) => "no rank passes the filter",
            (_, true) => "no rank was seen in calls that can be compared",
        };
        table::nothing(to, area, look, why);
    }
}

pub(super) fn role(role: &str) -> &'static str {
    match role {
        "culprit" => "CULPRIT",
        "held_up" => "held up",
        "victim" => "waits",
        _ => "",
    }
}

pub(super) fn role_style(role: &str, look: &Look) -> Style {
    match role {
        "culprit" => look.bad(),
        "held_up" => look.warn(),
        _ => Style::default(),
    }
}

/// The last minute in columns of the sparkline.
pub(super) struct Minute {
    columns: usize,
    each: usize,
}

/// The share of a window's time that fills a column: a fixed scale, so that ranks and times can be
/// compared.
const FULL: f64 = 0.5;

impl Minute {
    pub(super) fn of(columns: usize) -> Self {
        Self { columns, each: MINUTE.div_ceil(columns.max(1)).max(1) }
    }

    /// Late shares of a rank's windows, oldest first; blank where there is no value.
    pub(super) fn line(&self, data: &Data, place: Option<usize>, look: &Look) -> String {
        let Some(place) = place else { return String::new() };
        let (figure, window_ns) = (data.windows().lateness(), data.window_ns());
        let windows: Vec<_> = data.windows().until(data.show_at).take(self.columns * self.each).collect();
        let share = |window: &(BoardWindow, Medians)| match figure {
            Figure::Late => figure_us(&window.0, place, figure).map(|us| us as f64 * 1e3 / window_ns as f64),
            _ => excess(iter::once(window), place, figure, window_ns),
        };
        let column = |of: &[&(BoardWindow, Medians)]| {
            let worst = of.iter().filter_map(|window| share(window)).max_by(f64::total_cmp)?;
            Some((worst / FULL).clamp(0.0, 1.0))
        };
        let mut line: Vec<char> = windows.chunks(self.each).map(|of| look.spark(column(of))).collect();
        line.resize(self.columns, ' ');
        line.reverse();
        line.into_iter().collect()
    }
}
