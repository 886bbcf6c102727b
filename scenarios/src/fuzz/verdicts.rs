//! Digests of several hosts, as gossip brings them, up to and with what is judged of them and
//! printed.
//!
//! An input is a list of pieces: who gossips (one byte: 1 to 7 a host, 128 the host is dead from
//! now on), how much later than the piece before (one byte, units of 50 ms), how long the digest is
//! (two bytes, the lowest first), and the digest's bytes, which are packed into text here.

use std::collections::BTreeMap;

use digest::{Collector, ReferenceClock, decode, encode, end_of, reference_id, window_of};
use standing::{Board, JobName, JobVerdict, Judge, Presence};
use verdicts::{InCall, show_sql, text};

use crate::simulate::{Job, Slow, Stop};

/// A report is no larger than this for each byte of digests, beside [`FIXED_BYTES`]: what a digest
/// claims costs nothing.
const MOST_TIMES: usize = 1_000;
const FIXED_BYTES: usize = 64 << 10;
/// Bytes of an input that are looked at.
const MOST_BYTES: usize = 32 << 10;
/// Windows of each simulated job that is a seed.
const WINDOWS: i64 = 6;

/// Reads the digests, has a board take them in, judges what can be judged, and prints it.
///
/// # Panics
/// Where a report is larger than what was heard allows.
pub(super) fn feed(input: &[u8]) {
    let mut input = &input[..input.len().min(MOST_BYTES)];
    let bytes = input.len();
    let (mut board, mut judge, mut now_ns) = (Board::default(), Judge::default(), 1_700_000_000_000_000_000);
    let mut presence: BTreeMap<String, Presence> = (0..8).map(|host| (format!("n{host}"), Presence::Live)).collect();
    while let [who, later, low, high, rest @ ..] = input {
        let (piece, behind) = rest.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()));
        input = behind;
        now_ns += i64::from(*later) * 50_000_000;
        let node = format!("n{}", who & 7);
        if who & 128 != 0 {
            presence.insert(node.clone(), Presence::Dead);
        }
        match decode(&packed(piece)) {
            Ok(digest) => {
                // What is read can be written, and is read alike.
                assert_eq!(decode(&encode(&digest)).as_ref(), Ok(&digest), "it is written otherwise than it was read");
                board.receive(&node, digest, now_ns);
            }
            Err(error) => board.refuse(&node, error.to_string()),
        }
    }
    board.presence(&presence);
    let _ = board.waited_in();
    for later_ns in [0, 2_500_000_000] {
        now_ns += later_ns;
        let Some(standing) = judge.judge(&board, now_ns) else { continue };
        let report = &*standing.report;
        let json = serde_json::to_string(report).map_or(0, |json| json.len());
        let printed = text(report).len() + show_sql(report).iter().map(|shown| shown.sql.len()).sum::<usize>();
        let most = FIXED_BYTES + MOST_TIMES * bytes;
        assert!(json + printed <= most, "{json} and {printed} bytes of report from {bytes} bytes of digests");
    }
}

/// Digests of simulated jobs, healthy and not.
#[must_use]
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let job = Job { ranks: 4, steps: 60, own_ns: 80_000_000, clock_offset_ns: 0, ..Job::default() };
    let slow = vec![Slow { rank: 3, extra_ns: 60_000_000, from_step: 0 }];
    let jobs = [
        Job { slow: slow.clone(), ..job.clone() },
        Job { enqueues: true, slow, ..job.clone() },
        Job { stop: Some(Stop { rank: 2, step: 30, gone: false }), ..job.clone() },
        Job { late_nodes: vec![(1, 5)], ..job },
    ];
    jobs.iter().map(gossip).collect()
}

/// The verdicts on those jobs as their judge publishes them, a line each.
#[must_use]
pub(super) fn published() -> Vec<Vec<u8>> {
    let texts: Vec<String> = seeds().iter().filter_map(|input| judged(input)?.text()).collect();
    let all = texts.join("\n").into_bytes();
    texts.into_iter().map(String::into_bytes).chain([all]).collect()
}

/// What is judged in the end of an input's digests.
fn judged(mut input: &[u8]) -> Option<JobVerdict> {
    let (mut board, mut judge, mut now_ns) = (Board::default(), Judge::default(), 1_700_000_000_000_000_000);
    while let [who, later, low, high, rest @ ..] = input {
        let (piece, behind) = rest.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()));
        input = behind;
        now_ns += i64::from(*later) * 50_000_000;
        board.receive(&format!("n{}", who & 7), decode(&packed(piece)).ok()?, now_ns);
    }
    board.presence(&(0..8).map(|host| (format!("n{host}"), Presence::Live)).collect());
    let standing = judge.judge(&board, now_ns + 2_500_000_000)?;
    Some(JobVerdict { job: 7, name: JobName::default(), standing })
}

/// What the hosts of a job gossip in its last windows.
fn gossip(job: &Job) -> Vec<u8> {
    let rows = job.observe(1);
    let mut hosts: BTreeMap<String, Collector> = BTreeMap::new();
    for seen in &rows.observations {
        hosts.entry(seen.node.to_string()).or_default().push(seen.clone());
    }
    for seen in &rows.unnumbered {
        hosts.entry(seen.node.to_string()).or_default().push_unnumbered(seen.clone());
    }
    let open = |node: &str, at_ns: i64| -> Vec<InCall> {
        rows.in_calls.iter().filter(|call| &*call.node == node && call.since_ns < at_ns).cloned().collect()
    };
    let last = window_of(rows.until_ns);
    let mut input = Vec::new();
    for window in last - 40..=last {
        for (at, (node, collector)) in hosts.iter_mut().enumerate() {
            collector.open(window, &open(node, end_of(window)));
            let mut digest = collector.close(window);
            digest.clock = Some(ReferenceClock { reference: reference_id("n0"), offset_us: 0, bound_us: 300 });
            if window > last - WINDOWS {
                let bytes = unpacked(&encode(&digest));
                let later = if at == 0 { 10 } else { 0 };
                let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_le_bytes();
                input.extend([at as u8, later, length[0], length[1]]);
                input.extend(&bytes[..usize::from(u16::from_le_bytes(length))]);
            }
        }
    }
    input
}

/// Bytes as the text of a digest: seven bits to a character.
fn packed(bytes: &[u8]) -> String {
    let bits = bytes.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1)).collect::<Vec<u8>>();
    bits.chunks(7).map(|bits| char::from(bits.iter().rev().fold(0, |all, bit| all << 1 | bit))).collect()
}

/// The bytes of a digest's text.
fn unpacked(text: &str) -> Vec<u8> {
    let bits = text.bytes().flat_map(|byte| (0..7).map(move |bit| byte >> bit & 1)).collect::<Vec<u8>>();
    bits.chunks_exact(8).map(|bits| bits.iter().rev().fold(0, |all, bit| all << 1 | bit)).collect()
}
