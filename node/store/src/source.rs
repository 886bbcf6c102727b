//! Owns the choice between a node's kinds of data: an agent's own trace store, a file served as it
//! is, or rows from elsewhere.

use std::ops::Range;

use rusqlite::Connection;

use super::own_rows;
use super::schema::REPLICATED_TABLES;
use super::{ClockOffsetSeen, Facts, ServedDb, Store, StoreError, Validity};

/// Rows that are not in a store's file, as the tables of a connection.
pub trait Rows: std::fmt::Debug + Send + Sync {
    /// A fresh read-only connection for a question.
    ///
    /// # Errors
    /// [`StoreError::External`] with the reason.
    fn open_reader(&self) -> Result<Connection, StoreError>;
    /// Tables, spans and sizes.
    fn facts(&self) -> Facts;
    /// What is known to be missing from `tables` (all when empty) in `range` of Unix nanoseconds.
    fn notes(&self, tables: &[&str], range: &Range<i64>) -> Vec<String>;
    /// Whether rows may come while questions are asked: then a connection is for one question
    /// alone.
    fn grows(&self) -> bool {
        false
    }
    /// See [`ServedDb::clock_offsets`].
    ///
    /// # Errors
    /// As [`Rows::open_reader`].
    fn clock_offsets(&self, range: Option<&Range<i64>>) -> Result<Vec<ClockOffsetSeen>, StoreError>;
}

/// Where a node's mesh tables come from.
#[derive(Debug)]
pub enum Source {
    /// The agent's own trace store.
    Store(Store),
    /// Any SQLite file, read-only.
    Served(ServedDb),
    /// Rows from elsewhere, read-only.
    External(Box<dyn Rows>),
}

impl Source {
    /// A fresh read-only connection for a question.
    ///
    /// # Errors
    /// [`StoreError`] when the file cannot be opened.
    pub fn open_reader(&self) -> Result<Connection, StoreError> {
        match self {
            Self::Store(store) => store.reader(),
            Self::Served(served) => served.reader(),
            Self::External(rows) => rows.open_reader(),
        }
    }

    /// A fresh connection, fit for a question as it is, that shows the rows of one user's
    /// processes.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be opened; a served file's rows cannot be assigned to
    /// users.
    pub fn open_own_rows(&self, node: &str, uid: u32) -> Result<Connection, String> {
        match self {
            Self::Store(store) => own_rows::open(store.path(), node, uid).map_err(|error| error.to_string()),
            Self::Served(_) | Self::External(_) => {
                Err("not allowed: this agent serves a file, whose rows are not known by user; its readers may ask"
                    .into())
            }
        }
    }

    /// For how long a connection that is opened now may be kept for later questions (opening one
    /// costs some 0.2 ms, most of it reading the schema); see [`ServedDb::validity`].
    #[must_use]
    pub fn validity(&self) -> Option<Validity> {
        match self {
            Self::External(rows) if rows.grows() => None,
            Self::Store(_) | Self::External(_) => Some(Validity::Always),
            Self::Served(served) => served.validity(),
        }
    }

    /// How full the queue before the store is, per mille.
    #[must_use]
    pub fn backlog(&self) -> u32 {
        match self {
            Self::Store(store) => store.shared.queue.fullness(),
            Self::Served(_) | Self::External(_) => 0,
        }
    }

    /// Tables, spans and sizes.
    #[must_use]
    pub fn facts(&self) -> Facts {
        match self {
            Self::Store(store) => store.facts(),
            Self::Served(served) => served.facts(),
            Self::External(rows) => rows.facts(),
        }
    }

    /// What is known to be missing; see [`Store::notes`]. For a served file [`ServedDb::notes`].
    #[must_use]
    pub fn notes(&self, tables: &[&str], range: Range<i64>) -> Vec<String> {
        match self {
            Self::Store(store) => store.notes(tables, range),
            Self::Served(served) => served.notes(tables, &range),
            Self::External(rows) => rows.notes(tables, &range),
        }
    }

    /// Whether nothing is known to be missing from `tables` at any time, as far as that is known at
    /// once.
    #[must_use]
    pub fn has_no_notes(&self, tables: &[&str]) -> bool {
        !matches!(self, Self::External(_)) && self.notes(tables, i64::MIN..i64::MAX).is_empty()
    }

    /// See [`ServedDb::clock_offsets`]; of an agent's own store, which is asked while it measures,
    /// none.
    ///
    /// # Errors
    /// As [`ServedDb::clock_offsets`].
    pub fn clock_offsets(&self, range: Option<&Range<i64>>) -> Result<Vec<ClockOffsetSeen>, StoreError> {
        match self {
            Self::Store(_) => Ok(Vec::new()),
            Self::Served(served) => served.clock_offsets(range),
            Self::External(rows) => rows.clock_offsets(range),
        }
    }

    /// Tables that are equal on every node.
    #[must_use]
    pub fn replicated(&self) -> Vec<String> {
        match self {
            Self::Store(_) | Self::External(_) => REPLICATED_TABLES.iter().map(|t| (*t).to_owned()).collect(),
            Self::Served(served) => served.replicated().to_vec(),
        }
    }
}
