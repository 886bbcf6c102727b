//! Owns the record of which rows of a store were pushed: a small file in the store's directory,
//! `NAME.db.clickhouse`, renamed into place before and after each insert. An insert whose outcome
//! is not known is sent again unchanged, with its token.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;
/// Most bytes of the file: a line for each table.
const MOST_BYTES: u64 = 64 << 10;

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
        // Starting over would push everything twice: a person has to decide that.
        let wrong = |why: String| io::Error::other(format!("{}: {why}", file.display()));
        let bytes = match read(&file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(new),
            Err(error) => return Err(wrong(format!("{error}; remove it to push everything again"))),
        };
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
        // One that a process left when it was killed is nobody's. Whoever may write beside the store
        // can put a link there: it is removed, never followed.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(self).map_err(io::Error::other)?)?;
        file.sync_data()?;
        std::fs::rename(&new, &self.file)
    }
}

/// The bytes of a regular file of some KiB, which no link leads to.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let mut bytes = Vec::new();
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("no regular file"));
    }
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::other("too large for what it is"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (db, others) = (dir.path().join("n.db"), dir.path().join("others"));
        std::fs::write(&others, "{}").unwrap();
        std::os::unix::fs::symlink(&others, dir.path().join("n.db.clickhouse.new")).unwrap();
        let at = TableCursor { until: Some(5), pending: None };
        Cursor::open(&db, 1, "http://a/x").unwrap().note("collectives", at).unwrap();
        assert_eq!(std::fs::read_to_string(&others).unwrap(), "{}");
        let (file, mode) = (dir.path().join("n.db.clickhouse"), std::os::unix::fs::PermissionsExt::mode);
        let found = std::fs::symlink_metadata(&file).unwrap();
        assert!(found.is_file() && mode(&found.permissions()) & 0o077 == 0, "{found:?}");
        // Nor one in place of the file itself, nor a pipe.
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&others, &file).unwrap();
        assert!(Cursor::open(&db, 1, "http://a/x").unwrap_err().to_string().contains("remove it"));
        std::fs::remove_file(&file).unwrap();
        let pipe = std::ffi::CString::new(file.to_str().unwrap()).unwrap();
        // SAFETY: the name ends with a zero byte and lives until the call is over.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        assert!(Cursor::open(&db, 1, "http://a/x").unwrap_err().to_string().contains("no regular file"));
    }

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
