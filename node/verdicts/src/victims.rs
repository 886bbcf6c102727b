//! Late ranks that may not be to blame, though they stand out: held up by another, or late with
//! another because of the network between them.
//!
//! All of this matters where calls only enqueue, so that waits are not seen. `suspects.rs` finds
//! them, `verdict.rs` asks here whom to drop.

use std::collections::{BTreeSet, HashMap};

use observed::Rules;

use super::comm::{Comm, Member, Met};
use super::rating::Score;
use super::score::Scored;
use super::suspects::{Against, Findings, Found, of_run};
use super::tally::Waits;

/// Whether a member is the one that was found.
pub(crate) fn is(f: &Found, m: &Member) -> bool {
    *f.culprit.node == *m.node && f.culprit.pid == m.pid
}

/// By entries alone it cannot be seen whether a rank is held up. Whoever makes it late is late,
/// too: so a rank is to blame only if in each communicator that it is in, it is late itself, or
/// nobody else is that it could wait for. Ranks that are not in the data could be late.
pub(crate) fn drop_held_up_by_entries(scored: &[Scored], thin: &[Comm], findings: &mut Findings) {
    findings.drop(|p, found| {
        if !p.by_entries {
            return None;
        }
        let late_somewhere = |m: &Member| found.iter().any(|f| is(f, m));
        let here = &scored[p.comm].comm;
        let elsewhere = scored.iter().enumerate().map(|(i, s)| (Some(i), &s.comm));
        let elsewhere = elsewhere.chain(thin.iter().map(|c| (None, c)));
        elsewhere
            .filter(|(i, c)| *i != Some(p.comm) && c.coupled > 0 && c.members.iter().any(|m| is(p, m)))
            .filter(|(i, _)| !found.iter().any(|f| Some(f.comm) == *i && is(f, &here.members[p.member])))
            // Who waits for somebody there waits alike: that makes nobody late against those that
            // are there, too.
            .filter(|(_, c)| !here.members.iter().all(|m| c.has(m)))
            .filter_map(|(i, c)| {
                let others = || c.members.iter().filter(|m| !is(p, m));
                // A rank that is not in the data would make all that it meets late.
                let in_time = || others().any(|m| here.has(m) && !late_somewhere(m));
                let waits = || others().any(late_somewhere) && i.is_none_or(|i| !waits_little(scored, p, &scored[i]));
                match () {
                    () if i.is_some() && found.iter().any(|f| Some(f.comm) == i) => Some(Against::HeldUp),
                    () if c.not_heard() > 0 && !in_time() || waits() => Some(Against::Unclear),
                    () => None,
                }
            })
            .max()
    });
}

/// In the collectives of another communicator it waited, at the time when it was late, for less
/// than what would explain half of that, as far as the clocks can tell: who is late with it there
/// does not make it late.
fn waits_little(scored: &[Scored], p: &Found, there: &Scored) -> bool {
    let here = &scored[p.comm];
    let wall_ns: f64 = here.windows[p.episode.clone()].iter().map(|w| w.wall_ns).sum();
    let Some(me) = there.comm.members.iter().position(|m| is(p, m)) else { return false };
    let bounds: Option<Vec<i64>> = there.comm.members.iter().map(|m| there.comm.members[me].bound_to(m)).collect();
    let run = there.between(p.culprit.since_ns, p.culprit.until_ns);
    let Some(bounds) = bounds.filter(|_| !run.is_empty()) else { return false };
    let waited = |met: &Met| {
        let mine = met.cells[me]?.entry_ns;
        let last =
            met.cells.iter().zip(&bounds).map(|(cell, bound)| Some(cell.as_ref()?.entry_ns.saturating_add(*bound)));
        let last: Option<Vec<i64>> = last.collect();
        Some(last?.into_iter().max()?.saturating_sub(mine).max(0) as f64 * f64::from(met.weight))
    };
    let met = of_run(there, &run);
    let known: Vec<f64> = met.iter().filter_map(waited).collect();
    // A record that was lost leaves a wait unknown; the others stand for it.
    2 * known.len() > met.len()
        && known.iter().sum::<f64>() * met.len() as f64 / known.len() as f64
            <= p.culprit.share * wall_ns * Rules::WAIT_EXPLAINS
}

/// Where the waits in calls are not seen, what a call takes its ranks longer than usual looks like
/// time of their own. So where ranks of two hosts that pass data to each other are late, it may be
/// the network between them: none of them is named.
pub(crate) fn drop_linked(scored: &[Scored], thin: &[Comm], rules: &Rules, findings: &mut Findings) {
    let links = links(scored, thin, &findings.found, rules);
    findings.drop(|f, _| {
        let at_link = |m: &Member| link(&f.culprit.node, &m.node).is_some_and(|link| links.contains(&link));
        let mut paired = scored.iter().map(|s| &s.comm).chain(thin).filter(|c| c.paired > 0);
        let mut linked = || paired.any(|c| c.members.iter().any(|m| is(f, m)) && c.members.iter().any(at_link));
        (scored[f.comm].waits == Waits::Enqueued && linked()).then_some(Against::Unclear)
    });
}

/// Two hosts, in order; none where they are one.
fn link<'a>(a: &'a str, b: &'a str) -> Option<(&'a str, &'a str)> {
    (a != b).then(|| (a.min(b), a.max(b)))
}

/// Hosts whose ranks pass data to each other, one of them late and the other as much so by at least
/// half: the network between the two makes both ends late, and what it takes a call is part of what
/// is told of compute times from entries.
fn links<'a>(scored: &'a [Scored], thin: &'a [Comm], found: &[Found], rules: &Rules) -> BTreeSet<(&'a str, &'a str)> {
    let mut links = BTreeSet::new();
    for f in found.iter().filter(|f| scored[f.comm].waits == Waits::Enqueued && scored[f.comm].comm.reconstructed) {
        let shares =
            shares(scored.iter(), (f.culprit.since_ns, f.culprit.until_ns), rules, |score| score.compute.share);
        let own = |node: &str, pid: i64| shares.get(&(node, pid)).copied().unwrap_or(0.0).max(0.0);
        let mine = own(&f.culprit.node, f.culprit.pid);
        if mine < rules.effect {
            continue;
        }
        for comm in scored.iter().map(|s| &s.comm).chain(thin).filter(|c| c.paired > 0) {
            let Some(me) = comm.members.iter().find(|m| is(f, m)) else { continue };
            let others = comm.members.iter().filter(|m| m.node != me.node);
            let alike = others.filter(|m| own(&m.node, m.pid) >= mine / 2.0);
            links.extend(alike.filter_map(|m| link(&me.node, &m.node)));
        }
    }
    links
}

/// A share of wall time of each process (node and id) between two instants, in that of these
/// communicators where it is largest.
pub(crate) fn shares<'a>(
    scored: impl Iterator<Item = &'a Scored>,
    (since_ns, until_ns): (i64, i64),
    rules: &Rules,
    share: fn(&Score) -> f64,
) -> HashMap<(&'a str, i64), f64> {
    let mut largest: HashMap<(&str, i64), f64> = HashMap::new();
    for s in scored {
        let run = s.between(since_ns, until_ns);
        let scores = if run.is_empty() { Vec::new() } else { s.pooled(run, rules).1 };
        for (m, score) in s.comm.members.iter().zip(&scores) {
            let known = largest.entry((&m.node, m.pid)).or_insert(f64::NEG_INFINITY);
            *known = known.max(share(score));
        }
    }
    largest
}
