//! Counted calls and the sums over rows.

use proptest::prelude::*;
use record::{CallTally, Collective, CudaCall, Library, Record, SymbolCall};

use super::*;

#[test]
fn counted_calls_become_rollups_and_their_slow_ones_rows() {
    let (_dir, store) = fresh();
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
    let (_dir, store) = fresh();
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
