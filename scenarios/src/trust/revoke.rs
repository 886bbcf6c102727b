//! How long a revoked node is still served: somebody with its key keeps a connection to every other
//! agent, the CA's owner revokes it, and the clock runs until the last agent has closed that
//! connection and refuses the next.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use quinn::crypto::rustls::QuicClientConfig;
use tokio::task::JoinSet;

use super::{PATIENCE, TrustMesh};

/// One revocation.
pub struct Revoked {
    /// Until the last connection that stood was closed.
    pub closed: Duration,
    /// Until the last agent had refused a new one, too.
    pub refused: Duration,
}

/// Revokes the last agent of the mesh, ends it, and puts a new one in its place.
///
/// # Errors
/// Somebody goes on serving the revoked node, or an agent cannot start.
pub async fn once(mesh: &mut TrustMesh) -> anyhow::Result<Revoked> {
    let outcast = mesh.agents.pop().context("a mesh of nobody")?;
    let stolen = outcast.shared().mesh.identity();
    let mut config =
        quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(certs::tls::client_config(&stolen)?)?));
    let mut transport = quinn::TransportConfig::default();
    transport.keep_alive_interval(Some(Duration::from_secs(3)));
    config.transport_config(Arc::new(transport));
    let mut endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into())?;
    endpoint.set_default_client_config(config);
    let mut standing = Vec::new();
    for agent in &mesh.agents {
        let address = agent.shared().advertise;
        let connection = endpoint.connect(address, certs::tls::SERVER_NAME)?.await?;
        // It is let in, not only connected: streams are opened to members alone.
        let mut stream = connection.open_uni().await?;
        stream.write_all(b"?").await?;
        standing.push((address, connection, stream));
    }
    let issuer = mesh.issuer()?;
    let name = stolen.node().to_string();
    let began = Instant::now();
    let revoked = tokio::task::spawn_blocking(move || issuer.revoke(&name)).await??;
    ensure!(!revoked.is_empty(), "nothing was revoked");
    let mut waiting = JoinSet::new();
    for (address, connection, stream) in standing {
        let endpoint = endpoint.clone();
        waiting.spawn(async move {
            let _stream = stream;
            let reason = tokio::time::timeout(PATIENCE, connection.closed()).await.context("it is still served")?;
            let closed = began.elapsed();
            // A reset: the agent's farewell was lost, and it knows the connection no more.
            let gone = reason == quinn::ConnectionError::Reset || reason.to_string().contains("revoked");
            ensure!(gone, "closed for another reason: {reason}");
            loop {
                let again = async {
                    match endpoint.connect(address, certs::tls::SERVER_NAME)?.await {
                        // With TLS 1.3 the client's side of a handshake may end before the server's
                        // judgement comes.
                        Ok(connection) => Ok::<_, anyhow::Error>(connection.closed().await),
                        Err(error) => Ok(error),
                    }
                };
                match tokio::time::timeout(PATIENCE, again).await {
                    Ok(Ok(error)) if error.to_string().contains("revoked") => break,
                    Ok(Ok(quinn::ConnectionError::Reset | quinn::ConnectionError::TimedOut)) => {}
                    Ok(other) => bail!("asked anew: {other:?}"),
                    Err(_) => bail!("a new connection was let in"),
                }
            }
            Ok((closed, began.elapsed()))
        });
    }
    let mut last = Revoked { closed: Duration::ZERO, refused: Duration::ZERO };
    while let Some(waited) = waiting.join_next().await {
        let (closed, refused) = waited??;
        last = Revoked { closed: last.closed.max(closed), refused: last.refused.max(refused) };
    }
    outcast.shutdown().await;
    mesh.add().await?;
    mesh.all_met().await?;
    Ok(last)
}
