//! Simulated jobs that hang: a verdict says nothing that is not true, by rows and by digests.

use scenarios::hangs::{Kind, Worth, draw, judge, observe, truth};
use verdicts::{Rules, analyse, text};

/// Not those of any bench.
const SEED: u64 = 8_377;
const JOBS: u64 = 360;

#[test]
fn no_statement_on_a_hang_is_false() {
    let wrong: Vec<String> = (0..JOBS)
        .filter_map(|number| {
            let drawn = draw(SEED, number);
            let report = analyse(&observe(&drawn, SEED), &Rules::default());
            match judge(&drawn, &report) {
                Worth::False(why) => Some(format!("job {number}, {:?}: {why}\n{}", drawn.kind, text(&report))),
                Worth::Right | Worth::Missed(_) => None,
            }
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {JOBS}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_kind_of_fault_hangs_and_nothing_else_does() {
    for drawn in (0..200).map(|number| draw(SEED, number)) {
        assert_eq!(drawn.run.is_through(), drawn.kind == Kind::Healthy, "{drawn:?}");
        let truth = truth(&drawn);
        let is_told = !truth.elsewhere.is_empty()
            || !truth.at_the_end.is_empty()
            || !truth.differing.is_empty()
            || has_circle(&truth.edges);
        assert_eq!(is_told, drawn.kind != Kind::Healthy, "{drawn:?}");
        match drawn.kind {
            Kind::Branch | Kind::SubComm | Kind::Ended | Kind::Stopped | Kind::FirstCall | Kind::Making => {
                assert!(!truth.elsewhere.is_empty(), "{drawn:?}");
            }
            Kind::Ring | Kind::TwoComms => assert!(truth.elsewhere.is_empty() && has_circle(&truth.edges), "{drawn:?}"),
            _ => {}
        }
    }
}

/// Whether somebody waits for itself through others.
fn has_circle(edges: &std::collections::BTreeSet<(usize, usize)>) -> bool {
    let mut left = edges.clone();
    loop {
        let waits: std::collections::BTreeSet<usize> = left.iter().map(|(from, _)| *from).collect();
        let before = left.len();
        left.retain(|(_, to)| waits.contains(to));
        if left.len() == before {
            return before > 0;
        }
    }
}
