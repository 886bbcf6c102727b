//! The scheduler's effect on ranks, where eBPF may not be used: once a second from /proc, which
//! every user may read of her own processes (schedstat, status, stat: proc(5),
//! Documentation/scheduler/sched-stats). Sums over the threads of a process, as tallies of the
//! source [`SOURCE`]; a thread that came and went between two looks is not in them.

use std::collections::HashMap;
use std::path::Path;

use crate::process::Process;
use record::CallTally;

/// `call_rollups.source` of these sums.
const SOURCE: &str = "proc";
/// Most threads of a process that are read.
const MOST_THREADS: usize = 1024;

/// The kernel's counts of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counted {
    /// Start of the thread in clock ticks: distinguishes a reused thread id.
    start: u64,
    cpu_ns: u64,
    run_delay_ns: u64,
    slices: u64,
    voluntary: u64,
    involuntary: u64,
    major_faults: u64,
}

/// A look at a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    counted: Counted,
    /// It was in an uninterruptible sleep (mostly waiting for a disk or a file server) at that
    /// moment.
    uninterruptible: bool,
}

/// The threads of the processes that are followed, as they were at the last look.
#[derive(Debug, Default)]
pub(super) struct Scheduling(HashMap<u32, HashMap<u32, Counted>>);

impl Scheduling {
    /// The tallies of a process since the last look; `since_ns` long ago.
    pub(super) fn look(&mut self, process: &Process, now_ns: i64, since_ns: u64) -> Vec<CallTally> {
        let pid = process.seen.pid;
        let threads = threads(&Path::new("/proc").join(pid.to_string()));
        let is_first = !self.0.contains_key(&pid);
        let before = self.0.entry(pid).or_default();
        let tallies = tallies(before, &threads, since_ns);
        *before = threads.iter().map(|(tid, look)| (*tid, look.counted)).collect();
        if is_first {
            return vec![]; // since its start, which is no second
        }
        let row = |(func, count, sum_ns, most_ns): (&'static str, u64, u64, u64)| CallTally {
            ts_ns: now_ns.saturating_sub_unsigned(since_ns / 2),
            source: SOURCE,
            func: func.into(),
            pid,
            rank: process.seen.rank,
            cgroup_id: process.seen.cgroup_id.unwrap_or(0),
            count,
            sum_ns,
            min_ns: 0,
            max_ns: most_ns,
            bytes: None,
            buckets: vec![],
        };
        tallies.into_iter().filter(|(_, count, ..)| *count > 0).map(row).collect()
    }

    pub(super) fn forget(&mut self, pid: u32) {
        self.0.remove(&pid);
    }
}

/// Name, how often, how long together, and the most of one thread.
fn tallies(before: &HashMap<u32, Counted>, now: &[(u32, Look)], since_ns: u64) -> Vec<(&'static str, u64, u64, u64)> {
    let mut sums: [(&'static str, u64, u64, u64); 6] = [
        ("cpu", 0, 0, 0),
        ("run_delay", 0, 0, 0),
        ("voluntary_switch", 0, 0, 0),
        ("involuntary_switch", 0, 0, 0),
        ("major_fault", 0, 0, 0),
        ("uninterruptible", 0, 0, 0),
    ];
    for (tid, look) in now {
        let is_now = look.counted;
        let was = before.get(tid).filter(|was| was.start == is_now.start).copied().unwrap_or_default();
        let more = |now: u64, was: u64| now.saturating_sub(was);
        let slices = more(is_now.slices, was.slices);
        let in_sleep = u64::from(look.uninterruptible);
        for (sum, (count, ns)) in sums.iter_mut().zip([
            (slices, more(is_now.cpu_ns, was.cpu_ns)),
            (slices, more(is_now.run_delay_ns, was.run_delay_ns)),
            (more(is_now.voluntary, was.voluntary), 0),
            (more(is_now.involuntary, was.involuntary), 0),
            (more(is_now.major_faults, was.major_faults), 0),
            // seen in it once a second: an estimate
            (in_sleep, in_sleep * since_ns),
        ]) {
            sum.1 += count;
            sum.2 = sum.2.saturating_add(ns);
            sum.3 = sum.3.max(ns);
        }
    }
    sums.into()
}

fn threads(process: &Path) -> Vec<(u32, Look)> {
    let entries = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten().take(MOST_THREADS);
    let looks = entries.filter_map(|entry| {
        let tid = entry.file_name().to_str()?.parse().ok()?;
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).ok();
        Some((tid, parse(&read("schedstat")?, &read("status")?, &read("stat")?)?))
    });
    looks.collect()
}

/// The three files of a thread.
fn parse(schedstat: &str, status: &str, stat: &str) -> Option<Look> {
    let mut words = schedstat.split_whitespace().map(str::parse::<u64>);
    let mut next = || words.next()?.ok();
    let (cpu_ns, run_delay_ns, slices) = (next()?, next()?, next()?);
    let number = |name: &str| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.trim().parse().ok()
    };
    // from the third field on: the second is a name in brackets, which may hold anything
    let fields: Vec<&str> = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Look {
        counted: Counted {
            start: field(22)?,
            cpu_ns,
            run_delay_ns,
            slices,
            voluntary: number("voluntary_ctxt_switches")?,
            involuntary: number("nonvoluntary_ctxt_switches")?,
            major_faults: field(12)?,
        },
        uninterruptible: fields.first() == Some(&"D"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_files_are_read() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t41\nnonvoluntary_ctxt_switches:\t7\n";
        let stat = "9 (a) D (x) D 1 9 9 0 -1 4194304 104 0 5 0 3 1 0 0 20 0 1 0 777 2703360 0";
        let look = parse("1000 200 30\n", status, stat).unwrap();
        let wanted = Counted {
            start: 777,
            cpu_ns: 1000,
            run_delay_ns: 200,
            slices: 30,
            voluntary: 41,
            involuntary: 7,
            major_faults: 5,
        };
        assert_eq!(look, Look { counted: wanted, uninterruptible: true });
        assert_eq!(parse("1000 200", status, stat), None);
        assert_eq!(parse("1000 200 30", status, "9 (a"), None);
    }

    #[test]
    fn what_happened_since_is_summed_over_threads() {
        let thread = |start, cpu_ns, run_delay_ns, uninterruptible| Look {
            counted: Counted { start, cpu_ns, run_delay_ns, slices: cpu_ns / 10, ..Counted::default() },
            uninterruptible,
        };
        let before = HashMap::from([(1, thread(5, 100, 10, false).counted), (2, thread(5, 900, 90, false).counted)]);
        // the second one's id is used by another thread now
        let now = [(1, thread(5, 150, 40, false)), (2, thread(6, 20, 3, true))];
        let all = tallies(&before, &now, 1_000);
        assert_eq!(all[0], ("cpu", 7, 70, 50));
        assert_eq!(all[1], ("run_delay", 7, 33, 30));
        assert_eq!((all[2], all[5]), (("voluntary_switch", 0, 0, 0), ("uninterruptible", 1, 1_000, 1_000)));
    }

    #[test]
    fn this_process_is_seen_to_run() {
        let process = crate::process::Processes::new(files::Files::new(|| {})).look(std::process::id()).unwrap().0;
        let mut scheduling = Scheduling::default();
        assert!(scheduling.look(&process, 1, 1).is_empty(), "the first look has nothing to compare with");
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let cpu = loop {
            let rows = scheduling.look(&process, 5_000_000_000, 1_000_000_000);
            if let Some(row) = rows.into_iter().find(|row| row.func == "cpu" && row.sum_ns > 0) {
                break row;
            }
            assert!(std::time::Instant::now() < until, "this loop runs");
        };
        assert_eq!((cpu.source, cpu.pid, cpu.ts_ns), ("proc", std::process::id(), 4_500_000_000));
        scheduling.forget(std::process::id());
        assert!(scheduling.0.is_empty());
    }
}
