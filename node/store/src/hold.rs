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

    /// Rows before `until_ns` are archived: none after now can be. Goes back only where it lies
    /// ahead of now; has no effect where no rows are kept for an archive.
    pub(crate) fn archived(&self, until_ns: i64, now_ns: i64) {
        let until_ns = until_ns.min(now_ns);
        let _ = self.archived_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |known_ns| match known_ns {
            NO_ARCHIVE => None,
            known_ns if known_ns > now_ns => Some(until_ns),
            known_ns => Some(known_ns.max(until_ns)),
        });
    }

    /// Rows from this time on are kept for an archive, Unix nanoseconds. What was said while the
    /// clock was ahead of `now_ns` is not believed: nothing is known to be archived until it is
    /// said again.
    pub(crate) fn archived_ns(&self, now_ns: i64) -> i64 {
        match self.archived_ns.load(Ordering::Relaxed) {
            NO_ARCHIVE => NO_ARCHIVE,
            archived_ns if archived_ns > now_ns => i64::MIN,
            archived_ns => archived_ns,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_ahead_for_a_moment_releases_nothing() {
        const HOUR: i64 = 3_600_000_000_000;
        const NOW: i64 = 500_000 * HOUR;
        let hold = Hold::default();
        hold.archived(NOW, NOW);
        assert_eq!(hold.archived_ns(NOW), NO_ARCHIVE, "no rows are kept");
        hold.begin();
        assert_eq!(hold.archived_ns(NOW), i64::MIN);
        hold.archived(NOW - 2 * HOUR, NOW);
        hold.archived(NOW - 3 * HOUR, NOW);
        assert_eq!(hold.archived_ns(NOW), NOW - 2 * HOUR);
        // The wall clock is ahead, and the archiver's with it; retention goes by a clock that waits.
        let ahead = NOW + 9_000 * HOUR;
        hold.archived(ahead - HOUR, ahead);
        assert_eq!(hold.archived_ns(NOW + 1), i64::MIN);
        // It is right again.
        hold.archived(NOW - HOUR, NOW + 2);
        assert_eq!(hold.archived_ns(NOW + 2), NOW - HOUR);
        // Whatever is said, nothing after now is archived.
        hold.archived(i64::MAX, NOW + 3);
        assert_eq!(hold.archived_ns(NOW + 3), NOW + 3);
    }
}
