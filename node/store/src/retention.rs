//! Owns dropping old rows: by age and by size, oldest first, a small chunk per transaction between
//! commits, so that ingest never waits long; and giving pages back to the file system. Records each
//! cut-off in the `retention` table. Does not own when it runs (`ingest`).

use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::columnar;
use super::schema::TIMED_TABLES;

/// Rows dropped in one transaction.
const CHUNK_ROWS: i64 = 1000;

/// Pages given back in one step.
const VACUUM_PAGES: i64 = 256;

/// Limits of a store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Main file and write-ahead log together.
    pub(crate) max_bytes: u64,
    /// Age of raw rows.
    pub(crate) max_age: Duration,
    /// The write-ahead log's share of `max_bytes`.
    pub(crate) wal_bytes: u64,
}

/// How much longer than raw rows a table's rows are kept, as a factor on age.
fn patience(table: &str) -> i64 {
    match table {
        "call_rollups" => 4,
        "processes" | "findings" | "audit" | "annotations" | "stacks" => 8,
        _ => 1,
    }
}

/// What a step did.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// Tables that lost rows, with their time column.
    pub(crate) touched: Vec<(&'static str, &'static str)>,
    /// Cut-off of `capture_loss`, when it lost rows.
    pub(crate) losses_until_ns: Option<i64>,
    /// Segments that are gone.
    pub(crate) segments: Vec<i64>,
    /// There is more to do.
    pub(crate) more: bool,
}

/// Drop what is over the limits, for about `budget`.
pub(crate) fn step(conn: &Connection, limits: &Limits, now_ns: i64, budget: Duration) -> rusqlite::Result<Step> {
    let began = Instant::now();
    let mut step = Step::default();
    while let Some(victim) = next_victim(conn, limits, now_ns)? {
        if began.elapsed() >= budget {
            step.more = true;
            break;
        }
        let cutoff_ns = if columnar::is_columnar(victim.table) {
            drop_segment(conn, &victim, &mut step.segments)?
        } else {
            drop_oldest(conn, &victim)?
        };
        let name = (victim.table, victim.column);
        if !step.touched.contains(&name) {
            step.touched.push(name);
        }
        if victim.table == "capture_loss" {
            step.losses_until_ns = step.losses_until_ns.max(Some(cutoff_ns));
        }
    }
    give_back(conn, limits)?;
    Ok(step)
}

struct Victim {
    table: &'static str,
    column: &'static str,
    /// Drop nothing newer than this.
    until_ns: i64,
}

fn next_victim(conn: &Connection, limits: &Limits, now_ns: i64) -> rusqlite::Result<Option<Victim>> {
    let max_age_ns = i64::try_from(limits.max_age.as_nanos()).unwrap_or(i64::MAX);
    let over_size = used_bytes(conn)? > high_water(limits);
    let mut worst: Option<(i64, Victim)> = None;
    for &(table, column) in TIMED_TABLES {
        // A segment goes as a whole, once all its rows are to go.
        let oldest: Option<i64> = if columnar::is_columnar(table) {
            columnar::oldest(conn, table)?
        } else {
            conn.prepare_cached(&format!("SELECT min({column}) FROM {table}"))?.query_row([], |r| r.get(0))?
        };
        let Some(oldest) = oldest else { continue };
        let age_ns = now_ns.saturating_sub(oldest);
        let limit_ns = max_age_ns.saturating_mul(patience(table));
        if age_ns > limit_ns {
            return Ok(Some(Victim { table, column, until_ns: now_ns.saturating_sub(limit_ns) }));
        }
        // Over size, the table that reaches back furthest for its kind gives way, by a sixteenth of
        // its reach at most, so that a small table is not emptied for what a large one holds.
        let reach_ns = age_ns / patience(table);
        if over_size && worst.as_ref().is_none_or(|(w, _)| reach_ns > *w) {
            let until_ns = oldest.saturating_add((age_ns / 16).max(0));
            worst = Some((reach_ns, Victim { table, column, until_ns }));
        }
    }
    Ok(worst.map(|(_, victim)| victim))
}

/// Drop one chunk of the victim's oldest rows. Returns the time up to which everything is gone.
fn drop_oldest(conn: &Connection, victim: &Victim) -> rusqlite::Result<i64> {
    let Victim { table, column, until_ns } = *victim;
    let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    // The chunk's last time; rows of one instant go together, so that "all up to the cut-off" stays
    // true.
    let chunk_end: Option<i64> = tx
        .prepare_cached(&format!("SELECT {column} FROM {table} ORDER BY {column} LIMIT 1 OFFSET {}", CHUNK_ROWS - 1))?
        .query_row([], |r| r.get(0))
        .optional()?;
    let cutoff_ns = chunk_end.map_or(until_ns, |end| end.min(until_ns));
    let dropped = tx.prepare_cached(&format!("DELETE FROM {table} WHERE {column} <= ?1"))?.execute([cutoff_ns])?;
    record(&tx, table, cutoff_ns, i64::try_from(dropped).unwrap_or(i64::MAX))?;
    tx.commit()?;
    Ok(cutoff_ns)
}

/// Drop the segment that ends first. Returns its last time.
fn drop_segment(conn: &Connection, victim: &Victim, dropped: &mut Vec<i64>) -> rusqlite::Result<i64> {
    let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    let Some((id, last_ns, rows)) = columnar::drop_oldest(&tx, victim.table)? else { return Ok(victim.until_ns) };
    record(&tx, victim.table, last_ns, rows)?;
    tx.commit()?;
    dropped.push(id);
    Ok(last_ns)
}

fn record(tx: &Connection, table: &str, cutoff_ns: i64, rows: i64) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO retention (table_name, cutoff_ns, rows_dropped) VALUES (?1, ?2, ?3) \
         ON CONFLICT (table_name) DO UPDATE SET cutoff_ns = max(cutoff_ns, excluded.cutoff_ns), \
         rows_dropped = rows_dropped + excluded.rows_dropped",
    )?
    .execute(params![table, cutoff_ns, rows])?;
    Ok(())
}

/// Give free pages back while the file is larger than it may be. Below that they are kept for
/// coming rows.
fn give_back(conn: &Connection, limits: &Limits) -> rusqlite::Result<()> {
    let free = pragma(conn, "freelist_count")?;
    if free > 0 && file_bytes(conn)? > high_water(limits) {
        let mut stmt = conn.prepare_cached(&format!("PRAGMA incremental_vacuum({VACUUM_PAGES})"))?;
        let mut rows = stmt.query([])?;
        while rows.next()?.is_some() {}
    }
    Ok(())
}

/// Room for rows in the main file: the limit less the write-ahead log's share.
fn high_water(limits: &Limits) -> u64 {
    limits.max_bytes.saturating_sub(limits.wal_bytes.min(limits.max_bytes / 8))
}

fn used_bytes(conn: &Connection) -> rusqlite::Result<u64> {
    let pages = pragma(conn, "page_count")?.saturating_sub(pragma(conn, "freelist_count")?);
    Ok(pages * pragma(conn, "page_size")?)
}

/// Size of the main file once everything is checkpointed.
pub(crate) fn file_bytes(conn: &Connection) -> rusqlite::Result<u64> {
    Ok(pragma(conn, "page_count")? * pragma(conn, "page_size")?)
}

fn pragma(conn: &Connection, name: &str) -> rusqlite::Result<u64> {
    let value: i64 = conn.prepare_cached(&format!("PRAGMA {name}"))?.query_row([], |r| r.get(0))?;
    Ok(u64::try_from(value).unwrap_or(0))
}
