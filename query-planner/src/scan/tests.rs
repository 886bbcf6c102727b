//! Which statements are scans, and what they say.

use super::*;

fn scan(sql: &str) -> Option<Scan> {
    Scan::of(sql, &|table| {
        let columns = ["ts_ns", "rank", "func", "bytes"].iter();
        let column = |name: &&str| Column::of_text((*name).to_owned(), *name == "func");
        (table == "t").then(|| columns.map(column).collect())
    })
}

fn column(name: &str) -> Operand {
    Operand::Column(name.to_owned())
}

#[test]
fn aggregates_and_their_partial_states() {
    let sql = "SELECT rank AS k0, mesh_sum(bytes) AS p0, count(*) AS p1, mesh_sketch(bytes) AS p2 FROM t \
               WHERE ts_ns >= 5 AND 'x' = func GROUP BY 1";
    let scan = scan(sql).unwrap();
    assert_eq!(scan.columns(), ["bytes", "func", "rank", "ts_ns"]);
    let Output::Groups(groups) = scan.output else { panic!() };
    assert_eq!(groups.keys, [Operand::Column("rank".into())]);
    assert_eq!(groups.columns[0], GroupColumn::Key(0));
    assert_eq!(groups.columns[2], GroupColumn::Aggregate(Function::Count, None));
    assert_eq!(scan.filter[1].test, Test::Compare(Comparison::Equal, Constant("'x'".into())));
}

#[test]
fn the_node_column_is_a_constant() {
    let sql = "SELECT node, rank, mesh_exact_sum(bytes) FROM (SELECT *, CAST(:mesh_node AS TEXT) AS node FROM t) AS t \
               WHERE node IN ('a', 'b') AND t.rank = 3 GROUP BY node, rank ORDER BY 3 DESC LIMIT 5";
    let scan = scan(sql).unwrap();
    assert_eq!(scan.gates.len(), 1);
    assert!(scan.gates[0].0.contains(":mesh_node"), "{:?}", scan.gates);
    let Output::Groups(groups) = scan.output else { panic!() };
    assert_eq!(groups.order, [Order { by: 2, desc: true, nulls_first: false }]);
    assert_eq!(groups.limit, Some((5, 0)));
}

#[test]
fn rows_and_top_k() {
    let Output::Rows(rows) =
        scan("SELECT * FROM t WHERE ts_ns BETWEEN 1 AND 2 ORDER BY bytes DESC LIMIT 3").unwrap().output
    else {
        panic!()
    };
    assert_eq!((rows.columns.len(), &rows.order[0].by, rows.limit), (4, &column("bytes"), Some((3, 0))));
    assert!(scan("SELECT rank, 'a' FROM t").is_some());
}

#[test]
fn an_expression_over_one_text_is_a_column_of_its_own() {
    let sql = "SELECT CASE func WHEN 'send' THEN 1 ELSE 0 END, count(*) FROM t WHERE func LIKE 'all%' AND bytes > 3 GROUP BY 1";
    let found = scan(sql).unwrap();
    let kinds: Vec<(&str, bool)> = found.derived.iter().map(|one| (one.of.as_str(), one.by.is_text())).collect();
    assert_eq!(kinds, [("func", false), ("func", false)]);
    assert_eq!(found.filter.len(), 2);
    let arm = "SELECT source AS k0, op AS k1, count(*) AS p0, mesh_sum(duration) AS p1 FROM (SELECT 3 AS source, \
               CASE func WHEN 'send' THEN 1 ELSE 0 END AS op, CAST(0 AS INTEGER) AS duration FROM t AS x WHERE x.func LIKE 'a%') AS events \
               WHERE events.op > 0 GROUP BY 1, 2";
    let Output::Groups(groups) = scan(arm).unwrap().output else { panic!() };
    assert_eq!((groups.keys.len(), groups.of_nothing), (1, false));
    assert_eq!(groups.columns[3], GroupColumn::Aggregate(Function::SumState, Some(Operand::Integer(0))));
    let Output::Groups(groups) = scan("SELECT 'a', count(*) FROM t GROUP BY 1").unwrap().output else { panic!() };
    assert_eq!((groups.keys.len(), groups.of_nothing), (0, false));
}

#[test]
fn what_is_not_certain_is_left_to_sqlite() {
    for sql in [
        "SELECT rank, bytes, count(*) FROM t GROUP BY rank",
        "SELECT rank, count(*) FROM t GROUP BY rank HAVING count(*) > 1",
        "SELECT count(*) FROM t, t AS u",
        "SELECT count(*) FROM u",
        "SELECT count(*) FROM t WHERE rank = random()",
        "SELECT count(*) FROM t WHERE rank = (SELECT 1)",
        "SELECT count(*) FROM t WHERE rank = ?",
        "SELECT max(bytes, rank) + sum(bytes) FROM t",
        "SELECT rank COLLATE NOCASE, count(*) FROM t GROUP BY 1",
        "SELECT approx_quantile(bytes, 2) FROM t",
        "SELECT count(*) FROM t WHERE func = 'X' COLLATE NOCASE",
        "SELECT count(*) FROM t WHERE func COLLATE NOCASE = 'X'",
        "SELECT count(*) FROM t WHERE func || rank = 'X'",
        "SELECT func LIKE 'a%' COLLATE NOCASE, count(*) FROM t GROUP BY 1",
        "SELECT json_extract(func, '$'), count(*) FROM t GROUP BY 1",
        "SELECT rank FROM t ORDER BY func COLLATE NOCASE LIMIT 1",
        "SELECT rowid FROM t",
        "SELECT count(*) FROM t WHERE rank + 1 = '2'",
        "SELECT CASE WHEN rank = 1 THEN 'a' ELSE 'b' END FROM t",
        "SELECT bytes + func FROM t",
        "SELECT rank IN () FROM t",
        "SELECT DISTINCT rank FROM t GROUP BY bytes",
        "SELECT median(bytes) FILTER (WHERE rank = 1) FROM t",
        "SELECT sum(count(*)) OVER () FROM t GROUP BY rank",
        "WITH a AS (SELECT rank FROM t), b AS (SELECT * FROM a) SELECT * FROM b",
        "WITH a (r) AS (SELECT rank FROM t) SELECT r FROM a",
        "WITH t AS (SELECT 1) SELECT * FROM t",
        "SELECT 1 FROM t UNION SELECT 2 FROM t",
        "nonsense",
    ] {
        assert_eq!(scan(sql), None, "{sql}");
    }
}

#[test]
fn expressions_of_several_columns_are_operands() {
    let sql = "SELECT DISTINCT rank % 2 FROM t WHERE ts_ns > 5 AND (func LIKE 'a%' OR bytes * rank > 7)";
    let found = scan(sql).unwrap();
    assert_eq!((found.filter.len(), found.predicates.len(), found.windowed.is_none()), (1, 1, true));
    let Output::Groups(groups) = found.output else { panic!() };
    assert_eq!(groups.keys, [Operand::Arithmetic(column("rank").into(), '%', Operand::Integer(2).into())]);
    let sql = "SELECT count(*) FILTER (WHERE rank = 1), sum(bytes) FILTER (WHERE bytes <> rank) FROM t";
    let Output::Groups(groups) = scan(sql).unwrap().output else { panic!() };
    let is_case = |column: &GroupColumn| matches!(column, GroupColumn::Aggregate(_, Some(Operand::Case(..))));
    assert!(groups.columns.iter().all(is_case), "{:?}", groups.columns);
}

#[test]
fn windows_add_columns_and_conditions_stay_on_their_side() {
    let sql = "WITH w AS (SELECT rank, ts_ns - lag(ts_ns) OVER p AS gap, count(*) OVER p AS n FROM t WHERE bytes > 5 \
               WINDOW p AS (PARTITION BY rank ORDER BY ts_ns)) \
               SELECT rank, max(gap) FROM w WHERE n > 3 AND rank < 4 GROUP BY rank";
    let found = scan(sql).unwrap();
    let windowed = found.windowed.as_ref().unwrap();
    assert_eq!((windowed.filter.len(), windowed.calls.len(), found.filter.len()), (1, 2, 2));
    assert_eq!(windowed.calls[0].window, windowed.calls[1].window);
    assert_eq!(windowed.calls[1].function, WindowFunction::Count(None, Frame::Peers));
    assert_eq!(found.columns(), ["bytes", "rank", "ts_ns"]);
    let Output::Groups(groups) = found.output else { panic!() };
    assert_eq!(groups.keys, [column("rank")]);
    // One call, however often it is named.
    let found = scan("SELECT rank() OVER (ORDER BY bytes), 1 + rank() OVER (ORDER BY bytes) FROM t").unwrap();
    assert_eq!(found.windowed.unwrap().calls.len(), 1);
}

#[test]
fn values_alone_are_lists_and_literals() {
    let found = scan(
        "WITH v AS (SELECT CAST(column1 AS INT) AS v0 FROM (VALUES (1), (NULL), (-2))) SELECT count(*) FROM t \
         WHERE rank NOT IN (SELECT v0 AS rank FROM v) AND func IN (VALUES ('a'), ('b')) \
         AND bytes > (SELECT CAST(column1 AS REAL) FROM (VALUES ((CAST(5 AS REAL) / CAST(2 AS REAL)))))",
    )
    .expect("conditions on columns");
    assert_eq!((found.joined.is_none(), found.filter.len(), found.predicates.len()), (true, 3, 0), "{found:?}");
    for kept in [
        // Casts that change a value.
        "SELECT count(*) FROM t WHERE rank IN (SELECT CAST(column1 AS INT) AS v0 FROM (VALUES ('a')))",
        "SELECT count(*) FROM t WHERE func IN (SELECT CAST(column1 AS TEXT) AS v0 FROM (VALUES (1)))",
        "SELECT count(*) FROM t WHERE rank IN (SELECT column1 + 1 FROM (VALUES (1)))",
    ] {
        assert!(scan(kept).is_none_or(|found| found.joined.is_some()), "{kept}");
    }
}
