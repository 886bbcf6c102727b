//! The store as a whole: what goes in comes out, is accounted for, survives a kill, and stays
//! within its limits.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use record::{CallTally, Collective, CudaCall, Library, LossCount, Record, SymbolCall};
use rusqlite::Connection;

use super::testing::{PATIENCE, T0, assert_whole, collective, connect, int, offcpu, process, retransmit};
use super::*;

const ALL_TIME: Range<i64> = i64::MIN..i64::MAX;

fn open(path: &Path) -> Store {
    // Test records lie in the past of the clock: no retention by age unless a test asks for it.
    let config = StoreConfig { max_age: Duration::from_secs(100 * 365 * 86_400), ..StoreConfig::default() };
    Store::open(path, config).unwrap()
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

#[test]
fn a_call_that_never_returned_has_no_duration_and_is_in_no_sum() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s.db"));
    for i in 0..3 {
        let ret = (i != 2).then_some(0);
        store.ingest().record(Record::Collective(record::Collective { ret, ..collective(i) }));
    }
    store.flush(PATIENCE).unwrap();
    let conn = store.reader().unwrap();
    assert_eq!(int(&conn, "SELECT seq FROM collectives WHERE duration_ns IS NULL AND ret IS NULL"), 2);
    assert_eq!(int(&conn, "SELECT seq FROM nccl_events WHERE duration_ns IS NULL"), 2);
    assert_eq!(int(&conn, "SELECT sum(count) FROM call_rollups WHERE source = 'nccl'"), 2);
}

#[test]
fn records_become_rows_and_views() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s.db"));
    let ingest = store.ingest();
    for i in 0..4 {
        let mut c = collective(i);
        c.duration_ns = if i == 2 { 60_000_000 } else { 1000 };
        ingest.record(Record::Collective(c));
    }
    ingest.record(Record::Collective(record::Collective { library: Library::Mpi, ..collective(9) }));
    ingest.record(offcpu(T0, 5000));
    ingest.record(retransmit(T0 + 3_000_000));
    ingest.record(retransmit(T0 + 900_000_000));
    ingest.finding(Finding { ts_ns: T0, verdict: "rank".to_owned(), rank: Some(5), ..Finding::default() });
    store.flush(PATIENCE).unwrap();
    let conn = store.reader().unwrap();
    assert_eq!(int(&conn, "SELECT count(*) FROM collectives"), 5);
    assert_eq!(int(&conn, "SELECT rank FROM findings WHERE verdict = 'rank'"), 5);
    assert_eq!(int(&conn, "SELECT count(*) FROM nccl_events WHERE op = 'ALL_REDUCE'"), 4);
    assert_eq!(int(&conn, "SELECT count(*) FROM nccl_events WHERE comm_id_hash = 'deadbeef00000001'"), 4);
    // SQL as published for recorded traces.
    let row: (i64, i64) = conn
        .query_row(
            "WITH slow AS (SELECT timestamp_ns, duration_ns, rank FROM nccl_events WHERE op='ALL_REDUCE' AND \
             duration_ns > 50000000) SELECT s.rank, count(t.event) FROM slow s LEFT JOIN tcp_events t ON t.timestamp_ns \
             BETWEEN s.timestamp_ns AND s.timestamp_ns + s.duration_ns AND t.event='tcp_retransmit_skb' GROUP BY s.rank",
            [],
            |r| Ok((r.get(0)?, r.get(1)?)),
        )
        .unwrap();
    assert_eq!(row, (0, 1));
    let names: Vec<(String, String, i64)> = conn
        .prepare(
            "SELECT s.name, o.name, count(*) FROM events e JOIN sources s ON e.source = s.id JOIN ops o \
             ON e.source = o.source_id AND e.op = o.op_id GROUP BY 1, 2 ORDER BY 1",
        )
        .unwrap()
        .query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let expected = [
        ("HOST", "sched_switch", 1),
        ("MPI", "ALL_REDUCE", 1),
        ("NCCL", "ALL_REDUCE", 4),
        ("TCP", "tcp_retransmit", 2),
    ];
    assert_eq!(names, expected.map(|(s, o, n)| (s.to_owned(), o.to_owned(), n)));
    conn.execute("DELETE FROM collectives", []).unwrap_err();
}

#[test]
fn counted_calls_become_rollups_and_their_slow_ones_rows() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s.db"));
    let ingest = store.ingest();
    let counted = |func: &'static str, source, count, sum_ns, bytes| CallTally {
        ts_ns: T0 + 500_000_000,
        source,
        func: func.into(),
        pid: 7,
        rank: Some(3),
        cgroup_id: 9,
        count,
        sum_ns,
        min_ns: 10,
        max_ns: 900,
        bytes,
        buckets: vec![(sum_ns / count, count)],
    };
    for part in [
        counted("cudaMemcpyAsync", "cuda", 1000, 50_000, Some(4096)),
        counted("cudaMemcpyAsync", "cuda", 10, 5_000, Some(4)),
        counted("cudaStreamSynchronize", "cuda", 2, 1_800, None),
        counted("cuStreamSynchronize", "cuda_driver", 2, 1_700, None),
        CallTally { count: 0, ..counted("cudaFree", "cuda", 1, 1, None) }, // torn
    ] {
        ingest.record(Record::CallTally(part));
    }
    ingest.record(Record::CudaCall(CudaCall {
        ts_ns: T0,
        duration_ns: 900,
        pid: 7,
        tid: 8,
        rank: Some(3),
        api: "runtime",
        func: "cudaStreamSynchronize",
        bytes: None,
        kind: Some("after_collective"),
        stream: Some(u64::MAX),
        ret: 0,
        cgroup_id: 9,
    }));
    ingest.record(Record::SymbolCall(SymbolCall {
        ts_ns: T0,
        duration_ns: 5,
        pid: 7,
        tid: 8,
        rank: None,
        library: "libx.so".to_owned(),
        symbol: "f".to_owned(),
        ret: Some(-1),
        cgroup_id: 9,
    }));
    store.flush(PATIENCE).unwrap();
    let conn = store.reader().unwrap();
    let classes: Vec<(String, i64, i64, Option<i64>)> = conn
        .prepare("SELECT class, sum(count), sum(sum_ns), sum(bytes) FROM cuda_time WHERE source = 'cuda' GROUP BY 1 ORDER BY 1")
        .unwrap()
        .query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(classes, [("copy".into(), 1010, 55_000, Some(4100)), ("synchronize".into(), 2, 1_800, None)]);
    assert_eq!(int(&conn, "SELECT bucket_ns FROM call_rollups WHERE func = 'cuStreamSynchronize'"), T0);
    let asked = FileAsker::open(store.path());
    // 1,000 calls of 50 ns and 10 of 500.
    for (fraction, value) in [(0.5, 50.0), (0.98, 50.0), (0.995, 500.0)] {
        let sql =
            format!("SELECT approx_quantile(sketch, {fraction:?}) FROM call_rollups WHERE func = 'cudaMemcpyAsync'");
        let found = asked.real(&sql);
        assert!((found / value - 1.0).abs() < 0.01, "{fraction}: {found}");
    }
    assert_eq!(int(&conn, "SELECT stream FROM cuda_events WHERE kind = 'after_collective' AND rank = 3"), -1);
    assert_eq!(int(&conn, "SELECT ret FROM symbol_calls WHERE library = 'libx.so' AND symbol = 'f'"), -1);
    assert_eq!(int(&conn, "SELECT lost FROM capture_loss WHERE probe = 'call_rollups' AND reason = 'invalid'"), 1);
}

#[test]
fn the_planner_takes_every_table_and_view() {
    use query_planner::{Catalog, Kind, plan};
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s.db"));
    let path = store.path().to_path_buf();
    let source = Source::Store(store);
    let mut reader = source.open_reader().unwrap();
    let catalog = Catalog::of(&reader, &source.replicated()).unwrap();
    query_planner::harden(&mut reader).unwrap();
    for table in catalog.tables.values() {
        // Preparing asks the authorizer for every function that a view calls.
        reader.prepare(&format!("SELECT * FROM {}", table.name)).unwrap();
    }
    for view in ["nccl_events", "cuda_events", "cuda_time", "tcp_events", "events"] {
        assert_eq!(catalog.tables[view].kind, Kind::RowView, "{view} would be computed at the coordinator");
    }
    assert!(catalog.tables["ops"].replicated);
    // Every table is either described by its time, kept aside on purpose, or a dictionary.
    let facts = source.facts();
    let aside = ["sessions", "retention", "archive_gaps", "sources", "ops", "segments", "segment_columns"];
    for table in catalog.tables.values().filter(|t| t.kind == Kind::Table) {
        assert!(facts.table(&table.name).is_some() || aside.contains(&table.name.as_str()), "{}", table.name);
    }
    // The SQL as published passes its checks.
    for sql in [
        "SELECT op, count(*), avg(duration_ns) FROM nccl_events GROUP BY op",
        "SELECT n.rank, count(t.event) FROM nccl_events n LEFT JOIN tcp_events t ON t.timestamp_ns BETWEEN \
         n.timestamp_ns AND n.timestamp_ns + n.duration_ns WHERE n.op = 'ALL_REDUCE' GROUP BY n.rank",
    ] {
        plan(sql, &catalog, &query_planner::AskOptions::default()).unwrap();
    }
    drop((reader, source));
    assert!(!beside(&path, "-wal").exists(), "an orderly end merges the log");
}

#[test]
fn a_process_found_again_keeps_what_was_known() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s.db"));
    for rank in [None, Some(3), None] {
        store.ingest().record(process(7, rank));
        store.flush(PATIENCE).unwrap();
    }
    let conn = store.reader().unwrap();
    assert_eq!(int(&conn, "SELECT count(*) FROM processes"), 1);
    assert_eq!(int(&conn, "SELECT rank FROM processes"), 3);
}

#[test]
fn records_arrive_without_a_flush() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s.db"));
    store.ingest().record(Record::Collective(collective(0)));
    let deadline = Instant::now() + PATIENCE;
    while store.health().stored == 0 {
        assert!(Instant::now() < deadline, "never committed: {:?}", store.health());
        std::thread::yield_now();
    }
    assert_eq!(int(&store.reader().unwrap(), "SELECT count(*) FROM collectives"), 1);
}

#[test]
fn stored_and_lost_make_up_what_was_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = Store::open(&path, StoreConfig { queue_records: 64, max_age: Duration::MAX, ..StoreConfig::default() })
        .unwrap();
    let (threads, each) = (4_u64, 20_000_u64);
    std::thread::scope(|scope| {
        for t in 0..threads {
            let ingest = store.ingest();
            scope.spawn(move || {
                for i in 0..each {
                    ingest.record(Record::Collective(collective(t * each + i)));
                }
            });
        }
    });
    store.flush(PATIENCE).unwrap();
    let health = store.health();
    let facts = store.facts();
    let notes = store.notes(&["nccl_events"], ALL_TIME);
    assert_eq!(health.stored + health.lost, threads * each);
    assert!(health.lost > 0, "the queue of 64 never filled: nothing was tested");
    drop(store);
    let conn = connect(&path);
    let rows = int(&conn, "SELECT count(*) FROM collectives");
    assert_eq!(rows + lost(&conn), (threads * each).cast_signed());
    assert_eq!(int(&conn, "SELECT count(DISTINCT probe || reason) FROM capture_loss"), 1);
    let fact = &facts.losses[0];
    assert_eq!((fact.probe.as_str(), fact.reason.as_str(), fact.lost), ("collectives", "queue", health.lost));
    assert!(notes[0].starts_with(&format!("collectives: {} records lost (queue) between ", health.lost)), "{notes:?}");
}

#[test]
fn loss_told_by_capture_is_kept_and_noted_where_it_matters() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = open(&path);
    let began = unix_now_ns();
    for lost in [5, 7] {
        let (probe, reason) = ("sched_switch".to_owned(), "ringbuf".to_owned());
        store.ingest().record(Record::Loss(LossCount { ts_ns: unix_now_ns(), probe, reason, lost }));
        store.flush(PATIENCE).unwrap();
    }
    let conn = store.reader().unwrap();
    assert_eq!((int(&conn, "SELECT count(*) FROM capture_loss"), lost(&conn)), (1, 12));
    let noted = |range| store.notes(&["offcpu"], range);
    assert!(
        noted(ALL_TIME)[0].starts_with("sched_switch: 12 records lost (ringbuf) between 20"),
        "{:?}",
        noted(ALL_TIME)
    );
    assert_eq!(noted(0..began - 3_600_000_000_000), Vec::<String>::new());
    assert_eq!(store.notes(&["collectives", "tcp_events"], ALL_TIME), Vec::<String>::new(), "not theirs");
    assert_eq!(store.notes(&["events"], ALL_TIME).len(), 1);
    assert_eq!(store.notes(&["call_rollups"], ALL_TIME).len(), 1, "the sums miss it, too");
    drop((conn, store));
    // The digest after a restart says the same.
    let store = open(&path);
    assert_eq!(store.facts().losses[0].lost, 12);
}

#[test]
fn what_a_host_cannot_record_is_noted_where_it_matters() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s.db"));
    store.not_recorded(vec![(vec!["memory_events", "process_events"], "oom: the kernel has no tracepoint".to_owned())]);
    let note = ["oom: the kernel has no tracepoint".to_owned()];
    assert_eq!(store.notes(&["memory_events"], ALL_TIME), note);
    assert_eq!(store.notes(&["events"], ALL_TIME), note, "a view over it");
    assert_eq!(store.notes(&["collectives"], ALL_TIME), Vec::<String>::new());
}

#[test]
fn torn_records_are_counted_not_stored() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s.db"));
    for (ts_ns, duration_ns) in [(T0, -1), (-5, 10), (T0, i64::MAX)] {
        store.ingest().record(offcpu(ts_ns, duration_ns));
    }
    store.flush(PATIENCE).unwrap();
    let conn = store.reader().unwrap();
    assert_eq!(int(&conn, "SELECT (SELECT count(*) FROM offcpu) + (SELECT count(*) FROM call_rollups)"), 0);
    assert_eq!(int(&conn, "SELECT lost FROM capture_loss WHERE reason = 'invalid' AND probe = 'offcpu'"), 3);
}

#[test]
fn sessions_tell_when_nobody_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    drop(open(&path));
    {
        let conn = connect(&path);
        assert_eq!(int(&conn, "SELECT stop_ns >= start_ns FROM sessions"), 1);
        // As if it had ended an hour ago, by a kill.
        conn.execute("UPDATE sessions SET start_ns = start_ns - 7200000000000, alive_ns = alive_ns - 3600000000000, stop_ns = NULL", []).unwrap();
    }
    let store = open(&path);
    let now = unix_now_ns();
    let notes = store.notes(&[], now - 1_800_000_000_000..now);
    assert!(notes.iter().any(|n| n.starts_with("no agent recorded between ")), "{notes:?}");
    assert_eq!(store.notes(&["collectives"], now - 7_000_000_000_000..now - 4_000_000_000_000), Vec::<String>::new());

    // Until capture records, and from its end on, nothing is recorded either.
    let began = now + 5_000_000_000;
    store.recording_began(began);
    let notes = store.notes(&[], began - 1_000_000_000..began - 1);
    assert!(notes.iter().any(|n| n.starts_with("no agent recorded between ")), "{notes:?}");
    assert_eq!(store.notes(&[], began + 1..began + 2), Vec::<String>::new());
    store.recording_ends(began + 7);
    drop(store);
    let conn = connect(&path);
    assert_eq!(int(&conn, "SELECT max(start_ns) FROM sessions"), began);
    assert_eq!(int(&conn, "SELECT max(stop_ns) FROM sessions"), began + 7);
}

#[test]
fn one_agent_per_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = open(&path);
    let error = Store::open(&path, StoreConfig::default()).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    drop(store);
    open(&path);
}

#[test]
fn a_torn_store_is_refused_or_read_never_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = open(&path);
    for i in 0..3000 {
        store.ingest().record(Record::Collective(collective(i)));
    }
    drop(store);
    let whole = std::fs::read(&path).unwrap();
    let mut refused = 0;
    for pages in 1..whole.len() / 4096 {
        std::fs::write(&path, &whole[..pages * 4096]).unwrap();
        match Store::open(&path, StoreConfig { max_age: Duration::MAX, ..StoreConfig::default() }) {
            Err(error) => {
                assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
                refused += 1;
            }
            // A cut that opening does not notice: closing it is all that must work.
            Ok(store) => store.close(),
        }
    }
    assert!(refused > 0, "no cut was noticed");
}

#[test]
fn facts_follow_the_rows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = open(&path);
    for i in 0..1000 {
        store.ingest().record(Record::Collective(collective(i)));
    }
    store.flush(PATIENCE).unwrap();
    let facts = store.facts();
    let table = facts.table("collectives").unwrap();
    assert_eq!((table.rows, table.first_ns, table.last_ns), (1000, Some(T0), Some(T0 + 999_000_000)));
    assert_eq!(facts.span(), Some((T0, T0 + 999_000_000)));
    assert!(store.notes(&["cuda_events"], ALL_TIME)[0].starts_with("cuda_calls: slow calls"));
    drop(store);
    assert_eq!(open(&path).facts().tables, facts.tables);
}

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
    let (held, beyond) = (now - 25 * hour, now - 40 * hour);
    let wait = |what: &str, is_so: &dyn Fn() -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}: {:?} {:?}", store.facts(), store.held());
            std::thread::yield_now();
        }
    };
    let first_ns = || store.facts().table("offcpu").and_then(|table| table.first_ns);
    for i in 0..3000 {
        store.ingest().record(offcpu(beyond + i, 1));
        store.ingest().record(offcpu(held + i, 1));
        store.ingest().record(offcpu(now - 1 - i, 1));
    }
    store.flush(PATIENCE).unwrap();
    // What is older than its age by more than an archive is waited for goes, and is counted.
    wait("the oldest rows", &|| first_ns() == Some(held) && store.held().wants_archive);
    assert_eq!(store.held().not_archived, 3000);
    let conn = store.reader().unwrap();
    let gap = "SELECT sum(rows_dropped), max(until_ns), min(hour_ns) FROM archive_gaps WHERE table_name = 'offcpu'";
    let gap: (i64, i64, i64) = conn.query_row(gap, [], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?))).unwrap();
    assert_eq!(gap, (3000, beyond + 2999, beyond / hour * hour));
    let gaps = exchange::Hours::open(&path).unwrap();
    assert_eq!(gaps.not_archived(&(gap.2..gap.2 + hour)).map(|gap| gap.rows).sum::<u64>(), 3000);
    assert!(gaps.next_ns(gap.2).unwrap().is_some_and(|ns| (gap.2..gap.2 + hour).contains(&ns)), "an hour without rows");
    // What is archived goes at once, and is not counted.
    store.archived(now - hour);
    wait("the archived rows", &|| first_ns() == Some(now - 3000) && !store.held().wants_archive);
    assert_eq!(store.held().not_archived, 3000);
}

#[test]
fn retention_keeps_the_size_while_rows_come() {
    keeps_the_size(StoreConfig { max_bytes: 8 << 20, ..StoreConfig::default() }, 400_000);
}

#[test]
fn retention_keeps_the_size_though_nothing_is_archived() {
    let config = StoreConfig { max_bytes: 4 << 20, hold_for_archive: true, ..StoreConfig::default() };
    let conn = keeps_the_size(config, 160_000);
    let dropped = "SELECT sum(rows_dropped) FROM retention WHERE table_name = 'collectives'";
    let counted = "SELECT sum(rows_dropped) FROM archive_gaps WHERE table_name = 'collectives'";
    assert_eq!(int(&conn, counted), int(&conn, dropped));
}

fn keeps_the_size(config: StoreConfig, made: u64) -> Connection {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let max_bytes = config.max_bytes;
    let is_held = config.hold_for_archive;
    let store = Store::open(&path, StoreConfig { max_age: Duration::MAX, ..config }).unwrap();
    let ingest = store.ingest();
    let size = || ["", "-wal"].iter().map(|s| std::fs::metadata(beside(&path, s)).map_or(0, |m| m.len())).sum::<u64>();
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
            was_wanted |= store.held().wants_archive;
        }
    }
    assert!(largest < max_bytes * 11 / 10, "grew to {largest} of {max_bytes}");
    assert!(largest > max_bytes / 2, "only {largest} of {max_bytes} were used");
    assert_eq!(store.health().lost, 0);
    assert_eq!(was_wanted, is_held);
    drop(store);
    assert_whole(&path);
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
fn a_full_disk_is_waited_out_and_accounted_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let config = StoreConfig { queue_records: 1000, max_age: Duration::MAX, ..StoreConfig::default() };
    let lock = lock_file(&path, 0o600).unwrap();
    let conn = schema::open_writer(&path, 0o600).unwrap();
    // SQLite answers as on a full disk once the file would grow past this.
    let pages = int(&conn, "PRAGMA page_count") + 60;
    conn.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(())).unwrap();
    let store = Store::start(path.clone(), lock, conn, config).unwrap();
    let (mut made, deadline) = (0_u64, Instant::now() + PATIENCE);
    while store.health().state == StoreState::Ok {
        assert!(Instant::now() < deadline, "never full");
        store.ingest().record(Record::Collective(collective(made)));
        made += 1;
    }
    let error = store.flush(Duration::from_millis(100)).unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
    // It still answers, and says that it lags.
    assert!(int(&store.reader().unwrap(), "SELECT count(*) FROM collectives") > 0);
    assert!(store.notes(&[], ALL_TIME).iter().any(|n| n.contains("not stored")));
    let began = Instant::now();
    store.close();
    assert!(began.elapsed() < PATIENCE);
    let health = store.health();
    assert_eq!(health.state, StoreState::Closed);
    let stored = int(&store.reader().unwrap(), "SELECT count(*) FROM collectives");
    assert_eq!(health.stored.cast_signed(), stored);
    assert_eq!(health.stored + health.lost, made);
    drop(store);
    assert_whole(&path);
    // With room again it goes on.
    let store = open(&path);
    store.ingest().record(Record::Collective(collective(made)));
    store.flush(PATIENCE).unwrap();
    assert_eq!(int(&store.reader().unwrap(), "SELECT count(*) FROM collectives"), stored + 1);
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
    let wal = || std::fs::metadata(beside(&path, "-wal")).unwrap().len();
    assert!(wal() > limit, "{}", wal());
    drop(reader);
    let deadline = Instant::now() + PATIENCE;
    while wal() > limit {
        assert!(Instant::now() < deadline, "the log stays at {}", wal());
        std::thread::yield_now();
    }
    assert_eq!(int(&store.reader().unwrap(), "SELECT count(*) FROM offcpu"), 30_000);
}

/// Not a test by itself: the process that [`a_killed_process_loses_at_most_one_commit`] kills.
#[test]
#[ignore = "started and killed by another test"]
fn endless_ingest() {
    let Some(dir) = std::env::var_os("RANKMESH_TEST_KILL_DIR") else {
        return;
    };
    let dir = PathBuf::from(dir);
    let store = open(&dir.join("s.db"));
    let ingest = store.ingest();
    let mut progress = File::create(dir.join("made")).unwrap();
    for i in 0_u64.. {
        ingest.record(Record::Collective(collective(i)));
        if i % 100 == 99 {
            progress.seek(SeekFrom::Start(0)).unwrap();
            progress.write_all(&(i + 1).to_ne_bytes()).unwrap();
            // As fast as the store takes it, so that nothing is dropped and what is in flight has a
            // bound.
            while store.health().queued + 100 > StoreConfig::default().queue_records {
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn a_killed_process_loses_at_most_one_commit() {
    for after in [1_u64, 30_000, 77_700] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.db");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::endless_ingest", "--ignored", "--nocapture"])
            .env("RANKMESH_TEST_KILL_DIR", dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let made = || {
            let bytes = std::fs::read(dir.path().join("made")).unwrap_or_default();
            bytes.try_into().map_or(0, u64::from_ne_bytes)
        };
        let deadline = Instant::now() + PATIENCE;
        while made() < after {
            assert!(Instant::now() < deadline, "the child made {}", made());
            assert_eq!(child.try_wait().unwrap(), None, "the child ended by itself");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let made = made();
        assert_whole(&path);
        let conn = connect(&path);
        let rows = int(&conn, "SELECT count(*) FROM collectives").cast_unsigned();
        // In flight at a kill: one queue being written, one filling, and up to 100 made since
        // progress was noted.
        let in_flight = 2 * StoreConfig::default().queue_records as u64 + 100;
        assert!(rows <= made + 100, "{rows} of {made}");
        assert!(rows + in_flight >= made, "{rows} of {made}");
        // What is there is all that was made up to some instant: no holes.
        assert_eq!(int(&conn, "SELECT ifnull(max(seq), -1) + 1 FROM collectives").cast_unsigned(), rows);
        assert_eq!(lost(&conn), 0);
        // Whatever was committed was committed whole.
        assert_eq!(int(&conn, ROLLUP_DIFFERENCE), 0);
        assert_eq!(int(&conn, "SELECT count(*) FROM sessions WHERE stop_ns IS NULL"), 1);
        drop(conn);
        let store = open(&path);
        store.ingest().record(Record::Collective(collective(made)));
        store.flush(PATIENCE).unwrap();
    }
}

#[test]
fn recorded_traces_are_served() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/ingero");
    if !dir.is_dir() {
        eprintln!("skipped: {} is not there", dir.display());
        return;
    }
    let mut rows = 0;
    for n in 1..=3 {
        let served = ServedDb::open(dir.join(format!("sample-gpu-node-0{n}.db")), Vec::new()).unwrap();
        rows += served.facts().table("events").unwrap().rows;
        assert!(served.facts().span().is_some());
    }
    assert_eq!(rows, 219 + 76 + 305);
}

/// Calls over few keys and buckets, so that they meet.
fn calls() -> impl Strategy<Value = Vec<Record>> {
    let one = (0..3_i64, 0..2_000_000_000_i64, 0..5_u32, 0..4_i32, prop::option::of(0..2_u64), any::<bool>(), 0..3_u8);
    prop::collection::vec(one, 0..300).prop_map(|all| {
        all.into_iter()
            .map(|(second, duration_ns, pid, rank, comm, flag, kind)| {
                let ts_ns = T0 + second * 1_000_000_000 + duration_ns % 1_000_000_000;
                let rank = (rank > 0).then_some(rank);
                if kind == 0 {
                    let Record::OffCpu(o) = offcpu(ts_ns, duration_ns) else { unreachable!() };
                    return Record::OffCpu(record::OffCpu { pid, rank, voluntary: flag, ..o });
                }
                let func = if flag { "all_reduce" } else { "send" };
                let library = if kind == 1 { Library::Nccl } else { Library::Mpi };
                let comm_hash = comm.map(|c| u64::MAX - c);
                Record::Collective(record::Collective {
                    ts_ns,
                    duration_ns,
                    pid,
                    rank,
                    func,
                    library,
                    comm_hash,
                    ..collective(0)
                })
            })
            .collect()
    })
}

/// Asks as people do, with all functions.
struct FileAsker(std::cell::RefCell<crate::file::FileReader>);

impl FileAsker {
    fn open(path: &Path) -> Self {
        Self(std::cell::RefCell::new(crate::file::FileReader::open(path).unwrap()))
    }

    fn rows(&self, sql: &str) -> Vec<Vec<query_planner::Value>> {
        self.0.borrow_mut().ask(sql, Instant::now() + PATIENCE).unwrap_or_else(|e| panic!("{sql}: {e}")).rows
    }

    fn real(&self, sql: &str) -> f64 {
        match self.rows(sql).as_slice() {
            [row] => match row.as_slice() {
                [query_planner::Value::Real(value)] => *value,
                other => panic!("{sql}: {other:?}"),
            },
            other => panic!("{sql}: {other:?}"),
        }
    }
}

#[test]
fn sums_of_a_second_go_on_after_a_restart_and_take_what_comes_late() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let ten = |store: &Store, from: u64| {
        (from..from + 10).for_each(|i| store.ingest().record(Record::Collective(collective(i))));
        store.flush(PATIENCE).unwrap();
    };
    let store = open(&path);
    ten(&store, 0);
    ten(&store, 10);
    drop(store);
    let store = open(&path);
    ten(&store, 20);
    let conn = store.reader().unwrap();
    let one = "SELECT count FROM call_rollups WHERE bucket_ns = 1767225600000000000";
    assert_eq!(int(&conn, one), 30);
    assert_eq!(int(&conn, "SELECT count(*) FROM call_rollups"), 1);
    // A minute later that second is closed; who comes then is a row more, and the sum is right.
    ten(&store, 60_000);
    ten(&store, 30);
    assert_eq!(int(&conn, "SELECT count(*) FROM call_rollups"), 3);
    assert_eq!(int(&conn, "SELECT sum(count) FROM call_rollups WHERE bucket_ns = 1767225600000000000"), 40);
    assert_eq!(int(&conn, "SELECT sum(sum_ns) FROM call_rollups"), 50_000);
}

#[test]
fn many_keys_do_not_stay_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s.db"));
    for i in 0..20_000_u32 {
        store.ingest().record(Record::Collective(Collective { pid: i, ..collective(u64::from(i % 4)) }));
    }
    store.flush(PATIENCE).unwrap();
    let conn = store.reader().unwrap();
    assert_eq!(int(&conn, "SELECT count(DISTINCT pid) FROM call_rollups"), 20_000);
    assert_eq!(int(&conn, ROLLUP_DIFFERENCE), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn rollups_equal_their_rows(batches in prop::collection::vec(calls(), 1..4)) {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir.path().join("s.db"));
        let ingest = store.ingest();
        let made: usize = batches.iter().map(Vec::len).sum();
        for batch in batches {
            batch.into_iter().for_each(|r| ingest.record(r));
            store.flush(PATIENCE).unwrap();
        }
        let conn = store.reader().unwrap();
        prop_assert_eq!(int(&conn, "SELECT ifnull(sum(count), 0) FROM call_rollups"), made as i64);
        prop_assert_eq!(int(&conn, ROLLUP_DIFFERENCE), 0);
        // The sketches of the sums are those of the rows.
        let asked = FileAsker::open(store.path());
        let raw = asked.rows(
            "SELECT library, func, rank, approx_quantile(duration_ns, 0.7) FROM collectives GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
        );
        let kept = asked.rows(
            "SELECT source, func, rank, approx_quantile(sketch, 0.7) FROM call_rollups WHERE source <> 'offcpu' \
             GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
        );
        prop_assert_eq!(raw, kept);
    }
}
