//! The store of a host after a day of jobs, made from a seed, and what is asked of it.
//!
//! | module | owns |
//! |---|---|
//! | `calls` | the jobs of the day: collectives, synchronisations, off-CPU time, one record a call |
//! | `signals` | everything else that a host records: samples, counters, block requests, losses, verdicts, the audit |
//! | `fill` | writing a day through a real store, with a restart in between and retention at work |
//! | `questions` | the SQL of the documentation |
//! | `bound` | limiting a question to rows from before a time |
//! | `oracle` | the same rows in one plain SQLite database, and comparing answers with it |
//! | `files` | such stores asked without agents |
//!
//! A day is a row of bursts: in each, the jobs make some steps. For a benchmark the bursts follow
//! each other without a pause; for a test they lie an hour apart, so that each becomes segments of
//! its own with few rows each.

pub mod bound;
pub mod calls;
pub mod files;
pub mod fill;
pub mod oracle;
pub mod questions;
pub mod signals;

use node_bpf::Record;
use store::{Audit, ClockOffsetSeen, Finding};

/// One thing for a store.
#[derive(Debug, Clone)]
pub enum Made {
    /// A record as capture hands it on.
    Record(Record),
    /// A verdict.
    Finding(Finding),
    /// Something that the host was asked.
    Audit(Audit),
    /// What it measured of another host's clock.
    Clock(ClockOffsetSeen),
}

/// Ranks on a host.
pub const LOCAL_RANKS: u32 = 8;
/// Collective calls of one rank in one step of its job.
pub const CALLS_A_STEP: u64 = 4;

/// What a day is like, and which host's it is. The same values make the same rows; hosts that
/// differ in `host` alone take part in the same jobs.
#[derive(Debug, Clone)]
pub struct Day {
    /// Seed of everything that is random.
    pub seed: u64,
    /// This host, from 0.
    pub host: u32,
    /// Hosts of the jobs.
    pub hosts: u32,
    /// End of the day, Unix nanoseconds.
    pub until_ns: i64,
    /// Bursts of the day.
    pub bursts: u64,
    /// From the beginning of one burst to that of the next.
    pub spacing_ns: i64,
    /// Steps of each job in a burst.
    pub steps: u64,
    /// Steps in the last burst.
    pub last_steps: u64,
    /// From one step to the next.
    pub step_ns: i64,
    /// From one sample of the host to the next, while jobs run.
    pub sample_ns: i64,
    /// How much of the day's beginning is older than the store keeps, in thousandths of the day.
    pub dropped_permille: u32,
}

/// What happens in a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// One training job over all ranks of all hosts.
    Training,
    /// No job runs; the host is sampled.
    Idle,
    /// No agent runs: nothing is recorded.
    Down,
    /// Two jobs share each host.
    Shared,
}

impl Day {
    /// A day of 24 hours that makes about `rows` collectives, with a sample a second.
    #[must_use]
    pub fn full(seed: u64, host: u32, hosts: u32, rows: u64, until_ns: i64) -> Self {
        let (bursts, spacing_ns) = (1440, 60_000_000_000);
        // 93 of 100 bursts have jobs.
        let a_burst = rows as f64 / 0.93 / (bursts * CALLS_A_STEP * u64::from(LOCAL_RANKS)) as f64;
        let steps = (a_burst.round() as u64).max(1);
        Self {
            seed,
            host,
            hosts,
            until_ns,
            bursts,
            spacing_ns,
            steps,
            last_steps: steps,
            step_ns: spacing_ns / steps.cast_signed(),
            sample_ns: 1_000_000_000,
            dropped_permille: 20,
        }
    }

    /// A shift of eight hours that makes about `rows` collectives, with few samples.
    #[must_use]
    pub fn shift(seed: u64, host: u32, hosts: u32, rows: u64, until_ns: i64) -> Self {
        let day = Self::full(seed, host, hosts, 3 * rows, until_ns);
        Self { bursts: day.bursts / 3, sample_ns: 10_000_000_000, dropped_permille: 0, ..day }
    }

    /// As many segments as a busy host's store has, with few rows each: `bursts` bursts an hour
    /// apart, the last of them long enough for a verdict.
    #[must_use]
    pub fn sparse(seed: u64, host: u32, hosts: u32, bursts: u64, until_ns: i64) -> Self {
        Self {
            seed,
            host,
            hosts,
            until_ns,
            bursts,
            spacing_ns: 3_600_000_000_000,
            steps: 1,
            last_steps: 60,
            step_ns: 250_000_000,
            sample_ns: 1_000_000_000,
            dropped_permille: 20,
        }
    }

    /// Name of a host's node.
    #[must_use]
    pub fn node(host: u32) -> String {
        format!("n{host}")
    }

    /// When the day began, Unix nanoseconds.
    #[must_use]
    pub fn since_ns(&self) -> i64 {
        self.until_ns - self.bursts.cast_signed() * self.spacing_ns
    }

    /// When a burst begins. The last one ends with the day.
    #[must_use]
    pub fn burst_ns(&self, burst: u64) -> i64 {
        let begins = self.since_ns() + burst.cast_signed() * self.spacing_ns;
        if burst + 1 == self.bursts { self.until_ns - self.last_steps.cast_signed() * self.step_ns } else { begins }
    }

    /// Steps in a burst.
    #[must_use]
    pub fn steps_in(&self, burst: u64) -> u64 {
        if burst + 1 == self.bursts { self.last_steps } else { self.steps }
    }

    /// What happens in a burst.
    #[must_use]
    pub fn phase(&self, burst: u64) -> Phase {
        match burst * 1000 / self.bursts {
            0..450 => Phase::Training,
            450..500 => Phase::Idle,
            500..520 => Phase::Down,
            _ => Phase::Shared,
        }
    }

    /// The first burst of the second session.
    #[must_use]
    pub fn restart(&self) -> u64 {
        (0..self.bursts).find(|burst| self.phase(*burst) == Phase::Shared).unwrap_or(self.bursts)
    }

    /// Everything that the host records in a burst, in the order in which it is handed over.
    #[must_use]
    pub fn burst(&self, burst: u64) -> Vec<Made> {
        if self.phase(burst) == Phase::Down {
            return Vec::new();
        }
        let mut made = calls::of_burst(self, burst);
        made.extend(signals::of_burst(self, burst));
        made
    }

    /// A seed for one burst: of all hosts alike, or of this host alone.
    fn seed_of(&self, burst: u64, own: bool) -> u64 {
        let host = if own { u64::from(self.host) + 1 } else { 0 };
        self.seed ^ (burst + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ host.wrapping_mul(0xD1B5_4A32_D192_ED03)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_the_same_for_the_same_seed_and_another_for_another_host() {
        let day = Day::sparse(7, 0, 3, 50, 1_795_000_000_000_000_000);
        let text = |day: &Day| format!("{:?}", (0..day.bursts).map(|burst| day.burst(burst)).collect::<Vec<_>>());
        assert_eq!(text(&day), text(&day));
        assert_ne!(text(&day), text(&Day { host: 1, ..day.clone() }));
        assert_ne!(text(&day), text(&Day { seed: 8, ..day.clone() }));
    }

    #[test]
    fn a_full_day_has_about_the_rows_that_were_asked_for() {
        let day = Day::full(7, 2, 3, 200_000, 1_795_000_000_000_000_000);
        let calls = (0..day.bursts).flat_map(|burst| day.burst(burst));
        let calls = calls.filter(|made| matches!(made, Made::Record(Record::Collective(_)))).count();
        assert!((190_000..=230_000).contains(&calls), "{calls}");
    }

    #[test]
    fn what_happens_lies_in_the_day() {
        let day = Day::sparse(7, 1, 3, 60, 1_795_000_000_000_000_000);
        for made in (0..day.bursts).flat_map(|burst| day.burst(burst)) {
            if let Made::Record(Record::Collective(call)) = made {
                assert!((day.since_ns()..day.until_ns).contains(&call.ts_ns), "{call:?}");
                assert!(call.duration_ns >= 0, "{call:?}");
            }
        }
    }
}
