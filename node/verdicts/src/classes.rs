//! Which ranks do the same work: processes are put into classes by their op-count signature, so
//! that a pipeline's stages are not compared with each other.
//!
//! Owns signatures and classes; who is compared with whom follows in `score.rs` and `stages.rs`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use observed::{Coupling, LaneTotal, Process, Rules, Totals};

use super::comm::Comm;

/// What a process calls, in shares of all its calls, and how it opens after a meeting of the
/// largest communicator it is in (a step): a first pipeline stage opens with a send, the last one
/// with a receive, though both call each equally often.
#[derive(Debug, Clone, Default, PartialEq)]
struct Signature {
    shares: BTreeMap<Arc<str>, f64>,
    calls: f64,
    opens: Option<Arc<str>>,
}

impl Signature {
    /// Total variation distance: the share of calls that would have to differ, without those at the
    /// edges.
    fn apart(&self, other: &Self) -> f64 {
        let names = self.shares.keys().chain(other.shares.keys().filter(|n| !self.shares.contains_key(*n)));
        let at = |s: &Self, n: &Arc<str>| s.shares.get(n).copied().unwrap_or(0.0);
        let edge = Rules::CLASS_EDGE_CALLS / self.calls.min(other.calls).max(1.0);
        names.map(|n| ((at(self, n) - at(other, n)).abs() - edge).max(0.0)).sum::<f64>() / 2.0
    }
}

/// The class of each process, numbered in the order of the processes.
pub(crate) fn classes(all: &[&Totals]) -> HashMap<Process, usize> {
    let mut all = all.to_vec();
    all.sort_by(|a, b| (&a.node, a.pid).cmp(&(&b.node, b.pid)));
    let mut known: Vec<Signature> = Vec::new();
    let mut classes = HashMap::with_capacity(all.len());
    let mut before: Option<(&Totals, usize)> = None;
    // Of a process's own totals the last count.
    for own in all.chunk_by(|a, b| (&a.node, a.pid) == (&b.node, b.pid)) {
        let Some(totals) = own.last() else { continue };
        // Processes mostly call what the one before did.
        let class = before.filter(|(before, _)| is_called_alike(before, totals)).map(|(_, class)| class);
        let class = class.unwrap_or_else(|| {
            let mine = of_totals(totals);
            let place = known.iter().position(|k| k.opens == mine.opens && k.apart(&mine) <= Rules::CLASS_DISTANCE);
            place.unwrap_or_else(|| {
                known.push(mine);
                known.len() - 1
            })
        });
        before = Some((totals, class));
        classes.insert((Arc::clone(&totals.node), totals.pid), class);
    }
    classes
}

/// Whether two processes called the same functions as often, in the same order of lanes.
fn is_called_alike(a: &Totals, b: &Totals) -> bool {
    let alike = |(a, b): (&LaneTotal, &LaneTotal)| (&a.func, a.calls) == (&b.func, b.calls);
    a.opens == b.opens && a.lanes.len() == b.lanes.len() && a.lanes.iter().zip(&b.lanes).all(alike)
}

/// Of what a process called.
fn of_totals(totals: &Totals) -> Signature {
    let calls = totals.lanes.iter().map(|lane| lane.calls as f64).sum::<f64>();
    let mut shares: BTreeMap<Arc<str>, f64> = BTreeMap::new();
    for lane in &totals.lanes {
        *shares.entry(Arc::clone(&lane.func)).or_default() += lane.calls as f64 / calls.max(1.0);
    }
    Signature { shares, calls, opens: totals.opens.clone() }
}

/// Sets of processes that grow together.
#[derive(Default)]
pub(crate) struct Union {
    pub(crate) parent: BTreeMap<Process, Process>,
}

impl Union {
    /// The process that stands for a set.
    pub(crate) fn root(&self, of: &Process) -> Process {
        let mut at = of;
        while let Some(up) = self.parent.get(at).filter(|up| *up != at) {
            at = up;
        }
        at.clone()
    }

    /// Put the members of a communicator into one set.
    pub(crate) fn join(&mut self, comm: &Comm) {
        let mut first: Option<Process> = None;
        for m in &comm.members {
            let process: Process = (Arc::clone(&m.node), m.pid);
            self.parent.entry(process.clone()).or_insert_with(|| process.clone());
            let root = self.root(&process);
            match &first {
                None => first = Some(root),
                Some(top) => {
                    self.parent.insert(root, top.clone());
                }
            }
        }
    }
}

/// Tell stages apart whose signatures are alike (the inner ones of a pipeline): of processes that
/// also send to each other, only those are one class that share a data or tensor parallel group,
/// that is a communicator smaller than the whole job in which all have one signature. Where there
/// is none, the signature has to do.
pub(crate) fn refine(comms: &mut [Comm], all: &[&Totals]) {
    let sends = |totals: &&&Totals| totals.lanes.iter().any(|l| l.calls > 0 && Coupling::of(&l.func) == Coupling::Pair);
    let pairs: HashSet<(&str, i64)> = all.iter().filter(sends).map(|totals| (&*totals.node, totals.pid)).collect();
    let mut stages = Union::default();
    let mut pure: Vec<&Comm> = comms
        .iter()
        .filter(|c| c.coupled > 0 && c.members.len() > 1 && !c.mixed())
        .filter(|c| c.members.iter().all(|m| pairs.contains(&(&*m.node, m.pid))))
        .collect();
    pure.sort_by_key(|c| (c.nranks, c.members.len(), c.hash));
    let size = |c: &Comm| (c.nranks, c.members.len());
    let largest = comms.iter().filter(|c| c.coupled > 0).map(size).max();
    for comm in pure {
        let known = comm.members.iter().any(|m| stages.parent.contains_key(&(Arc::clone(&m.node), m.pid)));
        if Some(size(comm)) != largest || !known {
            stages.join(comm);
        }
    }
    if stages.parent.is_empty() {
        return;
    }
    let mut number: HashMap<Process, usize> = HashMap::new();
    let taken = comms.iter().flat_map(|c| &c.members).map(|m| m.class + 1).max().unwrap_or(0);
    for member in comms.iter_mut().flat_map(|c| &mut c.members) {
        let process: Process = (Arc::clone(&member.node), member.pid);
        if stages.parent.contains_key(&process) {
            let next = taken + number.len();
            member.class = *number.entry(stages.root(&process)).or_insert(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Input, Observation};
    use digest::of_rows;

    fn input(ranks: &[&[&str]]) -> Input {
        let mut input = Input::default();
        for (rank, calls) in ranks.iter().enumerate() {
            for (i, func) in calls.iter().cycle().take(calls.len() * 50).enumerate() {
                input.observations.push(Observation::test_call(rank as i32, 1, func, i as u64, i as i64, 0));
            }
        }
        input
    }

    #[test]
    fn stages_of_a_pipeline_fall_into_classes_and_replicas_into_one() {
        let first: &[&str] = &["all_reduce", "send", "recv", "send", "recv"];
        let inner: &[&str] = &["all_reduce", "recv", "send", "recv", "send", "recv", "send", "recv", "send"];
        let last: &[&str] = &["all_reduce", "recv", "send", "recv", "send"];
        let mut jobs = input(&[first, first, inner, inner, last, last]);
        // A few records lost, and one host that attached late.
        jobs.observations.retain(|o| !(o.rank == 3 && o.seq % 90 == 7 || o.rank == 1 && o.seq < 100));
        let totals = of_rows(&jobs).1;
        let found = classes(&totals.iter().collect::<Vec<_>>());
        let class = |rank: i32| found[&(Arc::from(format!("n{rank}")), 1)];
        assert_eq!([0, 1, 2, 3, 4, 5].map(class), [0, 0, 1, 1, 2, 2]);
    }
}
