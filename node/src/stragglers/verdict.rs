//! From the flags of the windows to a verdict: episodes, culprits across communicators, cost, what was not visible.
//!
//! Scores come from `score.rs`, the figures beside the verdict from `summary.rs`; the report's shape lies in
//! `report.rs`.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::matching::{Comm, communicators};
use super::observation::Input;
use super::report::{Cost, Culprit, Report, Verdict};
use super::rules::Rules;
use super::score::{Score, Scored, Waits, history, score};
use super::stats::median;
use super::summary::{comm_reports, evidence, hex};

/// Windows before an episode that make an own history.
const HISTORY: usize = 3;
/// Other late ranks are listed down to this part of the first one's share.
const ALSO: f64 = 0.2;

/// Analyse one span.
#[must_use]
pub fn analyse(input: &Input, rules: &Rules) -> Report {
    let mut scored = Vec::new();
    let mut thin = Vec::new();
    for comm in communicators(input, rules) {
        match score(comm, rules) {
            Ok(s) => scored.push(s),
            Err(c) => thin.push(*c),
        }
    }
    let job_rank = job_ranks(scored.iter().map(|s| &s.comm).chain(&thin));
    let mut found: Vec<Found> = Vec::new();
    let mut doubts: Vec<String> = Vec::new();
    for (index, s) in scored.iter().enumerate() {
        suspects(index, s, rules, &job_rank, &mut found, &mut doubts);
    }
    // One process may be late in several communicators: the one where it costs most speaks for it.
    found.sort_by(|a, b| b.culprit.share.total_cmp(&a.culprit.share));
    let mut named: Vec<Found> = Vec::new();
    for f in found {
        let known = named.iter().any(|n| n.culprit.node == f.culprit.node && n.culprit.pid == f.culprit.pid);
        let small = named.first().is_some_and(|n| f.culprit.share < ALSO * n.culprit.share);
        if !known && !small {
            named.push(f);
        }
    }

    let cost = cost(&scored, &named);
    let evidence = evidence(input, &scored, &thin, &named);
    let per_comm = comm_reports(&scored, &thin, &named, rules);
    let mut culprits = named.into_iter().map(|f| f.culprit);
    let verdict = match culprits.next() {
        Some(culprit) => Verdict::Rank { culprit, also: culprits.collect() },
        None => nobody(input, &scored, &thin, doubts, rules),
    };
    Report { verdict, cost, evidence, per_comm, coverage: input.heard.clone() }
}

/// A culprit and where it was found.
pub(crate) struct Found {
    pub(crate) culprit: Culprit,
    /// Which scored communicator.
    pub(crate) comm: usize,
    /// Which of its members.
    pub(crate) member: usize,
    /// Which of its windows.
    pub(crate) episode: Range<usize>,
}

type Process = (Arc<str>, i64);

/// A process's rank in the largest communicator that it is in.
fn job_ranks<'a>(comms: impl Iterator<Item = &'a Comm>) -> HashMap<Process, i32> {
    let mut best: HashMap<Process, (i32, i32)> = HashMap::new();
    for comm in comms {
        let size = comm.nranks.unwrap_or_else(|| i32::try_from(comm.members.len()).unwrap_or(i32::MAX));
        for m in &comm.members {
            let entry = best.entry((Arc::clone(&m.node), m.pid)).or_insert((size, m.rank));
            if size > entry.0 {
                *entry = (size, m.rank);
            }
        }
    }
    best.into_iter().map(|(process, (_, rank))| (process, rank)).collect()
}

/// The run of windows in which a rank was flagged often enough: from a flagged window to a flagged one, at least
/// `persistence` flags, at least `density` of its windows flagged. The one with most flags; of equals the latest.
fn episode(flags: &[bool], rules: &Rules) -> Option<Range<usize>> {
    let at: Vec<usize> = flags.iter().enumerate().filter_map(|(i, f)| f.then_some(i)).collect();
    let mut best: Option<(usize, Range<usize>)> = None;
    for (i, &start) in at.iter().enumerate() {
        for (j, &end) in at.iter().enumerate().skip(i + rules.persistence.max(1) - 1).rev() {
            let count = j - i + 1;
            if count as f64 >= rules.density * (end - start + 1) as f64 {
                if best.as_ref().is_none_or(|(most, _)| count >= *most) {
                    best = Some((count, start..end + 1));
                }
                break;
            }
        }
    }
    best.map(|(_, range)| range)
}

fn suspects(
    index: usize,
    s: &Scored,
    rules: &Rules,
    job_rank: &HashMap<Process, i32>,
    found: &mut Vec<Found>,
    doubts: &mut Vec<String>,
) {
    for (m, member) in s.comm.members.iter().enumerate() {
        let rank = job_rank.get(&(Arc::clone(&member.node), member.pid)).copied().unwrap_or(member.rank);
        let column = |flag: fn(&Score) -> bool| s.scores.iter().map(|w| flag(&w[m])).collect::<Vec<bool>>();
        if let Some(run) = episode(&column(|score| score.late_but_waits), rules) {
            let (_, scores) = s.pooled(run, rules);
            if scores[m].late_but_waits {
                doubts.push(format!(
                    "rank {rank} on {} enters late by the aligned clocks but waits as long as the others do: its clock \
                     offset may be wrong, or it leaves collectives late (network, wake-up)",
                    member.node
                ));
            }
        }
        let flags = column(|score| score.flagged);
        let Some(run) = episode(&flags, rules) else {
            continue;
        };
        let (tallies, scores) = s.pooled(run.clone(), rules);
        let (pooled, tally) = (&scores[m], &tallies[m]);
        let consistency = if s.comm.members.len() >= 4 && pooled.mostly >= rules.mostly {
            rules.steady_consistency
        } else {
            rules.consistency
        };
        if !pooled.flagged || pooled.consistency < consistency || !departs_from_history(s, m, &run, pooled, rules) {
            continue;
        }
        if s.waits == Waits::Enqueued && enters_after_the_next(s, m, &run) {
            doubts.push(format!(
                "rank {rank} on {} enters collectives when the others already enter the next: it is a whole step behind, \
                 or calls were not counted from the start there",
                member.node
            ));
            continue;
        }
        // Where calls only enqueue, a rank waits outside them: its own time is not its own.
        if s.waits != Waits::Enqueued
            && tally.more_own.n * 2.0 >= tally.duration.n
            && let Some(own) = tally.more_own.mean()
            && own < rules.own_share * pooled.excess_ns
        {
            doubts.push(format!(
                "rank {rank} on {} is late, but its own time between collectives does not explain it: it is held up \
                 itself, by a rank or a call that was not seen",
                member.node
            ));
            continue;
        }
        let (late_by_ns, last_in, collectives) = late_by(s, m, &run);
        let culprit = Culprit {
            rank,
            node: member.node.to_string(),
            pid: member.pid,
            comm_hash: hex(s.comm.hash),
            late_by_ns,
            last_in,
            collectives,
            share: pooled.share,
            z: pooled.z,
            since_ns: s.windows[run.start].start_ns,
            until_ns: s.windows[run.end - 1].end_ns,
            since_start: run.start == 0,
            ongoing: run.end + 2 >= s.windows.len(),
            flagged: flags[run.clone()].iter().filter(|f| **f).count(),
            windows: run.len(),
        };
        found.push(Found { culprit, comm: index, member: m, episode: run });
    }
}

/// Enqueue times only: in more than a fifth of the collectives the rank enters no earlier than the others (median)
/// enter the next. Ranks that meet in each collective cannot do that: its calls are numbered differently, or nothing
/// makes the ranks meet in between. Either way its lateness says nothing.
fn enters_after_the_next(s: &Scored, m: usize, run: &Range<usize>) -> bool {
    let met = of_run(s, run);
    let (mut pairs, mut after) = (0u32, 0u32);
    for pair in met.windows(2) {
        let Some(own) = pair[0].cells[m] else { continue };
        let others = pair[1].cells.iter().enumerate().filter(|(r, _)| *r != m && s.bounds[*r].is_some());
        let Some(next) = median(others.filter_map(|(_, c)| c.map(|c| (c.entry_ns - own.entry_ns) as f64))) else {
            continue;
        };
        pairs += 1;
        after += u32::from(next <= s.bounds[m].unwrap_or(0.0));
    }
    after * 5 > pairs
}

/// Three ranks: two others are no population, so where the rank has a past of its own, it must depart from it.
fn departs_from_history(s: &Scored, m: usize, run: &Range<usize>, pooled: &Score, rules: &Rules) -> bool {
    if s.comm.members.len() != 3 || run.start < HISTORY {
        return true;
    }
    let past = (0..run.start).map(|w| s.scores[w][m].excess_ns);
    history(past).is_none_or(|(mid, scale)| pooled.excess_ns - mid > rules.z * scale)
}

/// The collectives of an episode.
fn of_run<'a>(s: &'a Scored, run: &Range<usize>) -> &'a [super::matching::Met] {
    match (s.windows.get(run.start), run.end.checked_sub(1).and_then(|w| s.windows.get(w))) {
        (Some(first), Some(last)) => &s.comm.met[first.met.start..last.met.end],
        _ => &[],
    }
}

/// How late each present member is in a collective, larger is later, and nothing else: minus its duration where
/// durations hold the wait, else its aligned entry.
fn order(s: &Scored, met: &super::matching::Met) -> Vec<(usize, i64)> {
    met.cells
        .iter()
        .enumerate()
        .filter_map(|(r, c)| {
            let c = c.as_ref()?;
            match s.waits {
                Waits::Enqueued => s.bounds[r].map(|_| (r, c.entry_ns)),
                _ => Some((r, -c.duration_ns)),
            }
        })
        .collect()
}

/// Over the collectives in which `m` was the last: by how much it came after the median of the others (median), in how
/// many it was the last, of how many.
fn late_by(s: &Scored, m: usize, run: &Range<usize>) -> (i64, usize, usize) {
    let met = of_run(s, run);
    let mut late = Vec::new();
    for collective in met {
        let order = order(s, collective);
        let Some(own) = order.iter().find(|(r, _)| *r == m).map(|(_, v)| *v) else {
            continue;
        };
        if order.iter().any(|(r, v)| *r != m && *v > own) {
            continue;
        }
        if let Some(mid) = median(order.iter().filter(|(r, _)| *r != m).map(|(_, v)| *v as f64)) {
            late.push(own as f64 - mid);
        }
    }
    let last_in = late.len();
    (median(late).unwrap_or(0.0) as i64, last_in, met.len())
}

/// What the named ranks cost, per communicator: for each collective of the episode, the time between the last entry of
/// the ranks that are not named and the last entry of those that are, times the ranks that wait for it.
fn cost(scored: &[Scored], named: &[Found]) -> Cost {
    let Some(first) = named.first() else {
        return Cost::default();
    };
    let s = &scored[first.comm];
    let members: Vec<usize> = named.iter().filter(|f| f.comm == first.comm).map(|f| f.member).collect();
    let mut wasted_ns = 0.0;
    for met in of_run(s, &first.episode) {
        let (mut late, mut rest, mut waiting) = (None, None, 0.0);
        for (r, v) in order(s, met) {
            if members.contains(&r) {
                late = late.max(Some(v));
            } else {
                rest = rest.max(Some(v));
                waiting += 1.0;
            }
        }
        if let (Some(late), Some(rest)) = (late, rest) {
            wasted_ns += (late - rest).max(0) as f64 * waiting;
        }
    }
    let wall_ns: f64 = s.windows[first.episode.clone()].iter().map(|w| w.wall_ns).sum();
    Cost {
        gpu_seconds_wasted: wasted_ns / 1e9,
        gpus_lost: if wall_ns > 0.0 { wasted_ns / wall_ns } else { 0.0 },
        upper_bound: s.waits == Waits::Enqueued,
    }
}

/// Nobody was named: is that because nobody is late, or because it cannot be told?
fn nobody(input: &Input, scored: &[Scored], thin: &[Comm], mut doubts: Vec<String>, rules: &Rules) -> Verdict {
    if scored.is_empty() {
        let why = if !thin.is_empty() {
            let most = thin.iter().map(|c| c.met.len()).max().unwrap_or(0);
            let ranks = thin.iter().map(|c| c.members.len()).max().unwrap_or(0);
            if ranks < 2 {
                "only one rank of each communicator was heard: nobody to compare it with".to_owned()
            } else {
                format!(
                    "only {most} collectives could be matched across ranks in the span, {} are needed: ask for a longer \
                     --since",
                    rules.persistence
                )
            }
        } else if !input.unplaced.is_empty() {
            format!("{}: no call could be matched across ranks", reasons(&input.unplaced))
        } else {
            "no collective was recorded in the span: is the job communicating, and is it captured?".to_owned()
        };
        return Verdict::Unknown { why };
    }
    if scored.iter().all(|s| s.waits == Waits::Inconsistent) {
        doubts.push(
            "the calls of the ranks do not line up: ranks leave collectives before others enter them; a start was \
             missed, or a clock is off by more than its bound"
                .to_owned(),
        );
    }
    if scored.iter().all(|s| s.waits == Waits::Enqueued && s.bounds.iter().all(Option::is_none)) {
        doubts.push("the calls only enqueue and no clock offset is known: entries cannot be compared".to_owned());
    }
    for s in scored {
        let heard = s.comm.members.len();
        let all = s.comm.nranks.and_then(|n| usize::try_from(n).ok()).unwrap_or(heard);
        if heard >= all || s.waits == Waits::Enqueued {
            continue;
        }
        // All the heard ranks wait, and the shortest wait is long: whoever they wait for was not heard.
        let shortest = s.comm.met.iter().filter_map(|m| m.cells.iter().flatten().map(|c| c.duration_ns).min());
        let (Some(shortest), Some(period)) = (median(shortest.map(|d| d as f64)), s.comm.period_ns()) else {
            continue;
        };
        if period > 0.0 && shortest / period >= rules.effect {
            doubts.push(format!(
                "{} of {all} ranks of communicator {} were not heard, and every rank heard spends {:.0} % of its time \
                 waiting in it: the one they wait for may be among those",
                all - heard,
                hex(s.comm.hash),
                100.0 * (shortest / period).min(1.0)
            ));
        }
    }
    if doubts.is_empty() { Verdict::None } else { Verdict::Unknown { why: doubts.join("; ") } }
}

fn reasons(unplaced: &BTreeMap<String, u64>) -> String {
    unplaced.iter().map(|(why, n)| format!("{n} calls: {why}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_episode_needs_three_of_five() {
        let rules = Rules::default();
        let run = |s: &str| episode(&s.bytes().map(|b| b == b'#').collect::<Vec<_>>(), &rules);
        assert_eq!(run("#.#.#"), Some(0..5));
        assert_eq!(run("##.."), None);
        assert_eq!(run("#..#..#"), None);
        assert_eq!(run("....####"), Some(4..8));
        assert_eq!(run("#.......###.#"), Some(8..13));
        assert_eq!(run("###......###"), Some(9..12), "of equals the latest");
        assert_eq!(run(""), None);
    }
}
