//! `rankmesh report`: a job, or services, as one HTML file, from an agent or from the stores that it
//! left.
//!
//! Owns what is asked and in which order; `report::html` makes the page of the answers. A part
//! that cannot be asked for is left out, and the page has the reason.

pub mod asking;
mod marks;
pub mod steps;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use ask::args::{SpanArgs, TargetArgs};
use ask::output::{said, say_coverage};
use ask::rows::Client;
use ask::{Chosen, Connector, Exit};
use clap::Args;
use model::board::{Board, BoardQuestion};
use model::cells::{integer_of, text_of};
use model::{AskedSpan, Coverage, ExplainQuestion, ExplainWhat, Missing, StragglersQuestion};
use query_planner::Value;
use report::html::{Asked, Page, render};
use serde_json::Value as Json;
use verdicts::Report;

use super::args::RateArgs;
use super::output_file::OutputFile;
use super::rates::Priced;
use super::{runbook, tail};
use asking::Asking;

/// Without a span, how far back an agent is asked.
const BACK_NS: i64 = 600_000_000_000;
/// Cells of the heat map: a rank in a window each, six bytes.
const MOST_CELLS: i64 = 100_000;
/// Columns of the heat map.
const MOST_WINDOWS: i64 = 1_200;
/// Lengths of windows that are easy to read, milliseconds.
const WINDOWS_MS: [i64; 12] =
    [500, 1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000];
/// Most calls of which a verdict is made at once.
const MOST_CALLS: i64 = 4_000_000;
/// Most calls for which the SQL of its figures is run, too.
const SHOWN_CALLS: i64 = 200_000;
/// Of longer jobs the verdict is on the worst span of this length.
const STRETCH_NS: i64 = 600_000_000_000;
/// Multiple of a question's time for steps that send many questions.
const LONG: u64 = 6;

/// Flags of `rankmesh report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Whom to ask; --timeout is for each question, verdict and heat map may take six times as
    /// long.
    #[command(flatten)]
    target: TargetArgs,
    /// Of which time; without it of --db all, of an agent the last ten minutes.
    #[command(flatten)]
    span: SpanArgs,
    /// What a GPU costs.
    #[command(flatten)]
    rate: RateArgs,
    /// This job [default: the one that called last]; of a Slurm job with a mesh of its own, that
    /// mesh
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// The page to write; one that is there is replaced ('-' is standard output)
    #[arg(short, long, value_name = "FILE", default_value = "rankmesh-report.html")]
    output: PathBuf,
}

/// Writes a job's report.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(mut args: ReportArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let target = args.target.of_any_job(&mut args.job, connector)?;
    let span_ns = args.span.resolved_ns(&target)?.unwrap_or_else(|| match target.stored_ns() {
        Some((oldest_ns, newest_ns)) => (oldest_ns, newest_ns.saturating_add(1)),
        None => (target.now_ns() - BACK_NS, target.now_ns()),
    });
    let mut asking = Asking::of(&target, &args.target);
    let chosen =
        Chosen::of(&target.jobs_in(span_ns, asking.timeout_ms).context("asking for jobs")?, args.job.as_deref());
    args.job = chosen.job;
    let mut page = page(&mut asking, &args, span_ns)?;
    page.lacking.extend(chosen.others.map(|others| ("others of this time".to_owned(), others)));
    let complete = page.coverage.is_complete();
    say_coverage(&page.coverage);
    for (part, why) in &page.lacking {
        eprint!("{}", said(&format!("not on the page: {part}: {why}")));
    }
    if args.target.ask.require_all && !complete {
        bail!("the answer is partial and --require-all was given: nothing is written");
    }
    let html = render(&page);
    let mut file = OutputFile::open(&args.output)?;
    file.write_all(html.as_bytes()).with_context(|| format!("writing {}", args.output.display()))?;
    file.finish()?;
    eprintln!("{} bytes into {}", html.len(), args.output.display());
    Ok(if complete { Exit::Complete } else { Exit::Partial })
}

fn page(asking: &mut Asking<'_>, args: &ReportArgs, span_ns: (i64, i64)) -> anyhow::Result<Page> {
    let (since_ns, until_ns) = span_ns;
    let of_job =
        args.job.as_ref().map(|job| format!(" AND job_id = {}", model::cells::quoted(job))).unwrap_or_default();
    let calls = format!(
        "SELECT node, pid, count(*) AS calls, min(ts_ns) AS first_ns, max(ts_ns) AS last_ns FROM collectives WHERE ts_ns >= {since_ns} \
         AND ts_ns < {until_ns}{of_job} GROUP BY node, pid ORDER BY node, pid"
    );
    let calls = asking.ask("calls of each process", calls).context("asking how much was recorded")?;
    if calls.rows.is_empty() {
        return without_job(asking, args, span_ns);
    }
    let all = |column: usize| calls.rows.iter().filter_map(move |row| integer_of(row.get(column)?));
    let (count, ranks) = (all(2).sum::<i64>(), i64::try_from(calls.rows.len()).unwrap_or(i64::MAX));
    // What is before and after the job is no part of it.
    let start_ns = all(3).min().unwrap_or(since_ns).max(since_ns);
    let ended_ns = all(4).max().unwrap_or(until_ns).saturating_add(1_000_000_000).min(until_ns);
    let mut page = empty(asking, (start_ns, ended_ns.max(start_ns.saturating_add(1))));
    page.job = args.job.clone().unwrap_or_default();
    match board(asking, args, page.span_ns, ranks) {
        Ok(board) => page.board = Some(board),
        Err(error) => page.lacking.push(("heat map".to_owned(), format!("{error:#}"))),
    }
    let judged_ns = match &page.board {
        Some(board) if count > MOST_CALLS => {
            let worst = worst_stretch(board, page.span_ns);
            let why = format!(
                "{count} calls are too many for one verdict: it is on the {} minutes in which ranks were late most",
                STRETCH_NS / 60_000_000_000
            );
            page.lacking.push(("a verdict on the whole time".to_owned(), why));
            worst
        }
        _ => page.span_ns,
    };
    if let Err(error) = verdict(asking, args, judged_ns, count, &mut page) {
        page.lacking.push(("verdict".to_owned(), format!("{error:#}")));
    }
    match steps::worst(asking, &page, judged_ns) {
        Ok(steps) => page.steps = steps,
        Err(error) => page.lacking.push(("steps".to_owned(), format!("{error:#}"))),
    }
    if let Err(error) = marks::add(asking, &mut page) {
        page.lacking.push(("findings".to_owned(), format!("{error:#}")));
    }
    services(asking, args, &mut page);
    with_nodes(asking, &calls.rows, &mut page);
    Ok(page)
}

/// A page without parts yet.
fn empty(asking: &Asking<'_>, span_ns: (i64, i64)) -> Page {
    Page {
        made: ask::utc::utc(std::time::SystemTime::now()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        asked_of: asking.target.description(),
        span_ns,
        ..Page::default()
    }
}

/// A page on services alone.
fn without_job(asking: &mut Asking<'_>, args: &ReportArgs, span_ns: (i64, i64)) -> anyhow::Result<Page> {
    let mut page = Page { without_job: true, ..empty(asking, span_ns) };
    if args.job.is_none() {
        services(asking, args, &mut page);
    }
    if let Some((part, why)) = page.lacking.first().filter(|_| page.services.is_empty()) {
        bail!("no collectives were recorded in that time, and {part} could not be asked for: {why}");
    }
    if page.services.is_empty() {
        let whose = if args.job.is_some() { " by that job" } else { ", and no requests of servers" };
        bail!(
            "no collectives were recorded in that time{whose}: give --since or --between (rankmesh jobs lists when jobs ran)"
        );
    }
    if let Err(error) = marks::add(asking, &mut page) {
        page.lacking.push(("findings".to_owned(), format!("{error:#}")));
    }
    with_nodes(asking, &[], &mut page);
    Ok(page)
}

/// What servers answered in the page's time. Files of other programs have no such tables.
fn services(asking: &mut Asking<'_>, args: &ReportArgs, page: &mut Page) {
    let client = Client::of(asking.target, &args.target);
    let wanted = tail::Wanted { span_ns: Some(page.span_ns), ..tail::Wanted::default() };
    match tail::of(asking.target, &client, wanted) {
        Ok(found) => {
            asking.coverage.also(found.coverage);
            page.services = found.services.iter().map(tail::chapter).collect();
            page.services_left_out = found.left_out;
        }
        Err(error) if error.is::<ask::UsageError>() => {}
        Err(error) => page.lacking.push(("services".to_owned(), format!("{error:#}"))),
    }
}

/// The nodes, and all that was asked.
fn with_nodes(asking: &mut Asking<'_>, calls: &[Vec<Value>], page: &mut Page) {
    match nodes(asking, page.span_ns, calls) {
        Ok(nodes) => page.nodes = Some(nodes),
        Err(error) => page.lacking.push(("nodes".to_owned(), format!("{error:#}"))),
    }
    page.asked = std::mem::take(&mut asking.asked);
    page.coverage = asking.coverage.clone();
}

/// What ranks did, in windows as short as the map has room for.
fn board(asking: &mut Asking<'_>, args: &ReportArgs, span_ns: (i64, i64), ranks: i64) -> anyhow::Result<Board> {
    let most = (MOST_CELLS / ranks.max(1)).clamp(60, MOST_WINDOWS);
    let length_ms = (span_ns.1 - span_ns.0) / 1_000_000;
    let window_ms = WINDOWS_MS.into_iter().find(|ms| length_ms / ms < most).unwrap_or(length_ms / most + 1);
    let board = asking.target.board(BoardQuestion {
        job: args.job.clone(),
        since_ns: Some(span_ns.0),
        until_ns: Some(span_ns.1),
        window_ns: Some(window_ms * 1_000_000),
        known: None,
        timeout_ms: asking.timeout_ms.saturating_mul(LONG),
    })?;
    asking.coverage.also(board.coverage.clone());
    Ok(board)
}

/// The span in which ranks were late most.
fn worst_stretch(board: &Board, span_ns: (i64, i64)) -> (i64, i64) {
    let late: Vec<(i64, i64)> = board
        .windows
        .iter()
        .map(|window| (window.end_ns, window.late.iter().filter_map(|late| late.ns()).sum()))
        .collect();
    let (mut first, mut sum, mut worst) = (0, 0_i64, (i64::MIN, span_ns.1));
    for (end_ns, ns) in &late {
        sum = sum.saturating_add(*ns);
        while late[first].0 <= end_ns - STRETCH_NS {
            sum -= late[first].1;
            first += 1;
        }
        if sum > worst.0 {
            worst = (sum, *end_ns);
        }
    }
    ((worst.1 - STRETCH_NS).max(span_ns.0), worst.1)
}

/// The verdict and the rows behind it.
fn verdict(
    asking: &mut Asking<'_>,
    args: &ReportArgs,
    span_ns: (i64, i64),
    calls: i64,
    page: &mut Page,
) -> anyhow::Result<()> {
    let timeout_ms = asking.timeout_ms.saturating_mul(LONG);
    let ask = &args.target.ask;
    let question = StragglersQuestion {
        span: AskedSpan::Between { since_ns: span_ns.0, until_ns: span_ns.1 },
        job: args.job.clone(),
        comm: None,
        timeout_ms,
        nodes: ask.nodes.clone(),
        labels: ask.label.clone(),
    };
    let mut answer: Json = serde_json::from_str(&asking.target.stragglers(question)?)?;
    page.text = answer["text"].as_str().unwrap_or_default().to_owned();
    let priced = Priced::of(&args.rate, asking.target)?;
    page.money = priced.and_then(|priced| priced.of_report(&answer)).map(|money| money.text());
    let sql = answer.as_object_mut().and_then(|answer| answer.remove("sql")).unwrap_or_default();
    let report: Report = serde_json::from_value(answer).context("reading the verdict")?;
    asking.coverage.also(Coverage {
        asked: report.coverage.asked,
        answered: report.coverage.answered,
        missing: report
            .coverage
            .missing
            .iter()
            .map(|(node, reason)| Missing { node: node.clone(), reason: reason.clone() })
            .collect(),
        notes: report.coverage.notes.clone(),
    });
    page.verdict = Some(report);
    let question = ExplainQuestion {
        what: ExplainWhat::Of(AskedSpan::Between { since_ns: span_ns.0, until_ns: span_ns.1 }),
        job: args.job.clone(),
        comm: None,
        timeout_ms,
        nodes: ask.nodes.clone(),
        labels: ask.label.clone(),
    };
    match asking.target.explain(question) {
        Ok(found) => {
            page.commands = runbook::to_do(&found, false)?;
            page.found = Some(found);
        }
        Err(error) => page.lacking.push(("cause".to_owned(), format!("{error:#}"))),
    }
    for shown in sql.as_array().into_iter().flatten() {
        let field = |name: &str| shown[name].as_str().unwrap_or_default().to_owned();
        let (title, sql) = (format!("verdict: {}", field("title")), field("sql"));
        if sql.is_empty() {
            continue;
        }
        // For a long span this takes longer than the verdict: readers of the page run the SQL
        // themselves.
        let refused = match calls <= SHOWN_CALLS {
            true => asking.try_ask(&title, sql.clone()).err().map(|error| format!("{error:#}")),
            false => Some(format!("not asked here, for {calls} calls are many")),
        };
        if let Some(why) = refused {
            asking.asked.push(Asked { title: format!("{title} ({why})"), sql, ..Asked::default() });
        }
    }
    Ok(())
}

/// Each node: since when it recorded, with what, how much, and what it lost.
fn nodes(asking: &mut Asking<'_>, (since_ns, until_ns): (i64, i64), calls: &[Vec<Value>]) -> anyhow::Result<Asked> {
    let sql = "SELECT node, min(start_ns), max(alive_ns), max(version), max(kernel) FROM sessions GROUP BY node ORDER BY node".to_owned();
    let sessions = asking.try_ask("agents", sql)?.rows;
    let sql = format!(
        "SELECT node, probe, reason, sum(lost) AS lost FROM capture_loss WHERE ts_ns >= {since_ns} AND since_ns < {until_ns} \
         GROUP BY node, probe, reason ORDER BY node, lost DESC"
    );
    let losses = asking.try_ask("losses", sql)?.rows;
    let mut names: Vec<String> = sessions.iter().chain(calls).filter_map(|row| row.first().and_then(text_of)).collect();
    names.sort();
    names.dedup();
    let of = |rows: &[Vec<Value>], name: &str| -> Vec<Vec<Value>> {
        rows.iter().filter(|row| row.first().and_then(text_of).as_deref() == Some(name)).cloned().collect()
    };
    let shown = |text: String| Value::Text(text.into_bytes());
    let row = |name: &String| {
        let session = of(&sessions, name).into_iter().next().unwrap_or_default();
        let at = |column: usize| {
            session.get(column).and_then(integer_of).map_or(Value::Null, |ns| shown(record::units::clock(ns)))
        };
        let word = |column: usize| session.get(column).cloned().unwrap_or(Value::Null);
        let calls = of(calls, name);
        let recorded: i64 = calls.iter().filter_map(|row| integer_of(row.get(2)?)).sum();
        let lost: Vec<String> = of(&losses, name)
            .iter()
            .filter_map(|row| {
                Some(format!("{} of {} ({})", integer_of(row.get(3)?)?, text_of(row.get(1)?)?, text_of(row.get(2)?)?))
            })
            .take(4)
            .collect();
        vec![
            shown(name.clone()),
            Value::Integer(i64::try_from(calls.len()).unwrap_or(i64::MAX)),
            Value::Integer(recorded),
            at(1),
            at(2),
            word(3),
            word(4),
            shown(if lost.is_empty() { "nothing that it knows of".to_owned() } else { lost.join("; ") }),
        ]
    };
    let columns = ["Node", "Ranks", "Calls", "From (UTC)", "Until", "rankmesh", "Kernel", "Lost records"];
    Ok(Asked {
        title: "nodes".to_owned(),
        sql: String::new(),
        columns: columns.map(str::to_owned).into(),
        rows: names.iter().map(row).collect(),
    })
}
