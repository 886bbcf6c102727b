//! What is true of a job that hangs, out of what its ranks did: by brute force over whom each
//! waits for, without a rule of those that name causes.

use std::collections::{BTreeMap, BTreeSet};

use super::draw::Drawn;
use super::program::{Collective, Func, Op};

/// Who made which call at one place of a communicator's order.
pub type Groups = BTreeMap<Collective, BTreeSet<usize>>;

/// The truth of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truth {
    /// Ranks that are in no call, and that somebody waits for, directly or through others.
    pub elsewhere: BTreeSet<usize>,
    /// Ranks that are at the end, and that somebody waits for who is not.
    pub at_the_end: BTreeSet<usize>,
    /// By communicator, the first place at which its ranks made calls that do not belong together.
    pub differing: BTreeMap<usize, Groups>,
    /// By rank, the call that it is in.
    pub calls: BTreeMap<usize, &'static str>,
    /// Who waits for whom.
    pub edges: BTreeSet<(usize, usize)>,
}

/// The call's name as it is recorded; none of what is no call.
#[must_use]
pub(super) fn name(op: &Op) -> Option<&'static str> {
    match op {
        Op::Collective(call) => Some(call.func.name()),
        Op::Send { waits: true, .. } => Some("ssend"),
        Op::Send { .. } => Some("send"),
        Op::Receive { .. } => Some("recv"),
        Op::Finalize => Some("finalize"),
        Op::Compute(_) | Op::Stay(_) => None,
    }
}

/// The truth of a job.
#[must_use]
pub fn truth(drawn: &Drawn) -> Truth {
    let run = &drawn.run;
    let ranks = 0..run.made.len();
    let at_end = |rank: &usize| run.stays_in(*rank).is_some_and(|made| made.op == Op::Finalize);
    let in_call = |rank: usize| run.stays_in(rank).and_then(|made| name(&made.op));
    let calls: BTreeMap<usize, &'static str> = ranks.clone().filter_map(|rank| Some((rank, in_call(rank)?))).collect();
    let edges: BTreeSet<(usize, usize)> =
        ranks.clone().flat_map(|rank| run.waits_for[rank].iter().map(move |other| (rank, *other))).collect();
    // Whoever is in a call itself is waited for through those that wait for it.
    let waited_for: BTreeSet<usize> = edges.iter().filter(|(from, _)| !at_end(from)).map(|(_, to)| *to).collect();
    let elsewhere = edges.iter().map(|(_, to)| *to).filter(|rank| !calls.contains_key(rank)).collect();
    Truth {
        elsewhere,
        at_the_end: waited_for.into_iter().filter(at_end).collect(),
        differing: differing(drawn),
        calls,
        edges,
    }
}

fn differing(drawn: &Drawn) -> BTreeMap<usize, Groups> {
    let mut places: BTreeMap<(usize, u64), Groups> = BTreeMap::new();
    for (rank, made) in
        drawn.run.made.iter().enumerate().flat_map(|(rank, all)| all.iter().map(move |made| (rank, made)))
    {
        let end = Collective { comm: 0, func: Func::Finalize, root: 0, bytes: 0 };
        let call = match &made.op {
            Op::Collective(call) => *call,
            Op::Finalize => end,
            _ => continue,
        };
        if let Some(position) = made.position {
            places.entry((call.comm, position)).or_default().entry(call).or_default().insert(rank);
        }
    }
    let mut first = BTreeMap::new();
    for ((comm, _), groups) in places {
        if groups.len() > 1 {
            first.entry(comm).or_insert(groups);
        }
    }
    first
}
