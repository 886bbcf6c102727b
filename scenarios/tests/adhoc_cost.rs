//! No question costs more than stock SQLite's answer from plain tables: the whole suite and
//! generated joins over one store, by processor time of this process, which has no other test.
//!
//! The best of several turns are compared: what else runs on the machine makes turns longer, never
//! shorter. What is not optimised (a build for tests) may cost a
//! fixed multiple: SQLite itself is optimised in every build. A scan begun again for each outer row
//! costs hundreds of times as much.

use std::time::{Duration, Instant};

use scenarios::adhoc::data;
use scenarios::adhoc::{joins, suite};
use scenarios::figures::cpu_time;
use scenarios::plain;
use store::file::FileReader;

const ROWS: u64 = 120_000;
const JOINS: usize = 40;
const SEED: u64 = 19;
/// Some hundreds of calls.
const SPAN_NS: i64 = 300_000_000;
/// What SQLite's time is multiplied with, and what every question may cost besides: planning, a
/// snapshot, and decoding blocks of some columns.
const TIMES: f64 = if cfg!(debug_assertions) { 9.0 } else { 1.25 };
const BESIDES: Duration = Duration::from_millis(if cfg!(debug_assertions) { 50 } else { 1 });
const ROUNDS: usize = 3;

#[test]
fn no_question_costs_more_than_sqlite() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = data::make(dir.path(), 1, ROWS).expect("a store").remove(0).1;
    let sqlite = data::plain(&path).expect("its plain file");
    let mut store = FileReader::open(&path).expect("the store");
    let suite = suite::read(&suite::directory()).expect("the suite");
    let mut asked: Vec<(String, String)> =
        suite.iter().map(|asked| (asked.name.clone(), asked.sql(data::span(ROWS)))).collect();
    asked.extend(
        joins::generate(SEED, JOINS, data::span(ROWS), SPAN_NS).into_iter().map(|sql| ("join".to_owned(), sql)),
    );
    let (mut dear, mut with_rows) = (Vec::new(), 0);
    for (name, sql) in asked {
        let (mut ours, mut theirs) = (Duration::MAX, Duration::MAX);
        for round in 0..ROUNDS {
            let began = cpu_time();
            let known = plain::rows(&sqlite, &sql).unwrap_or_else(|error| panic!("SQLite refuses {sql}: {error}"));
            let between = cpu_time();
            let answer = store.ask(&sql, Instant::now() + Duration::from_secs(120));
            let answer = answer.unwrap_or_else(|error| panic!("no answer to {sql}: {error}"));
            theirs = theirs.min(between - began);
            ours = ours.min(cpu_time() - between);
            assert_eq!(answer.rows.len(), known.len(), "{sql}");
            if name == "join" && round == 0 {
                assert_eq!(answer.rows, known, "{sql}");
                with_rows += usize::from(
                    known
                        .iter()
                        .flatten()
                        .any(|value| !matches!(value, query_planner::Value::Null | query_planner::Value::Integer(0))),
                );
            }
        }
        println!("{name}: {ours:.1?}, SQLite {theirs:.1?}");
        if ours > theirs.mul_f64(TIMES) + BESIDES {
            dear.push(format!("{name}: {ours:.1?}, SQLite {theirs:.1?}: {sql}"));
        }
    }
    assert!(with_rows > JOINS / 2, "only {with_rows} of the generated joins find anything");
    assert!(dear.is_empty(), "{} questions cost more than SQLite's answers:\n{}", dear.len(), dear.join("\n"));
}
