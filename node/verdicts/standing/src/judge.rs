//! Judges windows by the digests on a board.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::board::{Axis, Board};
use super::ended::{self, Ended};
use super::network;
use super::page::{Meetings, Page, RECENT_NS};
use super::settle::settle;
use super::{LONG_LOOKBACK, LOOKBACK, NODE_WINDOWS, RARE_LOOKBACK, Standing};
use digest::{Digest, WINDOW_NS, end_of, window_of, without_progress};
use observed::{Coupling, Gone, Input, NodeCoverage, Rules};
use verdicts::{Culprit, RankWindows, Report, Verdict, analyse, is_slower, rank_windows};

/// A node of which a digest of so many last windows has come counts as one with ranks.
const RECENT: i64 = RECENT_NS / WINDOW_NS;
/// Blocks in the look back up to which every window is judged; beyond, every second, third, …
const BLOCKS_A_WINDOW: usize = 60_000;
/// At least every so many.
const MOST_STRIDE: i64 = 8;
/// Where a window names nobody, every so many it is looked back further,
const FAR_STRIDE: i64 = 8;
/// Windows after one whose digests may hold what ended in it.
const SETTLED: i64 = 2;
/// Raw verdicts kept.
const RAW: i64 = 12;

/// Judges window after window.
#[derive(Debug, Default)]
pub struct Judge {
    /// Verdicts by window, each by itself.
    raw: BTreeMap<i64, Arc<Report>>,
    /// The last window from which it was looked back further, and what that gave.
    far: Option<(i64, Option<Arc<Report>>)>,
    judged: Option<i64>,
    /// The reference's id and era by which these windows were counted.
    axis: Option<(u16, u64)>,
    /// The last window whose ranks were measured.
    measured: Option<i64>,
}

impl Judge {
    /// Whether [`Self::judge`] may have anything to do: a window closed since the last time, or
    /// windows have other numbers now. Unlike judging it costs little.
    #[must_use]
    pub fn is_due(&self, board: &Board, now_ns: i64) -> bool {
        let (axis, renumbered) = self.axis_now(board, now_ns);
        renumbered || self.closed(board, now_ns, axis).is_some()
    }

    /// The clock by which windows are counted, and whether they have other numbers by it than those
    /// that were judged.
    fn axis_now(&self, board: &Board, now_ns: i64) -> (Axis, bool) {
        let axis = board.axis(board.aligned_to(now_ns).unwrap_or(0), now_ns);
        let ahead = self.judged.is_some_and(|judged| judged > window_of(axis.now_ns) + NODE_WINDOWS);
        (axis, ahead || self.axis != Some((axis.reference, axis.era)))
    }

    /// The latest window that closed, where that was since the last time.
    fn closed(&self, board: &Board, now_ns: i64, axis: Axis) -> Option<i64> {
        board.closed(now_ns, axis).filter(|window| self.judged.is_none_or(|judged| *window > judged))
    }

    /// Judge the windows of a board that closed since the last time, at `now_ns` of this host's
    /// steady clock; the verdict of the latest, when there is one.
    pub fn judge(&mut self, board: &Board, now_ns: i64) -> Option<Standing> {
        let (axis, renumbered) = self.axis_now(board, now_ns);
        if renumbered {
            *self = Self { axis: Some((axis.reference, axis.era)), ..Self::default() };
        }
        let closed = self.closed(board, now_ns, axis)?;
        let view = View { board, reference: axis.reference };
        let back = view.lookback(closed);
        let stride = view.stride(closed, back);
        // The same windows at every agent.
        let window = closed - closed.rem_euclid(stride);
        if self.judged.is_some_and(|judged| window <= judged) {
            return None;
        }
        // The verdict of a window looks at the raw ones before it. What was missed (first start, a
        // pause) is made up for.
        let first = (window - 4 * stride).max(self.judged.map_or(i64::MIN, |j| j + 1));
        for earlier in (first..=window).filter(|w| w.rem_euclid(stride) == 0) {
            let back = if earlier == closed { back } else { view.lookback(earlier) };
            let report = self.look(&view, earlier, back);
            self.raw.insert(earlier, report);
        }
        self.raw = self.raw.split_off(&(window - RAW * stride));
        self.judged = Some(window);
        let gone = view.gone(window);
        let mut report = settle(&self.raw, window, stride, &gone);
        // What settles may be the verdict of a window before, in which a host was heard still.
        let (answered, missing) = view.heard(window);
        if report.coverage.answered != answered || report.coverage.missing != missing {
            let coverage = &mut Arc::make_mut(&mut report).coverage;
            (coverage.asked, coverage.answered) = (answered + missing.len(), answered);
            coverage.missing = missing;
        }
        let (mut heard, mut silent) = (0, Vec::new());
        for (node, last) in board.expected(now_ns, axis) {
            if last.is_some_and(|last| last >= window) {
                heard += 1;
            } else {
                silent.push(node.to_owned());
            }
        }
        let ahead_ns: BTreeMap<&str, i64> = board.pages().map(|(name, page)| (name, page.wall_ahead_ns())).collect();
        let reference = board.reference_page(axis.reference);
        let wall_ahead_ns = reference.map_or(0, |(_, page)| page.wall_ahead_ns());
        if ahead_ns.values().any(|ahead_ns| *ahead_ns != 0) {
            Arc::make_mut(&mut report).move_times(wall_ahead_ns, &ahead_ns);
        }
        Some(Standing {
            window,
            reference: reference.map(|(name, _)| name.to_owned()),
            report,
            heard,
            silent,
            wall_ahead_ns,
            age_ns: axis.now_ns.saturating_sub(end_of(window)),
        })
    }
}

impl Judge {
    /// The verdict of one window, whatever other windows say. Where a short look back names nobody,
    /// the verdict of a longer one counts: a rank that is late by little, or in steps of seconds,
    /// does not stand out in ten of them. So does that the whole job became slower. A longer look costs as much more as it is longer, so that
    /// it is taken rarely, and only of a job of which that is cheap.
    fn look(&mut self, view: &View<'_>, window: i64, back: i64) -> Arc<Report> {
        let report = Arc::new(view.raw(window, back));
        if back != LOOKBACK || !matches!(report.verdict, Verdict::None | Verdict::Unknown { .. }) {
            return report;
        }
        let from = window - window.rem_euclid(FAR_STRIDE);
        if self.far.as_ref().is_none_or(|(of, _)| *of != from) {
            let cheap = view.blocks(from, LONG_LOOKBACK) <= BLOCKS_A_WINDOW;
            self.far = Some((from, cheap.then(|| Arc::new(view.raw(from, LONG_LOOKBACK)))));
        }
        let Some(far) = self.far.as_ref().and_then(|(_, far)| far.as_ref()) else { return report };
        let gone = view.gone(window);
        let lives = |late: &&Culprit| !gone.contains(&(late.node.as_str(), late.pid));
        if far.verdict.named().into_iter().any(|late| lives(&late)) {
            return Arc::clone(far);
        }
        match far.evidence.notes.iter().find(|note| is_slower(note)) {
            Some(note) if !report.evidence.notes.iter().any(|note| is_slower(note)) => {
                let mut report = Report::clone(&report);
                report.evidence.notes.push(note.clone());
                Arc::new(report)
            }
            _ => report,
        }
    }

    /// What ranks did in the windows since the last time, up to shortly before the one that was
    /// judged last: a collective may be in the digests of windows after the one in which it ended.
    /// None where there is no such window.
    pub fn rank_windows(&mut self, board: &Board) -> Option<RankWindows> {
        let (judged, (reference, _)) = self.judged.zip(self.axis)?;
        let until = judged - SETTLED;
        let first = self.measured.map_or(judged - LONG_LOOKBACK, |measured| measured + 1).max(judged - LONG_LOOKBACK);
        if first > until {
            return None;
        }
        self.measured = Some(until);
        let view = View { board, reference };
        let (mut input, _) = view.input(judged, judged - first + 1 + SETTLED);
        // A collective counts where it ended, however long it took.
        input.since_ns = end_of(first - LONG_LOOKBACK);
        let mut found = rank_windows(input, WINDOW_NS);
        found.windows.retain(|window, _| (first..=until).contains(window));
        Some(found)
    }
}

/// A board as seen by one reference's clock.
struct View<'a> {
    board: &'a Board,
    reference: u16,
}

impl<'a> View<'a> {
    fn pages(&self) -> impl Iterator<Item = (&'a str, &'a Page)> + use<'a> {
        self.board.pages()
    }

    /// Every how many windows one is judged: each costs time with the ranks and collectives that it
    /// looks at.
    fn stride(&self, window: i64, lookback: i64) -> i64 {
        let blocks = self.blocks(window, lookback);
        (1 + i64::try_from(blocks / BLOCKS_A_WINDOW).unwrap_or(i64::MAX)).min(MOST_STRIDE)
    }

    /// Runs of calls in the digests since so many windows before one.
    fn blocks(&self, window: i64, lookback: i64) -> usize {
        let windows = window - lookback + 1..=i64::MAX;
        let lately = self.pages().flat_map(|(_, page)| page.received_within(windows.clone(), self.reference));
        lately.map(|received| received.blocks).sum()
    }

    /// Windows that the verdict of one looks back on: more where the job's steps are long, and still
    /// more where they are up to a minute. Its largest communicators tell, for the small ones of a
    /// step may meet often in each: it is enough that one of their ranks met often.
    fn lookback(&self, window: i64) -> i64 {
        if self.met(window, LOOKBACK, Rules::FEW_COLLECTIVES) {
            return LOOKBACK;
        }
        let rare = self.met(window, LONG_LOOKBACK, 1) && !self.met(window, LONG_LOOKBACK, Rules::FEW_COLLECTIVES);
        if rare { RARE_LOOKBACK } else { LONG_LOOKBACK }
    }

    /// Whether a rank met so often in one of the largest communicators, in so many windows up to one.
    fn met(&self, window: i64, lookback: i64, often: usize) -> bool {
        let windows = window - lookback + 1..=window;
        let received = |page: &'a Page| page.received_within(windows.clone(), self.reference);
        let all = self.pages().flat_map(|(_, page)| received(page)).filter_map(|received| received.most_ranks);
        let Some(largest) = all.max() else { return false };
        self.pages().any(|(_, page)| {
            let mut meetings = Meetings::of(largest);
            received(page).any(|received| meetings.add(received) >= often)
        })
    }

    /// The verdict of one window by the digests of so many up to it.
    fn raw(&self, window: i64, lookback: i64) -> Report {
        let (input, ended) = self.input(window, lookback);
        // Over a minute as from rows: a second holds less noise.
        let rules = if lookback == LOOKBACK { Rules::with_windows(WINDOW_NS) } else { Rules::default() };
        let rules = Rules { hang_ns: self.hang_ns(window), ..rules };
        let mut report = analyse(&input, &rules);
        let span = window_of(input.since_ns)..=window;
        let digests = self
            .pages()
            .flat_map(|(node, page)| page.within(span.clone(), self.reference).map(move |digest| (node, digest)));
        let resent = network::resent(digests, &input);
        if let Some(verdict) = network::verdict(&report, &input, &resent, &rules) {
            report.verdict = verdict;
        }
        let unknown = matches!(&report.verdict, Verdict::Unknown { .. });
        if unknown && input.sampled.is_empty() && report.point_to_point.is_none() {
            // Of ranks that were recorded in slices nothing is in digests but that they have ended.
            let is_empty = input.totals.is_empty() && input.progress.is_empty() && input.in_calls.is_empty();
            let is_over = is_empty && input.ranks.is_empty() && report.coverage.missing.is_empty();
            let ended = match ended.ranks {
                0 if is_over && self.board.left_slices() => self.gone(window).len(),
                ranks => ranks,
            };
            let why = match ended {
                0 if !input.totals.is_empty() => {
                    "no call in which all ranks meet was recorded in the last minute, and where ranks spend their time is not known"
                        .to_owned()
                }
                0 => "no rank communicated in the last minute, or none that is recorded: is the job running, and does capture \
                      work where it does (rankmesh nodes)?"
                    .to_owned(),
                ranks => ended::why(ranks),
            };
            report.verdict = Verdict::Unknown { why };
        } else if ended.ranks > 0 {
            report.evidence.notes.push(format!("{} ranks of another job have ended: they are not judged", ended.ranks));
        }
        report
    }

    /// Processes whose hosts say in a window that they have ended: node and process.
    fn gone(&self, window: i64) -> BTreeSet<(&'a str, i64)> {
        let last = |page: &'a Page| page.within(window - LOOKBACK + 1..=window, self.reference).last();
        let gone = |digest: &'a Digest| digest.gone.iter().map(|gone| i64::from(gone.pid));
        self.pages()
            .flat_map(|(name, page)| last(page).into_iter().flat_map(gone).map(move |pid| (name, pid)))
            .collect()
    }

    /// The input of a window's analysis, without the communicators whose ranks have all ended, and
    /// what was left out so.
    fn input(&self, window: i64, lookback: i64) -> (Input, Ended) {
        let digests: Vec<(&str, &Page, Vec<&Digest>)> = self
            .pages()
            .map(|(name, page)| (name, page, page.within(window - lookback + 1..=window, self.reference).collect()))
            .collect();
        let nodes: Vec<digest::NodeDigests<'_>> =
            digests.iter().map(|(node, _, digests)| digest::NodeDigests { node, digests }).collect();
        let mut input = without_progress(&nodes, self.reference);
        if lookback > LONG_LOOKBACK {
            // Of the last minutes, not what another job left behind.
            let lives = |page: &'a Page| page.within(window - LONG_LOOKBACK + 1..=window, self.reference);
            let lives: BTreeSet<(&str, i64)> = self
                .pages()
                .flat_map(|(node, page)| {
                    lives(page).flat_map(move |of| of.processes.iter().map(move |p| (node, p.pid.into())))
                })
                .collect();
            input.sampled.retain(|of| lives.contains(&(&*of.node, of.pid)));
            input.totals.retain(|of| lives.contains(&(&*of.node, of.pid)));
        }
        input.until_ns = end_of(window);
        input.since_ns = end_of(window - lookback);
        input.coverage = self.coverage(window, &digests);
        for (node, page, digests) in &digests {
            let ended = |pid: i64, at_ns: i64, how: &str| Gone { node: (*node).into(), pid, at_ns, how: how.into() };
            if let Some(last) = digests.last() {
                input.gone.extend(last.gone.iter().map(|g| ended(g.pid.into(), end_of(g.window), "")));
            }
            if page.dead {
                let newest = page.newest(self.reference).unwrap_or(i64::MIN);
                let pids: BTreeSet<u32> = page.lanes().lanes().map(|((pid, ..), _)| *pid).collect();
                let how = "its host is not heard any more";
                input.gone.extend(pids.into_iter().map(|pid| ended(pid.into(), end_of(newest), how)));
            }
        }
        let gone = self.gone(window);
        let times =
            digests.iter().flat_map(|(_, page, _)| page.times(window - LONG_LOOKBACK + 1..=window, self.reference));
        input.times = times.filter(|time| !gone.contains(&(&*time.node, time.pid))).cloned().collect();
        // Who waits for nobody does not hang, however far it got.
        let waits = !input.in_calls.is_empty() || !input.syncing.is_empty();
        if waits || !gone.is_empty() || input.totals.is_empty() {
            input.progress = digests.iter().flat_map(|(_, page, _)| page.progress(window, self.reference)).collect();
        }
        let ended = Ended::leave_out(&mut input, &gone);
        (input, ended)
    }

    /// How many hosts sent a digest of a window, and which did not, and why: of those that sent any
    /// lately, and the job's hosts, live or dead.
    fn heard(&self, window: i64) -> (usize, Vec<(String, String)>) {
        let (mut answered, mut missing) = (0, Vec::new());
        let (hosts, dead) = (self.board.hosts(), self.board.dead_hosts());
        let are_all_heard = LazyCell::new(|| dead.ranks.is_some_and(|size| self.has_all_ranks(window, size)));
        let lacks_ranks = LazyCell::new(|| match dead.ranks {
            Some(_) => !*are_all_heard,
            None => self.lacks_ranks(window),
        });
        // (Runs of one job may have the same ranks: those of a dead host of it are missing, whoever else
        // has such.)
        let perhaps = dead.perhaps.iter().filter(|_| *lacks_ranks);
        let dead: BTreeSet<&str> = dead.of_job.iter().chain(perhaps).map(String::as_str).collect();
        for (node, page) in self.pages() {
            let newest = page.newest(self.reference).unwrap_or(i64::MIN);
            let is_recent = newest >= window - RECENT;
            let why = match (&page.unread, page.dead) {
                (Some(why), false) => why,
                _ if newest >= window => {
                    answered += 1;
                    continue;
                }
                (_, true) if is_recent || dead.contains(node) => "dead",
                (_, false) if is_recent || hosts.contains(node) => "no digest of the window",
                _ => continue,
            };
            missing.push((node.to_owned(), why.to_owned()));
        }
        let unknown = |host: &&str| !self.board.knows_of(host);
        let silent = hosts.iter().map(String::as_str).filter(unknown);
        missing.extend(silent.map(|host| (host.to_owned(), "no digest yet".to_owned())));
        missing.extend(dead.into_iter().filter(unknown).map(|host| (host.to_owned(), "dead".to_owned())));
        (answered, missing)
    }

    /// Whether the digests up to a window are of fewer ranks than the largest communicator in them
    /// has.
    fn lacks_ranks(&self, window: i64) -> bool {
        let windows = window - LONG_LOOKBACK + 1..=window;
        let lanes =
            || self.pages().flat_map(|(_, page)| page.within(windows.clone(), self.reference)).flat_map(|of| &of.lanes);
        let Some((size, comm)) = lanes().filter_map(|lane| Some((lane.nranks?, lane.comm_hash))).max() else {
            return false;
        };
        let ranks: BTreeSet<i32> = lanes().filter(|lane| lane.comm_hash == comm).map(|lane| lane.rank).collect();
        ranks.len() < usize::try_from(size).unwrap_or(0)
    }

    /// Whether all ranks of a job of this size were heard lately, from processes that have not ended
    /// on hosts that live: by their environment, or in one communicator of all of them.
    fn has_all_ranks(&self, window: i64, size: i32) -> bool {
        let windows = window - LONG_LOOKBACK + 1..=window;
        let hosts = self.board.hosts();
        let mut ranks: BTreeMap<Option<u64>, BTreeSet<i32>> = BTreeMap::new();
        for (_, page) in self.pages().filter(|(node, page)| !page.dead && hosts.contains(*node)) {
            let digests = || page.within(windows.clone(), self.reference);
            let gone: BTreeSet<u32> = digests().flat_map(|digest| digest.gone.iter().map(|gone| gone.pid)).collect();
            for digest in digests() {
                let processes = digest.processes.iter().filter(|process| !gone.contains(&process.pid));
                let own = processes.filter_map(|process| process.of_job).filter(|(_, of)| *of == size);
                ranks.entry(None).or_default().extend(own.map(|(rank, _)| rank));
                let lives = |place: usize| digest.processes.get(place).is_some_and(|of| !gone.contains(&of.pid));
                for lane in digest.lanes.iter().filter(|lane| lane.nranks == Some(size) && lives(lane.process)) {
                    ranks.entry(Some(lane.comm_hash)).or_default().insert(lane.rank);
                }
            }
        }
        ranks.values().any(|heard| (0..size).all(|rank| heard.contains(&rank)))
    }

    /// [`Self::heard`], and what is missing in the digests that came.
    fn coverage(&self, window: i64, digests: &[(&str, &Page, Vec<&Digest>)]) -> NodeCoverage {
        let (answered, missing) = self.heard(window);
        let asked = answered + missing.len();
        let mut coverage = NodeCoverage { asked, answered, missing, ..NodeCoverage::default() };
        let of_all = || digests.iter().flat_map(|(_, _, digests)| digests);
        let lost = of_all().fold(0u64, |sum, digest| sum.saturating_add(digest.lost));
        let cut = of_all().filter(|digest| digest.cut).count();
        let unclear = self.board.unclear_hosts();
        if unclear > 0 && self.board.dead_hosts().ranks.is_none_or(|size| !self.has_all_ranks(window, size)) {
            coverage.notes.push(format!(
                "{unclear} hosts in other cells of the mesh may run it, too: their cells run more jobs than they name"
            ));
        }
        if lost > 0 {
            coverage.notes.push(format!("{lost} records were lost in capture"));
        }
        if cut > 0 {
            coverage.notes.push(format!("{cut} digests were cut: more ranks or communicators on a host than fit"));
        }
        coverage
    }

    /// From when on a wait is a hang: the rule's threshold, or a few times what ranks were seen to
    /// wait without hanging.
    fn hang_ns(&self, window: i64) -> i64 {
        let least = Rules::default().hang_ns;
        // By collective: the longest wait in it. The two longest may be hangs that are over.
        let mut waits: BTreeMap<(u64, &str, u64), i64> = BTreeMap::new();
        let received = self.pages().flat_map(|(_, page)| page.received_within(i64::MIN..=window, self.reference));
        let long = |us: u64| i64::try_from(us).unwrap_or(i64::MAX).saturating_mul(1_000 * Rules::USUAL_WAITS) > least;
        for received in received.filter(|received| long(received.longest_us)) {
            for lane in received.digest.lanes.iter().filter(|lane| Coupling::of(&lane.func) == Coupling::All) {
                for block in &lane.blocks {
                    let wait_ns = i64::try_from(block.duration_us).unwrap_or(i64::MAX).saturating_mul(1_000);
                    if wait_ns.saturating_mul(Rules::USUAL_WAITS) > least {
                        let longest = waits.entry((lane.comm_hash, &lane.func, block.start)).or_default();
                        *longest = wait_ns.max(*longest);
                    }
                }
            }
        }
        let mut waits: Vec<i64> = waits.into_values().collect();
        waits.sort_unstable_by(|a, b| b.cmp(a));
        let usual = waits.get(2).copied().unwrap_or(0);
        usual.saturating_mul(Rules::USUAL_WAITS).clamp(least, Rules::LONGEST_HANG_NS)
    }
}
