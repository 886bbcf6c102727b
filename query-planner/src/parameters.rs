//! Parameters of a text: `:name` becomes a literal, token by token, so that a value can be nothing
//! but a value. Fragments travel as text and are planned by their conditions, so values are written
//! into the SQL instead of being bound at every node.

use std::collections::BTreeMap;

use sqlite3_parser::lexer::Scanner;
use sqlite3_parser::lexer::sql::{TokenType, Tokenizer};

use crate::batch::Value;
use crate::error::QueryError;

/// The names of the parameters `:name` of a text, in the order in which they come first.
///
/// # Errors
/// It cannot be cut into tokens.
pub fn parameters(sql: &str) -> Result<Vec<String>, QueryError> {
    let mut names: Vec<String> = Vec::new();
    for (_, name) in places(sql)? {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// A text with literals in place of its parameters.
///
/// # Errors
/// A parameter has no value, a value no parameter; a value cannot be written as a literal (a text
/// with a NUL, NaN); the text cannot be cut into tokens.
pub fn with_values(sql: &str, values: &BTreeMap<String, Value>) -> Result<String, QueryError> {
    let (mut filled, mut after) = (String::with_capacity(sql.len()), 0);
    let places = places(sql)?;
    for (at, name) in &places {
        let value =
            values.get(*name).ok_or_else(|| QueryError::wrong(format!("the parameter :{name} has no value")))?;
        filled.push_str(&sql[after..*at]);
        // Blanks on both sides: neighbours are no part of the literal.
        filled.push(' ');
        filled.push_str(&literal(name, value)?);
        filled.push(' ');
        after = at + 1 + name.len();
    }
    filled.push_str(&sql[after..]);
    match values.keys().find(|name| !places.iter().any(|(_, known)| known == name)) {
        Some(name) => {
            Err(QueryError::wrong(format!("there is a value for :{name}, but the SQL has no such parameter")))
        }
        None => Ok(filled),
    }
}

/// Where parameters begin, and their names.
fn places(sql: &str) -> Result<Vec<(usize, &str)>, QueryError> {
    let (mut scanner, mut found) = (Scanner::new(Tokenizer::new()), Vec::new());
    loop {
        let scanned = scanner.scan(sql.as_bytes());
        let (start, token, end) = scanned.map_err(|error| QueryError::wrong(error.to_string()))?;
        match token {
            None => return Ok(found),
            Some((_, TokenType::TK_VARIABLE)) => {
                // Others (`?`, `@name`, `$name`) stay, and planning reports that they cannot be
                // bound.
                if let Some(name) = sql.get(start..end).and_then(|text| text.strip_prefix(':')) {
                    found.push((start, name));
                }
            }
            Some(_) => {}
        }
    }
}

fn literal(name: &str, value: &Value) -> Result<String, QueryError> {
    match value {
        Value::Null => Ok("NULL".to_owned()),
        Value::Integer(integer) => Ok(integer.to_string()),
        Value::Real(real) if real.is_finite() => Ok(format!("{real:?}")),
        Value::Real(real) if real.is_nan() => Err(QueryError::wrong(format!(":{name}: NaN is no value of SQLite's"))),
        // Too large for a real: SQLite reads it as infinity.
        Value::Real(real) => Ok(if *real > 0.0 { "9e999" } else { "-9e999" }.to_owned()),
        Value::Text(text) => match std::str::from_utf8(text) {
            Ok(text) if !text.contains('\0') => Ok(format!("'{}'", text.replace('\'', "''"))),
            // No literal holds these bytes. (`+`: like a literal, it makes no text of what it is compared with.)
            _ => Ok(format!("+CAST({} AS TEXT)", of_bytes(text))),
        },
        Value::Blob(bytes) => Ok(of_bytes(bytes)),
    }
}

fn of_bytes(bytes: &[u8]) -> String {
    format!("x'{}'", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(value: Value) -> BTreeMap<String, Value> {
        BTreeMap::from([("x".to_owned(), value)])
    }

    fn text(text: &str) -> Value {
        Value::Text(text.as_bytes().to_vec())
    }

    #[test]
    fn only_tokens_are_parameters() {
        let sql = "SELECT ':x', \":x\", [:x], `:x`, :x -- :x\n/* :x */ + :x";
        assert_eq!(parameters(sql).unwrap(), ["x"]);
        let filled = with_values(sql, &one(Value::Integer(-5))).unwrap();
        assert_eq!(filled, "SELECT ':x', \":x\", [:x], `:x`,  -5  -- :x\n/* :x */ +  -5 ");
        // Two minus signs must not make a comment.
        assert_eq!(with_values("SELECT 1-:x", &one(Value::Integer(-5))).unwrap(), "SELECT 1- -5 ");
        assert!(parameters("SELECT 'never ends").is_err());
    }

    #[test]
    fn what_has_no_value_or_no_parameter_is_an_error() {
        let message = |result: Result<String, QueryError>| result.unwrap_err().message;
        assert!(message(with_values("SELECT :y", &one(Value::Null))).contains(":y has no value"));
        assert!(message(with_values("SELECT 1", &one(Value::Null))).contains("no such parameter"));
        assert!(message(with_values("SELECT :x", &one(Value::Real(f64::NAN)))).contains("NaN"));
        assert_eq!(with_values("SELECT :x", &one(Value::Real(f64::NEG_INFINITY))).unwrap(), "SELECT  -9e999 ");
    }

    #[test]
    fn a_text_of_any_bytes_is_compared_as_a_text() {
        let conn = rusqlite::Connection::open_in_memory().unwrap();
        // Beside what has no affinity a number is less than each text, and no text of its digits.
        for bytes in [&b"1"[..], b"1\xff", b"1\0"] {
            let sql = with_values("SELECT 5 < :x, :x < x'', 5 = :x", &one(Value::Text(bytes.to_vec()))).unwrap();
            let found: (bool, bool, bool) =
                conn.query_row(&sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
            assert_eq!(found, (true, true, false), "{sql}");
        }
    }

    proptest! {
        /// SQLite reads back what was given, whatever it is, and one statement stays one.
        #[test]
        fn a_value_is_a_value(given in "\\PC*", bytes: Vec<u8>, integer: i64, real in -1e300f64..1e300) {
            let conn = rusqlite::Connection::open_in_memory().unwrap();
            let sql = |value| with_values("SELECT 1-:x, :x AS x", &one(value)).unwrap();
            let back: String = conn.query_row(&sql(text(&given)), [], |row| row.get(1)).unwrap();
            prop_assert_eq!(back, given);
            let back: i64 = conn.query_row(&sql(Value::Integer(integer)), [], |row| row.get(1)).unwrap();
            prop_assert_eq!(back, integer);
            let back = conn.query_row(&sql(Value::Text(bytes.clone())), [], |row| match row.get_ref(1)? {
                rusqlite::types::ValueRef::Text(text) => Ok(text.to_vec()),
                other => panic!("{other:?}"),
            });
            prop_assert_eq!(back.unwrap(), bytes);
            let back: f64 = conn.query_row(&sql(Value::Real(real)), [], |row| row.get(1)).unwrap();
            prop_assert_eq!(back.to_bits(), real.to_bits());
        }
    }
}
