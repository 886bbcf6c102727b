//! Owns the mapping from requests, their stretches and their sums to rows.

use record::{RequestSeen, RequestStretch, RequestSum};

use super::{LONGEST_NS, RowColumns, bits, plausible, quantity};
use crate::rollups::Counts;

/// A request's row; false when it is not plausible.
pub(super) fn request(r: &RequestSeen, rows: &mut RowColumns) -> bool {
    let times = [r.duration_ns, r.first_byte_ns, r.queued_ns, r.gap_ns, r.cpu_ns, r.run_delay_ns];
    if !times.into_iter().flatten().all(|ns| plausible(r.ts_ns, ns)) || r.ts_ns < 0 {
        return false;
    }
    rows.integer(r.ts_ns)
        .integer(r.duration_ns)
        .integer(r.first_byte_ns)
        .integer(r.queued_ns)
        .integer(i64::from(r.of.pid))
        .integer(i64::from(r.tid))
        .integer(r.sent_tid.map(i64::from))
        .text(&*r.of.service)
        .text(&*r.of.tenant)
        .text(r.of.protocol)
        .text(r.of.method)
        .text(r.of.route.as_deref())
        .integer(r.status.map(i64::from))
        .integer(r.port.map(i64::from))
        .text(r.peer.as_deref())
        .integer(bits(r.connection))
        .integer(i64::from(r.number))
        .integer(quantity(r.bytes_in).unwrap_or(i64::MAX))
        .integer(quantity(r.bytes_out).unwrap_or(i64::MAX))
        .integer(i64::from(r.sends))
        .integer(r.gap_ns)
        .integer(r.cpu_ns)
        .integer(r.run_delay_ns)
        .text(r.kept)
        .integer(i64::from(r.stands_for))
        .integer(bits(r.of.cgroup_id))
        .end();
    true
}

/// The row of a part of a request's time; false when it is not plausible.
pub(super) fn request_stretch(s: &RequestStretch, rows: &mut RowColumns) -> bool {
    if s.ts_ns < 0 || ![s.after_ns, s.duration_ns].into_iter().all(|ns| plausible(s.ts_ns, ns)) {
        return false;
    }
    rows.integer(s.ts_ns)
        .integer(bits(s.connection))
        .integer(i64::from(s.number))
        .integer(i64::from(s.place))
        .integer(s.after_ns)
        .integer(s.duration_ns)
        .integer(i64::from(s.parts))
        .integer(i64::from(s.before_first_byte))
        .text(s.kind)
        .text(s.reason)
        .text(s.woken_by)
        .integer(i64::from(s.pid))
        .integer(s.of_pid.map(i64::from))
        .text(s.process.as_deref())
        .integer(s.tid.map(i64::from))
        .text(s.thread.as_deref())
        .text(s.awaited_in)
        .integer(s.taken_by_pid.map(i64::from))
        .text(s.taken_by.as_deref())
        .integer(bits(s.cgroup_id))
        .end();
    true
}

/// The row of a second's requests; false when it is not plausible.
pub(super) fn request_sum(s: &RequestSum, rows: &mut RowColumns) -> bool {
    let numbers = [s.count, s.errors, s.unanswered, s.sum_ns, s.min_ns, s.max_ns, s.queued_ns].map(quantity);
    let [Some(count), Some(errors), Some(unanswered), Some(sum_ns), Some(min_ns), Some(max_ns), Some(queued_ns)] =
        numbers
    else {
        return false;
    };
    if s.ts_ns < 0 || count == 0 || min_ns > max_ns || max_ns > LONGEST_NS {
        return false;
    }
    let answered = count > unanswered;
    let range = (s.min_ns, s.max_ns);
    let first_range = (
        s.first_bytes.iter().map(|(ns, _)| *ns).min().unwrap_or(0),
        s.first_bytes.iter().map(|(ns, _)| *ns).max().unwrap_or(0),
    );
    let sketch = answered.then(|| of_pairs(&s.durations).stored(range));
    let first_bytes = answered.then(|| of_pairs(&s.first_bytes).stored(first_range));
    rows.integer(s.ts_ns)
        .integer(i64::from(s.of.pid))
        .text(&*s.of.service)
        .text(&*s.of.tenant)
        .text(s.of.protocol)
        .text(s.of.method)
        .text(s.of.route.as_deref())
        .integer(count)
        .integer(errors)
        .integer(unanswered)
        .integer(sum_ns)
        .integer(answered.then_some(min_ns))
        .integer(answered.then_some(max_ns))
        .integer(queued_ns)
        .integer(quantity(s.bytes_in).unwrap_or(i64::MAX))
        .integer(quantity(s.bytes_out).unwrap_or(i64::MAX))
        .blob(sketch.as_deref())
        .blob(first_bytes.as_deref())
        .integer(bits(s.of.cgroup_id))
        .end();
    true
}

fn of_pairs(pairs: &[(u64, u64)]) -> Counts {
    let mut counts = Counts::default();
    pairs.iter().for_each(|(ns, count)| counts.add(*ns, *count));
    counts
}
