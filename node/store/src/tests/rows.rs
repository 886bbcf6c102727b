//! Records become rows, which tables, views and the planner show.

use record::{Library, Record};

use super::super::testing::{process, retransmit};
use super::*;

#[test]
fn a_call_that_never_returned_has_no_duration_and_is_in_no_sum() {
    let (_dir, store) = fresh();
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
    let (_dir, store) = fresh();
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
fn the_planner_takes_every_table_and_view() {
    use query_planner::{Catalog, Kind, plan};
    let (_dir, store) = fresh();
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
    let without_facts = ["sessions", "retention", "archive_gaps", "sources", "ops", "segments", "segment_columns"];
    for table in catalog.tables.values().filter(|t| t.kind == Kind::Table) {
        assert!(facts.table(&table.name).is_some() || without_facts.contains(&table.name.as_str()), "{}", table.name);
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
    assert!(!side_file(&path, "-wal").exists(), "an orderly end merges the log");
}

#[test]
fn a_process_found_again_keeps_what_was_known() {
    let (_dir, store) = fresh();
    for rank in [None, Some(3), None] {
        store.ingest().record(process(7, rank));
        store.flush(PATIENCE).unwrap();
    }
    let conn = store.reader().unwrap();
    assert_eq!(int(&conn, "SELECT count(*) FROM processes"), 1);
    assert_eq!(int(&conn, "SELECT rank FROM processes"), 3);
}

#[test]
fn a_process_has_a_row_for_each_of_its_programs_also_after_a_restart() {
    let (_dir, store) = fresh();
    let began = |after_ms: i64, exe: &str, uid: u32| {
        let start_ns = T0 + after_ms * 1_000_000;
        let seen = record::ProcessSeen { pid: 7, start_ns, exe: exe.to_owned(), uid: Some(uid), ..Default::default() };
        store.ingest().record(Record::Process(seen));
        store.flush(PATIENCE).unwrap();
        let conn = store.reader().unwrap();
        let rows =
            "SELECT group_concat(exe || ' ' || ((start_ns - 1767225600000000000) / 1000000), ', ') FROM processes";
        conn.query_row(rows, [], |row| row.get::<_, String>(0)).unwrap()
    };
    assert_eq!(T0, 1_767_225_600_000_000_000);
    began(0, "/bin/a", 1);
    assert_eq!(began(500, "/bin/b", 1), "/bin/a 0, /bin/b 500", "it was exec'd meanwhile");
    // A new session knows of no exec, and measures the time of the boot anew.
    assert_eq!(began(3, "/bin/b", 1), "/bin/a 0, /bin/b 500");
    // Another program than the last that was seen: it began before it was seen now.
    let rows = began(0, "/bin/c", 1);
    assert!(rows.starts_with("/bin/a 0, /bin/b 500, /bin/c ") && !rows.ends_with("/bin/c 0"), "{rows}");
    assert_eq!(began(0, "/bin/c", 1), rows);
    assert_eq!(began(0, "/bin/c", 2).matches("/bin/c").count(), 2, "another user's is another");
}

#[test]
fn records_arrive_without_a_flush() {
    let (_dir, store) = fresh();
    store.ingest().record(Record::Collective(collective(0)));
    let deadline = Instant::now() + PATIENCE;
    while store.health().stored == 0 {
        assert!(Instant::now() < deadline, "never committed: {:?}", store.health());
        std::thread::yield_now();
    }
    assert_eq!(int(&store.reader().unwrap(), "SELECT count(*) FROM collectives"), 1);
}

#[test]
fn torn_records_are_counted_not_stored() {
    let (_dir, store) = fresh();
    for (ts_ns, duration_ns) in [(T0, -1), (-5, 10), (T0, i64::MAX)] {
        store.ingest().record(offcpu(ts_ns, duration_ns));
    }
    store.flush(PATIENCE).unwrap();
    let conn = store.reader().unwrap();
    assert_eq!(int(&conn, "SELECT (SELECT count(*) FROM offcpu) + (SELECT count(*) FROM call_rollups)"), 0);
    assert_eq!(int(&conn, "SELECT lost FROM capture_loss WHERE reason = 'invalid' AND probe = 'offcpu'"), 3);
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
