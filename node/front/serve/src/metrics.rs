//! `/metrics` and files for node_exporter's textfile collector, in the text form that both read
//! (<https://prometheus.io/docs/specs/om/open_metrics_spec/>). `series` has the values.

use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use ask::output::printable;
use axum::extract::{Extension, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use front::output_file::OutputFile;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;
use serde::Deserialize;

use super::api::Params;
use super::gateway::{Shared, Who};
use super::problem::Problem;
use super::series::{Counts, Kind, Labels, METRICS, Series, Value};
use super::snapshot::Snapshot;

const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Time between two files.
const EVERY: Duration = Duration::from_secs(15);

/// Families of one metric, of which its kind chooses one.
#[derive(Debug, Default)]
struct Of {
    gauges: Family<Labels, Gauge<f64, AtomicU64>>,
    counters: Family<Labels, Counter<f64, AtomicU64>>,
    histograms: Family<Labels, Given>,
}

/// A histogram that was counted elsewhere.
#[derive(Debug, Default)]
struct Given(OnceLock<Counts>);

impl TypedMetric for Given {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Given {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(Counts { sum, count, buckets }) = self.0.get() else { return Ok(()) };
        encoder.encode_histogram::<NoLabelSet>(*sum, *count, buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// The text form.
fn text(series: &Series) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::default();
    let families: Vec<Of> = METRICS
        .iter()
        .map(|metric| {
            let of = Of::default();
            match metric.kind {
                Kind::Gauge => registry.register(metric.name, metric.help, of.gauges.clone()),
                // The library adds the ending.
                Kind::Counter => {
                    registry.register(metric.name.trim_end_matches("_total"), metric.help, of.counters.clone());
                }
                Kind::Histogram => registry.register(metric.name, metric.help, of.histograms.clone()),
            }
            of
        })
        .collect();
    for point in series.points() {
        let of = &families[point.of];
        match (&point.value, METRICS[point.of].kind) {
            (Value::Number(value), Kind::Counter) => drop(of.counters.get_or_create(&point.labels).inc_by(*value)),
            (Value::Number(value), _) => drop(of.gauges.get_or_create(&point.labels).set(*value)),
            (Value::Counts(counts), _) => drop(of.histograms.get_or_create(&point.labels).0.set(counts.clone())),
        }
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// The same in the older text form, which the textfile collector reads: there a counter's lines of
/// help and type have the same name as its values.
fn of_textfile(text: &str) -> String {
    let ending = |line: &str| {
        let (mark, rest) = line.split_at_checked("# HELP ".len())?;
        let (name, rest) = rest.split_once(' ')?;
        let total = format!("{name}_total");
        let is_counter = METRICS.iter().any(|metric| metric.kind == Kind::Counter && metric.name == total);
        (["# HELP ", "# TYPE "].contains(&mark) && is_counter).then(|| format!("{mark}{total} {rest}\n"))
    };
    text.lines().map(|line| ending(line).unwrap_or_else(|| format!("{line}\n"))).collect()
}

/// Which metrics.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MetricsParams {
    /// Of the asked agent's own host and of the jobs that it judges only.
    #[serde(default)]
    own: bool,
}

/// How many series.
#[derive(Debug, Clone, Copy)]
pub(super) struct MostSeries(pub(super) usize);

/// The metrics of the mesh, or of one host.
pub(super) async fn metrics(
    State(gateway): State<Shared>,
    Extension(who): Extension<Who>,
    Extension(MostSeries(most)): Extension<MostSeries>,
    Params(MetricsParams { own }): Params<MetricsParams>,
) -> Result<Response, Problem> {
    let snapshot = gateway.ask(&who, move |target| Snapshot::gather(target, own)).await?;
    let text = text(&Series::of(&snapshot, most)).map_err(|error| Problem::internal(error.to_string()))?;
    Ok(([(CONTENT_TYPE, MEDIA_TYPE)], text).into_response())
}

/// Writes this host's metrics into a file, again and again. If the agent does not answer, the file
/// shows that.
pub(super) async fn textfile(gateway: Shared, path: std::path::PathBuf, most: usize) {
    let who = Who { client: "textfile".to_owned(), reader: true, request_id: String::new() };
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let gathered = gateway.ask(&who, |target| Snapshot::gather(target, true)).await;
        let written = match gathered {
            Ok(snapshot) => text(&Series::of(&snapshot, most)),
            Err(problem) => {
                tracing::warn!("no metrics of this host: {}", printable(&problem.detail));
                text(&Series::of_none())
            }
        };
        let written = written.map_err(anyhow::Error::from).and_then(|text| replace(&path, &of_textfile(&text)));
        if let Err(error) = written {
            tracing::warn!("{error:#}");
        }
    }
}

/// Another program reads it: it is complete, or the file before.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut file = OutputFile::open_for_all(path)?;
    file.write_all(text.as_bytes())?;
    file.finish()
}

#[cfg(test)]
mod tests {
    use model::watch::{AgentNow, CulpritNow, GrownNow, JobNow, NodeNow, RankNow, ServiceNow, Watched};

    use super::*;

    fn snapshot(ranks: i64) -> Snapshot {
        let job = JobNow {
            name: "4711".into(),
            id: Some("4711".into()),
            nranks: Some(ranks),
            verdict: "rank".into(),
            is_ill: true,
            culprits: vec![CulpritNow { rank: 5, node: "n1".into(), ..CulpritNow::default() }],
            cause: Some("preempted by \"evil\"\n\u{1b}[2J".into()),
            gpus_lost: Some(1.5),
            step_ns: Some(250_000_000),
            judge: Some("n0".into()),
            ..JobNow::default()
        };
        let of = |rank: i64| RankNow {
            rank,
            node: format!("n{}", rank / 4),
            late_ns: Some(rank * 1_000_000),
            wait_ns: Some(2_000_000),
            windows: 4,
            flagged: 1,
            ..RankNow::default()
        };
        let node = NodeNow {
            name: "n0".into(),
            state: "live".into(),
            rows: Some(7),
            is_self: true,
            version: "0.1.0".into(),
            clock_bound_ns: Some(50_000),
            ..NodeNow::default()
        };
        let durations = (0..32).map(|at| [7, 2, 1][at % 3]).collect();
        let chat = ServiceNow {
            name: "chat".into(),
            count: 110,
            errors: 3,
            sum_ns: 5_500_000_000,
            durations,
            grown: Some(GrownNow::default()),
        };
        let own = AgentNow {
            cpu_ns: Some(1_500_000_000),
            memory_bytes: Some(31 << 20),
            gossip_sent: 9,
            recording_ppm: Some(4_000),
            recorded_call_ns: Some(1_500),
            question_memory_most_bytes: 640 << 20,
            services: vec![chat],
            ..AgentNow::default()
        };
        let watched = Watched {
            agent: "n0".into(),
            jobs: vec![job.clone()],
            nodes: vec![node],
            own: Some(own),
            ..Watched::default()
        };
        Snapshot {
            watched,
            ranks: vec![(job, (0..ranks).rev().map(of).collect())],
            lost: [("n0".to_owned(), 3)].into(),
            ..Snapshot::default()
        }
    }

    /// Sorted: the library writes series in any order.
    fn sorted(text: &str) -> String {
        let mut blocks: Vec<Vec<&str>> = Vec::new();
        for line in text.lines() {
            match blocks.last_mut() {
                Some(block) if !line.starts_with("# HELP") => block.push(line),
                _ => blocks.push(vec![line]),
            }
        }
        blocks.iter_mut().for_each(|block| block.sort_unstable());
        blocks.concat().join("\n")
    }

    #[test]
    fn the_names_are_these() {
        insta::assert_snapshot!("metrics", sorted(&text(&Series::of(&snapshot(2), 1_000)).unwrap()));
    }

    #[test]
    fn there_are_never_more_series_than_allowed_and_the_worst_have_theirs_first() {
        let (ranks, most) = (8_192, 500);
        let text = text(&Series::of(&snapshot(ranks), most)).unwrap();
        let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(series.len(), most + 4);
        let dropped: f64 = series
            .iter()
            .find_map(|line| line.strip_prefix("rankmesh_series_dropped{} "))
            .and_then(|value| value.parse().ok())
            .unwrap();
        let all = self::text(&Series::of(&snapshot(ranks), usize::MAX >> 1))
            .unwrap()
            .lines()
            .filter(|line| !line.starts_with('#'))
            .count();
        assert_eq!(dropped as usize + series.len(), all);
        assert!(text.contains("rankmesh_rank_late_seconds{job=\"4711\",rank=\"8191\""));
        assert!(!text.contains("rank=\"0\""));
    }
}
