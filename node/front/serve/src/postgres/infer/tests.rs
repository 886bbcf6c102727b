use super::super::tokens::tokens;
use super::*;
use proptest::prelude::*;

fn known() -> Columns {
    let mut columns = Columns::of_tables(
        &["collectives", "gpu_samples", "t"],
        &[
            ("ts_ns", "INTEGER"),
            ("duration_ns", "INTEGER"),
            ("rank", "INTEGER"),
            ("func", "TEXT"),
            ("node", "TEXT"),
            ("util", "REAL"),
            ("payload", "BLOB"),
            ("both", "TEXT"),
        ],
    );
    // As a view that declares no types, and a table that differs.
    columns.add("events", "rank", "");
    columns.add("others", "Both", "INTEGER");
    columns
}

fn of(sql: &str) -> Parameter {
    parameters(&tokens(sql).unwrap(), &known(), 1)[0]
}

#[test]
fn a_parameter_takes_its_type_from_where_it_stands() {
    use Inferred::{Blob, Integer, Real, Text};
    for (sql, kind) in [
        ("SELECT rank FROM collectives GROUP BY rank HAVING count(*) > $1", Integer),
        ("SELECT 1 FROM collectives WHERE duration_ns / 1000 > $1", Integer),
        ("SELECT 1 FROM collectives WHERE duration_ns / 1e6 > $1", Real),
        ("SELECT 1 FROM collectives WHERE ts_ns >= $1", Integer),
        ("SELECT 1 FROM collectives c WHERE c.ts_ns >= $1", Integer),
        ("SELECT 1 FROM collectives c WHERE \"c\".\"ts_ns\" >= $1", Integer),
        ("SELECT 1 FROM collectives WHERE $1 < ts_ns", Integer),
        ("SELECT 1 FROM collectives WHERE func = $1", Text),
        ("SELECT 1 FROM collectives WHERE lower(func) = $1", Text),
        ("SELECT 1 FROM collectives WHERE func || 'x' = $1", Text),
        ("SELECT 1 FROM collectives WHERE func LIKE $1", Text),
        ("SELECT 1 FROM collectives WHERE func NOT LIKE $1", Text),
        ("SELECT 1 FROM collectives WHERE rank IN (1, $1)", Integer),
        ("SELECT 1 FROM collectives WHERE func NOT IN ($1, 'x')", Text),
        ("SELECT 1 FROM collectives WHERE ts_ns BETWEEN $1 AND 5", Integer),
        ("SELECT 1 FROM collectives WHERE ts_ns BETWEEN 5 AND $1 AND rank = 1", Integer),
        ("SELECT 1 FROM collectives WHERE rank = 1 AND func = $1", Text),
        ("SELECT 1 FROM collectives LIMIT $1", Integer),
        ("SELECT 1 FROM collectives LIMIT 5 OFFSET $1", Integer),
        ("SELECT $1::bigint", Integer),
        ("SELECT CAST($1 AS REAL)", Real),
        ("SELECT rank + $1 FROM collectives", Integer),
        ("SELECT max(ts_ns) - $1 FROM collectives", Integer),
        ("SELECT count(*) FROM collectives GROUP BY ts_ns / $1", Integer),
        ("SELECT $1 * count(*) FROM collectives", Integer),
        ("SELECT duration_ns / 1e6 * $1 FROM collectives", Real),
        ("SELECT util * $1 FROM gpu_samples", Real),
        ("SELECT 1.5 * rank + $1 FROM collectives", Real),
        ("SELECT 1 FROM collectives LIMIT 10 - $1", Integer),
        ("SELECT 1 FROM (SELECT rank, count(*) n FROM collectives GROUP BY rank) x WHERE n > $1", Integer),
        ("WITH x AS (SELECT rank r, avg(rank) m FROM collectives GROUP BY 1) SELECT 1 FROM x WHERE x.m > $1", Real),
        ("SELECT $1", Text),
        ("SELECT $1 AS x FROM collectives", Text),
        ("SELECT 1, $1, 2", Text),
        ("SELECT max(rank), $1 FROM collectives", Text),
        ("SELECT coalesce(rank, $1) FROM collectives", Integer),
        ("SELECT max(duration_ns, $1) FROM collectives", Integer),
        ("SELECT CASE WHEN rank = 1 THEN $1 ELSE duration_ns END FROM collectives", Integer),
        ("SELECT rank, count(*) AS n FROM collectives GROUP BY rank HAVING n > $1", Integer),
        ("SELECT 1 FROM gpu_samples WHERE util > $1", Real),
        ("SELECT 1 FROM t WHERE payload = $1", Blob),
        ("SELECT 1 FROM t WHERE (rank) = ($1)", Integer),
        ("SELECT 1 FROM t WHERE rank = -$1", Integer),
        ("SELECT 1 FROM t WHERE sum(duration_ns) FILTER (WHERE rank = 1) > $1", Integer),
        ("SELECT 1 FROM t WHERE (SELECT max(rank) FROM t) > $1", Integer),
        ("SELECT substr(func, $1, 2) FROM t", Integer),
        ("SELECT approx_quantile(duration_ns, $1) FROM t", Real),
        ("SELECT 1 FROM t WHERE rank IS NOT DISTINCT FROM $1", Integer),
        ("SELECT 1 FROM t WHERE avg(rank) OVER (ORDER BY ts_ns) > $1", Real),
    ] {
        assert_eq!(of(sql), Parameter::Is(kind), "{sql}");
    }
}

#[test]
fn a_column_is_one_of_the_tables_that_are_read_there() {
    use Inferred::{Integer, Text};
    for (sql, kind) in [
        ("SELECT 1 FROM t WHERE both = $1", Text),
        ("SELECT 1 FROM public.others AS o WHERE o.both = $1", Integer),
        ("SELECT 1 FROM t LEFT JOIN others o ON o.\"both\" > $1", Integer),
        ("SELECT 1 FROM t x, others WHERE x.both = $1", Text),
        ("SELECT 1 FROM t JOIN events e USING (rank) WHERE t.rank = $1", Integer),
        ("SELECT rank FROM events UNION SELECT rank FROM t WHERE rank = $1", Integer),
        ("SELECT 1 FROM events WHERE rank IN (SELECT rank FROM t WHERE rank > $1)", Integer),
        ("SELECT 1 FROM others o WHERE EXISTS (SELECT 1 FROM t WHERE o.both = $1)", Integer),
        ("SELECT 1 FROM (SELECT rank FROM collectives) x WHERE x.rank = $1", Integer),
        ("WITH x AS (SELECT both FROM others) SELECT 1 FROM x WHERE both = $1 GROUP BY extract(hour FROM t)", Integer),
        ("SELECT both FROM t WHERE func IS DISTINCT FROM others AND both = $1", Text),
    ] {
        assert_eq!(of(sql), Parameter::Is(kind), "{sql}");
    }
}

#[test]
fn nothing_is_guessed() {
    for sql in [
        "SELECT 1 FROM t WHERE $1 IS NULL",
        "SELECT 1 FROM t WHERE no_such > $1",
        "SELECT 1 FROM t, others WHERE both = $1",
        "SELECT 1 FROM events WHERE rank = $1",
        "SELECT 1 FROM t JOIN events e ON e.rank = t.rank WHERE rank = $1",
        "SELECT rank FROM t UNION SELECT rank FROM events WHERE rank = $1",
        "SELECT no_function($1)",
        "SELECT 1 FROM t WHERE $1 = $2",
    ] {
        assert_eq!(of(sql), Parameter::Unknown, "{sql}");
    }
    assert_eq!(of("SELECT 1 FROM t WHERE rank = $1 OR func = $1"), Parameter::Differs);
    assert_eq!(of("SELECT 1 FROM t WHERE rank = $1 OR util = $1"), Parameter::Is(Inferred::Real));
}

#[test]
fn computed_columns_have_types_before_there_are_rows() {
    use Inferred::{Integer, Real, Text};
    let of = |sql: &str| results(&tokens(sql).unwrap(), &known());
    assert_eq!(
        of(
            "SELECT node, count(*) AS n, sum(duration_ns) s, avg(rank), max(func), duration_ns / 1000, rank = 1, 'x' || rank \
            FROM collectives WHERE rank > $1 GROUP BY node"
        ),
        Some(vec![
            Some(Text),
            Some(Integer),
            Some(Integer),
            Some(Real),
            Some(Text),
            Some(Integer),
            Some(Integer),
            Some(Text)
        ])
    );
    let kinds = of("SELECT max(ts_ns) - $1, ts_ns / $2 AS s, $3 + rank * 2, util * $4, $5 - $6 FROM collectives");
    assert_eq!(kinds, Some(vec![Some(Integer), Some(Integer), Some(Integer), Some(Real), Some(Real)]));
    assert_eq!(of("WITH x AS (SELECT 1) SELECT round(util, 2) FROM x"), Some(vec![Some(Real)]));
    assert_eq!(of("SELECT *, count(*) FROM t"), None);
    assert_eq!(of("SELECT t.*, 1 FROM t"), None);
    assert_eq!(of("SELECT no_such FROM t"), Some(vec![None]));
    assert_eq!(of("VALUES (1)"), None);
}

proptest! {
    #[test]
    fn no_text_ends_it(words in proptest::collection::vec(prop_oneof![
        Just("$1"), Just("("), Just(")"), Just("select"), Just("case"), Just("end"), Just("then"), Just("between"), Just("and"),
        Just("not"), Just("in"), Just(","), Just("::"), Just("as"), Just("n"), Just("rank"), Just("="), Just("-"), Just("||"),
        Just("over"), Just("count"), Just("."), Just("is"), Just("distinct"), Just("from"), Just("cast"), Just("1.5")
    ], 0..24)) {
        let sql = words.join(" ");
        if let Ok(tokens) = tokens(&sql) {
            let _ = parameters(&tokens, &known(), 1);
            let _ = results(&tokens, &known());
        }
    }
}

#[test]
fn names_of_names_take_a_bounded_number_of_looks() {
    let name = |number: usize| format!("n{number}");
    let list: Vec<String> = (0..60).map(|at| format!("{n} + {n} AS {}", name(at), n = name(at + 1))).collect();
    let sql = format!("SELECT {} FROM t WHERE n0 = $1", list.join(", "));
    let tokens = tokens(&sql).unwrap();
    let known = Columns::default();
    let look = Look::new(&tokens, &known);
    assert!(look.alias("n0").is_some_and(Inferred::is_number), "what its form says is said");
    assert_eq!(look.left.get(), 0, "all its looks were taken, and no more");
    // Below the limit nothing is lost: 3,000 parameters beside columns.
    let columns = Columns::of_tables(&["t"], &[("rank", "INTEGER")]);
    let sql = format!("SELECT 1 FROM t WHERE {}", vec!["rank = $1"; 2_400].join(" OR "));
    let tokens = super::super::tokens::tokens(&sql).unwrap();
    assert_eq!(parameters(&tokens, &columns, 1), [Parameter::Is(Inferred::Integer)]);
}
