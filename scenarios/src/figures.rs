//! Figures of a benchmark: sorted samples and the closing lines `figure NAME VALUE UNIT aim OP NUMBER`.

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
