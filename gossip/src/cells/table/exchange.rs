//! What nodes tell each other of cells: beats, and the reports that either side lacks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::known::MAX_BEATS;
use super::super::wire::Heard;
use super::*;

/// A time as messages say it.
fn ms(time: u32) -> Duration {
    Duration::from_millis(time.into())
}

impl Table {
    /// This node's own report, with the roll it speaks of.
    pub(crate) fn say(&mut self, now: Duration, report: Report, roll: Arc<Roll>) {
        let cell = self.cells.entry(report.cell).or_default();
        if !cell.rolls.iter().any(|known| known.id == roll.id) {
            cell.believed.push(roll.id);
            cell.rolls.push(roll);
        }
        self.keep(now, report, None, None);
    }

    /// What this node said last of its cell.
    pub(crate) fn own_report(&self, cell: CellId, author: u64) -> Option<&Kept> {
        self.cells.get(&cell)?.reports.iter().find(|kept| kept.author == author)
    }

    /// Cards came, and some are lacking still.
    pub(crate) fn ask_again(&mut self, cell: CellId) {
        if let Some(cell) = self.cells.get_mut(&cell) {
            cell.asked = Duration::ZERO;
        }
    }

    /// This node says again that its report stands.
    pub(crate) fn beat(&mut self, now: Duration, cell: CellId, author: u64) {
        let kept =
            self.cells.get_mut(&cell).and_then(|cell| cell.reports.iter_mut().find(|kept| kept.author == author));
        if let Some(kept) = kept {
            kept.beat = kept.beat.saturating_add(1);
            (kept.moved, kept.arrived) = (now, now);
        }
    }

    pub(crate) fn beats(&self) -> Vec<Beat> {
        let told = |cell: &Cell| {
            cell.reports.iter().filter(|kept| cell.is_among(Which::Told, kept)).map(|kept| kept.beat).collect()
        };
        let beat = |(id, cell): (&CellId, &Cell)| Beat {
            cell: *id,
            stamp: cell.stamp(Which::Told),
            saying: cell.saying(Which::Told),
            beats: told(cell),
            silent: cell.silent,
        };
        self.cells.iter().filter(|(_, cell)| cell.is_told(Which::Told)).map(beat).collect()
    }

    /// A number that is another where these reports of the cells that are heard say something else.
    pub(crate) fn stamp(&self, which: Which) -> u64 {
        self.cells
            .values()
            .filter(|cell| cell.is_told(which) && !cell.silent)
            .fold(0, |stamp, cell| mix(stamp ^ cell.saying(which)))
    }

    /// A delegate has all that this node has with its rolls.
    pub(crate) fn same(&mut self, now: Duration, delegate: u64) {
        let heard = self.cells.iter().filter(|(_, cell)| !cell.silent);
        let cells: Vec<CellId> = heard.map(|(id, _)| *id).collect();
        for id in cells {
            self.vouch(now, id, delegate, |cell, kept| cell.is_among(Which::WithRoll, kept));
        }
        self.judge_shaken(now);
    }

    /// A delegate has these reports of a cell, and their rolls: it hears the cell where it has any.
    pub(super) fn vouch(&mut self, now: Duration, id: CellId, delegate: u64, has: impl Fn(&Cell, &Kept) -> bool) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let mut news = false;
        let has: Vec<bool> = cell.reports.iter().map(|kept| has(cell, kept)).collect();
        if !cell.silent && has.contains(&true) {
            cell.hear(now, self.role, self.round);
        }
        for (kept, _) in cell.reports.iter_mut().zip(has).filter(|(_, has)| *has) {
            if kept.vouchers.len() < VOUCHERS && !kept.vouchers.contains(&delegate) {
                kept.vouchers.push(delegate);
            }
            if kept.vouchers.len() >= VOUCHERS && !cell.believed.contains(&kept.report.roll) {
                cell.believed.push(kept.report.roll);
                news = true;
            }
        }
        if news {
            self.judge(id, now);
        }
    }

    /// Takes in what somebody knows in short. Returns what is known here of the cells that it knows
    /// otherwise.
    pub(crate) fn hear(&mut self, now: Duration, beats: &[Beat], delegate: Option<u64>) -> Vec<Known> {
        let mut differ = Vec::new();
        let theirs: HashMap<CellId, &Beat> = beats.iter().take(MAX_CELLS).map(|beat| (beat.cell, beat)).collect();
        // Of silent cells delegates tell each other nothing.
        for beat in theirs.values().filter(|beat| beat.cell.is_sound()) {
            if delegate.is_none() && beat.silent && self.cells.get(&beat.cell).is_none_or(|cell| cell.silent) {
                continue;
            }
            let Some(cell) = self.cells.get_mut(&beat.cell) else {
                differ.push(Known { cell: beat.cell, reports: Vec::new() });
                continue;
            };
            if delegate.is_some() && beat.silent {
                self.version += u64::from(cell.set_silent(true, now));
                continue;
            }
            // A silent cell is heard again by its beats, which are those of reports with the same numbers.
            let is_known = match delegate {
                Some(_) if !cell.silent => cell.saying(Which::WithRoll) == beat.saying,
                _ => cell.stamp(Which::WithRoll) == beat.stamp,
            };
            if !is_known {
                differ.push(cell.known(beat.cell));
                continue;
            }
            let among: Vec<usize> =
                (0..cell.reports.len()).filter(|at| cell.is_among(Which::WithRoll, &cell.reports[*at])).collect();
            let mut goes_on = false;
            for (which, beat) in among.into_iter().zip(&beat.beats) {
                goes_on |= cell.goes_on(which, *beat, now, now, self.role, self.round);
            }
            if let Some(delegate) = delegate {
                // One delegate may find out before the other: what that one has is as old.
                if cell.silent && goes_on {
                    cell.set_silent(false, now);
                    self.version += 1;
                }
                self.vouch(now, beat.cell, delegate, |cell, kept| cell.is_among(Which::WithRoll, kept));
            }
        }
        self.judge_shaken(now);
        let is_unheard =
            |(id, cell): &(&CellId, &Cell)| !theirs.contains_key(id) && cell.is_told(Which::All) && !cell.silent;
        let unheard = self.cells.iter().filter(is_unheard);
        differ.extend(unheard.map(|(id, cell)| cell.known(*id)));
        differ.truncate(MAX_CELLS);
        differ
    }

    /// What somebody lacks who knows so much, and of which cells it knows what is not known here.
    pub(crate) fn news_for(&self, now: Duration, theirs: &[Known]) -> (Vec<News>, Vec<Known>) {
        let (mut news, mut ask, mut bytes) = (Vec::new(), Vec::new(), 0);
        for known in theirs.iter().take(MAX_CELLS) {
            let here = self.cells.get(&known.cell).filter(|cell| !cell.old);
            let Some(cell) = here.filter(|cell| cell.is_told(Which::Told)) else {
                ask.push(here.map_or(Known { cell: known.cell, reports: Vec::new() }, |cell| cell.known(known.cell)));
                continue;
            };
            let is_older = |kept: &&Kept| {
                !known.reports.iter().any(|(author, generation, serial)| {
                    *author == kept.author && (*generation, *serial) >= kept.report.age()
                })
            };
            let told = || cell.reports.iter().filter(|kept| cell.is_among(Which::Told, kept));
            let mut reports: Vec<Report> = Vec::new();
            let mut left_out = false;
            for kept in told().filter(is_older) {
                let more = kept.report.said().len() + kept.report.seal.len();
                // One always fits.
                if bytes > 0 && bytes + more > FILL_BYTES {
                    left_out = true;
                    continue;
                }
                bytes += more;
                reports.push((*kept.report).clone());
            }
            if left_out && reports.is_empty() {
                continue;
            }
            let lacks = known.reports.iter().any(|(author, generation, serial)| {
                !cell.reports.iter().any(|kept| kept.author == *author && kept.report.age() >= (*generation, *serial))
            });
            if lacks {
                ask.push(cell.known(known.cell));
            }
            let ms = |since: Duration| u32::try_from(now.saturating_sub(since).as_millis()).unwrap_or(u32::MAX);
            let heard = |kept: &Kept| Heard {
                author: kept.author,
                age: kept.report.age(),
                beat: kept.beat,
                idle_ms: ms(kept.moved),
                steady_ms: ms(kept.steady.began()),
            };
            let heard = told().map(heard).collect();
            news.push(News { cell: known.cell, silent: cell.silent, heard, reports });
        }
        (news, ask)
    }

    /// A delegate of this member's says something.
    pub(crate) fn hear_delegate(&mut self, delegate: u64, now: Duration) {
        self.voices.hear(delegate, now, self.round);
    }

    /// Cells of which this member is to ask a delegate that it has heard for long, and that has all it
    /// knows: how it hears authors that others say had a gap.
    pub(crate) fn unsure(&self, delegate: u64, now: Duration) -> Vec<Known> {
        let is_steady = |since: Duration| now >= since + self.steady_after();
        if !self.voices.since(delegate).is_some_and(is_steady) {
            return Vec::new();
        }
        let is_sure = |kept: &Kept| is_steady(kept.steady.began()) || kept.steady.is_claimed_by(delegate);
        let unsure = self.cells.iter().filter(|(_, cell)| !cell.silent && !cell.reports.iter().all(is_sure));
        unsure.map(|(id, cell)| cell.known(*id)).collect()
    }

    /// Takes in reports. Of a delegate of this member's: it then keeps those that the delegate has.
    pub(crate) fn take(&mut self, now: Duration, news: Vec<News>, delegate: Option<u64>) {
        for news in news.into_iter().take(MAX_CELLS) {
            let is_new = !self.cells.contains_key(&news.cell);
            let mut sent = Vec::new();
            for report in news.reports.into_iter().take(MAX_KEPT).filter(|report| report.cell == news.cell) {
                sent.push((report.author_hash(), report.age()));
                let heard = news.heard.iter().find(|heard| heard.author == report.author_hash());
                self.keep(now, report, heard, delegate);
            }
            let (round, silent_after) = (self.round, self.silent_after);
            let Some(cell) = self.cells.get_mut(&news.cell) else { continue };
            let Some(delegate) = delegate else {
                // Beats by themselves are compared where both know the same reports: one report more would keep all
                // others from being heard. What is said of a cell that is silent there says nothing new.
                for heard in news.heard.iter().take(MAX_KEPT).filter(|_| !news.silent) {
                    let at = now.saturating_sub(ms(heard.idle_ms));
                    let here = cell.reports.iter().position(|kept| {
                        (kept.author, kept.report.age()) == (heard.author, heard.age)
                            && cell.is_among(Which::WithRoll, kept)
                    });
                    if let Some(here) = here.filter(|_| now.saturating_sub(at) < silent_after)
                        && !sent.contains(&(heard.author, heard.age))
                    {
                        cell.goes_on(here, heard.beat, at, now, self.role, round);
                    }
                }
                continue;
            };
            let before = cell.reports.len();
            let changed = cell.set_silent(news.silent, now);
            cell.reports.retain(|kept| news.heard.iter().any(|heard| heard.author == kept.author));
            if changed || before != cell.reports.len() {
                self.version += 1;
            }
            // The delegate hears who made these, be it that it has no news of them.
            if !cell.silent && !cell.reports.is_empty() {
                cell.hear(now, Role::Member, round);
            }
            // A delegate that was out of reach itself has heard others than this node; but of a cell that is
            // new here this node has heard nobody.
            let voice = self.voices.since(delegate).filter(|_| !is_new).unwrap_or_default();
            for heard in &news.heard {
                let since = now.saturating_sub(ms(heard.steady_ms)).max(voice);
                let its =
                    cell.reports.iter_mut().find(|kept| (kept.author, kept.report.age()) == (heard.author, heard.age));
                if let Some(kept) = its {
                    kept.steady.claim(delegate, since, &self.voices);
                }
            }
            self.vouch(now, news.cell, delegate, |_, kept| sent.contains(&(kept.author, kept.report.age())));
            self.judge(news.cell, now);
        }
        self.judge_shaken(now);
    }

    /// In which lives a name reports, each for which cell.
    fn authored(&self, author: u64) -> impl Iterator<Item = (u64, CellId)> {
        self.cells.iter().filter_map(move |(id, cell)| {
            let its = cell.reports.iter().find(|kept| kept.author == author)?;
            Some((its.report.generation, *id))
        })
    }

    /// Keeps a report, unless there is a newer one of its author; with what its sender has heard of it.
    pub(super) fn keep(&mut self, now: Duration, report: Report, heard: Option<&Heard>, delegate: Option<u64>) {
        let (beat, idle) = heard.map_or((0, Duration::ZERO), |heard| (heard.beat.min(MAX_BEATS), ms(heard.idle_ms)));
        let (id, author) = (report.cell, report.author_hash());
        let known = self.cells.get(&id).and_then(|cell| cell.reports.iter().find(|kept| kept.author == author));
        if known.is_some_and(|kept| kept.report.age() >= report.age()) {
            return;
        }
        let asks = known.map_or(0, |kept| kept.asks);
        let moved = now.saturating_sub(idle);
        // A member's delegate says it with the report.
        let steady = match known {
            Some(kept) if delegate.is_none() && !kept.had_gap(now, self.round) => kept.steady.clone(),
            _ => Steady::since(now),
        };
        if !self.cells.contains_key(&id) && self.cells.len() >= MAX_CELLS {
            self.refused += 1;
            return;
        }
        // Each cell that a node comes to is a further life of its own.
        let mut others: Vec<(u64, CellId)> = self.authored(author).filter(|(_, other)| *other != id).collect();
        others.sort_unstable();
        let is_other = others.iter().any(|(generation, _)| *generation == report.generation);
        let is_oldest = others.first().is_some_and(|(generation, _)| *generation > report.generation);
        if is_other || (others.len() >= AUTHORED && is_oldest) {
            self.refused += 1;
            return;
        }
        // Who has dropped a report would get it back from whoever has not yet.
        if idle >= self.silent_after && self.role == Role::Delegate {
            return;
        }
        if !report.is_good(&self.sealing) {
            return;
        }
        if others.len() >= AUTHORED {
            let left = others[0].1;
            if let Some(cell) = self.cells.get_mut(&left) {
                cell.reports.retain(|kept| kept.author != author);
            }
            self.judge(left, now);
        }
        let report = self.pool.report(report.id(), report);
        let saying = report.saying();
        let is_new = self.cells.get(&id).is_none_or(|cell| cell.old);
        let cell = self.cells.entry(id).or_default();
        if is_new {
            cell.since = now;
        }
        cell.reports.retain(|kept| kept.author != author);
        let vouchers = delegate.into_iter().collect();
        cell.reports.push(Kept {
            report,
            saying,
            author,
            beat,
            first: (now, beat),
            moved,
            arrived: now,
            steady,
            excused: Duration::ZERO,
            goes_on: false,
            vouchers,
            asks,
        });
        cell.hear(moved, self.role, self.round);
        if cell.reports.len() > MAX_KEPT {
            // Those that do not count go first, then who is least to be a delegate.
            let rank = |kept: &Kept| (cell.counts(kept, self.role), weight(id, kept.author));
            if let Some(last) = cell.reports.iter().map(|kept| (rank(kept), kept.author)).min() {
                cell.reports.retain(|kept| kept.author != last.1);
            }
        }
        cell.reports.sort_by_key(|kept| kept.author);
        self.judge(id, now);
    }
}
