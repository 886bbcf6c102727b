//! Made-up collectives: one hour, 8 ranks in step, 12 functions, 4 communicators; the same for the
//! same seed.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use node_bpf::{Collective, Record};
use store::Ingest;

/// First instant of the hour: 2026-01-01 UTC.
pub const START_NS: i64 = 1_767_225_600_000_000_000;
/// One hour.
pub const SPAN_NS: i64 = 3_600_000_000_000;

/// Ranks on the host.
pub const RANKS: i32 = 8;
const FUNCS: [&str; 12] = [
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send",
    "recv",
    "barrier",
    "gather",
    "scatter",
    "all_gather_v",
];
const COMMS: [u64; 4] = [0x9E37_79B9_7F4A_7C15, 0xBF58_476D_1CE4_E5B9, 0x14D0_49BB_1331_11EB, 0x0123_4567_89AB_CDEF];

/// Where the calls are made: each function in one place.
static SITES: LazyLock<Vec<Arc<str>>> = LazyLock::new(|| {
    let at = |(place, func)| format!("c10d::ProcessGroup::{func}+{:#x} (libtorch_cuda.so)", 0x1c0 + 16 * place).into();
    FUNCS.iter().enumerate().map(at).collect()
});

/// The job, one text for all records as capture has it.
static JOB: LazyLock<Arc<str>> = LazyLock::new(|| "4711".into());

/// Makes the rows one after the other.
#[derive(Debug, Clone)]
pub struct Generator {
    next: u64,
    rows: u64,
    span_ns: i64,
    random: u64,
    /// Of the collective that the ranks are in: start, function, communicator, elements, work.
    step: (i64, usize, usize, u64, f64),
    seq: [[u64; FUNCS.len()]; COMMS.len()],
}

impl Generator {
    /// `rows` rows, spread evenly over the hour.
    #[must_use]
    pub fn new(rows: u64) -> Self {
        Self::spread(rows, SPAN_NS)
    }

    /// `rows` rows, spread evenly over `span_ns`.
    #[must_use]
    pub fn spread(rows: u64, span_ns: i64) -> Self {
        Self {
            next: 0,
            rows,
            span_ns,
            random: 0x2545_F491_4F6C_DD1D,
            step: (START_NS, 0, 0, 1, 1.0),
            seq: Default::default(),
        }
    }

    /// xorshift64* (Marsaglia 2003; Vigna 2016).
    fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Uniform in (0, 1].
    fn uniform(&mut self) -> f64 {
        ((self.random() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    fn begin_step(&mut self, at: u64) {
        let steps = (self.rows / RANKS as u64).max(1);
        let pace_ns = self.span_ns / steps as i64;
        let jitter_ns = (self.uniform() * 0.6 * pace_ns as f64) as i64;
        let ts_ns =
            START_NS + (self.span_ns as i128 * i128::from(at / RANKS as u64) / i128::from(steps)) as i64 + jitter_ns;
        let func = (self.random() % FUNCS.len() as u64) as usize;
        let comm = (self.random() % COMMS.len() as u64) as usize;
        let count = 1_u64 << (8 + self.random() % 16);
        // Log-normal work by Box and Muller, some 20 us to 20 ms.
        let normal = (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos();
        let work_ns = 4.0e4 * (1.0 + count as f64 / 3.0e5) * (0.8 * normal).exp();
        self.seq[comm][func] += 1;
        self.step = (ts_ns, func, comm, count, work_ns);
    }
}

impl Iterator for Generator {
    type Item = Collective;

    fn next(&mut self) -> Option<Collective> {
        if self.next >= self.rows {
            return None;
        }
        let rank = (self.next % RANKS as u64) as i32;
        if rank == 0 {
            self.begin_step(self.next);
        }
        self.next += 1;
        let (start_ns, func, comm, count, work_ns) = self.step;
        let late_ns = (self.uniform() * 30_000.0) as i64;
        let duration_ns = (work_ns * (0.9 + 0.2 * self.uniform())) as i64 + 30_000 - late_ns;
        Some(Collective {
            ts_ns: start_ns + late_ns,
            duration_ns,
            pid: 4000 + rank as u32,
            tid: 4000 + rank as u32,
            rank: Some(rank),
            local_rank: Some(rank),
            nranks: Some(RANKS),
            comm_hash: Some(COMMS[comm]),
            func: FUNCS[func],
            seq: Some(self.seq[comm][func] - 1),
            comm_seq: Some(self.seq[comm].iter().sum::<u64>() - 1),
            count: Some(count),
            datatype: Some(if count % 3 == 0 { "float32" } else { "bfloat16" }),
            bytes: Some(count * if count % 3 == 0 { 4 } else { 2 }),
            reduce_op: matches!(FUNCS[func], "all_reduce" | "reduce" | "reduce_scatter").then_some("sum"),
            root: matches!(FUNCS[func], "broadcast" | "reduce" | "gather" | "scatter").then_some(0),
            stream: Some(0x7f00_0000_1000 + 0x100 * comm as u64),
            ret: Some(0),
            cgroup_id: 8021,
            job_id: Some(Arc::clone(&JOB)),
            site: Some(Arc::clone(&SITES[func])),
            ..Collective::default()
        })
    }
}

/// Hands rows over as capture does with what its ring buffer holds: about a hundred times a second,
/// `per_second` rows in each. Ends with the rows or with `stop`; how many it handed over.
pub fn at_pace(ingest: &Ingest, per_second: u64, rows: impl IntoIterator<Item = Collective>, stop: &AtomicBool) -> u64 {
    let (mut rows, chunk) = (rows.into_iter().peekable(), (per_second / 100).max(1));
    let (began, mut offered) = (Instant::now(), 0);
    while rows.peek().is_some() && !stop.load(Ordering::Relaxed) {
        let due = Duration::from_secs_f64(offered as f64 / per_second as f64);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
        for row in rows.by_ref().take(chunk as usize) {
            ingest.record(Record::Collective(row));
            offered += 1;
        }
    }
    offered
}

/// One line of CSV in the order of the store's columns; nothing between commas is NULL.
///
/// # Errors
/// What `out` says.
pub fn write_csv(row: &Collective, out: &mut impl Write) -> std::io::Result<()> {
    fn or_empty<T: ToString>(value: Option<T>) -> String {
        value.map_or_else(String::new, |value| value.to_string())
    }
    let bits = |value: Option<u64>| or_empty(value.map(u64::cast_signed));
    writeln!(
        out,
        "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
        row.ts_ns,
        row.duration_ns,
        row.pid,
        row.tid,
        or_empty(row.rank),
        or_empty(row.local_rank),
        or_empty(row.nranks),
        bits(row.comm_hash),
        row.func,
        or_empty(row.seq),
        or_empty(row.count),
        or_empty(row.datatype),
        or_empty(row.bytes),
        or_empty(row.reduce_op),
        or_empty(row.root),
        bits(row.stream),
        row.library.name(),
        row.tier,
        or_empty(row.ret),
        row.cgroup_id,
        or_empty(row.job_id.as_deref()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_same_again_and_fill_the_hour() {
        let rows: Vec<Collective> = Generator::new(8000).collect();
        assert_eq!(rows.len(), 8000);
        assert!(rows.iter().eq(Generator::new(8000).collect::<Vec<_>>().iter()));
        let last = rows.iter().map(|row| row.ts_ns).max().unwrap();
        assert!(last > START_NS + SPAN_NS / 100 * 99 && last < START_NS + SPAN_NS / 100 * 101);
        assert!(rows.iter().all(|row| row.duration_ns > 0));
        let mut line = Vec::new();
        write_csv(&rows[0], &mut line).unwrap();
        assert_eq!(line.iter().filter(|byte| **byte == b',').count(), 20);
    }
}
