//! Writes a day through a real store: its queue, commits, segments, joining of segments, rollups
//! and retention, in two sessions with a gap between them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rusqlite::{Connection, params};
use store::{Ingest, Store, StoreConfig, StoreState};

use super::{Day, Made};

/// A commit is waited for at most this long.
const PATIENCE: Duration = Duration::from_secs(600);

/// What became of a day in its store.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub struct Filled {
    /// Rows handed over and stored.
    pub stored: u64,
    /// Segments of all tables.
    pub segments: u64,
    /// Segments of `collectives`.
    pub segments_of_collectives: u64,
    /// Rows of `collectives` that are there.
    pub collectives: u64,
    /// Rows of `collectives` that retention dropped.
    pub dropped: u64,
    /// Size of the file.
    pub bytes: u64,
}

/// Hand one thing over.
pub fn record(ingest: &Ingest, made: Made) {
    match made {
        Made::Record(record) => ingest.record(record),
        Made::Finding(finding) => ingest.finding(finding),
        Made::Audit(audit) => ingest.audit(audit),
        Made::Clock(clock) => ingest.clock_offset(clock),
    }
}

/// A store that keeps everything: for agents that serve a day while its rows are compared with the
/// oracle's.
#[must_use]
pub fn keeps_all() -> StoreConfig {
    StoreConfig { max_bytes: 1 << 40, max_age: Duration::from_secs(100 * 365 * 86_400), ..StoreConfig::default() }
}

/// Write `day` into a new store at `path`. With `commit_each_burst` every burst becomes segments of
/// its own.
///
/// # Errors
/// The store cannot be written, or lost a row.
pub fn fill(path: &Path, day: &Day, commit_each_burst: bool) -> anyhow::Result<Filled> {
    let kept_from_ns = day.since_ns() + (day.until_ns - day.since_ns()) / 1000 * i64::from(day.dropped_permille);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let age = i64::try_from(now.as_nanos())? - kept_from_ns;
    ensure!(age > 0, "the day lies in the future");
    let dropping = StoreConfig { max_age: Duration::from_nanos(age.cast_unsigned()), ..keeps_all() };
    // What the age would reach while this writes is no part of a day that is kept whole.
    let config = if day.dropped_permille == 0 { keeps_all() } else { dropping };
    let mut filled = Filled::default();
    for session in [0..day.restart(), day.restart()..day.bursts] {
        let store = Store::open(path, config.clone())?;
        let ingest = store.ingest();
        for burst in session {
            for (at, made) in day.burst(burst).into_iter().enumerate() {
                if at % 4096 == 0 {
                    wait_for_room(&store)?;
                }
                record(&ingest, made);
            }
            if commit_each_burst {
                store.flush(PATIENCE)?;
            }
        }
        store.flush(PATIENCE)?;
        let health = store.health();
        ensure!(health.lost == 0, "{} rows were lost while the day was written", health.lost);
        filled.stored += health.stored;
        store.close();
    }
    let conn = Connection::open(path)?;
    date_sessions(&conn, day)?;
    let number = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned);
    filled.segments = number("SELECT count(*) FROM segments")?;
    filled.segments_of_collectives = number("SELECT count(*) FROM segments WHERE table_name = 'collectives'")?;
    filled.collectives = number("SELECT ifnull(sum(row_count), 0) FROM segments WHERE table_name = 'collectives'")?;
    filled.dropped = number("SELECT ifnull(sum(rows_dropped), 0) FROM retention WHERE table_name = 'collectives'")?;
    filled.bytes = std::fs::metadata(path).context("the store's size")?.len();
    Ok(filled)
}

/// Waits until half of the store's queue is free.
///
/// # Errors
/// It cannot commit, or takes nothing for a long time.
pub fn wait_for_room(store: &Store) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let health = store.health();
        if health.queued <= StoreConfig::default().queue_records / 2 {
            return Ok(());
        }
        let stuck = matches!(health.state, StoreState::Retrying(_)) || Instant::now() >= until;
        ensure!(!stuck, "the store takes nothing any more: {health:?}");
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Sessions are dated by the host's clock, which was that of the writing: give them their times of
/// the day.
fn date_sessions(conn: &Connection, day: &Day) -> anyhow::Result<()> {
    let down = (0..day.bursts).find(|burst| day.phase(*burst) == super::Phase::Down).unwrap_or(day.restart());
    let sessions = [(1, day.since_ns(), day.burst_ns(down)), (2, day.burst_ns(day.restart()), day.until_ns)];
    for (id, start_ns, stop_ns) in sessions {
        let dated = conn.execute(
            "UPDATE sessions SET start_ns = ?2, alive_ns = ?3, stop_ns = ?3 WHERE id = ?1",
            params![id, start_ns, stop_ns],
        )?;
        ensure!(dated == 1, "there is no session {id}");
    }
    Ok(())
}
