//! Operations of ranks from Parquet: the columns of the CSV table, as numbers and texts.

use std::fs::File;
use std::sync::Arc;

use anyhow::{Context, bail};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use recorded::{COLUMNS, ImportError, Operation, of_operations};
use verdicts::Input;

/// Most rows read: as many as 1 GiB of CSV has.
const MOST_ROWS: i64 = 20_000_000;

/// Reads a file's operations.
pub(super) fn parquet(file: File) -> anyhow::Result<Input> {
    let reader = SerializedFileReader::new(file).context("not a Parquet file")?;
    let meta = reader.metadata().file_metadata();
    if meta.num_rows() > MOST_ROWS {
        bail!("{} rows: more than {MOST_ROWS} are not read", meta.num_rows());
    }
    let schema = meta.schema();
    let column = |name: &'static str| {
        let field = schema.get_fields().iter().find(|field| field.name() == name);
        field.map(Arc::clone).ok_or(ImportError::Column(name))
    };
    let wanted = COLUMNS.into_iter().map(column).collect::<Result<Vec<_>, _>>()?;
    let wanted = Type::group_type_builder(schema.name()).with_fields(wanted).build()?;
    let mut broken = None;
    let rows = reader.get_row_iter(Some(wanted)).context("reading its rows")?.zip(1..).map_while(|(row, number)| {
        row.inspect_err(|error| broken = Some(error.to_string())).ok().map(|row| operation(&row, number))
    });
    let input = of_operations(rows)?;
    match broken {
        Some(error) => bail!("reading its rows: {error}"),
        None => Ok(input),
    }
}

fn operation(row: &Row, number: u64) -> Result<Operation, ImportError> {
    let wrong = |column: &str| ImportError::Line { line: number, column: column.to_owned() };
    let field = |name: &str| row.get_column_iter().find(|(column, _)| *column == name).map(|(_, field)| field);
    let real = |name: &str| field(name).and_then(as_number).ok_or_else(|| wrong(name));
    let optype = match field("optype") {
        Some(Field::Str(text)) => text.clone(),
        Some(Field::Bytes(bytes)) => bytes.as_utf8().map_err(|_| wrong("optype"))?.to_owned(),
        _ => return Err(wrong("optype")),
    };
    Ok(Operation {
        dp_rank: real("dp_rank")?,
        stage: real("stage")?,
        rank: real("rank")?,
        step: real("step")?,
        optype,
        start_ts: real("start_ts")?,
        duration: real("duration")?,
    })
}

fn as_number(field: &Field) -> Option<f64> {
    Some(match field {
        Field::Byte(n) => (*n).into(),
        Field::Short(n) => (*n).into(),
        Field::Int(n) => (*n).into(),
        Field::Long(n) => *n as f64,
        Field::UByte(n) => (*n).into(),
        Field::UShort(n) => (*n).into(),
        Field::UInt(n) => (*n).into(),
        Field::ULong(n) => *n as f64,
        Field::Float(n) => (*n).into(),
        Field::Double(n) => *n,
        _ => return None,
    })
}
