//! The standing verdicts of this agent: what its host's ranks did goes to the judges of their jobs,
//! as a judge it judges, and every agent knows the verdicts of each job's judges.
//!
//! What a verdict is made of, when a window can be judged and who judges is the pure
//! `standing`. Here: `feed` collects calls, `publish` closes windows and `outbox` sends
//! them, `boards` takes them in at a judge and `judging` judges (`by_slices`: of the stores), `kept` has what ranks did in the
//! last ten minutes, and `page` answers with it; `roster` knows who runs which job, `members`
//! follows the members and their verdicts, `clocks` follows the reference nodes' clocks,
//! `keep_clocks` keeps them in the store; `keep_stacks` keeps where the named ranks were,
//! `findings` writes findings and runs the operator's command. In a mesh of cells `elsewhere` brings
//! the verdicts of judges whose gossip does not come here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::wire::{JobWindows, Request, Response};
use parking_lot::{Mutex, RwLock};
use record::steady_now_ns;
use serde::Serialize;
use standing::{Held, JobName, JobVerdict, Key, Said, Standing, chosen, disagrees, has_ended, in_order};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use verdicts::Verdict;

use super::Shared;

mod boards;
mod by_slices;
mod clocks;
mod elsewhere;
mod feed;
mod findings;
mod full_report;
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
pub(super) use roster::JOBS;

pub(super) use elsewhere::hear;
pub(super) use feed::Feed;
pub(super) use findings::{TailNews, hook_is_ours};
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

/// Verdicts by judge.
type ByJudge = BTreeMap<String, Held>;

/// What the agent's tasks share of it.
#[derive(Debug, Default)]
pub struct StandingState {
    boards: boards::Boards,
    kept: kept::Kept,
    outbox: outbox::Outbox,
    clocks: clocks::ReferenceClocks,
    roster: RwLock<Arc<roster::Roster>>,
    /// The verdicts of this host as a judge, in full, by job.
    own: Mutex<BTreeMap<u64, Held>>,
    /// Those received from the other judges, brief, by job and judge.
    received: Mutex<BTreeMap<u64, ByJudge>>,
    elsewhere: elsewhere::Elsewhere,
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
    /// Whose verdict it is.
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
    /// It says something else than the verdict that is shown.
    pub disagrees: bool,
}

/// How the standing verdict came about.
#[derive(Debug, Serialize)]
pub struct About {
    /// The job's key, in hexadecimal.
    pub job: String,
    /// What the job is called.
    #[serde(flatten)]
    pub name: JobName,
    /// Whose verdict it is.
    pub judge: Option<String>,
    /// What each judge says.
    pub judges: Vec<JudgeVerdict>,
    /// A judge says something else of the same window, or for seconds.
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
    /// The verdicts that stand, by job: those of jobs that are not well first. Of a job's judges the
    /// one that `chosen` says.
    pub fn all(&self) -> Vec<Current> {
        let now_ns = steady_now_ns();
        let own = self.name.get().cloned().unwrap_or_default();
        let mut by_job = self.received.lock().clone();
        self.elsewhere.add_to(&mut by_job);
        for (job, held) in self.own.lock().iter() {
            by_job.entry(*job).or_default().insert(own.clone(), held.clone());
        }
        let mut all = Vec::new();
        for (job, mut verdicts) in by_job {
            verdicts.retain(|_, held| is_fresh(held, now_ns));
            let newest_ns = verdicts.values().map(|held| held.at_ns).max().unwrap_or(now_ns);
            verdicts.retain(|_, held| newest_ns.saturating_sub(held.at_ns) < BEHIND_NS);
            let silent = self.silent_judges(job);
            if verdicts.keys().any(|judge| !silent.contains(judge)) {
                verdicts.retain(|judge, _| !silent.contains(judge));
            }
            let names: Vec<String> =
                in_order(job, verdicts.keys().map(String::as_str)).into_iter().map(str::to_owned).collect();
            let held: Vec<Held> = names.iter().filter_map(|judge| verdicts.remove(judge)).collect();
            let said: Vec<Said> = held.iter().map(Held::said).collect();
            let mine = names.iter().position(|judge| *judge == own);
            let Some(shown) = chosen(&said, mine, now_ns) else { continue };
            let of_judge = |(at, judge): (usize, &String)| {
                JudgeVerdict::of(judge, &held[at].verdict.standing, disagrees(&said[shown], &said[at], now_ns))
            };
            let mut judges: Vec<JudgeVerdict> = names.iter().enumerate().map(of_judge).collect();
            // The one that is shown is asked first for more.
            judges[..=shown].rotate_right(1);
            let Held { verdict, at_ns: judged_ns, .. } = held[shown].clone();
            let judge = names[shown].clone();
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

    fn look_again(&self) {
        self.look.notify_one();
    }

    /// A judge's verdict came.
    fn receive(&self, judge: &str, verdict: JobVerdict, now_ns: i64) {
        let mut received = self.received.lock();
        let of_job = received.entry(verdict.job).or_default();
        let held = Held::after(of_job.get(judge), verdict, now_ns);
        of_job.insert(judge.to_owned(), held);
    }

    /// This host judged.
    fn judged(&self, verdict: JobVerdict, now_ns: i64) {
        let mut own = self.own.lock();
        let held = Held::after(own.get(&verdict.job), verdict, now_ns);
        own.insert(held.verdict.job, held);
    }

    /// Whether verdicts of a job come here by themselves.
    fn is_told(&self, job: u64) -> bool {
        self.own.lock().contains_key(&job) || self.received.lock().contains_key(&job)
    }

    /// Forgets the verdicts of those that publish none any more.
    fn keep_judges(&self, publishes: impl Fn(&str, u64, &Held) -> bool) {
        let mut received = self.received.lock();
        received.iter_mut().for_each(|(job, judges)| judges.retain(|judge, held| publishes(judge, *job, held)));
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

/// Whether a verdict is current still.
fn is_fresh(held: &Held, now_ns: i64) -> bool {
    now_ns.saturating_sub(held.at_ns) < FRESH_NS
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
    fn of(judge: &str, standing: &Standing, disagrees: bool) -> Self {
        Self {
            judge: judge.to_owned(),
            verdict: Key::name(&standing.report.verdict),
            window_end_ns: standing.end_ns(),
            disagrees,
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
            judge: Some(self.judge.clone()),
            judges: self.judges.clone(),
            differ: self.judges.iter().any(|judge| judge.disagrees),
            window_end_ns: self.standing.end_ns(),
            reference: self.standing.reference.clone(),
            age_ms: self.standing.age_ns.saturating_add(since_ns).max(0) / 1_000_000,
            heard: self.standing.heard,
            silent: self.standing.silent.clone(),
        }
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

/// Starts the tasks; other findings are handed to the operator's command by what is returned.
pub(super) fn start(
    shared: &Arc<Shared>,
    on_finding: Option<String>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> mpsc::Sender<TailNews> {
    let _ = shared.standing.name.set(shared.identity.node().to_string());
    let (news, changes) = mpsc::channel(findings::WAITING);
    tasks.spawn(publish::publish(Arc::clone(shared), stop.clone()));
    tasks.spawn(judging::judge(Arc::clone(shared), stop.clone()));
    tasks.spawn(members::follow(Arc::clone(shared), on_finding.is_some(), news, stop.clone()));
    if on_finding.is_some() {
        tasks.spawn(elsewhere::keep_hearing(Arc::clone(shared), stop.clone()));
    }
    tasks.spawn(clocks::keep_fresh(Arc::clone(shared), stop.clone()));
    tasks.spawn(keep_clocks::keep(Arc::clone(shared), stop.clone()));
    tasks.spawn(findings::publish(Arc::clone(shared), on_finding.clone(), changes, stop.clone()));
    let (of_tail, tail_news) = mpsc::channel(findings::WAITING);
    tasks.spawn(findings::hand_over(Arc::clone(shared), on_finding, tail_news, stop.clone()));
    of_tail
}
