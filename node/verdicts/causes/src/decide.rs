//! Compares the culprit's intervals with the peer's and names what explains the difference.

use std::collections::BTreeMap;
use std::sync::Arc;

use observed::Rules;

use super::evidence::{Collective, PID, Recorded};
use super::timeline::{Amount, Covered, add_bytes, lay};
use super::words;
use super::{Cause, Part, What};

/// Names listed for each kind.
const WHATS: usize = 5;

/// Why the culprit is late, compared with a peer that is not. `not_visible` says what the host
/// could not record.
#[must_use]
pub fn explain(culprit: &Recorded, peer: Option<&Recorded>, looked_at: Vec<String>, not_visible: Vec<String>) -> Cause {
    let compared = peer.and_then(|peer| compare(culprit, peer));
    let mut cause = Cause {
        summary: String::new(),
        named: Vec::new(),
        explained: 0.0,
        excess_ns: 0,
        late_intervals: 0,
        intervals: culprit.gaps.len(),
        peer: peer.and_then(|peer| peer.who.clone()),
        parts: Vec::new(),
        looked_at,
        not_visible,
    };
    match &compared {
        Some(compared) if compared.excess_ns() > 0 => {
            cause.excess_ns = compared.excess_ns();
            cause.intervals = compared.intervals;
            cause.late_intervals = compared.late;
            cause.parts = parts(compared);
            name(&mut cause);
            if !compared.one_by_one {
                cause.looked_at.push("intervals by their average: they could not be matched one by one".to_owned());
            }
        }
        Some(compared) => cause.intervals = compared.intervals,
        None => {}
    }
    cause.summary = words::summary(&cause, compared.as_ref().map(Compared::excess_ns));
    cause
}

/// Sums over the late intervals of both sides.
struct Compared {
    culprit: Covered,
    peer: Covered,
    intervals: usize,
    late: usize,
    one_by_one: bool,
}

impl Compared {
    fn excess_ns(&self) -> i64 {
        self.culprit.compute_ns - self.peer.compute_ns
    }
}

fn compare(culprit: &Recorded, peer: &Recorded) -> Option<Compared> {
    let (mine, theirs) = (lay(culprit), lay(peer));
    let keyed: BTreeMap<&[Collective; 2], &Covered> =
        peer.gaps.iter().zip(&theirs).filter_map(|(gap, seen)| Some((gap.key.as_ref()?, seen))).collect();
    let pairs: Vec<(&Covered, &Covered)> =
        culprit.gaps.iter().zip(&mine).filter_map(|(gap, seen)| Some((seen, *keyed.get(gap.key.as_ref()?)?))).collect();
    if pairs.len() < Rules::CAUSE_MATCHED {
        return averages(&mine, &theirs);
    }
    let excess = |(a, b): &(&Covered, &Covered)| a.compute_ns - b.compute_ns;
    let mean = pairs.iter().map(|pair| excess(pair) as f64).sum::<f64>() / pairs.len() as f64;
    let mut compared = Compared {
        culprit: Covered::default(),
        peer: Covered::default(),
        intervals: pairs.len(),
        late: 0,
        one_by_one: true,
    };
    // Where it is not late on the whole, all of it is the answer to "by how much".
    for pair in pairs.iter().filter(|pair| mean <= 0.0 || excess(pair) as f64 > Rules::CAUSE_LATE * mean) {
        compared.late += 1;
        compared.culprit.add(pair.0);
        compared.peer.add(pair.1);
    }
    Some(compared)
}

/// All intervals of both sides, the peer's brought to the number of the culprit's.
fn averages(mine: &[Covered], theirs: &[Covered]) -> Option<Compared> {
    if mine.is_empty() || theirs.is_empty() {
        return None;
    }
    let sum = |all: &[Covered]| {
        let mut sum = Covered::default();
        all.iter().for_each(|one| sum.add(one));
        sum
    };
    let scale = mine.len() as f64 / theirs.len() as f64;
    let scaled = |ns: i64| (ns as f64 * scale).round() as i64;
    let mut peer = sum(theirs);
    peer.compute_ns = scaled(peer.compute_ns);
    peer.by.values_mut().flat_map(BTreeMap::values_mut).for_each(|amount| amount.ns = scaled(amount.ns));
    Some(Compared { culprit: sum(mine), peer, intervals: mine.len(), late: mine.len(), one_by_one: false })
}

fn parts(compared: &Compared) -> Vec<Part> {
    let excess_ns = compared.excess_ns() as f64;
    let mut parts: Vec<Part> = compared
        .culprit
        .by
        .iter()
        .map(|(&kind, whats)| {
            let (culprit_ns, peer_ns) = (compared.culprit.of(kind), compared.peer.of(kind));
            let mut what = grouped(whats, compared.peer.by.get(&kind));
            what.truncate(WHATS);
            let share = ((culprit_ns - peer_ns) as f64 / excess_ns).min(1.0);
            Part { kind, culprit_ns, peer_ns, share, named: false, what }
        })
        .collect();
    parts.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.kind.cmp(&b.kind)));
    parts
}

/// Who or what it was, processes of one name together; those that the peer has less of come first.
fn grouped(whats: &BTreeMap<Arc<str>, Amount>, peer: Option<&BTreeMap<Arc<str>, Amount>>) -> Vec<What> {
    let family = |name: &str| name.split(PID).next().unwrap_or_default().to_owned();
    let mut groups: BTreeMap<String, (What, usize, i64)> = BTreeMap::new();
    for (name, amount) in whats {
        let alone = What { name: name.to_string(), ns: 0, count: 0, bytes: None };
        let (group, members, _) = groups.entry(family(name)).or_insert((alone, 0, 0));
        group.ns += amount.ns;
        group.count += amount.count;
        group.bytes = add_bytes(group.bytes, amount.bytes);
        *members += 1;
    }
    for (name, amount) in peer.into_iter().flatten() {
        if let Some((_, _, peer_ns)) = groups.get_mut(&family(name)) {
            *peer_ns += amount.ns;
        }
    }
    let mut groups: Vec<(String, (What, usize, i64))> = groups.into_iter().collect();
    groups.sort_by_key(|(_, (what, _, peer_ns))| std::cmp::Reverse(what.ns - peer_ns));
    let named = |(family, (what, members, _)): (String, (What, usize, i64))| {
        if members > 1 { What { name: format!("{family} ({members} processes)"), ..what } } else { what }
    };
    groups.into_iter().map(named).collect()
}

/// The coverage rule: the dearest kinds that the peer does not have alike, until they explain
/// enough; those that explain most of it, too, and the rest is then said to be unexplained.
fn name(cause: &mut Cause) {
    let mut sum = 0.0;
    let mut named = 0;
    let candidates: Vec<usize> = (0..cause.parts.len()).filter(|&i| is_candidate(&cause.parts[i])).collect();
    for &i in &candidates {
        if sum >= Rules::CAUSE_EXPLAINS {
            break;
        }
        sum += cause.parts[i].share;
        named += 1;
    }
    cause.explained = f64::min(sum, 1.0);
    if sum <= Rules::CAUSE_MOSTLY {
        return;
    }
    for &i in &candidates[..named] {
        cause.parts[i].named = true;
        cause.named.push(cause.parts[i].kind);
    }
}

fn is_candidate(part: &Part) -> bool {
    part.share >= Rules::CAUSE_PART && part.culprit_ns as f64 >= Rules::CAUSE_TIMES_PEER * part.peer_ns as f64
}
