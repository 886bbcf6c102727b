//! The verdict, always on top: who, where, since when, what it costs, why; and its age.

use model::watch::{CulpritNow, JobNow, Watched};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use crate::app::{App, STALE};
use crate::data::Data;
use crate::look::Look;
use crate::units::{clock, day, duration, harmless};
use crate::view::View;

/// Lines of the header.
pub(super) const HEIGHT: u16 = 5;

pub(super) fn draw(to: &mut Buffer, area: Rect, app: &App, data: &Data, look: &Look, now_ms: u64) {
    let width = usize::from(area.width);
    let mut lines = vec![title(app, data, look, width, now_ms)];
    let job = data.watched.as_ref().and_then(|watched| watched.job.as_ref());
    match (job, &data.watched, &data.error) {
        (Some(job), ..) => {
            let style = style(job, look);
            lines.push(Line::styled(harmless(&job.sentence, width), style));
            lines.push(who(job, look, data, width));
            lines.push(cause(job, look, width));
        }
        (None, Some(watched), _) if !data.is_stores && records_nowhere(watched) => {
            lines.push(Line::styled("No verdict stands: no node records", look.faint()));
            lines.push(Line::raw("Start agents as root (no --capture off); rankmesh check says what a host lacks"));
            lines.push(Line::raw(""));
        }
        (None, Some(_), _) => {
            lines.push(Line::styled("No verdict stands: no job with ranks is known here", look.faint()));
            lines.push(Line::raw("Ranks are seen once they call NCCL, RCCL or MPI; [ goes back in time"));
            lines.push(Line::raw(""));
        }
        (None, None, Some(error)) => {
            lines.push(Line::styled(harmless(error, width), look.bad()));
            lines.push(Line::raw("It is asked again every second"));
            lines.push(Line::raw(""));
        }
        (None, None, None) => {
            lines.push(Line::raw(format!("asking {} ...", harmless(&data.source, width))));
            lines.extend([Line::raw(""), Line::raw("")]);
        }
    }
    lines.push(tabs(app, look));
    for (line, y) in lines.into_iter().zip(area.top()..area.bottom()) {
        line.render(Rect { y, height: 1, ..area }, to);
    }
}

/// Whether no node has ranks to show because none records.
fn records_nowhere(watched: &Watched) -> bool {
    !watched.nodes.is_empty() && watched.nodes.iter().all(|node| !node.recording.starts_with("on"))
}

pub(super) fn style(job: &JobNow, look: &Look) -> Style {
    match (job.is_ill, job.verdict.as_str()) {
        (true, _) => look.bad(),
        (false, "none") => look.good(),
        _ => look.warn(),
    }
}

/// Name of the job at the left; at the right the time that is shown, and its age.
fn title(app: &App, data: &Data, look: &Look, width: usize, now_ms: u64) -> Line<'static> {
    let (state, style) = state(app, data, look, now_ms);
    let job = data.watched.as_ref().and_then(|watched| watched.job.as_ref());
    let name = job.map_or_else(|| "rankmesh top".to_owned(), |job| job.name.clone());
    let agent = data.watched.as_ref().map(|watched| watched.agent.clone()).filter(|agent| !agent.is_empty());
    let by = job.and_then(|job| job.judge.as_ref()).map(|judge| format!("judged by {judge}"));
    let asked = match (by, agent) {
        (Some(by), Some(agent)) => format!("{by}, asked at {agent}"),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => data.source.clone(),
    };
    let room = width.saturating_sub(state.chars().count() + 2);
    let left = harmless(&format!("{name}{}{asked}", look.dot()), room);
    let gap = width.saturating_sub(left.chars().count() + state.chars().count());
    Line::from(vec![Span::styled(left, look.head()), Span::raw(" ".repeat(gap)), Span::styled(state, style)])
}

fn state(app: &App, data: &Data, look: &Look, now_ms: u64) -> (String, Style) {
    if let Some(at_ns) = data.show_at {
        let at = day(at_ns, &look.zone);
        return match &data.error {
            Some(_) => (format!("NOT FOUND: {at}"), look.bad()),
            None if data.is_loading => (format!("looking up {at}"), look.warn()),
            None => (format!("PAST {at}"), look.warn()),
        };
    }
    let Some(silent_ms) = data.silent_ms(now_ms) else { return (String::new(), Style::default()) };
    let job = data.watched.as_ref().and_then(|watched| watched.job.as_ref());
    let age_ms = silent_ms + job.map_or(0, |job| job.age_ms.max(0).unsigned_abs());
    let age = format!("{:.1} s old", age_ms as f64 / 1e3);
    if u128::from(silent_ms) >= STALE.as_millis() && !data.is_stores {
        let why = if data.error.is_some() { "no agent answers" } else { "nothing came" };
        return (format!("STALE: {why} for {} s", silent_ms / 1_000), look.bad());
    }
    if app.is_paused {
        return (format!("PAUSED, {age}"), look.warn());
    }
    if u128::from(age_ms) >= 2 * STALE.as_millis() {
        return (format!("OLD verdict, {age}"), look.warn());
    }
    (format!("live, {age}"), look.good())
}

fn who(job: &JobNow, look: &Look, data: &Data, width: usize) -> Line<'static> {
    let mut parts = Vec::new();
    if let Some(culprit) = job.culprits.first() {
        parts.push(place(culprit));
        if job.culprits.len() > 1 {
            parts.push(format!("and {} more", job.culprits.len() - 1));
        }
        if let Some(late_ns) = culprit.late_by_ns {
            parts.push(format!("late by {}", duration(late_ns)));
        }
        if let Some(since_ns) = culprit.since_ns {
            let or_earlier = if culprit.since_start { " or earlier" } else { "" };
            parts.push(format!("since {}{or_earlier}", clock(since_ns, &look.zone)));
        }
    }
    if let Some(lost) = job.gpus_lost.filter(|lost| *lost > 0.0) {
        let most = if job.upper_bound { "at most " } else { "" };
        let sum = job.gpu_seconds.filter(|_| width >= 100);
        let sum = sum.map(|sum| format!(" ({sum:.0} GPU-s in {:.0} s)", sum / lost)).unwrap_or_default();
        parts.push(format!("costs {most}{lost:.1} GPUs{sum}"));
    }
    if parts.is_empty() {
        let ranks = data.watched.as_ref().map_or(0, |watched| watched.ranks.len());
        parts.push(format!("{ranks} ranks seen"));
        parts.extend(job.step_ns.map(|step_ns| format!("a step takes {}", duration(step_ns))));
    }
    parts.extend((!job.silent.is_empty()).then(|| format!("not heard: {}", job.silent.join(", "))));
    parts.extend(job.differ.then(|| "the job's judges differ".to_owned()));
    Line::raw(harmless(&parts.join(look.dot()), width))
}

/// A rank and its place.
pub(super) fn place(culprit: &CulpritNow) -> String {
    let pid = culprit.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    format!("rank {} on {}{pid}", culprit.rank, culprit.node)
}

fn cause(job: &JobNow, look: &Look, width: usize) -> Line<'static> {
    match &job.cause {
        Some(cause) => Line::raw(harmless(&format!("why: {cause}"), width)),
        None if job.is_ill && !job.culprits.is_empty() => {
            Line::styled("why: nothing is known yet (rankmesh explain)", look.faint())
        }
        None => Line::raw(""),
    }
}

fn tabs(app: &App, look: &Look) -> Line<'static> {
    let mut spans = Vec::new();
    for (at, view) in View::ALL.into_iter().enumerate() {
        let style = if view == app.view { look.selected() } else { Style::default() };
        spans.push(Span::styled(format!(" {} {} ", at + 1, view.name()), style));
    }
    Line::from(spans)
}
