//! The cap on SQLite's memory. In a process of its own: it has to be there before SQLite is.

use query_planner::memory;
use rusqlite::Connection;

const MIB: u64 = 1 << 20;

/// Sorts `rows` blobs of 1 MiB, in memory.
fn sort(conn: &Connection, rows: u32) -> rusqlite::Result<usize> {
    let sql = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) \
         SELECT zeroblob(1048576) || i AS b FROM n ORDER BY b, i"
    );
    let mut statement = conn.prepare(&sql)?;
    let mut rows = statement.query([])?;
    let mut count = 0;
    while rows.next()?.is_some() {
        count += 1;
    }
    Ok(count)
}

#[test]
fn a_greedy_question_fails_and_its_neighbours_do_not() {
    assert!(memory::install());
    let conn = Connection::open_in_memory().expect("open");
    conn.execute_batch("PRAGMA temp_store = MEMORY").expect("a pragma");
    assert_eq!(sort(&conn, 60).expect("no cap"), 60);
    let capped = memory::cap(32 * MIB);
    let error = sort(&conn, 60).expect_err("over the cap");
    assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::OutOfMemory), "{error}");
    // Another thread has its own cap, or none.
    let uncapped = std::thread::spawn(|| {
        let conn = Connection::open_in_memory().expect("open");
        conn.execute_batch("PRAGMA temp_store = MEMORY").expect("a pragma");
        sort(&conn, 60)
    });
    assert_eq!(uncapped.join().expect("the thread ends").expect("no cap there"), 60);
    // What was taken is given back: small questions go on, as often as one likes.
    for _ in 0..20 {
        assert_eq!(sort(&conn, 10).expect("within the cap"), 10);
    }
    drop(capped);
    assert_eq!(sort(&conn, 60).expect("no cap any more"), 60);
}

#[test]
fn what_our_aggregates_keep_counts_too() {
    assert!(memory::install());
    let mut conn = Connection::open_in_memory().expect("open");
    query_planner::harden(&mut conn).expect("hardened");
    // Each row another value, for the lists of exact medians and deviations, and for as many of
    // them as a question names.
    let ask = |function: &str, columns: usize, rows: u32| {
        let many: Vec<String> = (0..columns).map(|at| format!("length({function}(i * 1.1 + {at}))")).collect();
        let many = many.join(", ");
        let sql = format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) SELECT {many} FROM n"
        );
        conn.query_row(&sql, [], |row| row.get::<_, Option<i64>>(0))
    };
    for (function, columns, rows) in [("mad", 1, 2_000_000), ("mesh_runs", 1, 2_000_000), ("mad", 20, 100_000)] {
        let capped = memory::cap(16 * MIB);
        let error = ask(function, columns, rows).expect_err("over the cap");
        assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::OutOfMemory), "{function}: {error}");
        // Given back.
        for _ in 0..20 {
            ask(function, columns, 2_000).expect("within the cap");
        }
        drop(capped);
    }
    ask("mad", 1, 2_000_000).expect("no cap any more");
}
