//! The memory of all questions together. In a process of its own, and one test: the pool is the
//! process's.

use query_planner::memory::{self, Account, Refused, SMALL_BYTES, SharedReservation};
use rusqlite::Connection;

const MIB: u64 = 1 << 20;

fn conn() -> Connection {
    let conn = Connection::open_in_memory().expect("open");
    conn.execute_batch("PRAGMA temp_store = MEMORY").expect("a pragma");
    conn
}

/// Sorts so many MiB.
fn sort(conn: &Connection, mib: u64) -> rusqlite::Result<()> {
    let sql = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {mib}) \
         SELECT count(*) FROM (SELECT zeroblob(1048576) || i AS b FROM n ORDER BY b LIMIT -1 OFFSET 0)"
    );
    conn.query_row(&sql, [], |_| Ok(()))
}

#[test]
fn questions_share_one_pool_and_give_all_of_it_back() {
    assert!(memory::install());
    let conn = conn();
    memory::bound_all(100 * MIB);
    assert_eq!((memory::taken_by_all(), memory::most_of_one()), (0, 80 * MIB));

    // More than one question may have is said so, whoever else has how much.
    {
        let _cap = memory::cap(1 << 30);
        sort(&conn, 120).expect_err("more than the pool");
        assert_eq!(memory::refused_here(), Some(Refused::TooMuch));
    }
    assert_eq!(memory::taken_by_all(), 0);
    {
        let _cap = memory::cap(1 << 30);
        sort(&conn, 20).expect("there is so much");
        assert!(memory::taken_by_all() < 20 * MIB, "given back while the question goes on");
        assert_eq!(memory::refused_here(), None);
    }

    // Rows between nodes and merge count to the same account, from whatever thread.
    let large = Account::new(1 << 30);
    let rows = SharedReservation::of(&large);
    std::thread::scope(|scope| {
        scope.spawn(|| rows.try_grow(60 * MIB).expect("there is so much"));
    });
    {
        let _cap = memory::cap_of(&large);
        sort(&conn, 40).expect_err("with the rows it is more than one may have");
        assert_eq!(memory::refused_here(), Some(Refused::TooMuch));
    }
    {
        let _cap = memory::cap(1 << 30);
        sort(&conn, 40).expect_err("another has it");
        let why = memory::refused_here().expect("refused");
        assert_eq!(why, Refused::InUse { others_bytes: 60 * MIB, all_bytes: 100 * MIB });
        assert!(why.to_string().contains("60 MiB of 100 MiB are in use by others"), "{why}");
    }

    // What is kept for small questions is theirs while a large one has all the rest.
    rows.try_grow(20 * MIB).expect("the rest");
    assert_eq!(rows.try_grow(1), Err(Refused::TooMuch));
    {
        let _cap = memory::cap(1 << 30);
        sort(&conn, 2).expect("a small question");
        sort(&conn, 2 * (SMALL_BYTES >> 20)).expect_err("a larger one");
    }
    rows.shrink(70 * MIB);
    assert_eq!(memory::taken_by_all(), 10 * MIB);
    rows.shrink(1 << 40);
    assert_eq!(memory::taken_by_all(), 0, "no more is given back than was taken");
    rows.try_grow(MIB).expect("again");
    drop(rows);
    assert_eq!(memory::taken_by_all(), 0);

    // A greedy crowd: each ends one way or the other, and nothing stays.
    let outcomes: Vec<Result<(), Option<Refused>>> = std::thread::scope(|scope| {
        let crowd: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    let conn = crate::conn();
                    let _cap = memory::cap(1 << 30);
                    let sorted = sort(&conn, 30);
                    assert!(memory::taken_by_all() <= 100 * MIB);
                    sorted.map_err(|_| memory::refused_here())
                })
            })
            .collect();
        crowd.into_iter().map(|one| one.join().expect("no panic")).collect()
    });
    assert!(outcomes.iter().any(Result::is_ok), "{outcomes:?}");
    assert!(
        outcomes.iter().all(|outcome| matches!(outcome, Ok(()) | Err(Some(Refused::InUse { .. })))),
        "{outcomes:?}"
    );
    assert_eq!(memory::taken_by_all(), 0);
}
