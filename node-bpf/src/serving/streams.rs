//! How streams of HTTP/2 end that no END_STREAM ends: with their connection, with their server, or
//! unknown, where the connection could not be followed to its end.

use std::collections::HashSet;

use super::{CALLS_LOST, CONNECTION_LOST, REQUESTS_LOST, Recorder, http2};
use crate::procfs;

/// Connections whose position in the frames was lost, as the ring says: how their streams end is not
/// known. Their streams are found to be left at the next round at the latest, so they are kept for
/// two.
#[derive(Debug, Default)]
pub(super) struct LostPositions {
    now: HashSet<u64>,
    before: HashSet<u64>,
    /// Of the round before some may be missing.
    missed_before: bool,
}

impl LostPositions {
    pub(super) fn add(&mut self, connection: u64) {
        self.now.insert(connection);
    }

    /// Whether a connection whose streams are left was followed to its end. `missed`: of this round some
    /// may be missing.
    fn followed_to_its_end(&self, connection: u64, missed: bool) -> bool {
        !missed && !self.missed_before && !self.now.contains(&connection) && !self.before.contains(&connection)
    }

    /// The next round begins.
    fn turn(&mut self, missed: bool) {
        self.before = std::mem::take(&mut self.now);
        self.missed_before = missed;
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
        let mut unknown = 0;
        for raw in streams {
            if self.positions_lost.followed_to_its_end(raw.connection, lost.ring > 0) {
                self.request(&raw);
            } else {
                unknown += 1;
            }
        }
        self.positions_lost.turn(lost.ring > 0);
        gone.into_iter().for_each(|connection| self.http2.forget(connection));
        self.lose("ringbuf", lost.ring + lost.http2_ring);
        self.lose("map_full", lost.map);
        self.lose(CONNECTION_LOST, lost.positions);
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
        let calls = self.programs.as_mut().map_or(vec![], |programs| {
            programs.forget_connections_of(&ended);
            programs.take_callers(|pid| over.contains(&pid))
        });
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
        assert!(lost.followed_to_its_end(7, false));
        lost.add(7);
        assert!(!lost.followed_to_its_end(7, false) && lost.followed_to_its_end(8, false));
        lost.turn(false);
        assert!(!lost.followed_to_its_end(7, false), "its streams were not found to be left yet");
        lost.turn(false);
        assert!(lost.followed_to_its_end(7, false));
    }

    #[test]
    fn where_the_ring_has_lost_something_nothing_is_said_of_ends_in_this_round_and_the_next() {
        let mut lost = LostPositions::default();
        assert!(!lost.followed_to_its_end(7, true));
        lost.turn(true);
        assert!(!lost.followed_to_its_end(7, false));
        lost.turn(false);
        assert!(lost.followed_to_its_end(7, false));
    }
}
