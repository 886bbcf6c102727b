//! `rankmesh stragglers --show-sql`: the questions that give the figures of a report again, for
//! `rankmesh query`.
//!
//! They use the views of `views.rs`, with the report's own span, communicators and episodes.
//! What follows from these figures (z, flags, cost) is the analysis' alone; docs/verdicts.md has
//! its rules.

use std::collections::BTreeSet;

use observed::Rules;
use serde::Serialize;

use super::hang::Hang;
use super::report::{CommReport, Culprit, Report, Verdict};

/// A question that gives figures of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// Which figures.
    pub title: String,
    /// The question; times are of the clock of the agent that was asked. Empty where no question
    /// gives these figures: the title says why.
    pub sql: String,
}

/// The questions behind a report: of each communicator that matters, its ranks over the span; of
/// each named rank, the same over its episode; of a hang, how far each rank got.
#[must_use]
pub fn show_sql(report: &Report) -> Vec<Shown> {
    let named = report.verdict.named();
    let scored = || report.per_comm.iter().filter(|comm| !comm.ranks.is_empty());
    let mut shown = Vec::new();
    if let Verdict::Hang(hang) = &report.verdict {
        shown.extend(progress(hang));
    }
    for comm in scored().filter(|comm| named.is_empty() || named.iter().any(|c| c.comm_hash == comm.comm_hash)) {
        shown.extend(ranks(report, comm, None));
    }
    for culprit in named {
        let comm = scored().find(|comm| comm.comm_hash == culprit.comm_hash);
        shown.extend(comm.and_then(|comm| ranks(report, comm, Some(culprit))));
    }
    let not = |title: &str| Shown { title: title.to_owned(), sql: String::new() };
    if scored().any(|comm| comm.own_from_entries) {
        shown.push(not(
            "no question gives compute times here: no synchronise call was recorded, so they count from when the last rank \
             had entered each call (verdicts.md, Calls that only enqueue)",
        ));
    }
    if report.evidence.notes.iter().any(|note| note.contains("matched by when they ended")) {
        shown.push(not(
            "no question gives the figures of calls without a number (seq is NULL: their communicator began before \
             recording did): they were matched by when they ended",
        ));
    }
    if report.cause.is_some() {
        shown.push(not(
            "the cause rests on offcpu, block_io, memory_events and cuda_calls of the two processes that it names, \
             between their collectives",
        ));
    }
    shown
}

/// Lateness, waits and compute time of each rank of a communicator, over the span or the episode of
/// a named rank.
fn ranks(report: &Report, comm: &CommReport, episode: Option<&Culprit>) -> Option<Shown> {
    let hash = u64::from_str_radix(&comm.comm_hash, 16).ok()?.cast_signed();
    let (since_ns, until_ns) = (report.evidence.since_ns, report.evidence.until_ns);
    let synced = |synced: bool| if synced { "synced_" } else { "" };
    let (lateness, own) = (synced(comm.synced), synced(report.per_comm.iter().any(|comm| comm.synced)));
    let least = ((comm.heard as f64 * Rules::default().present).ceil() as usize).max(2);
    // Each question measures the clocks anew: the episode is as wide as they need it.
    let bound_ns = report.evidence.clock_bound_ns.unwrap_or(0);
    let within = episode.map_or_else(String::new, |culprit| {
        let (from_ns, to_ns) = (culprit.since_ns.saturating_sub(bound_ns), culprit.until_ns.saturating_add(bound_ns));
        format!(" AND l.at_ns BETWEEN {from_ns} AND {to_ns}")
    });
    let own_ns = if comm.own_from_entries { "NULL" } else { "avg(s.own_ns)" };
    let sql = format!(
        "SELECT l.rank, l.node, l.pid, count(*) AS collectives,\n  \
         avg(l.lateness_ns) AS lateness_ns, median(l.lateness_ns) AS lateness_median_ns,\n  \
         avg(l.wait_ns) AS wait_ns, median(l.wait_ns) AS wait_median_ns, {own_ns} AS own_ns\n\
         FROM {lateness}lateness({since_ns}, {until_ns}) l LEFT JOIN {own}self_time({since_ns}, {until_ns}) s\n  \
         ON s.comm_hash = l.comm_hash AND s.func = l.func AND s.seq = l.seq AND s.node = l.node AND s.pid = l.pid\n\
         WHERE l.comm_hash = {hash} AND l.ranks >= {least}{within}\n\
         GROUP BY l.rank, l.node, l.pid ORDER BY lateness_ns DESC"
    );
    let over = episode.map_or_else(
        || "over the span".to_owned(),
        |culprit| format!("in the episode of rank {} on {}", culprit.rank, culprit.node),
    );
    Some(Shown { title: format!("ranks of communicator {} {over}", comm.comm_hash), sql })
}

/// How far each rank got where the job hangs.
fn progress(hang: &Hang) -> Vec<Shown> {
    let waiting = hang.waiting.iter().filter(|w| w.call.position.is_some());
    let calls = waiting.map(|w| &w.call).chain(hang.missing.iter().map(|m| &m.call));
    let jammed = hang.jammed.iter().map(|jam| jam.comm_hash.as_str());
    let places: BTreeSet<&str> = calls
        .filter_map(|call| call.comm_hash.as_deref())
        .chain(jammed)
        .chain(hang.differing.iter().map(|of| of.comm_hash.as_str()))
        .collect();
    let got = places.into_iter().filter_map(|comm_hash| {
        let hash = u64::from_str_radix(comm_hash, 16).ok()?.cast_signed();
        let sql = format!(
            "SELECT rank, node, pid, max(comm_seq) AS entered, count(*) AS calls\n  \
             FROM collectives WHERE captured IS NOT 1 AND comm_hash = {hash}\n  \
             GROUP BY rank, node, pid ORDER BY entered, rank"
        );
        Some(Shown { title: format!("how far each rank got on communicator {comm_hash}"), sql })
    });
    let differing = hang.differing.iter().filter_map(|of| {
        let hash = u64::from_str_radix(&of.comm_hash, 16).ok()?.cast_signed();
        let sql = format!(
            "SELECT rank, node, func, root, count, bytes, datatype, reduce_op, site FROM collectives\n  \
             WHERE comm_hash = {hash} AND comm_seq = {} ORDER BY rank",
            of.position
        );
        Some(Shown { title: format!("calls at position {} of communicator {}", of.position, of.comm_hash), sql })
    });
    let unseen = "no question gives since when ranks wait and what their threads do: agents said that of the calls \
                  that their ranks are in, which are in no store before they end";
    got.chain(differing).chain([Shown { title: unseen.to_owned(), sql: String::new() }]).collect()
}
