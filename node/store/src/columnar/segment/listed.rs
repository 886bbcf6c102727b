//! Owns the list of a table's segments that a connection keeps while nothing is committed: a
//! question with several sides, or the next one to a file that nobody writes, does not read it
//! again. SQLite's `PRAGMA data_version` tells whether something was committed; within a
//! transaction it belongs to the state that the transaction sees.

use std::sync::Weak;

use rusqlite::{Connection, params};

use super::super::cache::{FileId, Kept};
use super::super::with_connection::Name;
use super::{Segment, SegmentError};
use crate::FastMap;

/// How often a table is looked at in one state until its whole list is read: beside a writer a
/// state does not last, and a question is about some minutes of a day.
const LOOKS: u32 = 3;

static LISTS: Name<Lists> = Name::new(c"rankmesh_segments");

#[derive(Default)]
struct Lists {
    /// The file, once it was looked up; none where segments of the connection are not kept.
    file: Option<Option<FileId>>,
    tables: FastMap<String, List>,
}

#[derive(Default)]
struct List {
    version: i64,
    looks: u32,
    entries: Option<Vec<Entry>>,
}

/// A segment without its header, which the cache of the process has or has let go.
struct Entry {
    id: i64,
    first_ns: i64,
    last_ns: i64,
    kept: Weak<Kept>,
    first_rowid: i64,
    rows: usize,
}

/// The segments of a table that may hold rows from the first to the second time, by row id; none
/// where the list is not kept, or not yet.
pub(super) fn segments(
    conn: &Connection,
    table: &str,
    (first_ns, last_ns): (i64, i64),
) -> Result<Option<Vec<Segment>>, SegmentError> {
    // Outside of a transaction the next statement may see another state.
    if conn.is_autocommit() {
        return Ok(None);
    }
    let file = LISTS.with(conn, |lists| *lists.file.get_or_insert_with(|| FileId::of(conn)));
    let Some(file) = file.flatten() else { return Ok(None) };
    let version = conn.prepare_cached("PRAGMA main.data_version");
    let Ok(version) = version.and_then(|mut version| version.query_row([], |row| row.get::<_, i64>(0))) else {
        return Ok(None);
    };
    let is_wanted = LISTS.with(conn, |lists| {
        if !lists.tables.contains_key(table) {
            lists.tables.insert(table.to_owned(), List::default());
        }
        let list = lists.tables.get_mut(table)?;
        if list.version != version {
            *list = List { version, ..List::default() };
        }
        list.looks = list.looks.saturating_add(1);
        (list.looks > LOOKS).then_some(list.entries.is_none())
    });
    match is_wanted.flatten() {
        None => return Ok(None),
        Some(true) => {
            let entries = read(conn, table)?;
            LISTS.with(conn, |lists| lists.tables.get_mut(table).map(|list| list.entries = Some(entries)));
        }
        Some(false) => {}
    }
    let found = LISTS.with(conn, |lists| {
        let entries = lists.tables.get(table)?.entries.as_ref()?;
        let is_within = |entry: &&Entry| entry.last_ns >= first_ns && entry.first_ns <= last_ns;
        let of = |entry: &Entry| (entry.id, entry.first_rowid, entry.rows, entry.kept.upgrade());
        Some(entries.iter().filter(is_within).map(of).collect::<Vec<_>>())
    });
    let Some(found) = found.flatten() else { return Ok(None) };
    let mut segments = Vec::with_capacity(found.len());
    for (id, first_rowid, rows, kept) in found {
        if let Some(kept) = kept {
            kept.used_now();
            segments.push(Segment::of_kept((id, first_rowid, rows), table, kept));
            continue;
        }
        let mut header =
            conn.prepare_cached("SELECT id, first_rowid, row_count, header FROM segments WHERE id = ?1")?;
        let mut headers = header.query([id])?;
        // (Its list was read in this state.)
        let Some(row) = headers.next()? else { return Ok(None) };
        let segment = Segment::read(row, table, Some(file))?;
        let kept = segment.kept();
        LISTS.with(conn, |lists| {
            let entries = lists.tables.get_mut(table).and_then(|list| list.entries.as_mut());
            let entry = entries.and_then(|entries| entries.iter_mut().find(|entry| entry.id == id));
            entry.into_iter().for_each(|entry| entry.kept.clone_from(&kept));
        });
        segments.push(segment);
    }
    Ok(Some(segments))
}

fn read(conn: &Connection, table: &str) -> Result<Vec<Entry>, SegmentError> {
    let mut statement = conn.prepare_cached(
        "SELECT id, first_rowid, row_count, first_ns, last_ns FROM segments WHERE table_name = ?1 ORDER BY first_rowid",
    )?;
    let entry = |row: &rusqlite::Row<'_>| {
        Ok(Entry {
            id: row.get(0)?,
            first_rowid: row.get(1)?,
            rows: usize::try_from(row.get::<_, i64>(2)?).unwrap_or(usize::MAX),
            first_ns: row.get(3)?,
            last_ns: row.get(4)?,
            kept: Weak::new(),
        })
    };
    Ok(statement.query_map(params![table], entry)?.collect::<Result<_, _>>()?)
}
