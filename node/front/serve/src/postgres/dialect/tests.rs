use super::super::tokens::tokens;
use super::*;

fn of(sql: &str) -> String {
    let tokens = tokens(sql).unwrap();
    joined(&rewritten(&tokens).unwrap_or_else(|error| panic!("{sql}: {error}")).unwrap_or(tokens))
}

fn refused(sql: &str) -> String {
    rewritten(&tokens(sql).unwrap()).expect_err(sql)
}

/// Compared without spaces.
fn becomes(sql: &str, expected: &str) {
    assert_eq!(of(sql).replace(' ', ""), expected.replace(' ', ""), "{sql}");
}

#[test]
fn what_sqlite_has_too_is_not_touched() {
    for sql in [
        "SELECT count(*), max(ts_ns) AS now FROM collectives WHERE func LIKE 'all%' LIMIT 5 OFFSET 2",
        "SELECT CAST(x AS TEXT) FROM t ORDER BY 1 LIMIT 3",
        "SELECT date('now'), t.now, t.extract FROM t",
    ] {
        assert_eq!(rewritten(&tokens(sql).unwrap()), Ok(None), "{sql}");
    }
}

#[test]
fn casts_have_sqlites_types_and_postgresqls_rounding_and_names() {
    becomes("SELECT rank::text FROM t", "SELECT CAST(rank AS TEXT) AS \"rank\" FROM t");
    becomes("SELECT c.rank::varchar(3) r FROM c", "SELECT substr(CAST(c.rank AS TEXT), 1, 3) r FROM c");
    becomes(
        "WHERE avg(x)::int > 2::bigint",
        "WHERE CAST(iif(typeof(avg(x)) = 'real', round(avg(x)), avg(x)) AS INTEGER) > CAST(2 AS INTEGER)",
    );
    becomes("SELECT count(*)::float8", "SELECT CAST(count(*) AS REAL) AS \"count\"");
    becomes(
        "SELECT count(*) OVER (ORDER BY x)::double precision AS y",
        "SELECT CAST(count(*) OVER(ORDER BY x) AS REAL) AS y",
    );
    becomes("SELECT x::numeric(10, 2)::text z", "SELECT CAST(round(CAST(x AS REAL), 2) AS TEXT) z");
    becomes("WHERE a = 't'::boolean", "WHERE a = 1");
    becomes("WHERE a = $1::pg_catalog.int8", "WHERE a = CAST($1 AS INTEGER)");
    becomes("WHERE a = $1::timestamp without time zone", "WHERE a = $1");
    assert!(refused("SELECT ts_ns::timestamp FROM t").contains("integers of nanoseconds"));
    assert!(refused("SELECT x::int[] FROM t").contains("no type"));
    assert!(refused("SELECT ::int").contains("before"));
}

#[test]
fn times_are_nanoseconds() {
    becomes("ts_ns > now() - interval '5 minutes'", "ts_ns > now() - 300000000000");
    becomes("ts_ns > CURRENT_TIMESTAMP - '1 h'::interval", "ts_ns > now() - 3600000000000");
    becomes("ts_ns > timestamptz '2024-01-01T12:00:00Z'", "ts_ns > 1704110400000000000");
    becomes("ts_ns > '2024-01-01'::date", "ts_ns > 1704067200000000000");
    becomes(
        "SELECT floor(extract(epoch from ts_ns)/300)*300 AS time",
        "SELECT floor(((ts_ns) / 1000000000.0) / 300) * 300 AS time",
    );
    becomes(
        "SELECT date_trunc('minute', ts_ns) FROM t",
        "SELECT ((ts_ns) / 60000000000 * 60000000000) AS \"date_trunc\" FROM t",
    );
    assert_eq!(of("date_part('hour', to_timestamp(x))").matches("/ 3600000000000").count(), 1);
    assert!(refused("SELECT date_trunc('fortnight', x)").contains("no part \"fortnight\""));
    assert!(refused("WHERE x > interval '1 month'").contains("no fixed length"));
    let statement = tokens("SELECT now(), ts_ns FROM t").unwrap();
    assert_eq!(joined(&with_now(&statement, 7).unwrap()), "SELECT 7 , ts_ns FROM t");
    assert_eq!(with_now(&tokens("SELECT now FROM t").unwrap(), 7), None);
    becomes("WHERE ts_ns > now() - '5 minutes'", "WHERE ts_ns > now() - 300000000000");
    becomes("WHERE ts_ns > current_date", "WHERE ts_ns > (( now() ) / 86400000000000 * 86400000000000 )");
    assert_eq!(of("WHERE x = y - '5' AND z = 'a' || '5 minutes'"), "WHERE x = y - '5' AND z = 'a' || '5 minutes'");
    assert!(refused("SELECT DISTINCT ON (rank) * FROM t").contains("row_number()"));
    assert!(refused("SELECT array[1, 2]").contains("json_array"));
}

#[test]
fn a_text_beside_a_time_is_a_time_and_elsewhere_a_text() {
    let columns = Columns::of_tables(&["t"], &[("ts_ns", "INTEGER"), ("func", "TEXT")]);
    let whole = |sql: &str| with_moments(&tokens(sql).unwrap(), &columns).unwrap().map(|tokens| joined(&tokens));
    let of =
        |sql: &str| Some(whole(&format!("SELECT 1 FROM t WHERE {sql}"))?["SELECT 1 FROM t WHERE ".len()..].to_owned());
    assert_eq!(
        of("ts_ns BETWEEN '2024-01-01T12:00:00Z' AND '2024-01-01T12:00:01.5Z'").unwrap(),
        "ts_ns BETWEEN 1704110400000000000 AND 1704110401500000000"
    );
    assert_eq!(of("ts_ns >= '2024-01-01'").unwrap(), "ts_ns >= 1704067200000000000");
    assert_eq!(of("func = '2024-01-01' OR func LIKE '2024-01-01%'"), None);
    assert_eq!(whole("SELECT '2024-01-01' FROM t"), None);
}

#[test]
fn a_text_that_is_compared_with_a_column_of_numbers_is_a_number() {
    let mut columns = Columns::of_tables(&["t", "u"], &[("rank", "INTEGER"), ("func", "TEXT"), ("attributes", "TEXT")]);
    columns.add("r", "status", "INTEGER");
    let of = |sql: &str| numbers::first(&tokens(sql).unwrap(), &columns);
    for (condition, text) in [
        ("rank > 'x'", "x"),
        ("'1 1' = rank", "1 1"),
        ("func = 'a' AND t.rank NOT IN (1, '2', 'x')", "x"),
        ("rank BETWEEN '0' AND 'nine'", "nine"),
        ("(rank = 'inf')", "inf"),
        ("rank = '2024-13-01'", "2024-13-01"),
        ("rank = ''", ""),
    ] {
        assert_eq!(
            of(&format!("SELECT func FROM t WHERE {condition} ORDER BY 1")).as_deref(),
            Some(text),
            "{condition}"
        );
    }
    for right in [
        "rank = '5' AND rank <> ' -1.5e0 ' AND func > 'x'",
        "func IN ('a', 'b') AND 'x' = func AND 'x' = 'y'",
        "attributes ->> '$.epoch' = rank AND rank = attributes ->> '$.epoch'",
        "rank = 'x' || func AND rank || 'x' = 'y'",
        "iif(rank >= 0, rank, 'none') = 'none' AND ifnull(rank, '-') = '-' AND nullif(rank, '') = 1",
        "CASE rank WHEN 1 THEN 'one' ELSE 'x' END = 'one'",
        "length(func) = 'x' AND missing = 'x' AND v.rank = 'x'",
        "(rank, func) = (1, 'x')",
    ] {
        assert_eq!(of(&format!("SELECT func FROM t WHERE {right}")), None, "{right}");
    }
    for right in [
        "SELECT * FROM (SELECT CASE WHEN status >= 500 THEN 'failed' END AS status FROM r) AS source WHERE source.status = 'failed'",
        "SELECT * FROM t JOIN (SELECT 'a' AS rank) x USING (func) WHERE rank = 'a'",
        "SELECT (SELECT 1 FROM (SELECT 'a' AS status) x WHERE status = 'a') FROM r",
        "SELECT lag(func, 1, 'none') OVER (ORDER BY rank) FROM t WHERE func = 'x'",
    ] {
        assert_eq!(of(right), None, "{right}");
    }
    assert_eq!(of("WITH t AS (SELECT 'a' AS rank) SELECT * FROM t WHERE rank = 'a'"), None);
}

#[test]
fn lists_series_and_limits() {
    assert_eq!(
        of("WHERE x ~~* 'a%' AND y ILIKE 'b' AND z !~~ 'c'"),
        "WHERE x LIKE 'a%' AND y LIKE 'b' AND z NOT LIKE 'c'"
    );
    becomes("rank = ANY('{1,2}'::int[]) AND f <> ALL (ARRAY['a', 'b'])", "rank IN(1, 2) AND f NOT IN('a', 'b')");
    assert_eq!(array("{a,\"b, \\\"c\",NULL}").unwrap(), "'a', 'b, \"c', NULL");
    assert!(array("1,2").is_err() && array("{\"a").is_err() && array("{{1}}").is_err());
    becomes("rank = ANY($1) AND f <> ALL ($2::text[])", "rank IN($1[]) AND f NOT IN($2[text])");
    assert!(refused("WHERE x = ANY(y)").contains("IN takes a list"));
    becomes(
        "SELECT i FROM generate_series(1, 3) AS i",
        "SELECT i FROM(WITH RECURSIVE pg_series(v) AS(SELECT 1 WHERE 1 <= 3 UNION ALL SELECT v + 1 FROM pg_series WHERE v + 1 <= 3) \
         SELECT v AS \"i\" FROM pg_series) AS \"i\"",
    );
    assert!(
        of("SELECT n FROM generate_series(9, 1, -2) g(n) WHERE n > 3")
            .contains("SELECT v AS \"n\" FROM pg_series ) AS \"g\" WHERE n > 3")
    );
    assert!(refused("SELECT generate_series(1, 3)").contains("stands in FROM"));
    assert!(refused("SELECT * FROM generate_series(1, 3, 0)").contains("other than 0"));
    becomes("SELECT 1 LIMIT ALL", "SELECT 1 LIMIT -1");
    becomes("SELECT x FROM t OFFSET 3", "SELECT x FROM t LIMIT -1 OFFSET 3");
    assert_eq!(of("SELECT x FROM t OFFSET 3 LIMIT 2"), "SELECT x FROM t LIMIT 2 OFFSET 3");
    assert_eq!(of("SELECT x FROM t OFFSET 3 ROWS FETCH NEXT 2 ROWS ONLY"), "SELECT x FROM t LIMIT 2 OFFSET 3");
    assert_eq!(of("SELECT x FROM t FETCH FIRST ROW ONLY"), "SELECT x FROM t LIMIT 1");
    assert_eq!(of("SELECT E'a\\'b', $$c'd$$"), "SELECT 'a''b' , 'c''d'");
}

proptest::proptest! {
    #[test]
    fn no_tokens_make_it_fail(sql in "(select|[a-z]{1,3}|any|array|now\\(\\)|extract|date_trunc|generate_series|interval|offset|limit|fetch first|only|rows|case|end|[(\\[\\]).,=]|::| |'2024-01-01'|'x'|1){0,40}") {
        if let Ok(tokens) = tokens(&sql) {
            let _ = rewritten(&tokens);
            let _ = with_now(&tokens, 1);
            let _ = with_moments(&tokens, &Columns::default());
            let _ = numbers::first(&tokens, &Columns::default());
        }
    }
}

#[test]
fn functions_are_written_with_those_that_sqlite_has() {
    becomes(
        "SELECT greatest(a, b, 3) FROM t",
        "SELECT max(coalesce(a, b, 3), coalesce(b, 3, a), coalesce(3, a, b)) AS \"greatest\" FROM t",
    );
    becomes("WHERE x < least(max(y), 2)", "WHERE x < min(coalesce(max(y), 2), coalesce(2, max(y)))");
    becomes("WHERE position('a' || 'b' IN func) > 0", "WHERE instr(func, 'a' || 'b') > 0");
    becomes("WHERE strpos(func, 'a') = char_length(func)", "WHERE instr(func, 'a') = length(func)");
    becomes(
        "SELECT to_char(ts_ns, 'YYYY-MM-DD\"T\"HH24:MI:SS.MS') AS t",
        "SELECT (strftime('%Y-%m-%dT%H:%M:%S.', (ts_ns) / 1000000000, 'unixepoch') || \
         substr('00' || ((ts_ns) % 1000000000 / 1000000), -3)) AS t",
    );
    assert!(refused("SELECT to_char(ts_ns, 'Day')").contains("YYYY"));
    assert!(refused("SELECT to_char(ts_ns, x)").contains("as a text"));
    assert!(refused("SELECT position('a')").contains("IN func"));
    assert_eq!(rewritten(&tokens("SELECT t.left, left FROM t LEFT JOIN u").unwrap()), Ok(None));
}

/// What is written for `left` and `right` gives what PostgreSQL gives.
#[test]
fn ends_of_texts_are_postgresqls() {
    let sqlite = rusqlite::Connection::open_in_memory().unwrap();
    let of_sqlite = |sql: &str| -> Option<String> { sqlite.query_row(&of(sql), [], |row| row.get(0)).unwrap() };
    for (call, expected) in [
        ("left('abcde', 2)", "ab"),
        ("left('abcde', 9)", "abcde"),
        ("left('abcde', 0)", ""),
        ("left('abcde', -2)", "abc"),
        ("left('abcde', -9)", ""),
        ("right('abcde', 2)", "de"),
        ("right('abcde', 9)", "abcde"),
        ("right('abcde', 0)", ""),
        ("right('abcde', -2)", "cde"),
        ("right('abcde', -9)", ""),
        ("greatest('a', NULL, 'c', 'b')", "c"),
        ("to_char(1704110400123456789, 'HH24:MI:SS.US')", "12:00:00.123456"),
    ] {
        assert_eq!(of_sqlite(&format!("SELECT {call}")).as_deref(), Some(expected), "{call}");
    }
    assert_eq!(of_sqlite("SELECT left(NULL, 2)"), None);
    assert_eq!(of_sqlite("SELECT least(NULL, NULL)"), None);
}

#[test]
fn no_nesting_grows_a_statement_beyond_its_limit() {
    let nested = |open: &str, close: &str| format!("SELECT {}ts_ns{}", open.repeat(60), close.repeat(60));
    for sql in [
        format!("SELECT a{}", "::int".repeat(40)),
        nested("left(", ", 2)"),
        nested("right('a' || ", ", rank)"),
        nested("greatest(rank, ", ", 3)"),
        format!("SELECT greatest({}1)", "rank, ".repeat(10_000)),
        format!("SELECT to_char(ts_ns, '{}')", "MS".repeat(30_000)),
        format!("SELECT a{}", "::text".repeat(10_000)),
    ] {
        assert!(refused(&sql).contains("write or nest fewer"), "{}", &sql[..40]);
    }
    // What people write is far from it.
    assert!(of("SELECT left(right(greatest(a::int, b::int, c::int)::text, 8), 4)").len() < 10_000);
}
