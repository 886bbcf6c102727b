//! Joining over QUIC: the server at the node with the mesh's CA, and the request of the host that
//! wants to become a member.
//!
//! One connection on `certs::tls::ALPN_JOIN`, one bidirectional stream: the request, ended by the
//! stream's end, then the response likewise. `certs::join` owns the contents of the messages and
//! decides who is admitted; the agent decides when a host joins. Both sides bound the size of what
//! they read and the time they wait.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use certs::join::MAX_MESSAGE_BYTES;
use certs::{Identity, Issuer, JoinToken, NodeName};
use model::lobby::{Lobby, Place, source};
use parking_lot::{Mutex, RwLock};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, ConnectionError, Endpoint, TransportErrorCode, VarInt};

use super::{JoinHost, code, probe};

/// Hosts that are being admitted at a time, and of these from one address. One that has not sent its
/// request yet, or has its answer, makes room: a host that joins sends its request at once.
const JOINERS: usize = 64;
const JOINERS_OF_ONE: usize = 32;
/// How long one joiner may take for its request, and how long it may take to fetch the response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a joiner waits for the connection, and then for its certificate.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
/// TLS alert `no_application_protocol` (RFC 7301, 3.2).
const ALERT_NO_APPLICATION_PROTOCOL: u8 = 120;

/// Why a host did not become a member. The caller adds the address that was called.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No node there could be reached.
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    /// That node is of another mesh than the token, or cannot prove that it is of that mesh.
    #[error("not accepted: {0}")]
    NotOurMesh(String),
    /// That node does not have the CA.
    #[error("this node admits nobody: join through the host that founded the mesh (it holds the CA)")]
    NoCa,
    /// The exchange failed: mostly the CA's refusal, with its reason.
    #[error(transparent)]
    Certs(#[from] certs::Error),
}

/// Admits hosts to the mesh: the [`JoinHost`] of a node that holds the CA.
#[derive(Debug)]
pub struct JoinServer {
    issuer: RwLock<Arc<Issuer>>,
    joiners: Arc<Lobby>,
    limiter: RejectionLimiter,
}

impl JoinServer {
    /// A server that admits by `issuer`.
    #[must_use]
    pub fn new(issuer: Arc<Issuer>) -> Self {
        Self {
            issuer: RwLock::new(issuer),
            joiners: Lobby::new(JOINERS, JOINERS_OF_ONE),
            limiter: RejectionLimiter::default(),
        }
    }

    /// Replaces the issuer by another of the same mesh: a new CA.
    pub fn set_issuer(&self, issuer: Arc<Issuer>) {
        *self.issuer.write() = issuer;
    }

    async fn answer(&self, connection: &Connection, place: &Place) -> Result<(), String> {
        let (mut send, mut recv) = connection.accept_bi().await.map_err(|e| e.to_string())?;
        let request = recv.read_to_end(MAX_MESSAGE_BYTES).await.map_err(|e| e.to_string())?;
        place.keep(true);
        let from = source(connection.remote_address());
        let issuer = self.issuer.read().clone();
        // It reads and writes files, and may wait for their lock.
        let looked = tokio::task::spawn_blocking(move || {
            let right = certs::join::shows_right_token(&request, &issuer);
            (right, request, issuer)
        });
        let (right, request, issuer) = looked.await.map_err(|e| e.to_string())?;
        // The token first: no number of wrong ones keeps a right one out.
        let response = if right || self.limiter.allows(from, Instant::now()) {
            tokio::task::spawn_blocking(move || certs::join::answer(&request, &issuer).bytes)
                .await
                .map_err(|e| e.to_string())?
        } else {
            certs::join::refuse("too many requests were refused; try again in a minute")
        };
        if !right {
            self.limiter.refused(from, Instant::now());
        }
        send.write_all(&response).await.map_err(|e| e.to_string())?;
        send.finish().map_err(|e| e.to_string())?;
        place.keep(false);
        Ok(())
    }
}

/// Requests with a wrong token a minute of one address, and of all; beyond, they are not looked at
/// until the minute is over. (Guessing a secret of 256 bits is hopeless anyhow; this bounds the
/// work and the log lines that strangers cause.)
const REFUSALS_OF_ONE: u32 = 20;
const REFUSALS_OF_ALL: u32 = 600;
const REFUSALS_PERIOD: Duration = Duration::from_secs(60);

/// Requests refused in this minute, by address.
#[derive(Debug, Default)]
struct RejectionLimiter(Mutex<Refusals>);

#[derive(Debug, Default)]
struct Refusals {
    since: Option<Instant>,
    all: u32,
    of: HashMap<IpAddr, u32>,
}

impl RejectionLimiter {
    fn now(&self, now: Instant) -> parking_lot::MutexGuard<'_, Refusals> {
        let mut refusals = self.0.lock();
        if refusals.since.is_none_or(|since| now.duration_since(since) >= REFUSALS_PERIOD) {
            *refusals = Refusals { since: Some(now), ..Refusals::default() };
        }
        refusals
    }

    fn allows(&self, from: IpAddr, now: Instant) -> bool {
        let refusals = self.now(now);
        refusals.all < REFUSALS_OF_ALL && refusals.of.get(&from).is_none_or(|times| *times < REFUSALS_OF_ONE)
    }

    fn refused(&self, from: IpAddr, now: Instant) {
        let mut refusals = self.now(now);
        // Beyond, nobody is looked at, and nobody need be remembered.
        if refusals.all < REFUSALS_OF_ALL {
            refusals.all += 1;
            *refusals.of.entry(from).or_default() += 1;
        }
    }
}

#[async_trait]
impl JoinHost for JoinServer {
    async fn serve(&self, connection: Connection) {
        let address = connection.remote_address();
        let busy = || connection.close(VarInt::from_u32(code::SHUTDOWN), b"too many hosts join at once; try again");
        let Some(place) = self.joiners.enter(source(address)) else {
            busy();
            return;
        };
        let served = async {
            match tokio::time::timeout(REQUEST_TIMEOUT, self.answer(&connection, &place)).await {
                // The joiner closes when it has read the response; closing first could cut it off.
                Ok(Ok(())) => drop(tokio::time::timeout(FAREWELL_TIMEOUT, connection.closed()).await),
                Ok(Err(error)) => tracing::debug!(%address, error, "a join broke off"),
                Err(_) => tracing::debug!(%address, "a join took too long"),
            }
        };
        tokio::select! {
            biased;
            () = served => {}
            () = place.taken() => busy(),
        }
    }
}

/// Joins the mesh that `token` is for through the node at `address`, under the name `node`. Nothing
/// is saved.
///
/// # Errors
/// See [`JoinError`].
pub async fn join(address: SocketAddr, token: &JoinToken, node: &NodeName) -> Result<Identity, JoinError> {
    let (request, pending) = certs::join::request(token, node)?;
    let tls = certs::tls::join_client_config(token)?;
    let crypto = QuicClientConfig::try_from(tls).map_err(|e| JoinError::Unreachable(e.to_string()))?;
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let endpoint = Endpoint::client((any, 0).into()).map_err(|e| JoinError::Unreachable(e.to_string()))?;
    let response = exchange(&endpoint, quinn::ClientConfig::new(Arc::new(crypto)), address, &request).await?;
    endpoint.close(VarInt::from_u32(code::SHUTDOWN), b"");
    // So that the farewell gets out: the server waits for it.
    let _ = tokio::time::timeout(FAREWELL_TIMEOUT, endpoint.wait_idle()).await;
    Ok(pending.complete(&response)?)
}

async fn exchange(
    endpoint: &Endpoint,
    config: quinn::ClientConfig,
    address: SocketAddr,
    request: &[u8],
) -> Result<Vec<u8>, JoinError> {
    let connecting = endpoint
        .connect_with(config, address, certs::tls::SERVER_NAME)
        .map_err(|error| JoinError::Unreachable(error.to_string()))?;
    let connection = tokio::select! {
        connected = connecting => connected.map_err(not_connected)?,
        objection = probe::objection(address) => return Err(JoinError::Unreachable(objection.to_string())),
        () = tokio::time::sleep(CONNECT_TIMEOUT) => {
            return Err(JoinError::Unreachable(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs())));
        }
    };
    let talk = async {
        let (mut send, mut recv) = connection.open_bi().await.map_err(|e| e.to_string())?;
        send.write_all(request).await.map_err(|e| e.to_string())?;
        send.finish().map_err(|e| e.to_string())?;
        let response = recv.read_to_end(MAX_MESSAGE_BYTES).await.map_err(|e| e.to_string())?;
        // The end of the stream of a server that gives up may come before the connection's.
        if response.is_empty() { Err("it hung up without an answer".to_owned()) } else { Ok(response) }
    };
    tokio::time::timeout(RESPONSE_TIMEOUT, talk)
        .await
        .map_err(|_| JoinError::Unreachable(format!("no certificate within {} s", RESPONSE_TIMEOUT.as_secs())))?
        .map_err(|reason| JoinError::Unreachable(connection.close_reason().map_or(reason, |closed| closed.to_string())))
}

fn not_connected(error: ConnectionError) -> JoinError {
    match error {
        // Our own TLS rejected the other end.
        ConnectionError::TransportError(fault) if !fault.reason.is_empty() => {
            JoinError::NotOurMesh(certs::tls::plain_reason(&fault.reason).to_owned())
        }
        ConnectionError::ConnectionClosed(close)
            if close.error_code == TransportErrorCode::crypto(ALERT_NO_APPLICATION_PROTOCOL) =>
        {
            JoinError::NoCa
        }
        error => JoinError::Unreachable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use certs::{NODE_VALIDITY, Reissue};
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{Handler, Mesh, MeshConfig, Responder};
    use model::wire::{Request, Response};

    const HOUR: Duration = Duration::from_secs(3600);
    const PATIENCE: Duration = Duration::from_secs(20);

    struct Answers;

    #[async_trait]
    impl Handler for Answers {
        async fn handle(
            &self,
            _: &Mesh,
            peer: certs::tls::Peer,
            _request: Request,
            out: &mut Responder,
            _cancelled: CancellationToken,
        ) {
            let _ = out.send(Response::Catalog(peer.name.as_str().as_bytes().to_vec())).await;
        }
    }

    struct Node {
        mesh: Mesh,
        name: NodeName,
        address: SocketAddr,
        _gossip: mpsc::Receiver<gossip::Inbound>,
    }

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    fn start(identity: Identity, issuer: Option<Arc<Issuer>>) -> Node {
        let name = identity.node().clone();
        let join_host = issuer.map(|issuer| Arc::new(JoinServer::new(issuer)) as Arc<dyn JoinHost>);
        let listen = ([127, 0, 0, 1], 0).into();
        let config = MeshConfig {
            listen,
            identity: Arc::new(identity),
            host_key: certs::HostKey::random().unwrap(),
            handler: Arc::new(Answers),
            join_host,
            runtime: Arc::new(quinn::TokioRuntime),
        };
        let (mesh, gossip) = Mesh::start(config).unwrap();
        let address = mesh.local_addr().unwrap();
        Node { mesh, name, address, _gossip: gossip }
    }

    /// A founder, and the directory of its CA.
    fn found() -> (tempfile::TempDir, Arc<Issuer>, Node) {
        let dir = tempfile::tempdir().unwrap();
        let issuer = Arc::new(Issuer::init(dir.path(), &"m".parse().unwrap()).unwrap());
        let identity = issuer.issue(&name("founder"), NODE_VALIDITY, Reissue::Refuse).unwrap();
        let node = start(identity, Some(issuer.clone()));
        (dir, issuer, node)
    }

    fn token(issuer: &Issuer, uses: u32) -> JoinToken {
        issuer.tokens().create(HOUR, NonZeroU32::new(uses)).unwrap()
    }

    async fn assert_answers(requester: &Node, asked: &Node) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let mut answer = requester.mesh.ask(&asked.name, asked.address, Request::Catalog, deadline).await.unwrap();
        let answer = answer.next().await.unwrap();
        assert!(
            matches!(&answer, Some(Response::Catalog(name)) if name == requester.name.as_str().as_bytes()),
            "{answer:?}"
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_joined_is_a_member_for_everybody() {
        let (_dir, issuer, founder) = found();
        let token: JoinToken = token(&issuer, 2).to_string().parse().unwrap();
        let one = start(join(founder.address, &token, &name("one")).await.unwrap(), None);
        let two = start(join(founder.address, &token, &name("two")).await.unwrap(), None);
        for (requester, asked) in [(&one, &founder), (&founder, &one), (&one, &two), (&two, &one)] {
            assert_answers(requester, asked).await;
        }
        let error = join(founder.address, &token, &name("three")).await.unwrap_err();
        assert!(error.to_string().contains("used up"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn refusals_say_why() {
        let (_dir, issuer, founder) = found();
        let (_other_dir, other, _node) = found();
        let error = join(founder.address, &token(&other, 1), &name("n")).await.unwrap_err();
        assert!(matches!(&error, JoinError::NotOurMesh(_)), "{error}");
        let error = join(founder.address, &token(&issuer, 1), &name("founder")).await.unwrap_err();
        assert!(error.to_string().contains("choose another --name"), "{error}");
        let member = start(issuer.issue(&name("member"), NODE_VALIDITY, Reissue::Refuse).unwrap(), None);
        let error = join(member.address, &token(&issuer, 1), &name("n")).await.unwrap_err();
        assert!(matches!(error, JoinError::NoCa), "{error}");
        let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = join(nobody, &token(&issuer, 1), &name("n")).await.unwrap_err();
        assert!(matches!(error, JoinError::Unreachable(_)), "{error}");
    }

    #[test]
    fn who_is_refused_often_waits_for_a_minute_and_others_do_not() {
        let (limiter, now) = (RejectionLimiter::default(), Instant::now());
        let [bad, good]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        for _ in 0..REFUSALS_OF_ONE {
            assert!(limiter.allows(bad, now));
            limiter.refused(bad, now);
        }
        assert!(!limiter.allows(bad, now) && limiter.allows(good, now));
        assert!(limiter.allows(bad, now + REFUSALS_PERIOD));
        for last in 0..=255u8 {
            for _ in 0..3 {
                limiter.refused(IpAddr::V4(Ipv4Addr::new(10, 1, 0, last)), now + REFUSALS_PERIOD);
            }
        }
        assert!(!limiter.allows(good, now + REFUSALS_PERIOD), "all together are bounded, too");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn guessed_secrets_are_soon_not_looked_at_and_a_right_one_always_is() {
        let (_dir, issuer, founder) = found();
        let (spent, good) = (token(&issuer, 1), token(&issuer, 1));
        join(founder.address, &spent, &name("first")).await.unwrap();
        for _ in 0..REFUSALS_OF_ONE {
            let error = join(founder.address, &spent, &name("n")).await.unwrap_err();
            assert!(error.to_string().contains("used up"), "{error}");
        }
        let error = join(founder.address, &spent, &name("n")).await.unwrap_err();
        assert!(error.to_string().contains("too many requests"), "{error}");
        join(founder.address, &good, &name("n")).await.unwrap();
    }

    /// Strangers that connect and say nothing.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_connects_and_says_nothing_keeps_nobody_out_and_may_send_little() {
        let (_dir, issuer, founder) = found();
        let token = token(&issuer, 1);
        let stranger = Endpoint::client(([127, 0, 0, 1], 0).into()).unwrap();
        let tls = certs::tls::join_client_config(&token).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        let mut silent = Vec::new();
        for _ in 0..2 * JOINERS {
            let connecting = stranger.connect_with(config.clone(), founder.address, certs::tls::SERVER_NAME);
            silent.push(connecting.unwrap().await.unwrap());
        }
        // What it sends without a request is not taken beyond a small window.
        let last = silent.last().unwrap();
        let mut streams = Vec::new();
        for _ in 0..32 {
            let mut stream = last.open_uni().await.unwrap();
            while let Ok(Ok(_)) = tokio::time::timeout(Duration::from_millis(20), stream.write(&[0; 64 << 10])).await {}
            streams.push(stream);
        }
        join(founder.address, &token, &name("n")).await.unwrap();
        let sent = last.stats().udp_tx.bytes;
        assert!(sent < 512 << 10, "a stranger was let send {sent} bytes");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_crowd_gets_in_and_a_babbler_does_not_stop_it() {
        let (_dir, issuer, founder) = found();
        let token = token(&issuer, 20);
        // Larger than a request may be: the server gives up on it.
        let tls = certs::tls::join_client_config(&token).unwrap();
        let babbler = Endpoint::client(([127, 0, 0, 1], 0).into()).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        let babble = vec![b' '; MAX_MESSAGE_BYTES + 1];
        let babbled = exchange(&babbler, config, founder.address, &babble).await.unwrap_err();
        assert!(matches!(babbled, JoinError::Unreachable(_)), "{babbled}");
        let names: Vec<_> = (0..20).map(|i| name(&format!("n{i}"))).collect();
        let joins = names.iter().map(|name| join(founder.address, &token, name));
        for joined in futures::future::join_all(joins).await {
            joined.unwrap();
        }
        assert_eq!(issuer.issued().unwrap().len(), 21);
    }
}
