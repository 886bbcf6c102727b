//! Jobs that have ended: what their ranks did last is no verdict of now.

use std::collections::{BTreeMap, BTreeSet};

use crate::Input;

/// What was left out because it has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ended {
    /// Processes none of whose communicators goes on.
    pub(super) ranks: usize,
}

impl Ended {
    /// Leaves out of an input the communicators of which every process that was heard has ended.
    /// `gone` are the processes whose hosts say that they have: those of a host that is not heard
    /// any more may go on.
    pub(super) fn leave_out(input: &mut Input, gone: &BTreeSet<(&str, i64)>) -> Self {
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
        input.sampled.iter().for_each(|cell| add(&cell.seen.node, cell.seen.pid, cell.seen.comm_hash));
        let goes_on = |comm: u64| goes_on.get(&comm) == Some(&true);
        for totals in &mut input.totals {
            totals.lanes.retain(|lane| goes_on(lane.comm_hash));
        }
        input.totals.retain(|totals| !totals.lanes.is_empty());
        input.progress.retain(|p| goes_on(p.comm_hash));
        input.sampled.retain(|cell| goes_on(cell.seen.comm_hash));
        for totals in &input.totals {
            ranks.remove(&(totals.node.to_string(), totals.pid));
        }
        for p in &input.progress {
            ranks.remove(&(p.node.to_string(), p.pid));
        }
        Self { ranks: ranks.len() }
    }
}
