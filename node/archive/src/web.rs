//! Owns HTTP as buckets and servers are asked by: a client that follows no redirect and reads no
//! more of an answer than was asked for. A redirect would send rows and passwords to another host,
//! and makes a GET of a POST, whose success is no insert's.

use std::fmt;
use std::time::Duration;

use futures::StreamExt as _;
use http::header::{LOCATION, RANGE};
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use reqwest::redirect::Policy;

/// Bytes read of an answer that refuses: its reason is shown in some hundred characters.
const REASON_BYTES: usize = 64 << 10;

/// Makes clients whose answers have `most` bytes, or as many as a range that was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Straight {
    pub(crate) most: u64,
}

/// An answer that names another address.
#[derive(Debug, thiserror::Error)]
pub(crate) struct Redirected {
    pub(crate) status: StatusCode,
    to: String,
}

impl fmt::Display for Redirected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, to } = self;
        write!(
            f,
            "it answered {status} and names {to}, where nothing is sent: rows and passwords go only where you say. \
             Give the address that answers itself"
        )
    }
}

/// An answer that is longer than it may be.
#[derive(Debug, thiserror::Error)]
#[error("its answer is longer than {0} bytes, which is not read")]
struct TooLong(u64);

impl HttpConnector for Straight {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = client(options).map_err(|source| object_store::Error::Generic { store: "HTTP client", source })?;
        Ok(HttpClient::new(Bounded { client, most: self.most }))
    }
}

/// A client with the settings that `object_store` has for its own, but for redirects.
fn client(options: &ClientOptions) -> Result<reqwest::Client, Box<dyn std::error::Error + Send + Sync>> {
    use ClientConfigKey as Of;
    let text = |of: Of| options.get_config_value(&of);
    let is = |of: Of| match text(of).map(|value| value.to_ascii_lowercase()).as_deref() {
        Some("1" | "true" | "on" | "yes" | "y") => Ok(true),
        None | Some("0" | "false" | "off" | "no" | "n") => Ok(false),
        Some(other) => Err(format!("{of:?} is {other}: write true or false")),
    };
    let time = |of: Of| -> Result<Option<Duration>, String> {
        let parsed = text(of).map(|value| humantime::parse_duration(&value));
        parsed.transpose().map_err(|error| format!("{of:?}: {error}: write it as 30s"))
    };
    let agent = text(Of::UserAgent).unwrap_or_else(|| concat!("rankmesh/", env!("CARGO_PKG_VERSION")).to_owned());
    let mut builder = reqwest::Client::builder()
        .redirect(Policy::none())
        .user_agent(agent)
        .https_only(!is(Of::AllowHttp)?)
        .danger_accept_invalid_certs(is(Of::AllowInvalidCertificates)?)
        // A compressed answer would be longer in memory than was asked for.
        .no_gzip()
        .no_brotli()
        .no_zstd()
        .no_deflate();
    if let Some(url) = text(Of::ProxyUrl) {
        let mut proxy = reqwest::Proxy::all(url)?;
        if let Some(certificate) = text(Of::ProxyCaCertificate) {
            let certificate = reqwest::tls::Certificate::from_pem(certificate.as_bytes())?;
            builder = builder.tls_certs_merge(std::iter::once(certificate));
        }
        if let Some(without) = text(Of::ProxyExcludes) {
            proxy = proxy.no_proxy(reqwest::NoProxy::from_string(&without));
        }
        builder = builder.proxy(proxy);
    }
    if is(Of::NoSystemCertificates)? {
        builder = builder.tls_certs_only(std::iter::empty());
    }
    if is(Of::Http1Only)? {
        builder = builder.http1_only();
    }
    if is(Of::Http2Only)? {
        builder = builder.http2_prior_knowledge();
    }
    if let Some(limit) = time(Of::Timeout)? {
        builder = builder.timeout(limit);
    }
    if let Some(limit) = time(Of::ConnectTimeout)? {
        builder = builder.connect_timeout(limit);
    }
    if let Some(limit) = time(Of::ReadTimeout)? {
        builder = builder.read_timeout(limit);
    }
    if let Some(limit) = time(Of::PoolIdleTimeout)? {
        builder = builder.pool_idle_timeout(limit);
    }
    Ok(builder.build()?)
}

#[derive(Debug)]
struct Bounded {
    client: reqwest::Client,
    most: u64,
}

#[async_trait::async_trait]
impl HttpService for Bounded {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let most = asked_bytes(request.headers()).unwrap_or(self.most);
        let (parts, body) = self.client.call(request).await?.into_parts();
        let status = parts.status;
        let names = parts.headers.get(LOCATION).filter(|_| status.is_redirection());
        if let Some(to) = names {
            let to = record::shortened(&String::from_utf8_lossy(to.as_bytes()), 200);
            return Err(HttpError::new(HttpErrorKind::Unknown, Redirected { status, to }));
        }
        if !status.is_success() {
            return Ok(HttpResponse::from_parts(parts, beginning(body).await?.into()));
        }
        let limit = usize::try_from(most).unwrap_or(usize::MAX);
        let body = Limited::new(body, limit).map_err(move |error| match error.downcast::<HttpError>() {
            Ok(error) => *error,
            Err(error) if error.is::<LengthLimitError>() => HttpError::new(HttpErrorKind::Decode, TooLong(most)),
            Err(error) => HttpError::new_boxed(HttpErrorKind::Unknown, error),
        });
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}

/// The bytes of the range that a request asks for, if it names both of its ends.
fn asked_bytes(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(RANGE)?.to_str().ok()?.strip_prefix("bytes=")?;
    let (first, last) = range.split_once('-')?;
    last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
}

/// As much of an answer as its reason may take.
async fn beginning(body: HttpResponseBody) -> Result<Vec<u8>, HttpError> {
    let mut pieces = body.bytes_stream();
    let mut read = Vec::new();
    while read.len() < REASON_BYTES
        && let Some(piece) = pieces.next().await
    {
        let piece = piece?;
        read.extend_from_slice(&piece[..piece.len().min(REASON_BYTES - read.len())]);
    }
    Ok(read)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{BufRead, BufReader, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A server that gives every request the same answer: a head, and pieces of a body until the
    /// client has enough.
    pub(crate) struct Server {
        pub(crate) url: String,
        /// Requests that came.
        pub(crate) asked: Arc<AtomicUsize>,
        /// Bytes that were sent.
        pub(crate) sent: Arc<AtomicUsize>,
    }

    /// More than a client may read of any answer; what the system keeps of a connection on its way
    /// is less.
    pub(crate) const MUCH: usize = 64 << 20;

    impl Server {
        pub(crate) fn start(head: &'static str, piece: &'static [u8], pieces: usize) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let (asked, sent) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let server = Self { url, asked: Arc::clone(&asked), sent: Arc::clone(&sent) };
            std::thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    asked.fetch_add(1, Ordering::SeqCst);
                    answer(&stream, head, piece, pieces, &sent);
                }
            });
            server
        }
    }

    /// Reads a request to its end, and answers.
    fn answer(stream: &TcpStream, head: &str, piece: &[u8], pieces: usize, sent: &AtomicUsize) {
        let mut reader = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line).is_ok_and(|n| n > 2) {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let _ = std::io::copy(&mut reader.take(length), &mut std::io::sink());
        let mut stream = stream;
        let _ = write!(stream, "HTTP/1.1 {head}\r\nConnection: close\r\n\r\n");
        for _ in 0..pieces {
            if stream.write_all(piece).is_err() {
                return;
            }
            sent.fetch_add(piece.len(), Ordering::SeqCst);
        }
    }

    #[test]
    fn a_range_is_as_long_as_it_says() {
        let of =
            |value: &str| super::asked_bytes(&[(http::header::RANGE, value.parse().unwrap())].into_iter().collect());
        assert_eq!((of("bytes=5-9"), of("bytes=0-0")), (Some(5), Some(1)));
        for other in ["bytes=5-", "bytes=-5", "bytes=9-5", "lines=1-2", "bytes=0-18446744073709551615"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
