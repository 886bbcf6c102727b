//! Joined rows, and what is asked of them.

use super::*;

fn on() -> impl Strategy<Value = String> {
    let equal = prop::sample::subsequence(
        vec![
            "b.rank = a.rank",
            "a.func = b.func",
            "b.note = a.note",
            "b.ts_ns % 7 = a.ts_ns % 5",
            "a.bytes = b.bytes + a.rank",
        ],
        1..3,
    );
    let more = prop::sample::subsequence(
        vec![
            "b.ts_ns >= a.ts_ns",
            "b.ts_ns < a.ts_ns + 300",
            "a.ts_ns - 50 < b.ts_ns",
            "b.bytes > a.bytes",
            "b.rank <> a.rank",
            "b.ts_ns IS NOT a.ts_ns",
            "b.bytes > 20",
            "a.note IS NULL",
            "b.func LIKE 's%'",
            "b.rank + a.rank BETWEEN 2 AND 5",
        ],
        0..3,
    );
    (equal, more).prop_map(|(equal, more)| equal.into_iter().chain(more).collect::<Vec<_>>().join(" AND "))
}

fn outer() -> impl Strategy<Value = Vec<&'static str>> {
    let conditions = vec![
        "a.ts_ns < 2000",
        "a.rank IN (1, 2)",
        "a.func <> 'recv'",
        "a.bytes * a.rank > 10",
        "a.note IS NOT NULL",
        "a.rank IN (SELECT rank FROM collectives WHERE ts_ns % 3 = 0)",
        "a.rank NOT IN (SELECT rank FROM collectives WHERE bytes > 150)",
        "a.func IN (SELECT func FROM collectives AS c WHERE c.rank = 1 AND c.bytes < 20)",
        "a.bytes NOT IN (SELECT max(bytes) FROM collectives WHERE rank IS NOT NULL GROUP BY note)",
        "EXISTS (SELECT 1 FROM collectives AS c WHERE c.rank = a.rank AND c.ts_ns > a.ts_ns AND ts_ns < a.ts_ns + 100)",
        "NOT EXISTS (SELECT * FROM collectives WHERE func = a.func AND bytes = a.bytes AND ts_ns <> a.ts_ns)",
        "NOT EXISTS (SELECT 1 FROM collectives AS c WHERE c.rank + 1 = a.rank AND c.bytes > a.bytes AND c.note = 'x')",
        "a.rank IN (SELECT rank FROM settings WHERE weight > 0.7)",
        "a.rank NOT IN (SELECT odd FROM settings WHERE odd IS NOT NULL)",
        "a.func IN (SELECT func FROM settings)",
        "a.func NOT IN (SELECT label FROM settings)",
        "a.note IN (SELECT label FROM settings)",
        "a.rank IN (VALUES (1), (3), (NULL))",
        "a.func NOT IN (VALUES ('send'), ('nothing'))",
        "EXISTS (SELECT 1 FROM settings AS s WHERE s.rank = a.rank AND s.weight < a.bytes)",
        "NOT EXISTS (SELECT 1 FROM settings WHERE settings.func = a.func AND odd > a.rank)",
    ];
    prop::sample::subsequence(conditions, 0..3)
}

fn question() -> impl Strategy<Value = String> {
    let with = prop::sample::select(vec!["JOIN", "LEFT JOIN", ","]);
    let side = prop::sample::select(vec![
        "collectives",
        "(SELECT ts_ns, rank, bytes, func, note FROM collectives WHERE ts_ns > 500)",
        "(SELECT DISTINCT ts_ns, rank, func, note, rank AS bytes FROM collectives)",
        "(SELECT rank, func, min(ts_ns) AS ts_ns, sum(rank) AS bytes, note FROM collectives WHERE bytes < 100 GROUP BY rank, func, note)",
        "(SELECT ts_ns, rank, row_number() OVER (PARTITION BY func ORDER BY ts_ns, bytes, rank, note) AS bytes, func, note FROM collectives)",
        "(SELECT rank, func, min(ts_ns) AS ts_ns, avg(bytes) AS bytes, note FROM collectives GROUP BY rank, func, note)",
        "(SELECT rank, func, 700 AS ts_ns, weight AS bytes, label AS note FROM settings)",
        "(SELECT rank, func, rank * 100 AS ts_ns, odd AS bytes, CAST(NULL AS TEXT) AS note FROM settings)",
        "(SELECT rank, func, max(odd) AS ts_ns, count(*) AS bytes, group_concat(func) AS note FROM settings WHERE rank < 3 GROUP BY rank, func)",
        "(SELECT 1 AS rank, 'send' AS func, 900 AS ts_ns, 20.5 AS bytes, 'x' AS note UNION ALL SELECT 2, 'recv', 800, 3, NULL)",
        "(SELECT any AS rank, func, any AS ts_ns, rank AS bytes, func AS note FROM settings)",
    ]);
    (with, side, on(), outer(), 0_usize..7).prop_map(|(with, side, on, outer, form)| {
        let mut conditions: Vec<&str> = outer;
        let from = match with {
            "," => {
                conditions.push(&on);
                format!("collectives AS a, {side} AS b")
            }
            with => format!("collectives AS a {with} {side} AS b ON {on}"),
        };
        let filter = if conditions.is_empty() { String::new() } else { format!("WHERE {}", conditions.join(" AND ")) };
        match form {
            0 => format!("SELECT count(*), count(b.ts_ns), sum(a.ts_ns - b.ts_ns), max(b.bytes) FROM {from} {filter}"),
            1 => format!("SELECT a.rank, b.func, count(*), min(b.ts_ns) FROM {from} {filter} GROUP BY 1, 2 ORDER BY 1, 2"),
            2 => format!("SELECT a.ts_ns, a.func, b.note, b.bytes, a.rank FROM {from} {filter}"),
            3 => format!("SELECT DISTINCT b.note, a.note IS NULL, b.ts_ns IS NULL FROM {from} {filter}"),
            4 => format!(
                "WITH x AS (SELECT rank, note, ts_ns FROM collectives WHERE bytes > 5) SELECT count(*), max(x.ts_ns), count(y.rank) \
                 FROM collectives AS y JOIN x ON x.rank = y.rank AND x.note = y.note LEFT JOIN {side} AS b ON b.rank = x.rank \
                 AND b.bytes < y.bytes WHERE y.ts_ns > 100 AND b.ts_ns IS NOT 700"
            ),
            5 => format!("SELECT upper(a.func), b.func LIKE '%e%', sum(b.rank) FROM {from} {filter} GROUP BY 1, 2 ORDER BY 1, 2"),
            _ => format!("SELECT a.ts_ns, b.ts_ns, a.bytes, b.bytes, a.func, b.func, a.rank, b.rank, a.note, b.note FROM {from} {filter} \
                 ORDER BY a.ts_ns, b.ts_ns, a.bytes, b.bytes, a.func, b.func, a.rank, b.rank, a.note, b.note LIMIT 9"),
        }
    })
}

/// Subqueries that are values.
fn value() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "(SELECT min(c.ts_ns) FROM collectives AS c WHERE c.rank = a.rank AND c.ts_ns > a.ts_ns)",
        "(SELECT min(ts_ns - bytes % 100) FROM collectives WHERE func = a.func AND ts_ns < a.ts_ns) + 1",
        "(SELECT max(c.bytes) FROM collectives AS c WHERE c.rank = a.rank AND c.bytes < a.bytes AND c.ts_ns <> a.ts_ns)",
        "(SELECT count(*) FROM collectives AS c WHERE c.note = a.note AND c.ts_ns BETWEEN a.ts_ns - 9 AND a.ts_ns + 90)",
        "(SELECT count(bytes) FROM collectives AS c WHERE c.rank = a.rank + 1) - a.rank",
        "EXISTS (SELECT 1 FROM collectives AS c WHERE c.rank = a.rank AND c.ts_ns > a.ts_ns AND c.bytes > 30)",
        "NOT EXISTS (SELECT 1 FROM collectives AS c WHERE c.rank = a.rank AND c.ts_ns > a.ts_ns AND c.bytes > a.bytes)",
        "(SELECT count(*) FROM settings AS s WHERE s.rank = a.rank AND s.weight > 1)",
        "(SELECT max(odd) FROM settings WHERE func = a.func)",
    ])
}

/// A question about rows of one table where a subquery says which, or is a value.
fn marked() -> impl Strategy<Value = String> {
    (outer(), 0_usize..6, value()).prop_map(|(outer, form, value)| {
        let filter = if outer.is_empty() { "1".to_owned() } else { outer.join(" AND ") };
        match form {
            0 => format!("SELECT func, count(*), max(bytes), avg(ts_ns) FROM collectives AS a WHERE {filter} GROUP BY func ORDER BY func"),
            1 => format!("SELECT ts_ns, func, rank FROM collectives AS a WHERE {filter}"),
            2 => format!("SELECT a.ts_ns, a.rank, {value} FROM collectives AS a WHERE {filter} ORDER BY a.ts_ns, a.rank, a.func, a.bytes, a.note LIMIT 20"),
            3 => format!("SELECT func, count(*), sum({value}) FROM collectives AS a WHERE {filter} GROUP BY func ORDER BY func"),
            4 => format!("SELECT max({value}), {} AS x, count(*) FROM collectives AS a WHERE {filter} GROUP BY 2 ORDER BY 2", "a.rank % 2"),
            _ => format!("SELECT max(a.ts_ns) FROM collectives AS a JOIN collectives AS b USING (rank, func) WHERE {filter} AND b.ts_ns > 100"),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 384, ..ProptestConfig::default() })]

    #[test]
    fn joins_are_sqlites(
        rows in prop::collection::vec(row(), 0..70),
        sql in prop_oneof![2 => question(), 1 => marked()],
        size in prop::sample::select(vec![1_usize, 7, 64]),
    ) {
        let batches: Vec<Vec<Row>> = rows.chunks(size).map(<[Row]>::to_vec).collect();
        same(&batches, &sql, false)?;
    }
}

/// What people ask is answered from columns, over several segments.
#[test]
fn joins_over_many_rows_are_answered_from_columns() {
    let rows: Vec<Row> = (0..40_000_i64)
        .map(|i| {
            let bytes = (i % 11 != 0).then_some(i * 7919 % 10_007);
            (
                i * 37 % 40_000,
                (i % 13 != 0).then_some(i % 8),
                bytes,
                ["all_reduce", "send", "recv"][i as usize / 7 % 3],
                None,
            )
        })
        .collect();
    let batches: Vec<Vec<Row>> = rows.chunks(9_000).map(<[Row]>::to_vec).collect();
    for sql in [
        "WITH bad AS (SELECT DISTINCT ts_ns / 100 AS second FROM collectives WHERE bytes > 9900) \
         SELECT bad.second IS NOT NULL, count(*), avg(c.bytes), max(c.bytes) FROM collectives AS c \
         LEFT JOIN bad ON bad.second = c.ts_ns / 100 WHERE c.ts_ns >= 5000 GROUP BY 1 ORDER BY 1",
        "SELECT a.rank, b.rank, count(*), sum(b.ts_ns - a.ts_ns) FROM collectives AS a JOIN collectives AS b \
         ON b.bytes = a.bytes AND b.func = a.func AND b.rank = a.rank + 1 GROUP BY 1, 2 ORDER BY 1, 2",
        "SELECT a.func, count(*), max(b.ts_ns - a.ts_ns) FROM collectives AS a JOIN collectives AS b \
         ON b.rank = a.rank AND b.ts_ns > a.ts_ns AND b.ts_ns <= a.ts_ns + 40 WHERE a.bytes < 500 GROUP BY a.func ORDER BY 1",
        "SELECT func, count(*) FROM collectives AS a WHERE EXISTS (SELECT 1 FROM collectives AS b WHERE b.rank = a.rank \
         AND b.ts_ns >= a.ts_ns AND b.ts_ns < a.ts_ns + 10 AND b.bytes > 9000) GROUP BY func ORDER BY func",
        "SELECT rank, count(*) FROM collectives WHERE ts_ns NOT IN (SELECT ts_ns FROM collectives WHERE bytes > 100) GROUP BY rank ORDER BY rank",
        "SELECT a.ts_ns, (SELECT min(c.ts_ns) FROM collectives AS c WHERE c.rank = a.rank AND c.ts_ns >= a.ts_ns + 9) - a.ts_ns \
         FROM collectives AS a WHERE a.bytes < 60 ORDER BY a.ts_ns LIMIT 50",
        "SELECT func, count(*), sum(EXISTS (SELECT 1 FROM collectives AS b WHERE b.rank = a.rank AND b.ts_ns > a.ts_ns AND \
         b.ts_ns < a.ts_ns + 30 AND b.bytes > 5000)) FROM collectives AS a WHERE bytes > 9000 GROUP BY func ORDER BY func",
        "WITH first AS (SELECT func, bytes, min(ts_ns) AS first_ns, count(*) AS n FROM collectives GROUP BY func, bytes) \
         SELECT c.rank, count(*), avg(c.ts_ns - first.first_ns) FROM collectives AS c JOIN first USING (func, bytes) \
         WHERE first.n > 1 GROUP BY c.rank ORDER BY c.rank",
        "SELECT c.func, c.rank, count(*) FROM collectives AS c JOIN (SELECT func, avg(bytes) AS mean FROM collectives GROUP BY func) AS m \
         ON m.func = c.func WHERE c.bytes > 1.9 * m.mean GROUP BY c.func, c.rank ORDER BY 1, 2",
        "WITH heavy AS (SELECT rank, count(*) AS n FROM settings WHERE weight <> 9 GROUP BY 1) \
         SELECT coalesce(heavy.n, 0), count(*), avg(c.bytes) FROM collectives AS c LEFT JOIN heavy ON heavy.rank = c.rank GROUP BY 1 ORDER BY 1",
        "SELECT s.func, max(s.weight), count(*) FROM settings AS s JOIN collectives AS c ON c.rank = s.rank WHERE s.rank > 0 AND c.ts_ns < 900 \
         GROUP BY s.func ORDER BY 1",
        "SELECT count(*) FROM collectives AS a JOIN (SELECT rank, avg(bytes) AS m FROM collectives GROUP BY rank) AS b ON a.rank = b.rank AND a.bytes > b.m",
    ] {
        same(&batches, sql, true).unwrap();
    }
}

#[test]
fn joins_that_are_not_understood_are_sqlites() {
    let rows: Vec<Row> = (0..50).map(|i| (i, Some(i % 3), Some(i), "send", None)).collect();
    let (columnar, _) = stores(&[rows]);
    for sql in [
        // Each row with each.
        "SELECT count(*) FROM collectives AS a JOIN collectives AS b ON b.ts_ns > a.ts_ns",
        "SELECT count(*) FROM collectives AS a, collectives AS b",
        "SELECT count(*) FROM collectives AS a JOIN collectives AS b ON a.rank = b.func",
        "SELECT count(*) FROM collectives AS a FULL JOIN collectives AS b ON a.rank = b.rank",
        "SELECT count(*) FROM collectives AS a NATURAL JOIN collectives AS b",
        "SELECT count(*) FROM collectives AS a JOIN (SELECT rank FROM collectives LIMIT 3) AS b ON a.rank = b.rank",
        "SELECT count(*) FROM collectives AS a JOIN settings AS s ON s.label = a.func",
        "SELECT count(*) FROM collectives AS a JOIN settings AS s ON s.odd = a.rank",
        "SELECT count(*) FROM collectives AS a JOIN (SELECT rank FROM settings ORDER BY random()) AS s ON s.rank = a.rank",
        "SELECT count(*) FROM collectives AS a WHERE a.rank = 1 OR EXISTS (SELECT 1 FROM collectives AS b WHERE b.rank = a.rank)",
        "SELECT count(*) FROM collectives AS a WHERE (SELECT max(bytes) FROM collectives AS b WHERE b.rank = a.rank) > 3",
        "SELECT count(*) FROM collectives AS a JOIN collectives AS b ON a.func = b.func COLLATE NOCASE",
    ] {
        let (rows, notes) = run(&columnar, sql, true).unwrap();
        assert!(!rows.is_empty() && notes.is_empty(), "{sql}: {notes:?}");
    }
}
