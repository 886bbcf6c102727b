//! Explanations of verdicts that name no late rank (hang, network, imbalance), and where ranks are
//! in their code.

use std::collections::BTreeMap;

use causes::Network;
use explain::difference::{difference, of_children, place};
use explain::stacks::{CountedStack, Member, MemberStacks};
use model::StacksWanted;
use model::cells::{integer, text};
use model::explanation::{Explanation, Link, Place};
use query_planner::Value;
use verdicts::Kind;
use verdicts::{Culprit, Hang, RankRef, Report, Stage};

use super::{EVERY_MS, Requester, SAMPLES, sees_processes};
use crate::stacks;

/// Links listed.
const LINKS: usize = 64;
/// Samples of ranks that do not move.
const STILL: u32 = 3;

/// A verdict without further detail.
pub(super) fn simple(verdict: &str, runbook: &str, found: &mut Explanation) {
    found.verdict = verdict.to_owned();
    found.runbook = Some(runbook.to_owned()).filter(|runbook| !runbook.is_empty());
}

/// Who waits for whom, and where both are.
pub(super) async fn hang(requester: &Requester<'_>, hang: &Hang, is_now: bool, found: &mut Explanation) {
    simple("hang", "hang", found);
    for waiting in hang.waiting.iter().take(LINKS) {
        found.chain.push(Link {
            at_ns: waiting.since_ns,
            duration_ns: None,
            node: waiting.who.node.clone(),
            what: format!("rank {} entered {} and waits in it", waiting.who.rank, waiting.call.func),
            evidence: "calls in flight".to_owned(),
            tier: Some(1),
        });
    }
    found.chain.sort_by_key(|link| link.at_ns);
    found.chain.extend(causes_of(hang).into_iter().take(LINKS));
    let missing = hang.missing.first().map(|missing| &missing.who);
    if let Some(who) = missing {
        found.place = Some(Place { rank: who.rank, node: who.node.clone(), pid: who.pid, ..Place::default() });
        found.values = vec![
            ("PID".to_owned(), who.pid.to_string()),
            ("RANK".to_owned(), who.rank.to_string()),
            ("NODE".to_owned(), who.node.clone()),
        ];
    }
    let peer = hang.waiting.iter().map(|waiting| &waiting.who).find(|who| missing.is_none_or(|m| m != *who));
    for who in missing.into_iter().chain(peer) {
        let stacks = if is_now {
            sampled(requester, who, STILL).await
        } else {
            kept(requester, who, hang.since_ns.unwrap_or(0)).await
        };
        match stacks {
            Ok(stacks) => found.chain.extend(standing(who, &stacks.own)),
            Err(why) => found.not_visible.push(format!("where rank {} stands: {why}", who.rank)),
        }
    }
    found.chain.extend(of_nccl(requester, hang).await);
}

/// What NCCL itself said of a hang, where it was asked in a rank's process.
async fn of_nccl(requester: &Requester<'_>, hang: &Hang) -> Option<Link> {
    let (sql, nodes) = crate::ras::kept_sql(hang)?;
    let (rows, _) = requester.asking(requester.caller).rows(sql, &nodes).await.ok()?;
    let row = rows.first()?;
    Some(Link {
        at_ns: integer(row, 0),
        duration_ns: None,
        node: text(row, 2),
        what: text(row, 1),
        evidence: format!("NCCL's RAS, asked in process {}", integer(row, 3)?),
        tier: None,
    })
}

/// What ranks wait for, where that is no rank: calls that do not belong together, or each other.
fn causes_of(hang: &Hang) -> Vec<Link> {
    let link = |node: &str, what: String| Link {
        at_ns: None,
        duration_ns: None,
        node: node.to_owned(),
        what,
        evidence: "collectives and calls in flight".to_owned(),
        tier: Some(1),
    };
    let differing = hang.differing.iter().flat_map(|of| {
        of.calls.iter().map(move |call| {
            let ranks =
                verdicts::hostlist::fold_ranges(call.ranks.iter().filter_map(|who| u64::try_from(who.rank).ok()));
            let node = call.ranks.first().map_or("", |who| &who.node);
            link(node, format!("at position {} of {} ranks {ranks} call {}", of.position, of.comm_hash, call.func))
        })
    });
    let edges = hang.circles.iter().flatten().map(|edge| {
        let what = format!("rank {} waits in {} for rank {}", edge.who.rank, edge.call.func, edge.waits_for.rank);
        link(&edge.who.node, what)
    });
    differing.chain(edges).collect()
}

/// The place of a rank in its code, by its commonest stack.
fn standing(who: &RankRef, stacks: &[MemberStacks]) -> Option<Link> {
    let stack = stacks.iter().flat_map(|member| &member.stacks).max_by_key(|stack| stack.count)?;
    let python = stack.frames.iter().any(|frame| matches!(frame, explain::stacks::Frame::Python { .. }));
    let places: Vec<String> = stack.frames.iter().filter_map(|frame| place(frame, python)).collect();
    let inner = places.len().saturating_sub(4);
    Some(Link {
        at_ns: None,
        duration_ns: None,
        node: who.node.clone(),
        what: format!("rank {} stands at {}", who.rank, places[inner..].join(" > ")),
        evidence: format!("stacks, {} samples", stack.count),
        tier: None,
    })
}

/// The hosts between which segments were lost.
pub(super) fn network(network: &Network, found: &mut Explanation) {
    simple("network", "network", found);
    found.values = network.node.iter().map(|node| ("NODE".to_owned(), node.clone())).collect();
    for flow in network.flows.iter().take(LINKS) {
        let to = flow.to_node.as_deref().unwrap_or("a host that is not known");
        found.chain.push(Link {
            at_ns: None,
            duration_ns: None,
            node: flow.from_node.clone(),
            what: format!("{} segments from {} to {} ({to}) were sent again", flow.retransmissions, flow.from, flow.to),
            evidence: "net_events".to_owned(),
            tier: None,
        });
    }
    found.chain.push(Link {
        at_ns: None,
        duration_ns: Some(network.slow_ns - network.usual_ns),
        node: String::new(),
        what: format!(
            "{} of {} collectives had such segments and took {} instead of {}; longer by",
            network.with_retransmissions,
            network.collectives,
            record::units::duration(network.slow_ns),
            record::units::duration(network.usual_ns)
        ),
        evidence: "collectives".to_owned(),
        tier: Some(1),
    });
}

/// What each stage does.
pub(super) fn stages(stages: &[Stage], found: &mut Explanation) {
    simple("stage_imbalance", "stage_imbalance", found);
    for stage in stages.iter().take(LINKS) {
        let ranks = stage.ranks.iter().filter_map(|rank| u64::try_from(rank.who.rank).ok());
        found.chain.push(Link {
            at_ns: None,
            duration_ns: None,
            node: String::new(),
            what: format!(
                "ranks {} compute for {:.0} % of the time",
                verdicts::hostlist::fold_ranges(ranks),
                stage.own_share * 100.0
            ),
            evidence: "collectives".to_owned(),
            tier: Some(1),
        });
    }
}

/// The stacks of a rank's first thread, and those of its child processes.
#[derive(Default)]
struct RankStacks {
    own: Vec<MemberStacks>,
    children: Vec<MemberStacks>,
}

/// Where the culprit is and its peer is not, while it is late.
#[derive(Default)]
pub(super) struct Lines {
    own: Option<String>,
    child: Option<String>,
}

impl Lines {
    /// In words; that of a child process where the rank waits for another process.
    pub(super) fn text(self, kinds: &[Kind]) -> Option<String> {
        let waits = matches!(kinds.first(), Some(Kind::FileWait | Kind::NetworkWait | Kind::Lock | Kind::Wait));
        let parts = [self.own, self.child.filter(|_| waits)];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// The line that the culprit is in and its peer is not, while it is late.
///
/// # Errors
/// Why that is not known.
pub(super) async fn line(
    requester: &Requester<'_>,
    report: &Report,
    culprit: &Culprit,
    is_now: bool,
) -> Result<Lines, String> {
    let peer = verdicts::peer(report, culprit).ok_or("there is no peer to compare it with")?;
    let who = RankRef { rank: culprit.rank, node: culprit.node.clone(), pid: culprit.pid };
    let since_ns = culprit.since_ns;
    let (mine, theirs) = if is_now {
        futures::future::join(sampled(requester, &who, SAMPLES), sampled(requester, &peer, SAMPLES)).await
    } else {
        futures::future::join(kept(requester, &who, since_ns), kept(requester, &peer, since_ns)).await
    };
    let (mine, theirs) = (mine?, theirs?);
    let child = of_children(&mine.children, &theirs.children);
    Ok(Lines {
        own: difference(&mine.own, &theirs.own).map(|found| found.text()),
        child: child.map(|(pid, found)| format!("its child process {pid}: {}", found.text())),
    })
}

/// Stacks of one rank's process and of its children, first threads.
async fn sampled(requester: &Requester<'_>, who: &RankRef, samples: u32) -> Result<RankStacks, String> {
    let Some(shared) = requester.of.live else { return Err("stores were asked, no agent".to_owned()) };
    if !sees_processes(requester.caller) {
        return Err("stacks are not shown to readers".to_owned());
    }
    let ranks = u32::try_from(who.rank).into_iter().collect();
    let wanted = StacksWanted { samples, every_ms: EVERY_MS, ranks, children: true, ..StacksWanted::default() };
    let viewer = requester.caller.access.viewer();
    let all = stacks::of_node(shared, &who.node, &wanted, viewer, requester.deadline, requester.cancelled).await?;
    let (mut found, is_own) = (RankStacks::default(), |pid| i64::from(pid) == who.pid);
    for member in all {
        match member.member.rank {
            None => found.children.push(member),
            Some(_) if is_own(member.member.pid) => found.own.push(member),
            Some(_) => {}
        }
    }
    if found.own.is_empty() {
        return Err(format!("no stack of process {} on {} could be read", who.pid, who.node));
    }
    Ok(found)
}

/// The stacks of a rank's process that its agent kept when the verdict changed.
async fn kept(requester: &Requester<'_>, who: &RankRef, since_ns: i64) -> Result<RankStacks, String> {
    let rows = requester
        .shown(
            format!(
                "SELECT pid, count, frames FROM stacks WHERE (pid = {pid} OR rank = {rank} AND kind LIKE '%_child') AND ts_ns = \
                 (SELECT min(ts_ns) FROM stacks WHERE pid = {pid} AND ts_ns >= {since_ns}) AND tid = pid ORDER BY pid",
                pid = who.pid,
                rank = who.rank
            ),
            &who.node,
        )
        .await
        .map_err(|failure| failure.message)?;
    let stack = |row: &Vec<Value>| match row.as_slice() {
        [Value::Integer(pid), Value::Integer(count), Value::Text(frames)] => Some((
            u32::try_from(*pid).ok()?,
            CountedStack {
                frames: serde_json::from_slice(frames).ok()?,
                count: u32::try_from(*count).ok()?,
                inner_missing: false,
                outer_missing: false,
            },
        )),
        _ => None,
    };
    let mut processes = BTreeMap::<u32, Vec<CountedStack>>::new();
    for (pid, stack) in rows.iter().filter_map(stack) {
        processes.entry(pid).or_default().push(stack);
    }
    let mut found = RankStacks::default();
    for (pid, stacks) in processes {
        let is_own = i64::from(pid) == who.pid;
        let rank = u32::try_from(who.rank).ok().filter(|_| is_own);
        let member = Member { rank, node: who.node.clone(), pid, tid: pid };
        let members = if is_own { &mut found.own } else { &mut found.children };
        members.push(MemberStacks { member, other_stacks: 0, stacks });
    }
    if found.own.is_empty() {
        return Err(format!("no stack of process {} on {} was kept then", who.pid, who.node));
    }
    Ok(found)
}
