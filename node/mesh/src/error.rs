//! Why a peer did not answer.

use std::net::SocketAddr;
use std::time::Duration;

use model::{Failure, FailureKind};
use quinn::ConnectionError;

use super::code;

/// Why a peer did not answer, in words for the coverage line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The deadline passed.
    #[error("timeout after {}", time(*.after))]
    Timeout {
        /// Time that the question had.
        after: Duration,
    },
    /// No connection to the peer, or it broke off.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// Its host says that nothing listens there.
    #[error("unreachable: connection refused")]
    NothingListens,
    /// The peer, or we, did not accept the other's certificate or protocol.
    #[error("refused: {0}")]
    Refused(String),
    /// Another node answers at that address.
    #[error("wrong node: {address} is {found}, not {expected}")]
    WrongPeer {
        /// Where it was asked.
        address: SocketAddr,
        /// Whom we wanted to ask.
        expected: certs::NodeName,
        /// Who is there.
        found: certs::NodeName,
    },
    /// The answer does not make sense.
    #[error("protocol error: {0}")]
    Protocol(String),
}

/// Seconds, or where they would be nearly none, milliseconds.
fn time(of: Duration) -> String {
    let seconds = of.as_secs_f64();
    if seconds < 0.1 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.1} s") }
}

impl AskError {
    /// Why a connection ended, or did not come about.
    pub(super) fn of_connection(error: &ConnectionError) -> Self {
        match error {
            ConnectionError::TimedOut => Self::Unreachable("connection timed out".into()),
            ConnectionError::Reset => Self::Unreachable("the peer restarted".into()),
            ConnectionError::LocallyClosed => Self::Unreachable("this node closed the connection".into()),
            // Our own TLS found fault with the peer.
            ConnectionError::TransportError(fault) => Self::Refused(tls_fault(&fault.reason)),
            // The peer's TLS found fault with us (or its QUIC, which does not happen between our
            // own).
            ConnectionError::ConnectionClosed(close) => {
                Self::Refused(format!("the peer does not accept this node ({close})"))
            }
            ConnectionError::ApplicationClosed(close) => {
                let reason = String::from_utf8_lossy(&close.reason).into_owned();
                if close.error_code.into_inner() == u64::from(code::SHUTDOWN) {
                    Self::Unreachable(if reason.is_empty() { "the peer closed the connection".into() } else { reason })
                } else {
                    Self::Refused(if reason.is_empty() { format!("code {}", close.error_code) } else { reason })
                }
            }
            other => Self::Protocol(other.to_string()),
        }
    }
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        let kind = match &error {
            AskError::Timeout { .. } => FailureKind::Timeout,
            AskError::Unreachable(_) => FailureKind::Unreachable,
            AskError::NothingListens => FailureKind::NothingListens,
            AskError::Refused(_) => FailureKind::Refused,
            AskError::WrongPeer { .. } => FailureKind::WrongNode,
            AskError::Protocol(_) => FailureKind::Other,
        };
        Self::new(kind, error.to_string())
    }
}

/// What our TLS found wrong, without the text that it puts around the verifier's message.
fn tls_fault(reason: &str) -> String {
    match certs::tls::plain_reason(reason) {
        "" => "the TLS handshake failed".to_owned(),
        words => words.to_owned(),
    }
}
