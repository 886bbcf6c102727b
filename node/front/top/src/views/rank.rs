//! One rank: its figures, where its time went, its call stack, its process and host.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::ranks::{Minute, role, role_style};
use super::verdict::scrolled;
use crate::app::App;
use crate::data::{Data, RankDetail};
use crate::look::Look;
use crate::units::{count, duration, maybe, percent, tenths};

pub(super) fn draw(to: &mut Buffer, area: Rect, app: &mut App, data: &Data, look: &Look) {
    let lines = match &app.rank {
        None => vec![("no rank is chosen: enter on a rank in views 2 and 3".to_owned(), look.faint())],
        Some((node, pid, number)) => lines(node, *pid, *number, usize::from(area.width), data, look),
    };
    scrolled(to, area, app, lines);
}

fn lines(node: &str, pid: i64, number: i64, width: usize, data: &Data, look: &Look) -> Vec<(String, Style)> {
    let plain = Style::default();
    let mut lines = vec![(format!("rank {number} on {node}, process {pid}"), look.head())];
    let rank = data.watched.iter().flat_map(|watched| &watched.ranks).find(|rank| rank.node == node && rank.pid == pid);
    match rank {
        Some(rank) => {
            let role = role(&rank.role);
            let role = if role.is_empty() { "nothing is wrong with it" } else { role };
            lines.push((role.to_owned(), role_style(&rank.role, look)));
            lines.push((
                format!(
                    "late {} (mean), waits {}, excess {} a collective = {} of the time, compute time {} above its like",
                    maybe(rank.late_ns),
                    maybe(rank.wait_ns),
                    maybe(rank.excess_ns),
                    percent(rank.share),
                    maybe(rank.compute_excess_ns)
                ),
                plain,
            ));
            let z = rank.z.map_or_else(|| "not known of so few ranks".to_owned(), tenths);
            lines.push((format!("z {z}, flagged in {} of {} windows", rank.flagged, rank.windows), plain));
            if let Some(compute) = rank.compute_share {
                lines.push((format!("computes {} of the time, in calls the rest", percent(compute)), plain));
            }
        }
        None => lines.push(("it is not in the table of ranks any more".to_owned(), look.warn())),
    }
    let minute = Minute::of(width.saturating_sub(20).clamp(12, 120));
    let place = data.windows().place(node, pid);
    lines.push((format!("late, last minute: {}", minute.line(data, place, look)), plain));
    lines.push((String::new(), plain));
    match data.detail.as_ref().filter(|detail| detail.of == (node.to_owned(), pid)) {
        Some(detail) => self::detail(detail, &mut lines, look),
        None => lines.push(("asking its host ...".to_owned(), look.faint())),
    }
    let sample = data.samples.get(node);
    if let Some(cpu) = sample.and_then(|sample| sample.cpu) {
        lines.push((format!("host: CPUs {} busy", percent(cpu)), plain));
    }
    if let Some(reason) = sample.map(|sample| &sample.throttled).filter(|reason| !reason.is_empty()) {
        lines.push((format!("host: GPU clocks are held down by {reason}"), look.warn()));
    }
    lines
}

fn detail(detail: &RankDetail, lines: &mut Vec<(String, Style)>, look: &Look) {
    let plain = Style::default();
    if !detail.times.is_empty() {
        lines.push(("where its time went (a minute; calls, and its threads off the CPU):".to_owned(), look.head()));
        for (what, ns, calls) in &detail.times {
            lines.push((format!("{:>8}  {:>6} times  {what}", duration(*ns), count(*calls)), plain));
        }
        lines.push((String::new(), plain));
    }
    if !detail.stack.is_empty() {
        lines.push(("where it is (most frequent stack, outermost first):".to_owned(), look.head()));
        lines.extend(detail.stack.iter().map(|frame| (format!("  {frame}"), plain)));
        lines.push((String::new(), plain));
    }
    if !detail.process.is_empty() {
        let facts: Vec<String> = detail.process.iter().map(|(name, value)| format!("{name} {value}")).collect();
        lines.push((format!("process: {}", facts.join(", ")), plain));
    }
    lines.extend(detail.missing.iter().map(|missing| (missing.clone(), look.faint())));
}
