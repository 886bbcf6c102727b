//! The Python that clients of the tests run in: packages from PyPI, pinned by their hashes.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Its interpreter; else prints on stderr that the test is skipped.
pub fn clients(test: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let directory = root.join("target/python-clients");
    match Command::new(root.join("scripts/python-clients.sh")).arg(&directory).output() {
        Ok(made) if made.status.success() => Some(directory.join("venv/bin/python")),
        Ok(made) => {
            eprintln!("skipped: {test}: {}", String::from_utf8_lossy(&made.stderr).trim());
            None
        }
        Err(error) => {
            eprintln!("skipped: {test}: scripts/python-clients.sh: {error}");
            None
        }
    }
}

/// A file of `tests/python`.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(name)
}
