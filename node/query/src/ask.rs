//! One question from SQL to answer: choose the nodes, plan, fan out, merge, account for coverage.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gossip::{Member, MemberState};
pub use model::Question;
use model::{Coverage, Failure, FailureKind, Missing, row_share};
use parking_lot::Mutex;
use query_planner::memory::{self, Account};
use query_planner::{
    Answer, AskOptions, Budget, Catalog, ColumnMeta, Fragment, MergePool, Out, Plan, RunError, Stop, Targets, Value,
};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio_util::sync::CancellationToken;

use super::admission::{SuspendablePermit, cost};
use super::fanout::MeshFanout;
use super::leaf::Target;
use super::low_priority;
use super::time::{RoundTime, SHORTEST_ROUND};
use crate::access::Caller;
use crate::coordinator::Coordinator;
use crate::way::Way;
use record::unix_now_ns;

/// Rows a node may ship for one question.
const NODE_ROWS: u64 = 5_000_000;
/// Bytes a node may ship for one question.
const NODE_BYTES: u64 = 256 << 20;
/// Bytes of data that may be gathered for one question.
const COORDINATOR_BYTES: u64 = 1 << 30;
/// Memory of one question here, bytes: what the nodes sent, the merge that holds it once more,
/// sorted, and the answer. All questions together have less of it in an agent
/// (`memory::bound_all`).
const MEMORY_BYTES: u64 = 2 * COORDINATOR_BYTES;
/// Memory of SQLite's compiler for one question; a large one takes some hundred kilobytes.
const PLANNING_BYTES: u64 = 64 << 20;
/// How often a question is run again because a node was lost between two rounds.
const RESTARTS: usize = 3;
/// Checks of its stop that an inline merge may take: some tenths of a millisecond of SQLite's work.
const SMALL_LOOKS: u32 = 4;

/// How long after its deadline a merge is given to end before its question is answered without it.
const STOP_GRACE: Duration = Duration::from_millis(150);

/// The outcome of a question. (One a question, mostly an answer.)
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub enum QueryOutcome {
    /// The plan as text (`--explain`).
    Plan(String),
    /// The merged answer.
    Answer {
        /// Columns and rows.
        answer: Answer,
        /// Who is in it.
        coverage: Coverage,
        /// From question to answer.
        elapsed: Duration,
        /// The plan as text, with what each node shipped; empty unless the question wanted it.
        explained: String,
    },
}

/// Why a question was not answered.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The SQL or the choice of nodes is wrong, or not for this caller: exit code 2.
    #[error("{0}")]
    Wrong(Failure),
    /// No answer: exit code 1.
    #[error("{failure}")]
    Failed {
        /// What happened.
        failure: Failure,
        /// Who had answered by then.
        coverage: Option<Coverage>,
    },
}

impl AskError {
    /// The SQL or the choice of nodes is wrong.
    pub fn wrong(what: impl Into<Failure>) -> Self {
        Self::Wrong(what.into())
    }

    /// No answer, and nothing is known of who had answered.
    pub fn failed(why: impl Into<Failure>) -> Self {
        Self::Failed { failure: why.into(), coverage: None }
    }
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Wrong(failure) | AskError::Failed { failure, .. } => failure,
        }
    }
}

/// Asks the mesh.
///
/// # Errors
/// The SQL is wrong or refused, nobody answered, or the answer does not fit the budget or the
/// deadline.
pub async fn ask(
    shared: &Coordinator,
    question: Question,
    cancelled: CancellationToken,
) -> Result<QueryOutcome, AskError> {
    ask_as(shared, question, &Caller::agent(), cancelled).await
}

/// Asks the mesh for a caller who may not ask everything.
///
/// # Errors
/// As [`ask`]; what is not allowed is [`AskError::Wrong`].
pub async fn ask_as(
    shared: &Coordinator,
    question: Question,
    caller: &Caller,
    cancelled: CancellationToken,
) -> Result<QueryOutcome, AskError> {
    ask_to(shared, question, caller, cancelled, None).await
}

/// Some rows of an answer.
#[derive(Debug)]
pub struct RowChunk {
    /// The answer's columns.
    pub columns: Vec<ColumnMeta>,
    /// The rows that follow those before.
    pub rows: Vec<Vec<Value>>,
}

/// As [`ask_as`], with rows sent to `out` as they come, in order; the last ones may be left in the
/// answer. A full `out` slows the nodes down. After an error what was sent is void.
///
/// # Errors
/// As [`ask_as`]; also where a node breaks off after rows of it were sent.
pub async fn ask_into(
    shared: &Coordinator,
    question: Question,
    caller: &Caller,
    cancelled: CancellationToken,
    out: mpsc::Sender<RowChunk>,
) -> Result<QueryOutcome, AskError> {
    ask_to(shared, question, caller, cancelled, Some(out)).await
}

/// As [`ask_into`], with rows handed to `take` as they come.
///
/// # Errors
/// As [`ask_into`], or what `take` returned.
pub async fn ask_each<E: From<AskError>>(
    shared: &Coordinator,
    question: Question,
    caller: &Caller,
    cancelled: CancellationToken,
    mut take: impl FnMut(RowChunk) -> Result<(), E>,
) -> Result<QueryOutcome, E> {
    let (out, mut chunks) = mpsc::channel(1);
    let mut asking = std::pin::pin!(ask_into(shared, question, caller, cancelled, out));
    let outcome = loop {
        tokio::select! {
            biased;
            Some(chunk) = chunks.recv() => take(chunk)?,
            outcome = &mut asking => break outcome?,
        }
    };
    while let Ok(chunk) = chunks.try_recv() {
        take(chunk)?;
    }
    Ok(outcome)
}

async fn ask_to(
    shared: &Coordinator,
    question: Question,
    caller: &Caller,
    cancelled: CancellationToken,
    out: Option<mpsc::Sender<RowChunk>>,
) -> Result<QueryOutcome, AskError> {
    let started = Instant::now();
    let deadline = started + Duration::from_millis(question.timeout_ms);
    let list = shared.gossip.list();
    let members = chosen(&list, &question);
    let options = AskOptions { per_node: question.per_node, single_node: members.len() == 1 };
    let tables = shared.catalogs.of_members(&shared.way, &members, deadline).await.map_err(AskError::wrong)?;
    let catalog = Arc::clone(&tables.catalog);
    let plan = planned(shared, &question, catalog, options, deadline, &cancelled).await?;
    caller.access.allows(&plan).map_err(AskError::Wrong)?;
    if question.plan_only {
        return Ok(QueryOutcome::Plan(query_planner::explain(&plan)));
    }

    let busy_for_all_of_it = || {
        let why = format!(
            "timeout: other questions were worked on here for all of the {} ms; ask again, or give a longer --timeout",
            question.timeout_ms
        );
        AskError::failed(Failure::new(FailureKind::Timeout, why))
    };
    let permit = match shared.admission.try_enter(&caller.requester, cost(&plan)) {
        Some(permit) => permit,
        None => {
            let entered = tokio::select! {
                permit = shared.admission.enter(&caller.requester, cost(&plan)) => permit,
                () = tokio::time::sleep_until(deadline.into()) => return Err(busy_for_all_of_it()),
                () = cancelled.cancelled() => return Err(AskError::failed("cancelled")),
            };
            // Nodes that are asked with no time left would be reported as silent.
            if deadline.saturating_duration_since(Instant::now()) < SHORTEST_ROUND {
                return Err(busy_for_all_of_it());
            }
            entered.map_err(|busy| AskError::failed(Failure::new(FailureKind::Busy, busy.to_string())))?
        }
    };
    let memory = Account::new(MEMORY_BYTES);
    let permit =
        Arc::new(Mutex::new(SuspendablePermit::new(permit, tokio::runtime::Handle::current(), cancelled.clone())));
    let excluded = tables.excluded_from(&plan);
    let is_asked = |member: &&&Member| member.may_live() && !excluded.contains_key(&member.name);
    let targets: Vec<Target> =
        members.iter().filter(is_asked).filter_map(|member| target(&shared.way, member)).collect();
    let mut fanout = MeshFanout::new(
        tokio::runtime::Handle::current(),
        shared.way.clone(),
        targets,
        *shared.fanout.lock(),
        deadline,
        cancelled.clone(),
    )
    .with_time(RoundTime::of(started, deadline))
    .with_permit(Arc::clone(&permit))
    .with_memory(&memory)
    .for_viewer(caller.access.viewer());
    let (budget, now_unix_ns) = (budget(&plan, out.is_some()), unix_now_ns());
    if let Some(first) = query_planner::first_ask(&plan, out.is_some(), &budget, now_unix_ns) {
        fanout.start_first_round(first);
        fanout.await_first_round().await;
    }
    let stop = Stop::at(Some(deadline));
    let run_inline = |fanout: &mut MeshFanout| {
        let _cap = memory::cap_of(&memory);
        let little = stop.or_after(SMALL_LOOKS);
        query_planner::run_with(&plan, fanout, &budget, now_unix_ns, &little, &shared.merges, None)
    };
    let is_over = || cancelled.is_cancelled() || Instant::now() >= deadline;
    let small = fanout.run_inline(run_inline, is_over).await;
    let (outcome, fanout, plan) = if let Some(outcome) = small {
        fanout.release();
        (outcome, fanout, plan)
    } else {
        // Dropping the question stops its merge.
        let _stop_on_drop = stop.stop_on_drop();
        let (merges, stopping) = (Arc::clone(&shared.merges), stop.clone());
        let mut running = std::pin::pin!(low_priority::run(move || {
            let _cap = memory::cap_of(&memory);
            let mut run =
                Run { plan: &plan, fanout: &mut fanout, budget, now_unix_ns, stop: &stopping, merges: &merges };
            let outcome = match out {
                None => run.until_over(None),
                Some(out) => {
                    let mut out = |rows| hand_on(&plan.columns, rows, &out, &permit, deadline);
                    run.until_over(Some(&mut out))
                }
            };
            fanout.release();
            (outcome, fanout, plan)
        }));
        let ended = tokio::select! {
            biased;
            ended = &mut running => Ok(ended),
            () = cancelled.cancelled() => Err(()),
            () = tokio::time::sleep_until(deadline.into()) => Err(()),
        };
        let ended = match ended {
            Ok(ended) => ended,
            // Most end at once and report who had answered; one that does not ends by itself,
            // unobserved.
            Err(()) => {
                stop.stop();
                let Ok(ended) = tokio::time::timeout(STOP_GRACE, running).await else {
                    return Err(AskError::failed(match cancelled.is_cancelled() {
                        true => "cancelled".into(),
                        false => late(&question),
                    }));
                };
                ended
            }
        };
        ended.ok_or_else(|| AskError::failed("the merge failed"))?
    };

    let mut coverage = covered(&list, &members, &plan, &question, &fanout, &excluded);
    let answer = match outcome {
        Ok(answer) => answer,
        Err(error) => {
            coverage.answered = fanout.answered.len();
            let failure = match error {
                RunError::Stopped(_) if Instant::now() >= deadline => late(&question),
                _ if fanout.lost_midway => format!(
                    "{} answered a fragment of the question and was lost before the rest, and no time was left to begin again \
                     without it; give a longer --timeout or ask again",
                    fanout.lost_names()
                )
                .into(),
                other => other.to_string().into(),
            };
            return Err(AskError::Failed { failure, coverage: Some(coverage) });
        }
    };
    if coverage.answered == 0 && coverage.asked > 0 {
        return Err(AskError::Failed { failure: "no node answered".into(), coverage: Some(coverage) });
    }
    coverage.notes.extend(answer.notes.iter().cloned());
    let explained = if question.analyze { query_planner::explain_analyze(&plan, &answer) } else { String::new() };
    Ok(QueryOutcome::Answer { answer, coverage, elapsed: started.elapsed(), explained })
}

fn late(question: &Question) -> Failure {
    let (kind, ms) = (FailureKind::Timeout, question.timeout_ms);
    Failure::new(kind, format!("timeout: no answer within {ms} ms; give a longer --timeout or narrow the question"))
}

/// The question's plan: a cached one, or made on a thread that may block, within the question's
/// time and [`PLANNING_BYTES`]. The clocks of the mesh are measured for questions that need them.
async fn planned(
    shared: &Coordinator,
    question: &Question,
    catalog: Arc<Catalog>,
    options: AskOptions,
    deadline: Instant,
    cancelled: &CancellationToken,
) -> Result<Arc<Plan>, AskError> {
    let views = shared.views;
    let clocks = match query_planner::needs_clocks(&question.sql, views) {
        true => Some(crate::clocks::clocks(shared, None, deadline).await),
        // With clocks it is another text each time.
        false => match shared.plans.cached(&question.sql, &catalog, &options) {
            Some(plan) => return Ok(plan),
            None => None,
        },
    };
    let stop = Stop::at(Some(deadline));
    let _stop_on_drop = stop.stop_on_drop();
    let (plans, sql, planning) = (Arc::clone(&shared.plans), question.sql.clone(), stop.clone());
    let made = tokio::task::spawn_blocking(move || {
        let _cap = memory::cap(PLANNING_BYTES);
        let _watched = planning.here();
        let aligned = match clocks {
            None => None,
            Some(clocks) => query_planner::align(&sql, &catalog, &clocks, views).map_err(|error| error.render(&sql))?,
        };
        let sql = aligned.as_deref().unwrap_or(&sql);
        let understands = |fragment: &Fragment| store::understands(&catalog, fragment);
        plans.plan(sql, &catalog, &options, understands).map_err(|error| error.render(sql))
    });
    tokio::select! {
        biased;
        made = made => match made {
            Ok(Err(_)) if Instant::now() >= deadline => Err(AskError::failed(late(question))),
            Ok(made) => made.map_err(AskError::wrong),
            Err(error) => Err(AskError::failed(format!("planning failed: {error}"))),
        },
        () = cancelled.cancelled() => Err(AskError::failed("cancelled")),
        () = tokio::time::sleep_until(deadline.into()) => Err(AskError::failed(late(question))),
    }
}

/// Passes rows on from a thread that may block; waits while there is no room, without a permit, but
/// not beyond the deadline.
fn hand_on(
    columns: &[ColumnMeta],
    rows: Vec<Vec<Value>>,
    out: &mpsc::Sender<RowChunk>,
    permit: &Mutex<SuspendablePermit>,
    deadline: Instant,
) -> Result<(), RunError> {
    let gone = || RunError::Stopped("who asked has gone".into());
    let late = || RunError::Stopped("the deadline passed while the answer was read".into());
    let chunk = match out.try_send(RowChunk { columns: columns.to_vec(), rows }) {
        Ok(()) => return Ok(()),
        Err(TrySendError::Closed(_)) => return Err(gone()),
        Err(TrySendError::Full(chunk)) => chunk,
    };
    let mut permit = permit.lock();
    let sent =
        permit.wait_for(Duration::ZERO, async { tokio::time::timeout_at(deadline.into(), out.send(chunk)).await });
    sent.map_err(|_| late())?.map_err(|_| gone())?;
    if permit.resume(deadline) { Ok(()) } else { Err(late()) }
}

/// What a question may cost.
fn budget(plan: &Plan, streaming: bool) -> Budget {
    if streaming && plan.flows() {
        // Nothing is gathered: only the deadline and the reader limit such an answer.
        Budget { node_rows: u64::MAX, node_bytes: u64::MAX, coordinator_bytes: COORDINATOR_BYTES }
    } else {
        Budget { node_rows: NODE_ROWS, node_bytes: NODE_BYTES, coordinator_bytes: COORDINATOR_BYTES }
    }
}

/// One question's run, on a thread that may block.
struct Run<'r> {
    plan: &'r Plan,
    fanout: &'r mut MeshFanout,
    budget: Budget,
    now_unix_ns: i64,
    stop: &'r Stop,
    merges: &'r MergePool,
}

impl Run<'_> {
    /// Runs the plan; when a node is lost between two rounds, runs it again without that node.
    fn until_over(&mut self, mut out: Option<Out<'_>>) -> Result<Answer, RunError> {
        let Self { plan, budget, now_unix_ns, stop, merges, .. } = *self;
        let mut restarts = 0;
        loop {
            let fanout = &mut *self.fanout;
            let out = out.as_mut().map(|out| &mut **out as Out<'_>);
            match query_planner::run_with(plan, fanout, &budget, now_unix_ns, stop, merges, out) {
                Err(_) if fanout.lost_midway && restarts < RESTARTS && fanout.may_restart() => {
                    restarts += 1;
                    fanout.restart(restarts == RESTARTS);
                }
                outcome => return outcome,
            }
        }
    }
}

fn target(way: &Way, member: &Member) -> Option<Target> {
    let name = member.name.parse().ok()?;
    let local = way.executor_of(&name).is_some();
    Some(Target { name, address: member.address, local, seat: member.seat })
}

/// The members that `--nodes` and `--label` leave.
fn chosen<'m>(members: &'m [Member], question: &Question) -> Vec<&'m Member> {
    members.iter().filter(|member| is_chosen(member, &question.nodes, &question.labels)).collect()
}

/// Whether `--nodes` (empty: all) and `--label` (all must match) leave this member.
pub fn is_chosen(member: &Member, nodes: &[String], labels: &[(String, String)]) -> bool {
    (nodes.is_empty() || nodes.contains(&member.name))
        && labels.iter().all(|(key, value)| member.facts.labels.get(key) == Some(value))
}

/// Coverage of a question that ran. Asked are the chosen members that the SQL's own conditions on
/// `node` leave; where the plan needs no node, or any one of them, those that the fan-out asked.
/// Names in `--nodes` that no member has count as asked and missing.
fn covered(
    list: &[Member],
    members: &[&Member],
    plan: &Plan,
    question: &Question,
    fanout: &MeshFanout,
    excluded: &BTreeMap<String, String>,
) -> Coverage {
    let to_all = plan.fragments.iter().any(|fragment| fragment.targets == Targets::All);
    let named = plan.nodes().unwrap_or_default();
    let turned_to = |name: &String| fanout.answered.contains(name) || fanout.missing.contains_key(name);
    let asked: Vec<&Member> = members
        .iter()
        .copied()
        .filter(|member| to_all || named.contains(&member.name) || turned_to(&member.name))
        .collect();
    let mut missing: Vec<Missing> = asked
        .iter()
        .filter_map(|member| {
            let reason = match fanout.missing.get(&member.name).or_else(|| excluded.get(&member.name)) {
                Some(reason) => reason.clone(),
                None if member.state == MemberState::Dead => "unreachable: not heard from lately (dead)".into(),
                None => return None,
            };
            Some(Missing { node: member.name.clone(), reason })
        })
        .collect();
    let share = {
        let rows = |member: &&&Member| member.facts.store_rows;
        let seen = asked.iter().filter(|member| missing.iter().all(|gone| gone.node != member.name));
        // Saturating: any node can claim any number.
        let sum = |rows: &mut dyn Iterator<Item = u64>| rows.fold(0, u64::saturating_add);
        // How many rows those of other cells have is not told that far.
        let is_known = asked.iter().all(|member| !member.seat.elsewhere);
        is_known
            .then(|| {
                row_share(
                    sum(&mut seen.map(|member| rows(&member))),
                    sum(&mut asked.iter().map(|member| rows(&member))),
                )
            })
            .flatten()
    };
    let mut unknown: Vec<&String> =
        question.nodes.iter().filter(|name| members.iter().all(|member| member.name != **name)).collect();
    unknown.sort();
    unknown.dedup();
    missing.extend(
        unknown
            .iter()
            .map(|name| Missing { node: (*name).clone(), reason: "unknown: no node of this name in the mesh".into() }),
    );
    missing.sort_by(|a, b| a.node.cmp(&b.node));
    let asked = asked.len() + unknown.len();
    let cut = if question.labels.is_empty() { None } else { unlabelled(list) };
    let nobody = nobody(list, members, &named, question);
    let notes = share.into_iter().chain(doubles(members.iter().copied())).chain(nobody).chain(cut).collect();
    Coverage { asked, answered: asked - missing.len(), missing, notes }
}

/// What to say of a question that no member has rows for: of labels that nobody has, and of `named`,
/// the names in the SQL's own conditions on `node`, those that nobody has. A slip of the pen must not
/// look like an empty answer.
fn nobody(list: &[Member], chosen: &[&Member], named: &[String], question: &Question) -> Vec<String> {
    let mut notes = Vec::new();
    if chosen.is_empty() && !question.labels.is_empty() && !list.is_empty() {
        let labels: Vec<String> = question.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let which = if question.nodes.is_empty() { "no node" } else { "none of the nodes in --nodes" };
        let labels = labels.join(" and ");
        notes.push(format!("{which} has the label {labels} (rankmesh nodes lists labels)"));
    }
    let unknown: Vec<&str> =
        named.iter().filter(|name| list.iter().all(|it| it.name != **name)).map(String::as_str).collect();
    if !unknown.is_empty() {
        notes.push(format!("no node is known of the name {} (rankmesh nodes lists them)", unknown.join(", ")));
    }
    notes
}

/// What to say to a question by label of members whose labels are not known here: they were too long
/// to be told to other cells.
pub fn unlabelled(list: &[Member]) -> Option<String> {
    let names: Vec<&str> =
        list.iter().filter(|it| it.facts.extra.contains_key(gossip::CUT)).map(|it| it.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "not asked, since their labels are too long to be known in other cells of the mesh: {}; ask them by --nodes, without --label",
            names.join(", ")
        )
    })
}

/// What to say of members that are two hosts with one identity: only one of them is in the answer.
pub fn doubles<'m>(members: impl IntoIterator<Item = &'m Member>) -> Vec<String> {
    let note = |member: &Member| {
        let (name, address, other) = (&member.name, member.address, member.double?);
        Some(format!(
            "{name} is two agents with one identity, at {address} and at {other}, and only the first was asked: a cloned \
             image? Remove the identity directory of one and let it join anew"
        ))
    };
    members.into_iter().filter_map(note).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_or_a_name_that_nobody_has_is_said() {
        let facts = gossip::NodeFacts { labels: [("rack".into(), "a".into())].into(), ..gossip::NodeFacts::default() };
        let list = [Member {
            name: "n1".into(),
            address: "127.0.0.1:1".parse().unwrap(),
            generation: 1,
            state: MemberState::Live,
            facts: facts.into(),
            is_self: true,
            double: None,
            seat: gossip::Seat::default(),
        }];
        let said = |label: Option<&str>, named: &[&str]| {
            let labels = label.map(|value| ("rack".to_owned(), value.to_owned())).into_iter().collect();
            let question = Question { labels, ..Question::default() };
            let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
            nobody(&list, &chosen(&list, &question), &named, &question)
        };
        assert_eq!(said(None, &[]), Vec::<String>::new());
        assert_eq!(said(Some("a"), &["n1"]), Vec::<String>::new());
        assert_eq!(said(Some("b"), &["n1"]), ["no node has the label rack=b (rankmesh nodes lists labels)"]);
        let unknown = "no node is known of the name n8, n9 (rankmesh nodes lists them)";
        assert_eq!(said(None, &["n1", "n8", "n9"]), [unknown]);
    }
}
