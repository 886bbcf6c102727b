//! What the store has of services' past: which of them stood as grown, and windows.

use std::collections::BTreeMap;
use std::time::Duration;

use explain::tail::Durations;
use explain::tail::grown::{Grown, LEAST_REQUESTS, PAST_NS, Window};
use model::Failure;
use model::cells::{integer, quoted, real, text};
use query_planner::Value;
use record::wall_ahead_ns;

use super::super::asking::Asking;
use super::finding::{GROWN, OVER};

/// Windows right before now, and one an hour before these: together some hours of a day are read, once.
const NEAR: i64 = 5;
const HOURS: i64 = 24;
const HOUR_NS: i64 = PAST_NS / HOURS;
/// Findings that are read, the newest.
const MOST_FINDINGS: usize = 1_000;
/// What is read of the durations of a window: quantiles.
const SHARES: [f64; 8] = [0.5, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0];

/// What stood on a service. Times are of the steady clock.
#[derive(Debug)]
pub(super) struct Stood {
    pub(super) grown: Grown,
    pub(super) p99_ns: i64,
    pub(super) cause: Option<String>,
}

/// What stood on each service when the agent ended.
///
/// # Errors
/// The store does not answer; in words.
pub(super) async fn stood(asking: Asking<'_>, node: &str) -> Result<BTreeMap<String, Stood>, Failure> {
    let sql = format!(
        "SELECT json_extract(detail, '$.service'), verdict, since_ns, json_extract(detail, '$.past_p99_ns'), \
         json_extract(detail, '$.p99_ns'), json_extract(detail, '$.past_ns'), json_extract(detail, '$.cause') \
         FROM findings WHERE verdict IN ({}, {}) AND culprit_node = {} ORDER BY ts_ns DESC LIMIT {MOST_FINDINGS}",
        quoted(GROWN),
        quoted(OVER),
        quoted(node)
    );
    let rows = answered(asking, sql, node).await?;
    Ok(newest(&rows, wall_ahead_ns()))
}

/// From these rows, the newest first.
fn newest(rows: &[Vec<Value>], ahead_ns: i64) -> BTreeMap<String, Stood> {
    let stood = |row: &[Value]| {
        let grown = Grown {
            since_ns: integer(row, 2)?.saturating_sub(ahead_ns),
            past_p99_ns: integer(row, 3)?,
            past_ns: integer(row, 5)?,
        };
        let cause = Some(text(row, 6)).filter(|cause| !cause.is_empty());
        Some(Stood { grown, p99_ns: integer(row, 4)?, cause }).filter(|_| text(row, 1) == GROWN)
    };
    let mut all = BTreeMap::new();
    for row in rows {
        all.entry(text(row, 0)).or_insert_with(|| stood(row));
    }
    all.into_iter().filter_map(|(service, stood)| Some((service, stood?))).collect()
}

/// The windows that the store has of each service up to a time, each `length` long, the newest first, as
/// far as the time for it reaches. Their times are of the steady clock.
///
/// # Errors
/// The store does not answer at all; in words.
pub(super) async fn windows(
    asking: Asking<'_>,
    node: &str,
    until_ns: i64,
    length: Duration,
) -> Result<BTreeMap<String, Vec<Window>>, Failure> {
    let ahead_ns = wall_ahead_ns();
    let last_ns = until_ns.saturating_add(ahead_ns);
    let long_ns = i64::try_from(length.as_nanos()).unwrap_or(HOUR_NS);
    let near = (0..NEAR).map(|n| last_ns.saturating_sub(n * long_ns));
    let far = (1..HOURS).map(|hour| last_ns.saturating_sub(hour * HOUR_NS));
    let mut all: BTreeMap<String, Vec<Window>> = BTreeMap::new();
    for (at, until_ns) in near.chain(far).enumerate() {
        let since_ns = until_ns.saturating_sub(long_ns);
        let rows = match answered(asking, sql(since_ns, until_ns), node).await {
            Ok(rows) => rows,
            Err(why) if at == 0 => return Err(why),
            Err(why) => {
                tracing::warn!("of the past of services {at} windows were read, then: {why}");
                break;
            }
        };
        for row in &rows {
            let window = read(row, (since_ns.saturating_sub(ahead_ns), until_ns.saturating_sub(ahead_ns)));
            if window.durations.count() >= LEAST_REQUESTS {
                all.entry(text(row, 0)).or_default().push(window);
            }
        }
    }
    Ok(all)
}

/// Services' requests with quantiles of their durations, by the sums of every second.
fn sql(since_ns: i64, until_ns: i64) -> String {
    let quantiles = SHARES.map(|share| format!("approx_quantile(sketch, {share:?})")).join(", ");
    format!(
        "SELECT service, sum(count) AS requests, sum(errors), sum(unanswered), {quantiles} FROM request_rollups \
         WHERE bucket_ns >= {since_ns} AND bucket_ns < {until_ns} GROUP BY service \
         ORDER BY requests DESC, service LIMIT {}",
        super::MOST_SERVICES
    )
}

/// From a row of it. Between two quantiles all are taken to be as long as at the upper one.
fn read(row: &[Value], (since_ns, until_ns): (i64, i64)) -> Window {
    let number = |column| u64::try_from(integer(row, column).unwrap_or(0)).unwrap_or(0);
    let (requests, failed) = (number(1), number(2));
    let answered = requests.saturating_sub(number(3));
    let (mut durations, mut before) = (Durations::default(), 0);
    for (at, share) in SHARES.iter().enumerate() {
        let up_to = (share * answered as f64) as u64;
        if let Some(ns) = real(row, 4 + at) {
            durations.add(ns.max(0.0) as u64, up_to - before);
        }
        before = up_to;
    }
    Window { since_ns, until_ns, durations, requests, failed }
}

/// The rows of this host; that it does not answer is an error.
async fn answered(asking: Asking<'_>, sql: String, node: &str) -> Result<Vec<Vec<Value>>, Failure> {
    asking.all_rows(sql, &[node.to_owned()]).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(word: &str) -> Value {
        Value::Text(word.as_bytes().to_vec())
    }

    #[test]
    fn the_newest_finding_of_a_service_says_what_stands() {
        let row = |service: &str, verdict: &str, since_ns: i64| {
            let numbers = [since_ns, 10, 90, 3_600].map(Value::Integer);
            [vec![word(service), word(verdict)], numbers.to_vec(), vec![word("why")]].concat()
        };
        let rows = [row("a", GROWN, 700), row("b", OVER, 600), row("a", OVER, 500), row("b", GROWN, 400)];
        let stood = newest(&rows, 100);
        assert_eq!(stood.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(stood["a"].grown, Grown { since_ns: 600, past_p99_ns: 10, past_ns: 3_600 });
        assert_eq!((stood["a"].p99_ns, stood["a"].cause.as_deref()), (90, Some("why")));
    }

    #[test]
    fn a_window_that_was_stored_has_its_quantiles_and_its_answered_requests() {
        let counts = [1_100, 150, 100].map(Value::Integer);
        let quantiles = [5.0, 6.0, 7.0, 8.0, 9.0, 50.0, 60.0, 70.0].map(Value::Real);
        let row = [vec![word("chat")], counts.to_vec(), quantiles.to_vec()].concat();
        let window = read(&row, (1, 2));
        assert_eq!((window.requests, window.failed, window.durations.count()), (1_100, 150, 1_000));
        assert_eq!((window.p99_ns(), window.durations.from(10), window.durations.from(61)), (9, 10, 1));
    }
}
