//! The jobs with a standing verdict, those that are not well first.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::header::style;
use super::table::{self, Column, right};
use crate::app::App;
use crate::data::Data;
use crate::look::Look;
use crate::units::{harmless, maybe};

pub(super) fn draw(to: &mut Buffer, area: Rect, app: &mut App, data: &Data, look: &Look) {
    let Some(watched) = data.watched.as_ref() else { return };
    let columns: [Column; 6] =
        [("job", 24), ("ranks", 5), ("step", 7), ("GPUs lost", 9), ("verdict", 12), ("in words", 0)];
    let order = app.jobs(data);
    let selected = app.selected().min(order.len().saturating_sub(1));
    let range = table::shown(selected, order.len(), area);
    let shown = watched.job.as_ref().map(|job| &job.name);
    let row = |at: usize| {
        let job = &watched.jobs[order[at]];
        let mark = if Some(&job.name) == shown { "*" } else { "" };
        let cells = vec![
            Line::raw(harmless(&format!("{}{mark}", job.name), 24)),
            right(job.nranks.map_or_else(|| "-".to_owned(), |ranks| ranks.to_string())),
            right(maybe(job.step_ns)),
            right(job.gpus_lost.map_or_else(|| "-".to_owned(), |lost| format!("{lost:.1}"))),
            Line::raw(harmless(&job.verdict, 12)),
            Line::raw(harmless(&job.sentence, 200)),
        ];
        (cells, style(job, look))
    };
    table::draw(to, area, look, &columns, (range, selected), row);
    if order.is_empty() {
        table::nothing(to, area, look, if app.filter.is_empty() { "no job" } else { "no job passes the filter" });
    }
}
