//! CSV after RFC 4180, with a header line. NULL is an empty field.

use std::io::{self, Write};

use query_planner::{ColumnMeta, Value};

use super::cell_text;

pub(super) fn write_header(columns: &[ColumnMeta], out: &mut dyn Write) -> io::Result<()> {
    let mut writer = ::csv::Writer::from_writer(out);
    writer.write_record(columns.iter().map(|column| column.name.as_str())).map_err(io_error)?;
    writer.flush()
}

pub(super) fn write_rows(rows: &[Vec<Value>], out: &mut dyn Write) -> io::Result<()> {
    let mut writer = ::csv::Writer::from_writer(out);
    for row in rows {
        writer.write_record(row.iter().map(cell_text)).map_err(io_error)?;
    }
    writer.flush()
}

fn io_error(error: ::csv::Error) -> io::Error {
    match error.into_kind() {
        ::csv::ErrorKind::Io(io) => io,
        other => io::Error::other(format!("{other:?}")),
    }
}
