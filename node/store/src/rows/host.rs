//! Owns the mapping from the host's signals and samples to rows; the other records' is in the
//! module above, which calls this one.

use record::{FabricCounter, GpuSample, HostRecord, HostSample, MemoryEvent, ProcessEvent, SelfStat};
use rusqlite::{Connection, Statement, params};

use super::{Kind, Stored, bits, plausible, quantity};

impl Kind {
    /// The kind of a host's record.
    pub(super) fn of_host(record: &HostRecord) -> Self {
        match record {
            HostRecord::Block(_) => Self::Block,
            HostRecord::Memory(_) => Self::Memory,
            HostRecord::Life(_) => Self::Life,
            HostRecord::Fabric(_) => Self::Fabric,
            HostRecord::Gpu(_) => Self::Gpu,
            HostRecord::Host(_) => Self::Host,
            HostRecord::SelfStat(_) => Self::SelfStat,
        }
    }
}

/// The insert statements, prepared once per connection.
pub(super) struct HostStatements<'c> {
    memory: Statement<'c>,
    life: Statement<'c>,
    fabric: Statement<'c>,
    gpu: Statement<'c>,
    host: Statement<'c>,
    self_stat: Statement<'c>,
}

impl<'c> HostStatements<'c> {
    pub(super) fn prepare(conn: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            memory: conn.prepare(
                "INSERT INTO memory_events (ts_ns, duration_ns, event, pid, tid, rank, bytes, detail, cgroup_id, count) \
                 VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10)",
            )?,
            life: conn.prepare(
                "INSERT INTO process_events (ts_ns, event, pid, parent_pid, comm, exit_code, signal, rank, cgroup_id) \
                 VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9)",
            )?,
            fabric: conn.prepare(
                "INSERT INTO fabric_counters (ts_ns, device, port, counter, value, delta) VALUES (?1,?2,?3,?4,?5,?6)",
            )?,
            gpu: conn.prepare(
                "INSERT INTO gpu_samples (ts_ns, gpu, uuid, utilisation_pct, memory_used_bytes, memory_total_bytes, \
                 power_mw, temperature_c, sm_clock_mhz, mem_clock_mhz, throttle_reasons, throttle, model) \
                 VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13)",
            )?,
            host: conn.prepare(
                "INSERT INTO host_samples (ts_ns, cpu_busy_pct, cpu_iowait_pct, steal_pct, load_1m, \
                 memory_available_bytes, memory_total_bytes, swap_used_bytes, psi_cpu_some_us, psi_io_some_us, \
                 psi_io_full_us, psi_memory_some_us, psi_memory_full_us) \
                 VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13)",
            )?,
            self_stat: conn.prepare("INSERT INTO self_stats (ts_ns, name, value, unit) VALUES (?1,?2,?3,?4)")?,
        })
    }

    pub(super) fn insert(&mut self, record: &HostRecord) -> rusqlite::Result<Stored> {
        match record {
            // Takes another way, as columns.
            HostRecord::Block(_) => Ok(Stored::Invalid),
            HostRecord::Memory(r) => self.memory(r),
            HostRecord::Life(r) => self.life(r),
            HostRecord::Fabric(r) => self.fabric(r),
            HostRecord::Gpu(r) => self.gpu(r),
            HostRecord::Host(r) => self.host(r),
            HostRecord::SelfStat(r) => self.self_stat(r),
        }
    }

    fn memory(&mut self, r: &MemoryEvent) -> rusqlite::Result<Stored> {
        if !plausible(r.ts_ns, r.duration_ns.unwrap_or(0)) {
            return Ok(Stored::Invalid);
        }
        let cgroup_id = r.cgroup_id.map(bits);
        self.memory.execute(params![
            r.ts_ns,
            r.duration_ns,
            r.event,
            r.pid,
            r.tid,
            r.rank,
            r.bytes,
            r.detail,
            cgroup_id,
            r.count
        ])?;
        Ok(Stored::Row)
    }

    fn life(&mut self, r: &ProcessEvent) -> rusqlite::Result<Stored> {
        if !plausible(r.ts_ns, 0) {
            return Ok(Stored::Invalid);
        }
        let cgroup_id = bits(r.cgroup_id);
        self.life.execute(params![
            r.ts_ns,
            r.event,
            r.pid,
            r.parent_pid,
            r.comm,
            r.exit_code,
            r.signal,
            r.rank,
            cgroup_id
        ])?;
        Ok(Stored::Row)
    }

    fn fabric(&mut self, r: &FabricCounter) -> rusqlite::Result<Stored> {
        let Some(value) = quantity(r.value).filter(|_| plausible(r.ts_ns, 0)) else {
            return Ok(Stored::Invalid);
        };
        let delta = r.delta.and_then(quantity);
        self.fabric.execute(params![r.ts_ns, r.device, r.port, r.counter, value, delta])?;
        Ok(Stored::Row)
    }

    fn gpu(&mut self, r: &GpuSample) -> rusqlite::Result<Stored> {
        if !plausible(r.ts_ns, 0) {
            return Ok(Stored::Invalid);
        }
        self.gpu.execute(params![
            r.ts_ns,
            r.gpu,
            r.uuid,
            r.utilisation_pct,
            r.memory_used_bytes.and_then(quantity),
            r.memory_total_bytes.and_then(quantity),
            r.power_mw,
            r.temperature_c,
            r.sm_clock_mhz,
            r.mem_clock_mhz,
            r.throttle_reasons.map(bits),
            r.throttle,
            r.model,
        ])?;
        Ok(Stored::Row)
    }

    fn host(&mut self, r: &HostSample) -> rusqlite::Result<Stored> {
        if !plausible(r.ts_ns, 0) {
            return Ok(Stored::Invalid);
        }
        self.host.execute(params![
            r.ts_ns,
            r.cpu_busy_pct,
            r.cpu_iowait_pct,
            r.steal_pct,
            r.load_1m,
            r.memory_available_bytes.and_then(quantity),
            r.memory_total_bytes.and_then(quantity),
            r.swap_used_bytes.and_then(quantity),
            r.psi_cpu_some_us.and_then(quantity),
            r.psi_io_some_us.and_then(quantity),
            r.psi_io_full_us.and_then(quantity),
            r.psi_memory_some_us.and_then(quantity),
            r.psi_memory_full_us.and_then(quantity),
        ])?;
        Ok(Stored::Row)
    }

    fn self_stat(&mut self, r: &SelfStat) -> rusqlite::Result<Stored> {
        if !plausible(r.ts_ns, 0) || !r.value.is_finite() {
            return Ok(Stored::Invalid);
        }
        self.self_stat.execute(params![r.ts_ns, r.name, r.value, r.unit])?;
        Ok(Stored::Row)
    }
}
