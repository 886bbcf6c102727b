//! Kernel time (CLOCK_MONOTONIC, what `bpf_ktime_get_ns` counts) to Unix time of this host's clock.

use std::sync::atomic::{AtomicI64, Ordering};

use record::read_clock_ns;

/// The offset between the two clocks, measured now and then, so that steps and slewing of the wall
/// clock are followed. One for the process.
#[derive(Debug)]
pub(crate) struct Clock(());

/// Unix time minus kernel time, as records are given it.
static OFFSET_NS: AtomicI64 = AtomicI64::new(0);

impl Clock {
    pub(crate) fn measure() -> Self {
        let clock = Clock(());
        clock.refresh();
        clock
    }

    pub(crate) fn refresh(&self) {
        OFFSET_NS.store(record::measured_offset_ns(), Ordering::Relaxed);
    }

    pub(crate) fn unix_ns(&self, kernel_ns: u64) -> i64 {
        (kernel_ns as i64).saturating_add(OFFSET_NS.load(Ordering::Relaxed))
    }

    pub(crate) fn now_unix_ns(&self) -> i64 {
        read_clock_ns(libc::CLOCK_REALTIME)
    }
}

/// Unix time now.
pub(crate) fn unix_now_ns() -> i64 {
    read_clock_ns(libc::CLOCK_REALTIME)
}

/// Unix time at boot, in ns (what /proc/PID/stat's start times count from).
pub(crate) fn boot_unix_ns() -> i64 {
    record::wall_offset_ns(libc::CLOCK_BOOTTIME)
}

/// Kernel time now.
pub(crate) fn kernel_now_ns() -> u64 {
    read_clock_ns(libc::CLOCK_MONOTONIC) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_time_becomes_wall_time() {
        let clock = Clock::measure();
        let wall = clock.unix_ns(kernel_now_ns());
        let now = clock.now_unix_ns();
        assert!((now - wall).abs() < 50_000_000, "off by {} ns", now - wall);
    }

    #[test]
    fn boot_lies_in_the_past() {
        assert!(boot_unix_ns() < read_clock_ns(libc::CLOCK_REALTIME));
    }
}
