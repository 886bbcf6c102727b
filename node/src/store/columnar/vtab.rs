//! Owns how any SQL sees a columnar table: a virtual table whose columns are declared in the schema and whose rows are
//! those of its segments. Segments that a comparison of an integer column with an integer rules out are not read, nor
//! are columns that the statement does not use. SQLite checks every condition again itself.
//!
//! The table can be read on any connection with this module ([`register`]); without it SQLite says "no such module:
//! rankmesh_columns", and the other tables of the file are there all the same.

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int};
use std::marker::PhantomData;

use rusqlite::types::ValueRef;
use rusqlite::vtab::{
    Context, CreateVTab, Filters, IndexConstraintOp, IndexInfo, Module, VTab, VTabConfig, VTabConnection, VTabCursor,
    VTabKind, sqlite3_vtab, sqlite3_vtab_cursor,
};
use rusqlite::{Connection, Error, Result, ffi};

use super::encode::{Cell, Decoded};
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
        let sql = CString::new(format!("CREATE TABLE x ({})", declared.join(", ")))?;
        db.config(VTabConfig::Innocuous)?;
        // SAFETY: the handle is only used while SQLite runs a statement over this table, so the connection lives.
        let handle = unsafe { db.handle() };
        Ok((Cow::Owned(sql), Self { base: sqlite3_vtab::default(), db: handle, table: text(table), columns }))
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
            segments: Vec::new().into_iter(),
            current: None,
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
    segments: std::vec::IntoIter<Segment>,
    current: Option<Loaded>,
    lifetime: PhantomData<&'vtab ColumnTable>,
}

struct Loaded {
    segment: Segment,
    columns: Vec<Option<Decoded>>,
    row: usize,
}

impl Cursor<'_> {
    fn table(&self) -> &ColumnTable {
        // SAFETY: SQLite closes cursors before it disconnects their table.
        unsafe { &*self.table }
    }

    /// Go on to the next row that the bounds admit, the current one included.
    fn settle(&mut self) -> Result<()> {
        loop {
            if let Some(loaded) = &mut self.current {
                while loaded.row < loaded.segment.rows {
                    let rowid = loaded.segment.first_rowid + loaded.row as i64;
                    let admitted = (self.rowids.0..=self.rowids.1).contains(&rowid)
                        && self.bounds.iter().all(|bounds| match &loaded.columns[bounds.column] {
                            Some(column) => match column.at(loaded.row) {
                                Cell::Integer(value) => (bounds.least..=bounds.greatest).contains(&value),
                                Cell::Null => false,
                                Cell::Text(_) => true,
                            },
                            None => true,
                        });
                    if admitted {
                        return Ok(());
                    }
                    loaded.row += 1;
                }
            }
            let Some(segment) = self.segments.next() else {
                self.current = None;
                return Ok(());
            };
            if !self.may_hold(&segment) {
                continue;
            }
            let mut columns = Vec::with_capacity(self.used.len());
            for (at, name) in self.table().columns.iter().enumerate() {
                let Some(conn) = self.conn.as_ref().filter(|_| self.used[at]) else {
                    columns.push(None);
                    continue;
                };
                columns.push(Some(segment.decoded(conn, name)?));
            }
            self.current = Some(Loaded { segment, columns, row: 0 });
        }
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
                    None => header.kind != super::Kind::Integer,
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
        self.current = None;
        let found = match (&self.conn, nothing) {
            (Some(conn), false) => Directory::whole(conn, &self.table().table).map_err(Error::from)?,
            _ => Directory::default(),
        };
        self.segments = found.segments.into_iter();
        self.settle()
    }

    fn next(&mut self) -> Result<()> {
        if let Some(loaded) = &mut self.current {
            loaded.row += 1;
        }
        self.settle()
    }

    fn eof(&self) -> bool {
        self.current.is_none()
    }

    fn column(&self, context: &mut Context, at: c_int) -> Result<()> {
        let column = self.current.as_ref().and_then(|loaded| {
            let column = loaded.columns.get(usize::try_from(at).ok()?)?.as_ref()?;
            Some(column.at(loaded.row))
        });
        match column {
            None | Some(Cell::Null) => context.set_result(rusqlite::types::Null),
            Some(Cell::Integer(value)) => context.set_result(value),
            Some(Cell::Text(text)) => context.set_result(Borrowed(ValueRef::Text(text))),
        }
    }

    fn rowid(&self) -> Result<i64> {
        Ok(self.current.as_ref().map_or(0, |loaded| loaded.segment.first_rowid + loaded.row as i64))
    }
}

/// A value that is copied by SQLite.
struct Borrowed<'a>(ValueRef<'a>);

impl rusqlite::ToSql for Borrowed<'_> {
    fn to_sql(&self) -> Result<rusqlite::types::ToSqlOutput<'_>> {
        Ok(rusqlite::types::ToSqlOutput::Borrowed(self.0))
    }
}
