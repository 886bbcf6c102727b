//! Digests: merging, the wire, and what rows tell of each step.

use observed::{Activity, ClockOffset, Input, Observation};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::blocks::{Point, Sum, cut, level_for, most_runs};
use super::*;

const MS: i64 = 1_000_000;

/// A call that only enqueues.
fn enqueued_call(rank: i32, nranks: i32, func: &str, seq: u64, entry_ns: i64) -> Observation {
    let call = Observation::test_call(rank, 7, func, seq, entry_ns, MS / 50);
    let pid = 100 + i64::from(rank);
    Observation { pid, nranks: Some(nranks), tier: 0, library: "nccl".into(), ..call }
}

#[test]
fn too_large_a_digest_is_cut_and_says_so() {
    let mut digest = Digest { window: 1, ..Digest::default() };
    for pid in 0..400 {
        digest.processes.push(Process { pid, ..Process::default() });
        let block = |i: u64| Block {
            start: i,
            level: 0,
            exit_us: 77_777,
            duration_us: 55_555 + i,
            compute_us: Some(33_333),
            waited: None,
            halted_us: i,
            held_us: 2 * i,
        };
        digest.lanes.push(lane(pid as usize, (0..6).map(block).collect()));
    }
    let text = encode_within(digest.clone(), 7_000);
    assert!(text.len() <= 7_000, "{}", text.len());
    let read = decode(&text).unwrap();
    assert!(read.cut && !read.lanes.is_empty());
    let small = Digest {
        lanes: vec![lane(0, Vec::new())],
        processes: vec![Process { pid: 1, ..Process::default() }],
        ..digest
    };
    assert_eq!(decode(&encode_within(small.clone(), 7_000)), Ok(small));
}

fn lane(process: usize, blocks: Vec<Block>) -> Lane {
    Lane {
        process,
        comm_hash: 7,
        nranks: Some(8),
        rank: process as i32,
        func: "all_reduce".into(),
        library: "nccl".into(),
        tier: 0,
        calls: blocks.len() as u64,
        last_seq: blocks.last().map(|b| b.start),
        place: None,
        blocks,
    }
}

fn points(present: &[bool]) -> Vec<Point> {
    let seen = present.iter().enumerate().filter(|(_, p)| **p);
    seen.map(|(i, _)| Point {
        seq: i as u64 + 3,
        exit_us: i as i64 * 500,
        duration_us: 100 + i as u64 % 7,
        compute_us: Some(400),
        halted_us: i as u64 % 5,
        held_us: i as u64 % 3,
        counts: true,
    })
    .collect()
}

proptest! {
    #[test]
    fn runs_cover_every_call_once_and_are_aligned(calls in 1usize..300, level in 0u8..8) {
        let all = points(&vec![true; calls]);
        let blocks = cut(&all, level, false);
        let mut at = 3;
        for block in &blocks {
            prop_assert_eq!(block.start, at);
            prop_assert_eq!(block.start % block.size(), 0);
            prop_assert!(block.level <= level);
            at += block.size();
        }
        prop_assert_eq!(at, 3 + calls as u64);
        let sum = |of: &dyn Fn(&Block) -> i64| blocks.iter().map(|b| of(b) * b.size() as i64).sum::<i64>();
        let near = |a: i64, b: i64| (a - b).unsigned_abs() <= calls as u64;
        prop_assert!(near(sum(&|b| b.duration_us as i64), all.iter().map(|p| p.duration_us as i64).sum()));
        prop_assert!(near(sum(&|b| b.exit_us), all.iter().map(|p| p.exit_us).sum()));
    }

    #[test]
    fn sums_merge_in_any_order_and_at_any_cut(calls in 1usize..200, a in 0u8..8, b in 0u8..8, seed in any::<u64>()) {
        let all = points(&vec![true; calls]);
        let sum = |mut blocks: Vec<Block>, rng: &mut StdRng| {
            let mut sum = Sum::default();
            while !blocks.is_empty() {
                sum.add(&blocks.swap_remove(rng.random_range(0..blocks.len())), 1_000_000, false);
            }
            sum
        };
        let mut rng = StdRng::seed_from_u64(seed);
        let means = |level, rng: &mut StdRng| sum(cut(&all, level, false), rng).means().expect("means");
        let (one, other) = (means(a, &mut rng), means(b, &mut rng));
        prop_assert_eq!(one, means(a, &mut rng), "in another order");
        // Means are kept in whole microseconds.
        let near = |a: i64, b: i64| (a - b).abs() <= 1_000;
        prop_assert!((one.entry_ns - other.entry_ns).abs() <= 2_000 && near(one.duration_ns, other.duration_ns));
        prop_assert!(near(one.halted_ns, other.halted_ns) && near(one.held_ns, other.held_ns));
        prop_assert!(one.compute_ns.zip(other.compute_ns).is_some_and(|(a, b)| near(a, b)));
    }

    #[test]
    fn few_missing_calls_are_filled_in_and_many_are_not(lost in proptest::collection::vec(0usize..64, 0..20)) {
        let mut present = vec![true; 64];
        for i in lost {
            present[i] = false;
        }
        let some = points(&present);
        for block in cut(&some, 5, false) {
            let inside = some.iter().filter(|p| (block.start..block.start + block.size()).contains(&p.seq)).count() as u64;
            prop_assert!((block.size() - inside) * 8 <= block.size());
            // They come at even distances, so filling in finds where the missing ones were.
            let mean = block.exit_us;
            let truth = (block.start as i64 - 3) * 500 + (block.size() as i64 - 1) * 250;
            prop_assert!((mean - truth).abs() <= 1, "{} {}", mean, truth);
        }
    }

    #[test]
    fn levels_bound_the_runs(calls in 0usize..2_000_000, nranks in proptest::option::of(0..20_000i32)) {
        let most = most_runs(nranks);
        let level = level_for(calls, most);
        prop_assert!(calls.div_ceil(1 << level) <= most);
        prop_assert!(level == 0 || calls.div_ceil(1 << (level - 1)) > most);
        let of_all = most * nranks.unwrap_or(0) as usize;
        prop_assert!(most == BLOCKS || most == 2 || (most < BLOCKS && of_all <= 1_280), "{} {:?}", most, nranks);
    }

    #[test]
    fn no_text_breaks_the_reader(bytes in proptest::collection::vec(0u8..128, 0..400)) {
        let text: String = bytes.into_iter().map(char::from).collect();
        if let Ok(digest) = decode(&text) {
            let blocks: usize = digest.lanes.iter().map(|l| l.blocks.len()).sum();
            prop_assert!(digest.lanes.len() + digest.processes.len() + blocks <= text.len());
            let _ = to_input(&[NodeDigests { node: "n", digests: &[&digest] }], 1);
        }
    }

    #[test]
    fn a_damaged_digest_is_refused_or_bounded(at in 0usize..200, byte in 0u8..128) {
        let blocks = |rank: u64| (0..6u64).map(move |i| Block {
            start: i,
            level: 0,
            exit_us: i.cast_signed() * 100_000,
            duration_us: 1_000 + rank,
            compute_us: i.checked_sub(1).map(|_| 99_000 - rank),
            waited: None,
            halted_us: 0,
            held_us: 0,
        });
        let process = |pid| Process { pid, ..Process::default() };
        let lanes = (0..2).map(|rank| lane(rank, blocks(rank as u64).collect())).collect();
        let text = encode(&Digest { window: 77, processes: vec![process(9), process(10)], lanes, ..Digest::default() });
        let mut damaged = text.into_bytes();
        if let Some(old) = damaged.get_mut(at) {
            *old = byte;
        }
        if let Ok(digest) = decode(&String::from_utf8(damaged).unwrap()) {
            let _ = to_input(&[NodeDigests { node: "n", digests: &[&digest] }], 1);
        }
    }

    #[test]
    fn any_digest_survives_the_way(
        window in -1_000i64..1_000_000_000_000,
        lost in any::<u64>(),
        clock in proptest::option::of((any::<u16>(), -1_000_000_000_000i64..1_000_000_000_000, any::<u32>())),
        lanes in proptest::collection::vec((0usize..3, any::<u64>(), any::<i32>(), "[a-z_]{1,20}", 0u64..1 << 50), 0..8),
        call in proptest::option::of((0u64..1 << 50, 0u64..1 << 40, -9i32..9, any::<u64>())),
    ) {
        let processes = [9u32, 4, u32::MAX].map(|pid| Process { pid, opens: (pid == 4).then(|| "send".into()), activity: Activity::of_number((pid % 11) as u8), of_job: (pid > 4).then_some((window as i32, 7)), device_ms: (pid == 9).then_some(lost >> 30) }).into();
        let lanes = lanes
            .into_iter()
            .map(|(process, comm_hash, rank, func, start)| {
                let start = start & !7;
                let block = |start, level, compute_us: Option<u64>| {
                    let waited = compute_us.filter(|own| *own > 9).map(|own| (own % (1u64 << level)) as u32 + 1);
                    let halted_us = if waited.is_some() { start / 3 } else { 0 };
                    Block { start, level, exit_us: -5 - start as i64, duration_us: start + 9, compute_us, waited, halted_us, held_us: compute_us.unwrap_or(0) }
                };
                Lane {
                    process,
                    comm_hash,
                    nranks: (rank > 0).then_some(rank),
                    rank,
                    func: func.into(),
                    library: if rank % 2 == 0 { "mpi" } else { "other" }.into(),
                    tier: (start % 4) as u8,
                    calls: start,
                    last_seq: (start > 99).then_some(start),
                    place: call.map(|(seq, ..)| seq),
                    blocks: vec![block(start, 3, Some(start)), block(start + 8, 3, None), block(start + 16, 0, Some(5))],
                }
            })
            .collect();
        let clock = clock.map(|(reference, offset_us, bound_us)| ReferenceClock { reference, offset_us, bound_us });
        let gone = vec![Gone { pid: 3, window: window - 5 }];
        let at_ms = (0..lost % 5).map(|i| i as u16 * 99).collect();
        let resent = vec![
            Resent { from: [10, 0, 0, 1].into(), to: [10, 0, 0, 2].into(), segments: lost, at_ms },
            Resent { from: [0xfe80u16, 0, 0, 0, 0, 0, 0, 1].into(), to: [1u16; 8].into(), segments: 1, at_ms: vec![] },
        ];
        let resent = if lost % 2 == 0 { resent } else { Vec::new() };
        let mut digest = Digest { window, clock, wall_ahead_ms: window % 3 * 1_000, lost, unplaced: 4, cut: false, gone, resent, processes, lanes, steps: Vec::new(), long_calls: Vec::new(), recent: Vec::new() };
        if let Some((seq, for_ms, peer, comm_hash)) = call {
            let payload = Payload { bytes: Some(for_ms), datatype: Some("float32".into()), reduce_op: None };
            let comm = (peer > 0).then_some(Membership { comm_hash, nranks: None, rank: peer });
            digest.long_calls = vec![
                LongCall { process: 1, func: "barrier".into(), comm, comm_seq: Some(seq), for_ms, ..LongCall::default() },
                LongCall { func: "my_call".into(), root: Some(peer), tag: Some(7), payload: payload.clone(), ..LongCall::default() },
            ];
            let made = |position| Made { position, func: "all_reduce".into(), root: Some(peer), payload: payload.clone() };
            let pairs = vec![Pair { peer, sent: seq, received: 3 }];
            digest.recent = vec![Recent { process: 2, comm_hash, made: vec![made(seq), made(seq + 1)], pairs }];
        }
        prop_assert_eq!(decode(&encode(&digest)), Ok(digest));
    }
}

/// Rank 0 sends rank 1 four micro-batches in each step of 120 ms, of which two keep it waiting, for 35
/// and 5 ms, and one lies ready for 30 ms: in the mean it waits for 3 ms.
#[test]
fn rows_tell_each_wait_of_a_step() {
    let mut input = Input { since_ns: 0, until_ns: 30 * 120 * MS, ..Input::default() };
    let calls: [(i32, &str, &[i64]); 4] = [
        (0, "send", &[10, 20, 90, 100]),
        (1, "recv", &[5, 50, 55, 95]),
        (0, "all_reduce", &[110]),
        (1, "all_reduce", &[120]),
    ];
    for (step, (rank, func, at_ms)) in (0..30).flat_map(|step| calls.map(|of| (step, of))) {
        for (call, at_ms) in at_ms.iter().enumerate() {
            let seq = step * calls_a_step(func) + call as u64;
            input.observations.push(Observation {
                root: (func != "all_reduce").then_some(1 - rank),
                ..enqueued_call(rank, 2, func, seq, (step.cast_signed() * 120 + at_ms) * MS)
            });
        }
    }
    input.observations.sort_by_key(|seen| seen.entry_ns);
    input.clocks = (0..2).map(|rank| (format!("n{rank}"), ClockOffset::steady(0, 10_000))).collect();
    let (sampled, _) = of_rows(&input);
    let runs = sampled.iter().filter(|of| *of.node == *"n1" && *of.func == *"all_reduce").flat_map(|of| &of.runs);
    let compute_ms: Vec<i64> = runs.filter_map(|run| run.compute_ns).map(|ns| (ns + MS / 2) / MS).collect();
    assert!(compute_ms.len() >= 28 && compute_ms.iter().all(|ms| *ms == 75), "{compute_ms:?}");
}

fn calls_a_step(func: &str) -> u64 {
    if func == "all_reduce" { 1 } else { 4 }
}

/// A recorder that came late finds positions without numbers (PyTorch's gloo): how far a process is,
/// is known at once, and does not wait for its calls' numbers.
#[test]
fn a_call_without_a_number_may_have_a_position() {
    let mut collector = Collector::default();
    let window = 1_000;
    for position in 900..=905 {
        let entry_ns = window * WINDOW_NS + i64::try_from(position).unwrap() * MS / 10;
        let call = Observation { comm_seq: Some(position), ..enqueued_call(2, 4, "all_reduce", 0, entry_ns) };
        collector.push_unnumbered(Observation { tier: 1, ..call });
    }
    let digest = collector.close(window);
    let places: Vec<_> = digest.lanes.iter().map(|lane| (&*lane.func, lane.place)).collect();
    assert_eq!(places, [("all_reduce", Some(905))]);
}

/// Two hosts whose recorders came while the job ran, a collective every 25 ms. Rank 1 gets its CPU back
/// some 4 ms later than rank 0 to leave, so that ends do not coincide, and is on its way for `early_ms`
/// before rank 0 comes. `is_lost`: records that are lost, of which the recorder says so where `is_told`. By
/// how much the numbers of each
/// host's calls differ from the true ones, and of how many calls.
fn numbered(early_ms: i64, is_told: bool, is_lost: impl Fn(i32, i64) -> bool) -> [BTreeMap<i64, u64>; 2] {
    const FIRST: i64 = 1_000;
    const PERIOD: i64 = 25 * MS;
    let begins_ns = FIRST * WINDOW_NS;
    let call = |rank: i32, k: i64| {
        let met_ns = begins_ns + k * PERIOD;
        let (entry_ns, left_ns) = match rank {
            0 => (met_ns, met_ns + k % 2 * MS),
            _ => (met_ns - early_ms * MS, met_ns + (3 + k * 5 % 4) * MS),
        };
        let call = enqueued_call(rank, 2, "all_reduce", 0, entry_ns);
        Observation { tier: 1, duration_ns: left_ns - entry_ns, ..call }
    };
    let hosts = ["a", "b"];
    let clock = Some(ReferenceClock { reference: reference_id("a"), offset_us: 0, bound_us: 300 });
    let mut collectors = [Collector::default(), Collector::default()];
    let mut digests: [Vec<Digest>; 2] = Default::default();
    // The first calls that were seen: another of each rank.
    let mut next = [7, 3];
    for window in FIRST..FIRST + 16 {
        let of_both: Vec<Vec<&Digest>> = digests.iter().map(|of| of.iter().collect()).collect();
        let nodes: Vec<NodeDigests<'_>> =
            hosts.iter().zip(&of_both).map(|(node, digests)| NodeDigests { node, digests }).collect();
        let mut closed = Vec::new();
        for (rank, collector) in (0..).zip(&mut collectors) {
            let next = &mut next[rank as usize];
            while begins_ns + *next * PERIOD + 10 * MS < end_of(window) {
                match is_lost(rank, *next) {
                    true => collector.lost(is_told.into()),
                    false => collector.push_unnumbered(call(rank, *next)),
                }
                *next += 1;
            }
            collector.number(hosts[rank as usize], window, clock, &nodes);
            closed.push(Digest { clock, ..collector.close(window) });
        }
        for (of, digest) in digests.iter_mut().zip(closed) {
            of.push(digest);
        }
    }
    digests.map(|of| {
        let mut shifts: BTreeMap<i64, u64> = BTreeMap::new();
        for digest in &of {
            for block in digest.lanes.iter().flat_map(|lane| &lane.blocks) {
                let size = i64::try_from(block.size()).unwrap();
                let end_us = digest.window * (WINDOW_NS / 1_000) + block.exit_us - begins_ns / 1_000;
                let first = (end_us as f64 / (PERIOD / 1_000) as f64 - (size - 1) as f64 / 2.0).floor() as i64;
                *shifts.entry(block.start.cast_signed() - first).or_default() += block.size();
            }
        }
        shifts
    })
}

#[test]
fn calls_that_overlap_have_one_number_where_ends_do_not_coincide() {
    let [a, b] = numbered(17, false, |_, _| false);
    assert_eq!((a.len(), b.len()), (1, 1), "{a:?} {b:?}");
    assert_eq!(a.keys().next(), b.keys().next());
    assert!(a.values().chain(b.values()).all(|calls| *calls > 200), "{a:?} {b:?}");
    // Rank 1 comes back before rank 0 has left: its calls overlap with two of rank 0's.
    let [a, b] = numbered(24, false, |_, _| false);
    assert_eq!((a.len(), b.len()), (1, 0), "{a:?} {b:?}");
}

#[test]
fn a_lost_record_shifts_no_number_of_calls_that_overlap() {
    for lost in [60, 95, 130, 167] {
        let is_lost = |rank: i32, k: i64| (rank, k) == (1, lost);
        let [a, b] = numbered(17, true, is_lost);
        let right = a.keys().next().unwrap();
        assert_eq!(b.keys().collect::<Vec<_>>(), [right], "{lost}: {a:?} {b:?}");
        assert!(b[right] > 150, "{lost}: {b:?}");
        // One that nobody noticed: at most the run is wrong that it would be in.
        for early_ms in [17, 24] {
            let [_, b] = numbered(early_ms, false, is_lost);
            let wrong: u64 = b.iter().filter(|(shift, _)| *shift != right).map(|(_, calls)| calls).sum();
            assert!(wrong <= 8 && (early_ms > 17 || b[right] > 150), "{lost}: {b:?}");
        }
    }
}
