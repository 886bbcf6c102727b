//! Calls that only enqueue: what synchronise calls after them and times of the device show, from
//! digests and from rows.

use digest::{
    Collector, Digest, NodeDigests, ReferenceClock, WINDOW_NS, decode, encode, reference_id, to_input, window_of,
};
use verdicts::{Basis, ClockOffset, Input, Observation, Report, Rules, SyncCall, Verdict, analyse};

const MS: i64 = 1_000_000;

/// A call that only enqueues.
fn enqueued_call(rank: i32, nranks: i32, func: &str, seq: u64, entry_ns: i64) -> Observation {
    let call = Observation::test_call(rank, 7, func, seq, entry_ns, MS / 50);
    let pid = 100 + i64::from(rank);
    Observation { pid, nranks: Some(nranks), tier: 0, library: "nccl".into(), ..call }
}

/// Eight ranks on four hosts, of which rank 5 is 30 ms late in steps of 20 ms: `calls` calls that
/// only enqueue in each step, then one synchronise call that waits for all. Digests of a window
/// after the other; on the hosts `syncing` the synchronise calls are seen.
fn enqueued(calls: u64, syncing: &[i32]) -> Report {
    let mut collectors: Vec<Collector> = (0..4).map(|_| Collector::default()).collect();
    let mut until_ns = 0;
    let mut started = [1_000 * MS; 8];
    for step in 0..240u64 {
        let entered: Vec<i64> = (0..8i64)
            .map(|rank| {
                // some noise, the same at every run
                let noise = (step as i64 * 31 + rank * 17) % 13 * MS / 20;
                started[rank as usize] + 20 * MS + noise + if rank == 5 { 30 * MS } else { 0 }
            })
            .collect();
        let met = entered.iter().max().expect("ranks") + calls as i64 * MS / 10 + MS;
        for (rank, entry) in entered.iter().enumerate() {
            let collector = &mut collectors[rank / 2];
            for call in 0..calls {
                let (seq, entry_ns) = (step * calls + call, entry + call as i64 * MS / 10);
                collector.push(enqueued_call(rank as i32, 8, "all_reduce", seq, entry_ns));
            }
            let start = entry + calls as i64 * MS / 10;
            if syncing.contains(&(rank as i32)) {
                collector.synced(100 + rank as u32, start, met - start);
            }
            started[rank] = met + MS / 10;
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
    let nodes: Vec<NodeDigests<'_>> =
        names.iter().zip(&refs).map(|(node, digests)| NodeDigests { node, digests }).collect();
    let mut input = to_input(&nodes, reference);
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
        assert_eq!(culprit.basis, Basis::Waits);
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

/// Four ranks whose hosts enqueue a collective every 50 ms, all at once, and wait for their devices;
/// rank 2's device comes to it 30 ms after the others'. The calls of `with_device` are recorded
/// with the times of the device, but for the first, which came before its first record.
fn on_devices(with_device: &[i32]) -> Report {
    let mut input = Input { since_ns: 0, until_ns: 200 * 50 * MS, ..Input::default() };
    for (step, rank) in (0..200i64).flat_map(|step| (0..4i32).map(move |rank| (step, rank))) {
        let node: std::sync::Arc<str> = format!("n{rank}").into();
        let noise = (step * 31 + i64::from(rank) * 17) % 13 * MS / 20;
        let (enqueued, met) = (step * 50 * MS + noise, step * 50 * MS + 45 * MS);
        let started = enqueued + if rank == 2 { 40 * MS } else { 10 * MS };
        let device = with_device.contains(&rank) && step > 0;
        let call = enqueued_call(rank, 4, "all_reduce", step as u64, enqueued);
        let pid = call.pid;
        input.observations.push(match device {
            true => Observation { entry_ns: started, duration_ns: met - started, tier: 3, ..call },
            false => call,
        });
        let start_ns = enqueued + MS / 10;
        input.syncs.push(SyncCall { node, pid, start_ns, duration_ns: met - start_ns });
    }
    input.drop_waits_of_devices();
    input.clocks = (0..4).map(|rank| (format!("n{rank}"), ClockOffset::steady(0, 10_000))).collect();
    analyse(&input, &Rules::with_windows(WINDOW_NS))
}

#[test]
fn a_slow_device_is_named_by_its_times_and_nobody_is_cleared_without_them() {
    let report = on_devices(&[0, 1, 2, 3]);
    assert_eq!((report.verdict.named_ranks(), report.evidence.tier), (vec![2], 3), "{report:#?}");
    let report = on_devices(&[]);
    let Verdict::Unknown { why } = &report.verdict else { panic!("{report:#?}") };
    assert!(why.contains("of its time waiting for its GPU"), "{why}");
    // A rank without the plugin is not compared with the others' devices, and never named for it.
    let report = on_devices(&[0, 1, 2]);
    assert_eq!((report.verdict.named_ranks(), report.evidence.tier), (vec![2], 3), "{report:#?}");
    let report = on_devices(&[0, 1]);
    assert!(!report.verdict.named_ranks().contains(&3), "{report:#?}");
    let report = on_devices(&[0]);
    assert_eq!(report.verdict.named_ranks(), Vec::<i32>::new(), "{report:#?}");
}
