//! Owns what this process keeps of segments that were read: their parsed headers and their columns'
//! bytes, so that the next question about the same time does not read, check and parse them again.
//!
//! A segment never changes once it is written, and its id is never used again; so nothing here goes
//! out of date. What is found is still compared with the header that the reader's own snapshot
//! shows, whose checksums cover the columns: a file that took another one's place gives no hit.
//! Connections that may write look nothing up, since a transaction that is rolled back gives its
//! ids back.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rusqlite::{Connection, MAIN_DB};

use super::encode::Encoded;
use super::segment::header::ColumnHeader;
use crate::FastMap;

/// What is kept at most, bytes.
const MOST_BYTES: usize = 16 << 20;
/// A column larger than this is not kept.
const MOST_COLUMN_BYTES: usize = MOST_BYTES / 16;
/// What a header takes beside its bytes, once it is parsed, for each byte of it, about.
const PARSED: usize = 4;

/// A file that is open, for as long as it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Of the file that a read-only connection is open on.
    pub(super) fn of(conn: &Connection) -> Option<Self> {
        let path = conn.path().filter(|path| !path.is_empty())?;
        if !conn.is_readonly(MAIN_DB).unwrap_or(false) {
            return None;
        }
        let file = std::fs::metadata(path).ok()?;
        Some(Self { device: file.dev(), inode: file.ino() })
    }
}

/// What is kept of a segment.
#[derive(Debug)]
pub(super) struct Kept {
    /// The header as it lies in the file.
    stored: Box<[u8]>,
    pub(super) columns: Arc<[ColumnHeader]>,
    /// By place in the header.
    opened: Mutex<Vec<Option<Encoded>>>,
    bytes: AtomicUsize,
    used: Mutex<Instant>,
}

impl Kept {
    fn new(stored: &[u8], columns: Arc<[ColumnHeader]>) -> Self {
        let bytes = stored.len() * (1 + PARSED);
        Self {
            stored: stored.into(),
            opened: Mutex::new(vec![None; columns.len()]),
            columns,
            bytes: AtomicUsize::new(bytes),
            used: Mutex::new(Instant::now()),
        }
    }

    /// It is used: what is not used for longest goes first.
    pub(super) fn used_now(&self) {
        *self.used.lock() = Instant::now();
    }

    /// A column that was read before.
    pub(super) fn column(&self, at: usize) -> Option<Encoded> {
        self.opened.lock().get(at)?.clone()
    }

    /// Keep a column.
    pub(super) fn keep(&self, at: usize, column: &Encoded) {
        let bytes = column.heap_bytes();
        if bytes > MOST_COLUMN_BYTES {
            return;
        }
        if let Some(slot) = self.opened.lock().get_mut(at).filter(|slot| slot.is_none()) {
            *slot = Some(column.clone());
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        } else {
            return;
        }
        let cache = cache();
        if cache.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > MOST_BYTES {
            cache.trim(MOST_BYTES / 4 * 3);
        }
    }
}

#[derive(Default)]
struct Cache {
    segments: Mutex<FastMap<(FileId, i64), Arc<Kept>>>,
    /// Of all segments, at least: what was let go is counted until the next trimming.
    bytes: AtomicUsize,
}

impl Cache {
    /// Let go what was not used for longest, until so many bytes are left.
    fn trim(&self, most: usize) {
        let mut segments = self.segments.lock();
        let mut by_age: Vec<(Instant, usize, (FileId, i64))> =
            segments.iter().map(|(key, kept)| (*kept.used.lock(), kept.bytes.load(Ordering::Relaxed), *key)).collect();
        by_age.sort_unstable_by_key(|(used, ..)| std::cmp::Reverse(*used));
        let mut left = 0;
        for (_, bytes, key) in by_age {
            if left + bytes > most {
                segments.remove(&key);
            } else {
                left += bytes;
            }
        }
        self.bytes.store(left, Ordering::Relaxed);
    }
}

fn cache() -> &'static Cache {
    static CACHE: OnceLock<Cache> = OnceLock::new();
    CACHE.get_or_init(Cache::default)
}

/// What is kept of a segment whose header lies in the file as `stored`.
pub(super) fn find(file: FileId, segment: i64, stored: &[u8]) -> Option<Arc<Kept>> {
    let found = cache().segments.lock().get(&(file, segment)).cloned()?;
    if *found.stored != *stored {
        return None;
    }
    found.used_now();
    Some(found)
}

/// Keep a segment's header, and from now on its columns.
pub(super) fn keep(file: FileId, segment: i64, stored: &[u8], columns: Arc<[ColumnHeader]>) -> Arc<Kept> {
    let kept = Arc::new(Kept::new(stored, columns));
    let cache = cache();
    let bytes = kept.bytes.load(Ordering::Relaxed);
    cache.segments.lock().insert((file, segment), Arc::clone(&kept));
    if cache.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > MOST_BYTES {
        cache.trim(MOST_BYTES / 4 * 3);
    }
    kept
}

/// Lets go what no question has used for `longer`.
pub fn let_go_of_segments(longer: Duration) {
    let cache = cache();
    cache.segments.lock().retain(|_, kept| kept.used.lock().elapsed() <= longer);
    cache.trim(MOST_BYTES);
}
