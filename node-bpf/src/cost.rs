//! What recording costs the processes that make probed calls. Measured when capture starts is what
//! the two traps of a call cost on this host; counted while it runs are the calls, by the programs,
//! and whose they are, by the records and tallies that come of them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use libbpf_rs::MapHandle;

use crate::attach;
use crate::config::AttachMode;
use crate::measure;
use crate::self_stats::{RecordingCost, program_time};

/// Calls of a batch, and batches: the middle one counts, for a batch may be disturbed.
const CALLS: u32 = 500;
const BATCHES: usize = 9;

/// The time that an entry and a return probe take from a thread at each call, measured on a function
/// of ours with programs that do nothing. None where these cannot be attached (kernels before 5.15).
pub(crate) fn trap_ns(mode: AttachMode) -> Option<u64> {
    let measure = || -> libbpf_rs::Result<u64> {
        let object = measure::empty_programs(mode)?;
        let links = attach::attach_to_self(&object, measure::EMPTY, mode, called)?;
        let probed = middle(batch_ns);
        drop(links);
        Ok(probed.saturating_sub(middle(batch_ns)) / u64::from(CALLS))
    };
    measure().inspect_err(|error| tracing::debug!(%error, "what a probed call costs is not measured")).ok()
}

fn middle(sample: impl Fn() -> u64) -> u64 {
    let mut samples = [0; BATCHES];
    samples.fill_with(sample);
    samples.sort_unstable();
    samples[BATCHES / 2]
}

/// Processor time of this thread for a batch of calls.
fn batch_ns() -> u64 {
    let before = thread_cpu_ns();
    for _ in 0..CALLS {
        called();
    }
    thread_cpu_ns().saturating_sub(before)
}

fn thread_cpu_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

// It begins as functions of libraries do, whatever a compiler makes of one that does nothing.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".p2align 4",
    ".globl rankmesh_called", // the compiler may put the caller into another object file
    ".hidden rankmesh_called",
    ".type rankmesh_called, @function",
    "rankmesh_called:",
    "push rbp",
    "pop rbp",
    "ret",
    ".size rankmesh_called, . - rankmesh_called",
);
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".p2align 4",
    ".globl rankmesh_called", // the compiler may put the caller into another object file
    ".hidden rankmesh_called",
    ".type rankmesh_called, %function",
    "rankmesh_called:",
    "stp x29, x30, [sp, #-16]!",
    "ldp x29, x30, [sp], #16",
    "ret",
    ".size rankmesh_called, . - rankmesh_called",
);

unsafe extern "C" {
    #[link_name = "rankmesh_called"]
    safe fn called();
}

/// Counts and times of the call programs: those at entries, those at returns and points.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Programs {
    entries: u64,
    cpu_ns: f64,
}

impl Programs {
    /// Since capture started.
    pub(crate) fn read(programs: &MapHandle) -> Self {
        let entries = ["call_enter", "cuda_enter", "symbol_enter", "symbol_point"];
        Self::sum(programs, &entries, &["call_return", "cuda_return", "symbol_return"])
    }

    /// Those at communication calls alone.
    pub(crate) fn of_calls(programs: &MapHandle) -> Self {
        Self::sum(programs, &["call_enter"], &["call_return"])
    }

    fn sum(programs: &MapHandle, entries: &[&str], returns: &[&str]) -> Self {
        let sum = |names: &[&str]| {
            let times = names.iter().map(|name| program_time(programs, name));
            times.fold((0, 0.0), |(runs, ns), time| (runs + time.0, ns + time.1))
        };
        let ((entries, enter_ns), (_, return_ns)) = (sum(entries), sum(returns));
        Self { entries, cpu_ns: enter_ns + return_ns }
    }

    /// What came since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        let entries = self.entries.saturating_sub(before.entries);
        Self { entries, cpu_ns: (self.cpu_ns - before.cpu_ns).max(0.0) }
    }

    pub(crate) fn entries(self) -> u64 {
        self.entries
    }

    /// Time in the programs alone.
    pub(crate) fn cpu_ns(self) -> f64 {
        self.cpu_ns
    }

    /// What these took of those who called, with two traps of `trap_ns` each time.
    pub(crate) fn taken_ns(self, trap_ns: u64) -> f64 {
        self.entries as f64 * trap_ns as f64 + self.cpu_ns
    }
}

/// Adds up who makes calls, and tells now and then what they cost.
#[derive(Debug)]
pub(crate) struct Costs {
    trap_ns: Option<u64>,
    calls: HashMap<u32, u64>,
    before: Programs,
    since: Instant,
}

impl Costs {
    pub(crate) fn new(trap_ns: Option<u64>) -> Self {
        Self { trap_ns, calls: HashMap::new(), before: Programs::default(), since: Instant::now() }
    }

    /// So many calls of a process were recorded or counted.
    pub(crate) fn made(&mut self, pid: u32, calls: u64) {
        *self.calls.entry(pid).or_default() += calls;
    }

    /// What calls cost since the last time; none where traps were not measured.
    pub(crate) fn tell(&mut self, programs: Programs) -> Option<RecordingCost> {
        let elapsed = self.since.elapsed();
        self.since = Instant::now();
        let (calls, before) = (std::mem::take(&mut self.calls), std::mem::replace(&mut self.before, programs));
        Some(cost(self.trap_ns?, programs.since(before), &calls, elapsed))
    }
}

/// The programs ran for calls that made no record, too (one inside another, left out, lost): these
/// are shared out as the others.
fn cost(trap_ns: u64, programs: Programs, calls: &HashMap<u32, u64>, elapsed: Duration) -> RecordingCost {
    let (entries, taken_ns) = (programs.entries, programs.taken_ns(trap_ns));
    let per = |all: f64, of: f64| if of > 0.0 { all / of } else { 0.0 };
    let recorded: u64 = calls.values().sum();
    let (pid, most) = calls.iter().map(|(pid, calls)| (*pid, *calls)).max_by_key(|of| of.1).unwrap_or_default();
    let share = per(taken_ns * most as f64, recorded as f64 * elapsed.as_nanos() as f64);
    RecordingCost {
        call_ns: if entries == 0 { trap_ns } else { per(taken_ns, entries as f64) as u64 },
        calls_per_second: per(entries as f64, elapsed.as_secs_f64()) as u64,
        pid,
        share_ppm: (share * 1e6) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_process_pays_for_its_part_of_all_runs() {
        let calls = HashMap::from([(7, 3_000), (8, 1_000)]);
        // 8,000 entries in two seconds: half of them made records; 1,000 ns of traps, 500 of programs
        let programs = Programs { entries: 8_000, cpu_ns: 4e6 };
        let told = cost(1_000, programs, &calls, Duration::from_secs(2));
        let expected = RecordingCost { call_ns: 1_500, calls_per_second: 4_000, pid: 7, share_ppm: 4_500 };
        assert_eq!(told, expected);
    }

    #[test]
    fn who_makes_no_calls_pays_nothing() {
        let told = cost(1_000, Programs::default(), &HashMap::new(), Duration::from_secs(10));
        assert_eq!(told, RecordingCost { call_ns: 1_000, calls_per_second: 0, pid: 0, share_ppm: 0 });
    }

    #[test]
    fn each_time_tells_of_the_time_since_the_last() {
        let mut costs = Costs::new(Some(1_000));
        costs.made(7, 10);
        let first = costs.tell(Programs { entries: 10, cpu_ns: 10_000.0 }).unwrap();
        assert!(first.pid == 7 && first.call_ns == 2_000 && first.share_ppm > 0, "{first:?}");
        let second = costs.tell(Programs { entries: 10, cpu_ns: 10_000.0 }).unwrap();
        assert_eq!((second.pid, second.call_ns, second.share_ppm), (0, 1_000, 0));
        assert_eq!(Costs::new(None).tell(Programs::default()), None);
    }

    #[test]
    fn the_traps_of_a_call_are_measured() {
        if let Err(error) = crate::loader::check_host() {
            eprintln!("skipped: {error}");
            return;
        }
        assert!(trap_ns(AttachMode::Multi).is_some_and(|ns| ns > 0), "two traps into the kernel take some time");
    }
}
