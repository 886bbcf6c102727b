//! The clocks of stores against each other, from what their agents measured while they ran.
//!
//! Pure. Each agent kept how far a few peers' clocks were from its own, with bounds. Offsets add up
//! along a chain of nodes, and so do their bounds; of all chains the one with the narrowest bound
//! is taken (Dijkstra, "A note on two problems in connexion with graphs", 1959). A node that no
//! chain leads to has no known clock.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use mesh::ClockTrack;
use query_planner::{Clocks, NodeClock};
use store::ClockOffsetSeen;

/// How far outside the span rows count: they are a minute apart, and some may be missing.
const MARGIN_NS: i64 = 600_000_000_000;

/// Rows of a pair that are combined.
const TOGETHER: usize = 16;

/// What the nodes measured: by node, in order of time.
pub(crate) type Measured = BTreeMap<String, Vec<ClockOffsetSeen>>;

/// Whose rows are about whom, by the names that the nodes have here: files may be named otherwise
/// than their agents were in the mesh.
struct Names<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Names<'a> {
    fn of(measured: &'a Measured) -> Self {
        // A node that measured no peer (its peers measured it) goes by its file's name.
        let mut names: BTreeMap<&str, &str> = measured.keys().map(|node| (node.as_str(), node.as_str())).collect();
        for (node, rows) in measured {
            names.extend(rows.iter().map(|row| (row.measured_by.as_str(), node.as_str())));
        }
        Self(names)
    }
}

/// The rows of each pair: who measured, whom, and what.
type Pairs<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a ClockOffsetSeen>>;

fn pairs(measured: &Measured) -> Pairs<'_> {
    let names = Names::of(measured);
    let mut pairs = Pairs::new();
    for (node, rows) in measured {
        for row in rows {
            if let Some(peer) = names.0.get(row.peer.as_str()).filter(|peer| **peer != node) {
                pairs.entry((node, peer)).or_default().push(row);
            }
        }
    }
    pairs
}

/// For each node the range of its own clock in which its rows describe a span of the base's clock;
/// `newest` are the newest rows of each.
pub(crate) fn ranges(newest: &Measured, since_ns: i64, until_ns: i64) -> BTreeMap<String, Range<i64>> {
    let about = clocks(newest, since_ns, until_ns);
    let range = |offset_ns: i64| {
        let from_ns = since_ns.saturating_add(offset_ns).saturating_sub(MARGIN_NS);
        from_ns..until_ns.saturating_add(offset_ns).saturating_add(MARGIN_NS)
    };
    newest.keys().map(|node| (node.clone(), range(about.get(node).map_or(0, |clock| clock.offset_ns)))).collect()
}

/// The clock of each node within a span of the base's clock. The base is the first by name of the
/// most nodes that chains connect.
pub(crate) fn clocks(measured: &Measured, since_ns: i64, until_ns: i64) -> Clocks {
    let pairs = pairs(measured);
    let at_ns = since_ns.midpoint(until_ns);
    let half_ns = until_ns.saturating_sub(since_ns) / 2;
    let Some(base) = base(measured, &pairs) else { return Clocks::new() };
    let mut known = Clocks::new();
    let mut open: BTreeMap<&str, NodeClock> = BTreeMap::from([(base, NodeClock { at_ns, ..NodeClock::default() })]);
    let worst = |clock: &NodeClock| bound_at(clock, at_ns.saturating_add(half_ns));
    // (By name where bounds are equal, so that the answer does not depend on the order of files.)
    while let Some((node, clock)) =
        open.iter().min_by_key(|(node, clock)| (worst(clock), **node)).map(|(n, c)| (*n, *c))
    {
        open.remove(node);
        for ((by, about), rows) in pairs.iter().filter(|((by, about), _)| *by == node || *about == node) {
            let (other, forward) = if *by == node { (*about, true) } else { (*by, false) };
            if known.contains_key(other) {
                continue;
            }
            let Some(next) = beyond(&clock, rows, forward, at_ns, half_ns) else { continue };
            let least = open.entry(other).or_insert(next);
            if worst(&next) < worst(least) {
                *least = next;
            }
        }
        known.insert(node.to_owned(), clock);
    }
    known
}

/// The first by name of the most nodes that are connected.
fn base<'a>(measured: &'a Measured, pairs: &Pairs<'a>) -> Option<&'a str> {
    let mut left: BTreeSet<&str> = measured.keys().map(String::as_str).collect();
    let mut best: Option<(usize, &str)> = None;
    while let Some(first) = left.pop_first() {
        let (mut found, mut look) = (1, vec![first]);
        while let Some(node) = look.pop() {
            for (by, about) in pairs.keys() {
                let other = if *by == node { about } else { by };
                if (*by == node || *about == node) && left.remove(other) {
                    found += 1;
                    look.push(other);
                }
            }
        }
        if best.is_none_or(|(most, _)| found > most) {
            best = Some((found, first));
        }
    }
    best.map(|(_, first)| first)
}

/// The clock of the other node of a pair, from that of the first: `forward` where the first
/// measured the other. Times of the base's clock.
fn beyond(first: &NodeClock, rows: &[&ClockOffsetSeen], forward: bool, at_ns: i64, half_ns: i64) -> Option<NodeClock> {
    let first_ahead_ns = offset_at(first, at_ns);
    let joined = |between: &NodeClock, sign: i64, between_ns: i64| NodeClock {
        offset_ns: first_ahead_ns.saturating_add(sign.saturating_mul(offset_at(between, between_ns))),
        bound_ns: bound_at(first, at_ns).saturating_add(bound_at(between, between_ns)),
        at_ns,
        ..rates(first, between, forward)
    };
    let within = |node_ns: i64| between(rows, node_ns.saturating_sub(half_ns), node_ns.saturating_add(half_ns));
    if forward {
        let first_ns = at_ns.saturating_add(first_ahead_ns);
        return Some(joined(&within(first_ns)?, 1, first_ns));
    }
    // Rows are on the other's clock, which is what is looked for: begin with any of them.
    let mut other_ns = at_ns.saturating_add(first_ahead_ns).saturating_sub(rows.first()?.offset_ns);
    for _ in 0..2 {
        let found = joined(&within(other_ns)?, -1, other_ns);
        other_ns = at_ns.saturating_add(found.offset_ns);
    }
    Some(joined(&within(other_ns)?, -1, other_ns))
}

/// The drift of a node's clock against the base's, and its bound: clocks' rates multiply. `first`
/// runs 1 + a times as fast as the base; the node 1 + d times as fast as `first` (`forward`), or
/// `first` 1 + d times as fast as the node. (At 65 parts in a million the product is four in 10^9,
/// more than good tracks' bounds.)
fn rates(first: &NodeClock, between: &NodeClock, forward: bool) -> NodeClock {
    const ONE: i128 = 1_000_000_000;
    let clamp = |ppb: i128| i64::try_from(ppb).unwrap_or(if ppb < 0 { i64::MIN } else { i64::MAX });
    // (A quarter: a foreign store's figures must not overflow their product.)
    let of = |ppb: i64| i128::from(ppb.clamp(i64::MIN / 4, i64::MAX / 4));
    let (a, d) = (of(first.drift_ppb), of(between.drift_ppb));
    let (wide_a, wide_d) = (of(first.drift_bound_ppb), of(between.drift_bound_ppb));
    let drift = if forward { a + d + a * d / ONE } else { (a - d) * ONE / (ONE + d).max(1) };
    // What each may be wrong by, times what the other is, and one for rounding.
    let both = (wide_a * (d.abs() + wide_d) + wide_d * a.abs().max(d.abs())) / ONE + 1;
    NodeClock { drift_ppb: clamp(drift), drift_bound_ppb: clamp(wide_a + wide_d + both), ..NodeClock::default() }
}

/// How far the peer of these rows was ahead between two times of the measuring node's clock: by one
/// row or by all of them, whichever is narrower, and as wide as all of them allow.
fn between(rows: &[&ClockOffsetSeen], from_ns: i64, to_ns: i64) -> Option<NodeClock> {
    let single = rows.iter().map(|row| NodeClock {
        offset_ns: row.offset_ns,
        bound_ns: row.bound_ns.max(0),
        at_ns: row.ts_ns,
        drift_ppb: row.drift_ppb,
        drift_bound_ppb: row.drift_bound_ppb.max(0),
    });
    // Of many rows the best of each stretch: a track compares all with all.
    let stretch = rows.len().div_ceil(TOGETHER).max(1);
    let best = rows.chunks(stretch).filter_map(|rows| rows.iter().min_by_key(|row| row.bound_ns));
    let mut track = ClockTrack::default();
    best.for_each(|row| track.add(row.ts_ns, row.offset_ns, row.bound_ns.max(0)));
    let at_ns = from_ns.midpoint(to_ns);
    let together = track.at(at_ns).map(|found| NodeClock {
        offset_ns: found.offset_ns,
        bound_ns: found.bound_ns,
        at_ns,
        drift_ppb: found.drift_ppb,
        drift_bound_ppb: found.drift_bound_ppb,
    });
    let widest = |clock: &NodeClock| bound_at(clock, from_ns).max(bound_at(clock, to_ns));
    let mut best = single.chain(together).min_by_key(widest)?;
    // What does not agree was measured across a step of a clock: both may hold.
    for row in rows.iter().filter(|row| (from_ns..=to_ns).contains(&row.ts_ns)) {
        let far_ns = offset_at(&best, row.ts_ns).saturating_sub(row.offset_ns).saturating_abs();
        let reach_ns = bound_at(&best, row.ts_ns);
        if far_ns > reach_ns.saturating_add(row.bound_ns) {
            let more_ns = far_ns.saturating_add(row.bound_ns).saturating_sub(reach_ns);
            best.bound_ns = best.bound_ns.saturating_add(more_ns);
        }
    }
    Some(best)
}

fn offset_at(clock: &NodeClock, ns: i64) -> i64 {
    clock.offset_ns.saturating_add(parts(clock.drift_ppb, ns.saturating_sub(clock.at_ns)))
}

fn bound_at(clock: &NodeClock, ns: i64) -> i64 {
    clock.bound_ns.saturating_add(parts(clock.drift_bound_ppb, ns.saturating_sub(clock.at_ns).saturating_abs()))
}

/// So many parts in a billion of a length.
fn parts(ppb: i64, length_ns: i64) -> i64 {
    let drift = i128::from(length_ns) * i128::from(ppb) / 1_000_000_000;
    i64::try_from(drift).unwrap_or(if drift < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: i64 = 1_000_000_000;
    const START: i64 = 1_700_000_000 * S;

    /// A clock: true time plus `ahead_ns`, and `ppb` of the time since [`START`].
    #[derive(Debug, Clone, Copy)]
    struct Truth {
        ahead_ns: i64,
        ppb: i64,
    }

    impl Truth {
        fn shows(self, true_ns: i64) -> i64 {
            true_ns + self.ahead_ns + parts(self.ppb, true_ns - START)
        }
    }

    fn row(by: usize, about: usize, ts_ns: i64, offset_ns: i64, bound_ns: i64) -> ClockOffsetSeen {
        ClockOffsetSeen {
            ts_ns,
            measured_by: format!("f{by}"),
            peer: format!("f{about}"),
            offset_ns,
            bound_ns,
            drift_ppb: 0,
            drift_bound_ppb: 100_000,
        }
    }

    /// Each pair measured once a minute for so long.
    fn measured(truth: &[Truth], pairs: &[(usize, usize)], minutes: i64, bound_ns: i64, wrong: &[i64]) -> Measured {
        let mut all: Measured = (0..truth.len()).map(|node| (format!("f{node}"), Vec::new())).collect();
        for (at, (by, about)) in pairs.iter().filter(|(by, about)| by != about).enumerate() {
            for minute in 0..minutes {
                let true_ns = START + minute * 60 * S;
                let (own_ns, peer_ns) = (truth[*by].shows(true_ns), truth[*about].shows(true_ns));
                let error_ns = bound_ns * wrong[(at * 7 + usize::try_from(minute).unwrap_or(0)) % wrong.len()] / 100;
                let rows = all.entry(format!("f{by}")).or_default();
                rows.push(row(*by, *about, own_ns, peer_ns - own_ns + error_ns, bound_ns + 2));
            }
        }
        all.values_mut().for_each(|rows| rows.sort_by_key(|row| row.ts_ns));
        all
    }

    fn connected(nodes: usize, pairs: &[(usize, usize)]) -> BTreeSet<usize> {
        let mut best = BTreeSet::new();
        for first in 0..nodes {
            let mut found = BTreeSet::from([first]);
            for _ in 0..nodes {
                for (a, b) in pairs {
                    if found.contains(a) || found.contains(b) {
                        found.extend([*a, *b]);
                    }
                }
            }
            if found.len() > best.len() {
                best = found;
            }
        }
        best
    }

    proptest! {
        #[test]
        fn the_true_offset_is_within_the_bound_of_every_chain(
            hosts in prop::collection::vec((-3_600 * S..3_600 * S, -50_000i64..50_000), 1..8),
            pairs in prop::collection::vec((0usize..8, 0usize..8), 0..12),
            minutes in 1i64..40,
            bound_ns in 0i64..2_000_000,
            wrong in prop::collection::vec(-100i64..=100, 1..20),
            (from, long) in (0i64..2_400, 1i64..1_200),
        ) {
            let truth: Vec<Truth> = hosts.into_iter().map(|(ahead_ns, ppb)| Truth { ahead_ns, ppb }).collect();
            let pairs: Vec<_> = pairs.into_iter().map(|(a, b)| (a % truth.len(), b % truth.len())).collect();
            let measured = measured(&truth, &pairs, minutes, bound_ns, &wrong);
            let base = *connected(truth.len(), &pairs).first().expect("a node");
            let (since_ns, until_ns) = (truth[base].shows(START + from * S), truth[base].shows(START + (from + long) * S));
            let found = clocks(&measured, since_ns, until_ns);
            prop_assert_eq!(found.len(), connected(truth.len(), &pairs).len());
            for (name, clock) in &found {
                let node: usize = name[1..].parse().expect("a number");
                for true_ns in [START + from * S, START + (from * 2 + long) * S / 2, START + (from + long) * S] {
                    let base_ns = truth[base].shows(true_ns);
                    let truly_ns = truth[node].shows(true_ns) - base_ns;
                    let (offset_ns, within_ns) = (offset_at(clock, base_ns), bound_at(clock, base_ns));
                    // Of rounding: a few nanoseconds for each link, and one in 10^9 of the time
                    // since.
                    let rounding_ns = 40 + (base_ns - clock.at_ns).abs() / 1_000_000_000;
                    prop_assert!((offset_ns - truly_ns).abs() <= within_ns + rounding_ns, "{name}: {clock:?} is {truly_ns}");
                }
            }
        }

        #[test]
        fn absurd_rows_do_not_overflow(
            rows in prop::collection::vec((any::<i64>(), any::<i64>(), any::<i64>(), any::<i64>(), any::<i64>()), 0..20),
            since in any::<i64>(), until in any::<i64>(),
        ) {
            let mut all = Measured::from([("f0".to_owned(), Vec::new()), ("f1".to_owned(), Vec::new())]);
            for (at, (ts_ns, offset_ns, bound_ns, drift_ppb, drift_bound_ppb)) in rows.into_iter().enumerate() {
                let (by, about) = (at % 2, (at + 1) % 2);
                let seen = ClockOffsetSeen { drift_ppb, drift_bound_ppb, ..row(by, about, ts_ns, offset_ns, bound_ns) };
                all.entry(format!("f{by}")).or_default().push(seen);
            }
            let _ = (clocks(&all, since, until), ranges(&all, since, until));
        }
    }

    #[test]
    fn the_narrowest_chain_is_taken() {
        // 0 knows 2 badly, but 1 well, and 1 knows 2 well. (Files a and b go by the names that
        // their agents had, c, which measured nobody, by its own.)
        let named = |by: &str, peer: &str, row: ClockOffsetSeen| ClockOffsetSeen {
            measured_by: by.to_owned(),
            peer: peer.to_owned(),
            ..row
        };
        let all = Measured::from([
            (
                "a".to_owned(),
                vec![named("x", "c", row(0, 2, START, 900, 1_000_000)), named("x", "y", row(0, 1, START, 500, 20))],
            ),
            ("b".to_owned(), vec![named("y", "c", row(1, 2, START + 500, -300, 30))]),
            ("c".to_owned(), Vec::new()),
        ]);
        let found = clocks(&all, START, START);
        assert_eq!((found["a"].offset_ns, found["b"].offset_ns, found["c"].offset_ns), (0, 500, 200));
        assert_eq!((found["b"].bound_ns, found["c"].bound_ns), (20, 50));
    }

    #[test]
    fn a_step_of_a_clock_widens_the_bound_to_both_sides_of_it() {
        let rows: Vec<ClockOffsetSeen> = (0..10)
            .map(|minute| row(0, 1, START + minute * 60 * S, if minute < 5 { 0 } else { 70 * S }, 1_000))
            .collect();
        let rows: Vec<&ClockOffsetSeen> = rows.iter().collect();
        let drift = between(&rows, START, START + 600 * S).expect("a clock");
        for (ns, ahead_ns) in [(START + 60 * S, 0), (START + 500 * S, 70 * S)] {
            assert!((offset_at(&drift, ns) - ahead_ns).abs() <= bound_at(&drift, ns), "{drift:?}");
        }
        let after = between(&rows[5..], START + 300 * S, START + 600 * S).expect("a clock");
        assert!(after.bound_ns < 100_000, "{after:?}");
    }

    #[test]
    fn nodes_that_no_chain_leads_to_are_not_known() {
        let all = Measured::from([("a".to_owned(), Vec::new()), ("b".to_owned(), vec![row(1, 9, START, 1, 1)])]);
        let found = clocks(&all, START, START + S);
        assert_eq!(found.keys().map(String::as_str).collect::<Vec<_>>(), ["a"]);
    }
}
