//! CPU, memory and pressure of the host, from /proc/stat, loadavg, meminfo and pressure/ (proc(5);
//! kernel documentation accounting/psi). Values that a kernel does not report are none.

use std::fs;
use std::path::{Path, PathBuf};

use record::HostSample;

/// Keeps the last counters, of which samples are the differences.
#[derive(Debug)]
pub(super) struct HostSampler {
    proc: PathBuf,
    cpu: Option<CpuTicks>,
    pressure: [Option<u64>; 5],
}

/// The first line of /proc/stat: time of all CPUs since the start, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuTicks {
    busy: u64,
    idle: u64,
    iowait: u64,
    steal: u64,
}

impl CpuTicks {
    /// `cpu user nice system idle iowait irq softirq steal guest guest_nice`; guests' time is in
    /// user's and nice's.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let t: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let at = |i: usize| t.get(i).copied().unwrap_or(0);
        let busy = at(0) + at(1) + at(2) + at(5) + at(6);
        (t.len() >= 4).then(|| CpuTicks { busy, idle: at(3), iowait: at(4), steal: at(7) })
    }
}

/// The values of pressure that are kept, in the order of the record's fields.
const PRESSURE: [(&str, &str); 5] =
    [("cpu", "some"), ("io", "some"), ("io", "full"), ("memory", "some"), ("memory", "full")];

impl HostSampler {
    pub(super) fn new(proc: &Path) -> Self {
        HostSampler { proc: proc.to_owned(), cpu: None, pressure: [None; 5] }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.proc.join(name)).unwrap_or_default()
    }

    /// A sample; shares and pressure are none the first time.
    pub(super) fn sample(&mut self, ts_ns: i64) -> HostSample {
        let meminfo = self.read("meminfo");
        let bytes = |name: &str| meminfo_bytes(&meminfo, name);
        let mut sample = HostSample {
            ts_ns,
            load_1m: self.read("loadavg").split(' ').next().and_then(|word| word.parse().ok()),
            memory_available_bytes: bytes("MemAvailable"),
            memory_total_bytes: bytes("MemTotal"),
            swap_used_bytes: bytes("SwapTotal").zip(bytes("SwapFree")).map(|(all, free)| all.saturating_sub(free)),
            ..HostSample::default()
        };
        let cpu = CpuTicks::parse(&self.read("stat"));
        if let (Some(now), Some(before)) = (cpu, self.cpu) {
            let since = |field: fn(&CpuTicks) -> u64| field(&now).saturating_sub(field(&before));
            let (busy, idle) = (since(|t| t.busy), since(|t| t.idle));
            let (iowait, steal) = (since(|t| t.iowait), since(|t| t.steal));
            let all = busy + idle + iowait + steal;
            let share = |ticks: u64| (all > 0).then(|| ticks as f64 * 100.0 / all as f64);
            (sample.cpu_busy_pct, sample.cpu_iowait_pct, sample.steal_pct) = (share(busy), share(iowait), share(steal));
        }
        self.cpu = cpu;
        let totals = PRESSURE.map(|(file, kind)| pressure_us(&self.read(&format!("pressure/{file}")), kind));
        let fields = [
            &mut sample.psi_cpu_some_us,
            &mut sample.psi_io_some_us,
            &mut sample.psi_io_full_us,
            &mut sample.psi_memory_some_us,
            &mut sample.psi_memory_full_us,
        ];
        for ((field, now), before) in fields.into_iter().zip(totals).zip(self.pressure) {
            *field = now.zip(before).map(|(now, before)| now.saturating_sub(before));
        }
        self.pressure = totals;
        sample
    }
}

/// `Name:   123 kB`
fn meminfo_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`
fn pressure_us(text: &str, kind: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
    line.split(' ').find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_time_between_two_samples() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("stat", "cpu  100 0 50 800 40 5 5 0 0 0\ncpu0 1 1 1 1\n");
        write("loadavg", "1.25 0.50 0.20 2/300 4711\n");
        write(
            "meminfo",
            "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable:   600 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n",
        );
        write("pressure/io", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\nfull avg10=0.00 total=400\n");
        let mut sampler = HostSampler::new(dir.path());
        let first = sampler.sample(7);
        assert_eq!((first.ts_ns, first.load_1m, first.cpu_busy_pct), (7, Some(1.25), None));
        assert_eq!((first.memory_total_bytes, first.memory_available_bytes), (Some(1_024_000), Some(614_400)));
        assert_eq!((first.swap_used_bytes, first.psi_io_some_us), (Some(30 * 1024), None));
        write("stat", "cpu  150 0 50 820 50 5 5 20 0 0\n");
        write("pressure/io", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1750\nfull avg10=0.00 total=400\n");
        let second = sampler.sample(8);
        assert_eq!(
            (second.cpu_busy_pct, second.cpu_iowait_pct, second.steal_pct),
            (Some(50.0), Some(10.0), Some(20.0))
        );
        assert_eq!((second.psi_io_some_us, second.psi_io_full_us, second.psi_cpu_some_us), (Some(750), Some(0), None));
    }

    #[test]
    fn a_host_that_tells_nothing_gives_an_empty_sample() {
        let dir = tempfile::tempdir().unwrap();
        let mut sampler = HostSampler::new(dir.path());
        assert_eq!(sampler.sample(1), HostSample { ts_ns: 1, ..HostSample::default() });
    }
}
