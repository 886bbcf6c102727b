//! Figures of a benchmark: sorted samples and the closing lines `figure NAME VALUE UNIT aim OP
//! NUMBER`.

use std::time::Duration;

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

/// Prints one closing line; whether the aim holds is for the reader (and stands in the line's end).
pub fn figure(name: &str, value: f64, unit: &str, aim: &str, number: f64) {
    println!("figure {name} {value:.3} {unit} aim {aim} {number}");
}

/// User and system time of this process so far.
pub fn cpu_time() -> Duration {
    // SAFETY: getrusage fills the struct it is given; RUSAGE_SELF is always valid.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let of = |time: libc::timeval| {
        Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0))
            + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// CPU time of the calling thread so far, to the nanosecond.
pub fn cpu_time_of_this_thread() -> Duration {
    // SAFETY: clock_gettime fills the struct it is given; every thread has this clock.
    let time = unsafe {
        let mut time = std::mem::zeroed::<libc::timespec>();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        time
    };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// User and system time so far of this process's living threads whose names begin with `prefix`.
///
/// # Errors
/// /proc cannot be read.
pub fn cpu_time_of_threads(prefix: &str) -> std::io::Result<Duration> {
    // SAFETY: asks for a constant.
    let ticks_per_s = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1);
    let mut ticks = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        // A thread may end meanwhile.
        let Ok(stat) = std::fs::read_to_string(thread?.path().join("stat")) else { continue };
        // "TID (NAME) STATE …": utime and stime are the 12th and 13th fields after the name.
        let Some((head, tail)) = stat.rsplit_once(')') else { continue };
        if head.split_once('(').is_some_and(|(_, name)| name.starts_with(prefix)) {
            let fields = tail.split_whitespace().skip(11).take(2);
            ticks += fields.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>();
        }
    }
    Ok(Duration::from_micros(ticks * 1_000_000 / ticks_per_s))
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
