//! Owns what an archive reads of a store: which times there are, what is missing from them, and a
//! table's rows of a stretch as Parquet, all from one snapshot. Does not own where that goes nor
//! how it is named (`archive`).

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ::parquet::errors::ParquetError;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension};

use super::export::parquet::{Extras, GROUP_ROWS, ParquetTable, RowError};
use super::tables::{self, Table};
use crate::facts::FactsState;
use crate::losslog::LossFact;
use crate::{ServedDb, StoreError, columnar, quoted, sessions};

/// Why hours cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum HoursError {
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It is no trace store, or one that no agent has opened yet.
    #[error("{0} is no trace store with a session of an agent: only those have hours to archive")]
    NoStore(PathBuf),
    /// SQLite failed.
    #[error("{path}: {source}")]
    Sqlite {
        /// The store.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// A value that does not fit its column.
    #[error("{table}.{column} holds {found} in a column declared for {declared}")]
    Value {
        /// Table.
        table: String,
        /// Column.
        column: String,
        /// What was found.
        found: &'static str,
        /// What fits the column.
        declared: &'static str,
    },
    /// It was asked to stop.
    #[error("stopped")]
    Stopped,
    /// The file could not be written where it was to go.
    #[error("writing {table}: {source}")]
    Write {
        /// Table.
        table: String,
        /// The writer's error.
        source: ParquetError,
    },
}

/// A snapshot of a store, to take hours from. While it lives the store's write-ahead log grows: it
/// is meant for one pass over a few hours.
#[derive(Debug)]
pub struct Hours {
    path: PathBuf,
    conn: Connection,
    tables: Vec<Table>,
    birth_ns: i64,
    schema_version: i64,
    known: FactsState,
    gaps: Vec<(i64, i64)>,
    not_archived: Vec<NotArchived>,
    has_segments: bool,
}

/// Rows of an hour that retention dropped before they were archived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotArchived {
    /// The table.
    pub table: String,
    /// The hour's first nanosecond, Unix.
    pub hour_ns: i64,
    /// The last time of such a row.
    pub until_ns: i64,
    /// How many.
    pub rows: u64,
}

/// Which rows to write, and what to add to them.
#[derive(Debug)]
pub struct RowsOf<'a> {
    /// The table.
    pub table: &'a str,
    /// Their times, Unix nanoseconds.
    pub range: Range<i64>,
    /// Only the rows with these ids, in their order.
    pub rowids: Option<Range<i64>>,
    /// Columns of one text each, before the table's own.
    pub constants: Vec<(String, String)>,
    /// Pairs for the file's metadata.
    pub metadata: Vec<(String, String)>,
}

/// What was written of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableWritten {
    /// Rows.
    pub rows: u64,
    /// The least and greatest time, Unix nanoseconds.
    pub span_ns: Option<(i64, i64)>,
    /// The greatest row id: what comes later has a greater one.
    pub last_rowid: i64,
}

impl Hours {
    /// Opens a store read-only; an agent may be writing to it.
    ///
    /// # Errors
    /// [`HoursError`]: it cannot be read, or is no store.
    pub fn open(path: &Path) -> Result<Self, HoursError> {
        let served = ServedDb::open(path, Vec::new())?;
        let conn = served.reader()?;
        let sqlite = |source| HoursError::Sqlite { path: path.to_owned(), source };
        conn.execute_batch("BEGIN").map_err(sqlite)?;
        if !tables::is_ours(&conn).map_err(sqlite)? {
            return Err(HoursError::NoStore(path.to_owned()));
        }
        let birth_ns = sessions::birth(&conn).map_err(sqlite)?;
        let birth_ns = birth_ns.ok_or_else(|| HoursError::NoStore(path.to_owned()))?;
        let schema_version = conn.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(sqlite)?;
        let known = FactsState::load(&conn).map_err(sqlite)?;
        let spans = known.gaps.iter().map(|gap| (gap.since_ns, gap.until_ns)).collect();
        let mut tables = tables::tables(&conn).map_err(sqlite)?;
        tables.retain(|table| table.time.is_some());
        let sql = "SELECT count(*) > 0 FROM sqlite_schema WHERE name = 'segments'";
        let has_segments = conn.query_row(sql, [], |row| row.get(0)).map_err(sqlite)?;
        let not_archived = not_archived(&conn).map_err(sqlite)?;
        let (path, gaps) = (path.to_owned(), spans);
        Ok(Self { path, conn, tables, birth_ns, schema_version, known, gaps, not_archived, has_segments })
    }

    /// What retention dropped of an hour before it was archived.
    pub fn not_archived(&self, range: &Range<i64>) -> impl Iterator<Item = &NotArchived> {
        self.not_archived.iter().filter(move |gap| range.contains(&gap.hour_ns))
    }

    /// The store's own number, equal in its copies: when its first session began, Unix nanoseconds.
    #[must_use]
    pub fn birth_ns(&self) -> i64 {
        self.birth_ns
    }

    /// The version of its schema.
    #[must_use]
    pub fn schema_version(&self) -> i64 {
        self.schema_version
    }

    /// The tables whose rows have a time, in the order of their names.
    pub fn tables(&self) -> impl Iterator<Item = &str> {
        self.tables.iter().map(|table| table.name.as_str())
    }

    /// The columns of a table, in order.
    pub fn columns(&self, table: &str) -> impl Iterator<Item = &str> {
        let table = self.tables.iter().find(|found| found.name == table);
        table.into_iter().flat_map(|table| &table.columns).map(|column| column.name.as_str())
    }

    /// The first and the last time of any row, Unix nanoseconds.
    #[must_use]
    pub fn span_ns(&self) -> Option<(i64, i64)> {
        let facts = self.known.facts();
        let first = facts.tables.iter().filter_map(|table| table.first_ns).min()?;
        Some((first, facts.tables.iter().filter_map(|table| table.last_ns).max()?))
    }

    /// Up to when retention has dropped rows of a table, Unix nanoseconds.
    #[must_use]
    pub fn dropped_until_ns(&self, table: &str) -> Option<i64> {
        self.known.facts().table(table)?.dropped_until_ns
    }

    /// What was lost in a stretch.
    #[must_use]
    pub fn losses(&self, range: &Range<i64>) -> Vec<LossFact> {
        self.known.losses.between(range.start, range.end.saturating_sub(1))
    }

    /// The times in a stretch without an agent that recorded.
    #[must_use]
    pub fn gaps(&self, range: &Range<i64>) -> Vec<(i64, i64)> {
        let within = |(since, until): &(i64, i64)| (*since.max(&range.start), *until.min(&range.end));
        self.gaps.iter().map(within).filter(|(since, until)| since < until).collect()
    }

    /// Whether a table got rows of a stretch after the row `last_rowid`.
    ///
    /// # Errors
    /// SQLite cannot read it.
    pub fn has_later(&self, table: &str, range: &Range<i64>, last_rowid: i64) -> Result<bool, HoursError> {
        let Some((table, time)) = self.timed(table) else { return Ok(false) };
        let (name, time) = (quoted(&table.name), quoted(time));
        let sql = format!("SELECT 1 FROM {name} WHERE rowid > ?1 AND {time} >= ?2 AND {time} < ?3 LIMIT 1");
        let sqlite = |source| HoursError::Sqlite { path: self.path.clone(), source };
        let mut statement = self.conn.prepare_cached(&sql).map_err(sqlite)?;
        let found = statement.query_row([last_rowid, range.start, range.end], |_| Ok(())).optional();
        Ok(found.map_err(sqlite)?.is_some())
    }

    /// The first and the last id of a table's rows after the row `after`; none where there are
    /// none.
    ///
    /// # Errors
    /// SQLite cannot read it.
    pub fn rowids_after(&self, table: &str, after: i64) -> Result<Option<(i64, i64)>, HoursError> {
        let Some((table, _)) = self.timed(table) else { return Ok(None) };
        let sql = format!("SELECT min(rowid), max(rowid) FROM {} WHERE rowid > ?1", quoted(&table.name));
        let sqlite = |source| HoursError::Sqlite { path: self.path.clone(), source };
        let mut statement = self.conn.prepare_cached(&sql).map_err(sqlite)?;
        let found = statement.query_row([after], |row| Ok((row.get(0)?, row.get(1)?)));
        let (first, last): (Option<i64>, Option<i64>) = found.map_err(sqlite)?;
        Ok(first.zip(last))
    }

    /// The newest time of a table's rows, Unix nanoseconds.
    ///
    /// # Errors
    /// SQLite cannot read it.
    pub fn newest_ns(&self, table: &str) -> Result<Option<i64>, HoursError> {
        let Some((table, time)) = self.timed(table) else { return Ok(None) };
        let sql = format!("SELECT max({}) FROM {}", quoted(time), quoted(&table.name));
        let sqlite = |source| HoursError::Sqlite { path: self.path.clone(), source };
        self.conn.query_row(&sql, [], |row| row.get(0)).map_err(sqlite)
    }

    /// Writes rows as one Parquet file into `out`; every few thousand rows `may_go_on` is asked,
    /// and may take its time. Where there are no rows nothing is written: `out` is called with the
    /// first row.
    ///
    /// # Errors
    /// The store cannot be read, `out` not be written, or it may not go on.
    pub fn write<W: Write + Send>(
        &self,
        of: RowsOf<'_>,
        out: impl FnOnce() -> W,
        mut may_go_on: impl FnMut() -> bool,
    ) -> Result<(TableWritten, Option<W>), HoursError> {
        let Some((table, time)) = self.timed(of.table) else { return Ok((TableWritten::default(), None)) };
        let sqlite = |source| HoursError::Sqlite { path: self.path.clone(), source };
        let failed = |source| HoursError::Write { table: table.name.clone(), source };
        let columns: Vec<String> = table.columns.iter().map(|column| quoted(&column.name)).collect();
        let (name, time) = (quoted(&table.name), quoted(time));
        let sql =
            format!("SELECT {}, rowid, {time} FROM {name} WHERE {time} >= ?1 AND {time} < ?2", columns.join(", "));
        let sql = match &of.rowids {
            Some(ids) => format!("{sql} AND rowid >= {} AND rowid < {} ORDER BY rowid", ids.start, ids.end),
            None => sql,
        };
        let width = table.columns.len();
        let mut statement = self.conn.prepare(&sql).map_err(sqlite)?;
        let mut rows = statement.query([of.range.start, of.range.end]).map_err(sqlite)?;
        let mut written = TableWritten { last_rowid: i64::MIN, ..TableWritten::default() };
        let mut extras = Some(Extras { constants: of.constants, metadata: of.metadata });
        let (mut out, mut open) = (Some(out), None);
        while let Some(row) = rows.next().map_err(sqlite)? {
            if let (Some(out), Some(extras)) = (out.take(), extras.take()) {
                open = Some(ParquetTable::begin(out(), table, extras).map_err(failed)?);
            }
            let Some(parquet) = &mut open else { break };
            let values: Vec<ValueRef<'_>> =
                (0..width).map(|column| row.get_ref(column)).collect::<Result<_, _>>().map_err(sqlite)?;
            parquet.row(&values).map_err(|error| match error {
                RowError::Value(column, found, declared) => {
                    HoursError::Value { table: table.name.clone(), column, found, declared }
                }
                RowError::Parquet(source) => failed(source),
            })?;
            let (rowid, at): (i64, i64) = (row.get(width).map_err(sqlite)?, row.get(width + 1).map_err(sqlite)?);
            written.rows += 1;
            written.last_rowid = written.last_rowid.max(rowid);
            let (first, last) = written.span_ns.unwrap_or((at, at));
            written.span_ns = Some((first.min(at), last.max(at)));
            if parquet.waiting() % (GROUP_ROWS / 8) == 0 && !may_go_on() {
                return Err(HoursError::Stopped);
            }
        }
        let done = open.map(ParquetTable::finish).transpose().map_err(failed)?;
        Ok((written, done))
    }

    /// The first time from `from_ns` on of which there may be a row, or was one that was never
    /// archived, Unix nanoseconds: exact, or the first of a segment that meets it.
    ///
    /// # Errors
    /// SQLite cannot read the store.
    pub fn next_ns(&self, from_ns: i64) -> Result<Option<i64>, HoursError> {
        let sqlite = |source| HoursError::Sqlite { path: self.path.clone(), source };
        // (An hour all of whose rows are gone counts as one that was there.)
        let gaps = self.not_archived.iter().map(|gap| gap.until_ns);
        let mut next: Option<i64> = gaps.filter(|until_ns| *until_ns >= from_ns).min();
        for table in &self.tables {
            let Some(time) = &table.time else { continue };
            let (rows, _, _) = match columnar::is_columnar(&table.name) && self.has_segments {
                true => columnar::span(&self.conn, &table.name).map_err(sqlite)?,
                false => (0, None, None),
            };
            let found: Option<i64> = if rows > 0 {
                let sql = "SELECT min(max(first_ns, ?2)) FROM segments WHERE table_name = ?1 AND last_ns >= ?2";
                let mut statement = self.conn.prepare_cached(sql).map_err(sqlite)?;
                statement.query_row(rusqlite::params![table.name, from_ns], |row| row.get(0)).map_err(sqlite)?
            } else {
                let (name, time) = (quoted(&table.name), quoted(time));
                let sql = format!("SELECT min({time}) FROM {name} WHERE {time} >= ?1");
                let mut statement = self.conn.prepare_cached(&sql).map_err(sqlite)?;
                statement.query_row([from_ns], |row| row.get(0)).map_err(sqlite)?
            };
            next = match (next, found) {
                (Some(next), Some(found)) => Some(next.min(found)),
                (next, found) => next.or(found),
            };
        }
        Ok(next)
    }

    /// A table with its time.
    fn timed(&self, name: &str) -> Option<(&Table, &str)> {
        let table = self.tables.iter().find(|table| table.name == name)?;
        Some((table, table.time.as_deref()?))
    }
}

fn not_archived(conn: &Connection) -> rusqlite::Result<Vec<NotArchived>> {
    let sql = "SELECT table_name, hour_ns, until_ns, rows_dropped FROM archive_gaps ORDER BY hour_ns, table_name";
    let mut statement = conn.prepare(sql)?;
    let read = statement.query_map([], |row| {
        let rows: i64 = row.get(3)?;
        let rows = rows.max(0).cast_unsigned();
        Ok(NotArchived { table: row.get(0)?, hour_ns: row.get(1)?, until_ns: row.get(2)?, rows })
    })?;
    read.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{T0, store_of_segments};

    #[test]
    fn a_stretch_becomes_a_file_and_later_rows_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n.db");
        store_of_segments(&path, 3, 1000).close();
        let hours = Hours::open(&path).unwrap();
        assert!(hours.birth_ns() > 0 && hours.tables().any(|table| table == "collectives"));
        let of = |range: Range<i64>| RowsOf {
            table: "collectives",
            range,
            rowids: None,
            constants: vec![("node".to_owned(), "n1".to_owned())],
            metadata: vec![("unit".to_owned(), "ns".to_owned())],
        };
        let (written, file) = hours.write(of(T0..T0 + 500_000), Vec::new, || true).unwrap();
        assert_eq!((written.rows, written.span_ns), (500, Some((T0, T0 + 499_000))));
        let bytes = bytes_of(file.unwrap());
        let reader = ::parquet::file::reader::SerializedFileReader::new(bytes).unwrap();
        use ::parquet::file::reader::FileReader;
        use ::parquet::record::RowAccessor;
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 500);
        assert_eq!((rows[7].get_string(0).unwrap().as_str(), rows[7].get_long(1).unwrap()), ("n1", T0 + 7000));
        let pairs = reader.metadata().file_metadata().key_value_metadata().unwrap();
        assert!(pairs.iter().any(|pair| pair.key == "unit"));

        let all = T0..T0 + 1_000_000_000;
        assert!(hours.has_later("collectives", &all, written.last_rowid).unwrap());
        let (written, _) = hours.write(of(all.clone()), Vec::new, || true).unwrap();
        assert!(!hours.has_later("collectives", &all, written.last_rowid).unwrap());
        let (written, file) = hours.write(of(0..1), Vec::new, || true).unwrap();
        assert!(file.is_none() && written.rows == 0, "no rows, no file");
        let next = |from_ns| hours.next_ns(from_ns).unwrap();
        assert_eq!(next(T0 - 5), Some(T0));
        assert!(next(T0 + 2_000_000).is_some_and(|ns| ns > T0 + 3_600_000_000_000), "the next segment's");
    }

    fn bytes_of(bytes: Vec<u8>) -> bytes::Bytes {
        bytes.into()
    }
}
