//! The UDP socket and QUIC's settings: how the one endpoint that both dials and accepts is made.

use std::net::{SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use nix::sys::socket::{setsockopt, sockopt};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ConnectionId, ConnectionIdGenerator, Endpoint, EndpointConfig, IdleTimeout, TransportConfig, VarInt};

use rand::RngExt;

use super::MeshError;

/// Wanted size of the socket's buffers: a burst of handshakes from a few hundred nodes fits.
const SOCKET_BUFFER_BYTES: usize = 8 * 1024 * 1024;

/// A connection without a sign of life for this long is dead.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// Idle connections are kept open with a ping this often.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Questions a peer may have running here at a time, over one connection.
pub(super) const MAX_QUESTIONS: u32 = 64;

/// Gossip messages a peer may have under way at a time.
const MAX_GOSSIP_STREAMS: u32 = 64;

/// Unread bytes a peer may have on one stream: how much memory an answer that nobody reads can
/// take.
const STREAM_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// Unread bytes a peer may have on all streams of a connection together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Window {
    /// Nobody knows yet who it is: a join request fits.
    Stranger,
    /// A member that asks and gossips.
    Member,
    /// One of so many members that are asked: answers come.
    Asked(usize),
}

/// Unread bytes of all members that are asked, together, as long as each has [`Window::Member`]'s.
/// QUIC's library does not say how many there are, so they cannot be counted into the questions'
/// memory: what may be there at most is divided.
const ASKED_BYTES: u32 = 128 << 20;

impl Window {
    fn bytes(self) -> VarInt {
        const MEMBER: u32 = 1 << 20;
        const LARGEST: u32 = 16 << 20;
        VarInt::from_u32(match self {
            Self::Stranger => 64 << 10,
            Self::Member => MEMBER,
            Self::Asked(members) => {
                (ASKED_BYTES / u32::try_from(members.max(1)).unwrap_or(u32::MAX)).clamp(MEMBER, LARGEST)
            }
        })
    }

    /// Lets the peer at the other end have so many. (Where these are fewer than before, fewer are
    /// granted as it uses up what it has.)
    pub(super) fn open(self, connection: &quinn::Connection) {
        connection.set_receive_window(self.bytes());
    }
}

/// Assumed round trip before the first is measured: nodes are near each other, so a lost first
/// packet is repeated after 0.3 s rather than after QUIC's usual 1 s.
const INITIAL_RTT: Duration = Duration::from_millis(100);

/// Shortest time between two stateless resets. They are never longer than the packet that provoked
/// them, and a restarted node has as many peers to reset at once as it had connections.
const RESET_INTERVAL: Duration = Duration::from_micros(200);

/// Bytes of a connection id.
const ID_BYTES: usize = 8;

/// Random connection ids. (quinn's own generator would recognise ids of this process, and a
/// restarted node must answer those of its former life.)
struct RandomIds;

impl ConnectionIdGenerator for RandomIds {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&rand::rng().random::<[u8; ID_BYTES]>())
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Settings by which a restarted node resets the connections of its former life: the reset tokens
/// come from the host's own secret. A peer's next packet on such a connection is answered with a
/// stateless reset (RFC 9000, 10.3), so that the peer dials anew at once instead of waiting for an
/// acknowledgement.
fn settings(host_key: &certs::HostKey) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, host_key.as_bytes())));
    config.cid_generator(|| Box::new(RandomIds)).min_reset_interval(RESET_INTERVAL);
    config
}

/// Binds `listen` and starts an endpoint without a server configuration on it.
pub(super) fn bind(
    listen: SocketAddr,
    host_key: &certs::HostKey,
    runtime: Arc<dyn quinn::Runtime>,
) -> Result<Endpoint, MeshError> {
    let bound = |error| MeshError::Bind { listen, error };
    let socket = udp_socket(listen)?;
    enlarge_buffers(&socket);
    socket.set_nonblocking(true).map_err(bound)?;
    Endpoint::new(settings(host_key), None, socket, runtime).map_err(bound)
}

/// The UDP socket of an address; one on [::] also takes IPv4 (net.ipv6.bindv6only is 0 unless
/// someone changed it).
///
/// # Errors
/// [`MeshError::Bind`]: the port is taken, or the address is none of this host's.
pub fn udp_socket(listen: SocketAddr) -> Result<UdpSocket, MeshError> {
    UdpSocket::bind(listen).map_err(|error| MeshError::Bind { listen, error })
}

/// As large as we may: beyond net.core.rmem_max only with CAP_NET_ADMIN. Smaller buffers work, with
/// retransmissions.
fn enlarge_buffers(socket: &UdpSocket) {
    let socket = socket.as_fd();
    let receive = setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BUFFER_BYTES)
        .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &SOCKET_BUFFER_BYTES));
    let send = setsockopt(&socket, sockopt::SndBufForce, &SOCKET_BUFFER_BYTES)
        .or_else(|_| setsockopt(&socket, sockopt::SndBuf, &SOCKET_BUFFER_BYTES));
    if let Err(error) = receive.and(send) {
        tracing::debug!(%error, "the UDP socket keeps its default buffer sizes");
    }
}

/// QUIC's settings, the same for both roles since questions go both ways over each connection. Who
/// is at the other end is known later: see [`Window`].
fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .max_idle_timeout(IdleTimeout::try_from(IDLE_TIMEOUT).ok())
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_concurrent_bidi_streams(VarInt::from_u32(MAX_QUESTIONS))
        .max_concurrent_uni_streams(VarInt::from_u32(MAX_GOSSIP_STREAMS))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(Window::Stranger.bytes())
        .send_window(u64::from(2 * STREAM_WINDOW_BYTES))
        .datagram_receive_buffer_size(None)
        .initial_rtt(INITIAL_RTT);
    Arc::new(transport)
}

/// Server settings of `identity`; joiners are let in to `ALPN_JOIN` only when `accept_join`.
pub(super) fn server_config(identity: &certs::Identity, accept_join: bool) -> Result<quinn::ServerConfig, MeshError> {
    let tls = certs::tls::server_config(identity, accept_join)?;
    let crypto = QuicServerConfig::try_from(tls).map_err(|e| MeshError::Tls(e.to_string()))?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    // A connection's remote address is the peer's listen address, and the pool relies on it.
    config.transport_config(transport()).migration(false);
    Ok(config)
}

/// Client settings of `identity`, for dialling members.
pub(super) fn client_config(identity: &certs::Identity) -> Result<quinn::ClientConfig, MeshError> {
    let tls = certs::tls::client_config(identity)?;
    let crypto = QuicClientConfig::try_from(tls).map_err(|e| MeshError::Tls(e.to_string()))?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport());
    Ok(config)
}

/// One form for each address: a socket on [::] shows IPv4 peers as mapped addresses.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match SocketAddr::new(address.ip().to_canonical(), address.port()) {
        SocketAddr::V6(v6) => {
            let scope = if let SocketAddr::V6(original) = address { original.scope_id() } else { 0 };
            SocketAddr::V6(SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_become_plain() {
        assert_eq!(canonical("[::ffff:10.0.0.1]:7117".parse().unwrap()), "10.0.0.1:7117".parse().unwrap());
        assert_eq!(canonical("[fe80::1%3]:7117".parse().unwrap()), "[fe80::1%3]:7117".parse().unwrap());
    }

    #[test]
    fn all_who_are_asked_have_a_bounded_amount_unread() {
        let window = |members| Window::Asked(members).bytes().into_inner();
        assert_eq!((window(0), window(1), window(8), window(64)), (16 << 20, 16 << 20, 16 << 20, 2 << 20));
        assert_eq!((window(1_000), window(usize::MAX)), (1 << 20, 1 << 20));
        for members in 1..=128 {
            assert!(window(members) * members as u64 <= u64::from(ASKED_BYTES), "{members}");
        }
    }
}
