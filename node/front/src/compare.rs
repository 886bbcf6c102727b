//! `rankmesh compare`: what is different between two spans of a job, or between two sets of stores.
//!
//! Each side is cut into blocks of equal length, and every figure has one value a block. Both sides
//! are asked the same SQL: of the mesh node by node, or of each store of a directory.
//! `explain::compare` decides which figures differ.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use ask::args::{ReportFormat, TargetArgs};
use ask::output::{printable, printable_lines, quiet, render};
use ask::rows::{Client, Rows};
use ask::times::{When, parse_when};
use ask::{Connector, Exit, Target, UsageError};
use clap::Args;
use explain::chain::duration;
use explain::compare::{Change, Figure, Outcome, compare};
use model::Coverage;
use model::cells::{integer, quoted, real, text};
use query_planner::Value;
use serde::Serialize;

/// Blocks of a side, and the shortest of them.
const BLOCKS: i64 = 120;
const SHORTEST_NS: i64 = 500_000_000;
/// Changes listed in text.
const ROWS: usize = 40;

/// Flags of `rankmesh compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Whom to ask.
    #[command(flatten)]
    target: TargetArgs,
    /// One side: a span (2h..1h ago, 14:00..14:10, or 10m up to now; of --db back from its newest
    /// row), or all that a store or a directory of stores holds
    #[arg(long, value_name = "SPAN|PATH", value_parser = parse_side)]
    before: Side,
    /// The other side
    #[arg(long, value_name = "SPAN|PATH", value_parser = parse_side)]
    after: Side,
    /// Only this job
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    format: ReportFormat,
}

/// One side of the comparison.
#[derive(Debug, Clone, PartialEq)]
enum Side {
    /// A span on the nodes that the flags name; without an end up to now.
    Span(When, Option<When>),
    /// All stores in a directory, or one file.
    Stores(PathBuf),
}

fn parse_side(text: &str) -> Result<Side, String> {
    if Path::new(text).exists() {
        return Ok(Side::Stores(PathBuf::from(text)));
    }
    match text.split_once("..") {
        Some((since, until)) => Ok(Side::Span(parse_when(since)?, Some(parse_when(until)?))),
        None => match parse_when(text) {
            Ok(since @ When::Ago(_)) => Ok(Side::Span(since, None)),
            _ => Err(format!(
                "'{text}' is no span and there is no such file; write 2h..1h, 14:00..14:10, 10m, or the path of stores"
            )),
        },
    }
}

/// What `--format json` prints.
#[derive(Debug, Serialize)]
struct Comparison {
    version: u32,
    block_ns: [i64; 2],
    changes: Vec<Change>,
    /// Of each side a description: contended, throttled, …, as far as seen.
    regimes: [String; 2],
    regime: Vec<String>,
    not_visible: Vec<String>,
    coverage: [Coverage; 2],
}

/// A question that gives one value for each block and each thing measured: columns block, of,
/// value.
struct Measure {
    name: &'static str,
    unit: &'static str,
    sql: &'static str,
    /// The job cannot influence it.
    regime: bool,
}

/// `{b}` is the block of a row, `{in}` the side's span, `{job}` the job's condition.
const MEASURES: [Measure; 14] = [
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
const REGIMES: [(&str, f64, &str); 4] = [
    ("a rank could run and had no CPU", 50.0, "contended"),
    ("CPU time stolen by the hypervisor", 2.0, "contended by other guests"),
    ("GPUs held down by heat or power", 5.0, "throttled"),
    ("a rank waited for pages from a disk", 20.0, "cold"),
];

/// Compares the two sides and prints what changed.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(mut args: CompareArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let sides = [&args.before, &args.after];
    let only_stores = sides.iter().all(|side| matches!(side, Side::Stores(_)));
    if only_stores && (!args.target.db.is_empty() || args.target.archive.is_some()) {
        let message =
            "--db or --archive says whose spans are compared, and both sides are stores: leave it out, or give spans";
        return Err(UsageError(message.to_owned()).into());
    }
    // Where both sides are stores no other target is asked.
    let shared = if only_stores { None } else { Some(args.target.of_any_job(&mut args.job, connector)?) };
    let deadline = Instant::now() + args.target.ask.timeout;
    let of = |side| Values::of(side, shared.as_ref(), &args, deadline, connector);
    let before = of(&args.before).context("--before")?;
    let after = of(&args.after).context("--after")?;
    let found = compared(before, after);
    let complete = found.coverage.iter().all(Coverage::is_complete);
    if args.target.ask.require_all && !complete {
        bail!("an answer is partial and --require-all was given: nothing is printed");
    }
    let mut out = std::io::stdout().lock();
    match args.format {
        ReportFormat::Json => writeln!(out, "{}", quiet(&serde_json::to_string(&found)?))?,
        ReportFormat::Table => {
            writeln!(out, "{}", printable_lines(&printed(&found)))?;
            for coverage in found.coverage.iter().filter(|coverage| coverage.asked > 0) {
                coverage.lines().iter().for_each(|line| eprintln!("{}", printable(line)));
            }
        }
    }
    out.flush()?;
    Ok(if complete { Exit::Complete } else { Exit::Partial })
}

/// All values of a side, by measure and thing.
#[derive(Debug, Default)]
struct Values {
    figures: BTreeMap<(usize, String), BTreeMap<i64, Vec<f64>>>,
    block_ns: i64,
    coverage: Coverage,
}

impl Values {
    /// A side's values; `shared` is asked for spans.
    fn of(
        side: &Side,
        shared: Option<&Target>,
        args: &CompareArgs,
        deadline: Instant,
        connector: &dyn Connector,
    ) -> anyhow::Result<Self> {
        match (side, shared) {
            (Side::Stores(path), _) => {
                let stores = Target::stores(std::slice::from_ref(path), connector)?;
                let client = Client::until(&stores, &args.target, deadline);
                let Some((since_ns, until_ns)) = recorded(&client, args.job.as_deref())? else {
                    return Err(UsageError(format!("{}: no collectives in any store", path.display())).into());
                };
                Self::between(since_ns, until_ns, args.job.as_deref(), &client)
            }
            (Side::Span(since, until), Some(target)) => {
                let (since_ns, until_ns) = target.span_ns(*since, *until)?;
                Self::between(since_ns, until_ns, args.job.as_deref(), &Client::until(target, &args.target, deadline))
            }
            (Side::Span(..), None) => bail!("nobody is asked for spans"),
        }
    }

    fn between(since_ns: i64, until_ns: i64, job: Option<&str>, client: &Client<'_>) -> anyhow::Result<Self> {
        let mut values = Self { block_ns: block_ns(since_ns, until_ns), ..Self::default() };
        for (at, measure) in MEASURES.iter().enumerate() {
            let found = client.ask_each(sql(measure, since_ns, until_ns, values.block_ns, job))?;
            if at == 0 || !found.coverage.is_complete() {
                values.coverage = found.coverage.clone();
            }
            values.take(at, &found);
        }
        Ok(values)
    }

    /// Takes in rows of node, block, thing, value.
    fn take(&mut self, measure: usize, found: &Rows) {
        for row in &found.rows {
            if let (Some(block), Some(value)) = (integer(row, 1), real(row, 3)) {
                let of = text(row, 2);
                self.figures.entry((measure, of)).or_default().entry(block).or_default().push(value);
            }
        }
    }

    /// Description of the side, as far as seen: contended, throttled, cold, or none of it.
    fn regime(&self) -> String {
        let (mut named, mut unseen) = (Vec::new(), Vec::new());
        for (measure, least, name) in REGIMES {
            let Some(at) = MEASURES.iter().position(|known| known.name == measure) else { continue };
            let means: Vec<f64> =
                self.figures.keys().filter(|key| key.0 == at).flat_map(|key| self.means(key)).collect();
            let mean = means.iter().sum::<f64>() / means.len().max(1) as f64;
            match means.is_empty() {
                true => unseen.push(name),
                false if mean >= least => named.push(format!("{name} ({measure}: {})", shown(mean, MEASURES[at].unit))),
                false => {}
            }
        }
        let mut text = if named.is_empty() { "nothing unusual was seen".to_owned() } else { named.join(", ") };
        if !unseen.is_empty() {
            text.push_str(&format!("; nothing recorded of: {}", unseen.join(", ")));
        }
        text
    }

    /// One value a block: the mean over hosts and ranks. Measures that are sums per second are 0 in
    /// a block of the job without rows.
    fn means(&self, key: &(usize, String)) -> Vec<f64> {
        let mut blocks = self.figures.get(key).cloned().unwrap_or_default();
        let recorded = self.figures.keys().any(|(measure, _)| *measure == key.0);
        if MEASURES[key.0].unit == "ms/s" && recorded {
            for block in
                self.figures.iter().filter(|((measure, _), _)| *measure == 0).flat_map(|(_, blocks)| blocks.keys())
            {
                blocks.entry(*block).or_insert_with(|| vec![0.0]);
            }
        }
        blocks.into_values().map(|values| values.iter().sum::<f64>() / values.len() as f64).collect()
    }
}

fn block_ns(since_ns: i64, until_ns: i64) -> i64 {
    ((until_ns - since_ns) / BLOCKS).max(SHORTEST_NS)
}

fn sql(measure: &Measure, since_ns: i64, until_ns: i64, block_ns: i64, job: Option<&str>) -> String {
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

/// The span from the first to the last collective.
fn recorded(client: &Client<'_>, job: Option<&str>) -> anyhow::Result<Option<(i64, i64)>> {
    let job = job.map_or_else(String::new, |job| format!(" WHERE job_id = {}", quoted(job)));
    let found = client.ask(format!("SELECT min(ts_ns), max(ts_ns) FROM collectives{job}"))?;
    let row: &[Value] = found.rows.first().map_or(&[], Vec::as_slice);
    Ok(integer(row, 0).zip(integer(row, 1)).map(|(first, last)| (first, last.saturating_add(1))))
}

fn compared(before: Values, after: Values) -> Comparison {
    let mut keys: Vec<&(usize, String)> = before.figures.keys().chain(after.figures.keys()).collect();
    keys.sort();
    keys.dedup();
    let figure = |key: &&(usize, String)| Figure {
        measure: MEASURES[key.0].name.to_owned(),
        of: key.1.clone(),
        unit: MEASURES[key.0].unit,
        before: before.means(key),
        after: after.means(key),
    };
    let (regime, job): (Vec<_>, Vec<_>) = keys.iter().partition(|key| MEASURES[key.0].regime);
    let changes = compare(&job.into_iter().map(figure).collect::<Vec<_>>());
    let regime_changes = compare(&regime.into_iter().map(figure).collect::<Vec<_>>());
    let mut not_visible: Vec<String> = vec![
        "one run on each side: what differs from run to run by itself is not in the intervals".to_owned(),
        "whether the CPU's and the GPU's caches were warm, SM occupancy and DRAM bandwidth: they need the vendor's counters"
            .to_owned(),
    ];
    for (at, measure) in MEASURES.iter().enumerate() {
        if !keys.iter().any(|key| key.0 == at) {
            not_visible.push(format!("{}: nothing recorded on either side", measure.name));
        }
    }
    Comparison {
        version: 1,
        block_ns: [before.block_ns, after.block_ns],
        changes,
        regimes: [&before, &after].map(Values::regime),
        regime: regime_changes.iter().map(line).collect(),
        not_visible,
        coverage: [before.coverage, after.coverage],
    }
}

/// A figure in readable units.
fn shown(value: f64, unit: &str) -> String {
    if unit == "ns" { duration(value as i64) } else { format!("{value:.1} {unit}") }
}

fn outcome_text(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::More => "more",
        Outcome::Less => "less",
        Outcome::Small => "differs by less than 1 %",
        Outcome::NotShown => "no difference that this data can show",
        Outcome::TooFew => "too few values",
        Outcome::OneSided => "there on one side only",
    }
}

fn line(change: &Change) -> String {
    let value = |value: Option<f64>| value.map_or_else(|| "not there".to_owned(), |value| shown(value, change.unit));
    format!(
        "{} ({}): {} before, {} after: {}",
        change.measure,
        change.of,
        value(change.before),
        value(change.after),
        outcome_text(change.verdict)
    )
}

fn printed(found: &Comparison) -> String {
    let changed = |change: &&Change| matches!(change.verdict, Outcome::More | Outcome::Less | Outcome::OneSided);
    let rows = found.changes.iter().take(ROWS).map(|change| {
        let value = |value: Option<f64>| value.map_or_else(String::new, |value| shown(value, change.unit));
        let interval = change.shift.filter(|shift| shift.low > f64::MIN && shift.high < f64::MAX);
        vec![
            format!("{} {}", change.measure, change.of),
            value(change.before),
            value(change.after),
            change
                .shift
                .zip(change.before)
                .filter(|(_, before)| *before != 0.0)
                .map_or_else(String::new, |(shift, before)| format!("{:+.1} %", shift.estimate / before * 100.0)),
            interval.map_or_else(String::new, |s| {
                format!("{} to {}", shown(s.low, change.unit), shown(s.high, change.unit))
            }),
            change.shift.map_or_else(String::new, |shift| format!("{:+.2}", shift.effect)),
            format!("{}, {}", change.values[0], change.values[1]),
            outcome_text(change.verdict).to_owned(),
        ]
    });
    let mut out = match found.changes.iter().filter(changed).count() {
        0 => "No difference that this data can show.\n".to_owned(),
        n => format!("{n} of {} figures changed.\n", found.changes.len()),
    };
    out.push_str(&render(
        &["figure", "before", "after", "shift", "95 % interval of the shift", "effect", "values", ""],
        rows,
        &[false, true, true, true, true, true, true, false],
    ));
    out.push('\n');
    if found.changes.len() > ROWS {
        out.push_str(&format!("… and {} more (--format json has all)\n", found.changes.len() - ROWS));
    }
    out.push_str(&format!("\nBefore: {}.\nAfter: {}.\n", found.regimes[0], found.regimes[1]));
    for (title, lines) in [("Regime", &found.regime), ("Not visible", &found.not_visible)] {
        if !lines.is_empty() {
            out.push_str(&format!("\n{title}:\n"));
            lines.iter().for_each(|line| out.push_str(&format!("  - {line}\n")));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn sides_are_spans_or_stores() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(parse_side(dir.path().to_str().unwrap()), Ok(Side::Stores(dir.path().to_owned())));
        let ago = |hours: u64| When::Ago(Duration::from_secs(3_600 * hours));
        assert_eq!(parse_side("2h..1h"), Ok(Side::Span(ago(2), Some(ago(1)))));
        assert_eq!(parse_side("1h"), Ok(Side::Span(ago(1), None)));
        for wrong in ["x", "a..b", "/no/such/directory", "14:00"] {
            assert!(parse_side(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_side_is_called_what_it_was() {
        let at = |name: &str| MEASURES.iter().position(|measure| measure.name == name).unwrap();
        for (name, ..) in REGIMES {
            assert!(MEASURES[at(name)].regime, "{name}");
        }
        let mut values = Values::default();
        assert_eq!(
            values.regime(),
            "nothing unusual was seen; nothing recorded of: contended, contended by other guests, throttled, cold"
        );
        let mut set = |name: &str, value: f64| {
            values.figures.insert((at(name), "x".to_owned()), BTreeMap::from([(0, vec![value]), (1, vec![value])]));
            values.regime()
        };
        set("CPU time stolen by the hypervisor", 0.0);
        set("GPUs held down by heat or power", 0.0);
        set("a rank could run and had no CPU", 20.0);
        assert_eq!(set("a rank waited for pages from a disk", 1.0), "nothing unusual was seen");
        set("a rank could run and had no CPU", 120.0);
        assert_eq!(
            set("a rank waited for pages from a disk", 300.0),
            "contended (a rank could run and had no CPU: 120.0 ms/s), cold (a rank waited for pages from a disk: 300.0 ms/s)"
        );
    }
}
