//! The sentence that names a rank, and what it costs.

use std::fmt::Write as _;

use observed::units::{clock, duration, percent};

use crate::report::{Basis, Cost, Culprit, RankScore, Report, Role, Verdict};

/// So close to the start of the span what is seen first may have started before it.
const EDGE_NS: i64 = 2_000_000_000;

pub(super) fn sentence(report: &Report, culprit: &Culprit, out: &mut String) {
    let comm = report.per_comm.iter().find(|c| c.comm_hash == culprit.comm_hash);
    let others = match &report.point_to_point {
        Some(about) if culprit.basis == Basis::PointToPoint => about.heard.saturating_sub(1),
        _ => comm.map_or(0, |c| c.heard.saturating_sub(1)),
    };
    let victims = match others {
        _ if culprit.basis == Basis::OwnTime => "its job".to_owned(),
        0 => "the others".to_owned(),
        1 => "the other rank".to_owned(),
        n => format!("the other {n} ranks"),
    };
    let after_start_ns = culprit.since_ns.saturating_sub(report.evidence.since_ns);
    let since = match culprit.since_start {
        true if after_start_ns < EDGE_NS => {
            format!("since the start of the span, {} (it may have begun earlier)", clock(culprit.since_ns))
        }
        true => format!("from the first collectives on, {}", clock(culprit.since_ns)),
        false => format!("since {}", clock(culprit.since_ns)),
    };
    let until =
        if culprit.ongoing { "and still does".to_owned() } else { format!("until {}", clock(culprit.until_ns)) };
    let late = duration(culprit.late_by_ns);
    let how = match culprit.basis {
        Basis::Waits | Basis::Entries => {
            format!("it enters {late} late, last in {} of {} collectives", culprit.last_in, culprit.collectives)
        }
        Basis::PointToPoint => format!(
            "of each second it computes {late} longer than the others, in {} of {} seconds",
            culprit.last_in, culprit.collectives
        ),
        Basis::OwnTime => format!(
            "its own work takes {late} longer than that of its peers, longest before {} of {} collectives",
            culprit.last_in, culprit.collectives
        ),
    };
    let _ = writeln!(
        out,
        "Rank {} on host {} holds up {victims}: {how}, {} of the time, {since}, {until}.",
        culprit.rank,
        culprit.node,
        percent(culprit.share),
    );
}

pub(super) fn cost(report: &Report, out: &mut String) {
    if report.cost == Cost::default() {
        // No rank is named yet to which the waits could be charged.
        return;
    }
    let gpu = report.per_comm.iter().any(|c| c.library == "nccl" || c.library == "rccl");
    let unit = if gpu { "GPU" } else { "rank" };
    let _ = writeln!(
        out,
        "Cost: {}{:.1} {unit}-seconds waited in that time, as if {:.1} {unit}s did nothing.",
        if report.cost.upper_bound { "at most " } else { "" },
        report.cost.gpu_seconds_wasted,
        report.cost.gpus_lost
    );
    if let Some(other) = as_late(report) {
        let _ = writeln!(
            out,
            "Not counted: waits while rank {} on {}, which is not named, was as late.",
            other.rank, other.node
        );
    }
    let Some(step) = report.cost.per_step else { return };
    let most = if report.cost.upper_bound { "at most " } else { "" };
    let what = match step.collectives {
        1 => format!("{} collectives", step.steps),
        n => format!("{} steps of {n} collectives", step.steps),
    };
    let times =
        step.slowdown.map_or_else(String::new, |times| format!(", {most}{times:.2} times as long as without it"));
    let _ = writeln!(
        out,
        "In each of {what}: {most}{:.*} {unit}-seconds, {most}{} of {}{times}.",
        if step.gpu_seconds_wasted < 1.0 { 3 } else { 1 },
        step.gpu_seconds_wasted,
        duration(step.wasted_ns),
        duration(step.step_ns),
    );
}

/// The latest rank of the culprit's communicator that is neither named nor held up, where it is late
/// by half as much or more over the span: what the others wait for both of them is charged to
/// neither, and the cost may be none.
fn as_late(report: &Report) -> Option<&RankScore> {
    let Verdict::Rank { culprit, .. } = &report.verdict else { return None };
    if culprit.basis == Basis::OwnTime {
        return None;
    }
    let comm = report.per_comm.iter().find(|comm| comm.comm_hash == culprit.comm_hash)?;
    let named = comm.ranks.iter().find(|rank| rank.node == culprit.node && rank.pid == culprit.pid)?;
    let others = comm.ranks.iter().filter(|rank| !matches!(rank.role, Role::Culprit | Role::HeldUp));
    others.max_by_key(|rank| rank.excess_ns).filter(|rank| rank.flagged > 0 && 2 * rank.excess_ns >= named.excess_ns)
}
