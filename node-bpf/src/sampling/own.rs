//! The resources of this process: processor time and memory, from /proc/self.

use std::fs;
use std::path::{Path, PathBuf};

use record::SelfStat;

/// The resources of this process.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ProcessUse {
    /// Processor time since its start, nanoseconds; none where the kernel does not report it.
    pub cpu_ns: Option<f64>,
    /// Resident memory, bytes.
    pub rss_bytes: Option<f64>,
    /// Threads.
    pub threads: Option<f64>,
}

impl ProcessUse {
    /// Of this process, now.
    pub fn of_self() -> Self {
        Self::read(Path::new("/proc/self"))
    }

    fn read(own: &Path) -> Self {
        let status = fs::read_to_string(own.join("status")).unwrap_or_default();
        let number = |name: &str| -> Option<f64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Self {
            cpu_ns: process_cpu_ns(),
            rss_bytes: number("VmRSS").map(|kib| kib * 1024.0),
            threads: number("Threads"),
        }
    }
}

/// Where to look.
#[derive(Debug)]
pub(super) struct OwnUse {
    own: PathBuf,
}

impl OwnUse {
    pub(super) fn new(procfs: &Path) -> Self {
        OwnUse { own: procfs.join("self") }
    }

    /// Processor time since its start, memory and threads.
    pub(super) fn look(&mut self, ts_ns: i64) -> Vec<SelfStat> {
        let used = ProcessUse::read(&self.own);
        let all = [
            ("agent.cpu", used.cpu_ns, "ns"),
            ("agent.rss", used.rss_bytes, "bytes"),
            ("agent.threads", used.threads, "count"),
        ];
        let stat = |(name, value, unit): (&str, Option<f64>, &'static str)| {
            Some(SelfStat { ts_ns, name: name.to_owned(), value: value?, unit })
        };
        all.into_iter().filter_map(stat).collect()
    }
}

fn process_cpu_ns() -> Option<f64> {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec to write to.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
    (rc == 0).then_some(t.tv_sec as f64 * 1e9 + t.tv_nsec as f64)
}
