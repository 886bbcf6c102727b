//! Whether two answers to a question are the same: ordered ones row by row, others as multisets.

use anyhow::ensure;
use query_planner::Value;

use super::suite::Question;

/// Whose answer it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Types {
    /// SQLite's types must be the same, too.
    Same,
    /// Of an engine with types of its own: numbers count by their values.
    Own,
}

/// Compare an answer to `question` with the one that is known to be right.
///
/// # Errors
/// What differs.
pub fn compare(question: &Question, got: &[Vec<Value>], known: &[Vec<Value>], types: Types) -> anyhow::Result<()> {
    ensure!(got.len() == known.len(), "{} rows instead of {}", got.len(), known.len());
    let (got, known) = (canonical(question, got), canonical(question, known));
    for (at, (got, known)) in got.iter().zip(&known).enumerate() {
        let same = got.len() == known.len()
            && got.iter().zip(known).all(|(got, known)| is_same(got, known, question.tolerance, types));
        ensure!(same, "row {at} is {got:?} instead of {known:?}");
    }
    Ok(())
}

fn canonical(question: &Question, rows: &[Vec<Value>]) -> Vec<Vec<Value>> {
    let mut rows = rows.to_vec();
    for row in &mut rows {
        for &column in &question.sets {
            if let Some(Value::Text(text)) = row.get_mut(column) {
                let mut parts: Vec<&[u8]> = text.split(|byte| *byte == b',').collect();
                parts.sort_unstable();
                *text = parts.join(&b',');
            }
        }
    }
    if !question.ordered {
        // Floating columns last: those that differ by a rounding do not change the order then.
        rows.sort_by_cached_key(|row| {
            let (exact, floating): (Vec<_>, Vec<_>) = row.iter().partition(|value| !matches!(value, Value::Real(_)));
            format!("{exact:?} {floating:?}")
        });
    }
    rows
}

fn is_same(got: &Value, known: &Value, tolerance: f64, types: Types) -> bool {
    let number = |value: &Value| match value {
        Value::Integer(value) => Some(*value as f64),
        Value::Real(value) => Some(*value),
        // DuckDB's decimals come as text.
        Value::Text(text) if types == Types::Own => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    };
    match (got, known) {
        _ if got == known => true,
        (Value::Real(_), Value::Real(_)) => is_close(number(got), number(known), tolerance),
        (Value::Text(_), Value::Text(_)) => false,
        _ => types == Types::Own && is_close(number(got), number(known), tolerance),
    }
}

fn is_close(got: Option<f64>, known: Option<f64>, tolerance: f64) -> bool {
    let (Some(got), Some(known)) = (got, known) else { return false };
    (got - known).abs() <= tolerance * got.abs().max(known.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_types_tolerance_and_sets_count_as_the_question_says() {
        let suite = super::super::suite::read(&super::super::suite::directory()).unwrap();
        let mut question = suite[0].clone();
        let text = |text: &str| Value::Text(text.as_bytes().to_vec());
        let rows = [vec![Value::Integer(1), text("4,5")], vec![Value::Real(2.0), text("6")]];
        let mut turned = rows.to_vec();
        turned.reverse();
        question.ordered = true;
        assert!(compare(&question, &rows, &rows, Types::Same).is_ok());
        assert!(compare(&question, &turned, &rows, Types::Same).is_err());
        assert!(compare(&question, &rows[..1], &rows, Types::Same).is_err());
        question.ordered = false;
        assert!(compare(&question, &turned, &rows, Types::Same).is_ok());
        let other = [vec![Value::Real(1.0), text("5,4")], vec![Value::Real(2.0 + 1e-12), text("6")]];
        (question.ordered, question.sets, question.tolerance) = (true, vec![1], 1e-9);
        assert!(compare(&question, &other, &rows, Types::Same).is_err());
        assert!(compare(&question, &other, &rows, Types::Own).is_ok());
        question.tolerance = 0.0;
        assert!(compare(&question, &other, &rows, Types::Own).is_err());
        (question.sets, question.tolerance) = (Vec::new(), 1e-9);
        assert!(compare(&question, &other, &rows, Types::Own).is_err());
    }
}
