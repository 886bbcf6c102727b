//! The picture: a header with the verdict, always; the view below; keys or the line of input at the
//! bottom; over it all help, a text or an answer.

mod findings;
mod header;
mod heat;
mod jobs;
mod nodes;
mod overlay;
mod rank;
mod ranks;
mod services;
mod table;
mod verdict;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::Widget;

use crate::app::{App, Prompt};
use crate::data::Data;
use crate::look::Look;
use crate::units::harmless;
use crate::view::View;

/// The smallest terminal on which views are drawn.
const SMALLEST: (u16, u16) = (40, 10);

/// Draws everything. `now_ms` is of the front end's steady clock, as in [`Data::received_ms`].
pub fn draw(frame: &mut Frame<'_>, app: &mut App, data: &Data, look: &Look, now_ms: u64) {
    let area = frame.area();
    paint(frame.buffer_mut(), area, app, data, look, now_ms);
}

fn paint(to: &mut Buffer, area: Rect, app: &mut App, data: &Data, look: &Look, now_ms: u64) {
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let text = format!("{}x{}: at least {}x{} is needed", area.width, area.height, SMALLEST.0, SMALLEST.1);
        Line::raw(text).render(Rect { height: area.height.min(1), ..area }, to);
        return;
    }
    app.order(data);
    let rows = [Constraint::Length(header::HEIGHT), Constraint::Min(3), Constraint::Length(1)];
    let [top, body, bottom] = Layout::vertical(rows).areas(area);
    header::draw(to, top, app, data, look, now_ms);
    app.page = usize::from(body.height.saturating_sub(2)).max(1);
    view(to, body, app, data, look);
    footer(to, bottom, app, look);
    overlay::draw(to, area, app, data, look);
    only_ascii(to, look);
}

/// Texts of others may contain any character: one that the terminal must not get becomes a question
/// mark.
fn only_ascii(to: &mut Buffer, look: &Look) {
    if look.ascii {
        let others = to.content.iter_mut().filter(|cell| !cell.symbol().is_ascii());
        others.for_each(|cell| {
            cell.set_char('?');
        });
    }
}

fn view(to: &mut Buffer, area: Rect, app: &mut App, data: &Data, look: &Look) {
    match app.view {
        View::Verdict => verdict::draw(to, area, app, data, look),
        View::Ranks => ranks::draw(to, area, app, data, look),
        View::Heat => heat::draw(to, area, app, data, look),
        View::Nodes => nodes::draw(to, area, app, data, look),
        View::Jobs => jobs::draw(to, area, app, data, look),
        View::Rank => rank::draw(to, area, app, data, look),
        View::Findings => findings::draw(to, area, app, data, look),
        View::Services => services::draw(to, area, app, data, look),
    }
}

fn footer(to: &mut Buffer, area: Rect, app: &App, look: &Look) {
    let width = usize::from(area.width);
    let typed = |before: &str, text: &str| {
        // The end is where the typing is.
        let skip = (text.chars().count() + before.len() + 1).saturating_sub(width);
        format!("{before}{}_", text.chars().skip(skip).collect::<String>())
    };
    let line = match &app.prompt {
        Some(Prompt::Filter(text)) => Line::raw(typed("filter: ", text)),
        Some(Prompt::Sql(text)) => Line::raw(typed("sql: ", text)),
        None => {
            let filter = if app.filter.is_empty() {
                String::new()
            } else {
                format!("filter: {}  esc clears  ", harmless(&app.filter, 30))
            };
            Line::styled(
                format!("{filter}? help  / filter  s sort  space pause  [] {{}} time  : SQL  y its SQL  q quit"),
                look.faint(),
            )
        }
    };
    line.render(area, to);
}

/// The header and one view as lines of text, as wide and as long as they are: for output without a
/// terminal.
#[must_use]
pub fn plain(app: &mut App, data: &Data, look: &Look, width: u16, now_ms: u64) -> String {
    app.order(data);
    let rows = match app.view {
        View::Ranks | View::Heat => app.order.len(),
        View::Nodes => app.nodes(data).len(),
        View::Jobs => app.jobs(data).len(),
        View::Findings => app.findings(data).len(),
        View::Services => app.services(data).len(),
        View::Verdict | View::Rank => 200,
    };
    let height = u16::try_from(rows + 3).unwrap_or(u16::MAX).min(u16::MAX / width.max(1)).max(4);
    let mut text = String::new();
    let mut top = Buffer::empty(Rect::new(0, 0, width, header::HEIGHT - 1));
    let area = top.area;
    header::draw(&mut top, area, app, data, look, now_ms);
    only_ascii(&mut top, look);
    lines(&top, &mut text);
    text.push('\n');
    let mut body = Buffer::empty(Rect::new(0, 0, width, height));
    let area = body.area;
    app.page = usize::from(height.saturating_sub(2));
    view(&mut body, area, app, data, look);
    only_ascii(&mut body, look);
    lines(&body, &mut text);
    text
}

/// The lines of a buffer up to the last that is not empty.
fn lines(of: &Buffer, text: &mut String) {
    let mut all: Vec<String> = (of.area.top()..of.area.bottom())
        .map(|y| {
            let row: String = (of.area.left()..of.area.right()).map(|x| of[(x, y)].symbol()).collect();
            row.trim_end().to_owned()
        })
        .collect();
    while all.last().is_some_and(String::is_empty) {
        all.pop();
    }
    for line in all {
        text.push_str(&line);
        text.push('\n');
    }
}
