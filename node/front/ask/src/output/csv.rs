//! CSV after RFC 4180, with a header line. NULL is an empty field, a blob its SQL literal. Texts are
//! the bytes that they are, also where these are no UTF-8.

use std::borrow::Cow;
use std::io::{self, Write};

use query_planner::{ColumnMeta, Value};

use super::{cell_text, printable};

/// A field as it is; on a terminal with control characters escaped as in a table.
fn field(shown: bool, text: String) -> String {
    if shown { printable(&text) } else { text }
}

/// The bytes of a value's field.
fn bytes(shown: bool, value: &Value) -> Cow<'_, [u8]> {
    match value {
        Value::Text(text) if !shown => Cow::Borrowed(text),
        value => Cow::Owned(field(shown, cell_text(value)).into_bytes()),
    }
}

pub(super) fn write_header(columns: &[ColumnMeta], shown: bool, out: &mut dyn Write) -> io::Result<()> {
    let mut writer = ::csv::Writer::from_writer(out);
    writer.write_record(columns.iter().map(|column| field(shown, column.name.clone()))).map_err(io_error)?;
    writer.flush()
}

pub(super) fn write_rows(rows: &[Vec<Value>], shown: bool, out: &mut dyn Write) -> io::Result<()> {
    let mut writer = ::csv::Writer::from_writer(out);
    for row in rows {
        writer.write_record(row.iter().map(|value| bytes(shown, value))).map_err(io_error)?;
    }
    writer.flush()
}

fn io_error(error: ::csv::Error) -> io::Error {
    match error.into_kind() {
        ::csv::ErrorKind::Io(io) => io,
        other => io::Error::other(format!("{other:?}")),
    }
}
