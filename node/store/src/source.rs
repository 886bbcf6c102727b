//! Owns the choice between an agent's two kinds of data: its own trace store, or a file served as
//! it is.

use std::ops::Range;

use rusqlite::Connection;

use super::own_rows;
use super::schema::REPLICATED_TABLES;
use super::{ClockOffsetSeen, Facts, ServedDb, Store, StoreError, Validity};

/// Where an agent's mesh tables come from.
#[derive(Debug)]
pub enum Source {
    /// The agent's own trace store.
    Store(Store),
    /// Any SQLite file, read-only.
    Served(ServedDb),
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
        }
    }

    /// A fresh connection, fit for a question as it is, that shows the rows of one user's
    /// processes.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be opened; a served file's rows cannot be told apart by
    /// user.
    pub fn open_own_rows(&self, node: &str, uid: u32) -> Result<Connection, String> {
        match self {
            Self::Store(store) => own_rows::open(store.path(), node, uid).map_err(|error| error.to_string()),
            Self::Served(_) => {
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
            Self::Store(_) => Some(Validity::Always),
            Self::Served(served) => served.validity(),
        }
    }

    /// How full the queue before the store is, per mille.
    #[must_use]
    pub fn backlog(&self) -> u32 {
        match self {
            Self::Store(store) => store.shared.queue.fullness(),
            Self::Served(_) => 0,
        }
    }

    /// Tables, spans and sizes.
    #[must_use]
    pub fn facts(&self) -> Facts {
        match self {
            Self::Store(store) => store.facts(),
            Self::Served(served) => served.facts(),
        }
    }

    /// What is known to be missing; see [`Store::notes`]. A served file says
    /// [`ServedDb::notes`].
    #[must_use]
    pub fn notes(&self, tables: &[&str], range: Range<i64>) -> Vec<String> {
        match self {
            Self::Store(store) => store.notes(tables, range),
            Self::Served(served) => served.notes(tables, &range),
        }
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
        }
    }

    /// Tables that are equal on every node.
    #[must_use]
    pub fn replicated(&self) -> Vec<String> {
        match self {
            Self::Store(_) => REPLICATED_TABLES.iter().map(|t| (*t).to_owned()).collect(),
            Self::Served(served) => served.replicated().to_vec(),
        }
    }
}
