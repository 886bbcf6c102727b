//! Owns the record of which rows of a store were pushed: a small file in the store's directory,
//! `NAME.db.clickhouse`, renamed into place before and after each insert. An insert whose outcome
//! is not known is sent again unchanged, with its token.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;

/// The pushed rows of a store.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Cursor {
    version: u32,
    /// The destination.
    place: String,
    /// The store's number.
    birth_ns: i64,
    pub(super) tables: BTreeMap<String, TableCursor>,
    #[serde(skip)]
    file: PathBuf,
}

/// The pushed rows of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TableCursor {
    /// Rows up to here were pushed: row ids, or times in tables whose rows change.
    pub(super) until: Option<i64>,
    /// The rows of an insert that was started: after the first, up to the second.
    pub(super) pending: Option<(i64, i64)>,
}

impl Cursor {
    /// The record for a store and a destination; a new one where no rows were pushed there.
    ///
    /// # Errors
    /// The file cannot be read, or is of a later version.
    pub(super) fn open(db: &Path, birth_ns: i64, place: &str) -> io::Result<Self> {
        let mut name = db.as_os_str().to_owned();
        name.push(".clickhouse");
        let file = PathBuf::from(name);
        let new = Self { version: VERSION, place: place.to_owned(), birth_ns, file: file.clone(), ..Self::default() };
        let bytes = match std::fs::read(&file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(new),
            Err(error) => return Err(error),
        };
        // Starting over would push everything twice: a person has to decide that.
        let wrong = |why: String| io::Error::other(format!("{}: {why}", file.display()));
        let known: Self = serde_json::from_slice(&bytes)
            .map_err(|error| wrong(format!("{error}; remove it to push everything again")))?;
        if known.version != VERSION {
            return Err(wrong(format!("of version {}: use a newer rankmesh", known.version)));
        }
        let same = known.place == place && known.birth_ns == birth_ns;
        Ok(if same { Self { file, ..known } } else { new })
    }

    pub(super) fn table(&self, table: &str) -> TableCursor {
        self.tables.get(table).copied().unwrap_or_default()
    }

    /// Records the state of a table, and writes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn note(&mut self, table: &str, at: TableCursor) -> io::Result<()> {
        self.tables.insert(table.to_owned(), at);
        let mut name = self.file.as_os_str().to_owned();
        name.push(".new");
        let new = PathBuf::from(name);
        let mut file = std::fs::File::create(&new)?;
        file.write_all(&serde_json::to_vec(self).map_err(io::Error::other)?)?;
        file.sync_data()?;
        std::fs::rename(&new, &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_found_again_for_the_same_store_and_place() {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("n.db");
        let at = TableCursor { until: Some(5), pending: Some((5, 9)) };
        Cursor::open(&db, 1, "http://a/x").unwrap().note("collectives", at).unwrap();
        assert_eq!(Cursor::open(&db, 1, "http://a/x").unwrap().table("collectives"), at);
        assert_eq!(Cursor::open(&db, 2, "http://a/x").unwrap().table("collectives"), TableCursor::default());
        assert_eq!(Cursor::open(&db, 1, "http://b/x").unwrap().table("collectives"), TableCursor::default());
        std::fs::write(dir.path().join("n.db.clickhouse"), "{").unwrap();
        assert!(Cursor::open(&db, 1, "http://a/x").unwrap_err().to_string().contains("remove it"));
    }
}
