//! A lane between windows: what its next entry in a digest holds, and when it needs none.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use observed::{Coupling, Made, Observation, RECENT_CALLS};

use super::Lane;
use super::blocks::most_runs;
use super::waits::Pending;

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
/// Peers of which sends or receives are counted, at most.
const MOST_PEERS: usize = 64;

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
    /// Position of its last call on the communicator.
    pub(super) place: Option<u64>,
    /// Its last calls, by position, the latest last.
    pub(super) recent: VecDeque<Made>,
    /// Calls to one rank that only enqueue: how many, by peer; none where they were not counted from
    /// the communicator's start.
    pub(super) peers: Option<BTreeMap<i32, u64>>,
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
            place: None,
            recent: VecDeque::new(),
            peers: Some(BTreeMap::new()),
            shipped: 0,
            active: None,
        }
    }

    /// Takes in a call that is numbered.
    pub(super) fn take(&mut self, call: &Observation) {
        self.calls += 1;
        self.nranks = self.nranks.max(call.nranks);
        if !self.late && self.last_seq.is_some_and(|last| call.seq <= last) {
            // The communicator was made anew.
            (self.place, self.peers) = (None, Some(BTreeMap::new()));
            self.recent.clear();
        }
        self.made(call);
        if call.tier == 0 && Coupling::of(&call.func) == Coupling::Pair {
            self.peer(call);
        }
    }

    /// A call has ended: how far its process is on the communicator, where it has a position there.
    /// (It may have one and no number.)
    pub(super) fn made(&mut self, call: &Observation) {
        let Some(position) = call.comm_seq.filter(|at| self.recent.iter().all(|made| made.position != *at)) else {
            return;
        };
        self.place = self.place.max(Some(position));
        if self.recent.len() == RECENT_CALLS {
            self.recent.pop_front();
        }
        let (func, payload) = (Arc::clone(&call.func), call.payload.clone());
        self.recent.push_back(Made { position, func, root: call.root, payload });
    }

    /// Counts a send or receive, where none is missing.
    fn peer(&mut self, call: &Observation) {
        let next = self.last_seq.map_or(0, |last| last.saturating_add(1));
        let Some(peers) = self.peers.as_mut().filter(|_| call.seq == next && !self.late) else {
            self.peers = None;
            return;
        };
        let known = peers.len();
        match call.root {
            Some(peer) if known < MOST_PEERS || peers.contains_key(&peer) => *peers.entry(peer).or_default() += 1,
            _ => self.peers = None,
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
        if self.calls > 0 {
            self.active = Some(window);
        }
        let blocks = self.pending.ship(window, (!every_call).then(|| most_runs(self.nranks)));
        let goes_on = self.calls > std::mem::replace(&mut self.calls_before, self.calls);
        let meets = Coupling::of(func) == Coupling::All;
        if goes_on && !meets && !wanted && window - self.shipped < ADDED_UP {
            return None;
        }
        let calls = std::mem::take(&mut self.calls);
        self.calls_before = 0;
        if calls == 0 && blocks.is_empty() && window - self.shipped < REMIND && !wanted {
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
            place: self.place,
            blocks,
        })
    }
}
