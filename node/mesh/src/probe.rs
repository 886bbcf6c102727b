//! Whether anything listens at an address. A datagram to a port where nothing listens is answered
//! by the host itself (ICMP port unreachable), which Linux reports on a connected UDP socket as
//! ECONNREFUSED; that a host cannot be routed to is known to our own kernel or to a router. QUIC's
//! socket is not connected and gets neither report, so without this a killed agent on a running
//! host would be noticed only by its silence, seconds later.

use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;

use super::error::AskError;

/// How long to wait for a refusal before the next packet.
const ONCE_MORE: Duration = Duration::from_millis(400);

/// What the network reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Objection {
    #[error("connection refused")]
    NothingListens,
    #[error("no route to host")]
    NoRoute,
}

impl From<Objection> for AskError {
    fn from(objection: Objection) -> Self {
        match objection {
            Objection::NothingListens => Self::NothingListens,
            Objection::NoRoute => Self::Unreachable(objection.to_string()),
        }
    }
}

/// Waits until the network reports that `address` cannot be reached, and why; pending for ever when
/// it does not.
pub(super) async fn objection(address: SocketAddr) -> Objection {
    match provoke(address).await.err().as_ref().and_then(of_error) {
        Some(objection) => objection,
        None => std::future::pending().await,
    }
}

/// The result of [`objection`] if it comes within `patience`.
pub(super) async fn objection_within(address: SocketAddr, patience: Duration) -> Option<Objection> {
    tokio::time::timeout(patience, objection(address)).await.ok()
}

async fn provoke(address: SocketAddr) -> Result<(), Error> {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(address).await?;
    loop {
        // One byte is no QUIC packet: a listening endpoint drops it.
        socket.send(&[0]).await?;
        // A host sends only a few such reports a second, and QUIC's own packets use some of them
        // up.
        if let Ok(received) = tokio::time::timeout(ONCE_MORE, socket.recv(&mut [0; 1])).await {
            received?;
            return Ok(());
        }
    }
}

fn of_error(error: &Error) -> Option<Objection> {
    match error.kind() {
        ErrorKind::ConnectionRefused => Some(Objection::NothingListens),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Some(Objection::NoRoute),
        // Errors on our own side (no free port, not permitted, …) prove nothing about the peer.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tells_a_closed_port_from_a_silent_one() {
        // an address of its own, where nobody takes the port that is given back
        let silent = UdpSocket::bind("127.62.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap();
        assert_eq!(objection_within(address, Duration::from_millis(100)).await, None);
        drop(silent);
        assert_eq!(objection_within(address, Duration::from_secs(60)).await, Some(Objection::NothingListens));
    }
}
