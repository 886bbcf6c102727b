//! The floor of a fan-out: bare quinn with mutual TLS, N servers and the client in one process, 300
//! bytes out and 600 bytes back on a fresh bidirectional stream of a standing connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use certs::{Authority, Identity, tls};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use tokio::task::JoinSet;

const OUT_BYTES: usize = 300;
const BACK_BYTES: usize = 600;

/// N servers and a client with a warm connection to each.
#[derive(Debug)]
pub struct Floor {
    connections: Vec<quinn::Connection>,
    _client: quinn::Endpoint,
    _servers: Vec<quinn::Endpoint>,
}

impl Floor {
    /// Starts `n` servers and connects to each.
    ///
    /// # Errors
    /// Sockets or certificates cannot be made.
    pub async fn start(n: usize) -> anyhow::Result<Self> {
        let authority = Authority::create(&"floor".parse()?)?;
        let identity = |name: String| -> anyhow::Result<Identity> {
            Ok(authority.issue(&name.parse()?, Duration::from_secs(86_400))?)
        };
        let mut servers = Vec::with_capacity(n);
        for index in 0..n {
            let crypto = tls::server_config(&identity(format!("s{index}"))?, false)?;
            let config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(crypto)?));
            let endpoint = quinn::Endpoint::server(config, "127.0.0.1:0".parse()?)?;
            tokio::spawn(serve(endpoint.clone()));
            servers.push(endpoint);
        }
        let mut client = quinn::Endpoint::client("127.0.0.1:0".parse()?)?;
        let crypto = tls::client_config(&identity("client".into())?)?;
        client.set_default_client_config(quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(crypto)?)));
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

async fn serve(endpoint: quinn::Endpoint) {
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
