//! From capture to digests: the collector of this host's calls, fed by the recording's sink.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::wire::OpenCall;
use node_bpf::Record;
use verdicts::digest::{Collector, Digest, Heard, ReferenceClock, end_of};
use verdicts::{Activity, Observation};

use super::super::activity::{activity, runs};

/// A call shorter than this is not said to be open: its end comes with the next digest.
const OPEN_NS: i64 = 1_000_000_000;
/// Processes whose threads are looked at in a window, at most.
const MOST_LOOKED_AT: usize = 256;

/// The collector, shared by capture's threads and the task that closes windows.
#[derive(Debug, Default)]
pub(in crate::agent) struct Feed {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    collector: Collector,
    /// Names, once each.
    names: HashMap<&'static str, Arc<str>>,
}

impl State {
    fn name(&mut self, name: &'static str) -> Arc<str> {
        Arc::clone(self.names.entry(name).or_insert_with(|| name.into()))
    }
}

impl Feed {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take in a record; what is no collective call or loss is none of a digest's business.
    pub(in crate::agent) fn record(&self, record: &Record) {
        match record {
            // Put into a graph, not run: what runs later is not seen.
            Record::Collective(call) if call.captured == Some(true) => self.state().collector.unplaced(),
            // Its process ended in it: nothing was passed by.
            Record::Collective(call) if call.ret.is_none() => {}
            Record::Collective(call) => {
                let mut state = self.state();
                let (Some(rank), Some(comm_hash)) = (call.rank, call.comm_hash) else {
                    state.collector.unplaced();
                    return;
                };
                let node = state.name("");
                let (func, library) = (state.name(call.func), state.name(call.library.name()));
                let observed = Observation {
                    node,
                    pid: call.pid.into(),
                    rank,
                    nranks: call.nranks,
                    comm_hash,
                    func,
                    seq: call.seq.unwrap_or(0),
                    entry_ns: call.ts_ns,
                    duration_ns: call.duration_ns,
                    tier: call.tier,
                    library,
                    root: call.root,
                };
                match call.seq {
                    Some(_) => state.collector.push(observed),
                    None => state.collector.push_unnumbered(observed),
                }
            }
            Record::CudaCall(call) if call.kind == Some("after_collective") => {
                self.state().collector.synced(call.pid, call.ts_ns, call.duration_ns);
            }
            Record::Net(net) if net.event == "tcp_retransmit_skb" => {
                if let (Ok(from), Ok(to)) = (net.saddr.parse(), net.daddr.parse()) {
                    self.state().collector.resent(net.ts_ns, from, to);
                }
            }
            Record::Loss(loss) => self.state().collector.lost(loss.lost),
            _ => {}
        }
    }

    /// Communicators and functions of which calls were recorded whose numbers are not known yet.
    pub(super) fn unnumbered(&self) -> BTreeSet<(u64, Arc<str>)> {
        self.state().collector.unnumbered()
    }

    /// Number such calls, by what was heard; before [`close`](Self::close).
    pub(super) fn number(&self, me: &str, window: i64, clock: Option<ReferenceClock>, heard: &[Heard<'_>]) {
        self.state().collector.number(me, window, clock, heard);
    }

    /// What processes do, of those that are or were ranks of this host; of others nothing is said.
    pub(in crate::agent) fn activities(&self, pids: &[u32]) -> Vec<(u32, Activity)> {
        let state = self.state();
        let known: BTreeSet<u32> = state.collector.pids().collect();
        let gone: BTreeSet<u32> = pids.iter().copied().filter(|pid| state.collector.has_gone(*pid)).collect();
        drop(state);
        let of = |pid: &u32| match (known.contains(pid), gone.contains(pid)) {
            (true, _) => Some((*pid, activity(*pid))),
            (false, true) => Some((*pid, Activity::Ended)),
            (false, false) => None,
        };
        pids.iter().filter_map(of).take(MOST_LOOKED_AT).collect()
    }

    /// The digest of a window that is over; none where no rank runs here. `open` are the calls that ranks are in, `waits` who waits for
    /// its device and since when.
    pub(super) fn close(&self, window: i64, open: Vec<OpenCall>, waits: &[(u32, i64)]) -> Option<Digest> {
        let mut state = self.state();
        let gone: Vec<u32> = state.collector.pids().filter(|pid| !runs(*pid)).collect();
        let quiet = state.collector.quiet(end_of(window).saturating_sub(OPEN_NS));
        let quiet = quiet.into_iter().filter(|pid| !gone.contains(pid)).take(MOST_LOOKED_AT);
        state.collector.activities(quiet.map(|pid| (pid, activity(pid))).collect());
        let open: Vec<Observation> = open
            .into_iter()
            .filter_map(|call| super::super::stragglers::observed(&"".into(), call))
            .map(|call| Observation { duration_ns: end_of(window).saturating_sub(call.entry_ns), ..call })
            .filter(|call| call.duration_ns >= OPEN_NS)
            .collect();
        state.collector.open(&open);
        let waits: Vec<(u32, u64)> = waits
            .iter()
            .map(|(pid, since_ns)| (*pid, end_of(window).saturating_sub(*since_ns)))
            .filter(|(_, lasted_ns)| *lasted_ns >= OPEN_NS)
            .map(|(pid, lasted_ns)| (pid, lasted_ns.unsigned_abs() / 1_000_000))
            .collect();
        state.collector.device_waits(&waits);
        let digest = state.collector.close(window);
        // Only now: its last calls are in this digest.
        gone.into_iter().for_each(|pid| state.collector.gone(pid, window));
        let speaks = state.collector.pids().next().is_some() || !digest.lanes.is_empty() || !digest.gone.is_empty();
        speaks.then_some(digest)
    }
}
