//! Is there anybody at all? A datagram to a port where nothing listens is answered by the host itself (ICMP port
//! unreachable), which Linux reports on a connected UDP socket as ECONNREFUSED. QUIC's own socket is not connected and
//! never hears of it, so a killed agent on a running host would be noticed only by its silence, seconds later.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;

/// Waits until the host at `address` says that nothing listens there; pending for ever when it does not say so.
pub(super) async fn refused(address: SocketAddr) {
    if !asked_and_refused(address).await {
        std::future::pending::<()>().await;
    }
}

/// Whether the host at `address` says within `patience` that nothing listens there.
pub(super) async fn is_refused(address: SocketAddr, patience: Duration) -> bool {
    tokio::time::timeout(patience, asked_and_refused(address)).await.unwrap_or(false)
}

async fn asked_and_refused(address: SocketAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let Ok(socket) = UdpSocket::bind((any, 0)).await else { return false };
    if socket.connect(address).await.is_err() {
        return false;
    }
    // One byte is no QUIC packet: a listening endpoint drops it.
    if let Err(error) = socket.send(&[0]).await {
        return error.kind() == ErrorKind::ConnectionRefused;
    }
    let mut nothing = [0; 1];
    matches!(socket.recv(&mut nothing).await, Err(error) if error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tells_a_closed_port_from_a_silent_one() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap();
        assert!(!is_refused(address, Duration::from_millis(100)).await);
        drop(silent);
        assert!(is_refused(address, Duration::from_secs(5)).await);
    }
}
