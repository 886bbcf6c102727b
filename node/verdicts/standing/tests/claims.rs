//! What is judged costs by what was heard, not by what is claimed: memory and time of hangs, with
//! an allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use digest::{Digest, Lane, LongCall, Membership, Process, decode, encode, end_of};
use standing::{Board, Judge};
use verdicts::{InCall, Input, Progress, Report, Rules, Verdict, analyse, text};

/// Bytes in use, and the most so far.
static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: all memory is the system allocator's; beside it, only two numbers are kept.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` gives, and the most bytes that it held at a time.
fn measured<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let result = work();
    (result, MOST.load(Ordering::Relaxed).saturating_sub(before))
}

/// Processor time that this thread took, milliseconds.
fn cpu_ms() -> u128 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    stat.split(' ').next().and_then(|ns| ns.parse::<u128>().ok()).expect("nanoseconds") / 1_000_000
}

const MIB: usize = 1 << 20;
const S: i64 = 1_000_000_000;

fn rank(rank: i32, nranks: i32, entered: bool) -> Progress {
    Progress {
        node: format!("n{}", rank / 8).into(),
        pid: i64::from(rank % 8) + 1,
        rank,
        nranks: Some(nranks),
        comm_hash: 1,
        entered: Some(if entered { 100 } else { 99 }),
        ..Progress::default()
    }
}

fn hang(report: &Report) -> &verdicts::Hang {
    match &report.verdict {
        Verdict::Hang(hang) => hang,
        other => panic!("no hang: {other:?}"),
    }
}

/// One after the other: what they allocate is counted for the whole process.
#[test]
fn a_hang_costs_by_the_ranks_that_were_heard() {
    of_8192_ranks_that_wait_for_one();
    of_8192_ranks_of_which_every_second_does_not_come();
    of_8192_ranks_of_which_every_third_was_not_heard();
    of_a_digest_that_claims_the_largest_communicators();
    of_a_node_that_tells_of_ever_new_communicators();
}

fn judged(progress: Vec<Progress>) -> (Report, usize) {
    let inside = progress.iter().filter(|p| p.entered == Some(100)).map(|p| InCall {
        node: p.node.clone(),
        pid: p.pid,
        func: "all_reduce".into(),
        comm_hash: Some(p.comm_hash),
        rank: Some(p.rank),
        nranks: p.nranks,
        comm_seq: p.entered,
        since_ns: 10 * S,
        ..InCall::default()
    });
    let in_calls = inside.collect();
    let input = Input { progress, in_calls, until_ns: 60 * S, ..Input::default() };
    let began = cpu_ms();
    let (report, most) = measured(|| analyse(&input, &Rules::default()));
    assert!(most < 64 * MIB, "{} MiB", most / MIB);
    eprintln!("{} MiB, {} ms", most / MIB, cpu_ms() - began);
    (report, most)
}

fn of_8192_ranks_that_wait_for_one() {
    let (report, _) = judged((0..8_192).map(|r| rank(r, 8_192, r != 4_711)).collect());
    let hang = hang(&report);
    assert_eq!((hang.missing.len(), hang.missing[0].who.rank, hang.missing[0].holds_up), (1, 4_711, 8_191));
    assert_eq!((hang.waiting.len(), hang.not_heard.len()), (8_191, 0));
}

fn of_8192_ranks_of_which_every_second_does_not_come() {
    let (report, _) = judged((0..8_192).map(|r| rank(r, 8_192, r % 2 == 0)).collect());
    let hang = hang(&report);
    assert_eq!((hang.missing.len(), hang.waiting.len()), (4_096, 4_096));
    assert!(hang.missing.iter().all(|missing| missing.holds_up == 4_096));
    assert!(text(&report).len() < 16 << 10, "{}", text(&report).len());
}

fn of_8192_ranks_of_which_every_third_was_not_heard() {
    let (report, _) = judged((0..8_192).filter(|r| r % 3 > 0).map(|r| rank(r, 8_192, true)).collect());
    let [absent] = hang(&report).not_heard.as_slice() else { panic!("one communicator") };
    assert_eq!((absent.count, absent.ranks.ranges().len()), (2_731, 2_731));
    assert!(text(&report).len() < 16 << 10, "{}", text(&report).len());
}

/// As many lanes as fit in a digest, each of another communicator of 2^31 - 1 ranks, all in a call
/// for long.
fn hostile(window: i64, from: u64) -> String {
    let lanes = 200;
    let digest = Digest {
        window,
        processes: (0..lanes).map(|pid| Process { pid: pid + 1, ..Process::default() }).collect(),
        lanes: (0..lanes as usize)
            .map(|process| Lane {
                process,
                comm_hash: from + process as u64,
                nranks: Some(i32::MAX),
                rank: process as i32,
                func: "all_reduce".into(),
                library: "nccl".into(),
                tier: 1,
                calls: 1,
                last_seq: Some(1),
                place: Some(1),
                blocks: Vec::new(),
            })
            .collect(),
        long_calls: (0..lanes as usize)
            .map(|process| LongCall {
                process,
                func: "all_reduce".into(),
                comm: Some(Membership {
                    comm_hash: from + process as u64,
                    nranks: Some(i32::MAX),
                    rank: process as i32,
                }),
                comm_seq: Some(2),
                for_ms: 1_000_000,
                ..LongCall::default()
            })
            .collect(),
        ..Digest::default()
    };
    encode(&digest)
}

fn of_a_digest_that_claims_the_largest_communicators() {
    let said = hostile(1_000, 7);
    assert!(said.len() <= 8_000, "{} characters", said.len());
    let mut board = Board::default();
    board.receive("n0", decode(&said).expect("legal"), 0);
    let began = cpu_ms();
    let (standing, most) = measured(|| Judge::default().judge(&board, 0).expect("judged"));
    let absent = &hang(&standing.report).not_heard;
    assert_eq!((absent.len(), absent[0].count), (200, i32::MAX as u64 - 1));
    let json = serde_json::to_string(&*standing.report).expect("JSON").len();
    assert!(json < MIB && text(&standing.report).len() < MIB, "{json} bytes");
    assert!(most < 16 * MIB, "{} MiB", most / MIB);
    eprintln!("hostile: {} MiB, {} ms, {json} bytes of JSON", most / MIB, cpu_ms() - began);
}

fn of_a_node_that_tells_of_ever_new_communicators() {
    let (mut board, mut judge) = (Board::default(), Judge::default());
    let began = cpu_ms();
    let (_, most) = measured(|| {
        for window in 0..200u32 {
            let said = hostile(window.into(), u64::from(window) * 1_000);
            board.receive("n0", decode(&said).expect("legal"), end_of(window.into()));
        }
        judge.judge(&board, end_of(200)).expect("judged")
    });
    eprintln!("ever new: {} MiB, {} ms", most / MIB, cpu_ms() - began);
    assert!(most < 128 * MIB, "{} MiB", most / MIB);
}
