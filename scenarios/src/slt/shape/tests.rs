//! Tests of what is read out of statements.

use super::*;

fn shape_of(sql: &str) -> Shape {
    facts(sql, &|name| name == "v").unwrap().shape
}

#[test]
fn shapes() {
    let scan = |distinct, cut| Shape::Scan { distinct, cut };
    let aggregate = |grouped, plain| Shape::Aggregate { grouped, plain };
    for (sql, shape) in [
        ("SELECT 1 + 2", Shape::Constant),
        ("SELECT 1 IN (SELECT 2)", Shape::Constant),
        ("VALUES (1), (2)", Shape::Constant),
        ("SELECT count(*)", Shape::Constant),
        ("SELECT a FROM t WHERE b > 1 ORDER BY c", scan(false, None)),
        ("SELECT a FROM (t) AS x", scan(false, None)),
        ("SELECT DISTINCT a FROM t LIMIT 3 OFFSET 2", scan(true, Some(5))),
        ("SELECT a FROM t LIMIT 1 + 1", scan(false, None)),
        ("SELECT max(a, b) FROM t", scan(false, None)),
        ("SELECT count(*) FROM t", aggregate(false, true)),
        ("SELECT -max(a) + 1 FROM t AS x WHERE NOT b IN (1, 2)", aggregate(false, true)),
        ("SELECT count(DISTINCT a) FROM t", aggregate(false, false)),
        ("SELECT a FROM t GROUP BY a, b", aggregate(true, true)),
        ("SELECT a FROM t GROUP BY a HAVING sum(b) > 1", aggregate(true, false)),
        ("SELECT DISTINCT a FROM t GROUP BY a", aggregate(true, false)),
        ("SELECT a FROM t ORDER BY count(*)", aggregate(false, true)),
        ("SELECT a FROM v", Shape::General),
        ("SELECT a FROM t, u", Shape::General),
        ("SELECT a FROM t JOIN u USING (a)", Shape::General),
        ("SELECT a FROM t WHERE a IN (SELECT b FROM u)", Shape::General),
        ("SELECT a FROM t WHERE a IN u", Shape::General),
        ("SELECT 1 IN u", Shape::General),
        ("SELECT a FROM t WHERE EXISTS (SELECT 1)", Shape::General),
        ("SELECT row_number() OVER (ORDER BY a) FROM t", Shape::General),
        ("SELECT a FROM t UNION SELECT b FROM t", Shape::General),
        ("WITH x AS (SELECT a FROM t) SELECT * FROM x", Shape::General),
        ("SELECT a FROM (SELECT a FROM t)", Shape::General),
    ] {
        assert_eq!(shape_of(sql), shape, "{sql}");
    }
    assert_eq!(facts("DELETE FROM t", &|_| false), None);
    assert_eq!(facts("SELECT FROM", &|_| false), None);
}

#[test]
fn order_terms_are_found_in_the_result() {
    let order = |sql: &str| facts(sql, &|_| false).unwrap().order_by;
    assert_eq!(order("SELECT a, b FROM t"), []);
    assert_eq!(order("SELECT a, b AS x FROM t ORDER BY 2 DESC, a, X"), [Some(1), Some(0), Some(1)]);
    assert_eq!(order("SELECT a, b FROM t ORDER BY c"), [None]);
    assert_eq!(order("SELECT *, a FROM t ORDER BY a, 1"), [None, Some(0)]);
    assert_eq!(order("SELECT a UNION SELECT b ORDER BY 1"), [Some(0)]);
}

#[test]
fn conditions_of_one_table_are_found() {
    let filtered = |sql: &str| {
        let tables = facts(sql, &|name| name == "v").unwrap().filtered;
        tables.into_iter().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(filtered("SELECT 1 FROM t AS x, u WHERE x.a > 1 AND (u.b IN (1, 2) AND x.a = u.a)"), "t u");
    assert_eq!(filtered("SELECT 1 FROM t WHERE a BETWEEN 1 AND 2 AND b IN (SELECT c FROM u)"), "t");
    assert_eq!(filtered("SELECT 1 FROM t WHERE a > 1 AND b IN (SELECT c FROM t)"), "");
    assert_eq!(filtered("SELECT 1 FROM t LEFT JOIN u ON 1 WHERE u.a IS NULL"), "");
    assert_eq!(filtered("SELECT 1 FROM t, u WHERE a > 1"), "");
    assert_eq!(filtered("SELECT 1 FROM t, v WHERE t.a > 1"), "");
    assert_eq!(filtered("SELECT 1 FROM t, u WHERE t.a > u.a OR t.b = 1"), "");
    assert_eq!(filtered("SELECT 1 FROM t WHERE abs(a) = 1 AND 1 = 1"), "");
}

#[test]
fn joined_columns_are_found() {
    let facts = |sql: &str| facts(sql, &|_| false).unwrap();
    assert_eq!(facts("SELECT 1 FROM t JOIN u USING (A, \"b\")").joined_on, ["a", "b"]);
    assert!(facts("SELECT 1 FROM t NATURAL LEFT JOIN u").natural);
    assert!(!facts("SELECT 1 FROM t LEFT JOIN u ON a = b").natural);
}

#[test]
fn concatenation_without_order_is_found() {
    let concatenated = |sql: &str| facts(sql, &|_| false).unwrap().concatenated;
    let of = |place: usize, separator: &str| (place, separator.to_owned());
    assert_eq!(
        concatenated("SELECT a, group_concat(DISTINCT x), string_agg(x, '; ') FROM t"),
        [of(1, ","), of(2, "; ")]
    );
    for known in ["group_concat(x ORDER BY x)", "count(x)", "length(group_concat(x))", "group_concat(x, y)"] {
        assert_eq!(concatenated(&format!("SELECT {known} FROM t")), []);
    }
}
