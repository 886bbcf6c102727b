//! The SQL of each view: what `y` shows, and what a front end asks for the parts that no other
//! request provides.

use model::cells::quoted;
use model::watch::Watched;

use crate::view::View;

/// Rows of a list that a view asks for.
pub const MOST_FINDINGS: usize = 500;

/// Findings, newest first.
#[must_use]
pub fn findings() -> String {
    format!(
        "SELECT ts_ns, verdict, rank, culprit_node, lateness_ns, cost_gpu_s, cause FROM findings ORDER BY ts_ns DESC LIMIT \
         {MOST_FINDINGS}"
    )
}

/// Length of the time of which services are shown.
pub const SERVICES_NS: i64 = 600_000_000_000;

/// How long requests took up to a time: a row for each service and host, the most requests first.
#[must_use]
pub fn services(until_ns: i64) -> String {
    let since_ns = until_ns.saturating_sub(SERVICES_NS);
    format!(
        "SELECT service, node, sum(count) AS requests, sum(errors) AS failed, approx_quantile(sketch, 0.5) AS p50_ns, \
         approx_quantile(sketch, 0.9) AS p90_ns, approx_quantile(sketch, 0.99) AS p99_ns, approx_quantile(sketch, 0.999) AS p999_ns, \
         max(max_ns) AS max_ns FROM request_rollups WHERE bucket_ns >= {since_ns} AND bucket_ns < {until_ns} \
         GROUP BY service, node ORDER BY requests DESC, service, node LIMIT {MOST_FINDINGS}"
    )
}

/// Where a process's time went in a span: what, nanoseconds, how often.
#[must_use]
pub fn times_of(node: &str, pid: i64, since_ns: i64, until_ns: i64) -> String {
    let span = format!("node = {} AND pid = {pid} AND ts_ns >= {since_ns} AND ts_ns < {until_ns}", quoted(node));
    format!(
        "SELECT 'in ' || func, sum(duration_ns), count(*) FROM collectives WHERE {span} AND captured IS NOT 1 GROUP BY func \
         UNION ALL SELECT 'off the CPU: ' || coalesce(reason, 'not known'), sum(duration_ns), count(*) FROM offcpu WHERE {span} \
         GROUP BY reason UNION ALL SELECT func, sum(duration_ns), count(*) FROM cuda_calls WHERE {span} GROUP BY func \
         ORDER BY 2 DESC LIMIT 20"
    )
}

/// Facts of a process.
#[must_use]
pub fn process(node: &str, pid: i64) -> String {
    format!(
        "SELECT exe, comm, rank, local_rank, world_size, job_id, step_id, user, container_id, start_ns FROM processes WHERE node = {} AND \
         pid = {pid} ORDER BY start_ns DESC LIMIT 1",
        quoted(node)
    )
}

/// How busy hosts' CPUs were in a span.
#[must_use]
pub fn cpus(since_ns: i64, until_ns: i64) -> String {
    format!(
        "SELECT node, avg(cpu_busy_pct) FROM host_samples WHERE ts_ns >= {since_ns} AND ts_ns < {until_ns} GROUP BY node"
    )
}

/// The clocks of hosts' GPUs in a span.
#[must_use]
pub fn gpus(since_ns: i64, until_ns: i64) -> String {
    format!(
        "SELECT node, count(DISTINCT gpu), min(sm_clock_mhz), max(sm_clock_mhz), max(throttle) FROM gpu_samples WHERE ts_ns >= {since_ns} AND ts_ns < {until_ns} GROUP BY node"
    )
}

/// Records that hosts lost in a span.
#[must_use]
pub fn losses(since_ns: i64, until_ns: i64) -> String {
    format!(
        "SELECT node, sum(lost) FROM capture_loss WHERE ts_ns >= {since_ns} AND since_ns < {until_ns} GROUP BY node"
    )
}

/// The SQL that gives the figures of a view again, for `rankmesh query`.
#[must_use]
pub fn of_view(view: View, watched: Option<&Watched>, rank: Option<(&str, i64)>, at_ns: Option<i64>) -> String {
    let until_ns = at_ns.or(watched.map(|watched| watched.at_ns)).unwrap_or(i64::MAX);
    let since_ns = until_ns.saturating_sub(60_000_000_000);
    let span = format!("at_ns >= {since_ns} AND at_ns < {until_ns}");
    match view {
        View::Verdict | View::Ranks => format!(
            "SELECT node, pid, max(rank) AS rank, count(*) AS collectives, avg(lateness_ns) AS late_ns, avg(wait_ns) AS wait_ns \
             FROM lateness WHERE {span} GROUP BY node, pid ORDER BY late_ns DESC"
        ),
        View::Heat => format!(
            "SELECT at_ns / 500000000 AS window, node, pid, max(rank) AS rank, sum(lateness_ns) AS late_ns, sum(wait_ns) AS wait_ns \
             FROM lateness WHERE {span} GROUP BY 1, node, pid ORDER BY 1, rank"
        ),
        View::Nodes => gpus(since_ns, until_ns),
        View::Jobs => {
            "SELECT job_id, step_id, max(world_size) AS ranks, count(DISTINCT node) AS nodes, min(start_ns) AS start_ns FROM \
             processes WHERE world_size > 1 GROUP BY job_id, step_id ORDER BY start_ns DESC"
                .to_owned()
        }
        View::Rank => match rank {
            Some((node, pid)) => times_of(node, pid, since_ns, until_ns),
            None => "SELECT DISTINCT node, pid, rank FROM processes WHERE rank IS NOT NULL ORDER BY rank".to_owned(),
        },
        View::Findings => findings(),
        View::Services => services(until_ns),
    }
}
