//! `rankmesh shell`: one question after the other.
//!
//! `statements` finds where they end, `commands` reads lines that begin with a dot, `complete`
//! makes completions; `editor` reads lines from a terminal and `interrupts` handles Ctrl-C. Here:
//! the session, which executes the input. Without a terminal statements are read from standard
//! input.

use std::collections::HashSet;
use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use ask::args::TargetArgs;
use ask::output::{Format, said};
use ask::{Connector, Exit, Stopped, Target, UsageError, paths};
use model::{LocalRequest, Question, TableSeen};
use query_planner::ColumnMeta;
use tokio_util::sync::CancellationToken;

use super::args::ShellArgs;
use super::output_file::OutputFile;
use super::query::{To, ask_and_print, print_coverage};
use super::schema::{self, Documented, Meaning};

mod commands;
mod complete;
mod editor;
mod interrupts;
mod pager;
mod statements;

use commands::Command;
use complete::Names;
use editor::{LineEditor, Typed};
use interrupts::Interrupts;
use pager::{Paged, Pager};
use statements::take_statements;

/// Reads statements and asks them one after the other.
///
/// # Errors
/// Nobody answers, the flags are wrong, or the output cannot be written.
pub fn run(args: ShellArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    let target = args.target.of_slurm_job(args.job.as_deref(), connector)?;
    let mut session = Session {
        target,
        args: args.target,
        format: args.format,
        timer: false,
        once: None,
        stop: None,
        pager: Pager::default(),
        noted: HashSet::new(),
    };
    if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        session.interactive()
    } else {
        session.batch(std::io::stdin().lock(), args.bail)
    }
}

struct Session {
    target: Target,
    args: TargetArgs,
    format: Format,
    timer: bool,
    /// Where the next answer goes.
    once: Option<(PathBuf, OutputFile)>,
    stop: Option<Interrupts>,
    pager: Pager,
    /// Notes that were printed.
    noted: HashSet<String>,
}

/// Whether to go on.
enum Next {
    More(Exit),
    Quit,
}

impl Session {
    /// Lines from a terminal, until Ctrl-D or `.quit`.
    fn interactive(&mut self) -> anyhow::Result<Exit> {
        let tables = self.tables()?;
        self.pager = Pager::of_environment();
        println!("rankmesh {}, asking {}; .help lists commands", env!("CARGO_PKG_VERSION"), self.target.description());
        let history = match paths::user_state_dir() {
            Ok(directory) => Some(directory.join("history")),
            Err(error) => {
                eprintln!("rankmesh: no history: {error:#}");
                None
            }
        };
        let mut editor = LineEditor::new(names(&tables), history)?;
        let stop = self.stop.insert(Interrupts::listen()?).clone();
        let mut buffer = String::new();
        loop {
            stop.ended();
            let line = match editor.read(&buffer)? {
                Typed::Line(line) => line,
                Typed::GivenUp => {
                    buffer.clear();
                    continue;
                }
                Typed::End => return Ok(Exit::Complete),
            };
            if let Some(command) = commands::of_line(&line).filter(|_| buffer.is_empty()) {
                editor.remember(line.trim());
                match self.command(&command) {
                    Ok(Next::Quit) => return Ok(Exit::Complete),
                    Ok(Next::More(_)) => {}
                    Err(error) => print_error(&error),
                }
                continue;
            }
            let hint = (!buffer.is_empty()).then(|| commands::hint(&line)).flatten();
            buffer.push_str(&line);
            buffer.push('\n');
            if let Some(hint) = hint {
                eprintln!("{hint}");
            }
            for statement in take_statements(&mut buffer) {
                editor.remember(&format!("{statement};"));
                if let Err(error) = self.statement(&statement) {
                    print_error(&error);
                }
            }
        }
    }

    /// Statements from a reader, to its end. The worst outcome counts; a partial answer is better
    /// than a failed one.
    fn batch(&mut self, mut from: impl BufRead, bail: bool) -> anyhow::Result<Exit> {
        let (mut buffer, mut line) = (String::new(), String::new());
        let mut worst = Exit::Complete;
        loop {
            line.clear();
            let ended = from.read_line(&mut line).context("reading statements from standard input")? == 0;
            let command = commands::of_line(&line).filter(|_| buffer.is_empty());
            let outcomes = if let Some(command) = command {
                match self.command(&command) {
                    Ok(Next::Quit) => return Ok(worst),
                    Ok(Next::More(exit)) => vec![Ok(exit)],
                    Err(error) => vec![Err(error)],
                }
            } else {
                buffer.push_str(if ended { "\n;" } else { &line });
                let statements = take_statements(&mut buffer);
                if ended && !buffer.is_empty() {
                    vec![Err(UsageError("standard input ends within a text, a name or a comment".to_owned()).into())]
                } else {
                    let mut outcomes = Vec::new();
                    for statement in statements {
                        let outcome = self.statement(&statement);
                        let failed = outcome.is_err();
                        outcomes.push(outcome);
                        if failed && bail {
                            break;
                        }
                    }
                    outcomes
                }
            };
            for outcome in outcomes {
                // A reader that closed the pipe ends the work.
                let exit = match outcome {
                    Ok(exit) => exit,
                    Err(error) if ask::is_broken_pipe(&error) => return Err(error),
                    Err(error) => {
                        print_error(&error);
                        let exit = if ask::is_usage(&error) { Exit::Usage } else { Exit::Failed };
                        if bail {
                            return Ok(exit);
                        }
                        exit
                    }
                };
                if weight(exit) > weight(worst) {
                    worst = exit;
                }
            }
            if ended {
                return Ok(worst);
            }
        }
    }

    fn statement(&mut self, sql: &str) -> anyhow::Result<Exit> {
        let question = self.args.question(sql.to_owned());
        self.ask(question)
    }

    fn ask(&mut self, question: Question) -> anyhow::Result<Exit> {
        self.begin();
        let began = Instant::now();
        let require_all = self.args.ask.require_all;
        let (mut err, noted) = (Vec::new(), Some(&mut self.noted));
        let asked = match self.once.take() {
            None => {
                let mut out = self.pager.output();
                let to = To { out: &mut out, err: &mut err, noted };
                let asked = ask_and_print(&self.target, question, self.format, require_all, to);
                paged(asked, out)
            }
            Some((path, mut file)) => {
                let to = To { out: &mut file, err: &mut err, noted };
                ask_and_print(&self.target, question, self.format, require_all, to)
                    .with_context(|| format!("writing {}", path.display()))
                    .and_then(|exit| file.finish().map(|()| exit))
            }
        };
        std::io::stderr().write_all(&err)?;
        if self.timer {
            eprintln!("Run time: {:.3} s", began.elapsed().as_secs_f64());
        }
        asked.inspect_err(print_coverage)
    }

    /// Makes the next Ctrl-C end what is asked from now on.
    fn begin(&mut self) {
        let stop = CancellationToken::new();
        self.target.until(stop.clone());
        if let Some(interrupts) = &self.stop {
            interrupts.stops(stop);
        }
    }

    fn command(&mut self, line: &str) -> anyhow::Result<Next> {
        self.begin();
        let command = Command::parse(line).map_err(UsageError)?;
        let mut out = self.pager.output();
        let written = self.obey(command, &mut out);
        match written {
            Ok(next @ (Next::Quit | Next::More(_))) => paged(Ok(Exit::Complete), out).map(|_| next),
            Err(error) => paged(Err(error), out).map(Next::More),
        }
    }

    fn obey(&mut self, command: Command, out: &mut dyn Write) -> anyhow::Result<Next> {
        match command {
            Command::Quit => return Ok(Next::Quit),
            Command::Help => write!(out, "{}", commands::help())?,
            Command::Mode(format) => self.format = format,
            Command::Pager(on) => self.pager.is_on = on.unwrap_or(!self.pager.is_on),
            Command::Timer(on) => self.timer = on.unwrap_or(!self.timer),
            Command::Expanded(format) => {
                let other = if self.format == Format::Line { Format::Table } else { Format::Line };
                self.format = format.unwrap_or(other);
            }
            Command::Once(path) => {
                let file = OutputFile::open(&path)?;
                self.once = Some((path, file));
            }
            Command::Explain { sql, analyze } => {
                let question = Question { plan_only: !analyze, analyze, ..self.args.question(sql) };
                return self.ask(question).map(Next::More);
            }
            Command::Tables(prefix) => {
                let tables = self.tables()?;
                let begins = |table: &&TableSeen| {
                    table.name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(&prefix))
                };
                let brief =
                    |table: &TableSeen| described(table).map_or_else(String::new, |known| known.brief().to_owned());
                let found: Vec<(&str, String)> =
                    tables.iter().filter(begins).map(|table| (table.name.as_str(), brief(table))).collect();
                let found: Vec<(&str, &str)> = found.iter().map(|(name, about)| (*name, about.as_str())).collect();
                write!(out, "{}", schema::list(&found))?;
            }
            Command::Schema(None) => {
                for table in self.tables()? {
                    write!(out, "{}", schema::text(&self.table(&table)?))?;
                }
            }
            Command::Schema(Some(name)) => {
                let tables = self.tables()?;
                let found = tables.iter().find(|table| table.name.eq_ignore_ascii_case(&name));
                let found = found.ok_or_else(|| UsageError(format!("there is no table {name}; .tables lists them")))?;
                write!(out, "{}", schema::text(&self.table(found)?))?;
            }
        }
        out.flush()?;
        Ok(Next::More(Exit::Complete))
    }

    /// The names of tables; of an agent of an earlier release, which does not list them, those of
    /// this release's stores.
    fn tables(&self) -> anyhow::Result<Vec<TableSeen>> {
        self.target.tables().or_else(|error| match self.target.document(LocalRequest::Nodes) {
            Ok(_) => Ok(schema::DOCUMENTED.iter().map(of_this_release).collect()),
            Err(_) => Err(error),
        })
    }

    /// The description of a table as it is here.
    fn table(&self, table: &TableSeen) -> anyhow::Result<Documented> {
        let known = described(table);
        let columns = if table.columns.is_empty() { self.columns_of(&table.name)? } else { table.columns.clone() };
        let meaning = |column: &ColumnMeta| {
            let documented = known.and_then(|known| known.columns.iter().find(|other| other.name == column.name));
            documented.map_or_else(String::new, |documented| documented.meaning.clone())
        };
        let columns = columns.iter().map(|column| Meaning {
            name: column.name.clone(),
            decl_type: column.decl_type.clone(),
            meaning: meaning(column),
        });
        Ok(Documented {
            name: table.name.clone(),
            kind: known.map_or(if table.columns.is_empty() { schema::OF_MESH } else { "table" }, |known| known.kind),
            about: known.map_or_else(String::new, |known| known.about.clone()),
            columns: columns.collect(),
        })
    }

    /// The columns of a view, which only a question to it shows.
    fn columns_of(&self, view: &str) -> anyhow::Result<Vec<ColumnMeta>> {
        let mut columns = Vec::new();
        self.target.query(self.args.question(format!("SELECT * FROM {view} LIMIT 0")), &mut |piece| {
            if let ask::Piece::Columns(found) = piece {
                columns = found;
            }
            Ok(())
        })?;
        Ok(columns)
    }
}

/// Waits for the pager; who leaves it before the end wants no more of the answer.
fn paged(asked: anyhow::Result<Exit>, out: Paged) -> anyhow::Result<Exit> {
    match (asked, out.finish()) {
        (Err(error), Ok(true)) if ask::is_broken_pipe(&error) => Ok(Exit::Complete),
        (Ok(exit), Err(error)) => Err(error).map(|()| exit).map_err(Into::into),
        (asked, _) => asked,
    }
}

/// The description in docs/schema.md of a table, if the table is a trace store's or a view.
fn described(table: &TableSeen) -> Option<&'static Documented> {
    let known = schema::of(&table.name)?;
    if table.columns.is_empty() {
        // Only views, whose columns are not listed, have none.
        return Some(known);
    }
    let common = table.columns.iter().filter(|column| known.columns.iter().any(|other| other.name == column.name));
    (common.count() * 2 > table.columns.len()).then_some(known)
}

fn of_this_release(documented: &Documented) -> TableSeen {
    let column = |column: &Meaning| ColumnMeta { name: column.name.clone(), decl_type: column.decl_type.clone() };
    TableSeen { name: documented.name.clone(), columns: documented.columns.iter().map(column).collect() }
}

fn names(tables: &[TableSeen]) -> Names {
    let columns = |table: &TableSeen| table.columns.iter().map(|column| column.name.clone()).collect();
    Names {
        tables: tables.iter().map(|table| (table.name.clone(), columns(table))).collect(),
        functions: query_planner::function_names().into_iter().map(str::to_owned).collect(),
    }
}

fn weight(exit: Exit) -> u8 {
    match exit {
        Exit::Complete => 0,
        Exit::Partial => 1,
        Exit::Usage => 2,
        Exit::Failed => 3,
    }
}

fn print_error(error: &anyhow::Error) {
    if error.is::<Stopped>() {
        eprintln!("stopped");
    } else {
        eprint!("{}", said(&format!("rankmesh: {error:#}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_of_the_mesh_are_described() {
        for view in verdicts::VIEWS {
            let seen = TableSeen { name: view.name.to_owned(), columns: Vec::new() };
            assert!(described(&seen).is_some_and(|known| !known.brief().is_empty()), "{}", view.name);
        }
        let column = |name: &str| ColumnMeta { name: name.to_owned(), decl_type: String::new() };
        let other = TableSeen { name: "processes".to_owned(), columns: vec![column("a"), column("b")] };
        assert_eq!(described(&other), None, "another program's table of that name");
    }
}
