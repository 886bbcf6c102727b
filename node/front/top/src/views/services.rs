//! Services: how long requests took on each host.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;

use super::table::{self, Column, right};
use crate::app::App;
use crate::data::Data;
use crate::look::Look;
use crate::units::{count, harmless, maybe};

pub(super) fn draw(to: &mut Buffer, area: Rect, app: &mut App, data: &Data, look: &Look) {
    let names = if area.width >= 110 { 24 } else { 13 };
    let mut columns: Vec<Column> = vec![("service", names), ("host", names), ("requests", 8), ("failed", 6)];
    columns.extend([("p50", 6), ("p90", 6), ("p99", 6), ("p99.9", 6), ("max", 6)]);
    let order = app.services(data);
    let selected = app.selected().min(order.len().saturating_sub(1));
    let range = table::shown(selected, order.len(), area);
    let row = |at: usize| {
        let row = &data.services.rows[order[at]];
        let text = |column: usize| row.get(column).map_or("", String::as_str);
        let number = |column: usize| text(column).parse::<f64>().ok();
        let many = |column: usize| count(number(column).unwrap_or(0.0) as u64);
        let mut cells = vec![
            Line::raw(harmless(text(0), usize::from(names))),
            Line::raw(harmless(text(1), usize::from(names))),
            right(many(2)),
            right(many(3)),
        ];
        cells.extend((4..9).map(|column| right(maybe(number(column).map(|ns| ns as i64)))));
        (cells, Style::default())
    };
    table::draw(to, area, look, &columns, (range, selected), row);
    if order.is_empty() {
        let why = match data.services.notes.first() {
            Some(why) => harmless(why, usize::from(area.width)),
            None if app.filter.is_empty() => "no requests in these ten minutes (up --serve NAME=port:N)".to_owned(),
            None => "no service passes the filter".to_owned(),
        };
        table::nothing(to, area, look, &why);
    }
}
