//! The chaos lab's short form: a few dozen questions while hosts are killed, stopped, parted and
//! restarted.

use std::time::Duration;

use scenarios::lab::chaos::{Options, run};

#[test]
fn every_answer_under_faults_is_right_and_says_whom_it_lacks() {
    let options = Options {
        hosts: 6,
        questions: 400,
        at_once: 6,
        seed: 7,
        pace: Duration::from_millis(300),
        new_rows: true,
        timeout: (Duration::from_secs(1), Duration::from_secs(3)),
        at_most: Duration::from_secs(4),
        tree_above: usize::MAX,
        most_in_cell: None,
    };
    let report = run(&options).expect("the lab runs");
    println!("{report}");
    assert!(report.is_right(), "{report}");
    assert!(report.complete > 0 && report.partial > 0, "a run without faults, or with nothing else: {report}");
    // A connection, an outbox and a driver for each way to each other host, and the agent's own.
    assert!(report.tasks.1 <= 40 + 8 * options.hosts, "{report}");
    let (before, after) = report.resources.expect("measured");
    assert!(after.files <= before.files && after.threads <= before.threads, "{report}");
}

/// The same in a mesh of cells, each question through their delegates.
#[test]
fn every_answer_of_a_mesh_of_cells_is_right_and_says_whom_it_lacks() {
    let options = Options {
        hosts: 18,
        questions: 300,
        at_once: 6,
        seed: 11,
        pace: Duration::from_millis(600),
        new_rows: true,
        timeout: (Duration::from_secs(2), Duration::from_secs(5)),
        at_most: Duration::from_secs(30),
        tree_above: 6,
        most_in_cell: Some(6),
    };
    let report = run(&options).expect("the lab runs");
    println!("{report}");
    assert!(report.is_right(), "{report}");
    assert!(report.cells >= 3, "{} cells of 18 hosts", report.cells);
    assert!(report.complete > 0 && report.partial > 0, "a run without faults, or with nothing else: {report}");
}
