//! What a host records apart from its jobs' calls: samples, counters, requests, events, calls that
//! were only counted, losses, verdicts and the audit; in the proportions of a training host.

use std::borrow::Cow;

use node_bpf::{
    BlockIo, CallTally, FabricCounter, GpuSample, HostRecord, HostSample, LossCount, MemoryEvent, NetEvent,
    ProcessEvent, Record, RequestOf, RequestSeen, RequestStretch, RequestSum, SelfStat, SymbolCall,
};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use store::{Audit, ClockOffsetSeen, Finding};

use super::{Day, LOCAL_RANKS, Made, Phase};

/// The rows of a burst that are not the jobs' calls.
pub(super) fn of_burst(day: &Day, burst: u64) -> Vec<Made> {
    // Another stream of numbers than that of the calls.
    let mut rng = StdRng::seed_from_u64(!day.seed_of(burst, true));
    let mut made = Vec::new();
    let begin_ns = day.burst_ns(burst);
    let length_ns = day.steps_in(burst).cast_signed() * day.step_ns;
    let busy = day.phase(burst) != Phase::Idle;
    for sample in 0..(length_ns / day.sample_ns).max(1) {
        let ts_ns = begin_ns + sample * day.sample_ns;
        samples(day, ts_ns, busy, &mut rng, &mut made);
        if sample % 10 == 0 {
            counters(day, burst, ts_ns, &mut rng, &mut made);
        }
    }
    if busy {
        for step in 0..day.steps_in(burst) {
            let ts_ns = begin_ns + step.cast_signed() * day.step_ns;
            rare(day, ts_ns, &mut rng, &mut made);
        }
    }
    once(day, begin_ns, &mut rng, &mut made);
    made.push(Made::Clock(ClockOffsetSeen {
        ts_ns: begin_ns,
        measured_by: Day::node(day.host),
        peer: Day::node(0),
        offset_ns: 0,
        bound_ns: if day.host == 0 { 0 } else { 40_000 + i64::from(day.host) * 100 },
        drift_ppb: 0,
        drift_bound_ppb: 2_000,
    }));
    made
}

fn host(record: HostRecord) -> Made {
    Made::Record(Record::Host(record))
}

/// A process of a rank, as `calls` numbers them.
fn process(rng: &mut StdRng) -> (u32, i32) {
    let local = rng.random_range(0..LOCAL_RANKS);
    (4000 + local, local.cast_signed())
}

/// Every second: the host, its GPUs, and the calls that the kernel counted.
fn samples(day: &Day, ts_ns: i64, busy: bool, rng: &mut StdRng, made: &mut Vec<Made>) {
    let load = if busy { 0.8 } else { 0.02 };
    made.push(host(HostRecord::Host(HostSample {
        ts_ns,
        cpu_busy_pct: Some((100.0 * load * rng.random::<f64>()).round()),
        cpu_iowait_pct: Some((4.0 * rng.random::<f64>()).round() / 4.0),
        steal_pct: Some(0.0),
        load_1m: Some(f64::from(rng.random_range(0..64_i32)) * load),
        memory_available_bytes: Some(rng.random_range(200..900_u64) << 30),
        memory_total_bytes: Some(1 << 40),
        swap_used_bytes: Some(0),
        psi_cpu_some_us: Some(rng.random_range(0..200_000)),
        psi_io_some_us: Some(rng.random_range(0..20_000)),
        psi_io_full_us: Some(rng.random_range(0..10_000)),
        psi_memory_some_us: Some(0),
        psi_memory_full_us: Some(0),
    })));
    for gpu in 0..LOCAL_RANKS {
        let throttled = rng.random_bool(0.01);
        made.push(host(HostRecord::Gpu(GpuSample {
            ts_ns,
            gpu,
            uuid: Some(format!("GPU-{:08x}-{gpu}", day.host)),
            model: Some("Model X".to_owned()),
            utilisation_pct: Some(if busy { rng.random_range(60..=100) } else { 0 }),
            memory_used_bytes: Some(rng.random_range(60..80_u64) << 30),
            memory_total_bytes: Some(80 << 30),
            power_mw: Some(rng.random_range(300_000..700_000)),
            temperature_c: Some(rng.random_range(40..85)),
            sm_clock_mhz: Some(if throttled { 1_200 } else { 1_980 }),
            mem_clock_mhz: Some(2_619),
            throttle_reasons: Some(if throttled { 0x40 } else { 0 }),
            throttle: Some(if throttled { "hw_thermal_slowdown" } else { "" }.to_owned()),
        })));
        if busy {
            for func in ["cudaLaunchKernel", "cudaMemcpyAsync"] {
                made.push(Made::Record(Record::CallTally(tally(ts_ns, gpu, func, rng))));
            }
        }
    }
}

fn tally(ts_ns: i64, local: u32, func: &'static str, rng: &mut StdRng) -> CallTally {
    let (fast, slow) = (rng.random_range(500..3_000_u64), rng.random_range(1..40_u64));
    CallTally {
        ts_ns,
        source: "cuda",
        func: Cow::Borrowed(func),
        pid: 4000 + local,
        rank: Some(local.cast_signed()),
        cgroup_id: 0x100 + 4000,
        count: fast + slow,
        sum_ns: fast * 4_100 + slow * 65_000,
        min_ns: 3_900,
        max_ns: 66_000,
        bytes: func.contains("Memcpy").then_some((fast + slow) << 16),
        buckets: vec![(4_100, fast), (65_000, slow)],
    }
}

/// Every ten seconds: ports of the fabric, and what recording costs.
fn counters(day: &Day, burst: u64, ts_ns: i64, rng: &mut StdRng, made: &mut Vec<Made>) {
    for port in 0..2 {
        let device = format!("mlx5_{port}");
        for counter in ["port_xmit_data", "port_rcv_data", "port_xmit_wait"] {
            let delta = rng.random_range(0..1_u64 << 33);
            let value = (burst + 1) << 36 | delta;
            let counter = counter.to_owned();
            made.push(host(HostRecord::Fabric(FabricCounter {
                ts_ns,
                device: device.clone(),
                port: Some(1),
                counter,
                value,
                delta: Some(delta),
            })));
        }
    }
    let elapsed_ns = (ts_ns - day.since_ns()) as f64;
    for (name, share) in [("agent.cpu", 0.004), ("program.sched_switch.cpu", 0.002), ("program.uprobe.cpu", 0.001)] {
        made.push(host(HostRecord::SelfStat(SelfStat {
            ts_ns,
            name: name.to_owned(),
            value: (elapsed_ns * share).round(),
            unit: "ns",
        })));
    }
}

/// A request to a server of models that a rank's process is, too, and the sum of its second.
fn request(ts_ns: i64, rng: &mut StdRng, made: &mut Vec<Made>) {
    let (pid, _) = process(rng);
    let duration_ns = rng.random_range(1_000_000..900_000_000_i64);
    let answered = rng.random_bool(0.95);
    let of = RequestOf {
        pid,
        service: ["chat", "embed"][rng.random_range(0..2)].into(),
        tenant: "job:train-7".into(),
        protocol: "http/1",
        method: Some("POST"),
        route: rng.random_bool(0.9).then(|| "/v1/completions".into()),
        cgroup_id: 0x100 + 4000,
    };
    let (connection, number) = (rng.random_range(1..9_000), rng.random_range(1..50));
    made.push(Made::Record(Record::Request(Box::new(RequestSeen {
        ts_ns,
        duration_ns: answered.then_some(duration_ns),
        first_byte_ns: answered.then_some(duration_ns / 3),
        queued_ns: Some(4_000_000 * rng.random_range(0..3)),
        of: of.clone(),
        tid: pid,
        sent_tid: answered.then_some(pid),
        status: answered.then_some(200),
        grpc_status: None,
        port: Some(8000),
        peer: Some("10.0.9.1".to_owned()),
        connection,
        number,
        bytes_in: 900,
        bytes_out: 12_000,
        sends: 40,
        gap_ns: answered.then_some(duration_ns / 20),
        cpu_ns: answered.then_some(duration_ns / 4),
        run_delay_ns: answered.then_some(duration_ns / 50),
        kept: "all",
        stands_for: 1,
    }))));
    if answered {
        let halves = [("ran", None, "api"), ("asleep", Some("timer"), "engine")];
        for (place, (kind, reason, thread)) in (0..).zip(halves) {
            made.push(Made::Record(Record::RequestStretch(Box::new(RequestStretch {
                ts_ns,
                connection,
                number,
                pid,
                place,
                after_ns: i64::from(place) * (duration_ns / 2),
                duration_ns: duration_ns / 2,
                parts: 1,
                before_first_byte: true,
                kind,
                reason,
                woken_by: reason.map(|_| "interrupt"),
                of_pid: Some(pid),
                process: Some("python3 serve.py".to_owned()),
                tid: Some(pid),
                thread: Some(thread.to_owned()),
                ..RequestStretch::default()
            }))));
        }
    }
    let count = u64::from(answered);
    let ns = if answered { duration_ns.unsigned_abs() } else { 0 };
    made.push(Made::Record(Record::RequestSum(Box::new(RequestSum {
        ts_ns: ts_ns / 1_000_000_000 * 1_000_000_000,
        of,
        count: 1,
        errors: 1 - count,
        unanswered: 1 - count,
        sum_ns: ns,
        min_ns: ns,
        max_ns: ns,
        queued_ns: 0,
        bytes_in: 900,
        bytes_out: 12_000,
        durations: if answered { vec![(ns, 1)] } else { vec![] },
        first_bytes: if answered { vec![(ns / 3, 1)] } else { vec![] },
    }))));
}

/// What happens now and then in a step: requests, faults, retransmissions, children, probed
/// functions.
fn rare(day: &Day, ts_ns: i64, rng: &mut StdRng, made: &mut Vec<Made>) {
    let at = |rng: &mut StdRng| ts_ns + rng.random_range(0..day.step_ns);
    let cgroup_id = 0x100 + 4000;
    if rng.random_bool(0.1) {
        let (pid, rank) = process(rng);
        let op = ["read", "write", "flush"][rng.random_range(0..3)];
        made.push(host(HostRecord::Block(BlockIo {
            ts_ns: at(rng),
            duration_ns: 1_000_000 + rng.random_range(0..20_000_000),
            queue_ns: rng.random_bool(0.9).then_some(4_000),
            pid,
            tid: pid,
            rank: Some(rank),
            device: "nvme0n1".to_owned(),
            op,
            bytes: 4096 * rng.random_range(0..256),
            error: 0,
            cgroup_id,
        })));
    }
    if rng.random_bool(0.05) {
        let (pid, rank) = process(rng);
        made.push(Made::Record(Record::SymbolCall(SymbolCall {
            ts_ns: at(rng),
            duration_ns: rng.random_range(1_000..9_000_000),
            pid,
            tid: pid,
            rank: Some(rank),
            library: "libdata.so".to_owned(),
            symbol: ["load_batch", "decode"][rng.random_range(0..2)].to_owned(),
            ret: rng.random_bool(0.5).then(|| rng.random_range(0..100)),
            cgroup_id,
        })));
    }
    if rng.random_bool(0.05) {
        let ts_ns = at(rng);
        request(ts_ns, rng, made);
    }
    if rng.random_bool(0.03) {
        let (pid, rank) = process(rng);
        let event = if rng.random_bool(0.95) { "tcp_retransmit_skb" } else { "ib_port_err" };
        let tcp = event.starts_with("tcp");
        made.push(Made::Record(Record::Net(NetEvent {
            ts_ns: at(rng),
            event,
            pid: rng.random_bool(0.9).then_some(pid),
            rank: Some(rank),
            saddr: if tcp { format!("10.0.0.{}", day.host + 1) } else { "mlx5_0".to_owned() },
            sport: if tcp { rng.random_range(20_000..60_000) } else { 1 },
            daddr: if tcp { format!("10.0.0.{}", rng.random_range(1..=day.hosts)) } else { String::new() },
            dport: if tcp { 29_500 } else { 0 },
            state: Some(if tcp { 1 } else { 10 }),
            segs: tcp.then(|| rng.random_range(1..10)),
            cgroup_id,
        })));
    }
    if rng.random_bool(0.004) {
        let (pid, rank) = process(rng);
        let reclaim = rng.random_bool(0.3);
        made.push(host(HostRecord::Memory(MemoryEvent {
            ts_ns: at(rng),
            duration_ns: Some(rng.random_range(50_000..5_000_000)),
            count: 1,
            event: if reclaim { "direct_reclaim" } else { "major_fault" },
            pid,
            tid: Some(pid),
            rank: Some(rank),
            bytes: reclaim.then(|| 4096 * rng.random_range(1..64)),
            detail: None,
            cgroup_id: Some(cgroup_id),
        })));
    }
    if rng.random_bool(0.004) {
        let (pid, rank) = process(rng);
        let ts_ns = at(rng);
        let child = rng.random_range(20_000..30_000);
        for (event, after_ns, exit_code) in [("fork", 0, None), ("exec", 300_000, None), ("exit", 9_000_000, Some(0))] {
            made.push(host(HostRecord::Life(ProcessEvent {
                ts_ns: ts_ns + after_ns,
                event,
                pid: child,
                parent_pid: Some(pid),
                comm: "nvidia-smi".to_owned(),
                exit_code,
                signal: None,
                rank: Some(rank),
                cgroup_id,
            })));
        }
    }
}

/// Once a burst: what was asked; now and then a loss or a verdict.
fn once(day: &Day, ts_ns: i64, rng: &mut StdRng, made: &mut Vec<Made>) {
    made.push(Made::Audit(Audit {
        ts_ns,
        via: "mesh",
        who: Day::node((day.host + 1) % day.hosts.max(1)),
        role: "node",
        pid: None,
        kind: "task",
        question: Some("SELECT node, func, count(*) FROM collectives GROUP BY node, func".to_owned()),
        outcome: "answered",
        reason: None,
        duration_ns: rng.random_range(1_000_000..90_000_000),
        rows: Some(rng.random_range(1..40)),
        bytes: Some(rng.random_range(100..4_000)),
    }));
    if rng.random_bool(0.05) {
        let (probe, reason) = [("sched_switch", "ringbuf"), ("collectives", "map_full")][rng.random_range(0..2)];
        let lost = rng.random_range(1..5_000);
        made.push(Made::Record(Record::Loss(LossCount {
            since_ns: None,
            ts_ns,
            probe: probe.to_owned(),
            reason: reason.to_owned(),
            lost,
        })));
    }
    if day.host == 0 && rng.random_bool(0.02) {
        let verdict = if rng.random_bool(0.5) { "rank" } else { "none" };
        made.push(Made::Finding(Finding {
            ts_ns,
            since_ns: ts_ns - 60_000_000_000,
            until_ns: ts_ns,
            verdict: verdict.to_owned(),
            rank: (verdict == "rank").then_some(5),
            culprit_node: (verdict == "rank").then(|| Day::node(0)),
            job_id: Some("4711".to_owned()),
            lateness_ns: Some(rng.random_range(1_000_000..90_000_000)),
            score: Some(f64::from(rng.random_range(4..40_i32))),
            detail: "made".to_owned(),
            ..Finding::default()
        }));
    }
}
