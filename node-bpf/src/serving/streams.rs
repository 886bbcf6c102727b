//! How streams of HTTP/2 end that no END_STREAM ends: with their connection, with their server, or
//! unknown, where the connection could not be followed to its end.

use std::collections::HashSet;

use super::{CALLS_LOST, CONNECTION_LOST, PROBES_LOST, REQUESTS_LOST, Recorder, STACKS_LOST, http2};
use crate::procfs;

/// Connections whose position in the frames was lost, as the ring says: how their streams end is not
/// known. Their streams are found to be left at the next round at the latest, so they are kept for
/// two. A round takes a second.
#[derive(Debug, Default)]
pub(super) struct LostPositions {
    now: HashSet<u64>,
    before: HashSet<u64>,
    /// Of this round, and of the one before, some may be missing.
    missed: bool,
    missed_before: bool,
}

impl LostPositions {
    pub(super) fn add(&mut self, connection: u64) {
        self.now.insert(connection);
    }

    /// Some may be missing: the ring was full, or was not read to its end.
    pub(super) fn miss(&mut self) {
        self.missed = true;
    }

    /// Whether a connection whose streams are left was followed to its end.
    fn followed_to_its_end(&self, connection: u64) -> bool {
        !self.missed && !self.missed_before && !self.now.contains(&connection) && !self.before.contains(&connection)
    }

    /// The next round begins.
    pub(super) fn turn(&mut self) {
        self.before = std::mem::take(&mut self.now);
        self.missed_before = std::mem::take(&mut self.missed);
    }
}

impl Recorder {
    /// Requests whose connections have closed before their answers had ended, or whose servers have
    /// `ended`. Reads the ring, and hands on what was lost.
    pub(super) fn end_streams(&mut self, ended: &HashSet<u32>) {
        let Some(programs) = &self.programs else { return };
        // In this order: a connection that is gone leaves all its streams, and the ring has its last word.
        let gone: Vec<u64> = self.http2.known().filter(|connection| !programs.has_streams(*connection)).collect();
        let left = programs.streams_left(ended);
        self.read();
        let Some(programs) = &mut self.programs else { return };
        let lost = programs.lost();
        let streams: Vec<_> = left.iter().filter_map(|key| programs.take_stream(key)).collect();
        if lost.ring > 0 {
            self.positions_lost.miss();
        }
        // Of what it did before it was followed anew, nothing is known: it may have answered.
        let known: Vec<_> = streams
            .iter()
            .filter(|raw| programs.followed_since(raw.pid).is_none_or(|since_ns| since_ns <= raw.begin_ns))
            .filter(|raw| self.positions_lost.followed_to_its_end(raw.connection))
            .collect();
        let unknown = (streams.len() - known.len()) as u64;
        for raw in known {
            // An answer that had begun broke off.
            let mut raw = raw.clone();
            raw.broke_off = true;
            self.request(&raw);
        }
        gone.into_iter().for_each(|connection| self.http2.forget(connection));
        self.lose("ringbuf", lost.ring + lost.http2_ring);
        self.lose("map_full", lost.map);
        self.lose(CONNECTION_LOST, lost.positions);
        self.lose(STACKS_LOST, lost.stacks);
        self.lose(PROBES_LOST, lost.probes);
        self.lose(REQUESTS_LOST, unknown);
        if let Some(mut programs) = self.programs.take() {
            self.hand_on_chosen(&mut programs);
            self.programs = Some(programs);
        }
    }

    /// Lets go of servers that are not `found` any more, after what is known of their requests was handed
    /// on.
    pub(super) fn forget_servers(&mut self, found: &HashSet<u32>) {
        let over: Vec<u32> = self.servers.keys().copied().filter(|pid| !found.contains(pid)).collect();
        if over.is_empty() {
            return;
        }
        // One that only listens no more may still answer, which is not seen: those requests are lost.
        let ended: HashSet<u32> = over.iter().copied().filter(|pid| !procfs::runs(*pid)).collect();
        self.end_streams(&ended);
        let (calls, off) = self.programs.as_mut().map_or((vec![], 0), |programs| {
            programs.forget_connections_of(&ended);
            programs.take_callers(|pid| over.contains(&pid))
        });
        self.lose(PROBES_LOST, off);
        for call in calls {
            match ended.contains(&call.pid) {
                true => self.request(&call),
                false => self.lose(CALLS_LOST, 1),
            }
        }
        for pid in over {
            self.servers.remove(&pid);
            self.processes.forget(pid);
        }
    }

    /// Takes the programs away, with what is left in them.
    pub(super) fn unload(&mut self) {
        self.forget_servers(&HashSet::new());
        self.calls.clear();
        let left = self.programs.take().map_or(0, |programs| programs.streams());
        self.lose(REQUESTS_LOST, left);
        self.http2 = http2::Connections::default();
        self.positions_lost = LostPositions::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_that_is_lost_in_the_midst_of_a_round_counts_for_the_next() {
        let mut lost = LostPositions::default();
        assert!(lost.followed_to_its_end(7));
        lost.add(7);
        assert!(!lost.followed_to_its_end(7) && lost.followed_to_its_end(8));
        lost.turn();
        assert!(!lost.followed_to_its_end(7), "its streams were not found to be left yet");
        lost.turn();
        assert!(lost.followed_to_its_end(7));
    }

    #[test]
    fn where_the_ring_has_lost_something_nothing_is_said_of_ends_in_this_round_and_the_next() {
        let mut lost = LostPositions::default();
        lost.miss();
        assert!(!lost.followed_to_its_end(7));
        lost.turn();
        assert!(!lost.followed_to_its_end(7));
        lost.turn();
        assert!(lost.followed_to_its_end(7));
    }
}
