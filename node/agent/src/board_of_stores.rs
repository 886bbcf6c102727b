//! What ranks did, window by window, made from the stores: of any time that they keep, with agents
//! or without.
//!
//! Calls are fetched by SQL over the mesh, a minute at a time, and matched as those of a verdict
//! are (`verdicts::rank_windows`). `standing` has what judges keep of the last minutes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use digest::WINDOW_NS;
use model::board::{BOARD_VERSION, Board, BoardQuestion, BoardRank, BoardWindow, Time};
use model::{Coverage, StragglersQuestion};
use query::Coordinator;
use query::access::Caller;
use query::ask::AskError;
use record::unix_now_ns;
use tokio_util::sync::CancellationToken;
use verdicts::{RankWindows, rank_windows};

use super::asking::Asking;
use super::board_window::packed;
use super::stragglers::{MOST_CALLS, calls_of, clocks, missed, span_of};

/// Length of the span that is fetched at a time.
const STRETCH_NS: i64 = 60_000_000_000;
/// Calls are fetched from this long before the span, too: compute time counts from the call before,
/// and a call that ends in the span may have started earlier.
const LEAD_NS: i64 = 10_000_000_000;
/// Windows of one answer.
const MOST_WINDOWS: i64 = 7_200;
/// Cells of one answer: a rank in a window each. 48 MiB.
const MOST_CELLS: usize = 8 << 20;

/// The span and the windows of a board.
#[derive(Debug, Clone, Default)]
pub struct BoardSpan {
    /// From here, Unix nanoseconds of the coordinator's clock.
    pub since_ns: i64,
    /// To here.
    pub until_ns: i64,
    /// Length of a window; zero or less: as long as those of digests.
    pub window_ns: i64,
    /// Only this job.
    pub job: Option<String>,
    /// Deadline.
    pub timeout_ms: u64,
    /// Ask only these nodes; empty is all.
    pub nodes: Vec<String>,
}

impl BoardSpan {
    /// The span that a question means; without an end it is up to `now_ns`, or to this moment,
    /// without a beginning the minute before.
    pub fn of(question: BoardQuestion, now_ns: Option<i64>) -> Self {
        let until_ns = question.until_ns.or(now_ns).unwrap_or_else(unix_now_ns);
        Self {
            since_ns: question.since_ns.unwrap_or(until_ns.saturating_sub(STRETCH_NS)),
            until_ns,
            window_ns: question.window_ns.unwrap_or(0),
            job: question.job,
            timeout_ms: question.timeout_ms,
            nodes: Vec::new(),
        }
    }
}

/// What the ranks of a span did, from the stores of all nodes of `coordinator`. Windows are aligned
/// to their length; each has the calls that ended in it.
///
/// # Errors
/// The span is empty, or has more windows than an answer may hold; else as [`query::ask::ask`].
pub async fn board(
    coordinator: &Coordinator,
    span: &BoardSpan,
    caller: &Caller,
    cancelled: &CancellationToken,
) -> Result<Board, AskError> {
    let window_ns = if span.window_ns > 0 { span.window_ns } else { WINDOW_NS };
    let (first, last) = (span.since_ns.div_euclid(window_ns), span.until_ns.saturating_sub(1).div_euclid(window_ns));
    if last < first {
        return Err(AskError::wrong("the span of the board is empty: its end has to lie after its beginning"));
    }
    if last - first >= MOST_WINDOWS {
        let message = format!(
            "{} windows of {} ms: more than {MOST_WINDOWS} are not answered at once; take longer windows or a shorter span",
            last - first + 1,
            window_ns / 1_000_000
        );
        return Err(AskError::wrong(message));
    }
    let deadline = Instant::now() + Duration::from_millis(span.timeout_ms);
    let asking = Asking { coordinator, caller, deadline, cancelled };
    let clocks = clocks(coordinator, Some((span.since_ns, span.until_ns)), deadline).await;
    let question =
        StragglersQuestion { job: span.job.clone(), nodes: span.nodes.clone(), ..StragglersQuestion::default() };
    let mut gathered = Gathered::new(window_ns);
    let stretch = (STRETCH_NS / window_ns).max(1);
    let mut from = first;
    while from <= last {
        let to = last.min(from + stretch - 1);
        let lead_from_ns = from.saturating_mul(window_ns).saturating_sub(LEAD_NS);
        let asked = span_of(&question, &clocks, lead_from_ns, (to + 1).saturating_mul(window_ns));
        let (missed, _) = missed(asking, &question, &asked, &clocks).await;
        let (input, coverage) = calls_of(asking, &question, &asked, clocks.clone(), MOST_CALLS).await?;
        // Computed on a blocking thread.
        let found = tokio::task::spawn_blocking(move || rank_windows(input, window_ns)).await;
        let mut found = found.map_err(|error| AskError::failed(error.to_string()))?;
        // Where calls were missed, times between them say nothing; nor does the first after it.
        let is_whole = |window: i64| {
            let (begin_ns, end_ns) = (window.saturating_mul(window_ns), (window + 1).saturating_mul(window_ns));
            missed
                .iter()
                .all(|(since_ns, until_ns)| *since_ns >= end_ns || until_ns.saturating_add(window_ns) <= begin_ns)
        };
        found.windows.retain(|window, _| is_whole(*window));
        gathered.add(found, from..=to);
        gathered.coverage.also(coverage);
        if gathered.cells > MOST_CELLS {
            return Err(AskError::wrong(format!(
                "{} ranks in {} windows: more than {MOST_CELLS} cells are not answered at once; take longer windows or a \
                 shorter span",
                gathered.ranks.len(),
                gathered.windows.len()
            )));
        }
        from = to + 1;
    }
    let clock_of = coordinator.gossip.members().into_iter().find(|member| member.is_self).map(|member| member.name);
    Ok(gathered.board(span.job.clone().unwrap_or_default(), clock_of))
}

/// Boards of consecutive stretches, merged: positions of ranks are those of the merged board.
#[derive(Debug)]
struct Gathered {
    window_ns: i64,
    places: BTreeMap<(String, i64), usize>,
    ranks: Vec<BoardRank>,
    /// Sizes of the communicators that `ranks` were read from.
    sizes: Vec<i32>,
    windows: Vec<BoardWindow>,
    cells: usize,
    clock_bound_ns: Option<Option<i64>>,
    coverage: Coverage,
}

impl Gathered {
    fn new(window_ns: i64) -> Self {
        Self {
            window_ns,
            places: BTreeMap::new(),
            ranks: Vec::new(),
            sizes: Vec::new(),
            windows: Vec::new(),
            cells: 0,
            clock_bound_ns: None,
            coverage: Coverage::default(),
        }
    }

    /// Takes in the windows of a range, which follows those that are there.
    fn add(&mut self, found: RankWindows, range: std::ops::RangeInclusive<i64>) {
        let mut place_of = Vec::with_capacity(found.ranks.len());
        for rank in &found.ranks {
            let key = (rank.node.to_string(), rank.pid);
            let place = *self.places.entry(key).or_insert_with(|| {
                self.ranks.push(BoardRank { rank: rank.rank, node: rank.node.to_string(), pid: rank.pid });
                self.sizes.push(rank.nranks);
                self.ranks.len() - 1
            });
            if rank.nranks > self.sizes[place] {
                (self.sizes[place], self.ranks[place].rank) = (rank.nranks, rank.rank);
            }
            place_of.push(place);
        }
        for (number, window) in found.windows.into_iter().filter(|(number, _)| range.contains(number)) {
            let end_ns = (number + 1).saturating_mul(self.window_ns);
            let window = packed(end_ns, window, |place| place_of[place]);
            self.cells += window.late.len();
            self.windows.push(window);
        }
        // The widest bound of all stretches.
        self.clock_bound_ns = Some(match self.clock_bound_ns {
            None => found.clock_bound_ns,
            Some(before) => before.zip(found.clock_bound_ns).map(|(a, b)| a.max(b)),
        });
    }

    /// By rank.
    fn board(self, job: String, clock_of: Option<String>) -> Board {
        let mut order: Vec<usize> = (0..self.ranks.len()).collect();
        order.sort_by_key(|place| {
            let rank = &self.ranks[*place];
            (rank.rank, &rank.node, rank.pid)
        });
        let sorted = |times: Vec<Time>| -> Vec<Time> {
            order.iter().map(|place| times.get(*place).copied().unwrap_or_default()).collect()
        };
        let windows = self.windows.into_iter().map(|window| BoardWindow {
            late: sorted(window.late),
            wait: sorted(window.wait),
            compute: sorted(window.compute),
            ..window
        });
        Board {
            version: BOARD_VERSION,
            job,
            judge: None,
            epoch: unix_now_ns().unsigned_abs(),
            clock_of,
            clock_bound_ns: self.clock_bound_ns.flatten(),
            window_ns: self.window_ns,
            first_rank: 0,
            windows: windows.collect(),
            ranks: order.iter().map(|place| self.ranks[*place].clone()).collect(),
            more: false,
            coverage: self.coverage,
        }
    }
}
