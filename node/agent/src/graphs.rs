//! The questions about CUDA graphs: collectives in them run with every launch, without a call. Also
//! the text about them.

use std::fmt::Write as _;

use query_planner::Value;
use verdicts::Span;

/// Asks how often graphs were launched in the span, and by how many processes: one row for
/// [`launches`].
pub(super) fn launch_sql(span: &Span) -> String {
    format!(
        "SELECT count(*), total(n) FROM (SELECT node, pid, sum(count) AS n FROM call_rollups \
         WHERE func IN ('cudaGraphLaunch', 'hipGraphLaunch') AND bucket_ns >= {} AND bucket_ns < {} GROUP BY node, pid)",
        span.since_ns.saturating_sub(span.slack_ns),
        span.until_ns.saturating_add(span.slack_ns)
    )
}

/// Processes and launches out of the answer to [`launch_sql`]; none where there were none.
pub(super) fn launches(row: &[Value]) -> Option<(i64, f64)> {
    let [Value::Integer(processes), Value::Real(launches)] = row else { return None };
    (*launches > 0.0).then_some((*processes, *launches))
}

/// Asks how many collectives were captured into graphs, ever: a graph is captured once and launched
/// for days. Expensive, so ask it only where graphs were launched.
pub(super) fn captured_sql(span: &Span) -> String {
    let mut text = "SELECT count(*) FROM collectives WHERE captured = 1".to_owned();
    if let Some(job) = &span.job {
        let _ = write!(text, " AND job_id = '{}'", job.replace('\'', "''"));
    }
    text
}

/// Text on what was not visible. `captured` is not known where the capture was before the
/// recording, or could not be asked for.
pub(super) fn replay_note((processes, launches): (i64, f64), captured: Option<i64>) -> String {
    let captured = match captured {
        Some(0) | None => "whether they hold collectives was not seen".to_owned(),
        Some(1) => "1 collective call was captured into such graphs".to_owned(),
        Some(n) => format!("{n} collective calls were captured into such graphs"),
    };
    format!(
        "graphs were launched {launches:.0} times by {processes} processes, {captured}; what a launch runs makes no call and \
         is in no figure here"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_are_noted_only_where_there_were_any() {
        let row = |launches| [Value::Integer(2), Value::Real(launches)];
        assert_eq!(launches(&row(0.0)), None);
        let found = launches(&row(340.0)).unwrap();
        assert!(
            replay_note(found, Some(8))
                .starts_with("graphs were launched 340 times by 2 processes, 8 collective calls")
        );
        assert!(replay_note(found, None).contains("was not seen"));
    }

    #[test]
    fn the_questions_quote_and_widen() {
        let span = Span { since_ns: 100, until_ns: 200, slack_ns: 5, job: Some("it's".into()), comm: None };
        assert!(captured_sql(&span).ends_with("job_id = 'it''s'"));
        assert!(launch_sql(&span).contains("bucket_ns >= 95 AND bucket_ns < 205"));
    }
}
