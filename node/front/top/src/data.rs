//! The data that is shown, and indexes of it: drawing a frame reads only the rows that are on the
//! screen.

use std::collections::{HashMap, VecDeque};

use model::board::{Board, BoardRank, BoardWindow, Time};
use model::watch::Watched;

/// Windows kept: ten minutes of half a second.
const MOST_WINDOWS: usize = 1_200;

/// A table that answered a question, as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The question.
    pub sql: String,
    /// Names of columns.
    pub columns: Vec<String>,
    /// Rows.
    pub rows: Vec<Vec<String>>,
    /// Lines below it: coverage, that rows were left out, or why there is no answer.
    pub notes: Vec<String>,
}

/// The last samples of a host's agent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeSample {
    /// Share of its CPUs that was busy.
    pub cpu: Option<f64>,
    /// GPUs with samples.
    pub gpus: u64,
    /// Lowest clock of their multiprocessors, MHz.
    pub sm_mhz: Option<f64>,
    /// The highest clock that was seen, MHz.
    pub sm_most_mhz: Option<f64>,
    /// Why clocks are throttled, as text; empty where they are not.
    pub throttled: String,
    /// Records that capture lost recently.
    pub lost: Option<u64>,
}

/// Details of one rank besides its row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RankDetail {
    /// Its host and process.
    pub of: (String, i64),
    /// Where its time went recently: what, nanoseconds, how often.
    pub times: Vec<(String, i64, u64)>,
    /// Facts of its process: name and value.
    pub process: Vec<(String, String)>,
    /// Its call stack, outermost first; or why there is none.
    pub stack: Vec<String>,
    /// What could not be read, as text.
    pub missing: Vec<String>,
}

/// What is shown.
#[derive(Debug, Clone, Default)]
pub struct Data {
    /// The verdict and the ranks; none until the first came.
    pub watched: Option<Watched>,
    /// When it came, milliseconds of the front end's steady clock.
    pub received_ms: u64,
    /// The target that is asked, as text: an agent, or stores.
    pub source: String,
    /// Stores are asked: nothing changes by itself.
    pub is_stores: bool,
    /// The time that is shown, Unix nanoseconds; none: now.
    pub show_at: Option<i64>,
    /// A time is being fetched.
    pub is_loading: bool,
    /// The last error, as text, while it lasts.
    pub error: Option<String>,
    /// Recent findings, newest first; rows of `findings`.
    pub findings: Answer,
    /// Services on their hosts, those with the most requests first; rows of
    /// [`services`](crate::questions::services).
    pub services: Answer,
    /// By node.
    pub samples: HashMap<String, NodeSample>,
    /// Of the rank that is shown.
    pub detail: Option<RankDetail>,
    /// The answer to the last question that was typed.
    pub answer: Option<Answer>,
    /// Increases with every change of ranks or windows.
    pub version: u64,
    board: Windows,
}

/// Windows of a board with what a frame needs of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Windows {
    pub(crate) epoch: u64,
    pub(crate) window_ns: i64,
    pub(crate) clock_bound_ns: Option<i64>,
    pub(crate) ranks: Vec<BoardRank>,
    places: HashMap<(String, i64), usize>,
    windows: VecDeque<(BoardWindow, Medians)>,
}

/// Medians over a window's ranks, microseconds; none where nothing is known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Medians {
    late: Option<u64>,
    wait: Option<u64>,
    compute: Option<u64>,
}

/// Which figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Figure {
    Late,
    /// How much less than the others it waited: its lateness, by no clock but each host's own.
    Held,
    Wait,
    Compute,
}

impl Data {
    /// Empty, for the description of an agent or stores.
    #[must_use]
    pub fn of(source: String, is_stores: bool) -> Self {
        Self { source, is_stores, is_loading: is_stores, ..Self::default() }
    }

    /// Takes in a state, present or past.
    pub fn watch(&mut self, watched: Watched, now_ms: u64) {
        self.watched = Some(watched);
        self.received_ms = now_ms;
        self.is_loading = false;
        self.version += 1;
    }

    /// Takes in windows: those that follow the present ones, or a board of its own.
    pub fn board(&mut self, board: Board) {
        self.board.add(board);
        self.version += 1;
    }

    /// Drops the windows: another job, or another time, is shown.
    pub fn forget_board(&mut self) {
        self.board = Windows::default();
        self.version += 1;
    }

    /// Parameters of a request for more windows: epoch, ranks, and the end of the last; none where
    /// there are no windows.
    #[must_use]
    pub fn board_known(&self) -> Option<(u64, u32, i64)> {
        let (last, _) = self.board.windows.back()?;
        Some((self.board.epoch, u32::try_from(self.board.ranks.len()).unwrap_or(u32::MAX), last.end_ns))
    }

    /// First and last end of the windows that are there.
    #[must_use]
    pub fn board_span(&self) -> Option<(i64, i64)> {
        Some((self.board.windows.front()?.0.end_ns, self.board.windows.back()?.0.end_ns))
    }

    /// The windows that are there, as a board of their own.
    #[must_use]
    pub fn board_document(&self) -> Board {
        Board {
            version: model::board::BOARD_VERSION,
            epoch: self.board.epoch,
            clock_bound_ns: self.board.clock_bound_ns,
            window_ns: self.board.window_ns,
            ranks: self.board.ranks.clone(),
            windows: self.board.windows.iter().map(|(window, _)| window.clone()).collect(),
            ..Board::default()
        }
    }

    /// Length of a window, nanoseconds; half a second until one came.
    #[must_use]
    pub fn window_ns(&self) -> i64 {
        if self.board.window_ns > 0 { self.board.window_ns } else { 500_000_000 }
    }

    /// The age of the data, milliseconds, if there is any.
    pub(crate) fn silent_ms(&self, now_ms: u64) -> Option<u64> {
        self.watched.as_ref().map(|_| now_ms.saturating_sub(self.received_ms))
    }

    pub(crate) fn windows(&self) -> &Windows {
        &self.board
    }
}

impl Windows {
    fn add(&mut self, board: Board) {
        if board.epoch != self.epoch || board.window_ns != self.window_ns {
            *self = Self { epoch: board.epoch, window_ns: board.window_ns, ..Self::default() };
        }
        self.clock_bound_ns = board.clock_bound_ns;
        let first = usize::try_from(board.first_rank).unwrap_or(usize::MAX);
        if first == self.ranks.len() {
            for rank in board.ranks {
                self.places.insert((rank.node.clone(), rank.pid), self.ranks.len());
                self.ranks.push(rank);
            }
        }
        for window in board.windows {
            if self.windows.back().is_none_or(|(last, _)| last.end_ns < window.end_ns) {
                let medians = Medians::of(&window);
                self.windows.push_back((window, medians));
            }
        }
        while self.windows.len() > MOST_WINDOWS {
            self.windows.pop_front();
        }
    }

    /// The figure that tells who is late: entries need the clocks of all hosts, waits need none.
    pub(crate) fn lateness(&self) -> Figure {
        if self.clock_bound_ns.is_some() { Figure::Late } else { Figure::Held }
    }

    /// The index of a process.
    pub(crate) fn place(&self, node: &str, pid: i64) -> Option<usize> {
        self.places.get(&(node.to_owned(), pid)).copied()
    }

    /// The windows up to a time (all, without one), the newest first.
    pub(crate) fn until(&self, at_ns: Option<i64>) -> impl Iterator<Item = &(BoardWindow, Medians)> {
        self.windows.iter().rev().skip_while(move |(window, _)| at_ns.is_some_and(|at_ns| window.end_ns > at_ns))
    }

    /// The end of the last window before `at_ns`, this many windows back; of the newest without a
    /// time.
    pub(crate) fn back(&self, at_ns: Option<i64>, steps: usize) -> Option<i64> {
        let ends: Vec<i64> = self.until(at_ns).map(|(window, _)| window.end_ns).take(steps + 1).collect();
        (ends.len() > steps).then(|| ends[steps])
    }

    /// The end of the window this many after `at_ns`; none where there are not as many.
    pub(crate) fn forward(&self, at_ns: i64, steps: usize) -> Option<i64> {
        self.windows.iter().map(|(window, _)| window.end_ns).filter(|end| *end > at_ns).nth(steps.saturating_sub(1))
    }
}

impl Medians {
    fn of(window: &BoardWindow) -> Self {
        let median = |times: &[Time]| {
            let mut known: Vec<u64> = times.iter().filter_map(|time| time.us()).collect();
            let middle = known.len() / 2;
            (!known.is_empty()).then(|| *known.select_nth_unstable(middle).1)
        };
        Self { late: median(&window.late), wait: median(&window.wait), compute: median(&window.compute) }
    }

    fn figure(&self, figure: Figure) -> Option<u64> {
        match figure {
            Figure::Late => self.late,
            Figure::Held | Figure::Wait => self.wait,
            Figure::Compute => self.compute,
        }
    }
}

/// A rank's figure in a window, microseconds.
pub(crate) fn figure_us(window: &BoardWindow, place: usize, figure: Figure) -> Option<u64> {
    let times = match figure {
        Figure::Late => &window.late,
        Figure::Held | Figure::Wait => &window.wait,
        Figure::Compute => &window.compute,
    };
    times.get(place)?.us()
}

/// By how much a rank's figure is above the median of all ranks in windows, as a share of their
/// time; none where it is not known in any of them.
pub(crate) fn excess<'a>(
    windows: impl Iterator<Item = &'a (BoardWindow, Medians)>,
    place: usize,
    figure: Figure,
    window_ns: i64,
) -> Option<f64> {
    let (mut known, mut excess_us) = (0u32, 0.0);
    let sign = if figure == Figure::Held { -1.0 } else { 1.0 };
    for (window, medians) in windows {
        if let (Some(us), Some(median)) = (figure_us(window, place, figure), medians.figure(figure)) {
            known += 1;
            excess_us += sign * (us as f64 - median as f64);
        }
    }
    (known > 0).then(|| excess_us * 1_000.0 / (f64::from(known) * window_ns as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(epoch: u64, first_rank: u32, pids: &[i64], ends: &[i64]) -> Board {
        let rank = |pid: &i64| BoardRank { rank: *pid as i32, node: "n".into(), pid: *pid };
        let window = |end: &i64| BoardWindow {
            end_ns: *end,
            late: vec![Time::of_ns(Some(1_000_000)), Time::of_ns(Some(end * 1_000)), Time::UNKNOWN],
            ..BoardWindow::default()
        };
        Board {
            epoch,
            first_rank,
            window_ns: 500_000_000,
            ranks: pids.iter().map(rank).collect(),
            windows: ends.iter().map(window).collect(),
            ..Board::default()
        }
    }

    #[test]
    fn windows_follow_each_other_and_another_epoch_begins_anew() {
        let mut data = Data::default();
        data.board(board(7, 0, &[1, 2], &[10, 20]));
        assert_eq!(data.board_known(), Some((7, 2, 20)));
        data.board(board(7, 2, &[3], &[20, 30]));
        assert_eq!((data.board_known(), data.board_span()), (Some((7, 3, 30)), Some((10, 30))));
        assert_eq!(data.windows().place("n", 3), Some(2));
        data.board(board(8, 0, &[1], &[40]));
        assert_eq!((data.board_known(), data.windows().place("n", 3)), (Some((8, 1, 40)), None));
    }

    #[test]
    fn steps_through_time_go_from_window_to_window() {
        let mut data = Data::default();
        data.board(board(7, 0, &[1, 2], &[10, 20, 40, 50]));
        let windows = data.windows();
        assert_eq!(
            (windows.back(None, 1), windows.back(Some(40), 1), windows.back(Some(45), 1)),
            (Some(40), Some(20), Some(20))
        );
        assert_eq!((windows.back(Some(10), 1), windows.back(None, 9)), (None, None));
        assert_eq!(
            (windows.forward(20, 1), windows.forward(20, 2), windows.forward(50, 1)),
            (Some(40), Some(50), None)
        );
    }

    #[test]
    fn excess_is_over_the_median_and_unknown_is_not_zero() {
        let mut data = Data::default();
        data.board(board(7, 0, &[1, 2, 3], &[100_000, 100_001]));
        let of = |place| excess(data.windows().until(None), place, Figure::Late, 500_000_000);
        assert_eq!(of(2), None);
        assert_eq!(of(1), Some(0.0), "of two the later is the median");
        assert!(of(0).unwrap() < -0.19);
        assert_eq!(excess(data.windows().until(None), 0, Figure::Wait, 1), None);
        assert_eq!(excess(data.windows().until(None), 0, Figure::Held, 1), None);
    }
}
