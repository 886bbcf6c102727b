//! The sqllogictest harness on scripts of our own, and on a file of SQLite's corpus where one is at
//! hand.

use std::path::{Path, PathBuf};

use query_planner::Strategy;
use scenarios::slt::{Options, Tally, TransportKind, expand, run_file, run_text};

fn case(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cases").join(name)
}

fn run(file: &Path, nodes: usize, seed: u64, sparse: bool) -> Tally {
    let options = Options { nodes, seed, sparse, expect_rung: true, ..Options::default() };
    run_file(file, &options).expect("the script runs")
}

/// Nothing wrong, refused, failed or dear, and no query dearer than `dearest`.
fn assert_clean(name: &str, dearest: Strategy) {
    for (nodes, sparse) in [(1, false), (3, false), (3, true)] {
        for seed in [1, 2, 3] {
            let tally = run(&case(name), nodes, seed, sparse);
            let summary = format!(
                "{}\n{}{}",
                tally.line(&format!("{name}, {nodes} nodes, seed {seed}, sparse {sparse}")),
                tally.reasons(),
                tally.details.join("\n")
            );
            assert_eq!(tally.passed, tally.records(), "{summary}");
            assert_eq!(tally.dear.total(), 0, "{summary}");
            let allowed = if nodes == 1 { Strategy::Push } else { dearest };
            assert!(tally.strategies.keys().all(|strategy| *strategy <= allowed), "{summary}");
        }
    }
}

#[test]
fn scans_ship_rows_and_never_fetch() {
    assert_clean("scan.test", Strategy::Rows);
}

#[test]
fn aggregates_ship_partial_states() {
    assert_clean("aggregate.test", Strategy::Aggregate);
}

#[test]
fn joins_and_subqueries_ship_only_what_they_name() {
    assert_clean("join.test", Strategy::Fetch);
}

#[test]
fn an_error_that_sqlite_does_not_have_is_no_expected_error() {
    let table = "statement ok\nCREATE TABLE t(a INTEGER)\n\nstatement ok\nINSERT INTO t VALUES (1), (2)\n\n";
    let both =
        format!("{table}query error\nSELECT none FROM t\n\nquery error\nSELECT abs(-9223372036854775807 - a) FROM t\n");
    let tally = run_text("inline", &both, &Options::default()).unwrap();
    assert_eq!((tally.passed, tally.bad()), (4, 0), "{}{}", tally.line("inline"), tally.reasons());
    // Refused by the mesh, answered by SQLite: nothing that a script expects makes it right.
    let refused = format!("{table}query error\nSELECT count(*) FROM sqlite_schema\n");
    let tally = run_text("inline", &refused, &Options::default()).unwrap();
    assert_eq!((tally.passed, tally.bad()), (2, 1), "{}{}", tally.line("inline"), tally.reasons());
}

#[test]
fn agents_over_loopback_answer_the_same() {
    let options = Options { expect_rung: true, transport: TransportKind::Quic, ..Options::default() };
    for name in ["aggregate.test", "schema.test"] {
        let tally = run_file(&case(name), &options).expect("the script runs");
        let summary = format!("{}\n{}{}", tally.line(name), tally.reasons(), tally.details.join("\n"));
        assert_eq!(tally.passed, tally.records(), "{summary}");
        assert_eq!(tally.dear.total(), 0, "{summary}");
    }
}

#[test]
fn a_changing_schema_is_followed() {
    assert_clean("schema.test", Strategy::Fetch);
}

#[test]
fn a_wrong_expectation_is_seen() {
    let script = "statement ok\nCREATE TABLE t(a)\n\nstatement ok\nINSERT INTO t VALUES (1), (2), (3)\n\n\
                  query I nosort\nSELECT sum(a) FROM t\n----\n7\n\nquery I nosort\nSELECT sum(a) FROM t\n----\n6\n\n\
                  query I rowsort label-1\nSELECT a FROM t\n----\n1\n2\n3\n\n\
                  query I rowsort label-1\nSELECT a FROM t WHERE a < 3\n----\n1\n2\n";
    let tally = run_text("inline", script, &Options::default()).unwrap();
    // One SQLite over all rows says 6 too, and its answers under the label differ as well: the file
    // is at fault.
    assert_eq!((tally.passed, tally.sqlite_differs, tally.wrong), (4, 2, 0), "{}", tally.line("inline"));
}

#[test]
fn rows_without_order_may_come_in_any_order() {
    let mut script = "statement ok\nCREATE TABLE t(a, b)\n\n".to_owned();
    for i in 0..12 {
        script.push_str(&format!("statement ok\nINSERT INTO t VALUES ({i}, {})\n\n", i % 2));
    }
    script.push_str("query I nosort\nSELECT a FROM t\n----\n0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n\n");
    script.push_str("query II nosort\nSELECT b, a FROM t ORDER BY b, a\n----\n");
    for i in (0..12).step_by(2).chain((1..12).step_by(2)) {
        script.push_str(&format!("{}\n{i}\n", i % 2));
    }
    let tallies: Vec<Tally> =
        (1..6).map(|seed| run_text("inline", &script, &Options { seed, ..Options::default() }).unwrap()).collect();
    assert!(tallies.iter().all(|tally| tally.passed == tally.records()), "{}", tallies[0].line("inline"));
    assert!(tallies.iter().any(|tally| tally.order_free == 1), "some deal changes the order of the first query");
}

#[test]
fn a_file_of_sqlites_corpus_where_it_is_at_hand() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/slt");
    if !corpus.is_dir() {
        eprintln!("skipped: no copy of SQLite's sqllogictest corpus at {}", corpus.display());
        return;
    }
    let files = expand(&[corpus.join("select1.test")]).unwrap();
    let options = Options { expect_rung: true, max_queries: Some(300), ..Options::default() };
    let tally = run_file(&files[0], &options).unwrap();
    let summary = format!("{}\n{}{}", tally.line("select1"), tally.reasons(), tally.details.join("\n"));
    assert_eq!(tally.passed, tally.records(), "{summary}");
    assert_eq!(tally.dear.total(), 0, "{summary}");
}
