//! `robust_z() OVER`: over several nodes it says what its definition, written out in plain SQL,
//! says on the union.

use super::mesh::Mesh;
use crate::{Strategy, Value};

const SCHEMA: &str = "CREATE TABLE t(id INTEGER, k TEXT, x)";

fn mesh() -> Mesh {
    Mesh::new(
        SCHEMA,
        &[],
        &[
            "INSERT INTO t VALUES (1,'a',10),(2,'a',11.5),(3,'b',5),(4,'c',1)",
            "INSERT INTO t VALUES (5,'a',12),(6,'a',300),(7,'b',5),(8,'c',2),(9,'b',5)",
            "",
            "INSERT INTO t VALUES (10,'a',9),(11,'b',50),(12,'a',NULL),(13,'b',5),(14,'a',12)",
        ],
    )
}

/// The definition, of rows of the same k.
const BY_HAND: &str = "WITH o AS (SELECT t.id, t.k, t.x + 0.0 AS x, \
         (SELECT median(b.x) FROM t b WHERE b.k = t.k AND b.id <> t.id) AS mid, \
         (SELECT mad(b.x) FROM t b WHERE b.k = t.k AND b.id <> t.id) AS mad, \
         (SELECT count(b.x) FROM t b WHERE b.k = t.k AND b.id <> t.id) AS n FROM t), \
     s AS (SELECT o.*, (SELECT avg(abs(b.x - o.mid)) FROM t b WHERE b.k = o.k AND b.id <> o.id) AS mean FROM o) \
     SELECT id, CASE WHEN x IS NULL OR n < 2 THEN NULL WHEN x = mid THEN 0.0 \
         WHEN max(CASE WHEN mad > 0 THEN 1.4826 * mad ELSE 1.253314 * mean END, 0.02 * abs(mid), {floor}) = 0 \
             THEN 9999.0 * sign(x - mid) \
         ELSE max(-9999.0, min(9999.0, (x - mid) / max(CASE WHEN mad > 0 THEN 1.4826 * mad ELSE 1.253314 * mean END, \
             0.02 * abs(mid), {floor}))) END FROM s ORDER BY id";

fn same(mesh: &mut Mesh, sql: &str, floor: &str) {
    let got = mesh.ask(sql).unwrap_or_else(|error| panic!("{sql}\n{error}")).rows;
    let want = mesh.oracle(&BY_HAND.replace("{floor}", floor)).expect("the definition runs");
    assert_eq!(got.len(), want.len(), "{sql}");
    for (got, want) in got.iter().zip(&want) {
        assert_eq!(got[0], want[0]);
        match (&got[1], &want[1]) {
            (Value::Real(got), Value::Real(want)) => assert!((got - want).abs() < 1e-9, "{sql}: {got} {want}"),
            (got, want) => assert_eq!(got, want, "{sql}"),
        }
    }
}

#[test]
fn it_is_its_definition_on_the_union() {
    let mut mesh = mesh();
    same(&mut mesh, "SELECT id, robust_z(x) OVER (PARTITION BY k) FROM t ORDER BY id", "0");
    same(&mut mesh, "SELECT id, robust_z(x, 4) OVER w AS z FROM t WINDOW w AS (PARTITION BY k) ORDER BY id", "4");
    let nested = "WITH z AS (SELECT id, robust_z(x) OVER (PARTITION BY k) AS z FROM t) SELECT id, z FROM z ORDER BY id";
    same(&mut mesh, nested, "0");
    let sum = "SELECT id, (SELECT z FROM (SELECT id, ROBUST_Z(x) OVER (PARTITION BY k) z FROM t) b WHERE b.id = t.id) \
               FROM t ORDER BY 1";
    same(&mut mesh, sum, "0");
}

#[test]
fn a_moving_frame_lets_rows_go() {
    let mut mesh = mesh();
    let sql =
        "SELECT id, robust_z(id * id) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM t ORDER BY id";
    let rows = mesh.ask(sql).expect("an answer").rows;
    assert_eq!((&rows[0][1], &rows[1][1]), (&Value::Null, &Value::Null), "fewer than two others");
    // Row 3: 9 against 1 and 4: median 2.5, MAD 1.5.
    assert_eq!(rows[2][1], Value::Real(6.5 / (1.4826 * 1.5)));
    // Row 5: 25 against 9 and 16.
    assert_eq!(rows[4][1], Value::Real(12.5 / (1.4826 * 3.5)));
}

#[test]
fn results_keep_their_names_and_plans_their_strategy() {
    let mut mesh = mesh();
    let sql = "SELECT robust_z(x) OVER (PARTITION BY k), k FROM t";
    assert_eq!(mesh.plan(sql).expect("a plan").strategy, Strategy::Fetch);
    let names: Vec<String> = mesh.ask(sql).expect("an answer").columns.into_iter().map(|column| column.name).collect();
    assert_eq!(names, ["robust_z(x) OVER (PARTITION BY k)", "k"]);
    // Partitioned by node, each node computes its own.
    let by_node = "SELECT node, robust_z(x) OVER (PARTITION BY node) FROM t WHERE k = 'a'";
    assert_eq!(mesh.plan(by_node).expect("a plan").strategy, Strategy::Rows);
    assert_eq!(mesh.ask(by_node).expect("an answer").rows.len(), 7);
    // Over grouped rows: the aggregation is two-phase, the window at the coordinator.
    let grouped = "SELECT k, robust_z(a) OVER () AS z FROM (SELECT k, avg(x) AS a FROM t GROUP BY k) ORDER BY k";
    let rows = mesh.ask(grouped).expect("an answer").rows;
    assert_eq!(rows.len(), 3);
    assert!(matches!(rows[0][1], Value::Real(z) if z > 3.0), "{rows:?}");
}

#[test]
fn named_windows_of_another_level_with_exclude_do_not_concern_it() {
    let mut mesh = mesh();
    // Before it, around it and inside it.
    let other = "SELECT sum(x) OVER w AS s FROM t WINDOW w AS (ORDER BY id ROWS 1 PRECEDING EXCLUDE CURRENT ROW)";
    for sql in [
        format!("SELECT z FROM (SELECT robust_z(x) OVER (PARTITION BY k) AS z FROM t) UNION ALL {other}"),
        "SELECT sum(z) OVER w FROM (SELECT id, robust_z(x) OVER (PARTITION BY k) AS z FROM t) \
         WINDOW w AS (ORDER BY id ROWS 1 PRECEDING EXCLUDE CURRENT ROW)"
            .to_owned(),
        format!("SELECT robust_z(s) OVER () FROM ({other})"),
    ] {
        mesh.ask(&sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let own = "SELECT robust_z(x) OVER w FROM t WINDOW w AS (ORDER BY id ROWS 1 PRECEDING EXCLUDE CURRENT ROW)";
    let error = mesh.ask(own).expect_err(own);
    assert!(error.contains("cannot be used with EXCLUDE"), "{error}");
}

#[test]
fn what_it_cannot_do_is_refused() {
    let mut mesh = mesh();
    for (sql, why) in [
        ("SELECT robust_z(x) FROM t", "robust_z() is a window function: write robust_z(x) OVER"),
        ("SELECT robust_z(x) FILTER (WHERE x > 1) OVER () FROM t", "cannot be used with FILTER"),
        (
            "SELECT robust_z(x) OVER (ORDER BY x ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW) FROM t",
            "cannot be used with EXCLUDE",
        ),
        ("SELECT robust_z(k) OVER () FROM t", "input to robust_z() is not numeric"),
        ("SELECT robust_z(x, 1, 2) OVER () FROM t", "wrong number of arguments"),
    ] {
        let error = mesh.ask(sql).expect_err(sql);
        assert!(error.contains(why), "{sql}: {error}");
    }
}
