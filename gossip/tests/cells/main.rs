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
    assert_eq!(sim.nodes.iter().map(|node| node.sent).sum::<u64>(), 0);
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
fn a_dead_cell_stays_dead_in_every_list() {
    let mut sim = grown(6, 128, 16);
    sim.run(30 * SECOND);
    sim.loss = 0.05;
    let (cell, _) = sim.sizes().pop_last().unwrap();
    let is_gone = |at: &usize| sim.nodes[*at].cells.as_ref().is_some_and(|cells| cells.cell() == cell);
    let (gone, rest): (Vec<usize>, Vec<usize>) = (0..128).partition(is_gone);
    gone.iter().for_each(|at| sim.kill(*at));
    // Nobody can know yet; who then finds them dead never finds them alive again.
    sim.run(5 * SECOND);
    let mut knows = [false; 128];
    for _ in 0..240 {
        sim.run(SECOND / 4);
        for at in &rest {
            let ghosts = sim.wrong(*at).1;
            assert!(!knows[*at] || ghosts == 0, "at {} us {at} lists {ghosts} of {cell} as alive again", sim.now);
            knows[*at] |= ghosts == 0;
        }
    }
    assert!(rest.iter().all(|at| knows[*at]), "{:?}", wrong(&sim));
}

#[test]
fn many_that_start_at_once_soon_know_each_other() {
    for seed in 1..=4 {
        let mut sim = Sim::new(seed, 64);
        for at in 0..200 {
            sim.add();
            sim.start(at, &[at % 3]);
            sim.run(2 * SECOND / 200);
        }
        let all: Vec<usize> = (0..200).collect();
        let met = sim.until(&all, 60 * SECOND, SECOND, |sim, at| sim.wrong(at) == (0, 0));
        // In virtual time: the same each time.
        assert!(met.is_some_and(|met| met <= 13 * SECOND), "seed {seed}: {met:?}; cells {:?}", sim.sizes());
    }
}

#[test]
fn who_comes_goes_to_its_cell_once() {
    // Two racks that fill a cell each, and one that has room.
    let mut sim = grown(7, 84, 32);
    sim.run(60 * SECOND);
    let (before, cells) = (sim.moves, sim.sizes().into_keys().collect::<Vec<_>>());
    let new: Vec<usize> = (0..12).map(|_| sim.add()).collect();
    for at in &new {
        sim.start(*at, &[0, 1, 2]);
        sim.run(SECOND);
    }
    sim.run(90 * SECOND);
    assert_eq!(sim.sizes().into_keys().collect::<Vec<_>>(), cells, "no cell had to split");
    assert_eq!(sim.moves - before, 12, "each went once");
    assert_eq!(wrong(&sim), []);
}

#[test]
fn who_was_left_in_the_cell_of_the_whole_mesh_comes_after() {
    // The founder, whom all others have as a seed and who has none, and another.
    for left in [0, 7] {
        let mut sim = grown(8, 30, 32);
        sim.cut(|at| u8::from(at == left));
        sim.run(10 * SECOND);
        for _ in 0..10 {
            let at = sim.add();
            sim.start(at, &[1]);
        }
        let rest: Vec<usize> = (0..40).filter(|at| *at != left).collect();
        let parted = sim.until(&rest, 60 * SECOND, SECOND, |sim, at| sim.wrong(at) == (0, 0));
        assert!(parted.is_some() && sim.sizes().len() >= 3, "{:?} {:?}", wrong(&sim), sim.sizes());
        sim.heal();
        let all: Vec<usize> = (0..40).collect();
        let joined = sim.until(&all, 60 * SECOND, SECOND, |sim, at| sim.wrong(at) == (0, 0));
        assert!(joined.is_some(), "{left} was left: {:?}; cells {:?}", wrong(&sim), sim.sizes());
    }
}

#[test]
fn some_that_met_elsewhere_come_to_their_cells() {
    let mut sim = grown(9, 64, 16);
    let first = sim.add();
    sim.start(first, &[]);
    let others: Vec<usize> = (0..7).map(|_| sim.add()).collect();
    for at in &others {
        sim.start(*at, &[first]);
    }
    sim.run(10 * SECOND);
    assert_eq!(sim.sizes().first_key_value(), Some((&gossip::cells::CellId::WHOLE, &8)), "a mesh of their own");
    // One of them, which need not speak for the others, hears of one of the large mesh.
    sim.hears_of(*others.last().unwrap(), 33);
    let all: Vec<usize> = (0..sim.nodes.len()).collect();
    let joined = sim.until(&all, 60 * SECOND, SECOND, |sim, at| sim.wrong(at) == (0, 0));
    assert!(joined.is_some(), "{:?}; cells {:?}", wrong(&sim), sim.sizes());
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

#[test]
fn a_delegate_that_stood_still_calls_nobody_dead() {
    let mut sim = grown(10, 64, 16);
    sim.run(30 * SECOND);
    let delegates: Vec<usize> =
        (0..64).filter(|at| sim.nodes[*at].cells.as_ref().is_some_and(|cells| cells.is_delegate())).collect();
    let held = delegates[0];
    sim.step_clock(held, 7 * SECOND);
    for _ in 0..80 {
        sim.run(SECOND / 10);
        let dead = (0..64).filter(|at| *at != held && sim.state_of(held, *at) == Some(MemberState::Dead)).count();
        assert_eq!(dead, 0, "at {} us {held} calls living ones dead", sim.now);
    }
}

#[test]
fn who_dies_around_a_partition_is_dead_soon_after_it() {
    let mut sim = grown(11, 96, 16);
    sim.cut(|at| u8::from(at % 3 == 0));
    sim.run(15 * SECOND);
    let dying = [10, 30, 50, 60];
    sim.kill(dying[0]);
    sim.kill(dying[1]);
    sim.run(10 * SECOND);
    sim.heal();
    sim.run(SECOND);
    sim.kill(dying[2]);
    sim.kill(dying[3]);
    let rest: Vec<usize> = (0..96).filter(|at| !dying.contains(at)).collect();
    let is_known = |sim: &Sim, at| dying.iter().all(|dead| sim.state_of(at, *dead) == Some(MemberState::Dead));
    let known = sim.until(&rest, 60 * SECOND, SECOND / 4, is_known);
    // In virtual time: the same each time. Those that come back are believed after 12 s.
    assert!(known.is_some_and(|known| known <= 20 * SECOND), "{known:?}: {:?}", wrong(&sim));
    // And they stay dead, whoever comes to speak for their cells.
    for _ in 0..2 {
        let cell = sim.nodes[rest[0]].cells.as_ref().unwrap().cell();
        let is_first =
            |at: &&usize| sim.nodes[**at].cells.as_ref().is_some_and(|it| it.cell() == cell && it.is_delegate());
        let delegate = *rest.iter().find(is_first).unwrap();
        sim.kill(delegate);
        for _ in 0..60 {
            sim.run(SECOND / 4);
            for at in rest.iter().filter(|at| sim.nodes[**at].cells.is_some()) {
                let again = dying.iter().find(|dead| sim.state_of(*at, **dead) != Some(MemberState::Dead));
                assert_eq!(again, None, "in the list of {at} at {} us", sim.now);
            }
        }
        sim.start(delegate, &[1]);
        sim.run(20 * SECOND);
    }
}

#[test]
fn who_stays_joined_is_not_called_dead_while_parts_come_and_go() {
    for seed in 1..=2 {
        let mut sim = grown(seed, 64, 16);
        let faults = sim.parts_come_and_go(24);
        let first: Vec<_> = faults.iter().take(8).collect();
        assert!(faults.is_empty(), "seed {seed}: {} times, first (us, at, whom): {first:?}", faults.len());
    }
}
