//! What capture itself costs and loses, for the table `self_stats`: every probe's counters, every BPF program's runs and
//! processor time, and the thresholds in force. Values count from the start; only those that have changed make a record.
//!
//! The kernel measures programs only while asked to (BPF_ENABLE_STATS, which needs CAP_SYS_ADMIN; about 50 ns a run, for
//! every BPF program of the host). An agent that gives up its privileges asks before, with
//! [`prepare`](crate::prepare).

use std::collections::HashMap;
use std::io;
use std::mem;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use libbpf_rs::libbpf_sys::{
    BPF_STATS_RUN_TIME, bpf_enable_stats, bpf_obj_get_info_by_fd, bpf_prog_info, bpf_program__fd,
};
use libbpf_rs::{AsRawLibbpf, Object};

use crate::loader::ProbeStatus;
use crate::signals::record::SelfStat;
use crate::signals::wire::Tuning;
use crate::tally::RowRule;

/// Asks the kernel to measure BPF programs as long as this process lives. Asking again is as good.
pub(crate) fn measure_programs() -> io::Result<()> {
    static STATS: OnceLock<OwnedFd> = OnceLock::new();
    if STATS.get().is_some() {
        return Ok(());
    }
    // SAFETY: takes no pointers; the result is checked.
    let fd = unsafe { bpf_enable_stats(BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the descriptor is new and nobody else's.
    let _ = STATS.set(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// Remembers what was said last.
#[derive(Debug, Default)]
pub(crate) struct SelfStats {
    last: HashMap<String, f64>,
}

impl SelfStats {
    /// What has changed since the last time.
    pub(crate) fn look(
        &mut self,
        ts_ns: i64,
        object: &Object,
        probes: &[ProbeStatus],
        rules: &[RowRule],
        tuning: Tuning,
        processes: usize,
    ) -> Vec<SelfStat> {
        let mut all: Vec<(String, f64, &'static str)> = vec![];
        for probe in probes {
            let counts = [
                ("hits", probe.hits),
                ("lost_ringbuf", probe.lost_ring),
                ("lost_map_full", probe.lost_map),
                ("unmatched", probe.unmatched),
                ("shed", probe.shed),
            ];
            all.extend(counts.map(|(what, n)| (format!("probe.{}.{what}", probe.probe), n as f64, "count")));
        }
        for rule in rules {
            all.push((format!("probe.{}.row_min", rule.probe), rule.row_min_ns as f64, "ns"));
            all.push((format!("probe.{}.withheld", rule.probe), rule.withheld as f64, "count"));
        }
        for program in programs(object) {
            all.push((format!("program.{}.runs", program.name), program.runs as f64, "count"));
            all.push((format!("program.{}.cpu", program.name), program.cpu_ns as f64, "ns"));
        }
        all.push(("capture.processes".to_owned(), processes as f64, "count"));
        all.push(("capture.offcpu_min".to_owned(), tuning.offcpu_min_ns as f64, "ns"));
        all.push(("capture.block_min".to_owned(), tuning.block_min_ns as f64, "ns"));
        all.push(("capture.point_to_point_shed".to_owned(), f64::from(u8::from(tuning.shed_p2p)), "count"));
        self.changed(ts_ns, all)
    }

    fn changed(&mut self, ts_ns: i64, all: Vec<(String, f64, &'static str)>) -> Vec<SelfStat> {
        let mut stats = vec![];
        for (name, value, unit) in all {
            let before = self.last.insert(name.clone(), value);
            // a counter that has not moved at all says nothing; a threshold is said once
            let silent = before.is_none() && value == 0.0;
            if before != Some(value) && !silent {
                stats.push(SelfStat { ts_ns, name, value, unit });
            }
        }
        stats
    }
}

struct Measured {
    name: String,
    runs: u64,
    cpu_ns: u64,
}

/// What the kernel has measured of the object's loaded programs.
fn programs(object: &Object) -> Vec<Measured> {
    let measured = |program: libbpf_rs::Program<'_>| {
        // SAFETY: the pointer is the live program's.
        let fd = unsafe { bpf_program__fd(program.as_libbpf_object().as_ptr()) };
        let info = info(fd)?;
        let name = program.name().to_string_lossy().into_owned();
        Some(Measured { name, runs: info.run_cnt, cpu_ns: info.run_time_ns })
    };
    object.progs().filter_map(measured).collect()
}

fn info(fd: RawFd) -> Option<bpf_prog_info> {
    if fd < 0 {
        return None; // not loaded
    }
    // SAFETY: all zero asks for no arrays to be filled.
    let mut info: bpf_prog_info = unsafe { mem::zeroed() };
    let mut bytes = u32::try_from(size_of::<bpf_prog_info>()).ok()?;
    // SAFETY: `info` is valid for `bytes` bytes.
    let rc = unsafe { bpf_obj_get_info_by_fd(fd, (&raw mut info).cast(), &mut bytes) };
    (rc == 0).then_some(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_changed_is_said() {
        let mut stats = SelfStats::default();
        let mut said = |hits: f64, least: f64| -> Vec<(String, f64)> {
            let all = vec![("a.hits".to_owned(), hits, "count"), ("least".to_owned(), least, "ns")];
            stats.changed(1, all).into_iter().map(|s| (s.name, s.value)).collect()
        };
        assert_eq!(said(0.0, 5.0), [("least".to_owned(), 5.0)]);
        assert_eq!(said(2.0, 5.0), [("a.hits".to_owned(), 2.0)]);
        assert_eq!(said(2.0, 5.0), []);
        assert_eq!(said(2.0, 0.0), [("least".to_owned(), 0.0)]);
    }
}
