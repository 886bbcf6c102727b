//! What the store has of services' past: windows of their 99th percentiles, and which of these stood
//! as grown.

use std::collections::BTreeMap;
use std::time::Duration;

use explain::tail::grown::{Grown, History, LEAST_REQUESTS, MOST_LOOKS, PAST_NS, Window};
use model::cells::{integer, quoted, real, text};
use model::watch::GrownNow;
use query_planner::Value;

use super::super::asking::Asking;
use super::finding::{GROWN, OVER};

/// Windows right before now, and one an hour before these: together some hours of a day are read, once.
const NEAR: i64 = 5;
const HOURS: i64 = 24;
const HOUR_NS: i64 = PAST_NS / HOURS;
/// Findings that are read, the newest.
const MOST_FINDINGS: usize = 1_000;

/// Services' requests with the 99th percentile of their durations, by the sums of every second:
/// service, requests, nanoseconds. `conditions`: on their rows.
pub(super) fn sql(since_ns: i64, until_ns: i64, conditions: &str) -> String {
    format!(
        "SELECT service, sum(count) AS requests, approx_quantile(sketch, 0.99) FROM request_rollups \
         WHERE bucket_ns >= {since_ns} AND bucket_ns < {until_ns}{conditions} GROUP BY service \
         ORDER BY requests DESC, service LIMIT {}",
        super::MOST_SERVICES
    )
}

/// A row of it. The percentile is none where no request was answered.
pub(super) fn read(row: &[Value]) -> (String, i64, Option<i64>) {
    (text(row, 0), integer(row, 1).unwrap_or(0), real(row, 2).map(|ns| ns as i64))
}

/// What the store has of a service.
#[derive(Debug, Default)]
pub(super) struct Past {
    pub(super) history: History,
    /// What stood on it last, where that has not ended.
    pub(super) grown: Option<GrownNow>,
}

/// That of each service up to a time, the newest first, as far as the time for it reaches.
pub(super) async fn of_services(
    asking: Asking<'_>,
    node: &str,
    until_ns: i64,
    every: Duration,
) -> BTreeMap<String, Past> {
    let own = [node.to_owned()];
    let long_ns = i64::from(MOST_LOOKS) * i64::try_from(every.as_nanos()).unwrap_or(HOUR_NS);
    let near = (0..NEAR).map(|n| until_ns.saturating_sub(n * long_ns));
    let far = (1..HOURS).map(|hour| until_ns.saturating_sub(hour * HOUR_NS));
    let mut windows: BTreeMap<String, Vec<Window>> = BTreeMap::new();
    for until_ns in near.chain(far) {
        let since_ns = until_ns.saturating_sub(long_ns);
        let rows = match asking.rows(sql(since_ns, until_ns, ""), &own).await {
            Ok((rows, _)) => rows,
            Err(why) => {
                tracing::debug!("the past of services is read in part: {why}");
                break;
            }
        };
        for row in &rows {
            if let (service, requests @ LEAST_REQUESTS.., Some(p99_ns)) = read(row) {
                windows.entry(service).or_default().push(Window { since_ns, until_ns, requests, p99_ns });
            }
        }
    }
    let findings = format!(
        "SELECT json_extract(detail, '$.service'), verdict, since_ns, json_extract(detail, '$.past_p99_ns'), \
         json_extract(detail, '$.p99_ns'), json_extract(detail, '$.text') FROM findings \
         WHERE verdict IN ({}, {}) AND ts_ns >= {} ORDER BY ts_ns DESC LIMIT {MOST_FINDINGS}",
        quoted(GROWN),
        quoted(OVER),
        until_ns.saturating_sub(PAST_NS)
    );
    let rows = asking.rows(findings, &own).await.map(|(rows, _)| rows).unwrap_or_default();
    let mut stood: BTreeMap<String, Option<GrownNow>> = BTreeMap::new();
    for row in &rows {
        let grown = || {
            let (since_ns, past_p99_ns, p99_ns) = (integer(row, 2)?, integer(row, 3)?, integer(row, 4)?);
            Some(GrownNow { since_ns, p99_ns, past_p99_ns, sentence: text(row, 5), cause: None })
        };
        stood.entry(text(row, 0)).or_insert_with(|| grown().filter(|_| text(row, 1) == GROWN));
    }
    let mut services: BTreeMap<String, Past> = BTreeMap::new();
    for (service, grown) in stood {
        services.entry(service).or_default().grown = grown;
    }
    for (service, windows) in windows {
        services.entry(service).or_default().history = History::stored(windows);
    }
    for past in services.values_mut() {
        if let Some(GrownNow { since_ns, past_p99_ns, .. }) = past.grown {
            past.history.stands(Grown { since_ns, past_p99_ns });
        }
    }
    services
}
