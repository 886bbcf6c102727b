//! A lane between windows: what its next entry in a digest holds, and when it needs none.

use std::sync::Arc;

use observed::{Coupling, Observation};

use super::blocks::most_runs;
use super::waits::Pending;
use super::{Lane, Open};

/// Windows after which an idle lane of a living process is shipped again, so that who comes later
/// learns how far it got.
const REMIND: i64 = 4;
/// Windows for which calls of a function that does not make all ranks meet are added up before its
/// lane is shipped: only how many there were and how far they got is of interest. Once none came in
/// a window it is shipped at once.
const ADDED_UP: i64 = 4;
/// Windows after which a lane without calls ends, where nobody waits in its communicator: that is
/// no more, or nobody needs to know.
const IDLE: i64 = 1_200;

/// A lane between windows.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) nranks: Option<i32>,
    pub(super) rank: i32,
    pub(super) library: Arc<str>,
    pub(super) tier: u8,
    pub(super) last_seq: Option<u64>,
    /// Its numbers were found here: they do not show how far it got.
    pub(super) late: bool,
    /// Calls of which any number will do, that were given one.
    pub(super) counted: u64,
    /// Ended and not shipped.
    pub(super) pending: Pending,
    pub(super) calls: u64,
    /// So many of `calls` had come when the window before was closed.
    calls_before: u64,
    pub(super) open: Option<Open>,
    /// How long its process has waited for its device, milliseconds, where its calls only enqueue.
    pub(super) device_ms: Option<u64>,
    shipped: i64,
    /// The last window in which it had a call; none before the first is closed.
    active: Option<i64>,
}

impl Track {
    pub(super) fn new(call: &Observation) -> Self {
        Self {
            nranks: call.nranks,
            rank: call.rank,
            library: Arc::clone(&call.library),
            tier: call.tier,
            last_seq: None,
            late: false,
            counted: 0,
            pending: Pending::default(),
            calls: 0,
            calls_before: 0,
            open: None,
            device_ms: None,
            shipped: 0,
            active: None,
        }
    }

    pub(super) fn is_idle(&self, window: i64) -> bool {
        self.active.is_some_and(|at| window - at > IDLE)
    }

    /// What of it goes into the digest of a window; none when there is nothing, unless that is
    /// `wanted`. `every_call`: each call by itself.
    pub(super) fn lane(
        &mut self,
        comm_hash: u64,
        func: &Arc<str>,
        window: i64,
        (wanted, every_call): (bool, bool),
    ) -> Option<Lane> {
        if self.calls > 0 || self.open.is_some() || self.device_ms.is_some() {
            self.active = Some(window);
        }
        let blocks = self.pending.ship(window, (!every_call).then(|| most_runs(self.nranks)));
        let open = self.open.filter(|open| self.last_seq.is_none_or(|last| last < open.seq));
        let enqueued = self.last_seq.zip(self.device_ms).map(|(seq, for_ms)| Open { seq, for_ms });
        let open = open.or(enqueued).filter(|_| !self.late);
        let goes_on = self.calls > std::mem::replace(&mut self.calls_before, self.calls);
        let meets = Coupling::of(func) == Coupling::All;
        if goes_on && !meets && open.is_none() && !wanted && window - self.shipped < ADDED_UP {
            return None;
        }
        let calls = std::mem::take(&mut self.calls);
        self.calls_before = 0;
        if calls == 0 && open.is_none() && blocks.is_empty() && window - self.shipped < REMIND && !wanted {
            return None;
        }
        self.shipped = window;
        Some(Lane {
            process: 0,
            comm_hash,
            nranks: self.nranks,
            rank: self.rank,
            func: Arc::clone(func),
            library: Arc::clone(&self.library),
            tier: self.tier,
            calls,
            last_seq: self.last_seq.filter(|_| !self.late),
            open,
            blocks,
        })
    }
}
