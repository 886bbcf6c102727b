//! Values to text, sorting and hashing, as SQLite's own sqllogictest runner does it.
//!
//! `I` columns are read as integers, `R` columns as `%.3f`, `T` columns as text with `NULL` and
//! `(empty)` spelled out and bytes outside ASCII's printable range as `@`. Conversions are done by
//! SQLite itself, so they are its own.

use md5::{Digest, Md5};
use query_planner::Value;
use rusqlite::{Connection, OptionalExtension as _};

use super::script::{ColumnKind, Expectation, ExpectedResult, Sort};

/// Turns values into the text that sqllogictest files hold.
#[derive(Debug)]
pub struct Formatter {
    conn: Connection,
}

impl Formatter {
    /// A formatter.
    ///
    /// # Errors
    /// SQLite cannot start.
    pub fn new() -> rusqlite::Result<Self> {
        Ok(Formatter { conn: Connection::open_in_memory()? })
    }

    /// A result as the file would hold it before sorting. `None` when a row's width is not that of
    /// `kinds`.
    ///
    /// # Errors
    /// SQLite refuses a conversion.
    pub fn rows(&self, rows: &[Vec<Value>], kinds: &[ColumnKind]) -> rusqlite::Result<Option<Vec<Vec<String>>>> {
        if rows.iter().any(|row| row.len() != kinds.len()) {
            return Ok(None);
        }
        rows.iter()
            .map(|row| row.iter().zip(kinds).map(|(value, kind)| self.value(value, *kind)).collect())
            .collect::<rusqlite::Result<_>>()
            .map(Some)
    }

    /// One value.
    ///
    /// # Errors
    /// SQLite refuses the conversion.
    pub fn value(&self, value: &Value, kind: ColumnKind) -> rusqlite::Result<String> {
        let sql = match (kind, value) {
            (_, Value::Null) => return Ok("NULL".to_owned()),
            (ColumnKind::Integer | ColumnKind::Text, Value::Integer(value)) => return Ok(value.to_string()),
            (ColumnKind::Text, Value::Text(bytes) | Value::Blob(bytes)) => return Ok(printable(bytes)),
            (ColumnKind::Integer, _) => "SELECT CAST(CAST(?1 AS INTEGER) AS TEXT)",
            (ColumnKind::Real, _) => "SELECT printf('%.3f', CAST(?1 AS REAL))",
            (ColumnKind::Text, _) => "SELECT CAST(?1 AS TEXT)",
        };
        let text: Option<String> =
            self.conn.prepare_cached(sql)?.query_row([value], |row| row.get(0)).optional()?.flatten();
        Ok(printable(text.unwrap_or_default().as_bytes()))
    }
}

fn printable(bytes: &[u8]) -> String {
    // A C string ends at the first NUL.
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    if bytes.is_empty() {
        return "(empty)".to_owned();
    }
    bytes.iter().map(|byte| if (b' '..=b'~').contains(byte) { char::from(*byte) } else { '@' }).collect()
}

/// All values of a result in the order in which a file lists them.
pub fn sorted(mut rows: Vec<Vec<String>>, sort: Sort) -> Vec<String> {
    match sort {
        Sort::No => rows.into_iter().flatten().collect(),
        Sort::Rows => {
            rows.sort_unstable();
            rows.into_iter().flatten().collect()
        }
        Sort::Values => {
            let mut values: Vec<String> = rows.into_iter().flatten().collect();
            values.sort_unstable();
            values
        }
    }
}

/// MD5 of the values, each followed by a line feed, in hexadecimal.
pub fn hash(values: &[String]) -> String {
    let mut hasher = Md5::new();
    for value in values {
        hasher.update(value.as_bytes());
        hasher.update(b"\n");
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether sorted values are what the file expects. `false` for a query that must fail.
pub fn matches(values: &[String], expected: &Expectation) -> bool {
    match &expected.result {
        ExpectedResult::Error => false,
        ExpectedResult::Values(wanted) => values == wanted.as_slice(),
        ExpectedResult::Hash { values: count, md5 } => values.len() == *count && hash(values) == *md5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(value: Value, kind: ColumnKind) -> String {
        Formatter::new().unwrap().value(&value, kind).unwrap()
    }

    #[test]
    fn values_become_what_sqlite_prints() {
        use ColumnKind::{Integer, Real, Text};
        assert_eq!(shown(Value::Null, Real), "NULL");
        assert_eq!(shown(Value::Integer(i64::MIN), Integer), "-9223372036854775808");
        assert_eq!(shown(Value::Real(-7.9), Integer), "-7");
        assert_eq!(shown(Value::Text(b"12abc".to_vec()), Integer), "12");
        assert_eq!(shown(Value::Text(b"abc".to_vec()), Integer), "0");
        assert_eq!(shown(Value::Integer(3), Real), "3.000");
        assert_eq!(shown(Value::Real(2.0 / 3.0), Real), "0.667");
        assert_eq!(shown(Value::Text(b"1.5x".to_vec()), Real), "1.500");
        assert_eq!(shown(Value::Real(3.0), Text), "3.0");
        assert_eq!(shown(Value::Text(Vec::new()), Text), "(empty)");
        assert_eq!(shown(Value::Text("a\tb\u{e9}".into()), Text), "a@b@@");
        assert_eq!(shown(Value::Blob(b"ab\0c".to_vec()), Text), "ab");
    }

    #[test]
    fn sort_modes() {
        let rows = || vec![vec!["2".to_owned(), "a".to_owned()], vec!["10".to_owned(), "b".to_owned()]];
        assert_eq!(sorted(rows(), Sort::No), ["2", "a", "10", "b"]);
        assert_eq!(sorted(rows(), Sort::Rows), ["10", "b", "2", "a"]);
        assert_eq!(sorted(rows(), Sort::Values), ["10", "2", "a", "b"]);
    }

    #[test]
    fn hash_is_md5_of_lines() {
        // As `md5sum` says of nothing and of "1\n".
        assert_eq!(hash(&[]), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(hash(&["1".to_owned()]), "b026324c6904b2a9cb4b88d6d61c81d1");
        let expected = Expectation {
            kinds: vec![ColumnKind::Integer],
            sort: Sort::No,
            label: None,
            result: ExpectedResult::Hash { values: 1, md5: "b026324c6904b2a9cb4b88d6d61c81d1".to_owned() },
        };
        assert!(matches(&["1".to_owned()], &expected));
        assert!(!matches(&["2".to_owned()], &expected));
    }

    #[test]
    fn a_wrong_width_is_no_result() {
        let rows = vec![vec![Value::Integer(1)]];
        assert_eq!(Formatter::new().unwrap().rows(&rows, &[ColumnKind::Integer; 2]).unwrap(), None);
    }
}
