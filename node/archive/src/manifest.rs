//! Owns an archive's description of an hour of a node: rows, losses, gaps. JSON, so that engines
//! read it as they read the rows; new fields may be added, none changes its meaning.

use serde::{Deserialize, Serialize};

use crate::hour::Hour;
use crate::place::REASON_CHARS;

/// The version of this form; a later one may use the same names with other meanings.
pub const VERSION: u32 = 1;

/// An hour of a store. It is written after the rows: where it is, they are complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`VERSION`].
    pub version: u32,
    /// The node.
    pub node: String,
    /// The store's number, 16 hexadecimal digits.
    pub store: String,
    /// The version of the store's schema.
    pub schema_version: i64,
    /// The program that wrote it.
    pub rankmesh: String,
    /// The hour's first nanosecond, Unix.
    pub since_ns: i64,
    /// The next hour's first nanosecond.
    pub until_ns: i64,
    /// When it was written.
    pub written_ns: i64,
    /// Every table with a time, those without rows too.
    pub tables: Vec<TableRows>,
    /// Records lost in this hour.
    pub losses: Vec<Loss>,
    /// Times without a recording agent.
    pub gaps: Vec<Gap>,
    /// Rows that retention dropped before they could be archived.
    pub dropped: Vec<Dropped>,
}

/// Rows of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRows {
    /// The table.
    pub table: String,
    /// How many; without any there is no file.
    pub rows: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// The least time, Unix nanoseconds.
    pub first_ns: Option<i64>,
    /// The greatest time.
    pub last_ns: Option<i64>,
    /// Rows that the store got later have a greater id.
    pub last_rowid: i64,
}

/// Records that were lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Probe, or the table of records that were lost in the queue or the store.
    pub probe: String,
    /// Why.
    pub reason: String,
    /// Not before, Unix nanoseconds.
    pub since_ns: i64,
    /// Not after.
    pub until_ns: i64,
    /// How many.
    pub lost: u64,
}

/// A time without an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// From, Unix nanoseconds.
    pub since_ns: i64,
    /// To.
    pub until_ns: i64,
}

/// Rows that retention dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// The table.
    pub table: String,
    /// Up to when, Unix nanoseconds.
    pub until_ns: i64,
    /// How many of this hour, as far as they were counted: while an agent kept them for the
    /// archive.
    #[serde(default)]
    pub rows: u64,
}

impl Manifest {
    /// The rows of a table.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&TableRows> {
        self.tables.iter().find(|table| table.table.eq_ignore_ascii_case(name))
    }

    /// From its bytes.
    ///
    /// # Errors
    /// It is not valid, or of a later version: the error is a few words.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        // (An error quotes what it found, however long that is.)
        let short =
            |what: &str, error: &serde_json::Error| record::shortened(&format!("{what}: {error}"), REASON_CHARS);
        let found: Versioned = serde_json::from_slice(bytes).map_err(|error| short("no manifest", &error))?;
        if found.version != VERSION {
            return Err(format!("a manifest of version {}: use a newer rankmesh", found.version));
        }
        serde_json::from_slice(bytes).map_err(|error| short("a damaged manifest", &error))
    }
}

/// An archive's description of a store: rewritten after each pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreHours {
    /// [`VERSION`].
    pub version: u32,
    /// The node.
    pub node: String,
    /// The store's number, 16 hexadecimal digits.
    pub store: String,
    /// First nanosecond of its first archived hour, Unix.
    pub first_ns: i64,
    /// The end of its last archived hour.
    pub until_ns: i64,
    /// What could not be written in the last pass, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl StoreHours {
    /// The hours that it may have.
    #[must_use]
    pub fn hours(&self) -> std::ops::RangeInclusive<Hour> {
        Hour::of_ns(self.first_ns)..=Hour::of_ns(self.until_ns.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_manifest_of_this_version_says_so() {
        assert!(Manifest::read(b"{").unwrap_err().contains("no manifest"));
        assert!(Manifest::read(b"{\"version\": 2}").unwrap_err().contains("newer rankmesh"));
        assert!(Manifest::read(b"{\"version\": 1}").unwrap_err().contains("damaged"));
    }
}
