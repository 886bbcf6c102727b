//! Aggregates beyond SQLite's own: over several nodes they say exactly what the same function says
//! on one database that holds the union, in two phases, errors included. What each function says at
//! all is tested next to it.

use super::generate::Dice;
use super::mesh::Mesh;
use crate::{Strategy, Value};

const SCHEMA: &str = "CREATE TABLE t(k INTEGER, s TEXT COLLATE NOCASE, i INTEGER, r REAL, x, ts)";

/// Calls whose argument `{}` may be any value.
const OF_ANYTHING: &[&str] = &[
    "stddev({})",
    "stddev_samp({})",
    "stddev_pop({})",
    "variance({})",
    "var_samp({})",
    "var_pop({})",
    "approx_count_distinct({})",
    "first({}, ts)",
    "last({}, ts)",
    "last({}, r)",
    "first({}, x)",
];

/// Calls that take numbers only.
const OF_NUMBERS: &[&str] = &[
    "median({})",
    "percentile({}, 0)",
    "percentile({}, 99)",
    "percentile({}, 33.4)",
    "percentile({}, 100)",
    "percentile({}, '50')",
    "percentile({}, 101)",
    "percentile({}, 'x')",
    "percentile({}, NULL)",
    "percentile_cont({}, 0.25)",
    "percentile_cont({}, 1 - 0.1)",
    "percentile_disc({}, 0.75)",
    "percentile_disc({}, -0.1)",
    "mad({})",
    "approx_quantile({}, 0.5)",
    "approx_quantile({}, 0.99)",
    "approx_quantile({}, 1.5)",
    "histogram({})",
    "histogram({}, 5)",
    "histogram({}, 1)",
];

const INTEGERS: &[&str] = &["NULL", "0", "1", "2", "3", "-1", "7", "100", "-40", "9007199254740993"];
const EXTREMES: &[&str] = &["9223372036854775807", "-9223372036854775808", "9223372036854775806"];
const REALS: &[&str] = &["NULL", "0.5", "1.5", "-2.25", "1e10", "0.1", "0.2", "1.0", "-0.0", "3.0", "1e-300", "5e-324"];
const ANY: &[&str] =
    &["NULL", "1", "1.0", "'a'", "'A'", "''", "'12abc'", "'7'", "x'00ff'", "x''", "'it''s'", "2.5", "'b' || char(0)"];

fn mesh(dice: &mut Dice, nodes: usize) -> Mesh {
    let rows: Vec<String> = (0..nodes)
        .map(|_| {
            let mut sql = String::new();
            for _ in 0..[0, 1, 2, 7, 40, 150][dice.roll(6)] {
                let integer =
                    if dice.chance(4) { dice.pick(EXTREMES).to_owned() } else { dice.pick(INTEGERS).to_owned() };
                let real =
                    if dice.chance(60) { dice.pick(REALS).to_owned() } else { format!("{}.37", dice.roll(5000)) };
                let time = if dice.chance(10) { "NULL".to_owned() } else { dice.roll(12).to_string() };
                sql.push_str(&format!(
                    "INSERT INTO t VALUES ({}, {}, {integer}, {real}, {}, {time});",
                    dice.roll(4),
                    dice.pick(&["'a'", "'A'", "'b'", "NULL"]),
                    dice.pick(ANY),
                ));
            }
            sql
        })
        .collect();
    Mesh::new(SCHEMA, &[], &rows.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Mesh and union give the same rows in the same order, or fail with the same words.
fn same(mesh: &mut Mesh, sql: &str) {
    let plan = mesh.plan(sql).unwrap_or_else(|error| panic!("{}", error.render(sql)));
    assert_eq!(plan.strategy, Strategy::Aggregate, "{sql}");
    let answer = mesh.run(&plan).map(|answer| answer.rows).map_err(|error| error.to_string());
    let oracle = mesh.oracle(sql);
    let exact = |rows: Vec<Vec<Value>>| rows.iter().map(|row| format!("{row:?}")).collect::<Vec<_>>();
    match (answer, oracle) {
        (Ok(answer), Ok(oracle)) => assert_eq!(exact(answer), exact(oracle), "{sql}\n{}", crate::explain(&plan)),
        (Err(answer), Err(oracle)) => assert!(answer.contains(&oracle), "{sql}\nmesh {answer}\nunion {oracle}"),
        (answer, oracle) => panic!("{sql}\nmesh {answer:?}\nunion {oracle:?}\n{}", crate::explain(&plan)),
    }
}

fn check(mesh: &mut Mesh, call: &str, argument: &str) {
    let call = call.replace("{}", argument);
    same(mesh, &format!("SELECT {call} FROM t"));
    same(mesh, &format!("SELECT {call}, count(*) FROM t WHERE k > 1"));
    same(mesh, &format!("SELECT {call} FROM t WHERE k > 99"));
    same(mesh, &format!("SELECT k, {call} FROM t GROUP BY k ORDER BY k"));
    same(mesh, &format!("SELECT {call} FILTER (WHERE ts > 3) FROM t"));
    same(mesh, &format!("SELECT lower(s), {call} IS NULL FROM t GROUP BY s HAVING {call} IS NOT 0 ORDER BY 1"));
    if call.matches(',').count() == 0 {
        let distinct = call.replace('(', "(DISTINCT ");
        same(mesh, &format!("SELECT k, {distinct} FROM t GROUP BY k ORDER BY k"));
        same(mesh, &format!("SELECT {distinct} FILTER (WHERE ts > 3) FROM t"));
    }
}

#[test]
fn over_nodes_as_on_the_union() {
    for seed in 0..12 {
        let mut dice = Dice::new(seed);
        let nodes = [1, 2, 3, 6][dice.roll(4)];
        let mut mesh = mesh(&mut dice, nodes);
        for call in OF_ANYTHING {
            for argument in ["i", "r", "x", "i + r", "s"] {
                check(&mut mesh, call, argument);
            }
        }
        for call in OF_NUMBERS {
            for argument in ["i", "r", "i / 3", "x"] {
                check(&mut mesh, call, argument);
            }
        }
    }
}

#[test]
fn wrong_calls_are_refused_by_sqlite_itself() {
    let mesh = mesh(&mut Dice::new(1), 2);
    for call in ["stddev()", "stddev(i, r)", "var_pop()"] {
        let sql = format!("SELECT {call} FROM t");
        let error = mesh.plan(&sql).expect_err(call).message;
        assert!(error.contains("wrong number of arguments"), "{call}: {error}");
        assert_eq!(
            Err(error.split(';').next().unwrap_or_default().to_owned()),
            mesh.oracle(&sql).map_err(|message| { message.split(" in SELECT").next().unwrap_or_default().to_owned() })
        );
    }
}

/// Many rows on some nodes, few on others.
fn durations() -> Mesh {
    let rows = |from: u64, to: u64| {
        format!(
            "WITH RECURSIVE n(i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i < {to}) \
             INSERT INTO t SELECT i % 3, 'name' || (i * 31 % 7001), 20000 + i * i % 100003, i * 0.37, NULL, i FROM n"
        )
    };
    Mesh::new(SCHEMA, &[], &[&rows(1, 6000), "", &rows(5001, 20_000), &rows(30_000, 30_003)])
}

#[test]
fn estimates_keep_their_bounds_over_nodes() {
    let mut mesh = durations();
    let number = |value: &Value| match value {
        #[allow(clippy::cast_precision_loss)]
        Value::Integer(number) => *number as f64,
        Value::Real(number) => *number,
        other => panic!("{other:?}"),
    };
    for fraction in ["0", "0.01", "0.25", "0.5", "0.9", "0.999", "1"] {
        let sql = format!("SELECT approx_quantile(i, {fraction}), percentile_disc(i, {fraction}) FROM t GROUP BY k");
        for row in mesh.ask(&sql).expect("answer").rows {
            let (estimate, exact) = (number(&row[0]), number(&row[1]));
            assert!((estimate - exact).abs() <= 0.01 * exact, "{fraction}: {estimate} for {exact}");
        }
    }
    let rows = mesh.ask("SELECT approx_count_distinct(s), count(DISTINCT s), approx_count_distinct(k) FROM t");
    let row = &rows.expect("answer").rows[0];
    assert!((number(&row[0]) / number(&row[1]) - 1.0).abs() < 0.04, "{row:?}");
    assert_eq!(row[2], Value::Integer(3));
    let rows = mesh.ask(
        "SELECT (SELECT sum(value ->> 'count') FROM json_each(h)) = n, json_array_length(h) <= 9 \
         FROM (SELECT histogram(r, 9) AS h, count(r) AS n FROM t)",
    );
    assert_eq!(rows.expect("answer").rows, [[Value::Integer(1), Value::Integer(1)]]);
}

#[test]
fn what_sqlite_can_say_otherwise_is_the_same() {
    for seed in 20..40 {
        let mut dice = Dice::new(seed);
        let mut mesh = mesh(&mut dice, 3);
        for (ours, sqlite) in [
            ("SELECT first(i, ts) FROM t", "SELECT i FROM t WHERE ts IS NOT NULL ORDER BY ts, i LIMIT 1"),
            ("SELECT last(i, ts) FROM t", "SELECT i FROM t WHERE ts IS NOT NULL ORDER BY ts DESC, i DESC LIMIT 1"),
            (
                "SELECT last(s, x) FROM t",
                "SELECT s FROM t WHERE x IS NOT NULL ORDER BY x DESC, s COLLATE BINARY DESC LIMIT 1",
            ),
            ("SELECT mad(r) FROM t", "SELECT median(abs(r - m)) FROM t, (SELECT median(r) AS m FROM t)"),
            ("SELECT approx_count_distinct(x) FROM t", "SELECT count(DISTINCT x) FROM t"),
            ("SELECT approx_quantile(r, 1) FROM t", "SELECT max(r) FROM t"),
        ] {
            let mut wanted = mesh.oracle(sqlite).expect(sqlite);
            if wanted.is_empty() {
                wanted.push(vec![Value::Null]);
            }
            assert_eq!(mesh.ask(ours).expect(ours).rows, wanted, "seed {seed}: {ours}");
        }
    }
}

#[test]
fn calls_over_one_argument_share_what_is_shipped() {
    let mut mesh = durations();
    let sql = "SELECT k, median(i), percentile(i, 99), mad(i), approx_quantile(r, 0.5), approx_quantile(r, 0.99), \
               stddev(r), var_pop(r) FROM t GROUP BY k ORDER BY k";
    same(&mut mesh, sql);
    insta::assert_snapshot!(crate::explain(&mesh.plan(sql).expect("planned before")), @r"
    strategy: aggregate
    fragment 0 (every node, ships 4 columns of t):
      SELECT k AS k0, mesh_runs(i) AS p0, mesh_sketch(r) AS p1, mesh_moments(r) AS p2 FROM t GROUP BY 1
    merge table groups (fragment 0): k0 INT, p0, p1, p2
    merge:
      SELECT k0, mesh_median_merge(p0), mesh_percentile_merge(p0, 99), mesh_mad_merge(p0), mesh_approx_quantile_merge(p1, 0.5), mesh_approx_quantile_merge(p1, 0.99), mesh_stddev_merge(p2), mesh_var_pop_merge(p2) FROM groups GROUP BY k0 ORDER BY 1
    ");
    for (sql, most_bytes) in [
        ("SELECT median(i), percentile(i, 99), mad(i) FROM t", 3 * 20_000),
        ("SELECT approx_quantile(i, 0.5), approx_quantile(i, 0.99) FROM t", 4 * 900),
        ("SELECT approx_count_distinct(s) FROM t", 3 * 16_500),
        ("SELECT stddev(i), var_pop(i) FROM t", 4 * 60),
        ("SELECT histogram(i) FROM t", 4 * 300),
        ("SELECT first(s, ts) FROM t", 4 * 40),
    ] {
        let plan = mesh.plan(sql).expect(sql);
        let answer = mesh.run(&plan).expect(sql);
        let bytes: u64 = answer.node_stats.iter().map(|(_, stats)| stats.bytes).sum();
        eprintln!("{bytes} bytes of 4 nodes, 21,004 rows: {sql}");
        assert!(bytes <= most_bytes, "{sql}: {bytes}");
    }
}

#[test]
fn fractions_that_vary_are_judged_as_on_one_store() {
    let mut mesh = durations();
    for sql in [
        "SELECT percentile(i, k) FROM t",
        "SELECT percentile(i, k) FROM t WHERE k = 1",
        "SELECT k, percentile(i, 10 * k) FROM t GROUP BY k ORDER BY k",
        "SELECT approx_quantile(i, k / 2.0) FROM t",
    ] {
        let answer = mesh.ask(sql).map(|answer| answer.rows);
        assert_eq!(answer, mesh.oracle(sql), "{sql}");
    }
}

#[test]
fn windows_are_aggregates_of_their_frames() {
    let mut mesh = mesh(&mut Dice::new(3), 3);
    mesh.union.execute_batch("INSERT INTO t(i, r) VALUES (1, 0.0), (2, 1e999), (3, -1.5), (4, 1e9)").expect("rows");
    for (frame, from, to, moving) in [
        ("ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW", "1", "w.n", false),
        ("ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING", "1", "1000000", false),
        ("ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING", "w.n - 3", "w.n + 1", true),
        ("ROWS BETWEEN 2 FOLLOWING AND 4 FOLLOWING", "w.n + 2", "w.n + 4", true),
    ] {
        for (call, can_move) in [
            ("stddev(r)", true),
            ("var_pop(x)", true),
            ("mad(i)", true),
            ("histogram(i)", true),
            ("approx_quantile(i, 0.5)", false),
            ("approx_count_distinct(x)", false),
            ("last(x, ts)", false),
        ] {
            let sql = format!(
                "WITH w AS (SELECT row_number() OVER (ORDER BY ts, i, r) AS n, i, r, x, ts FROM t) \
                 SELECT {call} OVER (ORDER BY n {frame}), (SELECT {call} FROM w AS z WHERE z.n BETWEEN {from} AND {to}) \
                 FROM w"
            );
            match mesh.oracle(&sql) {
                Ok(rows) => {
                    assert!(!rows.is_empty() && (can_move || !moving), "{sql}");
                    for row in rows {
                        match (&row[0], &row[1]) {
                            (Value::Real(a), Value::Real(b)) => {
                                assert!(a == b || (a - b).abs() <= 1e-9 * b.abs().max(1e-9), "{sql}: {row:?}");
                            }
                            (a, b) => assert_eq!(a, b, "{sql}"),
                        }
                    }
                }
                Err(error) => {
                    assert!(moving && !can_move && error.contains("UNBOUNDED PRECEDING"), "{sql}: {error}");
                }
            }
        }
    }
    let sql =
        "SELECT k, ts, stddev(i) OVER (PARTITION BY k), mad(r) OVER (PARTITION BY k ORDER BY ts) FROM t WHERE r < 9";
    assert_eq!(mesh.plan(sql).expect("plan").strategy, Strategy::Fetch);
    assert_eq!(mesh.ask(sql).expect("answer").rows.len(), mesh.oracle(sql).expect("answer").len() - 2);
}
