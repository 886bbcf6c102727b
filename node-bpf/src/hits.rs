//! How often the probes of one attachment are hit, at functions that a user named. A hit takes
//! microseconds: one that comes too often slows the program more than what is learnt is worth.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use parking_lot::Mutex;

/// Hits of one attachment in a second, of all its probes and all processes, over which they are taken off.
pub(crate) const MOST_HITS: u64 = 50_000;
/// Time over which they are counted, at least.
pub(crate) const OVER: Duration = Duration::from_secs(1);

/// The counters of attachments, a map of numbers.
#[derive(Debug, Clone)]
pub(crate) struct Hits {
    map: Arc<MapHandle>,
    /// Whether a place is in use. The first is nobody's.
    taken: Arc<Mutex<Vec<bool>>>,
}

/// The counter of an attachment. It is given back when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    hits: Hits,
    at: u32,
    /// As of a time.
    counted: u64,
    since: Instant,
}

impl Hits {
    pub(crate) fn new(map: MapHandle) -> Hits {
        let places = map.max_entries() as usize;
        let taken = (0..places).map(|at| at == 0).collect();
        Hits { map: Arc::new(map), taken: Arc::new(Mutex::new(taken)) }
    }

    /// A counter for an attachment; none where all are in use.
    pub(crate) fn slot(&self) -> Option<Slot> {
        let mut taken = self.taken.lock();
        let at = taken.iter().position(|taken| !taken)?;
        taken[at] = true;
        drop(taken);
        let (hits, at) = (self.clone(), u32::try_from(at).ok()?);
        let counted = hits.read(at);
        Some(Slot { hits, at, counted, since: Instant::now() })
    }

    fn read(&self, at: u32) -> u64 {
        let value = self.map.lookup(&at.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        value.and_then(|value| value.first_chunk().copied()).map_or(0, u64::from_ne_bytes)
    }
}

impl Slot {
    /// Its place.
    pub(crate) fn at(&self) -> u32 {
        self.at
    }

    /// Hits in a second, where those since the last count were too many.
    pub(crate) fn too_often(&mut self, now: Instant) -> Option<u64> {
        let over = now.duration_since(self.since);
        if over < OVER {
            return None;
        }
        let counted = self.hits.read(self.at);
        let hits = counted.saturating_sub(std::mem::replace(&mut self.counted, counted));
        self.since = now;
        too_often(hits, over)
    }
}

/// Hits in a second, where they are too many.
pub(crate) fn too_often(hits: u64, over: Duration) -> Option<u64> {
    let often = (hits as f64 / over.as_secs_f64()) as u64;
    (often > MOST_HITS).then_some(often)
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(taken) = self.hits.taken.lock().get_mut(self.at as usize) {
            *taken = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_hits_in_a_long_time_are_few() {
        assert_eq!(too_often(MOST_HITS, Duration::from_secs(1)), None);
        assert_eq!(too_often(3 * MOST_HITS, Duration::from_secs(2)), Some(MOST_HITS * 3 / 2));
        assert_eq!(too_often(3 * MOST_HITS, Duration::from_secs(3)), None);
    }
}
