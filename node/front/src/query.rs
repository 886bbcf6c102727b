//! `rankmesh query`: a SQL question to the mesh, or to one file.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use ask::output::{Format, Printer, printable_lines, said, say_coverage};
use ask::{Connector, Exit, NoAnswer, Piece, Reply, Target, UsageError};
use model::{Coverage, Question};
use query_planner::{ColumnMeta, LocalError, RunError, Value};
use store::file::FileError;

use super::args::{Explain, Input, QueryArgs};
use super::question::Sql;

/// Bytes of a question on standard input; what is longer is refused as too long.
const MOST_INPUT: u64 = 1 << 20;

/// Asks the question and prints the answer.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(args: QueryArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let question = question(&args)?;
    let target = || args.target.target(connector);
    let sql = question.filled(&target()?, &args.saved.investigations)?;
    match args.target.db.as_slice() {
        // A single file is asked, so there is no coverage to print.
        [file]
            if args.target.archive.is_none()
                && !file.is_dir()
                && args.target.ask.nodes.is_empty()
                && !args.per_node =>
        {
            one_file(file, &sql, &args)
        }
        _ => nodes(sql, &args, connector),
    }
}

/// What is asked, by arguments or on standard input.
fn question(args: &QueryArgs) -> anyhow::Result<Sql> {
    let read = || {
        let mut text = Vec::new();
        std::io::stdin().take(MOST_INPUT).read_to_end(&mut text).context("reading the question from standard input")?;
        anyhow::Ok(text)
    };
    let wrong = |message: &str| UsageError(message.to_owned());
    match (args.sql.as_deref(), args.saved.saved.as_deref()) {
        (None, Some(name)) => Ok(Sql::saved(name, &args.saved.param)?),
        (Some("-"), _) if args.input == Input::Json => {
            if !args.saved.param.is_empty() {
                return Err(wrong("--input json has parameters of its own: leave out --param").into());
            }
            Ok(Sql::parsed(&read()?)?)
        }
        (_, _) if args.input == Input::Json => Err(wrong("--input is about standard input: give - as question").into()),
        (Some("-"), _) => {
            let text = String::from_utf8(read()?).map_err(|_| wrong("the SQL is not UTF-8"))?;
            Ok(Sql::with(text, &args.saved.param)?)
        }
        (Some(sql), _) => Ok(Sql::with(sql, &args.saved.param)?),
        (None, None) if args.per_node || args.explain.is_some() => {
            Err(wrong("--per-node and --explain are about a question: give it, too").into())
        }
        (None, None) => Err(wrong("no question: give it as an argument, or - to read it from standard input").into()),
    }
}

/// Asks the mesh, or files as nodes.
fn nodes(sql: String, args: &QueryArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let target = args.target.of_slurm_job(args.job.as_deref(), connector)?;
    let question = Question {
        per_node: args.per_node,
        plan_only: args.explain == Some(Explain::Plan),
        analyze: args.explain == Some(Explain::Analyze),
        ..args.target.question(sql)
    };
    let mut out = std::io::stdout().lock();
    let to = To { out: &mut out, err: &mut std::io::stderr().lock(), noted: None };
    let asked = ask_and_print(&target, question, args.format, args.target.ask.require_all, to);
    asked.inspect_err(print_coverage)
}

/// Where an answer goes.
pub struct To<'a> {
    /// Rows, as they come.
    pub out: &'a mut dyn Write,
    /// Coverage, at the end.
    pub err: &'a mut dyn Write,
    /// Notes that were printed before in this session and are not again; none: all are printed.
    pub noted: Option<&'a mut HashSet<String>>,
}

/// Asks a question and prints its answer.
///
/// # Errors
/// As [`Target::query`]; the output cannot be written, or with `require_all` the answer is partial.
pub fn ask_and_print(
    target: &Target,
    question: Question,
    format: Format,
    require_all: bool,
    to: To<'_>,
) -> anyhow::Result<Exit> {
    let To { out, err, noted } = to;
    let analyze = question.analyze;
    let mut answer =
        Answer { format, printer: None, rows_wanted: !analyze, buffered: require_all.then(|| (Vec::new(), 0)) };
    let reply = target.query(question, &mut |piece| answer.take(piece, out))?;
    match reply {
        Reply::Text(plan) => {
            writeln!(out, "{}", printable_lines(&plan).trim_end())?;
            Ok(Exit::Complete)
        }
        Reply::Result { mut coverage, elapsed_ms, explained } => {
            let complete = coverage.is_complete();
            // (A document has all of them: it is read alone.)
            if let Some(noted) = noted.filter(|_| format != Format::Json) {
                coverage.notes.retain(|note| noted.insert(note.clone()));
            }
            if !complete && require_all {
                err.write_all(said(&coverage.lines().join("\n")).as_bytes())?;
                anyhow::bail!("the answer is partial and --require-all was given: nothing is printed");
            }
            if analyze {
                writeln!(out, "{}", printable_lines(&explained).trim_end())?;
                err.write_all(said(&coverage.lines().join("\n")).as_bytes())?;
            } else {
                answer.end(&coverage, elapsed_ms, out, err)?;
            }
            Ok(if complete { Exit::Complete } else { Exit::Partial })
        }
        Reply::Board(_) => anyhow::bail!("something else came in place of rows"),
    }
}

/// Bytes of rows that `--require-all` buffers until it is known whether the answer is complete.
const MOST_BUFFERED_BYTES: u64 = 256 << 20;

/// An answer as it is printed.
struct Answer {
    format: Format,
    printer: Option<Printer>,
    /// `--explain=analyze` prints no rows.
    rows_wanted: bool,
    /// `--require-all` prints nothing of a partial answer, so the rows are buffered.
    buffered: Option<(Vec<Vec<Value>>, u64)>,
}

impl Answer {
    fn take(&mut self, piece: Piece, out: &mut dyn Write) -> anyhow::Result<()> {
        match (piece, &mut self.printer, &mut self.buffered) {
            (Piece::Columns(columns), _, _) => self.printer = Some(Printer::new(self.format, columns)),
            (Piece::Rows(_), _, _) if !self.rows_wanted => {}
            (Piece::Rows(rows), _, Some((buffered, bytes))) => {
                *bytes += rows.iter().flatten().map(Value::data_bytes).sum::<u64>();
                anyhow::ensure!(
                    *bytes <= MOST_BUFFERED_BYTES,
                    "--require-all must hold the answer until it is whole, and this one has more than {} MiB: narrow it, or leave \
                     --require-all out and look at the exit code (3 when the answer is partial)",
                    MOST_BUFFERED_BYTES >> 20
                );
                buffered.extend(rows);
            }
            (Piece::Rows(rows), Some(printer), None) => printer.rows(rows, out)?,
            (Piece::Rows(_), None, None) => anyhow::bail!("the agent gave rows without columns"),
            (Piece::Idle, Some(printer), None) => printer.idle(out)?,
            (Piece::Idle | Piece::Watched(_), ..) => {}
        }
        Ok(())
    }

    fn end(self, coverage: &Coverage, elapsed_ms: f64, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<()> {
        let mut printer = self.printer.context("the agent gave no columns")?;
        if let Some((rows, _)) = self.buffered {
            printer.rows(rows, out)?;
        }
        Ok(printer.end(Some(coverage), elapsed_ms, out, err)?)
    }
}

/// Prints the coverage of a failed question: the nodes that had answered.
pub fn print_coverage(error: &anyhow::Error) {
    if let Some(NoAnswer { coverage: Some(coverage), .. }) = error.downcast_ref() {
        say_coverage(coverage);
    }
}

/// Time after its deadline in which a question to a file may end by itself.
const BEYOND: Duration = Duration::from_millis(200);

/// Ends this process with a message, unless it is dropped before: for work on this process's own
/// threads that may not check its deadline for a while. Nothing is lost with it: questions only
/// read.
struct Alarm(#[expect(dead_code, reason = "its drop is what the thread waits for")] std::sync::mpsc::Sender<()>);

impl Alarm {
    fn at(until: Instant, message: String) -> Self {
        let (alive, dropped) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            let left = until.saturating_duration_since(Instant::now());
            if dropped.recv_timeout(left) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("rankmesh: {message}");
                std::process::exit(1);
            }
        });
        Self(alive)
    }
}

fn one_file(file: &Path, sql: &str, args: &QueryArgs) -> anyhow::Result<Exit> {
    let started = Instant::now();
    let deadline = started + args.target.ask.timeout;
    let late =
        format!("timeout: the question took longer than {:?}; give --timeout or narrow it", args.target.ask.timeout);
    let alarm = Alarm::at(deadline + BEYOND, late.clone());
    let mut out = std::io::stdout().lock();
    let failed = |error| match error {
        FileError::Question(_) if Instant::now() >= deadline => anyhow::Error::msg(late.clone()),
        FileError::Question(LocalError::Query(error)) => UsageError(error.render(sql)).into(),
        // SQLite's own message for a damaged page; malformed JSON is the question's.
        FileError::Question(other @ LocalError::Run(RunError::Internal(_)))
            if other.to_string().contains("malformed") =>
        {
            let file = file.display();
            anyhow::anyhow!("{file} is damaged ({other}); rankmesh check --db {file} says where")
        }
        FileError::Question(other) => other.into(),
        FileError::Store(other) => other.into(),
        FileError::Out(error) => error.into(),
    };
    if let Some(how) = args.explain {
        let plan = store::file::explain(file, sql, how == Explain::Analyze, deadline).map_err(failed)?;
        drop(alarm);
        writeln!(out, "{}", printable_lines(&plan).trim_end())?;
        return Ok(Exit::Complete);
    }
    let mut printer: Option<Printer> = None;
    let mut print = |columns: &[ColumnMeta], rows| {
        printer.get_or_insert_with(|| Printer::new(args.format, columns.to_vec())).rows(rows, &mut out)
    };
    store::file::ask_into(file, sql, deadline, &mut print).map_err(failed)?;
    drop(alarm);
    let printer = printer.context("the question has no columns")?;
    printer.end(None, started.elapsed().as_secs_f64() * 1e3, &mut out, &mut std::io::stderr().lock())?;
    Ok(Exit::Complete)
}
