//! What this host's ranks did, on its way to the judges of their jobs.
//!
//! A job's last windows are kept until a judge has confirmed them; each judge is sent what it has
//! not, one request at a time. So one that is slow gets several windows at once, and one that is
//! new all that are kept: it can judge at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::wire::{JobWindows, Request, Response, WindowDigest, WindowsReceived};
use parking_lot::Mutex;
use standing::LONG_LOOKBACK;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::Shared;
use super::elsewhere;

/// Most bytes kept of one job. At least one window is.
const KEPT_BYTES: usize = 64 * 1024;
/// Windows of its own by which a host numbers its calls.
const SENT: usize = 17;
/// A judge that does not answer for so long is asked again with the next window.
const PATIENCE: Duration = Duration::from_secs(2);
/// A judge that has confirmed nothing for so long is taken for dead, and the next takes its place,
/// before the failure detector says so. It is sent to all the same. Two windows, less what their
/// times scatter by: at a second, every other judge was suspected a window later.
const SUSPECTED_AFTER: Duration = Duration::from_millis(900);

/// The windows to be sent, by job.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    jobs: Mutex<BTreeMap<u64, Job>>,
    /// Windows that were never confirmed by a judge of their time.
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct Job {
    windows: BTreeMap<i64, WindowDigest>,
    judges: BTreeMap<String, Judge>,
    /// What the first judge answered that the host needs.
    needs: WindowsReceived,
}

#[derive(Debug, Default)]
struct Judge {
    confirmed: BTreeSet<i64>,
    is_asked: bool,
    /// Since when it has confirmed nothing of what it was sent.
    silent_since: Option<Instant>,
    /// The number of the last verdict of it that came with an answer.
    verdict: u64,
}

impl Job {
    fn bytes(&self) -> usize {
        self.windows.values().map(|window| window.digest.len() + window.times.len()).sum()
    }

    /// What a judge has not confirmed.
    fn unconfirmed(&self, judge: &str) -> Vec<WindowDigest> {
        let confirmed = self.judges.get(judge).map(|judge| &judge.confirmed);
        let is_open = |window: &i64| confirmed.is_none_or(|confirmed| !confirmed.contains(window));
        self.windows.iter().filter(|(window, _)| is_open(window)).map(|(_, digest)| digest.clone()).collect()
    }
}

impl Outbox {
    /// Judges of a job of which this host has received nothing for a while.
    pub(super) fn suspects(&self, job: u64, now: Instant) -> BTreeSet<String> {
        let jobs = self.jobs.lock();
        let silent = |since: Instant| now.saturating_duration_since(since) >= SUSPECTED_AFTER;
        let judges = jobs.get(&job).into_iter().flat_map(|job| &job.judges);
        judges.filter(|(_, judge)| judge.silent_since.is_some_and(silent)).map(|(name, _)| name.clone()).collect()
    }

    /// Takes in a window of a job, which goes to these hosts now; those of them that are not being
    /// asked.
    pub(super) fn add(&self, job: u64, window: WindowDigest, judges: &[&str]) -> Vec<String> {
        let mut jobs = self.jobs.lock();
        let job = jobs.entry(job).or_default();
        job.windows.insert(window.window, window);
        job.judges.retain(|judge, _| judges.contains(&judge.as_str()));
        for judge in judges {
            job.judges.entry((*judge).to_owned()).or_default();
        }
        let newest = job.windows.last_key_value().map_or(0, |(window, _)| *window);
        while let Some((&oldest, _)) = job.windows.first_key_value()
            && (oldest <= newest - LONG_LOOKBACK || job.bytes() > KEPT_BYTES && job.windows.len() > 1)
        {
            job.windows.remove(&oldest);
            let mut unconfirmed = false;
            job.judges.values_mut().for_each(|judge| unconfirmed |= !judge.confirmed.remove(&oldest));
            if unconfirmed {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        job.judges.iter().filter(|(_, judge)| !judge.is_asked).map(|(name, _)| name.clone()).collect()
    }

    /// Only these jobs go on.
    pub(super) fn retain(&self, jobs: &BTreeSet<u64>) {
        self.jobs.lock().retain(|job, _| jobs.contains(job));
    }

    /// Windows that went by without a judge's confirmation.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// What the first judges of the jobs answered last that this host needs.
    pub(super) fn needs(&self) -> Vec<WindowsReceived> {
        self.jobs.lock().values().map(|job| job.needs.clone()).collect()
    }

    /// The digests of this host's last windows.
    pub(super) fn sent(&self) -> Vec<Vec<u8>> {
        let jobs = self.jobs.lock();
        let digests = jobs.values().flat_map(|job| job.windows.values().rev().take(SENT));
        digests.map(|window| window.digest.clone()).filter(|digest| !digest.is_empty()).collect()
    }

    /// What a judge has not confirmed; it counts as asked from now on.
    fn begin(&self, job: u64, judge: &str, now: Instant) -> Vec<WindowDigest> {
        let mut jobs = self.jobs.lock();
        let Some(job) = jobs.get_mut(&job) else { return Vec::new() };
        if let Some(judge) = job.judges.get_mut(judge) {
            judge.is_asked = true;
            judge.silent_since.get_or_insert(now);
        }
        job.unconfirmed(judge)
    }

    /// A judge has received these windows, or has not.
    fn end(&self, job: u64, judge: &str, windows: &[i64], received: Option<&WindowsReceived>) {
        let mut jobs = self.jobs.lock();
        let Some(judge) = jobs.get_mut(&job).and_then(|job| job.judges.get_mut(judge)) else { return };
        judge.is_asked = false;
        if let Some(received) = received {
            judge.silent_since = None;
            if received.anew {
                judge.confirmed.clear();
            }
            judge.confirmed.extend(windows);
        }
    }

    /// The number of the last verdict that came with a judge's answers; 0 where none did.
    fn verdict_of(&self, job: u64, judge: &str) -> u64 {
        self.jobs.lock().get(&job).and_then(|job| job.judges.get(judge)).map_or(0, |judge| judge.verdict)
    }

    fn keep_verdict(&self, job: u64, judge: &str, number: u64) {
        if let Some(judge) = self.jobs.lock().get_mut(&job).and_then(|job| job.judges.get_mut(judge)) {
            judge.verdict = number;
        }
    }

    fn keep_needs(&self, job: u64, needs: WindowsReceived) {
        if let Some(job) = self.jobs.lock().get_mut(&job) {
            job.needs = needs;
        }
    }
}

/// Sends a judge what it has not confirmed, and keeps its answer. `is_first`: it is also asked for
/// what this host needs of others.
pub(super) async fn send(shared: Arc<Shared>, job: u64, judge: String, is_first: bool, stop: CancellationToken) {
    let outbox = &shared.standing.outbox;
    let windows = outbox.begin(job, &judge, Instant::now());
    let numbers: Vec<i64> = windows.iter().map(|window| window.window).collect();
    let lanes = if is_first { shared.recording.feed().unnumbered() } else { BTreeSet::new() };
    let unnumbered = lanes.into_iter().map(|(comm, func)| (comm, func.to_string())).collect();
    let in_slices = shared.recording.feed().in_slices(job);
    let request = JobWindows { job, windows, unnumbered, in_slices };
    let own = shared.identity.node().to_string();
    let received = if judge == own {
        shared.standing.boards.receive(&own, &request)
    } else {
        let far = shared.standing.roster().is_elsewhere(&judge);
        let asked =
            async { if far { ask_far(&shared, &judge, request).await } else { ask(&shared, &judge, request).await } };
        tokio::select! {
            received = asked => received,
            () = stop.cancelled() => return,
        }
    };
    if let Err(why) = &received {
        tracing::debug!("windows to {judge}: {why}");
    }
    outbox.end(job, &judge, &numbers, received.as_ref().ok());
    if let Ok(received) = received
        && is_first
    {
        outbox.keep_needs(job, received);
    }
}

async fn ask(shared: &Shared, judge: &str, request: JobWindows) -> Result<WindowsReceived, String> {
    match super::ask(shared, judge, Request::Windows(request), Instant::now() + PATIENCE).await? {
        Response::WindowsReceived(received) => Ok(received),
        other => Err(other.summary()),
    }
}

/// The same of a judge in another cell, whose verdict comes with the answer.
async fn ask_far(shared: &Shared, judge: &str, windows: JobWindows) -> Result<WindowsReceived, String> {
    let (job, outbox) = (windows.job, &shared.standing.outbox);
    let request = Request::FarWindows { windows, has: outbox.verdict_of(job, judge) };
    match super::ask(shared, judge, request, Instant::now() + PATIENCE).await? {
        Response::FarWindows { received, verdict } => {
            if let Some(verdict) = verdict {
                outbox.keep_verdict(job, judge, verdict.number);
                match elsewhere::read(&verdict, &[job]) {
                    Ok((read, at_ns)) => {
                        shared.standing.receive(judge, read, at_ns);
                        shared.standing.look_again();
                    }
                    Err(why) => tracing::debug!("a verdict of {judge}: {why}"),
                }
            }
            Ok(received)
        }
        other => Err(other.summary()),
    }
}

#[cfg(test)]
mod tests {
    use standing::{JobName, JobVerdict, Standing, in_order};
    use verdicts::Report;

    use super::super::StandingState;
    use super::*;

    #[test]
    fn a_judge_that_is_silent_is_suspected_until_it_confirms() {
        let (outbox, start) = (Outbox::default(), Instant::now());
        let at = |window: i64| start + Duration::from_millis(500) * u32::try_from(window).unwrap();
        for window in 0..4 {
            outbox.add(7, sized(window, 10), &["a", "b"]);
            outbox.begin(7, "a", at(window));
            outbox.begin(7, "b", at(window));
            outbox.end(7, "b", &[window], Some(&WindowsReceived::default()));
            let suspects = outbox.suspects(7, at(window));
            assert_eq!((suspects.contains("a"), suspects.contains("b")), (window >= 2, false), "{window}");
        }
        outbox.end(7, "a", &[0], Some(&WindowsReceived::default()));
        assert!(outbox.suspects(7, at(9)).is_empty());
    }

    #[test]
    fn a_silent_judge_is_none_of_those_that_speak_and_its_successor_is_listed_at_once() {
        let (state, job, now_ns) = (StandingState::default(), 7, record::steady_now_ns());
        let order = in_order(job, ["a", "b", "c", "d"]);
        for judge in &order {
            let (report, silent) = (Arc::new(Report::default()), Vec::new());
            let standing =
                Standing { window: 7, reference: None, report, heard: 4, silent, wall_ahead_ns: 0, age_ns: 0 };
            state.receive(judge, JobVerdict { job, name: JobName::default(), standing }, now_ns);
        }
        let judges = || {
            let current = state.current().expect("a verdict");
            assert_eq!(current.judge, current.judges[0].judge);
            current.judges.into_iter().map(|about| about.judge).collect::<Vec<_>>()
        };
        // Who is no host of the job cannot tell which of the four is silent.
        assert_eq!(judges(), order);
        state.outbox.add(job, sized(1, 10), &order);
        state.outbox.begin(job, order[0], Instant::now() - 2 * SUSPECTED_AFTER);
        assert_eq!(judges(), order[1..]);
        // Where all are silent it is this host that cannot reach them.
        for judge in &order {
            state.outbox.begin(job, judge, Instant::now() - 2 * SUSPECTED_AFTER);
        }
        assert_eq!(judges(), order);
    }

    fn sized(window: i64, bytes: usize) -> WindowDigest {
        WindowDigest { window, digest: vec![1; bytes], times: Vec::new() }
    }

    fn windows(of: &[WindowDigest]) -> Vec<i64> {
        of.iter().map(|window| window.window).collect()
    }

    #[test]
    fn a_judge_gets_what_it_has_not_confirmed_and_a_new_one_all_that_is_kept() {
        let (outbox, received) = (Outbox::default(), WindowsReceived::default());
        assert_eq!(outbox.add(7, sized(1, 10), &["a", "b"]), ["a", "b"]);
        assert_eq!(windows(&outbox.begin(7, "a", Instant::now())), [1]);
        // While it is asked it is not asked again; what came meanwhile goes with the next.
        assert_eq!(outbox.add(7, sized(2, 10), &["a", "b"]), ["b"]);
        outbox.end(7, "a", &[1], Some(&received));
        assert_eq!(windows(&outbox.begin(7, "a", Instant::now())), [2]);
        outbox.end(7, "a", &[2], None);
        assert_eq!(windows(&outbox.begin(7, "a", Instant::now())), [2], "not received");
        outbox.end(7, "a", &[2], Some(&received));
        assert_eq!(outbox.add(7, sized(3, 10), &["a", "c"]), ["a", "c"]);
        assert_eq!(windows(&outbox.begin(7, "c", Instant::now())), [1, 2, 3]);
        // A judge that was started again has forgotten.
        assert_eq!(windows(&outbox.begin(7, "a", Instant::now())), [3]);
        outbox.end(7, "a", &[3], Some(&WindowsReceived { anew: true, ..WindowsReceived::default() }));
        assert_eq!(windows(&outbox.begin(7, "a", Instant::now())), [1, 2]);
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_no_judge_heard_is_counted() {
        let outbox = Outbox::default();
        for window in 0..200 {
            outbox.add(7, sized(window, 1_000), &["a"]);
        }
        let kept = windows(&outbox.begin(7, "a", Instant::now()));
        assert!(kept.len() == 65 && kept.ends_with(&[199]), "{kept:?}");
        assert_eq!(outbox.lost(), 135);
        outbox.retain(&BTreeSet::new());
        assert!(outbox.begin(7, "a", Instant::now()).is_empty());
    }
}
