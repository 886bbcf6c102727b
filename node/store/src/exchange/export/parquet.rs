//! One table as Parquet: 64-bit integers, doubles, UTF-8 strings and byte arrays, every
//! column optional, row groups of [`GROUP_ROWS`], Snappy; times and counters as differences to the
//! value before. (The format: <https://parquet.apache.org/docs/file-format/>.)

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as Physical};
use ::parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::KeyValue;
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::types::{ColumnPath, Type};
use rusqlite::types::ValueRef;

use super::super::tables::{Column, Kind, Table};
use super::Sink;
use crate::exchange::ExchangeError;

/// Rows gathered in memory before they are written.
pub(in super::super) const GROUP_ROWS: usize = 65_536;
/// Different texts of a column that one row group shares; beyond, each value is its own copy.
const SHARED_TEXTS: usize = 4_096;

/// A file that takes one table.
pub(crate) struct ParquetFile {
    path: PathBuf,
    file: Option<File>,
    open: Option<ParquetTable<File>>,
}

/// What goes into a Parquet file in addition to the table's own columns.
#[derive(Debug, Clone, Default)]
pub(in super::super) struct Extras {
    /// Columns of one text each, before the table's own.
    pub(in super::super) constants: Vec<(String, String)>,
    /// Pairs for the file's metadata.
    pub(in super::super) metadata: Vec<(String, String)>,
}

/// Why a row cannot be written.
pub(in super::super) enum RowError {
    /// A value that does not fit its column: the column, what was found, and what fits.
    Value(String, &'static str, &'static str),
    /// The writer failed.
    Parquet(ParquetError),
}

impl From<ParquetError> for RowError {
    fn from(error: ParquetError) -> Self {
        Self::Parquet(error)
    }
}

impl RowError {
    fn of(self, table: &str, path: &Path) -> ExchangeError {
        match self {
            Self::Value(column, found, declared) => {
                ExchangeError::Value { table: table.to_owned(), column, found, declared }
            }
            Self::Parquet(source) => ExchangeError::Parquet { path: path.to_owned(), source },
        }
    }
}

/// One table on its way into Parquet.
pub(in super::super) struct ParquetTable<W: Write + Send> {
    table: Table,
    constants: Vec<ByteArray>,
    writer: SerializedFileWriter<W>,
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
    /// With the values met in this row group: most texts are of a few.
    Bytes(Vec<ByteArray>, HashMap<Vec<u8>, ByteArray>),
}

impl ParquetFile {
    pub(crate) fn create(path: &Path) -> Result<Self, ExchangeError> {
        Ok(Self {
            path: path.to_owned(),
            file: Some(
                super::super::new_file(path)
                    .map_err(|source| ExchangeError::Write { path: path.to_owned(), source })?,
            ),
            open: None,
        })
    }
}

fn primitive(column: &Column) -> Result<Arc<Type>, ParquetError> {
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
}

/// Whether the values of a column mostly grow a little from row to row, so that their differences
/// are smaller than themselves.
fn grows(column: &Column) -> bool {
    column.kind == Kind::Integer && (column.name.ends_with("_ns") || column.name == "seq")
}

impl<W: Write + Send> ParquetTable<W> {
    /// Begins a file of `table` in `out`.
    pub(in super::super) fn begin(out: W, table: &Table, extras: Extras) -> Result<Self, ParquetError> {
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .set_created_by(concat!("rankmesh ", env!("CARGO_PKG_VERSION")).to_owned());
        for column in table.columns.iter().filter(|column| grows(column)) {
            let path = ColumnPath::from(column.name.clone());
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
        if !extras.metadata.is_empty() {
            let pair = |(key, value): (String, String)| KeyValue::new(key, value);
            properties = properties.set_key_value_metadata(Some(extras.metadata.into_iter().map(pair).collect()));
        }
        let constants: Vec<Column> =
            extras.constants.iter().map(|(name, _)| Column { name: name.clone(), kind: Kind::Text }).collect();
        let fields = constants.iter().chain(&table.columns).map(primitive).collect::<Result<_, _>>()?;
        let schema = Arc::new(Type::group_type_builder(&table.name).with_fields(fields).build()?);
        let writer = SerializedFileWriter::new(out, schema, Arc::new(properties.build()))?;
        let columns = table.columns.iter().map(|column| Buffer {
            defined: Vec::with_capacity(GROUP_ROWS),
            values: match column.kind {
                Kind::Integer => Values::Integers(Vec::new()),
                Kind::Real => Values::Reals(Vec::new()),
                Kind::Text | Kind::Blob => Values::Bytes(Vec::new(), HashMap::new()),
            },
        });
        let constants = extras.constants.into_iter().map(|(_, text)| ByteArray::from(text.into_bytes())).collect();
        Ok(Self { table: table.clone(), constants, writer, columns: columns.collect(), rows: 0 })
    }

    /// Rows that were not written yet.
    pub(in super::super) fn waiting(&self) -> usize {
        self.rows
    }

    fn flush(&mut self) -> Result<(), ParquetError> {
        if self.rows == 0 {
            return Ok(());
        }
        let missing = || ParquetError::General("fewer columns than the schema has".to_owned());
        let mut group = self.writer.next_row_group()?;
        for value in &self.constants {
            let mut column = group.next_column()?.ok_or_else(missing)?;
            let (values, defined) = (vec![value.clone(); self.rows], vec![1; self.rows]);
            column.typed::<ByteArrayType>().write_batch(&values, Some(&defined), None)?;
            column.close()?;
        }
        for buffer in &mut self.columns {
            let mut column = group.next_column()?.ok_or_else(missing)?;
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
                Values::Bytes(values, met) => {
                    column.typed::<ByteArrayType>().write_batch(values, defined, None)?;
                    values.clear();
                    met.clear();
                }
            }
            buffer.defined.clear();
            column.close()?;
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }

    /// Takes one row, in the order of the table's columns.
    pub(in super::super) fn row(&mut self, row: &[ValueRef<'_>]) -> Result<(), RowError> {
        for (index, (value, buffer)) in row.iter().zip(&mut self.columns).enumerate() {
            let kind = self.table.columns[index].kind;
            if *value == ValueRef::Null {
                buffer.defined.push(0);
                continue;
            }
            let fits = match (&mut buffer.values, *value) {
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
                (Values::Bytes(values, met), ValueRef::Text(bytes))
                    if kind == Kind::Text && (met.contains_key(bytes) || std::str::from_utf8(bytes).is_ok()) =>
                {
                    values.push(shared(met, bytes));
                    true
                }
                (Values::Bytes(values, met), ValueRef::Blob(bytes)) if kind == Kind::Blob => {
                    values.push(shared(met, bytes));
                    true
                }
                _ => false,
            };
            if !fits {
                let found = match value {
                    ValueRef::Null => "NULL",
                    ValueRef::Integer(_) => "an integer",
                    ValueRef::Real(_) => "a real number",
                    ValueRef::Text(_) => "text (or text that is not UTF-8)",
                    ValueRef::Blob(_) => "a blob",
                };
                let declared = match kind {
                    Kind::Integer => "integers",
                    Kind::Real => "real numbers",
                    Kind::Text => "text",
                    Kind::Blob => "blobs",
                };
                return Err(RowError::Value(self.table.columns[index].name.clone(), found, declared));
            }
            buffer.defined.push(1);
        }
        self.rows += 1;
        if self.rows >= GROUP_ROWS {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes what waits and the end of the file, and gives back where it was written.
    pub(in super::super) fn finish(mut self) -> Result<W, ParquetError> {
        self.flush()?;
        self.writer.into_inner()
    }
}

/// `bytes`, shared with the equal values of the row group.
fn shared(met: &mut HashMap<Vec<u8>, ByteArray>, bytes: &[u8]) -> ByteArray {
    if let Some(value) = met.get(bytes) {
        return value.clone();
    }
    let value = ByteArray::from(bytes.to_vec());
    if met.len() < SHARED_TEXTS {
        met.insert(bytes.to_vec(), value.clone());
    }
    value
}

impl Sink for ParquetFile {
    fn begin(&mut self, table: &Table) -> Result<(), ExchangeError> {
        let Some(file) = self.file.take() else {
            return Err(ExchangeError::OneTable { form: "parquet", n: 2 });
        };
        let open = ParquetTable::begin(file, table, Extras::default());
        self.open = Some(open.map_err(|source| ExchangeError::Parquet { path: self.path.clone(), source })?);
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<(), ExchangeError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.row(row).map_err(|error| error.of(&open.table.name, &self.path))
    }

    fn finish(self: Box<Self>) -> Result<(), ExchangeError> {
        let path = self.path;
        let Some(open) = self.open else { return Ok(()) };
        let file = open.finish().map_err(|source| ExchangeError::Parquet { path: path.clone(), source })?;
        file.sync_all().map_err(|source| ExchangeError::Write { path: path.clone(), source })
    }
}
