//! All that goes into a verdict: calls, what is known of waits and of processes, clocks, and who
//! is known of them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use query_planner::Value;
use serde::{Deserialize, Serialize};

use crate::activity::Doing;
use crate::names::Names;
use crate::observation::{ClockOffset, LONGEST_NS, Observation, Process, Row, RowError, SyncCall, TIMES};
use crate::progress::{Gone, InCall, JobRank, Progress};
use crate::rules::Rules;
use crate::sampled::{Sampled, Stepped, Totals};
use crate::time_use::TimeUse;

/// Who was asked and who answered.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
pub struct NodeCoverage {
    /// Nodes asked.
    pub asked: usize,
    /// Nodes whose whole answer arrived.
    pub answered: usize,
    /// Nodes that did not answer, with the reason.
    pub missing: Vec<(String, String)>,
    /// What the answering nodes know to be missing from their data (capture loss, retention, …).
    pub notes: Vec<String>,
}

impl NodeCoverage {
    /// Whether a node did not answer.
    #[must_use]
    pub fn is_missing(&self, node: &str) -> bool {
        self.missing.iter().any(|(missing, _)| missing == node)
    }
}

/// Everything a verdict is made from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Input {
    /// Calls, in any order.
    pub observations: Vec<Observation>,
    /// Calls whose communicator's start was not seen: `seq` says nothing. They are matched by when
    /// they ended, where that is possible.
    pub unnumbered: Vec<Observation>,
    /// Up to when records of calls were lost, by node: Unix nanoseconds of its own clock. A node that is
    /// not here lost none.
    pub lost_until_ns: BTreeMap<Arc<str>, i64>,
    /// Runs of calls out of digests. A process's calls are either here or above.
    pub sampled: Vec<Sampled>,
    /// Of processes of `sampled` whose hosts run ahead, single steps.
    pub stepped: Vec<Stepped>,
    /// What the processes of `sampled` called altogether, one-sided calls included.
    pub totals: Vec<Totals>,
    /// Calls that processes are in, as of the end of the span.
    pub in_calls: Vec<InCall>,
    /// Where hosts waited for their devices; may be empty, then calls that only enqueue show no
    /// wait.
    pub syncs: Vec<SyncCall>,
    /// The synchronise calls that processes are in, as of the end of the span.
    pub syncing: Vec<SyncCall>,
    /// Processes that have ended; may be empty.
    pub gone: Vec<Gone>,
    /// What processes do that do not get on, as of the end of the span; may be empty.
    pub doing: Vec<Doing>,
    /// How far each process got on its communicators, as of the end of the span; may be empty, then
    /// hangs are not looked for.
    pub progress: Vec<Progress>,
    /// The job's processes that are known by their environment, whatever they called; may be empty.
    pub ranks: Vec<JobRank>,
    /// Processes that left a call shortly before the end of the span; those of `observations` need
    /// not be among them.
    pub moving: Vec<Process>,
    /// Where the time of processes went that meet in calls that are not compared one by one; may be
    /// empty.
    pub times: Vec<TimeUse>,
    /// Offset of each node's clock; the coordinator's own node is 0/0. A node that is not here has
    /// an unknown clock.
    pub clocks: BTreeMap<String, ClockOffset>,
    /// Coverage of the question.
    pub coverage: NodeCoverage,
    /// Start of the asked span, Unix nanoseconds of the coordinator's clock.
    pub since_ns: i64,
    /// End of the asked span.
    pub until_ns: i64,
    /// Rows that could not be placed, by reason (see [`Row::Unplaced`]).
    pub unplaced: BTreeMap<String, u64>,
}

impl Input {
    /// From here on an analysis is worth several threads.
    pub const MANY_CALLS: usize = 50_000;

    /// Whether there are so many calls that several threads should work on them.
    pub fn is_large(&self) -> bool {
        self.observations.len() >= Self::MANY_CALLS
    }

    /// Take in one row of the answer to [`sql`](super::sql); `names` keeps what its rows repeat.
    ///
    /// # Errors
    /// [`RowError`] when the row does not have the columns of [`COLUMNS`](super::COLUMNS).
    pub fn push_row(&mut self, row: &[Value], names: &mut Names) -> Result<(), RowError> {
        match Observation::from_row(row, names)? {
            Row::Placed(seen) => self.observations.push(seen),
            Row::Unnumbered(seen) => self.unnumbered.push(seen),
            Row::Unplaced(why) => *self.unplaced.entry(why.to_owned()).or_default() += 1,
        }
        Ok(())
    }

    /// Leaves out what is of other processes than these, by node and pid; rows only, not digests.
    pub fn keep(&mut self, is_kept: impl Fn(&Arc<str>, i64) -> bool) {
        self.observations.retain(|seen| is_kept(&seen.node, seen.pid));
        self.unnumbered.retain(|seen| is_kept(&seen.node, seen.pid));
        self.in_calls.retain(|call| is_kept(&call.node, call.pid));
        self.syncs.retain(|call| is_kept(&call.node, call.pid));
        self.syncing.retain(|call| is_kept(&call.node, call.pid));
        self.times.retain(|time| is_kept(&time.node, time.pid));
    }

    /// Some calls only enqueue: the synchronise calls after them are worth asking for.
    #[must_use]
    pub fn enqueues(&self) -> bool {
        self.observations.iter().chain(&self.unnumbered).any(|seen| seen.tier == 0)
    }

    /// Take in one row of the answer to [`syncs_sql`](super::syncs_sql); what is no such row is
    /// left out.
    pub fn push_sync_row(&mut self, row: &[Value]) {
        if let [Value::Text(node), Value::Integer(pid), Value::Integer(start_ns), Value::Integer(duration_ns)] = row
            && TIMES.contains(start_ns)
            && (0..LONGEST_NS).contains(duration_ns)
        {
            let node = String::from_utf8_lossy(node).as_ref().into();
            self.syncs.push(SyncCall { node, pid: *pid, start_ns: *start_ns, duration_ns: *duration_ns });
        }
    }

    /// Take in one row of the answer to [`losses_sql`](super::losses_sql); what is no such row is left
    /// out.
    pub fn push_loss_row(&mut self, row: &[Value]) {
        if let [Value::Text(node), Value::Integer(until_ns)] = row
            && TIMES.contains(until_ns)
        {
            let until = self.lost_until_ns.entry(String::from_utf8_lossy(node).as_ref().into()).or_insert(*until_ns);
            *until = (*until_ns).max(*until);
        }
    }

    /// Leaves out the synchronise calls of processes whose collectives are timed by the device: those
    /// hold their waits themselves, and the host's waiting takes nothing away from the device's time
    /// between them. Once all rows are in.
    pub fn drop_waits_of_devices(&mut self) {
        let of_device = self.observations.iter().filter(|seen| seen.tier >= Rules::OF_DEVICE);
        let processes: HashSet<(&str, i64)> = of_device.map(|seen| (&*seen.node, seen.pid)).collect();
        self.syncs.retain(|sync| !processes.contains(&(&*sync.node, sync.pid)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_other_processes_is_left_out_of_every_list() {
        let node: Arc<str> = "n".into();
        let call = |pid| InCall { node: Arc::clone(&node), pid, ..InCall::default() };
        let sync = |pid| SyncCall { node: Arc::clone(&node), pid, start_ns: 1, duration_ns: 1 };
        let seen = |pid| Observation { node: Arc::clone(&node), pid, ..Observation::default() };
        let all = || [1, 2, 3].into_iter();
        let mut input = Input {
            observations: all().map(seen).collect(),
            unnumbered: all().map(seen).collect(),
            in_calls: all().map(call).collect(),
            syncs: all().map(sync).collect(),
            syncing: all().map(sync).collect(),
            ..Input::default()
        };
        input.keep(|of, pid| *of == node && pid == 2);
        let expected = Input {
            observations: vec![seen(2)],
            unnumbered: vec![seen(2)],
            in_calls: vec![call(2)],
            syncs: vec![sync(2)],
            syncing: vec![sync(2)],
            ..Input::default()
        };
        assert_eq!(input, expected);
    }
}
