//! A read-only connection to this node's source that is kept between tasks, and the limits of one
//! whose task runs inline.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rusqlite::Connection;
use store::Validity;

/// Steps of SQLite's virtual machine that an inline task may take, about a tenth of a millisecond
/// of work, and how often they are looked at.
const INLINE_STEPS: i32 = 4_000;
const INLINE_CHECKS: i32 = 4;

/// A connection kept between tasks, or between the rounds of a question.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) conn: Connection,
    /// For how long it may be kept.
    pub(super) validity: Option<Validity>,
    /// How often its progress handler has been called, where that is the one of inline tasks: it
    /// stays from one to the next.
    looks: Option<Arc<AtomicI32>>,
}

impl Reader {
    /// A connection without limits.
    pub(super) fn new(conn: Connection, validity: Option<Validity>) -> Self {
        Self { conn, validity, looks: None }
    }

    /// Lets the next statements take as many steps as an inline task may, and no more, and values
    /// be as long.
    pub(super) fn limit_steps(&mut self) {
        if let Some(looks) = &self.looks {
            looks.store(0, Ordering::Relaxed);
            return;
        }
        let looks = Arc::new(AtomicI32::new(0));
        let counted = Arc::clone(&looks);
        let is_over = move || counted.fetch_add(1, Ordering::Relaxed) + 1 >= INLINE_CHECKS;
        if query_planner::bound_values(&self.conn, true).is_ok()
            && self.conn.progress_handler(INLINE_STEPS / INLINE_CHECKS, Some(is_over)).is_ok()
        {
            self.looks = Some(looks);
        }
    }

    /// Takes the limits of inline tasks away.
    pub(super) fn unlimit(&mut self) {
        if self.looks.take().is_some() {
            let _ = self.conn.progress_handler(0, None::<fn() -> bool>);
            let _ = query_planner::bound_values(&self.conn, false);
        }
    }

    /// Begins a read transaction, unless the connection is within one.
    pub(super) fn begin(&self) -> rusqlite::Result<()> {
        if self.conn.is_autocommit() { self.run("BEGIN") } else { Ok(()) }
    }

    /// Ends the read transaction, if there is one. (SQLite ends it by itself where memory ran out.)
    pub(super) fn end(&self) -> rusqlite::Result<()> {
        if self.conn.is_autocommit() { Ok(()) } else { self.run("COMMIT").or_else(|_| self.run("ROLLBACK")) }
    }

    fn run(&self, sql: &str) -> rusqlite::Result<()> {
        self.conn.prepare_cached(sql)?.execute([]).map(|_| ())
    }
}
