//! `COPY (SELECT …) TO STDOUT`: an answer as text, CSV or PostgreSQL's binary form
//! (<https://www.postgresql.org/docs/current/sql-copy.html>), as ADBC, DuckDB's scanner and psql's
//! `\copy` read it. Nothing is copied in.

use bytes::{BufMut, Bytes, BytesMut};
use pgwire::api::results::{DataRowEncoder, FieldInfo};
use pgwire::error::PgWireResult;
use query_planner::Value;

use super::tokens::{Kind, Token, closing};
use super::types;

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Csv,
    Binary,
}

/// What is copied, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Copy {
    /// The question.
    pub(super) sql: String,
    pub(super) form: Form,
    /// Whether the first line has the names of columns.
    header: bool,
    delimiter: u8,
    null: String,
}

/// Begins a binary copy, and ends it.
const SIGNATURE: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
const TRAILER: &[u8] = &[0xff, 0xff];

/// Why a COPY is refused.
const REFUSED: &str = "COPY (SELECT …) TO STDOUT and COPY table TO STDOUT are offered, with FORMAT text, csv or binary, HEADER, \
                       DELIMITER and NULL; nothing is copied in, and no file is written: rankmesh export does";

impl Copy {
    /// Reads the statement; its text is `sql`.
    pub(super) fn parsed(sql: &str, tokens: &[Token]) -> Result<Self, &'static str> {
        let is = |at: usize, text: &str| tokens.get(at).is_some_and(|token| token.is(text));
        let (question, mut at) = if is(1, "(") {
            let close = closing(tokens, 1).ok_or(REFUSED)?;
            (sql[tokens[1].at + 1..tokens[close].at].to_owned(), close + 1)
        } else {
            let mut end = 2;
            while is(end, ".") {
                end += 2;
            }
            let name = sql.get(tokens.get(1).ok_or(REFUSED)?.at..tokens.get(end).ok_or(REFUSED)?.at).ok_or(REFUSED)?;
            let mut columns = "*";
            if is(end, "(") {
                let close = closing(tokens, end).ok_or(REFUSED)?;
                columns = &sql[tokens[end].at + 1..tokens[close].at];
                end = close + 1;
            }
            (format!("SELECT {columns} FROM {name}"), end)
        };
        if !is(at, "to") || !is(at + 1, "stdout") {
            return Err(REFUSED);
        }
        at += 2;
        let mut copy = Self { sql: question, form: Form::Text, header: false, delimiter: 0, null: String::new() };
        let mut null = None;
        while let Some(token) = tokens.get(at) {
            at += 1;
            let name = token.name().unwrap_or_default().to_ascii_lowercase();
            let value = tokens.get(at).and_then(|token| token.string().or_else(|| token.name()));
            let mut takes_value = true;
            match (name.as_str(), value) {
                ("format", Some(form)) => {
                    copy.form = match form.to_ascii_lowercase().as_str() {
                        "text" => Form::Text,
                        "csv" => Form::Csv,
                        "binary" => Form::Binary,
                        _ => return Err(REFUSED),
                    }
                }
                ("csv", _) => (copy.form, takes_value) = (Form::Csv, false),
                ("binary", _) => (copy.form, takes_value) = (Form::Binary, false),
                ("header", value) => {
                    let said = value.map(|value| value.to_ascii_lowercase());
                    takes_value = matches!(said.as_deref(), Some("true" | "on" | "false" | "off"));
                    copy.header = !matches!(said.as_deref(), Some("false" | "off"));
                }
                ("delimiter", Some(delimiter)) => match delimiter.as_bytes() {
                    [one] if one.is_ascii() && !matches!(one, b'\n' | b'\r' | b'"' | b'\\') => copy.delimiter = *one,
                    _ => return Err(REFUSED),
                },
                ("null", Some(text)) => null = Some(text),
                ("encoding", Some(name)) if matches!(name.to_ascii_uppercase().as_str(), "UTF8" | "UTF-8") => {}
                ("with", _) => takes_value = false,
                _ if token.kind == Kind::Other && matches!(token.text.as_str(), "(" | ")" | ",") => takes_value = false,
                _ => return Err(REFUSED),
            }
            at += usize::from(takes_value);
        }
        if copy.delimiter == 0 {
            copy.delimiter = if copy.form == Form::Csv { b',' } else { b'\t' };
        }
        copy.null = null.unwrap_or_else(|| if copy.form == Form::Csv { String::new() } else { "\\N".to_owned() });
        Ok(copy)
    }

    /// What comes before the rows.
    pub(super) fn begin(&self, fields: &[FieldInfo]) -> Option<Bytes> {
        if self.form == Form::Binary {
            return Some(Bytes::from_static(SIGNATURE));
        }
        let mut line = BytesMut::new();
        for (at, field) in fields.iter().enumerate() {
            self.separate(at, &mut line);
            self.put(field.name(), &mut line);
        }
        line.put_u8(b'\n');
        self.header.then(|| line.freeze())
    }

    /// One row.
    ///
    /// # Errors
    /// A value has another type than its column, or is a text that PostgreSQL's cannot be.
    pub(super) fn row(&self, encoder: &mut DataRowEncoder, fields: &[FieldInfo], row: &[Value]) -> PgWireResult<Bytes> {
        let mut line = BytesMut::new();
        if self.form == Form::Binary {
            for (field, value) in fields.iter().zip(row) {
                types::encode(encoder, field, value)?;
            }
            let encoded = encoder.take_row();
            line.put_i16(encoded.field_count);
            line.extend_from_slice(&encoded.data);
            return Ok(line.freeze());
        }
        for (at, (field, value)) in fields.iter().zip(row).enumerate() {
            self.separate(at, &mut line);
            match value {
                Value::Null => line.extend_from_slice(self.null.as_bytes()),
                Value::Blob(bytes) => self.put(&format!("\\x{}", hex::encode(bytes)), &mut line),
                value => self.put(&types::text(field, value)?, &mut line),
            }
        }
        line.put_u8(b'\n');
        Ok(line.freeze())
    }

    /// What comes behind the rows.
    pub(super) fn end(&self) -> Option<Bytes> {
        (self.form == Form::Binary).then(|| Bytes::from_static(TRAILER))
    }

    fn separate(&self, at: usize, line: &mut BytesMut) {
        if at > 0 {
            line.put_u8(self.delimiter);
        }
    }

    fn put(&self, text: &str, line: &mut BytesMut) {
        if self.form == Form::Csv {
            let must_quote = text == self.null
                || text == "\\."
                || text.bytes().any(|byte| byte == self.delimiter || matches!(byte, b'"' | b'\n' | b'\r'));
            if must_quote {
                line.put_u8(b'"');
                line.extend_from_slice(text.replace('"', "\"\"").as_bytes());
                line.put_u8(b'"');
            } else {
                line.extend_from_slice(text.as_bytes());
            }
            return;
        }
        for byte in text.bytes() {
            let escaped = match byte {
                b'\n' => b'n',
                b'\r' => b'r',
                b'\t' => b't',
                b'\\' => b'\\',
                other if other == self.delimiter => other,
                other => {
                    line.put_u8(other);
                    continue;
                }
            };
            line.put_u8(b'\\');
            line.put_u8(escaped);
        }
    }
}

#[cfg(test)]
mod tests {
    use pgwire::api::Type;
    use pgwire::api::results::FieldFormat;

    use super::super::tokens::tokens;
    use super::*;

    fn parsed(sql: &str) -> Result<Copy, &'static str> {
        Copy::parsed(sql, &tokens(sql).unwrap())
    }

    #[test]
    fn its_forms_are_read() {
        let copy = parsed("COPY (SELECT 1, ')' AS x) TO STDOUT (FORMAT csv, HEADER, DELIMITER ';')").unwrap();
        assert_eq!((copy.sql.as_str(), copy.form, copy.header), ("SELECT 1, ')' AS x", Form::Csv, true));
        assert_eq!((copy.delimiter, copy.null.as_str()), (b';', ""));
        assert_eq!(parsed("COPY public.t (a, b) TO STDOUT").unwrap().sql.trim(), "SELECT a, b FROM public.t");
        assert_eq!(parsed("COPY \"t\" TO STDOUT WITH CSV HEADER").unwrap().form, Form::Csv);
        assert_eq!(parsed("copy (select 1) to stdout with (format 'binary')").unwrap().form, Form::Binary);
        assert!(!parsed("COPY t TO STDOUT (FORMAT csv, HEADER false)").unwrap().header);
        for sql in
            ["COPY t FROM STDIN", "COPY t TO '/tmp/x'", "COPY t TO PROGRAM 'x'", "COPY", "COPY (SELECT 1", "COPY t"]
        {
            assert!(parsed(sql).is_err(), "{sql}");
        }
        assert!(parsed("COPY t TO STDOUT (FORMAT xml)").is_err());
    }

    #[test]
    fn what_separates_is_escaped() {
        let fields = vec![FieldInfo::new("a".to_owned(), None, None, Type::TEXT, FieldFormat::Text); 4];
        let copied = |sql: &str, row: &[Value]| {
            let mut encoder = DataRowEncoder::new(std::sync::Arc::new(Vec::new()));
            parsed(sql).unwrap().row(&mut encoder, &fields, row)
        };
        let of = |sql: &str, row: &[Value]| String::from_utf8(copied(sql, row).unwrap().to_vec()).unwrap();
        let row = [Value::Text(b"a\tb\\c\nd".to_vec()), Value::Null, Value::Integer(-3), Value::Blob(vec![0, 255])];
        assert_eq!(of("COPY t TO STDOUT", &row), "a\\tb\\\\c\\nd\t\\N\t-3\t\\\\x00ff\n");
        let row = [Value::Text(b"a,\"b\"".to_vec()), Value::Null, Value::Text(Vec::new()), Value::Real(0.5)];
        assert_eq!(of("COPY t TO STDOUT CSV", &row), "\"a,\"\"b\"\"\",,\"\",0.5\n");
        let infinite = [Value::Real(f64::INFINITY), Value::Real(f64::NEG_INFINITY)];
        assert_eq!(of("COPY t TO STDOUT CSV", &infinite), "Infinity,-Infinity\n");
        for text in [&b"\xff\xfe"[..], b"a\0"] {
            for sql in ["COPY t TO STDOUT", "COPY t TO STDOUT CSV"] {
                let refused = copied(sql, &[Value::Text(text.to_vec())]).unwrap_err().to_string();
                assert!(refused.contains("column a") && refused.contains("hex()"), "{refused}");
            }
        }
    }
}
