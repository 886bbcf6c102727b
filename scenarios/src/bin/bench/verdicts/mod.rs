//! Verdicts over thousands of simulated jobs of known truth, as a table by
//! case and by mode of calling, and the figures of precision, recall, false names and the cost of
//! an analysis.

mod hangs;
mod hard;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use digest::WINDOW_NS;
use scenarios::figures::{figure, none_of, p50_ms};
use scenarios::stragglers::{AgentClocks, Case, Drawn, Mode, Outcome, Tally, draw, judge, reference_of, replay_by};
use stats::median;
use verdicts::{Input, Report, Rules, analyse, text};

/// Judge the verdicts on simulated jobs.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// How many jobs.
    #[arg(long, default_value_t = 2_000)]
    jobs: u64,
    /// Another seed draws other jobs. Of several (1,7,11) as many jobs each.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    seed: Vec<u64>,
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
    /// Only jobs that call so (may be given several times).
    #[arg(long)]
    mode: Vec<Mode>,
    /// Hosts that run ahead synchronise once in so many steps, as a loop does that reads its loss
    /// now and then; jobs have twelve times as many steps at least. Not of hard jobs.
    #[arg(long, default_value_t = 1)]
    steps_ahead: usize,
    /// Jobs that are hard to judge instead, by class: judged from rows, and by the standing verdict
    /// of every window.
    #[arg(long)]
    hard: bool,
    /// Jobs that hang by what programs do instead, by kind.
    #[arg(long, conflicts_with = "hard")]
    hangs: bool,
    /// Only the job of this number, with its whole report.
    #[arg(long)]
    only: Option<u64>,
}

/// A job that was judged.
struct Judged {
    seed: u64,
    drawn: Drawn,
    outcome: Outcome,
    /// Of the same job by its digests, as the standing verdict sees it.
    by_digests: Outcome,
    verdict: String,
    digests_verdict: String,
    /// Of digests, a second and rank that was heard.
    bytes: f64,
    took: Duration,
}

pub(super) fn run(arguments: &Arguments) {
    if let Some(number) = arguments.only {
        for seed in &arguments.seed {
            if arguments.hangs {
                hangs::show(*seed, number);
                continue;
            }
            if arguments.hard {
                hard::show(*seed, number);
                continue;
            }
            let drawn = drawn(arguments, *seed, number);
            let report = analyse(&drawn.observe(), &Rules::default());
            println!("{}\n{:?}\n\n{}", drawn.title(), judge(&drawn, &report), text(&report));
            let (report, _) = by_digests(&drawn, &drawn.observe());
            println!("\nBy digests: {:?}\n\n{}", judge(&drawn, &report), text(&report));
        }
        return;
    }
    if arguments.hangs {
        return hangs::run(arguments);
    }
    if arguments.hard {
        return hard::run(arguments);
    }
    let judged = judge_all(arguments);
    if arguments.list {
        for job in judged.iter().filter(|job| job.outcome != Outcome::Right) {
            println!("{:?}: seed {} {}\n    {}", job.outcome, job.seed, job.drawn.title(), job.verdict);
        }
    }
    if arguments.list_digests {
        for job in judged.iter().filter(|job| job.by_digests != Outcome::Right) {
            println!(
                "by digests {:?}: seed {} {}\n    {}",
                job.by_digests,
                job.seed,
                job.drawn.title(),
                job.digests_verdict
            );
        }
    }
    tables(&judged);
    if arguments.seed.len() > 1 {
        seeds(&arguments.seed, &judged);
    }
    figures(&judged);
}

/// The job of this number, as the arguments change it.
fn drawn(arguments: &Arguments, seed: u64, number: u64) -> Drawn {
    let mut drawn = draw(seed, number);
    if arguments.steps_ahead > 1 && drawn.grid.job.runs_ahead {
        drawn.grid.job.steps_ahead = arguments.steps_ahead;
        drawn.grid.job.steps = drawn.grid.job.steps.max(12 * arguments.steps_ahead);
    }
    drawn
}

fn judge_all(arguments: &Arguments) -> Vec<Judged> {
    let mut judged = each(arguments, |seed, number| {
        if !arguments.case.is_empty() && !arguments.case.contains(&(number % 20)) {
            return None;
        }
        let drawn = drawn(arguments, seed, number);
        if !arguments.mode.is_empty() && !arguments.mode.contains(&drawn.mode) {
            return None;
        }
        let input = drawn.observe();
        let started = Instant::now();
        let report = analyse(&input, &Rules::default());
        let took = started.elapsed();
        let outcome = judge(&drawn, &report);
        let (from_digests, bytes) = by_digests(&drawn, &input);
        let by_digests = judge(&drawn, &from_digests);
        let words = |report: &Report| format!("{:?}", report.verdict).chars().take(900).collect();
        let (verdict, digests_verdict) = (words(&report), words(&from_digests));
        Some(Judged { seed, drawn, outcome, by_digests, verdict, digests_verdict, bytes, took })
    });
    judged.sort_by_key(|job| (job.seed, job.drawn.number));
    judged
}

/// What comes of every job of every seed, on as many threads as are wanted, in any order.
fn each<T: Send>(arguments: &Arguments, of: impl Fn(u64, u64) -> Option<T> + Sync) -> Vec<T> {
    let next = AtomicU64::new(0);
    let done = Mutex::new(Vec::new());
    let threads = arguments.threads.or_else(|| std::thread::available_parallelism().ok().map(usize::from));
    std::thread::scope(|scope| {
        for _ in 0..threads.unwrap_or(1).max(1) {
            scope.spawn(|| {
                loop {
                    let of_all = next.fetch_add(1, Ordering::Relaxed);
                    let seed = usize::try_from(of_all / arguments.jobs.max(1)).ok();
                    let Some(&seed) = seed.and_then(|place| arguments.seed.get(place)) else { break };
                    let one = of(seed, of_all % arguments.jobs.max(1));
                    if let Ok(mut done) = done.lock() {
                        done.extend(one);
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_default()
}

/// The verdict that digests of the job give, with the windows of the standing verdict and the
/// clocks that agents measure. With the bytes of the digests a second and rank that was heard.
fn by_digests(drawn: &Drawn, rows: &Input) -> (Report, f64) {
    let mut clocks = AgentClocks::new(drawn.clocks(), rows.since_ns, reference_of(rows));
    let (mut input, bytes) = replay_by(rows, &mut |node, window| clocks.at(node, window));
    let ranks: BTreeSet<(&str, i64)> =
        rows.observations.iter().chain(&rows.unnumbered).map(|seen| (&*seen.node, seen.pid)).collect();
    let seconds = rows.until_ns.saturating_sub(rows.since_ns) as f64 / 1e9;
    let bytes = bytes as f64 / (ranks.len() as f64 * seconds).max(1.0);
    input.doing.clone_from(&rows.doing);
    (analyse(&input, &Rules::with_windows(WINDOW_NS)), bytes)
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
    println!("\nbytes of digests a rank and second                 n  median  largest");
    for pipeline in [false, true] {
        for mode in Mode::ALL {
            let of = |job: &&Judged| job.drawn.mode == mode && (job.drawn.grid.pipeline > 1) == pipeline;
            let bytes: Vec<f64> = judged.iter().filter(of).map(|job| job.bytes).collect();
            let name = format!("{}{}", mode.name(), if pipeline { ", pipeline" } else { "" });
            if let Some(middle) = median(bytes.iter().copied()) {
                let largest = bytes.iter().copied().fold(0.0, f64::max);
                println!("{name:<52} {:>6} {middle:>7.0} {largest:>8.0}", bytes.len());
            }
        }
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

/// Verdicts that name ranks, of some jobs.
struct Named {
    /// Of those that name one, the share that name the right one, whatever is the matter with the
    /// job; hangs apart.
    precision: f64,
    /// Of the jobs with a slow rank or host, by 10 % of a step and more, the share that name
    /// exactly that.
    recall: f64,
    /// Healthy jobs and those of stage or data imbalance in which one is named.
    false_names: usize,
}

impl Named {
    fn of<'a>(judged: impl IntoIterator<Item = &'a Judged>, outcome: fn(&Judged) -> Outcome) -> Self {
        let (mut ranks, mut all, mut quiet) = (Tally::default(), Tally::default(), 0);
        for job in judged {
            let outcome = outcome(job);
            if is_rank(job) {
                ranks.add(outcome);
            }
            if !matches!(job.drawn.case, Case::Hang | Case::Crash) {
                all.add(outcome);
            }
            let quiet_case = matches!(job.drawn.case, Case::Healthy | Case::StageImbalance | Case::DataImbalance);
            quiet += usize::from(quiet_case && outcome == Outcome::FalseName);
        }
        let named = ranks.right + all.wrong + all.false_names;
        let precision = if named == 0 { 1.0 } else { ranks.right as f64 / named as f64 };
        Self { precision, recall: ranks.recall(), false_names: quiet }
    }
}

fn seeds(seeds: &[u64], judged: &[Judged]) {
    println!(
        "{:<12} {:>9} {:>7} {:>11}  | {:>8} {:>7} {:>11}  by digests",
        "seed", "precision", "recall", "false names", "precision", "recall", "false names"
    );
    let line = |name: &str, of: &dyn Fn(&&Judged) -> bool| {
        let rows = Named::of(judged.iter().filter(of), |job| job.outcome);
        let digests = Named::of(judged.iter().filter(of), |job| job.by_digests);
        print!("{name:<12} {:>9.4} {:>7.4} {:>11}", rows.precision, rows.recall, rows.false_names);
        println!("  | {:>9.4} {:>7.4} {:>11}", digests.precision, digests.recall, digests.false_names);
    };
    for seed in seeds {
        line(&seed.to_string(), &|job| job.seed == *seed);
    }
    line("all", &|_| true);
    println!();
}

fn figures(judged: &[Judged]) {
    let rows = Named::of(judged, |job| job.outcome);
    let digests = Named::of(judged, |job| job.by_digests);
    let mut stops = Tally::default();
    let mut took: BTreeMap<bool, Vec<Duration>> = BTreeMap::new();
    for job in judged {
        if matches!(job.drawn.case, Case::Hang | Case::Crash) {
            stops.add(job.outcome);
        }
        took.entry(job.drawn.grid.job.ranks == 512).or_default().push(job.took);
    }
    figure("verdicts_rank_precision", rows.precision, "share", ">=", 0.99);
    figure("verdicts_rank_recall", rows.recall, "share", ">=", 0.99);
    none_of("verdicts_false_names", rows.false_names, "jobs");
    figure("verdicts_by_digests_rank_precision", digests.precision, "share", ">=", 0.99);
    figure("verdicts_by_digests_rank_recall", digests.recall, "share", ">=", 0.99);
    none_of("verdicts_by_digests_false_names", digests.false_names, "jobs");
    figure("verdicts_hang_precision", stops.precision(), "share", ">=", 0.99);
    figure("verdicts_hang_recall", stops.recall(), "share", ">=", 0.99);
    if let Some(mut at_512) = took.remove(&true) {
        figure("verdicts_analysis_512_ranks", p50_ms(&mut at_512), "ms", "<=", 2_000.0);
    }
}
