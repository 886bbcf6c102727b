//! Answers from columns beside SQLite's own: random rows, random questions, the same answers.

use proptest::prelude::*;
use query_planner::{Budget, NodeTask, Targets, Value};
use rusqlite::Connection;

use super::super::{Appender, Compactor, MODULE, cells, register};
use super::*;

mod joins;
mod speed;
mod summaries;
mod windows;

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

/// An empty `collectives` of these columns, as a columnar table in one database and as a plain one
/// in another.
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
        let mut rows = appender.rows(0);
        for (ts_ns, rank, bytes, func, note) in batch {
            cells!(rows, row: ts_ns = ts_ns, rank = rank, bytes = bytes, func = func, note = note);
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
    columnar.execute_batch(SETTINGS).unwrap();
    plain.execute_batch(SETTINGS).unwrap();
    query_planner::harden(&mut columnar).unwrap();
    query_planner::harden(&mut plain).unwrap();
    (columnar, plain)
}

/// A table that is no columns, in which not everything is what its column says.
const SETTINGS: &str = "CREATE TABLE settings (rank INTEGER, func TEXT, weight REAL, label TEXT COLLATE NOCASE, any, odd INTEGER); \
     INSERT INTO settings VALUES (0, 'send', 0.5, 'X', 1, 1), (1, 'recv', 1.5, 'y', 'a', 2), (2, 'send', NULL, 'x', 2.5, 'text'), \
     (2, 'all_reduce', 100, NULL, NULL, 7), (NULL, 'other', -1e300, 'Y', x'00', NULL), (3, NULL, 9e18, '', 3, 2.5)";

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
            "bytes * rank > 100 OR func = 'send'",
            "NOT (rank = 1 OR bytes < 50) AND (ts_ns % 3 = 1 OR note IS NULL)",
            "rank + 1 BETWEEN 2 AND ts_ns % 5",
            "rank <> ts_ns % 4",
            "abs(rank - 2) IN (0, 1)",
            "coalesce(bytes, rank, 7) % 2",
            "min(rank, bytes) IS NOT max(rank, 2)",
            "CASE WHEN note = 'x' THEN rank ELSE bytes END > 1",
            "bytes + 1 > rank - bytes",
            "bytes > 1.5 * ts_ns",
            "rank * 1.0 IS rank",
            "bytes * 1.0 = 100",
            "ts_ns / (rank - 1.0) IS NULL",
            "9223372036854775807 - rank < 9223372036854775807.0 * (ts_ns % 3)",
            "NOT (rank < 0.5 + bytes / 100.0)",
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
            "CASE WHEN bytes > 100 THEN 'big' ELSE 'small' END",
            "CASE WHEN rank > 1 THEN 'b' WHEN bytes IS NULL THEN 'it''s' WHEN rank = 0 THEN 'b' END",
            "CASE rank WHEN 1 THEN 'one' WHEN 2 THEN NULL ELSE '' END",
            "coalesce(note, '-')",
            "CASE WHEN bytes > 100 OR note = 'x' THEN 2 WHEN bytes IS NULL THEN NULL ELSE rank END",
            "bytes & 6 | rank",
            "coalesce(rank, -1)",
            "strftime('%H:%M', ts_ns * 60, 'unixepoch')",
            "'r' || coalesce(rank, '-')",
            "CAST(rank AS TEXT)",
            "CASE WHEN rank > 1 THEN rank ELSE 'few' END",
            "round(bytes / 7.0, 1)",
            "substr('abcdef', rank + 1, 2)",
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
            "count(*) FILTER (WHERE rank = 1 OR bytes < 100)",
            "sum(rank) FILTER (WHERE func LIKE 's%')",
            "avg(CASE WHEN rank > 1 THEN ts_ns - rank ELSE NULL END)",
            "max(abs(bytes))",
            "total(min(rank, 2) * 3)",
            "sum(bytes > 100)",
            "count(bytes * bytes)",
            "sum(1.0 * ts_ns)",
            "avg(rank * 0.5 - ts_ns)",
            "total(ts_ns / (rank - 1.0))",
            "min(rank / 2.0)",
            "max(-(CAST(ts_ns AS REAL) * 1e-3))",
            "count(1.5 / (rank - 2))",
            "mesh_sum(2.5 * rank)",
            "sum(bytes * 1.0 * rank)",
            "sum(1.5 * rank) FILTER (WHERE bytes > 10)",
            "avg(CASE WHEN rank > 1 THEN ts_ns * 2.0 END)",
            "sum(CASE WHEN rank > 1 THEN 1.5 ELSE 0 END)",
            "count(DISTINCT rank)",
            "count(DISTINCT bytes)",
            "count(DISTINCT func)",
            "count(DISTINCT upper(note))",
            "count(DISTINCT ts_ns / 100 - 7)",
            "max(DISTINCT bytes)",
            "count(*) FILTER (WHERE bytes > rank * 20.5)",
        ],
        1..6,
    );
    // By an aggregate that is not shown, and then by the keys.
    let first = prop::sample::select(vec!["", "", "count(*) DESC, ", "max(ts_ns), ", "sum(rank) DESC, min(bytes), "]);
    (keys, calls, filter(), any::<bool>(), first).prop_map(|(keys, calls, filter, limited, first)| {
        let outputs: Vec<&str> = keys.iter().chain(&calls).copied().collect();
        let numbers: Vec<String> = (1..=keys.len()).map(|i| i.to_string()).collect();
        let numbers = numbers.join(", ");
        let by = if keys.is_empty() { String::new() } else { format!("GROUP BY {numbers} ORDER BY {first}{numbers}") };
        let limit = if limited && !keys.is_empty() { "LIMIT 3 OFFSET 1" } else { "" };
        format!("SELECT {} FROM collectives {filter} {by} {limit}", outputs.join(", "))
    })
}

fn listed() -> impl Strategy<Value = String> {
    let columns = prop::sample::subsequence(
        vec![
            "ts_ns",
            "rank",
            "bytes",
            "func",
            "note",
            "'c'",
            "*",
            "bytes % 10 - rank",
            "iif(bytes > rank, ts_ns, NULL)",
            "bytes * 0.5",
            "rank / 2.0 > bytes",
            "CASE WHEN rank > 1 THEN 1.5 * ts_ns END",
        ],
        1..5,
    );
    let order = prop::sample::select(vec![
        "ts_ns, rank, bytes, func, note",
        "rank * (ts_ns % 10) DESC, ts_ns, rank, bytes, func, note",
        "abs(rank - 2), bytes IS NULL, ts_ns, rank, bytes, func, note",
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

/// Rows in no order, and rows that are all different.
fn unordered() -> impl Strategy<Value = String> {
    let columns = prop::sample::subsequence(
        vec![
            "rank",
            "func",
            "note",
            "bytes",
            "ts_ns % 7",
            "'c'",
            "bytes - rank",
            "upper(note)",
            "bytes > 50",
            "NULL",
            "CASE WHEN rank > ts_ns % 3 THEN 'more' ELSE func END",
            "CASE WHEN rank > ts_ns % 3 THEN 'more' ELSE 'less' END",
            "bytes / 2.0",
            "'t' || (ts_ns / 100)",
        ],
        1..4,
    );
    (columns, filter(), any::<bool>()).prop_map(|(columns, filter, distinct)| {
        format!("SELECT {} {} FROM collectives {filter}", if distinct { "DISTINCT" } else { "" }, columns.join(", "))
    })
}

/// SQLite adds what leaves 64 bits as doubles, by the order of rows; ours is the rounded exact sum.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Real(a), Value::Real(b)) => a == b || (a - b).abs() <= 1e-12 * a.abs().max(b.abs()),
        _ => a == b,
    }
}

/// Whether the question itself has an ORDER BY, not a window or subquery in it.
fn is_ordered(sql: &str) -> bool {
    let depth = |before: &str| before.matches('(').count() - before.matches(')').count();
    sql.match_indices("ORDER BY").any(|(at, _)| depth(&sql[..at]) == 0)
}

fn fold_case(rows: &mut [Vec<Value>]) {
    for value in rows.iter_mut().flatten() {
        if let Value::Text(text) = value {
            text.make_ascii_lowercase();
        }
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
        (Ok((mut ours, _)), Ok((mut expected, _))) => {
            if sql.starts_with("SELECT DISTINCT b.note") {
                // Which of two labels that differ in case stands for both is not determined.
                fold_case(&mut ours);
                fold_case(&mut expected);
            }
            if !is_ordered(sql) {
                ours.sort_by_key(|row| format!("{row:?}"));
                expected.sort_by_key(|row| format!("{row:?}"));
            }
            prop_assert_eq!(ours.len(), expected.len(), "{}", sql);
            let all = ours.iter().flatten().zip(expected.iter().flatten());
            for (our, expected) in all {
                prop_assert!(is_same(our, expected), "{}: {:?} for {:?}", sql, our, expected);
            }
        }
        // SQLite's sum fails by the order of its rows, though in another it would not leave 64
        // bits.
        (Ok(_), Err(why)) if why == "integer overflow" => {}
        (ours, expected) => prop_assert_eq!(ours.map(|_| ()), expected.map(|_| ()), "{}", sql),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 384, ..ProptestConfig::default() })]

    #[test]
    fn aggregates_are_sqlites(batches in prop::collection::vec(prop::collection::vec(row(), 0..80), 0..5), sql in grouped()) {
        same(&batches, &sql, false)?;
    }

    #[test]
    fn first_rows_are_sqlites(batches in prop::collection::vec(prop::collection::vec(row(), 0..80), 0..5), sql in listed()) {
        same(&batches, &sql, false)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 384, ..ProptestConfig::default() })]

    #[test]
    fn unordered_rows_are_sqlites(batches in prop::collection::vec(prop::collection::vec(row(), 0..80), 0..5), sql in unordered()) {
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
        "SELECT DISTINCT rank, func FROM collectives ORDER BY 1, 2",
        "SELECT DISTINCT ts_ns / 100 - rank FROM collectives WHERE bytes * rank > 5000 ORDER BY 1",
        "SELECT rank, func, bytes FROM collectives ORDER BY bytes * ts_ns DESC, ts_ns, rank LIMIT 20",
        "SELECT ts_ns - rank * 7, func FROM collectives WHERE bytes > 90000 OR rank = ts_ns % 5 ORDER BY ts_ns % 1000, ts_ns, rank, func LIMIT 300",
        "SELECT ts_ns % 100, count(*), sum(CASE WHEN rank < 3 THEN bytes END), count(*) FILTER (WHERE bytes > 500) FROM collectives GROUP BY 1 ORDER BY 1",
        "SELECT strftime('%M:%S', ts_ns, 'unixepoch') AS second, count(*), sum(bytes), count(DISTINCT bytes) FROM collectives GROUP BY 1 ORDER BY 1",
        "SELECT rank, count(DISTINCT bytes), count(DISTINCT ts_ns), count(DISTINCT func) FROM collectives GROUP BY rank ORDER BY rank",
        "SELECT func, count(*), max(bytes - rank) FROM collectives WHERE func LIKE '%e%' AND bytes > 99990 AND ts_ns > 30 GROUP BY 1 ORDER BY 1",
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
            if !is_ordered(&sql) {
                ours.sort_by(|a, b| format!("{a:?}").cmp(&format!("{b:?}")));
                expected.sort_by(|a, b| format!("{a:?}").cmp(&format!("{b:?}")));
            }
            prop_assert_eq!(ours, expected, "{}", sql);
            prop_assert!(!notes.is_empty(), "{}", sql);
        }
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

#[test]
fn of_a_large_segment_only_blocks_count_that_conditions_leave() {
    let rows: Vec<Row> = (0..3000).map(|i| (i, None, None, "send", None)).collect();
    let (columnar, _) = stores(&[rows]);
    let executor = ColumnExecutor::new(&|| false, 2000);
    let mut emit = |_: Batch| Ok(());
    let mut ask = |condition: &str| {
        let fragment = fragment(&format!("SELECT count(*) FROM collectives WHERE ts_ns {condition}"), 1);
        executor.execute(&columnar, &fragment, "n", 0, &mut emit)
    };
    assert!(ask("BETWEEN 1100 AND 1200").is_ok_and(|answered| answered.is_some()));
    let error = ask("BETWEEN 100 AND 2900").unwrap_err();
    assert!(error.to_string().contains("on the spot"), "{error}");
}
