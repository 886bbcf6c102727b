//! Owns rows of a columnar table in memory, some thousands together with the columns that a
//! statement uses, and reading them segment by segment. Does not own which of them a scan wants
//! next (`lookup`, and the cursor in `vtab`).

use std::rc::Rc;
use std::sync::Arc;

use query_planner::memory::Reservation;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error, Result, ffi};

use super::super::Kind;
use super::super::bits::BLOCK;
use super::super::encode::{Cell, Encoded, Entries, Scalar};
use super::super::pick::{Admits, Pick, Verdict, admitted, most_telling_first, read_rows, verdict};
use super::super::segment::Segment;

/// Rows of a chunk at most.
pub(super) const MOST_ROWS: usize = 8192;
/// Rows of a scan's first chunk: whoever wants one row need not wait for more.
const FIRST_ROWS: usize = 1024;

/// The question has not so much memory: SQLite's own words for it.
pub(super) fn no_memory() -> Error {
    Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_NOMEM), None)
}

/// Rows of one segment.
#[derive(Debug)]
pub(super) struct Chunk {
    first_rowid: i64,
    /// Places in the segment, ascending.
    rows: Vec<u32>,
    /// By column; none where the statement does not use it.
    columns: Vec<Option<Values>>,
    reservation: Reservation,
    /// What chunks of a segment share.
    _shared: Rc<Reservation>,
}

/// A column's values of a chunk's rows.
#[derive(Debug)]
enum Values {
    One(Scalar),
    Codes(Arc<Entries>, Vec<i64>),
    Integers(Vec<i64>),
    /// NULL where the second is false.
    Nullable(Vec<i64>, Vec<bool>),
}

impl Values {
    /// The values of some rows of a column, from `start` (a multiple of 1024) on; none when its
    /// bytes are damaged.
    fn of(column: &Encoded, start: usize, len: usize, rows: &[u32]) -> Option<Self> {
        if let Some(value) = column.constant() {
            return Some(Self::One(value.clone()));
        }
        let mut values = Vec::with_capacity(len);
        read_rows(column, (start, len), rows, &mut values)?;
        if rows.len() < len {
            rows.iter().enumerate().for_each(|(to, from)| values[to] = values[*from as usize]);
            values.truncate(rows.len());
            values.shrink_to_fit();
        }
        Some(match (column.shared_entries(), column.valid()) {
            (Some(entries), _) => Self::Codes(entries, values),
            (None, None) => Self::Integers(values),
            (None, Some(valid)) => {
                let is_valid = |row: &u32| {
                    let at = start + *row as usize;
                    valid[at / 8] >> (at % 8) & 1 == 1
                };
                Self::Nullable(values, rows.iter().map(is_valid).collect())
            }
        })
    }

    fn at(&self, row: usize) -> Cell<'_> {
        match self {
            Self::One(value) => value.cell(),
            Self::Codes(entries, codes) => codes.get(row).map_or(Cell::Null, |code| entries.at(*code)),
            Self::Integers(values) => values.get(row).map_or(Cell::Null, |value| Cell::Integer(*value)),
            Self::Nullable(values, valid) => match (values.get(row), valid.get(row)) {
                (Some(value), Some(true)) => Cell::Integer(*value),
                _ => Cell::Null,
            },
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::One(Scalar::Text(text)) => text.capacity(),
            Self::One(_) => 0,
            // The entries are the segment's.
            Self::Codes(_, values) | Self::Integers(values) => values.capacity() * size_of::<i64>(),
            Self::Nullable(values, valid) => values.capacity() * size_of::<i64>() + valid.capacity(),
        }
    }
}

impl Chunk {
    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn rowid(&self, row: usize) -> i64 {
        self.rows.get(row).map_or(0, |place| self.first_rowid + i64::from(*place))
    }

    /// NULL where the column was not read.
    pub(super) fn cell(&self, row: usize, column: usize) -> Cell<'_> {
        self.columns.get(column).and_then(Option::as_ref).map_or(Cell::Null, |values| values.at(row))
    }

    /// What it takes in memory, about, without what it shares with its segment's other chunks.
    pub(super) fn heap_bytes(&self) -> usize {
        let columns: usize = self.columns.iter().flatten().map(Values::heap_bytes).sum();
        columns + self.rows.capacity() * size_of::<u32>() + size_of::<Self>()
    }

    /// A value for SQLite.
    pub(super) fn value(&self, row: usize, column: usize, kind: Kind) -> ValueRef<'_> {
        match self.cell(row, column) {
            Cell::Null => ValueRef::Null,
            Cell::Integer(value) => ValueRef::Integer(value),
            Cell::Text(bytes) if kind == Kind::Blob => ValueRef::Blob(bytes),
            Cell::Text(text) => ValueRef::Text(text),
        }
    }
}

/// Reads the rows that conditions admit, chunk by chunk.
pub(super) struct Reader {
    segments: std::vec::IntoIter<Segment>,
    /// The conditions: columns and what they admit.
    wanted: Vec<(usize, Admits)>,
    used: Vec<bool>,
    open: Option<Open>,
    len: usize,
}

/// The segment that is being read.
pub(super) struct Open {
    segment: Segment,
    picks: Vec<Pick>,
    /// Opened when the first row is admitted.
    columns: Vec<Option<Encoded>>,
    start: usize,
    reservation: Rc<Reservation>,
}

impl Reader {
    /// Of `segments`, the columns that are `used` of the rows that all of `wanted` admit.
    pub(super) fn new(segments: Vec<Segment>, wanted: Vec<(usize, Admits)>, used: Vec<bool>) -> Self {
        Self { segments: segments.into_iter(), wanted, used, open: None, len: FIRST_ROWS }
    }

    /// The next chunk with rows in it.
    pub(super) fn next(&mut self, conn: &Connection, columns: &[String]) -> Result<Option<Chunk>> {
        loop {
            let Some(open) = &mut self.open else {
                let Some(segment) = self.segments.next() else { return Ok(None) };
                self.open = open_segment(conn, segment, &self.wanted, columns)?;
                continue;
            };
            if open.start >= open.segment.rows {
                self.open = None;
                continue;
            }
            let (start, len) = (open.start, self.len.min(open.segment.rows - open.start));
            open.start += len;
            self.len = (self.len * 2).min(MOST_ROWS);
            let mut rows = Vec::new();
            admitted(&mut open.picks, &open.segment, start, len, &mut rows)?;
            if !rows.is_empty() {
                return chunk(conn, open, columns, &self.used, (start, len), rows).map(Some);
            }
        }
    }
}

impl Open {
    /// The wanted rows of the block that begins at row `start`; none where it has none.
    pub(super) fn block(
        &mut self,
        conn: &Connection,
        columns: &[String],
        used: &[bool],
        start: usize,
    ) -> Result<Option<Chunk>> {
        let len = BLOCK.min(self.segment.rows.saturating_sub(start));
        let mut rows = Vec::new();
        admitted(&mut self.picks, &self.segment, start, len, &mut rows)?;
        if rows.is_empty() { Ok(None) } else { chunk(conn, self, columns, used, (start, len), rows).map(Some) }
    }
}

/// None where no row of a segment can be admitted.
pub(super) fn open_segment(
    conn: &Connection,
    segment: Segment,
    wanted: &[(usize, Admits)],
    columns: &[String],
) -> Result<Option<Open>> {
    let mut picks = Vec::new();
    for (column, admits) in wanted {
        let Some(name) = columns.get(*column) else { continue };
        match verdict(&segment, name, admits) {
            Verdict::No => return Ok(None),
            Verdict::Some => picks.push(Pick::new(segment.column(conn, name)?, admits.clone())),
            Verdict::All => {}
        }
    }
    most_telling_first(&mut picks);
    Ok(Some(Open { segment, picks, columns: Vec::new(), start: 0, reservation: Rc::default() }))
}

fn chunk(
    conn: &Connection,
    open: &mut Open,
    columns: &[String],
    used: &[bool],
    (start, len): (usize, usize),
    mut rows: Vec<u32>,
) -> Result<Chunk> {
    if open.columns.is_empty() {
        for (name, used) in columns.iter().zip(used) {
            open.columns.push(if *used { Some(open.segment.column(conn, name)?) } else { None });
        }
        let mut reservation = Reservation::default();
        if !reservation.try_resize(open.columns.iter().flatten().map(Encoded::heap_bytes).sum()) {
            return Err(no_memory());
        }
        open.reservation = Rc::new(reservation);
    }
    let mut values = Vec::with_capacity(columns.len());
    for (at, column) in open.columns.iter().enumerate() {
        let read = |column| {
            let name = columns.get(at).cloned().unwrap_or_default();
            Values::of(column, start, len, &rows).ok_or_else(|| open.segment.damaged(name))
        };
        values.push(column.as_ref().map(read).transpose()?);
    }
    rows.iter_mut().for_each(|row| *row += start as u32);
    rows.shrink_to_fit();
    let (first_rowid, shared) = (open.segment.first_rowid, Rc::clone(&open.reservation));
    let mut chunk = Chunk { first_rowid, rows, columns: values, reservation: Reservation::default(), _shared: shared };
    let bytes = chunk.heap_bytes();
    if chunk.reservation.try_resize(bytes) { Ok(chunk) } else { Err(no_memory()) }
}
