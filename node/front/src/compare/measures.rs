//! What is measured of each side, as SQL: a value for each block and each thing.

use model::cells::quoted;

/// A question that gives one value for each block and each thing measured: columns block, of,
/// value.
pub(super) struct Measure {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) sql: &'static str,
    /// The job cannot influence it.
    pub(super) regime: bool,
}

/// `{b}` is the block of a row, `{in}` the side's span, `{job}` the job's condition.
pub(super) const MEASURES: [Measure; 14] = [
    Measure {
        name: "time from collective to collective",
        unit: "ns",
        sql: "SELECT {b} AS b, 'all ranks', (max(ts_ns) - min(ts_ns)) * 1.0 / (count(*) - 1) FROM collectives WHERE {in}{job} \
              AND captured IS NOT 1 GROUP BY b, pid, comm_hash HAVING count(*) > 4",
        regime: false,
    },
    Measure {
        name: "compute time between calls",
        unit: "ns",
        sql: "SELECT {b} AS b, 'rank ' || rank, max(0, max(ts_ns) - min(ts_ns) - sum(duration_ns)) * 1.0 / count(*) FROM collectives \
              WHERE {in}{job} AND captured IS NOT 1 AND rank IS NOT NULL AND tier > 0 GROUP BY b, pid, rank HAVING count(*) > 4",
        regime: false,
    },
    Measure {
        name: "duration of",
        unit: "ns",
        sql: "SELECT {b} AS b, func || ' of ' || CASE WHEN bytes IS NULL THEN 'unknown size' WHEN bytes < 4096 THEN 'up to 4 KiB' \
              WHEN bytes < 1048576 THEN 'up to 1 MiB' ELSE 'more than 1 MiB' END AS what, avg(duration_ns) FROM collectives \
              WHERE {in}{job} AND captured IS NOT 1 GROUP BY b, what",
        regime: false,
    },
    Measure {
        name: "a call of",
        unit: "ns",
        sql: "SELECT ({time} - {since}) / {block} AS b, source || ' ' || func AS what, sum(sum_ns) * 1.0 / sum(count) FROM call_rollups \
              WHERE {rolled} AND source NOT IN ('mpi', 'nccl') GROUP BY b, what HAVING sum(count) > 0",
        regime: false,
    },
    Measure {
        name: "time launching GPU work",
        unit: "ms/s",
        sql: "SELECT ({time} - {since}) / {block} AS b, 'rank ' || rank AS what, sum(sum_ns) * 1e3 / {block} FROM call_rollups \
              WHERE {rolled} AND source IN ('cuda', 'hip') AND func LIKE '%Launch%' GROUP BY b, what",
        regime: false,
    },
    Measure {
        name: "time waiting for the GPU",
        unit: "ms/s",
        sql: "SELECT ({time} - {since}) / {block} AS b, 'rank ' || rank AS what, sum(sum_ns) * 1e3 / {block} FROM call_rollups \
              WHERE {rolled} AND source IN ('cuda', 'hip') AND func LIKE '%Synchronize' GROUP BY b, what",
        regime: false,
    },
    Measure {
        name: "off the CPU (1 ms and longer)",
        unit: "ms/s",
        sql: "SELECT {b} AS b, ifnull(reason, CASE voluntary WHEN 1 THEN 'waiting' ELSE 'pushed off' END) AS what, \
              sum(duration_ns) * 1e3 / {block} FROM offcpu WHERE {in} AND rank IS NOT NULL GROUP BY b, what",
        regime: false,
    },
    Measure {
        name: "a request to a disk",
        unit: "ns",
        sql: "SELECT {b} AS b, device || ' ' || op AS what, avg(duration_ns) FROM block_io WHERE {in} GROUP BY b, what",
        regime: false,
    },
    Measure {
        name: "GPU clock",
        unit: "MHz",
        sql: "SELECT {b} AS b, 'all GPUs', avg(sm_clock_mhz) FROM gpu_samples WHERE {in} AND sm_clock_mhz IS NOT NULL GROUP BY b, gpu",
        regime: true,
    },
    Measure {
        name: "GPUs held down by heat or power",
        unit: "%",
        sql: "SELECT {b} AS b, 'all GPUs', 100.0 * avg((throttle_reasons & 236) <> 0) FROM gpu_samples \
              WHERE {in} AND throttle_reasons IS NOT NULL GROUP BY b",
        regime: true,
    },
    Measure {
        name: "busy CPUs",
        unit: "%",
        sql: "SELECT {b} AS b, 'all hosts', avg(cpu_busy_pct) FROM host_samples WHERE {in} AND cpu_busy_pct IS NOT NULL GROUP BY b",
        regime: true,
    },
    Measure {
        name: "CPU time stolen by the hypervisor",
        unit: "%",
        sql: "SELECT {b} AS b, 'all hosts', avg(steal_pct) FROM host_samples WHERE {in} AND steal_pct IS NOT NULL GROUP BY b",
        regime: true,
    },
    Measure {
        name: "a rank could run and had no CPU",
        unit: "ms/s",
        sql: "SELECT {b} AS b, 'each rank', sum(CASE voluntary WHEN 0 THEN duration_ns ELSE ifnull(run_delay_ns, 0) END) * 1e3 / {block} \
              FROM offcpu WHERE {in} AND rank IS NOT NULL GROUP BY b, pid",
        regime: true,
    },
    Measure {
        name: "a rank waited for pages from a disk",
        unit: "ms/s",
        sql: "SELECT {b} AS b, 'each rank', sum(duration_ns) * 1e3 / {block} FROM memory_events \
              WHERE {in} AND rank IS NOT NULL AND event = 'major_fault' AND duration_ns IS NOT NULL GROUP BY b, pid",
        regime: true,
    },
];

/// From which mean of which measure on a side is called what: measure, least mean, name.
pub(super) const REGIMES: [(&str, f64, &str); 4] = [
    ("a rank could run and had no CPU", 50.0, "contended"),
    ("CPU time stolen by the hypervisor", 2.0, "contended by other guests"),
    ("GPUs held down by heat or power", 5.0, "throttled"),
    ("a rank waited for pages from a disk", 20.0, "cold"),
];

/// The question of a measure about a span in blocks.
pub(super) fn sql(measure: &Measure, since_ns: i64, until_ns: i64, block_ns: i64, job: Option<&str>) -> String {
    let job = job.map_or_else(String::new, |job| format!(" AND job_id = {}", quoted(job)));
    measure
        .sql
        .replace("{b}", &format!("(ts_ns - {since_ns}) / {block_ns}"))
        .replace("{in}", &format!("ts_ns >= {since_ns} AND ts_ns < {until_ns}"))
        .replace("{rolled}", &format!("bucket_ns >= {since_ns} AND bucket_ns < {until_ns}"))
        .replace("{time}", "bucket_ns")
        .replace("{since}", &since_ns.to_string())
        .replace("{block}", &block_ns.to_string())
        .replace("{job}", &job)
}
