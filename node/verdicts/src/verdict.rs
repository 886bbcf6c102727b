//! The verdict: who is named across communicators, what it costs, and if nobody is named, why.
//!
//! Suspects come from `suspects.rs`, imbalances from `stages.rs`, the figures next to the verdict
//! from `summary.rs`; the report's shape lies in `report.rs`.

use std::collections::{BTreeMap, BTreeSet};

use observed::{ClockOffset, Input, Rules, parallel};

use super::ahead::settle_ahead;
use super::clocks::{by_calls, refined};
use super::comm::Comm;
use super::cycle::per_step;
use super::doubts::{nobody, too_early};
use super::ending;
use super::hang;
use super::matching::communicators;
use super::number::number;
use super::point_to_point;
use super::positions::positions;
use super::report::{Basis, Cost, Report, Verdict};
use super::score::{Scored, score};
use super::slower::slower;
use super::stages::{beyond_the_job, job_of, rotation, stage_imbalance};
use super::summary::{comm_reports, evidence};
use super::suspects::{Elsewhere, Findings, Found, of_run, order, suspects};
use super::tally::Waits;
use super::victims::{drop_held_up_by_entries, drop_linked};

/// Analyse one span.
#[must_use]
pub fn analyse(input: &Input, rules: &Rules) -> Report {
    match by_calls(input) {
        None if input.unnumbered.is_empty() => judge(input, rules),
        clocks => settled(input.clone(), clocks, rules),
    }
}

/// As [`analyse`], of an input that nobody needs any more: a large one is not copied.
#[must_use]
pub fn analyse_owned(input: Input, rules: &Rules) -> Report {
    let clocks = by_calls(&input);
    settled(input, clocks, rules)
}

/// The report once the clocks are as near as they can be known, and calls are numbered.
fn settled(mut all: Input, clocks: Option<BTreeMap<String, ClockOffset>>, rules: &Rules) -> Report {
    all.clocks = clocks.unwrap_or(all.clocks);
    if all.unnumbered.is_empty() {
        return judge(&all, rules);
    }
    let numbered = number(&mut all);
    positions(&mut all);
    if numbered.left_out > 0 {
        *all.unplaced.entry("communicator's start not seen".to_owned()).or_default() += numbered.left_out;
    }
    let mut report = judge(&all, rules);
    if numbered.by_time > 0 {
        report.evidence.notes.push(format!(
            "{} calls were matched by when they ended: the start of their communicator was not seen",
            numbered.by_time
        ));
    }
    report
}

/// The communicators with their scores, and those of which too little is known.
fn scores(input: &Input, rules: &Rules) -> (Vec<Scored>, Vec<Comm>) {
    let (mut scored, mut thin) = (Vec::new(), Vec::new());
    for comm in parallel::map(communicators(input, rules), input.is_large(), |comm| score(comm, rules)) {
        match comm {
            Ok(s) => scored.push(s),
            Err(c) => thin.push(*c),
        }
    }
    (scored, thin)
}

fn judge(input: &Input, rules: &Rules) -> Report {
    let rules = &rules.within(input.until_ns.saturating_sub(input.since_ns));
    let (mut scored, mut thin) = scores(input, rules);
    let contradicts = |s: &Scored| s.waits == Waits::Inconsistent;
    let by_runs = !input.sampled.is_empty() && scored.iter().any(contradicts);
    let refined = by_runs.then(|| refined(input)).flatten().map(|clocks| Input { clocks, ..input.clone() });
    if let Some(refined) = &refined {
        (scored, thin) = scores(refined, rules);
    }
    let input = refined.as_ref().unwrap_or(input);
    let elsewhere = Elsewhere::of(&scored, &thin);
    let mut findings = Findings::default();
    for (index, s) in scored.iter().enumerate() {
        suspects(index, s, rules, &elsewhere, &mut findings);
    }
    settle_ahead(input, &scored, &thin, rules, &mut findings);
    drop_held_up_by_entries(&scored, &thin, &mut findings);
    drop_linked(&scored, &thin, rules, &mut findings);
    // One process may be late in several communicators: the one where it costs most counts.
    findings.found.sort_by(|a, b| b.culprit.share.total_cmp(&a.culprit.share));
    let mut named: Vec<Found> = Vec::new();
    for f in findings.found.drain(..) {
        let known = named.iter().any(|n| n.culprit.node == f.culprit.node && n.culprit.pid == f.culprit.pid);
        let enqueued = scored[f.comm].waits == Waits::Enqueued;
        let least = if enqueued { Rules::ALSO_SHARE_ENQUEUED } else { Rules::ALSO_SHARE };
        let small = named.first().is_some_and(|n| f.culprit.share < least * n.culprit.share);
        if !known && !small {
            named.push(f);
        }
    }
    findings.held_up.retain(|h| !named.iter().any(|n| n.culprit.node == h.node && n.culprit.pid == h.pid));
    findings.held_up.sort();
    findings.held_up.dedup();

    let cost = cost(&scored, &thin, &named, rules);
    let mut evidence = evidence(input, &scored, &thin, &named);
    let rotation = rotation(&scored, rules);
    evidence.notes.extend(rotation.iter().map(|r| r.note(&scored)));
    evidence.notes.extend(means(&scored));
    evidence.notes.extend(hosts(&scored, &named));
    let per_comm = comm_reports(&scored, &thin, &named, &findings.held_up, rules);
    let mut culprits = named.into_iter().map(|f| f.culprit);
    let verdict = match (hang::find(input, rules), culprits.next()) {
        (hang::Found::Hang(hang), _) => Verdict::Hang(*hang),
        (_, Some(culprit)) => Verdict::Rank { culprit, also: culprits.collect(), held_up: findings.held_up },
        (hang, None) => stage_imbalance(&scored, &thin, &elsewhere, rules)
            .or_else(|| rotation.and_then(|r| r.verdict(&scored, rules)))
            .unwrap_or_else(|| match hang {
                hang::Found::Early(early) => too_early(&early),
                _ => nobody(input, &scored, &thin, findings, rules),
            }),
    };
    if !matches!(verdict, Verdict::Rank { .. } | Verdict::Hang(_)) {
        evidence.notes.extend(slower(&scored));
    }
    let coverage = input.coverage.clone();
    let mut report = Report { verdict, cost, evidence, cause: None, per_comm, point_to_point: None, coverage };
    point_to_point::decide(input, rules, &mut report);
    ending::settle(input, &mut report);
    report
}

/// Notes on the hosts of which all ranks are named.
fn hosts(scored: &[Scored], named: &[Found]) -> Vec<String> {
    if named.is_empty() {
        return Vec::new();
    }
    let mut ranks: BTreeMap<&str, (BTreeSet<i64>, BTreeSet<i64>)> = BTreeMap::new();
    for f in named {
        ranks.entry(&f.culprit.node).or_default().1.insert(f.culprit.pid);
    }
    for m in scored.iter().flat_map(|s| &s.comm.members) {
        if let Some((all, _)) = ranks.get_mut(&*m.node) {
            all.insert(m.pid);
        }
    }
    let hosts = ranks.into_iter().filter(|(_, (all, late))| all.len() > 1 && all == late);
    hosts
        .map(|(node, (all, _))| format!("all {} ranks of host {node} are late: it may be the host", all.len()))
        .collect()
}

/// Says when collectives were compared by the means of runs of them.
fn means(scored: &[Scored]) -> Option<String> {
    let runs: usize = scored.iter().map(|s| s.comm.met.len()).sum();
    let calls: f64 = scored.iter().map(|s| s.comm.stands_for(0..s.comm.met.len())).sum();
    (calls > runs as f64)
        .then(|| format!("{calls:.0} collectives were compared by the means of {runs} runs of consecutive ones"))
}

/// What the named ranks cost in the communicator of the dearest, collective by collective of its
/// episode: the time between the last entry of the ranks that are not named and the last entry of
/// those that are, times the ranks that wait for it. By compute time, the same with compute times,
/// but no more than they compute longer than any rank of the job; the whole job waits. An upper
/// bound, since slack elsewhere may hide part of it.
fn cost(scored: &[Scored], thin: &[Comm], named: &[Found], rules: &Rules) -> Cost {
    let Some(first) = named.first() else {
        return Cost::default();
    };
    let s = &scored[first.comm];
    let basis = first.culprit.basis;
    let members: Vec<usize> = named.iter().filter(|f| f.comm == first.comm).map(|f| f.member).collect();
    let all = scored.iter().map(|s| &s.comm).chain(thin);
    let job = (basis == Basis::OwnTime).then(|| job_of(all, &s.comm));
    let charged = job.as_ref().map(|job| job.len().saturating_sub(named.len()));
    let (mut wasted_ns, mut longer_ns, mut by_means) = (0.0, 0.0, false);
    for met in of_run(s, &first.episode) {
        by_means |= met.weight > 1;
        let (mut late, mut rest, mut waiting) = (None, None, 0.0);
        for (r, v) in order(s, first.member, basis, met) {
            if members.contains(&r) {
                late = late.max(Some(v));
            } else {
                rest = rest.max(Some(v));
                waiting += 1.0;
            }
        }
        if let (Some(late), Some(rest)) = (late, rest) {
            let longer = (late - rest).max(0) as f64 * f64::from(met.weight) * first.added;
            longer_ns += longer;
            wasted_ns += longer * charged.map_or(waiting, |n| n as f64);
        }
    }
    let wall_ns: f64 = s.windows[first.episode.clone()].iter().map(|w| w.wall_ns).sum();
    if let Some(job) = job {
        let blamed = named.iter().map(|f| (f.culprit.node.as_str().into(), f.culprit.pid)).collect();
        let within_ns = (first.culprit.since_ns, first.culprit.until_ns);
        let beyond = beyond_the_job(scored, &job, &blamed, within_ns, rules);
        let most_ns = beyond.map_or(longer_ns, |beyond| longer_ns.min(beyond * wall_ns));
        wasted_ns *= if longer_ns > 0.0 { most_ns / longer_ns } else { 0.0 };
        longer_ns = most_ns;
    }
    Cost {
        gpu_seconds_wasted: wasted_ns / 1e9,
        gpus_lost: if wall_ns > 0.0 { wasted_ns / wall_ns } else { 0.0 },
        upper_bound: basis != Basis::Waits || by_means,
        charged,
        per_step: per_step(of_run(s, &first.episode), longer_ns, wasted_ns),
    }
}
