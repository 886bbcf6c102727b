//! The bytes of counted calls, as the BPF programs keep them in maps and in the ring buffer.
//! `bpf/tally.h` defines them; the sibling modules interpret them.

/// `RM_TALLY_ROW`: the kind of a single call in the ring buffer.
const ROW: u32 = 64;
const ROW_BYTES: usize = 72;

pub(crate) const AFTER_COLLECTIVE: u16 = 1;
pub(crate) const HAVE_BYTES: u16 = 2;
pub(crate) const HAVE_KIND: u16 = 4;
pub(crate) const HAVE_STREAM: u16 = 8;
pub(crate) const NO_RETURN: u16 = 16;

/// `RM_TALLY_HANDS_OVER`, in a cookie.
pub(crate) const HANDS_OVER: u64 = 64 << 24;

/// `RM_TALLY_BUDGETS`, and which one is whose.
pub(crate) const BUDGETS: usize = 4;
pub(crate) const BUDGET_SLOW_CUDA: usize = 0;
pub(crate) const BUDGET_SYNCS: usize = 1;
pub(crate) const BUDGET_SYMBOLS: usize = 2;
pub(crate) const BUDGET_POINTS: usize = 3;

/// A call that became a record of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawRow {
    pub(crate) func: u16,
    pub(crate) flags: u16,
    pub(crate) enter_ns: u64,
    pub(crate) exit_ns: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) cgroup_id: u64,
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
    pub(crate) ret: u64,
    pub(crate) copy_kind: i32,
}

impl RawRow {
    /// None when the record is of another kind or form.
    pub(crate) fn parse(bytes: &[u8]) -> Option<RawRow> {
        let mut words = Words(bytes);
        if bytes.len() != ROW_BYTES || words.u32()? != ROW {
            return None;
        }
        Some(RawRow {
            func: words.u16()?,
            flags: words.u16()?,
            enter_ns: words.u64()?,
            exit_ns: words.u64()?,
            pid: words.u32()?,
            tid: words.u32()?,
            cgroup_id: words.u64()?,
            bytes: words.u64()?,
            stream: words.u64()?,
            ret: words.u64()?,
            copy_kind: words.u32()? as i32,
        })
    }
}

/// One bucket's sums: an entry of `tallies_…`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawTally {
    pub(crate) pid: u32,
    pub(crate) func: u16,
    pub(crate) bucket: u16,
    pub(crate) count: u64,
    pub(crate) sum_ns: u64,
    pub(crate) min_ns: u64,
    pub(crate) max_ns: u64,
    pub(crate) bytes: u64,
    pub(crate) cgroup_id: u64,
}

impl RawTally {
    pub(crate) fn parse(key: &[u8], value: &[u8]) -> Option<RawTally> {
        let (mut key, mut value) = (Words(key), Words(value));
        Some(RawTally {
            pid: key.u32()?,
            func: key.u16()?,
            bucket: key.u16()?,
            count: value.u64()?,
            sum_ns: value.u64()?,
            min_ns: value.u64()?,
            max_ns: value.u64()?,
            bytes: value.u64()?,
            cgroup_id: value.u64()?,
        })
    }
}

/// `struct rm_tally_func`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RawFunc {
    pub(crate) rows: u64,
    pub(crate) withheld: u64,
    pub(crate) lost_ring: u64,
    pub(crate) lost_map: u64,
    pub(crate) unmatched: u64,
}

impl RawFunc {
    pub(crate) fn parse(value: &[u8]) -> Option<RawFunc> {
        let mut words = Words(value);
        Some(RawFunc {
            rows: words.u64()?,
            withheld: words.u64()?,
            lost_ring: words.u64()?,
            lost_map: words.u64()?,
            unmatched: words.u64()?,
        })
    }
}

/// `struct rm_tally_control`.
pub(crate) fn control(epoch: u32, most_rows: [u32; BUDGETS]) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..4].copy_from_slice(&epoch.to_ne_bytes());
    for (slot, most) in bytes[4..20].chunks_exact_mut(4).zip(most_rows) {
        slot.copy_from_slice(&most.to_ne_bytes());
    }
    bytes
}

/// The shortest duration of a bucket: up to 32 ns one bucket each, then 32 to every power of two.
pub(crate) fn bucket_floor_ns(bucket: u16) -> u64 {
    let bucket = u64::from(bucket);
    if bucket < 64 {
        return bucket;
    }
    let shift = (bucket / 32 - 1).min(58);
    (32 + bucket % 32) << shift
}

/// Takes numbers off the front; none at the end of the bytes.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }
    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As `tally_bucket` in tally.bpf.h.
    fn bucket(ns: u64) -> u16 {
        if ns < 32 {
            return ns as u16;
        }
        let log = 63 - ns.leading_zeros();
        ((log - 4) * 32 + ((ns >> (log - 5)) & 31) as u32) as u16
    }

    #[test]
    fn a_row_reads_back_and_other_bytes_do_not() {
        let mut bytes = 64u32.to_ne_bytes().to_vec();
        bytes.extend(513u16.to_ne_bytes());
        bytes.extend(9u16.to_ne_bytes());
        bytes.extend([10u64, 25].map(u64::to_ne_bytes).concat());
        bytes.extend([7u32, 8].map(u32::to_ne_bytes).concat());
        bytes.extend([1u64, 2, 3, 4].map(u64::to_ne_bytes).concat());
        bytes.extend([u32::MAX, 0].map(u32::to_ne_bytes).concat());
        let row = RawRow::parse(&bytes).unwrap();
        assert_eq!((row.func, row.flags, row.enter_ns, row.exit_ns, row.pid, row.tid), (513, 9, 10, 25, 7, 8));
        assert_eq!((row.cgroup_id, row.bytes, row.stream, row.ret, row.copy_kind), (1, 2, 3, 4, -1));
        assert_eq!(RawRow::parse(&bytes[..71]), None);
        bytes[0] = 1;
        assert_eq!(RawRow::parse(&bytes), None);
    }

    proptest! {
        #[test]
        fn a_bucket_is_at_most_a_32nd_wide(ns in any::<u64>(), shift in 0u32..64) {
            let ns = ns >> shift;
            let bucket = bucket(ns);
            let floor = bucket_floor_ns(bucket);
            prop_assert!(floor <= ns && ns - floor <= floor / 32, "{ns} in {bucket} from {floor}");
            if bucket > 0 {
                prop_assert!(bucket_floor_ns(bucket - 1) < floor);
            }
        }
    }
}
