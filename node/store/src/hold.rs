//! Owns the state that retention and an archive share: up to when rows are archived, whether rows
//! should be archived soon, and how many were dropped before they were. Does not own dropping
//! (`retention`) nor archives.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// How much longer than their age rows are kept that are not archived: an hour that is not over,
/// its settling, and some attempts.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3 * 3600);

/// No archive: no rows are kept for one.
const NO_ARCHIVE: i64 = i64::MAX;

/// Which rows retention keeps for an archive.
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

/// The state of the rows that are kept for an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveBacklog {
    /// Rows are about to be dropped, or kept beyond their age, that are not archived.
    pub wants_archive: bool,
    /// Rows that were dropped and not archived, since the store was opened.
    pub not_archived: u64,
}

impl Hold {
    pub(crate) fn begin(&self) {
        self.archived_ns.store(i64::MIN, Ordering::Relaxed);
    }

    /// Never goes back; has no effect where no rows are kept for an archive.
    pub(crate) fn archived(&self, until_ns: i64) {
        if self.archived_ns() != NO_ARCHIVE {
            self.archived_ns.fetch_max(until_ns.min(NO_ARCHIVE - 1), Ordering::Relaxed);
        }
    }

    /// Rows from this time on are kept for an archive, Unix nanoseconds.
    pub(crate) fn archived_ns(&self) -> i64 {
        self.archived_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn note(&self, wants_archive: bool, not_archived: u64) {
        self.wants_archive.store(wants_archive, Ordering::Relaxed);
        self.not_archived.fetch_add(not_archived, Ordering::Relaxed);
    }

    pub(crate) fn archive_backlog(&self) -> ArchiveBacklog {
        ArchiveBacklog {
            wants_archive: self.wants_archive.load(Ordering::Relaxed),
            not_archived: self.not_archived.load(Ordering::Relaxed),
        }
    }
}
