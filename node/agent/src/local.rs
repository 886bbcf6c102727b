//! The local socket: the command line of this host asks its agent here.
//!
//! Frames are those of the mesh (`model::frame`). One request a connection; the answer is a
//! sequence of [`LocalResponse`]s that ends with `End`, `Failed` or `Wrong` (`answer` makes it).
//! When the client closes the connection (Ctrl-C), the question is cancelled on every node.
//! `access` decides who may ask what, by the credentials that the kernel reports. The same messages
//! go over the mesh, for people with a certificate of their own (`mesh::via`).

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use model::frame::{self, FrameReader};
use model::limit::{ConcurrencyLimit, Slot};
use model::{Failure, FailureKind, LocalRequest, LocalResponse, OnBehalf};
use query::access::{Access, Caller};
use query_planner::memory::Account;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::access::Readers;
use super::answer::{self, AnswerSink};
use super::audit::{Asking, Outcome};

/// Questions that may be asked on the socket at a time by owners and by readers, and by one reader.
const CLIENTS: usize = 256;
const CLIENTS_OF_ONE: usize = 32;
/// How long a client may take to ask, and to read a piece of its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Memory of a request while it arrives: what is read may be twice as much as the request.
const REQUEST_MEMORY_BYTES: u64 = 2 * frame::MAX_ASKED_BYTES as u64;
const SLOWEST_READER: Duration = Duration::from_secs(60);

/// Serves the socket until `stop`.
pub(super) async fn serve(listener: UnixListener, shared: Arc<Shared>, readers: Readers, stop: CancellationToken) {
    let mut clients = JoinSet::new();
    let (owners, others) = (ConcurrencyLimit::new(CLIENTS, CLIENTS), ConcurrencyLimit::new(CLIENTS, CLIENTS_OF_ONE));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = clients.join_next(), if !clients.is_empty() => continue,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let peer = stream.peer_cred().ok();
                let client = Client {
                    access: peer.as_ref().and_then(|peer| readers.access(peer)),
                    own: peer.as_ref().is_some_and(|peer| readers.owns(peer)),
                    uid: peer.as_ref().map_or(u32::MAX, tokio::net::unix::UCred::uid),
                    pid: peer.as_ref().and_then(tokio::net::unix::UCred::pid),
                };
                let limit = if client.own { &owners } else { &others };
                let slot = limit.take(&format!("uid {}", client.uid));
                // Refused clients get the reason; when too many wait for theirs, the connection is
                // closed.
                if clients.len() >= 3 * CLIENTS {
                    continue;
                }
                let (shared, stop) = (Arc::clone(&shared), stop.child_token());
                clients.spawn(async move {
                    if let Err(error) = one_client(stream, &client, slot, &shared, stop).await {
                        tracing::debug!("local client: {error:#}");
                    }
                });
            }
            Err(error) => {
                tracing::warn!("local socket: {error}");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
    clients.shutdown().await;
}

/// The process at the other end.
struct Client {
    access: Option<Access>,
    uid: u32,
    pid: Option<i32>,
    /// It is the agent's own user, or root.
    own: bool,
}

impl Client {
    fn asking(&self, kind: &'static str) -> Asking {
        let role = self.access.map_or("nobody", Access::as_str);
        Asking::new("socket", format!("uid {}", self.uid), role, kind).pid(self.pid)
    }

    /// A client of a front end. Whom the agent's own user serves has a queue of her own; the names
    /// that another user gives share that user's part.
    fn reader_for(&self, of: &OnBehalf) -> Caller {
        if self.own {
            return Caller::guest(Access::Reader, format!("uid {} for {}", self.uid, of.client));
        }
        let mut caller = Caller::guest(Access::Reader, format!("uid {}", self.uid));
        let client = of.client.bytes().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        caller.requester = caller.requester.for_user(Some(client));
        caller
    }

    /// Its role, for itself or for a client that it serves: that one may do less, never more.
    fn caller(&self, behalf: Option<&OnBehalf>) -> Caller {
        let access = self.access.unwrap_or(Access::Reader);
        match (behalf, access) {
            (Some(of), Access::Owner | Access::Reader) if of.reader => self.reader_for(of),
            _ if self.own => Caller::owner(),
            _ => Caller::guest(access, format!("uid {}", self.uid)),
        }
    }
}

async fn next_request(reader: &mut FrameReader<OwnedReadHalf>) -> anyhow::Result<Option<LocalRequest>> {
    let request = tokio::time::timeout(REQUEST_TIMEOUT, reader.read::<LocalRequest>()).await;
    request.context("no request came")?.context("reading the request")
}

async fn one_client(
    stream: UnixStream,
    client: &Client,
    slot: Result<Slot, String>,
    shared: &Arc<Shared>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let refusal = match client.access {
        None => {
            let why = format!(
                "not allowed: this agent serves its own user and root, not uid {}; its owner can let you ask with \
                 `rankmesh up --allow-user` or `--allow-group`, or everybody about her own processes with \
                 `--users-see-own`",
                client.uid
            );
            Some(Failure::new(FailureKind::Forbidden, why))
        }
        Some(_) => slot.as_ref().err().cloned().map(Failure::from),
    };
    if let Some(refusal) = refusal {
        shared.auditor.done(client.asking("connect"), Outcome::Refused(refusal.message.clone()));
        writer.send(LocalResponse::failed(refusal)).await?;
        return Ok(());
    }
    let account = Account::new(REQUEST_MEMORY_BYTES);
    let mut reader = FrameReader::new(reader).at_most(frame::MAX_ASKED_BYTES).counted_to(&account);
    let Some(mut request) = next_request(&mut reader).await? else { return Ok(()) };
    let mut behalf = None;
    if let LocalRequest::OnBehalf(of) = request {
        if !of.is_plain() {
            let message = "the name of a request or of its client holds what it may not";
            writer.send(LocalResponse::Wrong(message.into())).await?;
            return Ok(());
        }
        behalf = Some(of);
        request = match next_request(&mut reader).await? {
            Some(request) => request,
            None => return Ok(()),
        };
    }
    let caller = client.caller(behalf.as_ref());
    let _watch = tokio::spawn(cancel_at_end(reader, stop.clone()));
    let asking = |kind| client.asking(kind).role(caller.access.as_str()).on_behalf(behalf.as_ref());
    answer::answer(shared, request, &caller, Some(client.uid), asking, &mut writer, stop.clone()).await?;
    stop.cancel();
    Ok(())
}

#[async_trait]
impl AnswerSink for OwnedWriteHalf {
    /// A client that does not read for long is dropped.
    async fn send(&mut self, response: LocalResponse) -> anyhow::Result<()> {
        tokio::time::timeout(SLOWEST_READER, frame::write(self, &response))
            .await
            .context("the client reads nothing")??;
        Ok(())
    }
}

/// The client sends nothing after its request: when reading ends, it is gone.
async fn cancel_at_end(mut reader: FrameReader<OwnedReadHalf>, stop: CancellationToken) {
    tokio::select! {
        _ = reader.read::<LocalRequest>() => stop.cancel(),
        () = stop.cancelled() => {}
    }
}
