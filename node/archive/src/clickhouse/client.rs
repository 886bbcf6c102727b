//! Owns requests to a ClickHouse server: one request, one answer, and whether the rows were taken.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector as _, HttpRequestBody, ReqwestConnector};
use tokio::runtime::Runtime;

/// Time limit of a request. An insert that takes longer is sent again; the server recognises its
/// token.
const REQUEST: Duration = Duration::from_secs(30);
/// Characters of an error that are kept.
const ERROR_CHARS: usize = 400;

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
        let options = ClientOptions::new().with_timeout(REQUEST).with_allow_http(true);
        let http = ReqwestConnector::default().connect(&options).map_err(|e| failed(&e))?;
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
        let lost = |reason: &dyn fmt::Display| ClientError::Lost { place: self.place(), reason: reason.to_string() };
        self.runtime.block_on(async {
            let answer = self.http.execute(request).await.map_err(|error| lost(&deepest(&error)))?;
            let status = answer.status();
            let failed = answer.headers().contains_key("X-ClickHouse-Exception-Code");
            let body = answer.into_body().bytes().await.map_err(|error| lost(&deepest(&error)))?;
            if status.is_success() && !failed {
                return Ok(());
            }
            let reason: String = String::from_utf8_lossy(&body).trim().chars().take(ERROR_CHARS).collect();
            Err(ClientError::Refused { place: self.place(), status: status.as_u16(), reason })
        })
    }
}

/// The innermost cause: the others name the URL with its query only.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut at = error;
    while let Some(source) = at.source() {
        at = source;
    }
    at.to_string()
}

/// A value of a query, percent-encoded.
fn escaped(value: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    value.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
