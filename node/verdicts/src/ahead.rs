//! Ranks that enter late where calls only enqueue and hosts run ahead of their devices: they wait
//! for nobody until they synchronise, unseen, once in a step or less often.
//!
//! Entries alone do not distinguish a late rank from one that was held up. Two things together do:
//! whoever holds a rank up is late, too, so the only late rank of a job was held up by nobody; and
//! the others go on later by what it was late, so that they do wait for it, and not all of them for
//! their devices.

use observed::{Input, RankRef, Rules, Stepped};
use stats::median;

use super::comm::{Comm, Member, Met};
use super::score::Scored;
use super::suspects::{Findings, Found, added_part, hosts_wait};
use super::tally::Waits;
use super::victims::{is, shares};

/// Names the one rank of a job that enters late, if the others are seen to wait for it; of others
/// it stays unknown whether they are to blame.
pub(crate) fn settle_ahead(input: &Input, scored: &[Scored], thin: &[Comm], rules: &Rules, findings: &mut Findings) {
    let candidates = std::mem::take(&mut findings.ahead);
    let (mut only, others): (Vec<Found>, Vec<Found>) = candidates
        .into_iter()
        .partition(|found| is_only_one(scored, thin, found, rules) && binds(input, scored, found));
    for found in &mut only {
        let of_calls = added_part(&scored[found.comm], found.member, &found.episode);
        let of_steps = || added_share(&steps(input, found), rules).map(|share| share / found.culprit.share);
        // All of the time is the most that anybody costs.
        found.added = of_calls.or_else(of_steps).unwrap_or(1.0).min(1.0 / found.culprit.share).min(1.0);
        found.culprit.share *= found.added;
    }
    let named: Vec<RankRef> = only.iter().map(|found| found.culprit.who()).collect();
    findings.alone.extend(others.iter().map(|found| found.culprit.who()));
    findings.alone.retain(|rank| !named.contains(rank));
    // One that costs too little is nobody to name.
    findings.found.extend(only.into_iter().filter(|found| found.culprit.share >= rules.effect));
}

/// Whether every process that could hold it up alone is heard and compared with others that do the
/// same work, and none of them is late by half as much at that time.
fn is_only_one(scored: &[Scored], thin: &[Comm], found: &Found, rules: &Rules) -> bool {
    let all = || scored.iter().map(|s| &s.comm).chain(thin);
    let within_ns = (found.culprit.since_ns, found.culprit.until_ns);
    // Stages of a pipeline come at different times by design.
    if scored[found.comm].comm.mixed() {
        return false;
    }
    let mine = found.culprit.share;
    let compared = scored.iter().filter(|s| !s.comm.mixed() && s.comm.members.len() > 1);
    let shares = shares(compared, within_ns, rules, |score| score.late.share);
    let late = |m: &Member| shares.get(&(&*m.node, m.pid)).copied();
    all().filter(|c| c.members.len() > 1 || c.paired > 0).all(|c| {
        // A rank that is not in the data makes all wait alike that it meets: against those it would
        // not be late.
        let meets = c.paired > 0 || c.members.len() == 1;
        let open = c.not_heard() > 0 && meets && c.members.iter().any(|m| is(found, m));
        let late = |m: &Member| late(m).is_none_or(|late| late >= Rules::ALSO_SHARE_ENQUEUED * mine);
        !open && !c.members.iter().any(|m| !is(found, m) && late(m))
    })
}

/// Whether in one of its communicators the others go on later by what it is late: by how much more,
/// per nanosecond, as surely as ordinary least squares tell. Were they waiting for their devices,
/// they would go on at the same time however late it is. Where they wait now and then only, it is
/// seen as well by that it does not wait with them.
fn binds(input: &Input, scored: &[Scored], found: &Found) -> bool {
    let of_calls = scored.iter().filter(|s| s.waits == Waits::Enqueued && !s.comm.reconstructed).any(|s| {
        let Some(me) = s.comm.members.iter().position(|m| is(found, m)) else { return false };
        // All of the span: what was before it was late tells best how much later they go on now.
        let gaps = gaps(s, me);
        let lone = s.comm.met.iter().all(|met| met.weight <= 1);
        wait_for_it(&pairs(&gaps, lone, hosts_wait(std::iter::once(s))), &gaps)
    });
    of_calls || {
        let gaps = steps(input, found);
        wait_for_it(&pairs(&gaps, true, false), &gaps)
    }
}

/// Whether the others are seen to wait for it, by lateness and the time to their next call, and by
/// each gap.
fn wait_for_it(pairs: &[(f64, f64)], gaps: &[Gap]) -> bool {
    // Of few pairs the standard error is a poor one itself.
    let errors = Rules::BINDS_ERRORS * pairs.len() as f64 / (pairs.len() as f64 - 3.0);
    slope(pairs).is_some_and(|(slope, error)| slope >= Rules::BINDS && slope >= errors * error) || waits_alone(gaps)
}

/// Steps of the others that digests hold: from the call that began one to the call that ended it.
fn steps(input: &Input, found: &Found) -> Vec<Gap> {
    let is_its = |of: &&Stepped| of.pid == found.culprit.pid && *of.node == *found.culprit.node;
    let Some(mine) = input.stepped.iter().find(is_its) else { return Vec::new() };
    let align = |of: &Stepped, (begin_ns, end_ns): (i64, i64)| {
        let clock = input.clocks.get(&*of.node)?;
        Some((clock.align(begin_ns), clock.align(end_ns)))
    };
    let others = || input.stepped.iter().filter(|of| of.comm_hash == mine.comm_hash && !is_its(of));
    let gap = |(number, times): (&u64, &(i64, i64))| {
        let (begin_ns, end_ns) = align(mine, *times)?;
        let each: Vec<(i64, i64)> = others().filter_map(|of| align(of, *of.steps.get(number)?)).collect();
        // How late it began the step, and ended it.
        let late_ns = median(each.iter().map(|(begin, _)| (begin_ns - begin) as f64))?;
        let next_late = median(each.iter().map(|(_, end)| (end_ns - end) as f64))?;
        let ns = (end_ns - begin_ns) as f64 + late_ns - next_late;
        let waits = next_late < Rules::WAITED * late_ns;
        Some(Gap { late_ns, next_late_ns: next_late, ns, weight: 1.0, follows: true, waits })
    };
    mine.steps.iter().filter_map(gap).collect()
}

/// Of the time of its steps the part that it adds to them: by how much later it becomes in those in
/// which the others do not wait, and how late it is again after those in which they do.
fn added_share(gaps: &[Gap], rules: &Rules) -> Option<f64> {
    let each = || {
        gaps.iter().map(|gap| {
            let later_ns = gap.next_late_ns - gap.late_ns;
            let own_ns = gap.ns + later_ns;
            (if later_ns >= rules.effect * own_ns { later_ns } else { gap.next_late_ns.max(0.0) }, own_ns)
        })
    };
    let (added_ns, own_ns) = (median(each().map(|of| of.0))?, median(each().map(|of| of.1))?);
    (gaps.len() >= Rules::BINDS_SEEN && own_ns > 0.0).then(|| added_ns / own_ns)
}

/// How long the others took from one collective to the next.
struct Gap {
    /// By how much it was late to the first.
    late_ns: f64,
    /// By how much to the second.
    next_late_ns: f64,
    ns: f64,
    /// Collectives that the first stands for.
    weight: f64,
    /// None lies between them whose record was lost.
    follows: bool,
    /// After it, it was late no more: the others have waited.
    waits: bool,
}

fn gaps(s: &Scored, me: usize) -> Vec<Gap> {
    let met = &s.comm.met;
    let apart = |met: &Met| {
        let mine = met.cells.get(me)?.as_ref()?.entry_ns;
        let others = met.cells.iter().enumerate().filter(|(r, _)| *r != me && s.bounds[*r].is_some());
        let others = median(others.filter_map(|(_, c)| Some((c.as_ref()?.entry_ns - mine) as f64)))?;
        // How late it is, and when the others came, as far from the collective's median as both are.
        Some((-others, (mine - met.at_ns) as f64 + others))
    };
    let known: Vec<Option<(f64, f64)>> = met.iter().map(apart).collect();
    let mut gaps = Vec::new();
    let mut peak = 0.0f64;
    for at in 0..met.len().saturating_sub(1) {
        let (Some((late_ns, came)), Some((next_late, next_came))) = (known[at], known[at + 1]) else { continue };
        // Over one whose record was lost there are two waits.
        let follows = met[at].func != met[at + 1].func || met[at + 1].seq == met[at].seq + u64::from(met[at].weight);
        let ns = (met[at + 1].at_ns - met[at].at_ns) as f64 + next_came - came;
        peak = peak.max(late_ns);
        let waits = next_late < Rules::WAITED * peak;
        if waits {
            peak = next_late.max(0.0);
        }
        let weight = f64::from(met[at].weight.max(1));
        gaps.push(Gap { late_ns, next_late_ns: next_late, ns, weight, follows, waits });
    }
    gaps
}

/// By how much it was late when the others waited, and how long these then took to their next call:
/// after which it was late no more, or where there are hardly any such or hosts wait for each call,
/// after each collective. `lone`: none of these stands for several calls.
fn pairs(gaps: &[Gap], lone: bool, hosts_wait: bool) -> Vec<(f64, f64)> {
    // Of several calls, what it was late by on the way from the first of these to the next.
    let between_ns = |gap: &Gap| f64::midpoint(gap.late_ns, gap.next_late_ns);
    let each = |gap: &Gap| if lone { (gap.late_ns, gap.ns) } else { (between_ns(gap), gap.ns / gap.weight) };
    let each = gaps.iter().filter(|gap| gap.follows).map(each).collect();
    let waits: Vec<(f64, f64)> =
        gaps.iter().filter(|gap| gap.follows && gap.waits).map(|gap| (gap.late_ns, gap.ns)).collect();
    if hosts_wait || waits.len() < Rules::BINDS_SEEN { each } else { waits }
}

/// Whether the others wait, where they do, for as long as it is late, and it hardly waits itself: they
/// take longer than where they do not wait, and it by only a part of that. Were they waiting for
/// their devices, a part as small as in each of these waits would come up by chance, and in all of
/// them together too rarely.
fn waits_alone(gaps: &[Gap]) -> bool {
    let of = |waits: bool| gaps.iter().filter(move |gap| gap.follows && gap.weight <= 1.0 && gap.waits == waits);
    let Some(usual) = median(of(false).map(|gap| gap.ns)) else { return false };
    let (mut late_ns, mut own_ns, mut chance) = (0.0, 0.0, 1.0);
    for gap in of(true) {
        let own = gap.ns - usual - gap.late_ns;
        late_ns += gap.late_ns;
        own_ns += own;
        chance *= (own / gap.late_ns).abs().clamp(Rules::WAITS_ALIKE, 1.0);
    }
    own_ns.abs() <= Rules::HARDLY_WAITS * late_ns && chance <= Rules::WAITS_CHANCE
}

/// Slope of the second over the first, beside what both change with time (clocks drift), and its
/// standard error; none of few, or where the first does not vary.
fn slope(pairs: &[(f64, f64)]) -> Option<(f64, f64)> {
    let n = pairs.len() as f64;
    if pairs.len() < Rules::BINDS_SEEN {
        return None;
    }
    let (x, y) = (detrended(pairs.iter().map(|p| p.0)), detrended(pairs.iter().map(|p| p.1)));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let square = product(&x, &x);
    if square <= 0.0 {
        return None;
    }
    let slope = product(&x, &y) / square;
    let rest: f64 = x.iter().zip(&y).map(|(x, y)| (y - slope * x).powi(2)).sum();
    Some((slope, (rest / (n - 3.0) / square).sqrt()))
}

/// Values less their mean and their trend over their places, by ordinary least squares.
fn detrended(values: impl ExactSizeIterator<Item = f64> + Clone) -> Vec<f64> {
    let middle = (values.len() as f64 - 1.0) / 2.0;
    let mean = values.clone().sum::<f64>() / values.len() as f64;
    let places = (0..values.len()).map(|at| at as f64 - middle);
    let square: f64 = places.clone().map(|at| at * at).sum();
    let trend = values.clone().zip(places.clone()).map(|(v, at)| (v - mean) * at).sum::<f64>() / square;
    values.zip(places).map(|(v, at)| v - mean - trend * at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Cell;

    #[test]
    fn a_slope_comes_with_its_error() {
        // A clock that drifts makes all of it later and later.
        let line: Vec<(f64, f64)> =
            (0..20).map(|i| f64::from(i % 3) + f64::from(i)).zip((0..20).map(|i| 3.0 + f64::from(i % 3))).collect();
        let (b, error) = slope(&line).unwrap();
        assert!((b - 1.0).abs() < 1e-9 && error < 1e-9, "{b} {error}");
        // What does not depend on it has a slope near none.
        let free: Vec<(f64, f64)> = (0..20).map(|i| (f64::from(i % 3), f64::from(i % 2))).collect();
        let (b, error) = slope(&free).unwrap();
        assert!(b.abs() < Rules::BINDS_ERRORS * error, "{b} {error}");
        assert!(slope(&line[..3]).is_none() && slope(&[(1.0, 2.0); 20]).is_none());
    }

    /// Steps of a second of which the others wait after each fourth, and it is late by 400 ms more in
    /// each; it waits for so long itself.
    fn waits_of(many: usize, own_ms: &[f64]) -> Vec<Gap> {
        let gap = |at: usize| {
            let (late_ns, waits) = ((at % 4 + 1) as f64 * 400e6, at % 4 == 3);
            let own = if waits { own_ms[at / 4 % own_ms.len()] * 1e6 } else { 0.0 };
            let ns = if waits { 1e9 + late_ns + own } else { 1e9 };
            Gap { late_ns, next_late_ns: late_ns, ns, weight: 1.0, follows: true, waits }
        };
        (0..4 * many).map(gap).collect()
    }

    #[test]
    fn the_others_wait_for_as_long_as_it_is_late_and_it_does_not_wait() {
        assert!(waits_alone(&waits_of(2, &[10.0])), "two that are alike to within a hundredth");
        assert!(!waits_alone(&waits_of(1, &[1.0])), "one may be by chance");
        assert!(!waits_alone(&waits_of(2, &[100.0])) && waits_alone(&waits_of(3, &[100.0])), "6 % each");
        assert!(!waits_alone(&waits_of(9, &[800.0])), "all wait for their devices, it half as long");
        assert!(!waits_alone(&waits_of(8, &[1_500.0, -1_500.0])), "so long on average alone");
        assert!(!waits_alone(&[]));
    }

    #[test]
    fn what_it_adds_shows_in_steps_however_often_the_others_wait() {
        let gap = |(late_ms, next_ms, ms): (i64, i64, i64)| {
            let [late_ns, next_ns, ns] = [late_ms, next_ms, ms].map(|ms| ms as f64 * 1e6);
            let waits = next_ns < Rules::WAITED * late_ns;
            Gap { late_ns, next_late_ns: next_ns, ns, weight: 1.0, follows: true, waits }
        };
        let share = |gaps: &[(i64, i64, i64)]| {
            let gaps: Vec<Gap> = gaps.iter().copied().map(gap).collect();
            added_share(&gaps, &Rules::default())
        };
        // Of steps of 20 ms that take it 50, the others wait in each, in every fourth, of which the
        // sample holds all or none.
        assert_eq!(share(&[(30, 30, 50); 5]), Some(0.6));
        assert_eq!(share(&[(30, 60, 20), (60, 90, 20), (90, 120, 20), (120, 30, 140)]), Some(0.6));
        assert_eq!(share(&[(120, 30, 140); 4]), Some(0.6));
        assert_eq!(share(&[(60, 90, 20); 4]), Some(0.6));
        assert_eq!(share(&[(60, 90, 20); 3]), None, "few");
        assert_eq!(share(&[(0, 0, 20); 4]), Some(0.0));
    }

    #[test]
    fn over_a_lost_collective_nothing_is_told_of_how_long_the_others_wait() {
        let cell = |entry_ns| Some(Cell { entry_ns, ..Cell::default() });
        // Every 20 ms, rank 1 comes 10 ms after the other two; the record of collective 5 was lost.
        let met = (0..12).filter(|seq| *seq != 5).map(|seq: i64| {
            let (at_ns, func) = (seq * 20_000_000, "all_reduce".into());
            let cells = vec![cell(at_ns), cell(at_ns + 10_000_000), cell(at_ns)];
            Met { at_ns, func, seq: seq.unsigned_abs(), weight: 1, cells }
        });
        let comm = Comm { met: met.collect(), ..Comm::default() };
        let s = Scored { bounds: vec![Some(0.0); 3], ..Scored::test_of(comm, Waits::Enqueued) };
        assert_eq!(pairs(&gaps(&s, 1), true, true), [(10e6, 20e6); 9]);
    }
}
