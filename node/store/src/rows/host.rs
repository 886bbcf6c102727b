//! Owns the mapping from the host's signals and samples to rows; the other records' is in the
//! module above, which calls this one.

use record::HostRecord;
use rusqlite::params;

use super::{Kind, Statements, Stored, bits, plausible, quantity, row};

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

/// Writes a record as a row; not where it is not plausible.
pub(super) fn write(to: &mut Statements<'_>, record: &HostRecord) -> rusqlite::Result<Stored> {
    match record {
        HostRecord::Memory(r) if plausible(r.ts_ns, r.duration_ns.unwrap_or(0)) => row!(
            to, "memory_events", r: ts_ns, duration_ns, event, pid, tid, rank, bytes, detail,
            cgroup_id = r.cgroup_id.map(bits), count,
        ),
        HostRecord::Life(r) if plausible(r.ts_ns, 0) => row!(
            to, "process_events", r: ts_ns, event, pid, parent_pid, comm, exit_code, signal, rank,
            cgroup_id = bits(r.cgroup_id),
        ),
        HostRecord::Fabric(r) if plausible(r.ts_ns, 0) && quantity(r.value).is_some() => row!(
            to, "fabric_counters", r: ts_ns, device, port, counter, value = quantity(r.value),
            delta = r.delta.and_then(quantity),
        ),
        HostRecord::Gpu(r) if plausible(r.ts_ns, 0) => row!(
            to, "gpu_samples", r: ts_ns, gpu, uuid, utilisation_pct,
            memory_used_bytes = r.memory_used_bytes.and_then(quantity),
            memory_total_bytes = r.memory_total_bytes.and_then(quantity), power_mw, temperature_c, sm_clock_mhz,
            mem_clock_mhz, throttle_reasons = r.throttle_reasons.map(bits), throttle, model,
        ),
        HostRecord::Host(r) if plausible(r.ts_ns, 0) => row!(
            to, "host_samples", r: ts_ns, cpu_busy_pct, cpu_iowait_pct, steal_pct, load_1m,
            memory_available_bytes = r.memory_available_bytes.and_then(quantity),
            memory_total_bytes = r.memory_total_bytes.and_then(quantity),
            swap_used_bytes = r.swap_used_bytes.and_then(quantity),
            psi_cpu_some_us = r.psi_cpu_some_us.and_then(quantity),
            psi_io_some_us = r.psi_io_some_us.and_then(quantity),
            psi_io_full_us = r.psi_io_full_us.and_then(quantity),
            psi_memory_some_us = r.psi_memory_some_us.and_then(quantity),
            psi_memory_full_us = r.psi_memory_full_us.and_then(quantity),
        ),
        HostRecord::SelfStat(r) if plausible(r.ts_ns, 0) && r.value.is_finite() => {
            row!(to, "self_stats", r: ts_ns, name, value, unit)
        }
        // Blocks take another way, as columns.
        _ => Ok(Stored::Invalid),
    }
}
