//! Running one file: statements to the deal, queries to the mesh, answers against the file and the
//! union.

use std::collections::{BTreeSet, HashMap};
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use query_planner::{Plan, Value};

use super::deal::Dealer;
use super::format::{Formatter, hash, matches, sorted};
use super::memory::MemoryTransport;
use super::quic::QuicTransport;
use super::refusals;
use super::report::Tally;
use super::rung::{RungCheck, reads};
use super::same::{canonical, difference, is_same_error, same_rows};
use super::script::{self, Expectation, ExpectedResult, Sort, StepKind};
use super::shape::{self, Facts};
use super::transport::{Answered, Reply, Transport};
use crate::plain;

/// How to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Nodes of each file's mesh, at least one.
    pub nodes: usize,
    /// Chooses where rows lie, who is asked and in which order nodes answer.
    pub seed: u64,
    /// Stop a file after so many queries.
    pub max_queries: Option<usize>,
    /// Judge strategies by shapes.
    pub expect_rung: bool,
    /// Wrong, failed or too dear questions of a file to show in full.
    pub details: usize,
    /// Nodes that get no rows of a table lack the table itself.
    pub sparse: bool,
    /// How nodes are reached.
    pub transport: TransportKind,
    /// Rows of a column segment: tables that can lie in such segments do (function calls only).
    pub segment_rows: Option<usize>,
}

/// How nodes are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportKind {
    /// Function calls.
    #[default]
    Memory,
    /// Agents over loopback sockets.
    Quic,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            nodes: 3,
            seed: 7,
            max_queries: None,
            expect_rung: false,
            details: 3,
            sparse: false,
            transport: TransportKind::default(),
            segment_rows: None,
        }
    }
}

/// Files as given; the `.test` files below a directory, sorted.
///
/// # Errors
/// A path cannot be read.
pub fn expand(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let mut entries: Vec<PathBuf> = std::fs::read_dir(path)
                .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
                .with_context(|| format!("cannot list {}", path.display()))?;
            entries.retain(|entry| entry.is_dir() || entry.extension().is_some_and(|extension| extension == "test"));
            entries.sort();
            files.extend(expand(&entries)?);
        } else {
            files.push(path.clone());
        }
    }
    Ok(files)
}

/// Run a file.
///
/// # Errors
/// The file cannot be read, or the harness itself fails; what queries do is in the counts.
pub fn run_file(path: &Path, options: &Options) -> anyhow::Result<Tally> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let name = path.display().to_string();
    run_text(&name, &String::from_utf8_lossy(&text), options).with_context(|| format!("running {name}"))
}

/// Run a script that is already in memory.
///
/// # Errors
/// As [`run_file`].
pub fn run_text(name: &str, text: &str, options: &Options) -> anyhow::Result<Tally> {
    let started = Instant::now();
    let steps = script::read(text)?;
    let mut run = Run::new(name, options)?;
    let total = steps.iter().filter(|step| matches!(step.kind, StepKind::Query(_))).count();
    let mut asked = 0;
    for step in &steps {
        run.line = step.line;
        match &step.kind {
            StepKind::Statement { fails } => run.statement(&step.sql, *fails)?,
            StepKind::Query(expected) => {
                if options.max_queries.is_some_and(|most| asked >= most) {
                    break;
                }
                asked += 1;
                run.query(&step.sql, expected)?;
                show_progress(name, asked, total);
            }
        }
    }
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    run.tally.elapsed = started.elapsed();
    run.tally.columnar_tables = run.transport.columnar_tables();
    Ok(run.tally)
}

fn show_progress(name: &str, asked: usize, total: usize) {
    if asked.is_multiple_of(200) && std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{name}: {asked} of {total}");
        let _ = std::io::stderr().flush();
    }
}

struct Run<'a> {
    name: &'a str,
    line: u32,
    options: &'a Options,
    /// Dropped before the deal: its agents have the deal's files open.
    transport: Box<dyn Transport>,
    dealer: Dealer,
    formatter: Formatter,
    rungs: Option<RungCheck>,
    labels: HashMap<String, String>,
    tally: Tally,
}

/// How an answer compares.
enum Verdict {
    Passed,
    /// Right in another order that the SQL allows.
    OrderFree,
    SqliteDiffers,
    Wrong(String),
}

impl<'a> Run<'a> {
    fn new(name: &'a str, options: &'a Options) -> anyhow::Result<Self> {
        anyhow::ensure!(options.nodes > 0, "a mesh has at least one node");
        let dealer = Dealer::new(options.nodes, options.seed)?;
        let dealer = if options.sparse { dealer.sparse() } else { dealer };
        let transport: Box<dyn Transport> = match options.transport {
            TransportKind::Memory => {
                let memory = MemoryTransport::new(&dealer, options.seed)?;
                Box::new(match options.segment_rows {
                    Some(rows) => memory.in_columns(rows),
                    None => memory,
                })
            }
            TransportKind::Quic if options.segment_rows.is_some() => anyhow::bail!("agents serve files as they are"),
            TransportKind::Quic => Box::new(QuicTransport::new(options.seed)?),
        };
        let rungs = options.expect_rung.then(|| RungCheck::new(&dealer)).transpose()?;
        Ok(Run {
            name,
            line: 0,
            options,
            dealer,
            transport,
            formatter: Formatter::new()?,
            rungs,
            labels: HashMap::new(),
            tally: Tally::default(),
        })
    }

    fn place(&self) -> String {
        format!("{}:{}", self.name, self.line)
    }

    fn statement(&mut self, sql: &str, fails: bool) -> anyhow::Result<()> {
        let outcome = self.dealer.apply(sql).with_context(|| format!("line {}: {sql}", self.line))?;
        if outcome.is_err() != fails {
            self.tally.sqlite_differs += 1;
            return Ok(());
        }
        if self.facts(sql).is_some() {
            // A question after all, of which only matters whether it has an answer.
            return self.question_as_statement(sql, fails);
        }
        self.tally.passed += 1;
        Ok(())
    }

    fn question_as_statement(&mut self, sql: &str, fails: bool) -> anyhow::Result<()> {
        match (self.transport.ask(&self.dealer, sql)?, fails) {
            (Reply::Answered(_), false) => self.tally.passed += 1,
            (Reply::Answered(answered), true) => {
                self.tally.wrong += 1;
                self.keep_detail("WRONG", sql, "answered what must fail\n", answered.plan.as_ref())?;
            }
            (Reply::Refused(message) | Reply::SqlError(message), true) => self.error(sql, &message),
            (Reply::Refused(message), false) => self.refused(sql, &message),
            (Reply::SqlError(message), false) | (Reply::Failed { message, .. }, _) => {
                self.tally.failed.add(&message, &self.place(), sql);
            }
        }
        Ok(())
    }

    fn query(&mut self, sql: &str, expected: &Expectation) -> anyhow::Result<()> {
        let reply = self.transport.ask(&self.dealer, sql).with_context(|| format!("line {}: {sql}", self.line))?;
        let must_fail = expected.result == ExpectedResult::Error;
        match reply {
            Reply::Answered(answered) => {
                *self.tally.strategies.entry(answered.strategy).or_default() += 1;
                self.tally.rows_shipped += answered.rows_shipped;
                self.tally.bytes_shipped += answered.bytes_shipped;
                match self.judge(sql, expected, &answered.rows)? {
                    Verdict::Passed => self.tally.passed += 1,
                    Verdict::OrderFree => {
                        self.tally.passed += 1;
                        self.tally.order_free += 1;
                    }
                    Verdict::SqliteDiffers => self.tally.sqlite_differs += 1,
                    Verdict::Wrong(what) => {
                        self.tally.wrong += 1;
                        self.keep_detail("WRONG", sql, &what, answered.plan.as_ref())?;
                    }
                }
                self.judge_rung(sql, &answered)?;
            }
            Reply::Refused(message) | Reply::SqlError(message) if must_fail => self.error(sql, &message),
            Reply::Refused(message) => {
                if self.union_rows(sql).is_err() {
                    self.tally.sqlite_differs += 1;
                } else {
                    self.refused(sql, &message);
                }
            }
            Reply::SqlError(message) => {
                if self.union_rows(sql).is_err() {
                    self.tally.sqlite_differs += 1;
                } else {
                    self.tally.failed.add(&format!("error of SQL: {message}"), &self.place(), sql);
                }
            }
            Reply::Failed { message, plan } => {
                self.tally.failed.add(&message, &self.place(), sql);
                self.keep_detail("FAILED", sql, &format!("{message}\n"), plan.as_deref())?;
            }
        }
        Ok(())
    }

    /// A question that must fail has failed: with its own error, which is SQLite's over all rows,
    /// too?
    fn error(&mut self, sql: &str, message: &str) {
        match self.union_rows(sql) {
            Err(own) if is_same_error(message, &own) => self.tally.passed += 1,
            Err(own) => {
                self.tally.failed.add(&format!("another error than {own:?}: {message}"), &self.place(), sql);
            }
            Ok(_) => self.tally.failed.add(&format!("SQLite answers: {message}"), &self.place(), sql),
        }
    }

    /// A question that SQLite answers was refused.
    fn refused(&mut self, sql: &str, message: &str) {
        let counts = if refusals::reason(message).is_some() { &mut self.tally.listed } else { &mut self.tally.refused };
        counts.add(message, &format!("{}:{}", self.name, self.line), sql);
    }

    fn judge(&mut self, sql: &str, expected: &Expectation, rows: &[Vec<Value>]) -> anyhow::Result<Verdict> {
        let ours = self.formatter.rows(rows, &expected.kinds)?;
        if let Some(ours) = &ours {
            let values = sorted(ours.clone(), expected.sort);
            if matches(&values, expected) && self.agrees_with_label(expected, &values) {
                return Ok(Verdict::Passed);
            }
        }
        // Not as the file has it: what does SQLite say over all rows?
        let union = match self.union_rows(sql) {
            Ok(rows) => rows,
            Err(message) => return Ok(Verdict::Wrong(format!("answered, SQLite says: {message}\n"))),
        };
        let (Some(ours), Some(union)) = (ours, self.formatter.rows(&union, &expected.kinds)?) else {
            let same = same_rows(rows, &union);
            return Ok(if same {
                Verdict::SqliteDiffers
            } else {
                Verdict::Wrong(format!("expected {:?}\ngot {rows:?}\n", expected.result))
            });
        };
        let as_union = sorted(ours.clone(), expected.sort) == sorted(union.clone(), expected.sort);
        let is_free = !as_union && self.is_allowed_order(sql, &ours, &union, expected.sort);
        if !as_union && !is_free {
            return Ok(Verdict::Wrong(difference(&ours, &union, expected)));
        }
        let union_passes = matches(&sorted(union, expected.sort), expected);
        Ok(if is_free && union_passes { Verdict::OrderFree } else { Verdict::SqliteDiffers })
    }

    fn agrees_with_label(&mut self, expected: &Expectation, values: &[String]) -> bool {
        let Some(label) = &expected.label else { return true };
        let ours = hash(values);
        *self.labels.entry(label.clone()).or_insert_with(|| ours.clone()) == ours
    }

    fn facts(&self, sql: &str) -> Option<Facts> {
        shape::facts(sql, &|name| self.dealer.is_view(name))
    }

    /// Whether `ours` differs from `union` only in what the SQL leaves open: the order of rows
    /// without ORDER BY or with equal keys, the order inside `group_concat`.
    fn is_allowed_order(&self, sql: &str, ours: &[Vec<String>], union: &[Vec<String>], sort: Sort) -> bool {
        let Some(facts) = self.facts(sql) else { return false };
        let canonical = |rows: &[Vec<String>]| canonical(rows, &facts.concatenated);
        if (sort != Sort::No && facts.concatenated.is_empty()) || canonical(ours) != canonical(union) {
            return false;
        }
        facts.order_by.iter().all(|key| {
            key.is_some_and(|key| ours.iter().zip(union).all(|(ours, union)| ours.get(key) == union.get(key)))
        })
    }

    fn union_rows(&self, sql: &str) -> Result<Vec<Vec<Value>>, String> {
        plain::rows(self.dealer.union(), sql).map_err(|error| error.to_string())
    }

    fn judge_rung(&mut self, sql: &str, answered: &Answered) -> anyhow::Result<()> {
        let Some(facts) = self.facts(sql) else { return Ok(()) };
        let Some(rungs) = &mut self.rungs else { return Ok(()) };
        if let Some(what) = rungs.violation(&mut self.dealer, sql, &facts, answered)? {
            self.tally.dear.add(&what, &self.place(), sql);
            self.keep_detail("TOO DEAR", sql, &format!("{what}\n"), answered.plan.as_ref())?;
        }
        Ok(())
    }

    fn keep_detail(&mut self, head: &str, sql: &str, what: &str, plan: Option<&Plan>) -> anyhow::Result<()> {
        if self.tally.details.len() >= self.options.details {
            return Ok(());
        }
        let tables: BTreeSet<String> =
            reads(self.dealer.union_mut(), sql).map(|reads| reads.into_keys().collect()).unwrap_or_default();
        let plan = plan.map(query_planner::explain).unwrap_or_default();
        let data = self.dealer.dump(&tables)?;
        let place = self.place();
        self.tally.details.push(format!("{head} {place}\n{sql}\n{what}{plan}{data}"));
        Ok(())
    }
}
