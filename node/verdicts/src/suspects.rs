//! From the flags of the windows to suspects: episodes, and what has to hold over a whole episode
//! to name a rank.
//!
//! Ratings come from `rating.rs`; which suspects are named, and what else may be the matter, is
//! said in `verdict.rs`.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::comm::{Comm, Met};
use super::observation::{Process, hex};
use super::ranks::RankRef;
use super::rating::{Flags, Rating, history, unsure};
use super::report::{Basis, Culprit};
use super::rules::Rules;
use super::score::Scored;
use super::stats::{Moments, median};
use super::tally::{Tally, Waits};

/// A culprit and where it was found.
pub(crate) struct Found {
    pub(crate) culprit: Culprit,
    /// Which scored communicator.
    pub(crate) comm: usize,
    /// Which of its members.
    pub(crate) member: usize,
    /// Which of its windows.
    pub(crate) episode: Range<usize>,
    /// It enters late, and nothing tells whether that is its own doing: its compute time is not
    /// known, or the clocks leave it open.
    pub(crate) by_entries: bool,
}

/// What was found in all communicators.
#[derive(Default)]
pub(crate) struct Findings {
    /// Ranks to name.
    pub(crate) found: Vec<Found>,
    /// Late ranks that are held up themselves.
    pub(crate) held_up: Vec<RankRef>,
    /// Late ranks whose compute time could not be compared: no peer does the same work, or too many
    /// records were lost.
    pub(crate) alone: Vec<RankRef>,
    /// They enter late where calls only enqueue, and nothing of their own tells whether they are to
    /// blame.
    pub(crate) ahead: Vec<Found>,
    /// Evidence that contradicts itself, in words.
    pub(crate) doubts: Vec<String>,
}

/// What stands against naming a rank that is late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Against {
    /// It may be held up, or late with others because of the network: that is not seen.
    Unclear,
    /// It is held up: another rank is late in a communicator where it is not.
    HeldUp,
}

impl Findings {
    /// Names those no more against whom something stands, by each and all that were found.
    pub(crate) fn drop(&mut self, against: impl Fn(&Found, &[Found]) -> Option<Against>) {
        let found = std::mem::take(&mut self.found);
        let against: Vec<Option<Against>> = found.iter().map(|one| against(one, &found)).collect();
        for (one, against) in found.into_iter().zip(against) {
            match against {
                Some(Against::HeldUp) => self.held_up.push(one.culprit.who()),
                Some(Against::Unclear) => self.alone.push(one.culprit.who()),
                None => self.found.push(one),
            }
        }
    }
}

/// A process's rank in the largest communicator that it is in.
pub(crate) fn job_ranks<'a>(comms: impl Iterator<Item = &'a Comm>) -> HashMap<Process, i32> {
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

/// Where else processes communicate.
#[derive(Default)]
pub(crate) struct Elsewhere {
    /// They are in more than one communicator.
    several: HashSet<Process>,
    /// They send to or receive from single ranks.
    paired: HashSet<Process>,
    /// Places in communicators that are compared, of all processes together.
    compared: usize,
    /// Where calls only enqueue, their entries bear out that hosts wait for them.
    hosts_wait: bool,
}

impl Elsewhere {
    /// From all communicators heard of.
    pub(crate) fn of(scored: &[Scored], thin: &[Comm]) -> Self {
        let mut elsewhere = Self { hosts_wait: hosts_wait(scored.iter()), ..Self::default() };
        let mut seen: HashSet<Process> = HashSet::new();
        let comms = scored.iter().map(|s| &s.comm).chain(thin);
        for comm in comms.filter(|c| c.members.len() > 1 || c.paired > 0) {
            elsewhere.compared += if comm.coupled > 0 { comm.members.len() } else { 0 };
            for m in &comm.members {
                let process: Process = (Arc::clone(&m.node), m.pid);
                if comm.paired > 0 {
                    elsewhere.paired.insert(process.clone());
                }
                if !seen.insert(process.clone()) {
                    elsewhere.several.insert(process);
                }
            }
        }
        elsewhere
    }
}

/// The run of windows in which a rank was flagged often enough: from a flagged window to a flagged
/// one, at least `persistence` flags, at least `density` of its windows flagged. The one with most
/// flags; of equals the latest.
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

/// The runs of windows in an episode in which a rank's excess stays near what it mostly is there,
/// the longest first, at least `persistence` windows each. A rank that is slow for some seconds and
/// then not is steadily late in each of these, and far from steady over all of the episode.
fn steady_runs(episode: &Range<usize>, excess: &[f64], rules: &Rules) -> Vec<Range<usize>> {
    let Some(usual) = median(excess[episode.clone()].iter().copied()) else { return Vec::new() };
    let stays = |window: &usize| excess[*window] >= Rules::STAYS_LATE * usual;
    let windows: Vec<usize> = episode.clone().collect();
    let runs = windows.chunk_by(|a, b| stays(a) == stays(b)).filter(|run| run.iter().all(stays));
    let mut runs: Vec<Range<usize>> = runs.map(|run| run[0]..run[0] + run.len()).collect();
    runs.retain(|run| run.len() >= rules.persistence && run != episode);
    runs.sort_by_key(|run| (std::cmp::Reverse(run.len()), std::cmp::Reverse(run.start)));
    runs
}

/// Look for suspects in one communicator.
pub(crate) fn suspects(
    index: usize,
    s: &Scored,
    rules: &Rules,
    job_rank: &HashMap<Process, i32>,
    elsewhere: &Elsewhere,
    findings: &mut Findings,
) {
    for m in 0..s.comm.members.len() {
        let case = Case::of(index, s, m, rules, job_rank, elsewhere);
        let late = case.by_lateness(findings);
        let own = case.by_compute();
        // What the others wait is the better evidence, unless it shows only a part.
        findings.found.extend(match (late, own) {
            (Some(late), Some(own)) if own.culprit.share <= Rules::COMPUTE_OVER_LATENESS * late.culprit.share => {
                Some(late)
            }
            (late, own) => own.or(late),
        });
    }
}

/// A slow host slows all its ranks: where one is found, less certainty is asked of its neighbours
/// in the communicator.
pub(crate) fn neighbours(
    scored: &[Scored],
    rules: &Rules,
    job_rank: &HashMap<Process, i32>,
    elsewhere: &Elsewhere,
    findings: &mut Findings,
) {
    let mut more = Vec::new();
    for (index, s) in scored.iter().enumerate() {
        for (m, member) in s.comm.members.iter().enumerate() {
            let of_host = || findings.found.iter().filter(|f| f.comm == index && *f.culprit.node == *member.node);
            if let Some(found) = of_host().next().filter(|_| !of_host().any(|f| f.member == m)) {
                more.extend(Case::of(index, s, m, rules, job_rank, elsewhere).as_neighbour(found));
            }
        }
    }
    findings.held_up.retain(|h| !more.iter().any(|f| f.culprit.node == h.node && f.culprit.pid == h.pid));
    findings.found.append(&mut more);
}

/// One rank of one communicator under suspicion.
struct Case<'a> {
    index: usize,
    s: &'a Scored,
    m: usize,
    me: RankRef,
    /// It communicates in other ways too: what makes it late may lie there.
    several: bool,
    /// It sends to or receives from single ranks.
    paired: bool,
    elsewhere: &'a Elsewhere,
    rules: &'a Rules,
}

impl<'a> Case<'a> {
    fn of(
        index: usize,
        s: &'a Scored,
        m: usize,
        rules: &'a Rules,
        job_rank: &HashMap<Process, i32>,
        elsewhere: &'a Elsewhere,
    ) -> Self {
        let member = &s.comm.members[m];
        let process: Process = (Arc::clone(&member.node), member.pid);
        let rank = job_rank.get(&process).copied().unwrap_or(member.rank);
        let paired = elsewhere.paired.contains(&process);
        let several = s.comm.one_sided > 0 || elsewhere.several.contains(&process);
        let me = RankRef { rank, node: member.node.to_string(), pid: member.pid };
        Self { index, s, m, me, several, paired, elsewhere, rules }
    }

    /// It stands out as its neighbour on the host does, by the same figure over the same windows.
    fn as_neighbour(&self, neighbour: &Found) -> Option<Found> {
        let run = neighbour.episode.clone();
        let (_, scores) = self.s.pooled(run.clone(), self.rules);
        let by_compute = neighbour.culprit.basis == Basis::OwnTime;
        let rating = if by_compute { &scores[self.m].compute } else { &scores[self.m].late };
        // Its compute time must not say that it is held up.
        let own = self.explained(neighbour.culprit.basis, &run, 1.0);
        let itself = by_compute || own.map_or(!self.several, |own| own >= self.rules.compute_share);
        let flags = self.column(if by_compute { |flags| flags.compute } else { |flags| flags.late });
        // Those that are slow as it is are among the others, and widen their spread: what it has in
        // every collective tells as well.
        let surely = rating.consistency > self.rules.z && rating.mostly >= self.rules.mostly;
        // One collective, however long, is no habit.
        let habit = || {
            rating.mostly >= Rules::ABOVE_MEDIAN
                && self.consistency(rating, neighbour.culprit.basis, &run) >= Rules::NEIGHBOUR_CONSISTENCY
        };
        let stands = rating.share >= self.rules.effect && (by_compute && surely || rating.flagged && habit());
        (stands && itself && 2.0 * rating.share >= neighbour.culprit.share)
            .then(|| self.found(neighbour.culprit.basis, rating, &flags, run))
    }

    fn column(&self, flag: fn(&Flags) -> bool) -> Vec<bool> {
        self.s.flags.iter().map(|w| flag(&w[self.m])).collect()
    }

    /// It is late: by waits or entries.
    fn by_lateness(&self, findings: &mut Findings) -> Option<Found> {
        let (s, m, rules) = (self.s, self.m, self.rules);
        let flags = self.column(|flags| flags.late);
        let basis = if s.waits == Waits::Enqueued { Basis::Entries } else { Basis::Waits };
        let (run, (tallies, scores)) =
            self.candidates(&flags, |flags| flags.late, basis).into_iter().find_map(|run| {
                let pooled = s.pooled(run.clone(), rules);
                self.holds(&pooled.1[m].late, s.comm.members.len(), &run, basis, basis).then_some((run, pooled))
            })?;
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
        // in a pipeline nothing tells a rank that is late from one that was held up by the stage
        // before it.
        if s.waits == Waits::Enqueued && !s.comm.reconstructed && (s.comm.mixed() || self.paired) {
            let found = Found { by_entries: true, ..self.found(basis, rating, &flags, run) };
            findings.ahead.push(found);
            return None;
        }
        let own = tally.more_compute.mean().filter(|_| tally.more_compute.n >= Rules::COMPUTE_SEEN);
        let explained = self.explained(basis, &run, Rules::COMPUTE_SEEN);
        let not_own = explained.is_some_and(|explained| explained < rules.compute_share);
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
            if open {
                findings.alone.push(self.me.clone());
                return None;
            }
            if s.comm.mixed() {
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
                if not_own || !self.holds(&rating, peers, &run, Basis::OwnTime, basis) {
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
    /// than the lateness there. None where it is known of fewer than `least` of them.
    fn explained(&self, basis: Basis, run: &Range<usize>, least: f64) -> Option<f64> {
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
        (known >= least && late_ns > 0.0).then(|| own_ns / late_ns)
    }

    /// It takes more time of its own than the others of its class.
    fn by_compute(&self) -> Option<Found> {
        let flags = self.column(|flags| flags.compute);
        let class = self.s.comm.members[self.m].class;
        let peers = || self.s.comm.members.iter().filter(|o| o.class == class).count();
        self.candidates(&flags, |flags| flags.compute, Basis::OwnTime).into_iter().find_map(|run| {
            let (_, scores) = self.s.pooled(run.clone(), self.rules);
            let rating = &scores[self.m].compute;
            self.holds(rating, peers(), &run, Basis::OwnTime, Basis::OwnTime)
                .then(|| self.found(Basis::OwnTime, rating, &flags, run))
        })
    }

    /// Episodes to be tried in turn.
    fn candidates(&self, flags: &[bool], costs: fn(&Flags) -> bool, basis: Basis) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = episode(flags, self.rules).into_iter().collect();
        if let Some(run) = runs.first().cloned() {
            runs.extend(steady_runs(&run, &self.excess_by_window(basis), self.rules));
        }
        // Where windows hold few collectives or ranks are few, the spread of a single window is a
        // poor measure: then it is enough that it costs as much in most of the longer ones; what it
        // stands out of is asked over the whole run.
        let coarse: Vec<bool> = self.s.coarse.iter().map(|(_, of_all)| costs(&of_all[self.m])).collect();
        if let Some(run) = episode(&coarse, self.rules) {
            let (first, last) = (&self.s.coarse[run.start].0, &self.s.coarse[run.end - 1].0);
            runs.push(first.start..last.end);
        }
        runs
    }

    /// Does an episode hold up as a whole? `of_rating` is the basis of the rating's excess.
    fn holds(&self, rating: &Rating, peers: usize, run: &Range<usize>, basis: Basis, of_rating: Basis) -> bool {
        // Of many that are looked at some stand out by chance: the places in communicators, and the
        // episodes of this length that find room in the span. As much surer as the tail of a normal
        // deviate asks for.
        let episodes = (self.s.windows.len() as f64 / run.len().max(1) as f64).max(1.0);
        let steady = peers >= Rules::POPULATION && rating.mostly >= self.rules.mostly;
        let needed = if steady { self.rules.steady_consistency } else { self.rules.consistency };
        // Sooner where no population says how far ranks usually are apart.
        let few = if peers >= Rules::POPULATION { Rules::COMPARED_FREELY } else { Rules::COMPARED_FREELY / 8.0 };
        let many = (self.elsewhere.compared as f64 / few).max(1.0);
        let needed = (needed * needed + 2.0 * (many * episodes).ln()).sqrt();
        rating.flagged
            && rating.mostly >= Rules::ABOVE_MEDIAN
            && rating.beyond >= self.rules.effect
            && self.consistency(rating, basis, run) >= needed
            && self.departs_from_history(rating, peers, run, of_rating)
    }

    /// How surely its excess over an episode is no chance, as a normal deviate: the surest of tests
    /// over all its collectives and over those that tell most, less what they depend on each other.
    fn consistency(&self, rating: &Rating, basis: Basis, run: &Range<usize>) -> f64 {
        let mets = excesses(self.s, self.m, basis, run);
        let series = by_member(&mets, self.s.comm.members.len());
        let surest = rating.consistency.max(steadiness(series.get(self.m).map_or(&[], Vec::as_slice)));
        let each = surest * independent(&series).sqrt();
        let of = |mets: &[Vec<(usize, f64)>]| {
            let series = by_member(mets, self.s.comm.members.len());
            let own = series.get(self.m).map_or(&[][..], Vec::as_slice);
            Moments::of(own).consistency(rating.usual_ns).unwrap_or(0.0) * independent(&series).sqrt()
        };
        let most = of(&telling(&mets)).max(each);
        // Where hosts run ahead lateness adds up until they wait: what it has come to by then are
        // values of their own.
        if basis == Basis::Entries { most.max(of(&before_waits(mets))) } else { most }
    }

    /// Three ranks: two others are no population, so where the rank has a past of its own, it must
    /// depart from it.
    fn departs_from_history(&self, rating: &Rating, peers: usize, run: &Range<usize>, basis: Basis) -> bool {
        if peers != 3 || run.start < Rules::HISTORY {
            return true;
        }
        let past = self.excess_by_window(basis).into_iter().take(run.start);
        history(past).is_none_or(|(mid, scale)| rating.excess_ns - mid > self.rules.z * scale)
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
        Found { culprit, comm: self.index, member: self.m, episode: run, by_entries: false }
    }
}

/// Enqueue times only: whether the rank's calls are numbered less than the others'. Then its lateness
/// says nothing. It enters about as often before as after the others (median) enter a later
/// collective, and hardly apart from them. Where hosts run ahead a rank may come after the next
/// collective as well, but the later the longer its host has not waited, and not after it waited.
fn is_numbered_less(s: &Scored, m: usize, run: &Range<usize>) -> bool {
    let entries = |met: &Met| {
        let mine = met.cells[m]?.entry_ns;
        let others = met.cells.iter().enumerate().filter(|(r, _)| *r != m && s.bounds[*r].is_some());
        let later = median(others.filter_map(|(_, c)| c.map(|c| (c.entry_ns - mine) as f64)))?;
        Some((mine, mine + later as i64))
    };
    let (mine, others): (Vec<i64>, Vec<i64>) = of_run(s, run).iter().filter_map(entries).unzip();
    // How many collectives further on the others are when it enters; not known after their last.
    let ahead = |(place, at_ns): (usize, &i64)| {
        let after = others.partition_point(|other| other < at_ns);
        let next = others.get(after)?.abs_diff(*at_ns);
        let nearest = if after > 0 && others[after - 1].abs_diff(*at_ns) < next { after - 1 } else { after };
        Some(nearest as f64 - place as f64)
    };
    let ahead: Vec<f64> = mine.iter().enumerate().filter_map(ahead).collect();
    if 2 * ahead.len() < mine.len() {
        return true;
    }
    let by = median(ahead).map_or(0, |by| by.max(0.0) as usize);
    if by == 0 {
        return false;
    }
    let behind = |by: usize| mine.iter().zip(others.iter().skip(by)).map(|(mine, other)| (mine - other) as f64);
    let apart = |by: usize| median(behind(by).map(f64::abs));
    let after = behind(by).filter(|late| *late >= -s.bounds[m].unwrap_or(0.0)).count();
    after as f64 > Rules::AFTER_LATER * behind(by).count() as f64
        && apart(by).zip(apart(0)).is_none_or(|(apart, late)| apart <= Rules::COINCIDES * late)
}

/// By collective of an episode: how far each member that can be compared with `m` lies above the
/// median there.
fn excesses(s: &Scored, m: usize, basis: Basis, run: &Range<usize>) -> Vec<Vec<(usize, f64)>> {
    let above = |met: &Met| {
        let order = order(s, m, basis, met);
        // From the first: as floats, times since 1970 lose digits.
        let &(_, from) = order.first()?;
        let apart: Vec<(usize, f64)> = order.iter().map(|(r, v)| (*r, v.saturating_sub(from) as f64)).collect();
        let mid = median(apart.iter().map(|(_, v)| *v))?;
        Some(apart.into_iter().map(|(r, v)| (r, v - mid)).collect())
    };
    of_run(s, run).iter().filter_map(above).collect()
}

/// The same by member.
fn by_member(mets: &[Vec<(usize, f64)>], members: usize) -> Vec<Vec<f64>> {
    let mut series: Vec<Vec<f64>> = vec![Vec::new(); members];
    mets.iter().flatten().for_each(|(r, excess)| series[*r].push(*excess));
    series
}

/// How far the members are apart in each of them.
fn spreads(mets: &[Vec<(usize, f64)>]) -> Vec<f64> {
    let spread = |met: &Vec<(usize, f64)>| {
        let values = || met.iter().map(|(_, excess)| *excess);
        values().fold(f64::MIN, f64::max) - values().fold(f64::MAX, f64::min)
    };
    mets.iter().map(spread).collect()
}

/// Of these the collectives in which members are apart by at least half of what they are on average:
/// one that follows another at once, such as a second value that is read after the loss, makes no
/// rank wait, whoever is slow. All members are looked at alike, so that nothing favours that one of
/// them is late.
fn telling(mets: &[Vec<(usize, f64)>]) -> Vec<Vec<(usize, f64)>> {
    let spreads = spreads(mets);
    let least = spreads.iter().sum::<f64>() / spreads.len().max(1) as f64 / 2.0;
    mets.iter().zip(spreads).filter(|(_, spread)| *spread >= least).map(|(met, _)| met.clone()).collect()
}

/// Of these the last collective before each wait for all: after it the entries lie less than half as
/// far apart as they came to lie before. All members are looked at alike, as by [`telling`].
fn before_waits(mut mets: Vec<Vec<(usize, f64)>>) -> Vec<Vec<(usize, f64)>> {
    let spreads = spreads(&mets);
    let mut widest = 0.0f64;
    let mut waits = spreads.windows(2).map(|two| {
        widest = widest.max(two[0]);
        let waits = two[1] < widest / 2.0;
        widest = if waits { 0.0 } else { widest };
        waits
    });
    mets.retain(|_| waits.next().unwrap_or(false));
    mets
}

/// How surely a rank is usually late, however far single collectives lie out: the sign test (Dixon
/// and Mood, "The statistical sign test", 1946) of its excess against half of its mean, as a normal
/// deviate. Delays with heavy tails leave a mean no finite variance, and one of them, of whichever
/// rank, hides from Student's t what is there in every collective.
fn steadiness(excess: &[f64]) -> f64 {
    let n = excess.len() as f64;
    let half = excess.iter().sum::<f64>() / n.max(1.0) / 2.0;
    if half <= 0.0 {
        return 0.0;
    }
    let above = excess.iter().filter(|x| **x > half).count() as f64;
    (2.0 * above - n) / n.max(1.0).sqrt()
}

/// Which part of an episode's collectives count as independent: (1 - r) / (1 + r) for the lag-1
/// autocorrelation r of the ranks' excess (Bartlett 1946; median over the ranks). Uneven data keeps
/// a rank late for all the collectives of a step.
fn independent(series: &[Vec<f64>]) -> f64 {
    let length = median(series.iter().map(|x| x.len() as f64)).unwrap_or(0.0);
    let r = median(series.iter().filter_map(|x| autocorrelation(x))).unwrap_or(0.0).clamp(0.0, 0.95);
    // Within what independent values show by chance, nothing is taken off.
    if r * length.sqrt() < 2.0 {
        return 1.0;
    }
    (1.0 - r) / (1.0 + r)
}

/// Whether hosts wait for the calls that they enqueue. Where they do not, a rank that is late in one
/// is as late in the next, until all wait once. Told from how the ranks' lateness changes from one
/// collective to the next (median over all ranks and communicators of the lag-1 autocorrelation):
/// -1/2 where each collective lets all go together, for then a difference has the noise of both; 0
/// where lateness adds up, and about -1/4 where it does so over two.
pub(crate) fn hosts_wait<'a>(scored: impl Iterator<Item = &'a Scored>) -> bool {
    let changes = |x: &Vec<f64>| x.windows(2).map(|w| w[1] - w[0]).collect::<Vec<f64>>();
    let enqueued = scored.filter(|s| s.waits == Waits::Enqueued && s.comm.members.len() > 1);
    let series =
        enqueued.flat_map(|s| by_member(&excesses(s, 0, Basis::Entries, &(0..s.windows.len())), s.comm.members.len()));
    let series: Vec<Vec<f64>> = series.map(|x| changes(&x)).filter(|x| x.len() >= Rules::CHANGES_SEEN).collect();
    let pairs: f64 = series.iter().map(|x| x.len() as f64 - 1.0).sum();
    let r = median(series.iter().filter_map(|x| autocorrelation(x)));
    r.is_some_and(|r| (Rules::RUNS_AHEAD - r) * pairs.sqrt() >= Rules::HOSTS_WAIT_ERRORS)
}

/// Lag-1 autocorrelation; none where nothing varies.
fn autocorrelation(x: &[f64]) -> Option<f64> {
    let mean = x.iter().sum::<f64>() / x.len().max(1) as f64;
    let square: f64 = x.iter().map(|v| (v - mean).powi(2)).sum();
    let product: f64 = x.windows(2).map(|w| (w[0] - mean) * (w[1] - mean)).sum();
    (square > 0.0).then(|| product / square)
}

/// The collectives of an episode.
pub(crate) fn of_run<'a>(s: &'a Scored, run: &Range<usize>) -> &'a [Met] {
    match (s.windows.get(run.start), run.end.checked_sub(1).and_then(|w| s.windows.get(w))) {
        (Some(first), Some(last)) => &s.comm.met[first.met.start..last.met.end],
        _ => &[],
    }
}

/// How late each rank that can be compared with `m` is in a collective; larger is later, and
/// nothing else: minus its duration, its aligned entry, or its compute time.
pub(crate) fn order(s: &Scored, m: usize, basis: Basis, met: &Met) -> Vec<(usize, i64)> {
    let place = |(r, cell): (usize, &Option<super::comm::Cell>)| {
        let cell = cell.as_ref()?;
        let value = match basis {
            Basis::Waits => Some(-cell.duration_ns),
            Basis::Entries => s.bounds[r].map(|_| cell.entry_ns),
            Basis::OwnTime => cell.compute_ns.filter(|_| s.comm.members[r].class == s.comm.members[m].class),
            Basis::PointToPoint => None,
        };
        value.map(|v| (r, v))
    };
    met.cells.iter().enumerate().filter_map(place).collect()
}

/// Over the collectives in which `m` was the last: by how much it came after the median of the
/// others, in how many it was the last, of how many. The lateness is the one from which on half of
/// the lost time comes: where all are alike the median, and in a step of one long and many short
/// phases that of the long one.
fn late_by(s: &Scored, m: usize, basis: Basis, run: &Range<usize>) -> (i64, usize, usize) {
    let met = of_run(s, run);
    let mut late: Vec<f64> = Vec::new();
    for collective in met {
        let order = order(s, m, basis, collective);
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
    late.sort_by(f64::total_cmp);
    let half = late.iter().sum::<f64>() / 2.0;
    let mut sum = 0.0;
    let typical = late.iter().find(|v| {
        sum += **v;
        sum >= half
    });
    (typical.map_or(0, |v| *v as i64), last_in, met.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_delay_far_out_does_not_hide_what_is_always_there() {
        let steady: Vec<f64> = (0..36).map(|i| if i == 7 { -2_000.0 } else { 100.0 + f64::from(i % 5) }).collect();
        assert!(steady.iter().sum::<f64>() > 0.0 && steadiness(&steady) > 5.0, "{}", steadiness(&steady));
        let spikes: Vec<f64> = (0..36).map(|i| if i % 9 == 0 { 2_000.0 } else { 1.0 }).collect();
        assert!(steadiness(&spikes) < 0.0);
        assert_eq!((steadiness(&[]), steadiness(&[-1.0; 9])), (0.0, 0.0));
    }

    #[test]
    fn a_collective_right_after_another_hides_nobody() {
        // A job that reads two values every ten steps: the second makes nobody wait.
        let mets: Vec<_> = (0..14).map(|i| {
            let late = if i % 2 == 0 { 100.0 + f64::from(i) } else { f64::from(i % 3) };
            vec![(0, 0.0), (1, late), (2, f64::from(i % 5))]
        });
        let mets: Vec<Vec<(usize, f64)>> = mets.collect();
        let own = |mets: &[Vec<(usize, f64)>]| Moments::of(&by_member(mets, 3)[1]).consistency(0.0);
        assert!(own(&mets) < Some(3.5) && own(&telling(&mets)) > Some(4.0), "{:?}", own(&telling(&mets)));
        // One that lies far out tells by itself, and one is no habit.
        let once: Vec<_> = (0..14).map(|i| vec![(0, 0.0), (1, if i == 5 { 500.0 } else { 1.0 })]).collect();
        assert_eq!(own(&telling(&once)), None);
    }

    #[test]
    fn the_last_collective_before_each_wait_tells() {
        let met = |late: f64| vec![(0, 0.0), (1, late)];
        let lateness = [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.5, 0.5, 1.5];
        assert_eq!(before_waits(lateness.map(met).to_vec()), [met(4.0), met(4.5)]);
    }

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

    #[test]
    fn who_comes_and_goes_is_steadily_late_in_between() {
        let runs = |excess: &[f64]| steady_runs(&(0..excess.len()), excess, &Rules::default());
        assert_eq!(runs(&[9.0, 8.0, 9.0, 1.0, 5.0, 9.0, 9.0, 9.0, 9.0]), [5..9, 0..3]);
        assert_eq!(runs(&[9.0, 8.0, 9.0, 9.0]), [], "the episode itself");
        assert_eq!(runs(&[9.0, 1.0, 9.0, 9.0, 1.0]), [], "too short");
    }
}
