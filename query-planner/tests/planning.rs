//! Planning is part of the question: it ends with the question's time, and within its memory. In a process of its own: SQLite's
//! allocator is replaced before the first database.

use std::time::{Duration, Instant};

use query_planner::{AskOptions, Catalog, Stop, memory, plan};
use rusqlite::Connection;

/// Common table expressions of which each reads the one before twice, joined on what no index helps with.
fn doubled(times: usize) -> String {
    let each = (1..=times).map(|at| {
        format!(
            "c{at} AS (SELECT a.x + b.x AS x FROM c{0} a JOIN c{0} b ON a.x < b.x WHERE a.x IN (b.x, 1, 2))",
            at - 1
        )
    });
    let all: Vec<String> = std::iter::once("c0 AS (SELECT x FROM t)".to_owned()).chain(each).collect();
    format!("WITH {} SELECT count(*) FROM c{times}", all.join(", "))
}

#[test]
fn planning_ends_with_its_questions_time_and_within_its_memory() {
    assert!(memory::install());
    let conn = Connection::open_in_memory().expect("open");
    conn.execute_batch("CREATE TABLE t(x INTEGER)").expect("a table");
    let catalog = Catalog::of(&conn, &[]).expect("a catalogue");
    let planned = |sql: &str, time: Duration| {
        let stop = Stop::at(Some(Instant::now() + time));
        let _watched = stop.here();
        let _cap = memory::cap(64 << 20);
        let began = Instant::now();
        (plan(sql, &catalog, &AskOptions::default()).map_err(|error| error.message), began.elapsed())
    };
    let long = Duration::from_secs(600);
    planned(&doubled(3), long).0.expect("a plan of some sixteen tables");
    // Of 2^15 tables: long, or large.
    let (outcome, took) = planned(&doubled(15), Duration::from_millis(300));
    let why = outcome.expect_err("it takes longer");
    assert!(why.contains("takes longer to plan than it has time") || why.contains("more memory"), "{why}");
    // No timing: a machine at other work takes its time. Unbounded it takes minutes and gigabytes.
    assert!(took < Duration::from_secs(30), "{took:?}");
    let (outcome, _) = planned(&doubled(15), long);
    let why = outcome.expect_err("it takes more");
    assert!(why.contains("planning: the question needs more memory than one may have here"), "{why}");
    // The copy of the catalogue that was stopped in its work is as good as before, and nothing stays taken.
    planned(&doubled(3), long).0.expect("a plan");
    assert_eq!(memory::taken_by_all(), 0);
    let over = planned("SELECT x FROM t", Duration::ZERO).0.expect_err("no time");
    assert!(over.contains("takes longer to plan than it has time"), "{over}");
}
