//! The heat map: a row a rank, a column a window (or some), the newest at the right. Colour is by
//! how much more a rank's figure is than the median of all ranks, as a share of the window.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use super::ranks::role_style;
use super::table;
use crate::app::App;
use crate::data::{Data, Figure, excess};
use crate::look::{LEVELS, Look, level};
use crate::units::{clock, duration, harmless, percent};

/// Columns of a row's name.
const LABEL: u16 = 18;

pub(super) fn draw(to: &mut Buffer, area: Rect, app: &mut App, data: &Data, look: &Look) {
    let Some(watched) = data.watched.as_ref() else { return };
    let columns = usize::from(area.width.saturating_sub(LABEL + 1));
    let zoom = app.zoom();
    let windows: Vec<_> = data.windows().until(data.show_at).take(columns * zoom).collect();
    let rows = Rect { height: area.height.saturating_sub(2), ..area };
    head(to, area, app, data, look, windows.last().map(|(window, _)| window.end_ns));
    if windows.is_empty() {
        let why = match &data.error {
            Some(error) => harmless(error, usize::from(area.width)),
            None => "no windows yet: judges keep them, of the last ten minutes".to_owned(),
        };
        return table::nothing(to, area, look, &why);
    }
    let figure = app.figure(data);
    let selected = app.selected().min(app.order.len().saturating_sub(1));
    // One row is the heading.
    let range = table::shown(selected, app.order.len(), Rect { height: rows.height, ..rows });
    for (at, y) in range.zip(area.y + 1..) {
        let rank = &watched.ranks[app.order[at] as usize];
        let name = format!("{:>5} {}", rank.rank, harmless(&rank.node, usize::from(LABEL) - 7));
        let style = if at == selected { look.selected() } else { role_style(&rank.role, look) };
        Line::styled(name, style).render(Rect { y, height: 1, width: LABEL, ..area }, to);
        let Some(place) = data.windows().place(&rank.node, rank.pid) else { continue };
        for (column, of) in windows.chunks(zoom).enumerate() {
            let share = excess(of.iter().copied(), place, figure, data.window_ns());
            let (symbol, style) = look.heat(share.map(level));
            let x = area.right() - 1 - u16::try_from(column).unwrap_or(u16::MAX);
            to[(x, y)].set_char(symbol).set_style(style);
        }
    }
    legend(to, Rect { y: area.bottom() - 1, height: 1, ..area }, figure, data, look);
}

fn head(to: &mut Buffer, area: Rect, app: &App, data: &Data, look: &Look, first_ns: Option<i64>) {
    let figure = match app.figure(data) {
        Figure::Late => "lateness above",
        Figure::Held => "waiting below",
        Figure::Wait => "waiting above",
        Figure::Compute => "compute time above",
    };
    let column_ns = data.window_ns().saturating_mul(i64::try_from(app.zoom()).unwrap_or(1));
    let from = first_ns.map(|ns| format!(", from {}", clock(ns, &look.zone))).unwrap_or_default();
    let text = format!("{figure} the median (m), {} a column (+ -){from}, {}", duration(column_ns), app.sort.name());
    Line::styled(text, look.head()).render(Rect { height: 1, ..area }, to);
}

/// The legend: which share has which colour.
fn legend(to: &mut Buffer, area: Rect, figure: Figure, data: &Data, look: &Look) {
    let clock_bound_ns = data.windows().clock_bound_ns;
    let of = match figure {
        Figure::Held if clock_bound_ns.is_none() => "clocks unknown, by waits: ",
        Figure::Late if clock_bound_ns.is_none() => "clocks unknown, by host: ",
        _ => "of the window: ",
    };
    let mut spans = vec![Span::raw(of)];
    for at in 0..=LEVELS.len() {
        let (symbol, style) = look.heat(Some(at));
        spans.push(Span::styled(format!("{symbol}{symbol}"), style));
        let from = if at == 0 { 0.0 } else { LEVELS[at - 1] };
        spans.push(Span::styled(format!("{} ", percent(from).replace(".0%", "%")), Style::default()));
    }
    if let Some(bound_ns) = clock_bound_ns.filter(|bound_ns| *bound_ns > 0 && area.width >= 100) {
        spans.push(Span::styled(format!(" clocks within {}", duration(bound_ns)), look.faint()));
    }
    Line::from(spans).render(area, to);
}
