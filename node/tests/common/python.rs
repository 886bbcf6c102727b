//! What clients of the tests run in: packages from PyPI and from npm's registry, pinned by their
//! hashes.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Python's interpreter with them; else prints on stderr that the test is skipped.
pub fn clients(test: &str) -> Option<PathBuf> {
    Some(fetched(test, "python-clients")?.join("venv/bin/python"))
}

/// The folder whose `node_modules` Node finds; else prints on stderr that the test is skipped.
pub fn node_clients(test: &str) -> Option<PathBuf> {
    fetched(test, "node-clients")
}

/// The folder that a script fetches packages into.
fn fetched(test: &str, name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let directory = root.join("target").join(name);
    match Command::new(root.join(format!("scripts/{name}.sh"))).arg(&directory).output() {
        Ok(made) if made.status.success() => Some(directory),
        Ok(made) => {
            eprintln!("skipped: {test}: {}", String::from_utf8_lossy(&made.stderr).trim());
            None
        }
        Err(error) => {
            eprintln!("skipped: {test}: scripts/{name}.sh: {error}");
            None
        }
    }
}

/// A file of `tests/python`.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(name)
}
