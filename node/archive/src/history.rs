//! Owns a node of an archive: the hours of its stores, and the rows that its store still has, as
//! one source of rows. An hour in both is counted once: from the store where it still has all of
//! it, else from the archive.

use std::ops::Range;
use std::sync::Arc;

use rusqlite::Connection;
use store::{ClockOffsetSeen, Facts, Rows, StoreError, TableFacts};

use crate::holdings::Archive;
use crate::hour::HOUR_NS;
use crate::live::LiveStore;
use crate::parts::Node;
use crate::table;

/// The last hours of a node that are used where clocks are asked for without a time.
const LAST_HOURS: i64 = 2;

/// A node: its archived hours and its store.
#[derive(Debug)]
pub struct NodeHistory(Arc<Node>);

impl NodeHistory {
    /// The node called `node`, with its store if there is one.
    #[must_use]
    pub fn new(archive: Arc<Archive>, node: &str, live: Option<Arc<dyn LiveStore>>) -> Self {
        let stores = archive.stores().keys().filter(|store| store.node == node).cloned().collect();
        Self(Arc::new(Node { archive, stores, live, asked_ns: 0 }))
    }
}

impl Rows for NodeHistory {
    fn open_reader(&self) -> Result<Connection, StoreError> {
        let node = Node { asked_ns: record::unix_now_ns(), ..Node::clone(&self.0) };
        table::connection(&Arc::new(node)).map_err(|error| StoreError::External(error.to_string()))
    }

    fn facts(&self) -> Facts {
        let mut facts = self.0.live.as_ref().map(|live| live.facts()).unwrap_or_default();
        if let Some((first, last)) = self.0.span_ns() {
            // For planning: the span covers archive and store, the number of rows is not known.
            let name = "collectives".to_owned();
            let rows = facts.table(&name).map_or(0, |table| table.rows);
            facts.tables.retain(|table| table.name != name);
            facts.tables.push(TableFacts {
                name,
                rows,
                first_ns: Some(first),
                last_ns: Some(last),
                ..TableFacts::default()
            });
        }
        facts
    }

    fn grows(&self) -> bool {
        self.0.live.as_ref().is_some_and(|live| live.grows())
    }

    fn notes(&self, tables: &[&str], range: &Range<i64>) -> Vec<String> {
        self.0.notes(tables, range)
    }

    fn clock_offsets(&self, range: Option<&Range<i64>>) -> Result<Vec<ClockOffsetSeen>, StoreError> {
        let conn = self.open_reader()?;
        let last = self
            .0
            .span_ns()
            .map(|(_, last_ns)| last_ns.saturating_sub(LAST_HOURS * HOUR_NS)..last_ns.saturating_add(1));
        store::clock_offsets(&conn, range.or(last.as_ref())).map_err(|error| StoreError::External(error.to_string()))
    }
}

#[cfg(test)]
mod tests;
