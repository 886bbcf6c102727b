//! Owns the names of the files in an archive:
//!
//! ```text
//! table=collectives/date=2026-11-22/hour=03/node=n1.17f3a0c2.parquet     rows
//! manifest/date=2026-11-22/hour=03/node=n1.17f3a0c2.json                 what of it there is, written last
//! nodes/node=n1.17f3a0c2.json                                            one for each store
//! ```
//!
//! The folders are a hive partitioning, as engines call it. After the node's name comes the number
//! of its store, so that a node whose store was made anew overwrites no file of the store before,
//! and writing the same store again overwrites its own files.

use std::fmt;

use crate::hour::Hour;

/// A store of a node, as files are named after it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreName {
    /// The node.
    pub node: String,
    /// The store's number: when its first session began, Unix nanoseconds.
    pub birth_ns: i64,
}

impl fmt::Display for StoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node={}.{:016x}", self.node, self.birth_ns)
    }
}

impl StoreName {
    /// From a file's name with its ending.
    #[must_use]
    pub fn read(file: &str, ending: &str) -> Option<Self> {
        let stem = file.strip_prefix("node=")?.strip_suffix(ending)?.strip_suffix('.')?;
        let (node, birth) = stem.rsplit_once('.')?;
        let birth_ns = (birth.len() == 16).then(|| i64::from_str_radix(birth, 16).ok())??;
        (!node.is_empty()).then(|| Self { node: node.to_owned(), birth_ns })
    }
}

/// The folder of an hour of a table.
#[must_use]
pub fn rows_folder(table: &str, hour: Hour) -> String {
    let (date, of_day) = hour.date_and_hour();
    format!("table={table}/date={date}/hour={of_day}")
}

/// The file with an hour's rows.
#[must_use]
pub fn rows(table: &str, hour: Hour, store: &StoreName) -> String {
    format!("{}/{store}.parquet", rows_folder(table, hour))
}

/// The folder of all manifests.
pub const MANIFESTS: &str = "manifest";

/// The folder of an hour's manifests.
#[must_use]
pub fn manifests(hour: Hour) -> String {
    let (date, of_day) = hour.date_and_hour();
    format!("{MANIFESTS}/date={date}/hour={of_day}")
}

/// An hour's manifest of a store.
#[must_use]
pub fn manifest(hour: Hour, store: &StoreName) -> String {
    format!("{}/{store}.json", manifests(hour))
}

/// The folder with a file for each store.
pub const STORES: &str = "nodes";

/// The file of a store.
#[must_use]
pub fn store(store: &StoreName) -> String {
    format!("{STORES}/{store}.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_again_and_others_are_none() {
        let store = StoreName { node: "gpu-17.rack_2".to_owned(), birth_ns: 1_767_225_600_000_000_000 };
        let hour = Hour::of_ns(store.birth_ns);
        assert_eq!(
            rows("collectives", hour, &store),
            "table=collectives/date=2026-01-01/hour=00/node=gpu-17.rack_2.18867251edfa0000.parquet"
        );
        assert_eq!(manifest(hour, &store), "manifest/date=2026-01-01/hour=00/node=gpu-17.rack_2.18867251edfa0000.json");
        assert_eq!(StoreName::read("node=gpu-17.rack_2.18867251edfa0000.json", "json"), Some(store));
        for other in ["node=n1.json", "n1.18867251edfa0000.json", "node=.18867251edfa0000.json", "node=n1.1.json", ""] {
            assert_eq!(StoreName::read(other, "json"), None, "{other}");
        }
    }
}
