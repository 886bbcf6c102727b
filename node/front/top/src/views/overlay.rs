//! Overlays on a view: help, a text, the answer to a question.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::symbols::border;
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Widget, Wrap};

use crate::app::{App, Overlay};
use crate::data::{Answer, Data};
use crate::look::Look;
use crate::units::harmless;

const HELP: &str = "\
1-8, tab   verdict, ranks, heat map, nodes, jobs, rank, findings, services
up down    select (also j k, page up and down, home, end)
enter      a rank from ranks or heat map; a job's ranks; a host's ranks;
           the time of a finding; what a service's slowest requests wait for
esc        back; clears the filter
/          filter: a rank's number, or a part of a host's name or role
s          sort ranks: worst first, by rank, host, lateness, wait
m          heat map of lateness, how much longer others wait (needs no clocks),
           waiting or compute time
+ -        fewer or more windows in a column of the heat map
space      pause: nothing new is taken in
[ ]        a window back and on in time;  { }  ten windows
0          now again
:          ask SQL (up and down: earlier questions)
y          the SQL of this view, also into the terminal's clipboard
e          write what is shown into a file (JSON, of :SQL CSV)
z          suspend (fg brings it back)
q, ctrl-c  end

late   mean of a rank's entry into collectives minus the first entry
wait   mean of its time in them beyond the rank that waits least
lost   its excess over the median of the others, of wall time
z      robust z of that; above 3.5 stands out
A culprit is LATE and waits LITTLE; the others wait for it.";

pub(super) fn draw(to: &mut Buffer, area: Rect, app: &mut App, data: &Data, look: &Look) {
    let (title, lines) = match &app.overlay {
        Overlay::None => return,
        Overlay::Help => ("keys".to_owned(), HELP.lines().map(|line| line.to_owned()).collect()),
        Overlay::Text(title, body) => (title.clone(), body.lines().map(|line| harmless(line, 10_000)).collect()),
        Overlay::Answer => match &data.answer {
            Some(answer) => (harmless(&answer.sql, 200), table(answer)),
            None => ("SQL".to_owned(), vec!["asking ...".to_owned()]),
        },
    };
    let wraps = matches!(app.overlay, Overlay::Text(..));
    let all: usize = match wraps {
        false => lines.len(),
        true => {
            let width = usize::from(area.width.saturating_sub(4)).max(1);
            lines.iter().map(|line| line.chars().count().div_ceil(width).max(1)).sum()
        }
    };
    let height = u16::try_from(all + 2).unwrap_or(u16::MAX).min(area.height);
    let y = area.y + (area.height - height) / 2;
    let over = Rect { x: area.x + 1, y, width: area.width - 2, height };
    app.scrolled = app.scrolled.min(all.saturating_sub(usize::from(height.saturating_sub(2))));
    let set = if look.ascii { ASCII } else { border::PLAIN };
    let block = Block::bordered().border_set(set).title(format!(" {title} ")).title_bottom(" esc closes ");
    Clear.render(over, to);
    // Only lines that are on the screen are made.
    let from = if wraps { 0 } else { app.scrolled };
    let shown: Vec<Line<'static>> =
        lines.into_iter().skip(from).take(2 * usize::from(height) + app.scrolled).map(Line::raw).collect();
    let text = Paragraph::new(shown).block(block);
    if wraps {
        let scrolled = u16::try_from(app.scrolled).unwrap_or(u16::MAX);
        text.wrap(Wrap { trim: false }).scroll((scrolled, 0)).render(over, to);
    } else {
        text.render(over, to);
    }
}

const ASCII: border::Set<'static> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

/// Widest column of an answer.
const WIDEST: usize = 60;

fn table(answer: &Answer) -> Vec<String> {
    let cell = |text: &String| harmless(text, WIDEST);
    let mut rows: Vec<Vec<String>> = vec![answer.columns.iter().map(cell).collect()];
    rows.extend(answer.rows.iter().map(|row| row.iter().map(cell).collect()));
    let mut widths = vec![0usize; answer.columns.len()];
    for row in &rows {
        for (width, text) in widths.iter_mut().zip(row) {
            *width = (*width).max(text.chars().count());
        }
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    if answer.columns.is_empty() {
        lines.clear();
    }
    lines.extend(answer.notes.iter().map(|note| harmless(note, 400)));
    lines
}
