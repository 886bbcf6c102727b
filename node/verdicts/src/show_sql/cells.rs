//! What the questions begin with: the calls of one communicator that were compared, and the distances of its collectives.

use std::fmt::Write as _;

use crate::report::{Basis, CommReport, Culprit, Report};
use crate::rules::Rules;
use crate::score::Waits;

/// One communicator of a report.
pub(super) struct Cells<'a> {
    pub(super) report: &'a Report,
    pub(super) comm: &'a CommReport,
}

impl<'a> Cells<'a> {
    pub(super) fn of(report: &'a Report, comm: &'a CommReport) -> Self {
        Self { report, comm }
    }

    /// How many of its ranks must be present in a collective.
    pub(super) fn least(&self) -> usize {
        ((self.comm.heard as f64 * Rules::default().present).ceil() as usize).max(2)
    }

    pub(super) fn span(&self) -> (i64, i64) {
        (self.report.evidence.since_ns, self.report.evidence.until_ns)
    }

    /// The communicator's hash as stores keep it.
    pub(super) fn hash(&self) -> Option<i64> {
        Some(u64::from_str_radix(&self.comm.comm_hash, 16).ok()?.cast_signed())
    }

    /// The views of its calls and of its own times.
    pub(super) fn views(&self) -> (&'static str, &'static str) {
        let synced = self.report.per_comm.iter().any(|comm| comm.synced);
        (
            if self.comm.synced { "synced_lateness" } else { "lateness" },
            if synced { "synced_self_time" } else { "self_time" },
        )
    }

    /// Whether its lateness shows by waits or entries; none where nothing follows from its times.
    pub(super) fn basis(&self) -> Option<Basis> {
        match self.comm.waits? {
            Waits::Seen | Waits::Assumed => Some(Basis::Waits),
            Waits::Enqueued => Some(Basis::Entries),
            Waits::Inconsistent => None,
        }
    }

    /// Its ranks with how far their entries may be wrong, and who does the same work: `member`.
    fn members(&self) -> String {
        let mut text = "member(node, pid, class, bound_ns) AS (VALUES ".to_owned();
        for (i, rank) in self.comm.ranks.iter().enumerate() {
            let class = self.comm.ranks.iter().position(|other| other.class == rank.class).unwrap_or(0);
            let bound = rank.lateness_bound_ns.map_or_else(|| "NULL".to_owned(), |bound| bound.to_string());
            let comma = if i == 0 { "" } else { ", " };
            let _ = write!(text, "{comma}({}, {}, {class}, {bound})", quoted(&rank.node), rank.pid);
        }
        text + ")"
    }

    /// `met`: its calls; `ord` is how late each is, larger is later. `steps`: its collectives with the distance to the one before.
    /// `seen`: the calls with what they exceed the median of the others by.
    pub(super) fn seen(&self, basis: Basis) -> Option<String> {
        let (since_ns, until_ns) = self.span();
        let (lateness, own) = self.views();
        let ord = match basis {
            Basis::Waits => "-l.duration_ns",
            Basis::Entries => "l.lateness_ns",
            Basis::OwnTime if self.comm.own_from_entries => return None,
            Basis::OwnTime => "s.own_ns",
        };
        // Own times that are told from entries no view gives.
        let own_ns = if self.comm.own_from_entries { "NULL" } else { "s.own_ns" };
        // Own times are compared within a class; the rest among all.
        let among = if basis == Basis::OwnTime { "alike" } else { "others" };
        Some(format!(
            "WITH {members},\n\
             met AS (\n  SELECT l.func, l.seq, l.at_ns, l.rank, l.node, l.pid, m.class, m.bound_ns, l.duration_ns, l.wait_ns, {own_ns} AS own_ns,\n  \
             CASE WHEN m.bound_ns IS NOT NULL THEN l.lateness_ns END AS lateness_ns, {ord} AS ord\n  \
             FROM {lateness}({since_ns}, {until_ns}) l JOIN member m ON m.node = l.node AND m.pid = l.pid\n  \
             LEFT JOIN {own}({since_ns}, {until_ns}) s ON s.comm_hash = l.comm_hash AND s.func = l.func AND s.seq = l.seq AND s.node = l.node \
             AND s.pid = l.pid\n  \
             WHERE l.comm_hash = {hash} AND l.ranks >= {least}),\n\
             steps AS (SELECT func, seq, at_ns, at_ns - lag(at_ns) OVER (ORDER BY at_ns, func, seq) AS step_ns\n  \
             FROM (SELECT DISTINCT func, seq, at_ns FROM met)),\n\
             seen AS (\n  SELECT *, ord - median(ord) OVER {among} AS excess_ns, max(ord) OVER {among} AS others_latest,\n  \
             lateness_ns - median(lateness_ns) OVER others AS later_ns, own_ns - median(own_ns) OVER alike AS own_excess_ns FROM met\n  \
             WINDOW others AS (PARTITION BY func, seq ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE CURRENT ROW),\n  \
             alike AS (PARTITION BY func, seq, class ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE CURRENT ROW))",
            members = self.members(),
            hash = self.hash()?,
            least = self.least(),
        ))
    }

    /// The episode from its first to its last collective, as wide as the clocks need it: the question measures them anew.
    pub(super) fn edges(&self, culprit: &Culprit) -> (i64, i64) {
        let bound_ns = self.report.evidence.clock_bound_ns.unwrap_or(0);
        (culprit.since_ns.saturating_sub(bound_ns), culprit.until_ns.saturating_add(bound_ns))
    }
}

/// What the walls of collectives between two times add up to; the first of all has none before it and counts the median.
pub(super) fn wall(from_ns: i64, to_ns: i64) -> String {
    format!(
        "wall AS (SELECT count(*) AS collectives, sum(ifnull(step_ns, (SELECT median(step_ns) FROM steps))) AS wall_ns\n  \
         FROM steps WHERE at_ns BETWEEN {from_ns} AND {to_ns})"
    )
}

/// A text as a literal.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
