//! What the standing verdict of one large job costs, in memory: the digests of a simulated job of
//! so many hosts with eight ranks each, received and judged window by window. CPU time is that of
//! the calling thread.

use std::collections::BTreeMap;
use std::time::Duration;

use digest::{Collector, ReferenceClock, decode, encode, end_of, from_text, reference_id, window_of};
use standing::{Board, JUDGES, JobName, JobVerdict, Judge, Key, Presence};
use verdicts::{Observation, Verdict};

use crate::figures::cpu_time_of_this_thread;
use crate::simulate::{Job, Slow};

/// Ranks on each host.
pub const RANKS_PER_HOST: usize = 8;
/// The step from which a rank is late.
const LATE_FROM: usize = 90;
/// Digests come so long after the end of their window, nanoseconds.
const DELAY_NS: i64 = 200_000_000;

/// What a job of one size took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Hosts.
    pub hosts: usize,
    /// CPU of a judge: reading digests, keeping them and judging, for each second of the job.
    pub judge: Duration,
    /// CPU of another host: making its digests and hearing its judges' verdicts, likewise.
    pub other: Duration,
    /// The most that one window took of the judge's.
    pub longest: Duration,
    /// Windows, and how many of them were judged.
    pub windows: u32,
    /// Of these.
    pub judged: u32,
    /// Time from the first late step to the end of the first window of whose verdict the late rank
    /// is, plus the digests' delay and what judging took; none where it was never named.
    pub named_after: Option<Duration>,
    /// Ranks named that are not late.
    pub wrong: u32,
    /// Bytes of digests for each rank and second.
    pub digest_bytes: f64,
}

/// Digests of a job as they are sent: by the window (of true time) after which they come, each with
/// its host's name.
pub(crate) type Sent = BTreeMap<i64, Vec<(String, String)>>;

/// Runs a job of steps of 100 ms in which one rank becomes 30 ms late, as one judge sees it.
///
/// # Panics
/// A digest cannot be read.
#[must_use]
pub fn scale(hosts: usize) -> Scale {
    let (job, late) = job(hosts);
    let Digests { sent, begun_ns, span_ns, made } = digests(&job);
    let presence: BTreeMap<String, Presence> = (0..hosts).map(|n| (format!("n{n}"), Presence::Live)).collect();
    let (mut board, mut judge) = (Board::default(), Judge::default());
    let (mut spent, mut longest, mut bytes) = (Duration::ZERO, Duration::ZERO, 0);
    let (mut windows, mut judged, mut wrong, mut named_after, mut receiving) = (0, 0, 0, None, Duration::ZERO);
    for (window, digests) in &sent {
        let now_ns = end_of(*window) + DELAY_NS;
        let started = cpu_time_of_this_thread();
        for (node, text) in digests {
            let digest = decode(text).expect("a digest is read as it was written");
            board.receive(node, digest, now_ns);
        }
        board.presence(&presence);
        let standing = judge.judge(&board, now_ns);
        let verdict = standing.map(|standing| JobVerdict { job: 1, name: JobName::default(), standing });
        let text = verdict.as_ref().and_then(JobVerdict::text);
        let took = cpu_time_of_this_thread() - started;
        (spent, longest, windows) = (spent + took, longest.max(took), windows + 1);
        bytes += digests.iter().filter_map(|(_, text)| from_text(text)).map(|bytes| bytes.len()).sum::<usize>();
        let (Some(verdict), Some(text)) = (verdict, text) else { continue };
        judged += 1;
        let started = cpu_time_of_this_thread();
        let read = JobVerdict::read(&text).expect("a verdict is read as it was written");
        receiving += (cpu_time_of_this_thread() - started) * u32::try_from(JUDGES).unwrap_or(1);
        assert_eq!(Key::of(&read.standing.report.verdict), Key::of(&verdict.standing.report.verdict));
        let Verdict::Rank { culprit, .. } = &read.standing.report.verdict else { continue };
        if usize::try_from(culprit.rank) == Ok(late) {
            let after_ns = u64::try_from(now_ns - begun_ns).unwrap_or(0);
            named_after.get_or_insert(Duration::from_nanos(after_ns) + took);
        } else {
            wrong += 1;
        }
    }
    let seconds = span_ns as f64 / 1e9;
    Scale {
        hosts,
        judge: spent.div_f64(seconds),
        other: receiving.div_f64(seconds) + made.div_f64(seconds * hosts as f64),
        longest,
        windows,
        judged,
        named_after,
        wrong,
        digest_bytes: bytes as f64 / job.ranks as f64 / seconds,
    }
}

/// A job of steps of 100 ms on so many hosts, and its rank that becomes 30 ms late.
pub(super) fn job(hosts: usize) -> (Job, usize) {
    let late = hosts * RANKS_PER_HOST / 2 + 5;
    let job = Job {
        ranks: hosts * RANKS_PER_HOST,
        ranks_per_node: RANKS_PER_HOST,
        steps: 180,
        own_ns: 100_000_000,
        slow: vec![Slow { rank: late, extra_ns: 30_000_000, from_step: LATE_FROM }],
        ..Job::default()
    };
    (job, late)
}

/// What a job's hosts send.
pub(crate) struct Digests {
    /// The digests.
    pub(crate) sent: Sent,
    /// When the late rank becomes late.
    pub(crate) begun_ns: i64,
    /// How long the job runs.
    pub(crate) span_ns: i64,
    /// CPU that all hosts together took for making them.
    made: Duration,
}

/// The digests of a job.
pub(crate) fn digests(job: &Job) -> Digests {
    let rows = job.observe(1);
    let begun_ns = rows.observations.iter().filter(|seen| seen.seq == LATE_FROM as u64 - 1);
    let begun_ns = begun_ns.map(|seen| seen.entry_ns.saturating_add(seen.duration_ns)).max().unwrap_or(rows.since_ns);
    let mut by_node: BTreeMap<String, Vec<Observation>> = BTreeMap::new();
    for seen in rows.observations {
        by_node.entry(seen.node.to_string()).or_default().push(seen);
    }
    let (mut sent, mut made) = (Sent::new(), Duration::ZERO);
    for (node, calls) in by_node {
        let offset_ns = rows.clocks.get(&*node).map_or(0, |clock| clock.offset_ns);
        let mut collector = Collector::default();
        calls.into_iter().for_each(|call| collector.push(call));
        for window in window_of(rows.since_ns + offset_ns)..=window_of(rows.until_ns + offset_ns) {
            let started = cpu_time_of_this_thread();
            let mut digest = collector.close(window);
            let reference = reference_id("n0");
            digest.clock = Some(ReferenceClock { reference, offset_us: offset_ns / 1_000, bound_us: 201 });
            let text = encode(&digest);
            made += cpu_time_of_this_thread() - started;
            sent.entry(window_of(end_of(window) - offset_ns)).or_default().push((node.clone(), text));
        }
    }
    Digests { sent, begun_ns, span_ns: rows.until_ns - rows.since_ns, made }
}
