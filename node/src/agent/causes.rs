//! Why the named rank is late: asks its host and one peer's for what they recorded, and hands that
//! to `verdicts::why`, which decides. Owns whom and when to ask; nothing else of the mesh is asked.

use std::time::{Duration, Instant};

use futures::future::join_all;
use query::access::Caller;
use query::ask::{self, QueryOutcome, Question};
use query_planner::Value;
use store::UNFILLED;
use tokio_util::sync::CancellationToken;
use verdicts::why::{self, Cause, LOOKED_AT_NS, ROWS, Reading, Retransmission, Subject, Topic, Transfer};
use verdicts::{Culprit, RankRef, Report, Rules, Verdict, Waits};

use super::Shared;
use super::recording::NOT_RECORDED;

/// Beside the episode on both sides.
const MARGIN_NS: i64 = 500_000_000;
/// Longest that the cause is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The cause of a report's verdict; none where no rank is named.
pub(super) async fn cause(
    shared: &Shared,
    report: &Report,
    caller: &Caller,
    deadline: Instant,
    cancelled: &CancellationToken,
) -> Option<Cause> {
    let Verdict::Rank { culprit, .. } = &report.verdict else { return None };
    let deadline = deadline.min(Instant::now() + PATIENCE);
    let comm_hash = u64::from_str_radix(&culprit.comm_hash, 16).ok()?;
    let who = RankRef { rank: culprit.rank, node: culprit.node.clone(), pid: culprit.pid };
    let peer = why::peer(report, culprit);
    let subjects: Vec<Subject> =
        std::iter::once(who).chain(peer).map(|who| subject(report, culprit, who, comm_hash)).collect();
    let asked = {
        let nodes = || subjects.iter().map(|s| s.who.node.clone()).collect();
        join_all(Topic::ALL.map(|topic| self::ask(shared, topic.sql(&subjects), nodes(), caller, deadline, cancelled)))
            .await
    };

    let (mut reading, mut looked_at, mut not_visible) = (Reading::default(), Vec::new(), Vec::new());
    for (topic, rows) in Topic::ALL.into_iter().zip(asked) {
        match rows {
            Ok((rows, notes)) => {
                let read = rows.iter().try_for_each(|row| reading.push(topic, &subjects, row));
                let unrecorded = |note: &String| note.contains(NOT_RECORDED) || note.contains(UNFILLED);
                match read {
                    Ok(()) if notes.iter().any(unrecorded) => {}
                    Ok(()) => looked_at.push(topic.words().to_owned()),
                    Err(error) => not_visible.push(error.to_string()),
                }
                if rows.len() >= ROWS {
                    not_visible.push(format!("{}: more than {ROWS} records, only the latest count", topic.words()));
                }
                not_visible.extend(together(&notes).into_iter().map(|note| format!("{}: {note}", topic.words())));
            }
            Err(why) => not_visible.push(format!("{}: {why}", topic.words())),
        }
    }
    let (mut recorded, notes) = reading.finish(&subjects);
    looked_at.extend(notes);
    let peer = (recorded.len() > 1).then(|| recorded.remove(1));
    recorded.first().map(|culprit| why::explain(culprit, peer.as_ref(), looked_at, not_visible))
}

/// Notes that begin with the names of different hosts and go on alike, as one each: "n1, n2 offcpu:
/// …".
fn together(notes: &[String]) -> Vec<String> {
    let mut all: Vec<(Vec<&str>, &str)> = Vec::new();
    for note in notes {
        let (node, rest) = note.split_once(' ').unwrap_or(("", note));
        match all.iter_mut().find(|(_, known)| *known == rest) {
            Some((nodes, _)) if !nodes.contains(&node) => nodes.push(node),
            Some(_) => {}
            None => all.push((vec![node], rest)),
        }
    }
    all.into_iter().map(|(nodes, rest)| format!("{} {rest}", nodes.join(", ")).trim_start().to_owned()).collect()
}

/// A process and the end of the episode on its host's clock.
fn subject(report: &Report, culprit: &Culprit, who: RankRef, comm_hash: u64) -> Subject {
    let clock = report.evidence.clocks.iter().find(|(node, _)| *node == who.node);
    let offset_ns = clock.map_or(0, |(_, clock)| clock.offset_ns);
    let to_ns = culprit.until_ns.saturating_add(offset_ns).saturating_add(MARGIN_NS);
    let since_ns = culprit.since_ns.saturating_add(offset_ns).saturating_sub(MARGIN_NS);
    let comm = report.per_comm.iter().find(|comm| comm.comm_hash == culprit.comm_hash);
    let enqueues = comm.is_some_and(|comm| comm.waits == Some(Waits::Enqueued) || comm.synced);
    Subject { who, comm_hash, enqueues, from_ns: since_ns.max(to_ns.saturating_sub(LOOKED_AT_NS)), to_ns }
}

/// Where no rank is named: the verdict that it is the network, when segments were lost and
/// collectives waited for them.
pub(super) async fn network(
    shared: &Shared,
    report: &Report,
    caller: &Caller,
    deadline: Instant,
    cancelled: &CancellationToken,
) -> Option<Verdict> {
    let comm = why::suspected(report)?;
    let deadline = deadline.min(Instant::now() + PATIENCE);
    let until_ns = report.evidence.until_ns;
    let since_ns = report.evidence.since_ns.max(until_ns.saturating_sub(LOOKED_AT_NS));
    let far = report.evidence.clocks.iter().map(|(_, clock)| clock.offset_ns.saturating_abs()).max().unwrap_or(0);
    let (from_ns, to_ns) = (since_ns.saturating_sub(far), until_ns.saturating_add(far));
    // Mostly there is none, and nothing more is asked.
    let sql = format!(
        "SELECT cluster_ns(ts_ns), node, saddr, daddr FROM net_events WHERE event = 'tcp_retransmit_skb' AND \
         ts_ns >= {from_ns} AND ts_ns < {to_ns} ORDER BY ts_ns DESC LIMIT {ROWS}"
    );
    let (rows, _) = self::ask(shared, sql, Vec::new(), caller, deadline, cancelled).await.ok()?;
    let retransmissions: Vec<Retransmission> = rows.iter().filter_map(|row| retransmission(row)).collect();
    if retransmissions.is_empty() {
        return None;
    }
    let hash = u64::from_str_radix(&comm.comm_hash, 16).ok()?.cast_signed();
    let sql = format!(
        "SELECT min(entry_ns), max(entry_ns), max(entry_ns + duration_ns) FROM lateness({since_ns}, {until_ns}) \
         WHERE comm_hash = {hash} AND entry_ns IS NOT NULL GROUP BY func, seq HAVING count(*) = {}",
        comm.heard
    );
    let (rows, _) = self::ask(shared, sql, Vec::new(), caller, deadline, cancelled).await.ok()?;
    let transfers: Vec<Transfer> = rows
        .iter()
        .filter_map(|row| match row.as_slice() {
            [Value::Integer(first_ns), Value::Integer(last_ns), Value::Integer(end_ns)] => {
                Some(Transfer { first_ns: *first_ns, last_ns: *last_ns, end_ns: *end_ns })
            }
            _ => None,
        })
        .collect();
    let slack_ns = report.evidence.clock_bound_ns.unwrap_or(0);
    why::network(comm, &transfers, &retransmissions, slack_ns, &Rules::default()).map(Verdict::Network)
}

fn retransmission(row: &[Value]) -> Option<Retransmission> {
    let text = |value: &Value| match value {
        Value::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    };
    match row {
        [Value::Integer(at_ns), node, from, to] => {
            Some(Retransmission { at_ns: *at_ns, node: text(node)?, from: text(from)?, to: text(to)? })
        }
        _ => None,
    }
}

type Rows = (Vec<Vec<Value>>, Vec<String>);

/// The answer to one question with what is missing from it, or why there is none.
async fn ask(
    shared: &Shared,
    sql: String,
    nodes: Vec<String>,
    caller: &Caller,
    deadline: Instant,
    cancelled: &CancellationToken,
) -> Result<Rows, String> {
    let left = deadline.saturating_duration_since(Instant::now());
    let question = Question {
        sql,
        timeout_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        nodes,
        labels: Vec::new(),
        per_node: false,
        plan_only: false,
        analyze: false,
    };
    match ask::ask_as(&shared.coordinator, question, caller, cancelled.clone()).await {
        Ok(QueryOutcome::Answer { answer, coverage, .. }) => {
            let missing = coverage.missing.iter().map(|gone| format!("{} did not answer: {}", gone.node, gone.reason));
            Ok((answer.rows, missing.chain(coverage.notes.iter().cloned()).collect()))
        }
        Ok(QueryOutcome::Plan(_)) => Err("the planner gave no answer".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_hosts_say_alike_is_said_once() {
        let notes = ["n1 offcpu: lost", "n3 did not answer: timeout", "n2 offcpu: lost", "n2 offcpu: lost"];
        assert_eq!(together(&notes.map(str::to_owned)), ["n1, n2 offcpu: lost", "n3 did not answer: timeout"]);
    }
}
