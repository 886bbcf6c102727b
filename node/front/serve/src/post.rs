//! Posting to receivers that the user names, over HTTP or HTTPS: the only connections that this
//! program opens besides those to agents. No redirect is followed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{StatusCode, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Time for a request with its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read.
const ANSWER_BYTES: usize = 64 << 10;

/// A receiver's answer.
#[derive(Debug)]
pub(super) struct Posted {
    pub(super) status: StatusCode,
    /// The receiver asks for a pause of this length.
    pub(super) retry_after: Option<Duration>,
    /// Empty if it was too long.
    pub(super) body: Bytes,
}

/// This host's certificate authorities, if one of the receivers needs them.
///
/// # Errors
/// There are none.
pub(super) fn authorities<'u>(mut uris: impl Iterator<Item = &'u Uri>) -> anyhow::Result<Option<TlsConnector>> {
    if !uris.any(is_secure) {
        return Ok(None);
    }
    let found = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    ensure!(
        !roots.is_empty(),
        "this host has no certificate authorities (Debian: ca-certificates; or name a file in SSL_CERT_FILE): {:?}",
        found.errors
    );
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Some(TlsConnector::from(Arc::new(config))))
}

/// Whether it is a URL that can be posted to.
pub(super) fn is_url(uri: &Uri) -> bool {
    matches!((uri.scheme_str(), uri.host()), (Some("http" | "https"), Some(_)))
}

fn is_secure(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https")
}

/// Posts a body; `headers` come in addition to those that a request needs.
///
/// # Errors
/// The receiver is not reached, does not answer in time, or has a wrong certificate.
pub(super) async fn post(
    uri: &Uri,
    tls: Option<&TlsConnector>,
    kind: &'static str,
    headers: &HeaderMap,
    body: Bytes,
) -> anyhow::Result<Posted> {
    let posted = tokio::time::timeout(PATIENCE, send(uri, tls, kind, headers, body)).await;
    posted.unwrap_or_else(|_| Err(anyhow!("no answer within {PATIENCE:?}")))
}

async fn send(
    uri: &Uri,
    tls: Option<&TlsConnector>,
    kind: &'static str,
    headers: &HeaderMap,
    body: Bytes,
) -> anyhow::Result<Posted> {
    let host = uri.host().context("a URL without a host")?.trim_matches(['[', ']']);
    let port = uri.port_u16().unwrap_or(if is_secure(uri) { 443 } else { 80 });
    let path = uri.path_and_query().map_or("/", hyper::http::uri::PathAndQuery::as_str);
    // Without a name or password, which the URL may contain.
    let authority = uri.authority().map_or("", hyper::http::uri::Authority::as_str);
    let mut request = hyper::Request::post(path)
        .header(HOST, authority.rsplit('@').next().unwrap_or_default())
        .header(CONTENT_TYPE, HeaderValue::from_static(kind))
        .header(USER_AGENT, concat!("rankmesh/", env!("CARGO_PKG_VERSION")))
        .body(Full::new(body))?;
    request.headers_mut().extend(headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    let stream = TcpStream::connect((host, port)).await.context("connecting")?;
    match (is_secure(uri), tls) {
        (true, Some(tls)) => {
            let name = ServerName::try_from(host.to_owned()).context("its name")?;
            exchange(tls.connect(name, stream).await.context("TLS")?, request).await
        }
        (true, None) => bail!("no certificate authorities"),
        (false, _) => exchange(stream, request).await,
    }
}

async fn exchange<S>(stream: S, request: hyper::Request<Full<Bytes>>) -> anyhow::Result<Posted>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // Ends when the answer was read, or when this is dropped.
    let mut connections = tokio::task::JoinSet::new();
    connections.spawn(connection);
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let retry_after = answer.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok()?.parse().ok());
    // Read to its end, so that the receiver is not cut off.
    let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    Ok(Posted { status, retry_after: retry_after.map(Duration::from_secs), body })
}
