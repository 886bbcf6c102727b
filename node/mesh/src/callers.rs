//! Addresses from which handshakes were started, and which of them were completed.
//!
//! A handshake that is started again and again and never completes is the trace of a firewall
//! that lets packets through one way only: the caller's arrive, ours do not.

use std::net::SocketAddr;
use std::time::Instant;

use model::health::CallerSeen;
use parking_lot::Mutex;

/// Addresses that are kept; beyond, the one that was silent longest is dropped. Anyone can send a
/// first packet, so this bounds the memory that strangers can take.
const ADDRESSES: usize = 1_024;

struct Caller {
    address: SocketAddr,
    node: Option<String>,
    started: u64,
    completed: u64,
    unfinished: u64,
    last: Instant,
}

/// The callers of an endpoint.
#[derive(Default)]
pub(super) struct Callers(Mutex<Vec<Caller>>);

impl Callers {
    /// Counts the start of a handshake.
    pub(super) fn started(&self, address: SocketAddr) {
        let mut callers = self.0.lock();
        let last = Instant::now();
        if let Some(caller) = callers.iter_mut().find(|caller| caller.address == address) {
            caller.started += 1;
            caller.unfinished += 1;
            caller.last = last;
            return;
        }
        if callers.len() >= ADDRESSES
            && let Some(oldest) = (0..callers.len()).min_by_key(|&at| callers[at].last)
        {
            callers.swap_remove(oldest);
        }
        callers.push(Caller { address, node: None, started: 1, completed: 0, unfinished: 1, last });
    }

    /// Counts a member's completed handshake.
    pub(super) fn completed(&self, address: SocketAddr, node: &str) {
        if let Some(caller) = self.0.lock().iter_mut().find(|caller| caller.address == address) {
            caller.completed += 1;
            caller.unfinished = 0;
            caller.node = Some(node.to_owned());
        }
    }

    /// All that are kept, the last caller first.
    pub(super) fn list(&self) -> Vec<CallerSeen> {
        let now = Instant::now();
        let mut list: Vec<CallerSeen> = self
            .0
            .lock()
            .iter()
            .map(|caller| CallerSeen {
                address: caller.address,
                node: caller.node.clone(),
                started: caller.started,
                completed: caller.completed,
                unfinished: caller.unfinished,
                last_ago_ms: u64::try_from(now.duration_since(caller.last).as_millis()).unwrap_or(u64::MAX),
            })
            .collect();
        list.sort_by_key(|caller| caller.last_ago_ms);
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_push_out_the_oldest_and_no_more() {
        let callers = Callers::default();
        let at = |port: u16| SocketAddr::from(([10, 0, 0, 1], port));
        callers.started(at(1));
        callers.started(at(2));
        callers.started(at(1));
        callers.completed(at(2), "b");
        callers.completed(at(9), "never started");
        let list = callers.list();
        let of = |port| {
            list.iter().find(|caller| caller.address == at(port)).map(|h| (h.started, h.completed, h.node.clone()))
        };
        assert_eq!(of(1), Some((2, 0, None)));
        assert_eq!(of(2), Some((1, 1, Some("b".to_owned()))));
        assert_eq!(list.len(), 2);
        for port in 1_000..1_000 + u16::try_from(ADDRESSES).expect("few") {
            callers.started(at(port));
        }
        assert_eq!(callers.list().len(), ADDRESSES);
        assert!(callers.list().iter().all(|caller| caller.address.port() >= 1_000), "the oldest went");
    }
}
