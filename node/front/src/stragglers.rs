//! `rankmesh stragglers`: which rank holds the others up. `jobs`: a span in which several jobs ran.

mod jobs;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::bail;
use ask::args::ReportFormat;
use ask::output::{has_colour, printable, printable_lines, quiet, said, say_coverage};
use ask::values::millis;
use ask::{Connector, Exit, Target};
use model::{AskedSpan, Coverage, Missing, StragglersQuestion};
use serde_json::Value;

use super::args::StragglersArgs;
use super::rates::Priced;

/// How far back `--show-sql` looks without `--since`.
const SHOWN_SINCE: Duration = Duration::from_secs(60);
/// Pause between two requests with `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// Prints who holds the others up.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(mut args: StragglersArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    if !args.recorded.is_empty() {
        return super::recorded::run(&args);
    }
    let target = args.target.of_any_job(&mut args.job, connector)?;
    let exit = once(&args, &target)?;
    if !args.watch {
        return Ok(exit);
    }
    loop {
        std::thread::sleep(WATCH_EVERY);
        // An agent that restarts is waited for.
        if let Err(error) = once(&args, &target) {
            eprint!("{}", said(&format!("{error:#}; asked again")));
        }
    }
}

fn once(args: &StragglersArgs, target: &Target) -> anyhow::Result<Exit> {
    let span = match args.span.resolved(target)? {
        // The standing verdict is made from digests: only a verdict that was asked of the stores
        // has SQL behind its figures.
        AskedSpan::Now if args.show_sql => AskedSpan::Last { ms: millis(SHOWN_SINCE) },
        span => span,
    };
    let ask = &args.target.ask;
    let question = StragglersQuestion {
        span,
        job: args.job.clone(),
        comm: args.comm,
        timeout_ms: args.target.timeout_ms(),
        nodes: ask.nodes.clone(),
        labels: ask.label.clone(),
    };
    let jobs::Judged { mut answer, coverage, others } = jobs::judge(target, &question, args.all)?;
    if ask.require_all && !coverage.is_complete() {
        say_coverage(&coverage);
        bail!("the answer is partial and --require-all was given: nothing is printed");
    }
    let text = format!("{}\n{others}", jobs::text(&answer, args.all).trim_end());
    for part in ["text", "all"] {
        answer.as_object_mut().and_then(|object| object.remove(part));
    }
    let evidence = answer.as_object_mut().and_then(|object| object.remove("evidence_text"));
    let sql = answer.as_object_mut().and_then(|object| object.remove("sql"));
    if args.show_sql && args.format == ReportFormat::Json {
        answer["sql"] = sql.clone().unwrap_or_default();
    }
    let money = Priced::of(&args.rate, target)?.and_then(|priced| priced.of_report(&answer));
    if let Some(money) = &money {
        answer["money"] = serde_json::to_value(money)?;
    }
    let mut out = std::io::stdout().lock();
    match args.format {
        ReportFormat::Json => writeln!(out, "{}", quiet(&answer.to_string()))?,
        ReportFormat::Table => {
            if args.watch {
                // Clears the screen and goes to its top left corner.
                write!(out, "\u{1b}[2J\u{1b}[H")?;
            }
            let is_coloured = has_colour(out.is_terminal());
            writeln!(out, "{}", painted(printable_lines(&text).trim_end(), is_coloured))?;
            if args.evidence {
                let evidence = evidence.as_ref().and_then(Value::as_str).unwrap_or_default();
                writeln!(out, "\n{}", printable_lines(evidence).trim_end())?;
            }
            if let Some(money) = money {
                writeln!(out, "{}", printable(&money.text()))?;
            }
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
            let lines = coverage.lines().into_iter().filter(|line| !line.starts_with("  note: "));
            eprint!("{}", said(&lines.collect::<Vec<_>>().join("\n")));
        }
    }
    out.flush()?;
    Ok(if coverage.is_complete() { Exit::Complete } else { Exit::Partial })
}

/// A report's text as a terminal shows it: the verdict in bold, the culprit's row in red.
fn painted(text: &str, is_coloured: bool) -> String {
    if !is_coloured {
        return text.to_owned();
    }
    let mut in_verdict = true;
    let lines = text.lines().map(|line| {
        in_verdict &= !line.is_empty() && !line.starts_with("Cost: ");
        match line {
            line if in_verdict => format!("\u{1b}[1m{line}\u{1b}[0m"),
            line if line.ends_with(" culprit") => format!("\u{1b}[31m{line}\u{1b}[0m"),
            line => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The report carries the coverage as `{"asked","answered","missing":[[node, reason]],"notes"}`.
pub fn coverage(value: &Value) -> Option<Coverage> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_terminal_the_verdict_is_bold_and_the_culprit_red_unless_no_color_is_set() {
        let text = "Rank 5 holds up the others.\nCost: much.\n\n rank\n    5  n1  culprit\n    1  n0";
        let shown = painted(text, true);
        assert!(shown.starts_with("\u{1b}[1mRank 5 holds up the others.\u{1b}[0m\nCost: much.\n"), "{shown}");
        assert!(shown.contains("\u{1b}[31m    5  n1  culprit\u{1b}[0m\n    1  n0"), "{shown}");
        assert_eq!(painted(text, false), text);
    }
}
