//! No question reads a table again and again: the whole suite and generated joins over one store,
//! by the values that are read out of columns. (What they cost in time beside SQLite and DuckDB is
//! `make bench NAME=adhoc`.)
//!
//! A scan that begins again for each outer row reads hundreds of times as much as the table has.
//! This process has no other test: the count is of the whole process.

use std::time::{Duration, Instant};

use scenarios::adhoc::data;
use scenarios::adhoc::{joins, suite};
use scenarios::plain;
use store::file::FileReader;
use store::testing::values_read;

const ROWS: u64 = 120_000;
const JOINS: usize = 40;
const SEED: u64 = 19;
/// Some hundreds of calls.
const SPAN_NS: i64 = 300_000_000;
/// Values that a question may read for each row of the store. A question reads a few columns once;
/// one that joins a table with itself reads its columns once for each side and a block for a key.
const VALUES_A_ROW: u64 = 60;

#[test]
fn no_question_reads_a_table_again_for_each_row() {
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
    let (mut dear, mut with_rows, mut in_all) = (Vec::new(), 0, 0);
    for (name, sql) in asked {
        let known = plain::rows(&sqlite, &sql).unwrap_or_else(|error| panic!("SQLite refuses {sql}: {error}"));
        let before = values_read();
        let answer = store.ask(&sql, Instant::now() + Duration::from_secs(600));
        let answer = answer.unwrap_or_else(|error| panic!("no answer to {sql}: {error}"));
        let read = values_read() - before;
        in_all += read;
        assert_eq!(answer.rows.len(), known.len(), "{sql}");
        if name == "join" {
            assert_eq!(answer.rows, known, "{sql}");
            with_rows += usize::from(
                known
                    .iter()
                    .flatten()
                    .any(|value| !matches!(value, query_planner::Value::Null | query_planner::Value::Integer(0))),
            );
        }
        println!("{name}: {read} values read, {:.1} a row", read as f64 / ROWS as f64);
        if read > VALUES_A_ROW * ROWS {
            dear.push(format!("{name}: {read} values read: {sql}"));
        }
    }
    assert!(with_rows > JOINS / 2, "only {with_rows} of the generated joins find anything");
    assert!(in_all > ROWS, "the count does not count: {in_all}");
    assert!(dear.is_empty(), "{} questions read a table again and again:\n{}", dear.len(), dear.join("\n"));
}
