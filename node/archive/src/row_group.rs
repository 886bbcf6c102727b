//! Owns reading a Parquet file of an archive: its row groups, which of them the statistics rule
//! out, and the wanted columns, in memory.

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Type as Physical;
use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use parquet::file::statistics::Statistics;
use query_planner::memory::Reservation;
use rusqlite::types::ValueRef;
use store::PartColumn;

use crate::place::Place;

mod pages;
mod remote;

use remote::Remote;

/// Most rows of a row group: our own have an eighth.
const MOST_ROWS: i64 = 8 * 65_536;
/// Most bytes of a row group, not compressed: its columns are read into memory whole.
const MOST_GROUP_BYTES: i64 = 1 << 30;
/// Most bytes of a file's metadata: some hundred for each column of a row group.
const MOST_METADATA: u64 = 16 << 20;
/// A file's end: the length of its metadata, and four letters.
const FOOTER: usize = 8;
/// Bytes of a file's end that are read in one request, with most metadata.
const END: u64 = 64 << 10;

/// A file smaller than this is read completely: one request.
const SMALL: u64 = 256 << 10;

/// A column's values.
#[derive(Debug)]
pub(crate) enum Values {
    Integers(Vec<i64>),
    Reals(Vec<f64>),
    Text(Vec<ByteArray>),
    Blobs(Vec<ByteArray>),
    /// The store's own values, one by one.
    Any(Vec<rusqlite::types::Value>),
}

/// A column of a chunk: its values, and where some are NULL the indices of the others.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) values: Values,
    /// For each row the index of its value, or none.
    pub(crate) places: Option<Vec<u32>>,
}

/// The index for NULL.
const NULL: u32 = u32::MAX;

impl Column {
    pub(crate) fn any(values: Vec<rusqlite::types::Value>) -> Self {
        Self { values: Values::Any(values), places: None }
    }

    /// The value of a row.
    pub(crate) fn at(&self, row: usize) -> ValueRef<'_> {
        let place = match &self.places {
            None => row,
            Some(places) => match places.get(row) {
                None | Some(&NULL) => return ValueRef::Null,
                Some(place) => *place as usize,
            },
        };
        match &self.values {
            Values::Integers(values) => values.get(place).map_or(ValueRef::Null, |value| ValueRef::Integer(*value)),
            Values::Reals(values) => values.get(place).map_or(ValueRef::Null, |value| ValueRef::Real(*value)),
            Values::Text(values) => values.get(place).map_or(ValueRef::Null, |value| ValueRef::Text(value.data())),
            Values::Blobs(values) => values.get(place).map_or(ValueRef::Null, |value| ValueRef::Blob(value.data())),
            Values::Any(values) => values.get(place).map_or(ValueRef::Null, ValueRef::from),
        }
    }

    /// Its memory, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        let values = match &self.values {
            Values::Integers(values) => values.capacity() * 8,
            Values::Reals(values) => values.capacity() * 8,
            // Texts of a page share its bytes.
            Values::Text(values) | Values::Blobs(values) => {
                values.capacity() * size_of::<ByteArray>() + values.iter().map(ByteArray::len).sum::<usize>()
            }
            Values::Any(values) => {
                use rusqlite::types::Value;
                let long = |value: &Value| match value {
                    Value::Text(text) => text.len(),
                    Value::Blob(blob) => blob.len(),
                    _ => 0,
                };
                values.capacity() * size_of::<Value>() + values.iter().map(long).sum::<usize>()
            }
        };
        values + self.places.as_ref().map_or(0, |places| places.capacity() * 4)
    }
}

/// Rows in memory, with the columns that were asked for.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) rows: usize,
    /// By column of the table; none where it was not asked for or the file has none of that name.
    pub(crate) columns: Vec<Option<Column>>,
}

impl Chunk {
    pub(crate) fn value(&self, row: usize, column: usize) -> ValueRef<'_> {
        self.columns.get(column).and_then(Option::as_ref).map_or(ValueRef::Null, |column| column.at(row))
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.columns.iter().flatten().map(Column::memory_bytes).sum()
    }
}

/// A file that is open.
pub(crate) struct File {
    reader: SerializedFileReader<Remote>,
    metadata: ParquetMetaData,
    remote: Remote,
}

impl File {
    /// Opens a file of `bytes` bytes.
    pub(crate) fn open(place: &Place, name: String, bytes: u64) -> parquet::errors::Result<Self> {
        let (complete, parts) = (Arc::default(), Arc::default());
        let remote = Remote { place: place.clone(), name: name.into(), bytes, complete, parts };
        if bytes <= SMALL {
            let complete = remote.get_bytes(0, bytes as usize)?;
            *remote.complete.lock() = Some(complete);
        }
        let here = remote.clone();
        let (end, _held) = here.hold(bytes.saturating_sub(END)..bytes)?;
        let footer = end.len().checked_sub(FOOTER).and_then(|at| end[at..].first_chunk::<4>());
        let metadata_bytes = footer.map_or(u64::MAX, |length| u64::from(u32::from_le_bytes(*length)));
        if metadata_bytes > MOST_METADATA {
            return Err(refused("its metadata is longer than any archive's"));
        }
        unharmed(|| {
            let reader = SerializedFileReader::new(remote.clone())?;
            let metadata = reader.metadata().clone();
            metadata.row_groups().iter().try_for_each(|group| is_sound(group, bytes))?;
            Ok(Self { reader, metadata, remote })
        })
    }

    /// Its name in the archive.
    pub(crate) fn name(&self) -> &str {
        &self.remote.name
    }

    /// Bytes of it that are in memory.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.remote.complete.lock().as_ref().map_or(0, Bytes::len)
    }

    /// Drops everything but its metadata: later reads go to the file again.
    pub(crate) fn let_go(&mut self) {
        *self.remote.complete.lock() = None;
    }

    /// Rows of a row group.
    pub(crate) fn rows(&self, group: usize) -> usize {
        usize::try_from(self.metadata.row_group(group).num_rows()).unwrap_or(0)
    }

    /// The statistics of a row group's columns.
    pub(crate) fn known(&self, group: usize) -> Vec<PartColumn> {
        let column = |column: &ColumnChunkMetaData| {
            let known = column.statistics();
            let nulls = known.and_then(Statistics::null_count_opt);
            let range = match known {
                Some(Statistics::Int64(known)) => known.min_opt().copied().zip(known.max_opt().copied()),
                _ => None,
            };
            let is_null = nulls.is_some_and(|nulls| i64::try_from(nulls) == Ok(column.num_values()));
            PartColumn {
                name: column.column_path().string(),
                range: range.or((!is_null).then_some((i64::MIN, i64::MAX))),
                has_null: nulls != Some(0),
            }
        };
        self.metadata.row_group(group).columns().iter().map(column).collect()
    }

    /// How many row groups it has.
    pub(crate) fn groups(&self) -> usize {
        self.metadata.num_row_groups()
    }

    /// Whether a row group may have a row whose integers in `column` are in `range` (both ends
    /// within).
    pub(crate) fn may_hold(&self, group: usize, column: &str, (least, greatest): (i64, i64)) -> bool {
        let found = self.metadata.row_group(group);
        match place_of(found, column).and_then(|at| found.column(at).statistics()) {
            Some(Statistics::Int64(known)) => match (known.min_opt(), known.max_opt()) {
                (Some(min), Some(max)) => *min <= greatest && *max >= least,
                _ => true,
            },
            _ => true,
        }
    }

    /// Columns of a row group, by name; none for those it does not have.
    pub(crate) fn read(&self, group: usize, columns: &[Option<&str>]) -> parquet::errors::Result<Chunk> {
        unharmed(|| self.read_group(group, columns))
    }

    fn read_group(&self, group: usize, columns: &[Option<&str>]) -> parquet::errors::Result<Chunk> {
        let reader = self.reader.get_row_group(group)?;
        let metadata = self.metadata.row_group(group);
        let rows = self.rows(group);
        let mut read = Vec::with_capacity(columns.len());
        // What is read is counted before there is room made for it.
        let mut memory = Reservation::default();
        for name in columns {
            let Some(at) = name.and_then(|name| place_of(metadata, name)) else {
                read.push(None);
                continue;
            };
            let chunk = metadata.column(at);
            let (start, length) = chunk.byte_range();
            let bytes = u64::try_from(chunk.uncompressed_size()).unwrap_or(0);
            let needed = (length + bytes) as usize + rows * width(chunk);
            if !memory.try_grow(needed) {
                return Err(ParquetError::External(Box::new(NoRoom)));
            }
            let (in_file, _held) = self.remote.hold(start..start + length)?;
            pages::check(&in_file, pages::Claimed { rows, bytes })?;
            read.push(Some(column(reader.get_column_reader(at)?, metadata, at, rows)?));
        }
        Ok(Chunk { rows, columns: read })
    }
}

/// There is not so much memory left for the question.
#[derive(Debug, thiserror::Error)]
#[error("out of memory")]
struct NoRoom;

/// Whether reading failed for the question's memory.
pub(crate) fn is_no_room(error: &ParquetError) -> bool {
    matches!(error, ParquetError::External(source) if source.is::<NoRoom>())
}

/// Bytes of a row in memory beside its value's own.
fn width(column: &ColumnChunkMetaData) -> usize {
    let value = match column.column_type() {
        Physical::BYTE_ARRAY => size_of::<ByteArray>(),
        _ => size_of::<i64>(),
    };
    value + size_of::<i16>() + size_of::<u32>()
}

fn refused(why: &str) -> ParquetError {
    ParquetError::General(format!("damaged: {why}"))
}

/// Whether a row group of a file may be what its metadata claims: nothing is read by these numbers
/// before.
///
/// # Errors
/// It cannot.
fn is_sound(group: &RowGroupMetaData, file_bytes: u64) -> parquet::errors::Result<()> {
    if !(0..=MOST_ROWS).contains(&group.num_rows()) {
        return Err(refused("a row group claims more rows than any archive's"));
    }
    let mut bytes = group.total_byte_size();
    for column in group.columns() {
        let (uncompressed, length) = (column.uncompressed_size(), column.compressed_size());
        let start = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
        let end = start.checked_add(length).and_then(|end| u64::try_from(end).ok());
        if start < 0 || length < 0 || end.is_none_or(|end| end > file_bytes) {
            return Err(refused("a column lies outside of its file"));
        }
        if uncompressed < 0 || column.num_values() > group.num_rows() {
            return Err(refused("a column claims more values than its row group has rows"));
        }
        bytes = bytes.max(uncompressed);
    }
    if group.total_byte_size() < 0 || bytes > MOST_GROUP_BYTES {
        return Err(refused("a row group claims more bytes than any archive's"));
    }
    Ok(())
}

/// Runs the Parquet reader on bytes from outside: a panic caused by damaged ones becomes an error
/// (the caller is SQLite, and no panic may pass through it).
fn unharmed<T>(read: impl FnOnce() -> parquet::errors::Result<T>) -> parquet::errors::Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(ParquetError::General("damaged: the reader gave up".to_owned())))
}

fn place_of(group: &RowGroupMetaData, column: &str) -> Option<usize> {
    group.columns().iter().position(|found| found.column_path().string().eq_ignore_ascii_case(column))
}

fn column(reader: ColumnReader, group: &RowGroupMetaData, at: usize, rows: usize) -> parquet::errors::Result<Column> {
    let descr = group.column(at).column_descr_ptr();
    let mut defined: Vec<i16> = Vec::new();
    let optional = descr.max_def_level() > 0;
    let levels = optional.then_some(&mut defined);
    let (values, found) = match reader {
        ColumnReader::Int64ColumnReader(mut reader) => {
            let mut values = Vec::with_capacity(rows);
            let (found, ..) = reader.read_records(rows, levels, None, &mut values)?;
            (Values::Integers(values), found)
        }
        ColumnReader::DoubleColumnReader(mut reader) => {
            let mut values = Vec::with_capacity(rows);
            let (found, ..) = reader.read_records(rows, levels, None, &mut values)?;
            (Values::Reals(values), found)
        }
        ColumnReader::ByteArrayColumnReader(mut reader) => {
            let mut values = Vec::with_capacity(rows);
            let (found, ..) = reader.read_records(rows, levels, None, &mut values)?;
            (if descr.logical_type_ref().is_some() { Values::Text(values) } else { Values::Blobs(values) }, found)
        }
        _ => {
            let physical: Physical = descr.physical_type();
            return Err(ParquetError::General(format!("a column of {physical}, which no archive of ours has")));
        }
    };
    if found != rows {
        return Err(refused("a column has fewer rows than its row group claims"));
    }
    let places = (optional && defined.contains(&0)).then(|| {
        let mut next = 0;
        let place = |defined: &i16| {
            if *defined == 0 {
                return NULL;
            }
            next += 1;
            next - 1
        };
        defined.iter().map(place).collect()
    });
    Ok(Column { values, places })
}

#[cfg(test)]
mod tests;
