//! Files that claim what they do not have.

use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;
use crate::place::Settings;

/// A file of a row group with `n` and `t`.
fn file() -> Vec<u8> {
    let schema = parse_message_type("message m { OPTIONAL INT64 n; OPTIONAL BYTE_ARRAY t (STRING); }").unwrap();
    let mut writer =
        SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(WriterProperties::default())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int64Type>().write_batch(&[1, 2, 3], Some(&[1, 1, 0, 1]), None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let texts = ["a", "a", "b", "c"].map(ByteArray::from);
    column.typed::<ByteArrayType>().write_batch(&texts, Some(&[1, 1, 1, 1]), None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.into_inner().unwrap()
}

/// The same file with other metadata.
fn with_metadata(file: &[u8], change: impl Fn(RowGroupMetaData) -> RowGroupMetaData) -> Vec<u8> {
    let metadata: ParquetMetaData =
        ParquetMetaDataReader::new().parse_and_finish(&Bytes::copy_from_slice(file)).unwrap();
    let groups = metadata.row_groups().iter().cloned().map(change).collect();
    let metadata = metadata.into_builder().set_row_groups(groups).build();
    let mut changed = file.to_vec();
    ParquetMetaDataWriter::new(&mut changed, &metadata).finish().unwrap();
    changed
}

fn read(bytes: &[u8]) -> parquet::errors::Result<Chunk> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), bytes).unwrap();
    let place = Place::open(dir.path().to_str().unwrap(), &Settings::default()).unwrap();
    let file = File::open(&place, "f".to_owned(), bytes.len() as u64)?;
    file.read(0, &[Some("n"), Some("t"), None])
}

/// The group with another first column. (The writer of metadata sums them up.)
fn of_columns(
    group: RowGroupMetaData,
    change: impl Fn(ColumnChunkMetaData) -> ColumnChunkMetaData,
) -> RowGroupMetaData {
    let mut columns = group.columns().to_vec();
    columns[0] = change(columns[0].clone());
    group.into_builder().set_column_metadata(columns).build().unwrap()
}

#[test]
fn a_group_that_claims_too_many_rows_is_refused() {
    let good = file();
    let chunk = read(&good).unwrap();
    assert_eq!((chunk.rows, chunk.value(2, 0), chunk.value(3, 1)), (4, ValueRef::Null, ValueRef::Text(b"c")));
    assert!(read(&with_metadata(&good, |group| group)).is_ok());
    type Lie = Box<dyn Fn(RowGroupMetaData) -> RowGroupMetaData>;
    let rows = |rows: i64| -> Lie { Box::new(move |group| group.into_builder().set_num_rows(rows).build().unwrap()) };
    let bytes =
        |bytes: i64| -> Lie { Box::new(move |group| group.into_builder().set_total_byte_size(bytes).build().unwrap()) };
    let column = |change: fn(ColumnChunkMetaData) -> ColumnChunkMetaData| -> Lie {
        Box::new(move |group| of_columns(group, change))
    };
    let lies: [(&str, Lie); 13] = [
        ("fewer rows", rows(400_000)),
        ("claims more rows", rows(i64::MAX)),
        ("claims more rows", rows(MOST_ROWS + 1)),
        ("claims more rows", rows(-1)),
        ("claims more values", rows(1)),
        ("claims more bytes", bytes(i64::MAX)),
        ("claims more bytes", bytes(-1)),
        (
            "claims more bytes",
            column(|c| c.into_builder().set_total_uncompressed_size(i64::MAX - (1 << 20)).build().unwrap()),
        ),
        ("claims more values", column(|c| c.into_builder().set_total_uncompressed_size(-1).build().unwrap())),
        ("claim more bytes", column(|c| c.into_builder().set_total_uncompressed_size(10).build().unwrap())),
        ("outside of its file", column(|c| c.into_builder().set_total_compressed_size(1 << 40).build().unwrap())),
        (
            "outside of its file",
            column(|c| c.into_builder().set_total_compressed_size(i64::MAX - (1 << 20)).build().unwrap()),
        ),
        ("outside of its file", column(|c| c.into_builder().set_total_compressed_size(-5).build().unwrap())),
    ];
    for (at, (words, lie)) in lies.iter().enumerate() {
        let read = read(&with_metadata(&good, lie)).map(|chunk| chunk.rows).map_err(|error| error.to_string());
        assert!(read.as_ref().is_err_and(|error| error.contains(words)), "{at}: {read:?}");
    }
    // Metadata longer than any, as the last bytes say; and files of no use.
    let mut long = good.clone();
    let end = long.len() - FOOTER;
    long[end..end + 4].copy_from_slice(&(u32::MAX - 9).to_le_bytes());
    assert!(read(&long).map(|chunk| chunk.rows).unwrap_err().to_string().contains("metadata"));
    for bytes in [&good[..0], &good[..3], &good[..7], &good[..good.len() - 1]] {
        assert!(read(bytes).is_err());
    }
}

#[test]
fn what_is_read_is_counted_before() {
    use query_planner::memory::{Account, cap_of};
    let good = file();
    let account = Account::new(64 << 10);
    let some = with_metadata(&good, |group| group.into_builder().set_num_rows(400_000).build().unwrap());
    let _cap = cap_of(&account);
    let error = read(&some).map(|chunk| chunk.rows).unwrap_err();
    assert!(is_no_room(&error), "{error}");
    assert_eq!(read(&good).map(|chunk| chunk.rows).unwrap(), 4);
}
