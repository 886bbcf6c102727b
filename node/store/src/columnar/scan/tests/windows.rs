//! Columns that windows add, and what is asked of them.

use super::*;

fn window() -> impl Strategy<Value = String> {
    let partition = prop::sample::select(vec![
        "",
        "PARTITION BY rank",
        "PARTITION BY func, rank",
        "PARTITION BY note",
        "PARTITION BY ts_ns % 3",
    ]);
    // No two rows are equal in it (`told_apart`): which of equal ones comes first is open.
    let order = prop::sample::select(vec![
        "ORDER BY ts_ns, bytes",
        "ORDER BY bytes DESC, ts_ns",
        "ORDER BY note DESC NULLS FIRST, bytes, ts_ns",
        "ORDER BY rank NULLS LAST, ts_ns DESC, bytes",
        "ORDER BY ts_ns % 10 - rank, bytes, ts_ns",
    ]);
    (partition, order).prop_map(|(partition, order)| format!("{partition} {order}"))
}

fn call() -> impl Strategy<Value = String> {
    let plain = prop::sample::select(vec![
        "row_number()",
        "rank()",
        "dense_rank()",
        "ntile(3)",
        "ntile(64)",
        "lag(ts_ns)",
        "ts_ns - lag(ts_ns, 1, 0)",
        "lead(rank, 2)",
        "lag(func)",
        "lead(note)",
        "lag(bytes % 10, 0)",
        "lead(ts_ns, 1, rank) - ts_ns",
    ])
    .prop_map(|call| (call, ""));
    let frame =
        prop::sample::select(vec!["", "ROWS UNBOUNDED PRECEDING", "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"]);
    let sliding = prop::sample::select(vec![
        "ROWS 3 PRECEDING",
        "ROWS BETWEEN 5 PRECEDING AND 1 PRECEDING",
        "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
        "ROWS BETWEEN 2 PRECEDING AND 4 FOLLOWING",
        "ROWS BETWEEN 2 FOLLOWING AND 3 FOLLOWING",
        "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
        "ROWS BETWEEN 3 PRECEDING AND 4 PRECEDING",
    ]);
    let slid = prop::sample::select(vec![
        "count(*)",
        "count(bytes)",
        "sum(rank)",
        "avg(bytes)",
        "avg(ts_ns - rank)",
        "min(rank)",
    ]);
    let running = prop::sample::select(vec![
        "avg(bytes)",
        "avg(rank)",
        "count(*)",
        "count(rank)",
        "count(bytes)",
        "sum(rank)",
        "sum(ts_ns * 3)",
        "sum(bytes)",
        "min(bytes)",
        "max(bytes - rank)",
    ]);
    let apart = (prop_oneof![plain, (running.clone(), frame), (slid, sliding)], window())
        .prop_map(|((call, frame), window)| with_over(call, &format!("{window} {frame}")));
    // What is the same for equal rows.
    let equal = prop::sample::select(vec!["rank()", "dense_rank()", "percent_rank()", "cume_dist()"]);
    let with_ties = prop::sample::select(vec![
        "",
        "PARTITION BY func",
        "ORDER BY rank",
        "PARTITION BY rank ORDER BY note, ts_ns % 2",
        "PARTITION BY note IS NULL ORDER BY func DESC",
    ]);
    let tied = (prop_oneof![equal, running], with_ties).prop_map(|(call, window)| with_over(call, window));
    prop_oneof![2 => apart, 1 => tied]
}

/// The window comes after the call, which may stand in an expression.
fn with_over(call: &str, window: &str) -> String {
    let over = format!(" OVER ({window})");
    for name in ["lag(", "lead("] {
        if let Some(begin) = call.find(name) {
            let end = begin + call[begin..].find(')').unwrap_or_default() + 1;
            return format!("{}{over}{}", &call[..end], &call[end..]);
        }
    }
    format!("{call}{over}")
}

fn question() -> impl Strategy<Value = String> {
    (call(), call(), filter(), 0_usize..12).prop_map(|(a, b, filter, form)| {
        let rows = "ts_ns, bytes, rank, func, note";
        let inner = format!("SELECT {rows}, {a} AS a, {b} AS b FROM collectives {filter}");
        match form {
            0 => format!("SELECT {rows}, {a} FROM collectives {filter}"),
            1 => format!("SELECT {rows}, {a} AS a, {b} FROM collectives {filter} ORDER BY a, {rows}"),
            2 => format!("SELECT count(*), count(a), min(a), max(b) FROM ({inner})"),
            3 => format!("SELECT rank, func, count(*), count(b), max(b) FROM ({inner}) GROUP BY rank, func ORDER BY 1, 2"),
            4 => format!("SELECT {rows}, a, b FROM ({inner}) WHERE a = 1 OR b IS NULL ORDER BY {rows}, a, b LIMIT 20"),
            5 => format!("WITH w AS ({inner}) SELECT upper(func), count(*) FROM w WHERE a > 2 AND note IS NOT NULL GROUP BY 1 ORDER BY 1"),
            6 => format!("WITH w AS ({inner}) SELECT DISTINCT x.b FROM w AS x WHERE x.rank < 3"),
            9 => format!(
                "SELECT {rows}, a, row_number() OVER (PARTITION BY rank ORDER BY bytes, ts_ns) FROM ({inner}) WHERE b IS NOT NULL"
            ),
            10 => format!(
                "SELECT func, count(*), max(c) FROM (SELECT *, lag(ts_ns) OVER (PARTITION BY a ORDER BY ts_ns, bytes) AS c FROM ({inner}) AS x \
                 WHERE x.rank < 3) AS y WHERE y.c > 100 GROUP BY func ORDER BY func"
            ),
            11 => format!("SELECT {rows} FROM ({inner}) WHERE bytes > 0.5 * a AND rank IS NOT b"),
            7 => format!("SELECT * FROM (SELECT *, {a} AS a FROM collectives {filter}) AS s WHERE s.a IN (1, 2, 3)"),
            _ => format!("SELECT a, count(*) FROM ({inner}) WHERE func LIKE '%e%' GROUP BY a ORDER BY a"),
        }
    })
}

/// Rows that differ in time and bytes together.
fn told_apart(batches: Vec<Vec<Row>>) -> Vec<Vec<Row>> {
    let mut id = 0;
    let mut row = |(ts_ns, rank, bytes, func, note): Row| {
        id += 1;
        (ts_ns * 1_000 + id, rank, bytes, func, note)
    };
    batches.into_iter().map(|batch| batch.into_iter().map(&mut row).collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 384, ..ProptestConfig::default() })]

    #[test]
    fn windows_are_sqlites(
        batches in prop::collection::vec(prop::collection::vec(row(), 0..60), 0..5),
        sql in question(),
        size in prop::sample::select(vec![1_usize, 7, 64]),
    ) {
        let rows: Vec<Row> = told_apart(batches).concat();
        // Segments of one size, so that partitions and peers go on from one to the next.
        let batches: Vec<Vec<Row>> = rows.chunks(size).map(<[Row]>::to_vec).collect();
        same(&batches, &sql, false)?;
    }
}

/// What is asked most is answered from columns, also where it fills several segments.
#[test]
fn windows_over_many_rows_are_answered_from_columns() {
    let rows: Vec<Row> = (0..150_000_i64)
        .map(|i| {
            let bytes = (i % 11 != 0).then_some(i * 7919 % 100_003);
            (i * 37 % 150_000, Some(i % 8), bytes, ["all_reduce", "send", "recv"][i as usize / 7 % 3], None)
        })
        .collect();
    let batches: Vec<Vec<Row>> = rows.chunks(60_000).map(<[Row]>::to_vec).collect();
    for sql in [
        "SELECT rank, max(gap), count(gap), sum(gap) FROM (SELECT rank, ts_ns - lag(ts_ns) OVER (PARTITION BY rank ORDER BY ts_ns) AS gap \
         FROM collectives) GROUP BY rank ORDER BY rank",
        "SELECT func, rank, ts_ns FROM (SELECT *, row_number() OVER (PARTITION BY func, rank ORDER BY bytes DESC, ts_ns) AS n \
         FROM collectives WHERE ts_ns >= 100) WHERE n <= 3 ORDER BY 1, 2, 3",
        "WITH w AS (SELECT rank, ts_ns, sum(bytes) OVER (PARTITION BY rank ORDER BY ts_ns ROWS UNBOUNDED PRECEDING) AS total FROM collectives) \
         SELECT rank, min(ts_ns) FROM w WHERE total > 5000000 GROUP BY rank ORDER BY rank",
        "SELECT rank, ts_ns, lag(func) OVER w, dense_rank() OVER w, count(*) OVER (PARTITION BY rank) FROM collectives WHERE ts_ns < 1000 \
         WINDOW w AS (PARTITION BY rank ORDER BY ts_ns) ORDER BY ts_ns",
        "SELECT rank, ts_ns, bytes, mean FROM (SELECT rank, ts_ns, bytes, avg(bytes) OVER (PARTITION BY rank ORDER BY ts_ns \
         ROWS BETWEEN 100 PRECEDING AND 1 PRECEDING) AS mean FROM collectives) WHERE bytes > 1.9 * mean ORDER BY ts_ns LIMIT 30",
        "SELECT rank, count(*) FROM (SELECT rank, percent_rank() OVER (PARTITION BY func ORDER BY bytes) AS part FROM collectives) \
         WHERE part > 0.99 GROUP BY rank ORDER BY rank",
        "SELECT rank, gap, ts_ns FROM (SELECT rank, ts_ns, gap, row_number() OVER (PARTITION BY rank ORDER BY gap DESC, ts_ns) AS place FROM \
         (SELECT rank, ts_ns, ts_ns - lag(ts_ns) OVER (PARTITION BY rank ORDER BY ts_ns) AS gap FROM collectives) AS gaps \
         WHERE gap IS NOT NULL) AS ranked WHERE place = 1 ORDER BY rank",
    ] {
        same(&batches, sql, true).unwrap();
    }
}

#[test]
fn windows_that_are_not_understood_are_sqlites() {
    let rows: Vec<Row> = (0..50).map(|i| (i, Some(i % 3), Some(i), "send", None)).collect();
    let (columnar, _) = stores(&[rows]);
    for sql in [
        "SELECT avg(bytes * 1.0) OVER (ORDER BY ts_ns) FROM collectives",
        "SELECT min(bytes) OVER (ORDER BY ts_ns ROWS 3 PRECEDING) FROM collectives",
        "SELECT sum(bytes) OVER (ORDER BY ts_ns RANGE 3 PRECEDING) FROM collectives",
        "SELECT sum(bytes) OVER (ORDER BY ts_ns ROWS 3 PRECEDING EXCLUDE TIES) FROM collectives",
        "SELECT rank, sum(count(*)) OVER (ORDER BY rank) FROM collectives GROUP BY rank",
        "SELECT sum(bytes) FILTER (WHERE rank = 1) OVER (ORDER BY ts_ns) FROM collectives",
        "SELECT lag(bytes, rank) OVER (ORDER BY ts_ns) FROM collectives",
    ] {
        let (rows, notes) = run(&columnar, sql, true).unwrap();
        assert!(!rows.is_empty() && notes.is_empty(), "{sql}: {notes:?}");
    }
}
