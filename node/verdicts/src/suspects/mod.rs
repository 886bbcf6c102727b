//! From the flags of the windows to suspects: what has to hold over a whole episode to name a rank.
//!
//! `episodes` puts flagged windows together, `case` decides about one rank of one communicator, by
//! the tests in `excess`. Ratings come from `rating.rs`; which suspects are named, and what else may
//! be the matter, `verdict.rs` decides.

mod case;
mod episodes;
mod excess;

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ops::Range;

use observed::{RankRef, Rules};

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

/// What is known of processes by all communicators together.
pub(crate) struct Elsewhere<'a> {
    comms: Vec<&'a Comm>,
    /// Of each process, once one is asked about: mostly nobody stands out.
    places: OnceCell<HashMap<(&'a str, i64), Places>>,
    /// Places in communicators that are compared, of all processes together.
    compared: usize,
    /// Where calls only enqueue, their entries bear out that hosts wait for them.
    hosts_wait: bool,
}

/// Where a process communicates.
#[derive(Default)]
struct Places {
    /// The size of the largest communicator that it is in, and its rank there.
    largest: Option<(i32, i32)>,
    /// Communicators in which it may wait for somebody.
    many: usize,
    /// It sends to or receives from single ranks.
    paired: bool,
}

/// Whether a rank of a communicator may wait for somebody there.
fn meets(comm: &Comm) -> bool {
    comm.members.len() > 1 || comm.paired > 0
}

impl<'a> Elsewhere<'a> {
    /// From all communicators of the input.
    pub(crate) fn of(scored: &'a [Scored], thin: &'a [Comm]) -> Self {
        let comms: Vec<&Comm> = scored.iter().map(|s| &s.comm).chain(thin).collect();
        let compared = comms.iter().filter(|c| meets(c) && c.coupled > 0).map(|c| c.members.len()).sum();
        Self { comms, places: OnceCell::new(), compared, hosts_wait: hosts_wait(scored.iter()) }
    }

    fn places<'s>(&'s self, node: &'s str, pid: i64) -> Option<&'s Places> {
        let all = self.places.get_or_init(|| {
            let mut all: HashMap<(&'a str, i64), Places> = HashMap::new();
            for comm in self.comms.iter().copied() {
                let size = comm.nranks.unwrap_or_else(|| i32::try_from(comm.members.len()).unwrap_or(i32::MAX));
                for m in &comm.members {
                    let of = all.entry((&m.node, m.pid)).or_default();
                    if of.largest.is_none_or(|(largest, _)| size > largest) {
                        of.largest = Some((size, m.rank));
                    }
                    of.many += usize::from(meets(comm));
                    of.paired |= comm.paired > 0;
                }
            }
            all
        });
        all.get(&(node, pid))
    }

    /// A process's rank in the largest communicator that it is in.
    pub(crate) fn job_rank(&self, node: &str, pid: i64) -> Option<i32> {
        Some(self.places(node, pid)?.largest?.1)
    }
}

/// Look for suspects in one communicator.
pub(crate) fn suspects(index: usize, s: &Scored, rules: &Rules, elsewhere: &Elsewhere<'_>, findings: &mut Findings) {
    for (m, _) in stand_out(s).into_iter().enumerate().filter(|(_, stands_out)| *stands_out) {
        let case = Case::of(index, s, m, rules, elsewhere);
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

/// Which members anything speaks against: a window, or several together, in which they are flagged, or
/// time off their CPU. The others are no suspects.
fn stand_out(s: &Scored) -> Vec<bool> {
    let mut stand_out = vec![false; s.comm.members.len()];
    for flags in s.flags.iter().chain(s.coarse.iter().map(|(_, costs)| costs)) {
        stand_out.iter_mut().zip(flags).for_each(|(out, flags)| *out |= flags.late || flags.compute);
    }
    for met in &s.comm.met {
        let off_cpu = met.cells.iter().map(|cell| cell.is_some_and(|cell| cell.off_cpu_ns() > 0));
        stand_out.iter_mut().zip(off_cpu).for_each(|(out, off_cpu)| *out |= off_cpu);
    }
    stand_out
}
