//! The cost and losses of capture itself, for the table `self_stats`: every probe's counters, every
//! BPF program's runs and processor time, and the thresholds in force. Values count from the start;
//! only those that have changed make a record.
//!
//! One in 64 runs of the programs is measured, by the programs themselves (`MEASURED` in
//! `bpf/capture.bpf.c`): the kernel's own measuring (BPF_ENABLE_STATS) takes 80 ns a run of every
//! BPF program of the host and CAP_SYS_ADMIN.

use std::collections::HashMap;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::budget::KeptBudget;
use crate::bytes::Reader;
use crate::loader::ProbeStatus;
use crate::signals::wire::Tuning;
use crate::tally::RowRule;
use record::SelfStat;

/// `enum rm_program`.
const PROGRAMS: &[&str] = &[
    "call_enter",
    "call_return",
    "cuda_enter",
    "cuda_return",
    "symbol_enter",
    "symbol_return",
    "symbol_point",
    "on_switch",
    "on_wakeup",
    "on_exec",
    "on_exit",
    "on_fork",
    "on_tcp",
    "on_block",
    "on_memory",
    "verbs",
];

/// Remembers the last reported values.
#[derive(Debug, Default)]
pub(crate) struct SelfStats {
    last: HashMap<String, f64>,
}

impl SelfStats {
    /// The values that have changed since the last time.
    pub(crate) fn look(
        &mut self,
        ts_ns: i64,
        programs: &MapHandle,
        probes: &[ProbeStatus],
        rules: &[RowRule],
        tuning: Tuning,
        (processes, cost, budget): (usize, Option<RecordingCost>, Option<KeptBudget>),
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
        for (slot, name) in (0u32..).zip(PROGRAMS) {
            let time = ProgramTime::read(programs, slot);
            all.push((format!("program.{name}.runs"), time.runs as f64, "count"));
            all.push((format!("program.{name}.cpu"), time.cpu_ns(), "ns"));
        }
        all.push(("capture.processes".to_owned(), processes as f64, "count"));
        all.push(("capture.offcpu_min".to_owned(), tuning.offcpu_min_ns as f64, "ns"));
        all.push(("capture.block_min".to_owned(), tuning.block_min_ns as f64, "ns"));
        all.push(("capture.point_to_point_shed".to_owned(), f64::from(u8::from(tuning.shed_p2p)), "count"));
        if let Some(cost) = cost {
            all.push(("capture.call_cost".to_owned(), cost.call_ns as f64, "ns"));
            all.push(("capture.rank_share".to_owned(), cost.share_ppm as f64, "ppm"));
        }
        if let Some(KeptBudget { budget, own_ppm, recorded_ppm }) = budget {
            all.push(("capture.budget".to_owned(), f64::from(budget.ppm()), "ppm"));
            all.push(("capture.own_share".to_owned(), own_ppm as f64, "ppm"));
            all.push(("capture.recorded_share".to_owned(), recorded_ppm as f64, "ppm"));
        }
        self.changed(ts_ns, all)
    }

    fn changed(&mut self, ts_ns: i64, all: Vec<(String, f64, &'static str)>) -> Vec<SelfStat> {
        let mut stats = vec![];
        for (name, value, unit) in all {
            let before = self.last.insert(name.clone(), value);
            // a counter that has never moved is not reported; a threshold is reported once
            let silent = before.is_none() && value == 0.0;
            if before != Some(value) && !silent {
                stats.push(SelfStat { ts_ns, name, value, unit });
            }
        }
        stats
    }
}

/// What recording took lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingCost {
    /// A probed call, traps and programs together, nanoseconds.
    pub call_ns: u64,
    /// Probed calls a second on this host.
    pub calls_per_second: u64,
    /// The process that makes most of them,
    pub pid: u32,
    /// and how much of its time recording takes, in millionths.
    pub share_ppm: u64,
}

/// How often a program has run, and how long in all, nanoseconds.
pub(crate) fn program_time(programs: &MapHandle, name: &str) -> (u64, f64) {
    let slot = PROGRAMS.iter().position(|known| *known == name).and_then(|slot| u32::try_from(slot).ok());
    slot.map_or((0, 0.0), |slot| {
        let time = ProgramTime::read(programs, slot);
        (time.runs, time.cpu_ns())
    })
}

/// `struct rm_program_time`, all CPUs together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ProgramTime {
    runs: u64,
    measured: u64,
    measured_ns: u64,
}

impl ProgramTime {
    fn read(programs: &MapHandle, slot: u32) -> Self {
        let per_cpu = programs.lookup_percpu(&slot.to_ne_bytes(), MapFlags::ANY).ok().flatten().unwrap_or_default();
        per_cpu.iter().fold(ProgramTime::default(), |sum, bytes| sum.plus(bytes))
    }

    fn plus(self, bytes: &[u8]) -> Self {
        let mut r = Reader::new(bytes);
        let [runs, measured, measured_ns] = [0; 3].map(|_: u64| r.u64().unwrap_or(0));
        ProgramTime {
            runs: self.runs + runs,
            measured: self.measured + measured,
            measured_ns: self.measured_ns + measured_ns,
        }
    }

    /// All runs, at the mean of the measured ones.
    fn cpu_ns(self) -> f64 {
        if self.measured == 0 { 0.0 } else { self.measured_ns as f64 / self.measured as f64 * self.runs as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_all_runs_follows_from_those_measured() {
        let cpu = |words: [u64; 4]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let time = ProgramTime::default().plus(&cpu([640, 10, 2_000, 3])).plus(&cpu([360, 10, 1_000, 60]));
        assert_eq!(time, ProgramTime { runs: 1000, measured: 20, measured_ns: 3_000 });
        assert!((time.cpu_ns() - 150_000.0).abs() < 1e-6);
        assert_eq!(ProgramTime::default().cpu_ns(), 0.0);
    }

    #[test]
    fn only_changed_values_are_reported() {
        let mut stats = SelfStats::default();
        let mut reported = |hits: f64, least: f64| -> Vec<(String, f64)> {
            let all = vec![("a.hits".to_owned(), hits, "count"), ("least".to_owned(), least, "ns")];
            stats.changed(1, all).into_iter().map(|s| (s.name, s.value)).collect()
        };
        assert_eq!(reported(0.0, 5.0), [("least".to_owned(), 5.0)]);
        assert_eq!(reported(2.0, 5.0), [("a.hits".to_owned(), 2.0)]);
        assert_eq!(reported(2.0, 5.0), []);
        assert_eq!(reported(2.0, 0.0), [("least".to_owned(), 0.0)]);
    }
}
