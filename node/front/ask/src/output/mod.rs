//! Printing results: data to standard output in the form asked for, coverage to standard error.
//!
//! `table` is for people, `json` (one object, or one a row) and `csv` for programs. Values come as
//! SQLite values; integers stay integers, text with control characters never reaches a terminal
//! unescaped. (CSV knows no escapes: it is for files and programs as it is, and only on a terminal
//! written as in a table.)

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use model::Coverage;
use query_planner::{ColumnMeta, Value};

mod csv;
mod json;
mod stream;
mod table;

pub use json::{quiet, value_to_json};
pub use record::{printable, printable_lines};
pub use stream::Printer;
pub use table::{cell_text, render};

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for people.
    Table,
    /// One JSON object.
    Json,
    /// One JSON object a row.
    Ndjson,
    /// RFC 4180.
    Csv,
    /// A line a value, `column = value`, for wide rows.
    Line,
    /// A table; where its rows are wider than the terminal, a line a value.
    Auto,
}

/// A result to print.
#[derive(Debug)]
pub struct Printed<'a> {
    /// Columns.
    pub columns: &'a [ColumnMeta],
    /// Rows.
    pub rows: &'a [Vec<Value>],
    /// Coverage; none when a single file was asked.
    pub coverage: Option<&'a Coverage>,
    /// Time from question to answer.
    pub elapsed_ms: f64,
}

/// Writes a result in the form asked for.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(result: &Printed<'_>, format: Format, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
    let mut printer = Printer::new(format, result.columns.to_vec());
    printer.rows(result.rows.to_vec(), out)?;
    printer.end(result.coverage, result.elapsed_ms, out, err)
}

/// What is said beside an answer, for standard error, each line ending in a newline. A terminal breaks
/// long lines within words: there they are broken between them.
pub fn said(text: &str) -> String {
    said_where(text, io::stderr().is_terminal())
}

fn said_where(text: &str, is_terminal: bool) -> String {
    if is_terminal { record::wrapped(text) } else { format!("{}\n", printable_lines(text)) }
}

/// Whether a stream has colours: on terminals that know them (`TERM`), unless `NO_COLOR` is set
/// (<https://no-color.org>).
pub fn has_colour(is_terminal: bool) -> bool {
    let set = |name| std::env::var_os(name).unwrap_or_default();
    has_colour_where(is_terminal, &set("NO_COLOR"), &set("TERM"))
}

fn has_colour_where(is_terminal: bool, no_color: &OsStr, term: &OsStr) -> bool {
    is_terminal && no_color.is_empty() && term != "dumb"
}

/// Columns of the terminal: of `COLUMNS` where that is set, else as the terminal says; none without
/// one.
pub fn terminal_columns() -> Option<u16> {
    let set = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let of_terminal = || terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0);
    set.filter(|columns| *columns > 0).or_else(of_terminal)
}

/// Says which nodes are in an answer, and what they noted, on standard error.
pub fn say_coverage(coverage: &Coverage) {
    eprint!("{}", said(&coverage.lines().join("\n")));
}

/// A double as SQLite's shell shows it, but with the shortest digits that read back to the same
/// double.
pub fn real_text(real: f64) -> String {
    if real.is_infinite() {
        return if real > 0.0 { "Inf".to_owned() } else { "-Inf".to_owned() };
    }
    let magnitude = real.abs();
    if magnitude != 0.0 && !(1e-5..1e15).contains(&magnitude) {
        return format!("{real:e}");
    }
    let text = format!("{real}");
    if text.contains('.') { text } else { format!("{text}.0") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_have_them() {
        let has = |is_terminal, no_color: &str, term: &str| {
            has_colour_where(is_terminal, OsStr::new(no_color), OsStr::new(term))
        };
        assert!(has(true, "", "xterm") && has(true, "", ""));
        assert!(!has(true, "1", "xterm") && !has(true, "", "dumb") && !has(false, "", "xterm"));
    }

    #[test]
    fn what_is_said_on_a_terminal_fits_80_columns() {
        let note = format!("  note: n1 {}", "words ".repeat(40).trim_end());
        assert_eq!(
            said_where(&format!("1 of 1 node answered\n{note}"), false),
            format!("1 of 1 node answered\n{note}\n")
        );
        let shown = said_where(&note, true);
        assert!(shown.lines().count() == 4 && shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        assert_eq!(said_where("a\u{1b}[2J", false), "a\\x1b[2J\n");
    }

    fn result<'a>(columns: &'a [ColumnMeta], rows: &'a [Vec<Value>], coverage: Option<&'a Coverage>) -> Printed<'a> {
        Printed { columns, rows, coverage, elapsed_ms: 1.25 }
    }

    fn printed(format: Format, rows: &[Vec<Value>], coverage: Option<&Coverage>) -> (String, String) {
        let columns = [
            ColumnMeta { name: "k".into(), decl_type: "INTEGER".into() },
            ColumnMeta { name: "v".into(), decl_type: String::new() },
        ];
        let (mut out, mut err) = (Vec::new(), Vec::new());
        print(&result(&columns, rows, coverage), format, &mut out, &mut err).expect("writing to memory");
        (String::from_utf8(out).expect("utf-8"), String::from_utf8(err).expect("utf-8"))
    }

    fn sample() -> Vec<Vec<Value>> {
        vec![
            vec![Value::Integer(i64::MAX), Value::Real(1.0)],
            vec![Value::Null, Value::Text(b"a\x1b[31m,\"b\"\n".to_vec())],
            vec![Value::Integer(-1), Value::Blob(vec![0, 255])],
        ]
    }

    #[test]
    fn json_keeps_integers_and_carries_coverage() {
        let coverage = Coverage { asked: 1, answered: 1, ..Coverage::default() };
        let (out, err) = printed(Format::Json, &sample(), Some(&coverage));
        let value: serde_json::Value = serde_json::from_str(&out).expect("valid JSON");
        assert_eq!(value["columns"][0], serde_json::json!({"name": "k", "type": "INTEGER"}));
        assert_eq!(value["rows"][0], serde_json::json!([i64::MAX, 1.0]));
        assert_eq!(value["rows"][2], serde_json::json!([-1, {"blob": "00ff"}]));
        assert_eq!(value["coverage"], serde_json::json!({"asked": 1, "answered": 1, "missing": [], "notes": []}));
        assert!(value["elapsed_ms"].is_number());
        assert_eq!(err, "");
    }

    #[test]
    fn ndjson_is_one_object_a_row() {
        let (out, _) = printed(Format::Ndjson, &sample(), None);
        assert_eq!(out.lines().next(), Some(r#"{"k":9223372036854775807,"v":1.0}"#));
        assert_eq!(out.lines().count(), 3);
    }

    #[test]
    fn lines_name_each_value() {
        let (out, err) = printed(Format::Line, &sample(), None);
        assert!(out.starts_with("k = 9223372036854775807\nv = 1.0\n\nk = \nv = a\\x1b[31m"), "{out}");
        assert_eq!(err, "3 rows in 1.2 ms\n");
    }

    #[test]
    fn csv_quotes_and_leaves_null_empty() {
        let (out, _) = printed(Format::Csv, &sample(), None);
        assert_eq!(out, "k,v\n9223372036854775807,1.0\n,\"a\u{1b}[31m,\"\"b\"\"\n\"\n-1,x'00ff'\n");
    }

    #[test]
    fn a_table_never_sends_control_characters_to_a_terminal() {
        let (out, err) = printed(Format::Table, &sample(), None);
        assert!(out.contains(r"a\x1b[31m"), "{out}");
        assert!(!out.contains('\u{1b}'));
        assert_eq!(err, "3 rows in 1.2 ms\n");
    }

    #[test]
    fn what_comes_in_pieces_is_printed_as_what_comes_at_once() {
        let columns = vec![
            ColumnMeta { name: "k".into(), decl_type: "INTEGER".into() },
            ColumnMeta { name: "v".into(), decl_type: String::new() },
        ];
        for format in [Format::Json, Format::Ndjson, Format::Csv, Format::Line, Format::Table] {
            for rows in [Vec::new(), sample()] {
                let at_once = printed(format, &rows, None);
                let mut printer = Printer::new(format, columns.clone());
                let (mut out, mut err) = (Vec::new(), Vec::new());
                for row in rows {
                    printer.rows(vec![row], &mut out).expect("writing to memory");
                }
                printer.end(None, 1.25, &mut out, &mut err).expect("writing to memory");
                let pieces = (String::from_utf8(out).expect("utf-8"), String::from_utf8(err).expect("utf-8"));
                assert_eq!(pieces, at_once);
            }
        }
    }

    #[test]
    fn a_table_goes_on_below_its_first_rows_at_least_as_wide() {
        let column = |name: &str| ColumnMeta { name: name.into(), decl_type: String::new() };
        let mut printer = Printer::new(Format::Table, vec![column("k"), column("word")]);
        let row = |k: i64, word: &str| vec![Value::Integer(k), Value::Text(word.as_bytes().to_vec())];
        let (mut out, mut err) = (Vec::new(), Vec::new());
        printer.rows(vec![row(100, "a"), row(2, "b")], &mut out).expect("writing to memory");
        assert_eq!(out, b"", "widths are not known yet");
        printer.idle(&mut out).expect("writing to memory");
        printer.rows(vec![row(3, "c")], &mut out).expect("writing to memory");
        printer.idle(&mut out).expect("writing to memory");
        printer.rows(vec![row(12_345, "longer than any"), row(4, "d")], &mut out).expect("writing to memory");
        printer.end(None, 1.0, &mut out, &mut err).expect("writing to memory");
        let text = String::from_utf8(out).expect("utf-8");
        assert_eq!(text, "  k  word\n100  a\n  2  b\n  3  c\n12345  longer than any\n    4  d\n");
        assert_eq!(String::from_utf8(err).expect("utf-8"), "5 rows in 1.0 ms\n");
    }

    #[test]
    fn reals() {
        for (real, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (27775.5517, "27775.5517"),
            (1e300, "1e300"),
            (f64::INFINITY, "Inf"),
        ] {
            assert_eq!(real_text(real), text);
        }
    }
}
