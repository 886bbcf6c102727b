//! Owns a store's facts, which cost no query: spans, row estimates, cut-offs, loss, and the notes
//! for a question's coverage. Kept in memory, read at opening, renewed after each commit; asking
//! never touches the file.

use std::ops::Range;

use jiff::Timestamp;
use record::{LossCount, unix_now_ns};
use rusqlite::{Connection, OptionalExtension};

use super::columnar;
use super::losslog::{LossFact, LossLog};
use super::schema::{CHOSEN_TABLES, TIMED_TABLES, UNFILLED_TABLES, base_tables};
use super::sessions::{self, Gap};

/// The facts of one table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableFacts {
    /// The table.
    pub name: String,
    /// Rows: an estimate from the range of row ids, exact while nothing was dropped.
    pub rows: u64,
    /// Oldest time in the table (Unix nanoseconds), none when empty or when the table has no time.
    pub first_ns: Option<i64>,
    /// Newest time in the table.
    pub last_ns: Option<i64>,
    /// Retention dropped rows at or before this time.
    pub dropped_until_ns: Option<i64>,
    /// Nothing fills this table in this version, so that its being empty means nothing.
    pub unfilled: bool,
}

/// The facts of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Per table that carries a time (a store's own), or per table (a served file).
    pub tables: Vec<TableFacts>,
    /// Size of the main file.
    pub file_bytes: u64,
    /// Size of its write-ahead log.
    pub wal_bytes: u64,
    /// All loss on record, one entry per probe and reason.
    pub losses: Vec<LossFact>,
}

impl Facts {
    /// The facts of one table.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&TableFacts> {
        self.tables.iter().find(|t| t.name.eq_ignore_ascii_case(name))
    }

    /// Oldest and newest time of the raw observations.
    #[must_use]
    pub fn span(&self) -> Option<(i64, i64)> {
        let raw = || self.tables.iter().filter(|t| is_raw(&t.name));
        // What a clock that was ahead has stamped is not the newest.
        let last_ns = raw().filter_map(|t| t.last_ns).max()?.min(unix_now_ns());
        let first_ns = raw().filter_map(|t| t.first_ns).min()?;
        Some((first_ns, last_ns.max(first_ns)))
    }
}

/// Whether a question reads a table: by its name, or through the sums over it.
fn is_read(table: &str, is_asked: impl Fn(&str) -> bool) -> bool {
    const SUMMED: &[&str] = &["collectives", "offcpu", "cuda_calls", "symbol_calls"];
    is_asked(table) || (SUMMED.contains(&table) && is_asked("call_rollups"))
}

fn is_raw(table: &str) -> bool {
    !matches!(
        table,
        "processes"
            | "call_rollups"
            | "request_rollups"
            | "capture_loss"
            | "findings"
            | "self_stats"
            | "annotations"
            | "stacks"
            | "clock_offsets"
    )
}

/// Rows that are further ahead of the clock are of the future.
const FUTURE_NS: i64 = 60_000_000_000;

/// The note of a table that no recorder fills.
pub const UNFILLED: &str = "nothing records into this table yet";

/// The end of the note of a table whose oldest rows are gone.
pub const DROPPED: &str = " were dropped by retention";

/// What is said of losses for [`LossCount::BUDGET`].
fn slices_note(loss: &LossFact) -> String {
    let seconds = |ns: i64| ns as f64 / 1e9;
    let all_ns = loss.until_ns.saturating_sub(loss.since_ns);
    format!(
        "{}: recorded in slices (up --budget): {:.1} of the {:.1} s between {} and {}, about {} calls left out",
        loss.probe,
        seconds(all_ns.saturating_sub(loss.missed_ns).max(0)),
        seconds(all_ns),
        show_time(loss.since_ns),
        show_time(loss.until_ns),
        loss.lost
    )
}

/// The facts in memory.
#[derive(Debug, Default)]
pub(crate) struct FactsState {
    tables: Vec<TableFacts>,
    pub(crate) file_bytes: u64,
    pub(crate) wal_bytes: u64,
    pub(crate) losses: LossLog,
    pub(crate) gaps: Vec<Gap>,
    /// What is not recorded on this host, and why: the tables concerned and the note.
    pub(crate) not_recorded: Vec<(Vec<&'static str>, String)>,
}

impl FactsState {
    /// The session that began at `start_ns` records since `since_ns` only: the gap before it is
    /// longer.
    pub(crate) fn records_since(&mut self, start_ns: i64, since_ns: i64) {
        if let Some(last) = self.gaps.last_mut().filter(|last| last.until_ns == start_ns) {
            last.until_ns = last.until_ns.max(since_ns);
        }
    }

    pub(crate) fn load(conn: &Connection) -> rusqlite::Result<Self> {
        let mut state = Self { gaps: sessions::gaps(conn)?, losses: LossLog::load(conn)?, ..Self::default() };
        // (A file that no agent of this version has opened may lack tables, or have them as rows.)
        let has = |name: &str| {
            let sql = "SELECT count(*) FROM sqlite_schema WHERE name = ?1";
            conn.prepare_cached(sql)?.query_row([name], |row| row.get::<_, i64>(0)).map(|found| found > 0)
        };
        let has_segments = has("segments")?;
        for (table, column) in TIMED_TABLES {
            state.tables.push(match (has(table)?, has_segments) {
                (true, true) => read_table(conn, table, column)?,
                (true, false) => read_rows(conn, table, column)?,
                (false, _) => TableFacts { name: (*table).to_owned(), ..TableFacts::default() },
            });
        }
        Ok(state)
    }

    /// The time of the newest row that an agent recorded up to now, Unix nanoseconds. (That of a mark
    /// is its writer's choice, and rows of a clock that was ahead tell nothing.)
    pub(crate) fn newest(&self, now_ns: i64) -> Option<i64> {
        let recorded = self.tables.iter().filter(|table| table.name != "annotations");
        recorded.filter_map(|table| table.last_ns).filter(|ns| *ns <= now_ns).max()
    }

    /// Renew the facts of one table after a commit that touched it.
    pub(crate) fn set(&mut self, facts: TableFacts) {
        if let Some(table) = self.tables.iter_mut().find(|t| t.name == facts.name) {
            *table = facts;
        }
    }

    pub(crate) fn facts(&self) -> Facts {
        Facts {
            tables: self.tables.clone(),
            file_bytes: self.file_bytes,
            wal_bytes: self.wal_bytes,
            losses: self.losses.between(i64::MIN, i64::MAX),
        }
    }

    /// What is known to be missing from `tables` (or views; all when empty) in `range`.
    pub(crate) fn notes(&self, tables: &[&str], range: &Range<i64>) -> Vec<String> {
        let asked: Vec<&str> = tables.iter().flat_map(|t| base_tables(t)).collect();
        let is_asked = |name: &str| asked.is_empty() || asked.iter().any(|a| a.eq_ignore_ascii_case(name));
        let last_ns = range.end.saturating_sub(1);
        let mut notes = Vec::new();
        for table in self.tables.iter().filter(|t| is_asked(&t.name)) {
            if table.unfilled && !asked.is_empty() {
                notes.push(format!("{}: {UNFILLED}", table.name));
            }
            if let Some((_, how)) = CHOSEN_TABLES.iter().find(|(name, _)| *name == table.name)
                && !asked.is_empty()
            {
                notes.push(format!("{}: {how}", table.name));
            }
            let ahead_ns = unix_now_ns().saturating_add(FUTURE_NS);
            if let Some(last) = table.last_ns.filter(|last| *last > ahead_ns && last_ns > ahead_ns) {
                notes.push(format!(
                    "{}: has rows up to {}, which is to come: this host's clock was ahead when they were recorded",
                    table.name,
                    show_time(last)
                ));
            }
            if let Some(cut) = table.dropped_until_ns.filter(|&cut| range.start <= cut) {
                notes.push(format!("{}: rows up to {}{DROPPED}", table.name, show_time(cut)));
            }
        }
        for (concerned, note) in &self.not_recorded {
            if concerned.iter().any(|table| is_read(table, is_asked)) {
                notes.push(note.clone());
            }
        }
        for loss in self.losses.between(range.start, last_ns) {
            let table = self.tables.iter().map(|t| t.name.as_str()).find(|name| *name == loss.probe);
            let hit = table.map(|table| vec![table]).or_else(|| record::tables_of_probe(&loss.probe));
            if hit.is_none_or(|tables| tables.iter().any(|table| is_read(table, is_asked))) {
                if loss.reason == LossCount::BUDGET {
                    notes.push(slices_note(&loss));
                    continue;
                }
                let how = match loss.reason.as_str() {
                    "shed" => "left out under load".to_owned(),
                    reason => format!("lost ({reason})"),
                };
                notes.push(format!(
                    "{}: {} records {how} between {} and {}",
                    loss.probe,
                    loss.lost,
                    show_time(loss.since_ns),
                    show_time(loss.until_ns)
                ));
            }
        }
        if asked.is_empty() || self.tables.iter().any(|t| is_asked(&t.name)) {
            notes.extend(self.gap_note(range.start, last_ns));
        }
        notes
    }

    fn gap_note(&self, since_ns: i64, until_ns: i64) -> Option<String> {
        let hit: Vec<_> = self.gaps.iter().filter(|g| g.until_ns >= since_ns && g.since_ns <= until_ns).collect();
        let last = hit.last()?;
        let seconds = hit.iter().map(|g| (g.until_ns - g.since_ns) as f64 / 1e9).sum::<f64>();
        let (last_since, last_until) = (show_time(last.since_ns), show_time(last.until_ns));
        Some(match hit.len() {
            1 => format!("no agent recorded between {last_since} and {last_until}"),
            n => format!(
                "no agent recorded for {seconds:.1} s in {n} stretches, the last between {last_since} and {last_until}"
            ),
        })
    }
}

/// Read one table's facts: six index look-ups.
pub(crate) fn read_table(conn: &Connection, table: &str, column: &str) -> rusqlite::Result<TableFacts> {
    if !columnar::is_columnar(table) {
        return read_rows(conn, table, column);
    }
    let (rows, first_ns, last_ns) = columnar::span(conn, table)?;
    Ok(TableFacts { rows, first_ns, last_ns, ..empty(conn, table)? })
}

/// The facts of a table without rows.
fn empty(conn: &Connection, table: &str) -> rusqlite::Result<TableFacts> {
    let dropped_until_ns = conn
        .prepare_cached("SELECT cutoff_ns FROM retention WHERE table_name = ?1")?
        .query_row([table], |r| r.get(0))
        .optional()?;
    let unfilled = UNFILLED_TABLES.contains(&table);
    Ok(TableFacts { name: table.to_owned(), dropped_until_ns, unfilled, ..TableFacts::default() })
}

/// As [`read_table`], of a table whose rows are SQLite's.
fn read_rows(conn: &Connection, table: &str, column: &str) -> rusqlite::Result<TableFacts> {
    let sql = format!(
        "SELECT (SELECT min(rowid) FROM {table}), (SELECT max(rowid) FROM {table}), \
         (SELECT min({column}) FROM {table}), (SELECT max({column}) FROM {table})"
    );
    type Four = (Option<i64>, Option<i64>, Option<i64>, Option<i64>);
    let (first_id, last_id, first_ns, last_ns): Four =
        conn.prepare_cached(&sql)?.query_row([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?)))?;
    let rows = match (first_id, last_id) {
        (Some(first), Some(last)) => last.abs_diff(first) + 1,
        _ => 0,
    };
    Ok(TableFacts { rows, first_ns, last_ns, ..empty(conn, table)? })
}

/// Unix nanoseconds as text for people, to the millisecond, in UTC.
#[must_use]
pub fn show_time(ns: i64) -> String {
    let at = Timestamp::from_nanosecond(i128::from(ns));
    at.map_or_else(|_| format!("{ns} ns"), |at| at.strftime("%Y-%m-%d %H:%M:%S%.3f UTC").to_string())
}
