//! Answers against the oracle, by construct.

use super::mesh::Mesh;
use crate::{Catalog, Kind, Strategy, Value};

const SCHEMA: &str = "
    CREATE TABLE t(a INTEGER, b TEXT COLLATE NOCASE, c REAL, d);
    CREATE TABLE u(id INTEGER PRIMARY KEY, a INTEGER, s TEXT);
    CREATE TABLE names(code INTEGER, name TEXT);
    INSERT INTO names VALUES (1, 'one'), (2, 'two'), (3, 'three');
    CREATE VIEW big AS SELECT a, b, a + 1 AS next FROM t WHERE a > 1;
    CREATE VIEW counts AS SELECT a, count(*) AS n FROM t GROUP BY a;
    CREATE INDEX t_by_a ON t(a);
    CREATE VIEW casts AS SELECT CAST(a AS REAL) AS r, CAST(c AS INTEGER) AS i FROM t;
    CREATE VIEW everything AS
        SELECT 't' AS source, a AS k, d AS v FROM t
        UNION ALL SELECT 'u', CASE WHEN id > 2 THEN ifnull(id, 0) END, NULL FROM u;
    CREATE VIEW calls AS
        SELECT 't:' || rowid AS id, t.a AS pid, 0 AS tid, 1 AS op, t.a AS n FROM t
        UNION ALL SELECT 'u:' || u.rowid, ifnull(u.a, 0), u.id, CASE u.a WHEN 1 THEN 5 ELSE 6 END, 0 FROM u;
    CREATE VIEW mixed AS SELECT a AS v FROM t UNION ALL SELECT s FROM u;
    CREATE VIEW recent AS SELECT a FROM t WHERE date('now') > '2000-01-01';
";

fn mesh() -> Mesh {
    Mesh::new(
        SCHEMA,
        &["names"],
        &[
            "INSERT INTO t VALUES (1, 'x', 1.5, NULL), (2, 'Y', NULL, 'q'), (3, 'z', -0.0, x'00ff');
             INSERT INTO u VALUES (1, 1, 'u1'), (2, 2, 'u2')",
            "",
            "INSERT INTO t VALUES (1, 'X', 2.5, 7), (2, 'y', 1e300, 7.0), (NULL, NULL, NULL, 'a' || char(0) || 'b');
             INSERT INTO u VALUES (7, 3, 'v1'), (8, 1, 'v2')",
        ],
    )
}

#[test]
fn the_union_is_what_sqlite_says() {
    let mut mesh = mesh();
    for sql in [
        "SELECT * FROM t",
        "SELECT a, b FROM t WHERE a >= 2",
        "SELECT count(*) FROM t",
        "SELECT t.a, u.s FROM t JOIN u ON t.a = u.a",
        "SELECT t.a, u.s FROM t LEFT JOIN u ON t.a = u.a AND u.s LIKE 'u%' WHERE t.b IS NOT NULL",
        "SELECT b, count(*) FROM t GROUP BY b HAVING count(*) > 1",
        "SELECT a FROM t WHERE a IN (SELECT a FROM u) UNION SELECT code FROM names",
        "WITH q AS (SELECT a, sum(c) AS s FROM t GROUP BY a) SELECT * FROM q WHERE s > 0",
        "SELECT name, count(*) FROM t JOIN names ON code = a GROUP BY name",
        "SELECT * FROM big",
        "SELECT * FROM counts",
        "SELECT next, n FROM big JOIN counts USING (a)",
        "SELECT 1 + 1, upper('x')",
        "VALUES (1, 2), (3, 4)",
        "SELECT * FROM names",
        "SELECT count(*) FROM names",
        "SELECT a, row_number() OVER (PARTITION BY b ORDER BY a) FROM t",
        "SELECT (SELECT max(a) FROM u), a FROM t",
        "SELECT t1.a FROM t t1, t t2 WHERE t1.a = t2.a AND t1.b = 'x' AND t2.a < 3",
        "SELECT d FROM t WHERE d IS NOT NULL",
        "SELECT count(*) FROM t WHERE 1 = 0",
        "SELECT u.id FROM u WHERE EXISTS (SELECT 1 FROM t WHERE t.a = u.a)",
        "SELECT key, value, a FROM t, json_each('[1,2]')",
        "SELECT main.t.a FROM main.t NOT INDEXED",
        "SELECT a FROM t INDEXED BY t_by_a WHERE a > 1",
        "SELECT u.s, t.b FROM u CROSS JOIN t INDEXED BY t_by_a ON t.a = u.a",
        "SELECT typeof(r), r, i FROM casts",
        "SELECT r, count(*) FROM casts GROUP BY r",
        "SELECT e.source, typeof(e.v), e.v, names.name FROM everything AS e JOIN names ON names.code = e.k",
        "SELECT source, count(*), max(k) FROM everything GROUP BY source",
        "SELECT v.k FROM everything AS v WHERE v.k = '1'",
        "SELECT pid, tid, op, n, typeof(pid) FROM calls WHERE op = 1 OR pid = '1'",
        "SELECT op, count(*), sum(n) FROM calls GROUP BY op",
        "SELECT c.pid, c.tid, names.name FROM calls c, calls d JOIN names ON names.code = c.op WHERE c.pid = d.tid",
        "SELECT a FROM t WHERE a IN (VALUES (1), (3))",
        "SELECT a FROM t WHERE a > (SELECT random() IS NULL)",
    ] {
        mesh.agrees(sql, false);
    }
    for sql in [
        "SELECT a, b, c FROM t ORDER BY c DESC, a",
        "SELECT a FROM t ORDER BY a LIMIT 2 OFFSET 1",
        "SELECT a, b FROM t ORDER BY 1 DESC NULLS LAST, b, c LIMIT 4",
    ] {
        mesh.agrees(sql, true);
    }
}

#[test]
fn node_is_hidden_and_usable() {
    let mut mesh = mesh();
    let text = |value: &str| Value::Text(value.as_bytes().to_vec());
    assert_eq!(mesh.ask("SELECT * FROM t WHERE node = 'n0' AND a = 1").expect("answer").rows[0].len(), 4);
    let rows = mesh.ask("SELECT node, count(*) FROM t GROUP BY node ORDER BY node").expect("answer").rows;
    assert_eq!(rows, [vec![text("n0"), Value::Integer(3)], vec![text("n2"), Value::Integer(3)]]);
    let rows = mesh.ask("SELECT *, node FROM u WHERE u.node IN ('n2', 'nowhere') ORDER BY id").expect("answer").rows;
    assert_eq!(rows[0], [Value::Integer(7), Value::Integer(3), text("v1"), text("n2")]);
    let rows = mesh
        .ask("SELECT x.node, y.s FROM t AS x JOIN u AS y ON x.node = y.node AND x.a = y.a ORDER BY 1, 2")
        .expect("answer")
        .rows;
    assert_eq!(rows.len(), 3, "{rows:?}");
    let rows = mesh.ask("SELECT node, next FROM big ORDER BY 1, 2").expect("answer").rows;
    assert_eq!(rows.len(), 3);
    // SQLite does not look into what it sees to be dead.
    for dead in [
        "SELECT * FROM t WHERE 'A' IS NULL AND node = 'n1'",
        "SELECT u.s FROM u WHERE 0 AND u.a IN (SELECT x.a FROM t AS x WHERE x.node = 'n1')",
        "SELECT count(*) FROM t JOIN u ON 0 AND t.node = u.node",
    ] {
        mesh.ask(dead).unwrap_or_else(|error| panic!("{dead}: {error}"));
    }
    let plan = mesh.plan("SELECT a FROM t WHERE node = 'n1' AND a > 0").expect("plan");
    assert_eq!(plan.nodes(), Some(vec!["n1".to_owned()]));
}

#[test]
fn replicated_tables_are_read_once() {
    let mut mesh = mesh();
    assert_eq!(mesh.plan("SELECT * FROM names").expect("plan").strategy, Strategy::Push);
    mesh.ask("SELECT * FROM names").expect("answer");
    assert_eq!(mesh.shipped_rows, 3);
    assert_eq!(mesh.plan("SELECT 1").expect("plan").strategy, Strategy::Coordinator);
}

#[test]
fn one_instant_for_now() {
    let mut mesh = mesh();
    let rows = mesh.ask("SELECT DISTINCT datetime('now'), CURRENT_DATE, unixepoch() FROM t").expect("answer").rows;
    let text = |value: &str| Value::Text(value.as_bytes().to_vec());
    assert_eq!(rows, [vec![text("2026-11-20 00:00:00"), text("2026-11-20"), Value::Integer(1_795_132_800)]]);
}

#[test]
fn what_cannot_be_asked_is_named() {
    let mesh = mesh();
    let error = |sql: &str| mesh.plan(sql).expect_err(sql).render(sql);
    assert!(error("DELETE FROM t").contains("only SELECT"), "{}", error("DELETE FROM t"));
    assert!(error("PRAGMA user_version").contains("only SELECT"));
    assert!(error("EXPLAIN SELECT 1").contains("--explain"));
    assert!(error("SELECT 1; SELECT 2").contains("one statement"));
    assert!(error("  ").contains("no statement"));
    assert!(error("SELECT * FROM sqlite_master").contains("store's own"));
    assert!(error("SELECT rowid FROM t").contains("rowid"));
    assert!(error("SELECT load_extension('x')").contains("not available"));
    assert!(error("SELECT * FROM pragma_table_info('t')").contains("not a table of the mesh"));
    assert!(error("SELECT a FROM t WHERE a = ?").contains("parameters"));
    assert_eq!(
        error("SELECT a,\n bb FROM t"),
        "no such column: bb; did you mean b? (line 2, column 2)\n   bb FROM t\n   ^^"
    );
    assert!(error("SELECT * FROM nmes").contains("did you mean names?"));
    assert!(error("SELECT node FROM names").contains("the same on every node"));
}

#[test]
fn own_aggregates_over_nodes() {
    let mut mesh = Mesh::new(
        "CREATE TABLE e(g, x REAL)",
        &[],
        &[
            "INSERT INTO e VALUES ('a', 2), ('a', 4), ('b', 1), ('a', 4)",
            "",
            "INSERT INTO e VALUES ('a', 4), ('a', 5), ('a', 5), ('a', 7), ('a', 9), ('c', NULL)",
        ],
    );
    let rows = mesh
        .ask("SELECT g, var_pop(x), stddev_pop(x), mad(x), variance(x) FROM e GROUP BY g ORDER BY g")
        .expect("answer")
        .rows;
    let numbers: Vec<Option<f64>> =
        rows.iter().flat_map(|row| &row[1..]).map(|v| if let Value::Real(x) = v { Some(*x) } else { None }).collect();
    assert_eq!(numbers[..3], [Some(4.0), Some(2.0), Some(0.5)]);
    assert!((numbers[3].expect("variance") - 32.0 / 7.0).abs() < 1e-12);
    assert_eq!(numbers[4..8], [Some(0.0), Some(0.0), Some(0.0), None]);
    assert_eq!(numbers[8..], [None, None, None, None]);
    let error = mesh.ask("SELECT median(g) FROM e").expect_err("text");
    assert_eq!(error, "input to median() is not numeric");
}

#[test]
fn bare_columns_come_from_the_row_of_the_extreme() {
    let mut mesh = mesh();
    for sql in [
        "SELECT max(c), b FROM t",
        "SELECT b, min(c) FROM t WHERE c > 1",
        "SELECT a, max(c), typeof(d) FROM t GROUP BY a",
        "SELECT max(a), d FROM t WHERE a > 100",
        "SELECT count(*), max(c), upper(b) || '!' FROM t",
    ] {
        mesh.agrees(sql, false);
    }
    assert_eq!(mesh.plan("SELECT max(c), b FROM t").expect("plan").strategy, Strategy::Aggregate);
    assert_eq!(mesh.plan("SELECT max(c), min(c), b FROM t").expect("plan").strategy, Strategy::Fetch);
}

#[test]
fn views_over_rows_are_distinguished_from_computed_ones() {
    let mesh = mesh();
    let kind = |name: &str| mesh.catalog.tables[name].kind;
    assert_eq!(kind("big"), Kind::RowView);
    assert_eq!(kind("everything"), Kind::RowView);
    // A REAL of the view would become an INTEGER in the only column type with the view's affinity.
    assert_eq!(kind("casts"), Kind::View);
    assert_eq!(kind("counts"), Kind::View);
    assert_eq!(kind("recent"), Kind::View);
    assert_eq!(kind("mixed"), Kind::RowView);
    assert_eq!(kind("calls"), Kind::RowView);
}

#[test]
fn a_union_of_tables_is_aggregated_arm_by_arm() {
    let mut mesh = mesh();
    for in_pairs in [false, true] {
        mesh.in_pairs = in_pairs;
        for (sql, fragments) in [
            ("SELECT source, count(*), sum(k), min(v), max(v) FROM everything GROUP BY source", 2),
            (
                "SELECT source, k, count(v), avg(k) FROM everything AS e WHERE e.source > 'a' GROUP BY 1, 2 HAVING count(*) > 0",
                2,
            ),
            ("SELECT v, count(*), count(DISTINCT source) FROM everything GROUP BY v ORDER BY v", 2),
            ("SELECT count(*) FROM everything", 2),
            ("SELECT count(*), sum(k) FROM everything WHERE source = 'nothing'", 2),
            // Where arms differ in affinity, a comparison is SQLite's to make.
            ("SELECT source, count(*) FROM everything WHERE k = '2' OR v = '7' GROUP BY source", 1),
            ("SELECT op, sum(n), total(tid), count(id) FROM calls WHERE n >= '0' GROUP BY op", 1),
            ("SELECT op, n = '0', count(*) FROM calls GROUP BY 1, 2", 1),
            ("SELECT op, sum(n) + 1, total(tid), count(id) FROM calls WHERE op = 1 OR id LIKE 'u%' GROUP BY op", 2),
            ("SELECT pid, max(n), tid FROM calls GROUP BY pid", 2),
            ("SELECT typeof(v), count(*), median(n) FROM calls JOIN mixed ON v = n GROUP BY 1", 0),
            ("SELECT v, count(*), typeof(max(v)) FROM mixed WHERE v <> '2' GROUP BY v", 1),
            ("SELECT v > 1, count(*) FROM mixed GROUP BY 1", 1),
            ("SELECT max(k), v FROM everything", 2),
            ("SELECT node, source, count(*) FROM everything GROUP BY 1, 2", 1),
            ("SELECT count(*) FROM (SELECT source, sum(k) AS s FROM everything GROUP BY source) WHERE s > 3", 1),
        ] {
            // The parts of a mesh's own node column have no oracle.
            if !sql.contains("node") {
                mesh.agrees(sql, false);
            }
            let plan = mesh.plan(sql).expect("a plan");
            assert!(fragments == 0 || plan.fragments.len() == fragments, "{sql}: {plan:?}");
        }
    }
}

#[test]
fn nodes_may_lack_columns_and_tables() {
    let mut mesh = Mesh::of_stores(&[
        "CREATE TABLE e(a INTEGER, b TEXT); INSERT INTO e VALUES (1, 'x'), (2, 'y'); CREATE TABLE f(a INTEGER)",
        "CREATE TABLE e(b TEXT, fresh REAL, a INTEGER); INSERT INTO e VALUES ('z', 0.5, 3); INSERT INTO e VALUES ('w', 1.5, 4)",
        "CREATE TABLE g(a)",
        "CREATE TABLE h(a)",
    ]);
    let text = |value: &str| Value::Text(value.as_bytes().to_vec());
    let answer = mesh.ask("SELECT * FROM e ORDER BY a").expect("answer");
    assert_eq!(answer.rows[0], [Value::Integer(1), text("x"), Value::Null]);
    assert_eq!(answer.rows[3], [Value::Integer(4), text("w"), Value::Real(1.5)]);
    assert_eq!(answer.notes, ["n0 has no column fresh in e", "n2, n3 has no table e"]);
    let answer =
        mesh.ask("SELECT count(*), sum(fresh), max(b) FROM e WHERE fresh IS NULL OR fresh > 1").expect("answer");
    assert_eq!(answer.rows, [[Value::Integer(3), Value::Real(1.5), text("y")]]);
    let answer = mesh.ask("SELECT count(*) FROM f").expect("answer");
    assert_eq!(answer.rows, [[Value::Integer(0)]]);
}

#[test]
fn stores_that_disagree_are_named() {
    let one = Catalog::of(&store("CREATE TABLE e(a INTEGER)"), &[]).expect("catalog");
    let other = Catalog::of(&store("CREATE TABLE e(a TEXT)"), &[]).expect("catalog");
    let conflicts = Catalog::union(&[("n0".to_owned(), one), ("n1".to_owned(), other)]).expect_err("conflict");
    assert_eq!(
        conflicts[0].to_string(),
        r#"table e differs between nodes n0 and n1: column a is declared "INTEGER" on one and "TEXT" on the other"#
    );
}

fn store(sql: &str) -> rusqlite::Connection {
    let conn = rusqlite::Connection::open_in_memory().expect("open");
    conn.execute_batch(sql).expect("sql");
    conn
}

#[test]
fn joins_of_process_ids_get_a_hint() {
    let mesh = Mesh::of_stores(&["CREATE TABLE a(pid INTEGER, x); CREATE TABLE b(pid INTEGER, tid INTEGER, y)"]);
    let notes = |sql: &str| mesh.plan(sql).expect("plan").notes;
    assert!(notes("SELECT x, y FROM a JOIN b ON a.pid = b.tid")[0].starts_with("pid is compared across nodes"));
    assert_eq!(notes("SELECT x, y FROM a JOIN b USING (pid)").len(), 1);
    assert!(notes("SELECT x, y FROM a JOIN b ON a.pid = b.pid AND a.node = b.node").is_empty());
    assert!(notes("SELECT a1.x FROM a AS a1 JOIN a AS a2 ON a1.x = a2.x").is_empty());
}

#[test]
fn a_part_that_sqlite_would_not_come_to_does_not_fail_the_question() {
    let rows = ["INSERT INTO t VALUES (9223372036854775807)", "INSERT INTO t VALUES (1)"];
    let mut mesh = Mesh::new("CREATE TABLE t(a INTEGER);", &[], &rows);
    // One database does not add anything up here: the left side of the join is empty.
    let sql = "WITH s AS (SELECT sum(a) AS n FROM t) SELECT u.a, s.n FROM (SELECT a FROM t WHERE a < 0) AS u, s";
    let oracle = mesh.oracle(sql);
    match mesh.ask(sql) {
        Ok(answer) => assert_eq!(Ok(answer.rows), oracle),
        Err(error) => assert_eq!(Err(error), oracle),
    }
    // Where it does come to it, the error stands.
    let sql = "WITH s AS (SELECT sum(a) AS n FROM t) SELECT u.a, s.n FROM (SELECT a FROM t WHERE a > 0) AS u, s";
    assert_eq!(mesh.ask(sql).map(|answer| answer.rows), Err("integer overflow".to_owned()));
}
