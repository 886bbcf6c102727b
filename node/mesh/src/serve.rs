//! What happens on connections: which peers are admitted, and how a member's streams are served.
//!
//! A connection is served the same whether it was dialled or accepted. Until the peer's certificate
//! is known to be a member's, no stream of it is read.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use certs::Role;
use certs::tls::{ALPN_JOIN, ALPN_MESH};
use gossip::Inbound;
use model::frame::{self, FrameError, FrameReader};
use model::wire::{Request, Response};
use query_planner::{Batch, NodeError};
use quinn::VarInt;
use quinn::crypto::rustls::HandshakeData;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::endpoint::canonical;
use super::idle::ConnectionUse;
use super::pool::Peer;
use super::{Mesh, code, count, count_message};
use record::unix_now_ns;

/// Handshakes under way at a time. Beyond, callers must first prove their address (QUIC retry);
/// beyond twice as many, they are refused.
const HANDSHAKES: usize = 256;

/// How long a handshake, and then the sending of a request, may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a requester may leave a piece of an answer unread.
const SLOWEST_READER: Duration = Duration::from_secs(60);

/// Bytes of frames that may wait, to be sent together with the next one.
const MAX_PENDING_BYTES: usize = 64 << 10;

/// Connections that one member may have to this node: two that dialled each other at once, those
/// that a renewed certificate replaced, and a restarted member's former ones that have not timed
/// out. Beyond, an idle one makes room.
const MAX_CONNECTIONS_PER_MEMBER: usize = 8;

/// Accepts until the endpoint closes.
pub(super) async fn accept(mesh: Mesh) {
    let handshakes = Arc::new(Semaphore::new(2 * HANDSHAKES));
    while let Some(incoming) = mesh.0.endpoint.accept().await {
        let Ok(permit) = handshakes.clone().try_acquire_owned() else {
            incoming.refuse();
            continue;
        };
        if handshakes.available_permits() < HANDSHAKES && incoming.may_retry() {
            let _ = incoming.retry();
            continue;
        }
        mesh.0.callers.started(canonical(incoming.remote_address()));
        let mesh = mesh.clone();
        tokio::spawn(async move {
            let admitted = tokio::time::timeout(HANDSHAKE_TIMEOUT, async { incoming.await }).await;
            drop(permit);
            match admitted {
                Ok(Ok(connection)) => admit(mesh, connection).await,
                Ok(Err(error)) => {
                    count(&mesh.0.counters.turned_away);
                    tracing::debug!(%error, "a handshake failed");
                }
                Err(_) => tracing::debug!("a handshake timed out"),
            }
        });
    }
}

/// Decides by protocol and certificate what an accepted connection may do.
async fn admit(mesh: Mesh, connection: quinn::Connection) {
    let address = canonical(connection.remote_address());
    let protocol = connection
        .handshake_data()
        .and_then(|any| any.downcast::<HandshakeData>().ok())
        .and_then(|data| data.protocol)
        .unwrap_or_default();
    if protocol == ALPN_MESH {
        match mesh.member(&connection) {
            Ok(who) if mesh.0.connections.of(&who.name) >= MAX_CONNECTIONS_PER_MEMBER && !mesh.make_room(&who.name) => {
                count(&mesh.0.counters.turned_away);
                if let Some(before) = mesh.0.quiet.lock().may_say() {
                    tracing::warn!(%address, name = %who.name, before, "turned away: it has too many connections");
                }
                connection.close(VarInt::from_u32(code::SHUTDOWN), b"too many connections of one member");
            }
            Ok(who) => {
                count(&mesh.0.counters.accepted);
                mesh.0.callers.completed(address, who.name.as_str());
                let peer = mesh.peer(connection, address, who);
                // A peer that is no node does not listen on the port that it called from.
                if peer.who.role == Role::Node {
                    mesh.0.pool.put(&peer);
                }
                self::connection(mesh, peer).await;
            }
            Err(error) => {
                count(&mesh.0.counters.turned_away);
                if let Some(before) = mesh.0.quiet.lock().may_say() {
                    tracing::warn!(%address, %error, before, "turned away a peer that is no member");
                }
                connection.close(VarInt::from_u32(code::NOT_A_MEMBER), b"not a member of this mesh");
            }
        }
    } else if let (ALPN_JOIN, Some(host)) = (protocol.as_slice(), &mesh.0.join_host) {
        host.serve(connection.clone()).await;
        connection.close(VarInt::from_u32(code::SHUTDOWN), b"");
    } else {
        count(&mesh.0.counters.turned_away);
        connection.close(VarInt::from_u32(code::NO_SUCH_PROTOCOL), b"no such protocol here");
    }
}

/// Serves a member's streams until the connection ends.
pub(super) async fn connection(mesh: Mesh, peer: Arc<Peer>) {
    tracing::debug!(node = %peer.node, address = %peer.address, "connected");
    let cancelled = mesh.0.closing.child_token();
    mesh.connected(&peer);
    let left = peer.who.not_after.duration_since(SystemTime::now()).unwrap_or_default();
    let mut certificate_ends = std::pin::pin!(tokio::time::sleep(left));
    let mut shut_out = false;
    // Both futures are kept across iterations: creating them anew for each question would cost as
    // much as the question's stream.
    let mut questions = std::pin::pin!(peer.connection.accept_bi());
    let mut gossip = std::pin::pin!(peer.connection.accept_uni());
    let ended = loop {
        tokio::select! {
            stream = &mut questions => match stream {
                Ok((send, recv)) => {
                    let using = ConnectionUse::of(&peer);
                    tokio::spawn(question(mesh.clone(), using, send, recv, cancelled.child_token()));
                    questions.set(peer.connection.accept_bi());
                }
                Err(error) => break error,
            },
            stream = &mut gossip => match stream {
                Ok(recv) => {
                    peer.usage.touch();
                    tokio::spawn(gossip_message(mesh.clone(), peer.clone(), recv));
                    gossip.set(peer.connection.accept_uni());
                }
                Err(error) => break error,
            },
            () = &mut certificate_ends, if !shut_out => {
                shut_out = true;
                mesh.shut_out(&peer, "the certificate has ended");
            }
        }
    };
    cancelled.cancel();
    mesh.0.pool.evict(&peer);
    mesh.0.connections.remove(&peer);
    tracing::debug!(node = %peer.node, address = %peer.address, %ended, "disconnected");
}

async fn gossip_message(mesh: Mesh, peer: Arc<Peer>, mut recv: quinn::RecvStream) {
    if peer.who.role != Role::Node {
        if let Some(before) = mesh.0.quiet.lock().may_say() {
            tracing::warn!(name = %peer.node, role = %peer.who.role, before, "refused gossip of one who is no node");
        }
        let _ = recv.stop(VarInt::from_u32(code::NOT_A_MEMBER));
        return;
    }
    let counters = &mesh.0.counters;
    // The semaphore is never closed.
    let _reading = peer.quota.gossip_now.acquire().await;
    let read = tokio::time::timeout(REQUEST_TIMEOUT, recv.read_to_end(gossip::MAX_PAYLOAD_BYTES)).await;
    let Ok(Ok(payload)) = read else {
        tracing::debug!(node = %peer.node, "a gossip message did not arrive completely or was too long");
        return;
    };
    if !peer.quota.may_gossip(payload.len(), Instant::now()) {
        count(&counters.gossip_dropped);
        return;
    }
    count_message(&counters.gossip_received, &counters.gossip_received_bytes, &payload);
    if mesh.0.gossip_in.try_send(Inbound { from: peer.address, node: peer.node.to_string(), payload }).is_err() {
        count(&counters.gossip_dropped);
    }
}

async fn question(
    mesh: Mesh,
    using: ConnectionUse,
    send: quinn::SendStream,
    recv: quinn::RecvStream,
    cancelled: CancellationToken,
) {
    let peer = using.peer();
    // Resolves when the requester stops reading or the connection ends.
    let gone = send.stopped();
    let mut out = Responder::new(send);
    // What people ask is a text; agents send each other tables, too.
    let most = if peer.who.role == Role::Node { frame::MAX_FRAME_BYTES } else { frame::MAX_ASKED_BYTES };
    let mut requests = FrameReader::new(recv).at_most(most).counted_to(&peer.quota.frames);
    let request = match tokio::time::timeout(REQUEST_TIMEOUT, requests.read::<Request>()).await {
        Ok(Ok(Some(request))) => request,
        Ok(Err(error @ (FrameError::Version { .. } | FrameError::Malformed(_) | FrameError::TooLarge { .. }))) => {
            let _ = out.send(Response::Unsupported(error.to_string())).await;
            out.finish().await;
            return;
        }
        Ok(Err(error @ FrameError::NoMemory(_))) => {
            let _ = out.send(Response::Failed(NodeError::OverBudget(error.to_string()).into())).await;
            out.finish().await;
            return;
        }
        // Nothing came, or the stream broke: nobody waits for an answer.
        Ok(Ok(None) | Err(_)) | Err(_) => return,
    };
    requests.at_end();
    if let Err(refusal) = permitted(peer.who.role, &request) {
        if let Some(before) = mesh.0.quiet.lock().may_say() {
            tracing::warn!(name = %peer.node, role = %peer.who.role, refusal, before, "refused a request");
        }
        let _ = out.send(Response::Unsupported(refusal.to_owned())).await;
        out.finish().await;
        return;
    }
    count(&mesh.0.counters.served);
    let clock: Option<fn() -> i64> = match request {
        Request::Ping => Some(unix_now_ns),
        Request::SteadyPing => Some(record::steady_now_ns),
        _ => None,
    };
    if let Some(now_ns) = clock {
        let recv_unix_ns = now_ns();
        let _ = out.send(Response::Pong { recv_unix_ns, sent_unix_ns: now_ns() }).await;
        out.finish().await;
        return;
    }
    {
        let watch = async {
            let _ = gone.await;
            cancelled.cancel();
            std::future::pending().await
        };
        let handled = mesh.0.handler.handle(&mesh, peer.who.clone(), request, &mut out, cancelled.clone());
        // Most requests are done at once: then the requester need not be watched.
        tokio::select! {
            biased;
            () = handled => {}
            () = watch => {}
        }
    }
    if !out.ended {
        let _ = out.send(Response::failed("the node gave no result")).await;
    }
    out.finish().await;
}

/// What a certificate's role may ask for. Nodes may ask for all that agents ask each other. What
/// people ask ([`Request::Ask`]) needs a person's certificate, so that the audit names the person,
/// and a node's key alone gives no such answers.
fn permitted(role: Role, request: &Request) -> Result<(), &'static str> {
    match (role, request) {
        (Role::Node, Request::Ask(_)) => {
            Err("not allowed: a node's certificate is its agent's; ask with one of role operator or reader")
        }
        (Role::Node, _)
        | (_, Request::Ping | Request::Trust | Request::Renew { .. } | Request::Ask(_))
        | (
            Role::Operator,
            Request::Catalog
            | Request::Task { .. }
            | Request::RoundTask { .. }
            | Request::Release(_)
            | Request::OpenCalls,
        ) => Ok(()),
        // The requester decides which rows a task reads, so a reader's questions are planned by an
        // agent, not by the reader.
        (Role::Reader, _) => Err("not allowed: a reader's certificate asks an agent for answers only"),
        (Role::Operator, _) => Err("not allowed: only a node of the mesh may ask this"),
    }
}

/// An answer could not be sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The requester has gone or does not want the answer any more. Stop working on it.
    #[error("the requester has gone")]
    Gone,
    /// One row alone exceeds what a frame can hold, or the response cannot be encoded.
    #[error("{0}")]
    Unsendable(FrameError),
    /// A final response was sent before.
    #[error("the answer has already ended")]
    Ended,
}

/// Through this a [`super::Handler`] sends its answer.
pub struct Responder {
    stream: Box<dyn AsyncWrite + Send + Unpin>,
    /// Encoded frames that go out with the next one.
    pending: Vec<u8>,
    ended: bool,
    /// How long the requester may leave data unread.
    patience: Duration,
}

impl Responder {
    /// A responder that writes to `stream` (in the mesh a QUIC stream, in tests and on the local
    /// socket any other).
    pub fn new(stream: impl AsyncWrite + Send + Unpin + 'static) -> Self {
        Self { stream: Box::new(stream), pending: Vec::new(), ended: false, patience: SLOWEST_READER }
    }

    /// The same with a limit on how long the requester may leave data unread.
    #[cfg(test)]
    pub(super) fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sends one response; waits while the requester is slow to read.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn send(&mut self, response: Response) -> Result<(), SendError> {
        if self.ended {
            return Err(SendError::Ended);
        }
        frame::encode_behind(&mut self.pending, &response).map_err(SendError::Unsendable)?;
        self.ended = response.is_last();
        self.write_pending().await
    }

    /// Sends rows of one fragment, in as many frames as they need.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn batch(&mut self, fragment: u32, batch: Batch) -> Result<(), SendError> {
        self.buffer(fragment, batch).await?;
        self.write_pending().await
    }

    /// As [`Responder::batch`], for rows that something else follows at once: both are sent in one
    /// piece while they are small.
    ///
    /// # Errors
    /// See [`SendError`].
    pub async fn buffer(&mut self, fragment: u32, batch: Batch) -> Result<(), SendError> {
        if self.ended {
            return Err(SendError::Ended);
        }
        let mut waiting = vec![batch];
        while let Some(batch) = waiting.pop() {
            let half = batch.rows / 2;
            // More than a reader accepts in one frame.
            if half > 0 && batch.columns.len() * batch.rows as usize > Batch::MOST_VALUES {
                let mut batch = batch;
                let rest = split_off(&mut batch, half);
                waiting.extend([rest, batch]);
                continue;
            }
            let response = Response::Batch { fragment, batch };
            match (frame::encode_behind(&mut self.pending, &response), response) {
                (Ok(()), _) => {
                    if self.pending.len() > MAX_PENDING_BYTES {
                        self.write_pending().await?;
                    }
                }
                (Err(FrameError::TooLarge { .. }), Response::Batch { mut batch, .. }) if half > 0 => {
                    let rest = split_off(&mut batch, half);
                    waiting.push(rest);
                    waiting.push(batch);
                }
                (Err(error), _) => return Err(SendError::Unsendable(error)),
            }
        }
        Ok(())
    }

    async fn write_pending(&mut self) -> Result<(), SendError> {
        let bytes = std::mem::take(&mut self.pending);
        // A requester that reads nothing for this long counts as gone.
        match tokio::time::timeout(self.patience, self.stream.write_all(&bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(SendError::Gone),
        }
    }

    async fn finish(mut self) {
        let _ = self.stream.shutdown().await;
    }
}

/// Splits the rows from `at` on off `batch`.
fn split_off(batch: &mut Batch, at: u32) -> Batch {
    let columns = batch.columns.iter_mut().map(|column| column.split_off((at as usize).min(column.len()))).collect();
    let rest = Batch { rows: batch.rows - at, columns };
    batch.rows = at;
    rest
}
