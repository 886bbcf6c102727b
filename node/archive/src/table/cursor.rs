//! A cursor over the rows of an archived table: it reads the files and the live store part by part,
//! or finds rows that an earlier start of the same scan kept.

use std::collections::HashMap;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::Arc;

use query_planner::memory::{Reservation, error_that_fits};
use rusqlite::Result;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::vtab::{Context, Filters, VTabCursor, sqlite3_vtab_cursor};

use super::plan::{Bounds, limits, read_plan};
use super::{HistoryTable, failed, no_memory};
use crate::live::{self, Batches, RowsWanted};
use crate::parts::{HourFile, Node};
use crate::row_group::{Chunk, File, is_no_room};

/// Memory of a kept row's index entry besides the row, about.
const KEPT_ROW_BYTES: usize = 96;

#[repr(C)]
pub(super) struct Cursor<'vtab> {
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

impl<'vtab> Cursor<'vtab> {
    /// A cursor that was not started.
    pub(super) fn new(table: &'vtab HistoryTable) -> Self {
        Self {
            base: sqlite3_vtab_cursor::default(),
            table,
            scans: HashMap::new(),
            at: Place::End,
            lifetime: PhantomData,
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
        let (mut chunks, mut memory) = (Vec::new(), Reservation::default());
        let mut places = HashMap::<Vec<Key>, Vec<(u32, u32)>>::new();
        while let Some(chunk) = reader.next()? {
            let at = chunks.len() as u32;
            let of_index = if by.is_empty() { 0 } else { chunk.rows * KEPT_ROW_BYTES };
            if !memory.try_grow(chunk.memory_bytes() + of_index) {
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
                    let chunk = file.read(this, &columns);
                    let chunk = chunk.map_err(|error| if is_no_room(&error) { no_memory() } else { failed(error) })?;
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

/// A value that SQLite copies.
struct Borrowed<'a>(ValueRef<'a>);

impl rusqlite::ToSql for Borrowed<'_> {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(self.0))
    }
}
