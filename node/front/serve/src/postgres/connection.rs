//! A client's connection: who does not log in makes room for others, a message has a bounded
//! length, and what a client leaves unread is given up.
//!
//! `pgwire`'s own loop reads up to 1 GiB of one message, before a password was shown, too, and
//! waits for ever for who reads nothing. The loop here differs from it in that alone.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt as _;
use model::lobby::{Lobby, Place, source};
use nix::sys::socket::{setsockopt, sockopt};
use pgwire::api::NoopHandler;
use pgwire::api::{ClientInfo as _, PgWireConnectionState, PgWireServerHandlers as _};
use pgwire::error::{ErrorInfo, PgWireError};
use pgwire::messages::PgWireFrontendMessage;
use pgwire::tokio::server::{negotiate_tls, process_error, process_message};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_util::codec::{Framed, FramedParts};

use super::super::listen::{Acceptor, Patient};
use super::Handlers;
use super::session::Handler;

/// Clients at a time; those that have not logged in, and of these from one address: a whole pool
/// may log in at once.
const CLIENTS: usize = 64;
const STRANGERS: usize = 2 * CLIENTS;
const STRANGERS_OF_ONE: usize = CLIENTS;
/// Connections at a time; further ones wait in the kernel's queue.
pub(super) const CONNECTIONS: usize = CLIENTS + 2 * STRANGERS;

/// Time to log in, TLS included.
const LOGIN: Duration = Duration::from_secs(30);
/// Bytes of a message before a client has logged in, as PostgreSQL has it for the first one, and of
/// one afterwards: more than a node takes as a question.
const STRANGERS_BYTES: usize = 10_000;
const MESSAGE_BYTES: usize = 1 << 20;
/// How long the rows of a portal or a cursor wait for who does not ask for them: they take the turn
/// of a question from others.
const UNREAD: Duration = Duration::from_secs(300);
/// A client that vanishes is noticed: seconds without a word, between two questions, and their number.
const SILENT_S: u32 = 60;
const BETWEEN_S: u32 = 15;
const UNANSWERED: u32 = 4;

/// Who is connected.
pub(super) struct Clients {
    strangers: Arc<Lobby>,
    room: Arc<Semaphore>,
}

impl Default for Clients {
    fn default() -> Self {
        Self { strangers: Lobby::new(STRANGERS, STRANGERS_OF_ONE), room: Arc::new(Semaphore::new(CLIENTS)) }
    }
}

impl Clients {
    /// Serves a client until it leaves.
    ///
    /// # Errors
    /// The connection broke off, or was given up.
    pub(super) async fn serve(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        tls: Option<Acceptor>,
        handlers: &Handlers,
    ) -> io::Result<()> {
        let Some(place) = self.strangers.enter(source(peer)) else { return Ok(()) };
        let _ = setsockopt(&stream, sockopt::KeepAlive, &true)
            .and_then(|()| setsockopt(&stream, sockopt::TcpKeepIdle, &SILENT_S))
            .and_then(|()| setsockopt(&stream, sockopt::TcpKeepInterval, &BETWEEN_S))
            .and_then(|()| setsockopt(&stream, sockopt::TcpKeepCount, &UNANSWERED));
        let login = tokio::time::sleep(LOGIN);
        tokio::pin!(login);
        let negotiated = tokio::select! {
            () = &mut login => return Ok(()),
            () = place.taken() => return Ok(()),
            negotiated = negotiate_tls(stream, tls) => negotiated?,
        };
        // TLS at once where there is none: nothing that could be answered.
        let Some(negotiated) = negotiated else { return Ok(()) };
        let left = Arc::new(AtomicUsize::new(STRANGERS_BYTES));
        let parts = negotiated.into_parts();
        let stream = Bounded { stream: Patient::new(parts.io), left: Arc::clone(&left) };
        let mut bounded = FramedParts::new::<pgwire::messages::PgWireBackendMessage>(stream, parts.codec);
        bounded.read_buf = parts.read_buf;
        bounded.write_buf = parts.write_buf;
        let mut socket = Framed::from_parts(bounded);

        let (startup, simple) = (handlers.startup_handler(), handlers.simple_query_handler());
        let (extended, cancel) = (handlers.extended_query_handler(), handlers.cancel_handler());
        let copy = Arc::new(NoopHandler);
        let (mut stranger, mut client): (Option<Place>, _) = (Some(place), None);
        loop {
            let message = match &stranger {
                Some(place) => tokio::select! {
                    () = &mut login => return Ok(()),
                    () = place.taken() => return Ok(()),
                    message = socket.next() => message,
                },
                None => match tokio::time::timeout(UNREAD, socket.next()).await {
                    Ok(message) => message,
                    Err(_) => {
                        Handler::give_up(&socket).await;
                        continue;
                    }
                },
            };
            let message = match message {
                Some(Ok(message)) => message,
                Some(Err(error)) => return process_error(&mut socket, fatal(&error), false).await,
                None => return Ok(()),
            };
            if matches!(message, PgWireFrontendMessage::Terminate(_)) {
                return Ok(());
            }
            let is_extended = message.is_extended_query();
            let is_cancel = matches!(message, PgWireFrontendMessage::CancelRequest(_));
            let (startup, simple) = (Arc::clone(&startup), Arc::clone(&simple));
            let (extended, copy) = (Arc::clone(&extended), Arc::clone(&copy));
            let done =
                process_message(message, &mut socket, startup, simple, extended, copy, Arc::clone(&cancel)).await;
            if let Err(error) = done {
                let is_fatal = error.is_fatal();
                process_error(&mut socket, error, is_extended).await?;
                if is_fatal {
                    return Ok(());
                }
            }
            if is_cancel {
                return Ok(());
            }
            let is_in = !matches!(
                socket.state(),
                PgWireConnectionState::AwaitingStartup | PgWireConnectionState::AuthenticationInProgress
            );
            if is_in && client.is_none() {
                let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
                    let full = format!("{CLIENTS} clients are connected here: close one, or use a pool");
                    return process_error(&mut socket, refused("53300", full), false).await;
                };
                (stranger, client) = (None, Some(room));
            }
            left.store(if client.is_some() { MESSAGE_BYTES } else { STRANGERS_BYTES }, Ordering::Relaxed);
        }
    }
}

fn refused(code: &str, message: String) -> PgWireError {
    PgWireError::UserError(Box::new(ErrorInfo::new("FATAL".to_owned(), code.to_owned(), message)))
}

/// What a client is told whose message cannot be read.
fn fatal(error: &PgWireError) -> PgWireError {
    match error {
        PgWireError::IoError(error) if error.kind() == io::ErrorKind::InvalidData => {
            refused("54000", error.to_string())
        }
        error => refused("08P01", record::printable(&error.to_string())),
    }
}

/// A stream of which so many bytes are read until `left` is set anew: what waits in the buffer of
/// its reader is then no longer than twice that.
struct Bounded<S> {
    stream: Patient<S>,
    left: Arc<AtomicUsize>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(mut self: Pin<&mut Self>, waking: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        const STEP: usize = 8 << 10;
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            let long = format!("a message has at most {MESSAGE_BYTES} bytes here, {STRANGERS_BYTES} before the login");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, long)));
        }
        let mut bytes = [0; STEP];
        let most = left.min(into.remaining()).min(STEP);
        let mut step = ReadBuf::new(&mut bytes[..most]);
        let read = Pin::new(&mut self.stream).poll_read(waking, &mut step);
        into.put_slice(step.filled());
        self.left.store(left - step.filled().len(), Ordering::Relaxed);
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, waking: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(waking, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, waking: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(waking)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, waking: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(waking)
    }
}
