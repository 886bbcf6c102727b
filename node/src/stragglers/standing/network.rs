//! Is it the network, by digests: runs of collectives and the segments that hosts say were sent again, for the rule in
//! `stragglers/why/network.rs`.
//!
//! A run is taken for one transfer, from the first entry into its first call to the last return from its last one, as long as its calls
//! together. Who asks the stores (`agent/causes.rs`) gets it from single calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::stragglers::digest::{Digest, WINDOW_NS, end_of};
use crate::stragglers::observation::Input;
use crate::stragglers::report::{Report, Verdict};
use crate::stragglers::rules::Rules;
use crate::stragglers::why::{Retransmission, Transfer, network, suspected};

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
    let comm = suspected(report)?;
    let hash = u64::from_str_radix(&comm.comm_hash, 16).ok()?;
    let slack_ns = report.evidence.clock_bound_ns.unwrap_or(0);
    network(comm, &transfers(input, hash, comm.heard), resent, slack_ns, rules).map(Verdict::Network)
}

/// Runs of a communicator in which all that were heard are.
fn transfers(input: &Input, comm_hash: u64, heard: usize) -> Vec<Transfer> {
    let mut runs: BTreeMap<(&Arc<str>, u64), (usize, u32, Transfer)> = BTreeMap::new();
    for cell in input.sampled.iter().filter(|cell| cell.seen.comm_hash == comm_hash) {
        let Some(clock) = input.clocks.get(&*cell.seen.node) else { continue };
        let entry_ns = clock.align(cell.seen.entry_ns);
        let end_ns = entry_ns.saturating_add(cell.seen.duration_ns);
        let none = Transfer { first_ns: i64::MAX, last_ns: i64::MIN, end_ns: i64::MIN };
        let (ranks, weight, t) = runs.entry((&cell.seen.func, cell.seen.seq)).or_insert((0, 1, none));
        *ranks += 1;
        *weight = cell.weight.max(*weight);
        (t.first_ns, t.last_ns, t.end_ns) = (t.first_ns.min(entry_ns), t.last_ns.max(entry_ns), t.end_ns.max(end_ns));
    }
    let runs: Vec<(u32, Transfer)> = runs
        .into_values()
        .filter(|(ranks, ..)| *ranks == heard)
        .map(|(_, weight, transfer)| (weight, transfer))
        .collect();
    let calls: i64 = runs.iter().map(|(weight, _)| i64::from(*weight)).sum();
    let from = runs.iter().map(|(_, t)| t.first_ns).min().unwrap_or(0);
    let to = runs.iter().map(|(_, t)| t.end_ns).max().unwrap_or(0);
    let period_ns = to.saturating_sub(from) / calls.max(1);
    let long = |(weight, t): (u32, Transfer)| {
        let others = i64::from(weight) - 1;
        let beside_ns = period_ns.saturating_mul(others) / 2;
        let end_ns = t.end_ns.saturating_add(beside_ns);
        let length_ns = t.end_ns.saturating_sub(t.last_ns).max(0).saturating_mul(i64::from(weight));
        Transfer { first_ns: t.first_ns.saturating_sub(beside_ns), last_ns: end_ns.saturating_sub(length_ns), end_ns }
    };
    runs.into_iter().map(long).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stragglers::digest::{Resent, reference_id, replay};
    use crate::stragglers::observation::ClockOffset;
    use crate::stragglers::simulate::Job;
    use crate::stragglers::{analyse, digest};

    const MS: i64 = 1_000_000;

    #[test]
    fn collectives_that_wait_for_lost_segments_are_the_networks_and_without_these_nobodys() {
        let job = Job { steps: 120, own_ns: 40 * MS, clock_offset_ns: 0, ..Job::default() };
        let mut rows = job.observe(1);
        // In every sixth collective all leave 200 ms later, and all that follows is as much later.
        let later = |seq: u64| (seq / 6) as i64 * 200 * MS;
        for seen in &mut rows.observations {
            seen.entry_ns += later(seen.seq);
            seen.duration_ns += later(seen.seq + 1) - later(seen.seq);
        }
        rows.until_ns += later(job.steps as u64 + 6);
        rows.clocks.values_mut().for_each(|clock| *clock = ClockOffset::steady(0, 100_000));
        let (input, _) = replay(&rows);
        let rules = Rules { window_ns: WINDOW_NS, short_window_ns: WINDOW_NS, ..Rules::default() };
        let report = analyse(&input, &rules);
        let address = |n: u8| std::net::IpAddr::from([10, 0, 0, n]);
        let lost = |at_ms: u16| Resent { from: address(1), to: address(3), segments: 1, at_ms: vec![at_ms] };
        let digests: Vec<Digest> = rows
            .observations
            .iter()
            .filter(|seen| seen.rank == 0 && seen.seq % 6 == 5)
            .map(|seen| {
                let at_ns = seen.entry_ns + 150 * MS;
                let window = digest::window_of(at_ns);
                let at_ms = ((at_ns - (end_of(window) - WINDOW_NS)) / MS) as u16;
                Digest { window, resent: vec![lost(at_ms)], ..Digest::default() }
            })
            .collect();
        assert!(reference_id("n0") > 0 && digests.len() == 20);
        let resent = resent(digests.iter().map(|digest| ("n0", digest)), &input);
        let Some(Verdict::Network(found)) = verdict(&report, &input, &resent, &rules) else {
            panic!("{:#?}", report.verdict)
        };
        assert!(found.share > 0.3 && found.explained > 0.8, "{found:?}");
        assert_eq!(found.flows.len(), 1);
        assert_eq!(verdict(&report, &input, &[], &rules), None);
    }
}
