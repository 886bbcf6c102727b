//! The cells of an answer's rows, read as what is expected there.

use query_planner::Value;

/// The kinds of findings that are no verdicts on a job, as SQL has a list.
pub const NO_VERDICTS: &str = "('archive', 'repeat_culprit')";

/// A cell as a number.
pub fn integer(row: &[Value], column: usize) -> Option<i64> {
    match row.get(column) {
        Some(Value::Integer(number)) => Some(*number),
        _ => None,
    }
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
    match row.get(column) {
        Some(Value::Text(text)) => String::from_utf8_lossy(text).into_owned(),
        _ => String::new(),
    }
}

/// A text as SQL has it.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
