//! A task that is interrupted at any of its instructions, those of its transaction's end among
//! them: it says that it was stopped, or it is whole. (SQLite may tell of an interrupt while it
//! ends a transaction that it has ended.)

use query_planner::{Budget, Fragment, NodeError, NodeTask, Targets, execute_task, harden};
use rusqlite::Connection;

#[test]
fn wherever_it_is_interrupted_a_task_is_complete_or_stopped_and_the_next_one_runs() {
    let mut conn = Connection::open_in_memory().expect("open");
    conn.execute_batch("CREATE TABLE t(x INTEGER); INSERT INTO t VALUES (1), (2), (3);").expect("a table");
    harden(&mut conn).expect("hardened");
    let fragment = Fragment {
        table: "t".to_owned(),
        sql: "SELECT sum(x) FROM t".to_owned(),
        columns: 1,
        reads: vec![("t".to_owned(), vec!["x".to_owned()])],
        targets: Targets::All,
        combine: None,
        partials: Vec::new(),
    };
    let budget = Budget { node_rows: 10, node_bytes: 1_000, coordinator_bytes: 1_000 };
    let task = NodeTask { fragments: vec![fragment], keys: Vec::new(), now_unix_ns: 0, budget, viewer: None };
    let (mut stopped, mut complete) = (0, 0);
    for last in 1..10_000_u64 {
        // SQLite looks at its progress wherever it may have been long at work, and when it is done
        // with a step.
        let looks = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let count = looks.clone();
        let _ =
            conn.progress_handler(1, Some(move || count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1 == last));
        let mut rows = 0;
        let done = execute_task(&conn, "n", &task, &mut |_, batch| {
            rows += batch.rows;
            Ok(())
        });
        let _ = conn.progress_handler(0, None::<fn() -> bool>);
        let interrupted = looks.load(std::sync::atomic::Ordering::SeqCst) >= last;
        match &done {
            Ok(_) => assert_eq!(rows, 1),
            Err(NodeError::Stopped(_)) => stopped += 1,
            Err(error) => panic!("interrupted at look {last}: {error}"),
        }
        if !interrupted {
            break;
        }
        complete += u32::from(done.is_ok());
        assert!(conn.is_autocommit(), "look {last} left its transaction open");
    }
    assert!(stopped > 0 && complete > 0, "{stopped} stopped, x");
}
