//! One rank of one communicator under suspicion: by its lateness or by its compute time.

use std::ops::Range;

use observed::{RankRef, Rules, hex};
use stats::{Moments, median};

use super::episodes::{episode, steady_runs};
use super::excess::{
    added, autocorrelation, by_member, effective, excesses, independent, is_numbered_less, kept_waiting, late_by,
    of_run, order, steadiness, telling,
};
use super::{Elsewhere, Findings, Found};
use crate::comm::{Cell, Met};
use crate::rating::{Flags, Rating, Score, unsure};
use crate::report::{Basis, Culprit};
use crate::score::Scored;
use crate::tally::{Tally, Waits};

/// One rank of one communicator under suspicion.
pub(super) struct Case<'a, 'c> {
    index: usize,
    s: &'a Scored,
    m: usize,
    me: RankRef,
    /// It communicates in other ways too: what makes it late may lie there.
    several: bool,
    /// It sends to or receives from single ranks.
    paired: bool,
    elsewhere: &'a Elsewhere<'c>,
    rules: &'a Rules,
}

impl<'a, 'c> Case<'a, 'c> {
    pub(super) fn of(index: usize, s: &'a Scored, m: usize, rules: &'a Rules, elsewhere: &'a Elsewhere<'c>) -> Self {
        let member = &s.comm.members[m];
        let places = elsewhere.places(&member.node, member.pid);
        let rank = elsewhere.job_rank(&member.node, member.pid).unwrap_or(member.rank);
        let paired = places.is_some_and(|places| places.paired);
        let several = s.comm.one_sided > 0 || places.is_some_and(|places| places.many > 1);
        let me = RankRef { rank, node: member.node.to_string(), pid: member.pid };
        Self { index, s, m, me, several, paired, elsewhere, rules }
    }

    fn column(&self, flag: fn(&Flags) -> bool) -> Vec<bool> {
        self.s.flags.iter().map(|w| flag(&w[self.m])).collect()
    }

    /// It is late: by waits or entries.
    pub(super) fn by_lateness(&self, findings: &mut Findings) -> Option<Found> {
        let (s, m, rules) = (self.s, self.m, self.rules);
        let flags = self.column(|flags| flags.late);
        let basis = if s.waits == Waits::Enqueued { Basis::Entries } else { Basis::Waits };
        let candidates = self.candidates(&flags, |flags| flags.late, basis);
        let run = self.first_that_holds(&candidates, s.comm.members.len(), basis, |score| score.late, findings)?;
        let (tallies, scores) = s.pooled(run.clone(), rules);
        let (rating, tally) = (&scores[m].late, &tallies[m]);
        if s.waits == Waits::Enqueued && is_numbered_less(s, m, &run) {
            findings.doubts.push(format!(
                "rank {} on {} enters collectives when the others enter a later one: it is whole steps behind, or calls \
                 were not counted from the start there",
                self.me.rank, self.me.node
            ));
            return None;
        }
        // Where calls only enqueue, a rank waits outside them: its compute time is not its own, and
        // in a pipeline nothing distinguishes a late rank from one that was held up by the stage
        // before it.
        if s.waits == Waits::Enqueued && !s.comm.reconstructed && (s.comm.mixed() || self.paired) {
            let found = Found { by_entries: true, ..self.found(basis, rating, &flags, run) };
            findings.ahead.push(found);
            return None;
        }
        let own = tally.more_compute.mean().filter(|_| tally.more_compute.n >= Rules::COMPUTE_SEEN);
        let explained = self.explained(basis, &run);
        let not_own = explained.is_some_and(|explained| explained < rules.compute_share);
        // What held it off its CPU is not its program's doing, and compares whatever ranks do.
        let held = basis == Basis::Waits && self.held(&run) >= rules.compute_share;
        // Told from entries, the clocks may make it.
        let unsure = if s.comm.reconstructed { unsure(&tallies, &s.comm.members, m) } else { 0.0 };
        let open = !not_own && own.is_some_and(|own| own - unsure < rules.compute_share * rating.excess_ns);
        // It entered late for certain; where it does not pass data to single ranks, it may still be
        // seen whether somebody else made it late.
        let entries_tell = !s.comm.mixed() && !self.paired;
        let by_entries =
            s.waits == Waits::Enqueued && (!s.comm.reconstructed || (open || own.is_none()) && entries_tell);
        if by_entries && !self.elsewhere.hosts_wait {
            findings.ahead.push(Found { by_entries, ..self.found(basis, rating, &flags, run) });
            return None;
        }
        if !by_entries {
            if open && !held {
                findings.alone.push(self.me.clone());
                return None;
            }
            if held && own.is_none() {
                // Neither what it does nor whom it waits for elsewhere matters: it was held.
            } else if s.comm.mixed() {
                // Stages come at different times by design. Here only compute time tells, and it
                // has to be consistent.
                if own.is_none() {
                    findings.alone.push(self.me.clone());
                    return None;
                }
                let rating = Rating {
                    consistency: tally.more_compute.consistency(scores[m].compute.usual_ns).unwrap_or(0.0),
                    mostly: tally.more_compute.positive / tally.more_compute.n,
                    ..*rating
                };
                let class = s.comm.members[m].class;
                let peers = s.comm.members.iter().filter(|o| o.class == class).count();
                let sure = || self.is_sure(&rating, peers, &run, Basis::OwnTime);
                if not_own || !sure() {
                    return None;
                }
            } else if not_own {
                findings.held_up.push(self.me.clone());
                return None;
            } else if own.is_none() && self.several {
                findings.alone.push(self.me.clone());
                return None;
            }
        }
        Some(Found { by_entries, ..self.found(basis, rating, &flags, run) })
    }

    /// Which part of its lateness over an episode its excess of compute time explains, collective by
    /// collective: one wait whose record was lost, and that looks like compute time, explains no more
    /// than the lateness there. None where it is known of too few of them.
    fn explained(&self, basis: Basis, run: &Range<usize>) -> Option<f64> {
        let above = |basis: Basis, met: &Met| {
            let order = order(self.s, self.m, basis, met);
            let (_, mine) = order.iter().find(|(r, _)| *r == self.m)?;
            median(order.iter().filter(|(r, _)| *r != self.m).map(|(_, v)| mine.saturating_sub(*v) as f64))
        };
        let (mut known, mut late_ns, mut own_ns) = (0.0, 0.0, 0.0);
        for met in of_run(self.s, run) {
            let Some((late, own)) = above(basis, met).zip(above(Basis::OwnTime, met)) else { continue };
            known += 1.0;
            late_ns += late;
            own_ns += own.min(late.max(0.0));
        }
        (known >= Rules::COMPUTE_SEEN && late_ns > 0.0).then(|| own_ns / late_ns)
    }

    /// Which part of its lateness over an episode is time in which it was held off its CPU, more than
    /// the others were (median).
    fn held(&self, run: &Range<usize>) -> f64 {
        let (mut late_ns, mut held_ns) = (0.0, 0.0);
        for met in of_run(self.s, run) {
            let (Some(mine), weight) = (met.cells[self.m], f64::from(met.weight)) else { continue };
            let others = || met.cells.iter().enumerate().filter(|(r, _)| *r != self.m).filter_map(|(_, cell)| *cell);
            let held = |cell: Cell| cell.off_cpu_ns() as f64;
            let (Some(waited), Some(usual)) =
                (median(others().map(|o| o.duration_ns as f64)), median(others().map(held)))
            else {
                continue;
            };
            late_ns += weight * (waited - mine.duration_ns as f64);
            held_ns += weight * (held(mine) - usual);
        }
        if late_ns > 0.0 { held_ns / late_ns } else { 0.0 }
    }

    /// It takes more time of its own than the others of its class.
    pub(super) fn by_compute(&self, findings: &mut Findings) -> Option<Found> {
        let flags = self.column(|flags| flags.compute);
        let candidates = self.candidates(&flags, |flags| flags.compute, Basis::OwnTime);
        // Peers are counted only of those that stand out: of all that takes the square of the ranks.
        if candidates.is_empty() {
            return None;
        }
        let class = self.s.comm.members[self.m].class;
        let peers = self.s.comm.members.iter().filter(|o| o.class == class).count();
        let run = self.first_that_holds(&candidates, peers, Basis::OwnTime, |score| score.compute, findings)?;
        let (_, scores) = self.s.pooled(run.clone(), self.rules);
        Some(self.found(Basis::OwnTime, &scores[self.m].compute, &flags, run))
    }

    /// It was held off its CPU or halted, and the others waited for it alone at that time: what counts
    /// is the sum. Another program has the CPU for some milliseconds at a time, so that of short steps
    /// one in ten takes many times as long and the others are as ever: it is not usually late then, and
    /// what its program does need not be compared with anybody.
    pub(super) fn by_held(&self) -> Option<Found> {
        let (s, m, rules) = (self.s, self.m, self.rules);
        if s.waits != Waits::Seen || s.comm.members.len() < 2 {
            return None;
        }
        let of_window = |r: usize, window: usize| -> f64 {
            s.comm.met[s.windows[window].met.clone()].iter().filter_map(|met| Some(kept_waiting(r, met)?.held_ns)).sum()
        };
        let share = |r: usize, windows: &Range<usize>| {
            let wall_ns: f64 = s.windows[windows.clone()].iter().map(|w| w.wall_ns).sum();
            windows.clone().map(|window| of_window(r, window)).sum::<f64>() / wall_ns.max(1.0)
        };
        // Who had its CPU kept nobody waiting so: only of others it is worked out, which takes all ranks.
        let may = |window: usize| {
            let of = &s.windows[window];
            let off_cpu = |met: &Met| Some(f64::from(met.weight) * met.cells[m]?.off_cpu_ns() as f64);
            s.comm.met[of.met.clone()].iter().filter_map(off_cpu).sum::<f64>() >= rules.effect * of.wall_ns.max(1.0)
        };
        let costs = |window: usize| may(window) && share(m, &(window..window + 1)) >= rules.effect;
        let flags: Vec<bool> = (0..s.windows.len()).map(costs).collect();
        let run = episode(&flags, rules).filter(|run| self.lasts(run))?;
        let others: Vec<f64> = (0..s.comm.members.len()).filter(|r| *r != m).map(|r| share(r, &run)).collect();
        let (mine, usual) = (share(m, &run), median(others.iter().copied())?);
        let (mut alone_ns, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for kept in of_run(s, &run).iter().filter_map(|met| kept_waiting(m, met)) {
            alone_ns += kept.alone_ns;
            sum += kept.held_ns;
            squares += kept.held_ns * kept.held_ns;
        }
        // As many strokes of one length would spread as far.
        let enough = sum * sum >= Rules::STROKES * squares && sum >= rules.compute_share * alone_ns;
        if !enough || mine - usual < rules.effect || mine < rules.ratio * usual {
            return None;
        }
        let rating = Rating { share: mine, ..Rating::default() };
        Some(self.found(Basis::Waits, &rating, &flags, run))
    }

    /// Episodes to be tried in turn; last the stretches of the first in which it is steadily late.
    fn candidates(&self, flags: &[bool], costs: fn(&Flags) -> bool, basis: Basis) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = episode(flags, self.rules).into_iter().collect();
        let excess = || self.excess_by_window(basis);
        let steady = runs.first().map_or(Vec::new(), |run| steady_runs(run, &excess(), self.rules));
        // Where windows hold few collectives or ranks are few, the spread of a single window is a
        // poor measure: then it is enough that it costs as much in most of the longer ones; what it
        // stands out of is asked over the whole run.
        let coarse: Vec<bool> = self.s.coarse.iter().map(|(_, of_all)| costs(&of_all[self.m])).collect();
        if let Some(run) = episode(&coarse, self.rules) {
            let (first, last) = (&self.s.coarse[run.start].0, &self.s.coarse[run.end - 1].0);
            runs.push(first.start..last.end);
        }
        runs.extend(steady);
        runs
    }

    /// The first of the candidates that holds.
    fn first_that_holds(
        &self,
        candidates: &[Range<usize>],
        peers: usize,
        basis: Basis,
        of: fn(&Score) -> Rating,
        findings: &mut Findings,
    ) -> Option<Range<usize>> {
        let rating = |run: &Range<usize>| of(&self.s.pooled(run.clone(), self.rules).1[self.m]);
        let holds = candidates.iter().find(|run| self.lasts(run) && self.is_sure(&rating(run), peers, run, basis));
        let collectives = self.s.comm.met.len();
        let few = holds.is_none() && collectives < Rules::FEW_COLLECTIVES;
        if few && candidates.first().is_some_and(|run| self.stands_out(&rating(run))) {
            findings.few.push((self.me.clone(), collectives));
        }
        holds.cloned()
    }

    /// The episode is long enough to name somebody for it.
    fn lasts(&self, run: &Range<usize>) -> bool {
        let windows = &self.s.windows;
        windows[run.end - 1].end_ns.saturating_sub(windows[run.start].start_ns) >= self.rules.least_episode_ns
    }

    /// It stands out of the others over an episode, and costs enough.
    fn stands_out(&self, rating: &Rating) -> bool {
        rating.flagged && rating.mostly >= Rules::ABOVE_MEDIAN && rating.beyond >= self.rules.effect
    }

    /// Whether it stands out over an episode more surely than chance makes one of many do: of all
    /// places in communicators, and of the episodes of this length that find room in the span. As
    /// much surer as the tail of a normal deviate asks for.
    fn is_sure(&self, rating: &Rating, peers: usize, run: &Range<usize>, basis: Basis) -> bool {
        let episodes = (self.s.windows.len() as f64 / run.len().max(1) as f64).max(1.0);
        let steady = peers >= Rules::POPULATION && rating.mostly >= self.rules.mostly;
        let needed = if steady { self.rules.steady_consistency } else { self.rules.consistency };
        // Sooner where no population says how far ranks usually are apart.
        let few = if peers >= Rules::POPULATION { Rules::COMPARED_FREELY } else { Rules::COMPARED_FREELY / 8.0 };
        let many = (self.elsewhere.compared as f64 / few).max(1.0);
        let least = || (needed * needed + 2.0 * (many.ln() + episodes.ln())).sqrt();
        self.stands_out(rating) && self.consistency(rating, basis, run) >= least()
    }

    /// How surely its excess over an episode is no chance, as a normal deviate: the surest of tests
    /// over all its collectives and over those that tell most, less what they depend on each other.
    fn consistency(&self, rating: &Rating, basis: Basis, run: &Range<usize>) -> f64 {
        let mets = excesses(self.s, self.m, basis, run);
        let series = by_member(&mets, self.s.comm.members.len());
        let surest = rating.consistency.max(steadiness(series.get(self.m).map_or(&[], Vec::as_slice)));
        let part = independent(&series);
        let each = surest * part.sqrt();
        let of = |mets: &[Vec<(usize, f64)>], usual: f64| {
            let series = by_member(mets, self.s.comm.members.len());
            let own = series.get(self.m).map_or(&[][..], Vec::as_slice);
            Moments::of(own).consistency(usual).unwrap_or(0.0) * independent(&series).sqrt()
        };
        match basis {
            // One delay that makes it late for several collectives in a row is one, whoever has it.
            Basis::Waits => {
                let own = series.get(self.m).and_then(|own| autocorrelation(own)).map_or(1.0, effective).min(part);
                each.max(of(&telling(&mets), rating.usual_ns) * own.sqrt())
            }
            // Where hosts run ahead lateness adds up until they wait.
            Basis::Entries => each.max(of(&added(&mets), 0.0)),
            // Compute time is longest where the record of a wait was lost: nothing is chosen there.
            Basis::OwnTime | Basis::PointToPoint => each,
        }
    }

    /// Its mean excess in each window; 0 where it is not known.
    fn excess_by_window(&self, basis: Basis) -> Vec<f64> {
        let excess = |tally: &Tally| match basis {
            Basis::Waits => tally.less_wait.mean(),
            Basis::Entries => tally.later.mean(),
            Basis::OwnTime | Basis::PointToPoint => tally.more_compute.mean(),
        };
        self.s.tallies.iter().map(|window| excess(&window[self.m]).unwrap_or(0.0)).collect()
    }

    fn found(&self, basis: Basis, rating: &Rating, flags: &[bool], run: Range<usize>) -> Found {
        let s = self.s;
        let (late_by_ns, last_in, collectives) = late_by(s, self.m, basis, &run);
        let culprit = Culprit {
            rank: self.me.rank,
            node: self.me.node.clone(),
            pid: self.me.pid,
            comm_hash: hex(s.comm.hash),
            basis,
            late_by_ns,
            last_in,
            collectives,
            share: rating.share,
            z: rating.z,
            since_ns: s.windows[run.start].start_ns,
            until_ns: s.windows[run.end - 1].end_ns,
            since_start: run.start == 0,
            ongoing: run.end + 2 >= s.windows.len(),
            flagged: flags[run.clone()].iter().filter(|f| **f).count(),
            windows: run.len(),
        };
        Found { culprit, comm: self.index, member: self.m, episode: run, by_entries: false, added: 1.0 }
    }
}
