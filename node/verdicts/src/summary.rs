//! The figures beside a verdict: evidence, what was not visible, the scores of every rank.
//!
//! Who is named is decided in `verdict.rs`; the shapes lie in `report.rs`.

use std::collections::{BTreeMap, BTreeSet};

use super::comm::{Comm, Met};
use super::input::Input;
use super::observation::{ClockOffset, Coupling, hex};
use super::ranks::RankRef;
use super::report::{CommReport, Evidence, RankScore, Role, Spread};
use super::rules::Rules;
use super::score::Scored;
use super::stats::{median, quantile};
use super::suspects::Found;
use super::tally::Waits;

/// How the line about calls in which not all ranks meet begins.
pub(crate) const NOT_SCORED: &str = "who waits in";

pub(crate) fn evidence(input: &Input, scored: &[Scored], thin: &[Comm], named: &[Found]) -> Evidence {
    let comms = || scored.iter().map(|s| &s.comm).chain(thin);
    let mut clocks: BTreeMap<&str, Option<ClockOffset>> = BTreeMap::new();
    for m in comms().flat_map(|c| &c.members) {
        clocks.insert(&m.node, m.clock);
    }
    let mut bounds: Vec<i64> = clocks.values().flatten().map(|c| c.bound_ns).collect();
    bounds.sort_unstable_by(|a, b| b.cmp(a));
    let known = clocks.values().all(Option::is_some);
    let clock_bound_ns = match clocks.len() {
        0 | 1 => Some(0),
        _ if known => Some(bounds.iter().take(2).sum()),
        _ => None,
    };
    Evidence {
        tier: named.first().map_or_else(|| comms().map(|c| c.tier).min().unwrap_or(0), |f| scored[f.comm].comm.tier),
        windows: scored.iter().map(|s| s.windows.len()).sum(),
        matched: scored.iter().map(|s| s.comm.met.len()).sum(),
        complete: scored.iter().map(|s| s.comm.complete).sum(),
        clock_bound_ns,
        clocks: clocks.iter().filter_map(|(n, c)| c.map(|c| ((*n).to_owned(), c))).collect(),
        since_ns: input.since_ns,
        until_ns: input.until_ns,
        notes: Vec::new(),
        not_visible: not_visible(input, scored, thin, &clocks),
    }
}

fn not_visible(
    input: &Input,
    scored: &[Scored],
    thin: &[Comm],
    clocks: &BTreeMap<&str, Option<ClockOffset>>,
) -> Vec<String> {
    let mut unseen = Vec::new();
    for (why, n) in &input.unplaced {
        unseen.push(format!("{n} calls left out: {why}"));
    }
    for comm in scored.iter().map(|s| &s.comm).chain(thin) {
        let heard = comm.members.len();
        if let Some(all) = comm.nranks.and_then(|n| usize::try_from(n).ok())
            && heard < all
        {
            unseen.push(format!("{} of {all} ranks of communicator {}", all - heard, hex(comm.hash)));
        }
        if comm.partial > 0 && comm.complete > 0 {
            unseen.push(format!("a rank's record in {} of {} collectives", comm.partial, comm.met.len()));
        }
    }
    let comms = || scored.iter().map(|s| &s.comm).chain(thin);
    let one_sided: BTreeSet<&str> =
        comms().flat_map(|c| c.funcs.keys()).map(|f| &**f).filter(|f| Coupling::of(f) != Coupling::All).collect();
    if !one_sided.is_empty() {
        unseen.push(format!(
            "{NOT_SCORED} {} ({} calls): they do not make all ranks meet, and are not scored",
            one_sided.into_iter().collect::<Vec<_>>().join(", "),
            comms().map(|c| c.one_sided).sum::<u64>()
        ));
    }
    let blind: Vec<&str> = clocks.iter().filter(|(_, c)| c.is_none()).map(|(n, _)| *n).collect();
    if !blind.is_empty() {
        unseen.push(format!("lateness on {}: clock offset not known, only waits are compared", some(&blind)));
    }
    if scored.iter().any(|s| s.waits == Waits::Enqueued) {
        unseen.push("waits: the calls only enqueue (tier 0); what the device waits for is not in them".to_owned());
    }
    if scored.iter().any(|s| s.comm.library == "nccl" || s.comm.library == "rccl") {
        unseen.push("collectives replayed from captured graphs".to_owned());
    }
    unseen
}

pub(crate) fn comm_reports(
    scored: &[Scored],
    thin: &[Comm],
    named: &[Found],
    held_up: &[RankRef],
    rules: &Rules,
) -> Vec<CommReport> {
    let mut all: Vec<CommReport> = Vec::new();
    for (index, s) in scored.iter().enumerate() {
        let (tallies, scores) = s.whole(rules);
        let bases: Vec<(Option<i64>, Option<i64>)> = s.comm.met.iter().map(|met| bases(met, &s.bounds)).collect();
        let named_in = named.iter().any(|f| f.comm == index);
        let mut report = comm_report(&s.comm);
        report.windowed = Some(s.kind);
        report.windows = s.windows.len();
        report.waits = Some(s.waits);
        report.ranks = (0..s.comm.members.len())
            .map(|m| {
                let member = &s.comm.members[m];
                let cells = || s.comm.met.iter().zip(&bases).filter_map(|(met, base)| Some((met.cells[m]?, base)));
                let late = cells().filter_map(|(cell, (first, _))| Some(cell.entry_ns - (*first)?));
                let wait = cells().filter_map(|(cell, (_, shortest))| Some(cell.duration_ns - (*shortest)?));
                RankScore {
                    rank: member.rank,
                    node: member.node.to_string(),
                    pid: member.pid,
                    class: member.class,
                    collectives: tallies[m].duration.n as u64,
                    lateness: if s.bounds[m].is_some() { spread(late) } else { Spread::default() },
                    lateness_bound_ns: s.bounds[m].map(|b| b as i64),
                    wait: spread(wait),
                    own_excess_ns: tallies[m].more_compute.mean().map(|v| v as i64),
                    excess_ns: scores[m].late.excess_ns as i64,
                    share: scores[m].late.share,
                    z: scores[m].late.z,
                    flagged: s.scores.iter().filter(|w| w[m].late.flagged || w[m].own.flagged).count(),
                    role: match () {
                        () if named.iter().any(|f| *f.culprit.node == *member.node && f.culprit.pid == member.pid) => {
                            Role::Culprit
                        }
                        () if held_up.iter().any(|h| *h.node == *member.node && h.pid == member.pid) => Role::HeldUp,
                        () if named_in => Role::Victim,
                        () => Role::Peer,
                    },
                }
            })
            .collect();
        all.push(report);
    }
    all.extend(thin.iter().map(comm_report));
    all.sort_by_key(|c| std::cmp::Reverse((c.nranks, c.heard, c.matched)));
    all
}

/// The first entry among known clocks, and the shortest duration.
fn bases(met: &Met, bounds: &[Option<f64>]) -> (Option<i64>, Option<i64>) {
    let known = met.cells.iter().zip(bounds).filter(|(_, b)| b.is_some());
    let first = known.filter_map(|(c, _)| c.map(|c| c.entry_ns)).min();
    (first, met.cells.iter().flatten().map(|c| c.duration_ns).min())
}

fn comm_report(comm: &Comm) -> CommReport {
    CommReport {
        comm_hash: hex(comm.hash),
        library: comm.library.clone(),
        nranks: comm.nranks,
        heard: comm.members.len(),
        funcs: comm.funcs.iter().map(|(f, n)| (f.to_string(), *n)).collect(),
        period_ns: comm.period_ns().unwrap_or(0.0) as i64,
        windowed: None,
        windows: 0,
        waits: None,
        synced: comm.lifted,
        own_from_entries: comm.reconstructed,
        matched: comm.met.len(),
        dropped: comm.dropped,
        ranks: Vec::new(),
    }
}

fn spread(values: impl Iterator<Item = i64>) -> Spread {
    let all: Vec<f64> = values.map(|v| v as f64).collect();
    if all.is_empty() {
        return Spread::default();
    }
    Spread {
        mean_ns: (all.iter().sum::<f64>() / all.len() as f64) as i64,
        median_ns: median(all.iter().copied()).unwrap_or(0.0) as i64,
        p95_ns: quantile(all, 0.95).unwrap_or(0.0) as i64,
    }
}

/// The first few of many names.
fn some(names: &[&str]) -> String {
    const SHOWN: usize = 4;
    match names.len() {
        0..=SHOWN => names.join(", "),
        n => format!("{} and {} nodes more", names[..SHOWN].join(", "), n - SHOWN),
    }
}
