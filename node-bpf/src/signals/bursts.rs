//! Bursts of short faults and reclaim that no later event ends: the programs send a burst when the
//! next one begins (`bpf/bursts.bpf.h`), and after the last there is none. So the map is read, and
//! old bursts are delivered from here. The programs do not know of that and send it again later; it
//! is recognised by its beginning, and left out then.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::wire::RawMemory;
use crate::bytes::Reader;
use crate::wire::{STATS_BYTES, Stats};

/// No burst continues after a pause of 10 ms (`RM_PAUSE_NS`): one that two reads find unchanged is
/// over.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// `RM_HOST_FAULT` and `RM_HOST_RECLAIM`.
const SLOTS: [u32; 2] = [1, 2];

/// Remembers delivered bursts, by the key of the map.
#[derive(Debug)]
pub(crate) struct Bursts {
    map: MapHandle,
    host_stats: MapHandle,
    looked: Option<Instant>,
    /// Events so far, and whether a burst was open when that was so.
    hits: u64,
    open: bool,
    /// The bursts of the last read.
    last: HashMap<u64, RawMemory>,
    /// Beginnings of bursts that were delivered from here.
    delivered: HashMap<u64, u64>,
}

impl Bursts {
    pub(crate) fn new(map: MapHandle, host_stats: MapHandle) -> Self {
        let (last, delivered) = (HashMap::new(), HashMap::new());
        Bursts { map, host_stats, looked: None, hits: 0, open: false, last, delivered }
    }

    /// Whether this record of the ring was not delivered before.
    pub(crate) fn is_new(&mut self, raw: &RawMemory) -> bool {
        self.delivered.remove(&key_of(raw)) != Some(raw.start_ns)
    }

    /// The bursts that are over, at most ten times a second, or all that there are.
    pub(crate) fn over(&mut self, all: bool) -> Vec<RawMemory> {
        if !all && self.looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return vec![];
        }
        self.looked = Some(Instant::now());
        let hits = self.hits();
        if hits == self.hits && !self.open {
            return vec![];
        }
        self.hits = hits;
        let found = self.read();
        self.open = false;
        let mut over = vec![];
        for (key, burst) in &found {
            if self.delivered.get(key) == Some(&burst.start_ns) {
                continue;
            }
            if all || self.last.get(key) == Some(burst) {
                self.delivered.insert(*key, burst.start_ns);
                over.push(burst.clone());
            } else {
                self.open = true;
            }
        }
        self.last = found;
        over.sort_by_key(|burst| burst.start_ns);
        over
    }

    fn hits(&self) -> u64 {
        let of = |slot: u32| {
            let per_cpu = self.host_stats.lookup_percpu(&slot.to_ne_bytes(), MapFlags::ANY).ok()??;
            let mut sum = Stats::default();
            per_cpu.iter().filter(|bytes| bytes.len() >= STATS_BYTES).for_each(|bytes| sum.add(bytes));
            Some(sum.hits)
        };
        SLOTS.into_iter().filter_map(of).sum()
    }

    fn read(&self) -> HashMap<u64, RawMemory> {
        let entries = self.map.keys().filter_map(|key| {
            let value = self.map.lookup(&key, MapFlags::ANY).ok()??; // its thread may end meanwhile
            let burst = parse(&key, &value)?;
            Some((key_of(&burst), burst))
        });
        entries.collect()
    }
}

fn key_of(raw: &RawMemory) -> u64 {
    u64::from(raw.event) << 32 | u64::from(raw.tid)
}

/// An entry of the map; none where no burst is open.
fn parse(key: &[u8], value: &[u8]) -> Option<RawMemory> {
    let key = u64::from_ne_bytes(key.try_into().ok()?);
    let mut r = Reader::new(value);
    let (start_ns, _end_ns, sum_ns) = (r.u64()?, r.u64()?, r.u64()?);
    let (pages, cgroup_id, pid, count) = (r.u64()?, r.u64()?, r.u32()?, r.u32()?);
    let (event, tid) = ((key >> 32) as u32, key as u32);
    (count > 0).then_some(RawMemory { event, start_ns, sum_ns, pid, tid, cgroup_id, pages, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_the_map() {
        let key = (1_u64 << 32 | 77).to_ne_bytes();
        let mut value: Vec<u8> = [100_u64, 900, 450, 3, 5].iter().flat_map(|word| word.to_ne_bytes()).collect();
        value.extend([70_u32, 12].iter().flat_map(|word| word.to_ne_bytes()));
        let burst = parse(&key, &value).unwrap();
        assert_eq!((burst.event, burst.tid, burst.pid, burst.count), (1, 77, 70, 12));
        assert_eq!((burst.start_ns, burst.sum_ns, burst.pages, burst.cgroup_id), (100, 450, 3, 5));
        assert_eq!(key_of(&burst).to_ne_bytes(), key);
        value[44..].copy_from_slice(&0_u32.to_ne_bytes());
        assert_eq!(parse(&key, &value), None);
        assert_eq!(parse(&key, &value[..40]), None);
    }
}
