//! Rows take the same way as digests: as if each host had shipped all of them in one.

use std::collections::BTreeMap;

use observed::{Input, Observation, Sampled, SyncCall, Totals, parallel};

use super::Digest;
use super::collect::Collector;
use super::input::{Figures, NodeDigests, figures};

/// A host's calls, with whether they have a number, and its synchronise calls.
type HostRows<'a> = (Vec<(&'a Observation, bool)>, Vec<&'a SyncCall>);

/// What is made of the rows of an input, every call by itself: cells, and what each process called.
#[must_use]
pub fn of_rows(input: &Input) -> (Vec<Sampled>, Vec<Totals>) {
    let mut hosts: BTreeMap<&str, HostRows<'_>> = BTreeMap::new();
    let numbered = input.observations.iter().map(|seen| (seen, true));
    for (seen, numbered) in numbered.chain(input.unnumbered.iter().map(|seen| (seen, false))) {
        hosts.entry(&seen.node).or_default().0.push((seen, numbered));
    }
    for sync in &input.syncs {
        if let Some((_, syncs)) = hosts.get_mut(&*sync.node) {
            syncs.push(sync);
        }
    }
    let hosts: Vec<(&str, HostRows<'_>)> = hosts.into_iter().collect();
    let digests: Vec<(&str, Digest)> = parallel::map(hosts, input.is_large(), |(node, (calls, syncs))| {
        (node, Collector::of_every_call(calls.into_iter(), syncs.into_iter()))
    });
    let refs: Vec<(&str, [&Digest; 1])> = digests.iter().map(|(node, digest)| (*node, [digest])).collect();
    let nodes: Vec<NodeDigests<'_>> = refs.iter().map(|(node, digests)| NodeDigests { node, digests }).collect();
    let Figures { sampled, totals, .. } = figures(&nodes, None, &input.clocks);
    (sampled, totals)
}
