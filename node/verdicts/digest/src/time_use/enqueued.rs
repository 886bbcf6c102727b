//! Jobs on devices: calls of NCCL and RCCL only enqueue, and a host waits for what it enqueued in a
//! synchronise call later, often once in many steps.
//!
//! Such a wait is time in communication calls. Whether it was spent in calls that are compared one
//! by one is told by most of the calls that it waited for.

use super::call::Call;

/// The calls that one process enqueued since it last waited for its device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Enqueued {
    /// Sends and receives.
    pairs: u64,
    /// All others.
    others: u64,
}

impl Enqueued {
    /// Take in a call that only enqueues; `pair`: it is a send or a receive.
    pub fn call(&mut self, pair: bool) {
        *(if pair { &mut self.pairs } else { &mut self.others }) += 1;
    }

    /// The synchronise call after them, as a communication call; none where nothing was enqueued
    /// since the last one. Nanoseconds of the node's clock.
    #[must_use]
    pub fn wait(&mut self, tid: u32, start_ns: i64, duration_ns: i64) -> Option<Call> {
        let Self { pairs, others } = std::mem::take(self);
        (pairs + others > 0).then(|| Call {
            tid,
            start_ns,
            end_ns: start_ns.saturating_add(duration_ns.max(0)),
            scored: pairs <= others,
            peer: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_of_the_kind_of_most_calls_before_it() {
        let mut enqueued = Enqueued::default();
        assert_eq!(enqueued.wait(1, 0, 5), None, "nothing to wait for");
        [true, true, false].into_iter().for_each(|pair| enqueued.call(pair));
        let waited = enqueued.wait(1, 10, 5).expect("a wait");
        assert_eq!((waited.start_ns, waited.end_ns, waited.scored), (10, 15, false));
        [false, true].into_iter().for_each(|pair| enqueued.call(pair));
        assert!(enqueued.wait(1, 20, 5).expect("a wait").scored);
        assert_eq!(enqueued.wait(1, 30, 5), None, "all was waited for");
    }
}
