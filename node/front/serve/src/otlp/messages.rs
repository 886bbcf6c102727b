//! Metrics and findings as OpenTelemetry's messages
//! (<https://opentelemetry.io/docs/specs/otlp/>): values in, messages out.

use ask::output::printable;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, metric,
    number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use serde_json::{Map, Value as Json};

use crate::series::{Kind, METRICS, Series};

/// A longer attribute is left out, and counted in the record: collectors refuse requests of some
/// megabytes.
const LONGEST_ATTRIBUTE: usize = 32 << 10;

/// Characters of a record's text, 4 KiB at most: its attributes have the rest.
const LONGEST_BODY: usize = 1_000;

fn value(value: any_value::Value) -> AnyValue {
    AnyValue { value: Some(value) }
}

fn text(text: &str) -> AnyValue {
    value(any_value::Value::StringValue(printable(text)))
}

fn attribute(key: &str, value: AnyValue) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

/// The sender: `agent` is the node that was asked.
fn resource(agent: &str) -> Resource {
    let of =
        [("service.name", "rankmesh"), ("service.version", env!("CARGO_PKG_VERSION")), ("service.instance.id", agent)];
    Resource { attributes: of.map(|(key, value)| attribute(key, text(value))).into(), ..Resource::default() }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "rankmesh".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}

/// Metrics at a time, Unix nanoseconds, with the names that they have in Prometheus.
pub(super) fn metrics(agent: &str, series: &Series, at_ns: u64) -> ExportMetricsServiceRequest {
    let mut all: Vec<Vec<NumberDataPoint>> = METRICS.iter().map(|_| Vec::new()).collect();
    for point in series.points() {
        all[point.of].push(NumberDataPoint {
            attributes: point.labels.iter().map(|(name, value)| attribute(name, text(value))).collect(),
            time_unix_nano: at_ns,
            value: Some(number_data_point::Value::AsDouble(point.value)),
            ..NumberDataPoint::default()
        });
    }
    let of = METRICS.iter().zip(all).filter(|(_, points)| !points.is_empty()).map(|(of, data_points)| Metric {
        name: of.name.to_owned(),
        description: of.help.to_owned(),
        data: Some(match of.kind {
            Kind::Gauge => metric::Data::Gauge(Gauge { data_points }),
            Kind::Counter => metric::Data::Sum(Sum {
                data_points,
                aggregation_temporality: AggregationTemporality::Cumulative.into(),
                is_monotonic: true,
            }),
        }),
        ..Metric::default()
    });
    let of = ScopeMetrics { scope: Some(scope()), metrics: of.collect(), ..ScopeMetrics::default() };
    let of = ResourceMetrics { resource: Some(resource(agent)), scope_metrics: vec![of], ..ResourceMetrics::default() };
    ExportMetricsServiceRequest { resource_metrics: vec![of] }
}

/// A finding, an object by column, as a record.
pub(super) fn record(ts_ns: i64, finding: &Map<String, Json>, seen_ns: u64) -> LogRecord {
    let of = |column: &str| finding.get(column).and_then(Json::as_str).unwrap_or_default();
    let verdict = of("verdict");
    let (number, severity) = match verdict {
        "none" | "unknown" | "ended" => (SeverityNumber::Info, "INFO"),
        _ => (SeverityNumber::Warn, "WARN"),
    };
    let who = match (finding.get("rank").and_then(Json::as_i64), of("culprit_node")) {
        (Some(rank), "") => format!(", rank {rank}"),
        (Some(rank), node) => format!(", rank {rank} on {node}"),
        (None, "") => String::new(),
        (None, node) => format!(", {node}"),
    };
    let cause = Some(of("cause")).filter(|cause| !cause.is_empty()).map(|cause| format!(": {cause}"));
    let body = printable(&format!("{verdict}{who}{}", cause.unwrap_or_default()));
    let mut record = LogRecord {
        time_unix_nano: u64::try_from(ts_ns).unwrap_or(0),
        observed_time_unix_nano: seen_ns,
        severity_number: number.into(),
        severity_text: severity.to_owned(),
        event_name: "rankmesh.finding".to_owned(),
        body: Some(value(any_value::Value::StringValue(record::shortened(&body, LONGEST_BODY)))),
        ..LogRecord::default()
    };
    for (column, found) in finding {
        let kept = match found {
            Json::Null => continue,
            Json::String(found) if found.len() > LONGEST_ATTRIBUTE => {
                record.dropped_attributes_count += 1;
                continue;
            }
            Json::String(found) => text(found),
            Json::Bool(found) => value(any_value::Value::BoolValue(*found)),
            Json::Number(found) => match (found.as_i64(), found.as_f64()) {
                (Some(integer), _) => value(any_value::Value::IntValue(integer)),
                (None, Some(real)) => value(any_value::Value::DoubleValue(real)),
                (None, None) => text(&found.to_string()),
            },
            Json::Array(_) | Json::Object(_) => text(&found.to_string()),
        };
        record.attributes.push(attribute(&format!("rankmesh.{column}"), kept));
    }
    record
}

/// Records in one request.
pub(super) fn logs(agent: &str, log_records: Vec<LogRecord>) -> ExportLogsServiceRequest {
    let of = ScopeLogs { scope: Some(scope()), log_records, ..ScopeLogs::default() };
    let of = ResourceLogs { resource: Some(resource(agent)), scope_logs: vec![of], ..ResourceLogs::default() };
    ExportLogsServiceRequest { resource_logs: vec![of] }
}
