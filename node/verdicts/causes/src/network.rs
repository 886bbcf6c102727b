//! Is it the network? Collectives that take long after everybody has entered, while TCP segments of
//! the ranks are sent again: values in, verdict out. No rank is late then: its compute time is as
//! the others', and whoever leaves such a collective last merely enters the next one last.
//!
//! The time of a collective counts from the last entry to the last return. What it takes longer
//! than one without retransmissions (median; where there are fewer than three of those, than the
//! fastest tenth) is its excess.

use std::collections::BTreeMap;

use observed::Rules;
use serde::{Deserialize, Serialize};
use stats::{median, quantile};

/// Flows listed.
const FLOWS: usize = 8;

/// One collective, all times on one clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// First entry.
    pub first_ns: i64,
    /// Last entry.
    pub last_ns: i64,
    /// Last return.
    pub end_ns: i64,
}

/// A segment of a rank that was sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retransmission {
    /// When, on the clock of the transfers.
    pub at_ns: i64,
    /// Host that sent it.
    pub node: String,
    /// Its address.
    pub from: String,
    /// Where to.
    pub to: String,
}

/// Segments were lost, and collectives waited for them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
pub struct Network {
    /// The communicator in which it was found.
    pub comm_hash: String,
    /// The host that most retransmissions have at one end; none where no single host stands out.
    pub node: Option<String>,
    /// Share of wall time that collectives with retransmissions took longer than those without.
    pub share: f64,
    /// Which part of all excess lies in collectives with retransmissions.
    pub explained: f64,
    /// Collectives looked at.
    pub collectives: usize,
    /// Of these, with retransmissions.
    pub with_retransmissions: usize,
    /// Time from the last entry to the last return without retransmissions.
    pub usual_ns: i64,
    /// The same with retransmissions, on average.
    pub slow_ns: i64,
    /// Segments sent again during collectives.
    pub retransmissions: usize,
    /// Between whom, most first.
    pub flows: Vec<Flow>,
}

/// Retransmissions from one address to another.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Flow {
    /// Host that sends.
    pub from_node: String,
    /// Its address.
    pub from: String,
    /// The host of the other address, where it is known.
    pub to_node: Option<String>,
    /// The other address.
    pub to: String,
    /// Segments sent again.
    pub retransmissions: usize,
}

/// Judge. `slack_ns` is how far the times of a retransmission and of a collective may be off each
/// other.
#[must_use]
pub fn network(
    comm_hash: &str,
    transfers: &[Transfer],
    retransmissions: &[Retransmission],
    slack_ns: i64,
    rules: &Rules,
) -> Option<Network> {
    // What a host sends to itself does not leave it.
    let homes: BTreeMap<&str, &str> = retransmissions.iter().map(|r| (r.from.as_str(), r.node.as_str())).collect();
    let retransmissions: Vec<&Retransmission> = retransmissions
        .iter()
        .filter(|r| homes.get(r.to.as_str()) != Some(&r.node.as_str()) && r.from != r.to)
        .collect();
    let during = |t: &Transfer| {
        let span = t.first_ns.saturating_sub(slack_ns)..=t.end_ns.saturating_add(slack_ns);
        retransmissions.iter().filter(move |r| span.contains(&r.at_ns))
    };
    let length = |t: &Transfer| (t.end_ns - t.last_ns).max(0) as f64;
    let (with, without): (Vec<&Transfer>, Vec<&Transfer>) = transfers.iter().partition(|t| during(t).next().is_some());
    if with.len() < Rules::NETWORK_COLLECTIVES {
        return None;
    }
    let usual_ns = if without.len() >= Rules::NETWORK_COLLECTIVES {
        median(without.iter().map(|t| length(t)))?
    } else {
        quantile(transfers.iter().map(length), 0.1)?
    };
    let excess = |all: &[&Transfer]| all.iter().map(|t| (length(t) - usual_ns).max(0.0)).sum::<f64>();
    // Segments that are sent again for nothing (a busy host answers late) make nobody wait. Of
    // those that were lost many cost little (the next ones tell of the gap) and some a whole
    // timeout: the mean has both.
    let slow_ns = with.iter().map(|t| length(t)).sum::<f64>() / with.len() as f64;
    if slow_ns < Rules::NETWORK_SLOWER * usual_ns {
        return None;
    }
    let (lost_ns, other_ns) = (excess(&with), excess(&without));
    let first = transfers.iter().map(|t| t.first_ns).min()?;
    let wall_ns = (transfers.iter().map(|t| t.end_ns).max()? - first).max(1) as f64;
    let (share, explained) = (lost_ns / wall_ns, lost_ns / (lost_ns + other_ns).max(1.0));
    if share < rules.effect || explained < Rules::CAUSE_EXPLAINS {
        return None;
    }
    let mut counted: Vec<&Retransmission> = with.iter().flat_map(|t| during(t)).copied().collect();
    counted.sort_by_key(|r| (r.at_ns, &r.node, &r.from, &r.to));
    counted.dedup();
    let flows = flows(&counted);
    Some(Network {
        comm_hash: comm_hash.to_owned(),
        node: host(&flows),
        share,
        explained,
        collectives: transfers.len(),
        with_retransmissions: with.len(),
        usual_ns: usual_ns as i64,
        slow_ns: slow_ns as i64,
        retransmissions: counted.len(),
        flows: flows.into_iter().take(FLOWS).collect(),
    })
}

fn flows(counted: &[&Retransmission]) -> Vec<Flow> {
    // A host's own records tell its addresses.
    let nodes: BTreeMap<&str, &str> = counted.iter().map(|r| (r.from.as_str(), r.node.as_str())).collect();
    let mut sums: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
    for r in counted {
        *sums.entry((&r.node, &r.from, &r.to)).or_default() += 1;
    }
    let mut flows: Vec<Flow> = sums
        .into_iter()
        .map(|((node, from, to), retransmissions)| Flow {
            from_node: node.to_owned(),
            from: from.to_owned(),
            to_node: nodes.get(to).map(|node| (*node).to_owned()),
            to: to.to_owned(),
            retransmissions,
        })
        .collect();
    flows.sort_by_key(|flow| std::cmp::Reverse(flow.retransmissions));
    flows
}

/// The host at one end of most of them, if it is one more than others. An address of no known host
/// stands for itself.
fn host(flows: &[Flow]) -> Option<String> {
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for flow in flows {
        *ends.entry(&flow.from_node).or_default() += flow.retransmissions;
        let other = flow.to_node.as_ref().unwrap_or(&flow.to);
        if *other != flow.from_node {
            *ends.entry(other).or_default() += flow.retransmissions;
        }
    }
    let all: usize = flows.iter().map(|flow| flow.retransmissions).sum();
    let mut ends: Vec<(&str, usize)> = ends.into_iter().collect();
    ends.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let (name, most) = *ends.first()?;
    let next = ends.get(1).map_or(0, |(_, count)| *count);
    (most as f64 >= Rules::NETWORK_OF_HOST * all as f64 && next as f64 <= Rules::NETWORK_NEXT_HOST * most as f64)
        .then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: i64 = 1_000_000;

    fn transfers(lengths: &[i64]) -> Vec<Transfer> {
        let one = |(i, length): (usize, &i64)| {
            let first_ns = i as i64 * 1_000 * MS;
            Transfer { first_ns, last_ns: first_ns + 2 * MS, end_ns: first_ns + 2 * MS + length }
        };
        lengths.iter().enumerate().map(one).collect()
    }

    /// In these collectives segments between a and c, and b and c, were sent again.
    fn retransmissions(of: &[usize]) -> Vec<Retransmission> {
        of.iter()
            .map(|&i| {
                let (node, from, to) =
                    [("a", "10.0.0.1", "10.0.0.3"), ("b", "10.0.0.2", "10.0.0.3"), ("c", "10.0.0.3", "10.0.0.1")]
                        [i % 3];
                Retransmission {
                    at_ns: i as i64 * 1_000 * MS + 50 * MS,
                    node: node.into(),
                    from: from.into(),
                    to: to.into(),
                }
            })
            .collect()
    }

    fn judge(transfers: &[Transfer], lost: &[Retransmission]) -> Option<Network> {
        network("", transfers, lost, 0, &Rules::default())
    }

    #[test]
    fn collectives_that_waited_for_retransmissions_are_the_networks() {
        let mut lengths = [3 * MS; 12];
        for i in [1, 3, 5, 6, 8, 10] {
            lengths[i] = 210 * MS;
        }
        let found = judge(&transfers(&lengths), &retransmissions(&[1, 3, 5, 6, 8, 10])).unwrap();
        assert_eq!(found.node.as_deref(), Some("c"), "at one end of all: {found:?}");
        assert_eq!((found.collectives, found.with_retransmissions, found.retransmissions), (12, 6, 6));
        assert_eq!((found.usual_ns, found.slow_ns), (3 * MS, 210 * MS));
        assert!((found.explained - 1.0).abs() < 1e-9 && found.share > 0.1, "{found:?}");
        assert_eq!(found.flows.iter().map(|flow| flow.retransmissions).sum::<usize>(), 6);
        assert!(found.flows.iter().any(|flow| flow.to_node.as_deref() == Some("a")), "{found:?}");
    }

    #[test]
    fn slow_collectives_without_retransmissions_or_with_harmless_ones_are_not() {
        let mut lengths = [3 * MS; 12];
        assert_eq!(judge(&transfers(&lengths), &retransmissions(&[1, 3, 5, 6])), None, "nothing took longer");
        for i in [0, 2, 4, 7, 9, 11] {
            lengths[i] = 210 * MS;
        }
        assert_eq!(judge(&transfers(&lengths), &retransmissions(&[1, 3, 5, 6])), None, "others took longer");
        assert_eq!(judge(&transfers(&lengths), &retransmissions(&[0, 2])), None, "too few");
        let at_home: Vec<Retransmission> = retransmissions(&[0, 2, 4, 7, 9, 11])
            .into_iter()
            .map(|r| Retransmission { to: r.from.clone(), ..r })
            .collect();
        assert_eq!(judge(&transfers(&lengths), &at_home), None, "within a host");
        assert_eq!(judge(&[], &[]), None);
    }

    #[test]
    fn two_hosts_alone_are_both_ends() {
        let lost: Vec<Retransmission> =
            retransmissions(&[0, 3, 6]).into_iter().map(|r| Retransmission { node: "a".into(), ..r }).collect();
        let found = judge(&transfers(&[210 * MS, MS, MS, 210 * MS, MS, MS, 210 * MS]), &lost).unwrap();
        assert_eq!((found.node, found.flows.len()), (None, 1));
    }

    proptest! {
        #[test]
        fn what_is_named_explains_enough(
            lengths in prop::collection::vec(0..300i64, 1..30),
            of in prop::collection::vec(0..30usize, 0..40),
        ) {
            let lengths: Vec<i64> = lengths.iter().map(|ms| ms * MS).collect();
            if let Some(found) = judge(&transfers(&lengths), &retransmissions(&of)) {
                prop_assert!(found.explained >= Rules::CAUSE_EXPLAINS && found.explained <= 1.0);
                prop_assert!(found.share >= Rules::default().effect && found.share <= 1.0);
                prop_assert!(found.with_retransmissions <= found.collectives);
            }
        }
    }
}
