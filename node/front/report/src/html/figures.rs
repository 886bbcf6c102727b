//! Drawings as SVG, coloured by classes so that they follow the page's dark and print styles: the
//! worst steps with what ranks did in them, and how long steps took.

use std::fmt::Write as _;

use model::board::Board;

use super::escape::text;
use super::parts::{lacks, named};
use super::sections::date;
use super::{Lane, Mark, Page, Step};
use record::units::{clock, duration};

/// Width of a drawing, and of the names at its left.
const WIDTH: f64 = 960.0;
const NAMES: f64 = 150.0;
/// Height of a rank's lane, and of one of many ranks.
const LANE: f64 = 14.0;
const NARROW: f64 = 7.0;
/// Ranks of a step beyond which lanes are narrow and only some have names.
const MANY: usize = 24;
/// Most ranks of a step that are drawn: those that came last and the first one.
const MOST: usize = 96;
/// Collectives of one point of the curve.
const AT_A_TIME: u32 = 8;
/// Height of the chart.
const CHART: f64 = 170.0;

/// The worst steps, below each other.
pub(super) fn steps(page: &Page) -> String {
    if page.steps.is_empty() {
        return format!(
            "<p>{}</p>",
            lacks(page, "steps", "There is no step in which ranks were late: nothing to look into.")
        );
    }
    let key = "<p class=\"key\"><span class=\"k own\"></span> computes <span class=\"k call\"></span> in the call \
               <span class=\"k event\"></span> kept from it, as its host recorded <span class=\"k bound\"></span> how far its entry may be wrong</p>";
    let drawn: String = page.steps.iter().enumerate().map(|(at, step)| lanes(page, at, step)).collect();
    format!("{key}\n{drawn}")
}

fn lanes(page: &Page, at: usize, step: &Step) -> String {
    let named = named(page);
    let mut ranks: Vec<&Lane> = step.ranks.iter().collect();
    ranks.sort_by_key(|lane| (std::cmp::Reverse(lane.entry_ns), lane.rank));
    let left_out = ranks.len().saturating_sub(MOST);
    if left_out > 0 {
        // The rank that came last is of interest, and the first as a reference.
        ranks.drain(MOST - MOST / 4..MOST - MOST / 4 + left_out);
    }
    let (Some(last), Some(first)) = (ranks.first(), ranks.last()) else { return String::new() };
    let begin = |lane: &Lane| lane.entry_ns.saturating_sub(lane.own_ns.unwrap_or(0).max(0));
    let from_ns = ranks.iter().map(|lane| begin(lane)).min().unwrap_or(0);
    let to_ns = ranks
        .iter()
        .map(|lane| lane.entry_ns.saturating_add(lane.duration_ns))
        .max()
        .unwrap_or(0)
        .max(from_ns.saturating_add(1));
    let x = |ns: i64| NAMES + (ns.saturating_sub(from_ns)) as f64 / (to_ns - from_ns) as f64 * (WIDTH - NAMES - 10.0);
    let height = if ranks.len() > MANY { NARROW } else { LANE };
    let total = height * ranks.len() as f64 + 24.0;
    let late = duration(last.entry_ns - first.entry_ns);
    let words = format!(
        "{} at {} UTC: rank {} on {} entered {late} after rank {} on {}, which came first.{}",
        step.collective,
        clock(last.entry_ns),
        last.rank,
        last.node,
        first.rank,
        first.node,
        if left_out > 0 { format!(" {left_out} ranks in between are not drawn.") } else { String::new() }
    );
    let words = match step.by_ends {
        true => {
            format!("{words} Clocks of hosts are not known: they are laid so that the ranks leave the call together.")
        }
        false => words,
    };
    let mut out = format!(
        "<figure>\n<figcaption id=\"step-{at}\">{}</figcaption>\n<svg class=\"lanes\" viewBox=\"0 0 {WIDTH} {total:.0}\" role=\"img\" \
         aria-labelledby=\"step-{at}\">\n",
        text(&words)
    );
    for (row, lane) in ranks.iter().enumerate() {
        let top = height * row as f64 + 2.0;
        let (bar, middle) = (height - 2.0, top + height / 2.0 - 1.0);
        let is_named = named.iter().any(|(node, pid)| *node == lane.node && *pid == lane.pid);
        let who = format!("rank {} on {}", lane.rank, lane.node);
        let bound = match lane.bound_ns {
            Some(bound_ns) => format!("± {}", duration(bound_ns)),
            None => "its host's clock is not known".to_owned(),
        };
        let own = lane.own_ns.map_or_else(String::new, |own_ns| format!(", computed {} before", duration(own_ns)));
        let tip = format!(
            "{who} entered {} ({bound}){own}, was in the call for {}",
            clock(lane.entry_ns),
            duration(lane.duration_ns)
        );
        let class = match (is_named, lane.bound_ns) {
            (true, _) => "lane named",
            (false, None) => "lane unknown",
            (false, Some(_)) => "lane",
        };
        let _ = write!(out, "<g class=\"{class}\"><title>{}</title>", text(&tip));
        if is_named || ranks.len() <= MANY || row % 4 == 0 {
            let _ = write!(
                out,
                "<text x=\"{:.0}\" y=\"{:.1}\">{}</text>",
                NAMES - 6.0,
                middle + 3.0,
                text(&shortened(&who))
            );
        }
        let rect = |out: &mut String, class: &str, from: f64, to: f64| {
            let _ = write!(
                out,
                "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{bar:.1}\"/>",
                (to - from).max(0.5)
            );
        };
        if lane.own_ns.is_some() {
            rect(&mut out, "own", x(begin(lane)), x(lane.entry_ns));
        }
        rect(&mut out, "call", x(lane.entry_ns), x(lane.entry_ns.saturating_add(lane.duration_ns)));
        for event in step.events.iter().filter(|event| event.node == lane.node && event.pid == lane.pid) {
            let (since, until) = (event.at_ns.max(from_ns), event.at_ns.saturating_add(event.duration_ns).min(to_ns));
            if since < until {
                let tip = format!("{}, {}", event.what, duration(event.duration_ns));
                let _ = write!(
                    out,
                    "<rect class=\"event\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>",
                    x(since),
                    top + bar / 4.0,
                    (x(until) - x(since)).max(1.0),
                    bar / 2.0,
                    text(&tip)
                );
            }
        }
        if let Some(bound_ns) = lane.bound_ns {
            let (low, high) = (
                x(lane.entry_ns.saturating_sub(bound_ns)).max(NAMES),
                x(lane.entry_ns.saturating_add(bound_ns)).min(WIDTH),
            );
            let (up, down) = (top + 1.0, top + bar - 1.0);
            let _ = write!(
                out,
                "<path class=\"bound\" d=\"M{low:.1} {up:.1}V{down:.1}M{low:.1} {middle:.1}H{high:.1}M{high:.1} {up:.1}V{down:.1}\"/>"
            );
        }
        out.push_str("</g>\n");
    }
    let foot = total - 8.0;
    let _ = write!(
        out,
        "<text class=\"axis\" x=\"{NAMES:.0}\" y=\"{foot:.0}\">{}</text><text class=\"axis end\" x=\"{:.0}\" y=\"{foot:.0}\">{} later</text>\n</svg>\n</figure>\n",
        text(&clock(from_ns)),
        WIDTH - 10.0,
        text(&duration(to_ns - from_ns))
    );
    out
}

fn shortened(name: &str) -> String {
    if name.chars().count() <= 24 { name.to_owned() } else { name.chars().take(23).chain(['…']).collect() }
}

/// How long collectives took to come round, with findings and notes.
pub(super) fn step_time(page: &Page) -> String {
    let mut out = String::new();
    let board = page.board.as_ref();
    // Collectives of one step, if the verdict knows that.
    let each = page.verdict.as_ref().and_then(|report| report.cost.per_step).map_or(1, |step| step.collectives.max(1));
    let points = board.map(|board| points(board, each)).unwrap_or_default();
    let longest = points.iter().map(|(_, ns)| *ns).fold(0.0, f64::max);
    if points.len() < 2 || longest <= 0.0 {
        let _ = write!(out, "<p>{}</p>", lacks(page, "heat map", "Too few collectives were recorded for a curve."));
    } else {
        out += &chart(page, &points, longest, each);
    }
    out + &marks(page)
}

/// Time and length from one collective to the next (of `each` collectives), over a few collectives
/// at once: windows that contain one or two in turn would show neither length correctly.
fn points(board: &Board, each: usize) -> Vec<(i64, f64)> {
    let mut points = Vec::new();
    let Some(first) = board.windows.first() else { return points };
    let (mut since_ns, mut collectives) = (first.end_ns - board.window_ns, 0_u32);
    for window in &board.windows {
        collectives += window.collectives;
        if collectives >= AT_A_TIME {
            let length_ns = window.end_ns - since_ns;
            points.push((since_ns + length_ns / 2, length_ns as f64 * each as f64 / f64::from(collectives)));
            (since_ns, collectives) = (window.end_ns, 0);
        }
    }
    points
}

fn chart(page: &Page, points: &[(i64, f64)], longest: f64, each: usize) -> String {
    let (since_ns, until_ns) = page.span_ns;
    let length = (until_ns - since_ns).max(1) as f64;
    let (left, top, bottom) = (70.0, 8.0, CHART - 24.0);
    let x = |ns: i64| left + ((ns - since_ns) as f64 / length).clamp(0.0, 1.0) * (WIDTH - left - 10.0);
    let y = |ns: f64| bottom - ns / (longest * 1.05) * (bottom - top);
    let mut sorted: Vec<f64> = points.iter().map(|(_, ns)| *ns).collect();
    sorted.sort_by(f64::total_cmp);
    let median = sorted[sorted.len() / 2];
    let of = if each > 1 { format!("a step of {each} collectives") } else { "one collective to the next".to_owned() };
    let words = format!(
        "Time from {of}: median {}, longest {}. Shaded: findings; lines: what was noted.",
        duration(median as i64),
        duration(longest as i64)
    );
    let mut out = format!(
        "<figure>\n<figcaption id=\"time-words\">{}</figcaption>\n<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {CHART}\" role=\"img\" \
         aria-labelledby=\"time-words\">\n",
        text(&words)
    );
    for mark in &page.findings {
        let (from, to) = (x(mark.since_ns), x(mark.until_ns));
        let _ = writeln!(
            out,
            "<rect class=\"finding\" x=\"{from:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>",
            (to - from).max(2.0),
            bottom - top,
            text(&mark.text)
        );
    }
    let line: Vec<String> = points.iter().map(|(at, ns)| format!("{:.1},{:.1}", x(*at), y(*ns))).collect();
    let _ = writeln!(out, "<polyline class=\"curve\" points=\"{}\"/>", line.join(" "));
    for mark in &page.marks {
        let at = x(mark.since_ns);
        let _ = writeln!(
            out,
            "<line class=\"mark\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{bottom:.1}\"><title>{}</title></line>",
            text(&mark.text)
        );
    }
    let _ = write!(
        out,
        "<path class=\"frame\" d=\"M{left} {top}V{bottom:.1}H{:.1}\"/>\n<text class=\"axis end\" x=\"{:.0}\" y=\"{:.1}\">{}</text>\
         <text class=\"axis end\" x=\"{:.0}\" y=\"{:.1}\">{}</text><text class=\"axis\" x=\"{left}\" y=\"{:.0}\">{}</text>\
         <text class=\"axis end\" x=\"{:.0}\" y=\"{:.0}\">{}</text>\n</svg>\n</figure>\n",
        WIDTH - 10.0,
        left - 6.0,
        y(longest) + 4.0,
        text(&duration(longest as i64)),
        left - 6.0,
        y(median) + 4.0,
        // Where it would overlap the other, the caption has it.
        if y(median) - y(longest) < 12.0 { String::new() } else { text(&duration(median as i64)) },
        CHART - 8.0,
        text(&clock(since_ns)),
        WIDTH - 10.0,
        CHART - 8.0,
        text(&clock(until_ns))
    );
    out
}

/// Findings and notes as text.
pub(super) fn marks(page: &Page) -> String {
    let mut out = String::new();
    let mut put = |caption: &str, marks: &[Mark]| {
        if marks.is_empty() {
            return;
        }
        let _ = writeln!(
            out,
            "<table><caption>{caption}</caption><thead><tr><th scope=\"col\">When (UTC)</th><th scope=\"col\">Host</th>\
             <th scope=\"col\">What</th></tr></thead><tbody>"
        );
        for mark in marks {
            let until =
                if mark.until_ns > mark.since_ns { format!(" to {}", clock(mark.until_ns)) } else { String::new() };
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\">{}{}</th><td>{}</td><td>{}</td></tr>",
                text(&date(mark.since_ns)),
                text(&until),
                text(&mark.node),
                text(&mark.text)
            );
        }
        out.push_str("</tbody></table>\n");
    };
    put("Findings: what agents said in this time.", &page.findings);
    put("Notes (<code>rankmesh mark</code>).", &page.marks);
    out
}
