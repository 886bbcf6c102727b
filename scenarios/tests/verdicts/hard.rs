//! Jobs that are hard to judge: each of these once named a rank that was not to blame, or missed
//! one that is.

use scenarios::stragglers::{Outcome, draw_hard, judge_hard, judge_standing, standing_of};
use verdicts::{Rules, Verdict, analyse};

#[test]
fn nobody_is_named_who_is_not_to_blame() {
    let jobs = [
        (130, "hosts run ahead, with a slow rank, by the standing verdict of the first windows"),
        (171, "a neighbour of a named rank whose compute time is not known there"),
        (
            182,
            "a pipeline that runs ahead: what others wait at its end looks like compute time of the replica that is not slow",
        ),
        (213, "what is left of waits that means over a step do not tell, beside a slow rank"),
    ];
    for (number, what) in jobs {
        let drawn = draw_hard(1, number);
        let rows = drawn.observe();
        let falsely = |outcome| matches!(outcome, Outcome::WrongName | Outcome::FalseName);
        let report = analyse(&rows, &Rules::default());
        assert!(!falsely(judge_hard(&drawn, &report)), "{number} ({what}), from rows: {:#?}", report.verdict);
        let verdicts = standing_of(&drawn, &rows);
        assert!(!falsely(judge_standing(&drawn, &verdicts)), "{number} ({what})");
    }
}

#[test]
fn who_is_to_blame_is_named_from_rows() {
    let jobs = [
        (101, 255, "comes and goes: late in runs of windows, not in all of the episode"),
        (101, 247, "hosts wait every fourth step: six waits, between which lateness adds up"),
        (201, 104, "late from the sixth of fifteen steps on: that the others wait for it shows before and after"),
        (102, 233, "clocks that are further off than their bounds say"),
        (7001, 533, "hosts wait every fourth step, and always as long: late by 1.7 s, and the others wait for 1.7 s"),
        (7001, 338, "the same: 6.6 times as slow, in fifteen steps"),
        (7027, 104, "runs ahead: comes to most calls when the others come to the next"),
        (7013, 49, "the whole job slower: five collectives a step at unequal distances, for eight seconds"),
    ];
    for (seed, number, what) in jobs {
        let drawn = draw_hard(seed, number);
        let report = analyse(&drawn.observe(), &Rules::default());
        assert_eq!(judge_hard(&drawn, &report), Outcome::Right, "{seed}, {number} ({what}): {:#?}", report.verdict);
        // However far lateness adds up, it costs no more than all of the time.
        let share = if let Verdict::Rank { culprit, .. } = &report.verdict { culprit.share } else { 0.0 };
        let steps = report.cost.per_step.map(|step| step.wasted_ns < step.step_ns);
        assert!(share < 1.0 && steps.unwrap_or(true), "{seed}, {number} ({what}): {share} {:?}", report.cost);
    }
}

#[test]
fn who_is_to_blame_is_named_by_the_standing_verdict() {
    let jobs = [
        (101, 208, "hosts wait every five seconds: ten hold two waits"),
        (102, 184, "a job of five seconds whose slow rank costs 6 %"),
        (7013, 452, "the whole job slower, with steps of a second: ten seconds do not show it, a minute does"),
        (
            7019,
            492,
            "recording began late, and steps take 2.6 s: in three seconds no two calls of another rank are heard",
        ),
        (8059, 35, "the same where hosts wait at the end of steps of 9 s"),
        (7013, 19, "steps of 20 s: a minute holds three"),
        (7001, 255, "late in half of ten seconds, in two stretches"),
        (7001, 532, "clocks that are further off than their bounds say, by the means that digests hold"),
        (8009, 13, "hosts run ahead: single steps show that the others wait, means do not"),
        (8009, 286, "the same, 1.46 times longer: it comes to 118 ms late, and costs 59 % of the time"),
    ];
    for (seed, number, what) in jobs {
        let drawn = draw_hard(seed, number);
        let rows = drawn.observe();
        let verdicts = standing_of(&drawn, &rows);
        assert_eq!(judge_standing(&drawn, &verdicts), Outcome::Right, "{seed}, {number} ({what})");
        let named = verdicts.iter().flat_map(|standing| standing.report.verdict.named());
        let share = named.map(|culprit| culprit.share).fold(0.0, f64::max);
        assert!(share <= 1.0, "{seed}, {number} ({what}): {share} of the time");
    }
}
