//! `rankmesh stragglers`: which rank holds the others up.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use model::LocalRequest;
use model::StragglersQuestion;
use model::{Coverage, Missing};
use serde_json::Value;

use super::Exit;
use super::args::{ReportFormat, StragglersArgs};
use super::local::{self, Reply};
use super::query::say_coverage;
use crate::output::{printable, printable_lines, quiet};

/// How far back `--show-sql` looks without `--since`.
const SHOWN_SINCE: Duration = Duration::from_secs(60);
/// Pause between two looks with `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(2);

pub(super) fn run(mut args: StragglersArgs) -> anyhow::Result<Exit> {
    if !args.recorded.is_empty() {
        return super::recorded::run(&args.recorded, args.format);
    }
    match super::slurm::reach_own_mesh(&args.socket, &mut args.job)? {
        Ok(socket) => args.socket = socket,
        Err(exit) => return Ok(exit),
    }
    let exit = once(&args)?;
    if !args.watch {
        return Ok(exit);
    }
    loop {
        std::thread::sleep(WATCH_EVERY);
        // An agent that is restarted is waited for.
        if let Err(error) = once(&args) {
            eprintln!("{}", printable(&format!("{error:#}; asked again")));
        }
    }
}

fn once(args: &StragglersArgs) -> anyhow::Result<Exit> {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let request = LocalRequest::Stragglers(StragglersQuestion {
        // The standing verdict is made from digests: questions to the stores are behind one that
        // was asked of them.
        since_ms: args.since.or(args.show_sql.then_some(SHOWN_SINCE)).map(millis),
        job: args.job.clone(),
        comm: args.comm,
        timeout_ms: millis(args.ask.timeout),
        nodes: args.ask.nodes.clone(),
        labels: args.ask.label.clone(),
    });
    let reply = local::ask(&args.socket, &request).inspect_err(say_coverage)?;
    let Reply::Text(json) = reply else { bail!("the agent gave rows for a verdict") };
    let mut answer: Value = serde_json::from_str(&json).context("reading the agent's verdict")?;
    let coverage = coverage(&answer["coverage"]).context("reading the agent's coverage")?;
    if args.ask.require_all && !coverage.is_complete() {
        for line in coverage.lines() {
            eprintln!("{}", printable(&line));
        }
        bail!("the answer is partial and --require-all was given: nothing is printed");
    }
    let text = answer.as_object_mut().and_then(|object| object.remove("text"));
    let sql = answer.as_object_mut().and_then(|object| object.remove("sql"));
    if args.show_sql && args.format == ReportFormat::Json {
        answer["sql"] = sql.clone().unwrap_or_default();
    }
    let mut out = std::io::stdout().lock();
    match args.format {
        ReportFormat::Json => writeln!(out, "{}", quiet(&answer.to_string()))?,
        ReportFormat::Table => {
            if args.watch {
                // Clear the screen and go to its top left corner.
                write!(out, "\u{1b}[2J\u{1b}[H")?;
            }
            writeln!(out, "{}", printable_lines(text.as_ref().and_then(Value::as_str).unwrap_or_default()).trim_end())?;
            if args.show_sql {
                for shown in sql.iter().filter_map(Value::as_array).flatten() {
                    let field = |name: &str| shown[name].as_str().unwrap_or_default().to_owned();
                    match field("sql") {
                        sql if sql.is_empty() => writeln!(out, "\n-- {}", printable(&field("title")))?,
                        sql => writeln!(out, "\n-- {}\n{};", printable(&field("title")), printable_lines(&sql))?,
                    }
                }
            }
            out.flush()?;
            // The notes are in the text.
            for line in coverage.lines().iter().filter(|line| !line.starts_with("  note: ")) {
                eprintln!("{}", printable(line));
            }
        }
    }
    out.flush()?;
    Ok(if coverage.is_complete() { Exit::Complete } else { Exit::Partial })
}

/// The report carries the coverage as `{"asked","answered","missing":[[node, reason]],"notes"}`.
fn coverage(value: &Value) -> Option<Coverage> {
    let texts = |value: &Value| -> Option<Vec<String>> {
        value.as_array()?.iter().map(|text| Some(text.as_str()?.to_owned())).collect()
    };
    let count = |value: &Value| usize::try_from(value.as_u64()?).ok();
    let missing = value["missing"]
        .as_array()?
        .iter()
        .map(|gone| Some(Missing { node: gone[0].as_str()?.to_owned(), reason: gone[1].as_str()?.to_owned() }));
    Some(Coverage {
        asked: count(&value["asked"])?,
        answered: count(&value["answered"])?,
        missing: missing.collect::<Option<_>>()?,
        notes: texts(&value["notes"])?,
    })
}
