//! Owns a segment as it lies in the file: a row of `segments` with a header, and a row of
//! `segment_columns` for each column that is more than one value. Does not own a column's bytes
//! (`encode`).
//!
//! The header is a version byte and bincode 2 (standard configuration) of [`Header`]. A column's
//! row has the id `segment * 256 + its place in the header`; its bytes carry a checksum in the
//! header, since SQLite's pages have none.

pub(super) mod header;
mod listed;
pub(super) mod summary;

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, ffi, params};
use serde::{Deserialize, Serialize};

use self::header::ColumnHeader;
use super::Kind;
use super::cache::{self, FileId, Kept};
use super::elsewhere::{Part, PartColumn, PartValues};
use super::encode::{Cell, Column, Decoded, Encoded, Form, Scalar};
use crate::StoreError;

/// Rows of a segment at most.
pub(crate) const MOST_ROWS: usize = 65_536;
/// Time from the first to the last row of a segment at most, about: rows are dropped by age a
/// segment at a time.
pub(crate) const MOST_SPAN_NS: i64 = 6 * 3600 * 1_000_000_000;

const HEADER_VERSION: u8 = 1;
/// Columns of a table at most.
const MOST_COLUMNS: usize = summary::PLACE;
const HEADER_BYTES: usize = 16 << 20;

/// What can be wrong with segments.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SegmentError {
    /// SQLite failed.
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    /// Bytes do not make sense.
    #[error(
        "segment {segment} of {table} is damaged ({what}): its rows cannot be read; `rankmesh check --db FILE` says more"
    )]
    Damaged { table: String, segment: i64, what: String },
    /// What lies elsewhere cannot be read.
    #[error("{0}")]
    Elsewhere(String),
    /// Written by a later version.
    #[error("segment {segment} of {table} was written by a newer rankmesh: use that version")]
    Newer { table: String, segment: i64 },
}

impl From<StoreError> for SegmentError {
    fn from(error: StoreError) -> Self {
        Self::Elsewhere(error.to_string())
    }
}

/// With a code by which the executor tells it from an error that the question's own SQL raises
/// (SQLITE_ERROR): what is wrong with these bytes is this node's fault.
impl From<SegmentError> for rusqlite::Error {
    fn from(error: SegmentError) -> Self {
        match error {
            SegmentError::Sqlite(error)
                if error.sqlite_error().is_some_and(|error| error.extended_code & 0xff != ffi::SQLITE_ERROR) =>
            {
                error
            }
            other => Self::SqliteFailure(ffi::Error::new(ffi::SQLITE_CORRUPT_VTAB), Some(other.to_string())),
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Header {
    columns: Vec<ColumnHeader>,
}

/// A column of a segment that lies in no file.
pub(super) struct InMemory {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) values: Encoded,
    /// Smallest and greatest integer.
    pub(super) range: Option<(i64, i64)>,
}

/// A segment's header.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(super) id: i64,
    pub(super) table: String,
    pub(crate) first_rowid: i64,
    pub(crate) rows: usize,
    pub(super) columns: Arc<[ColumnHeader]>,
    lies: Lies,
}

/// Where a segment's columns are.
#[derive(Debug, Clone)]
enum Lies {
    /// In the file, and what was read of it where this process keeps that.
    InFile(Option<Arc<Kept>>),
    InMemory(Arc<[Encoded]>),
    Elsewhere(Arc<dyn Part>),
}

/// Multiplying hash over words: finds torn and swapped pages, not malice.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    let mut hash = bytes.len() as u64 ^ 0x51_7c_c1_b7_27_22_0a_95;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
        hash = (hash.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    for &byte in words.remainder() {
        hash = (hash.rotate_left(5) ^ u64::from(byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    (hash >> 32) as u32
}

/// The headers of columns of equal length, and their bytes.
fn encoded(columns: &[(String, Column)]) -> Result<(Vec<ColumnHeader>, Vec<Vec<u8>>), &'static str> {
    let rows = columns.first().map_or(0, |(_, column)| column.len());
    if columns.len() > MOST_COLUMNS || columns.iter().any(|(_, column)| column.len() != rows) {
        return Err("its columns do not fit together");
    }
    let mut headers = Vec::with_capacity(columns.len());
    let mut bodies = Vec::with_capacity(columns.len());
    for (name, column) in columns {
        let (form, body, range) = column.encode();
        headers.push(ColumnHeader {
            name: name.clone(),
            kind: column.kind(),
            form,
            range,
            bytes: u32::try_from(body.len()).map_err(|_| "a column is too long")?,
            check: checksum(&body),
        });
        bodies.push(body);
    }
    Ok((headers, bodies))
}

/// Write columns of equal length as a new segment of `table`; `time` names the column with its
/// time. Returns it.
pub(super) fn write(
    conn: &Connection,
    table: &str,
    time: &str,
    first_rowid: i64,
    columns: &[(String, Column)],
) -> Result<Segment, SegmentError> {
    let rows = columns.first().map_or(0, |(_, column)| column.len());
    let damaged = |what: &str| SegmentError::Damaged { table: table.to_owned(), segment: 0, what: what.to_owned() };
    let (headers, bodies) = encoded(columns).map_err(damaged)?;
    let (first_ns, last_ns) =
        headers.iter().find(|column| column.name == time).and_then(|column| column.range).unwrap_or((0, 0));
    let header = Header { columns: headers };
    let mut bytes = vec![HEADER_VERSION];
    let config = bincode::config::standard().with_limit::<HEADER_BYTES>();
    bytes.extend(bincode::serde::encode_to_vec(&header, config).map_err(|error| damaged(&error.to_string()))?);
    conn.prepare_cached(
        "INSERT INTO segments (table_name, first_rowid, row_count, first_ns, last_ns, header) VALUES (?1,?2,?3,?4,?5,?6)",
    )?
    .execute(params![table, first_rowid, rows as i64, first_ns, last_ns, bytes])?;
    let id = conn.last_insert_rowid();
    let mut insert = conn.prepare_cached("INSERT INTO segment_columns (id, data) VALUES (?1, ?2)")?;
    for (at, body) in bodies.iter().enumerate().filter(|(_, body)| !body.is_empty()) {
        insert.execute(params![column_id(id, at), body])?;
    }
    summary::write(conn, table, id, columns)?;
    Ok(Segment {
        id,
        table: table.to_owned(),
        first_rowid,
        rows,
        columns: header.columns.into(),
        lies: Lies::InFile(None),
    })
}

pub(super) fn column_id(segment: i64, at: usize) -> i64 {
    segment << 8 | at as i64
}

/// Delete a segment.
pub(crate) fn delete(conn: &Connection, segment: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM segment_columns WHERE id BETWEEN ?1 AND ?2")?
        .execute([column_id(segment, 0), column_id(segment, summary::PLACE)])?;
    conn.prepare_cached("DELETE FROM segments WHERE id = ?1")?.execute([segment])?;
    Ok(())
}

impl Segment {
    /// From a row of `segments`.
    fn read(row: &Row<'_>, table: &str, file: Option<FileId>) -> Result<Self, SegmentError> {
        let (id, rows): (i64, i64) = (row.get(0)?, row.get(2)?);
        let bytes = row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?;
        let damaged = |what: String| SegmentError::Damaged { table: table.to_owned(), segment: id, what };
        let rows = usize::try_from(rows).ok().filter(|rows| *rows <= MOST_ROWS);
        let rows = rows.ok_or_else(|| damaged("its header does not fit".to_owned()))?;
        let (first_rowid, table) = (row.get(1)?, table.to_owned());
        if let Some(kept) = file.and_then(|file| cache::find(file, id, bytes)) {
            return Ok(Self::of_kept((id, first_rowid, rows), &table, kept));
        }
        let body = match bytes.split_first() {
            Some((&HEADER_VERSION, body)) => body,
            Some(_) => return Err(SegmentError::Newer { table, segment: id }),
            None => return Err(damaged("an empty header".to_owned())),
        };
        let config = bincode::config::standard().with_limit::<HEADER_BYTES>();
        let (header, read): (Header, usize) =
            bincode::serde::decode_from_slice(body, config).map_err(|error| damaged(error.to_string()))?;
        if read != body.len() || header.columns.len() > MOST_COLUMNS {
            return Err(damaged("its header does not fit".to_owned()));
        }
        let columns: Arc<[ColumnHeader]> = header.columns.into();
        let kept = file.map(|file| cache::keep(file, id, bytes, Arc::clone(&columns)));
        Ok(Self { id, table, first_rowid, rows, columns, lies: Lies::InFile(kept) })
    }

    /// Of a file's segment, by its id, first row id and rows, of which something is kept.
    fn of_kept((id, first_rowid, rows): (i64, i64, usize), table: &str, kept: Arc<Kept>) -> Self {
        let columns = Arc::clone(&kept.columns);
        Self { id, table: table.to_owned(), first_rowid, rows, columns, lies: Lies::InFile(Some(kept)) }
    }

    /// What is kept of it.
    fn kept(&self) -> std::sync::Weak<Kept> {
        match &self.lies {
            Lies::InFile(Some(kept)) => Arc::downgrade(kept),
            _ => std::sync::Weak::new(),
        }
    }

    /// Columns of `rows` rows as a segment that lies in no file: rows of a question. Each with its
    /// least and greatest integer, where it has one.
    pub(super) fn in_memory(id: i64, rows: usize, columns: Vec<InMemory>) -> Self {
        let (mut headers, mut memory) = (Vec::with_capacity(columns.len()), Vec::with_capacity(columns.len()));
        for InMemory { name, kind, values, range } in columns {
            // (Nothing is read by this form: the values are there.)
            let form = Form::Packed { has_null: values.valid().is_some(), by_differences: false };
            headers.push(ColumnHeader { name, kind, form, range, bytes: 0, check: 0 });
            memory.push(values);
        }
        let (columns, lies) = (headers.into(), Lies::InMemory(memory.into()));
        Self { id, table: String::new(), first_rowid: 0, rows, columns, lies }
    }

    /// Rows of a table that lie elsewhere: `kinds` are its columns.
    pub(super) fn elsewhere(table: &str, part: Arc<dyn Part>, kinds: &[(String, Kind)]) -> Self {
        let header = |column: PartColumn| {
            let (_, kind) = kinds.iter().find(|(name, _)| name.eq_ignore_ascii_case(&column.name))?;
            // (Nothing is read by this form.)
            let form = Form::Packed { has_null: column.has_null, by_differences: false };
            Some(ColumnHeader { name: column.name, kind: *kind, form, range: column.range, bytes: 0, check: 0 })
        };
        let columns = part.columns().into_iter().filter_map(header).collect();
        let rows = part.rows();
        Self { id: 0, table: table.to_owned(), first_rowid: 0, rows, columns, lies: Lies::Elsewhere(part) }
    }

    /// Whether it is a segment of a file of ours.
    pub(super) fn is_in_file(&self) -> bool {
        matches!(self.lies, Lies::InFile(_))
    }

    /// A column with all its values in memory.
    pub(super) fn decoded(&self, conn: &Connection, name: &str) -> Result<Decoded, SegmentError> {
        self.column(conn, name)?.decode().ok_or_else(|| self.damaged(name.to_owned()))
    }

    /// The least and greatest integer of a column.
    pub(super) fn range(&self, column: &str) -> Option<(i64, i64)> {
        self.header(column).and_then(|header| header.range)
    }

    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    pub(super) fn damaged(&self, what: impl Into<String>) -> SegmentError {
        SegmentError::Damaged { table: self.table.clone(), segment: self.id, what: what.into() }
    }

    pub(super) fn header(&self, name: &str) -> Option<&ColumnHeader> {
        self.columns.iter().find(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// Read a column; where this segment was written before the column existed, it is NULL.
    pub(crate) fn column(&self, conn: &Connection, name: &str) -> Result<Encoded, SegmentError> {
        let found = self.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name));
        let Some(at) = found else {
            let form = Form::Constant(Scalar::Null);
            return Encoded::open(self.rows, Kind::Integer, &form, Vec::new())
                .ok_or_else(|| self.damaged(name.to_owned()));
        };
        let column = &self.columns[at];
        let kept = match &self.lies {
            Lies::InFile(kept) => kept.as_ref(),
            Lies::InMemory(columns) => return columns.get(at).cloned().ok_or_else(|| self.damaged(name)),
            Lies::Elsewhere(part) => {
                let read = part.read(&column.name)?;
                let fits = read.len() == self.rows
                    && matches!(read, PartValues::Integers(..)) == (column.kind == Kind::Integer);
                let wrong = || SegmentError::Elsewhere(format!("{name} of {part:?} is not what its file says"));
                return if fits { Ok(read.encoded()) } else { Err(wrong()) };
            }
        };
        if let Some(column) = kept.and_then(|kept| kept.column(at)) {
            return Ok(column);
        }
        let mut bytes: Arc<[u8]> = Arc::default();
        if column.bytes > 0 {
            let _ours = Ours::here();
            bytes = conn
                .prepare_cached("SELECT data FROM segment_columns WHERE id = ?1")?
                .query_row([column_id(self.id, at)], |row| Ok(row.get_ref(0)?.as_blob()?.into()))
                .optional()?
                .ok_or_else(|| self.damaged(format!("{name} is missing")))?;
        }
        if bytes.len() != column.bytes as usize || checksum(&bytes) != column.check {
            return Err(self.damaged(format!("the checksum of {name} does not fit")));
        }
        let read = Encoded::open(self.rows, column.kind, &column.form, bytes);
        let read = read.ok_or_else(|| self.damaged(name.to_owned()))?;
        if let Some(kept) = kept {
            kept.keep(at, &read);
        }
        Ok(read)
    }
}

thread_local! {
    static OF_SEGMENTS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether the statement that SQLite compiles on this thread right now is one of ours that reads
/// segments, and not a question's: an authorizer may let the one read what it refuses to the other.
pub(crate) fn compiles_ours() -> bool {
    OF_SEGMENTS.get()
}

/// As long as it lives this thread compiles and runs statements of ours that read segments: SQLite
/// compiles a kept one again where the schema has changed since.
struct Ours(bool);

impl Ours {
    fn here() -> Self {
        Self(OF_SEGMENTS.replace(true))
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        OF_SEGMENTS.set(self.0);
    }
}

/// The segments of a table, by row id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Directory {
    pub(crate) segments: Vec<Segment>,
}

impl Directory {
    /// Those that may hold rows from the first to the second time.
    pub(crate) fn load(conn: &Connection, table: &str, (first_ns, last_ns): (i64, i64)) -> Result<Self, SegmentError> {
        let _ours = Ours::here();
        if let Some(segments) = listed::segments(conn, table, (first_ns, last_ns))? {
            return Ok(Self { segments });
        }
        let mut statement = conn.prepare_cached(
            "SELECT id, first_rowid, row_count, header FROM segments \
             WHERE table_name = ?1 AND last_ns >= ?2 AND first_ns <= ?3 ORDER BY first_rowid",
        )?;
        let file = FileId::of(conn);
        let mut rows = statement.query(params![table, first_ns, last_ns])?;
        let mut segments = Vec::new();
        while let Some(row) = rows.next()? {
            segments.push(Segment::read(row, table, file)?);
        }
        Ok(Self { segments })
    }

    /// Some, by their ids, in that order.
    pub(super) fn of_ids(conn: &Connection, table: &str, ids: impl Iterator<Item = i64>) -> Result<Self, SegmentError> {
        let _ours = Ours::here();
        let mut statement =
            conn.prepare_cached("SELECT id, first_rowid, row_count, header FROM segments WHERE id = ?1")?;
        let mut segments = Vec::new();
        for id in ids {
            let mut rows = statement.query([id])?;
            if let Some(row) = rows.next()? {
                segments.push(Segment::read(row, table, None)?);
            }
        }
        Ok(Self { segments })
    }

    /// All of a table.
    #[cfg(test)]
    pub(crate) fn all(conn: &Connection, table: &str) -> Result<Self, SegmentError> {
        Self::load(conn, table, (i64::MIN, i64::MAX))
    }
}

/// Rows, first and last time of a table.
pub(crate) fn span(conn: &Connection, table: &str) -> rusqlite::Result<(u64, Option<i64>, Option<i64>)> {
    conn.prepare_cached(
        "SELECT ifnull(sum(row_count), 0), min(first_ns), max(last_ns) FROM segments WHERE table_name = ?1",
    )?
    .query_row([table], |row| Ok((row.get::<_, i64>(0)?.max(0).cast_unsigned(), row.get(1)?, row.get(2)?)))
}

/// Rows of a table and the times between which they lie, about: by its first and its last segment
/// alone.
pub(super) fn size(conn: &Connection, table: &str) -> rusqlite::Result<(i64, (i64, i64))> {
    let _ours = Ours::here();
    let end = |order: &str| -> rusqlite::Result<Option<[i64; 4]>> {
        conn.prepare_cached(&format!(
            "SELECT first_rowid, row_count, first_ns, last_ns FROM segments WHERE table_name = ?1 \
             ORDER BY first_rowid {order} LIMIT 1"
        ))?
        .query_row([table], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]))
        .optional()
    };
    Ok(match (end("ASC")?, end("DESC")?) {
        (Some([first, _, since, _]), Some([last, rows, _, until])) => {
            (last.saturating_add(rows).saturating_sub(first), (since, until))
        }
        _ => (0, (0, 0)),
    })
}

/// The segment at the table's end: its id, first row id and rows.
pub(crate) fn last(conn: &Connection, table: &str) -> rusqlite::Result<Option<(i64, i64, i64)>> {
    conn.prepare_cached(
        "SELECT id, first_rowid, row_count FROM segments WHERE table_name = ?1 ORDER BY first_rowid DESC LIMIT 1",
    )?
    .query_row([table], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
    .optional()
}

/// The time up to which the segment that ends first reaches.
pub(crate) fn oldest(conn: &Connection, table: &str) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached("SELECT min(last_ns) FROM segments WHERE table_name = ?1")?.query_row([table], |row| row.get(0))
}

/// The segment of a table that ends first: its id and last time.
pub(crate) fn ends_first(conn: &Connection, table: &str) -> rusqlite::Result<Option<(i64, i64)>> {
    conn.prepare_cached("SELECT id, last_ns FROM segments WHERE table_name = ?1 ORDER BY last_ns LIMIT 1")?
        .query_row([table], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
}

/// Delete a segment; how many rows it had.
pub(crate) fn drop(conn: &Connection, segment: i64) -> rusqlite::Result<i64> {
    let sql = "SELECT row_count FROM segments WHERE id = ?1";
    let rows = conn.prepare_cached(sql)?.query_row([segment], |row| row.get(0))?;
    delete(conn, segment)?;
    Ok(rows)
}

/// The integers of a segment's column, without NULLs.
pub(crate) fn integers(conn: &Connection, table: &str, segment: i64, column: &str) -> Result<Vec<i64>, SegmentError> {
    let found = Directory::of_ids(conn, table, [segment].into_iter())?;
    let Some(segment) = found.segments.first() else { return Ok(Vec::new()) };
    let read = segment.decoded(conn, column)?;
    let integer = |row: usize| match read.at(row) {
        Cell::Integer(value) => Some(value),
        _ => None,
    };
    Ok((0..read.rows()).filter_map(integer).collect())
}
