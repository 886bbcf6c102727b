//! `rankmesh export --perfetto`: rows of the mesh, or of stores, as a trace for Perfetto.
//!
//! The rows are asked for in parts with a bounded number of rows, and written as they come: only
//! one part is in memory. `report::perfetto` makes events of a row.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, bail};
use ask::output::{said, say_coverage};
use ask::rows::Rows;
use ask::values::Ranks;
use ask::{Connector, Exit, Target};
use model::cells::{integer_of, text_of};
use model::{AskedSpan, Coverage, StragglersQuestion};
use query_planner::Value;
use report::perfetto::clock::{self, NodeTime};
use report::perfetto::counters::{Counters, SAMPLES};
use report::perfetto::layout::{Layout, Who};
use report::perfetto::tables::{self, TABLES};
use report::perfetto::write::Writer;
use report::perfetto::{sequence, verdict};

use super::args::ExportArgs;
use super::output_file::OutputFile;

/// Rows of a part that are asked for at once.
const PART_ROWS: i64 = 100_000;
/// Parts into which a span is cut to count the rows in each.
const CUTS: i64 = 1_024;
/// A span that is not cut further, however many rows it has.
const SHORTEST_NS: i64 = 1_000_000;
/// Most rows of one part in memory.
const MOST_ROWS: usize = 4_000_000;
/// Most calls for which a verdict is made, too: it needs all of them at once.
const JUDGED_CALLS: usize = 200_000;
/// The span before now that is taken where none is given.
const BACK_NS: i64 = 60_000_000_000;
/// More events than a browser shows without trouble.
const MANY_EVENTS: u64 = 3_000_000;
/// Tables in which a node's clock is looked for, with the column of a time.
const TIMES: [(&str, &str); 6] = [
    ("sessions", "alive_ns"),
    ("collectives", "ts_ns"),
    ("host_samples", "ts_ns"),
    ("offcpu", "ts_ns"),
    ("cuda_calls", "ts_ns"),
    ("net_events", "ts_ns"),
];

/// Writes the rows of a span as a trace into the new file `out`.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(mut args: ExportArgs, out: &Path, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let file = OutputFile::open_new(out)?;
    let target = args.target.of_any_job(&mut args.job, connector)?;
    let args = &args;
    let (since_ns, until_ns) = span(args, &target)?;
    let mut asked = Asked { args, target, coverage: Coverage::default(), skipped: BTreeMap::new() };
    let times = asked.clocks(since_ns, until_ns)?;
    let who = asked.who(since_ns, until_ns)?;
    let only = only(args, &who);
    if only.as_ref().is_some_and(BTreeSet::is_empty) {
        bail!(
            "no process is known that is of these ranks and this job: rankmesh query \"SELECT node, pid, rank, job_id FROM processes\" \
             lists them"
        );
    }
    let apart_ns = times.values().map(NodeTime::apart_ns).max().unwrap_or(0);
    let nodes: Vec<String> = times.keys().cloned().collect();
    let writer = Writer::new(BufWriter::new(file), sequence(&nodes, since_ns, until_ns), since_ns)?;
    let mut copied = Copied {
        asked,
        span: (since_ns, until_ns),
        apart_ns,
        pids: only.as_ref().map(|only| only.iter().map(|(_, pid)| *pid).collect::<BTreeSet<_>>().into_iter().collect()),
        only,
        calls: 0,
        to: Layout::new(writer, times, who),
    };
    copied.tables()?;
    copied.samples()?;
    copied.verdict()?;
    let Copied { asked, to, .. } = copied;
    let written = to.writer().written();
    asked.print(to.left_out(), to.crowded());
    if args.target.ask.require_all && !asked.coverage.is_complete() {
        bail!("the trace is partial and --require-all was given: nothing is written");
    }
    let mut buffered = to.end()?;
    buffered.flush()?;
    let file = buffered.into_inner().map_err(|error| error.into_error())?;
    file.finish()?;
    eprintln!(
        "{} events and {} counter values on {} tracks, {} bytes into {}: open it at ui.perfetto.dev or with trace_processor",
        written.events,
        written.values,
        written.tracks,
        written.bytes,
        out.display()
    );
    if written.events > MANY_EVENTS {
        eprintln!("that is much for a browser: --between A B and --ranks 3,5-7 give less");
    }
    Ok(if asked.coverage.is_complete() { Exit::Complete } else { Exit::Partial })
}

/// The processes that are wanted, by host and id; none: all.
fn only(args: &ExportArgs, who: &HashMap<(String, i64), Who>) -> Option<BTreeSet<(String, i64)>> {
    if args.ranks.is_none() && args.job.is_none() {
        return None;
    }
    let ranks: Option<BTreeSet<i64>> =
        args.ranks.as_ref().map(|Ranks(ranks)| ranks.iter().map(|rank| i64::from(*rank)).collect());
    let of_rank = |who: &Who| ranks.as_ref().is_none_or(|ranks| who.rank.is_some_and(|rank| ranks.contains(&rank)));
    let of_job = |who: &Who| args.job.is_none() || who.job_id == args.job;
    Some(who.iter().filter(|(_, who)| of_rank(who) && of_job(who)).map(|(process, _)| process.clone()).collect())
}

/// The span that is asked for, on the clock of the target.
fn span(args: &ExportArgs, target: &Target) -> anyhow::Result<(i64, i64)> {
    let (since_ns, until_ns) = args.span.resolved_ns(target)?.unwrap_or_else(|| {
        eprintln!("the last minute; --since TIME or --between A B for more");
        let now_ns = target.now_ns();
        (now_ns.saturating_sub(BACK_NS), now_ns)
    });
    Ok((since_ns.max(0), until_ns))
}

/// What a question is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// All of the span.
    Span,
    /// A part of it, after a question about all of it.
    Part,
}

/// Sends the questions and gathers the coverage of their answers.
struct Asked<'a> {
    args: &'a ExportArgs,
    target: Target,
    coverage: Coverage,
    /// Tables that could not be asked for, and why.
    skipped: BTreeMap<&'static str, String>,
}

impl Asked<'_> {
    /// The answer's rows; none where this cannot be asked (there is no such table, or it is not for
    /// this user), which is printed at the end.
    fn rows(&mut self, table: &'static str, sql: String) -> anyhow::Result<Option<Vec<Vec<Value>>>> {
        self.rows_of(Of::Span, table, sql)
    }

    fn rows_of(&mut self, of: Of, table: &'static str, sql: String) -> anyhow::Result<Option<Vec<Vec<Value>>>> {
        let hint = format!(" of {table} within a millisecond: give --ranks or --nodes");
        match self.target.rows(self.args.target.question(sql), MOST_ROWS, &hint) {
            Ok(Rows { rows, coverage, .. }) => {
                // The notes of a part repeat those of the full span.
                let notes = if of == Of::Part { Vec::new() } else { coverage.notes.clone() };
                self.coverage.also(Coverage { notes, ..coverage });
                Ok(Some(rows))
            }
            Err(error) if ask::is_usage(&error) => {
                self.skipped.insert(table, format!("{error:#}"));
                Ok(None)
            }
            Err(error) => {
                super::query::print_coverage(&error);
                Err(error.context(format!("asking for {table}")))
            }
        }
    }

    fn print(&self, left_out: u64, crowded: u64) {
        for (table, why) in &self.skipped {
            let why = why.lines().next().unwrap_or_default();
            eprint!("{}", said(&format!("not in the trace: {table}: {why}")));
        }
        if left_out > 0 {
            eprintln!("{left_out} rows with times before 1970 are not in the trace");
        }
        if crowded > 0 {
            eprintln!(
                "{crowded} rows that overlap with many others of their track are not in the trace: --ranks or --between \
                 give less"
            );
        }
        say_coverage(&self.coverage);
    }

    /// The clocks of all nodes that have rows, measured once: each question would measure anew.
    fn clocks(&mut self, since_ns: i64, until_ns: i64) -> anyhow::Result<BTreeMap<String, NodeTime>> {
        let mut times = BTreeMap::new();
        for (table, time) in TIMES {
            for row in self.rows(table, clock::select(table, time, since_ns, until_ns))?.iter().flatten() {
                if let Some((node, time)) = NodeTime::from_row(row, since_ns, until_ns) {
                    times.entry(node).or_insert(time);
                }
            }
            if times.len() >= self.coverage.answered {
                break;
            }
        }
        Ok(times)
    }

    /// Who the processes are: their ranks in the largest communicator that they belong to, else in
    /// their environment.
    fn who(&mut self, since_ns: i64, until_ns: i64) -> anyhow::Result<HashMap<(String, i64), Who>> {
        let mut all: HashMap<(String, i64), Who> = HashMap::new();
        let process = |row: &[Value]| Some((text_of(row.first()?)?, integer_of(row.get(1)?)?));
        let sql = "SELECT node, pid, rank, comm, job_id, max(seen_ns) FROM processes GROUP BY node, pid".to_owned();
        for row in self.rows("processes", sql)?.iter().flatten() {
            let Some(process) = process(row) else { continue };
            let who = Who { rank: integer_of(&row[2]), comm: text_of(&row[3]), job_id: text_of(&row[4]) };
            all.insert(process, who);
        }
        let sql = format!(
            "SELECT node, pid, rank, max(nranks) FROM collectives WHERE rank IS NOT NULL AND ts_ns >= {since_ns} AND ts_ns < {until_ns} \
             GROUP BY node, pid"
        );
        for row in self.rows("collectives", sql)?.iter().flatten() {
            let Some(process) = process(row) else { continue };
            all.entry(process).or_default().rank = integer_of(&row[2]);
        }
        Ok(all)
    }
}

/// The state of writing.
struct Copied<'a, W> {
    asked: Asked<'a>,
    span: (i64, i64),
    /// How far the nodes' clocks are from the trace's.
    apart_ns: i64,
    /// Only these processes, by host and id.
    only: Option<BTreeSet<(String, i64)>>,
    pids: Option<Vec<i64>>,
    /// Collectives that were written.
    calls: usize,
    to: Layout<W>,
}

impl<W: Write> Copied<'_, W> {
    fn tables(&mut self) -> anyhow::Result<()> {
        for table in TABLES {
            for (since_ns, until_ns) in self.parts(table.name, table.time, table.of_processes())? {
                let sql = table.select(since_ns, until_ns, self.pids.as_deref());
                let mut found = self.asked.rows_of(Of::Part, table.name, sql)?;
                if let (None, Some(sql)) = (&found, table.select_for_readers(since_ns, until_ns, self.pids.as_deref()))
                {
                    self.asked.skipped.remove(table.name);
                    found = self.asked.rows_of(Of::Part, table.name, sql)?;
                }
                let Some(rows) = found else { break };
                let rows = rows.iter().filter_map(|row| table.row(row));
                let rows = rows.filter(|row| self.is_wanted(&row.node, row.pid, row.ts_ns)).collect::<Vec<_>>();
                self.calls += if table.name == "collectives" { rows.len() } else { 0 };
                self.to.rows(table, rows)?;
            }
        }
        Ok(())
    }

    fn samples(&mut self) -> anyhow::Result<()> {
        let mut counters = Counters::default();
        for samples in SAMPLES {
            for (since_ns, until_ns) in self.parts(samples.name, samples.time, samples.of_processes)? {
                let sql = samples.select(since_ns, until_ns, self.pids.as_deref());
                let Some(mut rows) = self.asked.rows_of(Of::Part, samples.name, sql)? else { break };
                rows.retain(|row| {
                    let (Some(node), Some(ts_ns)) = (text_of(&row[0]), integer_of(&row[1])) else { return false };
                    self.is_wanted(&node, samples.of_processes.then(|| integer_of(&row[2])).flatten(), ts_ns)
                });
                counters.rows(samples, rows, &mut self.to)?;
            }
        }
        Ok(counters.end(&mut self.to)?)
    }

    /// Whether a row is in the span and of a wanted process; of a host, whether a wanted process is
    /// on it.
    /// these is on them.
    fn is_wanted(&self, node: &str, pid: Option<i64>, ts_ns: i64) -> bool {
        let at_ns = self.to.time(node).aligned(ts_ns);
        let of = match (&self.only, pid) {
            (None, _) => true,
            (Some(only), Some(pid)) => only.contains(&(node.to_owned(), pid)),
            (Some(only), None) => only.iter().any(|(host, _)| host == node),
        };
        of && at_ns >= self.span.0 && at_ns < self.span.1
    }

    /// The span in parts, on the nodes' own clocks, with a bounded number of rows each, in order.
    fn parts(&mut self, table: &'static str, time: &str, of_processes: bool) -> anyhow::Result<Vec<(i64, i64)>> {
        let pids = self.pids.clone().filter(|_| of_processes);
        let (since_ns, until_ns) = self.span;
        let all = (since_ns.saturating_sub(self.apart_ns), until_ns.saturating_add(self.apart_ns));
        let mut done = Vec::new();
        let mut open = vec![all];
        while let Some((since_ns, until_ns)) = open.pop() {
            let width_ns = (until_ns.saturating_sub(since_ns) / CUTS).max(SHORTEST_NS);
            let sql = tables::counts((table, time), (since_ns, until_ns), width_ns, pids.as_deref());
            let of = if (since_ns, until_ns) == all { Of::Span } else { Of::Part };
            let Some(counts) = self.asked.rows_of(of, table, sql)? else { return Ok(Vec::new()) };
            let mut counts: Vec<(i64, i64)> =
                counts.iter().filter_map(|row| Some((integer_of(row.first()?)?, integer_of(row.get(1)?)?))).collect();
            counts.sort_unstable();
            let mut todo = Vec::new();
            // The part that grows, with its rows.
            let mut grows: Option<(i64, i64, i64)> = None;
            for (number, rows) in counts {
                // A node may say any number: its part is within what was asked for.
                let from_ns = since_ns.saturating_add(number.saturating_mul(width_ns)).min(until_ns).max(since_ns);
                let to_ns = from_ns.saturating_add(width_ns).min(until_ns);
                grows = match grows.take() {
                    Some((begin_ns, _, known)) if known.saturating_add(rows) <= PART_ROWS => {
                        Some((begin_ns, to_ns, known.saturating_add(rows)))
                    }
                    full => {
                        todo.extend(full);
                        Some((from_ns, to_ns, rows))
                    }
                };
            }
            todo.extend(grows);
            // A part that is too large by itself is divided again, at its place in time.
            let again =
                todo.iter().position(|(from, to, rows)| *rows > PART_ROWS && to.saturating_sub(*from) > SHORTEST_NS);
            match again {
                None => done.extend(todo.iter().map(|(from, to, _)| (*from, *to))),
                Some(at) => {
                    done.extend(todo[..at].iter().map(|(from, to, _)| (*from, *to)));
                    let (from_ns, to_ns, _) = todo[at];
                    if to_ns < until_ns {
                        open.push((to_ns, until_ns));
                    }
                    open.push((from_ns, to_ns));
                }
            }
        }
        Ok(done)
    }

    /// The verdict on the span, where there can be one.
    fn verdict(&mut self) -> anyhow::Result<()> {
        if self.calls > JUDGED_CALLS {
            let why = format!("{} calls are too many to judge at once; give a shorter span", self.calls);
            self.asked.skipped.insert(verdict::TRACK, why);
            return Ok(());
        }
        let args = self.asked.args;
        let question = StragglersQuestion {
            span: AskedSpan::Between { since_ns: self.span.0, until_ns: self.span.1 },
            job: args.job.clone(),
            comm: None,
            timeout_ms: args.target.timeout_ms(),
            nodes: args.target.ask.nodes.clone(),
            labels: args.target.ask.label.clone(),
        };
        let json = match self.asked.target.stragglers(question) {
            Ok(json) => json,
            Err(error) => {
                self.asked.skipped.insert(verdict::TRACK, format!("{error:#}"));
                return Ok(());
            }
        };
        let answer: serde_json::Value = serde_json::from_str(&json).context("reading the verdict")?;
        let text = answer["text"].as_str().unwrap_or_default().to_owned();
        let report: verdicts::Report = serde_json::from_value(answer).context("reading the verdict")?;
        Ok(verdict::put(&report, &text, &mut self.to)?)
    }
}
