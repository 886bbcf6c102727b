//! Closes each window of this host shortly after its end, and sends what was in it to the judges.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use digest::time_use::{self, TimeUse};
use digest::{Digest, NodeDigests, end_of, window_of};
use model::wire::WindowDigest;
use record::{steady_now_ns, wall_ahead_ns};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::super::Shared;
use super::{LARGEST, LARGEST_TIMES, feed, outbox, roster};

/// A window is closed so long after its end: what ended in it is in the ring buffer by then, which
/// is read first.
const LAG: Duration = Duration::from_millis(90);
/// Where nothing is known of any process, calls that are open are looked for once in so many windows.
const OPEN_CALLS_EVERY: i64 = 4;
/// Jobs of a host that are judged.
const MOST_JOBS: usize = 256;

/// Closes windows until `stop`.
pub(super) async fn publish(shared: Arc<Shared>, stop: CancellationToken) {
    // A host that records nothing also publishes that it knows judges.
    shared.coordinator.gossip.publish(roster::JOBS, roster::jobs_text(&BTreeSet::new())).await;
    if !shared.recording.records() {
        return;
    }
    let own: Arc<str> = shared.identity.node().as_str().into();
    let (mut last, mut sending) = (i64::MIN, JoinSet::new());
    let lag = i64::try_from(LAG.as_nanos()).unwrap_or(0);
    loop {
        let now_ns = steady_now_ns();
        let window = window_of(now_ns - lag).max(last.saturating_add(1));
        let due_ns = end_of(window).saturating_add(lag);
        let wait = Duration::from_nanos(u64::try_from(due_ns - now_ns).unwrap_or(0));
        tokio::select! {
            () = tokio::time::sleep(wait.max(Duration::from_millis(1))) => {}
            () = stop.cancelled() => return,
        }
        last = window;
        let looks = window.rem_euclid(OPEN_CALLS_EVERY) == 0;
        if shared.recording.feed().is_idle() && (!looks || shared.recording.open_calls().is_empty()) {
            publish_jobs(&shared, &BTreeMap::new()).await;
            continue;
        }
        number(&shared, &own, window);
        let (closing, node) = (Arc::clone(&shared), Arc::clone(&own));
        let closed = tokio::task::spawn_blocking(move || {
            closing.recording.read_now();
            let feed = closing.recording.feed();
            feed.end_idle(window, || waited_in(&closing));
            let recording = &closing.recording;
            let in_calls = feed::InCalls::now(|| recording.open_calls(), || recording.device_waits());
            let times = feed.times(&node, window);
            let digest = feed.close(window, &in_calls);
            (digest.map(|digest| feed.by_job(digest)).unwrap_or_default(), times)
        })
        .await;
        let Ok((jobs, times)) = closed else { continue };
        publish_jobs(&shared, &jobs).await;
        while sending.try_join_next().is_some() {}
        send(&shared, &own, window, jobs, times, &mut sending, &stop);
    }
}

/// Sends these digests of a window as if they were of this host's ranks: for benchmarks, whose
/// agents record nothing.
pub async fn send_windows(shared: &Arc<Shared>, window: i64, jobs: BTreeMap<u64, Digest>) {
    let own = shared.identity.node().to_string();
    publish_jobs(shared, &jobs).await;
    let mut sending = JoinSet::new();
    send(shared, &own, window, jobs, Vec::new(), &mut sending, &CancellationToken::new());
    sending.detach_all();
}

/// Publishes which jobs have ranks here, where these are others than before.
async fn publish_jobs(shared: &Shared, jobs: &BTreeMap<u64, Digest>) {
    let boards = &shared.standing.boards;
    let now: BTreeSet<u64> = jobs.keys().copied().take(MOST_JOBS).collect();
    if now.len() < jobs.len() {
        tracing::warn!("{} jobs run here: only {MOST_JOBS} of them are judged", jobs.len());
    }
    if now != boards.jobs() {
        boards.of_jobs(&now);
        shared.standing.outbox.retain(&now);
        shared.standing.look_again();
        shared.coordinator.gossip.publish(roster::JOBS, roster::jobs_text(&now)).await;
    }
}

/// Sends the digests of a window to the judges of their jobs, each job's with where its processes'
/// time went.
fn send(
    shared: &Arc<Shared>,
    own: &str,
    window: i64,
    jobs: BTreeMap<u64, Digest>,
    times: Vec<TimeUse>,
    sending: &mut JoinSet<()>,
    stop: &CancellationToken,
) {
    let standing = &shared.standing;
    let mut times_of: BTreeMap<u64, Vec<TimeUse>> = BTreeMap::new();
    for time in times {
        times_of.entry(time.job).or_default().push(time);
    }
    let roster = standing.roster();
    for (job, mut digest) in jobs.into_iter().take(MOST_JOBS) {
        let clock = |reference: &str| standing.clocks.now(reference, own, end_of(window));
        digest.clock = roster.reference(job).and_then(clock);
        digest.wall_ahead_ms = wall_ahead_ns() / 1_000_000;
        let times = times_of.remove(&job).unwrap_or_default();
        let times = if times.is_empty() { String::new() } else { time_use::encode(&times, LARGEST_TIMES) };
        let bytes = |text: &str| digest::from_text(text).unwrap_or_default();
        let window =
            WindowDigest { window, digest: bytes(&digest::encode_within(digest, LARGEST)), times: bytes(&times) };
        standing.count_published(window.digest.len() + window.times.len());
        let mut suspects = standing.outbox.suspects(job, tokio::time::Instant::now());
        suspects.retain(|host| roster.has(job, host));
        if !suspects.is_empty() {
            tracing::debug!("no answer from judges of job {job:016x}: {suspects:?}");
        }
        let judges = roster.judges(job, &suspects);
        let all: Vec<&str> = judges.iter().copied().chain(suspects.iter().map(String::as_str)).collect();
        for judge in standing.outbox.add(job, window, &all) {
            let is_first = judges.first() == Some(&judge.as_str());
            sending.spawn(outbox::send(Arc::clone(shared), job, judge, is_first, stop.clone()));
        }
    }
}

/// Communicators in which ranks wait, as far as this host knows.
fn waited_in(shared: &Shared) -> BTreeSet<u64> {
    shared.standing.outbox.needs().into_iter().flat_map(|needs| needs.waited_in).collect()
}

/// Numbers this host's calls whose communicator's start was not seen, by the digests of other hosts
/// and its own.
fn number(shared: &Shared, own: &str, window: i64) {
    let standing = &shared.standing;
    let lanes = shared.recording.feed().unnumbered();
    if lanes.is_empty() {
        return;
    }
    let mut digests: BTreeMap<String, Vec<Digest>> = BTreeMap::new();
    for (node, texts) in standing.outbox.needs().into_iter().flat_map(|needs| needs.said) {
        digests.entry(node).or_default().extend(texts.iter().filter_map(|text| digest::decode(text).ok()));
    }
    let roster = standing.roster();
    let jobs = standing.boards.jobs().into_iter();
    let references: BTreeSet<String> = jobs.filter_map(|job| roster.reference(job).map(str::to_owned)).collect();
    let mine = standing.outbox.sent();
    if !mine.is_empty() {
        digests.insert(
            own.to_owned(),
            mine.iter().filter_map(|bytes| digest::decode(&digest::to_text(bytes)).ok()).collect(),
        );
    }
    digests.values_mut().for_each(|of_node| of_node.sort_by_key(|digest| digest.window));
    let refs: Vec<Vec<&Digest>> = digests.values().map(|digests| digests.iter().collect()).collect();
    let by_node: Vec<NodeDigests<'_>> =
        digests.keys().zip(&refs).map(|(node, digests)| NodeDigests { node, digests }).collect();
    // Each digest is aligned to its job's reference: what is of another is left out.
    for reference in references {
        let clock = standing.clocks.now(&reference, own, end_of(window));
        shared.recording.feed().number(own, window, clock, &by_node);
    }
}
