//! What is asked where ranks wait for long: how far processes got, by the stores, and where ranks
//! stand in their programs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use explain::difference::program_place;
use explain::stacks::MemberStacks;
use model::cells::{integer, text};
use model::{StacksWanted, StragglersQuestion};
use query_planner::Value;
use verdicts::point_to_point::{self, RankRow};
use verdicts::tail::{Reaching, pairs_sql, reached_sql};
use verdicts::{Input, JobRank, Process, RankRef, Report, Span, Verdict};

use super::super::asking::Asking;
use super::super::explain::sees_processes;
use super::super::{Shared, ras, stacks};

/// Below this waiting time nothing is asked.
const LONG_NS: i64 = 1_000_000_000;
/// How far back the stores are asked.
const BACK_NS: i64 = 24 * 3_600_000_000_000;
/// Ranks whose places are asked for, at most.
const MOST_PLACES: usize = 16;
/// Longest that these are waited for.
pub(super) const PATIENCE: Duration = Duration::from_millis(1_500);
/// Samples of ranks that do not move, and the time between two of them, milliseconds.
const SAMPLES: u32 = 2;
pub(super) const EVERY_MS: u32 = 10;

/// How far processes got on the communicators where somebody waits for long; nothing where nobody
/// does.
///
/// Counts begin after `counted_from_ns`, where calls were missed before.
pub(super) async fn add_progress(
    asking: Asking<'_>,
    question: &StragglersQuestion,
    span: &Span,
    counted_from_ns: Option<i64>,
    ranks: Vec<JobRank>,
    input: &mut Input,
) {
    let long = |since_ns: i64| span.until_ns.saturating_sub(since_ns) >= LONG_NS;
    let waits = input.in_calls.iter().any(|call| long(call.since_ns));
    if !waits && !input.syncing.iter().any(|sync| long(sync.start_ns)) {
        return;
    }
    // Who waits for its device, or for requests, does so on any of its communicators.
    let anywhere = input.in_calls.iter().filter(|call| call.comm_hash.is_none()).map(|call| (&call.node, call.pid));
    let anywhere: BTreeSet<_> = anywhere.chain(input.syncing.iter().map(|sync| (&sync.node, sync.pid))).collect();
    let calls = input.observations.iter().chain(&input.unnumbered);
    let of_these = calls.filter(|seen| anywhere.contains(&(&seen.node, seen.pid))).map(|seen| seen.comm_hash);
    let comms: BTreeSet<u64> = of_these.chain(input.in_calls.iter().filter_map(|call| call.comm_hash)).collect();
    let comms: Vec<u64> = comms.into_iter().collect();
    let since_ns = span.until_ns.saturating_sub(BACK_NS).max(counted_from_ns.unwrap_or(i64::MIN));
    let mut reaching = Reaching::default();
    match asking.rows_for(question, reached_sql(&comms, since_ns)).await {
        Ok((rows, _)) => rows.iter().for_each(|row| reaching.reached(row)),
        Err(error) => return tracing::debug!("how far ranks got: {error}"),
    }
    let comms = reaching.comms();
    if !input.syncing.is_empty()
        && let Ok((rows, _)) = asking.rows_for(question, pairs_sql(&comms, since_ns)).await
    {
        rows.iter().for_each(|row| reaching.pair(row));
    }
    if let Some(sql) = reaching.last_calls_sql(&comms, since_ns)
        && let Ok((rows, _)) = asking.rows_for(question, sql).await
    {
        rows.iter().for_each(|row| reaching.call(row));
    }
    input.progress = reaching.progress();
    let open = verdicts::progress_of([], &input.in_calls);
    for call in open {
        let same =
            |p: &&mut verdicts::Progress| (&p.node, p.pid, p.comm_hash) == (&call.node, call.pid, call.comm_hash);
        match input.progress.iter_mut().find(same) {
            Some(known) => {
                known.entered = known.entered.max(call.entered);
                known.uncounted |= call.uncounted;
            }
            None => input.progress.push(call),
        }
    }
    input.ranks = ranks;
}

/// Who is known by the environment.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Of each rank its last process.
    pub(super) ranks: Vec<JobRank>,
    /// All processes, also those that ranks started and that inherit the environment.
    pub(super) processes: BTreeSet<Process>,
    /// All hosts answered.
    pub(super) complete: bool,
}

/// The ranks of the jobs that a question is about; of one job alone by its key.
pub(super) async fn known(asking: Asking<'_>, question: &StragglersQuestion, only: Option<u64>) -> Known {
    let (rows, complete) = asking.rows_of(question, point_to_point::PROCESSES_SQL.to_owned()).await;
    let job = question.job.as_deref();
    let mut last: BTreeMap<(u64, i32), JobRank> = BTreeMap::new();
    let mut processes: BTreeSet<Process> = BTreeSet::new();
    for RankRow { node, pid, rank, nranks, job_id, job: key } in rows.iter().filter_map(|row| RankRow::read(row)) {
        if job.is_some() && job != job_id.as_deref() || only.is_some_and(|only| only != key) {
            continue;
        }
        let node: Arc<str> = String::from_utf8_lossy(&node).into();
        processes.insert((Arc::clone(&node), pid.into()));
        last.insert((key, rank), JobRank { node, pid: pid.into(), job: key, rank, nranks });
    }
    Known { ranks: last.into_values().collect(), processes, complete }
}

/// Where the ranks that a hang is about stand in their programs, where calls that do not belong
/// together were made, and what NCCL said.
pub(super) async fn add_witnesses(asking: Asking<'_>, live: Option<&Shared>, report: &mut Report) {
    let Verdict::Hang(hang) = &mut report.verdict else { return };
    let asking = asking.within(PATIENCE);
    let mut inside: Vec<bool> = Vec::new();
    if let Some(of) = &mut hang.differing
        && let Ok(comm) = u64::from_str_radix(&of.comm_hash, 16)
    {
        let sql = format!(
            "SELECT node, pid, site FROM collectives WHERE comm_hash = {} AND comm_seq = {} AND site IS NOT NULL",
            comm.cast_signed(),
            of.position
        );
        let rows = asking.rows(sql, &[]).await.map(|(rows, _)| rows).unwrap_or_default();
        let site = |row: &Vec<Value>| Some(((text(row, 0), integer(row, 1)?), text(row, 2)));
        let sites: BTreeMap<(String, i64), String> = rows.iter().filter_map(site).collect();
        for call in &mut of.calls {
            call.site = call.ranks.iter().find_map(|who| sites.get(&(who.node.clone(), who.pid)).cloned());
        }
        // Where who has left the call stands now is not where it was made.
        inside = of.calls.iter().map(|call| call.site.is_none()).collect();
        of.calls.iter_mut().for_each(|call| call.site = call.site.take().filter(|site| !is_in_bindings(site)));
    }
    if let Some((sql, nodes)) = ras::kept_sql(hang) {
        let rows = asking.rows(sql, &nodes).await.map(|(rows, _)| rows);
        hang.nccl = rows.unwrap_or_default().first().map(|row| text(row, 1));
    }
    let Some(shared) = live.filter(|_| sees_processes(asking.caller)) else { return };
    let of_calls = hang.differing.iter().flat_map(|of| &of.calls).zip(&inside).filter(|(_, inside)| **inside);
    let of_calls = of_calls.filter_map(|(call, _)| call.ranks.first());
    let edges = hang.circles.iter().flatten().map(|edge| &edge.who);
    let who = of_calls.chain(hang.missing.iter().map(|m| &m.who)).chain(edges);
    let who: BTreeSet<RankRef> = who.take(MOST_PLACES).cloned().collect();
    let places = places(asking, shared, &who).await;
    let at = |who: &RankRef| places.get(&(who.node.clone(), who.pid)).cloned();
    hang.missing.iter_mut().for_each(|m| m.line = at(&m.who));
    hang.circles.iter_mut().flatten().for_each(|edge| edge.line = at(&edge.who));
    let differing = hang.differing.iter_mut().flat_map(|of| &mut of.calls).zip(&inside);
    for (call, _) in differing.filter(|(_, inside)| **inside) {
        call.site = call.ranks.first().and_then(at);
    }
}

/// A place in a language's bindings to MPI, which are libraries without symbols or MPI's own: no
/// line of the program.
fn is_in_bindings(site: &str) -> bool {
    let is_bare_address = site.contains(".so") && !site.contains('(');
    is_bare_address || site.contains("(libmpi")
}

/// The stacks of ranks of some nodes; what cannot be had is left out.
pub(super) async fn stacks_of(
    asking: Asking<'_>,
    shared: &Shared,
    wanted: BTreeMap<&str, StacksWanted>,
) -> Vec<MemberStacks> {
    let viewer = asking.caller.access.viewer();
    let asked = wanted.into_iter().map(|(node, wanted)| async move {
        stacks::of_node(shared, node, &wanted, viewer, asking.deadline, asking.cancelled).await.unwrap_or_default()
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

/// Where processes stand, by node and process.
async fn places(asking: Asking<'_>, shared: &Shared, who: &BTreeSet<RankRef>) -> BTreeMap<(String, i64), String> {
    let mut nodes: BTreeMap<&str, StacksWanted> = BTreeMap::new();
    for of in who {
        let few = || StacksWanted { samples: SAMPLES, every_ms: EVERY_MS, ..StacksWanted::default() };
        nodes.entry(&of.node).or_insert_with(few).ranks.extend(u32::try_from(of.rank));
    }
    let found = stacks_of(asking, shared, nodes).await;
    let place = |of: MemberStacks| {
        let stack = of.stacks.iter().max_by_key(|stack| stack.count)?;
        Some(((of.member.node.clone(), i64::from(of.member.pid)), program_place(&stack.frames)?))
    };
    found.into_iter().filter_map(place).collect()
}
