//! The interpreters of this machine, for all tests that read their stacks.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) struct Python {
    pub(crate) path: PathBuf,
    pub(crate) minor: u32,
    pub(crate) free_threaded: bool,
}

/// Every CPython from 3.8 on: the system's, those in PATH, those of pyenv, and those in
/// RANKMESH_PYTHONS (`a:b`). One of a kind is enough.
pub(crate) fn pythons() -> Vec<Python> {
    let mut paths: Vec<PathBuf> =
        std::env::var_os("RANKMESH_PYTHONS").map(|list| std::env::split_paths(&list).collect()).unwrap_or_default();
    paths.push("/usr/bin/python3".into());
    if let Some(home) = std::env::var_os("HOME") {
        let versions = std::fs::read_dir(Path::new(&home).join(".pyenv/versions")).into_iter().flatten().flatten();
        paths.extend(versions.map(|version| version.path().join("bin/python3")));
    }
    for directory in std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()) {
        if !directory.ends_with("shims") {
            paths.extend(
                (8..=15).flat_map(|minor| ["", "t"].map(|kind| directory.join(format!("python3.{minor}{kind}")))),
            );
        }
    }
    let mut found: BTreeMap<(u32, bool, u64), Python> = BTreeMap::new();
    for path in paths {
        let ask = "import sys, sysconfig; print(sys.version_info[1], sysconfig.get_config_var('Py_GIL_DISABLED') or 0)";
        let Ok(output) = Command::new(&path).args(["-c", ask]).stderr(Stdio::null()).output() else { continue };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let Some((minor, kind)) = text.trim().split_once(' ') else { continue };
        let (Ok(minor), free_threaded) = (minor.parse(), kind == "1") else { continue };
        // Static and shared builds differ: both are tried.
        let size = std::fs::metadata(&path).map(|data| data.len() >> 20).unwrap_or(0).min(1);
        if minor >= 8 {
            found.entry((minor, free_threaded, size)).or_insert(Python { path, minor, free_threaded });
        }
    }
    let missing: Vec<String> =
        (8..=15).filter(|m| !found.keys().any(|(minor, ..)| minor == m)).map(|minor| format!("3.{minor}")).collect();
    if !missing.is_empty() {
        eprintln!("skipped: CPython {}: not on this machine", missing.join(", "));
    }
    assert!(!found.is_empty(), "no Python at all: the tests need Debian's python3");
    found.into_values().collect()
}

impl std::fmt::Display for Python {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "3.{}{} {}", self.minor, if self.free_threaded { "t" } else { "" }, self.path.display())
    }
}
