//! The network between the hosts of a lab: a UDP relay on loopback.
//!
//! Each port of the relay stands for one host: datagrams sent to it go to that host, and arrive
//! from the port that stands for the sender. So both ends see addresses that work in both
//! directions, as between real hosts, and only the relay knows a host's own socket. Links lose,
//! delay or cut datagrams by ordered pairs of hosts.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::net::UdpSocket;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// Number of a host in its lab.
pub type HostId = usize;

/// Largest UDP payload.
const DATAGRAM_BYTES: usize = 65_536;
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// How long an address may stay taken by the socket that was there before.
const BIND_PATIENCE: Duration = Duration::from_secs(60);

/// The treatment of datagrams from one host to another.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Link {
    /// Nothing passes.
    pub cut: bool,
    /// Share that is lost, 0 to 1.
    pub loss: f64,
    /// Delay of each.
    pub delay: Duration,
}

impl Link {
    /// Whether every datagram arrives, however late.
    #[must_use]
    pub fn is_reliable(&self) -> bool {
        !self.cut && self.loss == 0.0
    }
}

/// The relay; dropping it closes every port.
pub struct Relay {
    runtime: Option<Runtime>,
    state: Arc<State>,
}

struct State {
    /// Ports by host, and the hosts' own addresses.
    wiring: Mutex<Wiring>,
    rng: Mutex<StdRng>,
    passed: AtomicU64,
    lost: AtomicU64,
}

#[derive(Default)]
struct Wiring {
    hosts: HashMap<SocketAddr, HostId>,
    ports: HashMap<HostId, Port>,
    links: HashMap<(HostId, HostId), Link>,
}

struct Port {
    socket: Arc<UdpSocket>,
    host: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl State {
    fn wiring(&self) -> MutexGuard<'_, Wiring> {
        self.wiring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn loses(&self, share: f64) -> bool {
        share > 0.0 && self.rng.lock().unwrap_or_else(PoisonError::into_inner).random_bool(share)
    }
}

impl Relay {
    /// A relay without ports. `seed` decides which datagrams are lost.
    ///
    /// # Errors
    /// Its thread cannot start.
    pub fn new(seed: u64) -> std::io::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("relay").enable_all().build()?;
        let state = State {
            wiring: Mutex::default(),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
            passed: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        };
        Ok(Self { runtime: Some(runtime), state: Arc::new(state) })
    }

    /// Opens the port `at` that stands for `host`, whose own socket is at `address`; gives the
    /// port's address.
    ///
    /// # Errors
    /// The address is taken, and stays so for a while.
    pub fn open(&self, host: HostId, address: SocketAddr, at: SocketAddr) -> std::io::Result<SocketAddr> {
        let socket = bind(at)?;
        for set in [
            setsockopt(&socket.as_fd(), sockopt::RcvBuf, &SOCKET_BUFFER_BYTES),
            setsockopt(&socket.as_fd(), sockopt::SndBuf, &SOCKET_BUFFER_BYTES),
        ] {
            // Smaller buffers lose more under load, as networks do.
            let _ = set;
        }
        socket.set_nonblocking(true)?;
        let port = socket.local_addr()?;
        let Some(runtime) = &self.runtime else { return Err(ErrorKind::NotConnected.into()) };
        let _inside = runtime.enter();
        let socket = Arc::new(UdpSocket::from_std(socket)?);
        let mut wiring = self.state.wiring();
        let task = runtime.spawn(carry(Arc::clone(&self.state), host, Arc::clone(&socket)));
        wiring.hosts.retain(|_, known| *known != host);
        wiring.hosts.insert(address, host);
        wiring.ports.insert(host, Port { socket, host: address, task });
        Ok(port)
    }

    /// Closes the port of `host`: senders get "connection refused".
    pub fn close(&self, host: HostId) {
        let port = self.state.wiring().ports.remove(&host);
        if let (Some(port), Some(runtime)) = (port, &self.runtime) {
            // The socket closes when its task is gone; wait for that, so that senders get the
            // refusal from now on.
            let socket = Arc::downgrade(&port.socket);
            drop(port);
            runtime.block_on(async {
                while socket.strong_count() > 0 {
                    tokio::task::yield_now().await;
                }
            });
        }
    }

    /// Sets the link from one host to another.
    pub fn link(&self, from: HostId, to: HostId, link: Link) {
        self.state.wiring().links.insert((from, to), link);
    }

    /// Datagrams carried, and lost on purpose.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.state.passed.load(Ordering::Relaxed), self.state.lost.load(Ordering::Relaxed))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.wiring().ports.clear();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Binds; an earlier socket may take a moment to be closed.
fn bind(at: SocketAddr) -> std::io::Result<std::net::UdpSocket> {
    let until = Instant::now() + BIND_PATIENCE;
    loop {
        match std::net::UdpSocket::bind(at) {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            bound => return bound,
        }
    }
}

/// Carries the datagrams that arrive at the port of `to`.
async fn carry(state: Arc<State>, to: HostId, port: Arc<UdpSocket>) {
    let mut buffer = vec![0; DATAGRAM_BYTES];
    loop {
        // An error here is about one datagram (nothing listened at the target of an earlier one).
        let Ok((length, sender)) = port.recv_from(&mut buffer).await else { continue };
        let (link, out, address) = {
            let wiring = state.wiring();
            // Datagrams of strangers (probes whether anything listens) are received and not
            // answered.
            let Some(from) = wiring.hosts.get(&sender).copied() else { continue };
            let Some(out) = wiring.ports.get(&from).map(|port| Arc::clone(&port.socket)) else { continue };
            let Some(address) = wiring.ports.get(&to).map(|port| port.host) else { continue };
            (wiring.links.get(&(from, to)).copied().unwrap_or_default(), out, address)
        };
        if link.cut || state.loses(link.loss) {
            state.lost.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        state.passed.fetch_add(1, Ordering::Relaxed);
        if link.delay.is_zero() {
            let _ = out.send_to(&buffer[..length], address).await;
        } else {
            let datagram = buffer[..length].to_vec();
            tokio::spawn(async move {
                tokio::time::sleep(link.delay).await;
                let _ = out.send_to(&datagram, address).await;
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket as StdSocket;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(120);

    fn host(relay: &Relay, id: HostId) -> (StdSocket, SocketAddr) {
        let socket = StdSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let port = relay.open(id, socket.local_addr().unwrap(), "127.0.0.1:0".parse().unwrap()).unwrap();
        (socket, port)
    }

    #[test]
    fn both_ends_see_addresses_that_lead_back() {
        let relay = Relay::new(1).unwrap();
        let ((a, at_a), (b, at_b)) = (host(&relay, 0), host(&relay, 1));
        let mut buffer = [0; 16];
        a.send_to(b"to b", at_b).unwrap();
        assert_eq!(b.recv_from(&mut buffer).unwrap(), (4, at_a));
        b.send_to(b"back", at_a).unwrap();
        assert_eq!(a.recv_from(&mut buffer).unwrap(), (4, at_b));
    }

    #[test]
    fn links_cut_lose_and_delay_in_one_direction() {
        let relay = Relay::new(2).unwrap();
        let ((a, at_a), (b, at_b)) = (host(&relay, 0), host(&relay, 1));
        let mut buffer = [0; 16];
        relay.link(0, 1, Link { cut: true, ..Link::default() });
        a.send_to(b"lost", at_b).unwrap();
        b.send_to(b"other", at_a).unwrap();
        assert_eq!(a.recv_from(&mut buffer).unwrap().0, 5);
        // Each port has its own task: one port's progress shows nothing about another's.
        let until = Instant::now() + PATIENCE;
        while relay.counts().1 == 0 {
            assert!(Instant::now() < until, "the datagram over the cut link was not counted");
            std::thread::yield_now();
        }

        relay.link(0, 1, Link { delay: Duration::from_millis(40), ..Link::default() });
        let sent = Instant::now();
        a.send_to(b"late", at_b).unwrap();
        assert_eq!(b.recv_from(&mut buffer).unwrap().0, 4);
        assert_eq!(&buffer[..4], b"late");
        assert!(sent.elapsed() >= Duration::from_millis(40));

        relay.link(0, 1, Link { loss: 0.2, ..Link::default() });
        for _ in 0..500 {
            a.send_to(b"x", at_b).unwrap();
        }
        let mut arrived = 0;
        // A port's task carries datagrams in order, so the end marker comes last; as it may be lost
        // as well, it is sent repeatedly.
        b.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let until = Instant::now() + PATIENCE;
        loop {
            a.send_to(b"end", at_b).unwrap();
            match b.recv_from(&mut buffer) {
                Ok((1, _)) => arrived += 1,
                Ok(_) => break,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        }
        assert!((1..500).contains(&arrived), "{arrived}");
        assert!(relay.counts().1 > 1);
    }

    #[test]
    fn a_closed_port_can_be_opened_again_at_its_address() {
        let relay = Relay::new(3).unwrap();
        let ((a, _), (b, at_b)) = (host(&relay, 0), host(&relay, 1));
        relay.close(1);
        let back = relay.open(1, b.local_addr().unwrap(), at_b).unwrap();
        assert_eq!(back, at_b);
        a.send_to(b"again", at_b).unwrap();
        assert_eq!(b.recv_from(&mut [0; 16]).unwrap().0, 5);
    }
}
