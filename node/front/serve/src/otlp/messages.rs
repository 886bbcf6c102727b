//! Metrics and findings as OpenTelemetry's messages
//! (<https://opentelemetry.io/docs/specs/otlp/>): values in, messages out.

use ask::output::printable;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use serde_json::{Map, Value as Json};

use crate::series::{Counts, Kind, METRICS, Series, Value};

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
    let mut all: Vec<(Vec<NumberDataPoint>, Vec<HistogramDataPoint>)> =
        METRICS.iter().map(|_| Default::default()).collect();
    for point in series.points() {
        let attributes = point.labels.iter().map(|(name, value)| attribute(name, text(value))).collect();
        let (numbers, histograms) = &mut all[point.of];
        match &point.value {
            Value::Number(value) => numbers.push(NumberDataPoint {
                attributes,
                time_unix_nano: at_ns,
                value: Some(number_data_point::Value::AsDouble(*value)),
                ..NumberDataPoint::default()
            }),
            Value::Counts(Counts { sum, count, buckets }) => histograms.push(HistogramDataPoint {
                attributes,
                time_unix_nano: at_ns,
                count: *count,
                sum: Some(*sum),
                bucket_counts: buckets.iter().map(|(_, count)| *count).collect(),
                // What is beyond the last bound has none.
                explicit_bounds: buckets.iter().map(|(bound, _)| *bound).filter(|bound| bound.is_finite()).collect(),
                ..HistogramDataPoint::default()
            }),
        }
    }
    let is_of_some = |(numbers, histograms): &(Vec<_>, Vec<_>)| !numbers.is_empty() || !histograms.is_empty();
    let of = METRICS.iter().zip(all).filter(|(_, points)| is_of_some(points)).map(|(of, points)| Metric {
        name: of.name.to_owned(),
        description: of.help.to_owned(),
        data: Some(match of.kind {
            Kind::Gauge => metric::Data::Gauge(Gauge { data_points: points.0 }),
            Kind::Counter => metric::Data::Sum(Sum {
                data_points: points.0,
                aggregation_temporality: AggregationTemporality::Cumulative.into(),
                is_monotonic: true,
            }),
            Kind::Histogram => metric::Data::Histogram(Histogram {
                data_points: points.1,
                aggregation_temporality: AggregationTemporality::Cumulative.into(),
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
        "none" | "unknown" | "ended" | "tail_over" => (SeverityNumber::Info, "INFO"),
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

#[cfg(test)]
mod tests {
    use model::watch::{AgentNow, REQUEST_BOUNDS_NS, ServiceNow, Watched};

    use super::*;
    use crate::snapshot::Snapshot;

    #[test]
    fn durations_of_requests_are_a_histogram_with_one_count_more_than_bounds() {
        let durations: Vec<u64> = (0..=REQUEST_BOUNDS_NS.len() as u64).collect();
        let all = durations.iter().sum::<u64>();
        let chat = ServiceNow {
            name: "chat".into(),
            count: all + 1,
            errors: 1,
            sum_ns: 7_500_000_000,
            durations,
            grown: None,
        };
        let own = Some(AgentNow { services: vec![chat], ..AgentNow::default() });
        let watched = Watched { agent: "n0".into(), own, ..Watched::default() };
        let message =
            metrics("n0", &Series::of(&Snapshot { watched, ..Snapshot::default() }, 1_000), 1_700_000_000_000_000_000);
        let sent = &message.resource_metrics[0].scope_metrics[0].metrics;
        let sent = sent.iter().find(|metric| metric.name == "rankmesh_request_duration_seconds").unwrap();
        let Some(metric::Data::Histogram(Histogram { data_points, .. })) = &sent.data else { panic!("{sent:?}") };
        let [point] = &data_points[..] else { panic!("{data_points:?}") };
        assert_eq!((point.count, point.sum), (all, Some(7.5)));
        assert_eq!(point.explicit_bounds.len() + 1, point.bucket_counts.len());
        assert_eq!((point.explicit_bounds[0], point.bucket_counts[31]), (0.001, 31));
        assert_eq!(point.attributes[1], attribute("service", text("chat")));
    }
}
