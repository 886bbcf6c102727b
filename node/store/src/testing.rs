//! Records for the store's tests.

use std::path::Path;
use std::time::Duration;

use record::{Collective, Library, NetEvent, OffCpu, ProcessSeen, Record};
use rusqlite::Connection;

/// An instant in the past of any clock these tests run on: 2026-01-01 UTC.
pub(crate) const T0: i64 = 1_767_225_600_000_000_000;

/// Long enough for any commit on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The i-th collective: one every millisecond, `seq` is i.
pub(crate) fn collective(i: u64) -> Collective {
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
        count: Some(1024),
        datatype: Some("float32"),
        bytes: Some(4096),
        reduce_op: Some("sum"),
        root: None,
        stream: Some(7),
        library: Library::Nccl,
        tier: 0,
        ret: Some(0),
        cgroup_id: 1,
        job_id: Some("42".to_owned()),
        captured: None,
    }
}

pub(crate) fn offcpu(ts_ns: i64, duration_ns: i64) -> Record {
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

pub(crate) fn retransmit(ts_ns: i64) -> Record {
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

pub(crate) fn process(pid: u32, rank: Option<i32>) -> Record {
    Record::Process(ProcessSeen { pid, start_ns: T0, comm: "python".to_owned(), rank, ..ProcessSeen::default() })
}

/// One integer.
pub(crate) fn int(conn: &Connection, sql: &str) -> i64 {
    conn.query_row(sql, [], |r| r.get(0)).unwrap_or_else(|e| panic!("{sql}: {e}"))
}

/// A connection of a test's own, for reading and for mischief.
pub(crate) fn connect(path: &Path) -> Connection {
    let conn = Connection::open(path).unwrap();
    super::columnar::register(&conn).unwrap();
    conn
}

/// The file is whole.
pub(crate) fn assert_whole(path: &Path) {
    let conn = connect(path);
    let verdict: String = conn.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
    assert_eq!(verdict, "ok");
}
