//! Tables for people.

use std::io::{self, Write};

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use query_planner::{ColumnMeta, Value};
use record::printable;

use super::real_text;

/// The layout with which a started table goes on.
#[derive(Debug)]
pub(super) struct Layout {
    right: Vec<bool>,
    /// Width of each column so far, in characters as terminals count them.
    widths: Vec<u16>,
}

impl Layout {
    /// Prints the header and the first rows.
    pub(super) fn begin(columns: &[ColumnMeta], rows: &[Vec<Value>], out: &mut dyn Write) -> io::Result<Self> {
        let header: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        let is_number = |value: &Value| matches!(value, Value::Null | Value::Integer(_) | Value::Real(_));
        let right: Vec<bool> =
            (0..header.len()).map(|index| rows.iter().filter_map(|row| row.get(index)).all(is_number)).collect();
        let table = laid_out(&header, rows.iter().map(|row| row.iter().map(cell_text).collect()), &right);
        writeln!(out, "{}", text(&table))?;
        Ok(Self { right, widths: table.column_max_content_widths() })
    }

    /// Characters of a line so far.
    pub(super) fn width(&self) -> usize {
        let between = 2 * self.widths.len().saturating_sub(1);
        self.widths.iter().map(|width| usize::from(*width)).sum::<usize>() + between
    }

    /// Prints further rows below.
    pub(super) fn go_on(&mut self, rows: &[Vec<Value>], out: &mut dyn Write) -> io::Result<()> {
        // A header as wide as the lines above, which is not printed.
        let filler: Vec<String> = self.widths.iter().map(|width| "x".repeat(usize::from(*width))).collect();
        let header: Vec<&str> = filler.iter().map(String::as_str).collect();
        let table = laid_out(&header, rows.iter().map(|row| row.iter().map(cell_text).collect()), &self.right);
        for line in text(&table).lines().skip(1) {
            writeln!(out, "{line}")?;
        }
        self.widths = table.column_max_content_widths();
        Ok(())
    }
}

/// Writes a line a value, names right-aligned, and an empty line between rows, of which `before`
/// were written.
pub(super) fn write_lines(
    columns: &[ColumnMeta],
    rows: &[Vec<Value>],
    before: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let names: Vec<String> = columns.iter().map(|column| printable(&column.name)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    for (at, row) in rows.iter().enumerate() {
        if before > 0 || at > 0 {
            writeln!(out)?;
        }
        for (name, value) in names.iter().zip(row) {
            writeln!(out, "{name:>width$} = {}", printable(&cell_text(value)))?;
        }
    }
    Ok(())
}

/// Lays out a plain table; columns marked `right` are right-aligned. Control characters are
/// escaped.
pub fn render(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>, right: &[bool]) -> String {
    text(&laid_out(header, rows, right))
}

fn text(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

fn laid_out(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>, right: &[bool]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let align = |index: usize, text: &str| {
        let alignment =
            if right.get(index).copied().unwrap_or(false) { CellAlignment::Right } else { CellAlignment::Left };
        Cell::new(printable(text)).set_alignment(alignment)
    };
    table.set_header(header.iter().enumerate().map(|(index, name)| align(index, name)));
    for row in rows {
        table.add_row(row.iter().enumerate().map(|(index, text)| align(index, text)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// The text of a value in a table; NULL is empty like in SQLite's shell.
pub fn cell_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Integer(integer) => integer.to_string(),
        Value::Real(real) => real_text(*real),
        Value::Text(text) => record::text(text),
        Value::Blob(bytes) => format!("x'{}'", hex::encode(bytes)),
    }
}
