//! Meshes of cells in virtual time; see `sim`. Each failure says its seed.

#![allow(clippy::unwrap_used)]

mod sim;

use std::time::Duration;

use gossip::MemberState;
use sim::Sim;

const SECOND: Duration = Duration::from_secs(1);

/// A mesh of cells of `most` in which all know all.
fn grown(seed: u64, nodes: usize, most: usize) -> Sim {
    let mut sim = Sim::new(seed, most);
    for _ in 0..nodes {
        sim.add();
    }
    for at in 0..nodes {
        sim.start(at, &[0]);
        sim.run(Duration::from_millis(10));
    }
    let all: Vec<usize> = (0..nodes).collect();
    let met = sim.until(&all, 120 * SECOND, SECOND, |sim, at| sim.wrong(at) == (0, 0));
    assert!(met.is_some(), "seed {seed}: not all know all: {:?}; cells {:?}", wrong(&sim), sim.sizes());
    sim
}

fn wrong(sim: &Sim) -> Vec<(usize, (usize, usize))> {
    (0..sim.nodes.len()).map(|at| (at, sim.wrong(at))).filter(|(_, wrong)| *wrong != (0, 0)).take(8).collect()
}

#[test]
fn a_mesh_that_fits_into_one_cell_says_nothing_of_cells() {
    let sim = grown(1, 40, 256);
    assert_eq!(sim.sizes().len(), 1);
    // Each asks its seed once, and is answered.
    let sent: u64 = sim.nodes.iter().map(|node| node.sent).sum();
    assert!(sent <= 2 * 40, "{sent} messages");
}

#[test]
fn a_large_mesh_splits_into_cells_and_all_know_all() {
    let sim = grown(1, 192, 32);
    let sizes = sim.sizes();
    assert!(sizes.len() >= 6, "{sizes:?}");
    assert!(sizes.values().all(|size| *size <= 32), "{sizes:?}");
}

#[test]
fn a_death_is_known_everywhere_and_who_returns_is_the_same_everywhere() {
    let mut sim = grown(2, 128, 32);
    sim.run(30 * SECOND);
    let all: Vec<usize> = (0..128).collect();
    sim.kill(77);
    let step = Duration::from_millis(250);
    let known = sim.until(&all, 30 * SECOND, step, |sim, at| sim.state_of(at, 77) == Some(MemberState::Dead));
    let known = known.unwrap_or_else(|| panic!("not known everywhere: {:?}", wrong(&sim)));
    // In virtual time: the same each time.
    assert!(known <= 10 * SECOND, "known after {known:?}");
    sim.start(77, &[0]);
    let back = sim.until(&all, 60 * SECOND, SECOND, |sim, at| sim.wrong(at) == (0, 0));
    assert!(back.is_some(), "{:?}", wrong(&sim));
}

#[test]
fn halves_go_on_and_find_each_other_again() {
    let mut sim = grown(5, 96, 32);
    let all: Vec<usize> = (0..96).collect();
    sim.cut(|at| u8::from(at % 2 == 1));
    let apart = sim.until(&all, 60 * SECOND, SECOND, |sim, at| sim.wrong(at) == (0, 0));
    assert!(apart.is_some(), "each half knows its own and misses the other: {:?}", wrong(&sim));
    sim.run(30 * SECOND);
    sim.heal();
    let joined = sim.until(&all, 90 * SECOND, SECOND, |sim, at| sim.wrong(at) == (0, 0));
    assert!(joined.is_some(), "{:?}", wrong(&sim));
}

#[test]
fn the_same_seed_is_the_same_run() {
    let figures = |seed| {
        let mut sim = grown(seed, 64, 16);
        sim.run(20 * SECOND);
        sim.nodes.iter().map(|node| (node.sent, node.sent_bytes)).collect::<Vec<_>>()
    };
    assert_eq!(figures(3), figures(3));
    assert_ne!(figures(3), figures(4));
}
