//! Owns the bounded queue between capture and the writer thread, and the exact count of what did
//! not fit. Knows nothing of SQLite (`ingest` drains it).
//!
//! One lock guards records and counters, so that a drain takes both at one instant: what was
//! offered up to then is either in the drained records or in the drained counts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use record::LossCount;

use super::rows::{Item, Kind};

/// Loss not yet written, by probe and reason.
pub(crate) type Losses = BTreeMap<(String, String), Lost>;

/// Records that were lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Since when, where that is known.
    pub(crate) since_ns: Option<i64>,
    /// When last counted.
    pub(crate) ts_ns: i64,
    /// How many.
    pub(crate) count: u64,
}

/// Distinct (probe, reason) pairs kept apart; more (only a fault could make them) are summed under
/// one name, so that memory stays bounded.
const MOST_LOSS_KINDS: usize = 4096;

/// Items for which a drained list is used again: those of a commit at some 50,000 records a second.
const MOST_REUSED: usize = 8192;

/// The writer looks for items no more often than this by itself.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
struct State {
    items: Vec<Item>,
    /// An empty list, whose memory is used again.
    spare: Vec<Item>,
    first_at: Option<Instant>,
    dropped: [u64; Kind::ALL.len()],
    losses: Losses,
    flush_wanted: u64,
    flush_done: u64,
    stop: bool,
}

/// What a drain took.
#[derive(Debug, Default)]
pub(crate) struct Drained {
    pub(crate) items: Vec<Item>,
    pub(crate) dropped: [u64; Kind::ALL.len()],
    pub(crate) losses: Losses,
    pub(crate) flush: u64,
    pub(crate) stop: bool,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    wake_writer: Condvar,
    flushed: Condvar,
    capacity: usize,
    wake_at: usize,
}

impl Queue {
    /// A queue of at most `capacity` items; the writer is woken early when a quarter is in use.
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self {
            state: Mutex::default(),
            wake_writer: Condvar::new(),
            flushed: Condvar::new(),
            capacity,
            wake_at: (capacity / 4).max(1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Put an item in, or count it as dropped. False when it was dropped.
    pub(crate) fn push(&self, item: Item) -> bool {
        let Some(kind) = item.kind() else { return true };
        let mut state = self.lock();
        if state.items.len() >= self.capacity || state.stop {
            state.dropped[kind as usize] += 1;
            return false;
        }
        state.items.push(item);
        let len = state.items.len();
        if len == 1 {
            state.first_at = Some(Instant::now());
        }
        drop(state);
        if len == self.wake_at {
            self.wake_writer.notify_one();
        }
        true
    }

    /// Add a loss that happened elsewhere. Never dropped.
    pub(crate) fn push_loss(&self, loss: LossCount) {
        if loss.lost == 0 {
            return;
        }
        let mut state = self.lock();
        let lost = Lost { since_ns: loss.since_ns, ts_ns: loss.ts_ns, count: loss.lost };
        merge_loss(&mut state.losses, loss.probe, loss.reason, lost);
        state.first_at.get_or_insert_with(Instant::now);
    }

    /// What came up to now came together, and more is not to be expected soon: asks for a commit, and
    /// does not wait for it.
    pub(crate) fn batch_is_over(&self) {
        let mut state = self.lock();
        if !state.items.is_empty() {
            state.flush_wanted += 1;
            drop(state);
            self.wake_writer.notify_one();
        }
    }

    /// Wait until there is something to commit (a batch is over, or `commit_every` after the first
    /// item came, or the queue is filling, or a flush or stop is asked for), at most `idle`; then take
    /// everything. An item wakes nobody by itself: the writer looks every `commit_every`.
    pub(crate) fn drain(&self, commit_every: Duration, idle: Duration) -> Drained {
        let deadline = Instant::now() + idle;
        let mut state = self.lock();
        loop {
            let due = state.first_at.map_or(deadline, |first| (first + commit_every).min(deadline));
            let now = Instant::now();
            let hurry = state.stop || state.flush_wanted > state.flush_done || state.items.len() >= self.wake_at;
            if hurry || now >= due {
                break;
            }
            self.wake_writer.wait_for(&mut state, (due - now).min(commit_every.max(SHORTEST_LOOK)));
        }
        state.first_at = None;
        let empty = std::mem::take(&mut state.spare);
        Drained {
            items: std::mem::replace(&mut state.items, empty),
            dropped: std::mem::take(&mut state.dropped),
            losses: std::mem::take(&mut state.losses),
            flush: state.flush_wanted,
            stop: state.stop,
        }
    }

    /// The list of a drain was dealt with: its memory is used again where it is not large.
    pub(crate) fn reuse(&self, mut items: Vec<Item>) {
        items.clear();
        if items.capacity() <= MOST_REUSED {
            self.lock().spare = items;
        }
    }

    /// Wait out a back-off, unless a stop is asked for. True when stopping.
    pub(crate) fn back_off(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut state = self.lock();
        while !state.stop {
            let now = Instant::now();
            if now >= deadline {
                break;
            }
            self.wake_writer.wait_for(&mut state, deadline - now);
        }
        state.stop
    }

    /// Everything offered before the drain that saw `flush` is settled.
    pub(crate) fn settled(&self, flush: u64) {
        let mut state = self.lock();
        state.flush_done = state.flush_done.max(flush);
        drop(state);
        self.flushed.notify_all();
    }

    /// Ask for a commit of everything offered so far and wait for it. False when `timeout` passed
    /// first.
    pub(crate) fn flush(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        state.flush_wanted += 1;
        let mine = state.flush_wanted;
        self.wake_writer.notify_one();
        while state.flush_done < mine {
            let now = Instant::now();
            if now >= deadline {
                return false;
            }
            self.flushed.wait_for(&mut state, deadline - now);
        }
        true
    }

    /// Ask the writer to finish. Whatever is offered afterwards is counted as dropped.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.wake_writer.notify_all();
    }

    /// How full it is, in thousandths.
    pub(crate) fn fullness(&self) -> u32 {
        u32::try_from(self.len().saturating_mul(1000) / self.capacity).unwrap_or(u32::MAX)
    }

    /// Items waiting.
    pub(crate) fn len(&self) -> usize {
        self.lock().items.len()
    }
}

/// Add to `losses`, within its bound.
pub(crate) fn merge_loss(losses: &mut Losses, probe: String, reason: String, lost: Lost) {
    let mut key = (probe, reason);
    if losses.len() >= MOST_LOSS_KINDS && !losses.contains_key(&key) {
        key = ("(many probes)".to_owned(), "various".to_owned());
    }
    let entry = losses.entry(key).or_insert(Lost { count: 0, ..lost });
    entry.since_ns = entry.since_ns.zip(lost.since_ns).map(|(one, other)| one.min(other));
    entry.ts_ns = entry.ts_ns.max(lost.ts_ns);
    entry.count = entry.count.saturating_add(lost.count);
}

#[cfg(test)]
mod tests {
    use record::Record;

    use super::*;
    use crate::testing::collective;

    fn item(i: u64) -> Item {
        Item::Record(Record::Collective(collective(i)))
    }

    #[test]
    fn what_does_not_fit_is_counted_in_the_same_drain() {
        let queue = Queue::new(8);
        let kept = (0..11).filter(|&i| queue.push(item(i))).count();
        let drained = queue.drain(Duration::ZERO, Duration::ZERO);
        assert_eq!((kept, drained.items.len()), (8, 8));
        assert_eq!(drained.dropped[Kind::Collective as usize], 3);
        let again = queue.drain(Duration::ZERO, Duration::ZERO);
        assert_eq!((again.items.len(), again.dropped), (0, [0; Kind::ALL.len()]));
    }

    #[test]
    fn losses_of_one_probe_add_up_and_are_never_dropped() {
        let queue = Queue::new(1);
        for i in 0..10_000_u64 {
            queue.push_loss(LossCount {
                since_ns: None,
                ts_ns: i.cast_signed(),
                probe: format!("p{}", i % 5000),
                reason: "ringbuf".to_owned(),
                lost: 2,
            });
        }
        let drained = queue.drain(Duration::ZERO, Duration::ZERO);
        assert!(drained.losses.len() <= MOST_LOSS_KINDS + 1);
        assert_eq!(drained.losses.values().map(|l| l.count).sum::<u64>(), 20_000);
    }

    #[test]
    fn a_filling_queue_does_not_wait_for_the_commit_interval() {
        let queue = Queue::new(16);
        for i in 0..4 {
            queue.push(item(i));
        }
        // (Else the test would never end.)
        let day = Duration::from_secs(86_400);
        assert_eq!(queue.drain(day, day).items.len(), 4);
    }

    #[test]
    fn what_came_together_is_drained_together_at_once_and_the_rest_after_the_interval() {
        let queue = Queue::new(1000);
        let (long, idle) = (Duration::from_secs(60), Duration::from_secs(60));
        queue.batch_is_over();
        (0..9).for_each(|i| assert!(queue.push(item(i))));
        queue.batch_is_over();
        let drained = queue.drain(long, idle);
        assert_eq!(drained.items.len(), 9);
        queue.settled(drained.flush);
        // Of one batch, not of what follows; and a batch of nothing is none.
        assert!(queue.push(item(9)));
        let (short, began) = (Duration::from_millis(40), Instant::now());
        assert_eq!(queue.drain(short, idle).items.len(), 1);
        assert!(began.elapsed() >= short);
    }

    #[test]
    fn after_a_stop_everything_counts_as_dropped() {
        let queue = Queue::new(16);
        queue.push(item(0));
        queue.stop();
        assert!(!queue.push(item(1)));
        let drained = queue.drain(Duration::from_secs(60), Duration::from_secs(60));
        assert!(drained.stop);
        assert_eq!((drained.items.len(), drained.dropped[0]), (1, 1));
    }
}
