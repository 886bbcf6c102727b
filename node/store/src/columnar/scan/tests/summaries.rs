//! What the summaries of segments and stored sketches say.

use super::*;

/// Rows enough for summaries, in segments of 20,000 rows with an odd one at the end.
fn many() -> (Connection, Connection) {
    let declared = "ts_ns INTEGER NOT NULL, duration_ns INTEGER, pid INTEGER, rank INTEGER, comm_hash INTEGER, \
                    func TEXT NOT NULL, library TEXT";
    let mut columnar = Connection::open_in_memory().unwrap();
    let mut plain = Connection::open_in_memory().unwrap();
    register(&columnar).unwrap();
    let module = MODULE.to_str().unwrap();
    columnar.execute_batch(include_str!("../../segments.sql")).unwrap();
    columnar.execute_batch(&format!("CREATE VIRTUAL TABLE collectives USING {module}({declared});")).unwrap();
    plain.execute_batch(&format!("CREATE TABLE collectives ({declared}); BEGIN")).unwrap();
    let mut appender = Appender::open(&columnar, "collectives", "ts_ns").unwrap();
    let mut made = 0_i64;
    for size in [20_000, 20_000, 20_000, 700] {
        let mut rows = appender.rows(0);
        for _ in 0..size {
            made += 1;
            let mixed = made.wrapping_mul(0x5851_F42D_4C95_7F2D).cast_unsigned();
            let (duration, rank) = ((mixed >> 40).cast_signed(), (mixed % 5) as i64);
            let rank = (rank < 4).then_some(rank);
            let comm = (mixed >> 8 & 1) as i64;
            let func = ["send", "recv", "all_reduce"][(mixed >> 12) as usize % 3];
            cells!(
                rows, row: ts_ns = made * 10, duration_ns = duration, pid = 7, rank = rank, comm_hash = comm,
                func = func, library = "nccl",
            );
            plain
                .prepare_cached("INSERT INTO collectives VALUES (?1,?2,7,?3,?4,?5,'nccl')")
                .unwrap()
                .execute((made * 10, duration, rank, comm, func))
                .unwrap();
        }
        appender.write(&columnar, &rows, 0).unwrap();
        appender.committed(rows.rows());
    }
    plain.execute_batch("COMMIT").unwrap();
    query_planner::harden(&mut columnar).unwrap();
    query_planner::harden(&mut plain).unwrap();
    (columnar, plain)
}

#[test]
fn summaries_say_what_the_rows_say() {
    let (columnar, plain) = many();
    let all = "count(*), count(duration_ns), sum(duration_ns), avg(duration_ns), min(duration_ns), max(duration_ns), \
               mesh_sum(duration_ns), mesh_sketch(duration_ns), approx_quantile(duration_ns, 0.99)";
    let mut from_rollups = 0;
    for (columns, keys) in [("", ""), ("rank, ", "rank"), ("func, rank, ", "func, rank"), ("comm_hash, ", "comm_hash")]
    {
        for filter in [
            "",
            "WHERE ts_ns >= 5 AND ts_ns < 450000",
            "WHERE ts_ns BETWEEN 123457 AND 480001 AND rank = 2",
            "WHERE func IN ('send', 'recv') AND rank IS NULL",
            "WHERE duration_ns > 9000000",
            "WHERE rank > 77",
            "WHERE ts_ns > 600005",
        ] {
            let by = if keys.is_empty() { String::new() } else { format!("GROUP BY {keys} ORDER BY {keys}") };
            let sql =
                format!("SELECT {columns}{all}, percentile_disc(duration_ns, 0.5) FROM collectives {filter} {by}");
            let (ours, notes) = run(&columnar, &sql, true).unwrap();
            let (expected, _) = run(&plain, &sql, false).unwrap();
            assert_eq!(ours, expected, "{sql}");
            from_rollups += usize::from(notes.iter().any(|note| note.contains("rollups")));
        }
    }
    // Of seven filters one is on the value itself; two leave no segment whose groups it does not
    // cut.
    assert!(from_rollups >= 4 * 4, "{from_rollups}");
    // A group that a question is not about does not cost it its answer: no duration, no summary.
    let (ours, notes) = run(&columnar, "SELECT pid, max(ts_ns) FROM collectives GROUP BY pid", true).unwrap();
    assert_eq!(ours, [[Value::Integer(7), Value::Integer(607_000)]]);
    assert!(notes[0].contains("columns of 4 segments"), "{notes:?}");
}

/// Stored sketches are merged from the column's bytes; bytes that are none are SQLite's to complain
/// about.
#[test]
fn sketches_in_a_column_are_merged_as_sqlite_does() {
    use query_planner::states::stored;
    let declared = "ts_ns INTEGER NOT NULL, rank INTEGER, note BLOB";
    let (mut columnar, mut plain) = empty(declared);
    let mut appender = Appender::open(&columnar, "collectives", "ts_ns").unwrap();
    for segment in 0..3_u16 {
        let mut rows = appender.rows(0);
        for row in 0..300_u16 {
            let (ts_ns, rank) = (i64::from(segment) * 1_000 + i64::from(row), i64::from(row % 4));
            // The last segment has one sketch only, rank 3 none, and some are of zeros.
            let bucket = if segment == 2 { 700 } else { 500 + row };
            let zeros = u64::from(row % 3);
            let range = (if zeros > 0 { 0 } else { 20_000 }, 50_000 + u64::from(bucket));
            let bytes = (rank < 3 || segment == 2).then(|| stored(range, zeros, &[(bucket, 3), (bucket + 9, 1)]));
            cells!(rows, row: ts_ns = ts_ns, rank = rank, note = bytes);
            plain.execute("INSERT INTO collectives VALUES (?1,?2,?3)", (ts_ns, rank, &bytes)).unwrap();
        }
        appender.write(&columnar, &rows, 0).unwrap();
        appender.committed(rows.rows());
    }
    query_planner::harden(&mut columnar).unwrap();
    query_planner::harden(&mut plain).unwrap();
    for sql in [
        "SELECT rank, approx_quantile(note, 0.5), approx_quantile(note, 0.99), count(note), mesh_sketch(note) FROM collectives GROUP BY rank ORDER BY 1",
        "SELECT approx_quantile(note, 0.1) FROM collectives WHERE ts_ns BETWEEN 250 AND 2010",
        "SELECT approx_quantile(note, 0.1) FROM collectives WHERE rank = 3 AND ts_ns < 2000",
    ] {
        let (ours, notes) = run(&columnar, sql, true).unwrap();
        assert_eq!(ours, run(&plain, sql, false).unwrap().0, "{sql}");
        assert!(notes[0].contains("columns of"), "{sql}: {notes:?}");
    }
    for sql in [
        "SELECT note, count(*) FROM collectives GROUP BY note ORDER BY 1 LIMIT 3",
        "SELECT note FROM collectives ORDER BY ts_ns LIMIT 2",
        "SELECT max(note) FROM collectives",
    ] {
        let (ours, notes) = run(&columnar, sql, true).unwrap();
        assert_eq!((ours, notes), (run(&plain, sql, false).unwrap().0, Vec::new()), "{sql}");
    }
}
