//! One table as a Parquet file: 64-bit integers, doubles, UTF-8 strings and byte arrays, every
//! column optional, row groups of [`GROUP_ROWS`], Snappy. (The format:
//! <https://parquet.apache.org/docs/file-format/>.)

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use ::parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::types::Type;
use rusqlite::types::ValueRef;

use super::super::tables::{Kind, Table};
use super::{ExportError, Sink};

/// Rows held in memory before they are written.
const GROUP_ROWS: usize = 65_536;

pub(crate) struct ParquetFile {
    path: PathBuf,
    file: Option<File>,
    open: Option<Open>,
}

/// The one table of the file.
struct Open {
    table: Table,
    writer: SerializedFileWriter<File>,
    columns: Vec<Buffer>,
    rows: usize,
}

/// One column's values of the row group being gathered; `defined` has 1 for a value and 0 for NULL.
struct Buffer {
    defined: Vec<i16>,
    values: Values,
}

enum Values {
    Integers(Vec<i64>),
    Reals(Vec<f64>),
    Bytes(Vec<ByteArray>),
}

impl ParquetFile {
    pub(crate) fn create(path: &Path) -> Result<Self, ExportError> {
        Ok(Self {
            path: path.to_owned(),
            file: Some(
                super::super::new_file(path).map_err(|source| ExportError::Write { path: path.to_owned(), source })?,
            ),
            open: None,
        })
    }
}

fn schema(table: &Table) -> Result<Type, ParquetError> {
    let fields = table.columns.iter().map(|column| {
        let (physical, logical) = match column.kind {
            Kind::Integer => (Physical::INT64, None),
            Kind::Real => (Physical::DOUBLE, None),
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Blob => (Physical::BYTE_ARRAY, None),
        };
        Type::primitive_type_builder(&column.name, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(logical)
            .build()
            .map(Arc::new)
    });
    Type::group_type_builder(&table.name).with_fields(fields.collect::<Result<_, _>>()?).build()
}

impl Open {
    fn flush(&mut self) -> Result<(), ParquetError> {
        if self.rows == 0 {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        for buffer in &mut self.columns {
            let Some(mut column) = group.next_column()? else {
                return Err(ParquetError::General("fewer columns than the schema has".to_owned()));
            };
            let defined = Some(buffer.defined.as_slice());
            match &mut buffer.values {
                Values::Integers(values) => {
                    column.typed::<Int64Type>().write_batch(values, defined, None)?;
                    values.clear();
                }
                Values::Reals(values) => {
                    column.typed::<DoubleType>().write_batch(values, defined, None)?;
                    values.clear();
                }
                Values::Bytes(values) => {
                    column.typed::<ByteArrayType>().write_batch(values, defined, None)?;
                    values.clear();
                }
            }
            buffer.defined.clear();
            column.close()?;
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }
}

impl Sink for ParquetFile {
    fn begin(&mut self, table: &Table) -> Result<(), ExportError> {
        let wrong = |source| ExportError::Parquet { path: self.path.clone(), source };
        let Some(file) = self.file.take() else {
            return Err(ExportError::OneTable { form: "parquet", n: 2 });
        };
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("rankmesh ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let schema = Arc::new(schema(table).map_err(wrong)?);
        let writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).map_err(wrong)?;
        let columns = table.columns.iter().map(|column| Buffer {
            defined: Vec::with_capacity(GROUP_ROWS),
            values: match column.kind {
                Kind::Integer => Values::Integers(Vec::new()),
                Kind::Real => Values::Reals(Vec::new()),
                Kind::Text | Kind::Blob => Values::Bytes(Vec::new()),
            },
        });
        self.open = Some(Open { table: table.clone(), writer, columns: columns.collect(), rows: 0 });
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<(), ExportError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        for (index, (value, buffer)) in row.iter().zip(&mut open.columns).enumerate() {
            let kind = open.table.columns[index].kind;
            let fits = match (&mut buffer.values, *value) {
                (_, ValueRef::Null) => {
                    buffer.defined.push(0);
                    continue;
                }
                (Values::Integers(values), ValueRef::Integer(number)) => {
                    values.push(number);
                    true
                }
                (Values::Reals(values), ValueRef::Real(number)) => {
                    values.push(number);
                    true
                }
                // An integer in a REAL column: only SQLite's own storage of a whole number, up to
                // 2^53 exact.
                (Values::Reals(values), ValueRef::Integer(number)) if number.unsigned_abs() <= 1 << 53 => {
                    values.push(number as f64);
                    true
                }
                (Values::Bytes(values), ValueRef::Text(text))
                    if kind == Kind::Text && std::str::from_utf8(text).is_ok() =>
                {
                    values.push(ByteArray::from(text.to_vec()));
                    true
                }
                (Values::Bytes(values), ValueRef::Blob(bytes)) if kind == Kind::Blob => {
                    values.push(ByteArray::from(bytes.to_vec()));
                    true
                }
                _ => false,
            };
            if !fits {
                return Err(ExportError::Value {
                    table: open.table.name.clone(),
                    column: open.table.columns[index].name.clone(),
                    found: match value {
                        ValueRef::Null => "NULL",
                        ValueRef::Integer(_) => "an integer",
                        ValueRef::Real(_) => "a real number",
                        ValueRef::Text(_) => "text (or text that is not UTF-8)",
                        ValueRef::Blob(_) => "a blob",
                    },
                    declared: match kind {
                        Kind::Integer => "integers",
                        Kind::Real => "real numbers",
                        Kind::Text => "text",
                        Kind::Blob => "blobs",
                    },
                });
            }
            buffer.defined.push(1);
        }
        open.rows += 1;
        if open.rows >= GROUP_ROWS {
            open.flush().map_err(|source| ExportError::Parquet { path: self.path.clone(), source })?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), ExportError> {
        let path = self.path;
        let wrong = |source| ExportError::Parquet { path: path.clone(), source };
        let Some(mut open) = self.open else { return Ok(()) };
        open.flush().map_err(wrong)?;
        let file = open.writer.into_inner().map_err(wrong)?;
        file.sync_all().map_err(|source| ExportError::Write { path: path.clone(), source })
    }
}
