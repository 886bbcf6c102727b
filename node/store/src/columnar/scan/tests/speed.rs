//! How long questions take from columns and from a plain table of stock SQLite with an index on
//! time:
//! `ROWS=1000000 cargo test --release -p rankmesh-store --lib speed -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use super::*;

const COLUMNS: &str = "ts_ns INTEGER NOT NULL, duration_ns INTEGER, pid INTEGER, rank INTEGER, comm_hash INTEGER, \
                       func TEXT NOT NULL, seq INTEGER, bytes INTEGER";
const FUNCS: [&str; 6] = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send", "recv"];
const SECOND: i64 = 1_000_000_000;

/// Eight ranks in step, some 2,800 calls a second.
fn filled(rows: i64) -> (Connection, Connection) {
    let (mut columnar, mut plain) = empty(COLUMNS);
    let mut appender = Appender::open(&columnar, "collectives", "ts_ns").unwrap();
    plain.execute_batch("BEGIN").unwrap();
    let mut insert = plain.prepare("INSERT INTO collectives VALUES (?1,?2,?3,?4,?5,?6,?7,?8)").unwrap();
    let mut made = 0_i64;
    while made < rows {
        let mut segment = appender.rows(0);
        for _ in 0..65_536.min(rows - made) {
            let (step, rank) = (made / 8, made % 8);
            let mixed = step.wrapping_mul(0x5851_F42D_4C95_7F2D).cast_unsigned();
            let late = made.wrapping_mul(0x2545_F491_4F6C_DD1D).cast_unsigned() >> 45;
            let func = FUNCS[(mixed >> 20) as usize % FUNCS.len()];
            let comm = ((mixed >> 33) % 4 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).cast_signed();
            let (late, bytes) = (late.cast_signed(), 512_i64 << ((mixed >> 40) % 16));
            let (ts_ns, duration) = (step * SECOND / 350 + late, bytes / 20 + 600_000 - late);
            let pid = 4000 + rank;
            cells!(
                segment, row: ts_ns = ts_ns, duration_ns = duration, pid = pid, rank = rank, comm_hash = comm,
                func = func, seq = (step / 24), bytes = bytes,
            );
            insert.execute((ts_ns, duration, pid, rank, comm, func, step / 24, bytes)).unwrap();
            made += 1;
        }
        appender.write(&columnar, &segment, 0).unwrap();
        appender.committed(segment.rows());
    }
    drop(insert);
    plain.execute_batch("COMMIT; CREATE INDEX collectives_ts ON collectives (ts_ns)").unwrap();
    query_planner::harden(&mut columnar).unwrap();
    query_planner::harden(&mut plain).unwrap();
    (columnar, plain)
}

fn timed(conn: &Connection, sql: &str, by_columns: bool) -> (Vec<Vec<Value>>, bool, Duration) {
    let mut took = Vec::new();
    let mut answer = (Vec::new(), false);
    for _ in 0..3 {
        let began = Instant::now();
        let (rows, notes) = run(conn, sql, by_columns).unwrap();
        took.push(began.elapsed());
        answer = (rows, !notes.is_empty());
    }
    took.sort();
    (answer.0, answer.1, took[1])
}

#[test]
#[ignore = "a benchmark"]
fn speed() {
    let rows: i64 = std::env::var("ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(1_000_000);
    let (columnar, plain) = filled(rows);
    let within =
        |from: i64, seconds: i64| format!("ts_ns >= {} AND ts_ns < {}", from * SECOND, (from + seconds) * SECOND);
    let (ten, minute) = (within(100, 10), within(100, 60));
    let (left, right) = (ten.replace("ts_ns", "a.ts_ns"), ten.replace("ts_ns", "b.ts_ns"));
    for (name, sql) in [
        ("row_number, 10 s", format!("SELECT comm_hash, func, seq, rank, row_number() OVER (PARTITION BY comm_hash, func, seq ORDER BY ts_ns) FROM collectives WHERE {ten}")),
        ("last of each, 10 s", format!("SELECT rank, count(*) FROM (SELECT rank, row_number() OVER (PARTITION BY comm_hash, func, seq ORDER BY ts_ns DESC) AS n FROM collectives WHERE {ten}) WHERE n = 1 GROUP BY rank")),
        ("lag, a minute", format!("SELECT rank, max(gap), count(*) FROM (SELECT rank, ts_ns - lag(ts_ns) OVER (PARTITION BY rank ORDER BY ts_ns) AS gap FROM collectives WHERE {minute}) GROUP BY rank")),
        ("running sum, a minute", format!("SELECT max(total) FROM (SELECT sum(bytes) OVER (PARTITION BY rank ORDER BY ts_ns) AS total FROM collectives WHERE {minute})")),
        ("like and two more", "SELECT pid, count(*), sum(bytes) FROM collectives WHERE func LIKE 'all%' AND bytes > 1000000 AND duration_ns > 700000 GROUP BY pid".to_owned()),
        ("an OR", "SELECT rank, count(*) FROM collectives WHERE func = 'send' AND bytes > 100000 OR duration_ns > bytes GROUP BY rank".to_owned()),
        ("rows of like", "SELECT ts_ns, rank, func, bytes FROM collectives WHERE func LIKE 'all%' AND bytes > 10000000 AND rank = 3".to_owned()),
        ("top 20 of a product", "SELECT ts_ns, rank, func FROM collectives ORDER BY bytes * duration_ns DESC, ts_ns, rank LIMIT 20".to_owned()),
        ("by rank, func", "SELECT rank, func, sum(bytes) FROM collectives GROUP BY rank, func".to_owned()),
        ("by comm, seq % 100", "SELECT comm_hash, seq % 100, sum(bytes) FROM collectives GROUP BY 1, 2".to_owned()),
        ("by second and rank", "SELECT ts_ns / 1000000000, rank, avg(duration_ns) FROM collectives GROUP BY 1, 2 ORDER BY 3 DESC LIMIT 10".to_owned()),
        ("distinct", "SELECT DISTINCT comm_hash, func FROM collectives".to_owned()),
        ("count distinct", "SELECT comm_hash, count(DISTINCT seq) FROM collectives GROUP BY comm_hash".to_owned()),
        ("CASE and FILTER", "SELECT rank, sum(CASE WHEN bytes > 100000 THEN duration_ns ELSE 0 END), count(*) FILTER (WHERE func LIKE 'all%') FROM collectives GROUP BY rank".to_owned()),
        ("sorted, 10 s", format!("SELECT * FROM collectives WHERE {ten} ORDER BY duration_ns, ts_ns, rank")),
        ("self-join, 10 s", format!("SELECT count(*) FROM collectives a JOIN collectives b ON a.comm_hash = b.comm_hash AND a.seq = b.seq AND a.func = b.func AND b.rank = a.rank + 1 WHERE {left} AND {right}")),
        ("avg in a window", format!("SELECT max(x) FROM (SELECT avg(bytes) OVER (PARTITION BY rank ORDER BY ts_ns) AS x FROM collectives WHERE {ten})")),
    ] {
        let (mut ours, by_columns, our) = timed(&columnar, &sql, true);
        let (mut expected, _, theirs) = timed(&plain, &sql, false);
        if !sql.contains("ORDER BY 3") && !sql.ends_with("ts_ns, rank") {
            ours.sort_by_key(|row| format!("{row:?}"));
            expected.sort_by_key(|row| format!("{row:?}"));
        }
        let is_equal = ours.iter().flatten().zip(expected.iter().flatten()).all(|(a, b)| is_same(a, b));
        assert!(ours.len() == expected.len() && is_equal, "{sql}");
        let (our, theirs) = (our.as_secs_f64() * 1e3, theirs.as_secs_f64() * 1e3);
        let by = if by_columns { "columns" } else { "SQLite" };
        println!("{name:>22} {our:>9.2} ms ({by}) {theirs:>9.2} ms {:>7.3}", our / theirs);
    }
}
