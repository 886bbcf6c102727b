//! Owns the mapping from requests, their stretches and their sums to rows.

use record::{RequestSeen, RequestStretch, RequestSum};

use super::{LONGEST_NS, RowColumns, bits, plausible, quantity};
use crate::columnar::cells;
use crate::rollups::Counts;

/// A request's row; false when it is not plausible.
pub(super) fn request(r: &RequestSeen, rows: &mut RowColumns) -> bool {
    let times = [r.duration_ns, r.first_byte_ns, r.queued_ns, r.gap_ns, r.cpu_ns, r.run_delay_ns];
    if !times.into_iter().flatten().all(|ns| plausible(r.ts_ns, ns)) || r.ts_ns < 0 {
        return false;
    }
    let of = &r.of;
    cells!(
        rows, r: ts_ns, duration_ns, first_byte_ns, queued_ns, pid = of.pid, tid, sent_tid, service = of.service,
        tenant = of.tenant, protocol = of.protocol, method = of.method, route = of.route, status, grpc_status, port,
        peer,
        connection = bits(r.connection), number, bytes_in = quantity(r.bytes_in).unwrap_or(i64::MAX),
        bytes_out = quantity(r.bytes_out).unwrap_or(i64::MAX), sends, gap_ns, cpu_ns, run_delay_ns, kept, stands_for,
        cgroup_id = bits(of.cgroup_id),
    );
    true
}

/// The row of a part of a request's time; false when it is not plausible.
pub(super) fn request_stretch(s: &RequestStretch, rows: &mut RowColumns) -> bool {
    if s.ts_ns < 0 || ![s.after_ns, s.duration_ns].into_iter().all(|ns| plausible(s.ts_ns, ns)) {
        return false;
    }
    cells!(
        rows, s: ts_ns, connection = bits(s.connection), number, place, after_ns, duration_ns, parts, before_first_byte,
        kind, reason, woken_by, pid, of_pid, process, tid, thread, awaited_in, taken_by_pid, taken_by,
        taken_by_tenant, tenant = s.tenant, stands_for, cgroup_id = bits(s.cgroup_id),
    );
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
    let of = &s.of;
    cells!(
        rows, s: bucket_ns = s.ts_ns, pid = of.pid, service = of.service, tenant = of.tenant, protocol = of.protocol,
        method = of.method, route = of.route, count = count, errors = errors, unanswered = unanswered, sum_ns = sum_ns,
        min_ns = answered.then_some(min_ns), max_ns = answered.then_some(max_ns), queued_ns = queued_ns,
        bytes_in = quantity(s.bytes_in).unwrap_or(i64::MAX), bytes_out = quantity(s.bytes_out).unwrap_or(i64::MAX),
        sketch = sketch, first_byte_sketch = first_bytes, cgroup_id = bits(of.cgroup_id),
    );
    true
}

fn of_pairs(pairs: &[(u64, u64)]) -> Counts {
    let mut counts = Counts::default();
    pairs.iter().for_each(|(ns, count)| counts.add(*ns, *count));
    counts
}
