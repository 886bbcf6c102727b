//! Requests in the stores of an ended job: of the service "chat" on each host, of which one in fifty
//! slept.

use std::collections::BTreeMap;

use record::{Record, RequestOf, RequestSeen, RequestStretch, RequestSum};
use store::{Finding, Ingest};

use super::job_stores::HOSTILE;

const MS: i64 = 1_000_000;
const SECOND: i64 = 1_000 * MS;
/// Of a host, ten a second.
pub const OF_A_HOST: i64 = 600;
/// How long they take, and those that slept.
pub const ORDINARY_NS: i64 = 5 * MS;
pub const SLOW_NS: i64 = 85 * MS;
/// The path that slow ones are of; others are of "/".
pub const SLOW_ROUTE: &str = "/slow";

/// Adds a host's, of the last minute before `until_ns`.
pub fn write(ingest: &Ingest, until_ns: i64) {
    let mut sums: BTreeMap<(i64, RequestOf), RequestSum> = BTreeMap::new();
    for n in 0..OF_A_HOST {
        let ts_ns = until_ns - 61 * SECOND + n * SECOND / 10;
        let slept = n % 50 == 49;
        let of = RequestOf {
            pid: 77,
            service: "chat".into(),
            tenant: "user:ada".into(),
            protocol: "http/1",
            method: Some("GET"),
            route: Some(if slept { SLOW_ROUTE } else { "/" }.into()),
            cgroup_id: 1,
        };
        let duration_ns = if slept { SLOW_NS } else { ORDINARY_NS };
        request(ts_ns, n, duration_ns, &of).into_iter().for_each(|record| ingest.record(record));
        let begin_ns = ts_ns.div_euclid(SECOND) * SECOND;
        let sum = sums.entry((begin_ns, of.clone())).or_insert_with(|| RequestSum {
            ts_ns: begin_ns,
            of,
            ..RequestSum::default()
        });
        let ns = duration_ns.unsigned_abs();
        sum.count += 1;
        sum.sum_ns += ns;
        (sum.min_ns, sum.max_ns) = (ns, ns);
        (sum.durations, sum.first_bytes) = (vec![(ns, sum.count)], vec![(ns, sum.count)]);
    }
    sums.into_values().for_each(|sum| ingest.record(Record::RequestSum(Box::new(sum))));
}

/// That its p99 has grown. `host`: its number; no two findings are of one time, by which they are named.
pub fn finding(host: u32, until_ns: i64) -> Finding {
    let node = format!("n{host}");
    Finding {
        ts_ns: until_ns + 1 + i64::from(host),
        since_ns: until_ns - 61 * SECOND,
        until_ns,
        verdict: "tail_grown".into(),
        culprit_node: Some(node.clone()),
        lateness_ns: Some(SLOW_NS - ORDINARY_NS),
        cause: Some("chat: p99 85.0 ms, before 5.00 ms".into()),
        detail: format!(r#"{{"text": "p99 of chat on {node} has grown.", "service": "chat", "p99_ns": {SLOW_NS}}}"#),
        ..Finding::default()
    }
}

/// A request's row and what it waited for: the main thread ran, and of a slow one another slept.
fn request(ts_ns: i64, n: i64, duration_ns: i64, of: &RequestOf) -> Vec<Record> {
    let number = u32::try_from(n).expect("few");
    let seen = RequestSeen {
        ts_ns,
        duration_ns: Some(duration_ns),
        first_byte_ns: Some(duration_ns),
        queued_ns: None,
        of: of.clone(),
        tid: 77,
        sent_tid: Some(77),
        status: Some(200),
        grpc_status: None,
        port: Some(8_000),
        peer: Some("10.0.9.1".to_owned()),
        connection: 1,
        number,
        bytes_in: 90,
        bytes_out: 120,
        sends: 1,
        gap_ns: None,
        cpu_ns: Some(ORDINARY_NS),
        run_delay_ns: Some(0),
        kept: "all",
        stands_for: 1,
    };
    let part = |place: u32, kind, reason: Option<&'static str>, ns: i64, tid: u32, thread: &str| {
        Record::RequestStretch(Box::new(RequestStretch {
            ts_ns,
            connection: 1,
            number,
            pid: 77,
            place,
            after_ns: i64::from(place) * ORDINARY_NS,
            duration_ns: ns,
            parts: 1,
            before_first_byte: true,
            kind,
            reason,
            woken_by: reason.map(|_| "interrupt"),
            of_pid: Some(77),
            process: Some("python3 serve.py".to_owned()),
            tid: Some(tid),
            thread: Some(thread.to_owned()),
            ..RequestStretch::default()
        }))
    };
    let mut records = vec![Record::Request(Box::new(seen)), part(0, "ran", None, ORDINARY_NS, 77, "python3")];
    if duration_ns > ORDINARY_NS {
        // Who runs a thread names it.
        records.push(part(1, "asleep", Some("timer"), duration_ns - ORDINARY_NS, 78, HOSTILE));
    }
    records
}
