//! Owns how any SQL sees a columnar table: a virtual table whose columns are declared in the schema and whose rows are
//! those of its segments. Segments that a comparison of an integer column with an integer rules out are not read, nor
//! are columns that the statement does not use. SQLite checks every condition again itself.
//!
//! The table can be read on any connection with this module ([`register`]); without it SQLite says "no such module:
//! rankmesh_columns", and the other tables of the file are there all the same.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int};
use std::marker::PhantomData;

use query_planner::memory::Held;
use rusqlite::types::ValueRef;
use rusqlite::vtab::{
    Context, CreateVTab, Filters, IndexConstraintOp, IndexInfo, Module, VTab, VTabConfig, VTabConnection, VTabCursor,
    VTabKind, sqlite3_vtab, sqlite3_vtab_cursor,
};
use rusqlite::{Connection, Error, Result, ffi};

use super::Kind;
use super::encode::{Cell, Decoded};
use super::form::time_of;
use super::segment::{Directory, Segment};

/// Make columnar tables readable on a connection.
///
/// # Errors
/// When SQLite has no memory for it.
pub(crate) fn register(conn: &Connection) -> Result<()> {
    const MODULE: Module<'_, ColumnTable> = Module::read_only_module();
    conn.create_module(super::MODULE, &MODULE, None::<()>)
}

#[repr(C)]
struct ColumnTable {
    /// SQLite's part; must come first.
    base: sqlite3_vtab,
    db: *mut ffi::sqlite3,
    table: String,
    columns: Vec<String>,
    kinds: Vec<Kind>,
}

/// What is pushed into a scan: which comparison with which column, one a place in `argv`.
const OPERATORS: [(IndexConstraintOp, char); 5] = [
    (IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ, '='),
    (IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GT, '>'),
    (IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GE, 'g'),
    (IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LT, '<'),
    (IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LE, 'l'),
];

// SAFETY: `ColumnTable` is repr(C) and starts with `sqlite3_vtab`, as the trait asks.
unsafe impl<'vtab> VTab<'vtab> for ColumnTable {
    type Aux = ();
    type Cursor = Cursor<'vtab>;

    fn connect(
        db: &mut VTabConnection,
        _: Option<&()>,
        _: &[u8],
        _: &[u8],
        table: &[u8],
        args: &[&[u8]],
    ) -> Result<(Cow<'static, CStr>, Self)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let declared: Vec<String> = args.iter().map(|arg| text(arg)).collect();
        let columns = declared
            .iter()
            .map(|column| column.split_whitespace().next().unwrap_or_default().trim_matches('"').to_owned())
            .collect();
        let kind = |column: &String| Kind::declared(column.split_whitespace().nth(1).unwrap_or_default());
        let kinds = declared.iter().map(kind).collect();
        let sql = CString::new(format!("CREATE TABLE x ({})", declared.join(", ")))?;
        db.config(VTabConfig::Innocuous)?;
        // SAFETY: the handle is only used while SQLite runs a statement over this table, so the connection lives.
        let handle = unsafe { db.handle() };
        Ok((Cow::Owned(sql), Self { base: sqlite3_vtab::default(), db: handle, table: text(table), columns, kinds }))
    }

    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        let mut pushed = String::new();
        let mut places = Vec::new();
        let (mut equal, mut bounds, mut by_rowid) = (0, 0, false);
        for (at, constraint) in info.constraints().enumerate() {
            let operator = OPERATORS.iter().find(|(operator, _)| *operator == constraint.operator());
            let Some((_, operator)) = operator.filter(|_| constraint.is_usable()) else { continue };
            let column = constraint.column();
            if column < 0 {
                by_rowid |= *operator == '=';
            } else if *operator == '=' {
                equal += 1;
            } else {
                bounds += 1;
            }
            pushed.push_str(&format!("{operator}{column};"));
            places.push(at);
        }
        for (i, at) in places.iter().enumerate() {
            info.constraint_usage(*at).set_argv_index(i as c_int + 1);
        }
        info.set_idx_str(&format!("{}|{pushed}", info.col_used()));
        let rows: f64 = if by_rowid { 1.0 } else { 1e7 / 4_f64.powi(bounds) / 20_f64.powi(equal) };
        info.set_estimated_rows(rows.max(1.0) as i64);
        // Even one row costs a block of a segment.
        info.set_estimated_cost(rows.max(1.0) * 2.0 + 10_000.0);
        Ok(true)
    }

    fn open(&'vtab mut self) -> Result<Cursor<'vtab>> {
        Ok(Cursor {
            base: sqlite3_vtab_cursor::default(),
            table: self,
            conn: None,
            bounds: Vec::new(),
            rowids: (i64::MIN, i64::MAX),
            used: Vec::new(),
            scans: 0,
            pending: Vec::new().into_iter(),
            loaded: Vec::new(),
            kept: None,
            index: None,
            candidates: None,
            at: 0,
            row: 0,
            lifetime: PhantomData,
        })
    }
}

impl CreateVTab<'_> for ColumnTable {
    const KIND: VTabKind = VTabKind::Default;
}

/// Integers of a column between which rows lie.
struct Bounds {
    column: usize,
    least: i64,
    greatest: i64,
}

/// Memory that a cursor may take to be scanned again and again, as the inner side of a join: half of what a question may
/// have. It counts as the question's, with what is decoded beside it.
const KEPT_BYTES: usize = 128 << 20;

#[repr(C)]
struct Cursor<'vtab> {
    /// SQLite's part; must come first.
    base: sqlite3_vtab_cursor,
    table: *const ColumnTable,
    /// A borrowed view of the connection; closing it closes nothing.
    conn: Option<Connection>,
    bounds: Vec<Bounds>,
    rowids: (i64, i64),
    used: Vec<bool>,
    /// How often the cursor was set to a beginning.
    scans: u32,
    /// Segments not read yet.
    pending: std::vec::IntoIter<Segment>,
    /// The segment being read; all of them, once the cursor is scanned again.
    loaded: Vec<Loaded>,
    /// The columns of `loaded` when it is everything.
    kept: Option<Vec<bool>>,
    /// Of everything: a column's values in order, with their places.
    index: Option<Index>,
    /// The places that an index gave, and the next of them.
    candidates: Option<(std::ops::Range<usize>, usize)>,
    at: usize,
    row: usize,
    lifetime: PhantomData<&'vtab ColumnTable>,
}

/// A column's integers in order, each with its place: which of the loaded segments, which row.
struct Index {
    column: usize,
    values: Vec<(i64, u32, u32)>,
    _held: Held,
}

struct Loaded {
    segment: Segment,
    columns: Vec<Option<Decoded>>,
    _held: Held,
}

/// The question has not so much memory: SQLite's own words for it.
fn no_memory() -> Error {
    Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_NOMEM), None)
}

/// Counts so many bytes as the question's.
fn hold(held: &mut Held, bytes: usize) -> Result<()> {
    if held.is_within(bytes) { Ok(()) } else { Err(no_memory()) }
}

impl Cursor<'_> {
    fn table(&self) -> &ColumnTable {
        // SAFETY: SQLite closes cursors before it disconnects their table.
        unsafe { &*self.table }
    }

    fn admits(&self, loaded: &Loaded, row: usize) -> bool {
        let rowid = loaded.segment.first_rowid + row as i64;
        (self.rowids.0..=self.rowids.1).contains(&rowid)
            && self.bounds.iter().all(|bounds| match &loaded.columns[bounds.column] {
                Some(column) => match column.at(row) {
                    Cell::Integer(value) => (bounds.least..=bounds.greatest).contains(&value),
                    Cell::Null => false,
                    Cell::Text(_) => true,
                },
                None => true,
            })
    }

    fn load(&self, segment: Segment) -> Result<Loaded> {
        let mut columns = Vec::with_capacity(self.used.len());
        let (mut held, mut bytes) = (Held::default(), 0);
        for (at, name) in self.table().columns.iter().enumerate() {
            let Some(conn) = self.conn.as_ref().filter(|_| self.used[at]) else {
                columns.push(None);
                continue;
            };
            let column = segment.decoded(conn, name)?;
            bytes += column.held_bytes();
            hold(&mut held, bytes)?;
            columns.push(Some(column));
        }
        Ok(Loaded { segment, columns, _held: held })
    }

    /// Go on to the next row that the bounds admit, the current one included.
    fn settle(&mut self) -> Result<()> {
        if let (Some((places, mut next)), Some(index)) = (self.candidates.take(), &self.index) {
            while let Some((_, at, row)) = index.values.get(next).filter(|_| next < places.end) {
                (self.at, self.row) = (*at as usize, *row as usize);
                if self.admits(&self.loaded[self.at], self.row) {
                    self.candidates = Some((places, next));
                    return Ok(());
                }
                next += 1;
            }
            self.at = self.loaded.len();
            return Ok(());
        }
        loop {
            while let Some(loaded) = self.loaded.get(self.at) {
                if self.row == 0 && !self.may_hold(&loaded.segment) {
                    self.at += 1;
                    continue;
                }
                while self.row < loaded.segment.rows {
                    if self.admits(loaded, self.row) {
                        return Ok(());
                    }
                    self.row += 1;
                }
                (self.at, self.row) = (self.at + 1, 0);
            }
            let Some(segment) = self.pending.next() else { return Ok(()) };
            if self.may_hold(&segment) {
                self.loaded = vec![self.load(segment)?];
                (self.at, self.row) = (0, 0);
            }
        }
    }

    /// A cursor that begins again is the inner side of a loop: keep everything in memory, if it is not too much, and
    /// look up what is compared for equality, as SQLite does for tables of its own (which it cannot do for this one).
    fn keep_everything(&mut self, segments: &mut Vec<Segment>) -> Result<()> {
        let columns = self.used.iter().filter(|used| **used).count();
        let rows: usize = segments.iter().map(|segment| segment.rows).sum();
        if rows.saturating_mul(8 * columns + 16) > KEPT_BYTES {
            return Ok(());
        }
        self.loaded = Vec::with_capacity(segments.len());
        for segment in segments.drain(..) {
            let loaded = self.load(segment)?;
            self.loaded.push(loaded);
        }
        self.kept = Some(self.used.clone());
        self.index = None;
        Ok(())
    }

    /// Look an equality up in what is kept.
    fn look_up(&mut self) -> Result<()> {
        let Some(Bounds { column, least: value, .. }) =
            self.bounds.iter().find(|bounds| bounds.least == bounds.greatest)
        else {
            return Ok(());
        };
        let (column, value) = (*column, *value);
        if self.index.as_ref().is_none_or(|index| index.column != column) {
            let rows = self.loaded.iter().map(|loaded| loaded.segment.rows).sum::<usize>();
            let mut held = Held::default();
            hold(&mut held, rows * size_of::<(i64, u32, u32)>())?;
            let mut values = Vec::with_capacity(rows);
            for (at, loaded) in self.loaded.iter().enumerate() {
                let Some(cells) = &loaded.columns[column] else { return Ok(()) };
                for row in 0..loaded.segment.rows {
                    match cells.at(row) {
                        Cell::Integer(value) => values.push((value, at as u32, row as u32)),
                        Cell::Null => {}
                        // A number may equal a text: SQLite converts.
                        Cell::Text(_) => return Ok(()),
                    }
                }
            }
            values.sort_unstable();
            self.index = Some(Index { column, values, _held: held });
        }
        if let Some(Index { values: index, .. }) = &self.index {
            let first = index.partition_point(|(other, ..)| *other < value);
            let end = first + index[first..].partition_point(|(other, ..)| *other == value);
            self.candidates = Some((first..end, first));
        }
        Ok(())
    }

    /// The times that rows of this scan have. A scan that is repeated may have others the next time.
    fn times(&self) -> (i64, i64) {
        let everything = (i64::MIN, i64::MAX);
        if self.scans > 1 {
            return everything;
        }
        let time = time_of(&self.table().table);
        let bounds = self.bounds.iter().filter(|bounds| self.table().columns[bounds.column] == time);
        bounds.fold(everything, |(a, b), bounds| (a.max(bounds.least), b.min(bounds.greatest)))
    }

    fn may_hold(&self, segment: &Segment) -> bool {
        let last = segment.first_rowid.saturating_add(segment.rows as i64 - 1);
        last >= self.rowids.0
            && segment.first_rowid <= self.rowids.1
            && self.bounds.iter().all(|bounds| {
                let header = self.table().columns.get(bounds.column).and_then(|name| segment.header(name));
                // A column that the segment lacks is NULL throughout.
                header.is_some_and(|header| match header.range {
                    Some((least, greatest)) => least <= bounds.greatest && greatest >= bounds.least,
                    None => header.kind != Kind::Integer,
                })
            })
    }
}

// SAFETY: `Cursor` is repr(C) and starts with `sqlite3_vtab_cursor`, as the trait asks.
unsafe impl VTabCursor for Cursor<'_> {
    fn filter(&mut self, _: c_int, plan: Option<&str>, args: &Filters<'_>) -> Result<()> {
        let (used, pushed) = plan.and_then(|plan| plan.split_once('|')).unwrap_or(("-1", ""));
        let used: u64 = used.parse().unwrap_or(u64::MAX);
        let width = self.table().columns.len();
        // The highest bit stands for all columns from 63 on.
        self.used = (0..width).map(|at| used >> at.min(63) & 1 == 1).collect();
        self.bounds.clear();
        self.rowids = (i64::MIN, i64::MAX);
        let mut nothing = false;
        for (item, value) in pushed.split_terminator(';').zip(args.iter()) {
            let (operator, column) = item.split_at(1);
            let column: i64 = column.parse().unwrap_or(-2);
            // Only integers are compared here; whatever else SQLite compares alone. Nothing equals or exceeds NULL.
            let value = match value {
                ValueRef::Integer(value) => value,
                ValueRef::Null => {
                    nothing = true;
                    continue;
                }
                _ => continue,
            };
            let (least, greatest) = match operator {
                "=" => (value, value),
                ">" if value == i64::MAX => (i64::MAX, i64::MIN),
                ">" => (value + 1, i64::MAX),
                "g" => (value, i64::MAX),
                "<" if value == i64::MIN => (i64::MAX, i64::MIN),
                "<" => (i64::MIN, value - 1),
                "l" => (i64::MIN, value),
                _ => continue,
            };
            match usize::try_from(column) {
                Ok(column) if column < width => {
                    self.used[column] = true;
                    self.bounds.push(Bounds { column, least, greatest });
                }
                Ok(_) => {}
                Err(_) => self.rowids = (self.rowids.0.max(least), self.rowids.1.min(greatest)),
            }
        }
        // SAFETY: SQLite calls this while it runs a statement on the connection, which outlives the cursor.
        self.conn = Some(unsafe { Connection::from_handle(self.table().db)? });
        self.scans = self.scans.saturating_add(1);
        self.candidates = None;
        self.pending = Vec::new().into_iter();
        (self.at, self.row) = (0, 0);
        // The columns of a cursor's first scan are those of all its scans, but that is not relied on.
        let is_kept =
            self.kept.as_ref().is_some_and(|kept| kept.iter().zip(&self.used).all(|(kept, used)| *kept || !used));
        if nothing {
            self.at = self.loaded.len();
            return Ok(());
        }
        if !is_kept {
            self.kept = None;
            self.loaded = Vec::new();
            let mut segments = match &self.conn {
                Some(conn) => Directory::load(conn, &self.table().table, self.times()).map_err(Error::from)?.segments,
                None => Vec::new(),
            };
            if self.scans > 1 {
                self.keep_everything(&mut segments)?;
            }
            self.pending = segments.into_iter();
        }
        if self.kept.is_some() {
            self.look_up()?;
        }
        self.settle()
    }

    fn next(&mut self) -> Result<()> {
        match &mut self.candidates {
            Some((_, next)) => *next += 1,
            None => self.row += 1,
        }
        self.settle()
    }

    fn eof(&self) -> bool {
        self.at >= self.loaded.len()
    }

    fn column(&self, context: &mut Context, at: c_int) -> Result<()> {
        let column = self.loaded.get(self.at).and_then(|loaded| {
            let column = loaded.columns.get(usize::try_from(at).ok()?)?.as_ref()?;
            Some(column.at(self.row))
        });
        match column {
            None | Some(Cell::Null) => context.set_result(rusqlite::types::Null),
            Some(Cell::Integer(value)) => context.set_result(value),
            Some(Cell::Text(text)) => {
                let is_blob = usize::try_from(at).is_ok_and(|at| self.table().kinds.get(at) == Some(&Kind::Blob));
                context.set_result(Borrowed(if is_blob { ValueRef::Blob(text) } else { ValueRef::Text(text) }))
            }
        }
    }

    fn rowid(&self) -> Result<i64> {
        Ok(self.loaded.get(self.at).map_or(0, |loaded| loaded.segment.first_rowid + self.row as i64))
    }
}

/// A value that is copied by SQLite.
struct Borrowed<'a>(ValueRef<'a>);

impl rusqlite::ToSql for Borrowed<'_> {
    fn to_sql(&self) -> Result<rusqlite::types::ToSqlOutput<'_>> {
        Ok(rusqlite::types::ToSqlOutput::Borrowed(self.0))
    }
}
