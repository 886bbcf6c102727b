//! Stores of a job that has ended, one a host, as agents leave them: ranks that compute and meet in
//! an all_reduce, of which one is late because another task takes its CPU.

use std::path::Path;
use std::time::Duration;

use record::{
    BlockIo, Collective, CudaCall, GpuSample, HostRecord, HostSample, Library, MemoryEvent, NetEvent, OffCpu,
    ProcessEvent, ProcessSeen, Record,
};
use store::{Annotation, Finding, Ingest, Store, StoreConfig};

use super::requests;

const MS: i64 = 1_000_000;
const SECOND: i64 = 1_000 * MS;

/// 2026-01-01 UTC.
pub const T0: i64 = 1_767_225_600 * SECOND;

/// A name that some process gave itself.
pub const HOSTILE: &str = "<img src=x onerror=alert(1)>";

/// A job that has ended.
#[derive(Debug, Clone, Copy)]
pub struct EndedJob {
    pub hosts: u32,
    /// Ranks of a host.
    pub local: u32,
    pub steps: i64,
    /// From step to step, unless somebody is late.
    pub step_ns: i64,
    /// The late rank, and by how much, from the middle of the job on.
    pub late: Option<(u32, i64)>,
    pub id: &'static str,
    /// When it begins, Unix nanoseconds.
    pub from_ns: i64,
    /// Its hosts also serve requests ([`requests`]).
    pub serves: bool,
}

impl EndedJob {
    /// Eight ranks on two hosts for half a minute, rank 5 late.
    pub fn small() -> Self {
        let late = Some((5, 100 * MS));
        Self { hosts: 2, local: 4, steps: 100, step_ns: 200 * MS, late, id: "4711", from_ns: T0, serves: false }
    }

    /// Its number among jobs that begin one after the other, minutes apart.
    fn number(&self) -> u64 {
        u64::try_from((self.from_ns - T0) / (60 * SECOND)).expect("none is earlier")
    }

    fn late_ns(&self, rank: u32, step: i64) -> i64 {
        match self.late {
            Some((late, by_ns)) if late == rank && step * 2 >= self.steps => by_ns,
            _ => 0,
        }
    }

    /// When the last step ends.
    pub fn until_ns(&self) -> i64 {
        self.from_ns + self.begin_ns(self.steps)
    }

    fn begin_ns(&self, step: i64) -> i64 {
        let late: i64 = self.late.map_or(0, |(_, by_ns)| by_ns * (step - self.steps / 2).max(0));
        step * self.step_ns + late
    }

    /// Writes `n0.db`, `n1.db`, … into `dir`.
    pub fn write(&self, dir: &Path) {
        let ranks = 0..self.hosts * self.local;
        let lasts: Vec<i64> = (0..self.steps)
            .map(|step| ranks.clone().map(|rank| self.entry_ns(rank, step)).max().expect("ranks"))
            .collect();
        for host in 0..self.hosts {
            // These rows are older than the clock's present: no retention by age.
            let config = StoreConfig { max_age: Duration::from_secs(100 * 365 * 86_400), ..StoreConfig::default() };
            let store = Store::open(dir.join(format!("n{host}.db")), config).expect("a store");
            let ingest = store.ingest();
            for local in 0..self.local {
                self.rank(&ingest, host * self.local + local, local, &lasts);
            }
            self.host(&ingest, host);
            if self.serves {
                requests::write(&ingest, self.until_ns());
                ingest.finding(requests::finding(host, self.until_ns()));
            }
            drop(ingest);
            store.close();
        }
    }

    /// When a rank enters the collective of a step.
    fn entry_ns(&self, rank: u32, step: i64) -> i64 {
        let compute = 150 * MS + i64::from((rank * 7 + u32::try_from(step).expect("few") * 13) % 11) * MS / 5;
        self.from_ns + self.begin_ns(step) + compute + self.late_ns(rank, step)
    }

    fn rank(&self, ingest: &Ingest, rank: u32, local: u32, lasts: &[i64]) {
        let pid = 1_000 + 100 * u32::try_from(self.number()).expect("few jobs") + local;
        let is_late = self.late.is_some_and(|(late, _)| late == rank);
        ingest.record(Record::Process(ProcessSeen {
            pid,
            start_ns: self.from_ns,
            comm: if is_late { HOSTILE.to_owned() } else { "python".to_owned() },
            rank: i32::try_from(rank).ok(),
            local_rank: i32::try_from(local).ok(),
            job_id: Some(self.id.to_owned()),
            ..ProcessSeen::default()
        }));
        for step in 0..self.steps {
            let (ts_ns, last) = (self.entry_ns(rank, step), lasts[usize::try_from(step).expect("few")]);
            let seq = u64::try_from(step).ok();
            ingest.record(Record::Collective(Collective {
                ts_ns,
                duration_ns: last + MS - ts_ns,
                pid,
                tid: pid,
                rank: i32::try_from(rank).ok(),
                local_rank: i32::try_from(local).ok(),
                nranks: i32::try_from(self.hosts * self.local).ok(),
                comm_hash: Some(0xFEDC_0000_0000_0001 + self.number()),
                func: "all_reduce",
                seq,
                comm_seq: seq,
                count: Some(1024),
                datatype: Some("float32"),
                bytes: Some(4_096),
                reduce_op: Some("sum"),
                library: Library::Mpi,
                tier: 1,
                ret: Some(0),
                cgroup_id: 1,
                job_id: Some(self.id.into()),
                ..Collective::default()
            }));
            ingest.record(Record::CudaCall(CudaCall {
                ts_ns: ts_ns - 20 * MS,
                duration_ns: 9 * MS,
                pid,
                tid: pid,
                rank: i32::try_from(rank).ok(),
                api: "runtime",
                func: "cudaMemcpyAsync",
                bytes: Some(1 << 20),
                kind: Some("host_to_device"),
                stream: Some(7),
                ret: 0,
                cgroup_id: 1,
            }));
            let late_ns = self.late_ns(rank, step);
            if late_ns > 0 {
                ingest.record(Record::OffCpu(OffCpu {
                    ts_ns: ts_ns - late_ns - 30 * MS,
                    duration_ns: late_ns,
                    pid,
                    tid: pid,
                    cpu: 3,
                    voluntary: false,
                    next_pid: 999,
                    next_comm: HOSTILE.to_owned(),
                    rank: i32::try_from(rank).ok(),
                    cgroup_id: 1,
                    reason: "preempted",
                    run_delay_ns: Some(late_ns),
                    wchan: None,
                }));
            }
        }
        // Two requests at once, neither of them within the other; a fault; the end.
        for (begin, length) in [(10, 20), (20, 25)] {
            ingest.record(Record::Host(HostRecord::Block(BlockIo {
                ts_ns: self.from_ns + begin * MS,
                duration_ns: length * MS,
                queue_ns: Some(MS),
                pid,
                tid: pid,
                rank: i32::try_from(rank).ok(),
                device: "sda".to_owned(),
                op: "read",
                bytes: 65_536,
                error: 0,
                cgroup_id: 1,
            })));
        }
        ingest.record(Record::Host(HostRecord::Memory(MemoryEvent {
            ts_ns: self.from_ns + 50 * MS,
            duration_ns: Some(3 * MS),
            count: 1,
            event: "major_fault",
            pid,
            tid: Some(pid),
            rank: i32::try_from(rank).ok(),
            bytes: None,
            detail: None,
            cgroup_id: Some(1),
        })));
        ingest.record(Record::Host(HostRecord::Life(ProcessEvent {
            ts_ns: self.until_ns(),
            event: "exit",
            pid,
            parent_pid: Some(1),
            comm: "python".to_owned(),
            exit_code: Some(0),
            signal: None,
            rank: i32::try_from(rank).ok(),
            cgroup_id: 1,
        })));
    }

    fn host(&self, ingest: &Ingest, host: u32) {
        let seconds = (self.until_ns() - self.from_ns) / SECOND;
        let every = usize::try_from(1 + seconds / 50_000).expect("few");
        for second in (0..seconds).step_by(every) {
            let ts_ns = self.from_ns + second * SECOND;
            let throttled = host == 1 && second % 10 == 3;
            ingest.record(Record::Host(HostRecord::Gpu(GpuSample {
                ts_ns,
                sm_clock_mhz: Some(if throttled { 1_200 } else { 1_980 }),
                mem_clock_mhz: Some(2_619),
                utilisation_pct: Some(95),
                throttle: Some(if throttled { "sw_thermal".to_owned() } else { String::new() }),
                ..GpuSample::default()
            })));
            ingest.record(Record::Host(HostRecord::Host(HostSample {
                ts_ns,
                cpu_busy_pct: Some(50.0 + f64::from(host)),
                ..HostSample::default()
            })));
        }
        if host == 0 {
            ingest.annotation(Annotation {
                ts_ns: self.from_ns + 2 * SECOND,
                text: format!("epoch 2 {HOSTILE}"),
                attributes: r#"{"epoch":"2"}"#.to_owned(),
                uid: Some(1_000),
            });
            if let Some((rank, by_ns)) = self.late {
                ingest.finding(Finding {
                    ts_ns: self.until_ns(),
                    since_ns: self.from_ns + self.begin_ns(self.steps / 2),
                    until_ns: self.until_ns(),
                    verdict: "rank".to_owned(),
                    rank: i32::try_from(rank).ok(),
                    lateness_ns: Some(by_ns),
                    cause: Some(HOSTILE.to_owned()),
                    detail: format!("Rank {rank} holds up the others {HOSTILE}"),
                    ..Finding::default()
                });
            }
        }
        ingest.record(Record::Net(NetEvent {
            ts_ns: self.from_ns + 70 * MS,
            event: "tcp_retransmit_skb",
            pid: None,
            rank: None,
            saddr: "10.0.0.1".to_owned(),
            sport: 4_000,
            daddr: "10.0.0.2".to_owned(),
            dport: 5_000,
            state: Some(1),
            segs: Some(1),
            cgroup_id: 1,
        }));
    }
}
