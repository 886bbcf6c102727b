//! Reads the questions. A file begins with what it asks, in comments, and then its header, one
//! `-- name: value` a line:
//!
//! - `ordered: yes` when ORDER BY fixes the order of all rows, `no` when they are compared as a
//!   multiset;
//! - `window: SPAN s at SHARE`, what `{since}` and `{until}` stand for: the SPAN seconds that end
//!   at that share of the rows' time (`{begin}` is where it begins, `{middle}` its middle);
//! - `tolerance: X`, by how much floating numbers may differ, relative to the larger one;
//! - `sets: COLUMN…` (from 1), columns whose comma-separated values may come in any order.
//!
//! After a line `-- duckdb:` follows the same question in DuckDB's words, where they differ.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

/// A question of the suite.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The file's name without its ending.
    pub name: String,
    /// Whether ORDER BY fixes the order of all rows.
    pub ordered: bool,
    /// By how much floating numbers may differ, relative to the larger one.
    pub tolerance: f64,
    /// Columns, from 0, whose comma-separated values may come in any order.
    pub sets: Vec<usize>,
    /// A span in seconds, and at which share of the rows' time it ends.
    window: Option<(f64, f64)>,
    sql: String,
    duck: Option<String>,
}

/// The time of all rows, Unix nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// When it begins.
    pub begin_ns: i64,
    /// When it ends.
    pub end_ns: i64,
}

impl Question {
    /// The question in SQLite's words over rows of this time.
    #[must_use]
    pub fn sql(&self, span: Span) -> String {
        self.with_times(&self.sql, span)
    }

    /// The same in DuckDB's words.
    #[must_use]
    pub fn duck(&self, span: Span) -> String {
        self.with_times(self.duck.as_ref().unwrap_or(&self.sql), span)
    }

    fn with_times(&self, sql: &str, span: Span) -> String {
        let (span_s, share) = self.window.unwrap_or_default();
        let until_ns = span.begin_ns + ((span.end_ns - span.begin_ns) as f64 * share) as i64;
        let since_ns = until_ns - (span_s * 1e9) as i64;
        let middle_ns = span.begin_ns.midpoint(span.end_ns);
        let times = [("{since}", since_ns), ("{until}", until_ns), ("{begin}", span.begin_ns), ("{middle}", middle_ns)];
        times.iter().fold(sql.to_owned(), |sql, (name, ns)| sql.replace(name, &ns.to_string()))
    }

    fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        let (sqlite, duck) = match text.split_once("\n-- duckdb:\n") {
            Some((sqlite, duck)) => (sqlite, Some(duck.trim().to_owned())),
            None => (text, None),
        };
        let (mut ordered, mut tolerance, mut sets, mut window) = (None, 0.0, Vec::new(), None);
        let mut lines = sqlite.lines().peekable();
        ensure!(lines.peek().is_some_and(|line| line.starts_with("-- ")), "begin with a comment on what it asks");
        while let Some(line) = lines.next_if(|line| line.starts_with("--")) {
            let Some((key, value)) = line.trim_start_matches('-').trim().split_once(": ") else { continue };
            match key {
                "ordered" => ordered = Some(value == "yes"),
                "tolerance" => tolerance = value.parse()?,
                "sets" => {
                    for column in value.split(' ') {
                        sets.push(column.parse::<usize>()?.checked_sub(1).context("columns count from 1")?);
                    }
                }
                "window" => {
                    let (span, share) = value.split_once(" s at ").context("write a window as SPAN s at SHARE")?;
                    window = Some((span.parse()?, share.parse()?));
                }
                _ => {}
            }
        }
        let sql = lines.collect::<Vec<_>>().join("\n").trim().to_owned();
        let ordered = ordered.context("say ordered: yes or no")?;
        if window.is_none() && [Some(&sql), duck.as_ref()].into_iter().flatten().any(|sql| sql.contains("{since}")) {
            bail!("{{since}} needs a window");
        }
        Ok(Self { name: name.to_owned(), ordered, tolerance, sets, window, sql, duck })
    }
}

/// Where the questions lie.
#[must_use]
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("adhoc")
}

/// The questions of a directory, by name.
///
/// # Errors
/// A file cannot be read, or its header is not as the module's documentation says.
pub fn read(directory: &Path) -> anyhow::Result<Vec<Question>> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("listing {}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|ending| ending == "sql"));
    files.sort();
    let parse = |file: &PathBuf| {
        let name = file.file_stem().and_then(|name| name.to_str()).context("a name in UTF-8")?;
        let question = Question::parse(name, &std::fs::read_to_string(file)?);
        question.with_context(|| format!("{}", file.display()))
    };
    files.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_variants_are_read() {
        let text = "-- What is asked: this.\n-- window: 0.5 s at 0.50\n-- ordered: no\n-- tolerance: 1e-9\n-- sets: 2 3\n\
                    SELECT {since}, {until}\nFROM t -- {begin}\n-- duckdb:\nSELECT 1\n";
        let question = Question::parse("01-a", text).unwrap();
        let span = Span { begin_ns: 1_000_000_000, end_ns: 5_000_000_000 };
        assert_eq!(question.sql(span), "SELECT 2500000000, 3000000000\nFROM t -- 1000000000");
        assert_eq!(question.duck(span), "SELECT 1");
        assert_eq!((question.ordered, question.tolerance), (false, 1e-9));
        assert_eq!(question.sets, [1, 2]);
        for wrong in ["SELECT 1", "-- What?\nSELECT 1", "-- What?\n-- ordered: yes\nSELECT {since}"] {
            assert!(Question::parse("x", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_suite_has_sixty_questions_and_more() {
        let suite = read(&directory()).unwrap();
        assert!(suite.len() >= 60, "{}", suite.len());
        let span = Span { begin_ns: 0, end_ns: 3_600_000_000_000 };
        assert!(suite.iter().all(|question| !question.sql(span).contains(['{', ';'])));
    }
}
