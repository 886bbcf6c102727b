//! Records and stores for tests, of this crate and of the crates above it; not in release builds.
#![allow(clippy::unwrap_used, reason = "tests only")]

use std::path::Path;
use std::time::Duration;

use record::{Collective, NetEvent, OffCpu, ProcessSeen, Record};
use rusqlite::Connection;

pub use super::columnar::values_read;
use super::columnar::{Appender, MOST_SPAN_NS};
use super::{Store, StoreConfig, rollups::Rollups, rows};

/// An instant in the past of any clock these tests run on: 2026-01-01 UTC.
pub const T0: i64 = 1_767_225_600_000_000_000;

/// Long enough for any commit on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The i-th collective: one every millisecond, `seq` is i.
pub fn collective(i: u64) -> Collective {
    Collective {
        ts_ns: T0 + i64::try_from(i).unwrap() * 1_000_000,
        duration_ns: 1000,
        pid: 100,
        tid: 100,
        rank: Some(0),
        local_rank: Some(0),
        nranks: Some(8),
        comm_hash: Some(0xDEAD_BEEF_0000_0001),
        func: "all_reduce",
        seq: Some(i),
        comm_seq: Some(i),
        count: Some(1024),
        datatype: Some("float32"),
        bytes: Some(4096),
        reduce_op: Some("sum"),
        stream: Some(7),
        ret: Some(0),
        cgroup_id: 1,
        job_id: Some("42".into()),
        ..Collective::default()
    }
}

/// A stretch off the CPU of process 100.
pub fn offcpu(ts_ns: i64, duration_ns: i64) -> Record {
    Record::OffCpu(OffCpu {
        ts_ns,
        duration_ns,
        pid: 100,
        tid: 101,
        cpu: 3,
        voluntary: false,
        next_pid: 9,
        next_comm: "stress".to_owned(),
        rank: Some(0),
        cgroup_id: 1,
        reason: "preempted",
        run_delay_ns: Some(duration_ns),
        wchan: None,
    })
}

/// A retransmitted TCP segment of no particular process.
pub fn retransmit(ts_ns: i64) -> Record {
    Record::Net(NetEvent {
        ts_ns,
        event: "tcp_retransmit_skb",
        pid: None,
        rank: None,
        saddr: "10.0.0.1".to_owned(),
        sport: 4000,
        daddr: "10.0.0.2".to_owned(),
        dport: 5000,
        state: Some(1),
        segs: Some(1),
        cgroup_id: 1,
    })
}

/// A process as capture announces it.
pub fn process(pid: u32, rank: Option<i32>) -> Record {
    Record::Process(ProcessSeen { pid, start_ns: T0, comm: "python".to_owned(), rank, ..ProcessSeen::default() })
}

/// A store of `segments` segments of collectives with `rows` rows each, as a host has it after a
/// day and more, only with fewer rows: ranks 0 to 7 in turn, `seq` counts. The segments are so far
/// apart in time that they are not joined.
pub fn store_of_segments(path: &Path, segments: u64, rows: u64) -> Store {
    // These rows are in the past of the clock: no retention by age.
    let config = StoreConfig { max_age: Duration::from_secs(100 * 365 * 86_400), ..StoreConfig::default() };
    Store::open(path, config.clone()).unwrap().close();
    let conn = connect(path);
    conn.execute_batch("BEGIN").unwrap();
    let mut appender = Appender::open(&conn, "collectives", "ts_ns").unwrap();
    for segment in 0..segments {
        let mut columns = appender.rows(0);
        for row in 0..rows {
            let seq = segment * rows + row;
            let ts_ns = T0 + i64::try_from(segment).unwrap() * (MOST_SPAN_NS + 1) + i64::try_from(row).unwrap() * 1_000;
            let rank = Some(i32::try_from(seq % 8).unwrap());
            let collective = Collective { ts_ns, rank, ..collective(seq) };
            assert!(rows::push(&Record::Collective(collective), &mut columns, &mut Rollups::default()));
        }
        appender.write(&conn, &columns, 0).unwrap();
        appender.committed(columns.rows());
    }
    conn.execute_batch("COMMIT").unwrap();
    drop(conn);
    Store::open(path, config).unwrap()
}

/// One integer.
pub fn int(conn: &Connection, sql: &str) -> i64 {
    conn.query_row(sql, [], |r| r.get(0)).unwrap_or_else(|e| panic!("{sql}: {e}"))
}

/// A connection of a test's own, for reading and for damaging the file.
pub fn connect(path: &Path) -> Connection {
    let conn = Connection::open(path).unwrap();
    super::columnar::register(&conn).unwrap();
    conn
}

/// Asserts that SQLite finds the file sound.
pub fn assert_sound(path: &Path) {
    let conn = connect(path);
    let verdict: String = conn.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
    assert_eq!(verdict, "ok");
}
