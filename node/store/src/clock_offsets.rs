//! Reads the `clock_offsets` table: what an agent measured of other nodes' clocks. Does not own how
//! its rows are written (`rows`), nor what clocks they give together (`query`'s `stored_clocks`).

use std::ops::Range;

use rusqlite::{Connection, Row};

use super::rows::ClockOffsetSeen;

/// Equal parts of a range, of each of which the best row to a peer is read.
const PARTS: i64 = 256;
const COLUMNS: &str = "ts_ns, measured_by, peer, offset_ns, bound_ns, drift_ppb, drift_bound_ppb";

/// The rows within `range` in order of time, of each peer the best of [`PARTS`] parts; without one
/// the newest of each peer. None where the connection has no such table.
///
/// # Errors
/// SQLite cannot read it.
pub fn clock_offsets(conn: &Connection, range: Option<&Range<i64>>) -> rusqlite::Result<Vec<ClockOffsetSeen>> {
    let has = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'clock_offsets'";
    if conn.query_row(has, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(Vec::new());
    }
    let Some(range) = range else {
        let newest = format!("SELECT {COLUMNS}, max(ts_ns) FROM clock_offsets GROUP BY measured_by, peer");
        return conn.prepare(&newest)?.query_map([], seen)?.collect();
    };
    let ends = "SELECT min(ts_ns), max(ts_ns) FROM clock_offsets WHERE ts_ns >= ?1 AND ts_ns < ?2";
    let ends: (Option<i64>, Option<i64>) =
        conn.query_row(ends, [range.start, range.end], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (Some(first_ns), Some(last_ns)) = ends else { return Ok(Vec::new()) };
    let part_ns = last_ns.saturating_sub(first_ns) / PARTS + 1;
    // Of bare columns SQLite gives those of the row with the least.
    let best = format!(
        "SELECT {COLUMNS}, min(bound_ns) FROM clock_offsets WHERE ts_ns >= ?1 AND ts_ns <= ?2 \
         GROUP BY measured_by, peer, (ts_ns - ?1) / ?3 ORDER BY ts_ns"
    );
    conn.prepare(&best)?.query_map([first_ns, last_ns, part_ns], seen)?.collect()
}

fn seen(row: &Row<'_>) -> rusqlite::Result<ClockOffsetSeen> {
    Ok(ClockOffsetSeen {
        ts_ns: row.get(0)?,
        measured_by: row.get(1)?,
        peer: row.get(2)?,
        offset_ns: row.get(3)?,
        bound_ns: row.get(4)?,
        drift_ppb: row.get(5)?,
        drift_bound_ppb: row.get(6)?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::PATIENCE;
    use super::super::{ServedDb, Store, StoreConfig};
    use super::*;

    const MINUTE_NS: i64 = 60_000_000_000;

    #[test]
    fn of_a_range_the_best_rows_are_read_and_of_all_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n1.db");
        let store =
            Store::open(&path, StoreConfig { max_age: std::time::Duration::MAX, ..StoreConfig::default() }).unwrap();
        let start_ns = 1_700_000_000_000_000_000;
        for minute in 0..2_000 {
            for peer in ["n0", "n2"] {
                store.ingest().clock_offset(ClockOffsetSeen {
                    ts_ns: start_ns + minute * MINUTE_NS,
                    measured_by: "n1".into(),
                    peer: peer.into(),
                    offset_ns: minute,
                    bound_ns: 100 + minute % 7,
                    ..ClockOffsetSeen::default()
                });
            }
        }
        store.flush(PATIENCE).unwrap();
        store.close();
        let served = ServedDb::open_recorded(&path).unwrap();
        let newest = served.clock_offsets(None).unwrap();
        assert_eq!(
            newest.iter().map(|row| (&*row.peer, row.offset_ns)).collect::<Vec<_>>(),
            [("n0", 1_999), ("n2", 1_999)]
        );
        let few = served.clock_offsets(Some(&(start_ns..start_ns + 10 * MINUTE_NS))).unwrap();
        assert_eq!((few.len(), few[0].offset_ns, few[19].offset_ns), (20, 0, 9));
        let all = served.clock_offsets(Some(&(i64::MIN..i64::MAX))).unwrap();
        assert!((256..=514).contains(&all.len()), "{}", all.len());
        assert!(all.windows(2).all(|two| two[0].ts_ns <= two[1].ts_ns) && all.iter().all(|row| row.bound_ns <= 101));
        assert!(served.clock_offsets(Some(&(0..1))).unwrap().is_empty());
    }
}
