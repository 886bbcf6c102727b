//! The cells of an answer's rows, read as what is expected there.

use query_planner::Value;
pub use query_planner::literal as quoted;

/// The kinds of findings that are no verdicts on a job, as SQL has a list.
pub const NO_VERDICTS: &str = "('archive', 'repeat_culprit', 'tail_grown', 'tail_over')";

/// A value as a number.
pub fn integer_of(value: &Value) -> Option<i64> {
    match value {
        Value::Integer(number) => Some(*number),
        _ => None,
    }
}

/// A value as text.
pub fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    }
}

/// A cell as a number.
pub fn integer(row: &[Value], column: usize) -> Option<i64> {
    row.get(column).and_then(integer_of)
}

/// A cell as a number that may have a fraction.
pub fn real(row: &[Value], column: usize) -> Option<f64> {
    match row.get(column) {
        Some(Value::Integer(number)) => Some(*number as f64),
        Some(Value::Real(number)) => Some(*number),
        _ => None,
    }
}

/// A cell as text; empty where it is none.
pub fn text(row: &[Value], column: usize) -> String {
    row.get(column).and_then(text_of).unwrap_or_default()
}
