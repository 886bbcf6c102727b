//! Reading sqllogictest files into steps.
//!
//! The sqllogictest crate parses; this module cleans the text first, because the crate differs from
//! SQLite's own runner: it takes no comment after `skipif`/`onlyif` (most of the corpus has them),
//! and it lets a condition before `halt` or `hash-threshold` fall through to the next record.
//! Running and comparing are not here.

use sqllogictest::{Condition, QueryExpect, Record, SortMode, StatementExpect};

/// The engine whose `skipif`/`onlyif` conditions hold.
const ENGINE: &str = "sqlite";

/// What a file asks for, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Line of the record, from 1.
    pub line: u32,
    /// The SQL.
    pub sql: String,
    /// What to do with it.
    pub kind: StepKind,
}

/// What kind of record.
#[derive(Debug, Clone, PartialEq)]
pub enum StepKind {
    /// Changes the database.
    Statement {
        /// Whether it must fail.
        fails: bool,
    },
    /// Asks it.
    Query(Expectation),
}

/// What a query must answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    /// One kind a result column.
    pub kinds: Vec<ColumnKind>,
    /// How to sort before comparing.
    pub sort: Sort,
    /// Queries with one label must have equal results.
    pub label: Option<String>,
    /// The result.
    pub result: ExpectedResult,
}

/// The result part of a query record.
#[derive(Debug, Clone, PartialEq)]
pub enum ExpectedResult {
    /// The query must fail.
    Error,
    /// Values, row by row.
    Values(Vec<String>),
    /// Too many values to list.
    Hash {
        /// How many.
        values: usize,
        /// Their MD5, each value followed by a line feed, in hexadecimal.
        md5: String,
    },
}

/// How a column's values become text before they are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// `I`
    Integer,
    /// `R`
    Real,
    /// `T`
    Text,
}

impl sqllogictest::ColumnType for ColumnKind {
    fn from_char(value: char) -> Option<Self> {
        match value {
            'I' => Some(ColumnKind::Integer),
            'R' => Some(ColumnKind::Real),
            'T' => Some(ColumnKind::Text),
            _ => None,
        }
    }

    fn to_char(&self) -> char {
        match self {
            ColumnKind::Integer => 'I',
            ColumnKind::Real => 'R',
            ColumnKind::Text => 'T',
        }
    }
}

/// Sorting before comparing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// As answered.
    No,
    /// Whole rows.
    Rows,
    /// Each value on its own.
    Values,
}

/// A file cannot be read as a sqllogictest script.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The parser's own words.
    #[error("{0}")]
    Syntax(#[from] sqllogictest::ParseError),
    /// A record of a newer dialect than SQLite's corpus.
    #[error("line {line}: {what} is not a record of SQLite's sqllogictest")]
    Unknown {
        /// Where.
        line: u32,
        /// What stands there.
        what: &'static str,
    },
}

/// Read a script. Records for other engines are left out; `halt` ends it.
///
/// # Errors
/// A record that is no record of SQLite's corpus.
pub fn read(text: &str) -> Result<Vec<Step>, ScriptError> {
    let mut steps = Vec::new();
    for record in sqllogictest::parse::<ColumnKind>(&clean(text))? {
        match record {
            Record::Statement { loc, conditions, sql, expected, .. } if holds(&conditions) => {
                let fails = matches!(expected, StatementExpect::Error(_));
                steps.push(Step { line: loc.line(), sql, kind: StepKind::Statement { fails } });
            }
            Record::Query { loc, conditions, sql, expected, .. } if holds(&conditions) => {
                steps.push(Step { line: loc.line(), sql, kind: StepKind::Query(expectation(expected)) });
            }
            Record::Halt { .. } => break,
            Record::Include { loc, .. } => return Err(ScriptError::Unknown { line: loc.line(), what: "include" }),
            Record::System { loc, .. } => return Err(ScriptError::Unknown { line: loc.line(), what: "system" }),
            Record::Let { loc, .. } => return Err(ScriptError::Unknown { line: loc.line(), what: "let" }),
            Record::Control(_) => return Err(ScriptError::Unknown { line: 0, what: "control" }),
            _ => {}
        }
    }
    Ok(steps)
}

fn expectation(expected: QueryExpect<ColumnKind>) -> Expectation {
    match expected {
        QueryExpect::Error(_) => {
            Expectation { kinds: Vec::new(), sort: Sort::No, label: None, result: ExpectedResult::Error }
        }
        QueryExpect::Results { types, sort_mode, label, results, .. } => Expectation {
            kinds: types,
            sort: match sort_mode {
                None | Some(SortMode::NoSort) => Sort::No,
                Some(SortMode::RowSort) => Sort::Rows,
                Some(SortMode::ValueSort) => Sort::Values,
            },
            label,
            result: hash_line(&results).unwrap_or(ExpectedResult::Values(results)),
        },
    }
}

/// `30 values hashing to 3c13dee48d9356ae19af2515e05e6b54`, the form a result over the file's hash
/// threshold has.
fn hash_line(results: &[String]) -> Option<ExpectedResult> {
    let [line] = results else { return None };
    let (values, md5) = line.split_once(" values hashing to ")?;
    let values = values.parse().ok()?;
    let is_md5 = md5.len() == 32 && md5.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_md5.then(|| ExpectedResult::Hash { values, md5: md5.to_ascii_lowercase() })
}

fn holds(conditions: &[Condition]) -> bool {
    conditions.iter().all(|condition| match condition {
        Condition::OnlyIf { label } => label == ENGINE,
        Condition::SkipIf { label } => label != ENGINE,
    })
}

/// The same script, line for line, without comments after directives and with conditional `halt`
/// and `hash-threshold` decided.
fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Conditions seen since the last record, and whether they hold: written out once it is known
    // what they stand before.
    let mut pending: Vec<String> = Vec::new();
    let mut pending_holds = true;
    let mut at_start = true;
    for line in text.lines() {
        let word = if at_start { line.split_whitespace().next().unwrap_or_default() } else { "" };
        match word {
            "skipif" | "onlyif" => {
                let label = line.split_whitespace().nth(1).unwrap_or_default();
                pending_holds &= (word == "onlyif") == (label == ENGINE);
                pending.push(format!("{word} {label}"));
                continue;
            }
            "halt" | "hash-threshold" => {
                // Keep the number of lines, so that line numbers stay true.
                pending.drain(..).for_each(|_| out.push('\n'));
                if pending_holds {
                    out.push_str(line.split(" #").next().unwrap_or_default().trim_end());
                }
            }
            _ => {
                for condition in pending.drain(..) {
                    out.push_str(&condition);
                    out.push('\n');
                }
                match word {
                    "query" | "statement" => out.push_str(line.split(" #").next().unwrap_or_default()),
                    _ => out.push_str(line.trim_end()),
                }
            }
        }
        out.push('\n');
        pending_holds = true;
        at_start = line.trim().is_empty() || line.starts_with('#') || matches!(word, "halt" | "hash-threshold");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_choose_records() {
        let steps = read(
            "hash-threshold 8\n\nonlyif mysql # DIV for integer division: \nquery I rowsort\nSELECT 1 DIV 1\n----\n1\n\n\
             skipif mysql # not compatible\nquery I rowsort label-1\nSELECT 1 / 1\n----\n1\n\n\
             onlyif sqlite\nstatement error\nDROP TABLE none\n",
        )
        .unwrap();
        assert_eq!(steps.len(), 2);
        assert_eq!((steps[0].line, steps[0].sql.as_str()), (10, "SELECT 1 / 1"));
        let StepKind::Query(expected) = &steps[0].kind else { panic!("a query") };
        assert_eq!((expected.sort, expected.label.as_deref()), (Sort::Rows, Some("label-1")));
        assert_eq!(steps[1].kind, StepKind::Statement { fails: true });
    }

    #[test]
    fn a_condition_before_halt_does_not_reach_the_next_record() {
        let steps = read("onlyif mssql\nhalt\n\nstatement ok\nSELECT 1\n").unwrap();
        assert_eq!((steps.len(), steps[0].line), (1, 4));
        assert!(read("skipif mssql\nhalt\n\nstatement ok\nSELECT 1\n").unwrap().is_empty());
        assert_eq!(read("onlyif mysql\nhash-threshold 8\n\nstatement ok\nSELECT 1\n").unwrap().len(), 1);
    }

    #[test]
    fn hash_results_are_told_from_values() {
        let text = "query II nosort\nSELECT 1, 2\n----\n30 values hashing to 3c13dee48d9356ae19af2515e05e6b54\n";
        let StepKind::Query(expected) = &read(text).unwrap()[0].kind else { panic!("a query") };
        assert_eq!(
            expected.result,
            ExpectedResult::Hash { values: 30, md5: "3c13dee48d9356ae19af2515e05e6b54".to_owned() }
        );
        assert_eq!(hash_line(&["30 values hashing to nothing".to_owned()]), None);
    }

    #[test]
    fn records_of_other_dialects_are_named() {
        let error = read("system ok\nls\n").unwrap_err().to_string();
        assert!(error.contains("line 1: system"), "{error}");
    }
}
