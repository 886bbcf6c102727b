//! How far each process got, by the calls that it has finished and those that it is in.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::observation::{Coupling, Observation, SyncCall};

/// How far a process got with one function of one communicator.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// The node that knows it.
    pub node: Arc<str>,
    /// Process id on that node.
    pub pid: i64,
    /// Rank in the communicator.
    pub rank: i32,
    /// Size of the communicator, when known.
    pub nranks: Option<i32>,
    /// The communicator.
    pub comm_hash: u64,
    /// What counts the calls: a function, or "any" where one counter serves all functions of the
    /// communicator.
    pub func: Arc<str>,
    /// Last call entered (or enqueued); none before the first.
    pub entered: Option<u64>,
    /// Last call that was left (or that the device completed); none before the first.
    pub completed: Option<u64>,
    /// When the oldest call that is not complete was entered, Unix nanoseconds of the node's own
    /// clock.
    pub since_ns: Option<i64>,
    /// Name of that call, where `func` does not say it.
    pub waiting_in: Option<Arc<str>>,
    /// The rank of the communicator that that call sends to or receives from, or its root.
    pub peer: Option<i32>,
    /// When the process began to wait for its device in the synchronise call that it is in, Unix
    /// nanoseconds of the node's own clock.
    pub syncing_since_ns: Option<i64>,
}

/// A process of the job that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    /// The node that knows it.
    pub node: Arc<str>,
    /// Process id on that node.
    pub pid: i64,
    /// When, Unix nanoseconds of the node's own clock.
    pub at_ns: i64,
    /// How, in words ("exit 1", "signal 9"); empty where that is not known.
    pub how: String,
}

/// How far each process got, from the calls it has finished and those it is in: `open` are calls
/// entered and not left (their `duration_ns` says nothing). A call that is in both lists has been
/// left in the meantime.
///
/// Calls that only enqueue are complete once a synchronise call after them has been left: `synced`
/// are those that were, `syncing` those in which processes are.
#[must_use]
pub fn progress_of(
    finished: &[Observation],
    open: &[Observation],
    synced: &[SyncCall],
    syncing: &[SyncCall],
) -> Vec<Progress> {
    let mut waiting: HashMap<(&str, i64), (i64, i64)> = HashMap::new();
    for call in syncing {
        waiting.insert((&call.node, call.pid), (call.start_ns, i64::MIN));
    }
    for call in synced {
        if let Some((since, before)) = waiting.get_mut(&(&*call.node, call.pid))
            && call.start_ns < *since
        {
            *before = (*before).max(call.start_ns);
        }
    }
    let mut lanes: BTreeMap<(&str, i64, u64, &str), Progress> = BTreeMap::new();
    let lane = |seen: &Observation| Progress {
        node: Arc::clone(&seen.node),
        pid: seen.pid,
        rank: seen.rank,
        nranks: seen.nranks,
        comm_hash: seen.comm_hash,
        func: Arc::clone(&seen.func),
        ..Progress::default()
    };
    for seen in finished {
        let key = (&*seen.node, seen.pid, seen.comm_hash, &*seen.func);
        let p = lanes.entry(key).or_insert_with(|| lane(seen));
        p.entered = p.entered.max(Some(seen.seq));
        match waiting.get(&(&*seen.node, seen.pid)) {
            // Enqueued since the last synchronise call that was left: not known to be complete.
            Some((since, before)) if seen.tier == 0 && seen.entry_ns > *before => {
                p.since_ns = Some(*since);
            }
            _ => p.completed = p.completed.max(Some(seen.seq)),
        }
    }
    for seen in open {
        let key = (&*seen.node, seen.pid, seen.comm_hash, &*seen.func);
        let p = lanes.entry(key).or_insert_with(|| lane(seen));
        if p.completed.is_none_or(|c| c < seen.seq) {
            // Calls of a blocking library: all before it have been left.
            p.completed = seen.seq.checked_sub(1);
            p.entered = Some(seen.seq);
            p.since_ns = Some(seen.entry_ns);
            p.peer = seen.root;
        }
    }
    let mut all: Vec<Progress> = lanes.into_values().collect();
    for p in &mut all {
        p.syncing_since_ns = waiting.get(&(&*p.node, p.pid)).map(|(since, _)| *since);
    }
    complete_together(&mut all);
    all
}

/// When a process left a synchronise call may have been missed. What others have completed, and it
/// has entered, it has completed as well: all ranks meet in it.
pub fn complete_together(all: &mut [Progress]) {
    if all.iter().all(|p| p.syncing_since_ns.is_none()) {
        return;
    }
    let mut furthest: BTreeMap<(u64, Arc<str>), u64> = BTreeMap::new();
    for p in all.iter().filter(|p| Coupling::of(&p.func) == Coupling::All) {
        if let Some(completed) = p.completed {
            let most = furthest.entry((p.comm_hash, Arc::clone(&p.func))).or_default();
            *most = completed.max(*most);
        }
    }
    for p in all.iter_mut().filter(|p| p.syncing_since_ns.is_some()) {
        let most = furthest.get(&(p.comm_hash, Arc::clone(&p.func))).copied();
        p.completed = p.completed.max(most.min(p.entered));
        if p.completed == p.entered {
            p.since_ns = None;
        }
    }
}
