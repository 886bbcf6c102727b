//! Aggregates beyond SQLite's own: over several nodes they say exactly what the same function says on one database that
//! holds the union, in two phases, errors included. What each function says at all is tested beside it.

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
