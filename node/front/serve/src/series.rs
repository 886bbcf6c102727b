//! Metrics as values with labels: `metrics` writes them as text, `otlp` sends them.
//!
//! Ranks and jobs are labels only while a verdict stands on the job, and the number of series is
//! bounded: the worst ranks come first, and the number of series left out is a metric.

use std::collections::BTreeMap;

use ask::output::printable;
use model::watch::{AgentNow, JobNow, REQUEST_BOUNDS_NS, RankNow, ServiceNow};

use super::snapshot::Snapshot;

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Gauge: goes up and down.
    Gauge,
    /// Counter: only goes up, since the agent's start; its name ends with `_total`.
    Counter,
    /// Counts by size, which only go up, since the agent's start.
    Histogram,
}
use Kind::{Counter, Gauge, Histogram};

/// One metric.
#[derive(Debug)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
}

const fn metric(name: &'static str, kind: Kind, help: &'static str) -> Metric {
    Metric { name, kind, help }
}

/// The metrics, each with its description.
pub(super) const METRICS: [Metric; 42] = [
    metric("rankmesh_up", Gauge, "The agent answers"),
    metric("rankmesh_agent_info", Gauge, "The agent that answers, and its release"),
    metric("rankmesh_agent_cpu_seconds_total", Counter, "Processor time that the agent has used"),
    metric("rankmesh_agent_memory_bytes", Gauge, "The agent's resident memory"),
    metric("rankmesh_agent_threads", Gauge, "The agent's threads"),
    metric("rankmesh_agent_question_memory_bytes", Gauge, "Memory that questions have now"),
    metric("rankmesh_agent_question_memory_limit_bytes", Gauge, "Memory that questions may have together"),
    metric("rankmesh_agent_questions_served_total", Counter, "Questions of other nodes that the agent has served"),
    metric("rankmesh_gossip_messages_total", Counter, "Gossip messages of the agent by direction"),
    metric("rankmesh_gossip_bytes_total", Counter, "Bytes of gossip messages by direction, without those of QUIC"),
    metric("rankmesh_gossip_dropped_total", Counter, "Gossip messages dropped: a queue full, or a peer not reached"),
    metric("rankmesh_store_records_total", Counter, "Records that the agent's store has taken"),
    metric("rankmesh_store_lost_records_total", Counter, "Records that the agent's store could not take"),
    metric("rankmesh_store_queued_records", Gauge, "Records that wait for the agent's store"),
    metric("rankmesh_store_bytes", Gauge, "Size of the agent's store"),
    metric("rankmesh_capture_lost_events_total", Counter, "Events that the agent's probes could not hand over"),
    metric("rankmesh_recording_share_ratio", Gauge, "Part of its time that recording takes of who makes most calls"),
    metric("rankmesh_recorded_call_seconds", Gauge, "What a recorded call costs who makes it"),
    metric("rankmesh_requests_total", Counter, "Requests that a service on a node has got"),
    metric(
        "rankmesh_request_errors_total",
        Counter,
        "Of these failed: status from 500 on, gRPC's not 0, reset, or not answered",
    ),
    metric("rankmesh_request_duration_seconds", Histogram, "Durations of the answered ones, of the server's side"),
    metric("rankmesh_service_tail_grown", Gauge, "Whether p99 of a service on a node is more than its own last day's"),
    metric("rankmesh_nodes", Gauge, "Nodes of the mesh by state"),
    metric("rankmesh_node_clock_bound_seconds", Gauge, "How far a node's clock may be wrong against the reference"),
    metric("rankmesh_node_store_rows", Gauge, "Rows of a node's store"),
    metric("rankmesh_node_ranks", Gauge, "Ranks that run on a node"),
    metric("rankmesh_node_lost_records", Gauge, "Records that a node could not keep in the last minute"),
    metric("rankmesh_job_straggler", Gauge, "Whether somebody holds a job up, or it hangs"),
    metric("rankmesh_job_verdict_info", Gauge, "The verdict on a job: kind, who, and why"),
    metric("rankmesh_job_ranks", Gauge, "Ranks of a job"),
    metric("rankmesh_job_wasted_gpus", Gauge, "As if so many of a job's GPUs did nothing"),
    metric("rankmesh_job_step_seconds", Gauge, "How long a job's step takes"),
    metric("rankmesh_job_clock_bound_seconds", Gauge, "How far times of a job's hosts may be wrong against each other"),
    metric("rankmesh_job_verdict_age_seconds", Gauge, "Time since the end of what was judged"),
    metric("rankmesh_rank_late_seconds", Gauge, "Mean time by which a rank entered collectives after the first"),
    metric(
        "rankmesh_rank_wait_seconds",
        Gauge,
        "Mean time that a rank waited in calls beyond the one that waited least",
    ),
    metric("rankmesh_rank_flagged_ratio", Gauge, "Share of the windows in which a rank stood out"),
    metric("rankmesh_jobs_left_out", Gauge, "Jobs of which ranks were not asked for: there are too many"),
    metric("rankmesh_series_dropped", Gauge, "Series that were left out: there are too many"),
    metric("rankmesh_gather_seconds", Gauge, "How long it took to ask for all this"),
    metric("rankmesh_otlp_dropped_records_total", Counter, "Findings that no OpenTelemetry collector took"),
    metric("rankmesh_otlp_queued_records", Gauge, "Findings that wait for an OpenTelemetry collector"),
];

pub(super) type Labels = Vec<(&'static str, String)>;

/// A value of one of [`METRICS`].
#[derive(Debug)]
pub(super) struct Point {
    pub(super) of: usize,
    pub(super) labels: Labels,
    pub(super) value: Value,
}

/// What a point says.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// Of a gauge or counter.
    Number(f64),
    /// Of a histogram.
    Counts(Counts),
}

/// Counts by size.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) sum: f64,
    pub(super) count: u64,
    /// Upper bounds with how many are up to them and above the one before; the last one is infinite.
    pub(super) buckets: Vec<(f64, u64)>,
}

impl Value {
    /// How many series it takes in Prometheus.
    fn series(&self) -> usize {
        match self {
            Self::Number(_) => 1,
            Self::Counts(counts) => counts.buckets.len() + 2,
        }
    }
}

/// The series within the bound.
#[derive(Debug)]
pub(super) struct Series {
    points: Vec<Point>,
    left: usize,
    dropped: usize,
}

impl Series {
    /// Only the metric for an agent that does not answer.
    pub(super) fn of_none() -> Self {
        let mut none = Self { points: Vec::new(), left: 1, dropped: 0 };
        none.put("rankmesh_up", &[], 0.0);
        none
    }

    /// At most `most` series, and four that are always there.
    pub(super) fn of(snapshot: &Snapshot, most: usize) -> Self {
        let mut all = Self { points: Vec::new(), left: most.saturating_add(4), dropped: 0 };
        let watched = &snapshot.watched;
        all.put("rankmesh_up", &[], 1.0);
        all.put("rankmesh_gather_seconds", &[], snapshot.took.as_secs_f64());
        // One is reserved for the number of dropped ones.
        all.left = all.left.saturating_sub(1);
        let version = watched.nodes.iter().find(|node| node.is_self).map_or("", |node| node.version.as_str());
        all.put("rankmesh_agent_info", &[("agent", &watched.agent), ("version", version)], 1.0);
        if let Some(own) = &watched.own {
            put_agent(&mut all, &watched.agent, own);
        }
        let mut states = BTreeMap::<&str, u32>::new();
        watched.nodes.iter().for_each(|node| *states.entry(&node.state).or_default() += 1);
        for (state, count) in states {
            all.put("rankmesh_nodes", &[("state", state)], f64::from(count));
        }
        all.put("rankmesh_jobs_left_out", &[], snapshot.jobs_left_out as f64);
        for job in &watched.jobs {
            let shown = snapshot.ranks.iter().map(|(shown, _)| shown).find(|shown| shown.name == job.name);
            put_job(&mut all, shown.unwrap_or(job));
        }
        for node in &watched.nodes {
            let name = [("node", node.name.as_str())];
            if let Some(bound_ns) = node.clock_bound_ns {
                all.put("rankmesh_node_clock_bound_seconds", &name, seconds(bound_ns));
            }
            if let Some(rows) = node.rows {
                all.put("rankmesh_node_store_rows", &name, rows as f64);
            }
            all.put("rankmesh_node_ranks", &name, node.ranks.len() as f64);
        }
        for service in watched.own.iter().flat_map(|own| &own.services) {
            put_service(&mut all, &watched.agent, service);
        }
        for (node, lost) in &snapshot.lost {
            all.put("rankmesh_node_lost_records", &[("node", node)], *lost as f64);
        }
        for (job, ranks) in &snapshot.ranks {
            ranks.iter().for_each(|rank| put_rank(&mut all, job, rank));
        }
        all.left = 1;
        let dropped = all.dropped as f64;
        all.put("rankmesh_series_dropped", &[], dropped);
        all
    }

    /// Counts a series beyond the bound.
    #[cfg(feature = "otlp")]
    pub(super) fn add(&mut self, name: &str, value: f64) {
        self.left += 1;
        self.put(name, &[], value);
    }

    pub(super) fn points(&self) -> &[Point] {
        &self.points
    }

    /// Adds a series if there is room.
    fn put(&mut self, name: &str, labels: &[(&'static str, &str)], value: f64) {
        self.put_value(name, labels, Value::Number(value));
    }

    /// Adds the series of a value if there is room for all of them.
    fn put_value(&mut self, name: &str, labels: &[(&'static str, &str)], value: Value) {
        let Some(of) = METRICS.iter().position(|metric| metric.name == name) else {
            debug_assert!(false, "{name} is not listed");
            return;
        };
        let Some(left) = self.left.checked_sub(value.series()) else {
            self.dropped += value.series();
            return;
        };
        self.left = left;
        let labels = labels.iter().map(|(name, value)| (*name, printable(value))).collect();
        self.points.push(Point { of, labels, value });
    }
}

fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

/// State of the asked agent itself.
fn put_agent(all: &mut Series, agent: &str, own: &AgentNow) {
    let node = ("node", agent);
    let bounded =
        Some(own.question_memory_most_bytes).filter(|most| i64::try_from(*most).is_ok_and(|most| most < i64::MAX));
    let values = [
        ("rankmesh_agent_memory_bytes", own.memory_bytes),
        ("rankmesh_agent_threads", own.threads),
        ("rankmesh_agent_question_memory_bytes", Some(own.question_memory_bytes)),
        ("rankmesh_agent_question_memory_limit_bytes", bounded),
        ("rankmesh_agent_questions_served_total", Some(own.served)),
        ("rankmesh_gossip_dropped_total", Some(own.gossip_dropped)),
        ("rankmesh_store_records_total", own.stored),
        ("rankmesh_store_lost_records_total", own.store_lost),
        ("rankmesh_store_queued_records", own.store_queued),
        ("rankmesh_store_bytes", own.store_bytes),
        ("rankmesh_capture_lost_events_total", own.capture_lost),
    ];
    if let Some(cpu_ns) = own.cpu_ns {
        all.put("rankmesh_agent_cpu_seconds_total", &[node], cpu_ns as f64 / 1e9);
    }
    if let Some(share) = own.recording_ppm {
        all.put("rankmesh_recording_share_ratio", &[node], share as f64 / 1e6);
    }
    if let Some(call_ns) = own.recorded_call_ns {
        all.put("rankmesh_recorded_call_seconds", &[node], call_ns as f64 / 1e9);
    }
    for (metric, value) in values {
        if let Some(value) = value {
            all.put(metric, &[node], value as f64);
        }
    }
    let directions = [
        ("sent", own.gossip_sent, own.gossip_sent_bytes),
        ("received", own.gossip_received, own.gossip_received_bytes),
    ];
    for (direction, messages, bytes) in directions {
        all.put("rankmesh_gossip_messages_total", &[node, ("direction", direction)], messages as f64);
        all.put("rankmesh_gossip_bytes_total", &[node, ("direction", direction)], bytes as f64);
    }
}

/// Requests to a service on the asked agent's host.
fn put_service(all: &mut Series, agent: &str, service: &ServiceNow) {
    let labels = [("node", agent), ("service", service.name.as_str())];
    all.put("rankmesh_requests_total", &labels, service.count as f64);
    all.put("rankmesh_request_errors_total", &labels, service.errors as f64);
    let bounds = REQUEST_BOUNDS_NS.iter().map(|bound_ns| *bound_ns as f64 / 1e9).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(service.durations.iter().copied()).collect();
    let count = buckets.iter().map(|(_, count)| count).sum();
    let counts = Counts { sum: service.sum_ns as f64 / 1e9, count, buckets };
    all.put_value("rankmesh_request_duration_seconds", &labels, Value::Counts(counts));
    all.put("rankmesh_service_tail_grown", &labels, f64::from(u8::from(service.grown.is_some())));
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
