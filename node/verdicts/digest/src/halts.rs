//! When threads were off their CPUs, and not by their program's doing: what that took of each call,
//! and of the time before it.
//!
//! Halted (stopped by a signal, a debugger or a freezer, or without the CPU time that its cgroup
//! allows) a thread does not wait for others in a call, either: they wait for it. Of the other kinds
//! ([`HELD`]) a thread that waits in a call loses nothing.

use std::collections::{HashMap, VecDeque};

use observed::{HELD, Kind};

/// Stretches of one thread that are kept since its last call, at most: the latest.
const MOST_STRETCHES: usize = 1_024;
/// Threads that are kept, at most. Where there are more, all are met anew.
const MOST_THREADS: usize = 16_384;

/// Process and thread.
type Thread = (u32, u32);

/// A stretch off the CPU.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    start_ns: i64,
    end_ns: i64,
    halts: bool,
}

impl Stretch {
    fn within(&self, start_ns: i64, end_ns: i64) -> i64 {
        (self.end_ns.min(end_ns) - self.start_ns.max(start_ns)).max(0)
    }
}

#[derive(Debug, Default)]
struct OfThread {
    stretches: VecDeque<Stretch>,
    /// Its last call ended.
    left_ns: i64,
    /// Held between its calls, and not said yet.
    held_ns: i64,
}

/// What threads were held since their last calls.
#[derive(Debug, Default)]
pub struct Halts {
    of_thread: HashMap<Thread, OfThread>,
}

/// Whether a stretch off the CPU halts a thread, also in a call.
#[must_use]
pub fn is_halt(kind: Kind) -> bool {
    matches!(kind, Kind::Stopped | Kind::CpuThrottled)
}

impl Halts {
    /// Take in a stretch off the CPU of a thread, in their order; of threads that have made no call
    /// yet none is kept.
    pub fn off_cpu(&mut self, thread: Thread, start_ns: i64, duration_ns: i64, kind: Kind) {
        if !HELD.contains(&kind) || duration_ns <= 0 {
            return;
        }
        let Some(of) = self.of_thread.get_mut(&thread) else { return };
        if of.stretches.len() >= MOST_STRETCHES {
            of.stretches.pop_front();
        }
        let end_ns = start_ns.saturating_add(duration_ns);
        of.stretches.push_back(Stretch { start_ns, end_ns, halts: is_halt(kind) });
    }

    /// Take in a call that has ended, of each thread in their order: how long it was halted in it.
    pub fn call(&mut self, thread: Thread, entry_ns: i64, duration_ns: i64) -> i64 {
        if self.of_thread.len() >= MOST_THREADS && !self.of_thread.contains_key(&thread) {
            self.of_thread.clear();
        }
        let end_ns = entry_ns.saturating_add(duration_ns);
        let of = self.of_thread.entry(thread).or_default();
        let before = of.stretches.iter().map(|stretch| stretch.within(of.left_ns, entry_ns)).sum::<i64>();
        let halts = of.stretches.iter().filter(|stretch| stretch.halts);
        let halted = halts.map(|stretch| stretch.within(entry_ns, end_ns)).sum::<i64>();
        of.held_ns = of.held_ns.saturating_add(before);
        of.left_ns = end_ns;
        of.stretches.retain(|stretch| stretch.end_ns > end_ns);
        halted.min(duration_ns)
    }

    /// How long a thread was held outside its calls since this was asked last.
    pub fn held(&mut self, thread: Thread) -> i64 {
        self.of_thread.get_mut(&thread).map_or(0, |of| std::mem::take(&mut of.held_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_halts_a_thread_counts_in_calls_and_what_holds_it_between_them() {
        let mut halts = Halts::default();
        let me = (7, 8);
        halts.off_cpu(me, 0, 50, Kind::Stopped);
        assert_eq!((halts.call(me, 0, 100), halts.held(me)), (0, 0), "it had made no call before");
        halts.off_cpu(me, 110, 20, Kind::Stopped); // 10 of it before the call
        halts.off_cpu(me, 140, 10, Kind::CpuThrottled);
        halts.off_cpu(me, 160, 10, Kind::CpuStolen); // while it waits
        halts.off_cpu((7, 9), 160, 10, Kind::Stopped);
        halts.off_cpu(me, 190, 30, Kind::Stopped); // and 20 of this after it
        assert_eq!((halts.call(me, 120, 80), halts.held(me)), (10 + 10 + 10, 10));
        halts.off_cpu(me, 250, 5, Kind::CpuStolen);
        halts.off_cpu(me, 260, 5, Kind::Sleep); // its own doing
        assert_eq!(halts.call(me, 300, 10), 0);
        halts.off_cpu(me, 320, 7, Kind::BlockIo);
        assert_eq!((halts.call(me, 330, 10), halts.held(me)), (0, 20 + 5 + 7), "of both, since it was asked");
        assert_eq!((halts.call(me, 400, 100), halts.held(me)), (0, 0));
    }

    #[test]
    fn memory_is_bounded() {
        let mut halts = Halts::default();
        for tid in 0..2 * MOST_THREADS as u32 {
            halts.call((1, tid), 0, 1);
        }
        let last = (1, 2 * MOST_THREADS as u32 - 1);
        for at in 1..2 * MOST_STRETCHES as i64 {
            halts.off_cpu(last, 10 * at, 5, Kind::Stopped);
        }
        assert!(halts.of_thread.len() <= MOST_THREADS && halts.of_thread[&last].stretches.len() <= MOST_STRETCHES);
        assert_eq!(halts.call(last, 1, i64::MAX - 1), 5 * MOST_STRETCHES as i64, "the latest");
    }
}
