//! Rows as an Arrow IPC stream (<https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format>).
//!
//! SQLite's values have types of their own, Arrow's columns one each: the rows that are held decide it
//! (integers, reals, texts, blobs; of nothing but NULL the declared type). A value that does not fit
//! ends the answer with an error that says so, since another would have to be made up.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use model::Coverage;
use query_planner::{ColumnMeta, Value};
use serde_json::json;

/// Rows of one record batch.
const BATCH_ROWS: usize = 65_536;

/// Writes one answer.
pub(super) struct Arrow {
    columns: Vec<ColumnMeta>,
    waiting: Vec<Vec<Value>>,
    waiting_bytes: usize,
    writer: Option<(Arc<Schema>, StreamWriter<Vec<u8>>)>,
}

impl Arrow {
    pub(super) fn new(columns: Vec<ColumnMeta>) -> Self {
        Self { columns, waiting: Vec::new(), waiting_bytes: 0, writer: None }
    }

    /// Takes the next rows.
    pub(super) fn rows(&mut self, rows: Vec<Vec<Value>>) {
        let bytes = |value: &Value| 9 + usize::try_from(value.data_bytes()).unwrap_or(0);
        self.waiting_bytes += rows.iter().flatten().map(bytes).sum::<usize>();
        self.waiting.extend(rows);
    }

    /// Bytes that wait, about.
    pub(super) fn len(&self) -> usize {
        self.waiting_bytes
    }

    /// The bytes of what waits; before the first of them of the schema, too.
    ///
    /// # Errors
    /// A column holds values of several types.
    pub(super) fn take(&mut self) -> Result<Vec<u8>, String> {
        self.write(None)?;
        Ok(self.writer.as_mut().map(|(_, writer)| std::mem::take(writer.get_mut())).unwrap_or_default())
    }

    /// The rest. Where nothing was taken before, the schema's metadata say who is in it.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(super) fn end(mut self, coverage: &Coverage) -> Result<Vec<u8>, String> {
        self.write(Some(coverage))?;
        let Some((_, mut writer)) = self.writer else { return Ok(Vec::new()) };
        writer.finish().map_err(said)?;
        writer.into_inner().map_err(said)
    }

    fn write(&mut self, coverage: Option<&Coverage>) -> Result<(), String> {
        let rows = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        if self.writer.is_none() {
            let fields: Vec<Field> = (0..self.columns.len())
                .map(|at| Ok(Field::new(&self.columns[at].name, kind(&self.columns[at], &rows, at)?, true)))
                .collect::<Result<_, String>>()?;
            let metadata = coverage.map(|coverage| ("rankmesh.coverage".to_owned(), json!(coverage).to_string()));
            let metadata: HashMap<String, String> = metadata.into_iter().collect();
            let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
            let writer = StreamWriter::try_new(Vec::new(), &schema).map_err(said)?;
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
            let batch = RecordBatch::try_new_with_options(Arc::clone(schema), arrays, &options).map_err(said)?;
            writer.write(&batch).map_err(said)?;
        }
        Ok(())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err hands it")]
fn said(error: ArrowError) -> String {
    format!("writing Arrow: {error}")
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
            // Integers that a real cannot hold are noticed when they are written.
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
                    Value::Text(text) => Ok(Some(String::from_utf8_lossy(text))),
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

    use super::*;

    fn columns(names: &[(&str, &str)]) -> Vec<ColumnMeta> {
        names.iter().map(|(name, of)| ColumnMeta { name: (*name).into(), decl_type: (*of).into() }).collect()
    }

    #[test]
    fn what_is_read_back_is_what_was_written() {
        let mut arrow = Arrow::new(columns(&[("i", ""), ("r", ""), ("t", ""), ("b", ""), ("n", "INTEGER")]));
        let row = |i: i64, r: Value| {
            vec![Value::Integer(i), r, Value::Text(b"x".to_vec()), Value::Blob(vec![0]), Value::Null]
        };
        arrow.rows(vec![row(i64::MAX, Value::Real(0.5)), row(-1, Value::Integer(2))]);
        // In pieces as at once.
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
    fn coverage_is_in_the_metadata_of_what_is_written_at_once_and_none_is_made_up() {
        let mut arrow = Arrow::new(columns(&[("a", "")]));
        arrow.rows(vec![vec![Value::Integer(1)]]);
        let bytes = arrow.end(&Coverage { asked: 3, answered: 2, ..Coverage::default() }).unwrap();
        let reader = StreamReader::try_new(bytes.as_slice(), None).unwrap();
        assert!(reader.schema().metadata().get("rankmesh.coverage").unwrap().contains("\"asked\":3"));
        // Without rows there is the schema.
        let empty = Arrow::new(columns(&[("a", "TEXT")])).end(&Coverage::default()).unwrap();
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
            let mut arrow = Arrow::new(columns(&[("mixed", "")]));
            arrow.rows(pair.into_iter().map(|value| vec![value]).collect());
            let error = arrow.end(&Coverage::default()).unwrap_err();
            assert!(error.contains("column mixed") && error.contains("CAST"), "{error}");
        }
    }
}
