//! Planning is part of the question: it ends with the question's time, and within its memory. In a
//! process of its own: SQLite's allocator is replaced before the first database.

use std::time::{Duration, Instant};

use query_planner::{AskOptions, Catalog, Stop, memory, plan};
use rusqlite::Connection;

/// Common table expressions of which each reads the one before twice.
fn doubled(times: usize) -> String {
    let each =
        (1..=times).map(|at| format!("c{at} AS (SELECT a.x + b.x AS x FROM c{0} a JOIN c{0} b ON a.x < b.x)", at - 1));
    let all: Vec<String> = std::iter::once("c0 AS (SELECT x FROM t)".to_owned()).chain(each).collect();
    format!("WITH {} SELECT count(*) FROM c{times}", all.join(", "))
}

/// A join of so many tables, each compared with each.
fn wide(tables: usize) -> String {
    let from: Vec<String> = (0..tables).map(|at| format!("t t{at}")).collect();
    let pairs: Vec<String> = (0..tables).flat_map(|a| (0..a).map(move |b| format!("t{a}.x = t{b}.x"))).collect();
    format!("SELECT count(*) FROM {} WHERE {}", from.join(", "), pairs.join(" AND "))
}

#[test]
fn planning_ends_with_its_questions_time_and_within_its_memory() {
    assert!(memory::install());
    let conn = Connection::open_in_memory().expect("open");
    conn.execute_batch("CREATE TABLE t(x INTEGER)").expect("a table");
    let catalog = Catalog::of(&conn, &[]).expect("a catalogue");
    let planned = |sql: &str, time: Duration, bytes: u64| {
        let stop = Stop::at(Some(Instant::now() + time));
        let _watched = stop.here();
        let _cap = memory::cap(bytes);
        plan(sql, &catalog, &AskOptions::default()).map_err(|error| error.message)
    };
    let (long, much) = (Duration::from_secs(600), 64 << 20);
    planned(&doubled(3), long, much).expect("a plan of some sixteen tables");
    // A million tables: SQLite has a bound of its own, before time and memory are spent.
    planned(&doubled(20), long, much).expect_err("too many");
    planned(&wide(30), long, much).expect("a plan of thirty tables");
    let why = planned(&wide(30), Duration::from_millis(1), much).expect_err("it takes longer");
    assert!(why.contains("takes longer to plan than it has time"), "{why}");
    let why = planned(&wide(30), long, 64 << 10).expect_err("it takes more");
    assert!(why.contains("planning: the question needs more memory than one may have here"), "{why}");
    // The copy of the catalogue that was stopped in its work is as good as before, and nothing
    // stays taken.
    planned(&wide(30), long, much).expect("a plan");
    assert_eq!(memory::taken_by_all(), 0);
    let over = planned("SELECT x FROM t", Duration::ZERO, much).expect_err("no time");
    assert!(over.contains("takes longer to plan than it has time"), "{over}");
}
