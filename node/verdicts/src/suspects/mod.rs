//! From the flags of the windows to suspects: what has to hold over a whole episode to name a rank.
//!
//! `episodes` puts flagged windows together, `case` decides about one rank of one communicator, by
//! the tests in `excess`. Ratings come from `rating.rs`; which suspects are named, and what else may
//! be the matter, `verdict.rs` decides.

mod case;
mod episodes;
mod excess;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use observed::{Process, RankRef, Rules};

use crate::comm::Comm;
use crate::report::Culprit;
use crate::score::Scored;
use case::Case;
pub(crate) use excess::{added_part, hosts_wait, of_run, order};

/// A culprit and where it was found.
pub(crate) struct Found {
    pub(crate) culprit: Culprit,
    /// Which scored communicator.
    pub(crate) comm: usize,
    /// Which of its members.
    pub(crate) member: usize,
    /// Which of its windows.
    pub(crate) episode: Range<usize>,
    /// It enters late, and it is unknown whether that is its own doing: its compute time is not
    /// known, or the clocks leave it open.
    pub(crate) by_entries: bool,
    /// The part of its lateness that others wait for: less than all where hosts run ahead and
    /// lateness adds up.
    pub(crate) added: f64,
}

/// What was found in all communicators.
#[derive(Default)]
pub(crate) struct Findings {
    /// Ranks to name.
    pub(crate) found: Vec<Found>,
    /// Late ranks that are held up themselves.
    pub(crate) held_up: Vec<RankRef>,
    /// Late ranks whose compute time could not be compared: no peer does the same work, or too many
    /// records were lost.
    pub(crate) alone: Vec<RankRef>,
    /// They stand out, in so many collectives: too few to tell from chance.
    pub(crate) few: Vec<(RankRef, usize)>,
    /// They enter late where calls only enqueue, and nothing of their own shows whether they are to
    /// blame.
    pub(crate) ahead: Vec<Found>,
    /// Evidence that contradicts itself, in words.
    pub(crate) doubts: Vec<String>,
}

/// Why a rank that is late is not named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Against {
    /// It may be held up, or late with others because of the network: that is not seen.
    Unclear,
    /// It is held up: another rank is late in a communicator where it is not.
    HeldUp,
}

impl Findings {
    /// Drops those for which `against` has a reason, by each and all that were found.
    pub(crate) fn drop(&mut self, against: impl Fn(&Found, &[Found]) -> Option<Against>) {
        let found = std::mem::take(&mut self.found);
        let against: Vec<Option<Against>> = found.iter().map(|one| against(one, &found)).collect();
        for (one, against) in found.into_iter().zip(against) {
            match against {
                Some(Against::HeldUp) => self.held_up.push(one.culprit.who()),
                Some(Against::Unclear) => self.alone.push(one.culprit.who()),
                None => self.found.push(one),
            }
        }
    }
}

/// A process's rank in the largest communicator that it is in.
pub(crate) fn job_ranks<'a>(comms: impl Iterator<Item = &'a Comm>) -> HashMap<Process, i32> {
    let mut best: HashMap<Process, (i32, i32)> = HashMap::new();
    for comm in comms {
        let size = comm.nranks.unwrap_or_else(|| i32::try_from(comm.members.len()).unwrap_or(i32::MAX));
        for m in &comm.members {
            let entry = best.entry((Arc::clone(&m.node), m.pid)).or_insert((size, m.rank));
            if size > entry.0 {
                *entry = (size, m.rank);
            }
        }
    }
    best.into_iter().map(|(process, (_, rank))| (process, rank)).collect()
}

/// Where else processes communicate.
#[derive(Default)]
pub(crate) struct Elsewhere {
    /// They are in more than one communicator.
    several: HashSet<Process>,
    /// They send to or receive from single ranks.
    paired: HashSet<Process>,
    /// Places in communicators that are compared, of all processes together.
    compared: usize,
    /// Where calls only enqueue, their entries bear out that hosts wait for them.
    hosts_wait: bool,
}

impl Elsewhere {
    /// From all communicators of the input.
    pub(crate) fn of(scored: &[Scored], thin: &[Comm]) -> Self {
        let mut elsewhere = Self { hosts_wait: hosts_wait(scored.iter()), ..Self::default() };
        let mut seen: HashSet<Process> = HashSet::new();
        let comms = scored.iter().map(|s| &s.comm).chain(thin);
        for comm in comms.filter(|c| c.members.len() > 1 || c.paired > 0) {
            elsewhere.compared += if comm.coupled > 0 { comm.members.len() } else { 0 };
            for m in &comm.members {
                let process: Process = (Arc::clone(&m.node), m.pid);
                if comm.paired > 0 {
                    elsewhere.paired.insert(process.clone());
                }
                if !seen.insert(process.clone()) {
                    elsewhere.several.insert(process);
                }
            }
        }
        elsewhere
    }
}

/// Look for suspects in one communicator.
pub(crate) fn suspects(
    index: usize,
    s: &Scored,
    rules: &Rules,
    job_rank: &HashMap<Process, i32>,
    elsewhere: &Elsewhere,
    findings: &mut Findings,
) {
    for m in 0..s.comm.members.len() {
        let case = Case::of(index, s, m, rules, job_rank, elsewhere);
        let late = case.by_lateness(findings);
        let own = case.by_compute(findings);
        // What the others wait is the better evidence, unless it shows only a part.
        findings.found.extend(match (late, own) {
            (Some(late), Some(own)) if own.culprit.share <= Rules::COMPUTE_OVER_LATENESS * late.culprit.share => {
                Some(late)
            }
            (late, own) => own.or(late).or_else(|| case.by_held()),
        });
    }
}
