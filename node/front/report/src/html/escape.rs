//! Text of others (processes, hosts, notes) in the three languages of a page: HTML, JSON within a
//! script element, and CSV that a spreadsheet opens. None of it may become markup, code or formula.

use std::fmt::Write as _;

use query_planner::Value;

/// Text as HTML, in elements and in quoted attributes; characters that control a terminal or the
/// direction of writing are written as codes.
pub(super) fn text(text: &str) -> String {
    let shown = record::printable_lines(text);
    let mut out = String::with_capacity(shown.len());
    for c in shown.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// JSON for a script element: nothing in it ends the element or begins a comment.
pub(super) fn json(value: &serde_json::Value) -> String {
    let mut out = String::new();
    for c in value.to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// A value for a person's table, or for CSV.
pub(super) fn value(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Integer(int) => int.to_string(),
        Value::Real(real) => real.to_string(),
        Value::Text(text) => record::text(text),
        Value::Blob(bytes) => bytes.iter().fold(String::from("x"), |mut out, byte| {
            let _ = write!(out, "{byte:02x}");
            out
        }),
    }
}

/// Rows as CSV (RFC 4180). Text that a spreadsheet would take for a formula gets an apostrophe in
/// front, as OWASP's page on CSV injection advises.
pub(super) fn csv(columns: &[String], rows: &[Vec<Value>]) -> String {
    let mut out = String::new();
    line(columns.iter().map(|name| field(name, true)), &mut out);
    for row in rows {
        line(row.iter().map(|cell| field(&value(cell), matches!(cell, Value::Text(_)))), &mut out);
    }
    out
}

fn line(fields: impl Iterator<Item = String>, out: &mut String) {
    out.push_str(&fields.collect::<Vec<_>>().join(","));
    out.push_str("\r\n");
}

fn field(text: &str, of_others: bool) -> String {
    let formula = of_others && text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    match text.contains([',', '"', '\r', '\n', '\'']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "</script><img src=x onerror='alert(1)'>\"&\u{202e}\u{1b}[2J";

    #[test]
    fn text_stays_text() {
        let shown = text(HOSTILE);
        assert!(!shown.contains(['<', '>', '"', '\'', '\u{1b}', '\u{202e}']), "{shown}");
        assert!(shown.starts_with("&lt;/script&gt;&lt;img src=x"), "{shown}");
    }

    #[test]
    fn json_does_not_end_its_element() {
        let shown = json(&serde_json::json!({ "name": HOSTILE, "comment": "<!-- <script>" }));
        assert!(!shown.contains(['<', '>', '&']), "{shown}");
        let read: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!(read["name"], HOSTILE);
    }

    #[test]
    fn csv_holds_no_formula_and_numbers_stay_numbers() {
        let rows = [
            vec![Value::Integer(-5), Value::Text(b"=HYPERLINK(\"x\")".to_vec())],
            vec![Value::Null, Value::Text(b"a,\nb".to_vec())],
        ];
        let shown = csv(&["n".into(), "@name".into()], &rows);
        assert_eq!(shown, "n,\"'@name\"\r\n-5,\"'=HYPERLINK(\"\"x\"\")\"\r\n,\"a,\nb\"\r\n");
    }
}
