//! The store as a whole: what goes in comes out, is accounted for, survives a kill, and stays
//! within its limits.

mod failures;
mod limits;
mod losses;
mod rollups;
mod rows;

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::testing::{PATIENCE, T0, assert_sound, collective, connect, int, offcpu};
use super::*;

const ALL_TIME: Range<i64> = i64::MIN..i64::MAX;

fn open(path: &Path) -> Store {
    // Test records are in the past of the clock: no retention by age unless a test asks for it.
    let config = StoreConfig { max_age: Duration::from_secs(100 * 365 * 86_400), ..StoreConfig::default() };
    Store::open(path, config).unwrap()
}

/// A new store, and the directory in which it is.
fn fresh() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s.db"));
    (dir, store)
}

fn lost(conn: &Connection) -> i64 {
    int(conn, "SELECT ifnull(sum(lost), 0) FROM capture_loss")
}

/// Rollups recomputed from raw rows and the kept ones, both ways; no difference.
const ROLLUP_DIFFERENCE: &str = "WITH raw AS (
    SELECT ts_ns / 1000000000 * 1000000000 AS bucket_ns, library AS source, func, pid, rank, comm_hash, cgroup_id,
           count(*), sum(duration_ns), min(duration_ns), max(duration_ns)
    FROM collectives GROUP BY 1, 2, 3, 4, 5, 6, 7
    UNION ALL
    SELECT ts_ns / 1000000000 * 1000000000, 'offcpu', iif(voluntary, 'voluntary', 'preempted') AS f, pid, rank, NULL,
           cgroup_id, count(*), sum(duration_ns), min(duration_ns), max(duration_ns)
    FROM offcpu GROUP BY 1, f, pid, rank, cgroup_id),
    kept AS (SELECT bucket_ns, source, func, pid, rank, comm_hash, cgroup_id, count, sum_ns, min_ns, max_ns
             FROM call_rollups)
    SELECT (SELECT count(*) FROM (SELECT * FROM raw EXCEPT SELECT * FROM kept))
         + (SELECT count(*) FROM (SELECT * FROM kept EXCEPT SELECT * FROM raw))";
