//! What ranks did in the last ten minutes, window by window, of the jobs that this host judges:
//! for front ends. Six bytes a rank and window, and bounded over all jobs together.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use digest::{WINDOW_NS, end_of};
use model::Coverage;
use model::board::{BOARD_VERSION, Board, BoardRank, BoardWindow, Known};
use parking_lot::Mutex;
use record::unix_now_ns;
use verdicts::RankWindows;

use super::super::board_window::packed;

/// How long windows are kept.
pub(super) const KEPT_NS: i64 = 600_000_000_000;
/// Bytes of all windows of an agent: beyond, the job that has most gives its oldest. Ten minutes of
/// 8,192 ranks take 56 MiB.
const MOST_BYTES: usize = 64 << 20;
/// Bytes of windows in one answer, about as encoded.
const PAGE_BYTES: usize = 3 << 20;
/// It is looked whether ranks have no cell any more when there are twice as many ranks.
const STALE_RANKS: usize = 256;

/// The boards, by job.
#[derive(Debug, Default)]
pub(super) struct Kept {
    jobs: Mutex<BTreeMap<u64, JobBoard>>,
}

/// What was measured of the windows since the last time.
#[derive(Debug)]
pub(super) struct Measured {
    /// Windows by number, of a clock …
    pub(super) found: RankWindows,
    /// … by which this node's
    pub(super) reference: Option<String>,
    /// wall clock is so far ahead.
    pub(super) wall_ahead_ns: i64,
}

#[derive(Debug)]
struct JobBoard {
    epoch: u64,
    places: HashMap<(Arc<str>, i64), usize>,
    ranks: Vec<BoardRank>,
    /// Sizes of the communicators that ranks were read from.
    sizes: Vec<i32>,
    windows: VecDeque<BoardWindow>,
    bytes: usize,
    reference: Option<String>,
    clock_bound_ns: Option<i64>,
    /// Ranks that were left when ranks without windows were last forgotten.
    known_ranks: usize,
}

impl Kept {
    /// Takes in what was measured of a job.
    pub(super) fn add(&self, job: u64, measured: Measured) {
        self.add_within(job, measured, MOST_BYTES);
    }

    fn add_within(&self, job: u64, measured: Measured, most_bytes: usize) {
        let mut jobs = self.jobs.lock();
        jobs.entry(job).or_insert_with(JobBoard::new).add(measured);
        while jobs.values().map(|board| board.bytes).sum::<usize>() > most_bytes {
            let Some(largest) = jobs.values_mut().max_by_key(|board| board.bytes) else { return };
            if largest.drop_oldest().is_none() {
                return;
            }
        }
    }

    /// Forgets what is older than is kept, by this host's wall clock.
    pub(super) fn forget(&self, now_ns: i64) {
        let mut jobs = self.jobs.lock();
        jobs.values_mut().for_each(|board| board.forget(now_ns));
        jobs.retain(|_, board| !board.windows.is_empty());
    }

    /// The windows of a job that end after `since_ns`, the oldest first, as many as fit; none where
    /// nothing is kept of it.
    pub(super) fn page(&self, job: u64, since_ns: Option<i64>, known: Option<Known>) -> Option<Board> {
        self.jobs.lock().get(&job).map(|board| board.page(since_ns, known))
    }
}

impl JobBoard {
    fn new() -> Self {
        Self {
            epoch: unix_now_ns().unsigned_abs(),
            places: HashMap::new(),
            ranks: Vec::new(),
            sizes: Vec::new(),
            windows: VecDeque::new(),
            bytes: 0,
            reference: None,
            clock_bound_ns: None,
            known_ranks: 0,
        }
    }

    fn add(&mut self, measured: Measured) {
        let Measured { found, reference, wall_ahead_ns } = measured;
        let mut place_of = Vec::with_capacity(found.ranks.len());
        for rank in found.ranks {
            let place = *self.places.entry((Arc::clone(&rank.node), rank.pid)).or_insert_with(|| {
                self.ranks.push(BoardRank { rank: rank.rank, node: rank.node.to_string(), pid: rank.pid });
                self.sizes.push(rank.nranks);
                self.ranks.len() - 1
            });
            if rank.nranks > self.sizes[place] {
                self.sizes[place] = rank.nranks;
                // Askers have it by its place: they get it anew.
                if std::mem::replace(&mut self.ranks[place].rank, rank.rank) != rank.rank {
                    self.epoch += 1;
                }
            }
            place_of.push(place);
        }
        (self.reference, self.clock_bound_ns) = (reference, found.clock_bound_ns);
        for (number, window) in found.windows {
            let end_ns = end_of(number).saturating_add(wall_ahead_ns);
            // A clock that was set back begins anew.
            if self.windows.back().is_some_and(|last| last.end_ns >= end_ns) {
                if self.windows.back().is_some_and(|last| last.end_ns - end_ns < WINDOW_NS) {
                    continue;
                }
                (self.windows, self.bytes) = (VecDeque::new(), 0);
                self.epoch += 1;
            }
            let window = packed(end_ns, window, |place| place_of[place]);
            self.bytes += window.bytes();
            self.windows.push_back(window);
        }
        if let Some(last) = self.windows.back() {
            self.forget(last.end_ns);
        }
        self.forget_ranks();
    }

    fn drop_oldest(&mut self) -> Option<BoardWindow> {
        let window = self.windows.pop_front()?;
        self.bytes -= window.bytes();
        Some(window)
    }

    fn forget(&mut self, now_ns: i64) {
        while self.windows.front().is_some_and(|window| now_ns.saturating_sub(window.end_ns) > KEPT_NS) {
            self.drop_oldest();
        }
    }

    /// Forgets ranks that are in no window any more, where there are many.
    fn forget_ranks(&mut self) {
        // Looked at when as many ranks have come as were left after the last time.
        if self.ranks.len() < 2 * self.known_ranks.max(STALE_RANKS) {
            return;
        }
        let mut seen = vec![false; self.ranks.len()];
        for window in &self.windows {
            for (place, seen) in seen.iter_mut().enumerate().take(window.late.len()) {
                let known = |times: &[model::board::Time]| times.get(place).is_some_and(|time| time.us().is_some());
                *seen |= known(&window.late) || known(&window.wait) || known(&window.compute);
            }
        }
        let stays = seen.iter().filter(|seen| **seen).count();
        self.known_ranks = stays;
        if stays == seen.len() {
            return;
        }
        let keep = |times: &[model::board::Time]| -> Vec<_> {
            times.iter().zip(&seen).filter(|(_, seen)| **seen).map(|(time, _)| *time).collect()
        };
        for window in &mut self.windows {
            (window.late, window.wait, window.compute) =
                (keep(&window.late), keep(&window.wait), keep(&window.compute));
        }
        self.bytes = self.windows.iter().map(BoardWindow::bytes).sum();
        let mut at = seen.iter();
        self.ranks.retain(|_| at.next() == Some(&true));
        let mut at = seen.iter();
        self.sizes.retain(|_| at.next() == Some(&true));
        let mut new = vec![None; seen.len()];
        seen.iter()
            .enumerate()
            .filter(|(_, seen)| **seen)
            .enumerate()
            .for_each(|(place, (old, _))| new[old] = Some(place));
        self.places.retain(|_, place| new[*place].map(|new| *place = new).is_some());
        self.epoch += 1;
    }

    fn page(&self, since_ns: Option<i64>, known: Option<Known>) -> Board {
        let known = known.filter(|known| known.epoch == self.epoch);
        let first = known.map_or(0, |known| usize::try_from(known.ranks).unwrap_or(usize::MAX).min(self.ranks.len()));
        let wanted = self.windows.iter().filter(|window| since_ns.is_none_or(|since_ns| window.end_ns > since_ns));
        let (mut windows, mut bytes, mut more) = (Vec::new(), 0usize, false);
        for window in wanted {
            // A cell has three figures of at most three bytes.
            bytes += 9 * window.late.len();
            if bytes > PAGE_BYTES && !windows.is_empty() {
                more = true;
                break;
            }
            windows.push(window.clone());
        }
        Board {
            version: BOARD_VERSION,
            job: String::new(),
            judge: None,
            epoch: self.epoch,
            clock_of: self.reference.clone(),
            clock_bound_ns: self.clock_bound_ns,
            window_ns: WINDOW_NS,
            first_rank: u32::try_from(first).unwrap_or(u32::MAX),
            ranks: self.ranks[first..].to_vec(),
            windows,
            more,
            coverage: Coverage::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use verdicts::{Spent, SpentWindow, WindowRank};

    use super::*;

    fn measured(window: i64, pids: std::ops::Range<i64>) -> Measured {
        let rank = |pid: i64| WindowRank { node: "n".into(), pid, rank: (pid % 1_000) as i32, nranks: 8 };
        let ranks: Vec<WindowRank> = pids.map(rank).collect();
        let spent = |place| (place, Spent { late_ns: Some(1_000_000), wait_ns: Some(2_000), compute_ns: None });
        let spent = (0..ranks.len()).map(spent).collect();
        let windows = [(window, SpentWindow { collectives: 3, spent })].into();
        let found = RankWindows { ranks, windows, clock_bound_ns: Some(5) };
        Measured { found, reference: Some("n".into()), wall_ahead_ns: 0 }
    }

    #[test]
    fn who_asks_again_gets_what_is_new() {
        let kept = Kept::default();
        kept.add(1, measured(10, 0..4));
        kept.add(1, measured(11, 0..4));
        let all = kept.page(1, None, None).unwrap();
        assert_eq!((all.ranks.len(), all.windows.len(), all.first_rank, all.more), (4, 2, 0, false));
        assert_eq!(all.windows[0].late[3].us(), Some(1_000));
        assert_eq!(all.windows[0].compute[3].us(), None);
        kept.add(1, measured(12, 0..6));
        let known = Some(Known { epoch: all.epoch, ranks: 4 });
        let new = kept.page(1, Some(all.windows[1].end_ns), known).unwrap();
        assert_eq!((new.ranks.len(), new.windows.len(), new.first_rank), (2, 1, 4));
        assert!(kept.page(2, None, None).is_none());
        // Of another epoch: everything again.
        let anew = kept.page(1, None, Some(Known { epoch: 7, ranks: 4 })).unwrap();
        assert_eq!((anew.ranks.len(), anew.first_rank), (6, 0));
    }

    #[test]
    fn ten_minutes_are_kept_and_a_bounded_number_of_bytes() {
        let kept = Kept::default();
        for window in 0..1_300 {
            kept.add(1, measured(window, 0..8));
        }
        let all = kept.page(1, None, None).unwrap();
        let span_ns = all.windows.last().unwrap().end_ns - all.windows[0].end_ns;
        assert_eq!(span_ns, KEPT_NS);
        kept.forget(all.windows[0].end_ns + 3 * KEPT_NS);
        assert!(kept.page(1, None, None).is_none(), "the job is long over");

        let bytes = |kept: &Kept| kept.jobs.lock().values().map(|board| board.bytes).sum::<usize>();
        for window in 0..100 {
            kept.add_within(1, measured(window, 0..1_000), 200_000);
            kept.add_within(2, measured(window, 0..10), 200_000);
        }
        assert!(bytes(&kept) <= 200_000);
        assert_eq!(kept.page(2, None, None).unwrap().windows.len(), 100, "the large job gives");
        let large = kept.page(1, None, None).unwrap();
        assert!((20..100).contains(&large.windows.len()), "{}", large.windows.len());
    }

    #[test]
    fn large_boards_come_in_pages() {
        let kept = Kept::default();
        for window in 0..100 {
            kept.add(1, measured(window, 0..8_192));
        }
        let (mut since_ns, mut seen) = (None, 0);
        loop {
            let page = kept.page(1, since_ns, None).unwrap();
            assert!(model::frame::encode(&page).unwrap().len() < model::frame::MAX_FRAME_BYTES);
            seen += page.windows.len();
            since_ns = page.windows.last().map(|window| window.end_ns);
            if !page.more {
                break;
            }
        }
        assert_eq!(seen, 100);
    }

    #[test]
    fn ranks_of_jobs_that_were_started_again_go_with_their_windows() {
        let kept = Kept::default();
        for again in 0..5 {
            for window in 0..1_300 {
                kept.add(1, measured(again * 1_300 + window, again * 1_000..again * 1_000 + 300));
            }
        }
        let all = kept.page(1, None, None).unwrap();
        assert!(all.ranks.len() < 1_200, "{}", all.ranks.len());
        let last = all.windows.last().unwrap();
        let now: Vec<i64> = (0..all.ranks.len())
            .filter(|place| last.late.get(*place).is_some_and(|time| time.us().is_some()))
            .map(|place| all.ranks[place].pid)
            .collect();
        assert_eq!(now, (4_000..4_300).collect::<Vec<i64>>());
    }
}
