//! Owns access to an archive: a directory, or an S3-compatible bucket. Files appear complete
//! (renamed into place, or a completed upload) or not at all. Everything here blocks its thread;
//! network requests run on threads of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{ClientOptions, MultipartUpload, ObjectStore, ObjectStoreExt as _, RetryConfig};
use tokio::runtime::Runtime;

use crate::web::Straight;

/// Bytes of a part of an upload; S3 takes none smaller but the last.
const PART_BYTES: usize = 8 << 20;
/// Time limit of a request to a bucket.
const REQUEST: Duration = Duration::from_secs(60);
/// How long a request is retried.
const RETRY: Duration = Duration::from_secs(30);
/// Requests at once.
const REQUESTS: usize = 32;
/// Largest file that is read in one request: manifests are a few KiB.
const MOST_AT_ONCE: u64 = 16 << 20;

/// Characters of a reason that are kept: what a bucket or server says goes into the log and into
/// findings.
pub(crate) const REASON_CHARS: usize = 400;

/// Why an archive cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Its name is not valid.
    #[error("{0}: give a directory, or s3://BUCKET/PREFIX")]
    Name(String),
    /// A directory that is not there or cannot be used.
    #[error("{path}: {reason}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// A directory that is not there.
    #[error(
        "{}: there is no such directory. It is not made: one that is not mounted would be filled beneath its mount point. \
         Mount it, or make it with mkdir",
        .0.display()
    )]
    Missing(PathBuf),
    /// A file with settings cannot be used.
    #[error("{path}: {reason}")]
    Settings {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// No thread could be started.
    #[error("starting the archive's threads: {0}")]
    Threads(io::Error),
    /// The directory or bucket refused or failed.
    #[error("{place}: {reason}")]
    Failed {
        /// Its place.
        place: String,
        /// The error.
        reason: String,
    },
    /// A file is larger than it should be.
    #[error("{0} is too large to be what its name says")]
    TooLarge(String),
}

impl PlaceError {
    /// Of a place by this name, with the beginning of what it said.
    pub(crate) fn failed(place: &str, error: impl fmt::Display) -> Self {
        Self::Failed { place: place.to_owned(), reason: record::shortened(&error.to_string(), REASON_CHARS) }
    }
}

/// An open archive.
#[derive(Clone)]
pub struct Place {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    name: String,
    runtime: Arc<Threads>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("name", &self.name).finish_non_exhaustive()
    }
}

struct Threads(Option<Runtime>);

impl Drop for Threads {
    fn drop(&mut self) {
        // It may be dropped within another runtime, which must not block.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Settings of a bucket: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`,
/// `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP` and the others that the S3 client knows. Their values are
/// printed nowhere.
#[derive(Clone, Default)]
pub struct Settings(BTreeMap<String, String>);

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Settings {
    /// From this process's environment.
    #[must_use]
    pub fn of_environment() -> Self {
        let is_ours = |name: &str| name.starts_with("AWS_") || name.starts_with("CLICKHOUSE_");
        Self(std::env::vars().filter(|(name, _)| is_ours(name)).collect())
    }

    /// All of them, by name.
    #[must_use]
    pub fn by_name(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// From a file of `NAME=VALUE` lines, which only its owner may read; they override the
    /// environment.
    ///
    /// # Errors
    /// It cannot be read, others may read it, or a line is no `NAME=VALUE`.
    pub fn of_file(path: &Path) -> Result<Self, PlaceError> {
        use std::os::unix::fs::PermissionsExt as _;
        let wrong = |reason: String| PlaceError::Settings { path: path.to_owned(), reason };
        let found = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
        if found.permissions().mode() & 0o077 != 0 {
            return Err(wrong("others than its owner may read it: chmod 600".to_owned()));
        }
        if found.len() > 64 << 10 {
            return Err(wrong("it is larger than 64 KiB".to_owned()));
        }
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let mut settings = Self::of_environment();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let pair = line.strip_prefix("export ").unwrap_or(line).split_once('=');
            let (name, value) = pair.ok_or_else(|| wrong(format!("line {} is no NAME=VALUE", at + 1)))?;
            settings.0.insert(name.trim().to_owned(), value.trim().trim_matches('"').to_owned());
        }
        Ok(settings)
    }
}

impl Place {
    /// Opens the directory or bucket of this name. A directory must exist: so one that is not
    /// mounted is not filled beneath its mount point.
    ///
    /// # Errors
    /// [`PlaceError`]: the name is not valid, or the place cannot be used. The first request to a
    /// bucket is made when it is read or written.
    /// read or written.
    pub fn open(name: &str, settings: &Settings) -> Result<Self, PlaceError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("archive")
            .enable_all()
            .build()
            .map_err(PlaceError::Threads)?;
        let runtime = Arc::new(Threads(Some(runtime)));
        if let Some(rest) = name.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() {
                return Err(PlaceError::Name(name.to_owned()));
            }
            let prefix = prefix.trim_matches('/').to_owned();
            let store: Arc<dyn ObjectStore> = Arc::new(bucket_of(name, bucket, settings)?);
            return Ok(Self { store, prefix, name: name.trim_end_matches('/').to_owned(), runtime });
        }
        if name.is_empty() || name.contains("://") {
            return Err(PlaceError::Name(name.to_owned()));
        }
        let wrong = |reason| PlaceError::Directory { path: name.into(), reason };
        let path = std::fs::canonicalize(name).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => PlaceError::Missing(name.into()),
            _ => wrong(error),
        })?;
        if !path.is_dir() {
            return Err(wrong(io::ErrorKind::NotADirectory.into()));
        }
        let store = LocalFileSystem::new_with_prefix(&path).map_err(|error| PlaceError::failed(name, error))?;
        let store: Arc<dyn ObjectStore> = Arc::new(store.with_fsync(true));
        Ok(Self { store, prefix: String::new(), name: path.display().to_string(), runtime })
    }

    /// Description of the place.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn key(&self, name: &str) -> Result<Key, PlaceError> {
        let full = if self.prefix.is_empty() { name.to_owned() } else { format!("{}/{name}", self.prefix) };
        Key::parse(full).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: impl fmt::Display) -> PlaceError {
        PlaceError::failed(&self.name, error)
    }

    /// Runs a network request on its own threads and waits for it.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T, PlaceError> {
        let (tell, result) = std::sync::mpsc::sync_channel(1);
        let Some(runtime) = &self.runtime.0 else { return Err(self.failed("closed")) };
        runtime.spawn(async move {
            let _ = tell.send(work.await);
        });
        result.recv().map_err(|_| self.failed("its threads have ended"))?.map_err(|error| self.failed(error))
    }

    /// A complete file; none where it is not there.
    ///
    /// # Errors
    /// The request failed, or the file is larger than such a file may be.
    pub fn read(&self, name: &str) -> Result<Option<Bytes>, PlaceError> {
        let (key, store) = (self.key(name)?, Arc::clone(&self.store));
        let found = self.wait(async move {
            match store.get(&key).await {
                Ok(found) if found.meta.size > MOST_AT_ONCE => Ok(Some(Err(()))),
                Ok(found) => Ok(Some(Ok(found.bytes().await?))),
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        })?;
        match found {
            None => Ok(None),
            Some(Ok(bytes)) => Ok(Some(bytes)),
            Some(Err(())) => Err(PlaceError::TooLarge(name.to_owned())),
        }
    }

    /// Complete files, as [`Self::read`], many at once.
    ///
    /// # Errors
    /// As there.
    pub fn read_all(&self, names: &[String]) -> Result<Vec<Option<Bytes>>, PlaceError> {
        use futures::StreamExt as _;
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<Key> = names.iter().map(|name| self.key(name)).collect::<Result<_, _>>()?;
        let store = Arc::clone(&self.store);
        let read = move |key: Key| {
            let store = Arc::clone(&store);
            async move {
                match store.get(&key).await {
                    Ok(found) if found.meta.size > MOST_AT_ONCE => Ok(None),
                    Ok(found) => found.bytes().await.map(Some),
                    Err(object_store::Error::NotFound { .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            }
        };
        self.wait(async move { futures::stream::iter(keys).map(read).buffered(REQUESTS).try_collect().await })
    }

    /// Part of a file.
    ///
    /// # Errors
    /// The place failed, or the file is not so long.
    pub fn read_range(&self, name: &str, range: std::ops::Range<u64>) -> Result<Bytes, PlaceError> {
        let (key, store) = (self.key(name)?, Arc::clone(&self.store));
        self.wait(async move { store.get_range(&key, range).await })
    }

    /// Writes a complete file, over an existing one.
    ///
    /// # Errors
    /// The place failed.
    pub fn write(&self, name: &str, bytes: impl Into<Bytes>) -> Result<(), PlaceError> {
        let (key, store, bytes) = (self.key(name)?, Arc::clone(&self.store), bytes.into());
        self.wait(async move { store.put(&key, bytes.into()).await.map(drop) })
    }

    /// The files right in a folder, with their sizes.
    ///
    /// # Errors
    /// The place failed.
    pub fn files(&self, folder: &str) -> Result<Vec<(String, u64)>, PlaceError> {
        let listed = self.list(folder)?;
        let file = |meta: object_store::ObjectMeta| Some((meta.location.filename()?.to_owned(), meta.size));
        Ok(listed.objects.into_iter().filter_map(file).collect())
    }

    /// The folders right in a folder.
    ///
    /// # Errors
    /// The place failed.
    pub fn folders(&self, folder: &str) -> Result<Vec<String>, PlaceError> {
        let listed = self.list(folder)?;
        Ok(listed.common_prefixes.iter().filter_map(|key| Some(key.filename()?.to_owned())).collect())
    }

    fn list(&self, folder: &str) -> Result<object_store::ListResult, PlaceError> {
        let (key, store) = (self.key(folder)?, Arc::clone(&self.store));
        self.wait(async move { store.list_with_delimiter(Some(&key)).await })
    }

    /// A file that is written piece by piece, no faster than `rate_bytes` a second, and appears
    /// when it is [finished](Upload::finish).
    #[must_use]
    pub fn upload(&self, name: &str, rate_bytes: u64) -> Upload {
        Upload {
            place: self.clone(),
            name: name.to_owned(),
            parts: None,
            waiting: Vec::new(),
            bytes: 0,
            rate_bytes: rate_bytes.max(1),
            began: Instant::now(),
        }
    }
}

fn bucket_of(name: &str, bucket: &str, settings: &Settings) -> Result<object_store::aws::AmazonS3, PlaceError> {
    let retry = RetryConfig { retry_timeout: RETRY, ..RetryConfig::default() };
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_retry(retry)
        .with_http_connector(Straight { most: MOST_AT_ONCE })
        .with_client_options(ClientOptions::new().with_timeout(REQUEST));
    for (key, value) in &settings.0 {
        // Files of other programs are ignored.
        if let Ok(key) = key.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    if settings.0.get("AWS_ALLOW_HTTP").is_some_and(|value| value == "true") {
        builder = builder.with_allow_http(true);
    }
    builder.build().map_err(|error| PlaceError::failed(name, error))
}

/// A file that is being uploaded. Dropped before it is finished, nothing of it appears.
pub struct Upload {
    place: Place,
    name: String,
    /// Started with the first part: a small file is one request.
    parts: Option<Box<dyn MultipartUpload>>,
    waiting: Vec<u8>,
    bytes: u64,
    rate_bytes: u64,
    began: Instant,
}

impl Upload {
    fn send(&mut self) -> Result<(), PlaceError> {
        if self.parts.is_none() {
            let (key, store) = (self.place.key(&self.name)?, Arc::clone(&self.place.store));
            self.parts = Some(self.place.wait(async move { store.put_multipart(&key).await })?);
        }
        let Some(parts) = &mut self.parts else { return Ok(()) };
        let sent = parts.put_part(Bytes::from(std::mem::take(&mut self.waiting)).into());
        self.place.wait(sent)?;
        let due = Duration::from_secs_f64(self.bytes as f64 / self.rate_bytes as f64);
        std::thread::sleep(due.saturating_sub(self.began.elapsed()));
        Ok(())
    }

    /// Completes the file: now it appears. Returns its bytes.
    ///
    /// # Errors
    /// The request failed; then the file does not appear.
    pub fn finish(mut self) -> Result<u64, PlaceError> {
        if self.parts.is_none() {
            self.place.write(&self.name, std::mem::take(&mut self.waiting))?;
            return Ok(self.bytes);
        }
        if !self.waiting.is_empty() {
            self.send()?;
        }
        let Some(mut parts) = self.parts.take() else { return Ok(self.bytes) };
        let done = self.place.wait(async move {
            match parts.complete().await {
                Ok(_) => Ok(()),
                Err(error) => {
                    let _ = parts.abort().await;
                    Err(error)
                }
            }
        });
        done.map(|()| self.bytes)
    }
}

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting.extend_from_slice(bytes);
        self.bytes += bytes.len() as u64;
        if self.waiting.len() >= PART_BYTES {
            self.send().map_err(io::Error::other)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(mut parts) = self.parts.take() {
            let _ = self.place.wait(async move { parts.abort().await });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::web::tests::{MUCH, Server};

    #[test]
    fn files_of_a_directory_appear_complete_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::open(dir.path().to_str().unwrap(), &Settings::default()).unwrap();
        assert!(place.read("a/b=c/x.json").unwrap().is_none());
        place.write("a/b=c/x.json", "one").unwrap();
        place.write("a/b=c/x.json", "two").unwrap();
        assert_eq!(place.read("a/b=c/x.json").unwrap().unwrap(), "two");
        let mut upload = place.upload("a/b=c/long", u64::MAX);
        upload.write_all(&vec![7; PART_BYTES + 5]).unwrap();
        assert_eq!(place.files("a/b=c").unwrap(), [("x.json".to_owned(), 3)]);
        drop(upload);
        assert_eq!(std::fs::read_dir(dir.path().join("a/b=c")).unwrap().count(), 1, "nothing is left of it");
        let mut upload = place.upload("a/b=c/long", u64::MAX);
        upload.write_all(&vec![7; PART_BYTES + 5]).unwrap();
        assert_eq!(upload.finish().unwrap(), PART_BYTES as u64 + 5);
        assert_eq!(place.read_range("a/b=c/long", 3..5).unwrap(), [7, 7].as_slice());
        assert_eq!(place.files("nothing").unwrap(), []);
    }

    #[test]
    fn what_cannot_be_an_archive_says_so_and_secrets_are_not_shown() {
        let none = Settings::default();
        for (name, words) in
            [("ftp://x/y", "s3://BUCKET"), ("s3://", "s3://BUCKET"), ("/nowhere/at/all", "no such directory")]
        {
            let error = Place::open(name, &none).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys");
        std::fs::write(&file, "# of the bucket\nexport AWS_SECRET_ACCESS_KEY=\"hush\"\n").unwrap();
        let error = Settings::of_file(&file).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let settings = Settings::of_file(&file).unwrap();
        assert_eq!(settings.0.get("AWS_SECRET_ACCESS_KEY").map(String::as_str), Some("hush"));
        assert!(!format!("{settings:?}").contains("hush"));
    }

    /// A bucket at an address.
    fn bucket(url: &str) -> Place {
        let settings = [
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "hush"),
            ("AWS_REGION", "x"),
            ("AWS_ENDPOINT_URL", url),
            ("AWS_ALLOW_HTTP", "true"),
        ];
        let settings = Settings(settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        Place::open("s3://bucket/prefix", &settings).unwrap()
    }

    #[test]
    fn what_a_bucket_says_is_cut() {
        static PIECE: [u8; 64 << 10] = [b'x'; 64 << 10];
        for head in ["403 Forbidden", "400 Bad Request"] {
            let server = Server::start(head, &PIECE, MUCH / PIECE.len());
            let place = bucket(&server.url);
            for error in [place.read("nodes/x").unwrap_err(), place.files("nodes").unwrap_err()] {
                let text = error.to_string();
                assert!(text.chars().count() <= REASON_CHARS + 100 && !text.contains("hush"), "{}", text.len());
            }
            assert!(server.sent.load(Ordering::SeqCst) < MUCH, "{head}: all was read");
        }
        // A success is read as far as was asked for.
        let head = "200 OK\r\nLast-Modified: Sat, 01 Jan 2000 00:00:00 GMT\r\nETag: \"x\"";
        let server = Server::start(head, &PIECE, MUCH / PIECE.len());
        assert!(bucket(&server.url).read("nodes/x").is_err());
        assert!(bucket(&server.url).files("nodes").is_err());
        assert!(server.sent.load(Ordering::SeqCst) < MUCH, "all was read");
    }

    #[test]
    fn a_bucket_that_redirects_is_refused_and_nothing_is_sent_there() {
        let other = Server::start("200 OK\r\nETag: \"x\"", b"", 0);
        let head: &'static str = format!("307 Temporary Redirect\r\nLocation: {}/", other.url).leak();
        let error = bucket(&Server::start(head, b"", 0).url).write("nodes/x", "rows").unwrap_err().to_string();
        assert!(error.contains("Give the address"), "{error}");
        assert_eq!(other.asked.load(Ordering::SeqCst), 0);
    }
}
