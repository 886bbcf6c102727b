//! `rankmesh compare`: what is different between two spans of a job, or between two sets of stores.
//!
//! Each side is cut into blocks of equal length, and every figure has one value a block. Both sides
//! are asked the same SQL: of the mesh node by node, or of each store of a directory.
//! `explain::compare` decides which figures differ.

mod measures;
mod text;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use ask::args::{ReportFormat, TargetArgs};
use ask::output::{printable_lines, quiet, say_coverage};
use ask::rows::{Client, Rows};
use ask::times::{When, parse_when};
use ask::{Connector, Exit, Target, UsageError};
use clap::Args;
use explain::compare::{Change, Figure, compare};
use model::Coverage;
use model::cells::{self, integer, quoted, real};
use query_planner::Value;
use serde::Serialize;

use measures::{MEASURES, REGIMES};
use text::{line, printed, shown};

/// Blocks of a side, and the shortest of them.
const BLOCKS: i64 = 120;
const SHORTEST_NS: i64 = 500_000_000;
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
                say_coverage(coverage);
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
                stores.check_job(args.job.as_deref())?;
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
            let found = client.ask_each(measures::sql(measure, since_ns, until_ns, values.block_ns, job))?;
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
                let of = cells::text(row, 2);
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
