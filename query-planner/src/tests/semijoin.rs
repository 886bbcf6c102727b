//! Joins in two rounds: who is reduced and who is not, what is shipped, and that no key loses a
//! row.

use insta::assert_snapshot;

use super::mesh::Mesh;
use crate::{NodeStats, Plan, RunError, explain};

const SCHEMA: &str = "
    CREATE TABLE a(k INTEGER, x INTEGER, s TEXT COLLATE NOCASE, r REAL, n NUMERIC, v);
    CREATE TABLE b(id INTEGER PRIMARY KEY, k INTEGER, t TEXT, s TEXT COLLATE NOCASE, r REAL, n NUMERIC, v);
    CREATE TABLE c(k INTEGER, y INTEGER);
    CREATE TABLE few(k INTEGER, label TEXT);
    CREATE INDEX b_by_v ON b(v);
    CREATE VIEW bs AS SELECT k, t, v || '' AS e FROM b WHERE t <> 't9';
    CREATE VIEW both AS SELECT k FROM b UNION ALL SELECT k FROM c;
    INSERT INTO few VALUES (1, 'one'), (2, 'two');
";

/// On each of 3 nodes 100 rows of `b` with keys 0 to 49 and some NULLs, of `a` 20 with `x` 0 to 19,
/// of `c` one.
fn mesh() -> Mesh {
    let rows: Vec<String> = (0..3)
        .map(|node| {
            let a = (0..20).map(|i| {
                let k = if i == 7 { "NULL".to_owned() } else { (node * 2 + i).to_string() };
                format!("INSERT INTO a VALUES ({k}, {i}, 'K{i}', {i}.5, {i}, {i});")
            });
            let b = (0..100).map(|i| {
                let k = if i % 25 == 3 { "NULL".to_owned() } else { (i % 50).to_string() };
                format!(
                    "INSERT INTO b VALUES ({i}, {k}, 't{}', 'k{}', {}.5, {}, {});",
                    i % 10,
                    i % 30,
                    i % 9,
                    i % 8,
                    i % 7
                )
            });
            a.chain(b).chain([format!("INSERT INTO c VALUES ({node}, {node});")]).collect()
        })
        .collect();
    Mesh::new(SCHEMA, &["few"], &rows.iter().map(String::as_str).collect::<Vec<_>>())
}

fn plan_of(mesh: &mut Mesh, sql: &str) -> Plan {
    mesh.agrees(sql, false);
    mesh.plan(sql).expect("planned before")
}

fn count(mesh: &Mesh, sql: &str) -> u64 {
    mesh.union.query_row(sql, [], |row| row.get::<_, u32>(0)).map(u64::from).expect("a count")
}

/// Rows that the answer cost in addition to those of the driver.
fn shipped(mesh: &mut Mesh, sql: &str, driver: &str) -> u64 {
    mesh.agrees(sql, false);
    mesh.shipped_rows - count(mesh, &format!("SELECT count(*) FROM {driver}"))
}

#[test]
fn the_plan_says_the_second_round() {
    let mut mesh = mesh();
    let sql = "SELECT b.t, a.x FROM a JOIN b ON a.k = b.k WHERE a.x < 2";
    assert_snapshot!(explain(&plan_of(&mut mesh, sql)), @r"
    strategy: fetch
    fragment 0 (every node, ships 2 columns of a):
      SELECT k, x FROM a WHERE x < 2
    fragment 1 (every node, ships 2 columns of b; round 2, filtered by the keys of fragment 0 when they are at most 10000):
      SELECT k, t FROM b
      + WHERE k IN (fragment 0's k)
    merge table a (fragment 0): k INT, x INT
    merge table b (fragment 1): k INT, t TEXT
    merge:
      SELECT b.t, a.x FROM a JOIN b ON a.k = b.k WHERE a.x < 2
    ");
    let sql = "SELECT count(*) FROM bs LEFT JOIN c ON c.k = bs.k, a WHERE (bs.k) = a.k AND x = 3";
    assert_snapshot!(explain(&plan_of(&mut mesh, sql)), @r#"
    strategy: fetch
    fragment 0 (every node, ships 2 columns of a):
      SELECT k, x FROM a WHERE x = 3
    fragment 1 (every node, ships 1 columns of bs; round 2, filtered by the keys of fragment 0 when they are at most 10000):
      SELECT k FROM bs
      + WHERE k IN (fragment 0's k)
    fragment 2 (every node, ships 1 columns of c):
      SELECT k FROM c
    merge table a (fragment 0): k INT, x INT
    merge table bs rows (fragment 1): k INT
    merge table c (fragment 2): k INT
    merge setup: CREATE VIEW "bs" AS SELECT "k", "t", +"e" AS "e" FROM "bs rows"
    merge:
      SELECT count(*) FROM bs LEFT JOIN c ON c.k = bs.k, a WHERE (bs.k) = a.k AND x = 3
    "#);
}

#[test]
fn only_rows_with_a_key_travel() {
    let mut mesh = mesh();
    for (from, filter) in [
        ("a JOIN b ON a.k = b.k", "x < 2"),
        ("a, b", "b.k = a.k AND x < 2"),
        ("b CROSS JOIN a", "x < 2 AND (b.k = a.k)"),
        ("a LEFT JOIN b ON a.k = b.k", "a.x < 2"),
        ("a JOIN b ON b.k == a.k AND b.id > a.x - 1000", "x < 2"),
        // A NULL key, and no key at all.
        ("a JOIN b ON a.k = b.k", "a.x = 7"),
        ("a LEFT JOIN b ON a.k = b.k", "a.x > 1000"),
    ] {
        let own = filter.replace("b.k = a.k AND ", "").replace(" AND (b.k = a.k)", "");
        let got =
            shipped(&mut mesh, &format!("SELECT a.x, b.id FROM {from} WHERE {filter}"), &format!("a WHERE {own}"));
        let matching = format!("SELECT count(*) FROM b WHERE k IN (SELECT k FROM a WHERE {own})");
        assert_eq!(got, count(&mesh, &matching), "rows of b for {from} WHERE {filter}");
    }
    let answer = mesh.ask("SELECT b.id FROM a JOIN b ON a.k = b.k WHERE a.x < 2").expect("answered");
    let nodes: Vec<&str> = answer.node_stats.iter().map(|(node, _)| node.as_str()).collect();
    assert_eq!(nodes, ["n0", "n1", "n2"], "both rounds of a node are counted as one");
    assert!(answer.node_stats.iter().all(|(_, NodeStats { rows, .. })| *rows > 2));
}

#[test]
fn who_is_not_reduced() {
    let mut mesh = mesh();
    for sql in [
        // Another affinity, another collation, an expression, no plain equality.
        "SELECT b.id FROM a JOIN b ON a.k = b.t WHERE a.x < 2",
        "SELECT b.id FROM a JOIN b ON a.k = b.v WHERE a.x < 2",
        "SELECT b.id FROM a JOIN b ON a.k = b.r WHERE a.x < 2",
        "SELECT b.id FROM a JOIN b ON a.s = b.t WHERE a.x < 2",
        "SELECT b.id FROM a JOIN b ON a.s COLLATE BINARY = b.s WHERE a.x < 2",
        "SELECT b.id FROM a JOIN b ON a.k + 0 = b.k WHERE a.x < 2",
        "SELECT b.id FROM a JOIN b ON +a.k = b.k WHERE a.x < 2",
        "SELECT b.id FROM a JOIN b ON a.k IS b.k WHERE a.x < 2",
        "SELECT b.id FROM a JOIN b ON NOT (a.k = b.k) WHERE a.x < 2",
        "SELECT b.id FROM a JOIN b ON a.k = b.k OR a.x = b.id WHERE a.x < 2",
        "SELECT bs.k FROM a JOIN bs ON a.v = bs.e WHERE a.x < 2",
        "SELECT both.k FROM a JOIN both ON a.k = both.k WHERE a.x < 2",
        // No condition, or one on either side.
        "SELECT b.id FROM a JOIN b ON a.k = b.k",
        "SELECT b.id FROM a JOIN b ON a.k = b.k WHERE a.x < 2 AND b.t = 't1'",
        // A preserved side.
        "SELECT b.id FROM b LEFT JOIN a ON a.k = b.k AND a.x < 2",
        "SELECT b.id FROM b LEFT JOIN a ON a.k = b.k WHERE a.x < 2 OR a.x IS NULL",
        "SELECT b.id FROM a RIGHT JOIN b ON a.k = b.k AND a.x < 2",
        "SELECT b.id FROM a FULL JOIN b ON a.k = b.k AND a.x < 2",
        "SELECT b.id FROM b LEFT JOIN c ON b.k = c.k AND c.y = 1 AND c.y < 3",
        // A second use of the table.
        "SELECT b.id FROM a JOIN b ON a.k = b.k WHERE a.x < 2 AND b.id < (SELECT max(id) FROM b AS other WHERE k < x)",
        "SELECT b.id FROM a JOIN b ON a.k = b.k JOIN b AS other ON other.id = b.id WHERE a.x < 2",
        "SELECT b.id FROM a JOIN b ON a.k = b.k WHERE a.x < 2 UNION ALL SELECT id FROM b",
        // Only some of the rows' conditions.
        // Replicated tables are small and near.
        "SELECT label, (SELECT max(x) FROM a) FROM a, few WHERE few.k = a.k AND a.x < 2",
    ] {
        let plan = plan_of(&mut mesh, sql);
        assert!(plan.reductions.is_empty(), "{sql}\n{}", explain(&plan));
    }
    // A driver may be used again: what is fetched of it serves all its uses.
    for sql in [
        "SELECT b.id FROM a JOIN b ON a.k = b.k WHERE a.x < 2 AND a.x IN (SELECT x FROM a WHERE x > 18 OR x = 1)",
        "SELECT id, max(k) OVER () FROM (SELECT b.id, a.k FROM b, a WHERE a.s = b.s AND a.x < 2) UNION SELECT y, k FROM c",
        "WITH w AS (SELECT * FROM a WHERE x < 3) SELECT b.id FROM b JOIN a ON b.k = a.k AND a.x = 1 LEFT JOIN w ON w.k = b.k",
    ] {
        let plan = plan_of(&mut mesh, sql);
        assert!(!plan.reductions.is_empty(), "{sql}\n{}", explain(&plan));
    }
}

#[test]
fn only_rows_within_the_bounds_of_a_driver_travel() {
    let mut mesh = mesh();
    for (sql, driver, matching) in [
        (
            "SELECT a.x, b.id FROM a JOIN b ON b.k = a.k AND b.id > a.x AND b.id <= a.x + 10 WHERE a.x < 4",
            "a WHERE x < 4",
            "k IN (SELECT k FROM a WHERE x < 4) AND id > 0 AND id <= 13",
        ),
        ("SELECT a.x, b.id FROM a JOIN b ON a.x * 2 >= b.id WHERE a.x < 4", "a WHERE x < 4", "id <= 6"),
        (
            "SELECT count(*) FROM b, a WHERE b.id BETWEEN a.x AND a.x + 1 AND x IN (3, 5)",
            "a WHERE x IN (3, 5)",
            "id BETWEEN 3 AND 6",
        ),
        ("SELECT a.x, b.id FROM a LEFT JOIN b ON b.id < a.x WHERE a.x = 9", "a WHERE x = 9", "id < 9"),
        // A driver without rows, and one without a value.
        ("SELECT a.x, b.id FROM a LEFT JOIN b ON b.id < a.x WHERE a.x > 100", "a WHERE x > 100", "0"),
        ("SELECT a.x, b.id FROM a LEFT JOIN b ON b.id < a.k WHERE a.x = 7", "a WHERE x = 7", "0"),
        // A condition of its own that says nothing of the column.
        (
            "SELECT count(*) FROM a JOIN b ON b.id > a.x + 90 WHERE a.x < 4 AND (b.t = 't1' OR b.t = 't2')",
            "a WHERE x < 4",
            "id > 90 AND t IN ('t1', 't2')",
        ),
    ] {
        let got = shipped(&mut mesh, sql, driver);
        assert_eq!(got, count(&mesh, &format!("SELECT count(*) FROM b WHERE {matching}")), "{sql}");
        assert_eq!(mesh.ask(sql).expect("answered").chosen.len(), 1);
    }
    for sql in [
        // Texts, expressions that may give them, columns that convert; nothing of the driver; a
        // preserved side.
        "SELECT b.id FROM a JOIN b ON b.t > a.x WHERE a.x < 2",
        "SELECT b.id FROM a JOIN b ON b.id > a.v WHERE a.x < 2",
        "SELECT b.id FROM a JOIN b ON b.v > a.x WHERE a.x < 2",
        "SELECT b.id FROM a JOIN b ON b.id > a.s WHERE a.x < 2",
        "SELECT b.id FROM a JOIN b ON b.id > coalesce(a.k, 'x') WHERE a.x < 2",
        "SELECT b.id FROM a LEFT JOIN c ON c.y = 100, b WHERE b.id > 40 + 2 AND a.x < 2",
        "SELECT b.id FROM b LEFT JOIN a ON b.id > a.x AND a.x < 2",
        "SELECT b.id FROM a JOIN b ON b.id > a.x WHERE a.x < 2 AND b.id < 50",
    ] {
        let plan = plan_of(&mut mesh, sql);
        assert!(plan.reductions.is_empty(), "{sql}\n{}", explain(&plan));
    }
}

#[test]
fn the_plan_says_the_bounds() {
    let mut mesh = mesh();
    let sql = "SELECT b.t FROM a JOIN b ON b.k = a.k AND b.id BETWEEN a.x AND a.x + 5 WHERE a.x < 2";
    let text = explain(&plan_of(&mut mesh, sql));
    let condition = "  + WHERE k IN (fragment 0's k) AND id >= (SELECT min(x) FROM \"a\") AND id <= (SELECT max(x + 5) FROM \"a\")\n";
    assert!(text.contains(condition), "{text}");
}

/// Whatever lies in the columns, and however it compares: no row is lost.
#[test]
fn bounds_of_any_values_lose_no_row() {
    let values = [
        "NULL",
        "0",
        "-0.0",
        "1",
        "1.0",
        "1.5",
        "'1'",
        "'x'",
        "x'31'",
        "''",
        "-5",
        "9223372036854775807",
        "-9223372036854775808",
        "9223372036854775807.0",
        "9e999",
        "-9e999",
        "'9e999'",
        "1e15",
        "4",
    ];
    let columns = ["INTEGER", "REAL", "NUMERIC", "TEXT", ""].map(str::to_owned);
    let declared: Vec<String> = columns.iter().enumerate().map(|(i, decl)| format!("k{i} {decl}")).collect();
    let schema = format!("CREATE TABLE a(x INTEGER, {0}); CREATE TABLE b(y INTEGER, {0});", declared.join(", "));
    let rows = |node: usize| -> String {
        let of = |table: &str| -> String {
            let kept = values.iter().enumerate().filter(|(i, _)| i % 3 == node);
            kept.map(|(i, value)| format!("INSERT INTO {table} VALUES ({i}{});", format!(", {value}").repeat(5)))
                .collect()
        };
        of("a") + &of("b")
    };
    let mut mesh = Mesh::new(&schema, &[], &[&rows(0), &rows(1), &rows(2)]);
    let mut reduced = 0;
    for (mine, theirs) in (0..5).flat_map(|mine| (0..5).map(move |theirs| (mine, theirs))) {
        for operator in ["<", "<=", ">", ">="] {
            for with in ["a.k", "a.x - 3 + a.k", "2 * a.k"] {
                for filter in ["x < 4", "x > 9", "x = 11", "x > 2 AND x < 9"] {
                    let sql =
                        format!("SELECT x, y FROM a LEFT JOIN b ON b.k{mine} {operator} {with}{theirs} WHERE {filter}");
                    let plan = plan_of(&mut mesh, &sql);
                    let is_numeric = mine < 3 && theirs < 3;
                    assert_eq!(plan.reductions.len(), usize::from(is_numeric), "{sql}");
                    reduced += usize::from(is_numeric && mesh.shipped_rows < values.len() as u64);
                }
            }
        }
    }
    assert!(reduced > 100, "{reduced} questions shipped fewer rows than b has");
}

#[test]
fn too_many_keys_are_no_filter() {
    let many = |from: usize, to: usize, of: &str| {
        format!("WITH RECURSIVE i(i) AS (VALUES ({from}) UNION ALL SELECT i + 1 FROM i WHERE i < {to}) {of} FROM i;")
    };
    let a = many(1, 10_001, "INSERT INTO a(k, x) SELECT i, i");
    let b = many(9_990, 10_100, "INSERT INTO b(k, t) SELECT i, ''");
    let mut mesh = Mesh::new(SCHEMA, &["few"], &[&a, &b, ""]);
    let sql = "SELECT b.k FROM a JOIN b ON a.k = b.k WHERE a.x > 0";
    assert_eq!(shipped(&mut mesh, sql, "a"), 111, "whole");
    let sql = "SELECT b.k FROM a JOIN b ON a.k = b.k WHERE a.x > 1";
    assert_eq!(shipped(&mut mesh, sql, "a WHERE x > 1"), 12, "10,000 keys still filter");
    // Few keys, but long ones.
    let long = "INSERT INTO a(x, s) VALUES (1, printf('%.*c', 1100000, 'x'));";
    let mut mesh = Mesh::new(SCHEMA, &["few"], &[long, "INSERT INTO b(s) VALUES ('a'), ('b');"]);
    let sql = "SELECT b.k FROM a JOIN b ON a.s = b.s WHERE a.x = 1";
    assert_eq!(shipped(&mut mesh, sql, "a"), 2);
}

#[test]
fn every_key_finds_its_rows() {
    let values = [
        "NULL",
        "0",
        "0.0",
        "-0.0",
        "1",
        "1.0",
        "'1'",
        "'1.0'",
        "' 1'",
        "x'31'",
        "''",
        "x''",
        "'it''s'",
        "'a'",
        "'A'",
        "'a '",
        "'a' || char(0) || 'b'",
        "'a' || char(0)",
        "x'00ff'",
        "CAST(x'ff00fe' AS TEXT)",
        "'ü'",
        "'Ü'",
        "9223372036854775807",
        "-9223372036854775808",
        "9007199254740993",
        "9007199254740992.0",
        "9223372036854775807.0",
        "9e999",
        "-9e999",
        "5e-324",
        "0.1",
        "0.1 + 0.2",
        "0.3",
        "1.7976931348623157e308",
        "2.2250738585072011e-308",
        "123456789012345678.9",
        "'9e999'",
        "'9007199254740993'",
        "1e15",
        "4.35",
        "8.41",
        "1152921504606846977.0",
    ];
    let decl = [
        "INTEGER",
        "TEXT",
        "REAL",
        "NUMERIC",
        "",
        "BLOB",
        "TEXT COLLATE NOCASE",
        "TEXT COLLATE RTRIM",
        "COLLATE NOCASE",
    ];
    let columns: Vec<String> = decl.iter().enumerate().map(|(i, decl)| format!("k{i} {decl}")).collect();
    let columns = columns.join(", ");
    let schema = format!(
        "CREATE TABLE a(x INTEGER, {columns}); CREATE TABLE b(y INTEGER, {columns}); CREATE INDEX i4 ON b(k4);
         CREATE INDEX i1 ON b(k1); CREATE INDEX i3 ON b(k3); CREATE INDEX i6 ON b(k6);"
    );
    let rows = |node: usize| -> String {
        let of = |table: &str, skip: usize| -> String {
            let kept = values.iter().enumerate().filter(|(i, _)| i % 3 != skip);
            kept.map(|(i, value)| {
                format!("INSERT INTO {table} VALUES ({i}{});", format!(", {value}").repeat(decl.len()))
            })
            .collect()
        };
        of("a", node) + &of("b", (node + 1) % 3)
    };
    let mut mesh = Mesh::new(&schema, &[], &[&rows(0), &rows(1), &rows(2)]);
    let mut reduced = 0;
    for i in 0..decl.len() {
        for at in 0..=values.len() {
            let filter = if at == values.len() { "x >= 0".to_owned() } else { format!("x = {at}") };
            for join in ["JOIN", "LEFT JOIN"] {
                let sql = format!("SELECT x, y, b.k{i} FROM a {join} b ON a.k{i} = b.k{i} WHERE {filter}");
                let plan = plan_of(&mut mesh, &sql);
                assert_eq!(plan.reductions.len(), 1, "{sql}");
                reduced += u32::from(mesh.shipped_rows < count(&mesh, "SELECT count(*) FROM b"));
            }
        }
    }
    assert!(reduced > 700, "{reduced} questions shipped fewer rows than b has");
}

#[test]
fn a_node_that_lacks_the_column_has_no_match() {
    let mut mesh = Mesh::of_stores(&[
        "CREATE TABLE a(k INTEGER, x INTEGER); CREATE TABLE b(k INTEGER, y INTEGER);
         INSERT INTO a VALUES (1, 1), (2, 2); INSERT INTO b VALUES (1, 10), (2, 20);",
        "CREATE TABLE a(k INTEGER, x INTEGER); CREATE TABLE b(y INTEGER); INSERT INTO b VALUES (30);",
        "CREATE TABLE b(k INTEGER, y INTEGER); INSERT INTO b VALUES (1, 40), (3, 50);",
    ]);
    let sql = "SELECT b.y FROM a JOIN b ON a.k = b.k WHERE a.x = 1";
    let answer = mesh.ask(sql).expect("answered");
    let mut found: Vec<String> = answer.rows.iter().map(|row| format!("{row:?}")).collect();
    found.sort();
    assert_eq!(found, ["[Integer(10)]", "[Integer(40)]"]);
    assert_eq!(mesh.shipped_rows, 3, "one row of a, two of b");
    assert_eq!(answer.notes.iter().filter(|note| note.contains("k in b")).count(), 1, "{:?}", answer.notes);
}

/// Fails from the second round on, as a fan-out does that lost a node between the rounds.
struct Lossy(Mesh, usize);

impl crate::Fanout for Lossy {
    fn ask(
        &mut self,
        task: &crate::NodeTask,
        targets: &crate::Targets,
        sink: crate::Sink<'_>,
    ) -> Result<Vec<(String, NodeStats)>, RunError> {
        self.1 += 1;
        if self.1 > 1 {
            return Err(RunError::Stopped("a node was lost between two rounds".to_owned()));
        }
        crate::Fanout::ask(&mut self.0, task, targets, sink)
    }
}

#[test]
fn a_loss_between_the_rounds_ends_the_run() {
    let mesh = mesh();
    let plan = mesh.plan("SELECT b.t FROM a JOIN b ON a.k = b.k WHERE a.x < 2").expect("planned");
    let mut lossy = Lossy(mesh, 0);
    let outcome =
        crate::run(&plan, &mut lossy, &crate::Budget::default(), super::mesh::NOW_NS, &crate::Stop::default());
    assert!(matches!(outcome, Err(RunError::Stopped(why)) if why.contains("between two rounds")));
    assert_eq!(lossy.1, 2);
}
