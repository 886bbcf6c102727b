//! Columnar tables beside plain ones: the same rows, the same answers.

use proptest::prelude::*;
use rusqlite::Connection;
use rusqlite::types::Value;

use super::segment::{Directory, delete};
use super::*;

const DECLARED: &str = "ts_ns INTEGER NOT NULL, a INTEGER, b INTEGER NOT NULL, name TEXT, note TEXT NOT NULL";

type Row = (i64, Option<i64>, i64, Option<&'static str>, &'static str);

fn row() -> impl Strategy<Value = Row> {
    let name =
        prop_oneof![Just(None), prop::sample::select(vec!["all_reduce", "broadcast", "", "Größe"]).prop_map(Some)];
    let wide = prop_oneof![-5_i64..5, any::<i64>(), Just(i64::MAX), Just(i64::MIN)];
    (0_i64..2000, prop::option::of(0_i64..4), wide, name, prop::sample::select(vec!["x", "y"]))
}

/// A columnar table `t` in several segments and a plain table `p` with the same rows and row ids.
fn tables(batches: &[Vec<Row>], joined: bool) -> Connection {
    let conn = Connection::open_in_memory().unwrap();
    register(&conn).unwrap();
    let module = MODULE.to_str().unwrap();
    conn.execute_batch(include_str!("segments.sql")).unwrap();
    conn.execute_batch(&format!("CREATE VIRTUAL TABLE t USING {module}({DECLARED}); CREATE TABLE p ({DECLARED});"))
        .unwrap();
    let mut appender = Appender::open(&conn, "t", "ts_ns").unwrap();
    let mut compactor = Compactor::open(&conn, "t", "ts_ns").unwrap();
    for batch in batches.iter().filter(|batch| !batch.is_empty()) {
        let mut rows = appender.rows(0);
        for (ts_ns, a, b, name, note) in batch {
            cells!(rows, row: ts_ns = ts_ns, a = a, b = b, name = name, note = note);
            conn.execute("INSERT INTO p VALUES (?1,?2,?3,?4,?5)", (ts_ns, a, b, name, note)).unwrap();
        }
        let segment = appender.write(&conn, &rows, 0).unwrap();
        appender.committed(rows.rows());
        compactor.added(&segment);
        if joined {
            compactor.step(&conn).unwrap();
        }
    }
    conn
}

fn all(conn: &Connection, sql: &str) -> Vec<String> {
    let mut statement = conn.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let width = statement.column_count();
    let rows = statement.query_map([], |row| {
        (0..width).map(|at| row.get::<_, Value>(at).map(|value| format!("{value:?}"))).collect::<Result<Vec<_>, _>>()
    });
    let mut rows: Vec<String> = rows.unwrap().map(|row| row.unwrap().join("|")).collect();
    rows.sort();
    rows
}

fn condition() -> impl Strategy<Value = String> {
    let column = prop::sample::select(vec!["ts_ns", "a", "b", "name", "note", "rowid"]);
    let operator = prop::sample::select(vec!["=", "<", "<=", ">", ">=", "<>", "IS", "IS NOT"]);
    let constant = prop_oneof![
        (0_i64..2000).prop_map(|v| v.to_string()),
        (-5_i64..5).prop_map(|v| v.to_string()),
        prop::sample::select(vec![
            "NULL",
            "1.5",
            "2.0",
            "'1'",
            "'x'",
            "'all_reduce'",
            "9223372036854775807",
            "-9223372036854775808",
            "9e99",
            "x'41'"
        ])
        .prop_map(str::to_owned),
    ];
    let one =
        (column, operator, constant).prop_map(|(column, operator, constant)| format!("{column} {operator} {constant}"));
    prop::collection::vec(one, 0..3).prop_map(|all| if all.is_empty() { "1".to_owned() } else { all.join(" AND ") })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn any_condition_finds_the_same_rows(
        batches in prop::collection::vec(prop::collection::vec(row(), 0..60), 1..14),
        joined: bool,
        conditions in prop::collection::vec(condition(), 1..6),
    ) {
        let conn = tables(&batches, joined);
        for condition in conditions {
            let sql = |table: &str| format!("SELECT rowid, * FROM {table} WHERE {condition}");
            prop_assert_eq!(all(&conn, &sql("t")), all(&conn, &sql("p")), "{}", condition);
            let sql = |table: &str| format!("SELECT name, count(*), max(b), typeof(a) FROM {table} WHERE {condition} GROUP BY name, a");
            prop_assert_eq!(all(&conn, &sql("t")), all(&conn, &sql("p")), "{}", condition);
        }
        let join = |table: &str| format!(
            "SELECT x.rowid, y.rowid, y.b FROM {table} x JOIN {table} y ON x.a = y.a AND x.note = y.note WHERE x.ts_ns < 100 AND y.ts_ns < 300"
        );
        prop_assert_eq!(all(&conn, &join("t")), all(&conn, &join("p")));
        // A text against an integer, and an outer side without a match.
        let join = |table: &str| format!(
            "SELECT x.rowid, y.rowid, y.name FROM {table} x LEFT JOIN {table} y ON y.name = x.a AND y.b > x.a OR y.b = x.b AND y.ts_ns < 50"
        );
        prop_assert_eq!(all(&conn, &join("t")), all(&conn, &join("p")));
    }
}

/// A condition between two tables of a join, or on one of them.
fn link() -> impl Strategy<Value = String> {
    let own = condition().prop_map(|condition| {
        let named = |word: &str| ["ts_ns", "a", "b", "name", "note", "rowid"].contains(&word);
        let words = condition.split(' ').map(|word| if named(word) { format!("y.{word}") } else { word.to_owned() });
        words.collect::<Vec<_>>().join(" ")
    });
    let two = prop::sample::select(vec![
        "y.a = x.a",
        "y.b = x.b",
        "y.a = x.a + 1",
        "y.name = x.name",
        "y.note = x.note COLLATE NOCASE",
        "y.name = x.a",
        "y.a = x.name",
        "y.a = x.a * 1.0",
        "y.a = x.a / 2.0",
        "y.rowid = x.rowid",
        "y.rowid > x.rowid",
        "y.ts_ns >= x.ts_ns AND y.ts_ns < x.ts_ns + 50",
        "y.ts_ns BETWEEN x.ts_ns - 10 AND x.ts_ns",
        "y.b > x.b",
        "y.name IN (x.name, 'broadcast')",
        "y.a IN (SELECT z.a + 1 FROM p z WHERE z.ts_ns < 40)",
        "y.a IN (x.a, 2, NULL)",
        "y.a IN (1, 3.0, '2')",
        "y.note IN ('x', 'z')",
        "y.note > x.note",
        "y.a IS x.a",
        "(y.a = x.a OR y.b = x.b)",
    ])
    .prop_map(str::to_owned);
    prop::collection::vec(prop_oneof![3 => two, 1 => own], 1..4).prop_map(|all| all.join(" AND "))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// What is kept and indexed for the inner side of a join gives what a plain table gives.
    #[test]
    fn any_join_finds_the_same_rows(
        batches in prop::collection::vec(prop::collection::vec(row(), 0..25), 1..12),
        joined: bool,
        links in prop::collection::vec(link(), 1..5),
    ) {
        let conn = tables(&batches, joined);
        for link in links {
            for shape in [
                "SELECT x.rowid, y.rowid, y.name, y.b FROM {t} x JOIN {t} y ON {on} WHERE x.ts_ns < 900",
                "SELECT x.rowid, y.rowid, y.note FROM {t} x LEFT JOIN {t} y ON {on}",
                "SELECT x.rowid, x.a FROM {t} x WHERE EXISTS (SELECT 1 FROM {t} y WHERE {on})",
                "SELECT x.rowid, (SELECT max(y.b) FROM {t} y WHERE {on}) FROM {t} x WHERE x.ts_ns > 500",
                "SELECT x.a, count(y.rowid) FROM {t} x, (SELECT *, rowid AS rowid FROM {t}) y WHERE {on} GROUP BY x.a",
            ] {
                let sql = |table: &str| shape.replace("{t}", table).replace("{on}", &link);
                prop_assert_eq!(all(&conn, &sql("t")), all(&conn, &sql("p")), "{}", sql("t"));
            }
        }
    }
}

/// The rows of `sql` as they come.
fn in_order(conn: &Connection, sql: &str) -> Vec<Option<i64>> {
    let mut statement = conn.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.map(|row| row.unwrap_or_else(|error| panic!("{sql}: {error}"))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Rows come in order of time where that is asked for, also from within a join, and where a
    /// scan begins so often that its rows are kept.
    #[test]
    fn rows_come_in_order_of_time(
        batches in prop::collection::vec(prop::collection::vec(row(), 0..60), 1..12),
        joined: bool,
        conditions in prop::collection::vec(condition(), 1..4),
        links in prop::collection::vec(link(), 1..4),
    ) {
        let conn = tables(&batches, joined);
        let mut shapes = vec![
            "SELECT x.a + 0 * (SELECT count(*) FROM {t}) FROM {t} x WHERE x.rowid < 0 ORDER BY ts_ns".to_owned(),
            "SELECT (SELECT min(y.ts_ns) FROM {t} y WHERE y.b = x.b AND y.ts_ns > x.ts_ns) FROM {t} x ORDER BY x.ts_ns, x.rowid".to_owned(),
        ];
        for condition in &conditions {
            for order in ["ORDER BY ts_ns", "ORDER BY ts_ns DESC", "ORDER BY ts_ns DESC LIMIT 3 OFFSET 1", "ORDER BY ts_ns LIMIT 9"] {
                shapes.push(format!("SELECT ts_ns FROM {{t}} WHERE {condition} {order}"));
            }
            shapes.push(format!("SELECT min(ts_ns) FROM {{t}} WHERE {condition}"));
            shapes.push(format!("SELECT max(ts_ns) FROM {{t}} WHERE {condition}"));
        }
        for link in &links {
            for (end, order) in [("min", ""), ("max", " DESC")] {
                shapes.push(format!(
                    "SELECT (SELECT {end}(y.ts_ns) FROM {{t}} y WHERE {link}) FROM {{t}} x ORDER BY x.rowid"
                ));
                shapes.push(format!(
                    "SELECT (SELECT y.ts_ns FROM {{t}} y WHERE {link} ORDER BY y.ts_ns{order} LIMIT 1 OFFSET 2) FROM {{t}} x ORDER BY x.rowid"
                ));
            }
        }
        for shape in shapes {
            let sql = |table: &str| shape.replace("{t}", table);
            prop_assert_eq!(in_order(&conn, &sql("t")), in_order(&conn, &sql("p")), "{}", sql("t"));
        }
    }
}

/// Whoever asks for the next row after a time looks at few rows, and not at all that follow.
#[test]
fn the_next_row_after_a_time_is_found_in_its_block() {
    let rows = |segment: i64| -> Vec<Row> {
        (0..4000).map(|row| (segment * 4000 + row, Some(row % 4), segment * 4000 + row, None, "x")).collect()
    };
    let conn = tables(&(0..8).map(rows).collect::<Vec<_>>(), false);
    let plan = |sql: &str| -> String {
        let explain = format!("EXPLAIN QUERY PLAN {sql}");
        conn.query_row(&explain, [], |row| row.get(3)).unwrap_or_else(|error| panic!("{sql}: {error}"))
    };
    for sql in [
        "SELECT min(ts_ns) FROM t WHERE a = 3 AND ts_ns >= 20000",
        "SELECT ts_ns FROM t WHERE ts_ns >= 20000 AND a = 3 ORDER BY ts_ns LIMIT 1",
    ] {
        assert!(plan(sql).ends_with("|a"), "{}", plan(sql));
        assert_eq!(crate::testing::int(&conn, sql), 20_003);
    }
    let latest = "SELECT ts_ns FROM t WHERE ts_ns < 20000 AND a = 3 ORDER BY ts_ns DESC LIMIT 1";
    assert!(plan(latest).ends_with("|d"), "{}", plan(latest));
    assert_eq!(crate::testing::int(&conn, latest), 19_999);
    let each = "SELECT count(*) FROM (SELECT x.b, (SELECT min(y.ts_ns) FROM t y WHERE y.a = x.a AND y.ts_ns > x.ts_ns) AS next \
                FROM t x WHERE x.ts_ns < 2000) WHERE next = b + 4";
    assert_eq!(crate::testing::int(&conn, each), 2000);
}

/// On a store of hundreds of segments a join reads each of them once or twice, and not once for
/// each outer row.
#[test]
fn the_inner_side_of_a_join_is_looked_up() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let store = crate::testing::store_of_segments(&dir.path().join("s.db"), 300, 40);
    let mut conn = store.reader().unwrap();
    let thousands = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&thousands);
    conn.progress_handler(
        1000,
        Some(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            false
        }),
    )
    .unwrap();
    let on = "b.comm_hash = a.comm_hash AND b.func = a.func";
    for (sql, expected) in [
        (format!("SELECT count(*) FROM collectives a JOIN collectives b ON {on} AND b.seq = a.seq + 1"), 11_999),
        (
            format!(
                "SELECT count(*) FROM collectives a WHERE EXISTS (SELECT 1 FROM collectives b WHERE {on} AND b.seq = a.seq + 9 AND b.rank <> a.rank)"
            ),
            11_991,
        ),
        (
            format!(
                "SELECT count(*) FROM collectives a JOIN collectives b ON {on} AND b.ts_ns > a.ts_ns AND b.ts_ns <= a.ts_ns + 2000"
            ),
            300 * (38 * 2 + 1),
        ),
        (
            "SELECT count(*) FROM collectives WHERE rank IN (1, 2, 3) AND func IN ('all_reduce', 'send')".to_owned(),
            4_500,
        ),
    ] {
        thousands.store(0, Ordering::Relaxed);
        assert_eq!(crate::testing::int(&conn, &sql), expected, "{sql}");
        // About 15 steps an outer row, and as many a segment's column.
        let steps = thousands.load(Ordering::Relaxed);
        assert!(steps < 700, "{steps} thousand steps: {sql}");
    }
}

#[test]
fn small_segments_become_few() {
    let rows: Vec<Vec<Row>> = (0..200).map(|i| vec![(i, None, i, Some("x"), "y"); 20]).collect();
    let conn = tables(&rows, true);
    let segments = Directory::all(&conn, "t").unwrap().segments;
    assert!(segments.len() < 24, "{}", segments.len());
    assert_eq!(segments.iter().map(|segment| segment.rows).sum::<usize>(), 4000);
    assert_eq!(all(&conn, "SELECT rowid, * FROM t"), all(&conn, "SELECT rowid, * FROM p"));
}

#[test]
fn a_column_that_came_later_is_null_before() {
    let conn = tables(&[vec![(5, Some(1), 2, None, "x")]], false);
    let module = MODULE.to_str().unwrap();
    conn.execute_batch(&format!(
        "DROP TABLE t; CREATE VIRTUAL TABLE t USING {module}({DECLARED}, fresh TEXT, more INTEGER);"
    ))
    .unwrap();
    assert_eq!(all(&conn, "SELECT ts_ns, fresh, more FROM t WHERE more IS NULL"), ["Integer(5)|Null|Null"]);
    assert_eq!(all(&conn, "SELECT ts_ns FROM t WHERE more = 1"), Vec::<String>::new());
}

#[test]
fn damage_is_an_error_that_names_the_segment() {
    let conn = tables(&[vec![(5, Some(1), 2, None, "x"), (6, Some(7), 3, None, "y")]], false);
    conn.execute_batch("UPDATE segment_columns SET data = zeroblob(length(data)) WHERE id % 256 = 1").unwrap();
    let count = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0));
    assert_eq!(count("SELECT count(*) FROM t WHERE ts_ns = 6").unwrap(), 1);
    let error = count("SELECT sum(a) FROM t").unwrap_err().to_string();
    assert!(error.contains("segment 1 of t is damaged"), "{error}");
    conn.execute_batch("DELETE FROM segment_columns").unwrap();
    let error = count("SELECT sum(a) FROM t").unwrap_err().to_string();
    assert!(error.contains("missing"), "{error}");
    delete(&conn, 1).unwrap();
    assert_eq!(count("SELECT count(*) FROM t").unwrap(), 0);
    conn.execute_batch("INSERT INTO segments VALUES (9, 't', 1, 1, 1, 1, x'02')").unwrap();
    let error = count("SELECT count(*) FROM t").unwrap_err().to_string();
    assert!(error.contains("newer"), "{error}");
}

fn first_segment(conn: &Connection) -> i64 {
    let sql = "SELECT id FROM segments WHERE table_name = 'collectives' ORDER BY first_rowid LIMIT 1";
    conn.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// The list of segments that a reader keeps follows what is committed, also across its own
/// transactions, and is cut to the time that is asked for.
#[test]
fn the_kept_list_of_segments_is_that_of_the_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    crate::testing::store_of_segments(&path, 7, 3).close();
    let writer = crate::testing::connect(&path);
    // (With something in the log the file is not opened as one that nobody writes.)
    delete(&writer, first_segment(&writer)).unwrap();
    let reader = crate::ServedDb::open(&path, Vec::new()).unwrap().reader().unwrap();
    let ids = |conn: &Connection, times: (i64, i64)| -> Vec<i64> {
        Directory::load(conn, "collectives", times).unwrap().segments.iter().map(Segment::id).collect()
    };
    let known = |conn: &Connection, (first, last): (i64, i64)| -> Vec<i64> {
        let sql = "SELECT id FROM segments WHERE table_name = 'collectives' AND last_ns >= ?1 AND first_ns <= ?2 ORDER BY first_rowid";
        let mut statement = conn.prepare(sql).unwrap();
        statement.query_map([first, last], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let all = (i64::MIN, i64::MAX);
    for left in (1..=6).rev() {
        reader.execute_batch("BEGIN").unwrap();
        let ids_left = known(&reader, all);
        assert_eq!(ids_left.len(), left);
        let since = crate::testing::T0 + MOST_SPAN_NS * 4;
        for look in 0..8 {
            assert_eq!(ids(&reader, all), ids_left, "look {look}");
            assert_eq!(ids(&reader, (since, i64::MAX)), known(&reader, (since, i64::MAX)), "look {look}");
        }
        // What is committed meanwhile is not this transaction's.
        delete(&writer, ids_left[0]).unwrap();
        for segment in Directory::load(&reader, "collectives", all).unwrap().segments {
            assert_eq!(segment.decoded(&reader, "seq").unwrap().rows(), 3);
        }
        assert_eq!(ids(&reader, all), ids_left);
        reader.execute_batch("COMMIT").unwrap();
    }
    assert_eq!(ids(&reader, all), []);
}
