//! Owns archived and live rows as tables of an SQLite connection: a virtual table for each table
//! that has a time. Hours and row groups that a condition on the time (or on another integer in a
//! row group's statistics) rules out are not read, nor are columns that the statement does not use.
//! SQLite checks every condition again itself.
//!
//! A scan that SQLite starts repeatedly, as the inner side of a join, keeps its rows and finds them
//! by the columns that are compared for equality, within the memory of the question.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use query_planner::memory::{DECLARED_BYTES, Reservation, error_that_fits, has_room};
use rusqlite::ffi;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::vtab::{
    Context, CreateVTab, Filters, IndexConstraintOp, IndexInfo, Module, VTab, VTabConfig, VTabConnection, VTabCursor,
    VTabKind, sqlite3_vtab, sqlite3_vtab_cursor,
};
use rusqlite::{Connection, Error, Result};
use store::ARCHIVED_MODULE;

use crate::columns::Columns;
use crate::live::{self, Batches, RowsWanted};
use crate::parts::{HourFile, Node};
use crate::row_group::{Chunk, File};

/// Memory of a kept row's index entry besides the row, about.
const KEPT_ROW_BYTES: usize = 96;

/// A connection whose tables are those of a store of this version, with a node's rows.
pub(crate) fn connection(node: &Arc<Node>) -> Result<Connection> {
    /// The schema as SQLite keeps it: made once, since a question asks many nodes.
    static SCHEMA: OnceLock<Vec<u8>> = OnceLock::new();
    let schema = match SCHEMA.get() {
        Some(schema) => schema,
        None => {
            let made = schema(node)?;
            SCHEMA.get_or_init(|| made)
        }
    };
    let mut conn = Connection::open_in_memory()?;
    conn.deserialize_read_exact(rusqlite::MAIN_DB, schema.as_slice(), schema.len(), true)?;
    register(&conn, node)?;
    store::register_columns(&conn, Arc::new(Columns(Arc::clone(node))))?;
    conn.set_prepared_statement_cache_capacity(64);
    conn.execute_batch("PRAGMA query_only = ON; PRAGMA temp_store = MEMORY;")?;
    Ok(conn)
}

fn register(conn: &Connection, node: &Arc<Node>) -> Result<()> {
    const OF: Module<'_, HistoryTable> = Module::read_only_module();
    conn.create_module(ARCHIVED_MODULE, &OF, Some(Arc::clone(node)))
}

fn schema(node: &Arc<Node>) -> Result<Vec<u8>> {
    let mut conn = Connection::open_in_memory()?;
    store::write_plain_schema(&conn)?;
    register(&conn, node)?;
    for (table, columns) in store::declared()? {
        let Some((_, time)) = store::TIMED_TABLES.iter().find(|(name, _)| *name == table) else { continue };
        let columns: Vec<String> = columns.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
        conn.execute_batch(&format!(
            "DROP TABLE {table}; CREATE VIRTUAL TABLE {table} USING {} ({time}, {})",
            ARCHIVED_MODULE.to_string_lossy(),
            columns.join(", ")
        ))?;
    }
    conn.serialize(rusqlite::MAIN_DB).map(|bytes| bytes.to_vec())
}

#[repr(C)]
struct HistoryTable {
    /// SQLite's part; must come first.
    base: sqlite3_vtab,
    node: Arc<Node>,
    table: String,
    columns: Vec<String>,
    is_integer: Vec<bool>,
    /// The index of the column with the rows' time.
    time: usize,
}

/// A comparison with a column: `=`, `>`, `g` (at least), `<`, `l` (at most).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Term {
    operator: char,
    column: usize,
}

fn operator(of: IndexConstraintOp) -> Option<char> {
    Some(match of {
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ => '=',
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GT => '>',
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GE => 'g',
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LT => '<',
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LE => 'l',
        _ => return None,
    })
}

// SAFETY: `HistoryTable` is repr(C) and starts with `sqlite3_vtab`, as the trait asks.
unsafe impl<'vtab> VTab<'vtab> for HistoryTable {
    type Aux = Arc<Node>;
    type Cursor = Cursor<'vtab>;

    fn connect(
        db: &mut VTabConnection,
        node: Option<&Arc<Node>>,
        _: &[u8],
        _: &[u8],
        table: &[u8],
        args: &[&[u8]],
    ) -> Result<(Cow<'static, CStr>, Self)> {
        if !has_room(DECLARED_BYTES) {
            return Err(no_memory());
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let wrong = |what: &str| Error::ModuleError(what.to_owned());
        let node = Arc::clone(node.ok_or_else(|| wrong("no archive"))?);
        let (time, declared) = args.split_first().ok_or_else(|| wrong("no columns"))?;
        let declared: Vec<String> = declared.iter().map(|arg| text(arg)).collect();
        let word = |column: &String, at: usize| column.split_whitespace().nth(at).unwrap_or_default().to_owned();
        let columns: Vec<String> = declared.iter().map(|column| word(column, 0)).collect();
        let is_integer = declared.iter().map(|column| word(column, 1).eq_ignore_ascii_case("INTEGER")).collect();
        let time = text(time);
        let time = columns.iter().position(|name| *name == time).ok_or_else(|| wrong("no time"))?;
        db.config(VTabConfig::Innocuous)?;
        let sql = CString::new(format!("CREATE TABLE x ({})", declared.join(", ")))?;
        let base = sqlite3_vtab::default();
        Ok((Cow::Owned(sql), Self { base, node, table: text(table), columns, is_integer, time }))
    }

    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        let (mut terms, mut places, mut share, mut is_lookup) = (Vec::new(), Vec::new(), 1.0_f64, false);
        for (at, constraint) in info.constraints().enumerate() {
            let Some(operator) = operator(constraint.operator()).filter(|_| constraint.is_usable()) else { continue };
            let column = usize::try_from(constraint.column()).ok();
            let Some(column) = column.filter(|column| *column < self.columns.len()) else { continue };
            // Texts are compared as bytes only, and for equality.
            let is_text = operator == '=' && info.collation(at).is_ok_and(|name| name == "BINARY");
            if !self.is_integer[column] && !is_text {
                continue;
            }
            let is_known = matches!(info.rhs_value(at), Ok(Some(_)));
            is_lookup |= operator == '=' && !is_known && column != self.time;
            share /= if column == self.time { 1_000.0 } else { 4.0 };
            terms.push(Term { operator, column });
            places.push(at);
        }
        for (i, at) in places.iter().enumerate() {
            info.constraint_usage(*at).set_argv_index(i as c_int + 1);
        }
        let listed: Vec<String> = terms.iter().map(|term| format!("{}{}", term.operator, term.column)).collect();
        let plan = format!("{}|{}", info.col_used(), listed.join(";"));
        // rusqlite aborts the process where it gets no memory for the copy.
        if !has_room(plan.len() + 1) {
            return Err(no_memory());
        }
        info.set_idx_str(&plan);
        let rows = (1e9 * share).max(10.0);
        info.set_estimated_rows(if is_lookup { 20 } else { rows as i64 });
        info.set_estimated_cost(if is_lookup { 100.0 } else { 10_000.0 + rows });
        Ok(true)
    }

    fn open(&'vtab mut self) -> Result<Cursor<'vtab>> {
        Ok(Cursor {
            base: sqlite3_vtab_cursor::default(),
            table: self,
            scans: HashMap::new(),
            at: Place::End,
            lifetime: PhantomData,
        })
    }
}

impl CreateVTab<'_> for HistoryTable {
    const KIND: VTabKind = VTabKind::Default;
}

#[repr(C)]
struct Cursor<'vtab> {
    /// SQLite's part; must come first.
    base: sqlite3_vtab_cursor,
    table: *const HistoryTable,
    /// Scans that were started, by plan.
    scans: HashMap<String, StartedScan>,
    at: Place,
    lifetime: PhantomData<&'vtab HistoryTable>,
}

/// State of a scan from its earlier starts.
struct StartedScan {
    /// Bounds that were the same each time.
    constant: Bounds,
    kept: Option<Arc<Kept>>,
    /// The rows within the constant bounds are more than may be kept.
    is_too_much: bool,
}

/// Columns that are compared for equality, and the values.
type Lookup = Vec<(usize, Key)>;

/// The least and greatest values of integer columns, by column.
type Bounds = Vec<(usize, (i64, i64))>;

enum Place {
    Read(Box<Reader>, Chunk, usize, i64),
    Kept(Arc<Kept>, Vec<(u32, u32)>, usize),
    KeptAll(Arc<Kept>, u32, u32),
    End,
}

/// Rows of a scan that is started repeatedly, with an index on some columns.
struct Kept {
    chunks: Vec<Chunk>,
    by: Vec<usize>,
    places: HashMap<Vec<Key>, Vec<(u32, u32)>>,
    _memory: Reservation,
}

#[derive(PartialEq, Eq, Hash)]
enum Key {
    Integer(i64),
    Bytes(Vec<u8>),
}

impl Key {
    /// The key of a value that equals another exactly where their keys are equal; none of other
    /// values.
    fn of(value: ValueRef<'_>) -> Option<Self> {
        match value {
            ValueRef::Integer(value) => Some(Self::Integer(value)),
            ValueRef::Text(text) => Some(Self::Bytes(text.to_vec())),
            _ => None,
        }
    }
}

/// Reads the rows within bounds, part by part.
struct Reader {
    node: Arc<Node>,
    table: String,
    /// The columns that are read; none in the places of others.
    columns: Vec<Option<String>>,
    bounds: Vec<(String, (i64, i64))>,
    files: std::vec::IntoIter<HourFile>,
    open: Option<(File, usize)>,
    live: Option<Box<dyn Batches>>,
}

fn failed(why: impl std::fmt::Display) -> Error {
    // A code by which the executor distinguishes it from an error of the question's own SQL.
    Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_READ), Some(why.to_string()))
}

fn no_memory() -> Error {
    Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_NOMEM), None)
}

impl Reader {
    fn next(&mut self) -> Result<Option<Chunk>> {
        let columns: Vec<Option<&str>> = self.columns.iter().map(Option::as_deref).collect();
        loop {
            if let Some((file, group)) = &mut self.open {
                if *group >= file.groups() {
                    self.open = None;
                    continue;
                }
                let this = *group;
                *group += 1;
                if self.bounds.iter().all(|(column, bounds)| file.may_hold(this, column, *bounds)) {
                    let chunk = file.read(this, &columns).map_err(failed)?;
                    if chunk.rows > 0 {
                        return Ok(Some(chunk));
                    }
                }
                continue;
            }
            match self.files.next() {
                Some(file) => {
                    let opened = self.node.open(&self.table, &file).map_err(failed)?;
                    self.open = opened.map(|file| (file, 0));
                }
                None => {
                    let Some(live) = &mut self.live else { return Ok(None) };
                    let rows = live.next().map_err(failed)?;
                    return Ok(rows.map(|rows| live::chunk(rows, &self.columns)));
                }
            }
        }
    }
}

impl Cursor<'_> {
    fn table(&self) -> &HistoryTable {
        // SAFETY: SQLite closes cursors before it disconnects their table.
        unsafe { &*self.table }
    }

    fn reader(&self, used: u64, bounds: &Bounds) -> Result<Reader> {
        let table = self.table();
        let time = bounds.iter().find(|(column, _)| *column == table.time).map(|(_, bounds)| *bounds);
        let (first_ns, last_ns) = time.unwrap_or((i64::MIN, i64::MAX));
        let range = first_ns..last_ns.saturating_add(1);
        let parts = table.node.parts(&table.table, &range).map_err(failed)?;
        // The highest bit stands for all columns from 63 on.
        let is_used = |at: usize| used >> at.min(63) & 1 == 1;
        let columns: Vec<Option<String>> =
            table.columns.iter().enumerate().map(|(at, name)| is_used(at).then(|| name.clone())).collect();
        let live = match &table.node.live {
            None => None,
            Some(live) => {
                let wanted: Vec<Option<&str>> = columns.iter().map(Option::as_deref).collect();
                let wanted = RowsWanted {
                    table: &table.table,
                    time: &table.columns[table.time],
                    columns: &wanted,
                    range: &range,
                    without: &parts.not_live,
                    asked_ns: table.node.asked_ns,
                };
                if wanted.is_archived() { None } else { Some(live.rows(wanted).map_err(failed)?) }
            }
        };
        let bounds = bounds.iter().map(|(column, bounds)| (table.columns[*column].clone(), *bounds)).collect();
        let (files, node) = (parts.files.into_iter(), Arc::clone(&table.node));
        Ok(Reader { node, table: table.table.clone(), columns, bounds, files, open: None, live })
    }

    /// Keeps the rows of a scan, with an index on some columns; none where they are too many.
    fn keep(&self, used: u64, bounds: &Bounds, by: Vec<usize>) -> Result<Option<Arc<Kept>>> {
        let used = by.iter().fold(used, |used, column| used | 1 << (*column).min(63));
        let mut reader = self.reader(used, bounds)?;
        let (mut chunks, mut memory, mut bytes) = (Vec::new(), Reservation::default(), 0);
        let mut places = HashMap::<Vec<Key>, Vec<(u32, u32)>>::new();
        while let Some(chunk) = reader.next()? {
            let at = chunks.len() as u32;
            bytes += chunk.memory_bytes() + if by.is_empty() { 0 } else { chunk.rows * KEPT_ROW_BYTES };
            if !memory.try_resize(bytes) {
                return Ok(None);
            }
            for row in (0..chunk.rows).filter(|_| !by.is_empty()) {
                if let Some(key) = by.iter().map(|column| Key::of(chunk.value(row, *column))).collect() {
                    places.entry(key).or_default().push((at, row as u32));
                }
            }
            chunks.push(chunk);
        }
        Ok(Some(Arc::new(Kept { chunks, by, places, _memory: memory })))
    }

    fn begin(&mut self, plan: &str, args: &Filters<'_>) -> Result<Place> {
        let (used, terms) = read_plan(plan).ok_or_else(|| failed("a plan of another version"))?;
        let mut bounds: Bounds = Vec::new();
        let mut lookup: Lookup = Vec::new();
        for (term, value) in terms.iter().zip(args.iter()) {
            let Some(limits) = limits(term.operator, value) else { return Ok(Place::End) };
            let is_integer = self.table().is_integer.get(term.column) == Some(&true);
            if is_integer {
                match bounds.iter_mut().find(|(column, _)| *column == term.column) {
                    Some((_, known)) => *known = (known.0.max(limits.0), known.1.min(limits.1)),
                    None => bounds.push((term.column, limits)),
                }
            }
            // A comparison with a value of another type has a meaning that only SQLite knows.
            let fits = matches!((is_integer, value), (true, ValueRef::Integer(_)) | (false, ValueRef::Text(_)));
            if let Some(key) = Key::of(value).filter(|_| term.operator == '=' && fits) {
                lookup.push((term.column, key));
            }
        }
        if bounds.iter().any(|(_, (least, greatest))| least > greatest) {
            return Ok(Place::End);
        }
        let Some(mut scan) = self.scans.remove(plan) else {
            let first = StartedScan { constant: bounds.clone(), kept: None, is_too_much: false };
            self.scans.insert(plan.to_owned(), first);
            return self.read(used, &bounds);
        };
        let known = scan.constant.len();
        scan.constant.retain(|bound| bounds.contains(bound));
        if scan.constant.len() < known {
            // There are never more constant ones than before, so this happens at most once for
            // each.
            scan.kept = None;
        }
        if scan.kept.is_none() && !scan.is_too_much {
            let by = lookup.iter().map(|(column, _)| *column).collect();
            scan.kept = self.keep(used, &scan.constant, by)?;
            scan.is_too_much = scan.kept.is_none();
        }
        let kept = scan.kept.clone();
        self.scans.insert(plan.to_owned(), scan);
        match kept {
            Some(kept) => Ok(found(kept, lookup)),
            None => self.read(used, &bounds),
        }
    }

    fn read(&self, used: u64, bounds: &Bounds) -> Result<Place> {
        let mut reader = self.reader(used, bounds)?;
        Ok(match reader.next()? {
            Some(chunk) => Place::Read(Box::new(reader), chunk, 0, 0),
            None => Place::End,
        })
    }

    /// The chunk and row of the cursor.
    fn here(&self) -> Option<(&Chunk, usize)> {
        match &self.at {
            Place::Read(_, chunk, row, _) => Some((chunk, *row)),
            Place::Kept(kept, places, at) => {
                let (chunk, row) = places.get(*at)?;
                Some((kept.chunks.get(*chunk as usize)?, *row as usize))
            }
            Place::KeptAll(kept, chunk, row) => Some((kept.chunks.get(*chunk as usize)?, *row as usize)),
            Place::End => None,
        }
    }
}

/// The start of a scan of kept rows.
fn found(kept: Arc<Kept>, wanted: Lookup) -> Place {
    let (by, key): (Vec<usize>, Vec<Key>) = wanted.into_iter().unzip();
    if !by.is_empty() && by == kept.by {
        return match kept.places.get(&key).cloned() {
            Some(places) => Place::Kept(kept, places, 0),
            None => Place::End,
        };
    }
    if kept.chunks.is_empty() { Place::End } else { Place::KeptAll(kept, 0, 0) }
}

/// The integers that satisfy a comparison; none where no row can satisfy it.
fn limits(operator: char, value: ValueRef<'_>) -> Option<(i64, i64)> {
    const ALL: (i64, i64) = (i64::MIN, i64::MAX);
    let value = match value {
        ValueRef::Integer(value) => value,
        ValueRef::Null => return None,
        // SQLite knows its meaning.
        _ => return Some(ALL),
    };
    match operator {
        '=' => Some((value, value)),
        '>' => Some((value.checked_add(1)?, i64::MAX)),
        'g' => Some((value, i64::MAX)),
        '<' => Some((i64::MIN, value.checked_sub(1)?)),
        'l' => Some((i64::MIN, value)),
        _ => Some(ALL),
    }
}

fn read_plan(plan: &str) -> Option<(u64, Vec<Term>)> {
    let (used, terms) = plan.split_once('|')?;
    let term = |text: &str| {
        let operator = text.chars().next()?;
        Some(Term { operator, column: text.get(operator.len_utf8()..)?.parse().ok()? })
    };
    let terms = terms.split(';').filter(|text| !text.is_empty()).map(term).collect::<Option<_>>()?;
    Some((used.parse().ok()?, terms))
}

// SAFETY: `Cursor` is repr(C) and starts with `sqlite3_vtab_cursor`, as the trait asks.
unsafe impl VTabCursor for Cursor<'_> {
    fn filter(&mut self, _: c_int, plan: Option<&str>, args: &Filters<'_>) -> Result<()> {
        self.at = Place::End;
        self.at = self.begin(plan.unwrap_or_default(), args).map_err(error_that_fits)?;
        self.within_memory()
    }

    fn next(&mut self) -> Result<()> {
        self.advance().map_err(error_that_fits)
    }

    fn eof(&self) -> bool {
        matches!(self.at, Place::End)
    }

    fn column(&self, context: &mut Context, at: c_int) -> Result<()> {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        match self.here().map_or(ValueRef::Null, |(chunk, row)| chunk.value(row, at)) {
            ValueRef::Integer(value) => context.set_result(value),
            ValueRef::Null => context.set_result(rusqlite::types::Null),
            value => context.set_result(Borrowed(value)),
        }
    }

    fn rowid(&self) -> Result<i64> {
        Ok(match &self.at {
            Place::Read(_, _, row, before) => before + *row as i64,
            Place::Kept(_, places, at) => {
                places.get(*at).map_or(0, |(chunk, row)| i64::from(*chunk) << 32 | i64::from(*row))
            }
            Place::KeptAll(_, chunk, row) => i64::from(*chunk) << 32 | i64::from(*row),
            Place::End => 0,
        })
    }
}

impl Cursor<'_> {
    /// Goes to the next row: `next`.
    fn advance(&mut self) -> Result<()> {
        match &mut self.at {
            Place::Read(reader, chunk, row, before) => {
                *row += 1;
                if *row >= chunk.rows {
                    *before += chunk.rows as i64;
                    *row = 0;
                    match reader.next()? {
                        Some(next) => *chunk = next,
                        None => self.at = Place::End,
                    }
                    return self.within_memory();
                }
            }
            Place::Kept(_, places, at) => {
                *at += 1;
                if *at >= places.len() {
                    self.at = Place::End;
                }
            }
            Place::KeptAll(kept, chunk, row) => {
                *row += 1;
                if kept.chunks.get(*chunk as usize).is_none_or(|chunk| *row as usize >= chunk.rows) {
                    (*chunk, *row) = (*chunk + 1, 0);
                    if *chunk as usize >= kept.chunks.len() {
                        self.at = Place::End;
                    }
                }
            }
            Place::End => {}
        }
        Ok(())
    }

    /// A chunk is a row group at most: its size is checked against the question's memory, in which
    /// what is kept is counted.
    fn within_memory(&self) -> Result<()> {
        let Place::Read(_, chunk, ..) = &self.at else { return Ok(()) };
        let mut memory = Reservation::default();
        if memory.try_resize(chunk.memory_bytes()) { Ok(()) } else { Err(no_memory()) }
    }
}

/// A value that SQLite copies.
struct Borrowed<'a>(ValueRef<'a>);

impl rusqlite::ToSql for Borrowed<'_> {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(self.0))
    }
}
