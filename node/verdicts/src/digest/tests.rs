//! Digests: merging, the wire, and that verdicts from digests are those from rows.

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::blocks::{Point, Sum, cut, level_for};
use super::*;
use crate::simulate::{Grid, Job, Noise, Slow};
use crate::{ClockOffset, Input, Report, Rules, Verdict, analyse};

const MS: i64 = 1_000_000;

fn judged(rows: &Input) -> Report {
    analyse(&replay(rows).0, &Rules::default())
}

/// A job of any shape, as in the simulated verdicts over rows.
fn drawn(rng: &mut StdRng) -> Job {
    let ranks = [2, 3, 4, 8, 8, 16, 32][rng.random_range(0..7)];
    let ranks_per_node = [1, 2, 4, 8][rng.random_range(0..4)];
    let own_ns = [5, 20, 100, 300, 1_000][rng.random_range(0..5)] * MS;
    let seconds = if ranks > 16 { 6 } else { 12 };
    let steps = (seconds * 1_000 * MS / own_ns).clamp(8, 2_400) as usize;
    let noise = match rng.random_range(0..4) {
        0 => Noise::Gaussian(0.01),
        1 => Noise::Gaussian(0.05),
        2 => Noise::LogNormal(0.05),
        _ => Noise::Spikes { sigma: 0.02, chance: 0.01, most: 1.0 },
    };
    let loss = if rng.random_bool(0.5) { 0.01 } else { 0.0 };
    Job { ranks, ranks_per_node, steps, own_ns, noise, loss, transfer_ns: own_ns / 50, ..Job::default() }
}

#[test]
fn verdicts_from_digests_are_those_from_rows() {
    let mut rng = StdRng::seed_from_u64(5);
    let (mut right, mut missed) = (0, Vec::new());
    let jobs = 60;
    for seed in 0..jobs {
        let mut job = drawn(&mut rng);
        let healthy = judged(&job.observe(seed));
        assert!(healthy.verdict.named_ranks().is_empty(), "seed {seed}: {:#?} {job:?}", healthy.verdict);
        let rank = rng.random_range(0..job.ranks);
        let effect = 0.12 * 80f64.powf(rng.random::<f64>());
        job.slow = vec![Slow { rank, extra_ns: (effect * job.own_ns as f64) as i64, from_step: 0 }];
        job.collectives = [1, 1, 4][rng.random_range(0..3)];
        let rows = job.observe(seed);
        let found = judged(&rows).verdict.named_ranks();
        let by_rows = analyse(&rows, &Rules::default()).verdict.named_ranks();
        if found == [rank as i32] || found == by_rows {
            right += 1;
        } else {
            missed.push((seed, rank, found, by_rows, effect, job));
        }
    }
    assert!(f64::from(right) >= 0.97 * jobs as f64, "{right} of {jobs}: {:#?}", &missed[..missed.len().min(3)]);
}

#[test]
fn a_frequent_collective_costs_little_and_loses_no_figure() {
    // 200 collectives a second, on 64 ranks, eight to a host.
    let job = Job {
        ranks: 64,
        ranks_per_node: 8,
        steps: 1_000,
        own_ns: 5 * MS,
        transfer_ns: MS / 10,
        slow: vec![Slow { rank: 21, extra_ns: MS, from_step: 0 }],
        ..Job::default()
    };
    let rows = job.observe(1);
    let (input, bytes) = replay(&rows);
    let seconds = (rows.until_ns - rows.since_ns) as f64 / 1e9;
    let rate = bytes as f64 / 64.0 / seconds;
    assert!(rate <= 100.0, "{rate} bytes per rank and second");
    assert!(input.sampled.len() * 5 < rows.observations.len());
    let (by_digests, by_rows) = (analyse(&input, &Rules::default()), analyse(&rows, &Rules::default()));
    let (Verdict::Rank { culprit: a, .. }, Verdict::Rank { culprit: b, .. }) = (&by_digests.verdict, &by_rows.verdict)
    else {
        panic!("nobody named")
    };
    assert_eq!((a.rank, b.rank), (21, 21));
    assert!((a.share - b.share).abs() < 0.02, "{} {}", a.share, b.share);
    let (a, b) = (by_digests.cost.gpu_seconds_wasted, by_rows.cost.gpu_seconds_wasted);
    // The last of the others is found among means of runs: that is a little early, and said to be an upper bound.
    assert!((0.95..1.4).contains(&(a / b)), "{a} {b}");
    assert!(by_digests.cost.upper_bound && !by_rows.cost.upper_bound);
}

/// Eight ranks on four hosts, of which rank 5 is 30 ms late in steps of 20 ms: `calls` calls that only enqueue in each step, then one
/// synchronise call that waits for all. Digests of a window after the other; on the hosts `syncing` the synchronise calls are seen.
fn enqueued(calls: u64, syncing: &[i32]) -> Report {
    let mut collectors: Vec<Collector> = (0..4).map(|_| Collector::default()).collect();
    let mut until_ns = 0;
    let mut begun = [1_000 * MS; 8];
    for step in 0..240u64 {
        let entered: Vec<i64> = (0..8i64)
            .map(|rank| {
                // some noise, the same at every run
                let noise = (step as i64 * 31 + rank * 17) % 13 * MS / 20;
                begun[rank as usize] + 20 * MS + noise + if rank == 5 { 30 * MS } else { 0 }
            })
            .collect();
        let met = entered.iter().max().unwrap() + calls as i64 * MS / 10 + MS;
        for (rank, entry) in entered.iter().enumerate() {
            let collector = &mut collectors[rank / 2];
            for call in 0..calls {
                collector.push(crate::Observation {
                    node: "".into(),
                    pid: 100 + rank as i64,
                    rank: rank as i32,
                    nranks: Some(8),
                    comm_hash: 7,
                    func: "all_reduce".into(),
                    seq: step * calls + call,
                    entry_ns: entry + call as i64 * MS / 10,
                    duration_ns: MS / 50,
                    tier: 0,
                    library: "nccl".into(),
                    root: None,
                });
            }
            let start = entry + calls as i64 * MS / 10;
            if syncing.contains(&(rank as i32)) {
                collector.synced(100 + rank as u32, start, met - start);
            }
            begun[rank] = met + MS / 10;
        }
        until_ns = met;
    }
    let reference = reference_id("n0");
    let clock = Some(ReferenceClock { reference, offset_us: 0, bound_us: 100 });
    let digests: Vec<Vec<Digest>> = collectors
        .iter_mut()
        .map(|collector| {
            let of = |window| Digest { clock, ..collector.close(window) };
            let digests: Vec<Digest> = (window_of(0)..=window_of(until_ns)).map(of).collect();
            digests.iter().for_each(|digest| assert_eq!(decode(&encode(digest)).as_ref(), Ok(digest)));
            digests
        })
        .collect();
    let names = ["n0", "n1", "n2", "n3"];
    let refs: Vec<Vec<&Digest>> = digests.iter().map(|digests| digests.iter().collect()).collect();
    let heard: Vec<Heard<'_>> = names.iter().zip(&refs).map(|(node, digests)| Heard { node, digests }).collect();
    let mut input = to_input(&heard, reference);
    (input.since_ns, input.until_ns) = (0, until_ns);
    analyse(&input, &Rules::with_windows(WINDOW_NS))
}

#[test]
fn where_calls_only_enqueue_the_synchronise_calls_after_them_are_the_evidence() {
    let all: Vec<i32> = (0..8).collect();
    for calls in [1, 3, 40] {
        let report = enqueued(calls, &all);
        assert_eq!((report.verdict.named_ranks(), report.evidence.tier), (vec![5], 1), "{calls}: {report:#?}");
        let Verdict::Rank { culprit, .. } = &report.verdict else { unreachable!() };
        assert_eq!(culprit.basis, crate::Basis::Waits);
        assert!((25 * MS..35 * MS).contains(&culprit.late_by_ns), "{culprit:?}");
        // 30 of some 51 to 56 ms a step, however many calls that has.
        assert!((0.5..0.65).contains(&culprit.share), "{culprit:?}");
    }
    let report = enqueued(3, &[]);
    assert_eq!((report.verdict.named_ranks(), report.evidence.tier), (vec![5], 0), "by entries: {:#?}", report.verdict);
    // Where one rank alone synchronises, the entries of all are compared.
    let report = enqueued(1, &[0]);
    assert_eq!((report.verdict.named_ranks(), report.evidence.tier), (vec![5], 0), "{:#?}", report.verdict);
}

#[test]
fn groups_and_stages_are_told_apart_as_from_rows() {
    for seed in 0..6 {
        let mut grid = Grid {
            tensor: 2,
            data: 2,
            pipeline: 2,
            microbatches: 4,
            heavy_stage: None,
            job: Job { ranks: 8, ranks_per_node: 4, steps: 40, own_ns: 200 * MS, ..Job::default() },
        };
        assert!(judged(&grid.observe(seed)).verdict.named_ranks().is_empty(), "seed {seed}");
        grid.job.slow = vec![Slow { rank: 5, extra_ns: 100 * MS, from_step: 0 }];
        assert_eq!(judged(&grid.observe(seed)).verdict.named_ranks(), [5], "seed {seed}");
    }
}

#[test]
fn a_job_that_becomes_slow_is_seen_at_once() {
    // From 5 ms to 405 ms a step: runs of many calls must not hide the few slow ones.
    let job = Job {
        steps: 1_020,
        own_ns: 5 * MS,
        transfer_ns: MS / 10,
        slow: vec![Slow { rank: 2, extra_ns: 400 * MS, from_step: 1_000 }],
        ..Job::default()
    };
    let rows = job.observe(3);
    let report = judged(&rows);
    assert_eq!(report.verdict.named_ranks(), [2], "{:#?}", report.verdict);
}

#[test]
fn no_clock_of_the_reference_means_unknown_clocks() {
    let rows = Job::default().observe(1);
    let (mut with, _) = replay(&rows);
    assert_eq!(with.clocks.len(), 4);
    let off = |c: &ClockOffset| c.offset_ns;
    let offsets = |input: &Input| input.clocks.values().map(off).collect::<Vec<_>>();
    let close = offsets(&with).iter().zip(offsets(&rows)).all(|(a, b)| (a - b).abs() < 1_000);
    assert!(close);
    with.clocks.clear();
    assert!(analyse(&with, &Rules::default()).evidence.clock_bound_ns.is_none());
}

#[test]
fn too_large_a_digest_is_cut_and_says_so() {
    let mut digest = Digest { window: 1, ..Digest::default() };
    for pid in 0..400 {
        digest.processes.push(Process { pid, opens: None, activity: None });
        let block = |i: u64| Block {
            start: i,
            level: 0,
            exit_us: 77_777,
            duration_us: 55_555 + i,
            own_us: Some(33_333),
            waited: None,
        };
        digest.lanes.push(lane(pid as usize, (0..6).map(block).collect()));
    }
    let text = encode_within(digest.clone(), 7_000);
    assert!(text.len() <= 7_000, "{}", text.len());
    let read = decode(&text).unwrap();
    assert!(read.cut && !read.lanes.is_empty());
    let small = Digest {
        lanes: vec![lane(0, Vec::new())],
        processes: vec![Process { pid: 1, opens: None, activity: None }],
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
        open: None,
        blocks,
    }
}

fn points(present: &[bool]) -> Vec<Point> {
    let seen = present.iter().enumerate().filter(|(_, p)| **p);
    seen.map(|(i, _)| Point {
        seq: i as u64 + 3,
        exit_us: i as i64 * 500,
        duration_us: 100 + i as u64 % 7,
        own_us: Some(400),
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
        let ((entry, duration, own), other) = (means(a, &mut rng), means(b, &mut rng));
        prop_assert_eq!((entry, duration, own), means(a, &mut rng), "in another order");
        // Means are kept in whole microseconds.
        prop_assert!((entry - other.0).abs() <= 2_000 && (duration - other.1).abs() <= 1_000);
        prop_assert!(own.zip(other.2).is_some_and(|(a, b)| (a - b).abs() <= 1_000));
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
    fn levels_bound_the_runs(calls in 0usize..2_000_000) {
        let level = level_for(calls, 0);
        prop_assert!(calls.div_ceil(1 << level) <= BLOCKS);
        prop_assert!(level == 0 || calls.div_ceil(1 << (level - 1)) > BLOCKS);
    }

    #[test]
    fn no_text_breaks_the_reader(bytes in proptest::collection::vec(0u8..128, 0..400)) {
        let text: String = bytes.into_iter().map(char::from).collect();
        if let Ok(digest) = decode(&text) {
            let blocks: usize = digest.lanes.iter().map(|l| l.blocks.len()).sum();
            prop_assert!(digest.lanes.len() + digest.processes.len() + blocks <= text.len());
            let _ = to_input(&[Heard { node: "n", digests: &[&digest] }], 1);
        }
    }

    #[test]
    fn a_damaged_digest_is_refused_or_bounded(at in 0usize..200, byte in 0u8..128) {
        let rows = Job { steps: 6, ranks: 2, ..Job::default() }.observe(1);
        let mut collector = Collector::default();
        rows.observations.iter().for_each(|seen| collector.push(seen.clone()));
        let window = window_of(rows.until_ns) + 1;
        let text = encode(&collector.close(window));
        let mut damaged = text.into_bytes();
        if let Some(old) = damaged.get_mut(at) {
            *old = byte;
        }
        if let Ok(digest) = decode(&String::from_utf8(damaged).unwrap()) {
            let _ = to_input(&[Heard { node: "n", digests: &[&digest] }], 1);
        }
    }

    #[test]
    fn any_digest_survives_the_way(
        window in -1_000i64..1_000_000_000_000,
        lost in any::<u64>(),
        clock in proptest::option::of((any::<u16>(), -1_000_000_000_000i64..1_000_000_000_000, any::<u32>())),
        lanes in proptest::collection::vec((0usize..3, any::<u64>(), any::<i32>(), "[a-z_]{1,20}", 0u64..1 << 50), 0..8),
        open in proptest::option::of((0u64..1 << 50, 0u64..1 << 40)),
    ) {
        let processes = [9u32, 4, u32::MAX].map(|pid| Process { pid, opens: (pid == 4).then(|| "send".into()), activity: Activity::of_number((pid % 11) as u8) }).into();
        let lanes = lanes
            .into_iter()
            .map(|(process, comm_hash, rank, func, start)| {
                let start = start & !7;
                let block = |start, level, own_us: Option<u64>| {
                    let waited = own_us.filter(|own| *own > 9).map(|own| (own % (1u64 << level)) as u32 + 1);
                    Block { start, level, exit_us: -5 - start as i64, duration_us: start + 9, own_us, waited }
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
                    open: open.map(|(seq, for_ms)| Open { seq, for_ms }),
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
        let digest = Digest { window, clock, wall_ahead_ms: window % 3 * 1_000, lost, unplaced: 4, cut: false, gone, resent, processes, lanes, steps: Vec::new() };
        prop_assert_eq!(decode(&encode(&digest)), Ok(digest));
    }
}

#[test]
fn a_late_rank_is_named_by_digests_though_no_start_was_seen() {
    for seed in 0..6 {
        let late = |nodes: Vec<usize>, slow: Vec<Slow>, enqueues: bool| Job {
            late_nodes: nodes.into_iter().map(|node| (node, 10)).collect(),
            slow,
            enqueues,
            syncs: enqueues,
            clock_drift_ppb: 50_000,
            ..Job::default()
        };
        for nodes in [vec![0, 1, 2, 3], vec![1], vec![0, 2]] {
            for enqueues in [false, true] {
                let slow = vec![Slow { rank: 3, extra_ns: 30 * MS, from_step: 0 }];
                let job = late(nodes.clone(), slow, enqueues);
                assert_eq!(
                    judged(&job.observe(seed)).verdict.named_ranks(),
                    [3],
                    "seed {seed}: {nodes:?} came late, enqueues: {enqueues}"
                );
                let healthy = judged(&late(nodes.clone(), Vec::new(), enqueues).observe(seed));
                assert_eq!(healthy.verdict, Verdict::None, "seed {seed}: {nodes:?} came late");
            }
        }
    }
}

#[test]
fn calls_of_steps_that_are_longer_than_any_wait_get_their_numbers() {
    for (nodes, enqueues) in [(vec![0, 1, 2, 3], false), (vec![1], false), (vec![0, 1, 2, 3], true), (vec![1], true)] {
        // A step takes 12 s; those that wait in it do so for 4 s.
        let job = Job {
            steps: 18,
            own_ns: 8_000 * MS,
            slow: vec![Slow { rank: 3, extra_ns: 4_000 * MS, from_step: 0 }],
            late_nodes: nodes.iter().map(|node| (*node, 2)).collect(),
            enqueues,
            runs_ahead: enqueues,
            syncs: enqueues,
            ..Job::default()
        };
        let named = judged(&job.observe(1)).verdict.named_ranks();
        assert_eq!(named, [3], "{nodes:?} came late, enqueues: {enqueues}");
    }
}

#[test]
fn calls_that_only_enqueue_get_no_numbers_and_nobody_is_said_to_be_behind() {
    let job = Job { late_nodes: vec![(1, 10)], enqueues: true, ..Job::default() };
    let (input, _) = replay(&job.observe(1));
    assert!(input.sampled.iter().all(|cell| &*cell.seen.node != "n1"), "nothing says which calls belong together");
    assert!(input.progress.iter().all(|p| &*p.node != "n1"), "how far it got is not known");
    assert!(!input.unplaced.is_empty());
}

#[test]
fn lanes_that_came_late_survive_the_way_without_saying_how_far_they_got() {
    let job = Job { late_nodes: vec![(1, 10)], ..Job::default() };
    let rows = job.observe(1);
    let mut collector = Collector::default();
    let late = rows.unnumbered.first().unwrap();
    collector.push_unnumbered(late.clone());
    let digest = collector.close(window_of(late.entry_ns + late.duration_ns));
    assert!(digest.lanes.iter().all(|lane| lane.last_seq.is_none()) && !digest.lanes.is_empty());
    assert_eq!(decode(&encode(&digest)), Ok(digest));
}
