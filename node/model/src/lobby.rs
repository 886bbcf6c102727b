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

/// The strangers that are there, each with where it comes from.
#[derive(Debug)]
pub struct Lobby<From = IpAddr> {
    all: usize,
    of_one: usize,
    there: Mutex<There<From>>,
}

#[derive(Debug)]
struct There<From> {
    /// In the order in which they came.
    strangers: Vec<Stranger<From>>,
    /// How many ever came: the number of the next.
    came: u64,
}

#[derive(Debug)]
struct Stranger<From> {
    from: From,
    number: u64,
    kept: bool,
    make_room: Arc<Notify>,
}

/// A stranger's place; dropped, there is room for another.
#[derive(Debug)]
pub struct Place<From: PartialEq = IpAddr> {
    lobby: Arc<Lobby<From>>,
    number: u64,
    make_room: Arc<Notify>,
}

impl<From: PartialEq> Lobby<From> {
    /// Room for so many, and of these from one source.
    #[must_use]
    pub fn new(all: usize, of_one: usize) -> Arc<Self> {
        Arc::new(Self { all, of_one, there: Mutex::new(There { strangers: Vec::new(), came: 0 }) })
    }

    /// A place for one from there; `None` where all places are kept.
    pub fn enter(self: &Arc<Self>, from: From) -> Option<Place<From>> {
        let mut there = self.there.lock();
        let There { strangers, came } = &mut *there;
        let of_one = strangers.iter().filter(|stranger| stranger.from == from).count();
        if strangers.len() >= self.all || of_one >= self.of_one {
            let goes = |stranger: &Stranger<From>| !stranger.kept && (of_one < self.of_one || stranger.from == from);
            let at = strangers.iter().position(goes)?;
            strangers.remove(at).make_room.notify_one();
        }
        let number = *came;
        *came += 1;
        let make_room = Arc::<Notify>::default();
        strangers.push(Stranger { from, number, kept: false, make_room: Arc::clone(&make_room) });
        Some(Place { lobby: Arc::clone(self), number, make_room })
    }
}

impl<From: PartialEq> Place<From> {
    /// Whether the place is kept whoever comes.
    pub fn keep(&self, kept: bool) {
        if let Some(stranger) =
            self.lobby.there.lock().strangers.iter_mut().find(|stranger| stranger.number == self.number)
        {
            stranger.kept = kept;
        }
    }

    /// Returns when the place went to another.
    pub async fn taken(&self) {
        self.make_room.notified().await;
    }
}

impl<From: PartialEq> Drop for Place<From> {
    fn drop(&mut self) {
        self.lobby.there.lock().strangers.retain(|stranger| stranger.number != self.number);
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
        assert!(lobby.there.lock().strangers.len() <= 64 && !gone(&first));
        others.iter().chain(&places).for_each(|place| place.keep(true));
        assert!(lobby.enter(ip(2)).is_none(), "all are at work");
        drop(others);
        assert!(lobby.enter(ip(2)).is_some());
    }

    /// A place that was taken and is given back late is nobody else's.
    #[test]
    fn a_place_that_is_given_back_late_gives_back_no_other() {
        let lobby = Lobby::new(1, 1);
        let first = lobby.enter(ip(1)).unwrap();
        let second = lobby.enter(ip(2)).unwrap();
        assert!(first.taken().now_or_never().is_some());
        drop(second);
        let third = lobby.enter(ip(3)).unwrap();
        drop(first);
        third.keep(true);
        assert!(lobby.enter(ip(4)).is_none(), "the third is still there");
    }

    #[test]
    fn one_network_of_ipv6_is_one_source() {
        let of = |text: &str| source(text.parse().unwrap());
        assert_eq!(of("[2001:db8::1]:1"), of("[2001:db8::ffff:2]:9"));
        assert_ne!(of("[2001:db8:0:1::1]:1"), of("[2001:db8::1]:1"));
        assert_eq!(of("[::ffff:10.0.0.1]:1"), ip(1));
    }
}
