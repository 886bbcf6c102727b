//! Owns how rows are ordered and handed out.

use query_planner::{Batch, NodeError, Value};

use super::super::encode::Scalar;
use super::Emit;

/// Rows of a batch.
const BATCH_ROWS: usize = 4096;

/// Hand rows out as batches.
pub(super) fn emit_rows(rows: Vec<Vec<Value>>, width: usize, emit: Emit<'_>) -> Result<(), NodeError> {
    let mut rows = rows.into_iter().peekable();
    while rows.peek().is_some() {
        let mut batch = Batch { rows: 0, columns: vec![Vec::new(); width] };
        for row in rows.by_ref().take(BATCH_ROWS) {
            batch.rows += 1;
            batch.columns.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
        }
        emit(batch)?;
    }
    Ok(())
}

pub(super) fn value_of(scalar: &Scalar) -> Value {
    match scalar {
        Scalar::Null => Value::Null,
        Scalar::Integer(value) => Value::Integer(*value),
        Scalar::Text(text) => Value::Text(text.clone()),
    }
}

/// SQLite's order of values of one column or aggregate: NULL, numbers, text, blobs.
pub(super) fn compare(a: &Value, b: &Value, desc: bool, nulls_first: bool) -> std::cmp::Ordering {
    use std::cmp::Ordering;
    let null = |value: &Value| *value == Value::Null;
    let nulls = match (null(a), null(b)) {
        (true, true) => return Ordering::Equal,
        (true, false) => Some(Ordering::Less),
        (false, true) => Some(Ordering::Greater),
        (false, false) => None,
    };
    if let Some(order) = nulls {
        return if nulls_first { order } else { order.reverse() };
    }
    let order = match (a, b) {
        (Value::Integer(a), Value::Integer(b)) => a.cmp(b),
        (Value::Real(a), Value::Real(b)) => a.total_cmp(b),
        (Value::Text(a), Value::Text(b)) | (Value::Blob(a), Value::Blob(b)) => a.cmp(b),
        _ => Ordering::Equal,
    };
    if desc { order.reverse() } else { order }
}
