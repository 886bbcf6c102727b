//! JSON: one object for a result, or one object a row.

use std::io::{self, Write};

use query_planner::{ColumnMeta, Value};
use serde_json::json;

use super::hex;
use crate::query::Coverage;

/// The beginning of `{"columns":[{"name","type"}],"rows":[[…]],"coverage":{…},"elapsed_ms":F}`; a single file has no
/// coverage member.
pub(super) fn write_begin(columns: &[ColumnMeta], out: &mut dyn Write) -> io::Result<()> {
    let columns: Vec<_> = columns.iter().map(|column| json!({"name": column.name, "type": column.decl_type})).collect();
    write!(out, "{{\"columns\":{},\"rows\":[", json!(columns))
}

/// Rows of that object, after `before` others.
pub(super) fn write_rows(rows: &[Vec<Value>], before: u64, out: &mut dyn Write) -> io::Result<()> {
    for (index, row) in rows.iter().enumerate() {
        let values: Vec<_> = row.iter().map(value_to_json).collect();
        write!(out, "{}{}", if before == 0 && index == 0 { "" } else { "," }, json!(values))?;
    }
    Ok(())
}

/// Its end.
pub(super) fn write_end(coverage: Option<&Coverage>, elapsed_ms: f64, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "]")?;
    if let Some(coverage) = coverage {
        write!(out, ",\"coverage\":{}", json!(coverage))?;
    }
    writeln!(out, ",\"elapsed_ms\":{}}}", json!(elapsed_ms))
}

/// One object a row, keyed by column name; a name that comes twice gets `:2`, `:3`, …
pub(super) fn write_lines(columns: &[ColumnMeta], rows: &[Vec<Value>], out: &mut dyn Write) -> io::Result<()> {
    let mut names: Vec<String> = Vec::with_capacity(columns.len());
    for column in columns {
        let mut name = column.name.clone();
        let mut copy = 2;
        while names.contains(&name) {
            name = format!("{}:{copy}", column.name);
            copy += 1;
        }
        names.push(name);
    }
    for row in rows {
        for (index, (name, value)) in names.iter().zip(row).enumerate() {
            write!(out, "{}{}:{}", if index == 0 { "{" } else { "," }, json!(name), value_to_json(value))?;
        }
        writeln!(out, "}}")?;
    }
    Ok(())
}

/// A SQLite value as JSON: integers stay integers; a blob is its SQL literal as a string; an infinity is the string
/// `"Inf"` or `"-Inf"`, since JSON has no number for it.
pub fn value_to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Integer(integer) => json!(integer),
        Value::Real(real) => match serde_json::Number::from_f64(*real) {
            Some(number) => serde_json::Value::Number(number),
            None => json!(super::real_text(*real)),
        },
        Value::Text(text) => json!(String::from_utf8_lossy(text)),
        Value::Blob(bytes) => json!(format!("x'{}'", hex(bytes))),
    }
}
