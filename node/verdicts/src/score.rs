//! Scores the ranks of one communicator, window by window: lateness, wait, compute time.
//!
//! The figures of a window (`tally.rs`) are sums and merge by addition. Who is flagged by them is
//! said in `rating.rs`, what follows from the flags over many windows in `suspects.rs`.

use std::ops::Range;

use observed::{Rules, places::Places};
use stats::Middle;

use super::comm::{Cell, Comm, Member, Met};
use super::rating::{Flags, Frame, Score, rate};
use super::tally::{Tally, Waits};
use super::windows::{Window, WindowKind, cut};

/// A communicator with its windows scored.
pub(crate) struct Scored {
    pub(crate) comm: Comm,
    pub(crate) waits: Waits,
    pub(crate) kind: WindowKind,
    pub(crate) windows: Vec<Window>,
    /// By window, then member.
    pub(crate) tallies: Vec<Vec<Tally>>,
    /// Who is flagged, by window, then member.
    pub(crate) flags: Vec<Vec<Flags>>,
    /// The same windows put together into [`Rules::FEWEST_WINDOWS`]: which, and who costs enough in
    /// each, by member. Empty where there are not twice as many.
    pub(crate) coarse: Vec<(Range<usize>, Vec<Flags>)>,
    /// For each member, how far its aligned lateness may be wrong; none where clocks are not known.
    pub(crate) bounds: Vec<Option<f64>>,
}

#[cfg(test)]
impl Scored {
    /// A communicator without windows.
    pub(crate) fn test_of(comm: Comm, waits: Waits) -> Self {
        let kind = WindowKind::Collectives { each: 1 };
        let (windows, tallies, flags, coarse, bounds) = Default::default();
        Self { comm, waits, kind, windows, tallies, flags, coarse, bounds }
    }
}

/// Score a communicator; gives it back where it holds too few collectives.
pub(crate) fn score(mut comm: Comm, rules: &Rules) -> Result<Scored, Box<Comm>> {
    let Some((kind, windows)) = cut(&comm, rules) else {
        return Err(Box::new(comm));
    };
    let waits = waits_of(&mut comm);
    let bounds = bounds(&comm.members);
    let tallies: Vec<Vec<Tally>> = windows
        .iter()
        .map(|w| {
            let mut tally = vec![Tally::default(); comm.members.len()];
            comm.met[w.met.clone()].iter().for_each(|met| add(met, &comm.members, &bounds, &mut tally));
            tally
        })
        .collect();
    let flags = |(w, tally): (&Window, &Vec<Tally>)| {
        let scores = rate(tally, &frame(&comm, w.met.clone(), w.wall_ns, waits, &bounds), rules);
        scores.iter().map(Score::flags).collect()
    };
    let flags = windows.iter().zip(&tallies).map(flags).collect();
    let mut scored = Scored { comm, waits, kind, windows, tallies, flags, coarse: Vec::new(), bounds };
    let count = scored.windows.len();
    if count >= 2 * Rules::FEWEST_WINDOWS {
        let ranges = (0..Rules::FEWEST_WINDOWS)
            .map(|i| i * count / Rules::FEWEST_WINDOWS..(i + 1) * count / Rules::FEWEST_WINDOWS);
        let costs =
            |range: Range<usize>| scored.pooled(range, rules).1.iter().map(|score| score.costs(rules)).collect();
        scored.coarse = ranges.map(|range| (range.clone(), costs(range))).collect();
    }
    Ok(scored)
}

/// Whether durations hold the wait. Where synchronise calls that were taken for the wait do not fit
/// together, the calls' own durations are put back.
pub(crate) fn waits_of(comm: &mut Comm) -> Waits {
    let waits = waits(comm);
    if !comm.lifted || waits != Waits::Inconsistent {
        return waits;
    }
    // The synchronise calls wait for something else: only the entries are left.
    comm.lifted = false;
    comm.tier = 0;
    let cells = comm.met.iter_mut().flat_map(|met| &mut met.cells).flatten();
    cells.for_each(|cell| cell.duration_ns = cell.called_ns);
    Waits::Enqueued
}

fn frame<'a>(comm: &'a Comm, met: Range<usize>, wall_ns: f64, waits: Waits, bounds: &'a [Option<f64>]) -> Frame<'a> {
    let (collectives, stands_for) = (met.len(), comm.stands_for(met));
    Frame {
        collectives,
        stands_for,
        wall_ns,
        waits,
        bounds,
        members: &comm.members,
        reconstructed: comm.reconstructed,
        all_z: false,
    }
}

impl Scored {
    /// The figures over a run of windows together; z only of ranks that stand out.
    pub(crate) fn pooled(&self, windows: Range<usize>, rules: &Rules) -> (Vec<Tally>, Vec<Score>) {
        self.pool(windows, rules, false)
    }

    /// The windows of the time between two instants.
    pub(crate) fn between(&self, since_ns: i64, until_ns: i64) -> Range<usize> {
        let from = self.windows.partition_point(|w| w.end_ns < since_ns);
        from..self.windows.partition_point(|w| w.start_ns <= until_ns).max(from)
    }

    /// The figures over all windows together, with every z.
    pub(crate) fn over_all_windows(&self, rules: &Rules) -> (Vec<Tally>, Vec<Score>) {
        self.pool(0..self.windows.len(), rules, true)
    }

    fn pool(&self, windows: Range<usize>, rules: &Rules, all_z: bool) -> (Vec<Tally>, Vec<Score>) {
        let mut sum = vec![Tally::default(); self.comm.members.len()];
        let mut wall_ns = 0.0;
        let mut met = 0..0;
        for w in windows {
            sum.iter_mut().zip(&self.tallies[w]).for_each(|(all, one)| all.merge(one));
            let of_window = &self.windows[w].met;
            // Windows follow each other without gaps.
            met = if met.is_empty() { of_window.clone() } else { met.start..of_window.end };
            wall_ns += self.windows[w].wall_ns;
        }
        let frame = Frame { all_z, ..frame(&self.comm, met, wall_ns, self.waits, &self.bounds) };
        let scores = rate(&sum, &frame, rules);
        (sum, scores)
    }
}

/// Do the durations hold the wait? In a coupling collective nobody can leave before the last one
/// has entered; where some do (by more than the clock bounds), the call does not wait.
fn waits(comm: &Comm) -> Waits {
    let (mut telling, mut broken) = (0u32, 0u32);
    for met in &comm.met {
        let present = || met.cells.iter().zip(&comm.members).filter_map(|(c, m)| c.as_ref().map(|c| (c, m)));
        let Some((last, late)) = present().filter(|(_, m)| m.clock.is_some()).max_by_key(|(c, _)| c.entry_ns) else {
            continue;
        };
        let mut is_telling = false;
        let mut breaks = false;
        for (cell, member) in present() {
            let ahead = last.entry_ns.saturating_sub(cell.entry_ns);
            // Most have waited for as long as they were ahead: their clocks' bounds do not matter.
            if is_telling && cell.duration_ns >= ahead {
                continue;
            }
            let Some(bound) = member.bound_to(late) else {
                continue;
            };
            if ahead > bound {
                is_telling = true;
                breaks |= cell.duration_ns.saturating_add(bound) < ahead;
            }
            if breaks {
                break;
            }
        }
        telling += u32::from(is_telling);
        broken += u32::from(breaks);
    }
    let lie = f64::from(broken) > Rules::WAITS_BROKEN * f64::from(telling);
    match (comm.tier, telling) {
        (1.., _) if telling >= 3 && lie => Waits::Inconsistent,
        (1.., _) => Waits::Seen,
        (0, 0..3) => Waits::Assumed,
        (0, _) if lie => Waits::Enqueued,
        (0, _) => Waits::Seen,
    }
}

/// How far each member's lateness against the others may be wrong: the widest pairwise bound to any
/// member whose clock is known.
fn bounds(members: &[Member]) -> Vec<Option<f64>> {
    // The widest clock, and the widest of another node: the ranks of one share theirs.
    let mut widest: [Option<&Member>; 2] = [None; 2];
    for m in members.iter().filter(|m| m.clock.is_some()) {
        let wider = |known: Option<&Member>| known.is_none_or(|known| bound_ns(m) > bound_ns(known));
        match widest {
            [Some(first), _] if first.node == m.node => {}
            [first, _] if wider(first) => widest = [Some(m), first],
            [_, second] if wider(second) => widest[1] = Some(m),
            _ => {}
        }
    }
    let widest_to = |m: &Member| widest.iter().flatten().filter_map(|other| m.bound_to(other)).max();
    members.iter().map(|m| m.clock.and_then(|_| widest_to(m)).map(|bound| bound as f64)).collect()
}

fn bound_ns(member: &Member) -> Option<i64> {
    member.clock.map(|clock| clock.bound_ns)
}

fn add(met: &Met, members: &[Member], bounds: &[Option<f64>], tally: &mut [Tally]) {
    // Of members, who are mostly of one class: once through all cells to compare them, and once more to
    // add them up.
    let cells = || met.cells.iter().enumerate().filter_map(|(r, cell)| Some((r, cell.as_ref()?)));
    // Entries relative to this collective: absolute times would lose their low digits in a double.
    let entry = |r: usize, cell: &Cell| bounds[r].map(|_| (cell.entry_ns - met.at_ns) as f64);
    let (mut durations, mut entries) = (Vec::with_capacity(tally.len()), Vec::with_capacity(tally.len()));
    // Compute times are compared among those that do the same work.
    let mut places: Places<usize> = Places::default();
    let mut computed: Vec<Vec<f64>> = Vec::new();
    for (r, cell) in cells() {
        durations.push(cell.duration_ns as f64);
        entries.extend(entry(r, cell));
        let Some(compute_ns) = cell.compute_ns else { continue };
        places.restart();
        let place = places.of(members[r].class);
        if place == computed.len() {
            computed.push(Vec::with_capacity(if place == 0 { tally.len() } else { 0 }));
        }
        computed[place].push(compute_ns as f64);
    }
    let least = |all: &[f64]| all.iter().copied().fold(f64::INFINITY, f64::min);
    let (shortest, first) = (least(&durations), least(&entries));
    let (waited, entered) = (Middle::of(durations), Middle::of(entries));
    let computed: Vec<Option<Middle>> = computed.into_iter().map(Middle::of).collect();
    let usual = |middle: Option<Middle>, own: f64| middle.and_then(|middle| middle.without(own));
    for (r, cell) in cells() {
        let (duration, tally) = (cell.duration_ns as f64, &mut tally[r]);
        tally.duration.add(duration);
        tally.wait.add(duration - shortest);
        if let Some(usual) = usual(waited, duration) {
            tally.less_wait.add(usual - duration);
        }
        if let Some(unsure) = cell.unsure {
            tally.compute_less.add(unsure.less_ns as f64);
            tally.compute_more.add(unsure.more_ns as f64);
        }
        if let Some(entry) = entry(r, cell) {
            tally.lateness.add(entry - first);
            if let Some(usual) = usual(entered, entry) {
                tally.later.add(entry - usual);
            }
        }
        if let Some(compute_ns) = cell.compute_ns {
            let compute = compute_ns as f64;
            tally.compute.add(compute);
            places.restart();
            if let Some(usual) = usual(computed[places.of(members[r].class)], compute) {
                tally.more_compute.add(compute - usual);
            }
        }
    }
}
