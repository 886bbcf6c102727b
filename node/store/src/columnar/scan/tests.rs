//! Answers from columns beside SQLite's own: random rows, random questions, the same answers.

use proptest::prelude::*;
use query_planner::{Budget, NodeTask, Targets, Value};
use rusqlite::Connection;

use super::super::{Appender, Compactor, MODULE, register};
use super::*;

const DECLARED: &str = "ts_ns INTEGER NOT NULL, rank INTEGER, bytes INTEGER, func TEXT NOT NULL, note TEXT";

type Row = (i64, Option<i64>, Option<i64>, &'static str, Option<&'static str>);

fn row() -> impl Strategy<Value = Row> {
    let wide = prop_oneof![
        3 => 0_i64..200,
        1 => any::<i64>(),
        2 => (any::<i64>(), 0_u32..60).prop_map(|(value, shift)| value >> shift),
    ];
    (
        0_i64..3000,
        prop::option::weighted(0.9, 0_i64..4),
        prop::option::weighted(0.95, wide),
        prop::sample::select(vec!["all_reduce", "send", "recv"]),
        prop::option::of(prop::sample::select(vec!["x", "y", ""])),
    )
}

/// An empty `collectives` of these columns, as a columnar table in one database and as a plain one in
/// another.
fn empty(declared: &str) -> (Connection, Connection) {
    let columnar = Connection::open_in_memory().unwrap();
    let plain = Connection::open_in_memory().unwrap();
    register(&columnar).unwrap();
    let module = MODULE.to_str().unwrap();
    columnar.execute_batch(include_str!("../segments.sql")).unwrap();
    columnar.execute_batch(&format!("CREATE VIRTUAL TABLE collectives USING {module}({declared});")).unwrap();
    plain.execute_batch(&format!("CREATE TABLE collectives ({declared})")).unwrap();
    (columnar, plain)
}

/// `collectives` as columns in one database and as a plain table in another.
fn stores(batches: &[Vec<Row>]) -> (Connection, Connection) {
    let (mut columnar, mut plain) = empty(DECLARED);
    let mut appender = Appender::open(&columnar, "collectives", "ts_ns").unwrap();
    let mut compactor = Compactor::open(&columnar, "collectives", "ts_ns").unwrap();
    for (i, batch) in batches.iter().enumerate().filter(|(_, batch)| !batch.is_empty()) {
        let mut rows = appender.rows();
        for (ts_ns, rank, bytes, func, note) in batch {
            rows.integer(*ts_ns).integer(*rank).integer(*bytes).text(*func).text(*note);
            plain.execute("INSERT INTO collectives VALUES (?1,?2,?3,?4,?5)", (ts_ns, rank, bytes, func, note)).unwrap();
        }
        compactor.added(&appender.write(&columnar, &rows, 0).unwrap());
        appender.committed(rows.rows());
        if i % 2 == 0 {
            compactor.step(&columnar).unwrap();
        }
    }
    columnar.execute_batch(VIEW).unwrap();
    plain.execute_batch(VIEW).unwrap();
    query_planner::harden(&mut columnar).unwrap();
    query_planner::harden(&mut plain).unwrap();
    (columnar, plain)
}

/// As `nccl_events` is made.
const VIEW: &str = "CREATE VIEW shown AS SELECT ts_ns AS timestamp_ns, bytes, upper(func) AS op, rank + 1 AS more, \
     lower(c.note) AS low, CASE WHEN rank IS NOT NULL THEN printf('%016x', rank) END AS hex_rank, rank, \
     CASE WHEN bytes IS NOT NULL THEN printf('%016x', bytes) END AS hex_bytes FROM collectives AS c \
     WHERE func IN ('all_reduce', 'send') AND c.ts_ns >= 100";

fn fragment(sql: &str, columns: usize) -> Fragment {
    Fragment {
        table: "collectives".into(),
        sql: sql.into(),
        columns: columns as u32,
        reads: vec![(if sql.contains("FROM shown") { "shown" } else { "collectives" }.into(), Vec::new())],
        targets: Targets::All,
        combine: None,
        partials: Vec::new(),
    }
}

/// The rows of a part as text in the order they came, and what they came from; or the error.
fn run(conn: &Connection, sql: &str, by_columns: bool) -> Result<(Vec<Vec<Value>>, Vec<String>), String> {
    let width = conn.prepare(sql).map_err(|error| error.to_string())?.column_count();
    let fragments = vec![fragment(sql, width)];
    let task =
        NodeTask { fragments, keys: Vec::new(), now_unix_ns: 5_000_000_000, budget: Budget::default(), viewer: None };
    let mut rows: Vec<Vec<Value>> = Vec::new();
    let mut emit = |_: usize, batch: Batch| {
        rows.extend(
            (0..batch.rows as usize).map(|row| batch.columns.iter().map(|column| column[row].clone()).collect()),
        );
        Ok(())
    };
    let executor = ColumnExecutor::new(&|| false, u64::MAX);
    let stats = if by_columns {
        query_planner::execute_task_with(conn, "n1", &task, &executor, &mut emit)
    } else {
        query_planner::execute_task(conn, "n1", &task, &mut emit)
    };
    let notes = stats.map_err(|error| error.to_string())?.notes;
    Ok((rows, notes))
}

fn condition() -> impl Strategy<Value = String> {
    let integer = prop::sample::select(vec!["ts_ns", "rank", "bytes"]);
    let text = prop::sample::select(vec!["func", "note"]);
    let operator = prop::sample::select(vec!["=", "<", "<=", ">", ">=", "<>", "IS", "IS NOT"]);
    let number = prop_oneof![
        (0_i64..3000).prop_map(|value| value.to_string()),
        (-3_i64..200).prop_map(|value| value.to_string()),
        prop::sample::select(vec![
            "NULL",
            "1.5",
            "2.0",
            "-0.5",
            "9e18",
            "9223372036854775807",
            "-9223372036854775808",
            "1e300",
            "10 + 5",
            "'7'",
            "9223372036854775808.0",
            "-9223372036854775808.0"
        ])
        .prop_map(str::to_owned),
    ];
    let word = prop::sample::select(vec!["'all_reduce'", "'x'", "''", "NULL", "'send'", "5", "lower('RECV')"]);
    prop_oneof![
        (integer.clone(), operator.clone(), number.clone()).prop_map(|(c, o, v)| format!("{c} {o} {v}")),
        (integer.clone(), operator.clone(), number.clone()).prop_map(|(c, o, v)| format!("{v} {o} {c}")),
        (text.clone(), operator, word.clone()).prop_map(|(c, o, v)| format!("{c} {o} {v}")),
        (integer.clone(), any::<bool>(), number.clone(), number.clone())
            .prop_map(|(c, not, a, b)| format!("{c} {}BETWEEN {a} AND {b}", if not { "NOT " } else { "" })),
        (integer, any::<bool>(), prop::collection::vec(number, 1..4)).prop_map(|(c, not, list)| format!(
            "{c} {}IN ({})",
            if not { "NOT " } else { "" },
            list.join(", ")
        )),
        (text.clone(), any::<bool>(), prop::collection::vec(word, 1..3)).prop_map(|(c, not, list)| format!(
            "{c} {}IN ({})",
            if not { "NOT " } else { "" },
            list.join(", ")
        )),
        (text, any::<bool>()).prop_map(|(c, not)| format!("{c} {}NULL", if not { "NOT" } else { "IS" })),
        prop::sample::select(vec!["1", "0", "NULL", "2 > 1", ":mesh_node = 'n1'"]).prop_map(str::to_owned),
        prop::sample::select(vec![
            "func LIKE '%E%'",
            "func NOT LIKE 'all\\_%'",
            "note GLOB '[xz]*'",
            "(func = 'send' OR note IS NULL OR func LIKE 'a%') AND length(note) > 0",
            "(func = 'send' OR func LIKE '%v')",
            "length(note)",
            "NOT func IN ('send', 'x')",
            "note || 'y' = 'xy'",
        ])
        .prop_map(str::to_owned),
    ]
}

fn filter() -> impl Strategy<Value = String> {
    prop::collection::vec(condition(), 0..4)
        .prop_map(|all| if all.is_empty() { String::new() } else { format!("WHERE {}", all.join(" AND ")) })
}

fn grouped() -> impl Strategy<Value = String> {
    let keys = prop::sample::subsequence(
        vec![
            "rank",
            "func",
            "note",
            "ts_ns / 1000",
            "bytes",
            "ts_ns % 7 + rank",
            "CASE func WHEN 'send' THEN 1 WHEN 'recv' THEN 2 ELSE 1 END",
            "upper(note)",
            "note IS NULL",
            "CAST(length(note) AS INTEGER)",
        ],
        0..4,
    );
    let calls = prop::sample::subsequence(
        vec![
            "count(*)",
            "count(bytes)",
            "count(note)",
            "sum(rank)",
            "mesh_sum(bytes)",
            "total(bytes)",
            "avg(bytes)",
            "min(bytes)",
            "max(bytes)",
            "mesh_sketch(bytes)",
            "mesh_runs(bytes)",
            "approx_quantile(bytes, 0.9)",
            "percentile(bytes, 99)",
            "median(bytes)",
            "percentile_disc(bytes, 0.25)",
            "percentile_cont(ts_ns, 0.5)",
            "max(ts_ns - rank)",
            "sum(ts_ns / rank)",
            "min(ts_ns % 10)",
            "mesh_exact_sum(rank)",
            "mesh_exact_total(bytes)",
            "mesh_exact_avg(ts_ns)",
            "sum(length(func))",
            "max(CASE note WHEN 'x' THEN 7 WHEN 'y' THEN NULL ELSE -7 END)",
            "count(substr(note, 1, 1))",
            "sum(CAST(3 AS INTEGER))",
        ],
        1..6,
    );
    (keys, calls, filter(), any::<bool>()).prop_map(|(keys, calls, filter, limited)| {
        let outputs: Vec<&str> = keys.iter().chain(&calls).copied().collect();
        let numbers: Vec<String> = (1..=keys.len()).map(|i| i.to_string()).collect();
        let by = if keys.is_empty() { String::new() } else { format!("GROUP BY {0} ORDER BY {0}", numbers.join(", ")) };
        let limit = if limited && !keys.is_empty() { "LIMIT 3 OFFSET 1" } else { "" };
        format!("SELECT {} FROM collectives {filter} {by} {limit}", outputs.join(", "))
    })
}

fn listed() -> impl Strategy<Value = String> {
    let columns = prop::sample::subsequence(vec!["ts_ns", "rank", "bytes", "func", "note", "'c'", "*"], 1..5);
    let order = prop::sample::select(vec![
        "ts_ns, rank, bytes, func, note",
        "bytes DESC, ts_ns, rank, func, note",
        "note DESC NULLS FIRST, func, bytes NULLS LAST, rank, ts_ns",
    ]);
    (columns, order, filter(), 0_i64..20, 0_i64..5).prop_map(|(columns, order, filter, count, offset)| {
        format!(
            "SELECT {} FROM collectives {filter} ORDER BY {order} LIMIT {count} OFFSET {offset}",
            columns.join(", ")
        )
    })
}

/// SQLite adds what leaves 64 bits as doubles, by the order of rows; ours is the rounded exact sum.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Real(a), Value::Real(b)) => a == b || (a - b).abs() <= 1e-12 * a.abs().max(b.abs()),
        _ => a == b,
    }
}

fn same(batches: &[Vec<Row>], sql: &str, must: bool) -> Result<(), TestCaseError> {
    let (columnar, plain) = stores(batches);
    let ours = run(&columnar, sql, true);
    let expected = run(&plain, sql, false);
    if let (Ok((_, notes)), true) = (&ours, must) {
        prop_assert!(!notes.is_empty(), "{} was left to SQLite", sql);
    }
    match (ours, expected) {
        (Ok((ours, _)), Ok((expected, _))) => {
            prop_assert_eq!(ours.len(), expected.len(), "{}", sql);
            let all = ours.iter().flatten().zip(expected.iter().flatten());
            for (our, expected) in all {
                prop_assert!(is_same(our, expected), "{}: {:?} for {:?}", sql, our, expected);
            }
        }
        (ours, expected) => prop_assert_eq!(ours.map(|_| ()), expected.map(|_| ()), "{}", sql),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn aggregates_are_sqlites(batches in prop::collection::vec(prop::collection::vec(row(), 0..80), 0..5), sql in grouped()) {
        same(&batches, &sql, false)?;
    }

    #[test]
    fn first_rows_are_sqlites(batches in prop::collection::vec(prop::collection::vec(row(), 0..80), 0..5), sql in listed()) {
        same(&batches, &sql, false)?;
    }
}

#[test]
fn large_segments_are_read_in_pieces() {
    let rows: Vec<Row> = (0..40_000_i64)
        .map(|i| {
            (
                i / 3,
                Some(i % 5),
                (i % 11 != 0).then_some(i * 7919 % 100_003),
                ["all_reduce", "send", "recv"][i as usize % 3],
                None,
            )
        })
        .collect();
    for sql in [
        "SELECT rank, func, count(*), sum(bytes), avg(bytes), min(bytes), max(bytes), approx_quantile(bytes, 0.99) \
         FROM collectives GROUP BY rank, func ORDER BY 1, 2",
        "SELECT rank, percentile_disc(bytes, 0.99), median(bytes) FROM collectives WHERE ts_ns > 1000 AND ts_ns < 9000 GROUP BY rank ORDER BY rank",
        "SELECT ts_ns, count(*) FROM collectives WHERE bytes > 90000 GROUP BY 1 ORDER BY 1",
        "SELECT * FROM collectives WHERE ts_ns >= 5000 ORDER BY bytes DESC, ts_ns LIMIT 100",
        "SELECT rank, bytes FROM collectives WHERE func = 'send' AND bytes > 99000 ORDER BY ts_ns, rank, bytes LIMIT 5000",
        "SELECT count(*) FROM collectives WHERE func <> 'send' AND rank IN (1, 3)",
    ] {
        same(std::slice::from_ref(&rows), sql, true).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn views_that_pick_and_rename_are_read_as_their_table(
        batches in prop::collection::vec(prop::collection::vec(row(), 0..60), 1..4),
        bound in 0_i64..3000,
    ) {
        let (columnar, plain) = stores(&batches);
        let questions = [
            "SELECT op, count(*), sum(rank), count(low) FROM shown GROUP BY op ORDER BY op".to_owned(),
            "SELECT hex_rank, hex_bytes, max(timestamp_ns) FROM shown GROUP BY 1, 2 ORDER BY 1, 2".to_owned(),
            format!("SELECT low, count(*) FROM shown WHERE op = 'SEND' AND timestamp_ns > {bound} GROUP BY low ORDER BY 1"),
            "SELECT count(*), min(bytes) FROM shown WHERE hex_rank IN ('0000000000000002', 'x') AND low IS NOT NULL".to_owned(),
            format!("SELECT * FROM shown WHERE op <> 'RECV' AND timestamp_ns < {bound}"),
            "SELECT op, rank, hex_bytes FROM shown ORDER BY timestamp_ns, op, rank, hex_bytes LIMIT 20".to_owned(),
            "SELECT op, node, count(*) FROM (SELECT *, CAST(:mesh_node AS TEXT) AS node FROM shown) AS shown \
             WHERE node = 'n1' GROUP BY op, node ORDER BY op".to_owned(),
        ];
        for sql in questions {
            let (mut ours, notes) = run(&columnar, &sql, true).unwrap();
            let (mut expected, _) = run(&plain, &sql, false).unwrap();
            if !sql.contains("ORDER BY") {
                ours.sort_by(|a, b| format!("{a:?}").cmp(&format!("{b:?}")));
                expected.sort_by(|a, b| format!("{a:?}").cmp(&format!("{b:?}")));
            }
            prop_assert_eq!(ours, expected, "{}", sql);
            // What a view computes otherwise is SQLite's.
            prop_assert_eq!(notes.is_empty(), sql.contains("SELECT * FROM shown WHERE"), "{}: {:?}", sql, notes);
        }
    }
}

/// Rows enough for summaries, in segments of 20,000 rows with an odd one at the end.
fn many() -> (Connection, Connection) {
    let declared = "ts_ns INTEGER NOT NULL, duration_ns INTEGER, pid INTEGER, rank INTEGER, comm_hash INTEGER, \
                    func TEXT NOT NULL, library TEXT";
    let mut columnar = Connection::open_in_memory().unwrap();
    let mut plain = Connection::open_in_memory().unwrap();
    register(&columnar).unwrap();
    let module = MODULE.to_str().unwrap();
    columnar.execute_batch(include_str!("../segments.sql")).unwrap();
    columnar.execute_batch(&format!("CREATE VIRTUAL TABLE collectives USING {module}({declared});")).unwrap();
    plain.execute_batch(&format!("CREATE TABLE collectives ({declared}); BEGIN")).unwrap();
    let mut appender = Appender::open(&columnar, "collectives", "ts_ns").unwrap();
    let mut made = 0_i64;
    for size in [20_000, 20_000, 20_000, 700] {
        let mut rows = appender.rows();
        for _ in 0..size {
            made += 1;
            let mixed = made.wrapping_mul(0x5851_F42D_4C95_7F2D).cast_unsigned();
            let (duration, rank) = ((mixed >> 40).cast_signed(), (mixed % 5) as i64);
            let rank = (rank < 4).then_some(rank);
            let comm = (mixed >> 8 & 1) as i64;
            let func = ["send", "recv", "all_reduce"][(mixed >> 12) as usize % 3];
            rows.integer(made * 10).integer(duration).integer(7).integer(rank).integer(comm).text(func).text("nccl");
            plain
                .prepare_cached("INSERT INTO collectives VALUES (?1,?2,7,?3,?4,?5,'nccl')")
                .unwrap()
                .execute((made * 10, duration, rank, comm, func))
                .unwrap();
        }
        appender.write(&columnar, &rows, 0).unwrap();
        appender.committed(rows.rows());
    }
    plain.execute_batch("COMMIT").unwrap();
    query_planner::harden(&mut columnar).unwrap();
    query_planner::harden(&mut plain).unwrap();
    (columnar, plain)
}

#[test]
fn summaries_say_what_the_rows_say() {
    let (columnar, plain) = many();
    let all = "count(*), count(duration_ns), sum(duration_ns), avg(duration_ns), min(duration_ns), max(duration_ns), \
               mesh_sum(duration_ns), mesh_sketch(duration_ns), approx_quantile(duration_ns, 0.99)";
    let mut from_rollups = 0;
    for (columns, keys) in [("", ""), ("rank, ", "rank"), ("func, rank, ", "func, rank"), ("comm_hash, ", "comm_hash")]
    {
        for filter in [
            "",
            "WHERE ts_ns >= 5 AND ts_ns < 450000",
            "WHERE ts_ns BETWEEN 123457 AND 480001 AND rank = 2",
            "WHERE func IN ('send', 'recv') AND rank IS NULL",
            "WHERE duration_ns > 9000000",
            "WHERE rank > 77",
            "WHERE ts_ns > 600005",
        ] {
            let by = if keys.is_empty() { String::new() } else { format!("GROUP BY {keys} ORDER BY {keys}") };
            let sql =
                format!("SELECT {columns}{all}, percentile_disc(duration_ns, 0.5) FROM collectives {filter} {by}");
            let (ours, notes) = run(&columnar, &sql, true).unwrap();
            let (expected, _) = run(&plain, &sql, false).unwrap();
            assert_eq!(ours, expected, "{sql}");
            from_rollups += usize::from(notes.iter().any(|note| note.contains("rollups")));
        }
    }
    // Of seven filters one is on the value itself; two leave no segment whose groups it does not
    // cut.
    assert!(from_rollups >= 4 * 4, "{from_rollups}");
    // A group that a question is not about does not cost it its answer: no duration, no summary.
    let (ours, notes) = run(&columnar, "SELECT pid, max(ts_ns) FROM collectives GROUP BY pid", true).unwrap();
    assert_eq!(ours, [[Value::Integer(7), Value::Integer(607_000)]]);
    assert!(notes[0].contains("columns of 4 segments"), "{notes:?}");
}

/// Stored sketches are merged from the column's bytes; bytes that are none are SQLite's to complain
/// about.
#[test]
fn sketches_in_a_column_are_merged_as_sqlite_does() {
    use query_planner::states::stored;
    let declared = "ts_ns INTEGER NOT NULL, rank INTEGER, note BLOB";
    let (mut columnar, mut plain) = empty(declared);
    let mut appender = Appender::open(&columnar, "collectives", "ts_ns").unwrap();
    for segment in 0..3_u16 {
        let mut rows = appender.rows();
        for row in 0..300_u16 {
            let (ts_ns, rank) = (i64::from(segment) * 1_000 + i64::from(row), i64::from(row % 4));
            // The last segment has one sketch only, rank 3 none, and some are of zeros.
            let bucket = if segment == 2 { 700 } else { 500 + row };
            let zeros = u64::from(row % 3);
            let range = (if zeros > 0 { 0 } else { 20_000 }, 50_000 + u64::from(bucket));
            let bytes = (rank < 3 || segment == 2).then(|| stored(range, zeros, &[(bucket, 3), (bucket + 9, 1)]));
            rows.integer(ts_ns).integer(rank).blob(bytes.as_deref());
            plain.execute("INSERT INTO collectives VALUES (?1,?2,?3)", (ts_ns, rank, &bytes)).unwrap();
        }
        appender.write(&columnar, &rows, 0).unwrap();
        appender.committed(rows.rows());
    }
    query_planner::harden(&mut columnar).unwrap();
    query_planner::harden(&mut plain).unwrap();
    for sql in [
        "SELECT rank, approx_quantile(note, 0.5), approx_quantile(note, 0.99), count(note), mesh_sketch(note) FROM collectives GROUP BY rank ORDER BY 1",
        "SELECT approx_quantile(note, 0.1) FROM collectives WHERE ts_ns BETWEEN 250 AND 2010",
        "SELECT approx_quantile(note, 0.1) FROM collectives WHERE rank = 3 AND ts_ns < 2000",
    ] {
        let (ours, notes) = run(&columnar, sql, true).unwrap();
        assert_eq!(ours, run(&plain, sql, false).unwrap().0, "{sql}");
        assert!(notes[0].contains("columns of"), "{sql}: {notes:?}");
    }
    for sql in [
        "SELECT note, count(*) FROM collectives GROUP BY note ORDER BY 1 LIMIT 3",
        "SELECT note FROM collectives ORDER BY ts_ns LIMIT 2",
        "SELECT max(note) FROM collectives",
    ] {
        let (ours, notes) = run(&columnar, sql, true).unwrap();
        assert_eq!((ours, notes), (run(&plain, sql, false).unwrap().0, Vec::new()), "{sql}");
    }
}

#[test]
fn what_would_cost_too_much_or_has_been_stopped_is_not_begun() {
    let rows: Vec<Row> = (0..50).map(|i| (i, None, None, "send", None)).collect();
    let (columnar, _) = stores(&[rows]);
    let fragment = fragment("SELECT count(*) FROM collectives", 1);
    let mut emit = |_: Batch| Ok(());
    for (executor, words) in
        [(ColumnExecutor::new(&|| false, 49), "on the spot"), (ColumnExecutor::new(&|| true, 50), "interrupted")]
    {
        let error = executor.execute(&columnar, &fragment, "n", 0, &mut emit).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}
