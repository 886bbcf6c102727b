//! Places of strangers: who has connected and not yet shown who they are. Each has a place; where
//! there are too many, in all or from one source, the one that waits longest makes room. So who
//! connects and says nothing keeps nobody out.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Where a stranger comes from: an address, or the network that one host has in IPv6.
#[must_use]
pub fn source(address: SocketAddr) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64))),
        ip => ip,
    }
}

/// The strangers that are there.
#[derive(Debug)]
pub struct Lobby {
    all: usize,
    of_one: usize,
    /// In the order in which they came.
    there: Mutex<Vec<Stranger>>,
}

#[derive(Debug)]
struct Stranger {
    from: IpAddr,
    number: u64,
    kept: bool,
    make_room: Arc<Notify>,
}

/// A stranger's place; dropped, there is room for another.
#[derive(Debug)]
pub struct Place {
    lobby: Arc<Lobby>,
    number: u64,
    make_room: Arc<Notify>,
}

impl Lobby {
    /// Room for so many, and of these from one source.
    #[must_use]
    pub fn new(all: usize, of_one: usize) -> Arc<Self> {
        Arc::new(Self { all, of_one, there: Mutex::default() })
    }

    /// A place for one from there; `None` where all places are kept.
    pub fn enter(self: &Arc<Self>, from: IpAddr) -> Option<Place> {
        let mut there = self.there.lock();
        let of_one = there.iter().filter(|stranger| stranger.from == from).count();
        if there.len() >= self.all || of_one >= self.of_one {
            let goes = |stranger: &Stranger| !stranger.kept && (of_one < self.of_one || stranger.from == from);
            let at = there.iter().position(goes)?;
            there.remove(at).make_room.notify_one();
        }
        let number = there.last().map_or(0, |last| last.number + 1);
        let make_room = Arc::<Notify>::default();
        there.push(Stranger { from, number, kept: false, make_room: Arc::clone(&make_room) });
        Some(Place { lobby: Arc::clone(self), number, make_room })
    }
}

impl Place {
    /// Whether the place is kept whoever comes.
    pub fn keep(&self, kept: bool) {
        if let Some(stranger) = self.lobby.there.lock().iter_mut().find(|stranger| stranger.number == self.number) {
            stranger.kept = kept;
        }
    }

    /// Returns when the place went to another.
    pub async fn taken(&self) {
        self.make_room.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lobby.there.lock().retain(|stranger| stranger.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures::FutureExt as _;

    use super::*;

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    #[test]
    fn who_waits_makes_room_and_who_is_being_answered_does_not() {
        let lobby = Lobby::new(64, 32);
        let gone = |place: &Place| place.taken().now_or_never().is_some();
        let first = lobby.enter(ip(1)).unwrap();
        first.keep(true);
        let mut places: Vec<_> = (1..32).map(|_| lobby.enter(ip(1)).unwrap()).collect();
        assert!(!places.iter().any(gone));
        places.push(lobby.enter(ip(1)).unwrap());
        assert!(gone(&places[0]) && !gone(&first), "the one that waited longest");
        let others: Vec<_> = (0..64).map(|at| lobby.enter(ip(100 + at)).unwrap()).collect();
        assert!(lobby.there.lock().len() <= 64 && !gone(&first));
        others.iter().chain(&places).for_each(|place| place.keep(true));
        assert!(lobby.enter(ip(2)).is_none(), "all are at work");
        drop(others);
        assert!(lobby.enter(ip(2)).is_some());
    }

    #[test]
    fn one_network_of_ipv6_is_one_source() {
        let of = |text: &str| source(text.parse().unwrap());
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:2]:9"));
        assert_ne!(of("[2001:db8:0:1::1]:1"), of("[2001:db8::1]:1"));
        assert_eq!(of("[::ffff:10.0.0.1]:1"), ip(1));
    }
}
