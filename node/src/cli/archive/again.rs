//! An archive that is asked for longer than one question (`rankmesh shell`, `rankmesh mcp`): hours are
//! added to it meanwhile, so that it is looked at again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ask::{Backend, Reply, Take};
use model::{LocalRequest, OnBehalf};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::cli::stores::Stores;

/// A question after so long looks at what is there anew.
pub(in crate::cli) const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// What was there when it was last looked.
pub(in crate::cli) struct Again<F> {
    after: Duration,
    open: F,
    seen: Mutex<(Instant, Arc<Stores>)>,
}

impl<F: Fn() -> anyhow::Result<Stores>> Again<F> {
    /// Opens it by `open`, and again where a question comes so long after.
    ///
    /// # Errors
    /// As `open`.
    pub(in crate::cli) fn open(after: Duration, open: F) -> anyhow::Result<Self> {
        let seen = Mutex::new((Instant::now(), Arc::new(open()?)));
        Ok(Self { after, open, seen })
    }

    fn seen(&self) -> Arc<Stores> {
        Arc::clone(&self.seen.lock().1)
    }

    /// What is there now. Those that ask while another looks are answered from what was there before;
    /// so are all where it cannot be read.
    fn now(&self) -> Arc<Stores> {
        {
            let mut seen = self.seen.lock();
            if seen.0.elapsed() < self.after {
                return Arc::clone(&seen.1);
            }
            seen.0 = Instant::now();
        }
        match (self.open)() {
            Ok(stores) => self.seen.lock().1 = Arc::new(stores),
            Err(error) => tracing::warn!("answers are of what was there before: {error:#}"),
        }
        self.seen()
    }
}

impl<F: Fn() -> anyhow::Result<Stores> + Send + Sync> Backend for Again<F> {
    fn ask_into(
        &self,
        behalf: Option<&OnBehalf>,
        request: LocalRequest,
        stop: &CancellationToken,
        take: Take<'_>,
    ) -> anyhow::Result<Reply> {
        self.now().ask_into(behalf, request, stop, take)
    }

    fn is_gone(&self) -> bool {
        self.seen().is_gone()
    }

    fn description(&self) -> String {
        self.seen().description()
    }

    fn is_stores(&self) -> bool {
        self.seen().is_stores()
    }

    fn stored_ns(&self) -> Option<(i64, i64)> {
        self.seen().stored_ns()
    }
}

#[cfg(test)]
mod tests {
    use model::Question;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn what_appears_later_is_seen_and_what_cannot_be_read_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let conn = rusqlite::Connection::open(dir.path().join(name)).unwrap();
            conn.execute_batch("CREATE TABLE days (day INTEGER); INSERT INTO days VALUES (1)").unwrap();
        };
        write("a.db");
        let (paths, fails) = ([dir.path().to_owned()], AtomicBool::new(false));
        let open = || {
            anyhow::ensure!(!fails.load(Ordering::Relaxed), "it cannot be read");
            Stores::open(&paths)
        };
        let days = |stores: &dyn Backend| {
            let question =
                Question { sql: "SELECT day FROM days".to_owned(), timeout_ms: 60_000, ..Question::default() };
            let mut rows = 0;
            let take: Take<'_> = &mut |piece| {
                rows += if let ask::Piece::Rows(found) = piece { found.len() } else { 0 };
                Ok(())
            };
            stores.ask_into(None, LocalRequest::Query(question), &CancellationToken::new(), take).unwrap();
            rows
        };
        let (seldom, often) = (Again::open(LOOK_AGAIN, open).unwrap(), Again::open(Duration::ZERO, open).unwrap());
        assert_eq!((days(&seldom), days(&often)), (1, 1));
        write("b.db");
        assert_eq!((days(&seldom), days(&often)), (1, 2));
        fails.store(true, Ordering::Relaxed);
        assert_eq!(days(&often), 2);
    }
}
