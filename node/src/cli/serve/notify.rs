//! Tells receivers that the user names of alerts: the only connections that this program opens
//! beside those to agents. Each receiver has a task of its own that looks at what stands; one that is
//! dead delays nobody.

use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Uri;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use model::watch::Watched;
use model::{LocalRequest, OnBehalf, WatchQuestion};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::alerts::{Kind, Outbox, Standing};
use crate::cli::local::Piece;
use crate::cli::target::Target;
use crate::output::printable;

/// For a request to a receiver.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of its answer that are looked at.
const ANSWER_BYTES: usize = 64 << 10;
/// Between two looks.
const EVERY: Duration = Duration::from_secs(2);
/// After the agent was lost.
const AGAIN: Duration = Duration::from_secs(5);
/// What an agent said is worth nothing after so long: nobody is told that an alert is over because
/// the agent is gone.
const STALE: Duration = Duration::from_secs(15);

/// Who is told.
#[derive(Clone)]
pub(super) struct Receiver {
    kind: Kind,
    uri: Uri,
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.said())
    }
}

impl Receiver {
    /// Without its path, which may be a secret.
    fn said(&self) -> String {
        format!("{:?} at {}", self.kind, self.uri.host().unwrap_or_default())
    }
}

impl FromStr for Receiver {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "write alertmanager:URL, webhook:URL or slack:URL; kind:@FILE reads the URL from a file";
        let (kind, url) = text.split_once(':').ok_or(form)?;
        let kind = match kind {
            "alertmanager" => Kind::Alertmanager,
            "webhook" => Kind::Webhook,
            "slack" => Kind::Slack,
            _ => return Err(form.to_owned()),
        };
        let url = match url.strip_prefix('@') {
            Some(file) => std::fs::read_to_string(file).map_err(|error| format!("reading {file}: {error}"))?,
            None => url.to_owned(),
        };
        let mut url = url.trim().to_owned();
        if kind == Kind::Alertmanager {
            url = format!("{}/api/v2/alerts", url.trim_end_matches('/'));
        }
        let uri: Uri = url.parse().map_err(|error| format!("the URL of a receiver: {error}; {form}"))?;
        match (uri.scheme_str(), uri.host()) {
            (Some("http" | "https"), Some(_)) => Ok(Self { kind, uri }),
            _ => Err(format!("a receiver has an http:// or https:// URL; {form}")),
        }
    }
}

/// What stands, and when the agent said so.
type News = (Standing, Option<Instant>);

/// Tells all receivers until it is dropped. `judged`: only of jobs that the asked agent judges.
///
/// # Errors
/// The certificates of this host's authorities cannot be read, and a receiver needs them.
pub(super) async fn tell(target: &Target, receivers: &[Receiver], judged: bool) -> anyhow::Result<()> {
    let tls = match receivers.iter().any(|receiver| receiver.uri.scheme_str() == Some("https")) {
        true => Some(authorities()?),
        false => None,
    };
    let (news, stands) = watch::channel::<News>((Standing::default(), None));
    let mut tasks = tokio::task::JoinSet::new();
    for receiver in receivers {
        tasks.spawn(serve(receiver.clone(), tls.clone(), stands.clone()));
    }
    let stop = CancellationToken::new();
    let _stop_when_dropped = stop.clone().drop_guard();
    let behalf = OnBehalf { request_id: String::new(), client: "notify".to_owned(), reader: false };
    let target = target.on_behalf(behalf, stop.clone());
    let follow = tokio::task::spawn_blocking(move || follow(&target, judged, &news, &stop));
    follow.await.context("following the agent")?;
    bail!("nobody follows the agent any more")
}

/// Follows what the agent says, until it is stopped.
fn follow(target: &Target, judged: bool, news: &watch::Sender<News>, stop: &CancellationToken) {
    let mut standing = Standing::default();
    while !stop.is_cancelled() {
        let asked = target.ask_into(LocalRequest::Watch(WatchQuestion { job: None }), &mut |piece| {
            if let Piece::Watched(json) = piece {
                let watched: Watched = serde_json::from_str(&json).context("reading what the agent pushes")?;
                let beyond = standing.take(&watched, judged, Instant::now(), Timestamp::now());
                if beyond > 0 {
                    tracing::warn!("{beyond} alerts more than there is room for are not sent");
                }
                news.send_replace((standing.clone(), Some(Instant::now())));
            }
            Ok(())
        });
        if let Err(error) = asked
            && !stop.is_cancelled()
        {
            tracing::warn!("alerts: {}", printable(&format!("{error:#}; asked again")));
        }
        std::thread::sleep(AGAIN);
    }
}

/// Serves one receiver.
async fn serve(receiver: Receiver, tls: Option<TlsConnector>, stands: watch::Receiver<News>) {
    let mut outbox = Outbox::new(receiver.kind);
    loop {
        tokio::time::sleep(EVERY).await;
        let (standing, said) = stands.borrow().clone();
        if said.is_none_or(|said| said.elapsed() > STALE) {
            continue;
        }
        for message in outbox.due(&standing, Instant::now(), Timestamp::now()) {
            let posted = tokio::time::timeout(PATIENCE, post(&receiver.uri, tls.as_ref(), &message.body)).await;
            match posted.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {PATIENCE:?}"))) {
                Ok(()) => outbox.taken(&message, Instant::now()),
                Err(error) => {
                    tracing::warn!("{} was not told: {}", receiver.said(), printable(&format!("{error:#}")));
                    outbox.refused(Instant::now());
                    break;
                }
            }
        }
    }
}

/// This host's certificate authorities.
fn authorities() -> anyhow::Result<TlsConnector> {
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
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Posts JSON; no redirect is followed.
async fn post(uri: &Uri, tls: Option<&TlsConnector>, body: &Value) -> anyhow::Result<()> {
    let host = uri.host().context("a URL without a host")?.trim_matches(['[', ']']);
    let secure = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let stream = TcpStream::connect((host, port)).await.context("connecting")?;
    let status = match (secure, tls) {
        (true, Some(tls)) => {
            let name = ServerName::try_from(host.to_owned()).context("its name")?;
            exchange(tls.connect(name, stream).await.context("TLS")?, uri, body).await?
        }
        (true, None) => bail!("no certificate authorities"),
        (false, _) => exchange(stream, uri, body).await?,
    };
    ensure!(status.is_success(), "it answered {status}");
    Ok(())
}

async fn exchange<S>(stream: S, uri: &Uri, body: &Value) -> anyhow::Result<hyper::StatusCode>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let path = uri.path_and_query().map_or("/", hyper::http::uri::PathAndQuery::as_str);
    let authority = uri.authority().map_or("", hyper::http::uri::Authority::as_str);
    let request = hyper::Request::post(path)
        // Without a name or password that the URL may hold.
        .header(HOST, authority.rsplit('@').next().unwrap_or_default())
        .header(CONTENT_TYPE, "application/json")
        .header(USER_AGENT, concat!("rankmesh/", env!("CARGO_PKG_VERSION")))
        .body(Full::new(Bytes::from(body.to_string())))?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    // Read, so that the receiver is not cut off; what it says is not ours.
    let _ = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await;
    connection.abort();
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_are_named_by_kind_and_url() {
        let read = |text: &str| text.parse::<Receiver>().map(|found| (found.kind, found.uri.to_string()));
        assert_eq!(
            read("alertmanager:http://am:9093/"),
            Ok((Kind::Alertmanager, "http://am:9093/api/v2/alerts".to_owned()))
        );
        assert_eq!(read("webhook:https://x/y?z=1"), Ok((Kind::Webhook, "https://x/y?z=1".to_owned())));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("url");
        std::fs::write(&file, "https://hooks.example/secret\n").unwrap();
        let slack: Receiver = format!("slack:@{}", file.display()).parse().unwrap();
        assert!(!format!("{slack:?}").contains("secret"), "{slack:?}");
        for wrong in ["", "slack", "mail:a@b", "webhook:ftp://x", "webhook:/path", "slack:@/nowhere"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    /// A receiver that answers with this status, and hands on what it was sent.
    async fn receiver(listener: tokio::net::TcpListener, status: &'static str, to: tokio::sync::mpsc::Sender<String>) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut text, mut bytes) = (String::new(), [0; 4096]);
            let complete = |text: &str| {
                let (head, body) = text.split_once("\r\n\r\n")?;
                let length = head.lines().find_map(|line| {
                    line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok()
                })?;
                (body.len() >= length).then(|| body.to_owned())
            };
            let body = loop {
                let read = stream.read(&mut bytes).await.unwrap();
                text.push_str(&String::from_utf8_lossy(&bytes[..read]));
                if let Some(body) = complete(&text) {
                    break body;
                }
                assert!(read > 0, "{text}");
            };
            let _ = stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes()).await;
            let _ = to.send(body).await;
        }
    }

    #[tokio::test]
    async fn a_dead_receiver_delays_nobody_and_one_that_refuses_is_asked_again() {
        let watched = Watched {
            agent: "n0".into(),
            jobs: vec![model::watch::JobNow {
                name: "4711".into(),
                is_ill: true,
                sentence: "Rank 5 holds up 7 ranks".into(),
                ..Default::default()
            }],
            ..Watched::default()
        };
        let mut standing = Standing::default();
        standing.take(&watched, true, Instant::now(), Timestamp::now());
        let (news, stands) = watch::channel::<News>((standing, Some(Instant::now())));
        let bind = || tokio::net::TcpListener::bind("127.0.0.1:0");
        let (dead, refusing, alive) = (bind().await.unwrap(), bind().await.unwrap(), bind().await.unwrap());
        let named = |kind: &str, at: &tokio::net::TcpListener| -> Receiver {
            format!("{kind}:http://{}/x", at.local_addr().unwrap()).parse().unwrap()
        };
        let receivers = [named("slack", &dead), named("webhook", &refusing), named("alertmanager", &alive)];
        let (to_refusing, mut refused) = tokio::sync::mpsc::channel(8);
        let (to_alive, mut heard) = tokio::sync::mpsc::channel(8);
        // The dead one accepts nothing: its kernel does, and nobody answers.
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(receiver(refusing, "503 Service Unavailable", to_refusing));
        tasks.spawn(receiver(alive, "200 OK", to_alive));
        for one in receivers {
            tasks.spawn(serve(one, None, stands.clone()));
        }
        let wait = Duration::from_secs(60);
        let body = tokio::time::timeout(wait, heard.recv()).await.unwrap().unwrap();
        assert!(body.contains("RankmeshStraggler") && body.contains("4711"), "{body}");
        let keep = async {
            loop {
                news.send_modify(|(_, said)| *said = Some(Instant::now()));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let twice = async {
            for _ in 0..2 {
                assert!(refused.recv().await.unwrap().contains("firing"));
            }
        };
        tokio::select! { () = keep => {}, done = tokio::time::timeout(wait, twice) => done.unwrap() }
        drop(dead);
    }
}
