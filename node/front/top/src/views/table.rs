//! A table of which only the rows on the screen are made.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table, Widget};

use crate::look::Look;

/// A column: its name and its width; 0: the rest of the line.
pub(super) type Column = (&'static str, u16);

/// The first row that is shown so that the selected one is on the screen, and the number of rows.
pub(super) fn shown(selected: usize, rows: usize, area: Rect) -> std::ops::Range<usize> {
    let height = usize::from(area.height.saturating_sub(1));
    let selected = selected.min(rows.saturating_sub(1));
    // Pages do not move while the selection moves within one.
    let first = selected.checked_div(height).map_or(0, |page| page * height);
    let first = first.min(rows.saturating_sub(height));
    first..rows.min(first + height)
}

/// Draws `columns` and the rows of `range`, made by `row`; numbers are right-aligned.
pub(super) fn draw(
    to: &mut Buffer,
    area: Rect,
    look: &Look,
    columns: &[Column],
    (range, selected): (std::ops::Range<usize>, usize),
    row: impl Fn(usize) -> (Vec<Line<'static>>, Style),
) {
    let widths = columns.iter().map(|(_, width)| match width {
        0 => Constraint::Min(4),
        width => Constraint::Length(*width),
    });
    let header = Row::new(columns.iter().map(|(name, _)| Cell::from(*name))).style(look.head());
    let rows = range.map(|at| {
        let (cells, style) = row(at);
        let style = if at == selected { style.patch(look.selected()) } else { style };
        Row::new(cells).style(style)
    });
    Widget::render(Table::new(rows, widths).header(header).column_spacing(1), area, to);
}

/// A right-aligned cell.
pub(super) fn right(text: impl Into<String>) -> Line<'static> {
    Line::raw(text.into()).right_aligned()
}

/// Text in place of rows.
pub(super) fn nothing(to: &mut Buffer, area: Rect, look: &Look, why: &str) {
    let line = Rect { y: area.y + 1, height: 1, ..area };
    if area.height > 1 {
        Line::styled(why.to_owned(), look.faint()).render(line, to);
    }
}
