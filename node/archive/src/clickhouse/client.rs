//! Owns requests to a ClickHouse server: one request, one answer, and whether the rows were taken.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector as _, HttpRequestBody};
use tokio::runtime::Runtime;

use crate::place::REASON_CHARS;
use crate::web::{Redirected, Straight};

/// Time limit of a request. An insert that takes longer is sent again; the server recognises its
/// token.
const REQUEST: Duration = Duration::from_secs(30);
/// Bytes read of an answer: an insert's is empty, and a reason is shown in [`REASON_CHARS`].
const ANSWER_BYTES: u64 = 64 << 10;

/// Why a server did not take rows.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL cannot be used.
    #[error("{0}")]
    Url(String),
    /// No client could be made.
    #[error("no HTTP client: {0}")]
    Client(String),
    /// It is not reached, or the connection broke: it may have taken what was sent.
    #[error("{place} is not reached: {reason}")]
    Lost {
        /// The server.
        place: String,
        /// The error.
        reason: String,
    },
    /// It answered that it did not take them.
    #[error("{place} refused with {status}: {reason}")]
    Refused {
        /// The server.
        place: String,
        /// HTTP's status.
        status: u16,
        /// Its message.
        reason: String,
    },
}

/// The user: `CLICKHOUSE_USER` and `CLICKHOUSE_PASSWORD`. Printed nowhere.
#[derive(Clone, Default)]
pub struct Credentials {
    user: Option<String>,
    password: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    /// From settings, by their names.
    #[must_use]
    pub fn of(settings: &BTreeMap<String, String>) -> Self {
        let of = |name: &str| settings.get(name).cloned();
        Self { user: of("CLICKHOUSE_USER"), password: of("CLICKHOUSE_PASSWORD") }
    }
}

/// A server's database.
pub struct Client {
    runtime: Runtime,
    http: HttpClient,
    base: String,
    database: String,
    credentials: Credentials,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("place", &self.place()).finish_non_exhaustive()
    }
}

impl Client {
    /// From `http://HOST:PORT` or `https://HOST:PORT`, with a database's name as the path (else
    /// `rankmesh`).
    ///
    /// # Errors
    /// The URL is not valid, or has a user in it.
    pub fn new(url: &str, credentials: Credentials) -> Result<Self, ClientError> {
        let wrong = |why: &str| {
            ClientError::Url(format!("{why}: write http://HOST:8123/DATABASE or https://HOST:8443/DATABASE"))
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("no URL of a ClickHouse server"))?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !["http", "https"].contains(&scheme) || host.is_empty() || path.contains(['/', '?', '#']) {
            return Err(wrong("no URL of a ClickHouse server"));
        }
        if host.contains('@') {
            // Not the URL itself: it contains a password.
            return Err(wrong(
                "a user in the URL would be seen in the process list (CLICKHOUSE_USER and CLICKHOUSE_PASSWORD in the \
                 environment or the settings file name one)",
            ));
        }
        let failed = |error: &dyn fmt::Display| ClientError::Client(error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| failed(&e))?;
        let options = ClientOptions::new().with_timeout(REQUEST).with_allow_http(scheme == "http");
        let http = Straight { most: ANSWER_BYTES }.connect(&options).map_err(|e| failed(&e))?;
        let database = if path.is_empty() { "rankmesh" } else { path }.to_owned();
        Ok(Self { runtime, http, base: format!("{scheme}://{host}/"), database, credentials })
    }

    /// Description of the destination.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}{}", self.base, self.database)
    }

    /// The database's name.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Sends rows as Parquet into a table; the server takes all of them or none, and those of a
    /// token once.
    ///
    /// # Errors
    /// [`ClientError`]. After [`ClientError::Lost`] they may have been taken.
    pub fn insert(&self, table: &str, token: &str, parquet: Vec<u8>) -> Result<(), ClientError> {
        let query = format!("INSERT INTO {} FORMAT Parquet", super::schema::quoted(table));
        let parameters = [
            ("database", self.database.as_str()),
            ("query", &query),
            ("insert_deduplicate", "1"),
            ("insert_deduplication_token", token),
            // Deduplication by token on plain tables is not relied on.
            ("async_insert", "0"),
            ("wait_end_of_query", "1"),
        ];
        let pairs: Vec<String> = parameters.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
        let mut request = http::Request::post(format!("{}?{}", self.base, pairs.join("&")))
            .header("Content-Type", "application/octet-stream");
        for (name, value) in
            [("X-ClickHouse-User", &self.credentials.user), ("X-ClickHouse-Key", &self.credentials.password)]
        {
            if let Some(value) = value {
                let mut value = http::HeaderValue::from_str(value)
                    .map_err(|_| ClientError::Url("user or password hold what no header can".to_owned()))?;
                value.set_sensitive(true);
                request = request.header(name, value);
            }
        }
        let request = request
            .body(HttpRequestBody::from(parquet))
            .map_err(|error| ClientError::Url(format!("{}: {error}", self.place())))?;
        let short = |reason: &str| record::shortened(reason.trim(), REASON_CHARS);
        let lost = |error: &(dyn std::error::Error + 'static)| {
            let deepest = deepest(error);
            let reason = short(&deepest.to_string());
            match deepest.downcast_ref::<Redirected>() {
                Some(to) => ClientError::Refused { place: self.place(), status: to.status.as_u16(), reason },
                None => ClientError::Lost { place: self.place(), reason },
            }
        };
        self.runtime.block_on(async {
            let answer = self.http.execute(request).await.map_err(|error| lost(&error))?;
            let status = answer.status();
            let failed = answer.headers().contains_key("X-ClickHouse-Exception-Code");
            let body = answer.into_body().bytes().await.map_err(|error| lost(&error))?;
            if status.is_success() && !failed {
                return Ok(());
            }
            let reason = short(&String::from_utf8_lossy(&body));
            Err(ClientError::Refused { place: self.place(), status: status.as_u16(), reason })
        })
    }
}

/// The innermost cause: the others name the URL with its query only.
fn deepest<'e>(error: &'e (dyn std::error::Error + 'static)) -> &'e (dyn std::error::Error + 'static) {
    let mut at = error;
    while let Some(source) = at.source() {
        at = source;
    }
    at
}

/// A value of a query, percent-encoded.
fn escaped(value: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    value.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::web::tests::{MUCH, Server};

    #[test]
    fn a_url_names_server_and_database_and_nobody() {
        let client = |url: &str| Client::new(url, Credentials::default());
        assert_eq!(client("http://ch:8123").unwrap().place(), "http://ch:8123/rankmesh");
        assert_eq!(client("https://ch:8443/traces").unwrap().database(), "traces");
        for wrong in ["", "ch:8123", "ftp://ch", "http:///x", "http://ch/a/b", "http://ch/?query=1"] {
            let error = client(wrong).unwrap_err().to_string();
            assert!(error.contains("http://HOST:8123/DATABASE"), "{wrong}: {error}");
        }
        let error = client("http://ada:hush@ch:8123").unwrap_err().to_string();
        assert!(error.contains("CLICKHOUSE_PASSWORD") && !error.contains("hush"), "{error}");
        let credentials = Credentials::of(&[("CLICKHOUSE_PASSWORD".to_owned(), "hush".to_owned())].into());
        assert!(!format!("{credentials:?}").contains("hush"));
        assert_eq!(escaped("a b&ü"), "a%20b%26%C3%BC");
    }

    fn insert(url: &str) -> ClientError {
        let credentials = Credentials { user: Some("ada".to_owned()), password: Some("hush".to_owned()) };
        Client::new(url, credentials).unwrap().insert("collectives", "t", vec![1; 5_000]).unwrap_err()
    }

    #[test]
    fn a_redirect_is_no_insert() {
        let other = Server::start("200 OK", b"", 0);
        for status in ["301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"] {
            let head: &'static str = format!("{status}\r\nLocation: {}/taken", other.url).leak();
            let error = insert(&Server::start(head, b"", 0).url);
            let text = error.to_string();
            assert!(matches!(error, ClientError::Refused { .. }), "{text}");
            assert!(text.contains(&other.url) && text.contains("Give the address") && !text.contains("hush"), "{text}");
        }
        assert_eq!(other.asked.load(Ordering::SeqCst), 0);
        let error = insert(&Server::start("302 Found", b"", 0).url);
        assert!(matches!(error, ClientError::Refused { status: 302, .. }), "{error}");
    }

    #[test]
    fn an_endless_answer_is_cut() {
        static PIECE: [u8; 64 << 10] = [b'x'; 64 << 10];
        for head in ["200 OK", "500 Internal Server Error", "404 Not Found"] {
            let server = Server::start(head, &PIECE, MUCH / PIECE.len());
            let text = insert(&server.url).to_string();
            assert!(text.len() < 1_000, "{head}: {} bytes", text.len());
            assert!(server.sent.load(Ordering::SeqCst) < MUCH, "{head}: all was read");
        }
    }
}
