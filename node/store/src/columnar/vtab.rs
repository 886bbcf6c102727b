//! Owns how any SQL sees a columnar table: a virtual table whose columns are declared in the schema
//! and whose rows are those of its segments. Segments and rows that a condition with a constant
//! rules out are left out before SQLite sees them, and columns that the statement does not use are
//! not read. SQLite checks every condition again itself.
//!
//! `choice` says which conditions SQLite hands over, `chunk` reads rows, `lookup` keeps and finds
//! them where the table is the inner side of a join, `timeline` reads them in order of time.
//!
//! The table can be read on any connection with this module ([`register`]); without it SQLite says
//! "no such module: rankmesh_columns", and the other tables of the file are there all the same.

mod choice;
mod chunk;
mod lookup;
mod timeline;

use std::borrow::Cow;
use std::cell::Cell;
use std::ffi::{CStr, CString, c_int};
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use query_planner::memory::{DECLARED_BYTES, error_that_fits, has_room};
use rusqlite::types::ValueRef;
use rusqlite::vtab::{
    Context, CreateVTab, Filters, IndexInfo, Module, VTab, VTabConfig, VTabConnection, VTabCursor, VTabKind,
    sqlite3_vtab, sqlite3_vtab_cursor,
};
use rusqlite::{Connection, Error, Result};

use self::choice::{Operator, Order, Size, Term};
use self::chunk::{Chunk, Reader, no_memory};
use self::lookup::{Found, Kept, Test, constant};
use self::timeline::{Timeline, Walk};
use super::Kind;
use super::form::time_of;
use super::segment::{Directory, Segment, size};

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
    /// A borrowed view of the connection, with the statements that read segments; closing it closes
    /// nothing.
    conn: Connection,
    table: String,
    columns: Vec<String>,
    kinds: Vec<Kind>,
    /// The place of the column with the rows' time.
    time: Option<usize>,
    size: Cell<Option<(Instant, Size)>>,
}

/// The size of a table is looked at again after this time: estimates need no newer one.
const SIZE_HOLDS: Duration = Duration::from_secs(5);
/// Taken for the size of a table that cannot be looked at.
const SIZE_UNKNOWN: Size = Size { rows: 1e7, times: (i64::MIN, i64::MAX) };

impl ColumnTable {
    fn size(&self) -> Size {
        if let Some((_, size)) = self.size.get().filter(|(at, _)| at.elapsed() < SIZE_HOLDS) {
            return size;
        }
        let size =
            size(&self.conn, &self.table).map_or(SIZE_UNKNOWN, |(rows, times)| Size { rows: rows as f64, times });
        self.size.set(Some((Instant::now(), size)));
        size
    }
}

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
        if !has_room(DECLARED_BYTES) {
            return Err(no_memory());
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let table = text(table);
        let declared: Vec<String> = args.iter().map(|arg| text(arg)).collect();
        let name = |column: &String| column.split_whitespace().next().unwrap_or_default().trim_matches('"').to_owned();
        let columns: Vec<String> = declared.iter().map(name).collect();
        let kind = |column: &String| Kind::declared(column.split_whitespace().nth(1).unwrap_or_default());
        let kinds = declared.iter().map(kind).collect();
        let time = columns.iter().position(|column| column == time_of(&table));
        let sql = CString::new(format!("CREATE TABLE x ({})", declared.join(", ")))?;
        db.config(VTabConfig::Innocuous)?;
        // SAFETY: SQLite disconnects its virtual tables before it closes a connection, so that this
        // view and its statements are gone before.
        let conn = unsafe { Connection::from_handle(db.handle())? };
        let size = Cell::new(None);
        Ok((Cow::Owned(sql), Self { base: sqlite3_vtab::default(), conn, table, columns, kinds, time, size }))
    }

    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        choice::choose(info, &self.kinds, self.time, self.size()).map_err(error_that_fits)?;
        Ok(true)
    }

    fn open(&'vtab mut self) -> Result<Cursor<'vtab>> {
        Ok(Cursor {
            base: sqlite3_vtab_cursor::default(),
            table: self,
            scans: Vec::new(),
            scan: 0,
            at: Place::End,
            lifetime: PhantomData,
        })
    }
}

impl CreateVTab<'_> for ColumnTable {
    const KIND: VTabKind = VTabKind::Default;
}

#[repr(C)]
struct Cursor<'vtab> {
    /// SQLite's part; must come first.
    base: sqlite3_vtab_cursor,
    table: *const ColumnTable,
    /// By plan: a cursor has several where SQLite looks for one arm of an OR after the other.
    scans: Vec<Scan>,
    /// The one that runs.
    scan: usize,
    at: Place,
    lifetime: PhantomData<&'vtab ColumnTable>,
}

/// A scan that SQLite begins again and again, with other values.
struct Scan {
    plan: String,
    used: Vec<bool>,
    terms: Vec<Term>,
    order: Order,
    /// Where rows are to come in order of time: the blocks that the constant conditions leave.
    timeline: Option<Timeline>,
    /// The conditions of the beginning before.
    before: Option<Vec<Test>>,
    /// Which of them were the same at every beginning.
    is_constant: Vec<bool>,
    kept: Option<Kept>,
    /// What the constant conditions leave is more than is kept.
    is_too_large: bool,
}

/// Where a cursor stands.
enum Place {
    /// In a chunk that was read for this scan alone.
    Read(Box<Reader>, Chunk, usize),
    /// Among the kept rows: in a chunk, and a row.
    Kept(usize, usize),
    /// Among the rows of the index that were looked up, at the first; with true at the last.
    Found(std::ops::Range<usize>, bool),
    /// In order of time.
    Walk(Box<Walk>),
    End,
}

impl Scan {
    fn of(plan: &str, width: usize) -> Self {
        let every = || (vec![true; width], Vec::new(), Order::Any);
        let (used, terms, order) = choice::read(plan, width).unwrap_or_else(every);
        let is_constant = vec![true; terms.len()];
        let (timeline, before, kept, is_too_large) = (None, None, None, false);
        Self { plan: plan.to_owned(), used, terms, order, timeline, before, is_constant, kept, is_too_large }
    }

    /// Between which times and row ids those conditions that are wanted leave rows.
    fn bounds(&self, time: Option<usize>, tests: &[Test], is_wanted: &[bool]) -> [(i64, i64); 2] {
        let (mut times, mut rowids) = ((i64::MIN, i64::MAX), (i64::MIN, i64::MAX));
        for ((term, test), _) in self.terms.iter().zip(tests).zip(is_wanted).filter(|(_, is_wanted)| **is_wanted) {
            let Some((least, greatest)) = test.range() else { continue };
            let bounds = match term.column {
                None => &mut rowids,
                column if column == time => &mut times,
                Some(_) => continue,
            };
            *bounds = (bounds.0.max(least), bounds.1.min(greatest));
        }
        [times, rowids]
    }
}

impl Cursor<'_> {
    fn table(&self) -> &ColumnTable {
        // SAFETY: SQLite closes cursors before it disconnects their table.
        unsafe { &*self.table }
    }

    /// What the conditions ask for this time; none when no row can meet them.
    fn tests(&self, terms: &[Term], args: &Filters<'_>) -> Result<Option<Vec<Test>>> {
        use rusqlite::fallible_iterator::FallibleIterator as _;
        let mut tests = Vec::with_capacity(terms.len());
        for (at, (term, value)) in terms.iter().zip(args.iter()).enumerate() {
            let kind = term.column.and_then(|column| self.table().kinds.get(column)).copied();
            let test = if term.operator == Operator::Among {
                let (mut values, mut among) = (args.in_values(at)?, Vec::new());
                while let Some(value) = values.next()? {
                    if value != ValueRef::Null {
                        among.push(Test::compare(Operator::Equal, kind, value));
                    }
                }
                Test::among(kind, &among)
            } else if value == ValueRef::Null {
                // Nothing equals or exceeds NULL.
                return Ok(None);
            } else {
                Test::compare(term.operator, kind, value)
            };
            if test.is_never() {
                return Ok(None);
            }
            tests.push(test);
        }
        Ok(Some(tests))
    }

    /// The segments that may have rows which those conditions admit that are wanted.
    fn segments(&self, scan: &Scan, tests: &[Test], is_wanted: &[bool]) -> Result<Vec<Segment>> {
        let table = self.table();
        let [times, rowids] = scan.bounds(table.time, tests, is_wanted);
        let mut segments = Directory::load(&table.conn, &table.table, times).map_err(Error::from)?.segments;
        segments.retain(|segment| {
            let last = segment.first_rowid.saturating_add(segment.rows as i64 - 1);
            last >= rowids.0 && segment.first_rowid <= rowids.1
        });
        Ok(segments)
    }

    /// A reader of the rows that conditions admit.
    fn reader(&self, scan: &Scan, tests: &[Test], is_wanted: &[bool]) -> Result<Reader> {
        let segments = self.segments(scan, tests, is_wanted)?;
        Ok(Reader::new(segments, constant(&scan.terms, tests, is_wanted), scan.used.clone()))
    }

    fn begin(&self, scan: &mut Scan, tests: Vec<Test>) -> Result<Place> {
        let table = self.table();
        let before = scan.before.replace(tests.clone());
        let is_again = before.is_some();
        let mut has_changed = false;
        for ((is_constant, before), test) in scan.is_constant.iter_mut().zip(before.iter().flatten()).zip(&tests) {
            has_changed |= *is_constant && before != test;
            *is_constant &= before == test;
        }
        // Constant ones only become fewer, so this is done once for each at most.
        if has_changed {
            (scan.kept, scan.timeline) = (None, None);
        }
        let ordered_by = table.time.filter(|_| scan.order != Order::Any);
        if let Some(time) = ordered_by {
            let is_dear = self.timeline(scan, time, &tests)?.is_dear();
            if !is_again || scan.is_too_large || !is_dear {
                return self.walk(scan, &tests);
            }
        }
        if is_again {
            if scan.kept.is_none() && !scan.is_too_large {
                let reader = self.reader(scan, &tests, &scan.is_constant)?;
                let conditions = (scan.terms.as_slice(), tests.as_slice(), scan.is_constant.as_slice());
                scan.kept = Kept::read(reader, &table.conn, &table.columns, conditions, ordered_by)?;
                // Without a condition that has changed there is still more of it.
                scan.is_too_large = scan.kept.is_none();
            }
            if let Some(kept) = &scan.kept {
                match kept.look_up(&scan.terms, &tests) {
                    Found::Some(rows) if rows.start >= rows.end => return Ok(Place::End),
                    Found::Some(rows) => return Ok(Place::Found(rows, scan.order == Order::Descending)),
                    Found::All if ordered_by.is_some() => {}
                    Found::All if kept.chunks.is_empty() => return Ok(Place::End),
                    Found::All => return Ok(Place::Kept(0, 0)),
                }
            }
        }
        if ordered_by.is_some() {
            return self.walk(scan, &tests);
        }
        let mut reader = self.reader(scan, &tests, &vec![true; tests.len()])?;
        Ok(match reader.next(&table.conn, &table.columns)? {
            Some(chunk) => Place::Read(Box::new(reader), chunk, 0),
            None => Place::End,
        })
    }

    /// The blocks that the constant conditions leave, in order of time.
    fn timeline<'s>(&self, scan: &'s mut Scan, time: usize, tests: &[Test]) -> Result<&'s Timeline> {
        if scan.timeline.is_none() {
            let table = self.table();
            let segments = self.segments(scan, tests, &scan.is_constant)?;
            let [times, _] = scan.bounds(table.time, tests, &scan.is_constant);
            let order = (time, scan.order == Order::Descending);
            scan.timeline = Some(Timeline::of(&table.conn, segments, &table.columns, order, times)?);
            if let Some(used) = scan.used.get_mut(time) {
                *used = true;
            }
        }
        scan.timeline.as_ref().ok_or_else(no_memory)
    }

    /// Begins to give rows in order of time.
    fn walk(&self, scan: &mut Scan, tests: &[Test]) -> Result<Place> {
        let (table, all) = (self.table(), vec![true; tests.len()]);
        let [times, _] = scan.bounds(table.time, tests, &all);
        let wanted = constant(&scan.terms, tests, &all);
        let Some(timeline) = &mut scan.timeline else { return Ok(Place::End) };
        let mut walk = timeline.begin(wanted, times);
        let has_row = walk.next(timeline, &table.conn, &table.columns, &scan.used)?;
        Ok(if has_row { Place::Walk(Box::new(walk)) } else { Place::End })
    }

    /// The chunk and row where the cursor stands.
    fn here(&self) -> Option<(&Chunk, usize)> {
        let kept = || self.scans.get(self.scan)?.kept.as_ref();
        match &self.at {
            Place::Read(_, chunk, row) => Some((chunk, *row)),
            Place::Kept(chunk, row) => Some((kept()?.chunks.get(*chunk)?, *row)),
            Place::Found(rows, from_the_end) => {
                let (chunk, row) = kept()?.place(if *from_the_end { rows.end - 1 } else { rows.start })?;
                Some((kept()?.chunks.get(chunk)?, row))
            }
            Place::Walk(walk) => walk.here(),
            Place::End => None,
        }
    }
}

// SAFETY: `Cursor` is repr(C) and starts with `sqlite3_vtab_cursor`, as the trait asks.
unsafe impl VTabCursor for Cursor<'_> {
    fn filter(&mut self, _: c_int, plan: Option<&str>, args: &Filters<'_>) -> Result<()> {
        self.start(plan.unwrap_or_default(), args).map_err(error_that_fits)
    }

    fn next(&mut self) -> Result<()> {
        self.advance().map_err(error_that_fits)
    }

    fn eof(&self) -> bool {
        matches!(self.at, Place::End)
    }

    fn column(&self, context: &mut Context, at: c_int) -> Result<()> {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let kind = self.table().kinds.get(at).copied().unwrap_or(Kind::Integer);
        match self.here().map_or(ValueRef::Null, |(chunk, row)| chunk.value(row, at, kind)) {
            ValueRef::Integer(value) => context.set_result(value),
            ValueRef::Null => context.set_result(rusqlite::types::Null),
            value => context.set_result(Borrowed(value)),
        }
    }

    fn rowid(&self) -> Result<i64> {
        Ok(self.here().map_or(0, |(chunk, row)| chunk.rowid(row)))
    }
}

impl Cursor<'_> {
    /// Begins a scan: `filter`.
    fn start(&mut self, plan: &str, args: &Filters<'_>) -> Result<()> {
        self.at = Place::End;
        self.scan = match self.scans.iter().position(|scan| scan.plan == plan) {
            Some(at) => at,
            None => {
                self.scans.push(Scan::of(plan, self.table().columns.len()));
                self.scans.len() - 1
            }
        };
        let Some(tests) = self.scans.get(self.scan).map(|scan| self.tests(&scan.terms, args)).transpose()?.flatten()
        else {
            return Ok(());
        };
        // Out of its list, so that the table can be looked at meanwhile.
        let mut scan = self.scans.swap_remove(self.scan);
        let started = self.begin(&mut scan, tests);
        self.scans.push(scan);
        self.scan = self.scans.len() - 1;
        self.at = started?;
        Ok(())
    }

    /// Goes to the next row: `next`.
    fn advance(&mut self) -> Result<()> {
        // SAFETY: SQLite closes cursors before it disconnects their table.
        let table = unsafe { &*self.table };
        match &mut self.at {
            Place::Read(reader, chunk, row) => {
                *row += 1;
                if *row >= chunk.rows() {
                    match reader.next(&table.conn, &table.columns)? {
                        Some(next) => (*chunk, *row) = (next, 0),
                        None => self.at = Place::End,
                    }
                }
            }
            Place::Kept(chunk, row) => {
                *row += 1;
                let chunks = self.scans.get(self.scan).and_then(|scan| scan.kept.as_ref()).map(|kept| &kept.chunks);
                if chunks.and_then(|chunks| chunks.get(*chunk)).is_none_or(|chunk| *row >= chunk.rows()) {
                    (*chunk, *row) = (*chunk + 1, 0);
                    if chunks.is_none_or(|chunks| *chunk >= chunks.len()) {
                        self.at = Place::End;
                    }
                }
            }
            Place::Found(rows, from_the_end) => {
                if *from_the_end {
                    rows.end -= 1;
                } else {
                    rows.start += 1;
                }
                if rows.start >= rows.end {
                    self.at = Place::End;
                }
            }
            Place::Walk(walk) => {
                let scan = self.scans.get_mut(self.scan);
                let Some((timeline, used)) = scan.and_then(|scan| Some((scan.timeline.as_mut()?, &scan.used))) else {
                    self.at = Place::End;
                    return Ok(());
                };
                if !walk.next(timeline, &table.conn, &table.columns, used)? {
                    self.at = Place::End;
                }
            }
            Place::End => {}
        }
        Ok(())
    }
}

/// A value that is copied by SQLite.
struct Borrowed<'a>(ValueRef<'a>);

impl rusqlite::ToSql for Borrowed<'_> {
    fn to_sql(&self) -> Result<rusqlite::types::ToSqlOutput<'_>> {
        Ok(rusqlite::types::ToSqlOutput::Borrowed(self.0))
    }
}
