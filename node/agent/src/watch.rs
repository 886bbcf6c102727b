//! Sends the current state to each client that watches: at each change, at most twice a second, and
//! every two seconds as a sign of life.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::causes::Cause;
use ::standing::Key;
use explain::watched;
use gossip::Member;
use model::watch::{NodeNow, RankNow, WATCH_VERSION, Watched};
use model::{Coverage, LocalResponse, Missing, WatchQuestion};
use query::access::Caller;
use record::unix_now_ns;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use verdicts::Report;

use super::answer_sink::AnswerSink;
use super::asking::Asking;
use super::standing::{self, Current};
use super::{Shared, causes, own_state};

/// Time between two messages.
const EVERY: Duration = Duration::from_millis(500);
/// A state that has not changed is sent again after this.
const ALIVE: Duration = Duration::from_secs(2);
/// The cause of a verdict is looked for again after this.
const CAUSE_EVERY: Duration = Duration::from_secs(10);
/// Longest wait for it, and for a judge's rank table.
const PATIENCE: Duration = Duration::from_secs(5);
/// Another host's rank table is fetched this often, and, of large jobs, this often.
const TABLE_EVERY: Duration = Duration::from_millis(900);
const LARGE_TABLE_EVERY: Duration = Duration::from_secs(4);
const LARGE: usize = 1_024;
/// Ranks in one message: it has to fit into a frame.
const MOST_RANKS: usize = 16_384;

/// State of one watching client between messages.
#[derive(Default)]
struct Watcher {
    job: Option<u64>,
    /// The table that came last from another host, of a judge and a window.
    table: Option<(String, i64, Vec<RankNow>)>,
    fetched: Option<Instant>,
    cause: Option<(Key, Option<Cause>)>,
    looking: Option<(Key, JoinHandle<Option<Cause>>)>,
    looked: Option<Instant>,
}

/// Sends until the client closes the connection or `stop`.
pub(super) async fn watch(
    shared: &Arc<Shared>,
    question: WatchQuestion,
    caller: &Caller,
    to: &mut impl AnswerSink,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    if caller.access.viewer().is_some() {
        // Standing verdicts are of everybody's jobs.
        let message =
            "watching shows the ranks of all users: this agent lets you see your own processes only; ask for \
                       them with `rankmesh stragglers --since 1m`"
                .to_owned();
        return to.send(LocalResponse::failed(message)).await;
    }
    let (mut watcher, mut sent) = (Watcher::default(), None::<(Watched, Instant)>);
    loop {
        let now = watcher.now(shared, &question).await;
        let changed = sent.as_ref().is_none_or(|(before, at)| at.elapsed() >= ALIVE || !alike(before, &now));
        if changed {
            to.send(LocalResponse::Watch(serde_json::to_string(&now)?)).await?;
            sent = Some((now, Instant::now()));
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// Whether two states are equal apart from times.
fn alike(a: &Watched, b: &Watched) -> bool {
    let timeless = |of: &Watched| {
        let mut of = of.clone();
        (of.at_ns, of.own) = (0, None);
        of.job.iter_mut().chain(&mut of.jobs).for_each(|job| (job.age_ms, job.until_ns) = (0, 0));
        of.nodes.iter_mut().for_each(|node| (node.rows, node.span_ns) = (None, None));
        of
    };
    timeless(a) == timeless(b)
}

impl Watcher {
    async fn now(&mut self, shared: &Arc<Shared>, question: &WatchQuestion) -> Watched {
        standing::hear(shared).await;
        let all = shared.standing.all();
        let wanted = |current: &&Current| question.job.as_ref().is_none_or(|job| current.name.is(job));
        let shown = all.iter().find(wanted).cloned();
        let members = shared.coordinator.gossip.members();
        let own = shared.identity.node().to_string();
        let mut now = Watched { version: WATCH_VERSION, agent: own, at_ns: unix_now_ns(), ..Watched::default() };
        now.jobs = all.iter().map(job_now).collect();
        now.own = Some(own_state::own_state(shared));
        if self.job != shown.as_ref().map(|current| current.job) {
            *self = Self { job: shown.as_ref().map(|current| current.job), ..Self::default() };
        }
        let report = shown.as_ref().map(|current| Arc::clone(&current.standing.report));
        now.nodes = nodes(&members, report.as_deref());
        if let Some(current) = shown {
            let mut job = job_now(&current);
            job.cause = self.cause(shared, &current).await;
            (now.ranks, now.brief) = self.table(shared, &current).await;
            if now.ranks.len() > MOST_RANKS {
                let all = now.ranks.len();
                now.ranks.truncate(MOST_RANKS);
                now.brief = Some(format!("the {MOST_RANKS} worst of {all} ranks are listed: more do not fit"));
            }
            now.coverage = coverage(&current);
            now.job = Some(job);
        }
        now
    }

    /// The rank table: this host's, where it judges the job, else its judge's, fetched now and
    /// then.
    async fn table(&mut self, shared: &Shared, current: &Current) -> (Vec<RankNow>, Option<String>) {
        let own = shared.identity.node().to_string();
        if current.judge.is_empty() || current.judge == own {
            return (watched::ranks(&current.standing.report), None);
        }
        let known = self.table.as_ref().map_or(0, |(_, _, ranks)| ranks.len());
        let every = if known > LARGE { LARGE_TABLE_EVERY } else { TABLE_EVERY };
        let mut why = None;
        if self.fetched.is_none_or(|at| at.elapsed() >= every) {
            self.fetched = Some(Instant::now());
            let mut full = current.clone();
            match standing::with_full_report(shared, &mut full, Instant::now() + PATIENCE).await {
                Ok(()) => {
                    let ranks = watched::ranks(&full.standing.report);
                    self.table = Some((current.judge.clone(), full.standing.window, ranks));
                }
                Err(error) => why = Some(format!("{} did not give its rank table: {error}", current.judge)),
            }
        }
        match &self.table {
            Some((judge, _, ranks)) if *judge == current.judge && why.is_none() => (ranks.clone(), None),
            _ => {
                let why = why.unwrap_or_else(|| format!("{} has not given its rank table yet", current.judge));
                (watched::ranks(&current.standing.report), Some(why))
            }
        }
    }

    /// The cause of the verdict as it was found last; looked for between the pushes.
    async fn cause(&mut self, shared: &Arc<Shared>, current: &Current) -> Option<String> {
        let key = Key::of(&current.standing.report.verdict);
        if let Some((of, looking)) = self.looking.take_if(|(_, looking)| looking.is_finished())
            && let Ok(cause) = looking.await
        {
            self.cause = Some((of, cause));
        }
        let known = self.cause.as_ref().is_some_and(|(of, _)| *of == key);
        let due = !known || self.looked.is_none_or(|at| at.elapsed() >= CAUSE_EVERY);
        if self.looking.is_none() && due && !current.standing.report.verdict.named().is_empty() {
            let (shared, report) = (Arc::clone(shared), Arc::clone(&current.standing.report));
            let looking = tokio::spawn(async move {
                let asking = Asking {
                    coordinator: &shared.coordinator,
                    caller: &Caller::agent(),
                    deadline: Instant::now() + PATIENCE,
                    cancelled: &CancellationToken::new(),
                };
                causes::cause(asking, &report).await
            });
            (self.looking, self.looked) = (Some((key.clone(), looking)), Some(Instant::now()));
        }
        let (of, cause) = self.cause.as_ref()?;
        cause.as_ref().filter(|_| *of == key).map(|cause| cause.summary.clone())
    }
}

/// The members of a mesh, with the clocks that a report used.
fn nodes(members: &[Member], report: Option<&Report>) -> Vec<NodeNow> {
    let clocks: BTreeMap<&str, i64> = report
        .into_iter()
        .flat_map(|report| &report.evidence.clocks)
        .map(|(node, clock)| (node.as_str(), clock.bound_ns))
        .collect();
    let of = |member: &Member| NodeNow {
        name: member.name.clone(),
        state: if member.is_live() { "live" } else { "dead" }.to_owned(),
        recording: member.facts.capture.clone(),
        ranks: member.facts.ranks.clone(),
        rows: (!member.seat.elsewhere).then_some(member.facts.store_rows),
        span_ns: member.facts.store_span_ns,
        clock_bound_ns: clocks.get(member.name.as_str()).copied(),
        version: member.facts.version.clone(),
        is_self: member.is_self,
    };
    members.iter().map(of).collect()
}

fn job_now(current: &Current) -> model::watch::JobNow {
    let about = current.about();
    model::watch::JobNow {
        judge: about.judge.clone(),
        differ: about.differ,
        until_ns: about.window_end_ns,
        age_ms: about.age_ms,
        silent: about.silent.clone(),
        ..watched::job(&current.standing.report, Some(&current.name))
    }
}

/// Coverage of a job's standing verdict.
fn coverage(current: &Current) -> Coverage {
    let judged = &current.standing.report.coverage;
    let missing = judged.missing.iter();
    Coverage {
        asked: judged.asked,
        answered: judged.answered,
        missing: missing.map(|(node, reason)| Missing { node: node.clone(), reason: reason.clone() }).collect(),
        notes: judged.notes.clone(),
    }
}
