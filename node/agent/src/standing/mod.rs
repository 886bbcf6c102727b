//! The standing verdicts of this agent: what its host's ranks did goes to the judges of their jobs,
//! as a judge it judges, and every agent knows the verdicts of each job's judges.
//!
//! What a verdict is made of, when a window can be judged and who judges is the pure
//! `standing`. Here: `feed` collects calls, `publish` closes windows and `outbox` sends
//! them, `boards` takes them in at a judge and `judging` judges, `kept` has what ranks did in the
//! last ten minutes, and `page` answers with it; `roster` knows who runs which job, `members`
//! follows the members and their verdicts, `clocks` follows the reference nodes' clocks,
//! `keep_clocks` keeps them in the store; `keep_stacks` keeps where the named ranks were,
//! `findings` writes findings and runs the operator's command. `gossiped` is the way of agents of
//! an earlier release.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use model::wire::{JobWindows, Request, Response};
use parking_lot::{Mutex, RwLock};
use record::steady_now_ns;
use serde::Serialize;
use standing::{JobName, JobVerdict, Key, Standing, has_ended, in_order};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use verdicts::Verdict;

use super::Shared;

mod boards;
mod clocks;
mod feed;
mod findings;
mod full_report;
mod gossiped;
mod judging;
mod keep_clocks;
mod keep_stacks;
mod kept;
mod members;
mod money;
mod outbox;
mod page;
mod publish;
mod repeat;
mod roster;

pub(super) use feed::Feed;
pub(super) use findings::hook_is_ours;
pub(super) use full_report::{full_report, with_full_report};
pub(super) use page::{page, page_of};
pub use publish::send_windows;
/// The clock by which windows are counted, nanoseconds.
pub use record::steady_now_ns as now_ns;

/// Most bytes of one digest.
const LARGEST: usize = 8_000;
/// And of one statement of where time went.
const LARGEST_TIMES: usize = 4_000;
/// A verdict that was not published again for so long is not current any more.
const FRESH_NS: i64 = 10_000_000_000;
/// And where another judge's of the job is newer, after so long.
const BEHIND_NS: i64 = 5_000_000_000;

/// Verdicts by judge, with when they came.
type ByJudge = BTreeMap<String, (JobVerdict, i64)>;

/// What the agent's tasks share of it.
#[derive(Debug, Default)]
pub struct StandingState {
    boards: boards::Boards,
    kept: kept::Kept,
    outbox: outbox::Outbox,
    clocks: clocks::ReferenceClocks,
    roster: RwLock<Arc<roster::Roster>>,
    /// A live member is of an earlier release.
    mixed: AtomicBool,
    /// The verdicts of this host as a judge, in full, by job; with when they were made, on its
    /// steady clock.
    own: Mutex<BTreeMap<u64, (JobVerdict, i64)>>,
    /// Those received from the other judges, brief, by job and judge; with when they came.
    received: Mutex<BTreeMap<u64, ByJudge>>,
    /// The members are to be looked at again.
    look: Notify,
    name: std::sync::OnceLock<String>,
    published_bytes: AtomicU64,
    verdict_bytes: AtomicU64,
}

/// The verdict that stands on a job.
#[derive(Debug, Clone)]
pub struct Current {
    /// The job ([`digest::time_use::job_key`]).
    pub job: u64,
    /// What it is called.
    pub name: JobName,
    /// Whose verdict it is; empty where every agent judges (next to agents of an earlier release).
    pub judge: String,
    /// It; brief, where the judge is another host.
    pub standing: Standing,
    /// When it was judged or came, on this host's steady clock.
    pub judged_ns: i64,
    /// What each judge says, the first first.
    pub judges: Vec<JudgeVerdict>,
}

/// What one judge says of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JudgeVerdict {
    /// The judge.
    pub judge: String,
    /// Kind of its verdict.
    pub verdict: &'static str,
    /// End of its window, Unix nanoseconds of the reference node's wall clock.
    pub window_end_ns: i64,
    #[serde(skip)]
    window: (Option<String>, i64),
    #[serde(skip)]
    key: Key,
}

/// How the standing verdict came about.
#[derive(Debug, Serialize)]
pub struct About {
    /// The job's key, in hexadecimal.
    pub job: String,
    /// What the job is called.
    #[serde(flatten)]
    pub name: JobName,
    /// Whose verdict it is; null next to agents of an earlier release, where each judges.
    pub judge: Option<String>,
    /// What each judge says.
    pub judges: Vec<JudgeVerdict>,
    /// Two judges say different things of one window.
    pub differ: bool,
    /// End of the window, Unix nanoseconds of the reference node's wall clock.
    pub window_end_ns: i64,
    /// The node to whose clock all times are aligned.
    pub reference: Option<String>,
    /// Time since the window ended, milliseconds.
    pub age_ms: i64,
    /// Nodes whose digest of the window has come.
    pub heard: usize,
    /// Nodes with ranks whose digest has not come.
    pub silent: Vec<String>,
}

impl StandingState {
    /// The verdicts that stand, by job: those of jobs that are not well first.
    pub fn all(&self) -> Vec<Current> {
        let now_ns = steady_now_ns();
        let is_fresh = |at_ns: i64| now_ns.saturating_sub(at_ns) < FRESH_NS;
        let own = self.name.get().cloned().unwrap_or_default();
        let mut by_job: BTreeMap<u64, ByJudge> = BTreeMap::new();
        if !self.is_mixed() {
            by_job.clone_from(&self.received.lock());
        }
        for (job, (verdict, at_ns)) in self.own.lock().iter() {
            by_job.entry(*job).or_default().insert(own.clone(), (verdict.clone(), *at_ns));
        }
        let mut all = Vec::new();
        for (job, mut verdicts) in by_job {
            verdicts.retain(|_, (_, at_ns)| is_fresh(*at_ns));
            let newest_ns = verdicts.values().map(|(_, at_ns)| *at_ns).max().unwrap_or(now_ns);
            verdicts.retain(|_, (_, at_ns)| newest_ns.saturating_sub(*at_ns) < BEHIND_NS);
            let silent = self.silent_judges(job);
            if verdicts.keys().any(|judge| !silent.contains(judge)) {
                verdicts.retain(|judge, _| !silent.contains(judge));
            }
            let names: Vec<String> =
                in_order(job, verdicts.keys().map(String::as_str)).into_iter().map(str::to_owned).collect();
            let of_judge = |judge: &String| Some(JudgeVerdict::of(judge, &verdicts.get(judge)?.0.standing));
            let judges: Vec<JudgeVerdict> = names.iter().filter_map(of_judge).collect();
            let Some((judge, (verdict, judged_ns))) = names.first().and_then(|judge| verdicts.remove_entry(judge))
            else {
                continue;
            };
            let judge = if self.is_mixed() { String::new() } else { judge };
            all.push(Current { job, name: verdict.name, judge, standing: verdict.standing, judged_ns, judges });
        }
        all.sort_by_key(|current| rank(&current.standing.report.verdict));
        all
    }

    /// The verdict on a job that is not well, where there is one, else on any; none where none
    /// stands.
    pub fn current(&self) -> Option<Current> {
        self.all().into_iter().next()
    }

    /// The judges of one of this host's jobs that do not answer it.
    pub fn silent_judges(&self, job: u64) -> BTreeSet<String> {
        self.outbox.suspects(job, tokio::time::Instant::now())
    }

    /// Takes in, as a judge, what a host sends of its ranks.
    pub(super) fn answer(&self, node: &str, windows: &JobWindows) -> Response {
        match self.boards.receive(node, windows) {
            Ok(received) => Response::WindowsReceived(received),
            Err(why) => Response::Unsupported(why),
        }
    }

    fn roster(&self) -> Arc<roster::Roster> {
        Arc::clone(&self.roster.read())
    }

    fn set_roster(&self, roster: &roster::Roster) {
        *self.roster.write() = Arc::new(roster.clone());
    }

    fn is_mixed(&self) -> bool {
        self.mixed.load(Ordering::Relaxed)
    }

    /// Whether that is another than before.
    fn set_mixed(&self, mixed: bool) -> bool {
        self.mixed.swap(mixed, Ordering::Relaxed) != mixed
    }

    fn look_again(&self) {
        self.look.notify_one();
    }

    /// A judge's verdict came.
    fn receive(&self, judge: &str, verdict: JobVerdict, now_ns: i64) {
        self.received.lock().entry(verdict.job).or_default().insert(judge.to_owned(), (verdict, now_ns));
    }

    /// Forgets the verdicts of those that publish none any more.
    fn keep_judges(&self, publishes: impl Fn(&str, u64) -> bool) {
        let mut received = self.received.lock();
        received.iter_mut().for_each(|(job, judges)| judges.retain(|judge, _| publishes(judge, *job)));
        received.retain(|_, judges| !judges.is_empty());
    }

    fn count_published(&self, bytes: usize) {
        self.published_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn count_verdict(&self, bytes: usize) {
        self.verdict_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes of digests that this agent has made; each goes to every judge of its job.
    pub fn published_bytes(&self) -> u64 {
        self.published_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of verdicts that this agent has gossiped.
    pub fn verdict_bytes(&self) -> u64 {
        self.verdict_bytes.load(Ordering::Relaxed)
    }

    /// Windows of this host that went by without the confirmation of a judge.
    pub fn lost_windows(&self) -> u64 {
        self.outbox.lost()
    }
}

/// Jobs that hang come first, those that are well behind them, and last those that have ended.
fn rank(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Hang(_) => 0,
        Verdict::Rank { .. } => 1,
        Verdict::Network(_) => 2,
        Verdict::StageImbalance { .. } | Verdict::DataImbalance { .. } | Verdict::WorkImbalance { .. } => 3,
        Verdict::None => 4,
        Verdict::Unknown { .. } if has_ended(verdict) => 6,
        Verdict::Unknown { .. } => 5,
    }
}

impl JudgeVerdict {
    fn of(judge: &str, standing: &Standing) -> Self {
        Self {
            judge: judge.to_owned(),
            verdict: Key::name(&standing.report.verdict),
            window_end_ns: standing.end_ns(),
            window: (standing.reference.clone(), standing.window),
            key: Key::of(&standing.report.verdict),
        }
    }
}

impl Current {
    /// How it came about.
    #[must_use]
    pub fn about(&self) -> About {
        let since_ns = steady_now_ns().saturating_sub(self.judged_ns);
        About {
            job: format!("{:016x}", self.job),
            name: self.name.clone(),
            judge: Some(self.judge.clone()).filter(|judge| !judge.is_empty()),
            judges: self.judges.clone(),
            differ: self.differ(),
            window_end_ns: self.standing.end_ns(),
            reference: self.standing.reference.clone(),
            age_ms: self.standing.age_ns.saturating_add(since_ns).max(0) / 1_000_000,
            heard: self.standing.heard,
            silent: self.standing.silent.clone(),
        }
    }

    /// Whether two judges say different things of one window.
    fn differ(&self) -> bool {
        let mut by_window: BTreeMap<&(Option<String>, i64), BTreeSet<&Key>> = BTreeMap::new();
        for verdict in &self.judges {
            by_window.entry(&verdict.window).or_default().insert(&verdict.key);
        }
        by_window.values().any(|keys| keys.len() > 1)
    }

    /// Whether the job is well, as far as is known.
    #[must_use]
    pub fn is_well(&self) -> bool {
        rank(&self.standing.report.verdict) > 3
    }
}

/// A member's answer to a request that has one.
///
/// # Errors
/// It is no member, or does not answer in time; in words.
async fn ask(
    shared: &Shared,
    host: &str,
    request: Request,
    deadline: tokio::time::Instant,
) -> Result<Response, String> {
    let list = shared.coordinator.gossip.list();
    let member = list.iter().find(|member| member.name == host).ok_or("it is no member any more")?;
    let name = host.parse().map_err(|error| format!("{error}"))?;
    let answer = shared.mesh.ask(&name, member.address, request, deadline).await;
    let mut answer = answer.map_err(|error| error.to_string())?;
    answer.next().await.map_err(|error| error.to_string())?.ok_or_else(|| "no answer".to_owned())
}

/// The gossip key of a job's verdict.
fn verdicts_key(job: u64) -> String {
    format!("v{job:016x}")
}

/// The job of such a key.
fn verdicts_job(key: &str) -> Option<u64> {
    u64::from_str_radix(key.strip_prefix('v').filter(|hex| hex.len() == 16)?, 16).ok()
}

/// Starts the tasks.
pub(super) fn start(
    shared: &Arc<Shared>,
    on_finding: Option<String>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) {
    let _ = shared.standing.name.set(shared.identity.node().to_string());
    let (news, changes) = mpsc::channel(findings::WAITING);
    tasks.spawn(publish::publish(Arc::clone(shared), stop.clone()));
    tasks.spawn(judging::judge(Arc::clone(shared), stop.clone()));
    tasks.spawn(members::follow(Arc::clone(shared), news, stop.clone()));
    tasks.spawn(clocks::keep_fresh(Arc::clone(shared), stop.clone()));
    tasks.spawn(keep_clocks::keep(Arc::clone(shared), stop.clone()));
    tasks.spawn(findings::publish(Arc::clone(shared), on_finding, changes, stop.clone()));
}
