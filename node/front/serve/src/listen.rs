//! Listening sockets, and the limits of a connection in time and memory.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context as Waking, Poll, ready};
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_util::rt::{TokioIo, TokioTimer};
use model::lobby::{Lobby, Place, source};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tower::ServiceExt;

use super::guard::{Hosts, Peer};

pub(super) use tokio_rustls::TlsAcceptor as Acceptor;

/// Connections at a time, and of these from one address or of one user. Where there are more, the one
/// makes room that is asked nothing for the longest time.
const CONNECTIONS: usize = 256;
const CONNECTIONS_OF_ONE: usize = CONNECTIONS / 2;
/// Time for a TLS handshake, and for a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request's head, and its lines.
const HEAD_BYTES: usize = 32 << 10;
const HEAD_LINES: usize = 64;
/// How long a client may leave data unread.
const SLOWEST_READER: Duration = Duration::from_secs(60);

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
    /// Nowhere.
    None,
}

impl Listen {
    /// Whether only this host's users can connect.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) | Self::None => true,
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            None if text == "none" => Ok(Self::None),
            Some("") => Err("unix: needs a path".to_owned()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| {
                format!(
                    "'{text}' is neither IP:PORT, unix:PATH nor none (a name may stand for several addresses: give one)"
                )
            }),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::None => f.write_str("none"),
        }
    }
}

/// A listening socket.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Opens it, if there is one. A socket file on which nobody listens is replaced.
///
/// # Errors
/// The address is taken or not this host's.
pub(super) async fn bind(listen: &Listen) -> anyhow::Result<Option<Listener>> {
    Ok(match listen {
        Listen::None => None,
        Listen::Tcp(address) => Some(Listener::Tcp(TcpListener::bind(address).await?)),
        Listen::Unix(path) => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                bail!("somebody serves there already; give another path");
            }
            Some(Listener::Unix(model::local_socket::bind(path)?))
        }
    })
}

impl Listener {
    /// Its address and port; none of a socket file.
    pub(super) fn place(&self) -> Option<String> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok().map(|address| address.to_string()),
            Self::Unix(_) => None,
        }
    }

    /// The host names under which clients may send requests: `named`, or its own.
    pub(super) fn hosts(&self, named: &[String]) -> Hosts {
        let local = match self {
            Self::Tcp(listener) => listener.local_addr().is_ok_and(|address| address.ip().is_loopback()),
            Self::Unix(_) => true,
        };
        Hosts::new(named.iter().cloned().chain(self.place()), local)
    }

    /// The next connection: with whom, and as whose it counts.
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Peer, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Box::new(stream), Peer::Address(address.ip()), Peer::Address(source(address))))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let uid = stream.peer_cred()?.uid();
                Ok((Box::new(stream), Peer::User(uid), Peer::User(uid)))
            }
        }
    }
}

/// The protocol that TLS is for.
pub(super) const HTTP: &[u8] = b"http/1.1";

/// Reads the certificate and key for TLS, for one protocol.
///
/// # Errors
/// A file cannot be read, contains no such PEM block, or they do not fit each other.
pub(super) fn tls(cert: &Path, key: &Path, alpn: &[u8]) -> anyhow::Result<Acceptor> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect)
        .with_context(|| format!("reading certificates from {}", cert.display()))?;
    let secret = PrivateKeyDer::from_pem_file(key).with_context(|| format!("reading a key from {}", key.display()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .with_context(|| format!("using {} with {}", cert.display(), key.display()))?;
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(Acceptor::from(Arc::new(config)))
}

/// Serves every connection until this is dropped.
///
/// # Errors
/// None: connections that cannot be accepted are logged.
pub(super) async fn serve(listener: Listener, tls: Option<Acceptor>, app: Router) -> anyhow::Result<()> {
    let lobby = Lobby::new(CONNECTIONS, CONNECTIONS_OF_ONE);
    let start = |(stream, peer, from), permit| {
        let place = lobby.enter(from).map(Arc::new);
        let (tls, app) = (tls.clone(), app.clone());
        async move {
            match place {
                None => tracing::debug!("{peer}: all connections are being answered"),
                Some(place) => tokio::select! {
                    () = connection(stream, peer, tls, app, Arc::clone(&place)) => {}
                    () = place.taken() => tracing::debug!("{peer}: made room for another"),
                },
            }
            drop(permit);
        }
    };
    // (Those that end while others have come already.)
    each_connection(2 * CONNECTIONS, async || listener.accept().await, start).await
}

/// Starts a handler for each connection, a bounded number at a time, until this is dropped.
///
/// # Errors
/// None: connections that cannot be accepted are logged.
pub(super) async fn each_connection<T, F: Future<Output = ()> + Send + 'static>(
    most: usize,
    accept: impl AsyncFn() -> io::Result<T>,
    start: impl Fn(T, OwnedSemaphorePermit) -> F,
) -> anyhow::Result<()> {
    let room = Arc::new(Semaphore::new(most));
    // Dropped with this: no connection outlives it.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        // When there is no room, connections wait in the kernel's queue.
        let permit = tokio::select! {
            permit = Arc::clone(&room).acquire_owned() => permit?,
            _ = connections.join_next(), if !connections.is_empty() => continue,
        };
        let accepted = tokio::select! {
            accepted = accept() => accepted,
            _ = connections.join_next(), if !connections.is_empty() => continue,
        };
        match accepted {
            Ok(accepted) => {
                connections.spawn(start(accepted, permit));
            }
            Err(error) => {
                tracing::warn!("accepting a connection: {error}");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: Box<dyn Stream>, peer: Peer, tls: Option<Acceptor>, app: Router, place: Arc<Place<Peer>>) {
    let stream = Patient::new(stream);
    match tls {
        None => http(stream, peer, app, place).await,
        Some(tls) => match tokio::time::timeout(HEAD_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => http(stream, peer, app, place).await,
            Ok(Err(error)) => tracing::debug!("TLS with {peer}: {error}"),
            Err(_) => tracing::debug!("TLS with {peer}: no handshake came"),
        },
    }
}

async fn http<S>(stream: S, peer: Peer, app: Router, place: Arc<Place<Peer>>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer);
        let asked = request.map(|body| Body::new(Asked::new(body, Arc::clone(&place))));
        let answered = app.clone().oneshot(asked);
        let place = Arc::clone(&place);
        async move { Ok::<_, Infallible>(answered.await?.map(|body| Answered { body, place })) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEAD_LINES)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!("{peer}: {error}");
    }
}

/// The body of a request: once all of it is there, its connection makes room for nobody.
struct Asked {
    body: Incoming,
    place: Option<Arc<Place<Peer>>>,
}

impl Asked {
    fn new(body: Incoming, place: Arc<Place<Peer>>) -> Self {
        let mut asked = Self { body, place: Some(place) };
        asked.look();
        asked
    }

    fn look(&mut self) {
        if self.body.is_end_stream()
            && let Some(place) = self.place.take()
        {
            place.keep(true);
        }
    }
}

impl HttpBody for Asked {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        waking: &mut Waking<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(waking));
        self.look();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer: after it, its connection may make room again.
struct Answered {
    body: Body,
    place: Arc<Place<Peer>>,
}

impl HttpBody for Answered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        waking: &mut Waking<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(waking)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        self.place.keep(false);
    }
}

/// The stream of a connection.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A stream that fails when its reader takes nothing for [`SLOWEST_READER`].
pub(super) struct Patient<S> {
    stream: S,
    /// Since when a write waits.
    written: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, written: None }
    }

    fn watched<T>(&mut self, waking: &mut Waking<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.written = None;
            return written;
        }
        let until = self.written.get_or_insert_with(|| Box::pin(sleep(SLOWEST_READER)));
        ready!(until.as_mut().poll(waking));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, waking: &mut Waking<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(waking, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, waking: &mut Waking<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(waking, bytes);
        self.watched(waking, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, waking: &mut Waking<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(waking);
        self.watched(waking, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, waking: &mut Waking<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(waking);
        self.watched(waking, shut)
    }
}
