//! Owns reading files and listing folders of an archive. Who may write there may put anything there:
//! files of any length and kind, folders without end.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::AmazonS3;
use object_store::list::{PaginatedListOptions, PaginatedListStore as _};
use object_store::path::Path as Key;
use object_store::{Error, ObjectStoreExt as _, Result};

/// Most entries of a folder: stores of ten thousand hosts that began anew twenty times.
pub(super) const MOST_LISTED: usize = 200_000;
/// Entries of a page of a bucket's list.
const PAGE: usize = 1_000;
/// Time for a folder's list: pages may be empty, or slow.
const LISTING: Duration = Duration::from_secs(120);

/// A complete file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// There is none.
    None,
    /// It is longer than was asked for.
    TooLong,
    Bytes(Bytes),
}

/// The entries of a folder.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) files: Vec<String>,
    pub(super) folders: Vec<String>,
}

/// Where files are read.
#[derive(Debug, Clone)]
pub(super) enum Files {
    Directory(Arc<Path>),
    Bucket(Arc<AmazonS3>),
}

impl Files {
    /// A complete file of up to `most` bytes.
    pub(super) async fn complete(&self, key: Key, most: u64) -> Result<Content> {
        match self {
            Self::Directory(path) => {
                let path = of(path, &key);
                blocking(move || complete(&path, most)).await
            }
            Self::Bucket(bucket) => match bucket.get(&key).await {
                Ok(found) if found.meta.size > most => Ok(Content::TooLong),
                Ok(found) => Ok(Content::Bytes(found.bytes().await?)),
                Err(Error::NotFound { .. }) => Ok(Content::None),
                Err(error) => Err(error),
            },
        }
    }

    /// Part of a file.
    pub(super) async fn range(&self, key: Key, range: Range<u64>) -> Result<Bytes> {
        match self {
            Self::Directory(path) => {
                let path = of(path, &key);
                blocking(move || part(&path, range)).await
            }
            Self::Bucket(bucket) => bucket.get_range(&key, range).await,
        }
    }

    /// What is right in a folder; `most` entries at most.
    pub(super) async fn names(&self, folder: Key, most: usize) -> Result<Names> {
        match self {
            Self::Directory(path) => {
                let path = of(path, &folder);
                blocking(move || listed(&path, most)).await
            }
            Self::Bucket(bucket) => match tokio::time::timeout(LISTING, pages(bucket, &folder, most)).await {
                Ok(names) => names,
                Err(_) => Err(too_long(&folder, &format!("is not listed within {} s", LISTING.as_secs()))),
            },
        }
    }
}

fn of(directory: &Path, key: &Key) -> PathBuf {
    directory.join(key.as_ref())
}

/// Runs what may wait for a disk where that stops nobody.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    let failed = |source| Error::Generic { store: "directory", source };
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| failed(error.into()))?;
    done.map_err(|error| failed(error.into()))
}

/// Opens a file to read it: a pipe would wait for whoever writes into it, a device do what it does.
fn regular(path: &Path) -> io::Result<File> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC);
    let file = options.open(path).map_err(named)?;
    match file.metadata().map_err(named)?.is_file() {
        true => Ok(file),
        false => Err(named(io::Error::other("no regular file, which an archive's are: remove it"))),
    }
}

fn complete(path: &Path, most: u64) -> io::Result<Content> {
    let file = match regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Content::None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(if bytes.len() as u64 > most { Content::TooLong } else { Content::Bytes(bytes.into()) })
}

fn part(path: &Path, range: Range<u64>) -> io::Result<Bytes> {
    let file = regular(path)?;
    if range.start > range.end || range.end > file.metadata()?.len() {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, format!("{} is too short", path.display())));
    }
    let mut bytes = vec![0; usize::try_from(range.end - range.start).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes.into())
}

fn listed(path: &Path, most: usize) -> io::Result<Names> {
    let mut names = Names::default();
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(names),
        Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    };
    for (at, entry) in entries.enumerate() {
        if at >= most {
            return Err(io::Error::other(more_than(&path.display().to_string(), most)));
        }
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let mut kind = entry.file_type()?;
        if kind.is_symlink() {
            match std::fs::metadata(entry.path()) {
                Ok(found) => kind = found.file_type(),
                Err(_) => continue,
            }
        }
        if kind.is_dir() {
            names.folders.push(name);
        } else if kind.is_file() && !is_growing(&name) {
            names.files.push(name);
        }
    }
    Ok(names)
}

/// Whether a file is on its way: it gets its name when it is complete.
fn is_growing(name: &str) -> bool {
    let after = name.split_once('#').map(|(_, after)| after).filter(|after| !after.is_empty());
    after.is_some_and(|after| after.bytes().all(|byte| byte.is_ascii_digit()))
}

async fn pages(bucket: &AmazonS3, folder: &Key, most: usize) -> Result<Names> {
    let prefix = format!("{folder}/");
    let mut names = Names::default();
    let (mut token, mut listed) = (None, 0_usize);
    loop {
        let options = PaginatedListOptions {
            delimiter: Some("/".into()),
            max_keys: Some(PAGE),
            page_token: token.take(),
            ..PaginatedListOptions::default()
        };
        let page = bucket.list_paginated(Some(&prefix), options).await?;
        let (objects, folders) = (page.result.objects, page.result.common_prefixes);
        // A page without entries is a page, too.
        listed = listed.saturating_add((objects.len() + folders.len()).max(PAGE / 10));
        let name = |key: &Key| key.filename().map(str::to_owned);
        names.files.extend(objects.iter().filter_map(|object| name(&object.location)));
        names.folders.extend(folders.iter().filter_map(name));
        token = page.page_token;
        if token.is_none() {
            return Ok(names);
        }
        if listed >= most {
            return Err(too_long(folder, &more_than(folder.as_ref(), most)));
        }
    }
}

fn more_than(folder: &str, most: usize) -> String {
    format!(
        "{folder} has more than {most} entries, which no archive has: look there, and give one of its own to each mesh"
    )
}

fn too_long(folder: &Key, why: &str) -> Error {
    let text = if why.contains(folder.as_ref()) { why.to_owned() } else { format!("{folder} {why}") };
    Error::Generic { store: "bucket", source: text.into() }
}
