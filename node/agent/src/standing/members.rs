//! Follows what members publish: who runs which job, and the verdicts of its judges; and passes
//! changes of these on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gossip::Member;
use record::steady_now_ns;
use standing::{Change, JobVerdict, NO_JOB};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::Shared;
use super::gossiped::Gossiped;
use super::roster::Roster;
use super::{Current, verdicts_job};

/// Members are looked at this often at most.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// And at least.
const LOOK_AT_LEAST: Duration = Duration::from_millis(500);

/// Follows the members until `stop`.
pub(super) async fn follow(shared: Arc<Shared>, news: mpsc::Sender<Current>, stop: CancellationToken) {
    let own = shared.identity.node().to_string();
    let mut members = shared.coordinator.gossip.watch();
    let (mut gossiped, mut roster) = (Gossiped::default(), Roster::default());
    let mut read: BTreeMap<(String, u64), String> = BTreeMap::new();
    let mut changes: BTreeMap<u64, Change> = BTreeMap::new();
    let mut pace = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            changed = members.changed() => if changed.is_err() { return },
            () = shared.standing.look.notified() => {}
            () = tokio::time::sleep(LOOK_AT_LEAST) => {}
            () = stop.cancelled() => return,
        }
        pace.tick().await;
        let list = Arc::clone(&members.borrow_and_update());
        let standing = &shared.standing;
        let now = Instant::now();
        roster.update(&own, &standing.boards.jobs(), &list, now);
        let mixed = roster.is_mixed(now);
        if standing.set_mixed(mixed) {
            // What lies there is of other jobs.
            standing.boards.clear();
        }
        if mixed {
            gossiped.receive(&shared, &list);
        }
        standing.boards.members(&roster.presence, roster.hosts_by_job());
        follow_clocks(&shared, &own, &roster, mixed);
        standing.set_roster(&roster);
        receive_verdicts(&shared, &list, &mut read);
        let current = standing.all();
        changes.retain(|job, _| current.iter().any(|current| current.job == *job));
        for current in current {
            if changes.entry(current.job).or_default().is_news(&current.standing.report.verdict)
                && let Err(mpsc::error::TrySendError::Full(current)) = news.try_send(current)
            {
                let sentence = explain::watched::sentence(&current.standing.report);
                tracing::warn!("a change of the verdict was not reported, too many wait: {sentence}");
            }
        }
        pace.reset();
    }
}

/// Follows the clocks of the reference nodes of this host's jobs.
fn follow_clocks(shared: &Shared, own: &str, roster: &Roster, mixed: bool) {
    let standing = &shared.standing;
    let references: BTreeSet<String> = if mixed {
        let board = standing.boards.board(NO_JOB);
        board.iter().filter_map(|board| board.reference(steady_now_ns())).map(str::to_owned).collect()
    } else {
        standing.boards.jobs().into_iter().filter_map(|job| roster.reference(job)).map(str::to_owned).collect()
    };
    standing.clocks.follow(&references.into_iter().filter(|reference| reference != own).collect());
}

/// Takes in the verdicts that live members publish as judges; `read` are the texts that were read.
fn receive_verdicts(shared: &Shared, list: &[Member], read: &mut BTreeMap<(String, u64), String>) {
    let mut published: BTreeSet<(String, u64)> = BTreeSet::new();
    for member in list.iter().filter(|member| member.is_live() && !member.is_self) {
        for (name, text) in member.facts.extra.range("v".to_owned().."w".to_owned()) {
            let Some(job) = verdicts_job(name).filter(|_| !text.is_empty()) else { continue };
            let key = (member.name.clone(), job);
            published.insert(key.clone());
            if read.get(&key) == Some(text) {
                continue;
            }
            tracing::debug!("{} published its verdict of job {job:016x}", member.name);
            read.insert(key, text.clone());
            match JobVerdict::read(text) {
                // The verdict must be of the job whose key it is published under.
                Ok(verdict) if verdict.job == job => shared.standing.receive(&member.name, verdict, steady_now_ns()),
                Ok(_) => tracing::debug!("{} published one job's verdict as another's", member.name),
                Err(why) => tracing::debug!("a verdict of {}: {why}", member.name),
            }
        }
    }
    read.retain(|key, _| published.contains(key));
    shared.standing.keep_judges(|judge, job| published.contains(&(judge.to_owned(), job)));
}
