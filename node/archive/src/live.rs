//! Owns the rows of a store that are not taken from the archive, read a few thousand at a time.

use std::ops::Range;
use std::path::Path;

use rusqlite::Connection;
use rusqlite::types::Value;
use store::exchange::Hours;
use store::{ServedDb, StoreError};

use crate::row_group::{Chunk, Column};

/// Rows read at a time.
const ROWS: usize = 8192;

/// A store that an agent writes, or that lies there.
#[derive(Debug)]
pub struct Live {
    served: ServedDb,
    birth_ns: Option<i64>,
    dropped: Vec<(String, i64)>,
}

impl Live {
    /// Opens a store read-only. A file that no archive can be of (another program's) is one, too.
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

    /// The store's number; none where it is no trace store.
    #[must_use]
    pub fn birth_ns(&self) -> Option<i64> {
        self.birth_ns
    }

    /// Up to when retention has taken rows of a table, Unix nanoseconds.
    pub(crate) fn dropped_until_ns(&self, table: &str) -> Option<i64> {
        self.dropped.iter().find(|(name, _)| name == table).map(|(_, until_ns)| *until_ns)
    }

    pub(crate) fn served(&self) -> &ServedDb {
        &self.served
    }

    /// Begins to read rows of a table whose time lies in `range` and in none of `without` (in order,
    /// apart).
    pub(crate) fn rows(
        &self,
        table: &str,
        time: &str,
        columns: &[Option<&str>],
        range: &Range<i64>,
        without: &[Range<i64>],
    ) -> Result<LiveRows, StoreError> {
        let conn = self.served.reader()?;
        // One state of the store for all chunks.
        conn.execute_batch("BEGIN").map_err(|error| StoreError::Elsewhere(error.to_string()))?;
        // Which hours it has was told by the cut-off of when it was opened.
        let cutoff = "SELECT max(cutoff_ns) FROM retention WHERE table_name = ?1";
        let cutoff_ns: Option<i64> = conn.query_row(cutoff, [table], |row| row.get(0)).unwrap_or_default();
        if self.birth_ns.is_some() && cutoff_ns != self.dropped_until_ns(table) {
            return Err(StoreError::Elsewhere(format!("retention has just taken rows of {table}: ask again")));
        }
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let has = |name: &&str| {
            let sql = "SELECT count(*) FROM pragma_table_info(?1) WHERE name = ?2";
            conn.query_row(sql, [table, *name], |row| row.get::<_, i64>(0)).is_ok_and(|found| found == 1)
        };
        let listed: Vec<String> =
            columns.iter().map(|name| name.filter(has).map_or_else(|| "NULL".to_owned(), quoted)).collect();
        let time = quoted(time);
        let mut sql = format!(
            "SELECT rowid, {} FROM {} WHERE rowid > ?1 AND {time} >= {} AND {time} < {}",
            listed.join(", "),
            quoted(table),
            range.start,
            range.end
        );
        for hours in without {
            sql.push_str(&format!(" AND NOT ({time} >= {} AND {time} < {})", hours.start, hours.end));
        }
        sql.push_str(&format!(" ORDER BY rowid LIMIT {ROWS}"));
        let wanted = columns.iter().map(Option::is_some).collect();
        Ok(LiveRows { conn, sql, wanted, after: i64::MIN, is_over: false })
    }
}

/// Rows as they are read.
#[derive(Debug)]
pub(crate) struct LiveRows {
    conn: Connection,
    sql: String,
    wanted: Vec<bool>,
    after: i64,
    is_over: bool,
}

impl LiveRows {
    /// The next rows; none at the end.
    pub(crate) fn next(&mut self) -> rusqlite::Result<Option<Chunk>> {
        if self.is_over {
            return Ok(None);
        }
        let mut columns: Vec<Vec<Value>> = self.wanted.iter().map(|_| Vec::new()).collect();
        let mut statement = self.conn.prepare_cached(&self.sql)?;
        let mut rows = statement.query([self.after])?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            self.after = row.get(0)?;
            for (at, column) in columns.iter_mut().enumerate().filter(|(at, _)| self.wanted[*at]) {
                column.push(row.get(at + 1)?);
            }
            count += 1;
        }
        self.is_over = count < ROWS;
        let columns = columns.into_iter().zip(&self.wanted).map(|(c, wanted)| wanted.then(|| Column::any(c)));
        Ok((count > 0).then(|| Chunk { rows: count, columns: columns.collect() }))
    }
}
