//! `bench verdicts --hard`: jobs that are hard to judge, class by class, from rows and by the
//! standing verdicts of every window.

use clap::ValueEnum;
use scenarios::figures::figure;
use scenarios::stragglers::{Class, Drawn, Outcome, draw_hard, in_the_data, judge_hard, judge_standing, standing_of};
use verdicts::{Culprit, Report, Rules, Verdict, analyse, text};

use super::{Arguments, each};

/// What one way of looking at a job gave.
struct Seen {
    outcome: Outcome,
    /// It named a rank.
    named: bool,
    /// The last verdict is "unknown".
    unknown: bool,
    words: String,
}

struct Judged {
    seed: u64,
    drawn: Drawn,
    /// A culprit's lateness is in what was recorded.
    in_the_data: bool,
    rows: Seen,
    standing: Seen,
}

fn names(report: &Report) -> bool {
    !report.verdict.named_ranks().is_empty()
}

fn words(report: &Report) -> String {
    let Verdict::Rank { culprit, also, .. } = &report.verdict else {
        return format!("{:?}", report.verdict).chars().take(600).collect();
    };
    let one = |c: &Culprit| {
        let (percent, late_ms) = (100.0 * c.share, c.late_by_ns as f64 / 1e6);
        let seen = format!("last in {} of {}, {} of {} windows", c.last_in, c.collectives, c.flagged, c.windows);
        format!("rank {} in {}: {:?}, {percent:.1} %, {late_ms:.2} ms late, {seen}", c.rank, c.comm_hash, c.basis)
    };
    std::iter::once(culprit).chain(also).map(one).collect::<Vec<_>>().join("; ")
}

fn judge(seed: u64, number: u64) -> Judged {
    let drawn = draw_hard(seed, number);
    let input = drawn.observe();
    let report = analyse(&input, &Rules::default());
    let is_unknown = |report: &Report| matches!(report.verdict, Verdict::Unknown { .. });
    let rows = Seen {
        outcome: judge_hard(&drawn, &report),
        named: names(&report),
        unknown: is_unknown(&report),
        words: words(&report),
    };
    let verdicts = standing_of(&drawn, &input);
    let outcome = judge_standing(&drawn, &verdicts);
    // The first that is wrong, or the last.
    let shown = verdicts.iter().find(|v| judge_hard(&drawn, &v.report) == outcome).or(verdicts.last());
    let standing = Seen {
        outcome,
        named: verdicts.iter().any(|v| names(&v.report)),
        unknown: verdicts.last().is_none_or(|last| is_unknown(&last.report)),
        words: shown.map(|verdict| words(&verdict.report)).unwrap_or_default(),
    };
    let in_the_data = drawn.shown && in_the_data(&drawn);
    Judged { seed, drawn, in_the_data, rows, standing }
}

/// Prints one job's report, from rows and window by window.
pub(super) fn show(seed: u64, number: u64) {
    let drawn = draw_hard(seed, number);
    let input = drawn.observe();
    let report = analyse(&input, &Rules::default());
    println!("{}\n{:?}\n\n{}", drawn.title(), judge_hard(&drawn, &report), text(&report));
    for standing in standing_of(&drawn, &input) {
        println!("{}: {:?} {}", standing.window, judge_hard(&drawn, &standing.report), words(&standing.report));
    }
}

/// Draws the jobs, judges them and prints the tables.
pub(super) fn run(arguments: &Arguments) {
    let mut judged = each(arguments, |seed, number| Some(judge(seed, number)));
    judged.sort_by_key(|job| (job.seed, job.drawn.number));
    for job in &judged {
        let ways = [("rows", &job.rows, arguments.list), ("standing", &job.standing, arguments.list_digests)];
        for (way, seen, _) in ways.into_iter().filter(|(_, seen, list)| *list && seen.outcome != Outcome::Right) {
            let data = if job.drawn.shown && !job.in_the_data { " (not in the data)" } else { "" };
            println!("{way} {:?}{data}: seed {} {}\n    {}", seen.outcome, job.seed, job.drawn.title(), seen.words);
        }
    }
    println!(
        "\n{:<38} {:>5} {:>6} {:>6}  | {:>6} {:>6} {:>6} {:>6} {:>8}  | {:>6} {:>6} {:>6} {:>6} {:>8}  standing",
        "class",
        "jobs",
        "shown",
        "data",
        "right",
        "wrong",
        "missed",
        "false",
        "unknown",
        "right",
        "wrong",
        "missed",
        "false",
        "unknown"
    );
    for class in Class::value_variants() {
        line(class.name(), &judged.iter().filter(|job| job.drawn.class == Some(*class)).collect::<Vec<_>>());
    }
    let all: Vec<&Judged> = judged.iter().collect();
    line("all", &all);
    println!();
    for (way, of) in [("rows", (|job| &job.rows) as fn(&Judged) -> &Seen), ("standing", |job| &job.standing)] {
        let count = |what: &dyn Fn(&Judged) -> bool| all.iter().filter(|job| what(job)).count() as f64;
        let right = count(&|job| of(job).outcome == Outcome::Right && of(job).named);
        let named = count(&|job| of(job).named).max(1.0);
        let shown = count(&|job| job.drawn.shown).max(1.0);
        let found = count(&|job| job.drawn.shown && of(job).outcome == Outcome::Right);
        figure(&format!("verdicts_hard_{way}_precision"), right / named, "share", ">=", 0.995);
        figure(&format!("verdicts_hard_{way}_recall_of_all"), found / shown, "share", ">=", 0.97);
        let in_the_data = count(&|job| job.in_the_data).max(1.0);
        let found = count(&|job| job.in_the_data && of(job).outcome == Outcome::Right);
        figure(&format!("verdicts_hard_{way}_recall"), found / in_the_data, "share", ">=", 0.97);
        let falsely = count(&|job| of(job).outcome == Outcome::FalseName) * 1_000.0 / count(&|_| true).max(1.0);
        figure(&format!("verdicts_hard_{way}_false_names"), falsely, "in 1000 jobs", "<=", 1.0);
    }
}

fn line(name: &str, jobs: &[&Judged]) {
    let shown = jobs.iter().filter(|job| job.drawn.shown).count();
    print!("{name:<38} {:>5} {shown:>6} {:>6}", jobs.len(), jobs.iter().filter(|job| job.in_the_data).count());
    for of in [(|job| &job.rows) as fn(&Judged) -> &Seen, |job| &job.standing] {
        let count = |outcome| jobs.iter().filter(|job| of(job).outcome == outcome).count();
        let unknown = jobs.iter().filter(|job| of(job).unknown).count() as f64 / jobs.len().max(1) as f64;
        print!(
            "  | {:>6} {:>6} {:>6} {:>6} {:>6.0} %",
            count(Outcome::Right),
            count(Outcome::WrongName),
            count(Outcome::Missed),
            count(Outcome::FalseName),
            100.0 * unknown
        );
    }
    println!();
}
