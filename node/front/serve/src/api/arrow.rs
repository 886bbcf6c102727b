//! Rows as an Arrow IPC stream
//! (<https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format>), or as a Parquet
//! file (<https://parquet.apache.org/docs/file-format/>) of the same types.
//!
//! SQLite's values have types of their own, Arrow's columns one each: the first rows, which are
//! buffered, decide it (integers, reals, texts, blobs; where all are NULL the declared type). A
//! later value that does not fit ends the answer with an error, since any other value would be made
//! up.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use model::Coverage;
use parking_lot::Mutex;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use query_planner::{ColumnMeta, Value};
use serde_json::json;

/// Rows of one record batch.
const BATCH_ROWS: usize = 65_536;
/// Bytes of a row group of Parquet that are in memory before they are written.
const GROUP_BYTES: usize = 16 << 20;
/// Key of the coverage in the metadata of both.
const COVERAGE: &str = "rankmesh.coverage";

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    Ipc,
    Parquet,
}

/// Writes one answer.
pub(super) struct Arrow {
    container: Container,
    columns: Vec<ColumnMeta>,
    waiting: Vec<Vec<Value>>,
    waiting_bytes: usize,
    writer: Option<(Arc<Schema>, Writer)>,
}

enum Writer {
    Ipc(Box<StreamWriter<Vec<u8>>>),
    Parquet(Box<ArrowWriter<Written>>, Written),
}

/// Bytes that a Parquet writer has written, until they are sent.
#[derive(Debug, Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Writer {
    fn new(container: Container, schema: &Arc<Schema>) -> Result<Self, String> {
        Ok(match container {
            Container::Ipc => Self::Ipc(Box::new(StreamWriter::try_new(Vec::new(), schema).map_err(arrow_failed)?)),
            Container::Parquet => {
                let properties = WriterProperties::builder()
                    .set_compression(Compression::SNAPPY)
                    .set_created_by(concat!("rankmesh ", env!("CARGO_PKG_VERSION")).to_owned())
                    .build();
                let written = Written::default();
                let writer = ArrowWriter::try_new(written.clone(), Arc::clone(schema), Some(properties));
                Self::Parquet(Box::new(writer.map_err(parquet_failed)?), written)
            }
        })
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), String> {
        match self {
            Self::Ipc(writer) => writer.write(batch).map_err(arrow_failed),
            Self::Parquet(writer, _) => {
                writer.write(batch).map_err(parquet_failed)?;
                if writer.in_progress_size() > GROUP_BYTES {
                    writer.flush().map_err(parquet_failed)?;
                }
                Ok(())
            }
        }
    }

    fn take(&mut self) -> Vec<u8> {
        match self {
            Self::Ipc(writer) => std::mem::take(writer.get_mut()),
            Self::Parquet(_, written) => written.take(),
        }
    }

    fn finish(self, coverage: &Coverage) -> Result<Vec<u8>, String> {
        match self {
            Self::Ipc(mut writer) => {
                writer.finish().map_err(arrow_failed)?;
                writer.into_inner().map_err(arrow_failed)
            }
            Self::Parquet(mut writer, written) => {
                // The metadata are at the end of the file: they have the coverage, however large
                // the answer is.
                writer.append_key_value_metadata(KeyValue::new(COVERAGE.to_owned(), json!(coverage).to_string()));
                writer.close().map_err(parquet_failed)?;
                Ok(written.take())
            }
        }
    }
}

impl Arrow {
    pub(super) fn new(container: Container, columns: Vec<ColumnMeta>) -> Self {
        Self { container, columns, waiting: Vec::new(), waiting_bytes: 0, writer: None }
    }

    /// Takes the next rows.
    pub(super) fn rows(&mut self, rows: Vec<Vec<Value>>) {
        let bytes = |value: &Value| 9 + usize::try_from(value.data_bytes()).unwrap_or(0);
        self.waiting_bytes += rows.iter().flatten().map(bytes).sum::<usize>();
        self.waiting.extend(rows);
    }

    /// Bytes that wait to be sent, about.
    pub(super) fn len(&self) -> usize {
        self.waiting_bytes
    }

    /// The bytes that wait; before the first of them those of the schema.
    ///
    /// # Errors
    /// A column holds values of several types.
    pub(super) fn take(&mut self) -> Result<Vec<u8>, String> {
        self.write(None)?;
        Ok(self.writer.as_mut().map(|(_, writer)| writer.take()).unwrap_or_default())
    }

    /// The rest. In Parquet, and in a stream without rows, the metadata have the coverage.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(super) fn end(mut self, coverage: &Coverage) -> Result<Vec<u8>, String> {
        self.write(Some(coverage))?;
        match self.writer {
            Some((_, writer)) => writer.finish(coverage),
            None => Ok(Vec::new()),
        }
    }

    fn write(&mut self, coverage: Option<&Coverage>) -> Result<(), String> {
        let rows = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        if self.writer.is_none() {
            let fields: Vec<Field> = (0..self.columns.len())
                .map(|at| Ok(Field::new(self.name(at), kind(&self.columns[at], &rows, at)?, true)))
                .collect::<Result<_, String>>()?;
            let in_metadata = coverage.filter(|_| self.container == Container::Ipc);
            let metadata = in_metadata.map(|coverage| (COVERAGE.to_owned(), json!(coverage).to_string()));
            let metadata: HashMap<String, String> = metadata.into_iter().collect();
            let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
            let writer = Writer::new(self.container, &schema)?;
            self.writer = Some((schema, writer));
        }
        let Some((schema, writer)) = &mut self.writer else { return Ok(()) };
        for rows in rows.chunks(BATCH_ROWS) {
            let arrays: Vec<ArrayRef> = schema
                .fields()
                .iter()
                .enumerate()
                .map(|(at, field)| array(field, rows, at))
                .collect::<Result<_, String>>()?;
            let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(rows.len()));
            let batch =
                RecordBatch::try_new_with_options(Arc::clone(schema), arrays, &options).map_err(arrow_failed)?;
            writer.write(&batch)?;
        }
        Ok(())
    }

    /// The name of a column. Readers of Parquet refer to columns by name: one that comes twice gets
    /// a number.
    fn name(&self, at: usize) -> String {
        let name = &self.columns[at].name;
        let before = self.columns[..at].iter().filter(|column| column.name == *name).count();
        match (self.container, before) {
            (Container::Ipc, _) | (_, 0) => name.clone(),
            (Container::Parquet, before) => format!("{name}:{}", before + 1),
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err hands it")]
fn arrow_failed(error: ArrowError) -> String {
    format!("writing Arrow: {error}")
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err hands it")]
fn parquet_failed(error: ParquetError) -> String {
    format!("writing Parquet: {error}")
}

/// The type of a column, by the values that are there.
fn kind(column: &ColumnMeta, rows: &[Vec<Value>], at: usize) -> Result<DataType, String> {
    let mut found: Option<DataType> = None;
    for value in rows.iter().filter_map(|row| row.get(at)) {
        let of = match value {
            Value::Null => continue,
            Value::Integer(_) => DataType::Int64,
            Value::Real(_) => DataType::Float64,
            Value::Text(_) => DataType::Utf8,
            Value::Blob(_) => DataType::Binary,
        };
        found = Some(match found {
            None => of,
            Some(found) if found == of => of,
            // Integers that a real cannot represent are noticed when they are written.
            Some(DataType::Int64 | DataType::Float64) if matches!(of, DataType::Int64 | DataType::Float64) => {
                DataType::Float64
            }
            Some(found) => return Err(mixed(&column.name, &found, &of)),
        });
    }
    let declared = column.decl_type.to_ascii_uppercase();
    Ok(found.unwrap_or(match () {
        () if declared.contains("INT") => DataType::Int64,
        () if ["REAL", "FLOA", "DOUB"].iter().any(|word| declared.contains(word)) => DataType::Float64,
        () if declared.contains("BLOB") => DataType::Binary,
        () => DataType::Utf8,
    }))
}

fn mixed(column: &str, a: &DataType, b: &DataType) -> String {
    format!(
        "column {column} holds values of {a} and {b}, and Arrow's columns have one type: CAST it, or ask for another form"
    )
}

fn array(field: &Field, rows: &[Vec<Value>], at: usize) -> Result<ArrayRef, String> {
    let values = || rows.iter().map(|row| row.get(at).unwrap_or(&Value::Null));
    let other = |value: &Value| {
        let of = match value {
            Value::Integer(_) => DataType::Int64,
            Value::Real(_) => DataType::Float64,
            Value::Text(_) => DataType::Utf8,
            Value::Blob(_) | Value::Null => DataType::Binary,
        };
        mixed(field.name(), field.data_type(), &of)
    };
    Ok(match field.data_type() {
        DataType::Int64 => Arc::new(
            values()
                .map(|value| match value {
                    Value::Null => Ok(None),
                    Value::Integer(integer) => Ok(Some(*integer)),
                    value => Err(other(value)),
                })
                .collect::<Result<Int64Array, _>>()?,
        ),
        DataType::Float64 => Arc::new(
            values()
                .map(|value| match value {
                    Value::Null => Ok(None),
                    Value::Real(real) => Ok(Some(*real)),
                    Value::Integer(integer) if integer.unsigned_abs() <= 1 << 53 => Ok(Some(*integer as f64)),
                    value => Err(other(value)),
                })
                .collect::<Result<Float64Array, _>>()?,
        ),
        DataType::Binary => Arc::new(
            values()
                .map(|value| match value {
                    Value::Null => Ok(None),
                    Value::Blob(bytes) => Ok(Some(bytes.as_slice())),
                    value => Err(other(value)),
                })
                .collect::<Result<Vec<_>, _>>()?
                .into_iter()
                .collect::<BinaryArray>(),
        ),
        _ => Arc::new(
            values()
                .map(|value| match value {
                    Value::Null => Ok(None),
                    Value::Text(text) => std::str::from_utf8(text).map(Some).map_err(|_| {
                        format!("column {} holds a text that is not UTF-8: CAST it AS BLOB", field.name())
                    }),
                    value => Err(other(value)),
                })
                .collect::<Result<Vec<_>, _>>()?
                .into_iter()
                .collect::<StringArray>(),
        ),
    })
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float64Type, Int64Type};
    use arrow_ipc::reader::StreamReader;
    use bytes::Bytes;

    use super::*;

    #[test]
    fn parquet_has_the_same_and_says_at_its_end_who_is_in_it() {
        use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
        let mut rows = Arrow::new(Container::Parquet, columns(&[("i", ""), ("t", ""), ("i", "")]));
        let row = |i: i64| vec![Value::Integer(i), Value::Text(b"<x>".to_vec()), Value::Null];
        rows.rows(vec![row(i64::MAX)]);
        let mut bytes = rows.take().unwrap();
        rows.rows(vec![row(-1)]);
        bytes.extend(rows.end(&Coverage { asked: 3, answered: 2, ..Coverage::default() }).unwrap());
        let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes)).unwrap();
        let pairs = reader.metadata().file_metadata().key_value_metadata().unwrap().clone();
        let coverage = pairs.iter().find(|pair| pair.key == COVERAGE).unwrap().value.clone().unwrap();
        assert!(coverage.contains("\"asked\":3"), "{coverage}");
        let names: Vec<String> = reader.schema().fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!(names, ["i", "t", "i:2"]);
        let batches: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
        let integers: Vec<i64> =
            batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect();
        assert_eq!(integers, [i64::MAX, -1]);
    }

    fn columns(names: &[(&str, &str)]) -> Vec<ColumnMeta> {
        names.iter().map(|(name, of)| ColumnMeta { name: (*name).into(), decl_type: (*of).into() }).collect()
    }

    #[test]
    fn what_is_read_back_is_what_was_written() {
        let mut arrow =
            Arrow::new(Container::Ipc, columns(&[("i", ""), ("r", ""), ("t", ""), ("b", ""), ("n", "INTEGER")]));
        let row = |i: i64, r: Value| {
            vec![Value::Integer(i), r, Value::Text(b"x".to_vec()), Value::Blob(vec![0]), Value::Null]
        };
        arrow.rows(vec![row(i64::MAX, Value::Real(0.5)), row(-1, Value::Integer(2))]);
        // The same result in pieces as at once.
        let mut bytes = arrow.take().unwrap();
        arrow.rows(vec![row(3, Value::Null)]);
        bytes.extend(arrow.end(&Coverage::default()).unwrap());
        let batches: Vec<RecordBatch> =
            StreamReader::try_new(bytes.as_slice(), None).unwrap().map(Result::unwrap).collect();
        assert_eq!(batches.len(), 2);
        assert_eq!(batches[0].column(0).as_primitive::<Int64Type>().value(0), i64::MAX);
        assert_eq!(batches[0].column(1).as_primitive::<Float64Type>().values(), &[0.5, 2.0]);
        assert_eq!(batches[0].schema().field(4).data_type(), &DataType::Int64);
        assert_eq!(batches[1].num_rows(), 1);
    }

    #[test]
    fn no_value_becomes_another() {
        let mut arrow = Arrow::new(Container::Ipc, columns(&[("r", ""), ("b", "")]));
        let of = |real: f64| vec![Value::Real(real), Value::Blob(vec![0xff, 0xfe])];
        arrow.rows(vec![of(f64::INFINITY), of(f64::NEG_INFINITY)]);
        let bytes = arrow.end(&Coverage::default()).unwrap();
        let batches: Vec<RecordBatch> =
            StreamReader::try_new(bytes.as_slice(), None).unwrap().map(Result::unwrap).collect();
        assert_eq!(batches[0].column(0).as_primitive::<Float64Type>().values(), &[f64::INFINITY, f64::NEG_INFINITY]);
        assert_eq!(batches[0].column(1).as_binary::<i32>().value(1), [0xff, 0xfe]);
        // Arrow's texts are UTF-8.
        let mut arrow = Arrow::new(Container::Ipc, columns(&[("t", "")]));
        arrow.rows(vec![vec![Value::Text(b"x".to_vec())], vec![Value::Text(vec![0xff, 0xfe])]]);
        let error = arrow.end(&Coverage::default()).unwrap_err();
        assert!(error.contains("column t") && error.contains("CAST it AS BLOB"), "{error}");
    }

    #[test]
    fn coverage_is_in_the_metadata_of_what_is_written_at_once_and_none_is_made_up() {
        let mut arrow = Arrow::new(Container::Ipc, columns(&[("a", "")]));
        arrow.rows(vec![vec![Value::Integer(1)]]);
        let bytes = arrow.end(&Coverage { asked: 3, answered: 2, ..Coverage::default() }).unwrap();
        let reader = StreamReader::try_new(bytes.as_slice(), None).unwrap();
        assert!(reader.schema().metadata().get("rankmesh.coverage").unwrap().contains("\"asked\":3"));
        // Without rows there is only the schema.
        let empty = Arrow::new(Container::Ipc, columns(&[("a", "TEXT")])).end(&Coverage::default()).unwrap();
        assert_eq!(
            StreamReader::try_new(empty.as_slice(), None).unwrap().schema().field(0).data_type(),
            &DataType::Utf8
        );
    }

    #[test]
    fn values_of_several_types_are_refused() {
        for pair in [
            [Value::Integer(1), Value::Text(b"x".to_vec())],
            [Value::Real(0.5), Value::Integer(i64::MAX)],
            [Value::Blob(vec![]), Value::Text(vec![])],
        ] {
            let mut arrow = Arrow::new(Container::Ipc, columns(&[("mixed", "")]));
            arrow.rows(pair.into_iter().map(|value| vec![value]).collect());
            let error = arrow.end(&Coverage::default()).unwrap_err();
            assert!(error.contains("column mixed") && error.contains("CAST"), "{error}");
        }
    }
}
