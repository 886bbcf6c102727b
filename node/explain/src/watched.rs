//! A report in the form that front ends show: the verdict as text and figures, a row a rank, worst
//! first. The same for a standing verdict and for one made from the stores.

use std::collections::BTreeMap;

use model::watch::{CulpritNow, JobNow, RankNow};
use standing::{JobName, Key, has_ended};
use verdicts::{CommReport, Culprit, RankScore, Report, Role, Verdict};

/// The report's part of a job's state. The caller adds when it was judged and by whom.
pub fn job(report: &Report, name: Option<&JobName>) -> JobNow {
    let culprits = culprits(&report.verdict);
    let costs = !report.verdict.named().is_empty();
    let ill = !matches!(report.verdict, Verdict::None | Verdict::Unknown { .. });
    JobNow {
        name: name.map(ToString::to_string).unwrap_or_default(),
        id: name.and_then(id),
        nranks: name.and_then(|name| name.nranks).map(i64::from).or_else(|| nranks(report)),
        verdict: if has_ended(&report.verdict) { "ended".to_owned() } else { Key::name(&report.verdict).to_owned() },
        sentence: sentence(report),
        is_ill: ill,
        culprits,
        cause: report.cause.as_ref().map(|cause| cause.summary.clone()),
        gpu_seconds: costs.then_some(report.cost.gpu_seconds_wasted),
        gpus_lost: costs.then_some(report.cost.gpus_lost),
        upper_bound: report.cost.upper_bound,
        step_ns: report.cost.per_step.map(|step| step.step_ns),
        tier: report.evidence.tier,
        clock_bound_ns: report.evidence.clock_bound_ns,
        not_visible: report.evidence.not_visible.clone(),
        notes: report.evidence.notes.clone(),
        until_ns: report.evidence.until_ns,
        ..JobNow::default()
    }
}

/// The name that other requests take for a job.
fn id(name: &JobName) -> Option<String> {
    let job = name.job_id.clone()?;
    Some(name.step_id.as_ref().map_or(job.clone(), |step| format!("{job}.{step}")))
}

fn nranks(report: &Report) -> Option<i64> {
    let comms = report.per_comm.iter().filter_map(|comm| comm.nranks).max();
    comms.max(report.point_to_point.as_ref().map(|about| about.nranks)).map(i64::from)
}

fn culprits(verdict: &Verdict) -> Vec<CulpritNow> {
    let of = |culprit: &Culprit| CulpritNow {
        rank: culprit.rank.into(),
        node: culprit.node.clone(),
        pid: Some(culprit.pid),
        late_by_ns: Some(culprit.late_by_ns),
        since_ns: Some(culprit.since_ns),
        since_start: culprit.since_start,
        collectives: culprit.collectives as u64,
        last_in: culprit.last_in as u64,
    };
    match verdict {
        Verdict::Hang(hang) => {
            let missing = hang.missing.iter().map(|missing| CulpritNow {
                rank: missing.who.rank.into(),
                node: missing.who.node.clone(),
                pid: Some(missing.who.pid),
                since_ns: hang.since_ns,
                ..CulpritNow::default()
            });
            missing.collect()
        }
        Verdict::StageImbalance { ranks, .. } | Verdict::WorkImbalance { ranks, .. } => {
            let of = |rank: &verdicts::RankRef| CulpritNow {
                rank: rank.rank.into(),
                node: rank.node.clone(),
                pid: Some(rank.pid),
                ..CulpritNow::default()
            };
            ranks.iter().map(of).collect()
        }
        _ => verdict.named().into_iter().map(of).collect(),
    }
}

/// The ranks of a report, worst first: named ones, then by their cost.
pub fn ranks(report: &Report) -> Vec<RankNow> {
    let named = culprits(&report.verdict);
    let mut all: BTreeMap<(&str, i64), RankNow> = BTreeMap::new();
    // Largest communicators come first: the number of a rank is that of the job.
    for comm in &report.per_comm {
        for score in &comm.ranks {
            let new = of_score(comm, score);
            match all.entry((&score.node, score.pid)) {
                std::collections::btree_map::Entry::Vacant(place) => drop(place.insert(new)),
                std::collections::btree_map::Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    let worse = (new.role == "culprit", new.share) > (known.role == "culprit", known.share);
                    if worse {
                        *known = RankNow { rank: known.rank, ..new };
                    }
                }
            }
        }
    }
    for time in report.point_to_point.iter().flat_map(|about| &about.ranks) {
        let known = all.entry((&time.node, time.pid)).or_insert_with(|| RankNow {
            rank: time.rank.into(),
            node: time.node.clone(),
            pid: time.pid,
            role: "peer".to_owned(),
            share: time.blame,
            ..RankNow::default()
        });
        known.rank = time.rank.into();
        known.compute_share = Some(time.compute);
    }
    for culprit in &named {
        let Some(pid) = culprit.pid else { continue };
        if let Some(known) = all.get_mut(&(culprit.node.as_str(), pid)) {
            known.role = "culprit".to_owned();
        }
    }
    let mut ranks: Vec<RankNow> = all.into_values().collect();
    let named = |rank: &RankNow| rank.role == "culprit";
    ranks.sort_by(|a, b| {
        named(b).cmp(&named(a)).then(b.share.total_cmp(&a.share)).then(a.rank.cmp(&b.rank)).then(a.node.cmp(&b.node))
    });
    ranks
}

fn of_score(comm: &CommReport, score: &RankScore) -> RankNow {
    let role = match score.role {
        Role::Culprit => "culprit",
        Role::Victim => "victim",
        Role::HeldUp => "held_up",
        Role::Peer => "peer",
    };
    RankNow {
        rank: score.rank.into(),
        node: score.node.clone(),
        pid: score.pid,
        role: role.to_owned(),
        late_ns: score.lateness_bound_ns.map(|_| score.lateness.mean_ns),
        wait_ns: comm.waits.filter(|waits| *waits != verdicts::Waits::Enqueued).map(|_| score.wait.mean_ns),
        excess_ns: Some(score.excess_ns),
        share: score.share,
        compute_excess_ns: score.own_excess_ns,
        z: score.z,
        flagged: score.flagged as u64,
        windows: comm.windows as u64,
        compute_share: None,
    }
}

/// The first paragraph of the report's text, on one line.
pub fn sentence(report: &Report) -> String {
    let text = verdicts::text(report);
    let first: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    first.join(" ")
}
