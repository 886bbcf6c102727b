//! Retention by age and size, and the length of the write-ahead log.

use record::{Collective, Record};
use rusqlite::Connection;

use super::*;

#[test]
fn retention_by_age_drops_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let day = 86_400_000_000_000;
    let store =
        Store::open(&path, StoreConfig { max_age: Duration::from_secs(86_400), ..StoreConfig::default() }).unwrap();
    let now = unix_now_ns();
    for i in 0..5000 {
        store.ingest().record(offcpu(now - 2 * day + i, 1));
        store.ingest().record(offcpu(now - i, 1));
    }
    store.flush(PATIENCE).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while store.facts().table("offcpu").unwrap().first_ns.unwrap() < now - day {
        assert!(Instant::now() < deadline, "{:?}", store.facts());
        std::thread::yield_now();
    }
    let conn = store.reader().unwrap();
    assert_eq!(int(&conn, "SELECT count(*) FROM offcpu"), 5000);
    assert_eq!(int(&conn, "SELECT rows_dropped FROM retention WHERE table_name = 'offcpu'"), 5000);
    // Rollups of the dropped rows live on.
    assert_eq!(int(&conn, "SELECT sum(count) FROM call_rollups"), 10_000);
    let notes = store.notes(&["offcpu"], now - 2 * day..now);
    assert!(notes.iter().any(|n| n.contains("dropped by retention")), "{notes:?}");
    assert_eq!(store.notes(&["offcpu"], now - day / 2..now), Vec::<String>::new());
}

#[test]
fn retention_waits_for_the_archive_but_not_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let hour = 3_600_000_000_000;
    let config = StoreConfig { max_age: Duration::from_secs(86_400), hold_for_archive: true, ..StoreConfig::default() };
    let store = Store::open(&path, config).unwrap();
    let now = unix_now_ns();
    let (awaited, beyond) = (now - 25 * hour, now - 40 * hour);
    let wait = |what: &str, is_so: &dyn Fn() -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}: {:?} {:?}", store.facts(), store.archive_backlog());
            std::thread::yield_now();
        }
    };
    let first_ns = || store.facts().table("offcpu").and_then(|table| table.first_ns);
    for i in 0..3000 {
        store.ingest().record(offcpu(beyond + i, 1));
        store.ingest().record(offcpu(awaited + i, 1));
        store.ingest().record(offcpu(now - 1 - i, 1));
    }
    store.flush(PATIENCE).unwrap();
    // What is older than its age by more than the wait for an archive goes, and is counted.
    wait("the oldest rows", &|| first_ns() == Some(awaited) && store.archive_backlog().wants_archive);
    assert_eq!(store.archive_backlog().not_archived, 3000);
    let conn = store.reader().unwrap();
    let gap = "SELECT sum(rows_dropped), max(until_ns), min(hour_ns) FROM archive_gaps WHERE table_name = 'offcpu'";
    let gap: (i64, i64, i64) = conn.query_row(gap, [], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?))).unwrap();
    assert_eq!(gap, (3000, beyond + 2999, beyond / hour * hour));
    let gaps = exchange::Hours::open(&path).unwrap();
    assert_eq!(gaps.not_archived(&(gap.2..gap.2 + hour)).map(|gap| gap.rows).sum::<u64>(), 3000);
    assert!(gaps.next_ns(gap.2).unwrap().is_some_and(|ns| (gap.2..gap.2 + hour).contains(&ns)), "an hour without rows");
    // What is archived goes at once, and is not counted.
    store.archived(now - hour);
    wait("the archived rows", &|| first_ns() == Some(now - 3000) && !store.archive_backlog().wants_archive);
    assert_eq!(store.archive_backlog().not_archived, 3000);
}

#[test]
fn retention_keeps_the_size_while_rows_come() {
    keeps_the_size(StoreConfig { max_bytes: 8 << 20, ..StoreConfig::default() }, 400_000);
}

#[test]
fn retention_keeps_the_size_though_nothing_is_archived() {
    let config = StoreConfig { max_bytes: 4 << 20, hold_for_archive: true, ..StoreConfig::default() };
    let conn = keeps_the_size(config, 240_000);
    let dropped = "SELECT sum(rows_dropped) FROM retention WHERE table_name = 'collectives'";
    let counted = "SELECT sum(rows_dropped) FROM archive_gaps WHERE table_name = 'collectives'";
    assert_eq!(int(&conn, counted), int(&conn, dropped));
}

fn keeps_the_size(config: StoreConfig, made: u64) -> Connection {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let max_bytes = config.max_bytes;
    let keeps_for_archive = config.hold_for_archive;
    let store = Store::open(&path, StoreConfig { max_age: Duration::MAX, ..config }).unwrap();
    let ingest = store.ingest();
    let size =
        || ["", "-wal"].iter().map(|s| std::fs::metadata(side_file(&path, s)).map_or(0, |m| m.len())).sum::<u64>();
    let (mut largest, mut was_wanted) = (0, false);
    for i in 0..made {
        // Numbers without a pattern, so that rows take room.
        let noise = (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let noise = (noise ^ noise >> 31).wrapping_mul(0x94D0_49BB_1331_11EB);
        let (count, bytes) = (Some(noise.rotate_left(31) >> 1), Some(noise.rotate_left(47) >> 1));
        ingest.record(Record::Collective(Collective { stream: Some(noise), count, bytes, ..collective(i) }));
        if i % 2000 == 1999 {
            store.flush(PATIENCE).unwrap();
            largest = largest.max(size());
            was_wanted |= store.archive_backlog().wants_archive;
        }
    }
    assert!(largest < max_bytes * 11 / 10, "grew to {largest} of {max_bytes}");
    assert!(largest > max_bytes / 2, "only {largest} of {max_bytes} were used");
    assert_eq!(store.health().lost, 0);
    assert_eq!(was_wanted, keeps_for_archive);
    drop(store);
    assert_sound(&path);
    let conn = connect(&path);
    // The newest are kept, without a hole, and the cut-off is true.
    let (first, last) =
        (int(&conn, "SELECT min(seq) FROM collectives"), int(&conn, "SELECT max(seq) FROM collectives"));
    assert_eq!(last, made.cast_signed() - 1);
    assert!(first > 0);
    assert_eq!(int(&conn, "SELECT count(*) FROM collectives"), last - first + 1);
    assert_eq!(
        int(
            &conn,
            "SELECT (SELECT min(ts_ns) FROM collectives) > cutoff_ns FROM retention WHERE table_name = 'collectives'"
        ),
        1
    );
    assert_eq!(int(&conn, "SELECT rows_dropped FROM retention WHERE table_name = 'collectives'"), first);
    conn
}

#[test]
fn a_long_reader_sees_one_snapshot_and_the_log_is_cut_back_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let limit = 64 << 10;
    let config = StoreConfig { wal_bytes: limit, max_age: Duration::MAX, ..StoreConfig::default() };
    let store = Store::open(&path, config).unwrap();
    let reader = store.reader().unwrap();
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(int(&reader, "SELECT count(*) FROM offcpu"), 0);
    for i in 0..30_000 {
        // Durations without a pattern, so that rows take room.
        store.ingest().record(offcpu(T0 + i, i.wrapping_mul(0x9E37_79B9) % 1_000_000_007));
    }
    store.flush(PATIENCE).unwrap();
    assert_eq!(int(&reader, "SELECT count(*) FROM offcpu"), 0);
    let wal = || std::fs::metadata(side_file(&path, "-wal")).unwrap().len();
    assert!(wal() > limit, "{}", wal());
    drop(reader);
    let deadline = Instant::now() + PATIENCE;
    while wal() > limit {
        assert!(Instant::now() < deadline, "the log stays at {}", wal());
        std::thread::yield_now();
    }
    assert_eq!(int(&store.reader().unwrap(), "SELECT count(*) FROM offcpu"), 30_000);
}
