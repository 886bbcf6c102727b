//! JSON: one object for a result, or one object a row.

use std::io::{self, Write};

use query_planner::Value;
use serde_json::json;

use super::{Printed, hex};

/// `{"columns":[{"name","type"}],"rows":[[…]],"coverage":{…},"elapsed_ms":F}`; a single file has no coverage member.
pub(super) fn write_object(result: &Printed<'_>, out: &mut dyn Write) -> io::Result<()> {
    let columns: Vec<_> =
        result.columns.iter().map(|column| json!({"name": column.name, "type": column.decl_type})).collect();
    write!(out, "{{\"columns\":{},\"rows\":[", json!(columns))?;
    for (index, row) in result.rows.iter().enumerate() {
        let values: Vec<_> = row.iter().map(value_to_json).collect();
        write!(out, "{}{}", if index == 0 { "" } else { "," }, json!(values))?;
    }
    write!(out, "]")?;
    if let Some(coverage) = result.coverage {
        write!(out, ",\"coverage\":{}", json!(coverage))?;
    }
    writeln!(out, ",\"elapsed_ms\":{}}}", json!(result.elapsed_ms))
}

/// One object a row, keyed by column name; a name that comes twice gets `:2`, `:3`, …
pub(super) fn write_lines(result: &Printed<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut names: Vec<String> = Vec::with_capacity(result.columns.len());
    for column in result.columns {
        let mut name = column.name.clone();
        let mut copy = 2;
        while names.contains(&name) {
            name = format!("{}:{copy}", column.name);
            copy += 1;
        }
        names.push(name);
    }
    for row in result.rows {
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
