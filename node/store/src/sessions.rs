//! Owns the `sessions` table: one row per agent start, from which the times without an agent are
//! known. Does not own what else is missing (`facts`).

use rusqlite::{Connection, OptionalExtension, params};

/// Sessions kept; an agent that restarts in a loop must not fill the file.
const MOST_SESSIONS: i64 = 10_000;

/// This run's row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Session {
    pub(crate) id: i64,
    pub(crate) start_ns: i64,
}

/// A time in which no agent recorded into this file: from the end of one session to the start of
/// the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) since_ns: i64,
    pub(crate) until_ns: i64,
}

/// When the last session last lived, by the clock of `age`. None where there was none. (To be read
/// before [`settle`].)
pub(crate) fn last_alive(conn: &Connection) -> rusqlite::Result<Option<i64>> {
    conn.query_row("SELECT alive_ns FROM sessions ORDER BY id DESC LIMIT 1", [], |row| row.get(0)).optional()
}

/// Sets the end of the last session, where it was killed, to the time of the newest row, Unix
/// nanoseconds: the clock of `age`, by which it said that it lived, may have been behind.
pub(crate) fn settle(conn: &Connection, newest_ns: Option<i64>) -> rusqlite::Result<()> {
    conn.execute(
        "UPDATE sessions SET alive_ns = max(alive_ns, start_ns, ifnull(?1, start_ns)) \
         WHERE stop_ns IS NULL AND id = (SELECT max(id) FROM sessions)",
        [newest_ns],
    )?;
    Ok(())
}

/// Begin a session at `now_ns` of the wall clock, `alive_ns` of that of `age`.
pub(crate) fn begin(conn: &Connection, now_ns: i64, alive_ns: i64) -> rusqlite::Result<Session> {
    conn.execute(
        "INSERT INTO sessions (start_ns, alive_ns, stop_ns, version, boot_id, host, kernel) VALUES (?1,?6,NULL,?2,?3,?4,?5)",
        params![
            now_ns,
            env!("CARGO_PKG_VERSION"),
            kernel_text("/proc/sys/kernel/random/boot_id"),
            kernel_text("/proc/sys/kernel/hostname"),
            kernel_text("/proc/sys/kernel/osrelease"),
            alive_ns,
        ],
    )?;
    let id = conn.last_insert_rowid();
    // The first one stays: its start names the store (`birth`).
    conn.execute("DELETE FROM sessions WHERE id <= ?1 AND id > (SELECT min(id) FROM sessions)", [id - MOST_SESSIONS])?;
    Ok(Session { id, start_ns: now_ns })
}

/// Note that the session lives, inside the batch's transaction, and since when it records (0: since
/// its start).
pub(crate) fn alive(conn: &Connection, session: Session, now_ns: i64, since_ns: i64) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "UPDATE sessions SET alive_ns = max(alive_ns, ?2), start_ns = max(start_ns, ?3) WHERE id = ?1",
    )?
    .execute([session.id, now_ns, since_ns])?;
    Ok(())
}

/// Close the session in an orderly way.
pub(crate) fn end(conn: &Connection, session: Session, now_ns: i64) -> rusqlite::Result<()> {
    conn.execute("UPDATE sessions SET stop_ns = ?2 WHERE id = ?1", [session.id, now_ns])?;
    Ok(())
}

/// When the store's first session began, Unix nanoseconds: copies of a store have it in common, and
/// no two stores of a host. None where there was no session.
pub(crate) fn birth(conn: &Connection) -> rusqlite::Result<Option<i64>> {
    conn.query_row("SELECT start_ns FROM sessions ORDER BY id LIMIT 1", [], |row| row.get(0)).optional()
}

/// The times between sessions, oldest first.
pub(crate) fn gaps(conn: &Connection) -> rusqlite::Result<Vec<Gap>> {
    // (Between the first session and the next that is kept others may have been.)
    let mut stmt = conn.prepare(
        "SELECT start_ns, max(start_ns, ifnull(stop_ns, alive_ns)) FROM sessions WHERE id > (SELECT max(id) FROM sessions) - ?1 \
         ORDER BY start_ns",
    )?;
    let mut rows = stmt.query([MOST_SESSIONS])?;
    let mut gaps = Vec::new();
    let mut last_end: Option<i64> = None;
    while let Some(row) = rows.next()? {
        let (start_ns, end_ns): (i64, i64) = (row.get(0)?, row.get(1)?);
        if let Some(since_ns) = last_end.filter(|&end| end < start_ns) {
            gaps.push(Gap { since_ns, until_ns: start_ns });
        }
        last_end = last_end.max(Some(end_ns));
    }
    Ok(gaps)
}

fn kernel_text(path: &str) -> String {
    std::fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |s| s.trim().to_owned())
}
