//! Asynchronous events of InfiniBand and RoCE devices, as libibverbs reports them to a process: a
//! port that goes down or comes back, a queue pair or device that fails. Owns the file and symbol,
//! and the meaning of the numbers; the programs are in `bpf/verbs.bpf.h`, counters of ports in
//! `sampling::fabric`.
//!
//! `int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)` waits for
//! an event and returns 0 (ibv_get_async_event(3)). Layouts: rdma-core, libibverbs/verbs.h: `struct
//! ibv_async_event` has a union of pointers and `int port_num`, then `enum ibv_event_type`; `struct
//! ibv_context` begins with its `struct ibv_device *`, and that has two function pointers, two
//! enums, then `char name[64]`. They are of the symbol's version IBVERBS_1.1 (2008), which is the
//! default one; IBVERBS_1.0's differ, and that function calls the other.

use files::Question;

use crate::bytes::Reader;
use crate::clock::Clock;
use crate::symbols::Target;
use record::NetEvent;

const SYMBOL: &str = "ibv_get_async_event";

/// Whether a file of this name is the library.
pub(crate) fn is_verbs(file_name: &[u8]) -> bool {
    file_name.starts_with(b"libibverbs.so")
}

/// What is asked of a file for its probe: the symbol in the version that programs are linked with
/// (`@@`, not hidden).
pub(crate) fn question() -> Question {
    Question::DefaultVersion { symbol: SYMBOL.to_owned() }
}

/// The probe at this offset of a file.
pub(crate) fn target(file_offset: u64) -> Target {
    Target { symbol: SYMBOL.into(), file_offset, cookie: 0, semaphore: 0 }
}

/// `RM_VERBS`.
pub(crate) const KIND: u32 = 19;
pub(crate) const BYTES: usize = 104;

/// An event that was reported to a process (`struct rm_verbs`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawVerbs {
    pub(crate) event: u32,
    pub(crate) ts_ns: u64,
    pub(crate) pid: u32,
    pub(crate) cgroup_id: u64,
    pub(crate) port: u32,
    pub(crate) device: [u8; 64],
}

impl RawVerbs {
    /// Parses what follows the kind. The caller has checked the size.
    pub(crate) fn parse(r: &mut Reader<'_>) -> Option<RawVerbs> {
        let (event, ts_ns, pid) = (r.u32()?, r.u64()?, r.u32()?);
        let _tid = r.u32()?;
        let (cgroup_id, port) = (r.u64()?, r.u32()?);
        let _pad = r.u32()?;
        Some(RawVerbs { event, ts_ns, pid, cgroup_id, port, device: r.array()? })
    }

    /// The row of `net_events`: with the device's name as source and the port's number as its port.
    pub(crate) fn record(&self, clock: &Clock, rank: Option<i32>) -> NetEvent {
        let name = self.device.split(|byte| *byte == 0).next().unwrap_or_default();
        let (event, of_port) = EVENTS.get(self.event as usize).copied().unwrap_or(("ib_other", false));
        NetEvent {
            ts_ns: clock.unix_ns(self.ts_ns),
            event,
            pid: Some(self.pid),
            rank,
            saddr: String::from_utf8_lossy(name).into_owned(),
            sport: if of_port { u16::try_from(self.port).unwrap_or(0) } else { 0 },
            daddr: String::new(),
            dport: 0,
            state: i32::try_from(self.event).ok(),
            segs: None,
            cgroup_id: self.cgroup_id,
        }
    }
}

/// `enum ibv_event_type` in order, and whether the event is a port's (ibv_get_async_event(3)).
const EVENTS: &[(&str, bool)] = &[
    ("ib_cq_err", false),
    ("ib_qp_fatal", false),
    ("ib_qp_req_err", false),
    ("ib_qp_access_err", false),
    ("ib_comm_est", false),
    ("ib_sq_drained", false),
    ("ib_path_mig", false),
    ("ib_path_mig_err", false),
    ("ib_device_fatal", false),
    ("ib_port_active", true),
    ("ib_port_err", true),
    ("ib_lid_change", true),
    ("ib_pkey_change", true),
    ("ib_sm_change", true),
    ("ib_srq_err", false),
    ("ib_srq_limit_reached", false),
    ("ib_qp_last_wqe_reached", false),
    ("ib_client_reregister", true),
    ("ib_gid_change", true),
    ("ib_wq_fatal", false),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back() {
        let mut bytes = [10u32.to_ne_bytes()].concat();
        bytes.extend(5u64.to_ne_bytes());
        bytes.extend([7u32, 8].map(u32::to_ne_bytes).concat());
        bytes.extend(9u64.to_ne_bytes());
        bytes.extend([2u32, 0].map(u32::to_ne_bytes).concat());
        let mut device = [0; 64];
        device[..6].copy_from_slice(b"mlx5_1");
        bytes.extend(device);
        assert_eq!(bytes.len() + 4, BYTES);
        let raw = RawVerbs::parse(&mut Reader::new(&bytes)).unwrap();
        let event = raw.record(&Clock::measure(), Some(3));
        assert_eq!((event.event, event.saddr.as_str(), event.sport), ("ib_port_err", "mlx5_1", 2));
        assert_eq!((event.pid, event.rank, event.state, event.cgroup_id), (Some(7), Some(3), Some(10), 9));
        let other = RawVerbs { event: 1, ..raw.clone() }.record(&Clock::measure(), None);
        assert_eq!((other.event, other.sport), ("ib_qp_fatal", 0), "the union holds a pointer");
        assert_eq!(RawVerbs { event: 99, ..raw }.record(&Clock::measure(), None).event, "ib_other");
    }
}
