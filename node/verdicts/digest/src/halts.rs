//! When a thread was halted: stopped (by a signal, a debugger or a freezer), or without the CPU time
//! that its cgroup allows. In a call, too, it then does not wait for others: they wait for it.

use std::collections::{HashMap, VecDeque};

use observed::Kind;

/// Halts of one thread that are kept, at most: the latest.
const MOST_HALTS: usize = 1_024;
/// Threads that are kept, at most. Where there are more, all are met anew.
const MOST_THREADS: usize = 16_384;

/// Process and thread.
type Thread = (u32, u32);

/// The halts of threads since their last calls.
#[derive(Debug, Default)]
pub struct Halts {
    of_thread: HashMap<Thread, VecDeque<(i64, i64)>>,
}

/// Whether a stretch off the CPU halts a thread: it is nothing that the program does.
#[must_use]
pub fn is_halt(kind: Kind) -> bool {
    matches!(kind, Kind::Stopped | Kind::CpuThrottled)
}

impl Halts {
    /// Take in a stretch off the CPU of a thread, in their order; of threads that have made no call
    /// yet none is kept.
    pub fn off_cpu(&mut self, thread: Thread, start_ns: i64, duration_ns: i64, kind: Kind) {
        if !is_halt(kind) || duration_ns <= 0 {
            return;
        }
        let Some(halts) = self.of_thread.get_mut(&thread) else { return };
        if halts.len() >= MOST_HALTS {
            halts.pop_front();
        }
        halts.push_back((start_ns, start_ns.saturating_add(duration_ns)));
    }

    /// How long a thread was halted in a call that has ended; calls come in their order.
    pub fn in_call(&mut self, thread: Thread, entry_ns: i64, duration_ns: i64) -> i64 {
        if self.of_thread.len() >= MOST_THREADS && !self.of_thread.contains_key(&thread) {
            self.of_thread.clear();
        }
        let halts = self.of_thread.entry(thread).or_default();
        let end_ns = entry_ns.saturating_add(duration_ns);
        let within = halts.iter().map(|(start, end)| ((*end).min(end_ns) - (*start).max(entry_ns)).max(0)).sum::<i64>();
        halts.retain(|(_, end)| *end > end_ns);
        within.min(duration_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_halts_a_thread_within_a_call_counts_and_nothing_else_does() {
        let mut halts = Halts::default();
        let me = (7, 8);
        halts.off_cpu(me, 0, 50, Kind::Stopped);
        assert_eq!(halts.in_call(me, 0, 100), 0, "it had made no call before");
        halts.off_cpu(me, 110, 20, Kind::Stopped); // 10 of it before the call
        halts.off_cpu(me, 140, 10, Kind::CpuThrottled);
        halts.off_cpu(me, 160, 10, Kind::CpuStolen);
        halts.off_cpu((7, 9), 160, 10, Kind::Stopped);
        halts.off_cpu(me, 190, 30, Kind::Stopped); // and 20 of this after it
        assert_eq!(halts.in_call(me, 120, 80), 10 + 10 + 10);
        assert_eq!(halts.in_call(me, 205, 100), 15, "the rest of the last one");
        assert_eq!(halts.in_call(me, 400, 100), 0);
    }

    #[test]
    fn memory_is_bounded() {
        let mut halts = Halts::default();
        for tid in 0..2 * MOST_THREADS as u32 {
            halts.in_call((1, tid), 0, 1);
        }
        let last = (1, 2 * MOST_THREADS as u32 - 1);
        for at in 0..2 * MOST_HALTS as i64 {
            halts.off_cpu(last, 10 * at, 5, Kind::Stopped);
        }
        assert!(halts.of_thread.len() <= MOST_THREADS && halts.of_thread[&last].len() <= MOST_HALTS);
        assert_eq!(halts.in_call(last, 0, i64::MAX), 5 * MOST_HALTS as i64, "the latest");
    }
}
