//! Owns what retention and an archive know of each other: up to when rows are archived, whether rows
//! are wanted that are not, and how many of those had to go. Does not own dropping (`retention`)
//! nor archives.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// How much longer than their age rows are kept that are not archived: an hour that is not over, its settling, and
/// some attempts.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3 * 3600);

/// What nobody archives: nothing is held.
const NO_ARCHIVE: i64 = i64::MAX;

/// What is held for an archive.
#[derive(Debug)]
pub(crate) struct Hold {
    archived_ns: AtomicI64,
    wants_archive: AtomicBool,
    not_archived: AtomicU64,
}

impl Default for Hold {
    fn default() -> Self {
        Self {
            archived_ns: AtomicI64::new(NO_ARCHIVE),
            wants_archive: AtomicBool::new(false),
            not_archived: AtomicU64::new(0),
        }
    }
}

/// How it stands with what is held for an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Rows are about to be dropped, or kept beyond their age, that are not archived.
    pub wants_archive: bool,
    /// Rows that were dropped and not archived, since the store was opened.
    pub not_archived: u64,
}

impl Hold {
    pub(crate) fn begin(&self) {
        self.archived_ns.store(i64::MIN, Ordering::Relaxed);
    }

    /// Never goes back; means nothing where nothing is held.
    pub(crate) fn archived(&self, until_ns: i64) {
        if self.archived_ns() != NO_ARCHIVE {
            self.archived_ns.fetch_max(until_ns.min(NO_ARCHIVE - 1), Ordering::Relaxed);
        }
    }

    /// Rows from this time on are held, Unix nanoseconds.
    pub(crate) fn archived_ns(&self) -> i64 {
        self.archived_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn note(&self, wants_archive: bool, not_archived: u64) {
        self.wants_archive.store(wants_archive, Ordering::Relaxed);
        self.not_archived.fetch_add(not_archived, Ordering::Relaxed);
    }

    pub(crate) fn held(&self) -> Held {
        Held {
            wants_archive: self.wants_archive.load(Ordering::Relaxed),
            not_archived: self.not_archived.load(Ordering::Relaxed),
        }
    }
}
