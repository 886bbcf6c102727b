//! Why the named rank is late: asks its host and one peer's for what they recorded, and passes that
//! to `causes`, which decides. Owns whom and when to ask; no other node is asked.

use std::collections::BTreeSet;
use std::time::Duration;

use causes::{Cause, LOOKED_AT_NS, ROWS, Reading, Recorded, Retransmission, Subject, Topic, Transfer, What};
use explain::chain::{self, Late};
use futures::future::join_all;
use model::NOT_RECORDED;
use query_planner::Value;
use store::UNFILLED;
use verdicts::Kind;
use verdicts::{Basis, Culprit, RankRef, Report, Rules, Verdict, Waits};

use super::asking::Asking;

/// Time that is looked at before and after the episode.
const MARGIN_NS: i64 = 500_000_000;
/// Longest wait for the cause.
const PATIENCE: Duration = Duration::from_secs(5);
/// And where the named rank's host is one that does not answer.
const PATIENCE_WITH_SILENT: Duration = Duration::from_millis(500);

/// What the hosts of a culprit and of one peer recorded of the two.
#[derive(Debug)]
pub(super) struct Gathered {
    culprit: Recorded,
    peer: Option<Recorded>,
    looked_at: Vec<String>,
    not_visible: Vec<String>,
    /// What was asked, each with a title.
    sql: Vec<(String, String)>,
}

impl Gathered {
    /// The questions whose answers the cause was made of, each with a title.
    pub(super) fn sql(&self) -> &[(String, String)] {
        &self.sql
    }

    /// The steps in which the culprit was latest, worst first, on the clock of the report.
    pub(super) fn worst(&self, report: &Report, cause: &Cause) -> Vec<Late> {
        let Verdict::Rank { culprit, .. } = &report.verdict else { return Vec::new() };
        let clock = report.evidence.clocks.iter().find(|(node, _)| *node == culprit.node).map(|(_, clock)| clock);
        let align = |ns: i64| clock.map_or(ns, |clock| clock.align(ns));
        let mut worst = chain::worst(cause, &self.culprit, self.peer.as_ref(), &culprit.node);
        for late in &mut worst {
            late.entry_ns = align(late.entry_ns);
            late.links.iter_mut().flat_map(|link| link.at_ns.as_mut()).for_each(|at_ns| *at_ns = align(*at_ns));
        }
        worst
    }

    /// What explains the difference between the two.
    pub(super) fn cause(&self) -> Cause {
        causes::explain(&self.culprit, self.peer.as_ref(), self.looked_at.clone(), self.not_visible.clone())
    }
}

/// The cause of a report's verdict; none where no rank is named.
pub(super) async fn cause(asking: Asking<'_>, report: &Report) -> Option<Cause> {
    with_evidence(asking, report, &BTreeSet::new()).await.0
}

/// As [`cause`], with what it was made of; none of the latter where shares of time gave it. Of
/// `silent` hosts it is known that they do not answer.
pub(super) async fn with_evidence(
    asking: Asking<'_>,
    report: &Report,
    silent: &BTreeSet<String>,
) -> (Option<Cause>, Option<Gathered>) {
    if let Verdict::Rank { culprit, .. } = &report.verdict
        && culprit.basis == Basis::PointToPoint
    {
        let asking = asking.within(patience(report, culprit, silent));
        return (with_takers(asking, report, culprit).await, None);
    }
    let gathered = gathered(asking, report, silent).await;
    (gathered.as_ref().map(Gathered::cause), gathered)
}

/// How long to wait for what the named rank's host recorded.
fn patience(report: &Report, culprit: &Culprit, silent: &BTreeSet<String>) -> Duration {
    let is_silent = silent.contains(&culprit.node) || report.coverage.is_missing(&culprit.node);
    if is_silent { PATIENCE_WITH_SILENT } else { PATIENCE }
}

/// What goes into the cause of a report's verdict; none where no rank is named. No rank of a silent
/// host is what the named one is compared with.
pub(super) async fn gathered(asking: Asking<'_>, report: &Report, silent: &BTreeSet<String>) -> Option<Gathered> {
    let Verdict::Rank { culprit, .. } = &report.verdict else { return None };
    let asking = asking.within(patience(report, culprit, silent));
    if culprit.basis == Basis::PointToPoint {
        return None;
    }
    let comm_hash = u64::from_str_radix(&culprit.comm_hash, 16).ok()?;
    let who = RankRef { rank: culprit.rank, node: culprit.node.clone(), pid: culprit.pid };
    let peer = verdicts::peer_of_hosts(report, culprit, |node| !silent.contains(node));
    let subjects: Vec<Subject> =
        std::iter::once(who).chain(peer).map(|who| subject(report, culprit, who, comm_hash)).collect();
    let nodes: Vec<String> = subjects.iter().map(|s| s.who.node.clone()).collect();
    let asked = join_all(Topic::ALL.map(|topic| asking.rows(topic.sql(&subjects), &nodes))).await;

    let (mut reading, mut looked_at, mut not_visible) = (Reading::default(), Vec::new(), Vec::new());
    for (topic, rows) in Topic::ALL.into_iter().zip(asked) {
        match rows {
            Ok((rows, notes)) => {
                let read = rows.iter().try_for_each(|row| reading.push(topic, &subjects, row));
                let unrecorded = |note: &String| note.contains(NOT_RECORDED) || note.contains(UNFILLED);
                match read {
                    Ok(()) if notes.iter().any(unrecorded) => {}
                    Ok(()) => match topic.looked_at(!rows.is_empty()) {
                        Ok(seen) => looked_at.push(seen),
                        Err(unseen) => not_visible.push(unseen),
                    },
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
    let culprit = recorded.into_iter().next()?;
    let sql = Topic::ALL.map(|topic| (format!("the two processes: {}", topic.words()), topic.sql(&subjects)));
    Some(Gathered { culprit, peer, looked_at, not_visible, sql: sql.into() })
}

/// The cause that shares of time give, with who took the CPU where another task did.
async fn with_takers(asking: Asking<'_>, report: &Report, culprit: &Culprit) -> Option<Cause> {
    let mut cause = report.cause.clone()?;
    let Some(part) = cause.parts.iter_mut().find(|part| part.named && part.kind == Kind::CpuStolen) else {
        return Some(cause);
    };
    let who = RankRef { rank: culprit.rank, node: culprit.node.clone(), pid: culprit.pid };
    let about = subject(report, culprit, who, 0);
    let node = culprit.node.replace('\'', "''");
    let sql = format!(
        "SELECT next_comm, next_pid, sum(duration_ns), count(*) FROM offcpu WHERE node = '{node}' AND pid = {} AND voluntary = 0 \
         AND ts_ns >= {} AND ts_ns < {} GROUP BY 1, 2 ORDER BY 3 DESC LIMIT 3",
        culprit.pid, about.from_ns, about.to_ns
    );
    let asked = asking.rows(sql, std::slice::from_ref(&culprit.node)).await;
    for row in asked.map(|(rows, _)| rows).unwrap_or_default() {
        if let [Value::Text(comm), Value::Integer(pid), Value::Integer(ns), Value::Integer(count)] = row.as_slice() {
            let name = format!("{} (pid {pid})", String::from_utf8_lossy(comm));
            part.what.push(What { name, ns: *ns, count: usize::try_from(*count).unwrap_or(0), bytes: None });
        }
    }
    // What was asked of may be a part of the episode only.
    let all_ns: i64 = part.what.iter().map(|what| what.ns).sum();
    part.what.iter_mut().for_each(|what| what.ns = scaled(what.ns, part.culprit_ns, all_ns));
    Some(causes::summarised(cause))
}

/// `ns` of `of_ns`, scaled to a total of `to_ns`.
fn scaled(ns: i64, to_ns: i64, of_ns: i64) -> i64 {
    if of_ns <= to_ns { ns } else { (ns as f64 * to_ns as f64 / of_ns as f64) as i64 }
}

/// Merges notes that begin with the names of different hosts and are otherwise equal, as in "n1, n2
/// offcpu: …".
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

/// Where no rank is named: the verdict that it is the network, when TCP segments were lost and
/// collectives waited for them. Silent hosts are not asked.
pub(super) async fn network(asking: Asking<'_>, report: &Report, silent: &BTreeSet<String>) -> Option<Verdict> {
    let comm = report.network_comm()?;
    let asking = asking.within(PATIENCE);
    let until_ns = report.evidence.until_ns;
    let since_ns = report.evidence.since_ns.max(until_ns.saturating_sub(LOOKED_AT_NS));
    let far = report.evidence.clocks.iter().map(|(_, clock)| clock.offset_ns.saturating_abs()).max().unwrap_or(0);
    let (from_ns, to_ns) = (since_ns.saturating_sub(far), until_ns.saturating_add(far));
    let nodes = match silent.is_empty() && report.coverage.missing.is_empty() {
        true => Vec::new(),
        false => {
            let answers = |node: &str| !silent.contains(node) && !report.coverage.is_missing(node);
            let members = asking.coordinator.gossip.list();
            members.iter().filter(|member| answers(&member.name)).map(|member| member.name.clone()).collect()
        }
    };
    // In most cases none were lost, and nothing more is asked.
    let sql = format!(
        "SELECT cluster_ns(ts_ns), node, saddr, daddr FROM net_events WHERE event = 'tcp_retransmit_skb' AND \
         ts_ns >= {from_ns} AND ts_ns < {to_ns} ORDER BY ts_ns DESC LIMIT {ROWS}"
    );
    let (rows, _) = asking.rows(sql, &nodes).await.ok()?;
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
    let (rows, _) = asking.rows(sql, &nodes).await.ok()?;
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
    causes::network(&comm.comm_hash, &transfers, &retransmissions, slack_ns, &Rules::default()).map(Verdict::Network)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_notes_of_two_hosts_are_merged() {
        let notes = ["n1 offcpu: lost", "n3 did not answer: timeout", "n2 offcpu: lost", "n2 offcpu: lost"];
        assert_eq!(together(&notes.map(str::to_owned)), ["n1, n2 offcpu: lost", "n3 did not answer: timeout"]);
    }
}
