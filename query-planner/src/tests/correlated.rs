//! Correlated subqueries over several nodes: which rows travel, and that the answer is that of one
//! store.

use insta::assert_snapshot;

use super::generate::Dice;
use super::mesh::Mesh;
use crate::{Plan, ReductionBy, Value, explain};

const SCHEMA: &str = "
    CREATE TABLE a(k INTEGER, x INTEGER, t INTEGER, s TEXT, r REAL, u);
    CREATE TABLE b(k INTEGER, t INTEGER, v INTEGER, s TEXT COLLATE NOCASE, r REAL, u);
    CREATE TABLE c(k INTEGER, y INTEGER);
    CREATE VIEW bs AS SELECT k, t, v, v + 1 AS e FROM b;
";

/// On each of three nodes 6 rows of `a`, 60 of `b` with times that are never equal, 4 of `c`.
fn mesh(seed: u64) -> Mesh {
    let mut dice = Dice::new(seed);
    let mut time = 0;
    let or_null = |dice: &mut Dice, most: usize| match dice.chance(12) {
        true => "NULL".to_owned(),
        false => dice.roll(most).to_string(),
    };
    let rows: Vec<String> = (0..3)
        .map(|_| {
            let mut sql = String::new();
            for _ in 0..6 {
                let (k, x, t) = (or_null(&mut dice, 5), or_null(&mut dice, 9), or_null(&mut dice, 200));
                let s = ["'a'", "'A'", "'b'", "'3'", "NULL"][dice.roll(5)];
                sql += &format!("INSERT INTO a VALUES ({k}, {x}, {t}, {s}, {x} / 2.0, {k});");
            }
            for _ in 0..60 {
                time += 1;
                let (k, v) = (or_null(&mut dice, 5), or_null(&mut dice, 9));
                let t = if dice.chance(5) { "NULL".to_owned() } else { (time * 37 % 211).to_string() };
                let s = ["'a'", "'A'", "'b'", "'3'", "NULL"][dice.roll(5)];
                sql += &format!("INSERT INTO b VALUES ({k}, {t}, {v}, {s}, {v} / 3.0, {s});");
            }
            for _ in 0..4 {
                sql += &format!("INSERT INTO c VALUES ({}, {});", or_null(&mut dice, 5), or_null(&mut dice, 9));
            }
            sql
        })
        .collect();
    Mesh::new(SCHEMA, &[], &rows.iter().map(String::as_str).collect::<Vec<_>>())
}

fn plan_of(mesh: &mut Mesh, sql: &str) -> Plan {
    mesh.agrees(sql, false);
    mesh.plan(sql).expect("planned before")
}

fn is_by_rows(plan: &Plan) -> bool {
    plan.reductions.iter().any(|reduction| matches!(reduction.by, ReductionBy::Rows(_)))
}

fn count(mesh: &Mesh, sql: &str) -> u64 {
    mesh.union.query_row(sql, [], |row| row.get::<_, u32>(0)).map(u64::from).expect("a count")
}

const NEXT: &str = "SELECT a.t, (SELECT b.v FROM b WHERE b.k = a.k AND b.t >= a.t + a.x ORDER BY b.t LIMIT 1) AS next \
                    FROM a WHERE a.x > 6";

#[test]
fn the_plan_says_which_rows_travel() {
    let mut mesh = mesh(1);
    assert_snapshot!(explain(&plan_of(&mut mesh, NEXT)), @r#"
    strategy: fetch
    fragment 0 (every node, ships 3 columns of a):
      SELECT k, x, t FROM a WHERE x > 6
    fragment 1 (every node, ships 3 columns of b; round 2, by the rows of fragment 0 when they are fewer than fragment 2 counts):
      SELECT k, t, v FROM b
      or WITH mesh_first_1 AS MATERIALIZED (SELECT mesh_outer.*, (SELECT min(mesh_row.t) FROM b AS mesh_row WHERE (mesh_row.k = mesh_outer.v0) AND (mesh_row.t >= mesh_outer.v1 + mesh_outer.v2)) AS first FROM mesh_values_1 AS mesh_outer) SELECT mesh_row.k, mesh_row.t, mesh_row.v FROM b AS mesh_row WHERE mesh_row.t IN (SELECT first FROM mesh_first_1) AND EXISTS (SELECT 1 FROM mesh_first_1 AS mesh_outer WHERE mesh_row.t = mesh_outer.first AND (mesh_row.k = mesh_outer.v0) AND (mesh_row.t >= mesh_outer.v1 + mesh_outer.v2))
      with mesh_values_1: SELECT NULL, NULL, NULL UNION ALL SELECT DISTINCT "k", "t", "x" FROM "a"
    fragment 2 (every node, ships 1 columns of b):
      SELECT count(*) FROM b
    merge table a (fragment 0): k INT, x INT, t INT
    merge table b (fragment 1): k INT, t INT, v INT
    merge table mesh_count_2 (fragment 2): n INT
    merge:
      SELECT a.t, (SELECT b.v FROM b WHERE b.k = a.k AND b.t >= a.t + a.x ORDER BY b.t LIMIT 1) AS next FROM a WHERE a.x > 6
    "#);
}

#[test]
fn only_first_rows_travel() {
    let mut mesh = mesh(1);
    mesh.agrees(NEXT, false);
    let outer = count(&mesh, "SELECT count(*) FROM a WHERE x > 6");
    // The outer rows, a count a node, and for each outer row the first of each node at most.
    assert!(mesh.shipped_rows <= outer + 3 + 3 * outer, "{} rows for {outer}", mesh.shipped_rows);
    let all = NEXT.replace("b.v FROM", "count(*) FROM").replace(" ORDER BY b.t LIMIT 1", "");
    mesh.agrees(&all, false);
    let matching = count(
        &mesh,
        "SELECT count(*) FROM b WHERE EXISTS (SELECT 1 FROM a WHERE x > 6 AND b.k = a.k AND b.t >= a.t + a.x)",
    );
    assert_eq!(mesh.shipped_rows, outer + 3 + matching);
}

#[test]
fn who_is_not_reduced() {
    let mut mesh = mesh(2);
    for sql in [
        // No condition with the row around, or none that can be sent.
        "SELECT a.t, (SELECT count(*) FROM b WHERE b.k = 1 OR a.x IN (SELECT y FROM c)) FROM a WHERE a.x > 6",
        "SELECT a.t, (SELECT count(*) FROM b) FROM a WHERE a.x > 6",
        "SELECT a.t, (SELECT count(*) + a.k FROM b) FROM a WHERE a.x > 6",
        // Another use needs every row.
        "SELECT a.t, (SELECT count(*) FROM b WHERE b.k = a.k), (SELECT count(*) + a.t FROM b) FROM a WHERE a.x > 6",
        "SELECT a.t, (SELECT count(*) FROM b WHERE b.k = a.k) FROM a JOIN b ON a.k > b.k WHERE a.x > 6",
        // The table itself is around.
        "SELECT a.t, (SELECT count(*) FROM a AS other WHERE other.k = a.k) FROM a WHERE a.x > 6",
        // Columns without affinity, expressions of views.
        "SELECT a.t, (SELECT count(*) FROM b WHERE b.k = a.u) FROM a WHERE a.x > 6",
        "SELECT a.t, (SELECT count(*) FROM b WHERE b.u = a.k) FROM a WHERE a.x > 6",
        "SELECT a.t, (SELECT count(*) FROM bs WHERE bs.e = a.k) FROM a WHERE a.x > 6",
        // Names that mean something of the subquery's own.
        "SELECT a.t, (SELECT count(*) FROM b, c AS a WHERE b.k = a.k) FROM a WHERE a.x > 6",
        "SELECT a.t, (SELECT count(*) FROM b AS a WHERE a.k = a.v) FROM a WHERE a.x > 6",
        // What may keep rows that do not match.
        "SELECT a.t, (SELECT count(*) FROM b LEFT JOIN c ON b.k = a.k) FROM a WHERE a.x > 6",
    ] {
        let plan = plan_of(&mut mesh, sql);
        assert!(!is_by_rows(&plan), "{sql}\n{}", explain(&plan));
    }
}

#[test]
fn who_is_reduced() {
    let mut mesh = mesh(3);
    for sql in [
        "SELECT a.t, (SELECT count(*) FROM bs WHERE bs.k = a.k) FROM a WHERE a.x > 6",
        "SELECT a.t, (SELECT count(*) FROM b WHERE b.k IS a.k) FROM a",
        "SELECT a.t FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.t < a.t)",
        "SELECT a.t FROM a WHERE a.x NOT IN (SELECT v FROM b WHERE b.k = a.k)",
        "SELECT a.t, (SELECT count(*) FROM c LEFT JOIN b ON b.k = a.k AND b.k = c.k) FROM a WHERE a.x > 6",
        "SELECT a.t, (SELECT max(b.t) FROM b WHERE b.k = a.k AND b.v = 2), (SELECT count(*) FROM b WHERE b.v > 7) FROM a",
        "SELECT a.t, (SELECT (SELECT count(*) FROM b WHERE b.k = a.k AND b.v = c.y) FROM c WHERE c.k = 1) FROM a",
        "SELECT c.y, a.t, (SELECT count(*) FROM b WHERE coalesce(a.k, 2) = b.k) FROM c LEFT JOIN a ON a.k = c.k",
        "SELECT count(*), (SELECT count(*) FROM b WHERE b.k IS a.k) FROM a WHERE a.x > 1000",
        "SELECT a.t, EXISTS (WITH w AS (SELECT * FROM b WHERE b.k = a.k) SELECT 1 FROM w WHERE w.v > 3) FROM a",
        "SELECT a.t FROM a GROUP BY a.t HAVING (SELECT count(*) FROM b WHERE b.k = a.k) > 2",
    ] {
        let plan = plan_of(&mut mesh, sql);
        assert!(is_by_rows(&plan), "{sql}\n{}", explain(&plan));
    }
}

#[test]
fn the_node_of_a_row_is_compared_at_its_node() {
    let mut mesh = mesh(4);
    let sql = "SELECT a.t, (SELECT count(*) FROM b WHERE b.node = a.node AND b.k = a.k) FROM a, c WHERE a.x > 6";
    let plan = mesh.plan(sql).expect("a plan");
    assert!(is_by_rows(&plan), "{}", explain(&plan));
    let answer = mesh.run(&plan).expect("an answer");
    let without = Plan { reductions: Vec::new(), ..plan };
    let mut rows = [answer.rows, mesh.run(&without).expect("an answer").rows];
    rows.iter_mut().for_each(|rows| rows.sort_by_key(|row| format!("{row:?}")));
    assert!(!rows[0].is_empty());
    assert_eq!(rows[0], rows[1]);
}

#[test]
fn values_that_are_many_are_not_sent() {
    let numbers = |to: usize, of: &str| {
        format!("WITH RECURSIVE i(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM i WHERE i < {to}) {of} FROM i;")
    };
    let sql = "SELECT count(*) FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.t > 0)";
    for (outer, inner, reduced) in [(20, 1000, true), (500, 1000, false), (10_100, 40_000, false)] {
        let rows =
            numbers(outer, "INSERT INTO a(k) SELECT i") + &numbers(inner, "INSERT INTO b(k, t, v) SELECT i, i, i % 50");
        let mut mesh = Mesh::new(SCHEMA, &[], &[&rows, "", ""]);
        mesh.agrees(sql, false);
        let shipped = mesh.shipped_rows - outer as u64 - 3;
        assert_eq!(shipped, if reduced { outer as u64 } else { inner as u64 });
        if reduced {
            // Equal rows are one.
            let sql = "SELECT count(*) FROM a WHERE EXISTS (SELECT 1 FROM b WHERE a.k = b.v)";
            mesh.agrees(sql, false);
            assert_eq!(mesh.shipped_rows, 2 * outer as u64 + 3);
        }
        let answer = mesh.ask(sql).expect("answered");
        assert_eq!(answer.chosen.len(), 1);
        assert_eq!(answer.chosen[0].starts_with("rows of b that match one of"), reduced, "{:?}", answer.chosen);
        assert!(answer.chosen[0].contains(&inner.to_string()), "{:?}", answer.chosen);
    }
}

#[test]
fn a_node_that_lacks_a_table_or_a_column_has_no_match() {
    let many = "WITH RECURSIVE i(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM i WHERE i < 40)";
    let mut mesh = Mesh::of_stores(&[
        &format!(
            "CREATE TABLE a(k INTEGER, x INTEGER); INSERT INTO a VALUES (1, 1), (2, 2), (NULL, 3);
             CREATE TABLE b(k INTEGER, t INTEGER, v INTEGER); {many} INSERT INTO b SELECT i % 4, i, i FROM i;"
        ),
        "CREATE TABLE b(k INTEGER, v INTEGER); INSERT INTO b VALUES (1, 700), (2, 800);",
        "CREATE TABLE a(k INTEGER, x INTEGER); INSERT INTO a VALUES (3, 9);",
    ]);
    let sql = "SELECT a.x, (SELECT b.v FROM b WHERE b.k = a.k AND b.t > a.x ORDER BY b.t LIMIT 1) FROM a ORDER BY 1";
    let answer = mesh.ask(sql).expect("answered");
    let integer = Value::Integer;
    let expected = [(1, integer(5)), (2, integer(6)), (3, Value::Null), (9, integer(11))];
    assert_eq!(answer.rows, expected.map(|(x, v)| vec![integer(x), v]));
    assert!(answer.chosen[0].starts_with("rows of b that match"), "{:?}", answer.chosen);
    assert_eq!(mesh.shipped_rows, 4 + 3 + 3, "rows of a, a count a node, first rows of b");
    assert!(
        answer.notes.iter().any(|note| note.contains("n1") && note.contains("column t in b")),
        "{:?}",
        answer.notes
    );
    assert!(answer.notes.iter().any(|note| note.contains("n2") && note.contains("table b")), "{:?}", answer.notes);
}

const CONDITIONS: [&str; 22] = [
    "b.k = a.k",
    "b.k = a.k",
    "b.t >= a.t",
    "b.t > a.t + a.x",
    "a.t < b.t",
    "(b.k = a.k OR b.t < a.x)",
    "b.k IS a.k",
    "b.k IS NOT a.k",
    "b.s = a.s",
    "a.s = b.s",
    "b.k = coalesce(a.k, 3)",
    "b.t BETWEEN a.t AND a.t + 10",
    "b.t NOT BETWEEN a.t AND a.t + 100",
    "b.v IS NULL",
    "b.v > 2",
    "b.k IN (a.k, a.x)",
    "NOT b.k = a.k",
    "b.r > a.r",
    "b.k = a.s",
    "b.s LIKE a.s",
    "b.t + a.x > b.v * a.k",
    "a.x > 3",
];

const SUBQUERIES: [&str; 22] = [
    "(SELECT min(b.t) FROM b WHERE {c})",
    "(SELECT max(b.t) FROM b WHERE {c})",
    "(SELECT min(v) FROM b WHERE {c})",
    "(SELECT max(b.s) FROM b WHERE {c} AND b.s <> 'A')",
    "(SELECT count(*) FROM b WHERE {c})",
    "(SELECT sum(b.v) FROM b WHERE {c})",
    "(SELECT count(DISTINCT b.v) FROM b WHERE {c})",
    "(SELECT b.v FROM b WHERE {c} AND b.t IS NOT NULL ORDER BY b.t LIMIT 1)",
    "(SELECT b.v FROM b WHERE {c} AND b.t > 20 ORDER BY t LIMIT 1)",
    "(SELECT b.v FROM b WHERE {c} AND b.t < 180 ORDER BY b.t DESC LIMIT 1)",
    "(SELECT t FROM b WHERE {c} ORDER BY b.t LIMIT 1)",
    "(SELECT t FROM b WHERE {c} ORDER BY b.t LIMIT 1 OFFSET 1)",
    "(SELECT v AS t FROM b WHERE {c} ORDER BY t LIMIT 1)",
    "EXISTS (SELECT 1 FROM b WHERE {c})",
    "NOT EXISTS (SELECT * FROM b WHERE {c})",
    "a.x IN (SELECT b.v FROM b WHERE {c})",
    "a.x NOT IN (SELECT b.v FROM b WHERE {c})",
    "(SELECT count(*) FROM b WHERE {c} GROUP BY b.k HAVING count(*) > 1 ORDER BY 1 LIMIT 1)",
    "(SELECT count(*) FROM b WHERE {c} AND EXISTS (SELECT 1 FROM c WHERE c.k = b.k AND c.y >= a.x))",
    "(SELECT count(*) FROM c LEFT JOIN b ON c.k = b.k AND {c})",
    "(SELECT count(b.v) FROM c JOIN b ON c.k = b.k WHERE {c} AND c.y > 1)",
    "(SELECT count(*) FROM (SELECT * FROM b WHERE {c} ORDER BY b.t LIMIT 3))",
];

const OUTER: [&str; 6] = [
    "SELECT a.k, a.t, {s} FROM a WHERE {f}",
    "SELECT a.k, a.t, {s}, {s} FROM a",
    "SELECT a.k, a.t FROM a WHERE {s} > 0 AND {f}",
    "SELECT c.y, a.t, {s} FROM c LEFT JOIN a ON a.k = c.k AND {f}",
    "SELECT count(*), {s} FROM a WHERE {f} AND a.x > 1000",
    "SELECT {s} AS v, count(*) FROM a WHERE {f} GROUP BY 1",
];

/// `RANKMESH_CORRELATED=N` asks for more than the default few.
#[test]
fn generated_correlated_questions_agree() {
    let questions = std::env::var("RANKMESH_CORRELATED").ok().and_then(|n| n.parse::<u64>().ok()).unwrap_or(600);
    let mut dice = Dice::new(70);
    let (mut reduced, mut fewer) = (0, 0);
    let mut mesh = self::mesh(0);
    for asked in 0..questions {
        if asked % 30 == 0 {
            mesh = self::mesh(100 + asked);
        }
        let mut sql = OUTER[dice.roll(OUTER.len())].to_owned();
        while let Some(at) = sql.find("{s}") {
            sql.replace_range(at..at + 3, SUBQUERIES[dice.roll(SUBQUERIES.len())]);
        }
        while let Some(at) = sql.find("{c}") {
            let count = 1 + dice.roll(3);
            let all: Vec<&str> = (0..count).map(|_| CONDITIONS[dice.roll(CONDITIONS.len())]).collect();
            sql.replace_range(at..at + 3, &all.join(" AND "));
        }
        let filter = ["a.x > 6", "a.k = 2", "a.t < 60", "a.s IS NOT NULL"][dice.roll(4)];
        let sql = sql.replace("{f}", filter);
        let plan = plan_of(&mut mesh, &sql);
        if is_by_rows(&plan) {
            reduced += 1;
            fewer += u64::from(mesh.ask(&sql).expect("answered").chosen.iter().any(|why| why.starts_with("rows of")));
        }
    }
    assert!(reduced * 2 > questions && fewer * 4 > questions, "{reduced} and {fewer} of {questions}");
}
