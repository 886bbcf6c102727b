//! `make bench-verdicts`: verdicts over thousands of simulated jobs of known truth, as a table by case and by mode of
//! calling, and the figures of precision, recall, false names and the cost of an analysis.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use rankmesh::stragglers::digest::{WINDOW_NS, replay};
use rankmesh::stragglers::{Input, Report, Rules, analyse, text};
use scenarios::figures::{figure, quantile};
use scenarios::stragglers::{Case, Drawn, Mode, Outcome, Tally, draw, judge};

/// Judge the verdicts on simulated jobs.
#[derive(Debug, Parser)]
struct Arguments {
    /// How many jobs.
    #[arg(long, default_value_t = 2_000)]
    jobs: u64,
    /// Another seed draws other jobs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads; as many as there are processors where it is not given.
    #[arg(long)]
    threads: Option<usize>,
    /// Print each job whose verdict is not right.
    #[arg(long)]
    list: bool,
    /// Print each job whose verdict by digests is not right.
    #[arg(long)]
    list_digests: bool,
    /// Only jobs whose number is this modulo 20 (cases go by that; may be given several times).
    #[arg(long)]
    case: Vec<u64>,
    /// Only the job of this number, with its whole report.
    #[arg(long)]
    only: Option<u64>,
}

/// A job that was judged.
struct Judged {
    drawn: Drawn,
    outcome: Outcome,
    /// Of the same job by its digests, as the standing verdict sees it.
    by_digests: Outcome,
    verdict: String,
    digests_verdict: String,
    took: Duration,
}

fn main() {
    let arguments = Arguments::parse();
    if let Some(number) = arguments.only {
        let drawn = draw(arguments.seed, number);
        let report = analyse(&drawn.observe(), &Rules::default());
        println!("{}\n{:?}\n\n{}", drawn.title(), judge(&drawn, &report), text(&report));
        let report = by_digests(&drawn.observe());
        println!("\nBy digests: {:?}\n\n{}", judge(&drawn, &report), text(&report));
        return;
    }
    let judged = run(&arguments);
    if arguments.list {
        for job in judged.iter().filter(|job| job.outcome != Outcome::Right) {
            println!("{:?}: {}\n    {}", job.outcome, job.drawn.title(), job.verdict);
        }
    }
    if arguments.list_digests {
        for job in judged.iter().filter(|job| job.by_digests != Outcome::Right) {
            println!("by digests {:?}: {}\n    {}", job.by_digests, job.drawn.title(), job.digests_verdict);
        }
    }
    tables(&judged);
    figures(judged);
}

fn run(arguments: &Arguments) -> Vec<Judged> {
    let next = AtomicU64::new(0);
    let done = Mutex::new(Vec::new());
    let threads = arguments.threads.or_else(|| std::thread::available_parallelism().ok().map(usize::from));
    std::thread::scope(|scope| {
        for _ in 0..threads.unwrap_or(1).max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= arguments.jobs {
                        break;
                    }
                    if !arguments.case.is_empty() && !arguments.case.contains(&(number % 20)) {
                        continue;
                    }
                    let drawn = draw(arguments.seed, number);
                    let input = drawn.observe();
                    let started = Instant::now();
                    let report = analyse(&input, &Rules::default());
                    let took = started.elapsed();
                    let outcome = judge(&drawn, &report);
                    let from_digests = by_digests(&input);
                    let by_digests = judge(&drawn, &from_digests);
                    let words = |report: &Report| format!("{:?}", report.verdict).chars().take(900).collect();
                    let (verdict, digests_verdict) = (words(&report), words(&from_digests));
                    if let Ok(mut done) = done.lock() {
                        done.push(Judged { drawn, outcome, by_digests, verdict, digests_verdict, took });
                    }
                }
            });
        }
    });
    let mut judged = done.into_inner().unwrap_or_default();
    judged.sort_by_key(|job| job.drawn.number);
    judged
}

/// The verdict that digests of the job give, with the windows of the standing verdict. How far ranks got, which digests say as well,
/// is taken over as it is.
fn by_digests(rows: &Input) -> Report {
    let (mut input, _) = replay(rows);
    input.progress.clone_from(&rows.progress);
    input.gone.clone_from(&rows.gone);
    input.doing.clone_from(&rows.doing);
    analyse(&input, &Rules { window_ns: WINDOW_NS, short_window_ns: WINDOW_NS, ..Rules::default() })
}

fn tables(judged: &[Judged]) {
    let count = |of: &dyn Fn(&Judged) -> bool| {
        let (mut rows, mut digests) = (Tally::default(), Tally::default());
        for job in judged.iter().filter(|job| of(job)) {
            rows.add(job.outcome);
            digests.add(job.by_digests);
        }
        (rows, digests)
    };
    let line = |name: &str, (t, d): (Tally, Tally)| {
        print!("{name:<44} {:>6} {:>6} {:>11} {:>7} {:>11}", t.n, t.right, t.wrong, t.missed, t.false_names);
        println!("  |{:>6} {:>11} {:>7} {:>11}", d.right, d.wrong, d.missed, d.false_names);
    };
    let head = |name: &str| {
        print!("\n{name:<44} {:>6} {:>6} {:>11} {:>7} {:>11}", "n", "right", "wrong name", "missed", "false name");
        println!("  |{:>6} {:>11} {:>7} {:>11}  by digests", "right", "wrong name", "missed", "false name");
    };
    head("case");
    for case in Case::ALL {
        line(case.name(), count(&|job| job.drawn.case == case));
    }
    head("slow rank or host, by how it calls");
    for mode in Mode::ALL {
        line(mode.name(), count(&|job| job.drawn.mode == mode && is_rank(job)));
    }
    head("slow rank or host, by ranks");
    for (from, to) in [(2, 4), (4, 16), (16, 64), (64, 256), (256, 1_024)] {
        let ranks = |job: &Judged| (from..to).contains(&job.drawn.grid.job.ranks);
        line(&format!("{from} to {}", to - 1), count(&|job| ranks(job) && is_rank(job)));
    }
    head("slow rank or host, by what was observed");
    line("everything", count(&|job| is_rank(job) && faults(job) == [false; 3]));
    for (i, name) in ["1 % of the records lost", "a host missing", "recorders came late"].into_iter().enumerate() {
        line(name, count(&|job| is_rank(job) && faults(job)[i]));
    }
    println!();
}

/// Cases in which a rank is to be named for being slow, at effects of 10 % and more.
fn is_rank(job: &Judged) -> bool {
    matches!(job.drawn.case, Case::SlowRank | Case::SlowHost)
}

fn faults(job: &Judged) -> [bool; 3] {
    let observed = &job.drawn.grid.job;
    [observed.loss > 0.0, !observed.missing_nodes.is_empty(), !observed.late_nodes.is_empty()]
}

fn figures(judged: Vec<Judged>) {
    let (mut ranks, mut names, mut stops) = (Tally::default(), Tally::default(), Tally::default());
    let (mut by_digests, mut quiet, mut quiet_by_digests) = (Tally::default(), 0, 0);
    let mut took: BTreeMap<bool, Vec<Duration>> = BTreeMap::new();
    for job in judged {
        match job.drawn.case {
            _ if is_rank(&job) => {
                ranks.add(job.outcome);
                by_digests.add(job.by_digests);
            }
            Case::Hang | Case::Crash => stops.add(job.outcome),
            _ => {}
        }
        let quiet_case = matches!(job.drawn.case, Case::Healthy | Case::StageImbalance | Case::DataImbalance);
        quiet += usize::from(quiet_case && job.outcome == Outcome::FalseName);
        quiet_by_digests += usize::from(quiet_case && job.by_digests == Outcome::FalseName);
        if !matches!(job.drawn.case, Case::Hang | Case::Crash) {
            names.add(job.outcome);
        }
        took.entry(job.drawn.grid.job.ranks == 512).or_default().push(job.took);
    }
    let named_right = ranks.right;
    let named = named_right + names.wrong + names.false_names;
    let precision = if named == 0 { 1.0 } else { named_right as f64 / named as f64 };
    figure("verdicts_rank_precision", precision, "share", ">=", 0.99);
    figure("verdicts_rank_recall", ranks.recall(), "share", ">=", 0.99);
    figure("verdicts_false_names", quiet as f64, "jobs", "<=", 0.0);
    figure("verdicts_by_digests_rank_precision", by_digests.precision(), "share", ">=", 0.99);
    figure("verdicts_by_digests_rank_recall", by_digests.recall(), "share", ">=", 0.99);
    figure("verdicts_by_digests_false_names", quiet_by_digests as f64, "jobs", "<=", 0.0);
    figure("verdicts_hang_precision", stops.precision(), "share", ">=", 0.99);
    figure("verdicts_hang_recall", stops.recall(), "share", ">=", 0.99);
    if let Some(mut at_512) = took.remove(&true) {
        figure("verdicts_analysis_512_ranks", quantile(&mut at_512, 0.5).as_secs_f64() * 1e3, "ms", "<=", 2_000.0);
    }
}
