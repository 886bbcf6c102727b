//! A clock that is never stepped, and the conversion of records' Unix times to it.
//!
//! Records get Unix time from kernel time (CLOCK_MONOTONIC) by an offset that capture measures now
//! and then ([`measured_offset_ns`]). Code that compares times of now with times of a while ago,
//! across a step of the wall clock, uses [`steady_now_ns`] and [`steady_shift_ns`].

use std::sync::OnceLock;

use parking_lot::{Mutex, MutexGuard};

/// Unix time minus kernel time, measured now: for all records from now on.
#[must_use]
pub fn measured_offset_ns() -> i64 {
    let offset_ns = wall_offset_ns(libc::CLOCK_MONOTONIC);
    offsets().measured(offset_ns, kernel_ns());
    offset_ns
}

/// Nanoseconds of a clock that runs as fast as the wall clock and is never stepped: Unix time at
/// this process's first call of this function, and kernel time since.
#[must_use]
pub fn steady_now_ns() -> i64 {
    kernel_ns().saturating_add(base_ns())
}

/// How far the wall clock is ahead of the steady one now: 0 until it is stepped.
#[must_use]
pub fn wall_ahead_ns() -> i64 {
    wall_offset_ns(libc::CLOCK_MONOTONIC).saturating_sub(base_ns())
}

/// What to subtract from a record's Unix times to get steady ones, for a record that came about at
/// `unix_ns`, just now.
#[must_use]
pub fn steady_shift_ns(unix_ns: i64) -> i64 {
    offsets().used_for(unix_ns, kernel_ns()).saturating_sub(base_ns())
}

/// The same for times that are read now of events that began at any time, such as calls in flight.
/// If it differs before and after these were read, the clock was stepped meanwhile.
#[must_use]
pub fn steady_shift_now_ns() -> i64 {
    offsets().current_ns.saturating_sub(base_ns())
}

/// Unix time minus kernel time when it was first asked for.
fn base_ns() -> i64 {
    static BASE_NS: OnceLock<i64> = OnceLock::new();
    *BASE_NS.get_or_init(|| wall_offset_ns(libc::CLOCK_MONOTONIC))
}

fn offsets() -> MutexGuard<'static, Offsets> {
    static OFFSETS: OnceLock<Mutex<Offsets>> = OnceLock::new();
    OFFSETS.get_or_init(|| Mutex::new(Offsets::new(base_ns()))).lock()
}

/// The last measurement, and the one before the last step.
#[derive(Debug, Clone, Copy)]
struct Offsets {
    current_ns: i64,
    before_ns: i64,
    /// When the step was noticed, kernel time.
    stepped_ns: i64,
}

/// Two measurements that differ by more have a step of the wall clock in between.
const STEP_NS: i64 = 1_000_000;
/// Records of calls that ended come this long after their end, at most.
const ON_THE_WAY_NS: i64 = 10_000_000_000;

impl Offsets {
    const fn new(offset_ns: i64) -> Self {
        Self { current_ns: offset_ns, before_ns: offset_ns, stepped_ns: i64::MIN }
    }

    fn measured(&mut self, offset_ns: i64, kernel_ns: i64) {
        if self.current_ns.abs_diff(offset_ns) > STEP_NS.unsigned_abs() {
            (self.before_ns, self.stepped_ns) = (self.current_ns, kernel_ns);
        }
        self.current_ns = offset_ns;
    }

    /// The offset by which a record got its Unix time: for a while after a step, the one that puts
    /// the record nearer to now.
    fn used_for(&self, unix_ns: i64, kernel_ns: i64) -> i64 {
        let age_ns = |offset_ns: i64| kernel_ns.abs_diff(unix_ns.saturating_sub(offset_ns));
        let recent = kernel_ns.saturating_sub(self.stepped_ns) < ON_THE_WAY_NS;
        if recent && age_ns(self.before_ns) < age_ns(self.current_ns) { self.before_ns } else { self.current_ns }
    }
}

/// Unix time minus the time of `clock`: the tightest of a few bracketed readings.
pub fn wall_offset_ns(clock: libc::clockid_t) -> i64 {
    (0..5)
        .map(|_| {
            let before = read_clock_ns(clock);
            let wall = read_clock_ns(libc::CLOCK_REALTIME);
            let after = read_clock_ns(clock);
            (after - before, wall - (before + (after - before) / 2))
        })
        .min_by_key(|(width, _)| *width)
        .map_or(0, |(_, offset)| offset)
}

fn kernel_ns() -> i64 {
    read_clock_ns(libc::CLOCK_MONOTONIC)
}

/// The time of a clock that exists on every Linux, nanoseconds.
pub fn read_clock_ns(clock: libc::clockid_t) -> i64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec to write to; the clocks that are used exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut t) };
    t.tv_sec * 1_000_000_000 + t.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    #[test]
    fn steady_time_is_unix_time_as_long_as_that_is_not_stepped() {
        let unix_ns = kernel_ns() + measured_offset_ns();
        let steady_ns = unix_ns - steady_shift_ns(unix_ns);
        assert!((steady_now_ns() - steady_ns).abs() < 50_000_000, "off by {} ns", steady_now_ns() - steady_ns);
    }

    /// Calls of a millisecond each, recorded by a capture that measures its offset once a second,
    /// while the wall clock is stepped.
    #[test]
    fn a_step_of_the_wall_clock_does_not_move_steady_times() {
        for step_ns in [-3_600 * S, -60 * S, -2 * S, 2 * S, 60 * S, 3_600 * S] {
            let truth = |kernel_ns: i64| 1_700_000_000 * S + if kernel_ns < 105 * S / 10 { 0 } else { step_ns };
            let mut offsets = Offsets::new(truth(0));
            for kernel_ns in (0..30 * S).step_by(10_000_000) {
                if kernel_ns % S == 0 {
                    offsets.measured(truth(kernel_ns), kernel_ns);
                }
                // Recorded just before the offset was measured anew, read just after.
                let (unix_ns, mut after) = (kernel_ns + offsets.current_ns, offsets);
                after.measured(truth(kernel_ns), kernel_ns);
                for (offsets, delay_ns) in [(offsets, 0), (offsets, 200_000_000), (after, 0), (after, 200_000_000)] {
                    let steady_ns = unix_ns - offsets.used_for(unix_ns, kernel_ns + delay_ns);
                    assert_eq!(steady_ns, kernel_ns, "step of {step_ns} ns, {delay_ns} ns later");
                }
            }
        }
    }
}
