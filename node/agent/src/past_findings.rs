//! The findings that agents wrote in a span of the past, listed with the verdict on it.

use std::fmt::Write as _;

use model::cells::{integer, text};
use query_planner::Value;
use record::printable;
use serde::Serialize;
use verdicts::Span;

/// Findings listed, the latest.
const MOST: usize = 20;

/// A row of `findings`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct PastFinding {
    /// When it was written, Unix nanoseconds; `rankmesh explain` takes it.
    ts_ns: i64,
    verdict: String,
    rank: Option<i64>,
    node: Option<String>,
    cause: Option<String>,
}

/// The SQL for them: those whose span overlaps the one that is judged.
pub(super) fn sql(span: &Span) -> String {
    let comm = span.comm.map_or_else(String::new, |comm| format!(" AND comm_hash = {}", comm.cast_signed()));
    format!(
        "SELECT ts_ns, verdict, rank, culprit_node, cause FROM findings WHERE until_ns > {} AND since_ns < {}{comm} \
         ORDER BY ts_ns DESC LIMIT {}",
        span.since_ns,
        span.until_ns,
        MOST + 1
    )
}

/// The rows of the answer, oldest first, and whether there were more.
pub(super) fn read(rows: &[Vec<Value>]) -> (Vec<PastFinding>, bool) {
    let one = |row: &Vec<Value>| {
        Some(PastFinding {
            ts_ns: integer(row, 0)?,
            verdict: text(row, 1),
            rank: integer(row, 2),
            node: Some(text(row, 3)).filter(|node| !node.is_empty()),
            cause: Some(text(row, 4)).filter(|cause| !cause.is_empty()),
        })
    };
    let mut found: Vec<PastFinding> = rows.iter().take(MOST).filter_map(one).collect();
    found.reverse();
    (found, rows.len() > MOST)
}

/// As lines beneath a report; nothing where there is none.
pub(super) fn lines(found: &[PastFinding], more: bool) -> String {
    let mut out = String::new();
    if found.is_empty() {
        return out;
    }
    let earlier = if more { format!(", the last {MOST}") } else { String::new() };
    // Writing to a string cannot fail.
    let _ = writeln!(out, "Findings of this time{earlier} (rankmesh explain NUMBER):");
    for finding in found {
        let who = match (finding.rank, &finding.node) {
            (Some(rank), Some(node)) => format!(", rank {rank} on {node}"),
            (None, Some(node)) => format!(", {node}"),
            _ => String::new(),
        };
        let cause = finding.cause.as_ref().map_or_else(String::new, |cause| format!(": {cause}"));
        let _ = writeln!(out, "  {}  {}", finding.ts_ns, printable(&format!("{}{who}{cause}", finding.verdict)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_listed_oldest_first() {
        let text = |text: &str| Value::Text(text.as_bytes().into());
        let row = |ts: i64, verdict: &str| {
            vec![Value::Integer(ts), text(verdict), Value::Integer(3), text("n1"), Value::Null]
        };
        let (found, more) = read(&[row(2, "none"), row(1, "rank")]);
        assert_eq!(found.iter().map(|f| f.ts_ns).collect::<Vec<_>>(), [1, 2]);
        assert!(!more);
        insta::assert_snapshot!(lines(&found, more), @r"
        Findings of this time (rankmesh explain NUMBER):
          1  rank, rank 3 on n1
          2  none, rank 3 on n1
        ");
        let many: Vec<Vec<Value>> = (0..=MOST).map(|i| row(-(i as i64), "rank")).collect();
        let (found, more) = read(&many);
        assert_eq!((found.len(), more), (MOST, true));
        assert!(lines(&found, more).contains("the last 20"));
        assert_eq!(lines(&[], false), "");
    }
}
