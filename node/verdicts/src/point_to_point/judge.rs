//! Which rank is named, and which answer is given where none is.

use std::collections::BTreeMap;
use std::ops::Range;

use super::blame::{Node, blame};
use super::history::departs;
use super::series::{Series, Sum, WINDOW_NS};
use super::{PointToPoint, RankTime};
use crate::report::{Basis, Cost, Culprit, RankScore, Report, Verdict};
use crate::summary::NOT_SCORED;
use causes::{Cause, Part};
use observed::{ClockOffset, Coupling, HELD, Input, Kind, RankRef, Rules, TimeUse};
use stats::{Middle, Population, median};

/// By how much of the time a rank must compute longer than the median of the others.
const EXCESS: f64 = 0.10;
/// And one that is held: what holds it is seen, so that the least effect that counts is enough.
const HELD_EXCESS: f64 = 0.05;
/// Least share of the time that a named rank is held and the others are not.
const HELD_MORE: f64 = 0.10;
/// And least part of its excess that this is.
const HELD_PART: f64 = 0.5;
/// Share of the time: of those who work less, what they lose of it says little.
const LITTLE_WORK: f64 = 0.05;
/// Least spread of compute shares among ranks.
const SPREAD: f64 = 0.02;
/// From here on, of the share of time that ranks spend in calls, "nobody" is said only where all
/// compute evenly,
pub const WAITED: f64 = 0.20;
/// which is: nobody by this share of the time longer than the median of the others;
const EVEN: f64 = 0.05;
/// and from here on not at all: where all wait longer than they compute, nothing shows for whom.
const MOSTLY_WAITED: f64 = 0.50;
/// Least windows of an episode: what is over sooner is a busy host.
const LASTS: usize = 5;
/// Windows at the end of the span: what reaches into them goes on.
const LAST: usize = 3;

/// A time in which one rank computes while the others wait.
struct Episode {
    /// Its place.
    rank: usize,
    windows: Range<usize>,
    /// Windows in which it does.
    flagged: usize,
    /// By so much of the time longer than the median of the others.
    by: f64,
}

/// The episodes of greatest sum over all ranks of what the rank computes longer than the median of
/// the others, less `by` (the largest sum of consecutive values, Kadane's algorithm): the one
/// that goes on at the end of the span, then that of the whole span.
fn episodes(series: &Series, by: f64) -> Vec<Episode> {
    let shares: Vec<Option<Vec<f64>>> = (0..series.windows()).map(|window| series.compute(window)).collect();
    let middles: Vec<Option<Middle>> =
        shares.iter().map(|all| all.as_ref().and_then(|all| Middle::of(all.clone()))).collect();
    let above = |rank: usize, window: usize| {
        let own = shares[window].as_ref()?[rank];
        Some(own - middles[window]?.without(own)? - by)
    };
    // With its sum: the best that goes on, and the best of all.
    let mut best: [Option<(f64, Episode)>; 2] = [None, None];
    for rank in 0..series.who.len() {
        let (mut sum, mut peak, mut from, mut flags) = (0.0, 0.0, 0, Vec::new());
        for window in 0..series.windows() {
            let Some(above) = above(rank, window) else { continue };
            if sum <= 0.0 {
                (sum, peak, from) = (0.0, 0.0, window);
                flags.clear();
            }
            sum += above;
            flags.push(above > 0.0);
            // Once it has come down from its peak it is over, however much of it is left.
            if sum <= peak {
                continue;
            }
            peak = sum;
            let goes_on = window + LAST >= series.windows();
            for (place, best) in best.iter_mut().enumerate() {
                if (place == 1 || goes_on) && sum > best.as_ref().map_or(0.0, |(most, _)| *most) {
                    let flagged = flags.iter().filter(|flag| **flag).count();
                    *best = Some((sum, Episode { rank, windows: from..window + 1, flagged, by }));
                }
            }
        }
    }
    best.into_iter().flatten().map(|(_, episode)| episode).collect()
}

/// The processes whose time off the CPU decides: the one that computes while the others wait, else
/// the one that computes longest, and others of its job.
pub(super) fn to_compare(times: &[TimeUse], clocks: &BTreeMap<String, ClockOffset>, most: usize) -> Vec<RankRef> {
    let Some(series) = Series::of(times, clocks).into_iter().next() else { return Vec::new() };
    let found = [EXCESS, HELD_EXCESS].into_iter().find_map(|by| episodes(&series, by).into_iter().next());
    let (first, windows) = found.map_or((None, 0..series.windows()), |found| (Some(found.rank), found.windows));
    let sums = series.sums(windows);
    let mut ranks: Vec<usize> = (0..series.who.len()).collect();
    // Those nearest to it: what they have too is nothing that sets it apart.
    ranks.sort_by(|a, b| sums[*b].compute().total_cmp(&sums[*a].compute()));
    ranks.sort_by_key(|at| Some(*at) != first);
    ranks.into_iter().take(most).map(|at| series.who[at].clone()).collect()
}

/// A rank that holds the others up.
struct Named {
    culprit: Culprit,
    cause: Cause,
    cost: Cost,
}

/// What point-to-point calls say of a job.
enum Finding {
    Named(Box<Named>),
    Imbalance { who: RankRef, ratio: f64, share: f64 },
    Nobody,
    Unknown(String),
}

/// Looks at where ranks spent their time, and brings that and the verdict of collectives together.
pub(crate) fn decide(input: &Input, rules: &Rules, report: &mut Report) {
    let series = Series::of(&input.times, &input.clocks).into_iter().find(|series| series.who.len() > 1);
    let Some(series) = series else {
        if let Some(why) = not_seen(input, report) {
            report.verdict = Verdict::Unknown { why };
        }
        return;
    };
    let waits = Waits::of(input);
    let (about, finding) = judge(&series, rules, waits);
    // Where hardly any time is spent in such calls they say nothing against the rank that
    // collectives show.
    let little = matches!(report.verdict, Verdict::Rank { .. }) && about.unscored_share < rules.effect;
    if about.unscored_share <= about.scored_share || little {
        return;
    }
    for who in &about.ranks {
        if let Some(clock) = input.clocks.get(&who.node)
            && report.evidence.clocks.iter().all(|(node, _)| *node != who.node)
        {
            report.evidence.clocks.push((who.node.clone(), *clock));
        }
    }
    let scored = |line: &String| !line.starts_with(NOT_SCORED);
    report.evidence.not_visible.retain(scored);
    let enqueued = about.enqueued;
    report.point_to_point = Some(about);
    let stages = has_stages(report);
    match (&report.verdict, finding) {
        (Verdict::Hang(_) | Verdict::StageImbalance { .. } | Verdict::Network(_), _) => {}
        // Ranks of a pipeline are compared with those that do the same work. Hosts wait for their
        // devices whatever these do: how long clears nobody who is late for collectives.
        (Verdict::Rank { .. }, _) if stages || enqueued => {}
        // The same rank: what collectives show of it is more exact.
        (Verdict::Rank { culprit: known, .. }, Finding::Named(named))
            if (&known.node, known.pid) == (&named.culprit.node, named.culprit.pid) =>
        {
            report.cause = Some(named.cause);
        }
        // It is late for the collectives, and so is the rank that has most to do by the program's
        // own division: what tells the two apart was not found.
        (Verdict::Rank { culprit, .. }, Finding::Nobody | Finding::Unknown(_)) => {
            let why = format!(
                "rank {} on {} is late for collectives, but ranks spend more time {}, by which it does not stand out, or \
                 not for long enough",
                culprit.rank,
                culprit.node,
                waits.words()
            );
            report.cost = Cost::default();
            report.verdict = Verdict::Unknown { why };
        }
        (_, Finding::Named(named)) => {
            let Named { culprit, cause, cost } = *named;
            report.cost = cost;
            report.cause = Some(cause);
            report.verdict = Verdict::Rank { culprit, also: Vec::new(), held_up: Vec::new() };
        }
        (_, Finding::Imbalance { who, ratio, share }) => {
            report.cost = Cost::default();
            report.verdict = Verdict::WorkImbalance { ranks: vec![who], ratio, share };
        }
        (Verdict::DataImbalance { .. }, _) => {}
        (_, Finding::Nobody) => report.verdict = Verdict::None,
        (_, Finding::Unknown(why)) => report.verdict = Verdict::Unknown { why },
    }
}

/// Whether ranks of one communicator do different work: a pipeline's stages.
fn has_stages(report: &Report) -> bool {
    let differ = |ranks: &[RankScore]| ranks.windows(2).any(|two| two[0].class != two[1].class);
    report.per_comm.iter().any(|comm| differ(&comm.ranks))
}

/// The calls of a span: how they couple ranks, their tier, and how many.
fn calls(input: &Input) -> impl Iterator<Item = (Coupling, u8, u64)> {
    let seen = input.observations.iter().map(|seen| (Coupling::of(&seen.func), seen.tier, 1));
    let lanes = input.totals.iter().flat_map(|of| &of.lanes);
    seen.chain(lanes.map(|lane| (Coupling::of(&lane.func), lane.tier, lane.calls)))
}

/// In what ranks wait for each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// In sends and receives, and in waits for them.
    Pairs,
    /// For their devices: sends and receives only enqueue.
    Devices,
    /// In calls on communicators that are not known.
    Unknown,
}

impl Waits {
    fn of(input: &Input) -> Self {
        let mut pairs = calls(input).filter(|(coupling, ..)| *coupling == Coupling::Pair).peekable();
        let only_enqueued = pairs.peek().is_some() && pairs.all(|(_, tier, _)| tier == 0);
        if only_enqueued {
            Self::Devices
        } else if calls(input).next().is_none() && !input.unplaced.is_empty() {
            Self::Unknown
        } else {
            Self::Pairs
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Pairs => "in sends, receives and waits",
            Self::Devices => "waiting for their devices after sends and receives",
            Self::Unknown => "in calls on communicators that are not known",
        }
    }
}

/// Why "nobody" cannot be said where most calls are not compared, and how long ranks were in them
/// is not known.
fn not_seen(input: &Input, report: &Report) -> Option<String> {
    // Compute times that were derived from entries show whom ranks waited for in all calls.
    let derived = report.per_comm.iter().any(|comm| comm.own_from_entries);
    if !matches!(report.verdict, Verdict::None) || has_stages(report) || derived {
        return None;
    }
    let (mut meet, mut all) = (0, 0);
    for (coupling, tier, calls) in calls(input) {
        // What only enqueues and makes ranks meet is judged by entries.
        let counts = tier > 0 || matches!(coupling, Coupling::All | Coupling::Pair);
        all += if counts { calls } else { 0 };
        meet += if coupling == Coupling::All { calls } else { 0 };
    }
    (all > 2 * meet).then(|| {
        format!(
            "{:.0} % of the calls are sends, receives and others in which not all ranks meet, and how long ranks waited in \
             them is not known",
            100.0 * (all - meet) as f64 / all as f64
        )
    })
}

/// The finding of the first episode in which a rank stands out; where there is none, of the whole
/// span.
fn judge(series: &Series, rules: &Rules, waits: Waits) -> (PointToPoint, Finding) {
    let all = [EXCESS, HELD_EXCESS].into_iter().flat_map(|by| episodes(series, by));
    let lasting = all.filter(|found| found.windows.len() >= LASTS);
    let finding = |found| judge_episode(series, rules, waits, found);
    let stands_out =
        |judged: &(PointToPoint, Finding)| matches!(judged.1, Finding::Named(_) | Finding::Imbalance { .. });
    lasting.map(|found| finding(Some(found))).find(stands_out).unwrap_or_else(|| finding(None))
}

fn judge_episode(series: &Series, rules: &Rules, waits: Waits, found: Option<Episode>) -> (PointToPoint, Finding) {
    let windows = found.as_ref().map_or(0..series.windows(), |found| found.windows.clone());
    let sums = series.sums(windows.clone());
    let compute: Vec<f64> = sums.iter().map(Sum::compute).collect();
    let blamed = blame(&nodes(series, &sums));
    let (enqueued, unknown) = (waits == Waits::Devices, waits == Waits::Unknown);
    let about = PointToPoint { enqueued, unknown, ..about(series, &windows, &sums, &blamed) };
    let of_time = waits.words();
    let in_calls = median(sums.iter().map(|sum| 1.0 - sum.compute())).unwrap_or(0.0);
    let missing = usize::try_from(series.nranks).unwrap_or(0).saturating_sub(series.who.len());
    let longest = compute.iter().copied().max_by(f64::total_cmp);
    let longest = longest.and_then(|longest| Some(longest - Middle::of(compute.clone())?.without(longest)?));
    let even = windows.len() >= LASTS && longest.is_some_and(|excess| excess <= EVEN);
    let held_alone = || if enqueued && missing == 0 { most_held(series, &sums).map(Finding::Unknown) } else { None };
    let quiet = || match missing {
        0 if in_calls < WAITED || (even && in_calls < MOSTLY_WAITED) => Finding::Nobody,
        0 => Finding::Unknown(format!(
            "ranks spend {:.0} % of their time {of_time}, {}, and none computes longer than the others by enough to be the one \
             that they wait for",
            100.0 * in_calls,
            if unknown {
                "so that it does not show who enters them last"
            } else {
                "where no call makes all of them meet"
            }
        )),
        _ if in_calls < rules.effect => Finding::Nobody,
        _ => Finding::Unknown(format!(
            "{missing} of {} ranks were not heard, and those heard spend {:.0} % of their time {of_time}: the one they wait \
             for may be among the missing",
            series.nranks,
            100.0 * in_calls
        )),
    };
    let nobody = || held_alone().unwrap_or_else(quiet);
    let Some(found) = found else { return (about, nobody()) };
    let own = compute[found.rank];
    let others: Vec<f64> = compute.iter().enumerate().filter(|(at, _)| *at != found.rank).map(|(_, c)| *c).collect();
    let usual = median(others.iter().copied()).unwrap_or(0.0);
    let (excess, ratio) = (own - usual, own / usual.max(1e-6));
    let z = Population::new(compute).z(own, own, SPREAD).filter(|_| sums.len() >= Rules::POPULATION);
    let held = held_more(&sums, found.rank);
    let more: f64 = held.iter().flatten().map(|(_, more, _)| more).sum();
    let is_held = more >= HELD_MORE && more >= HELD_PART * excess;
    let stands_out = excess >= found.by
        && (if found.by < EXCESS { is_held } else { ratio >= rules.compute_ratio })
        && z.is_none_or(|z| z > rules.z)
        && found.flagged as f64 >= rules.density * found.windows.len() as f64;
    if !stands_out {
        return (about, nobody());
    }
    let who = &series.who[found.rank];
    if blamed.iter().any(|other| *other > blamed[found.rank]) {
        let why = format!(
            "rank {} on {} computes longest, but the ranks that wait mostly wait for others",
            who.rank, who.node
        );
        return (about, Finding::Unknown(why));
    }
    if !is_held && !departs(series, found.rank, &found.windows) {
        return (about, Finding::Imbalance { who: who.clone(), ratio, share: excess });
    }
    let length_s = found.windows.len() as f64 * WINDOW_NS as f64 / 1e9;
    let culprit = Culprit {
        rank: who.rank,
        node: who.node.clone(),
        pid: who.pid,
        comm_hash: String::new(),
        basis: Basis::PointToPoint,
        late_by_ns: (excess * WINDOW_NS as f64) as i64,
        last_in: found.flagged,
        collectives: found.windows.len(),
        share: excess,
        z,
        since_ns: series.at_ns(found.windows.start),
        until_ns: series.at_ns(found.windows.end),
        since_start: found.windows.start <= 1,
        ongoing: found.windows.end + LAST > series.windows(),
        flagged: found.flagged,
        windows: found.windows.len(),
    };
    let cost = Cost {
        gpu_seconds_wasted: excess * length_s * others.len() as f64,
        gpus_lost: excess * others.len() as f64,
        upper_bound: true,
        charged: Some(others.len()),
        per_step: None,
    };
    let cause = cause(held.as_deref(), is_held, excess, &found);
    (about, Finding::Named(Box::new(Named { culprit, cause, cost })))
}

/// The wait-for graph.
fn nodes(series: &Series, sums: &[Sum]) -> Vec<Node> {
    let place: BTreeMap<i32, usize> = series.who.iter().enumerate().map(|(at, who)| (who.rank, at)).collect();
    sums.iter()
        .map(|sum| {
            let in_calls = sum.scored + sum.unscored;
            let with = sum.peers.iter().filter_map(|(rank, ns)| Some((*place.get(rank)?, ns / in_calls.max(1.0))));
            Node { compute: sum.compute(), in_calls: in_calls / sum.span.max(1.0), with: with.collect() }
        })
        .collect()
}

/// Where calls only enqueue: why it cannot be told whether the others wait for the rank that is held
/// longest, where it is held and they are not. A host also waits where it launches more than its
/// device takes, and in threads of its own.
fn most_held(series: &Series, sums: &[Sum]) -> Option<String> {
    let held = |sum: &Sum| sum.held().map_or(0.0, |held| held.iter().sum::<f64>());
    let longest = (0..sums.len()).max_by(|a, b| held(&sums[*a]).total_cmp(&held(&sums[*b])))?;
    let more = held_more(sums, longest)?;
    let (kind, ..) = more.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let share: f64 = more.iter().map(|(_, more, _)| more).sum();
    let who = &series.who[longest];
    (share >= HELD_MORE).then(|| {
        format!(
            "rank {} on {} is held off its CPU for {:.0} % of the time longer than the others ({}), and where calls only \
             enqueue not all waits for it show",
            who.rank,
            who.node,
            100.0 * share,
            HELD[kind].name()
        )
    })
}

/// By how much of the time a rank is held longer than the others are (their median), by kind, with
/// how long they are; none where that is not known of it, or of no other. Who works longer loses its
/// CPU to a busy host's other tasks more often: of that, what the others lose for their work is
/// usual.
fn held_more(sums: &[Sum], rank: usize) -> Option<Vec<(usize, f64, f64)>> {
    let work = |sum: &Sum, held: &[f64]| (sum.compute() - held.iter().sum::<f64>()).max(0.0);
    let own = sums[rank].held()?;
    let others: Vec<([f64; HELD.len()], f64)> = sums
        .iter()
        .enumerate()
        .filter(|(at, _)| *at != rank)
        .filter_map(|(_, sum)| sum.held().map(|held| (held, work(sum, &held))))
        .collect();
    let more = |kind: usize| {
        let mut usual = median(others.iter().map(|(held, _)| held[kind]))?;
        if HELD[kind] == Kind::CpuStolen {
            let rate = median(others.iter().map(|(held, work)| held[kind] / work.max(LITTLE_WORK)))?;
            usual = usual.max(rate * work(&sums[rank], &own)).min(own[kind].max(usual));
        }
        Some((kind, (own[kind] - usual).max(0.0), usual))
    };
    (0..HELD.len()).map(more).collect()
}

/// What the scheduler says of the excess.
fn cause(held: Option<&[(usize, f64, f64)]>, is_held: bool, excess: f64, found: &Episode) -> Cause {
    let total_ns = found.windows.len() as f64 * WINDOW_NS as f64;
    let ns = |share: f64| (share * total_ns) as i64;
    let mut parts: Vec<Part> = held
        .unwrap_or_default()
        .iter()
        .filter(|(_, more, _)| *more > 0.0)
        .map(|(kind, more, usual)| Part {
            kind: HELD[*kind],
            culprit_ns: ns(more + usual),
            peer_ns: ns(*usual),
            share: (more / excess).min(1.0),
            named: is_held && more / excess >= Rules::CAUSE_PART,
            what: Vec::new(),
        })
        .collect();
    parts.sort_by(|a, b| b.share.total_cmp(&a.share));
    let looked_at = held.map(|_| causes::Topic::OffCpu.words().to_owned());
    let cause = Cause {
        summary: String::new(),
        named: parts.iter().filter(|part| part.named).map(|part| part.kind).collect(),
        explained: parts.iter().filter(|part| part.named).map(|part| part.share).sum::<f64>().min(1.0),
        excess_ns: ns(excess),
        late_intervals: found.windows.len(),
        intervals: found.windows.len(),
        peer: None,
        parts,
        looked_at: looked_at.into_iter().chain(["a second an interval".to_owned()]).collect(),
        not_visible: Vec::new(),
    };
    causes::summarised(cause)
}

fn about(series: &Series, windows: &Range<usize>, sums: &[Sum], blamed: &[f64]) -> PointToPoint {
    let share =
        |of: fn(&Sum) -> f64| sums.iter().map(of).sum::<f64>() / sums.iter().map(|sum| sum.span).sum::<f64>().max(1.0);
    let held = |held: [f64; HELD.len()]| HELD.into_iter().zip(held).filter(|(_, share)| *share > 0.0).collect();
    let rank = |((who, sum), blame): ((&RankRef, &Sum), &f64)| RankTime {
        rank: who.rank,
        node: who.node.clone(),
        pid: who.pid,
        compute: sum.compute(),
        unscored: sum.unscored / sum.span.max(1.0),
        scored: sum.scored / sum.span.max(1.0),
        held: sum.held().map(held as fn([f64; HELD.len()]) -> Vec<(Kind, f64)>),
        blame: *blame,
    };
    PointToPoint {
        enqueued: false,
        unknown: false,
        heard: series.who.len(),
        nranks: series.nranks,
        unscored_share: share(|sum| sum.unscored),
        scored_share: share(|sum| sum.scored),
        since_ns: series.at_ns(windows.start),
        until_ns: series.at_ns(windows.end),
        ranks: series.who.iter().zip(sums).zip(blamed).map(rank).collect(),
    }
}
