//! The verdict as spans on tracks of its own: who, from when to when, at what cost.

use std::io::{self, Write};

use verdicts::{Culprit, Report, Verdict};

use super::layout::Layout;
use super::write::{Arg, Event};

/// The track of the verdict.
pub const TRACK: &str = "verdict";

/// Adds a report to its track; `text` is its text, times are of the trace's clock.
///
/// # Errors
/// The file cannot be written.
pub fn put<W: Write>(report: &Report, text: &str, to: &mut Layout<W>) -> io::Result<()> {
    let evidence = &report.evidence;
    let mut args = vec![
        ("text", Arg::Text(record::printable_lines(text))),
        ("evidence_tier", Arg::Int(i64::from(evidence.tier))),
        ("collectives", int(evidence.matched)),
        ("windows", int(evidence.windows)),
        ("nodes_asked", int(report.coverage.asked)),
        ("nodes_answered", int(report.coverage.answered)),
    ];
    args.extend(evidence.clock_bound_ns.map(|bound_ns| ("clock_bound_ns", Arg::Int(bound_ns))));
    args.extend(report.cause.as_ref().map(|cause| ("cause", Arg::Text(record::printable_lines(&cause.summary)))));
    args.extend(not_visible(&evidence.not_visible));
    let missing = report.coverage.missing.iter().map(|(node, why)| format!("{node}: {why}")).collect::<Vec<_>>();
    if !missing.is_empty() {
        args.push(("nodes_missing", Arg::Text(record::printable(&missing.join("; ")))));
    }
    let summary = Event { name: headline(text), category: "verdict", args, flow: None };
    to.of_job(TRACK, (evidence.since_ns, evidence.until_ns), summary)?;
    for culprit in report.verdict.named() {
        to.of_job("late ranks", (culprit.since_ns, culprit.until_ns), named(culprit, report))?;
    }
    if let Verdict::Hang(hang) = &report.verdict {
        for waiting in &hang.waiting {
            let since_ns = waiting.since_ns.or(hang.since_ns).unwrap_or(evidence.since_ns);
            let event = Event {
                name: format!("rank {} on {} waits", waiting.who.rank, waiting.who.node),
                category: "verdict",
                ..Event::default()
            };
            to.of_job("hang", (since_ns, evidence.until_ns), event)?;
        }
    }
    Ok(())
}

fn named(culprit: &Culprit, report: &Report) -> Event {
    let mut args = vec![
        ("rank", Arg::Int(i64::from(culprit.rank))),
        ("node", Arg::Text(culprit.node.clone())),
        ("pid", Arg::Int(culprit.pid)),
        ("late_by_ns", Arg::Int(culprit.late_by_ns)),
        ("last_in", int(culprit.last_in)),
        ("collectives", int(culprit.collectives)),
        ("share", Arg::Real(culprit.share)),
        ("windows_flagged", int(culprit.flagged)),
        ("comm_hash", Arg::Text(culprit.comm_hash.clone())),
    ];
    args.extend(culprit.z.map(|z| ("z", Arg::Real(z))));
    args.extend(report.evidence.clock_bound_ns.map(|bound_ns| ("clock_bound_ns", Arg::Int(bound_ns))));
    Event { name: format!("rank {} on {} is late", culprit.rank, culprit.node), category: "verdict", args, flow: None }
}

fn headline(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let text = record::printable(&lines.join(" "));
    match text.split_once(": ") {
        Some((head, _)) => head.to_owned(),
        None => text,
    }
}

fn not_visible(lines: &[String]) -> Option<(&'static str, Arg)> {
    (!lines.is_empty()).then(|| ("not_visible", Arg::Text(record::printable(&lines.join("; ")))))
}

fn int(number: usize) -> Arg {
    Arg::Int(i64::try_from(number).unwrap_or(i64::MAX))
}
