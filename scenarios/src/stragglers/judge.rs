//! Compares a verdict with the truth of a drawn job, and counts.

use std::collections::BTreeSet;

use standing::Standing;
use verdicts::{Report, Verdict};

use super::class::Class;
use super::draw::{Case, Drawn};

/// What a verdict was worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It says what is the matter.
    Right,
    /// It names a rank that is not to blame, where another is.
    WrongName,
    /// It names no rank, and does not say what is the matter.
    Missed,
    /// It names a rank where none is to blame.
    FalseName,
}

/// The ranks that a verdict names.
#[must_use]
pub fn named(report: &Report) -> BTreeSet<i32> {
    match &report.verdict {
        Verdict::Hang(hang) => hang.missing.iter().map(|m| m.who.rank).collect(),
        verdict => verdict.named_ranks().into_iter().collect(),
    }
}

/// Judge a verdict.
#[must_use]
pub fn judge(drawn: &Drawn, report: &Report) -> Outcome {
    let named = named(report);
    let truth: BTreeSet<i32> = drawn.culprits.iter().copied().collect();
    if !named.is_empty() && named != truth {
        return if truth.is_empty() { Outcome::FalseName } else { Outcome::WrongName };
    }
    let right = match drawn.case {
        Case::Healthy => report.verdict == Verdict::None,
        Case::SlowRank | Case::SlightlySlowRank | Case::SlowHost => matches!(report.verdict, Verdict::Rank { .. }),
        Case::Hang | Case::Crash => matches!(report.verdict, Verdict::Hang(_)) && named == truth,
        Case::SlowLink => matches!(report.verdict, Verdict::Unknown { .. }),
        Case::StageImbalance => matches!(report.verdict, Verdict::StageImbalance { .. }),
        // With one meeting a step it cannot be told from noise: a remark beside "nobody" says as
        // much as can be said.
        Case::DataImbalance => match report.verdict {
            Verdict::DataImbalance { .. } => true,
            Verdict::None => report.evidence.notes.iter().any(|note| note.contains("take turns")),
            _ => false,
        },
        Case::Unheard => matches!(report.verdict, Verdict::Unknown { .. }),
        Case::Alone => {
            named == truth || matches!(report.verdict, Verdict::Unknown { .. } | Verdict::StageImbalance { .. })
        }
        Case::Unmatched | Case::Silent => named == truth || matches!(report.verdict, Verdict::Unknown { .. }),
    };
    if right { Outcome::Right } else { Outcome::Missed }
}

/// The ranks that a verdict names, by their processes: of two jobs on the same hosts those of the
/// second are nobody's of the first.
fn processes(report: &Report) -> BTreeSet<i64> {
    match &report.verdict {
        Verdict::Rank { culprit, also, .. } => {
            std::iter::once(culprit).chain(also).map(|culprit| culprit.pid).collect()
        }
        Verdict::Hang(hang) => hang.missing.iter().map(|missing| missing.who.pid).collect(),
        _ => BTreeSet::new(),
    }
}

/// Judge a verdict on a job that is hard to judge. Where several ranks are to blame, to name one of
/// them and nobody else is right; where none is, or where it does not show, nobody. That the whole
/// job became slower is to be said.
#[must_use]
pub fn judge_hard(drawn: &Drawn, report: &Report) -> Outcome {
    let (named, truth) = (processes(report), drawn.culprit_pids());
    match () {
        () if !named.is_subset(&truth) && truth.is_empty() => Outcome::FalseName,
        () if !named.is_subset(&truth) => Outcome::WrongName,
        () if named.is_empty() && drawn.shown => Outcome::Missed,
        () if drawn.class == Some(Class::AllSlower) && !says_all_slower(report) => Outcome::Missed,
        () => Outcome::Right,
    }
}

fn says_all_slower(report: &Report) -> bool {
    report.evidence.notes.iter().any(|note| note.contains("whole job is slower"))
}

/// Judge the standing verdicts on such a job: what any of them named counts, and whether any named
/// a rank that is to blame.
#[must_use]
pub fn judge_standing(drawn: &Drawn, verdicts: &[Standing]) -> Outcome {
    let each: Vec<Outcome> = verdicts.iter().map(|standing| judge_hard(drawn, &standing.report)).collect();
    let any = |outcome| each.contains(&outcome);
    match () {
        () if any(Outcome::FalseName) => Outcome::FalseName,
        () if any(Outcome::WrongName) => Outcome::WrongName,
        () if (drawn.shown || drawn.class == Some(Class::AllSlower)) && !any(Outcome::Right) => Outcome::Missed,
        () => Outcome::Right,
    }
}

/// How often what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Jobs.
    pub n: usize,
    /// See [`Outcome::Right`].
    pub right: usize,
    /// See [`Outcome::WrongName`].
    pub wrong: usize,
    /// See [`Outcome::Missed`].
    pub missed: usize,
    /// See [`Outcome::FalseName`].
    pub false_names: usize,
}

impl Tally {
    /// Count one.
    pub fn add(&mut self, outcome: Outcome) {
        self.n += 1;
        match outcome {
            Outcome::Right => self.right += 1,
            Outcome::WrongName => self.wrong += 1,
            Outcome::Missed => self.missed += 1,
            Outcome::FalseName => self.false_names += 1,
        }
    }

    /// Of the verdicts that name a rank, the share that name the right one; 1 where none does.
    #[must_use]
    pub fn precision(&self) -> f64 {
        share(self.right, self.right + self.wrong + self.false_names)
    }

    /// Of the jobs, the share with the right verdict; 1 where there is none.
    #[must_use]
    pub fn recall(&self) -> f64 {
        share(self.right, self.n)
    }
}

fn share(part: usize, of: usize) -> f64 {
    if of == 0 { 1.0 } else { part as f64 / of as f64 }
}
