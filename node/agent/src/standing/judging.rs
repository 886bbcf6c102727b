//! Judges the jobs whose judge this host is, and publishes their verdicts by gossip.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use record::{steady_now_ns, unix_now_ns};
use standing::{JobVerdict, Judge, Key, NO_JOB};
use tokio_util::sync::CancellationToken;

use super::super::Shared;
use super::by_slices::Slices;
use super::kept::Measured;
use super::verdicts_key;

/// What came is looked at this often at most.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// And at least: a window is also judged when its grace is over.
const LOOK_AT_LEAST: Duration = Duration::from_millis(250);
/// The same where there is no job: the first window of one comes with news.
const LOOK_WITHOUT_JOBS: Duration = Duration::from_secs(2);
/// A verdict that is the same as before is published again after so long.
const AGAIN: Duration = Duration::from_secs(2);
/// A host that became a job's judge judges once every host of the job has sent it what it keeps,
/// and after so long in any case.
const WARM_UP: Duration = Duration::from_millis(600);

/// What a judge keeps of one job.
struct Duty {
    since: Instant,
    judge: Judge,
    slices: Slices,
    published: Option<(Key, Instant)>,
}

/// Judges until `stop`.
pub(super) async fn judge(shared: Arc<Shared>, stop: CancellationToken) {
    let mut duties: BTreeMap<u64, Duty> = BTreeMap::new();
    let mut pace = tokio::time::interval(LOOK_EVERY);
    let mut least = LOOK_AT_LEAST;
    loop {
        tokio::select! {
            () = shared.standing.boards.news.notified() => {}
            () = tokio::time::sleep(least) => {}
            () = stop.cancelled() => return,
        }
        pace.tick().await;
        let standing = &shared.standing;
        let roster = standing.roster();
        // With the judges that this host suspects, which count as none.
        let mut jobs: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
        let active = standing.boards.active(steady_now_ns());
        least = if active.is_empty() { LOOK_WITHOUT_JOBS } else { LOOK_AT_LEAST };
        for job in active {
            let suspects = standing.outbox.suspects(job, Instant::now().into());
            jobs.extend(roster.judges_here(job, &suspects).then_some((job, suspects)));
        }
        let over: Vec<u64> = duties.keys().filter(|job| !jobs.contains_key(job)).copied().collect();
        standing.kept.forget(unix_now_ns());
        for job in over {
            if let Some(mut duty) = duties.remove(&job) {
                withdraw(&shared, job, &mut duty).await;
            }
        }
        for (job, suspects) in jobs {
            let new =
                || Duty { since: Instant::now(), judge: Judge::default(), slices: Slices::default(), published: None };
            let duty = duties.entry(job).or_insert_with(|| {
                tracing::debug!("this host judges job {job:016x} now");
                new()
            });
            let Some(board) = standing.boards.board(job) else { continue };
            let unknown = |host: &str| !suspects.contains(host) && !board.knows_of(host);
            if duty.since.elapsed() < WARM_UP && roster.hosts(job).any(unknown) {
                continue;
            }
            let now_ns = steady_now_ns();
            // (Of which job nobody knows, nobody can ask the stores for.)
            if board.is_in_slices(now_ns) && job != NO_JOB {
                if roster.is_first_judge(job, &suspects) {
                    judge_slices(&shared, job, duty, &stop).await;
                } else {
                    withdraw(&shared, job, duty).await;
                }
                continue;
            }
            duty.slices = Slices::default();
            // Most of what comes completes no window: it wakes no other thread.
            if !duty.judge.is_due(&board, now_ns) {
                continue;
            }
            let mut judge = std::mem::take(&mut duty.judge);
            let judged = tokio::task::spawn_blocking(move || {
                let standing = judge.judge(&board, now_ns);
                let measured = standing.as_ref().and_then(|standing| {
                    let (reference, wall_ahead_ns) = (standing.reference.clone(), standing.wall_ahead_ns);
                    Some(Measured { found: judge.rank_windows(&board)?, reference, wall_ahead_ns })
                });
                (standing, measured, judge)
            });
            let Ok((judged, measured, judge)) = judged.await else { continue };
            duty.judge = judge;
            if let Some(measured) = measured {
                standing.kept.add(job, measured);
            }
            let Some(judged) = judged else { continue };
            let verdict = JobVerdict { job, name: shared.recording.feed().job_name(job), standing: judged };
            publish(&shared, &verdict, &mut duty.published).await;
            standing.judged(verdict, now_ns);
            standing.look_again();
        }
        pace.reset();
    }
}

/// Publishes no verdict of a job any more.
async fn withdraw(shared: &Shared, job: u64, duty: &mut Duty) {
    duty.slices = Slices::default();
    shared.standing.own.lock().remove(&job);
    shared.standing.elsewhere.publish(job, None);
    if duty.published.take().is_some() {
        shared.coordinator.gossip.publish(verdicts_key(job), "").await;
    }
}

/// Judges a job whose calls are recorded in time slices.
async fn judge_slices(shared: &Arc<Shared>, job: u64, duty: &mut Duty, stop: &CancellationToken) {
    let standing = &shared.standing;
    let (name, roster) = (shared.recording.feed().job_name(job), standing.roster());
    let hosts = roster.hosts_by_job().get(&job).cloned().unwrap_or_default();
    let Some((mut judged, measured)) = duty.slices.look(shared, (job, &name), &hosts, stop) else { return };
    if let Some(measured) = measured {
        standing.kept.add(job, measured);
    }
    judged.miss(&roster.dead_hosts(job));
    let verdict = JobVerdict { job, name, standing: judged };
    if publish(shared, &verdict, &mut duty.published).await {
        standing.judged(verdict, steady_now_ns());
        standing.look_again();
    }
}

/// Gossips a verdict that is another than the one before, or some time after it; whether it was.
async fn publish(shared: &Shared, verdict: &JobVerdict, before: &mut Option<(Key, Instant)>) -> bool {
    let key = Key::of(&verdict.standing.report.verdict);
    if before.as_ref().is_some_and(|(known, at)| *known == key && at.elapsed() < AGAIN) {
        return false;
    }
    let Some(text) = verdict.text() else {
        tracing::warn!("a verdict is too long to be published: {key:?}");
        return false;
    };
    tracing::debug!("job {:016x} is judged: {key:?}", verdict.job);
    shared.standing.count_verdict(text.len());
    shared.standing.elsewhere.publish(verdict.job, Some(text.clone()));
    shared.coordinator.gossip.publish(verdicts_key(verdict.job), text).await;
    *before = Some((key, Instant::now()));
    true
}
