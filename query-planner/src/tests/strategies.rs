//! Which rule answers which class of question, as text: a planner that fetches everything would
//! pass the answers.

use insta::assert_snapshot;

use super::mesh::Mesh;
use crate::{Strategy, Value, explain};

const SCHEMA: &str = "
    CREATE TABLE t(a INTEGER, b TEXT COLLATE NOCASE, c REAL, d);
    CREATE TABLE u(id INTEGER PRIMARY KEY, a INTEGER, s TEXT);
    CREATE TABLE names(code INTEGER, name TEXT);
    INSERT INTO names VALUES (1, 'one'), (2, 'two'), (3, 'three');
    CREATE VIEW big AS SELECT a, b, a + 1 AS next FROM t WHERE a > 1;
    CREATE VIEW counts AS SELECT a, count(*) AS n FROM t GROUP BY a;
    CREATE VIEW ranked AS SELECT a, row_number() OVER (ORDER BY a) AS n FROM t;
";

fn mesh() -> Mesh {
    let rows: Vec<String> = (0..3)
        .map(|node| {
            (0..node * 10)
                .map(|i| {
                    format!(
                        "INSERT INTO t VALUES ({}, '{}', {}.25, {});INSERT INTO u VALUES ({i}, {}, 's{}');",
                        i % 4,
                        ["x", "X", "y"][i % 3],
                        i * 3 % 7,
                        if i % 2 == 0 { "NULL".to_owned() } else { format!("'{}'", i % 5) },
                        i % 3,
                        i % 4,
                    )
                })
                .collect()
        })
        .collect();
    Mesh::new(SCHEMA, &["names"], &rows.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Plan, compare with the oracle, and give the plan's text.
fn shown(sql: &str, ordered: bool) -> String {
    let mut mesh = mesh();
    mesh.agrees(sql, ordered);
    explain(&mesh.plan(sql).expect("planned before"))
}

#[test]
fn rows_are_filtered_and_cut_at_the_nodes() {
    assert_snapshot!(shown("SELECT a, b FROM t WHERE a > 2 AND b LIKE 'x%'", false), @r"
    strategy: rows
    fragment 0 (every node, ships 2 columns of t):
      SELECT a, b FROM t WHERE a > 2 AND b LIKE 'x%'
    merge: as it comes
    ");
    assert_snapshot!(shown("SELECT a, c AS z FROM t ORDER BY z DESC, a + 1, b COLLATE BINARY, d LIMIT 4 OFFSET 2", true), @r"
    strategy: rows
    fragment 0 (every node, ships 5 columns of t):
      SELECT a, c AS z, a + 1 AS o0, b COLLATE BINARY AS o1, d AS o2 FROM t ORDER BY 2 DESC, 3, 4, 5 LIMIT 6
    merge table rows (fragment 0): c0, c1, c2, c3, c4
    merge:
      SELECT c0, c1 FROM rows ORDER BY c1 DESC, c2, c3, c4 LIMIT 4 OFFSET 2
    ");
    assert_snapshot!(shown("SELECT DISTINCT b, d FROM t ORDER BY d, 1 LIMIT 5", false), @r"
    strategy: rows
    fragment 0 (every node, ships 2 columns of t):
      SELECT DISTINCT b, d FROM t ORDER BY 2, 1 LIMIT 5
    merge table rows (fragment 0): c0 TEXT COLLATE NOCASE, c1
    merge:
      SELECT DISTINCT c0, c1 FROM rows ORDER BY c1, c0 LIMIT 5
    ");
    assert_snapshot!(shown("SELECT name, s FROM u JOIN names ON code = u.a WHERE s <> 's1'", false), @r"
    strategy: rows
    fragment 0 (every node, ships 2 columns of names, u):
      SELECT names.name, u.s FROM u JOIN names ON code = u.a WHERE u.s <> 's1'
    merge: as it comes
    ");
}

#[test]
fn aggregates_ship_groups() {
    assert_snapshot!(shown("SELECT count(*) FROM t", false), @r"
    strategy: aggregate
    fragment 0 (every node, ships 1 columns of t):
      SELECT count(*) AS p0 FROM t
    merge table groups (fragment 0): p0
    merge:
      SELECT mesh_count_merge(p0) FROM groups
    ");
    assert_snapshot!(shown("SELECT a % 2 AS odd, avg(c) AS mean, max(b) FROM t WHERE d IS NOT NULL GROUP BY odd HAVING count(*) > 1 ORDER BY mean DESC LIMIT 3", true), @r"
    strategy: aggregate
    fragment 0 (every node, ships 4 columns of t):
      SELECT (a % 2) AS k0, mesh_sum(c) AS p0, max(b) AS p1, count(*) AS p2 FROM t WHERE d IS NOT NULL GROUP BY 1
    merge table groups (fragment 0): k0, p0, p1 COLLATE NOCASE, p2
    merge:
      SELECT mesh_value(k0), mesh_avg_merge(p0), max(p1) FROM groups GROUP BY k0 HAVING mesh_count_merge(p2) > 1 ORDER BY 2 DESC LIMIT 3
    ");
    assert_snapshot!(shown("SELECT b, count(DISTINCT d) FILTER (WHERE a > 0), sum(a) FROM t GROUP BY 1 ORDER BY lower(b)", false), @r"
    strategy: aggregate
    fragment 0 (every node, ships 3 columns of t):
      SELECT b AS k0, (CASE WHEN (a > 0) THEN (d) END) COLLATE BINARY AS d0, mesh_sum(a) AS p0 FROM t GROUP BY 1, 2
    merge table groups (fragment 0): k0 TEXT COLLATE NOCASE, d0, p0
    merge:
      SELECT k0, count(DISTINCT d0), mesh_sum_merge(p0) FROM groups GROUP BY k0 ORDER BY lower(k0)
    ");
    assert_snapshot!(shown("SELECT max(c), a FROM t WHERE a = 2", false), @r"
    strategy: aggregate
    fragment 0 (every node, ships 3 columns of t):
      SELECT max(c) AS p0, count(*) AS p1, a AS b0 FROM t WHERE a = 2
    merge table groups (fragment 0): p0, p1, b0 INT
    merge:
      SELECT max(p0), b0 FROM groups WHERE p1 > 0
    ");
    assert_snapshot!(shown("SELECT name, total(c) FROM t, names WHERE code = a GROUP BY name", false), @r"
    strategy: aggregate
    fragment 0 (every node, ships 2 columns of names, t):
      SELECT names.name AS k0, mesh_sum(t.c) AS p0 FROM t, names WHERE names.code = t.a GROUP BY 1
    merge table groups (fragment 0): k0 TEXT, p0
    merge:
      SELECT k0, mesh_total_merge(p0) FROM groups GROUP BY k0
    ");
}

#[test]
fn work_partitioned_by_node_is_pushed() {
    let mut mesh = mesh();
    let plan = mesh.plan("SELECT node, max(c) - min(c) FROM t GROUP BY node ORDER BY 2 DESC LIMIT 1").expect("plan");
    assert_eq!(plan.strategy, Strategy::Push);
    assert_eq!(mesh.run(&plan).expect("answer").rows.len(), 1);
    assert_eq!(mesh.shipped_rows, 2);
    assert_snapshot!(explain(&plan), @r"
    strategy: push
    fragment 0 (every node, ships 2 columns of t):
      SELECT node, max(c) - min(c) FROM (SELECT *, CAST(:mesh_node AS TEXT) AS node FROM t) AS t GROUP BY node ORDER BY 2 DESC LIMIT 1
    merge table rows (fragment 0): c0, c1
    merge:
      SELECT c0, c1 FROM rows ORDER BY c1 DESC LIMIT 1
    ");
    let plan =
        mesh.plan("SELECT t.b, count(*) FROM t JOIN u ON u.node = t.node AND u.a = t.a GROUP BY t.b").expect("plan");
    assert_snapshot!(explain(&plan), @r"
    strategy: aggregate
    fragment 0 (every node, ships 2 columns of t, u):
      SELECT t.b AS k0, count(*) AS p0 FROM (SELECT *, CAST(:mesh_node AS TEXT) AS node FROM t) AS t JOIN (SELECT *, CAST(:mesh_node AS TEXT) AS node FROM u) AS u ON u.node = t.node AND u.a = t.a GROUP BY 1
    merge table groups (fragment 0): k0 TEXT COLLATE NOCASE, p0
    merge:
      SELECT k0, mesh_count_merge(p0) FROM groups GROUP BY k0
    ");
}

/// Leaves answer `node, rank, count(*)` from columns, but not `avg(c) / 1e6`: over ten million rows
/// that is a thousand times the work.
#[test]
fn groups_by_node_with_expressions_around_aggregates_are_aggregated_in_two_phases() {
    let mut mesh = mesh();
    let sql = "SELECT node, a, count(*), avg(c) / 1e6 AS ms FROM t GROUP BY node, a ORDER BY ms DESC";
    let plan = mesh.plan(sql).expect("plan");
    assert_snapshot!(explain(&plan), @r"
    strategy: aggregate
    fragment 0 (every node, ships 4 columns of t):
      SELECT node AS k0, a AS k1, count(*) AS p0, mesh_sum(c) AS p1 FROM (SELECT *, CAST(:mesh_node AS TEXT) AS node FROM t) AS t GROUP BY 1, 2
    merge table groups (fragment 0): k0 TEXT, k1 INT, p0, p1
    merge:
      SELECT k0, k1, mesh_count_merge(p0), mesh_avg_merge(p1) / 1e6 FROM groups GROUP BY k0, k1 ORDER BY 4 DESC
    ");
    let answer = mesh.run(&plan).expect("answer").rows;
    let whole = mesh.plan("SELECT node, a, count(*), avg(c) FROM t GROUP BY node, a ORDER BY 4 DESC").expect("plan");
    assert_eq!(whole.strategy, Strategy::Push);
    let counts = |rows: &[Vec<Value>]| {
        let mut counts: Vec<String> = rows.iter().map(|row| format!("{:?}", &row[..3])).collect();
        counts.sort();
        counts
    };
    assert_eq!(counts(&answer), counts(&mesh.run(&whole).expect("answer").rows));
    for pushed in [
        "SELECT node, a, avg(c) FROM t GROUP BY node, a",
        "SELECT node, a, avg(c) / 1e6 FROM t GROUP BY node, a HAVING count(*) > 3",
        "SELECT node, a, avg(c) / 1e6 FROM t GROUP BY node, a ORDER BY 3 LIMIT 2",
        "SELECT node, a, median(c) / 1e6 FROM t GROUP BY node, a",
    ] {
        assert_eq!(mesh.plan(pushed).expect("plan").strategy, Strategy::Push, "{pushed}");
    }
}

#[test]
fn common_table_expressions_are_seen_through() {
    let mut mesh = mesh();
    let plan = mesh
        .plan(
            "WITH slow AS (SELECT *, node FROM u WHERE id > 3) \
             SELECT s.node, s.s, count(t.a) FROM slow AS s LEFT JOIN t ON t.node = s.node AND t.a BETWEEN s.a AND s.a + 1 \
             GROUP BY s.node, s.s ORDER BY 3 DESC",
        )
        .expect("plan");
    assert_snapshot!(explain(&plan), @r"
    strategy: push
    fragment 0 (every node, ships 3 columns of t, u):
      SELECT s.node, s.s, count(t.a) FROM (SELECT u.id, u.a, u.s, node FROM (SELECT *, CAST(:mesh_node AS TEXT) AS node FROM u) AS u WHERE id > 3) AS s LEFT JOIN (SELECT *, CAST(:mesh_node AS TEXT) AS node FROM t) AS t ON t.node = s.node AND t.a BETWEEN s.a AND s.a + 1 GROUP BY s.node, s.s
    merge table rows (fragment 0): c0, c1, c2
    merge:
      SELECT c0, c1, c2 FROM rows ORDER BY c2 DESC
    ");
    mesh.run(&plan).expect("answer");
    assert_snapshot!(shown("WITH q(x) AS (SELECT a + 1 FROM t WHERE c > 1) SELECT max(x), count(*) FROM q", false), @r"
    strategy: aggregate
    fragment 0 (every node, ships 2 columns of t):
      SELECT max(x) AS p0, count(*) AS p1 FROM (SELECT a + 1 AS x FROM t WHERE c > 1) AS q
    merge table groups (fragment 0): p0, p1
    merge:
      SELECT max(p0), mesh_count_merge(p1) FROM groups
    ");
}

#[test]
fn aggregates_inside_a_question_are_planned_on_their_own() {
    assert_snapshot!(shown("SELECT a FROM t WHERE a > (SELECT avg(a) FROM u)", false), @r#"
    strategy: parts
    fragment 0 (every node, ships 1 columns of u):
      SELECT mesh_sum(a) AS p0 FROM u
    fragment 1 (every node, ships 1 columns of t; round 2):
      SELECT a FROM t
    merge table groups_1 (fragment 0): p0
    merge table t (fragment 1): a INT
    merge:
      SELECT a FROM t WHERE a > (SELECT mesh_avg_merge(p0) AS "avg(a)" FROM groups_1)
    or, where the results of fragment 0 are at most 10000 rows, with them as values:
      values mesh_values_1:
        SELECT mesh_avg_merge(p0) AS "avg(a)" FROM groups_1
      strategy: rows
      fragment 0 (every node, ships 1 columns of t):
        SELECT a FROM t WHERE a > (SELECT v0 AS "avg(a)" FROM mesh_values_1)
      merge: as it comes
    "#);
    assert_snapshot!(shown("WITH q AS (SELECT a, count(*) AS n FROM t GROUP BY a) SELECT u.s, q.n FROM q JOIN u ON u.a = q.a AND u.id > 4", false), @r"
    strategy: parts
    fragment 0 (every node, ships 2 columns of t):
      SELECT a AS k0, count(*) AS p0 FROM t GROUP BY 1
    fragment 1 (every node, ships 3 columns of u; round 2):
      SELECT id, a, s FROM u WHERE id > 4
    merge table groups_1 (fragment 0): k0 INT, p0
    merge table u (fragment 1): id INT, a INT, s TEXT
    merge:
      WITH q AS (SELECT k0 AS a, mesh_count_merge(p0) AS n FROM groups_1 GROUP BY k0) SELECT u.s, q.n FROM q JOIN u ON u.a = q.a AND u.id > 4
    or, where the results of fragment 0 are at most 10000 rows, with them as values:
      values mesh_values_1:
        SELECT k0 AS a, mesh_count_merge(p0) AS n FROM groups_1 GROUP BY k0
      strategy: rows
      fragment 0 (every node, ships 2 columns of u):
        SELECT u.s, q.n FROM (SELECT v0 AS a, v1 AS n FROM mesh_values_1) AS q JOIN u ON u.a = q.a AND u.id > 4
      merge: as it comes
    ");
    assert_snapshot!(shown("SELECT max(n) FROM (SELECT b, count(*) AS n FROM t GROUP BY b)", false), @r"
    strategy: parts
    fragment 0 (every node, ships 2 columns of t):
      SELECT b AS k0, count(*) AS p0 FROM t GROUP BY 1
    merge table groups_1 (fragment 0): k0 TEXT COLLATE NOCASE, p0
    merge:
      SELECT max(n) FROM (SELECT k0 AS b, mesh_count_merge(p0) AS n FROM groups_1 GROUP BY k0)
    ");
    assert_snapshot!(shown("SELECT 't' AS name, count(*) FROM t UNION ALL SELECT 'u', count(*) FROM u", false), @r#"
    strategy: parts
    fragment 0 (every node, ships 1 columns of t):
      SELECT count(*) AS p0 FROM t
    fragment 1 (every node, ships 1 columns of u):
      SELECT count(*) AS p0 FROM u
    merge table groups_1 (fragment 0): p0
    merge table groups_2 (fragment 1): p0
    merge:
      SELECT 't' AS name, mesh_count_merge(p0) AS "count(*)" FROM groups_1 UNION ALL SELECT 'u' AS "'u'", mesh_count_merge(p0) AS "count(*)" FROM groups_2
    "#);
}

#[test]
fn cut_rows_inside_a_question_are_cut_at_the_nodes() {
    assert_snapshot!(shown("WITH top AS (SELECT a, c, b || '!' AS e FROM t ORDER BY c DESC, a, b, d LIMIT 3) SELECT top.a, top.e, u.s FROM top JOIN u ON u.a = top.a AND u.id = 7", false), @r"
    strategy: parts
    fragment 0 (every node, ships 5 columns of t):
      SELECT a, c, b || '!' AS e, b AS o0, d AS o1 FROM t ORDER BY 2 DESC, 1, 4, 5 LIMIT 3
    fragment 1 (every node, ships 3 columns of u):
      SELECT id, a, s FROM u WHERE id = 7
    merge table rows_1 (fragment 0): c0 INT, c1 REAL, c2, c3 COLLATE NOCASE, c4
    merge table u (fragment 1): id INT, a INT, s TEXT
    merge:
      WITH top AS (SELECT c0 AS a, c1 AS c, mesh_value(c2) AS e FROM rows_1 ORDER BY c1 DESC, c0, c3, c4 LIMIT 3) SELECT top.a, top.e, u.s FROM top JOIN u ON u.a = top.a AND u.id = 7
    ");
    assert_snapshot!(shown("SELECT s FROM u WHERE a IN (SELECT DISTINCT a FROM t WHERE c > 3)", false), @r"
    strategy: parts
    fragment 0 (every node, ships 1 columns of t):
      SELECT DISTINCT a FROM t WHERE c > 3
    fragment 1 (every node, ships 2 columns of u; round 2):
      SELECT a, s FROM u
    merge table rows_1 (fragment 0): c0 INT
    merge table u (fragment 1): a INT, s TEXT
    merge:
      SELECT s FROM u WHERE a IN (SELECT DISTINCT c0 AS a FROM rows_1)
    or, where the results of fragment 0 are at most 10000 rows, with them as values:
      values mesh_values_1:
        SELECT DISTINCT c0 AS a FROM rows_1
      strategy: rows
      fragment 0 (every node, ships 1 columns of u):
        SELECT s FROM u WHERE a IN (SELECT v0 AS a FROM mesh_values_1)
      merge: as it comes
    ");
}

#[test]
fn joins_and_subqueries_fetch_what_they_read() {
    assert_snapshot!(shown("SELECT t.a, s FROM t JOIN u ON t.a = u.a WHERE c > 3 AND u.id < 5", false), @r"
    strategy: fetch
    fragment 0 (every node, ships 2 columns of t):
      SELECT a, c FROM t WHERE c > 3
    fragment 1 (every node, ships 3 columns of u):
      SELECT id, a, s FROM u WHERE id < 5
    merge table t (fragment 0): a INT, c REAL
    merge table u (fragment 1): id INT, a INT, s TEXT
    merge:
      SELECT t.a, s FROM t JOIN u ON t.a = u.a WHERE c > 3 AND u.id < 5
    ");
}

#[test]
fn a_view_takes_no_filter_from_the_tables_that_it_does_not_read() {
    let sql = "SELECT v.a, w.s FROM ranked AS v JOIN u AS w ON v.n > w.id WHERE w.a = 2";
    let plan = shown(sql, false);
    let fetched = plan.lines().find(|line| line.trim_start().starts_with("SELECT") && line.contains("FROM u"));
    assert!(fetched.is_some_and(|line| line.contains("WHERE a = 2")), "{plan}");
}

#[test]
fn every_class_has_its_strategy() {
    let mut mesh = mesh();
    for (strategy, shipped_at_most, sql) in [
        (Strategy::Coordinator, 0, "SELECT 1, (SELECT 2)"),
        (Strategy::Push, 3, "SELECT name FROM names ORDER BY 1"),
        (Strategy::Push, 2, "SELECT node, count(*) FROM t GROUP BY node"),
        (Strategy::Rows, 30, "SELECT * FROM t"),
        (Strategy::Rows, 30, "SELECT * FROM t ORDER BY c"),
        (Strategy::Rows, 6, "SELECT * FROM t ORDER BY c LIMIT 3"),
        (Strategy::Rows, 4, "SELECT DISTINCT b FROM t"),
        (Strategy::Rows, 2, "SELECT a FROM t LIMIT 1"),
        (Strategy::Rows, 15, "SELECT next FROM big"),
        (Strategy::Rows, 20, "SELECT x.a FROM (SELECT a, c FROM t WHERE a > 1) AS x WHERE x.c > 1"),
        (Strategy::Aggregate, 3, "SELECT count(*), sum(a), total(a), avg(a), min(a), max(a) FROM t"),
        (Strategy::Aggregate, 3, "SELECT group_concat(b) IS NULL FROM t"),
        (Strategy::Aggregate, 8, "SELECT a, count(*) FROM t GROUP BY a"),
        (Strategy::Aggregate, 8, "SELECT DISTINCT count(*) FROM t GROUP BY a ORDER BY 1"),
        (Strategy::Aggregate, 8, "SELECT count(DISTINCT a) FROM t"),
        (Strategy::Aggregate, 3, "SELECT next, count(*) FROM big WHERE a = 3 GROUP BY next"),
        (Strategy::Aggregate, 3, "SELECT CAST(sum(a) AS REAL) / count(*) + 1 FROM t HAVING max(c) > 0"),
        (Strategy::Aggregate, 12, "SELECT b, count(*) FROM t GROUP BY b ORDER BY count(*) DESC LIMIT 1"),
        (Strategy::Parts, 8, "SELECT a, n FROM counts WHERE n > 2"),
        (Strategy::Parts, 8, "SELECT avg(n) FROM counts"),
        (Strategy::Parts, 36, "SELECT d FROM t WHERE a IN (SELECT a FROM u)"),
        (Strategy::Rows, 30, "SELECT t.a FROM t, u WHERE t.node = 'n1' AND u.node = 'n1' AND t.a = u.id"),
        (Strategy::Aggregate, 1, "SELECT count(*) FROM t JOIN u ON t.a = u.a WHERE t.node = 'n1' AND u.node = 'n1'"),
        (
            Strategy::Aggregate,
            3,
            "SELECT count(*) FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.node = t.node AND u.id = t.a)",
        ),
        (Strategy::Rows, 30, "SELECT a, (SELECT max(id) FROM u WHERE u.node = t.node) FROM t"),
        (Strategy::Fetch, 60, "SELECT t.a FROM t JOIN u USING (a)"),
        (Strategy::Aggregate, 3, "SELECT median(a), percentile(a, 99), stddev(c) FROM t"),
        (Strategy::Fetch, 30, "SELECT a, rank() OVER (ORDER BY a) FROM t"),
        (
            Strategy::Aggregate,
            12,
            "SELECT b, sum(a) AS s, rank() OVER (ORDER BY sum(a) DESC, b), sum(count(*)) OVER (PARTITION BY b IS NULL) FROM t GROUP BY b",
        ),
        (Strategy::Aggregate, 3, "SELECT count(*), sum(max(a)) OVER () FROM t"),
        (Strategy::Fetch, 30, "SELECT b, a, sum(count(*)) OVER () FROM t GROUP BY b"),
    ] {
        let plan = mesh.plan(sql).expect(sql);
        assert_eq!(plan.strategy, strategy, "{sql}");
        mesh.run(&plan).expect(sql);
        assert!(mesh.shipped_rows <= shipped_at_most, "{sql}: shipped {}", mesh.shipped_rows);
        if !sql.contains("node") && !sql.contains("LIMIT") {
            mesh.agrees(sql, false);
        }
    }
}

/// A task comes from another node: nothing of it is parsed or looked for before it is known to be
/// no larger than plans are.
#[test]
fn a_task_that_no_plan_would_be_is_refused_before_any_of_it_is_read() {
    use crate::{Budget, NodeError, NodeTask, Value};

    let mut conn = rusqlite::Connection::open_in_memory().unwrap();
    conn.execute_batch("CREATE TABLE t(x)").unwrap();
    let catalog = crate::Catalog::of(&conn, &[]).unwrap();
    crate::harden(&mut conn).unwrap();
    let plan = crate::plan("SELECT count(*) FROM t", &catalog, &crate::AskOptions::default()).unwrap();
    let task = |change: &dyn Fn(&mut NodeTask)| {
        let mut task = NodeTask {
            fragments: plan.fragments.clone(),
            keys: Vec::new(),
            now_unix_ns: 0,
            budget: Budget::default(),
            viewer: None,
        };
        change(&mut task);
        crate::execute_task(&conn, "n", &task, &mut |_, _| Ok(()))
    };
    let refused = |what: &str, change: &dyn Fn(&mut NodeTask)| match task(change) {
        Err(NodeError::Failed(message)) => assert!(message.contains(what), "{message}"),
        other => panic!("{what}: {other:?}"),
    };
    assert!(task(&|_| ()).is_ok());
    refused("SQL of 8000008 bytes", &|task| task.fragments[0].sql = format!("SELECT {}1", "1+".repeat(4_000_000)));
    refused("1001 fragments", &|task| task.fragments = vec![task.fragments[0].clone(); 1_001]);
    refused("tables and columns", &|task| {
        task.fragments[0].reads = vec![("t".to_owned(), vec![String::new(); 30_000])]
    });
    refused("keys", &|task| task.keys = vec![vec![Value::Null; 10_001]]);
    refused("keys", &|task| task.keys = vec![Vec::new(); 2]);
    // Short enough, and deeper than any stack: SQLite says so.
    refused("maximum depth", &|task| task.fragments[0].sql = format!("SELECT {}1", "1+".repeat(900_000)));
}
