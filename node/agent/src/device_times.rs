//! Which of two records of one call is stored, where both eBPF and the device's own times report
//! it.
//!
//! A rank with NCCL's profiler plugin hands over its collectives with the times of the device (tier
//! 3); eBPF sees the same calls being enqueued (tier 0). A device that is slower than the others
//! shows in the former alone, so from the first such record on only they are stored for a lane: a
//! process, a communicator, a function. Both number calls from the communicator's start, so the
//! number at which one takes over from the other is exact, and each call counts once. Other records
//! that ranks hand over (MPI, times of the host) are seen by eBPF already.

use std::collections::{HashMap, HashSet};

use node_bpf::Record;
use parking_lot::Mutex;
use record::{Collective, Library};

/// The evidence tier of times that the device took itself.
const TIMES_OF_DEVICE: u8 = 3;

/// Beyond this many lanes those of ended processes are dropped.
const MANY_LANES: usize = 4096;

/// Calls that are numbered together: process, communicator, function.
type Lane = (u32, u64, &'static str);

/// The source of a lane's stored records.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Of {
    /// eBPF's, so far up to this number.
    Host(u64),
    /// The plugin's, beyond the number up to which eBPF's are stored.
    Device { after: Option<u64> },
}

#[derive(Debug, Default)]
struct Seen {
    lanes: HashMap<Lane, Of>,
    /// Processes with calls that eBPF cannot number: recording began after their communicators.
    unnumbered: HashSet<u32>,
}

/// Decides for the records of both sources.
#[derive(Debug, Default)]
pub(super) struct DeviceTimes(Mutex<Seen>);

impl DeviceTimes {
    /// Whether a record that eBPF made is stored.
    pub(super) fn admits_of_ebpf(&self, record: &Record) -> bool {
        let Record::Collective(call) = record else { return true };
        if !matches!(call.library, Library::Nccl | Library::Rccl) {
            return true;
        }
        let mut seen = self.0.lock();
        let Some((lane, seq)) = numbered(call) else {
            seen.unnumbered.insert(call.pid);
            return true;
        };
        if seen.lanes.len() >= MANY_LANES {
            forget_ended(&mut seen);
        }
        match seen.lanes.entry(lane).or_insert(Of::Host(seq)) {
            Of::Host(last) => {
                *last = seq.max(*last);
                true
            }
            Of::Device { .. } => false,
        }
    }

    /// Whether a record that a rank handed over is stored, too.
    pub(super) fn admits_of_rank(&self, record: &Record) -> bool {
        let mut seen = self.0.lock();
        match record {
            Record::Collective(call) if call.tier == TIMES_OF_DEVICE => {
                let Some((lane, seq)) = numbered(call).filter(|_| !seen.unnumbered.contains(&call.pid)) else {
                    return false;
                };
                let after = match seen.lanes.get(&lane) {
                    Some(Of::Host(last)) => Some(*last),
                    Some(Of::Device { after }) => *after,
                    None => None,
                };
                seen.lanes.insert(lane, Of::Device { after });
                after.is_none_or(|last| seq > last)
            }
            Record::Loss(loss) => {
                let pid = loss.probe.strip_prefix("shim:").and_then(|pid| pid.parse::<u32>().ok());
                seen.lanes.iter().any(|(lane, of)| Some(lane.0) == pid && matches!(of, Of::Device { .. }))
            }
            // They name the process: eBPF does not know one in which NCCL is linked statically.
            Record::Process(_) => true,
            _ => false,
        }
    }

    /// Whether the calls of this lane come from the device.
    pub(super) fn are_of_device(&self, call: &Collective) -> bool {
        let of_device = |(lane, _)| matches!(self.0.lock().lanes.get(&lane), Some(Of::Device { .. }));
        numbered(call).is_some_and(of_device)
    }

    /// Whether a record has the device's times of calls that are left out.
    pub(super) fn leaves_out(&self, record: &Record) -> bool {
        matches!(record, Record::Collective(call)
            if call.tier == TIMES_OF_DEVICE && self.0.lock().unnumbered.contains(&call.pid))
    }
}

fn numbered(call: &Collective) -> Option<(Lane, u64)> {
    Some(((call.pid, call.comm_hash?, call.func), call.seq?))
}

fn forget_ended(seen: &mut Seen) {
    let runs = |pid: u32| std::path::Path::new("/proc").join(pid.to_string()).exists();
    seen.lanes.retain(|lane, _| runs(lane.0));
    seen.unnumbered.retain(|pid| runs(*pid));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(tier: u8, seq: Option<u64>) -> Record {
        Record::Collective(Collective {
            duration_ns: 1,
            pid: 7,
            tid: 7,
            rank: Some(0),
            nranks: Some(2),
            comm_hash: Some(9),
            func: "all_reduce",
            seq,
            tier,
            ..Collective::default()
        })
    }

    /// Feeds calls by number, `e` eBPF's and `d` the device's; gives what is stored.
    fn stored(order: &str) -> Vec<(u8, u64)> {
        let times = DeviceTimes::default();
        let mut stored = vec![];
        for event in order.split(' ') {
            let seq = event[1..].parse().unwrap();
            let tier = if event.starts_with('d') { TIMES_OF_DEVICE } else { 0 };
            let record = call(tier, Some(seq));
            if if tier == 0 { times.admits_of_ebpf(&record) } else { times.admits_of_rank(&record) } {
                stored.push((tier, seq));
            }
        }
        stored
    }

    #[test]
    fn each_call_counts_once_and_the_device_takes_over() {
        // The host runs ahead; the device's first record ends eBPF's.
        assert_eq!(stored("e0 e1 e2 d0 e3 d1 e4 d2 d3 d4"), [(0, 0), (0, 1), (0, 2), (3, 3), (3, 4)]);
        // The reader of rings was quicker.
        assert_eq!(stored("d0 e0 e1 d1"), [(3, 0), (3, 1)]);
        // No plugin, and nothing seen by eBPF (NCCL linked statically).
        assert_eq!(stored("e0 e1"), [(0, 0), (0, 1)]);
        assert_eq!(stored("d0 d1"), [(3, 0), (3, 1)]);
    }

    #[test]
    fn every_order_of_arrival_stores_every_call_once() {
        // Two sources, each in its order: every way to mix them.
        for mixed in 0_u32..1 << 10 {
            if mixed.count_ones() != 5 {
                continue;
            }
            let (mut host, mut device) = (0, 0);
            let order: Vec<String> = (0..10)
                .map(|bit| {
                    let (name, next) = if mixed >> bit & 1 == 1 { ('e', &mut host) } else { ('d', &mut device) };
                    *next += 1;
                    format!("{name}{}", *next - 1)
                })
                .collect();
            let order = order.join(" ");
            let mut numbers: Vec<u64> = stored(&order).into_iter().map(|(_, seq)| seq).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, [0, 1, 2, 3, 4], "{order}");
        }
    }

    #[test]
    fn what_cannot_be_numbered_and_what_is_not_of_the_device_is_left_out() {
        let times = DeviceTimes::default();
        assert!(times.admits_of_ebpf(&call(0, None)));
        assert!(!times.admits_of_rank(&call(3, Some(5))) && times.leaves_out(&call(3, Some(5))));
        let times = DeviceTimes::default();
        assert!(!times.admits_of_rank(&call(0, Some(0))) && !times.leaves_out(&call(0, Some(0))), "times of the host");
        let lost = |pid| {
            let (probe, reason) = (format!("shim:{pid}"), "ring".to_owned());
            Record::Loss(record::LossCount { ts_ns: 0, since_ns: None, probe, reason, lost: 3 })
        };
        assert!(!times.admits_of_rank(&lost(7)), "of calls that eBPF has");
        assert!(
            times.admits_of_rank(&call(3, Some(0)))
                && times.admits_of_rank(&lost(7))
                && !times.admits_of_rank(&lost(8))
        );
    }
}
