//! Sends alerts to receivers that the user names. Each has a task of its own that reads the current
//! alerts; one that does not answer delays nobody.

use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use ask::output::printable;
use ask::{Piece, Target};
use hyper::Uri;
use hyper::header::HeaderMap;
use jiff::Timestamp;
use model::watch::Watched;
use model::{LocalRequest, OnBehalf, WatchQuestion};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::alerts::{Kind, Outbox, Standing};
use super::post::{self, post};

/// Time between two checks.
const EVERY: Duration = Duration::from_secs(2);
/// Pause after the connection to the agent was lost.
const AGAIN: Duration = Duration::from_secs(5);
/// A state from the agent is ignored when it is older: no receiver is sent that an alert is over
/// because the agent is gone.
const STALE: Duration = Duration::from_secs(15);

/// A receiver of alerts.
#[derive(Clone)]
pub(super) struct Receiver {
    kind: Kind,
    uri: Uri,
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.description())
    }
}

impl Receiver {
    /// Without its path, which may be a secret.
    fn description(&self) -> String {
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
        match post::is_url(&uri) {
            true => Ok(Self { kind, uri }),
            false => Err(format!("a receiver has an http:// or https:// URL; {form}")),
        }
    }
}

/// The current alerts, and when the agent sent that state.
type News = (Standing, Option<Instant>);

/// Sends alerts to all receivers until it is dropped. `judged`: only of jobs that the asked agent
/// judges.
///
/// # Errors
/// The certificates of this host's authorities cannot be read, and a receiver needs them.
pub(super) async fn send_alerts(target: &Target, receivers: &[Receiver], judged: bool) -> anyhow::Result<()> {
    let tls = post::authorities(receivers.iter().map(|receiver| &receiver.uri))?;
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

/// Follows the states of the agent, until it is stopped.
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
        let (standing, pushed) = stands.borrow().clone();
        if pushed.is_none_or(|pushed| pushed.elapsed() > STALE) {
            continue;
        }
        for message in outbox.due(&standing, Instant::now(), Timestamp::now()) {
            let body = message.body.to_string().into();
            let posted = post(&receiver.uri, tls.as_ref(), "application/json", &HeaderMap::new(), body).await;
            match posted.and_then(|posted| {
                ensure!(posted.status.is_success(), "it answered {}", posted.status);
                Ok(())
            }) {
                Ok(()) => outbox.taken(&message, Instant::now()),
                Err(error) => {
                    tracing::warn!("{} was not told: {}", receiver.description(), printable(&format!("{error:#}")));
                    outbox.refused(Instant::now());
                    break;
                }
            }
        }
    }
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

    /// A receiver that answers with this status, and passes on the bodies that it got.
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
        let (to_alive, mut received) = tokio::sync::mpsc::channel(8);
        // The dead one accepts nothing: its kernel takes the connection, and no answer comes.
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(receiver(refusing, "503 Service Unavailable", to_refusing));
        tasks.spawn(receiver(alive, "200 OK", to_alive));
        for one in receivers {
            tasks.spawn(serve(one, None, stands.clone()));
        }
        let wait = Duration::from_secs(60);
        let body = tokio::time::timeout(wait, received.recv()).await.unwrap().unwrap();
        assert!(body.contains("RankmeshStraggler") && body.contains("4711"), "{body}");
        let keep = async {
            loop {
                news.send_modify(|(_, pushed)| *pushed = Some(Instant::now()));
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

    /// Debian's Alertmanager, which is killed on drop.
    struct Alertmanager(std::process::Child);

    impl Drop for Alertmanager {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[tokio::test]
    async fn a_real_alertmanager_gets_an_alert_and_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // Its own notifications come here.
        let hook = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = format!(
            "route: {{ receiver: r, group_wait: 0s, group_interval: 1s, repeat_interval: 1h, group_by: [job] }}\n\
             receivers: [{{ name: r, webhook_configs: [{{ url: 'http://{}/', send_resolved: true }}] }}]\n",
            hook.local_addr().unwrap()
        );
        let file = dir.path().join("alertmanager.yml");
        std::fs::write(&file, config).unwrap();
        let child = std::process::Command::new("prometheus-alertmanager")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address={free}"))
            .args(["--cluster.listen-address=", "--log.level=error"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn();
        let _alertmanager = match child {
            Ok(child) => Alertmanager(child),
            Err(error) => {
                eprintln!(
                    "skipped: a_real_alertmanager_gets_an_alert_and_its_end: no prometheus-alertmanager: {error}"
                );
                return;
            }
        };
        let watched = Watched {
            agent: "n0".into(),
            jobs: vec![model::watch::JobNow {
                name: "4711".into(),
                id: Some("4711".into()),
                verdict: "rank".into(),
                is_ill: true,
                sentence: "Rank 5 holds up 7 ranks".into(),
                culprits: vec![model::watch::CulpritNow { rank: 5, node: "n1".into(), ..Default::default() }],
                ..Default::default()
            }],
            ..Watched::default()
        };
        let mut standing = Standing::default();
        standing.take(&watched, true, Instant::now(), Timestamp::now());
        let (news, stands) = watch::channel::<News>((standing, Some(Instant::now())));
        let (to, mut requests) = tokio::sync::mpsc::channel(8);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(receiver(hook, "200 OK", to));
        // It may not listen yet: then it is tried again.
        tasks.spawn(serve(format!("alertmanager:http://{free}").parse().unwrap(), None, stands));
        tasks.spawn({
            let news = news.clone();
            async move {
                loop {
                    news.send_modify(|(_, pushed)| *pushed = Some(Instant::now()));
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        });
        let wait = Duration::from_secs(60);
        for (status, sentence) in [("firing", "Rank 5 holds up 7 ranks"), ("resolved", "Rank 5 holds up 7 ranks")] {
            let body = tokio::time::timeout(wait, requests.recv()).await.expect(status).unwrap();
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            let alert = &body["alerts"][0];
            assert_eq!((&body["status"], &alert["status"]), (&status.into(), &status.into()), "{body}");
            assert_eq!((&alert["labels"]["rank"], &alert["labels"]["node"]), (&"5".into(), &"n1".into()), "{body}");
            assert_eq!(alert["annotations"]["summary"], sentence, "{body}");
            // It is over.
            news.send_modify(|(standing, _)| *standing = Standing::default());
        }
    }
}
