//! Asking a peer: one request on its own stream, then its responses, within a deadline.
//!
//! A connection that has been open for a while may have lost its peer (killed, restarted) without a
//! sign of it. So a request waits for an acknowledgement: the peer's QUIC sends it within moments,
//! whatever the agent above it is doing. If it does not come, or the peer's host reports that
//! nothing listens on the port, a reused connection is given up and the request goes out once more
//! on a fresh one (all requests are idempotent, and nothing of the answer was seen). The same
//! happens when the connection ends between the acknowledgement and the first response: the peer
//! may have closed it as unused just then (`idle`).

use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use model::frame::{FrameError, FrameReader};
use model::wire::{Request, Response};
use quinn::ConnectionError;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::endpoint::Window;
use super::error::AskError;
use super::idle::ConnectionUse;
use super::pool::{Peer, Purpose};
use super::{Mesh, active_time, probe};

/// A request that the peer's QUIC has not acknowledged by then is lost.
const SILENCE_LIMIT: Duration = Duration::from_secs(3);

/// Silence after which it is checked whether the peer's host still listens, and the time between
/// further checks during an answer.
const SILENCE_PROBE: Duration = Duration::from_millis(250);
const ANSWER_PROBE: Duration = Duration::from_secs(1);
/// How long that host may take to refuse.
const PROBE_PATIENCE: Duration = Duration::from_millis(250);

/// A request as it goes over the wire: encoded once for however many peers are asked the same.
#[derive(Debug, Clone)]
pub struct Encoded(Bytes);

impl Encoded {
    /// Encodes a request.
    ///
    /// # Errors
    /// It is too long for a frame.
    pub fn of(request: &Request) -> Result<Self, AskError> {
        request.encoded().map(|bytes| Self(bytes.into())).map_err(|e| AskError::Protocol(e.to_string()))
    }
}

/// Why an attempt failed: for good, or in a way that a fresh connection may cure.
enum Attempt {
    Failed(AskError),
    Stale(AskError),
}

impl Mesh {
    /// Asks `peer` at `address`; the answer comes out of the stream. Returns when the answer
    /// begins, or when the request is known to have arrived.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn ask(
        &self,
        peer: &certs::NodeName,
        address: SocketAddr,
        request: Request,
        deadline: Instant,
    ) -> Result<ResponseStream, AskError> {
        self.ask_encoded(peer, address, &Encoded::of(&request)?, deadline).await
    }

    /// As [`Mesh::ask`], for a request that others are asked as well.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn ask_encoded(
        &self,
        peer: &certs::NodeName,
        address: SocketAddr,
        request: &Encoded,
        deadline: Instant,
    ) -> Result<ResponseStream, AskError> {
        let started = Instant::now();
        let mut retried = false;
        loop {
            let lease = self.connect(address, Purpose::Question, deadline).await?;
            // A question with little time left keeps some of it for a fresh connection.
            let patience = if lease.reused && !retried {
                SILENCE_LIMIT.min(deadline.saturating_duration_since(Instant::now()) / 2)
            } else {
                SILENCE_LIMIT
            };
            let attempt = if lease.peer.node == *peer {
                put(&lease.peer, self.0.pool.connections(), request.0.clone(), patience, started, deadline).await
            } else {
                let found = lease.peer.node.clone();
                Err(Attempt::Stale(AskError::WrongPeer { address, expected: peer.clone(), found }))
            };
            match attempt {
                Ok(mut answer) => {
                    answer.again = (lease.reused && !retried).then(|| Again {
                        mesh: self.clone(),
                        node: peer.clone(),
                        address,
                        request: request.clone(),
                    });
                    return Ok(answer);
                }
                Err(Attempt::Stale(error)) if lease.reused && !retried => {
                    tracing::debug!(node = %peer, %address, %error, "asking again on a fresh connection");
                    self.0.pool.evict(&lease.peer);
                    retried = true;
                }
                Err(Attempt::Failed(error) | Attempt::Stale(error)) => return Err(error),
            }
        }
    }
}

/// How long to wait for the host's refusal: not beyond the deadline.
fn probe_patience(deadline: Instant) -> Duration {
    PROBE_PATIENCE.min(deadline.saturating_duration_since(Instant::now()))
}

/// Puts the request on a stream and waits for the first response, or after a moment for its
/// acknowledgement.
async fn put(
    peer: &std::sync::Arc<Peer>,
    members: usize,
    request: Bytes,
    patience: Duration,
    started: Instant,
    deadline: Instant,
) -> Result<ResponseStream, Attempt> {
    let timeout = || Attempt::Failed(AskError::Timeout { after: deadline.duration_since(started) });
    let lost = |e: ConnectionError| Attempt::Stale(AskError::of_connection(&e));
    let silent = |now: Instant| {
        if now >= deadline { timeout() } else { Attempt::Stale(AskError::Unreachable("no sign of life".into())) }
    };

    let using = ConnectionUse::of(peer);
    if peer.usage.asked_of(members) {
        Window::Asked(members).open(&peer.connection);
    }
    // Waits here while the peer serves as many of our questions as it allows at a time.
    let (mut send, recv) =
        timeout_at(deadline, peer.connection.open_bi()).await.map_err(|_| timeout())?.map_err(lost)?;
    let silence = |patience| async move {
        tokio::select! {
            () = active_time::sleep(patience) => {}
            () = sleep_until(deadline) => {}
        }
    };
    let written = tokio::select! {
        biased;
        written = send.write_chunk(request) => written,
        () = silence(patience) => return Err(silent(Instant::now())),
    };
    if written.is_err() || send.finish().is_err() {
        let reason = peer.connection.close_reason().unwrap_or(ConnectionError::Reset);
        return Err(lost(reason));
    }
    let mut stream = ResponseStream {
        reader: FrameReader::new(recv).counted_to(&peer.quota.frames),
        using,
        again: None,
        first: None,
        ended: false,
        started,
        deadline,
    };
    // In most cases the answer arrives before it has to be checked whether the peer still runs.
    let first_look = SILENCE_PROBE.min(patience);
    let mut look = std::pin::pin!(sleep_until((Instant::now() + first_look).min(deadline)));
    tokio::select! {
        biased;
        read = stream.reader.read::<Response>() => return stream.begins_with(read),
        () = &mut look => {}
    }
    let mut acknowledged = std::pin::pin!(send.stopped());
    let mut silence = std::pin::pin!(silence(patience - first_look));
    loop {
        tokio::select! {
            biased;
            read = stream.reader.read::<Response>() => return stream.begins_with(read),
            acknowledged = &mut acknowledged => match acknowledged {
                Ok(_) => return Ok(stream),
                Err(quinn::StoppedError::ConnectionLost(error)) => return Err(lost(error)),
                Err(error) => return Err(Attempt::Failed(AskError::Protocol(error.to_string()))),
            },
            () = &mut silence => return Err(silent(Instant::now())),
            () = &mut look => {
                let objection = tokio::select! {
                    objection = probe::objection_within(peer.address, probe_patience(deadline)) => objection,
                    () = &mut silence => return Err(silent(Instant::now())),
                };
                if let Some(objection) = objection {
                    return Err(Attempt::Stale(objection.into()));
                }
                look.as_mut().reset(Instant::now() + SILENCE_PROBE);
            }
        }
    }
}

/// A request that may go out once more, over a fresh connection.
struct Again {
    mesh: Mesh,
    node: certs::NodeName,
    address: SocketAddr,
    request: Encoded,
}

/// An answer as it arrives. Dropping it makes the peer stop.
pub struct ResponseStream {
    reader: FrameReader<quinn::RecvStream>,
    using: ConnectionUse,
    again: Option<Again>,
    first: Option<Response>,
    ended: bool,
    started: Instant,
    deadline: Instant,
}

impl ResponseStream {
    /// Returns itself if what was read is a first response.
    fn begins_with(mut self, read: Result<Option<Response>, FrameError>) -> Result<Self, Attempt> {
        match read {
            Ok(Some(response)) => self.first = Some(response),
            Ok(None) => return Err(Attempt::Failed(AskError::Protocol("the answer is empty".into()))),
            Err(error) => {
                return Err(match self.fault(error) {
                    broken @ AskError::Unreachable(_) => Attempt::Stale(broken),
                    refused @ AskError::Refused(_) => Attempt::Stale(refused),
                    other => Attempt::Failed(other),
                });
            }
        }
        Ok(self)
    }

    /// The next response; `None` after the last one. An answer that breaks off is an error, never a
    /// short answer. Cancel-safe.
    ///
    /// # Errors
    /// See [`AskError`]. After one there is nothing more to come.
    pub async fn next(&mut self) -> Result<Option<Response>, AskError> {
        if self.ended {
            return Ok(None);
        }
        let mut response = self.first_or_next().await;
        if let Some(again) = self.again.take()
            && let Err(error @ (AskError::Unreachable(_) | AskError::NothingListens)) = &response
        {
            tracing::debug!(node = %again.node, address = %again.address, %error, "asking again: nothing was answered yet");
            self.ended = true;
            again.mesh.0.pool.evict(self.using.peer());
            let fresh = Box::pin(again.mesh.ask_encoded(&again.node, again.address, &again.request, self.deadline));
            *self = fresh.await?;
            self.again = None;
            response = self.first_or_next().await;
        }
        self.ended = response.as_ref().map_or(true, Response::is_last);
        if self.ended {
            self.reader.at_end();
        }
        response.map(Some)
    }

    async fn first_or_next(&mut self) -> Result<Response, AskError> {
        match self.first.take() {
            Some(first) => Ok(first),
            None => self.wait().await,
        }
    }

    async fn wait(&mut self) -> Result<Response, AskError> {
        loop {
            // Either the next response, or the number of datagrams received when this wait began.
            let read = {
                let mut read = std::pin::pin!(self.reader.read::<Response>());
                match futures::poll!(read.as_mut()) {
                    // A small answer has arrived completely.
                    Poll::Ready(read) => Ok(read),
                    Poll::Pending => {
                        let received = datagrams_received(&self.using);
                        let look_again = self.deadline.min(Instant::now() + ANSWER_PROBE);
                        timeout_at(look_again, read).await.map_err(|_| received)
                    }
                }
            };
            match read {
                Ok(Ok(Some(response))) => return Ok(response),
                Ok(Ok(None)) => return Err(AskError::Protocol("the answer broke off".into())),
                Ok(Err(error)) => return Err(self.fault(error)),
                Err(_) if Instant::now() >= self.deadline => {
                    return Err(AskError::Timeout { after: self.deadline.duration_since(self.started) });
                }
                Err(received) => {
                    let silent = datagrams_received(&self.using) == received;
                    if silent
                        && let Some(objection) =
                            probe::objection_within(self.using.peer().address, probe_patience(self.deadline)).await
                    {
                        return Err(objection.into());
                    }
                }
            }
        }
    }

    fn fault(&self, error: FrameError) -> AskError {
        match error {
            FrameError::Io(io) => {
                if let Some(reason) = self.using.peer().connection.close_reason() {
                    return AskError::of_connection(&reason);
                }
                match io.get_ref().and_then(|inner| inner.downcast_ref::<quinn::ReadError>()) {
                    Some(quinn::ReadError::Reset(_)) => AskError::Protocol("the peer gave the answer up".into()),
                    _ => AskError::Unreachable(io.to_string()),
                }
            }
            other => AskError::Protocol(other.to_string()),
        }
    }
}

fn datagrams_received(using: &ConnectionUse) -> u64 {
    using.peer().connection.stats().udp_rx.datagrams
}
