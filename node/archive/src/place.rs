//! Owns access to an archive: a directory, or an S3-compatible bucket. Files appear complete
//! (renamed into place, or a completed upload) or not at all. Everything here blocks its thread;
//! network requests run on threads of its own.

mod read;
mod settings;
mod upload;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt as _, RetryConfig};
use tokio::runtime::Runtime;

use crate::web::Straight;
use read::{Files, Names};

pub(crate) use read::Content;

pub use settings::Settings;
pub use upload::Upload;

/// Time limit of a request to a bucket.
const REQUEST: Duration = Duration::from_secs(60);
/// How long a request is retried.
const RETRY: Duration = Duration::from_secs(30);
/// Requests at once.
const REQUESTS: usize = 32;
/// Largest file that is read in one request: manifests are a few KiB.
const MOST_AT_ONCE: u64 = 16 << 20;
/// Largest file that has a few numbers in it.
const MOST_SMALL: u64 = 64 << 10;

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
    /// What is written goes through this,
    store: Arc<dyn ObjectStore>,
    /// and what is read comes from here.
    files: Files,
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
            let bucket = Arc::new(bucket_of(name, bucket, settings)?);
            let (store, files) = (Arc::clone(&bucket) as Arc<dyn ObjectStore>, Files::Bucket(bucket));
            return Ok(Self { store, files, prefix, name: name.trim_end_matches('/').to_owned(), runtime });
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
        let (name, files) = (path.display().to_string(), Files::Directory(path.into()));
        Ok(Self { store, files, prefix: String::new(), name, runtime })
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
    fn wait<T: Send + 'static, E: fmt::Display + Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
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
        self.read_up_to(name, MOST_AT_ONCE)
    }

    /// As [`Self::read`], of a file that is some hundred bytes.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn read_small(&self, name: &str) -> Result<Option<Bytes>, PlaceError> {
        self.read_up_to(name, MOST_SMALL)
    }

    fn read_up_to(&self, name: &str, most: u64) -> Result<Option<Bytes>, PlaceError> {
        let (key, files) = (self.key(name)?, self.files.clone());
        match self.wait(async move { files.complete(key, most).await })? {
            Content::None => Ok(None),
            Content::Bytes(bytes) => Ok(Some(bytes)),
            Content::TooLong => Err(PlaceError::TooLarge(name.to_owned())),
        }
    }

    /// Complete files of up to `most` bytes, many at once, in order.
    ///
    /// # Errors
    /// The request failed.
    pub(crate) fn read_all(&self, names: &[String], most: u64) -> Result<Vec<Content>, PlaceError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<Key> = names.iter().map(|name| self.key(name)).collect::<Result<_, _>>()?;
        let files = self.files.clone();
        let read = move |key: Key| {
            let files = files.clone();
            async move { files.complete(key, most).await }
        };
        self.wait(async move { futures::stream::iter(keys).map(read).buffered(REQUESTS).try_collect().await })
    }

    /// Part of a file.
    ///
    /// # Errors
    /// The place failed, or the file is not so long.
    pub fn read_range(&self, name: &str, range: std::ops::Range<u64>) -> Result<Bytes, PlaceError> {
        let (key, files) = (self.key(name)?, self.files.clone());
        self.wait(async move { files.range(key, range).await })
    }

    /// Writes a complete file, over an existing one.
    ///
    /// # Errors
    /// The place failed.
    pub fn write(&self, name: &str, bytes: impl Into<Bytes>) -> Result<(), PlaceError> {
        let (key, store, bytes) = (self.key(name)?, Arc::clone(&self.store), bytes.into());
        self.wait(async move { store.put(&key, bytes.into()).await.map(drop) })
    }

    /// The names of the files right in a folder.
    ///
    /// # Errors
    /// The place failed, or has more of them than an archive can have.
    pub fn files(&self, folder: &str) -> Result<Vec<String>, PlaceError> {
        Ok(self.names(folder)?.files)
    }

    /// The folders right in a folder.
    ///
    /// # Errors
    /// The place failed, or has more of them than an archive can have.
    pub fn folders(&self, folder: &str) -> Result<Vec<String>, PlaceError> {
        Ok(self.names(folder)?.folders)
    }

    fn names(&self, folder: &str) -> Result<Names, PlaceError> {
        let (key, files) = (self.key(folder)?, self.files.clone());
        self.wait(async move { files.names(key, read::MOST_LISTED).await })
    }

    /// A file that is written piece by piece, no faster than `rate_bytes` a second, and appears
    /// when it is [finished](Upload::finish).
    #[must_use]
    pub fn upload(&self, name: &str, rate_bytes: u64) -> Upload {
        Upload::begin(self.clone(), name.to_owned(), rate_bytes.max(1))
    }
}

fn bucket_of(name: &str, bucket: &str, settings: &Settings) -> Result<AmazonS3, PlaceError> {
    let retry = RetryConfig { retry_timeout: RETRY, ..RetryConfig::default() };
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(bucket)
        .with_retry(retry)
        .with_http_connector(Straight { most: MOST_AT_ONCE })
        .with_client_options(ClientOptions::new().with_timeout(REQUEST));
    for (key, value) in settings.by_name() {
        // Files of other programs are ignored.
        if let Ok(key) = key.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    if settings.by_name().get("AWS_ALLOW_HTTP").is_some_and(|value| value == "true") {
        builder = builder.with_allow_http(true);
    }
    builder.build().map_err(|error| PlaceError::failed(name, error))
}

#[cfg(test)]
mod tests;
