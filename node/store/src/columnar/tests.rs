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
        let mut rows = appender.rows();
        for (ts_ns, a, b, name, note) in batch {
            rows.integer(*ts_ns).integer(*a).integer(*b).text(*name).text(*note);
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

#[test]
fn small_segments_become_few() {
    let rows: Vec<Vec<Row>> = (0..200).map(|i| vec![(i, None, i, Some("x"), "y"); 20]).collect();
    let conn = tables(&rows, true);
    let segments = Directory::whole(&conn, "t").unwrap().segments;
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
