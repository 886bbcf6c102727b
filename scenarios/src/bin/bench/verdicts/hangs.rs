//! `bench verdicts --hangs`: jobs that hang by what programs do, kind by kind: said right, missed,
//! or false.

use scenarios::figures::figure;
use scenarios::hangs::{Drawn, Kind, Worth, draw, judge, observe, truth};
use verdicts::{Rules, analyse, text};

use super::{Arguments, each};

fn judged(seed: u64, number: u64) -> (Drawn, Worth, String) {
    let drawn = draw(seed, number);
    let report = analyse(&observe(&drawn, seed), &Rules::default());
    let worth = judge(&drawn, &report);
    (drawn, worth, text(&report))
}

/// Prints one job, the truth and the report.
pub(super) fn show(seed: u64, number: u64) {
    let (drawn, worth, report) = judged(seed, number);
    println!("seed {seed} job {number}, {:?}, seen as {:?}: {worth:?}\n", drawn.kind, drawn.seen);
    for (place, comm) in drawn.program.comms.iter().enumerate() {
        println!("communicator {place}: {:016x} of {:?}", comm.hash, comm.members);
    }
    for rank in 0..drawn.program.ranks.len() {
        println!("rank {rank}: {:?}, waits for {:?}", drawn.run.stays_in(rank), drawn.run.waits_for[rank]);
    }
    println!("\n{:?}\n\n{report}", truth(&drawn));
}

/// Draws the jobs, judges them and prints the table.
pub(super) fn run(arguments: &Arguments) {
    let mut all = each(arguments, |seed, number| {
        let (drawn, worth, report) = judged(seed, number);
        Some((seed, drawn.number, drawn.kind, drawn.seen.late_nodes > 0, worth, report))
    });
    all.sort_by_key(|(seed, number, ..)| (*seed, *number));
    if arguments.list {
        for (seed, number, kind, _, worth, report) in all.iter().filter(|job| job.4 != Worth::Right) {
            let report: String = report.lines().take(12).map(|line| format!("    {line}\n")).collect();
            println!("seed {seed} job {number}, {kind:?}: {worth:?}\n{report}");
        }
    }
    println!("\n{:<20} {:>6} {:>6} {:>7} {:>6}", "kind", "jobs", "right", "missed", "false");
    let line = |name: &str, of: &dyn Fn(Kind, bool) -> bool| {
        let worths: Vec<&Worth> = all.iter().filter(|job| of(job.2, job.3)).map(|job| &job.4).collect();
        let count = |what: fn(&Worth) -> bool| worths.iter().filter(|worth| what(worth)).count();
        let right = count(|worth| matches!(worth, Worth::Right));
        let falsely = count(|worth| matches!(worth, Worth::False(_)));
        println!("{name:<20} {:>6} {right:>6} {:>7} {falsely:>6}", worths.len(), worths.len() - right - falsely);
        (worths.len(), right, falsely)
    };
    for kind in Kind::ALL {
        line(&format!("{kind:?}"), &|of, late| of == kind && !late);
    }
    line("recorded late", &|_, late| late);
    let (jobs, right, falsely) = line("all", &|_, _| true);
    let jobs = jobs.max(1) as f64;
    figure("verdicts_hangs_right", right as f64 / jobs, "share", ">=", 0.95);
    figure("verdicts_hangs_false", falsely as f64 * 2_000.0 / jobs, "in 2000 jobs", "<=", 0.0);
}
