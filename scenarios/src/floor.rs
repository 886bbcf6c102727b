//! The floor of a fan-out: bare quinn with mutual TLS, N servers and the client in one process, 300
//! bytes out and 600 bytes back on a fresh bidirectional stream of a standing connection.
//!
//! By default both sides have the socket buffers and transport settings that an agent is documented
//! to have ([`Like::Agent`]), so that what differs is the work and not the settings; quinn's own
//! defaults ([`Like::Defaults`]) are there to show what the settings alone change.

use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use certs::{Authority, Identity, tls};
use nix::sys::socket::{setsockopt, sockopt};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Endpoint, EndpointConfig, IdleTimeout, TokioRuntime, TransportConfig, VarInt};
use tokio::task::JoinSet;

const OUT_BYTES: usize = 300;
const BACK_BYTES: usize = 600;

/// An agent's settings, written down once more: a floor that took them from the agent would follow
/// its mistakes.
const SOCKET_BUFFER_BYTES: usize = 8 << 20;
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
const SEND_WINDOW_BYTES: u64 = 8 << 20;
const STREAMS: u32 = 64;
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
const KEEP_ALIVE: Duration = Duration::from_secs(5);
const INITIAL_RTT: Duration = Duration::from_millis(100);

/// Whose socket buffers and transport settings a floor has, on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Like {
    /// An agent's.
    Agent,
    /// quinn's and the kernel's own.
    Defaults,
}

impl Like {
    /// An endpoint that dials, and with `server` accepts.
    fn endpoint(self, server: Option<quinn::ServerConfig>) -> anyhow::Result<Endpoint> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        if self == Self::Agent {
            let fd = socket.as_fd();
            setsockopt(&fd, sockopt::RcvBufForce, &SOCKET_BUFFER_BYTES)
                .or_else(|_| setsockopt(&fd, sockopt::RcvBuf, &SOCKET_BUFFER_BYTES))?;
            setsockopt(&fd, sockopt::SndBufForce, &SOCKET_BUFFER_BYTES)
                .or_else(|_| setsockopt(&fd, sockopt::SndBuf, &SOCKET_BUFFER_BYTES))?;
        }
        socket.set_nonblocking(true)?;
        Ok(Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime))?)
    }

    fn transport(self) -> Arc<TransportConfig> {
        let mut transport = TransportConfig::default();
        if self == Self::Agent {
            transport
                .max_idle_timeout(IdleTimeout::try_from(IDLE_TIMEOUT).ok())
                .keep_alive_interval(Some(KEEP_ALIVE))
                .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS))
                .max_concurrent_uni_streams(VarInt::from_u32(STREAMS))
                .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
                .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
                .send_window(SEND_WINDOW_BYTES)
                .datagram_receive_buffer_size(None)
                .initial_rtt(INITIAL_RTT);
        }
        Arc::new(transport)
    }
}

/// N servers and a client with a warm connection to each.
#[derive(Debug)]
pub struct Floor {
    connections: Vec<quinn::Connection>,
    _client: Endpoint,
    _servers: Vec<Endpoint>,
}

impl Floor {
    /// Starts `n` servers with such settings and connects to each.
    ///
    /// # Errors
    /// Sockets or certificates cannot be made.
    pub async fn start(n: usize, like: Like) -> anyhow::Result<Self> {
        let authority = Authority::create(&"floor".parse()?)?;
        let identity = |name: String| -> anyhow::Result<Identity> {
            Ok(authority.issue(&name.parse()?, Duration::from_secs(86_400))?)
        };
        let mut servers = Vec::with_capacity(n);
        for index in 0..n {
            let crypto = tls::server_config(&identity(format!("s{index}"))?, false)?;
            let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(crypto)?));
            config.transport_config(like.transport()).migration(like == Like::Defaults);
            let endpoint = like.endpoint(Some(config))?;
            tokio::spawn(serve(endpoint.clone()));
            servers.push(endpoint);
        }
        let mut client = like.endpoint(None)?;
        let crypto = tls::client_config(&identity("client".into())?)?;
        let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(crypto)?));
        config.transport_config(like.transport());
        client.set_default_client_config(config);
        let mut connections = Vec::with_capacity(n);
        for server in &servers {
            connections.push(client.connect(server.local_addr()?, tls::SERVER_NAME)?.await.context("connecting")?);
        }
        Ok(Self { connections, _client: client, _servers: servers })
    }

    /// Asks every server once and waits for all answers.
    ///
    /// # Errors
    /// A connection broke.
    pub async fn round(&self) -> anyhow::Result<Duration> {
        let started = Instant::now();
        let mut asked = JoinSet::new();
        for connection in &self.connections {
            let connection = connection.clone();
            asked.spawn(async move {
                let (mut send, mut receive) = connection.open_bi().await?;
                send.write_all(&[7; OUT_BYTES]).await?;
                send.finish()?;
                let back = receive.read_to_end(BACK_BYTES).await?;
                anyhow::ensure!(back.len() == BACK_BYTES, "a short answer");
                Ok(())
            });
        }
        while let Some(answer) = asked.join_next().await {
            answer??;
        }
        Ok(started.elapsed())
    }
}

async fn serve(endpoint: Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let Ok(connection) = incoming.await else { return };
            while let Ok((mut send, mut receive)) = connection.accept_bi().await {
                tokio::spawn(async move {
                    if receive.read_to_end(OUT_BYTES).await.is_ok() {
                        let _ = send.write_all(&[9; BACK_BYTES]).await;
                        let _ = send.finish();
                    }
                });
            }
        });
    }
}
