//! Parts whose results are few go to the nodes as values: what is shipped, and that the answers
//! stay the union's.

use insta::assert_snapshot;
use proptest::prelude::*;

use super::mesh::Mesh;
use crate::explain;

const SCHEMA: &str = "
    CREATE TABLE t(k INTEGER, g TEXT, x INTEGER, r REAL, v, n TEXT COLLATE NOCASE);
    CREATE TABLE u(k INTEGER, g TEXT, y INTEGER, n TEXT COLLATE NOCASE);
";

/// On each of 3 nodes 60 rows of `t`, and 10 of `u` but on the last.
fn mesh() -> Mesh {
    let rows: Vec<String> = (0..3_i64)
        .map(|node| {
            let t = (0..60).map(|i| {
                let k = if i % 11 == 5 { "NULL".to_owned() } else { (i % 9 + node).to_string() };
                let value = ["NULL", "2", "'2'", "2.5", "x'00'"][i as usize % 5];
                let (g, n) = (["a", "b", "it''s"][i as usize % 3], ["x", "X", "y"][i as usize % 3]);
                format!("INSERT INTO t VALUES ({k}, '{g}', {}, {i} / 7.0, {value}, '{n}');", i * 37 % 50)
            });
            let u = (0..10).filter(|_| node < 2).map(|i| {
                let k = if i == 3 { "NULL".to_owned() } else { (i % 4 + node).to_string() };
                format!("INSERT INTO u VALUES ({k}, '{}', {}, 'x');", ["a", "c"][i as usize % 2], i * 13 % 20)
            });
            t.chain(u).collect()
        })
        .collect();
    Mesh::new(SCHEMA, &[], &rows.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn the_plan_says_both_ways() {
    let mut mesh = mesh();
    let sql = "SELECT t.g, count(*) FROM t JOIN (SELECT g, avg(x) AS m FROM t GROUP BY g) AS p ON p.g = t.g \
               WHERE t.x > 1.5 * p.m GROUP BY t.g";
    mesh.agrees(sql, false);
    assert_snapshot!(explain(&mesh.plan(sql).expect("planned before")), @r"
    strategy: parts
    fragment 0 (every node, ships 2 columns of t):
      SELECT g AS k0, mesh_sum(x) AS p0 FROM t GROUP BY 1
    fragment 1 (every node, ships 2 columns of t; round 2):
      SELECT g, x FROM t
    merge table groups_1 (fragment 0): k0 TEXT, p0
    merge table t (fragment 1): g TEXT, x INT
    merge:
      SELECT t.g, count(*) FROM t JOIN (SELECT k0 AS g, mesh_avg_merge(p0) AS m FROM groups_1 GROUP BY k0) AS p ON p.g = t.g WHERE t.x > 1.5 * p.m GROUP BY t.g
    or, where the results of fragment 0 are at most 10000 rows, with them as values:
      values mesh_values_1:
        SELECT k0 AS g, mesh_avg_merge(p0) AS m FROM groups_1 GROUP BY k0
      strategy: aggregate
      fragment 0 (every node, ships 2 columns of t):
        SELECT t.g AS k0, count(*) AS p0 FROM t JOIN (SELECT v0 AS g, v1 AS m FROM mesh_values_1) AS p ON p.g = t.g WHERE t.x > 1.5 * p.m GROUP BY 1
      merge table groups (fragment 0): k0 TEXT, p0
      merge:
        SELECT k0, mesh_count_merge(p0) FROM groups GROUP BY k0
    ");
}

#[test]
fn only_aggregates_travel() {
    let mut mesh = mesh();
    for (sql, most) in [
        // The values of a part, and groups.
        ("SELECT k, count(*) FROM t WHERE k NOT IN (SELECT k FROM u WHERE k IS NOT NULL) GROUP BY k", 40),
        (
            "SELECT g, count(*), max(x) FROM t WHERE g IN (SELECT g FROM t GROUP BY g ORDER BY sum(x) DESC, g LIMIT 2) GROUP BY g",
            24,
        ),
        (
            "SELECT t.g, count(*) FROM t JOIN (SELECT g, avg(x) AS m FROM t GROUP BY g) AS p ON p.g = t.g WHERE t.x > 1.5 * p.m GROUP BY t.g",
            24,
        ),
        ("SELECT count(*) FROM t WHERE x > (SELECT avg(y) FROM u)", 6),
        ("WITH few AS (SELECT k, max(y) AS y FROM u GROUP BY k) SELECT avg(t.x - few.y) FROM t JOIN few USING (k)", 40),
        (
            "SELECT g, sum(x) FROM t WHERE EXISTS (SELECT 1 FROM (SELECT DISTINCT k FROM u) AS d WHERE d.k = t.k) GROUP BY g",
            40,
        ),
    ] {
        mesh.agrees(sql, false);
        assert!(mesh.shipped_rows <= most, "{sql} shipped {} rows", mesh.shipped_rows);
        let answer = mesh.ask(sql).expect("answered before");
        assert!(answer.chosen.iter().any(|chosen| chosen.contains("as values")), "{sql}: {:?}", answer.chosen);
    }
}

/// Values whose types, collations or numbers do not fit, and parts of nothing.
#[test]
fn answers_stay_the_unions() {
    let mut mesh = mesh();
    for sql in [
        "SELECT count(*) FROM t WHERE v IN (SELECT max(v) FROM t GROUP BY k)",
        "SELECT count(*) FROM t WHERE v IN (SELECT v FROM t GROUP BY v LIMIT 3)",
        "SELECT count(*) FROM t WHERE k IN (SELECT v FROM t GROUP BY v)",
        "SELECT count(*) FROM t WHERE v IN (SELECT k FROM u GROUP BY k)",
        "SELECT count(*) FROM t WHERE g IN (SELECT k FROM u GROUP BY k)",
        "SELECT count(*), min(r) FROM t WHERE r > (SELECT max(r) / 3 FROM t)",
        "SELECT count(*) FROM t WHERE r IN (SELECT max(r) FROM t GROUP BY g)",
        "SELECT count(*) FROM t WHERE n IN (SELECT n FROM u GROUP BY n)",
        "SELECT count(*) FROM t WHERE g IN (SELECT n FROM t GROUP BY n)",
        "SELECT count(*) FROM t WHERE k NOT IN (SELECT k FROM u GROUP BY k)",
        "SELECT count(*) FROM t WHERE k NOT IN (SELECT k FROM u WHERE y > 1000 GROUP BY k)",
        "SELECT count(*) FROM t WHERE x > (SELECT max(y) FROM u WHERE y > 1000)",
        "SELECT t.g, p.c, count(*) FROM t LEFT JOIN (SELECT g, count(*) AS c FROM u GROUP BY g) AS p ON p.g = t.g GROUP BY 1, 2 ORDER BY 1, 2",
        "SELECT t.k, t.x FROM t JOIN (SELECT k, min(x) AS least FROM t GROUP BY k) AS p ON p.k = t.k AND p.least = t.x ORDER BY 1, 2 LIMIT 5",
        "SELECT t.k, p.s FROM t JOIN (SELECT k, sum(x) AS s FROM t GROUP BY k) AS p ON p.k IS t.k ORDER BY t.x, t.k, t.r LIMIT 7",
        "SELECT p.m, q.c, count(*) FROM t JOIN (SELECT k, max(x) AS m FROM t GROUP BY k) AS p ON p.k = t.k \
         JOIN (SELECT k, count(*) AS c FROM u GROUP BY k) AS q ON q.k = t.k GROUP BY 1, 2 ORDER BY 1, 2",
        "SELECT g, group_concat(DISTINCT k) FROM t WHERE x = (SELECT max(x) FROM t) GROUP BY g ORDER BY g",
    ] {
        mesh.agrees(sql, sql.contains("ORDER BY 1") || sql.contains("ORDER BY t."));
    }
}

#[test]
fn many_rows_go_the_other_way() {
    let rows = |node: i64| -> String {
        format!(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 5999) \
             INSERT INTO t(k, x) SELECT i + {node} * 6000, i % 7 FROM n;"
        )
    };
    let rows = [rows(0), rows(1)];
    let mut mesh = Mesh::new(SCHEMA, &[], &[&rows[0], &rows[1]]);
    let sql =
        "SELECT count(*) FROM t JOIN (SELECT k, max(x) AS m FROM t GROUP BY k) AS p ON p.k = t.k WHERE p.m > t.x - 1";
    mesh.agrees(sql, false);
    let answer = mesh.ask(sql).expect("answered before");
    assert!(answer.chosen.iter().any(|chosen| chosen.contains("too many")), "{:?}", answer.chosen);
}

fn question() -> impl Strategy<Value = String> {
    let of_u =
        prop::sample::select(vec!["y > 5", "k IS NOT NULL", "g <> 'c'", "y % 3 = 1", "y > 1000", "n = 'X'", "1"]);
    let part = prop::sample::select(vec![
        "SELECT k AS a, count(*) AS b FROM u WHERE {} GROUP BY k",
        "SELECT k AS a, avg(y) AS b FROM u WHERE {} GROUP BY k",
        "SELECT g AS a, max(y) / 2.0 AS b FROM u WHERE {} GROUP BY g",
        "SELECT DISTINCT g AS a, k AS b FROM u WHERE {}",
        "SELECT k AS a, y AS b FROM u WHERE {} ORDER BY y DESC, k, g LIMIT 3",
        "SELECT min(k) AS a, total(y) AS b FROM u WHERE {}",
        "SELECT n AS a, sum(y) AS b FROM u WHERE {} GROUP BY n",
        "SELECT v AS a, count(*) AS b FROM t GROUP BY v HAVING count(*) > 3",
        "SELECT max(v) AS a, min(r) AS b FROM t WHERE x > 10 GROUP BY g",
    ]);
    let outer = prop::sample::select(vec![
        "SELECT count(*), sum(t.x), max(p.b) FROM t JOIN ({}) AS p ON p.a = t.k",
        "SELECT t.g, count(*), avg(t.x) FROM t JOIN ({}) AS p ON p.a = t.g WHERE t.x > p.b GROUP BY t.g ORDER BY 1",
        "SELECT p.a, p.b, count(t.x) FROM t LEFT JOIN ({}) AS p ON p.a = t.k AND t.x >= p.b GROUP BY 1, 2 ORDER BY 1, 2",
        "SELECT t.k, t.x, p.b FROM t, ({}) AS p WHERE p.a = t.v ORDER BY t.k, t.x, p.b LIMIT 9",
        "SELECT k, count(*) FROM t WHERE k IN (SELECT a FROM ({}) AS p) GROUP BY k ORDER BY k",
        "SELECT k, count(*) FROM t WHERE k NOT IN (SELECT a FROM ({}) AS p WHERE a IS NOT NULL) GROUP BY k ORDER BY k",
        "SELECT count(*), min(r) FROM t WHERE x > (SELECT max(b) FROM ({}) AS p)",
        "WITH p AS ({}) SELECT g, count(*) FROM t WHERE EXISTS (SELECT 1 FROM p WHERE p.b < 4) GROUP BY g ORDER BY g",
        "WITH p AS ({}) SELECT DISTINCT t.g, p.a FROM t JOIN p ON p.a IS t.n ORDER BY 1, 2",
        "WITH p AS ({}) SELECT q.a, count(*) FROM t JOIN p ON p.a = t.k JOIN p AS q ON q.a = t.g GROUP BY 1 ORDER BY 1",
    ]);
    (of_u, part, outer).prop_map(|(of_u, part, outer)| outer.replace("{}", &part.replace("{}", of_u)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn whatever_parts_give_the_answer_is_the_unions(sql in question()) {
        mesh().agrees(&sql, sql.contains("ORDER BY 1") || sql.contains("ORDER BY k") || sql.contains("ORDER BY g"));
    }
}
