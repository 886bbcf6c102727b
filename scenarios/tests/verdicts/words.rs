//! What a person reads of simulated jobs.

use scenarios::simulate::{Job, Slow};
use verdicts::{Input, Rules, analyse, evidence, text, text_of_all};

const MS: i64 = 1_000_000;
/// Longest bar of the table, in characters.
const BAR: usize = 24;

#[test]
fn the_sentence_names_rank_host_lateness_and_cost() {
    let job = Job {
        steps: 33,
        own_ns: 10 * MS,
        slow: vec![Slow { rank: 5, extra_ns: 290 * MS, from_step: 0 }],
        ..Job::default()
    };
    let report = analyse(&job.observe(3), &Rules::default());
    let text = text(&report);
    let in_one_line = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let prose = in_one_line(&text);
    let first = prose.split_once(" Cost: ").unwrap().0;
    assert!(first.starts_with("Rank 5 on host n2 holds up the other 7 ranks: it enters 29"), "{text}");
    assert!(first.contains("last in 33 of 33 collectives, 96 % of the time"), "{text}");
    assert!(prose.contains("22:13:20 UTC (it may have begun earlier), and still does."), "{text}");
    assert!(text.contains("rank-seconds"), "no GPU in an MPI job: {text}");
    assert!(prose.contains("In each of 33 collectives: 2.0 rank-seconds, 290 ms of 301 ms, 2"), "{text}");
    let row = text.lines().find(|l| l.ends_with("culprit")).unwrap();
    assert!(row.contains(&"█".repeat(BAR)), "{text}");
    assert_eq!(text.matches('█').count(), BAR, "only the culprit has a bar to speak of: {text}");
    assert!(text.contains("Evidence: tier 1, 33 collectives, "), "{text}");
    let evidence = evidence(&report);
    assert!(evidence.contains("Evidence: tier 1, 33 collectives matched"), "{evidence}");
}

#[test]
fn nobody_and_unknown_are_said_in_words() {
    let healthy = text(&analyse(&Job::default().observe(1), &Rules::default()));
    assert!(healthy.starts_with("No rank holds the others up (8 ranks compared over 100 collectives"), "{healthy}");
    let many = Job { ranks: 40, steps: 30, missing_nodes: vec![3], ..Job::default() };
    let report = analyse(&many.observe(1), &Rules::default());
    let (many, all) = (text(&report), text_of_all(&report));
    assert!(many.contains("median  of 38 ") && many.contains("… and 30 ranks more (--all)"), "{many}");
    let rows = |text: &str| text.lines().filter(|line| line.contains("  n") && line.contains("0/7")).count();
    assert_eq!((rows(&many), rows(&all)), (8, 38), "{many}\n{all}");
    assert!(many.contains("Not heard: n3 (timeout)."), "{many}");
    assert!(many.contains("38 of 40 ranks heard"), "{many}");
    let nothing = text(&analyse(&Input::default(), &Rules::default()));
    assert!(nothing.contains("no collective was recorded"), "{nothing}");
}
