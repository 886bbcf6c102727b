//! The jobs of a day, call by call. Three jobs: `4711` trains with NCCL on every rank of every
//! host, its calls only enqueue and synchronise calls follow them; later `4712` (MPI) has the lower
//! half of each host's ranks and `train-7` (NCCL, device times of its plugin) the upper half. In
//! the day's last two hundredths a rank of `train-7` is late.

use std::sync::{Arc, LazyLock};

use node_bpf::{Collective, CudaCall, Library, OffCpu, ProcessSeen, Record};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::{CALLS_A_STEP, Day, Made, Phase};

/// Rank of `train-7` that is late at the end of the day; it runs on host 1, or on the only host.
pub const LATE_RANK: u32 = 5;
/// By how much, in hundredths of a step.
const LATE_PERCENT: i64 = 25;

/// A job on this host.
#[derive(Debug, Clone, Copy)]
struct Job {
    id: &'static str,
    library: Library,
    tier: u8,
    /// Its first rank of those on a host, and how many a host has.
    first_local: u32,
    local: u32,
    pid: u32,
    /// Burst in which it began.
    began: u64,
}

const TRAINING: Job =
    Job { id: "4711", library: Library::Nccl, tier: 0, first_local: 0, local: 8, pid: 4000, began: 0 };

/// The jobs that run in a burst.
fn jobs(day: &Day, burst: u64) -> Vec<Job> {
    match day.phase(burst) {
        Phase::Training => vec![TRAINING],
        Phase::Idle | Phase::Down => Vec::new(),
        Phase::Shared => {
            let began = day.restart();
            vec![
                Job { id: "4712", library: Library::Mpi, tier: 1, first_local: 0, local: 4, pid: 5000, began },
                Job { id: "train-7", library: Library::Nccl, tier: 3, first_local: 4, local: 4, pid: 6000, began },
            ]
        }
    }
}

/// The functions of a step; the first and the last are of all ranks, the others of a host's ranks
/// (or pairs).
fn functions(library: Library) -> [&'static str; CALLS_A_STEP as usize] {
    match library {
        Library::Mpi => ["allreduce", "send", "recv", "barrier"],
        Library::Nccl | Library::Rccl | Library::Gloo => ["all_reduce", "all_gather", "reduce_scatter", "all_reduce"],
    }
}

impl Job {
    /// A communicator's hash: of all ranks, or of one host's.
    fn comm(&self, host: Option<u32>) -> u64 {
        let id = self
            .id
            .bytes()
            .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3));
        host.map_or(id, |host| id.rotate_left(17) ^ u64::from(host + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}

/// The calls of a burst, and what goes with them, in order of time within a step.
pub(super) fn of_burst(day: &Day, burst: u64) -> Vec<Made> {
    let (mut of_all, mut own) =
        (StdRng::seed_from_u64(day.seed_of(burst, false)), StdRng::seed_from_u64(day.seed_of(burst, true)));
    let mut made = Vec::new();
    let jobs = jobs(day, burst);
    for job in jobs.iter().filter(|job| job.began == burst) {
        made.extend((0..job.local).map(|local| Made::Record(Record::Process(process(day, job, local)))));
    }
    for step in 0..day.steps_in(burst) {
        for job in &jobs {
            // Drawn for every host in the same order: when the step begins, and how long its work
            // takes.
            let drawn: [f64; 3] = of_all.random();
            let step = Step {
                number: (burst - job.began) * day.steps + step,
                begin_ns: day.burst_ns(burst) + step.cast_signed() * day.step_ns + (drawn[0] * 1e6) as i64,
                // One step in 2,000 takes long.
                work_ns: if drawn[1] < 0.0005 { 150_000_000 } else { 40_000 + (drawn[2] * 4e5) as i64 },
                late: burst * 50 >= day.bursts * 49 && job.id == "train-7",
                attached_late: job.id == "4712" && burst == job.began,
            };
            step.calls(day, job, &mut own, &mut made);
        }
    }
    made
}

/// Where calls are made.
static SITES: LazyLock<[Arc<str>; 4]> = LazyLock::new(|| {
    [
        "step+0x1f2 (train)",
        "reduce_gradients+0x88 (train)",
        "c10d::ProcessGroup::collective+0x31c (libtorch_cuda.so)",
        "libfoo.so+0x4411a",
    ]
    .map(Arc::from)
});

/// A step of a job.
struct Step {
    number: u64,
    begin_ns: i64,
    work_ns: i64,
    late: bool,
    /// Recording began while the job ran: its calls have no number.
    attached_late: bool,
}

impl Step {
    fn calls(&self, day: &Day, job: &Job, own: &mut StdRng, made: &mut Vec<Made>) {
        let world = day.hosts * job.local;
        let late_rank = LATE_RANK % world;
        let late_ns = if self.late { day.step_ns * LATE_PERCENT / 100 } else { 0 };
        let pause_ns = day.step_ns / 8;
        for (place, func) in functions(job.library).into_iter().enumerate() {
            let of_all = place == 0 || place + 1 == functions(job.library).len();
            let meet_ns = self.begin_ns + late_ns + place as i64 * pause_ns;
            let end_ns = meet_ns + self.work_ns;
            let root = matches!(func, "send" | "recv");
            let site = &SITES[place % SITES.len()];
            for local in 0..job.local {
                let rank = day.host * job.local + local;
                let noise_ns = (own.random::<f64>() * 30_000.0) as i64;
                // Only before the first call of a step is a rank late; the others wait for it.
                let early_ns = if place == 0 && rank != late_rank { late_ns } else { 0 };
                let entry_ns = meet_ns - early_ns + noise_ns;
                let enqueues = job.tier == 0;
                let pid = job.pid + local;
                let duration_ns = if enqueues { 8_000 + noise_ns / 4 } else { (end_ns - entry_ns).max(1_000) };
                let count = 1_u64 << (10 + (self.number + place as u64) % 14);
                let float = if job.library == Library::Mpi { ("double", 8) } else { ("bfloat16", 2) };
                let calls_of_func = if place + 1 == 4 && functions(job.library)[0] == func { 1 } else { 0 };
                let each = if functions(job.library)[0] == functions(job.library)[3] && of_all { 2 } else { 1 };
                // Two collectives of a step are of all ranks, the other two of a host's or pairs'.
                let comm_seq = (!self.attached_late && !root).then_some(self.number * 2 + place as u64 / 2);
                made.push(Made::Record(Record::Collective(Collective {
                    ts_ns: entry_ns,
                    duration_ns,
                    pid,
                    tid: pid,
                    rank: Some(if of_all || root { rank } else { local }.cast_signed()),
                    local_rank: Some((job.first_local + local).cast_signed()),
                    nranks: Some(if of_all || root { world } else { job.local }.cast_signed()),
                    comm_hash: Some(job.comm(if of_all || root { None } else { Some(day.host) })),
                    func,
                    seq: (!self.attached_late).then_some(self.number * each + calls_of_func),
                    comm_seq,
                    count: Some(count),
                    datatype: (func != "barrier").then_some(float.0),
                    bytes: Some(if func == "barrier" { 0 } else { count * float.1 }),
                    reduce_op: func.contains("reduce").then_some("sum"),
                    root: root.then(|| (rank ^ 1).cast_signed()),
                    tag: None,
                    stream: (job.library != Library::Mpi).then_some(0x7F00_0000_1000 + u64::from(local)),
                    library: job.library,
                    tier: job.tier,
                    ret: Some(0),
                    cgroup_id: 0x100 + u64::from(job.pid),
                    job_id: Some(job.id.into()),
                    captured: (job.library != Library::Mpi).then_some(false),
                    site: Some(Arc::clone(site)),
                })));
                if enqueues && place == 3 {
                    made.push(Made::Record(Record::CudaCall(synchronise(job, local, entry_ns, end_ns))));
                }
                // Four of five steps of a rank end with time off the CPU.
                if place == 3 && own.random_bool(0.8) {
                    made.push(Made::Record(Record::OffCpu(off_cpu(job, local, entry_ns, own))));
                }
            }
        }
    }
}

fn synchronise(job: &Job, local: u32, entry_ns: i64, end_ns: i64) -> CudaCall {
    let ts_ns = entry_ns + 15_000;
    CudaCall {
        ts_ns,
        duration_ns: (end_ns - ts_ns).max(2_000),
        pid: job.pid + local,
        tid: job.pid + local,
        rank: Some(local.cast_signed()),
        api: "runtime",
        func: "cudaStreamSynchronize",
        bytes: None,
        kind: Some("after_collective"),
        stream: Some(0x7F00_0000_1000 + u64::from(local)),
        ret: 0,
        cgroup_id: 0x100 + u64::from(job.pid),
    }
}

fn off_cpu(job: &Job, local: u32, after_ns: i64, own: &mut StdRng) -> OffCpu {
    let duration_ns = 20_000 + (own.random::<f64>() * 3e6) as i64;
    let preempted = own.random_bool(0.1);
    let (reason, wchan) = match own.random_range(0..4) {
        _ if preempted => ("preempted", None),
        0 => ("lock", Some("futex_wait_queue")),
        1 => ("sleep", Some("hrtimer_nanosleep")),
        2 => ("network", Some("sk_wait_data")),
        _ => ("io", Some("folio_wait_bit_common")),
    };
    OffCpu {
        ts_ns: after_ns + 200_000,
        duration_ns,
        pid: job.pid + local,
        tid: job.pid + local + 100 * own.random_range(0..3),
        cpu: own.random_range(0..64),
        voluntary: !preempted,
        next_pid: if preempted { 900 } else { 0 },
        next_comm: if preempted { "backupd" } else { "swapper/0" }.to_owned(),
        rank: Some(local.cast_signed()),
        cgroup_id: 0x100 + u64::from(job.pid),
        reason,
        run_delay_ns: Some(if preempted { duration_ns } else { duration_ns / 50 }),
        wchan: wchan.map(str::to_owned),
    }
}

fn process(day: &Day, job: &Job, local: u32) -> ProcessSeen {
    ProcessSeen {
        pid: job.pid + local,
        start_ns: day.burst_ns(job.began) - 2_000_000_000,
        exe: if job.library == Library::Mpi { "/opt/app/lmp" } else { "/usr/bin/python3.12" }.to_owned(),
        comm: if job.library == Library::Mpi { "lmp" } else { "python3" }.to_owned(),
        rank: Some((day.host * job.local + local).cast_signed()),
        local_rank: Some((job.first_local + local).cast_signed()),
        world_size: Some((day.hosts * job.local).cast_signed()),
        job_id: Some(job.id.into()),
        step_id: Some("0".to_owned()),
        container_id: None,
        pod: None,
        cgroup_path: format!("/system.slice/job_{}", job.id),
        user: "olga".to_owned(),
        uid: Some(1000),
        cgroup_id: Some(0x100 + u64::from(job.pid)),
    }
}
