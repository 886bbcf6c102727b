//! How far each process got on each communicator, and the calls that processes are in.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::observation::{Coupling, Observation, Process};
use crate::payload::Payload;

/// Collectives of a process on a communicator that are kept to be compared with others': the last.
pub const RECENT_CALLS: usize = 8;

/// How far a process got on one communicator, over all functions. A process that is a member and
/// has made no collective on it has one, too.
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
    /// Position of the last collective entered (or enqueued); none before the first.
    pub entered: Option<u64>,
    /// The communicator's start was not seen: `entered` says nothing.
    pub uncounted: bool,
    /// Its last collectives, by position; may be empty.
    pub recent: Vec<Made>,
    /// Of calls that only enqueue: sends and receives, by peer; empty where they were not counted
    /// from the communicator's start.
    pub pairs: Vec<Pair>,
}

/// A collective that a process made, or is in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Made {
    /// Its position on the communicator.
    pub position: u64,
    /// The function.
    pub func: Arc<str>,
    /// Its root, where it has one.
    pub root: Option<i32>,
    /// What it moves.
    pub payload: Payload,
}

/// How many sends and receives a process enqueued with one peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pair {
    /// The peer's rank in the communicator.
    pub peer: i32,
    /// Sends to it.
    pub sent: u64,
    /// Receives from it.
    pub received: u64,
}

/// A call that a process is in.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InCall {
    /// The node that knows it.
    pub node: Arc<str>,
    /// Process id on that node.
    pub pid: i64,
    /// The call, lower snake case.
    pub func: Arc<str>,
    /// The communicator, when known.
    pub comm_hash: Option<u64>,
    /// Rank in it, when known.
    pub rank: Option<i32>,
    /// Its size, when known.
    pub nranks: Option<i32>,
    /// Position on the communicator; none of calls to one rank, and where it is not known.
    pub comm_seq: Option<u64>,
    /// Root or peer, where the call has one.
    pub root: Option<i32>,
    /// Tag, where the call has one that is known.
    pub tag: Option<i32>,
    /// What it moves.
    pub payload: Payload,
    /// Entry, Unix nanoseconds of the node's own clock.
    pub since_ns: i64,
}

/// A process that is a rank of a job, by its environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobRank {
    /// The node that knows it.
    pub node: Arc<str>,
    /// Process id on that node.
    pub pid: i64,
    /// Tells jobs apart: the same on every node.
    pub job: u64,
    /// Rank in the job.
    pub rank: i32,
    /// Ranks of the job.
    pub nranks: i32,
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

impl InCall {
    /// The call of an observation that is not over.
    #[must_use]
    pub fn of(open: &Observation) -> Self {
        Self {
            node: Arc::clone(&open.node),
            pid: open.pid,
            func: Arc::clone(&open.func),
            comm_hash: Some(open.comm_hash),
            rank: Some(open.rank),
            nranks: open.nranks,
            comm_seq: open.comm_seq,
            root: open.root,
            tag: None,
            payload: open.payload.clone(),
            since_ns: open.entry_ns,
        }
    }
}

/// How far each process got, by the calls that it made (enqueued ones among them) and those that it
/// is in.
#[must_use]
pub fn progress_of<'a>(made: impl IntoIterator<Item = &'a Observation>, open: &[InCall]) -> Vec<Progress> {
    let mut known: BTreeMap<(Process, u64), Progress> = BTreeMap::new();
    for seen in made {
        let key = ((Arc::clone(&seen.node), seen.pid), seen.comm_hash);
        let progress = known.entry(key).or_insert_with(|| Progress {
            node: Arc::clone(&seen.node),
            pid: seen.pid,
            rank: seen.rank,
            comm_hash: seen.comm_hash,
            ..Progress::default()
        });
        progress.nranks = progress.nranks.max(seen.nranks);
        match seen.comm_seq {
            Some(position) => progress.made(Made {
                position,
                func: Arc::clone(&seen.func),
                root: seen.root,
                payload: seen.payload.clone(),
            }),
            None => progress.uncounted |= is_counted(&seen.func),
        }
    }
    for call in open {
        let (Some(comm_hash), Some(rank)) = (call.comm_hash, call.rank) else { continue };
        let key = ((Arc::clone(&call.node), call.pid), comm_hash);
        let progress = known.entry(key).or_insert_with(|| Progress {
            node: Arc::clone(&call.node),
            pid: call.pid,
            rank,
            comm_hash,
            ..Progress::default()
        });
        progress.nranks = progress.nranks.max(call.nranks);
        match call.comm_seq {
            Some(position) => progress.entered = progress.entered.max(Some(position)),
            None => progress.uncounted |= is_counted(&call.func),
        }
    }
    known.into_values().collect()
}

impl Progress {
    /// Takes in a collective; calls may come in any order.
    pub fn made(&mut self, made: Made) {
        self.entered = self.entered.max(Some(made.position));
        let at = self.recent.partition_point(|known| known.position < made.position);
        if self.recent.get(at).is_some_and(|known| known.position == made.position) {
            return;
        }
        if self.recent.len() < RECENT_CALLS {
            self.recent.insert(at, made);
        } else if at > 0 {
            // The lowest goes.
            self.recent[..at].rotate_left(1);
            self.recent[at - 1] = made;
        }
    }
}

/// Whether a call of this name has a position on its communicator wherever its start was seen.
#[must_use]
pub fn is_counted(func: &str) -> bool {
    matches!(Coupling::of(func), Coupling::All | Coupling::RootSends | Coupling::RootReceives) || func == "finalize"
}
