//! The catalogue of this node's own source, read again only when its schema has changed: it is
//! checked every second.

use std::sync::Arc;

use parking_lot::Mutex;
use query_planner::{Catalog, NodeError};
use rusqlite::Connection;
use store::{Source, Validity};

/// What was read last. The connection is one of its own: a hardened one may not read the schema.
#[derive(Debug, Default)]
pub(super) struct OwnCatalog(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    reader: Connection,
    /// SQLite's schema cookie (<https://sqlite.org/pragma.html#pragma_schema_version>) from before
    /// the catalogue was read.
    schema: i64,
    catalog: Arc<Catalog>,
    /// For how long the connection may be kept.
    validity: Validity,
}

impl OwnCatalog {
    /// The tables of `source` now.
    ///
    /// # Errors
    /// It cannot be opened or read.
    pub(super) fn of(&self, source: &Source) -> Result<Arc<Catalog>, NodeError> {
        let failed = |error: &dyn std::error::Error| NodeError::Failed(error.to_string());
        let mut known = self.0.lock();
        // Taken out: after a failure the next check starts with a new connection.
        let now = source.validity();
        let reader = match known.take().filter(|old| Some(old.validity) == now) {
            Some(old) if schema_of(&old.reader).is_ok_and(|now| now == old.schema) => {
                let catalog = Arc::clone(&old.catalog);
                *known = Some(old);
                return Ok(catalog);
            }
            Some(old) => old.reader,
            None => source.open_reader().map_err(|error| failed(&error))?,
        };
        let schema = schema_of(&reader).map_err(|error| failed(&error))?;
        let catalog = Catalog::of(&reader, &source.replicated()).map_err(|error| failed(&error))?;
        let catalog = Arc::new(catalog);
        *known = now.map(|validity| Known { reader, schema, catalog: Arc::clone(&catalog), validity });
        Ok(catalog)
    }
}

fn schema_of(reader: &Connection) -> rusqlite::Result<i64> {
    reader.query_row("PRAGMA schema_version", [], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::ServedDb;

    #[test]
    fn it_is_read_again_where_the_schema_has_changed_and_only_there() {
        for journal in ["DELETE", "WAL"] {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("rows.db");
            let writer = Connection::open(&path).expect("a file");
            writer.execute_batch(&format!("PRAGMA journal_mode = {journal}; CREATE TABLE t(x)")).expect("a table");
            let source = Source::Served(ServedDb::open(&path, Vec::new()).expect("a file"));
            let own = OwnCatalog::default();
            let first = own.of(&source).expect("a catalogue");
            writer.execute_batch("INSERT INTO t VALUES (1)").expect("a row");
            let second = own.of(&source).expect("a catalogue");
            assert_eq!(first.hash(), second.hash());
            assert_eq!(
                Arc::ptr_eq(&first, &second),
                journal == "DELETE",
                "a connection is kept only where it stays true"
            );
            writer.execute_batch("CREATE TABLE u(y)").expect("a table");
            let third = own.of(&source).expect("a catalogue");
            assert_ne!(third.hash(), first.hash());
            writer.execute_batch("DROP TABLE u").expect("no table");
            assert_eq!(own.of(&source).expect("a catalogue").hash(), first.hash());
        }
    }
}
