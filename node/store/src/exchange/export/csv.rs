//! One table as CSV after RFC 4180, with a header line. NULL is an empty field, a blob is `x'…'` in
//! hexadecimal.

use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::types::ValueRef;

use super::super::tables::Table;
use super::Sink;
use crate::exchange::ExchangeError;

pub(crate) struct CsvFile {
    path: PathBuf,
    writer: ::csv::Writer<File>,
    record: ::csv::ByteRecord,
}

impl CsvFile {
    pub(crate) fn create(path: &Path) -> Result<Self, ExchangeError> {
        let file =
            super::super::new_file(path).map_err(|source| ExchangeError::Write { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), writer: ::csv::Writer::from_writer(file), record: ::csv::ByteRecord::new() })
    }

    fn failed(&self, error: ::csv::Error) -> ExchangeError {
        let source = match error.into_kind() {
            ::csv::ErrorKind::Io(io) => io,
            other => std::io::Error::other(format!("{other:?}")),
        };
        ExchangeError::Write { path: self.path.clone(), source }
    }
}

impl Sink for CsvFile {
    fn begin(&mut self, table: &Table) -> Result<(), ExchangeError> {
        let header = table.columns.iter().map(|column| column.name.as_bytes());
        self.writer.write_record(header).map_err(|error| self.failed(error))
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<(), ExchangeError> {
        self.record.clear();
        for value in row {
            match value {
                ValueRef::Null => self.record.push_field(b""),
                ValueRef::Integer(number) => self.record.push_field(number.to_string().as_bytes()),
                // Rust prints the shortest text that reads back as the same number.
                ValueRef::Real(number) => self.record.push_field(format!("{number:?}").as_bytes()),
                ValueRef::Text(text) => self.record.push_field(text),
                ValueRef::Blob(bytes) => {
                    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                    self.record.push_field(format!("x'{hex}'").as_bytes());
                }
            }
        }
        self.writer.write_byte_record(&self.record).map_err(|error| self.failed(error))
    }

    fn finish(self: Box<Self>) -> Result<(), ExchangeError> {
        let path = self.path;
        let wrong = |source| ExchangeError::Write { path: path.clone(), source };
        let file = self.writer.into_inner().map_err(|error| wrong(error.into_error()))?;
        file.sync_all().map_err(wrong)
    }
}
