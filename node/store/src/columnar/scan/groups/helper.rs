//! Owns letting a second thread help with a long scan, where the host has a core to spare. The one
//! thread reads segments and hands them over as long as the other can take them, and does what it
//! cannot hand over itself. The second thread has the priority of the first (Linux: a thread begins
//! with that of its creator), so it never competes with the ranks, and its memory is the
//! question's.

use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

use query_planner::memory::{self, Reservation};

use super::super::{Failure, StepAside, Work};
use super::states::{State, reserve};

/// Rows from which on a second thread is worth beginning.
const WORTH_ROWS: u64 = 1 << 20;

/// Whether a second thread is to help with a scan of so many rows. (Of this crate's tests half are
/// helped, however short they are and whatever the host does.)
fn is_to_help(rows: u64) -> bool {
    if cfg!(test) { rows.is_multiple_of(2) } else { rows >= WORTH_ROWS && has_idle_core() }
}

/// Takes segments.
pub(super) struct Helper<T> {
    sender: Option<SyncSender<T>>,
}

impl<T> Helper<T> {
    /// Hands `opened` over; returns it where the helper has enough to do.
    pub(super) fn offer(&self, opened: T) -> Result<Option<T>, Failure> {
        let Some(sender) = &self.sender else { return Ok(Some(opened)) };
        match sender.try_send(opened) {
            Ok(()) => Ok(None),
            Err(TrySendError::Full(opened)) => Ok(Some(opened)),
            // It has failed, and says why when it is waited for.
            Err(TrySendError::Disconnected(_)) => Err(StepAside.into()),
        }
    }
}

/// Runs `go` with a helper that runs `add` on what it is offered, beginning with `state`; returns
/// its state at the end.
pub(super) fn with_helper<T: Send>(
    work: &Work<'_>,
    mut state: State,
    add: impl Fn(T, &mut State) -> Result<(), Failure> + Send,
    go: impl FnOnce(&Helper<T>) -> Result<(), Failure>,
) -> Result<Option<State>, Failure> {
    let rows: u64 = work.segments.iter().map(|segment| segment.rows as u64).sum();
    if !is_to_help(rows) {
        return go(&Helper { sender: None }).map(|()| None);
    }
    let account = memory::account_here();
    std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel(1);
        let helper = scope.spawn(move || {
            let _cap = account.as_ref().map(memory::cap_of);
            let mut reservation = Reservation::default();
            for opened in receiver {
                reserve(&mut reservation, &state)?;
                add(opened, &mut state)?;
            }
            Ok::<_, Failure>(state)
        });
        let helped = Helper { sender: Some(sender) };
        let done = go(&helped);
        drop(helped);
        match helper.join() {
            Ok(Ok(state)) => done.map(|()| Some(state)),
            Ok(Err(failure)) => Err(failure),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Whether fewer threads want to run right now, this one included, than there are cores
/// (proc_loadavg(5): the fourth field).
fn has_idle_core() -> bool {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let running = std::fs::read_to_string("/proc/loadavg").ok().and_then(|text| {
        let (running, _) = text.split_whitespace().nth(3)?.split_once('/')?;
        running.parse::<usize>().ok()
    });
    running.is_some_and(|running| running < cores)
}
