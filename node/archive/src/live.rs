//! Owns the rows of a node that are not taken from the archive, read a few thousand at a time: from
//! a store on this host ([`Live`]), or from another implementation that reaches the node's store.

use std::ops::Range;
use std::path::Path;

use query_planner::quoted;
use rusqlite::Connection;
use rusqlite::types::Value;
use store::exchange::Hours;
use store::{Facts, ServedDb, StoreError};

use crate::row_group::{Chunk, Column};

/// Rows read at a time.
const ROWS: usize = 8192;

/// Which rows of a node's store are wanted.
#[derive(Debug, Clone, Copy)]
pub struct RowsWanted<'a> {
    /// The table.
    pub table: &'a str,
    /// Its column with the time.
    pub time: &'a str,
    /// The columns, by their indices in the table; none where one is not used.
    pub columns: &'a [Option<&'a str>],
    /// The times, Unix nanoseconds.
    pub range: &'a Range<i64>,
    /// The hours that the archive has, sorted and disjoint.
    pub without: &'a [Range<i64>],
    /// When the question was asked: all scans of one question see the rows of that moment.
    pub asked_ns: i64,
}

impl RowsWanted<'_> {
    /// Whether the archive has all of the time.
    #[must_use]
    pub fn is_archived(&self) -> bool {
        covers(self.without, self.range)
    }

    /// The condition on the time, as SQL.
    #[must_use]
    pub fn condition(&self) -> String {
        let (time, Range { start, end }) = (quoted(self.time), self.range);
        let mut sql = format!("{time} >= {start} AND {time} < {end}");
        for hours in self.without {
            sql.push_str(&format!(" AND NOT ({time} >= {} AND {time} < {})", hours.start, hours.end));
        }
        sql
    }
}

/// Whether one of several ranges contains another one.
pub(crate) fn covers(ranges: &[Range<i64>], range: &Range<i64>) -> bool {
    ranges.iter().any(|hours| hours.start <= range.start && hours.end >= range.end)
}

/// A node's store, however it is reached.
pub trait LiveStore: std::fmt::Debug + Send + Sync {
    /// The store's number; none where it is no trace store, or not known.
    fn birth_ns(&self) -> Option<i64>;
    /// The time up to which retention has dropped rows of a table, Unix nanoseconds.
    fn dropped_until_ns(&self, table: &str) -> Option<i64>;
    /// Tables, spans and sizes.
    fn facts(&self) -> Facts;
    /// Notes on what is missing from `tables` (all when empty) in `range`.
    fn notes(&self, tables: &[&str], range: &Range<i64>) -> Vec<String>;
    /// Begins to read rows.
    ///
    /// # Errors
    /// [`StoreError`]: the store is not reached, or retention has just dropped rows that were to be
    /// read.
    fn rows(&self, wanted: RowsWanted<'_>) -> Result<Box<dyn Batches>, StoreError>;
    /// Whether rows are added while it is asked.
    fn grows(&self) -> bool;
}

/// Rows as they are read.
pub trait Batches: Send {
    /// The next rows, each with a value for each wanted column; none at the end.
    ///
    /// # Errors
    /// [`StoreError`]: the store is not reached any more.
    fn next(&mut self) -> Result<Option<Vec<Vec<Value>>>, StoreError>;
}

/// Rows as a chunk.
pub(crate) fn chunk(rows: Vec<Vec<Value>>, columns: &[Option<String>]) -> Chunk {
    let count = rows.len();
    let wanted = columns.iter().filter(|column| column.is_some()).count();
    let mut taken: Vec<Vec<Value>> = (0..wanted).map(|_| Vec::with_capacity(count)).collect();
    for row in rows {
        row.into_iter().zip(&mut taken).for_each(|(value, column)| column.push(value));
    }
    let mut taken = taken.into_iter();
    let columns = columns.iter().map(|column| column.as_ref().and_then(|_| taken.next()).map(Column::any)).collect();
    Chunk { rows: count, columns }
}

/// A store file on this host, with or without an agent that writes it.
#[derive(Debug)]
pub struct Live {
    served: ServedDb,
    birth_ns: Option<i64>,
    dropped: Vec<(String, i64)>,
}

impl Live {
    /// Opens a store read-only. A file of another program, of which there can be no archive, is
    /// accepted, too.
    ///
    /// # Errors
    /// [`StoreError`]: it cannot be read.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let served = ServedDb::open_recorded(path)?;
        let (mut birth_ns, mut dropped) = (None, Vec::new());
        if let Ok(hours) = Hours::open(path) {
            birth_ns = Some(hours.birth_ns());
            let until = |table: &str| Some((table.to_owned(), hours.dropped_until_ns(table)?));
            dropped = hours.tables().filter_map(until).collect();
        }
        Ok(Self { served, birth_ns, dropped })
    }
}

impl LiveStore for Live {
    fn birth_ns(&self) -> Option<i64> {
        self.birth_ns
    }

    fn dropped_until_ns(&self, table: &str) -> Option<i64> {
        self.dropped.iter().find(|(name, _)| name == table).map(|(_, until_ns)| *until_ns)
    }

    fn facts(&self) -> Facts {
        self.served.facts()
    }

    fn notes(&self, tables: &[&str], range: &Range<i64>) -> Vec<String> {
        self.served.notes(tables, range)
    }

    fn grows(&self) -> bool {
        false
    }

    fn rows(&self, wanted: RowsWanted<'_>) -> Result<Box<dyn Batches>, StoreError> {
        let table = wanted.table;
        let conn = self.served.reader()?;
        // One state of the store for all chunks.
        conn.execute_batch("BEGIN").map_err(|error| StoreError::External(error.to_string()))?;
        // The cut-off at opening time decided which of its hours are used.
        let cutoff = "SELECT max(cutoff_ns) FROM retention WHERE table_name = ?1";
        let cutoff_ns: Option<i64> = conn.query_row(cutoff, [table], |row| row.get(0)).unwrap_or_default();
        if self.birth_ns.is_some() && cutoff_ns != self.dropped_until_ns(table) {
            return Err(StoreError::External(format!("retention has just taken rows of {table}: ask again")));
        }
        let has = |name: &str| {
            let sql = "SELECT count(*) FROM pragma_table_info(?1) WHERE name = ?2";
            conn.query_row(sql, [table, name], |row| row.get::<_, i64>(0)).is_ok_and(|found| found == 1)
        };
        let names = wanted.columns.iter().flatten();
        let listed: Vec<String> = names.map(|name| if has(name) { quoted(name) } else { "NULL".to_owned() }).collect();
        let listed: String = listed.iter().map(|column| format!(", {column}")).collect();
        let sql = format!(
            "SELECT rowid{listed} FROM {} WHERE rowid > ?1 AND {} ORDER BY rowid LIMIT {ROWS}",
            quoted(table),
            wanted.condition()
        );
        let width = wanted.columns.iter().flatten().count();
        Ok(Box::new(LiveRows { conn, sql, width, after: i64::MIN, is_over: false }))
    }
}

/// Rows as they are read.
#[derive(Debug)]
struct LiveRows {
    conn: Connection,
    sql: String,
    width: usize,
    after: i64,
    is_over: bool,
}

impl LiveRows {
    fn read(&mut self) -> rusqlite::Result<Option<Vec<Vec<Value>>>> {
        let mut found = Vec::new();
        let mut statement = self.conn.prepare_cached(&self.sql)?;
        let mut rows = statement.query([self.after])?;
        while let Some(row) = rows.next()? {
            self.after = row.get(0)?;
            found.push((1..=self.width).map(|at| row.get(at)).collect::<rusqlite::Result<_>>()?);
        }
        self.is_over = found.len() < ROWS;
        Ok((!found.is_empty()).then_some(found))
    }
}

impl Batches for LiveRows {
    fn next(&mut self) -> Result<Option<Vec<Vec<Value>>>, StoreError> {
        if self.is_over {
            return Ok(None);
        }
        self.read().map_err(|error| StoreError::External(error.to_string()))
    }
}
