//! Owns the way in: rows become columns in memory, and a commit's rows a new segment. Does not own
//! which values a row has (`rows`), nor joining small segments (`compact`).

use rusqlite::Connection;

use super::Kind;
use super::encode::Column;
use super::segment::{self, MOST_ROWS, Segment, SegmentError};

/// Rows of columns whose memory is used again: some 700 KiB of collectives.
const MOST_REUSED: usize = 4096;

/// The columns of a table with some rows in memory, in the order in which rows are pushed.
#[derive(Debug, Clone, Default)]
pub(crate) struct RowColumns {
    columns: Vec<(String, Column)>,
    at: usize,
}

impl RowColumns {
    /// With room for `rows` rows.
    pub(crate) fn new(columns: &[(String, Kind)], rows: usize) -> Self {
        let column = |(name, kind): &(String, Kind)| (name.clone(), Column::with_room(*kind, rows));
        Self { columns: columns.iter().map(column).collect(), at: 0 }
    }

    pub(crate) fn rows(&self) -> usize {
        self.columns.first().map_or(0, |(_, column)| column.len())
    }

    fn next(&mut self) -> &mut Column {
        let at = self.at;
        self.at = if at + 1 == self.columns.len() { 0 } else { at + 1 };
        &mut self.columns[at].1
    }

    /// The next cell of the row, which is of that column.
    pub(crate) fn cell(&mut self, column: &str, value: &(impl AsCell + ?Sized)) {
        debug_assert_eq!(self.columns[self.at].0, column, "cells come in the order of the schema");
        value.push(self.next());
    }

    /// The row is complete; cells that were not given are NULL.
    pub(crate) fn end(&mut self) {
        while self.at != 0 {
            None::<i64>.push(self.next());
        }
    }
}

/// What a cell can have. (No u64: ids keep their bits, and quantities may be too large.)
pub(crate) trait AsCell {
    /// Adds itself.
    fn push(&self, to: &mut Column);
}

macro_rules! integers {
    ($($type:ty),+) => {
        $(impl AsCell for $type {
            fn push(&self, to: &mut Column) {
                to.push_integer(Some((*self).into()));
            }
        })+
    };
}
integers!(bool, u8, u16, u32, i32, i64);

macro_rules! texts {
    ($($type:ty),+) => {
        $(impl AsCell for $type {
            fn push(&self, to: &mut Column) {
                to.push_text(Some(self.as_ref()));
            }
        })+
    };
}
texts!(str, String, Vec<u8>);

impl<T: AsCell + ?Sized> AsCell for &T {
    fn push(&self, to: &mut Column) {
        (**self).push(to);
    }
}

impl<T: AsCell + ?Sized> AsCell for std::sync::Arc<T> {
    fn push(&self, to: &mut Column) {
        (**self).push(to);
    }
}

impl<T: AsCell> AsCell for Option<T> {
    fn push(&self, to: &mut Column) {
        match (self, to.kind()) {
            (Some(value), _) => value.push(to),
            (None, Kind::Integer) => to.push_integer(None),
            (None, Kind::Text | Kind::Blob) => to.push_text(None),
        }
    }
}

/// Adds a row to the columns of its table: each column stands beside its value, in the order of the
/// schema. A name alone is the record's own field.
macro_rules! cells {
    (@value $of:ident, $column:ident) => { &$of.$column };
    (@value $of:ident, $column:ident, $value:expr) => { &$value };
    ($rows:expr, $of:ident: $($column:ident $(= $value:expr)?),+ $(,)?) => {{
        $($rows.cell(stringify!($column), $crate::columnar::cells!(@value $of, $column $(, $value)?));)+
        $rows.end();
    }};
}
pub(crate) use cells;

/// Adds segments to one table.
#[derive(Debug)]
pub(crate) struct Appender {
    table: &'static str,
    time: &'static str,
    columns: Vec<(String, Kind)>,
    next_rowid: i64,
}

impl Appender {
    /// For the virtual table `table` as the schema has it.
    pub(crate) fn open(conn: &Connection, table: &'static str, time: &'static str) -> Result<Self, SegmentError> {
        let columns = table_columns(conn, table)?;
        let next_rowid: i64 = conn.query_row(
            "SELECT ifnull((SELECT first_rowid + row_count FROM segments WHERE table_name = ?1 \
             ORDER BY first_rowid DESC LIMIT 1), 1)",
            [table],
            |row| row.get(0),
        )?;
        Ok(Self { table, time, columns, next_rowid })
    }

    /// Room for a commit's rows.
    pub(crate) fn rows(&self, rows: usize) -> RowColumns {
        RowColumns::new(&self.columns, rows)
    }

    /// The same in the memory of columns of this table whose rows were written, unless those were many.
    pub(crate) fn rows_in_place_of(&self, written: &mut RowColumns, rows: usize) {
        if written.columns.is_empty() || written.rows() > MOST_REUSED {
            *written = self.rows(rows);
        }
        written.columns.iter_mut().for_each(|(_, column)| column.clear());
        written.at = 0;
    }

    /// The row id of the next row.
    pub(crate) fn next_rowid(&self) -> i64 {
        self.next_rowid
    }

    /// Write rows inside the open transaction. At most [`MOST_ROWS`].
    pub(crate) fn write(&self, conn: &Connection, rows: &RowColumns, before: usize) -> Result<Segment, SegmentError> {
        debug_assert!(rows.rows() <= MOST_ROWS);
        segment::write(conn, self.table, self.time, self.next_rowid + before as i64, &rows.columns)
    }

    /// Continue at a row id: the rows from there on are to be written again.
    pub(crate) fn rewind(&mut self, first_rowid: i64) {
        self.next_rowid = first_rowid;
    }

    /// The transaction that wrote `rows` rows is committed.
    pub(crate) fn committed(&mut self, rows: usize) {
        self.next_rowid += rows as i64;
    }
}

/// A virtual table's columns with what they hold.
pub(super) fn table_columns(conn: &Connection, table: &str) -> rusqlite::Result<Vec<(String, Kind)>> {
    let mut statement = conn.prepare("SELECT name, type FROM pragma_table_info(?1) ORDER BY cid")?;
    let columns = statement.query_map([table], |row| {
        let (name, decl_type): (String, String) = (row.get(0)?, row.get(1)?);
        Ok((name, Kind::declared(&decl_type)))
    })?;
    columns.collect()
}
