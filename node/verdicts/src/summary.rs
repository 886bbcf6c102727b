//! The figures next to a verdict: evidence, what was not visible, the scores of every rank.
//!
//! Who is named is decided in `verdict.rs`; the shapes lie in `report.rs`.

use std::collections::{BTreeMap, BTreeSet};

use observed::{ClockOffset, Coupling, Input, RankRef, Rules, hex};

use super::clocks::widest_bound_ns;
use super::comm::Comm;
use super::hostlist::{first_parts, fold_names};
use super::report::{CommReport, Evidence, RankScore, Role, Spread};
use super::score::Scored;
use super::suspects::Found;
use super::tally::Waits;

/// Parts of a list of hosts in one line.
const HOSTS: usize = 4;

/// How the line about calls in which not all ranks meet begins.
pub(crate) const NOT_SCORED: &str = "who waits in";

pub(crate) fn evidence(input: &Input, scored: &[Scored], thin: &[Comm], named: &[Found]) -> Evidence {
    let comms = || scored.iter().map(|s| &s.comm).chain(thin);
    let mut clocks: BTreeMap<&str, Option<ClockOffset>> = BTreeMap::new();
    for comm in comms() {
        // The ranks of a host mostly follow each other, and have one clock.
        for host in comm.members.chunk_by(|a, b| a.node == b.node && a.clock == b.clock) {
            clocks.insert(&host[0].node, host[0].clock);
        }
    }
    Evidence {
        tier: named.first().map_or_else(|| comms().map(|c| c.tier).min().unwrap_or(0), |f| scored[f.comm].comm.tier),
        windows: scored.iter().map(|s| s.windows.len()).sum(),
        matched: scored.iter().map(|s| s.comm.met.len()).sum(),
        complete: scored.iter().map(|s| s.comm.complete).sum(),
        clock_bound_ns: widest_bound_ns(&clocks),
        clocks: clocks.iter().filter_map(|(n, c)| c.map(|c| ((*n).to_owned(), c))).collect(),
        since_ns: input.since_ns,
        until_ns: input.until_ns,
        last_call_ns: None,
        is_silent: false,
        ended: false,
        of_dumps: false,
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
        let (heard, not_heard) = (comm.members.len(), comm.not_heard());
        if not_heard > 0 {
            unseen.push(format!("{not_heard} of {} ranks of communicator {}", heard + not_heard, hex(comm.hash)));
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
        let blind = first_parts(&fold_names(blind), HOSTS);
        unseen.push(format!("lateness on {blind}: clock offset not known, only waits are compared"));
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
        let (tallies, scores) = s.over_all_windows(rules);
        let members = s.comm.members.len();
        let column = || std::iter::repeat_with(|| Vec::with_capacity(s.comm.met.len())).take(members).collect();
        let (mut late, mut wait): (Vec<Vec<i64>>, Vec<Vec<i64>>) = (column(), column());
        for met in &s.comm.met {
            let cells = || met.cells.iter().enumerate().filter_map(|(m, cell)| Some((m, cell.as_ref()?)));
            let entries = || cells().filter(|(m, _)| s.bounds[*m].is_some()).map(|(m, cell)| (m, cell.entry_ns));
            let first_ns = entries().map(|(_, entry_ns)| entry_ns).min().unwrap_or(0);
            let shortest_ns = cells().map(|(_, cell)| cell.duration_ns).min().unwrap_or(0);
            entries().for_each(|(m, entry_ns)| late[m].push(entry_ns - first_ns));
            cells().for_each(|(m, cell)| wait[m].push(cell.duration_ns - shortest_ns));
        }
        let mut flagged = vec![0; members];
        for flags in &s.flags {
            flagged.iter_mut().zip(flags).for_each(|(sum, flags)| *sum += usize::from(flags.late || flags.compute));
        }
        let named_in = named.iter().any(|f| f.comm == index);
        let mut report = comm_report(&s.comm);
        report.windowed = Some(s.kind);
        report.windows = s.windows.len();
        report.waits = Some(s.waits);
        report.ranks = (0..members)
            .map(|m| {
                let member = &s.comm.members[m];
                RankScore {
                    rank: member.rank,
                    node: member.node.to_string(),
                    pid: member.pid,
                    class: member.class,
                    collectives: tallies[m].duration.n as u64,
                    lateness: spread(std::mem::take(&mut late[m])),
                    lateness_bound_ns: s.bounds[m].map(|b| b as i64),
                    wait: spread(std::mem::take(&mut wait[m])),
                    own_excess_ns: tallies[m].more_compute.mean().map(|v| v as i64),
                    excess_ns: scores[m].late.excess_ns as i64,
                    share: scores[m].late.share,
                    z: scores[m].late.z,
                    flagged: flagged[m],
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

fn spread(mut all: Vec<i64>) -> Spread {
    all.sort_unstable();
    let Some(last) = all.len().checked_sub(1) else { return Spread::default() };
    Spread {
        mean_ns: (all.iter().map(|v| *v as f64).sum::<f64>() / all.len() as f64) as i64,
        median_ns: all[last / 2].midpoint(all[all.len() / 2]),
        p95_ns: all[(0.95 * last as f64).round() as usize],
    }
}
