//! The bytes of the host's signals, parsed with size checks. `bpf/wire_host.h` defines them; the
//! records of calls, and the kinds' dispatch, are in the crate's `wire`.

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::bytes::Reader;

pub(crate) const BLOCK_KIND: u32 = 16;
pub(crate) const MEMORY_KIND: u32 = 17;
pub(crate) const LIFE_KIND: u32 = 18;
pub(crate) const BLOCK_BYTES: usize = 80;
pub(crate) const MEMORY_BYTES: usize = 56;
pub(crate) const LIFE_BYTES: usize = 56;

/// The probes of the map `host_stats`, by slot (`enum rm_host_slot`).
pub(crate) const HOST_PROBES: &[&str] =
    &["block_rq", "major_fault", "reclaim", "oom_kill", "process_events", "ib_events"];

/// A request to a block device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawBlock {
    pub(crate) op: u32,
    pub(crate) insert_ns: u64,
    pub(crate) issue_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) cgroup_id: u64,
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) bytes: u32,
    pub(crate) error: i32,
    pub(crate) disk: [u8; 16],
}

/// A memory event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawMemory {
    pub(crate) event: u32,
    pub(crate) start_ns: u64,
    /// Of all together; 0: not known.
    pub(crate) sum_ns: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) cgroup_id: u64,
    pub(crate) pages: u64,
    /// How many events it stands for.
    pub(crate) count: u32,
}

/// A process begins or ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawLife {
    pub(crate) event: u32,
    pub(crate) ts_ns: u64,
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    pub(crate) cgroup_id: u64,
    pub(crate) exit_code: i32,
    pub(crate) comm: [u8; 16],
}

impl RawLife {
    /// `RM_LIFE_FORK`.
    pub(crate) fn is_beginning(&self) -> bool {
        self.event == 1
    }
}

/// One record of the ring buffer about the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RawHost {
    Block(RawBlock),
    Memory(RawMemory),
    Life(RawLife),
}

/// The size of a record of this kind; none when it is not one of ours.
pub(crate) fn size_of(kind: u32) -> Option<usize> {
    Some(match kind {
        BLOCK_KIND => BLOCK_BYTES,
        MEMORY_KIND => MEMORY_BYTES,
        LIFE_KIND => LIFE_BYTES,
        _ => return None,
    })
}

/// Parses what follows the kind. The caller has checked the size.
pub(crate) fn parse(kind: u32, r: &mut Reader<'_>) -> Option<RawHost> {
    Some(match kind {
        BLOCK_KIND => RawHost::Block(RawBlock {
            op: r.u32()?,
            insert_ns: r.u64()?,
            issue_ns: r.u64()?,
            end_ns: r.u64()?,
            pid: r.u32()?,
            tid: r.u32()?,
            cgroup_id: r.u64()?,
            major: r.u32()?,
            minor: r.u32()?,
            bytes: r.u32()?,
            error: r.u32()?.cast_signed(),
            disk: r.array()?,
        }),
        MEMORY_KIND => RawHost::Memory(RawMemory {
            event: r.u32()?,
            start_ns: r.u64()?,
            sum_ns: r.u64()?,
            pid: r.u32()?,
            tid: r.u32()?,
            cgroup_id: r.u64()?,
            pages: r.u64()?,
            count: r.u32()?,
        }),
        LIFE_KIND => RawHost::Life(RawLife {
            event: r.u32()?,
            ts_ns: r.u64()?,
            pid: r.u32()?,
            parent: r.u32()?,
            cgroup_id: r.u64()?,
            exit_code: r.u32()?.cast_signed(),
            comm: {
                let _pad = r.u32()?;
                r.array()?
            },
        }),
        _ => return None,
    })
}

/// `struct rm_tuning`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tuning {
    pub(crate) offcpu_min_ns: u64,
    pub(crate) block_min_ns: u64,
    pub(crate) shed_p2p: bool,
    /// Calls of frequent functions were missed up to this kernel time; the largest: they are being
    /// missed.
    pub(crate) missed_until_ns: u64,
}

impl Tuning {
    /// Writes it into the kernel's map.
    pub(crate) fn apply(self, map: &MapHandle) -> libbpf_rs::Result<()> {
        map.update(&0u32.to_ne_bytes(), &self.to_bytes(), MapFlags::ANY)
    }

    pub(crate) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&self.offcpu_min_ns.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.block_min_ns.to_ne_bytes());
        bytes[16..20].copy_from_slice(&u32::from(self.shed_p2p).to_ne_bytes());
        bytes[24..].copy_from_slice(&self.missed_until_ns.to_ne_bytes());
        bytes
    }
}
