//! Times on the coordinator's clock, and views that need them: as plain SQL they keep the union
//! contract like any question.

use super::mesh::Mesh;
use crate::{Clocks, NodeClock, Value, View, align, needs_clocks};

const SCHEMA: &str = "CREATE TABLE t(id INTEGER, ts_ns INTEGER); CREATE TABLE u(id INTEGER, x)";
const VIEWS: &[View] = &[View {
    name: "firsts",
    sql: "SELECT id, at - min(at) OVER (PARTITION BY id) AS late, node FROM (SELECT id, node, cluster_ns(ts_ns) AS at \
          FROM t WHERE :in_span OR ts_ns >= :since - :slack AND ts_ns < :until + :slack) \
          WHERE :in_span OR at >= :since AND at < :until",
}];

fn clocks() -> Clocks {
    let steady = |offset_ns, bound_ns| NodeClock { offset_ns, bound_ns, ..NodeClock::default() };
    let drifting = NodeClock { at_ns: 1_000, drift_ppb: 100_000_000, drift_bound_ppb: 500_000_000, ..steady(-500, 20) };
    [("n0".to_owned(), steady(0, 0)), ("n1".to_owned(), steady(1_000, 10)), ("n2".to_owned(), drifting)].into()
}

fn mesh() -> Mesh {
    Mesh::new(
        SCHEMA,
        &[],
        &[
            "INSERT INTO t VALUES (1, 100), (2, 200); INSERT INTO u VALUES (1, 'a')",
            "INSERT INTO t VALUES (1, 1150), (2, 1190); INSERT INTO u VALUES (2, 'b')",
            "INSERT INTO t VALUES (3, 500), (4, NULL)",
            "INSERT INTO t VALUES (5, 100)",
        ],
    )
}

fn ask(mesh: &mut Mesh, sql: &str) -> Vec<Vec<Value>> {
    let plain = align(sql, &mesh.catalog, &clocks(), VIEWS).expect(sql).expect("something to write out");
    mesh.ask(&plain).unwrap_or_else(|error| panic!("{sql}\n{plain}\n{error}")).rows
}

fn numbers(rows: Vec<Vec<Value>>) -> Vec<Vec<Option<i64>>> {
    let number = |value: Value| match value {
        Value::Integer(i) => Some(i),
        Value::Null => None,
        other => panic!("{other:?}"),
    };
    rows.into_iter().map(|row| row.into_iter().map(number).collect()).collect()
}

#[test]
fn each_nodes_times_are_on_the_askers_clock() {
    let mut mesh = mesh();
    let rows = numbers(ask(&mut mesh, "SELECT id, cluster_ns(ts_ns), clock_bound_ns() FROM t ORDER BY id, 2"));
    let n2 = [Some(3), Some(1_000), Some(20)];
    let want: [&[Option<i64>]; 7] = [
        &[Some(1), Some(100), Some(0)],
        &[Some(1), Some(150), Some(10)],
        &[Some(2), Some(190), Some(10)],
        &[Some(2), Some(200), Some(0)],
        &n2,
        &[Some(4), None, Some(20)],
        &[Some(5), None, None],
    ];
    assert_eq!(rows, want, "the clock of n3 is not known");
    // Grouped at the nodes, filtered, joined, aliased, nested.
    let sum = "SELECT node, max(cluster_ns(ts_ns)) FROM t WHERE cluster_ns(ts_ns) < 195 GROUP BY node ORDER BY node";
    let rows = ask(&mut mesh, sum);
    assert_eq!(rows.iter().map(|row| row[1].clone()).collect::<Vec<_>>(), [Value::Integer(100), Value::Integer(190)]);
    for joined in [
        "SELECT cluster_ns(ts_ns) FROM t JOIN u ON t.id = u.id ORDER BY 1",
        "SELECT cluster_ns(b.ts_ns) FROM u a, t AS b WHERE a.id = b.id ORDER BY cluster_ns(b.ts_ns)",
        "SELECT (SELECT cluster_ns(t.ts_ns)) FROM t JOIN u USING (id) ORDER BY 1",
        "WITH s AS (SELECT ts_ns, node, id FROM t) SELECT cluster_ns(s.ts_ns) FROM s JOIN u ON s.id = u.id ORDER BY 1",
    ] {
        let rows = numbers(ask(&mut mesh, joined));
        assert_eq!(rows, [[Some(100)], [Some(150)], [Some(190)], [Some(200)]], "{joined}");
    }
    let drifted =
        numbers(ask(&mut mesh, "SELECT cluster_ns(ts_ns + 1000), clock_bound_ns(ts_ns + 1000) FROM t WHERE id = 3"));
    assert_eq!(drifted, [[Some(1_900), Some(470)]], "100 ns slower, and 900 ns at a half more bound");
}

#[test]
fn a_view_is_asked_for_all_or_for_a_span() {
    let mut mesh = mesh();
    let whole = numbers(ask(&mut mesh, "SELECT id, late FROM firsts WHERE late IS NOT NULL ORDER BY id, late"));
    assert_eq!(
        whole,
        [[Some(1), Some(0)], [Some(1), Some(50)], [Some(2), Some(0)], [Some(2), Some(10)], [Some(3), Some(0)]]
    );
    let span = numbers(ask(&mut mesh, "SELECT f.id, max(f.late) FROM firsts(120, 195) f GROUP BY f.id ORDER BY f.id"));
    assert_eq!(span, [[Some(1), Some(0)], [Some(2), Some(0)]]);
}

#[test]
fn names_stay_and_what_is_ambiguous_is_refused() {
    let mut mesh = mesh();
    let sql = "SELECT cluster_ns(ts_ns), cluster_ns(ts_ns) AS t2 FROM t";
    let plain = align(sql, &mesh.catalog, &clocks(), VIEWS).unwrap().unwrap();
    let names: Vec<String> = mesh.ask(&plain).unwrap().columns.into_iter().map(|column| column.name).collect();
    assert_eq!(names, ["cluster_ns(ts_ns)", "t2"]);
    for (sql, why) in [
        ("SELECT cluster_ns(1) FROM t, u", "say whose time that is"),
        ("SELECT cluster_ns() FROM t", "takes one time"),
        ("SELECT * FROM firsts(1)", "write firsts, or firsts(since_ns, until_ns)"),
    ] {
        let error = align(sql, &mesh.catalog, &clocks(), VIEWS).expect_err(sql).to_string();
        assert!(error.contains(why), "{sql}: {error}");
    }
    for plain in ["SELECT * FROM t", "WITH firsts AS (SELECT 1) SELECT * FROM firsts", "no SQL at all"] {
        assert_eq!(align(plain, &mesh.catalog, &clocks(), VIEWS), Ok(None), "{plain}");
    }
    assert!(needs_clocks("SELECT * FROM Firsts", VIEWS) && !needs_clocks("SELECT * FROM t", VIEWS));
}
