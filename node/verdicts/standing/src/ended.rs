//! Jobs that have ended: what their ranks did last is no verdict of now.

use std::collections::{BTreeMap, BTreeSet};

use observed::Input;
use verdicts::Verdict;

/// How the reasons end why a job that is over has no verdict.
const OVER: [&str; 2] = ["has ended", "have ended"];

/// Why a job has no verdict of which so many ranks are known, and all have ended.
pub(super) fn why(ranks: usize) -> String {
    match ranks {
        1 => format!("the job's only rank that was heard {}", OVER[0]),
        ranks => format!("the job's {ranks} ranks {}", OVER[1]),
    }
}

/// Whether a verdict says that its job is over: it is of no more interest than one that runs.
#[must_use]
pub fn has_ended(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Unknown { why } if OVER.iter().any(|over| why.ends_with(over)))
}

/// What was left out because it has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ended {
    /// Processes none of whose communicators goes on.
    pub(super) ranks: usize,
}

impl Ended {
    /// Leaves out of an input the communicators of which every process in the data has ended.
    /// `gone` are the processes whose hosts report that: those of a host whose digests do not come
    /// any more may go on.
    pub(super) fn leave_out(input: &mut Input, gone: &BTreeSet<(&str, i64)>) -> Self {
        if gone.is_empty() {
            return Self::default();
        }
        let mut goes_on: BTreeMap<u64, bool> = BTreeMap::new();
        let mut ranks: BTreeSet<(String, i64)> = BTreeSet::new();
        let mut add = |node: &str, pid: i64, comm: u64| {
            let has_ended = gone.contains(&(node, pid));
            *goes_on.entry(comm).or_default() |= !has_ended;
            if has_ended {
                ranks.insert((node.to_owned(), pid));
            }
        };
        for totals in &input.totals {
            totals.lanes.iter().for_each(|lane| add(&totals.node, totals.pid, lane.comm_hash));
        }
        input.progress.iter().for_each(|p| add(&p.node, p.pid, p.comm_hash));
        input.sampled.iter().for_each(|lane| add(&lane.node, lane.pid, lane.comm_hash));
        let goes_on = |comm: u64| goes_on.get(&comm) == Some(&true);
        for totals in &mut input.totals {
            totals.lanes.retain(|lane| goes_on(lane.comm_hash));
        }
        input.totals.retain(|totals| !totals.lanes.is_empty());
        input.progress.retain(|p| goes_on(p.comm_hash));
        input.sampled.retain(|lane| goes_on(lane.comm_hash));
        input.in_calls.retain(|call| !gone.contains(&(&*call.node, call.pid)));
        input.ranks.retain(|of| !gone.contains(&(&*of.node, of.pid)));
        for totals in &input.totals {
            ranks.remove(&(totals.node.to_string(), totals.pid));
        }
        for p in &input.progress {
            ranks.remove(&(p.node.to_string(), p.pid));
        }
        Self { ranks: ranks.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_is_over_is_told_from_one_of_which_nothing_is_known() {
        let unknown = |why: String| Verdict::Unknown { why };
        assert!(has_ended(&unknown(why(1))) && has_ended(&unknown(why(8))));
        assert!(has_ended(&unknown("rank 3 on n1 was late, and has ended".to_owned())));
        assert!(!has_ended(&unknown("only one rank of each communicator was heard".to_owned())));
        assert!(!has_ended(&Verdict::None));
    }
}
