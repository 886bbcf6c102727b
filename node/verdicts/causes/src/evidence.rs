//! What goes into a cause: the intervals of a process between its collectives, and what its host
//! recorded in them.

use std::collections::BTreeSet;
use std::sync::Arc;

use observed::{Kind, RankRef};

/// What stands between the name of a task and the number of its process.
pub(super) const PID: &str = " (pid ";

/// One interval between two collectives of a communicator, on the clock of the process's host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The collectives before and after it, the same on every rank: none where calls have no
    /// number.
    pub key: Option<[Collective; 2]>,
    /// Thread that enters the collective at its end.
    pub tid: i64,
    /// Return from the collective before.
    pub start_ns: i64,
    /// Entry into the next.
    pub end_ns: i64,
}

/// A collective within its communicator.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Collective {
    /// The call.
    pub func: Arc<str>,
    /// Its number.
    pub seq: u64,
}

/// A stretch of time of which the host knows something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// What it was.
    pub kind: Kind,
    /// Thread; none when it holds for the whole process or host.
    pub tid: Option<i64>,
    /// Start, clock of the host.
    pub start_ns: i64,
    /// End, exclusive.
    pub end_ns: i64,
    /// Who or what it was.
    pub what: Arc<str>,
    /// Bytes moved, where that is known.
    pub bytes: Option<i64>,
}

/// All that was recorded of one process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recorded {
    /// The process.
    pub who: Option<RankRef>,
    /// Its intervals, in order, without overlap.
    pub gaps: Vec<Gap>,
    /// What was recorded, in any order, overlapping as it may.
    pub stretches: Vec<Stretch>,
}

/// One call of a process, as far as intervals need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// Whether it is of the communicator that the verdict is about.
    pub(crate) anchor: bool,
    pub(crate) func: Arc<str>,
    pub(crate) seq: Option<u64>,
    pub(crate) tid: i64,
    pub(crate) entry_ns: i64,
    pub(crate) end_ns: i64,
}

/// The intervals between the calls of the verdict's communicator, and the process's other calls as
/// stretches of communication in them.
#[must_use]
pub(crate) fn of_calls(calls: &[Call]) -> (Vec<Gap>, Vec<Stretch>) {
    let mut anchors: Vec<&Call> = calls.iter().filter(|call| call.anchor).collect();
    anchors.sort_by_key(|call| (call.entry_ns, call.end_ns));
    let collective = |call: &Call| Some(Collective { func: Arc::clone(&call.func), seq: call.seq? });
    let found = gaps(
        anchors
            .iter()
            .map(|call| (collective(call), call.tid, call.entry_ns, call.end_ns))
            .collect::<Vec<_>>()
            .as_slice(),
    );
    let others = calls
        .iter()
        .filter(|call| !call.anchor)
        .map(|call| Stretch {
            kind: Kind::Communication,
            tid: None,
            start_ns: call.entry_ns,
            end_ns: call.end_ns,
            what: Arc::clone(&call.func),
            bytes: None,
        })
        .collect();
    (found, others)
}

/// Intervals between calls sorted by entry: (collective, thread, entry, end). Calls that overlap
/// (of several threads) leave no interval between them.
#[must_use]
pub fn gaps(calls: &[(Option<Collective>, i64, i64, i64)]) -> Vec<Gap> {
    let mut found = Vec::new();
    let mut seen: BTreeSet<[Collective; 2]> = BTreeSet::new();
    let mut before: Option<&(Option<Collective>, i64, i64, i64)> = None;
    for call in calls {
        if let Some((name, _, _, left_ns)) = before
            && call.2 > *left_ns
        {
            let key = name.clone().zip(call.0.clone()).map(|(a, b)| [a, b]).filter(|key| seen.insert(key.clone()));
            found.push(Gap { key, tid: call.1, start_ns: *left_ns, end_ns: call.2 });
        }
        // The one that ends last closes the interval.
        if before.is_none_or(|b| call.3 >= b.3) {
            before = Some(call);
        }
    }
    found
}
