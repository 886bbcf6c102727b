//! JSON: one object for a result, or one object a row.

use std::io::{self, Write};

use model::Coverage;
use query_planner::{ColumnMeta, Value};
use record::steers;
use serde_json::json;

/// The beginning of `{"columns":[{"name","type"}],"rows":[[…]],"coverage":{…},"elapsed_ms":F}`; a
/// single file has no coverage member.
pub(super) fn write_begin(columns: &[ColumnMeta], out: &mut dyn Write) -> io::Result<()> {
    let columns: Vec<_> = columns.iter().map(|column| json!({"name": column.name, "type": column.decl_type})).collect();
    write!(out, "{{\"columns\":{},\"rows\":[", quiet(&json!(columns).to_string()))
}

/// Rows of that object, after `before` others.
pub(super) fn write_rows(rows: &[Vec<Value>], before: u64, out: &mut dyn Write) -> io::Result<()> {
    for (index, row) in rows.iter().enumerate() {
        let values: Vec<_> = row.iter().map(value_to_json).collect();
        write!(out, "{}{}", if before == 0 && index == 0 { "" } else { "," }, quiet(&json!(values).to_string()))?;
    }
    Ok(())
}

/// Its end.
pub(super) fn write_end(coverage: Option<&Coverage>, elapsed_ms: f64, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "]")?;
    if let Some(coverage) = coverage {
        write!(out, ",\"coverage\":{}", quiet(&json!(coverage).to_string()))?;
    }
    writeln!(out, ",\"elapsed_ms\":{}}}", json!(elapsed_ms))
}

/// JSON text in which characters that control a terminal are written as `\u…`, beyond what JSON
/// itself demands: the value is the same.
pub fn quiet(json: &str) -> String {
    if !json.chars().any(|c| !c.is_ascii_control() && steers(c) || c == '\u{7f}') {
        return json.to_owned();
    }
    let mut quiet = String::with_capacity(json.len());
    for c in json.chars() {
        // Only strings contain such characters, and all of them have one unit of UTF-16.
        if steers(c) && (!c.is_ascii_control() || c == '\u{7f}') {
            quiet.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            quiet.push(c);
        }
    }
    quiet
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
            let (name, value) = (quiet(&json!(name).to_string()), quiet(&value_to_json(value).to_string()));
            write!(out, "{}{name}:{value}", if index == 0 { "{" } else { "," })?;
        }
        writeln!(out, "}}")?;
    }
    Ok(())
}

/// A SQLite value as JSON: integers stay integers. What JSON has no form for is an object, which no
/// text can be taken for: `{"blob": "00ff"}`, `{"text": "61ff"}` for a text that is not UTF-8, both
/// in hexadecimal digits, and `{"real": "Inf"}` or `"-Inf"`.
pub fn value_to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Integer(integer) => json!(integer),
        Value::Real(real) => match serde_json::Number::from_f64(*real) {
            Some(number) => serde_json::Value::Number(number),
            None => json!({ "real": super::real_text(*real) }),
        },
        Value::Text(text) => {
            std::str::from_utf8(text).map_or_else(|_| json!({ "text": hex::encode(text) }), |text| json!(text))
        }
        Value::Blob(bytes) => json!({ "blob": hex::encode(bytes) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_values_are_the_same_json() {
        let values = [
            Value::Blob(vec![0xff]),
            Value::Blob(vec![0xfe]),
            Value::Text(vec![0xff]),
            Value::Text(vec![0xfe]),
            Value::Text(b"x'ff'".to_vec()),
            Value::Text(b"\xef\xbf\xbd".to_vec()),
            Value::Text(b"Inf".to_vec()),
            Value::Real(f64::INFINITY),
            Value::Real(f64::NEG_INFINITY),
            Value::Integer(1),
            Value::Real(1.0),
            Value::Null,
        ];
        let written: std::collections::BTreeSet<String> =
            values.iter().map(|value| value_to_json(value).to_string()).collect();
        assert_eq!(written.len(), values.len(), "{written:?}");
    }

    #[test]
    fn what_steers_a_terminal_is_escaped_and_means_the_same() {
        let value = json!(["\u{1b}[2J", "\u{9b}31m", "\u{7f}", "a\u{202e}b\u{200b}", "é\n", {"\u{85}": 1}]);
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let quiet = quiet(&text);
            assert!(!quiet.chars().any(|c| steers(c) && c != '\n'), "{quiet:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&quiet).unwrap(), value);
        }
    }
}
