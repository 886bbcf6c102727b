//! Pushes metrics and findings to an OpenTelemetry collector that the user names, over HTTP with
//! protobuf bodies (<https://opentelemetry.io/docs/specs/otlp/#otlphttp>).
//!
//! Metrics are a snapshot: one that was not taken is not sent again, as the next one is newer.
//! Findings wait in a bounded queue until the collector takes them; those that do not fit are
//! counted, and the count is among the metrics. Asking for findings and sending them are tasks of
//! their own, so that a dead collector delays nobody.

mod messages;
mod queue;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, ensure};
use ask::output::printable;
use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{StatusCode, Uri};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use parking_lot::Mutex;
use prost::Message;
use tokio_rustls::TlsConnector;

use super::findings::{Finding, Following};
use super::gateway::{Shared, Who};
use super::post::{self, Posted, post};
use super::series::Series;
use super::snapshot::Snapshot;
use queue::Queue;

/// Time between two sets of metrics.
const METRICS_EVERY: Duration = Duration::from_secs(15);
/// Time between two requests for findings.
const FINDINGS_EVERY: Duration = Duration::from_secs(2);
/// Pause after a request that was not taken, at first and at most.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(60);
/// Longest file of headers.
const HEADERS_BYTES: u64 = 64 << 10;

const PROTOBUF: &str = "application/x-protobuf";

/// A collector's URL, and the headers of each request.
pub(super) struct Collector {
    metrics: Uri,
    logs: Uri,
    headers: HeaderMap,
    tls: Option<TlsConnector>,
}

impl Collector {
    /// `url` is the endpoint of the standard: each signal's path is added. `headers` is a file of
    /// lines `NAME: VALUE`, as tokens are secrets.
    ///
    /// # Errors
    /// The URL is not valid, the file cannot be read or has other lines, or HTTPS is wanted on a
    /// host without certificate authorities.
    pub(super) fn new(url: &str, headers: Option<&Path>) -> anyhow::Result<Self> {
        let of = |signal: &str| -> anyhow::Result<Uri> {
            let uri: Uri = format!("{}/v1/{signal}", url.trim_end_matches('/')).parse().context("--otlp")?;
            ensure!(post::is_url(&uri), "--otlp: write the collector's http:// or https:// URL");
            Ok(uri)
        };
        let (metrics, logs) = (of("metrics")?, of("logs")?);
        let headers = headers.map(read_headers).transpose()?.unwrap_or_default();
        let tls = post::authorities([&metrics].into_iter())?;
        Ok(Self { metrics, logs, headers, tls })
    }

    /// The URL without its path and its user information, which may be secrets.
    fn url_text(&self) -> &str {
        self.metrics.host().unwrap_or_default()
    }

    async fn post(&self, to: &Uri, message: &impl Message) -> anyhow::Result<Posted> {
        let body = Bytes::from(message.encode_to_vec());
        post(to, self.tls.as_ref(), PROTOBUF, &self.headers, body).await
    }
}

fn read_headers(path: &Path) -> anyhow::Result<HeaderMap> {
    let shown = path.display();
    let length = std::fs::metadata(path).with_context(|| format!("reading headers from {shown}"))?.len();
    ensure!(length <= HEADERS_BYTES, "{shown} is too large for a list of headers");
    let text = std::fs::read_to_string(path).with_context(|| format!("reading headers from {shown}"))?;
    let mut headers = HeaderMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        // The value may be a secret: it is not printed.
        let wrong = || anyhow!("{shown}, line {}: write NAME: VALUE", number + 1);
        let (name, value) = line.split_once(':').ok_or_else(wrong)?;
        let name = HeaderName::try_from(name.trim()).map_err(|_| wrong())?;
        let mut value = HeaderValue::try_from(value.trim()).map_err(|_| wrong())?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

/// Sends until it is dropped. `own`: only of the asked agent's own host and the jobs that it
/// judges.
pub(super) async fn push(gateway: &Shared, collector: Collector, own: bool, most: usize) {
    let (collector, queue) = (Arc::new(collector), Arc::new(Queue::default()));
    let agent = Arc::new(Mutex::new(String::new()));
    tokio::join!(
        metrics(gateway, &collector, &queue, &agent, own, most),
        follow(gateway, &queue, &agent, own),
        send(&collector, &queue, &agent),
    );
}

fn who() -> Who {
    Who { client: "otlp".to_owned(), reader: true, request_id: String::new() }
}

fn unix_now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Logs an error when it differs from the one before, not each time.
#[derive(Default)]
struct ChangedErrors(Option<String>);

impl ChangedErrors {
    fn failed(&mut self, what: &str, error: &str) {
        if self.0.as_deref() != Some(error) {
            tracing::warn!("{what}: {}", printable(error));
            self.0 = Some(error.to_owned());
        }
    }

    fn succeeded(&mut self, what: &str) {
        if self.0.take().is_some() {
            tracing::info!("{what}: it works again");
        }
    }
}

async fn metrics(
    gateway: &Shared,
    collector: &Collector,
    queue: &Queue,
    agent: &Mutex<String>,
    own: bool,
    most: usize,
) {
    let what = format!("metrics for the OpenTelemetry collector at {}", collector.url_text());
    let (mut every, mut errors) = (tokio::time::interval(METRICS_EVERY), ChangedErrors::default());
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let gathered = gateway.ask(&who(), move |target| Snapshot::gather(target, own)).await;
        let (mut series, failed) = match gathered {
            Ok(snapshot) => {
                agent.lock().clone_from(&snapshot.watched.agent);
                (Series::of(&snapshot, most), None)
            }
            Err(problem) => (Series::of_none(), Some(problem.detail)),
        };
        series.add("rankmesh_otlp_dropped_records_total", queue.dropped.load(Ordering::Relaxed) as f64);
        series.add("rankmesh_otlp_queued_records", queue.len() as f64);
        let name = agent.lock().clone();
        let posted = collector.post(&collector.metrics, &messages::metrics(&name, &series, unix_now_ns())).await;
        let taken = posted.and_then(|posted| {
            ensure!(posted.status.is_success(), "it answered {}", posted.status);
            let partial =
                ExportMetricsServiceResponse::decode(posted.body).ok().and_then(|response| response.partial_success);
            let refused = partial.filter(|partial| partial.rejected_data_points > 0);
            let message =
                refused.map(|of| format!("it refused {} values: {}", of.rejected_data_points, of.error_message));
            message.map_or(Ok(()), |message| Err(anyhow!(message)))
        });
        match (taken, failed) {
            (Err(error), _) => errors.failed(&what, &format!("{error:#}")),
            (Ok(()), Some(detail)) => errors.failed(&what, &detail),
            (Ok(()), None) => errors.succeeded(&what),
        }
    }
}

/// Puts findings into the queue as they come.
async fn follow(gateway: &Shared, queue: &Queue, agent: &Mutex<String>, own: bool) {
    let mut errors = ChangedErrors::default();
    let following = Arc::new(Mutex::new(None::<Following>));
    loop {
        tokio::time::sleep(FINDINGS_EVERY).await;
        let name = agent.lock().clone();
        // The host to filter by is known once the agent has sent its name.
        if name.is_empty() {
            continue;
        }
        let nodes = if own { vec![name] } else { Vec::new() };
        let (following, who) = (Arc::clone(&following), who());
        let found = gateway.ask(&who, move |target| {
            let mut following = following.lock();
            following.get_or_insert_with(|| Following::from(target.now_ns())).next(target, &nodes)
        });
        match found.await {
            Ok(found) => {
                errors.succeeded("findings for an OpenTelemetry collector");
                let record = |finding: &Finding| messages::record(finding.ts_ns, &finding.object, unix_now_ns());
                found.iter().for_each(|finding| queue.put(record(finding)));
            }
            Err(problem) => errors.failed("findings for an OpenTelemetry collector", &problem.detail),
        }
    }
}

/// A collector's answer to records.
#[derive(Debug, PartialEq, Eq)]
enum Taken {
    /// It took all but this many.
    But(usize),
    /// It wants them again, later.
    Later(Option<Duration>),
    /// It will never take them.
    Never,
}

fn taken(posted: &Posted, sent: usize) -> Taken {
    match posted.status {
        status if status.is_success() => {
            let response = ExportLogsServiceResponse::decode(posted.body.clone()).unwrap_or_default();
            let refused = response.partial_success.map_or(0, |partial| partial.rejected_log_records);
            Taken::But(usize::try_from(refused).unwrap_or(0).min(sent))
        }
        // These four and no others
        // (<https://opentelemetry.io/docs/specs/otlp/#retryable-response-codes>).
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Taken::Later(posted.retry_after),
        _ => Taken::Never,
    }
}

async fn send(collector: &Collector, queue: &Queue, agent: &Mutex<String>) {
    let what = format!("findings for the OpenTelemetry collector at {}", collector.url_text());
    let mut errors = ChangedErrors::default();
    loop {
        let records = queue.some().await;
        let count = records.len();
        let message = messages::logs(&agent.lock().clone(), records);
        let mut wait = RETRY;
        loop {
            let (again, why) = match collector.post(&collector.logs, &message).await {
                Ok(posted) => match taken(&posted, count) {
                    Taken::But(0) => {
                        errors.succeeded(&what);
                        break;
                    }
                    Taken::But(refused) => {
                        queue.lost(refused);
                        errors.failed(&what, &format!("it refused {refused} of {count}"));
                        break;
                    }
                    Taken::Never => {
                        queue.lost(count);
                        errors.failed(&what, &format!("it answered {}: {count} are dropped", posted.status));
                        break;
                    }
                    Taken::Later(after) => (after, format!("it answered {}", posted.status)),
                },
                Err(error) => (None, format!("{error:#}")),
            };
            errors.failed(&what, &why);
            tokio::time::sleep(again.unwrap_or(wait).clamp(RETRY, RETRY_MOST)).await;
            wait = (wait * 2).min(RETRY_MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::queue::{AT_ONCE, BYTES_AT_ONCE, WAITING, WAITING_BYTES};
    use super::*;

    fn posted(status: u16, body: Vec<u8>) -> Posted {
        Posted { status: StatusCode::from_u16(status).unwrap(), retry_after: None, body: body.into() }
    }

    #[test]
    fn only_what_the_standard_names_is_sent_again() {
        use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsPartialSuccess;
        let partial = ExportLogsServiceResponse {
            partial_success: Some(ExportLogsPartialSuccess { rejected_log_records: 3, ..Default::default() }),
        };
        assert_eq!(taken(&posted(200, vec![]), 5), Taken::But(0));
        assert_eq!(taken(&posted(200, partial.encode_to_vec()), 5), Taken::But(3));
        for status in [429, 502, 503, 504] {
            assert_eq!(taken(&posted(status, vec![]), 5), Taken::Later(None), "{status}");
        }
        for status in [400, 401, 404, 413, 500] {
            assert_eq!(taken(&posted(status, vec![]), 5), Taken::Never, "{status}");
        }
    }

    #[tokio::test]
    async fn findings_that_nobody_takes_are_bounded_and_the_oldest_go() {
        let queue = Queue::default();
        let finding = |number: usize| {
            let object = serde_json::json!({ "verdict": "rank", "rank": number, "detail": "x".repeat(9_000) });
            messages::record(number as i64, object.as_object().unwrap(), 1)
        };
        let short = |number: usize| messages::record(number as i64, &serde_json::Map::new(), 1);
        for number in 0..WAITING + 100 {
            queue.put(short(number));
        }
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 100);
        assert_eq!(queue.some().await[0].time_unix_nano, 100);
        // Long ones: as many as their bytes let.
        let queue = Queue::default();
        for number in 0..WAITING {
            queue.put(finding(number));
        }
        let (records, bytes) = (queue.len(), queue.bytes());
        assert!(bytes <= WAITING_BYTES && bytes > WAITING_BYTES - 20_000, "{bytes}");
        assert_eq!(queue.dropped.load(Ordering::Relaxed) as usize, WAITING - records);
        let first = queue.some().await;
        assert_eq!(first[0].time_unix_nano as usize, WAITING - records);
        let bytes: usize = first.iter().map(Message::encoded_len).sum();
        assert!(first.len() < AT_ONCE && bytes <= BYTES_AT_ONCE, "{} of {bytes}", first.len());
        // A finding larger than a request by itself is sent alone.
        let too_long = serde_json::json!({ "verdict": "rank", "detail": "x".repeat(40 << 10) });
        let record = messages::record(1, too_long.as_object().unwrap(), 1);
        assert_eq!((record.dropped_attributes_count, record.attributes.len()), (1, 1));
        let too_long = serde_json::json!({ "verdict": "v".repeat(20 << 10), "cause": "ä".repeat(20 << 10) });
        let record = messages::record(1, too_long.as_object().unwrap(), 1);
        assert!(record.body.unwrap().encoded_len() <= 4 << 10);
    }

    #[test]
    fn headers_are_read_from_a_file_and_not_printed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("headers");
        std::fs::write(&path, "Authorization: Bearer secret\n\nX-Scope-OrgID: 7\n").unwrap();
        let headers = read_headers(&path).unwrap();
        assert_eq!((headers.len(), headers["x-scope-orgid"].to_str().unwrap()), (2, "7"));
        assert!(!format!("{headers:?}").contains("secret"));
        for wrong in ["no colon with a secret", "sp ace: secret", "a: b\u{1}secret"] {
            std::fs::write(&path, wrong).unwrap();
            let error = format!("{:#}", read_headers(&path).unwrap_err());
            assert!(error.contains("line 1") && !error.contains("secret"), "{error}");
        }
        for wrong in ["", "collector:4318", "ftp://x", "/v1"] {
            assert!(Collector::new(wrong, None).is_err(), "{wrong}");
        }
        let collector = Collector::new("http://collector:4318/", None).unwrap();
        assert_eq!(collector.logs.to_string(), "http://collector:4318/v1/logs");
    }
}
