//! What this host receives as a judge: a board for each of its jobs, filled by the hosts' requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use digest::{Digest, WINDOW_NS, encode, time_use};
use model::wire::{JobWindows, WindowDigest, WindowsReceived};
use parking_lot::Mutex;
use record::steady_now_ns;
use standing::{Board, DeadHosts, LONG_LOOKBACK, NO_JOB};
use tokio::sync::Notify;

use super::roster::Roster;
use super::{LARGEST, LARGEST_TIMES};

/// Lanes of which one request may ask for numbers.
const MOST_LANES: usize = 256;

/// The boards, by job.
#[derive(Debug, Default)]
pub(super) struct Boards {
    state: Mutex<State>,
    /// Something came.
    pub(super) news: Notify,
}

#[derive(Debug, Default)]
struct State {
    boards: BTreeMap<u64, Board>,
    /// The jobs of this host: nothing of others is taken in.
    jobs: BTreeSet<u64>,
    /// Where ranks of a job wait, and when that was looked up, on this host's steady clock.
    waited_in: BTreeMap<u64, (i64, Vec<u64>)>,
}

impl State {
    /// Communicators of a job in which ranks wait; looked up once a window.
    fn waited_in(&mut self, job: u64, now_ns: i64) -> Vec<u64> {
        let Some(board) = self.boards.get(&job) else { return Vec::new() };
        let known = self.waited_in.entry(job).or_insert((i64::MIN, Vec::new()));
        if now_ns.saturating_sub(known.0) >= WINDOW_NS {
            *known = (now_ns, board.waited_in().into_iter().collect());
        }
        known.1.clone()
    }
}

impl Boards {
    /// Sets which jobs have ranks here. Boards of other jobs go, but for that of all the mesh.
    pub(super) fn of_jobs(&self, jobs: &BTreeSet<u64>) {
        let mut state = self.state.lock();
        state.boards.retain(|job, _| *job == NO_JOB || jobs.contains(job));
        state.waited_in.retain(|job, _| jobs.contains(job));
        state.jobs.clone_from(jobs);
    }

    /// This host's jobs.
    pub(super) fn jobs(&self) -> BTreeSet<u64> {
        self.state.lock().jobs.clone()
    }

    /// A copy of a job's board.
    pub(super) fn board(&self, job: u64) -> Option<Board> {
        self.state.lock().boards.get(&job).cloned()
    }

    /// The jobs whose boards received anything lately; the other boards go.
    pub(super) fn active(&self, now_ns: i64) -> Vec<u64> {
        let mut state = self.state.lock();
        state.boards.retain(|_, board| board.is_active(now_ns));
        state.boards.keys().copied().collect()
    }

    /// Who is there, and who of these has ranks of which job. (On the board of all
    /// the mesh nobody is expected.) `ranks` are a job's, where that is known.
    pub(super) fn members(&self, roster: &Roster, ranks: impl Fn(u64) -> Option<i32>) {
        for (job, board) in &mut self.state.lock().boards {
            board.presence(&roster.presence);
            board.expect_of(&roster.hosts_by_job().get(job).cloned().unwrap_or_default());
            board.miss(DeadHosts { ranks: ranks(*job), ..roster.dead_hosts(*job) });
            board.unclear(roster.unclear(*job));
        }
    }

    /// Takes in what a host sends of its ranks of a job.
    ///
    /// # Errors
    /// The job is none of this host's, or the request is too large; in words.
    pub(super) fn receive(&self, node: &str, request: &JobWindows) -> Result<WindowsReceived, String> {
        let most = usize::try_from(LONG_LOOKBACK).unwrap_or(usize::MAX);
        let fits = |window: &WindowDigest| window.digest.len() <= LARGEST && window.times.len() <= LARGEST_TIMES;
        if request.windows.len() > most || !request.windows.iter().all(fits) {
            return Err(format!(
                "{} windows of a job at once, or larger ones than any host sends",
                request.windows.len()
            ));
        }
        let lanes: BTreeSet<(u64, Arc<str>)> =
            request.unnumbered.iter().take(MOST_LANES).map(|(comm, func)| (*comm, func.as_str().into())).collect();
        let now_ns = steady_now_ns();
        let read: Vec<_> =
            request.windows.iter().map(|window| (window, digest::decode(&digest::to_text(&window.digest)))).collect();
        let mut state = self.state.lock();
        if !state.jobs.contains(&request.job) {
            return Err("no rank of this job runs here".to_owned());
        }
        let board = state.boards.entry(request.job).or_default();
        board.receive_slices(node, request.in_slices, now_ns);
        let anew = !board.knows_of(node);
        for (window, digest) in read {
            if !window.times.is_empty() {
                match time_use::decode(node, &digest::to_text(&window.times)) {
                    Ok(times) => board.receive_times(node, window.window, times),
                    Err(error) => tracing::debug!("where time went on {node}: {error}"),
                }
            }
            match digest {
                _ if window.digest.is_empty() => {}
                Ok(digest) => drop(board.receive(node, digest, now_ns)),
                Err(error) => {
                    tracing::debug!("digest of {node}: {error}");
                    board.refuse(node, error.to_string());
                }
            }
        }
        let needed = if lanes.is_empty() { Vec::new() } else { board.digests_needed(&lanes) };
        let encoded = |(node, digests): (&str, Vec<Digest>)| (node.to_owned(), digests.iter().map(encode).collect());
        let said = needed.into_iter().map(encoded).collect();
        let waited_in = state.waited_in(request.job, now_ns);
        drop(state);
        self.news.notify_one();
        Ok(WindowsReceived { anew, waited_in, said })
    }
}

#[cfg(test)]
mod tests {
    use digest::Process;

    use super::*;

    fn window(window: i64) -> WindowDigest {
        let processes = vec![Process { pid: 1, ..Process::default() }];
        let digest = encode(&Digest { window, processes, ..Digest::default() });
        WindowDigest { window, digest: digest::from_text(&digest).unwrap(), times: Vec::new() }
    }

    #[test]
    fn only_windows_of_this_hosts_jobs_are_taken_and_hosts_of_other_jobs_stay_apart() {
        let boards = Boards::default();
        boards.of_jobs(&BTreeSet::from([7, 8]));
        let of =
            |job, windows: Vec<WindowDigest>| JobWindows { job, windows, unnumbered: Vec::new(), in_slices: false };
        assert!(boards.receive("a", &of(9, vec![window(5)])).unwrap_err().contains("no rank"));
        assert!(boards.receive("a", &of(7, vec![window(5)])).unwrap().anew);
        assert!(!boards.receive("a", &of(7, vec![window(6)])).unwrap().anew);
        assert!(boards.receive("b", &of(8, vec![window(5)])).unwrap().anew);
        let board = boards.board(7).unwrap();
        assert!(board.knows("a", 5) && board.knows("a", 6) && !board.knows_of("b"));
        boards.of_jobs(&BTreeSet::from([8]));
        assert!(boards.board(7).is_none() && boards.board(8).is_some());
        let mut large = window(5);
        large.digest = vec![1; LARGEST + 1];
        assert!(boards.receive("a", &of(8, vec![large])).is_err());
        assert!(boards.receive("a", &of(8, vec![window(1); 500])).is_err());
    }
}
