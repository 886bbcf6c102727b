//! `rankmesh stragglers --show-sql`: the questions that give the figures of a report again, for `rankmesh query`.
//!
//! They stand on the views of `views.rs` and name the report's own span, communicator and episode. A test asks them of a
//! mesh and compares every figure.

use serde::Serialize;

use super::report::{Basis, CommReport, Culprit, Report, Verdict};
use super::rules::Rules;
use super::score::Waits;

/// A question that gives figures of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// Which figures.
    pub title: String,
    /// The question; times are of the clock of the agent that was asked.
    pub sql: String,
}

/// The questions behind a report. None for figures that are no aggregate of calls (hangs, unknown).
#[must_use]
pub fn show_sql(report: &Report) -> Vec<Shown> {
    let named: Vec<&Culprit> = match &report.verdict {
        Verdict::Rank { culprit, also, .. } => std::iter::once(culprit).chain(also).collect(),
        _ => Vec::new(),
    };
    let scored = || report.per_comm.iter().filter(|comm| !comm.ranks.is_empty());
    let mut shown: Vec<Shown> = scored()
        .filter(|comm| named.is_empty() || named.iter().any(|c| c.comm_hash == comm.comm_hash))
        .filter_map(|comm| ranks(report, comm))
        .collect();
    for culprit in &named {
        shown.extend(scored().find(|c| c.comm_hash == culprit.comm_hash).and_then(|c| episode(report, c, culprit)));
    }
    if let Some(first) = named.first().filter(|first| first.basis != Basis::OwnTime) {
        shown.extend(scored().find(|c| c.comm_hash == first.comm_hash).and_then(|c| cost(report, c, first, &named)));
    }
    shown
}

/// The rows of one communicator with how late each call is (`ord`: larger is later) and how much later than the others.
fn seen(report: &Report, comm: &CommReport, basis: Basis) -> Option<String> {
    let (since_ns, until_ns) = (report.evidence.since_ns, report.evidence.until_ns);
    let hash = u64::from_str_radix(&comm.comm_hash, 16).ok()?.cast_signed();
    let least = ((comm.heard as f64 * Rules::default().present).ceil() as usize).max(2);
    let (ord, own) = match basis {
        Basis::Waits => ("-l.duration_ns", String::new()),
        Basis::Entries => ("l.lateness_ns", String::new()),
        Basis::OwnTime => {
            ("s.own_ns", format!(" JOIN self_time({since_ns}, {until_ns}) s USING (comm_hash, func, seq, node, pid)"))
        }
    };
    Some(format!(
        "WITH met AS (\n  SELECT l.func, l.seq, l.at_ns, l.rank, l.node, l.pid, l.duration_ns, l.lateness_ns, l.wait_ns, {ord} AS ord\n  \
         FROM lateness({since_ns}, {until_ns}) l{own} WHERE l.comm_hash = {hash} AND l.ranks >= {least}),\n\
         steps AS (SELECT at_ns, at_ns - lag(at_ns) OVER (ORDER BY at_ns) AS step_ns FROM (SELECT DISTINCT func, seq, at_ns FROM met)),\n\
         seen AS (\n  SELECT *, ord - median(ord) OVER others AS excess_ns, max(ord) OVER others AS others_latest FROM met\n  \
         WINDOW others AS (PARTITION BY func, seq ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE CURRENT ROW))"
    ))
}

/// What the walls of collectives between two times add up to; the first of all has none before it and counts the median.
fn wall(from_ns: i64, to_ns: i64) -> String {
    format!(
        "wall AS (SELECT count(*) AS collectives, sum(ifnull(step_ns, (SELECT median(step_ns) FROM steps))) AS wall_ns\n  \
         FROM steps WHERE at_ns BETWEEN {from_ns} AND {to_ns})"
    )
}

/// The episode from its first to its last collective, as wide as the clocks need it: the question measures them anew.
fn edges(report: &Report, culprit: &Culprit) -> (i64, i64) {
    let bound_ns = report.evidence.clock_bound_ns.unwrap_or(0);
    (culprit.since_ns.saturating_sub(bound_ns), culprit.until_ns.saturating_add(bound_ns))
}

fn basis_of(comm: &CommReport) -> Option<Basis> {
    match comm.waits? {
        Waits::Seen | Waits::Assumed => Some(Basis::Waits),
        Waits::Enqueued => Some(Basis::Entries),
        Waits::Inconsistent => None,
    }
}

/// z over the ranks' figures, as the report takes it: not below four ranks, and by entries no finer than the clocks.
fn z(comm: &CommReport, basis: Basis) -> String {
    if comm.heard < 4 {
        return "NULL".to_owned();
    }
    match basis {
        Basis::Waits => "robust_z(-duration_ns) OVER ()".to_owned(),
        Basis::Entries => {
            let bounds =
                comm.ranks.iter().filter_map(|r| Some(format!(" WHEN {} THEN {}", r.rank, r.lateness_bound_ns?)));
            format!("robust_z(lateness_ns, CASE rank{} ELSE 0 END) OVER ()", bounds.collect::<String>())
        }
        Basis::OwnTime => "robust_z(ord) OVER ()".to_owned(),
    }
}

fn ranks(report: &Report, comm: &CommReport) -> Option<Shown> {
    let basis = basis_of(comm)?;
    let sql = format!(
        "{},\n{},\n\
         each AS (SELECT rank, node, pid, count(*) AS collectives, avg(duration_ns) AS duration_ns, avg(lateness_ns) AS lateness_ns,\n  \
         median(lateness_ns) AS lateness_median_ns, avg(wait_ns) AS wait_ns, median(wait_ns) AS wait_median_ns, \
         avg(excess_ns) AS excess_ns\n  FROM seen GROUP BY rank, node, pid)\n\
         SELECT rank, node, pid, each.collectives, lateness_ns, lateness_median_ns, wait_ns, wait_median_ns, excess_ns,\n  \
         excess_ns * wall.collectives / wall_ns AS share, {} AS z\nFROM each, wall ORDER BY excess_ns DESC",
        seen(report, comm, basis)?,
        wall(report.evidence.since_ns, report.evidence.until_ns),
        z(comm, basis)
    );
    Some(Shown { title: format!("ranks of communicator {} over the span", comm.comm_hash), sql })
}

fn episode(report: &Report, comm: &CommReport, culprit: &Culprit) -> Option<Shown> {
    let (from_ns, to_ns) = edges(report, culprit);
    let node = culprit.node.replace('\'', "''");
    let is_it = format!("node = '{node}' AND pid = {}", culprit.pid);
    let sql = format!(
        "{},\n{},\n\
         late AS (SELECT excess_ns, sum(excess_ns) OVER (ORDER BY excess_ns ROWS UNBOUNDED PRECEDING) AS so_far FROM seen\n  \
         WHERE {is_it} AND at_ns BETWEEN {from_ns} AND {to_ns} AND ord >= others_latest),\n\
         each AS (SELECT rank, node, pid, avg(duration_ns) AS duration_ns, avg(lateness_ns) AS lateness_ns, avg(ord) AS ord, \
         avg(excess_ns) AS excess_ns\n  FROM seen WHERE at_ns BETWEEN {from_ns} AND {to_ns} GROUP BY rank, node, pid),\n\
         rated AS (SELECT *, {} AS z FROM each)\n\
         SELECT (SELECT min(excess_ns) FROM late WHERE so_far >= (SELECT sum(excess_ns) / 2.0 FROM late)) AS late_by_ns,\n  \
         (SELECT count(*) FROM late) AS last_in, wall.collectives, excess_ns * wall.collectives / wall_ns AS share, z\n\
         FROM rated, wall WHERE {is_it}",
        seen(report, comm, culprit.basis)?,
        wall(from_ns, to_ns),
        z(comm, culprit.basis)
    );
    Some(Shown { title: format!("rank {} on {} in its episode", culprit.rank, culprit.node), sql })
}

fn cost(report: &Report, comm: &CommReport, first: &Culprit, named: &[&Culprit]) -> Option<Shown> {
    let (from_ns, to_ns) = edges(report, first);
    let named: Vec<String> = named
        .iter()
        .filter(|c| c.comm_hash == first.comm_hash)
        .map(|c| format!("('{}', {})", c.node.replace('\'', "''"), c.pid))
        .collect();
    let sql = format!(
        "{},\n\
         called AS (SELECT *, (node, pid) IN (VALUES {}) AS named FROM met WHERE at_ns BETWEEN {} AND {}),\n\
         each AS (SELECT func, seq, max(ord) FILTER (WHERE named) AS late, max(ord) FILTER (WHERE NOT named) AS rest,\n  \
         count(ord) FILTER (WHERE NOT named) AS waiting FROM called GROUP BY func, seq)\n\
         SELECT sum(max(late - rest, 0) * waiting) / 1e9 AS gpu_seconds_wasted FROM each",
        seen(report, comm, first.basis)?,
        named.join(", "),
        from_ns,
        to_ns
    );
    Some(Shown { title: "cost".to_owned(), sql })
}
