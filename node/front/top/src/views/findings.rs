//! Recent findings, newest first.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;

use super::table::{self, Column, right};
use crate::app::App;
use crate::data::Data;
use crate::look::Look;
use crate::units::{day, duration, harmless};

pub(super) fn draw(to: &mut Buffer, area: Rect, app: &mut App, data: &Data, look: &Look) {
    let columns: [Column; 6] = [("when", 14), ("verdict", 12), ("rank", 5), ("host", 12), ("late", 6), ("cause", 0)];
    let order = app.findings(data);
    let selected = app.selected().min(order.len().saturating_sub(1));
    let range = table::shown(selected, order.len(), area);
    let row = |at: usize| {
        let row = &data.findings.rows[order[at]];
        let text = |column: usize| row.get(column).map_or("", String::as_str);
        let number = |column: usize| text(column).parse::<i64>().ok();
        let cells = vec![
            Line::raw(number(0).map_or_else(|| "-".to_owned(), |ns| day(ns, &look.zone))),
            Line::raw(harmless(text(1), 12)),
            right(harmless(text(2), 5)),
            Line::raw(harmless(text(3), 12)),
            right(number(4).map_or_else(String::new, duration)),
            Line::raw(harmless(text(6), 200)),
        ];
        (cells, if ["none", "tail_over"].contains(&text(1)) { look.good() } else { Style::default() })
    };
    table::draw(to, area, look, &columns, (range, selected), row);
    if order.is_empty() {
        let why = match data.findings.notes.first() {
            Some(why) => harmless(why, usize::from(area.width)),
            None if app.filter.is_empty() => "no findings".to_owned(),
            None => "no finding passes the filter".to_owned(),
        };
        table::nothing(to, area, look, &why);
    }
}
