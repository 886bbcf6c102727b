//! The verdict in full: who, evidence, what was not visible, coverage.

use model::watch::Watched;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Widget, Wrap};

use super::header::{place, style};
use super::table::nothing;
use crate::app::App;
use crate::data::Data;
use crate::look::Look;
use crate::units::{clock, day, duration, harmless};

/// Longest line.
const LONGEST: usize = 2_000;

pub(super) fn draw(to: &mut Buffer, area: Rect, app: &mut App, data: &Data, look: &Look) {
    let lines = match &data.watched {
        Some(watched) if watched.job.is_some() => lines(watched, look),
        _ => return nothing(to, area, look, "no verdict"),
    };
    scrolled(to, area, app, lines);
}

/// Lines that may be more than fit: scrolled by the view's selection, which is bounded here.
pub(super) fn scrolled(to: &mut Buffer, area: Rect, app: &mut App, lines: Vec<(String, Style)>) {
    let all = lines.len();
    let at = &mut app.selected[app.view.index()];
    *at = (*at).min(all.saturating_sub(usize::from(area.height).saturating_sub(1)));
    let shown: Vec<Line<'static>> =
        lines.into_iter().skip(*at).map(|(text, style)| Line::styled(harmless(&text, LONGEST), style)).collect();
    Paragraph::new(shown).wrap(Wrap { trim: false }).render(area, to);
}

fn lines(watched: &Watched, look: &Look) -> Vec<(String, Style)> {
    let Some(job) = &watched.job else { return Vec::new() };
    let plain = Style::default();
    let mut lines = vec![(job.sentence.clone(), style(job, look)), (String::new(), plain)];
    for culprit in &job.culprits {
        let mut text = place(culprit);
        if let Some(late_ns) = culprit.late_by_ns {
            text += &format!(": late by {}", duration(late_ns));
        }
        if culprit.collectives > 0 {
            text += &format!(", last in {} of {}", culprit.last_in, culprit.collectives);
        }
        if let Some(since_ns) = culprit.since_ns {
            let or_earlier = if culprit.since_start { " or earlier" } else { "" };
            text += &format!(", since {}{or_earlier}", day(since_ns, &look.zone));
        }
        lines.push((text, plain));
    }
    if let Some(cause) = &job.cause {
        lines.push((format!("why: {cause}"), plain));
    }
    if let (Some(lost), Some(sum)) = (job.gpus_lost, job.gpu_seconds) {
        let most = if job.upper_bound { "at most " } else { "" };
        let of_time = if lost > 0.0 {
            format!(" in {:.0} s (rankmesh cost: the whole job's)", sum / lost)
        } else {
            String::new()
        };
        lines.push((format!("cost: {most}{lost:.2} GPUs idle, {sum:.1} GPU-seconds{of_time}"), plain));
    }
    if let Some(step_ns) = job.step_ns {
        lines.push((format!("a step takes {}", duration(step_ns)), plain));
    }
    let bound = job.clock_bound_ns.map_or_else(
        || "clocks of hosts against each other are not known".to_owned(),
        |bound_ns| format!("times of different hosts within {}", duration(bound_ns)),
    );
    lines.push((format!("evidence: tier {}; {bound}; up to {}", job.tier, clock(job.until_ns, &look.zone)), plain));
    if let Some(judge) = &job.judge {
        let differ = if job.differ { "; its judges differ about this window" } else { "" };
        lines.push((format!("judged by {judge}{differ}"), plain));
    }
    if !job.silent.is_empty() {
        lines.push((format!("not heard of in this window: {}", job.silent.join(", ")), look.warn()));
    }
    if let Some(brief) = &watched.brief {
        lines.push((brief.clone(), look.warn()));
    }
    for note in &job.notes {
        lines.push((format!("note: {note}"), plain));
    }
    for unseen in &job.not_visible {
        lines.push((format!("not visible: {unseen}"), look.faint()));
    }
    for line in watched.coverage.lines() {
        let style = if watched.coverage.is_complete() { look.faint() } else { look.warn() };
        lines.push((line, style));
    }
    lines
}
