//! The nodes of the mesh: state, clock, what was lost, store, CPU and GPUs.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;

use super::table::{self, Column, right};
use crate::app::App;
use crate::data::Data;
use crate::look::Look;
use crate::units::{count, duration, harmless, maybe, ranges};

pub(super) fn draw(to: &mut Buffer, area: Rect, app: &mut App, data: &Data, look: &Look) {
    let Some(watched) = data.watched.as_ref() else { return };
    let wide = area.width >= 110;
    let mut columns: Vec<Column> = vec![
        ("node", if wide { 20 } else { 14 }),
        ("state", 5),
        ("clock+-", 7),
        ("lost", 5),
        ("rows", 6),
        ("CPU", 4),
        ("GPU MHz", 9),
        ("ranks", if wide { 14 } else { 8 }),
    ];
    if wide {
        columns.extend([("store", 7), ("version", 8)]);
    }
    columns.push(("held down by / recording", 0));
    let order = app.nodes(data);
    let selected = app.selected().min(order.len().saturating_sub(1));
    let range = table::shown(selected, order.len(), area);
    let row = |at: usize| {
        let node = &watched.nodes[order[at]];
        let sample = data.samples.get(&node.name);
        let style = if node.state == "dead" { look.bad() } else { Style::default() };
        let mine = if node.is_self { "*" } else { "" };
        let mhz = |mhz: Option<f64>| mhz.map_or_else(|| "-".to_owned(), |mhz| format!("{mhz:.0}"));
        let gpu = match sample.filter(|sample| sample.gpus > 0) {
            Some(sample) => format!("{}/{}", mhz(sample.sm_mhz), mhz(sample.sm_most_mhz)),
            None => "-".to_owned(),
        };
        let throttled = sample.map(|sample| sample.throttled.as_str()).filter(|throttled| !throttled.is_empty());
        let mut cells = vec![
            Line::raw(harmless(&format!("{}{mine}", node.name), 20)),
            Line::raw(harmless(&node.state, 5)),
            right(maybe(node.clock_bound_ns)),
            right(sample.and_then(|sample| sample.lost).map_or_else(|| "-".to_owned(), count)),
            right(node.rows.map_or_else(|| "-".to_owned(), count)),
            right(sample.and_then(|s| s.cpu).map_or_else(|| "-".to_owned(), |cpu| format!("{:.0}%", cpu * 100.0))),
            right(gpu),
            Line::raw(harmless(&ranges(&node.ranks), 40)),
        ];
        if wide {
            let span = node.span_ns.map(|(first, last)| duration(last.saturating_sub(first)));
            cells.push(right(span.unwrap_or_else(|| "-".to_owned())));
            cells.push(Line::raw(harmless(&node.version, 8)));
        }
        cells.push(Line::raw(harmless(throttled.unwrap_or(&node.recording), 60)));
        (cells, style)
    };
    table::draw(to, area, look, &columns, (range, selected), row);
    if order.is_empty() {
        table::nothing(to, area, look, if app.filter.is_empty() { "no nodes" } else { "no node passes the filter" });
    }
}
