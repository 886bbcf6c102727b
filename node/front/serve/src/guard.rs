//! Checks before a handler gets a request: its host and origin, its client, its rate; and the
//! headers of each answer.
//!
//! A page of another site can make a browser send requests here: under a host name of its own that
//! resolves to this host (so the host must be one of ours), or across origins (so an origin must be
//! the host). Neither can add a token: there is no cookie.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use rand::RngExt;

use super::gateway::Who;
use super::pace::Pace;
use super::problem::Problem;
use super::sessions::Sessions;
use super::tokens::{Role, Tokens};

/// Requests a second of a client, and in a burst.
const RATE: f64 = 20.0;
const BURST: f64 = 200.0;
/// Wrong tokens and links of an address: a second, and in a burst.
const WRONG_RATE: f64 = 0.2;
const WRONG_BURST: f64 = 10.0;
/// Time for a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of it: a question's SQL is 100,000 at most, and JSON may need six for each.
const BODY_BYTES: usize = 640 << 10;

/// Paths that need no token: the one for signing in, and the files that a browser loads first.
const OPEN: [&str; 3] = ["/healthz", "/api/v1/session", "/api/v1/openapi.json"];

/// The peer of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    Address(IpAddr),
    /// As reported by the kernel.
    User(u32),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip) => write!(f, "{ip}"),
            Self::User(uid) => write!(f, "uid {uid}"),
        }
    }
}

/// The hosts for which requests are answered.
#[derive(Debug, Clone)]
pub(super) struct Hosts {
    named: Vec<String>,
    /// Names of loopback, with any port: through a tunnel the port differs.
    local: bool,
}

impl Hosts {
    pub(super) fn new(named: impl IntoIterator<Item = String>, local: bool) -> Self {
        Self { named: named.into_iter().map(|name| name.to_ascii_lowercase()).collect(), local }
    }

    fn has(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let name = match host.rsplit_once(':') {
            Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => &host,
        };
        self.named.iter().any(|named| *named == host || named == name)
            || self.local && ["localhost", "127.0.0.1", "[::1]"].contains(&name)
    }
}

/// The settings by which requests are checked.
pub(super) struct Guard {
    hosts: Hosts,
    scheme: &'static str,
    sessions: Sessions,
    tokens: Option<Arc<Tokens>>,
    pace: Pace,
    wrong: Pace,
    own_uid: u32,
}

impl Guard {
    pub(super) fn new(hosts: Hosts, scheme: &'static str, sessions: Sessions, tokens: Option<Arc<Tokens>>) -> Self {
        let own_uid = nix::unistd::geteuid().as_raw();
        let (pace, wrong) = (Pace::new(RATE, BURST), Pace::new(WRONG_RATE, WRONG_BURST));
        Self { hosts, scheme, sessions, tokens, pace, wrong, own_uid }
    }

    /// A session's token for a link's secret.
    ///
    /// # Errors
    /// It is not known, or was used.
    pub(super) fn sign_in(&self, peer: Peer, secret: &str) -> Result<String, Problem> {
        self.sessions.sign_in(secret).ok_or_else(|| {
            self.wrong(peer, "this link was used, or is of another start of rankmesh serve: it prints a new one")
        })
    }

    /// A wrong token came, or a wrong link. The right ones are looked at first: from an address of
    /// which many wrong ones come, they are as good as from any other.
    fn wrong(&self, peer: Peer, why: &str) -> Problem {
        match self.wrong.take(&peer.to_string()) {
            Ok(()) => unauthorized(why),
            Err(wait) => Problem::busy("too many wrong tokens came from there", wait.as_secs_f64().ceil() as u64),
        }
    }

    fn host_and_origin(&self, request: &Request) -> Result<(), Problem> {
        let headers = request.headers();
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = match (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) {
            (Some(host), None) if self.hosts.has(host) => host,
            _ => {
                let detail = "no such host is served here (a name has to be given: rankmesh serve --host NAME)";
                return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "forbidden", detail));
            }
        };
        let origin = match headers.get(header::ORIGIN) {
            None => true,
            Some(origin) => origin.to_str().is_ok_and(|origin| {
                origin
                    .split_once("://")
                    .is_some_and(|(scheme, from)| scheme == self.scheme && from.eq_ignore_ascii_case(host))
            }),
        };
        // Browsers report it (<https://www.w3.org/TR/fetch-metadata/>).
        let same_site = headers.get("sec-fetch-site").is_none_or(|site| site == "same-origin" || site == "none")
            // A link to the page may be on any site.
            || request.uri().path() == "/" && headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate");
        if origin && same_site {
            return Ok(());
        }
        Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", "another site's page asks: only this one's own may"))
    }

    /// The client of a request: its name, and whether it has a reader's rights.
    fn client(&self, headers: &HeaderMap, peer: Peer) -> Result<(String, bool), Problem> {
        let given = headers.get(header::AUTHORIZATION);
        let bearer = given.and_then(|given| given.to_str().ok()).and_then(|given| {
            let (scheme, token) = given.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
        });
        match (bearer, peer) {
            (Some(token), _) => {
                if let Some(client) = self.sessions.client(token) {
                    return Ok((client, false));
                }
                if let Some((name, role)) = self.tokens.as_ref().and_then(|tokens| tokens.client(token)) {
                    return Ok((format!("token-{name}"), role == Role::Reader));
                }
                Err(self.wrong(peer, "this token is not known here, or has ended"))
            }
            // The kernel reports the user: the one who runs this process, and root, have all of its
            // rights.
            (None, Peer::User(uid)) if uid == self.own_uid || uid == 0 => Ok((format!("uid-{uid}"), false)),
            (None, Peer::User(uid)) => {
                let detail = format!("this socket serves its owner and root, not uid {uid}");
                Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail))
            }
            (None, Peer::Address(_)) => Err(unauthorized(
                "a token is needed: Authorization: Bearer TOKEN (a page gets one from the link that rankmesh serve prints, \
                 a program from rankmesh identity token --for serve)",
            )),
        }
    }

    fn admit(&self, request: &Request, request_id: &str) -> Result<Option<Who>, Problem> {
        self.host_and_origin(request)?;
        let Some(peer) = request.extensions().get::<Peer>().copied() else {
            return Err(Problem::internal("nobody knows who asks"));
        };
        let path = request.uri().path();
        let open = OPEN.contains(&path) || !(path.starts_with("/api/") || path == "/metrics" || path == "/mcp");
        let (client, reader) = match (self.client(request.headers(), peer), open) {
            (Ok((client, reader)), _) => (client, reader),
            (Err(_), true) => {
                (format!("from-{}", peer.to_string().replace(|c: char| !c.is_ascii_alphanumeric(), "-")), true)
            }
            (Err(problem), false) => return Err(problem),
        };
        if let Err(wait) = self.pace.take(&client) {
            let detail = format!("busy: more than {RATE} requests a second");
            return Err(Problem::busy(detail, wait.as_secs_f64().ceil() as u64));
        }
        Ok(Some(Who { client, reader, request_id: request_id.to_owned() }).filter(|_| !open))
    }
}

fn unauthorized(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
}

/// Puts the checks before all paths.
pub(super) fn around(app: Router, guard: Arc<Guard>) -> Router {
    app.layer(from_fn_with_state(guard, look))
}

async fn look(State(guard): State<Arc<Guard>>, mut request: Request, next: Next) -> Response {
    let request_id = format!("{:016x}", rand::rng().random::<u64>());
    let mut response = match guard.admit(&request, &request_id) {
        Err(problem) => problem.into_response(),
        Ok(who) => {
            if let Some(who) = who {
                request.extensions_mut().insert(who);
            }
            match with_body(request).await {
                Ok(request) => next.run(request).await,
                Err(problem) => problem.into_response(),
            }
        }
    };
    let headers = response.headers_mut();
    let mut put = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.entry(name).or_insert(value);
        }
    };
    put(HeaderName::from_static("x-request-id"), &request_id);
    put(header::CACHE_CONTROL, "no-store");
    put(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    put(header::X_FRAME_OPTIONS, "DENY");
    put(header::REFERRER_POLICY, "no-referrer");
    put(header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'");
    put(HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    put(HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    response
}

/// The request with its body read.
async fn with_body(request: Request) -> Result<Request, Problem> {
    let (head, body) = request.into_parts();
    let read = tokio::time::timeout(BODY_TIMEOUT, axum::body::to_bytes(body, BODY_BYTES)).await;
    let bytes = match read {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => {
            let detail = format!("a request's body has {BODY_BYTES} bytes at most");
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "wrong", detail));
        }
        Err(_) => return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", "the request's body did not come")),
    };
    Ok(Request::from_parts(head, axum::body::Body::from(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_wrong_tokens_keeps_a_right_one_out() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens");
        let right = super::super::tokens::create(&file, "grafana", Role::Reader, Duration::from_secs(3_600)).unwrap();
        let tokens = Some(Arc::new(Tokens::open(&file).unwrap()));
        let guard = Guard::new(Hosts::new([], true), "http", Sessions::new(None), tokens);
        let peer = Peer::Address("127.0.0.1".parse().unwrap());
        let ask = |token: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
            guard.client(&headers, peer)
        };
        let refusals: Vec<StatusCode> =
            (0..20).map(|n| ask(&format!("rankmesh_{n}")).unwrap_err().into_response().status()).collect();
        assert_eq!(refusals[0], StatusCode::UNAUTHORIZED);
        assert_eq!(refusals[19], StatusCode::TOO_MANY_REQUESTS, "{refusals:?}");
        assert_eq!(ask(&right).unwrap(), ("token-grafana".to_owned(), true));
    }

    #[test]
    fn only_named_hosts_are_served() {
        let local = Hosts::new(["127.0.0.1:7118".to_owned()], true);
        for good in ["127.0.0.1:7118", "localhost:9999", "LOCALHOST", "[::1]:7118", "127.0.0.1"] {
            assert!(local.has(good), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "evil.example:7118",
            "localhost.evil.example",
            "127.0.0.1.evil.example:7118",
            "10.0.0.1:7118",
        ] {
            assert!(!local.has(bad), "{bad}");
        }
        let far = Hosts::new(["Login.Example".to_owned(), "10.0.0.1:7118".to_owned()], false);
        assert!(far.has("login.example:443") && far.has("10.0.0.1:7118"));
        assert!(!far.has("localhost:7118") && !far.has("10.0.0.1:80"));
    }
}
