//! Calls that a device ran, with its times: what the NCCL profiler plugin adds to a call
//! (`shim/ring.h`, RM_DEVICE_TIMES).
//!
//! A device counts nanoseconds by a clock of its own. Each call has the difference of the host's
//! clock to it when an event of the device was noticed: too large by the time that noticing took,
//! never too small. So the least of the last seconds is taken, of each communicator by itself (it
//! has one device).

use std::collections::HashMap;

use super::layout::{DEVICE_FIRST, DEVICE_LAST, DEVICE_OFFSET};
use crate::clock::Clock;
use crate::decode;
use crate::wire::RawCall;
use record::Collective;

/// Evidence tier of times taken on the device.
const TIER: u8 = 3;
/// An offset is forgotten after one to two of these: clocks drift by some ten microseconds a
/// second.
const WINDOW_NS: u64 = 2_000_000_000;
/// Most communicators whose offset is kept.
const MOST: usize = 1024;

/// How far the host's clock is ahead of the devices', by communicator.
#[derive(Debug, Default)]
pub(super) struct DeviceClocks(HashMap<u64, Offsets>);

#[derive(Debug, Clone, Copy)]
struct Offsets {
    window: u64,
    least: i64,
    /// Of the window before.
    before: Option<i64>,
}

impl Offsets {
    fn best(self) -> i64 {
        self.before.map_or(self.least, |before| before.min(self.least))
    }
}

impl DeviceClocks {
    /// Takes an offset seen at `host_ns` into account; the best one then.
    fn learn(&mut self, comm: u64, host_ns: u64, offset: i64) -> i64 {
        let window = host_ns / WINDOW_NS;
        if self.0.len() >= MOST && !self.0.contains_key(&comm) {
            self.0.clear();
        }
        let known = self.0.entry(comm).or_insert(Offsets { window, least: offset, before: None });
        if window > known.window {
            let before = (window == known.window + 1).then_some(known.least);
            *known = Offsets { window, least: offset, before };
        }
        known.least = known.least.min(offset);
        known.best()
    }

    fn known(&self, comm: u64) -> Option<i64> {
        Some(self.0.get(&comm)?.best())
    }
}

/// Sets a call's times to those of the device.
pub(super) fn place(call: &mut Collective, raw: &RawCall, clocks: &mut DeviceClocks, clock: &Clock) {
    let (first, last) = (raw.args[DEVICE_FIRST], raw.args[DEVICE_LAST]);
    let comm = decode::communicator(raw).map_or(0, |(_, comm)| comm);
    // wrapping: a rank may write any bytes, and its own times are then meaningless
    let noticed = first.wrapping_add(raw.args[DEVICE_OFFSET]);
    let offset = clocks.learn(comm, noticed, raw.args[DEVICE_OFFSET].cast_signed());
    call.ts_ns = clock.unix_ns(first.wrapping_add_signed(offset));
    call.duration_ns = i64::try_from(last.saturating_sub(first)).unwrap_or(i64::MAX);
    call.tier = TIER;
}

/// Sets the begin of a call that has not ended to that on the device.
pub(super) fn place_open(call: &mut Collective, raw: &RawCall, clocks: &DeviceClocks, clock: &Clock) {
    let Some(offset) = decode::communicator(raw).and_then(|(_, comm)| clocks.known(comm)) else { return };
    let ended_ns = call.ts_ns.saturating_add(call.duration_ns);
    call.ts_ns = clock.unix_ns(raw.args[DEVICE_FIRST].wrapping_add_signed(offset));
    call.duration_ns = ended_ns.saturating_sub(call.ts_ns).max(0);
    call.tier = TIER;
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_least_offset_of_the_last_seconds_counts() {
        let mut clocks = DeviceClocks::default();
        assert_eq!(clocks.learn(7, SECOND, -100), -100);
        assert_eq!(clocks.learn(7, SECOND + 1, 900), -100, "noticed late");
        assert_eq!(clocks.learn(8, SECOND, 5), 5, "another device");
        assert_eq!(clocks.learn(7, 3 * SECOND, 50), -100, "still of the window before");
        assert_eq!(clocks.learn(7, 5 * SECOND, 60), 50, "the clocks have drifted apart");
        assert_eq!(clocks.learn(7, 60 * SECOND, 70), 70, "nothing for long");
        assert_eq!((clocks.known(7), clocks.known(9)), (Some(70), None));
    }

    #[test]
    fn any_number_of_communicators_takes_little() {
        let mut clocks = DeviceClocks::default();
        for comm in 0..10_000 {
            assert_eq!(clocks.learn(comm, SECOND, 1), 1);
        }
        assert!(clocks.0.len() <= MOST);
    }
}
