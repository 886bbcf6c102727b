//! `rankmesh stragglers --show-sql`: the questions that give the figures of a report again, for `rankmesh query`.
//!
//! They stand on the views of `views.rs` and name the report's own span, communicator and episode. Here: which questions there are, and
//! what no question gives. `cells` has what they begin with; `ranks` the figures of ranks, windows, the episode and the cost; `job`
//! those of stages, of lateness that goes round, of hangs and of the network. A test asks them of a mesh and compares every figure.

use serde::Serialize;

use super::report::{Report, Verdict};
use cells::Cells;

mod cells;
mod job;
mod ranks;

/// A question that gives figures of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// Which figures.
    pub title: String,
    /// The question; times are of the clock of the agent that was asked. Empty where no question gives these figures: the title says why.
    pub sql: String,
}

impl Shown {
    fn new(title: impl Into<String>, sql: String) -> Self {
        Self { title: title.into(), sql }
    }

    /// What no question gives, and why.
    fn not(title: impl Into<String>) -> Self {
        Self::new(title, String::new())
    }
}

/// The questions behind a report.
#[must_use]
pub fn show_sql(report: &Report) -> Vec<Shown> {
    let named = report.verdict.named();
    let scored = || report.per_comm.iter().filter(|comm| !comm.ranks.is_empty());
    let mut shown = Vec::new();
    if let Verdict::Hang(hang) = &report.verdict {
        shown.extend(job::hang(report, hang));
    }
    shown.extend(ranks::communicators(report));
    let wanted: Vec<_> =
        scored().filter(|comm| named.is_empty() || named.iter().any(|c| c.comm_hash == comm.comm_hash)).collect();
    for comm in &wanted {
        shown.extend(ranks::ranks(report, comm));
        shown.extend(ranks::windows(report, comm, &named));
    }
    for culprit in &named {
        shown.extend(
            scored().find(|c| c.comm_hash == culprit.comm_hash).and_then(|c| ranks::episode(report, c, culprit)),
        );
    }
    if let Some(first) = named.first() {
        let comm = scored().find(|c| c.comm_hash == first.comm_hash);
        shown.extend(comm.and_then(|c| ranks::cost(report, c, first, &named)));
    }
    match &report.verdict {
        Verdict::StageImbalance { stages, .. } => shown.extend(job::stages(report, stages)),
        Verdict::DataImbalance { comm_hash, .. } => {
            shown.extend(scored().find(|c| c.comm_hash == *comm_hash).and_then(|c| job::turns(report, c)));
        }
        Verdict::Network(network) => shown.extend(job::network(report, network)),
        _ => {}
    }
    if wanted.iter().any(|comm| comm.own_from_entries) {
        shown.push(Shown::not(
            "no question gives own times here: no synchronise call was recorded, so they count from when the last rank had entered each call \
             (verdicts.md, Calls that only enqueue)",
        ));
    }
    if report.evidence.notes.iter().any(|note| note.contains("matched by when they ended")) {
        shown.push(Shown::not(
            "no question gives the figures of calls without a number (seq is NULL: their communicator began before recording did): they were \
             matched by when they ended",
        ));
    }
    if report.cause.is_some() {
        shown.push(Shown::not(
            "the cause rests on offcpu, block_io, memory_events and cuda_calls of the two processes that it names, between their collectives",
        ));
    }
    shown
}
