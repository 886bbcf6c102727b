//! Figures of a benchmark: samples, what processes cost, and the closing lines `figure NAME VALUE
//! UNIT aim OP NUMBER`.

use std::io;
use std::time::Duration;

use anyhow::Context;

/// The `q`-quantile (0 to 1) of samples, by the nearest rank.
///
/// # Panics
/// Without samples.
pub fn quantile(samples: &mut [Duration], q: f64) -> Duration {
    assert!(!samples.is_empty(), "a quantile of nothing");
    samples.sort_unstable();
    let rank = (q * samples.len() as f64).ceil() as usize;
    samples[rank.clamp(1, samples.len()) - 1]
}

/// The median of samples, by the nearest rank, in milliseconds.
///
/// # Panics
/// Without samples.
pub fn p50_ms(samples: &mut [Duration]) -> f64 {
    ms(quantile(samples, 0.5))
}

/// Milliseconds.
#[must_use]
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// MiB.
#[must_use]
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Prints one closing line; whether the aim holds is for the reader (and stands in the line's end).
pub fn figure(name: &str, value: f64, unit: &str, aim: &str, number: f64) {
    println!("figure {name} {value:.3} {unit} aim {aim} {number}");
}

/// Prints the closing line of a count of what must not be.
pub fn none_of(name: &str, count: impl TryInto<u64>, unit: &str) {
    figure(name, count.try_into().map_or(f64::INFINITY, |count| count as f64), unit, "<=", 0.0);
}

/// User and system time of this process so far.
#[must_use]
pub fn cpu_time() -> Duration {
    used(libc::RUSAGE_SELF)
}

/// User and system time of the processes that this one started and waited for.
#[must_use]
pub fn cpu_time_of_children() -> Duration {
    used(libc::RUSAGE_CHILDREN)
}

fn used(by: libc::c_int) -> Duration {
    // SAFETY: getrusage fills the struct it is given; the callers' constants are always valid.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(by, &mut usage);
        usage
    };
    let of = |time: libc::timeval| {
        Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
            + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// CPU time of the calling thread so far, to the nanosecond.
#[must_use]
pub fn cpu_time_of_this_thread() -> Duration {
    use nix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// User and system time of a process so far, to a hundredth of a second.
///
/// # Errors
/// The process is gone.
pub fn cpu_time_of(pid: u32) -> io::Result<Duration> {
    Ok(of_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat"))?).1)
}

/// User and system time so far of this process's living threads whose names begin with `prefix`.
///
/// # Errors
/// /proc cannot be read.
pub fn cpu_time_of_threads(prefix: &str) -> io::Result<Duration> {
    let mut time = Duration::ZERO;
    for thread in std::fs::read_dir("/proc/self/task")? {
        // A thread may end meanwhile.
        let Ok(stat) = std::fs::read_to_string(thread?.path().join("stat")) else { continue };
        let (name, used) = of_stat(&stat);
        time += if name.starts_with(prefix) { used } else { Duration::ZERO };
    }
    Ok(time)
}

/// Name and time of a line of `stat` (proc(5)): "ID (NAME) STATE …", where user and system time are
/// the 12th and 13th fields after the name, in ticks, of which Linux has a hundred a second.
fn of_stat(stat: &str) -> (&str, Duration) {
    let (head, tail) = stat.rsplit_once(')').unwrap_or_default();
    let fields = tail.split_whitespace().skip(11).take(2);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    (head.split_once('(').map_or("", |(_, name)| name), Duration::from_millis(10 * ticks))
}

/// A line of /proc/PID/status that has a size, in bytes; `pid` may be "self".
///
/// # Errors
/// There is no such process or line.
pub fn memory_bytes(pid: &str, line: &str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|text| text.strip_prefix(line)).with_context(|| format!("no {line}"))?;
    Ok(value.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_by_nearest_rank() {
        let mut samples: Vec<Duration> = (1..=10).rev().map(Duration::from_millis).collect();
        assert_eq!(quantile(&mut samples, 0.5), Duration::from_millis(5));
        assert_eq!(quantile(&mut samples, 0.0), Duration::from_millis(1));
        assert_eq!(quantile(&mut samples, 1.0), Duration::from_millis(10));
    }
}
