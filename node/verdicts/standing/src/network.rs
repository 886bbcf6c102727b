//! Is it the network, by digests: runs of collectives and the segments that hosts say were sent
//! again, for the rule in `causes::network`.
//!
//! A run is taken for one transfer, as long as its calls together, from where the run before ends
//! to where the next begins. Who asks the stores (`agent/causes.rs`) gets it from single calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use causes::{Retransmission, Transfer, network};
use digest::{Digest, WINDOW_NS, end_of};
use observed::{Input, Rules};
use verdicts::{Report, Verdict};

/// Segments sent again, by digests of these nodes; none of nodes whose clock is not known.
pub(super) fn resent<'a>(digests: impl Iterator<Item = (&'a str, &'a Digest)>, input: &Input) -> Vec<Retransmission> {
    let mut all = Vec::new();
    for (node, digest) in digests.filter(|(_, digest)| !digest.resent.is_empty()) {
        let Some(clock) = input.clocks.get(node) else { continue };
        let start_ns = end_of(digest.window).saturating_sub(WINDOW_NS);
        for pair in &digest.resent {
            for at_ms in &pair.at_ms {
                let at_ns = start_ns.saturating_add(i64::from(*at_ms) * 1_000_000);
                let (from, to) = (pair.from.to_string(), pair.to.to_string());
                all.push(Retransmission { at_ns: clock.align(at_ns), node: node.to_owned(), from, to });
            }
        }
    }
    all
}

/// The verdict that it is the network.
pub(super) fn verdict(report: &Report, input: &Input, resent: &[Retransmission], rules: &Rules) -> Option<Verdict> {
    if resent.is_empty() {
        return None;
    }
    let comm = report.network_comm()?;
    let hash = u64::from_str_radix(&comm.comm_hash, 16).ok()?;
    let slack_ns = report.evidence.clock_bound_ns.unwrap_or(0);
    network(&comm.comm_hash, &transfers(input, hash, comm.heard), resent, slack_ns, rules).map(Verdict::Network)
}

/// A run of collectives, all times on one clock.
struct Run {
    ranks: usize,
    calls: i64,
    /// Means of the first and the last entry, and of the last return.
    mean: Transfer,
    /// Time in a call and before it, of the rank with most.
    apart_ns: i64,
}

/// Runs of a communicator in which all ranks in the data take part.
fn transfers(input: &Input, comm_hash: u64, ranks: usize) -> Vec<Transfer> {
    let mut runs: BTreeMap<(&Arc<str>, u64), Run> = BTreeMap::new();
    let of_comm = input.sampled.iter().filter(|lane| lane.comm_hash == comm_hash);
    for (lane, cell) in of_comm.flat_map(|lane| lane.runs.iter().map(move |run| (lane, run))) {
        let Some(clock) = input.clocks.get(&*lane.node) else { continue };
        let entry_ns = clock.align(cell.entry_ns);
        let end_ns = entry_ns.saturating_add(cell.duration_ns);
        let apart_ns = cell.duration_ns.saturating_add(cell.compute_ns.unwrap_or(0)).max(1);
        let mean = Transfer { first_ns: entry_ns, last_ns: entry_ns, end_ns };
        let new = || Run { ranks: 0, calls: i64::from(cell.weight), mean, apart_ns };
        let run = runs.entry((&lane.func, cell.seq)).or_insert_with(new);
        run.ranks += 1;
        run.apart_ns = run.apart_ns.max(apart_ns);
        run.mean.first_ns = run.mean.first_ns.min(entry_ns);
        run.mean.last_ns = run.mean.last_ns.max(entry_ns);
        run.mean.end_ns = run.mean.end_ns.max(end_ns);
    }
    let mut runs: Vec<Run> = runs.into_values().filter(|run| run.ranks == ranks).collect();
    runs.sort_by_key(|run| run.mean.end_ns);
    let wall_ns = |run: &Run| run.apart_ns.saturating_mul(run.calls);
    // Where one run ends and the next begins: their mean returns lie apart by half of each.
    let between = |before: &Run, after: &Run| {
        let apart = i128::from(after.mean.end_ns.saturating_sub(before.mean.end_ns).max(0));
        let (mine, theirs) = (i128::from(wall_ns(before)), i128::from(wall_ns(after)));
        let part = i64::try_from(apart * mine / (mine + theirs).max(1)).unwrap_or(0);
        before.mean.end_ns.saturating_add(part)
    };
    let neighbour = |place: Option<usize>| runs.get(place?);
    let transfer = |(place, run): (usize, &Run)| {
        if run.calls == 1 {
            return run.mean;
        }
        let half_ns = wall_ns(run) / 2;
        let from = neighbour(place.checked_sub(1)).map(|before| between(before, run));
        let to = neighbour(place.checked_add(1)).map(|after| between(run, after));
        let end_ns = to.unwrap_or(run.mean.end_ns.saturating_add(half_ns)).max(run.mean.end_ns);
        let length_ns = run.mean.end_ns.saturating_sub(run.mean.last_ns).max(0).saturating_mul(run.calls);
        let first_ns = from.unwrap_or(run.mean.end_ns.saturating_sub(half_ns)).min(run.mean.first_ns);
        Transfer { first_ns, last_ns: end_ns.saturating_sub(length_ns), end_ns }
    };
    runs.iter().enumerate().map(transfer).collect()
}
