//! What cells cost, in virtual time: `cargo bench -p gossip --bench cells -- [NODES] [SEED] [HOURS] [PART]`
//! (10,000 nodes, seed 1, an hour at rest). PART `storm`: all nodes but three start within 2 s, and nothing
//! else is measured; `parts` (64 nodes): parts of a
//! mesh of cells of 16 come off and back. A figure beyond its limit is named with its seed at the end, and fails the
//! run: `make check NAME=seeds` runs ten. What is a model and what is real: `../tests/cells/sim.rs`.
//!
//! Lists are compared with what is at 200 nodes drawn at random, since all of them would be 10^8
//! entries each time.

#![allow(clippy::unwrap_used)]

#[path = "../tests/cells/sim.rs"]
mod sim;

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gossip::MemberState;
use sim::Sim;

const SECOND: Duration = Duration::from_secs(1);
const WATCHED: usize = 200;
/// What takes longer than this to be known everywhere is a fault, whatever the aim is, seconds.
const LONGEST_S: f64 = 30.0;
/// Likewise of joining: some seeds of 640 take longer than the aim of 15 s, where full cells split.
const LONGEST_JOIN_S: f64 = 20.0;

fn figure(name: &str, value: f64, unit: &str) {
    println!("{name:<44} {value:>12.3} {unit}");
}

/// Figures beyond their limits.
#[derive(Default)]
struct Missed(Vec<String>);

impl Missed {
    /// Prints a figure that is to be `most` at most; one that is no number is beyond.
    fn figure(&mut self, name: &str, value: f64, unit: &str, most: f64) {
        figure(name, value, &format!("{unit} (at most {most})"));
        if value.is_nan() || value > most {
            self.0.push(format!("{name}: {value:.3} {unit}, at most {most}"));
        }
    }

    fn end(self, seed: u64) -> ExitCode {
        self.0.iter().for_each(|missed| println!("MISSED with seed {seed}: {missed}"));
        if self.0.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn seconds(took: Option<Duration>) -> f64 {
    took.map_or(f64::NAN, |took| took.as_secs_f64())
}

fn met(sim: &mut Sim, limit: Duration) -> Option<Duration> {
    let watched = sim.some(WATCHED);
    sim.until(&watched, limit, SECOND, |sim, at| sim.wrong(at) == (0, 0))
}

/// Prints how long it takes until each asks all others, and until each knows where all are: `what` has begun.
fn join(sim: &mut Sim, missed: &mut Missed, what: &str) {
    let watched = sim.some(WATCHED);
    let asked = sim.until(&watched, 300 * SECOND, SECOND, |sim, at| sim.not_asked(at) == 0);
    missed.figure(&format!("{what}: then all ask all"), seconds(asked), "s", LONGEST_JOIN_S);
    let settled = met(sim, 300 * SECOND);
    figure(&format!("{what}: then all know where all are"), seconds(asked.zip(settled).map(|(a, b)| a + b)), "s");
}

/// Messages, bytes and seals judged since the start, of each node.
fn spent(sim: &Sim) -> Vec<(u64, u64, u64)> {
    sim.nodes.iter().map(|node| (node.sent, node.sent_bytes, node.judged.load(Ordering::Relaxed))).collect()
}

/// Rests for so long and prints what a node spends in a second.
fn rest(sim: &mut Sim, missed: &mut Missed, what: &str, time: Duration, looks: u32) {
    let (before, began) = (spent(sim), Instant::now());
    let mut wrong = 0;
    for _ in 0..looks {
        sim.run(time / looks);
        let watched = sim.some(WATCHED);
        wrong += watched.iter().map(|at| sim.wrong(*at).0).sum::<usize>();
    }
    let seconds = time.as_secs_f64();
    let after = spent(sim);
    let bytes: Vec<f64> = after.iter().zip(&before).map(|(a, b)| (a.1 - b.1) as f64 / seconds / 1024.0).collect();
    let nodes = bytes.len() as f64;
    figure(&format!("{what}: sent a node, mean"), bytes.iter().sum::<f64>() / nodes, "KiB/s");
    missed.figure(&format!("{what}: sent a node, most"), bytes.iter().copied().fold(0.0, f64::max), "KiB/s", 128.0);
    let messages: u64 = after.iter().zip(&before).map(|(a, b)| a.0 - b.0).sum();
    figure(&format!("{what}: messages a node"), messages as f64 / seconds / nodes, "1/s");
    let seals: u64 = after.iter().zip(&before).map(|(a, b)| a.2 - b.2).sum();
    figure(&format!("{what}: seals judged a node"), seals as f64 / seconds / nodes, "1/s");
    figure(
        &format!("{what}: wall time of the simulator, a node"),
        began.elapsed().as_secs_f64() / seconds / nodes * 1e6,
        "us/s",
    );
    let unit = format!("entries at {looks} looks of {WATCHED} lists");
    missed.figure(&format!("{what}: living listed as dead"), wrong as f64, &unit, 0.0);
}

/// All but three start within 2 s, each told of one of the three.
fn storm(sim: &mut Sim, missed: &mut Missed, nodes: usize) {
    for at in 0..3 {
        sim.add();
        sim.start(at, &[0, 1, 2]);
    }
    sim.run(5 * SECOND);
    for at in 3..nodes {
        sim.add();
        sim.start(at, &[at % 3]);
        sim.run(2 * SECOND / nodes as u32);
    }
    let (mut asked, mut took) = (None, None);
    for second in 0..60 {
        let sizes: Vec<usize> = sim.sizes().into_values().collect();
        let watched = sim.some(WATCHED);
        let lacking: Vec<usize> = watched.iter().map(|at| sim.wrong(*at).0).collect();
        let not_asked: usize = watched.iter().map(|at| sim.not_asked(*at)).sum();
        println!(
            "after {second} s: {} cells, of {} to {} nodes; entries not asked: {not_asked}; lacking: {}, at most {} of a node",
            sizes.len(),
            sizes.iter().min().unwrap(),
            sizes.iter().max().unwrap(),
            lacking.iter().sum::<usize>(),
            lacking.iter().max().unwrap()
        );
        if asked.is_none() && not_asked == 0 {
            asked = Some(SECOND * second);
        }
        if lacking.iter().all(|lacking| *lacking == 0) {
            took = Some(SECOND * second);
            break;
        }
        sim.run(SECOND);
    }
    missed.figure("all start in 2 s: then all ask all", seconds(asked), "s", 15.0);
    figure("all start in 2 s: then all know where all are", seconds(took), "s");
    let sizes: Vec<usize> = sim.sizes().into_values().collect();
    println!("cells: {}, of {} to {} nodes", sizes.len(), sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    let most = spent(sim).iter().map(|spent| spent.1).max().unwrap_or(0);
    figure("most bytes of one node", most as f64 / 1_048_576.0, "MiB");
}

/// Parts of meshes of cells of 16 come off and back, twelve times each, from this seed to the twelfth.
fn parts(nodes: usize, first: u64) {
    let (mut all, mut in_seeds) = (0, 0);
    for seed in first..first + 12 {
        let mut sim = Sim::new(seed, 16);
        for at in 0..nodes {
            sim.add();
            sim.start(at, &[0]);
            sim.run(Duration::from_millis(10));
        }
        met(&mut sim, 120 * SECOND);
        let faults = sim.parts_come_and_go(24);
        println!("seed {seed}: {} times, first (us, at, whom) {:?}", faults.len(), faults.first());
        all += faults.len();
        in_seeds += u32::from(!faults.is_empty());
    }
    figure(
        "joined for 30 s and listed as dead",
        all as f64,
        &format!("entries of all looks, in {in_seeds} of 12 seeds"),
    );
}

fn main() -> ExitCode {
    // `cargo test --all-targets` runs this program, too, and says nothing to it.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|number| number.parse().ok()).collect();
    let number = |at: usize, usual| numbers.get(at).copied().unwrap_or(usual);
    let (nodes, seed, hours) = (number(0, 10_000) as usize, number(1, 1), number(2, 1));
    let part = |name: &str| std::env::args().any(|argument| argument == name);
    if part("parts") {
        // Each list is compared with each other one.
        parts(number(0, 64) as usize, seed);
        return ExitCode::SUCCESS;
    }
    let (mut sim, mut missed) = (Sim::new(seed, 256), Missed::default());
    println!("{nodes} nodes, seed {seed}, loss 1 %, delay 0.2 to 5.2 ms");
    if part("storm") {
        storm(&mut sim, &mut missed, nodes);
        return missed.end(seed);
    }
    let joins = 2_000.min(nodes / 5);
    for at in 0..nodes - joins {
        sim.add();
        sim.start(at, &[0, 1, 2]);
        sim.run(20 * SECOND / nodes as u32);
    }
    join(&mut sim, &mut missed, "grown within 20 s");
    let sizes: Vec<usize> = sim.sizes().into_values().collect();
    println!("cells: {}, of {} to {} nodes", sizes.len(), sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    if part("grow") {
        return missed.end(seed);
    }

    let before = spent(&sim);
    for at in nodes - joins..nodes {
        sim.add();
        let seeds = [0, 1, 2];
        sim.start(at, &seeds[at % 3..=at % 3]);
        sim.run(2 * SECOND / joins as u32);
    }
    join(&mut sim, &mut missed, &format!("{joins} join in 2 s"));
    let most = spent(&sim).iter().zip(&before).map(|(a, b)| a.1 - b.1).max().unwrap_or(0);
    figure("storm: most bytes of one node", most as f64 / 1_048_576.0, "MiB");
    sim.run(60 * SECOND);
    rest(&mut sim, &mut missed, "at rest", 60 * SECOND, 6);
    let memory: Vec<usize> =
        sim.nodes.iter().filter_map(|node| node.cells.as_ref()).map(gossip::cells::Cells::bytes).collect();
    figure("memory of a node, mean", memory.iter().sum::<usize>() as f64 / memory.len() as f64 / 1_048_576.0, "MiB");
    let most = memory.iter().copied().max().unwrap_or(0) as f64 / 1_048_576.0;
    missed.figure("memory of a node, most", most, "MiB", 16.0);

    let names = ["look", "same", "beats", "delegates", "differ", "news", "fetch", "cards", "where", "there"];
    for (name, (count, bytes)) in names.iter().zip(sim.kinds) {
        println!("until here {name}: {count} messages, {:.1} MiB", bytes as f64 / 1_048_576.0);
    }

    let (mut slowest, mut slowest_in_cell) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..5 {
        let dead = sim.some(1)[0];
        let cell = sim.nodes[dead].cells.as_ref().unwrap().cell();
        sim.kill(dead);
        let mates: Vec<usize> =
            (0..nodes).filter(|at| sim.nodes[*at].cells.as_ref().is_some_and(|cells| cells.cell() == cell)).collect();
        let step = Duration::from_millis(250);
        let is_known = |sim: &Sim, at| sim.state_of(at, dead) == Some(MemberState::Dead);
        let in_cell = sim.until(&mates, 60 * SECOND, step, is_known);
        let watched = sim.some(1_000);
        let rest = sim.until(&watched, 60 * SECOND, step, is_known);
        slowest_in_cell = slowest_in_cell.max(in_cell.unwrap_or(Duration::MAX));
        slowest = slowest.max(in_cell.zip(rest).map_or(Duration::MAX, |(a, b)| a + b));
        sim.start(dead, &[0, 1, 2]);
        sim.run(20 * SECOND);
    }
    figure("a death is known in its cell, slowest of 5", slowest_in_cell.as_secs_f64(), "s (model: 5 to 6)");
    missed.figure("a death is known everywhere, slowest of 5", slowest.as_secs_f64(), "s", 10.5);

    let cell = sim.nodes[nodes / 2].cells.as_ref().unwrap().cell();
    let gone: Vec<usize> =
        (0..nodes).filter(|at| sim.nodes[*at].cells.as_ref().is_some_and(|cells| cells.cell() == cell)).collect();
    gone.iter().for_each(|at| sim.kill(*at));
    let known = seconds(met(&mut sim, 60 * SECOND));
    missed.figure(&format!("a cell of {} dies: known everywhere", gone.len()), known, "s", LONGEST_S);
    gone.iter().for_each(|at| sim.start(*at, &[0, 1, 2]));
    missed.figure("it returns: known everywhere", seconds(met(&mut sim, 120 * SECOND)), "s", LONGEST_S);

    sim.cut(|at| u8::from(at % 2 == 1));
    missed.figure("halves: each knows who is missing", seconds(met(&mut sim, 120 * SECOND)), "s", LONGEST_S);
    rest(&mut sim, &mut missed, "halves", 60 * SECOND, 2);
    sim.run(Duration::from_secs(hours * 3_600));
    sim.heal();
    missed.figure(
        &format!("healed after {hours} h: all know all"),
        seconds(met(&mut sim, 300 * SECOND)),
        "s",
        LONGEST_S,
    );
    if hours > 0 {
        rest(&mut sim, &mut missed, &format!("{hours} h"), Duration::from_secs(hours * 3_600), 60 * hours as u32);
    }
    missed.end(seed)
}
