//! From the parsed signals to records: names, units, ranks and wall-clock times.

use crate::clock::Clock;
use crate::signals::wire::{RawBlock, RawLife, RawMemory};
use record::{BlockIo, MemoryEvent, ProcessEvent};

/// A block request.
pub(crate) fn block(raw: &RawBlock, clock: &Clock, rank: Option<i32>) -> BlockIo {
    let name = text(&raw.disk);
    BlockIo {
        ts_ns: clock.unix_ns(raw.issue_ns),
        duration_ns: nanoseconds(raw.issue_ns, raw.end_ns),
        queue_ns: (raw.insert_ns != 0).then(|| nanoseconds(raw.insert_ns, raw.issue_ns)),
        pid: raw.pid,
        tid: raw.tid,
        rank,
        device: if name.is_empty() { format!("{}:{}", raw.major, raw.minor) } else { name },
        op: op_name(raw.op),
        bytes: raw.bytes,
        error: errno(raw.error),
        cgroup_id: raw.cgroup_id,
    }
}

/// The operation of a request (`enum req_op`, include/linux/blk_types.h).
fn op_name(op: u32) -> &'static str {
    match op {
        0 => "read",
        1 => "write",
        2 => "flush",
        3 => "discard",
        5 => "secure_erase",
        9 => "write_zeroes",
        34 | 35 => "driver",
        _ => "other",
    }
}

/// A request's end: a negative errno before Linux 5.16, since then a `blk_status_t`
/// (block/blk-core.c, `blk_errors`).
fn errno(error: i32) -> i32 {
    if error <= 0 {
        return error;
    }
    -match error {
        1 => libc::EOPNOTSUPP,
        2 => libc::ETIMEDOUT,
        3 => libc::ENOSPC,
        4 => libc::ENOLINK,
        5 => libc::EREMOTEIO,
        6 => libc::EBADE,
        7 => libc::ENODATA,
        8 => libc::EILSEQ,
        9 => libc::ENOMEM,
        _ => libc::EIO,
    }
}

/// A memory event; none when its kind is unknown.
pub(crate) fn memory(raw: &RawMemory, clock: &Clock, rank: Option<i32>) -> Option<MemoryEvent> {
    let (event, detail) = match raw.event {
        1 | 5 => ("major_fault", None),
        2 => ("direct_reclaim", Some("the host was short of memory")),
        3 => ("direct_reclaim", Some("its cgroup was at its limit")),
        4 => ("oom_kill", Some("chosen by the kernel to be killed for want of memory")),
        _ => return None,
    };
    let of_process = raw.event == 4;
    let reclaimed = matches!(raw.event, 2 | 3).then(|| i64::try_from(raw.pages).ok()?.checked_mul(page_bytes()));
    Some(MemoryEvent {
        ts_ns: clock.unix_ns(raw.start_ns),
        duration_ns: (raw.sum_ns != 0).then(|| nanoseconds(0, raw.sum_ns)),
        count: raw.count,
        event,
        pid: raw.pid,
        tid: (!of_process).then_some(raw.tid),
        rank,
        bytes: reclaimed.flatten(),
        detail,
        cgroup_id: (raw.cgroup_id != 0).then_some(raw.cgroup_id),
    })
}

/// A process begins or ends; none when the event is unknown. `rank` is its own or its parent's.
pub(crate) fn life(raw: &RawLife, clock: &Clock, rank: Option<i32>) -> Option<ProcessEvent> {
    let event = match raw.event {
        1 => "fork",
        2 => "exec",
        3 => "exit",
        4 => "oom_killed",
        _ => return None,
    };
    let ended = raw.event >= 3;
    let signal = Some(raw.exit_code & 0x7f).filter(|signal| ended && *signal != 0);
    Some(ProcessEvent {
        ts_ns: clock.unix_ns(raw.ts_ns),
        event,
        pid: raw.pid,
        parent_pid: Some(raw.parent).filter(|parent| *parent != 0),
        comm: text(&raw.comm),
        exit_code: (ended && signal.is_none()).then_some(raw.exit_code >> 8 & 0xff),
        signal,
        rank,
        cgroup_id: raw.cgroup_id,
    })
}

fn nanoseconds(from: u64, to: u64) -> i64 {
    i64::try_from(to.saturating_sub(from)).unwrap_or(i64::MAX)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

fn page_bytes() -> i64 {
    // SAFETY: sysconf has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    if bytes > 0 { bytes } else { 4096 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_processes() {
        let ended = |event: u32, exit_code: i32| {
            let raw = RawLife {
                event,
                ts_ns: 5,
                pid: 7,
                parent: 1,
                cgroup_id: 2,
                exit_code,
                comm: *b"python\0\0\0\0\0\0\0\0\0\0",
            };
            let life = life(&raw, &Clock::measure(), Some(3)).unwrap();
            assert_eq!((life.comm.as_str(), life.rank, life.parent_pid), ("python", Some(3), Some(1)));
            (life.event, life.exit_code, life.signal)
        };
        assert_eq!(ended(3, 2 << 8), ("exit", Some(2), None));
        assert_eq!(ended(4, 9), ("oom_killed", None, Some(9)));
        assert_eq!(ended(3, 0x80 | 11), ("exit", None, Some(11)), "with a core dump");
        assert_eq!(ended(1, 0), ("fork", None, None));
    }

    #[test]
    fn requests_and_their_errors() {
        let raw = RawBlock {
            op: 1,
            insert_ns: 0,
            issue_ns: 1_000,
            end_ns: 4_000,
            pid: 1,
            tid: 2,
            cgroup_id: 3,
            major: 8,
            minor: 16,
            bytes: 4096,
            error: 10,
            disk: [0; 16],
        };
        let out = block(&raw, &Clock::measure(), None);
        assert_eq!((out.device.as_str(), out.op, out.duration_ns), ("8:16", "write", 3_000));
        assert_eq!((out.queue_ns, out.error), (None, -libc::EIO));
        let mut raw = RawBlock { insert_ns: 400, error: 0, op: 77, ..raw };
        raw.disk[..3].copy_from_slice(b"sdb");
        let out = block(&raw, &Clock::measure(), None);
        assert_eq!((out.device.as_str(), out.op, out.queue_ns, out.error), ("sdb", "other", Some(600), 0));
    }

    #[test]
    fn memory_events() {
        let raw = RawMemory { event: 3, start_ns: 10, sum_ns: 15, pid: 1, tid: 2, cgroup_id: 0, pages: 2, count: 1 };
        let out = memory(&raw, &Clock::measure(), None).unwrap();
        assert_eq!(
            (out.event, out.duration_ns, out.bytes, out.tid),
            ("direct_reclaim", Some(15), Some(2 * page_bytes()), Some(2))
        );
        let oom = memory(&RawMemory { event: 4, sum_ns: 0, ..raw.clone() }, &Clock::measure(), None).unwrap();
        assert_eq!(
            (oom.event, oom.duration_ns, oom.bytes, oom.tid, oom.cgroup_id),
            ("oom_kill", None, None, None, None)
        );
        let faults = RawMemory { event: 1, sum_ns: 900, count: 7, ..raw.clone() };
        let out = memory(&faults, &Clock::measure(), None).unwrap();
        assert_eq!((out.event, out.duration_ns, out.count, out.bytes), ("major_fault", Some(900), 7, None));
        let untimed = memory(&RawMemory { event: 5, sum_ns: 0, ..faults }, &Clock::measure(), None).unwrap();
        assert_eq!((untimed.event, untimed.duration_ns, untimed.count), ("major_fault", None, 7));
        assert_eq!(memory(&RawMemory { event: 9, ..raw }, &Clock::measure(), None), None);
    }
}
