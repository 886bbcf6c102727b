//! `/metrics` and files for node_exporter's textfile collector, in the text form that both read
//! (<https://prometheus.io/docs/specs/om/open_metrics_spec/>).
//!
//! Ranks and jobs are labels only while a verdict stands on the job, and there is an upper bound of
//! series: the worst ranks have theirs first, and how many were left out is a metric.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Context;
use axum::extract::{Extension, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use model::watch::{JobNow, RankNow};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Deserialize;

use super::gateway::{Shared, Who};
use super::problem::Problem;
use super::snapshot::Snapshot;
use crate::output::printable;

const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How often files are written.
const EVERY: Duration = Duration::from_secs(15);

type Labels = Vec<(&'static str, String)>;
type Values = Family<Labels, Gauge<f64, AtomicU64>>;

/// The metrics, each with what it says.
const METRICS: [(&str, &str); 20] = [
    ("rankmesh_up", "The agent answers"),
    ("rankmesh_agent_info", "The agent that answers, and its release"),
    ("rankmesh_nodes", "Nodes of the mesh by state"),
    ("rankmesh_node_clock_bound_seconds", "How far a node's clock may be wrong against the reference"),
    ("rankmesh_node_store_rows", "Rows of a node's store"),
    ("rankmesh_node_ranks", "Ranks that run on a node"),
    ("rankmesh_node_lost_records", "Records that a node could not keep in the last minute"),
    ("rankmesh_job_straggler", "Whether somebody holds a job up, or it hangs"),
    ("rankmesh_job_verdict_info", "The verdict on a job: kind, who, and why"),
    ("rankmesh_job_ranks", "Ranks of a job"),
    ("rankmesh_job_wasted_gpus", "As if so many of a job's GPUs did nothing"),
    ("rankmesh_job_step_seconds", "How long a job's step takes"),
    ("rankmesh_job_clock_bound_seconds", "How far times of a job's hosts may be wrong against each other"),
    ("rankmesh_job_verdict_age_seconds", "Time since the end of what was judged"),
    ("rankmesh_rank_late_seconds", "Mean time by which a rank entered collectives after the first"),
    ("rankmesh_rank_wait_seconds", "Mean time that a rank waited in calls beyond the one that waited least"),
    ("rankmesh_rank_flagged_ratio", "Share of the windows in which a rank stood out"),
    ("rankmesh_jobs_left_out", "Jobs of which ranks were not asked for: there are too many"),
    ("rankmesh_series_dropped", "Series that were left out: there are too many"),
    ("rankmesh_gather_seconds", "How long it took to ask for all this"),
];

/// Values that are still let in.
struct Series {
    registry: Registry,
    families: Vec<Values>,
    left: usize,
    dropped: usize,
}

impl Series {
    fn new(most: usize) -> Self {
        let mut registry = Registry::default();
        let families = METRICS
            .iter()
            .map(|(name, help)| {
                let values = Values::default();
                registry.register(*name, *help, values.clone());
                values
            })
            .collect();
        Self { registry, families, left: most, dropped: 0 }
    }

    /// Whether there is room.
    fn put(&mut self, name: &str, labels: &[(&'static str, &str)], value: f64) {
        let Some(at) = METRICS.iter().position(|(known, _)| *known == name) else {
            debug_assert!(false, "{name} is not listed");
            return;
        };
        if self.left == 0 {
            self.dropped += 1;
            return;
        }
        self.left -= 1;
        let labels: Labels = labels.iter().map(|(name, value)| (*name, printable(value))).collect();
        self.families[at].get_or_create(&labels).set(value);
    }
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

/// The text, with at most `most` series and four that are always there.
fn text(snapshot: &Snapshot, most: usize) -> Result<String, std::fmt::Error> {
    let mut all = Series::new(most.saturating_add(4));
    let watched = &snapshot.watched;
    all.put("rankmesh_up", &[], 1.0);
    all.put("rankmesh_gather_seconds", &[], snapshot.took.as_secs_f64());
    all.left = all.left.saturating_sub(1);
    let version = watched.nodes.iter().find(|node| node.is_self).map_or("", |node| node.version.as_str());
    all.put("rankmesh_agent_info", &[("agent", &watched.agent), ("version", version)], 1.0);
    let mut states = std::collections::BTreeMap::<&str, u32>::new();
    watched.nodes.iter().for_each(|node| *states.entry(&node.state).or_default() += 1);
    for (state, count) in states {
        all.put("rankmesh_nodes", &[("state", state)], f64::from(count));
    }
    all.put("rankmesh_jobs_left_out", &[], snapshot.jobs_left_out as f64);
    for job in &watched.jobs {
        put_job(
            &mut all,
            snapshot.ranks.iter().map(|(shown, _)| shown).find(|shown| shown.name == job.name).unwrap_or(job),
        );
    }
    for node in &watched.nodes {
        let name = [("node", node.name.as_str())];
        if let Some(bound_ns) = node.clock_bound_ns {
            all.put("rankmesh_node_clock_bound_seconds", &name, seconds(bound_ns));
        }
        all.put("rankmesh_node_store_rows", &name, node.rows as f64);
        all.put("rankmesh_node_ranks", &name, node.ranks.len() as f64);
    }
    for (node, lost) in &snapshot.lost {
        all.put("rankmesh_node_lost_records", &[("node", node)], *lost as f64);
    }
    for (job, ranks) in &snapshot.ranks {
        ranks.iter().for_each(|rank| put_rank(&mut all, job, rank));
    }
    // The one that was kept free.
    all.left = 1;
    let dropped = all.dropped as f64;
    all.put("rankmesh_series_dropped", &[], dropped);
    let mut text = String::new();
    encode(&mut text, &all.registry)?;
    Ok(text)
}

fn put_job(all: &mut Series, job: &JobNow) {
    let name = [("job", job.id.as_deref().unwrap_or(&job.name))];
    all.put("rankmesh_job_straggler", &name, f64::from(u8::from(job.is_ill)));
    let culprit = job.culprits.first();
    let rank = culprit.map(|culprit| culprit.rank.to_string()).unwrap_or_default();
    let labels = [
        name[0],
        ("verdict", job.verdict.as_str()),
        ("rank", &rank),
        ("node", culprit.map_or("", |culprit| culprit.node.as_str())),
        ("cause", job.cause.as_deref().unwrap_or_default()),
        ("judge", job.judge.as_deref().unwrap_or_default()),
    ];
    all.put("rankmesh_job_verdict_info", &labels, 1.0);
    all.put("rankmesh_job_verdict_age_seconds", &name, job.age_ms as f64 / 1e3);
    let optional = [
        ("rankmesh_job_ranks", job.nranks.map(|ranks| ranks as f64)),
        ("rankmesh_job_wasted_gpus", job.gpus_lost),
        ("rankmesh_job_step_seconds", job.step_ns.map(seconds)),
        ("rankmesh_job_clock_bound_seconds", job.clock_bound_ns.map(seconds)),
    ];
    for (metric, value) in optional {
        if let Some(value) = value {
            all.put(metric, &name, value);
        }
    }
}

fn put_rank(all: &mut Series, job: &JobNow, rank: &RankNow) {
    let number = rank.rank.to_string();
    let labels = [("job", job.id.as_deref().unwrap_or(&job.name)), ("rank", number.as_str()), ("node", &rank.node)];
    if let Some(late_ns) = rank.late_ns {
        all.put("rankmesh_rank_late_seconds", &labels, seconds(late_ns));
    }
    if let Some(wait_ns) = rank.wait_ns {
        all.put("rankmesh_rank_wait_seconds", &labels, seconds(wait_ns));
    }
    if rank.windows > 0 {
        all.put("rankmesh_rank_flagged_ratio", &labels, rank.flagged as f64 / rank.windows as f64);
    }
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
    params: Result<Query<MetricsParams>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let Query(MetricsParams { own }) = params.map_err(|error| Problem::wrong(error.body_text()))?;
    let snapshot = gateway.ask(&who, move |target| Snapshot::gather(target, own)).await?;
    let text = text(&snapshot, most).map_err(|error| Problem::internal(error.to_string()))?;
    Ok(([(CONTENT_TYPE, MEDIA_TYPE)], text).into_response())
}

/// Writes this host's metrics into a file, again and again. Of an agent that does not answer the
/// file says so.
pub(super) async fn textfile(gateway: Shared, path: std::path::PathBuf, most: usize) {
    let who = Who { client: "textfile".to_owned(), reader: true, request_id: String::new() };
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let gathered = gateway.ask(&who, |target| Snapshot::gather(target, true)).await;
        let written = match gathered {
            Ok(snapshot) => text(&snapshot, most),
            Err(problem) => {
                tracing::warn!("no metrics of this host: {}", printable(&problem.detail));
                let mut none = Series::new(1);
                none.put("rankmesh_up", &[], 0.0);
                let mut text = String::new();
                encode(&mut text, &none.registry).map(|()| text)
            }
        };
        let written = written.map_err(anyhow::Error::from).and_then(|text| replace(&path, &text));
        if let Err(error) = written {
            tracing::warn!("{error:#}");
        }
    }
}

/// Another program reads it: it is whole or the one before.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(".rankmesh-")
        .permissions(std::fs::Permissions::from_mode(0o644))
        .tempfile_in(dir)
        .with_context(|| format!("writing in {}", dir.display()))?;
    file.write_all(text.as_bytes())?;
    file.persist(path).with_context(|| format!("writing {}", path.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use model::watch::{CulpritNow, NodeNow, Watched};

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
            rows: 7,
            is_self: true,
            version: "0.1.0".into(),
            clock_bound_ns: Some(50_000),
            ..NodeNow::default()
        };
        let watched = Watched { agent: "n0".into(), jobs: vec![job.clone()], nodes: vec![node], ..Watched::default() };
        Snapshot {
            watched,
            ranks: vec![(job, (0..ranks).rev().map(of).collect())],
            lost: [("n0".to_owned(), 3)].into(),
            ..Snapshot::default()
        }
    }

    /// In order: the library gives what labels tell apart in any.
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
        insta::assert_snapshot!("metrics", sorted(&text(&snapshot(2), 1_000).unwrap()));
    }

    #[test]
    fn there_are_never_more_series_than_allowed_and_the_worst_have_theirs_first() {
        let (ranks, most) = (8_192, 500);
        let text = text(&snapshot(ranks), most).unwrap();
        let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(series.len(), most + 4);
        let dropped: f64 = series
            .iter()
            .find_map(|line| line.strip_prefix("rankmesh_series_dropped{} "))
            .and_then(|value| value.parse().ok())
            .unwrap();
        let all = self::text(&snapshot(ranks), usize::MAX >> 1)
            .unwrap()
            .lines()
            .filter(|line| !line.starts_with('#'))
            .count();
        assert_eq!(dropped as usize + series.len(), all);
        assert!(text.contains("rankmesh_rank_late_seconds{job=\"4711\",rank=\"8191\""));
        assert!(!text.contains("rank=\"0\""));
    }
}
