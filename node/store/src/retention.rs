//! Owns dropping old rows: by age and by size, oldest first, a small chunk per transaction between
//! commits, so that ingest never waits long; and giving pages back to the file system. Records each
//! cut-off in the `retention` table, and in `archive_gaps` what was dropped before it was archived.
//! Does not own when it runs (`ingest`).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::columnar;
use super::hold;
use super::schema::TIMED_TABLES;

/// Rows dropped in one transaction.
const CHUNK_ROWS: i64 = 1000;

/// Nanoseconds of the hours by which an archive is divided.
const HOUR_NS: i64 = 3_600_000_000_000;

/// For how long `archive_gaps` keeps its rows.
const GAPS_KEPT_NS: i64 = 366 * 24 * HOUR_NS;

/// From this share of the size limit on, rows should be archived.
const WANTED_FROM: (u64, u64) = (7, 8);

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
        "call_rollups" | "request_rollups" => 4,
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
    /// What comes next is not archived.
    pub(crate) wants_archive: bool,
    /// Rows that were dropped and not archived.
    pub(crate) not_archived: u64,
}

/// Drop what is over the limits, for about `budget`. Rows from `archived_ns` on are kept for an
/// archive.
pub(crate) fn step(
    conn: &Connection,
    limits: &Limits,
    archived_ns: i64,
    now_ns: i64,
    budget: Duration,
) -> rusqlite::Result<Step> {
    let began = Instant::now();
    let mut step = Step::default();
    loop {
        let (victim, wants_archive) = next_victim(conn, limits, archived_ns, now_ns)?;
        step.wants_archive = wants_archive;
        let Some(victim) = victim else { break };
        if began.elapsed() >= budget {
            step.more = true;
            break;
        }
        let (cutoff_ns, not_archived) = if columnar::is_columnar(victim.table) {
            drop_segment(conn, &victim, archived_ns, &mut step.segments)?
        } else {
            drop_oldest(conn, &victim, archived_ns)?
        };
        step.not_archived += not_archived;
        let name = (victim.table, victim.column);
        if !step.touched.contains(&name) {
            step.touched.push(name);
        }
        if victim.table == "capture_loss" {
            step.losses_until_ns = step.losses_until_ns.max(Some(cutoff_ns));
        }
    }
    step.more |= return_pages(conn, limits)?;
    Ok(step)
}

#[derive(Debug, Clone, Copy)]
struct Victim {
    table: &'static str,
    column: &'static str,
    /// Drop nothing newer than this.
    until_ns: i64,
}

/// The victim that reaches back furthest for its kind.
#[derive(Default)]
struct Worst(Option<(i64, Victim)>);

impl Worst {
    fn look(&mut self, reach_ns: i64, victim: Victim) {
        if self.0.as_ref().is_none_or(|(worst, _)| reach_ns > *worst) {
            self.0 = Some((reach_ns, victim));
        }
    }
}

/// Whose rows go next, if any; and whether rows that are not archived are wanted in the archive.
fn next_victim(
    conn: &Connection,
    limits: &Limits,
    archived_ns: i64,
    now_ns: i64,
) -> rusqlite::Result<(Option<Victim>, bool)> {
    let nanos = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    let (max_age_ns, patience_ns) = (nanos(limits.max_age), nanos(hold::PATIENCE));
    let (used, most) = (used_bytes(conn)?, high_water(limits));
    let over_size = used > most;
    let (mut worst, mut worst_archived, mut wants_archive) = (Worst::default(), Worst::default(), false);
    for &(table, column) in TIMED_TABLES {
        // A segment is dropped once all its rows are due.
        let oldest: Option<i64> = if columnar::is_columnar(table) {
            columnar::oldest(conn, table)?
        } else {
            conn.prepare_cached(&format!("SELECT min({column}) FROM {table}"))?.query_row([], |r| r.get(0))?
        };
        let Some(oldest) = oldest else { continue };
        let is_awaited = oldest >= archived_ns;
        let archived_until_ns = archived_ns.saturating_sub(1);
        let age_ns = now_ns.saturating_sub(oldest);
        let limit_ns = max_age_ns.saturating_mul(patience(table));
        if age_ns > limit_ns {
            let until_ns = now_ns.saturating_sub(limit_ns);
            if !is_awaited {
                let victim = Victim { table, column, until_ns: until_ns.min(archived_until_ns) };
                return Ok((Some(victim), wants_archive));
            }
            wants_archive = true;
            if age_ns > limit_ns.saturating_add(patience_ns) {
                let until_ns = until_ns.saturating_sub(patience_ns);
                return Ok((Some(Victim { table, column, until_ns }), wants_archive));
            }
        }
        // Over size, the table that reaches back furthest for its kind loses rows, a sixteenth of
        // its reach at most, so that a small table is not emptied for a large one.
        let reach_ns = age_ns / patience(table);
        let until_ns = oldest.saturating_add((age_ns / 16).max(0));
        worst.look(reach_ns, Victim { table, column, until_ns });
        if !is_awaited && patience(table) == 1 {
            worst_archived.look(reach_ns, Victim { table, column, until_ns: until_ns.min(archived_until_ns) });
        }
    }
    let worst = worst.0.map(|(_, victim)| victim);
    let is_wanted = worst.is_some_and(|victim| victim.until_ns >= archived_ns);
    wants_archive |= is_wanted && used > most / WANTED_FROM.1 * WANTED_FROM.0;
    if !over_size {
        return Ok((None, wants_archive));
    }
    // What is not archived goes where nothing else of its kind can: the size is kept.
    let waiting = worst.filter(|_| is_wanted);
    Ok((waiting.and(worst_archived.0.map(|(_, victim)| victim)).or(worst), wants_archive))
}

/// Drop one chunk of the victim's oldest rows. Returns the time up to which everything is gone, and
/// how many rows of it were not archived.
fn drop_oldest(conn: &Connection, victim: &Victim, archived_ns: i64) -> rusqlite::Result<(i64, u64)> {
    let Victim { table, column, until_ns } = *victim;
    let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    // The chunk's last time; rows of one instant go together, so that "all up to the cut-off" stays
    // true.
    let chunk_end: Option<i64> = tx
        .prepare_cached(&format!("SELECT {column} FROM {table} ORDER BY {column} LIMIT 1 OFFSET {}", CHUNK_ROWS - 1))?
        .query_row([], |r| r.get(0))
        .optional()?;
    let cutoff_ns = chunk_end.map_or(until_ns, |end| end.min(until_ns));
    let mut gaps = Gaps::default();
    if cutoff_ns >= archived_ns {
        let sql = format!("SELECT {column} FROM {table} WHERE {column} <= ?1 AND {column} >= ?2");
        let mut statement = tx.prepare_cached(&sql)?;
        let mut rows = statement.query([cutoff_ns, archived_ns])?;
        while let Some(row) = rows.next()? {
            gaps.add(row.get(0)?);
        }
    }
    let dropped = tx.prepare_cached(&format!("DELETE FROM {table} WHERE {column} <= ?1"))?.execute([cutoff_ns])?;
    record(&tx, table, cutoff_ns, i64::try_from(dropped).unwrap_or(i64::MAX))?;
    let not_archived = gaps.write(&tx, table)?;
    tx.commit()?;
    Ok((cutoff_ns, not_archived))
}

/// Drop the segment that ends first. Returns its last time, and how many rows of it were not
/// archived.
fn drop_segment(
    conn: &Connection,
    victim: &Victim,
    archived_ns: i64,
    dropped: &mut Vec<i64>,
) -> rusqlite::Result<(i64, u64)> {
    let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    let Some((id, last_ns)) = columnar::ends_first(&tx, victim.table)? else { return Ok((victim.until_ns, 0)) };
    let mut gaps = Gaps::default();
    if last_ns >= archived_ns {
        // (Unknown of a damaged segment; its rows were lost before.)
        let times = columnar::integers(&tx, victim.table, id, victim.column).unwrap_or_default();
        times.into_iter().filter(|ns| *ns >= archived_ns).for_each(|ns| gaps.add(ns));
    }
    let rows = columnar::drop(&tx, id)?;
    record(&tx, victim.table, last_ns, rows)?;
    let not_archived = gaps.write(&tx, victim.table)?;
    tx.commit()?;
    dropped.push(id);
    Ok((last_ns, not_archived))
}

/// Rows that go and are not archived, by hour: the last time and how many.
#[derive(Debug, Default)]
struct Gaps(BTreeMap<i64, (i64, u64)>);

impl Gaps {
    fn add(&mut self, ns: i64) {
        let (last_ns, rows) = self.0.entry(ns.div_euclid(HOUR_NS).saturating_mul(HOUR_NS)).or_insert((ns, 0));
        *last_ns = (*last_ns).max(ns);
        *rows += 1;
    }

    fn write(&self, tx: &Connection, table: &str) -> rusqlite::Result<u64> {
        for (hour_ns, (until_ns, rows)) in &self.0 {
            tx.prepare_cached(
                "INSERT INTO archive_gaps (table_name, hour_ns, until_ns, rows_dropped) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT (table_name, hour_ns) DO UPDATE SET until_ns = max(until_ns, excluded.until_ns), \
                 rows_dropped = rows_dropped + excluded.rows_dropped",
            )?
            .execute(params![table, hour_ns, until_ns, rows.cast_signed()])?;
        }
        if let Some((hour_ns, _)) = self.0.last_key_value() {
            let sql = "DELETE FROM archive_gaps WHERE hour_ns < ?1";
            tx.prepare_cached(sql)?.execute([hour_ns.saturating_sub(GAPS_KEPT_NS)])?;
        }
        Ok(self.0.values().map(|(_, rows)| rows).sum())
    }
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
fn return_pages(conn: &Connection, limits: &Limits) -> rusqlite::Result<bool> {
    let free = pragma(conn, "freelist_count")?;
    if free == 0 || file_bytes(conn)? <= high_water(limits) {
        return Ok(false);
    }
    let mut stmt = conn.prepare_cached(&format!("PRAGMA incremental_vacuum({VACUUM_PAGES})"))?;
    let mut rows = stmt.query([])?;
    while rows.next()?.is_some() {}
    Ok(true)
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
