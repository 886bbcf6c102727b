//! Printing a result as it comes: only as much is buffered as the form demands.
//!
//! CSV, one object a row and one object in all are written row by row. A table needs widths: they
//! come from the first rows, [`TABLE_ROWS`] of them, or those so far when [`Printer::idle`] reports
//! that the rest is slow; later rows are laid out in blocks, each at least as wide as those before.

use std::io::{self, IsTerminal, Write};

use model::Coverage;
use query_planner::{ColumnMeta, Value};

use super::{Format, csv, json, said, table};

/// Rows of a table that are laid out together.
const TABLE_ROWS: usize = 1_000;

/// Prints one result.
#[derive(Debug)]
pub struct Printer {
    format: Format,
    columns: Vec<ColumnMeta>,
    /// It writes to standard output, and that is a terminal.
    on_terminal: bool,
    started: bool,
    rows: u64,
    /// Rows of a table that are not laid out yet.
    waiting: Vec<Vec<Value>>,
    layout: Option<table::Layout>,
    /// Rows that are wider than this are not laid out as a table.
    most_columns: Option<usize>,
}

impl Printer {
    /// A printer in this form.
    #[must_use]
    pub fn new(format: Format, columns: Vec<ColumnMeta>) -> Self {
        let on_terminal = io::stdout().is_terminal();
        let width = (format == Format::Auto && on_terminal).then(terminal_size::terminal_size).flatten();
        let most_columns = width.map(|(width, _)| usize::from(width.0));
        let format = if format == Format::Auto { Format::Table } else { format };
        Self { format, columns, on_terminal, started: false, rows: 0, waiting: Vec::new(), layout: None, most_columns }
    }

    /// A printer for output that no terminal shows.
    #[must_use]
    pub fn for_programs(format: Format, columns: Vec<ColumnMeta>) -> Self {
        Self { on_terminal: false, ..Self::new(format, columns) }
    }

    /// Takes the next rows.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn rows(&mut self, rows: Vec<Vec<Value>>, out: &mut dyn Write) -> io::Result<()> {
        let before = self.rows;
        self.rows += rows.len() as u64;
        match self.format {
            Format::Table | Format::Auto => {
                self.waiting.extend(rows);
                if self.waiting.len() >= TABLE_ROWS { self.lay_out(out) } else { Ok(()) }
            }
            Format::Json => {
                self.begin(out)?;
                json::write_rows(&rows, before, out)
            }
            Format::Ndjson => json::write_lines(&self.columns, &rows, out),
            Format::Line => table::write_lines(&self.columns, &rows, before, out),
            Format::Csv => {
                self.begin(out)?;
                csv::write_rows(&rows, self.on_terminal, out)
            }
        }
    }

    /// Nothing has come for a while: prints the rows so far.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn idle(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if !self.waiting.is_empty() {
            self.lay_out(out)?;
        }
        out.flush()
    }

    /// The result is complete; `coverage` is none when a single file was asked.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn end(
        mut self,
        coverage: Option<&Coverage>,
        elapsed_ms: f64,
        out: &mut dyn Write,
        err: &mut dyn Write,
    ) -> io::Result<()> {
        match self.format {
            Format::Table | Format::Auto | Format::Line => {
                if self.format == Format::Table && (self.layout.is_none() || !self.waiting.is_empty()) {
                    self.lay_out(out)?;
                }
                out.flush()?;
                let rows =
                    format!("{} {} in {elapsed_ms:.1} ms", self.rows, if self.rows == 1 { "row" } else { "rows" });
                let mut lines = coverage.map(Coverage::lines).unwrap_or_default();
                match lines.first_mut() {
                    Some(first) => *first = format!("{first}, {rows}"),
                    None => lines.push(rows),
                }
                err.write_all(said(&lines.join("\n")).as_bytes())?;
            }
            Format::Json => {
                self.begin(out)?;
                json::write_end(coverage, elapsed_ms, out)?;
            }
            Format::Ndjson | Format::Csv => {
                if self.format == Format::Csv {
                    self.begin(out)?;
                }
                out.flush()?;
                let lines = coverage.map(Coverage::lines).unwrap_or_default();
                if !lines.is_empty() {
                    err.write_all(said(&lines.join("\n")).as_bytes())?;
                }
            }
        }
        out.flush()
    }

    fn begin(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if std::mem::replace(&mut self.started, true) {
            return Ok(());
        }
        match self.format {
            Format::Json => json::write_begin(&self.columns, out),
            Format::Csv => csv::write_header(&self.columns, self.on_terminal, out),
            Format::Table | Format::Auto | Format::Ndjson | Format::Line => Ok(()),
        }
    }

    fn lay_out(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let rows = std::mem::take(&mut self.waiting);
        match &mut self.layout {
            Some(layout) => layout.go_on(&rows, out),
            None => {
                let mut laid_out = Vec::new();
                let layout = table::Layout::begin(&self.columns, &rows, &mut laid_out)?;
                if self.most_columns.is_some_and(|most| layout.width() > most) && !rows.is_empty() {
                    self.format = Format::Line;
                    return table::write_lines(&self.columns, &rows, 0, out);
                }
                self.layout = Some(layout);
                out.write_all(&laid_out)
            }
        }
    }
}
