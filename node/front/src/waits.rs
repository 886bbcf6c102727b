//! What ranks waited in collectives, and for whom: the basis of `cost` and `jobs`.
//!
//! In a collective nobody leaves before everybody has entered: the rank that waits least came
//! last, and what all ranks wait longer than it is charged to it. Causes are those of the
//! `findings` that were current at the time. The span is asked for in slices, the newest first, so
//! that the answer for a long job shows how far it got instead of failing.

use std::collections::BTreeMap;
use std::time::Duration;

use ask::rows::Client;
use model::Coverage;
use model::cells::{NO_VERDICTS, integer, real, text};
use serde::Serialize;

/// Shortest slice of the span; a slice is one question to the mesh.
const SLICE_NS: i64 = 20_000_000_000;
/// Calls that begin so much before a slice or after it are looked at with it, at most: those of one
/// collective lie as far apart as its longest takes.
const WIDEST_EDGE_NS: i64 = 600_000_000_000;
/// A slice is longer where this many calls take longer.
const SLICE_CALLS: i64 = 200_000;

/// The calls whose waits are asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls {
    /// Communicators, as SQL has their hashes.
    pub(crate) comms: Vec<String>,
    /// The first and the last call, Unix nanoseconds.
    pub(crate) span_ns: (i64, i64),
    /// How many there are, about.
    pub(crate) calls: i64,
    /// How long the longest took, nanoseconds.
    pub(crate) longest_ns: i64,
}

/// The cost of one culprit by one cause.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Charge {
    pub(crate) rank: i64,
    pub(crate) node: String,
    pub(crate) cause: String,
    pub(crate) collectives: i64,
    pub(crate) rank_seconds: f64,
    pub(crate) money: Option<f64>,
}

/// The waiting, in sum.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Waited {
    /// The slices that were asked reach back to here only, Unix nanoseconds.
    pub(crate) asked_since_ns: i64,
    pub(crate) collectives: i64,
    pub(crate) rank_seconds: f64,
    pub(crate) culprits: Vec<Charge>,
    /// Collectives of calls that only enqueue: they contain no waits.
    pub(crate) without_waits: i64,
    /// Collectives that are not in it, since only a part of their ranks' calls has a number here: a
    /// host was without an agent, an agent was started again, or calls were recorded in slices.
    pub(crate) incomplete: i64,
}

impl Waited {
    /// Whether any collective's waiting is in it.
    pub(crate) fn is_of_some(&self) -> bool {
        self.collectives > 0 || self.without_waits > 0
    }
}

/// Asks for the waiting in these calls, until the client's time is up.
///
/// # Errors
/// As [`ask::Target::query`].
pub(crate) fn waited(
    client: &Client<'_>,
    of: &Calls,
    named: &Named,
    coverage: &mut Coverage,
) -> anyhow::Result<Waited> {
    let (first_ns, last_ns) = of.span_ns;
    let mut sums: BTreeMap<(i64, String, String), (i64, f64)> = BTreeMap::new();
    let (mut without_waits, mut incomplete, mut until_ns) = (0, 0, last_ns.saturating_add(1));
    let span_ns = i128::from(until_ns) - i128::from(first_ns);
    let slice_ns = i64::try_from(span_ns * i128::from(SLICE_CALLS) / i128::from(of.calls.max(1))).unwrap_or(i64::MAX);
    while until_ns > first_ns && !client.left().is_zero() {
        let longest_ns = until_ns.saturating_sub(slice_ns.max(SLICE_NS)).max(named.change_before(until_ns));
        let from_ns = longest_ns.min(until_ns.saturating_sub(SLICE_NS)).max(first_ns);
        // The calls of a collective at an edge of the slice are on both of its sides.
        let edge_ns = of.longest_ns.clamp(0, WIDEST_EDGE_NS);
        let (fetched_from, fetched_until) = (from_ns.saturating_sub(edge_ns), until_ns.saturating_add(edge_ns));
        // The one that waits least came last; with one min() alone, and no max(), SQLite gives the
        // other columns of its row (https://sqlite.org/lang_select.html#bareagg).
        let asked = client.ask(format!(
            "SELECT rank, node, sum(whole), sum(iif(whole, waited, 0)), sum(whole AND enqueued > 0), sum(NOT whole) \
             FROM (SELECT min(wait_ns) AS least, rank, node, sum(wait_ns) AS waited, sum(tier = 0) AS enqueued, \
             count(*) = ifnull(avg(nranks), count(*)) AS whole FROM lateness({fetched_from}, {fetched_until}) \
             WHERE at_ns >= {from_ns} AND at_ns < {until_ns} AND comm_hash IN ({}) GROUP BY comm_hash, func, seq \
             HAVING count(*) = avg(ranks) AND (count(*) > 1 OR avg(nranks) > 1)) GROUP BY rank, node",
            of.comms.join(", ")
        ));
        let slice = match asked {
            Ok(slice) => slice,
            // The time is up: the slices so far are the answer, which shows how far it got.
            Err(_) if client.left() < Duration::from_millis(50) && until_ns <= last_ns => break,
            Err(error) => return Err(error),
        };
        if !slice.coverage.is_complete() {
            coverage.also(slice.coverage);
        }
        for row in &slice.rows {
            let (Some(rank), node) = (integer(row, 0), text(row, 1)) else { continue };
            let cause = named.at(rank, &node, from_ns, until_ns);
            let sum = sums.entry((rank, node, cause)).or_default();
            sum.0 += integer(row, 2).unwrap_or(0);
            sum.1 += real(row, 3).unwrap_or(0.0) / 1e9;
            without_waits += integer(row, 4).unwrap_or(0);
            incomplete += integer(row, 5).unwrap_or(0);
        }
        until_ns = from_ns;
    }
    let mut culprits: Vec<Charge> = sums
        .into_iter()
        .filter(|(_, (collectives, _))| *collectives > 0)
        .map(|((rank, node, cause), (collectives, rank_seconds))| Charge {
            rank,
            node,
            cause,
            collectives,
            rank_seconds,
            money: None,
        })
        .collect();
    culprits.sort_by(|a, b| b.rank_seconds.total_cmp(&a.rank_seconds));
    Ok(Waited {
        asked_since_ns: until_ns,
        collectives: culprits.iter().map(|charge| charge.collectives).sum(),
        // (A sum of nothing would be -0.0.)
        rank_seconds: culprits.iter().fold(0.0, |sum, charge| sum + charge.rank_seconds),
        culprits,
        without_waits,
        incomplete,
    })
}

/// Which causes findings name, and since when, in order.
#[derive(Debug, Default)]
pub(crate) struct Named(Vec<NamedCause>);

#[derive(Debug, Clone)]
struct NamedCause {
    since_ns: i64,
    job: String,
    /// Rank and node; none where no rank was named.
    who: Option<(i64, String)>,
    cause: String,
}

/// The columns of `findings` that [`Named::of`] reads, in its order.
pub(crate) const NAMED: &str = "rank, culprit_node, since_ns, ts_ns, \
     iif(json_valid(detail), json_extract(detail, '$.cause.named[0]'), NULL), \
     coalesce(job_id, iif(json_valid(detail), json_extract(detail, '$.job.job_id'), NULL))";

impl Named {
    /// Asks for all of them; none where they cannot be read.
    pub(crate) fn ask(client: &Client<'_>) -> Self {
        let sql = format!("SELECT {NAMED} FROM findings WHERE verdict NOT IN {NO_VERDICTS} ORDER BY ts_ns");
        Self::of(&client.ask(sql).map(|found| found.rows).unwrap_or_default())
    }

    /// From rows that begin with the columns [`NAMED`].
    pub(crate) fn of(rows: &[Vec<query_planner::Value>]) -> Self {
        let one = |row: &Vec<query_planner::Value>| {
            let since_ns = integer(row, 2).or(integer(row, 3)).unwrap_or(0);
            let who = integer(row, 0).map(|rank| (rank, text(row, 1)));
            let cause = text(row, 4);
            let cause = if cause.is_empty() { "unattributed".to_owned() } else { cause };
            NamedCause { since_ns, who, cause, job: text(row, 5) }
        };
        let mut all: Vec<NamedCause> = rows.iter().map(one).collect();
        all.sort_by_key(|named| named.since_ns);
        Self(all)
    }

    /// Those of one job.
    pub(crate) fn of_job(&self, job: &str) -> Self {
        Self(self.0.iter().filter(|named| named.job == job).cloned().collect())
    }

    /// Where a slice of time ends that ends at `until_ns` and has one cause at most.
    fn change_before(&self, until_ns: i64) -> i64 {
        let before = self.0.partition_point(|named| named.since_ns < until_ns);
        before.checked_sub(1).and_then(|at| self.0.get(at)).map_or(i64::MIN, |named| named.since_ns)
    }

    /// The cause that was current for this rank at this time: until the next finding.
    fn at(&self, rank: i64, node: &str, from_ns: i64, until_ns: i64) -> String {
        let known = self.0.iter().enumerate().rev().find(|(at, named)| {
            let ended_ns = self.0.get(at + 1).map_or(i64::MAX, |next| next.since_ns);
            let is_it = named.who.as_ref().is_some_and(|(known, host)| *known == rank && host == node);
            is_it && named.since_ns < until_ns && ended_ns > from_ns
        });
        known.map_or_else(|| "not named".to_owned(), |(_, named)| named.cause.clone())
    }
}

#[cfg(test)]
mod tests {
    use query_planner::Value;

    use super::*;

    #[test]
    fn waits_go_to_the_cause_that_was_current() {
        let text = |text: &str| Value::Text(text.as_bytes().to_vec());
        let row = |rank: Option<i64>, since_ns: i64, cause: Option<&str>| {
            vec![
                rank.map_or(Value::Null, Value::Integer),
                text("n1"),
                Value::Integer(since_ns),
                Value::Integer(since_ns),
                cause.map_or(Value::Null, text),
            ]
        };
        let named = Named::of(&[row(Some(3), 100, Some("sleep")), row(None, 200, None), row(Some(3), 300, None)]);
        assert_eq!(named.at(3, "n1", 110, 120), "sleep");
        assert_eq!(named.at(3, "n1", 210, 220), "not named", "nobody was named meanwhile");
        assert_eq!(named.at(3, "n1", 310, 320), "unattributed");
        assert_eq!(named.at(3, "n2", 110, 120), "not named");
        assert_eq!(named.at(2, "n1", 110, 120), "not named");
    }
}
