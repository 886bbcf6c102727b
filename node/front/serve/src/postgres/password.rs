//! The file with the password of PostgreSQL's clients.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Context;

/// Longer passwords are refused.
const MAX_BYTES: u64 = 4096;

/// Shorter ones could be guessed: how often somebody tries is not counted, so that nobody keeps the
/// right one out.
const MIN_BYTES: usize = 12;

/// The first line of a file, a password.
///
/// # Errors
/// It cannot be read, others can read it, or its first line is empty or short.
pub(crate) fn first_line(file: &Path) -> anyhow::Result<String> {
    let shown = file.display();
    let mut opened = std::fs::File::open(file).with_context(|| format!("reading the password from {shown}"))?;
    anyhow::ensure!(opened.metadata()?.mode() & 0o077 == 0, "others can read {shown}: chmod 600 it");
    let mut text = String::new();
    let read = (&mut opened).take(MAX_BYTES).read_to_string(&mut text);
    read.with_context(|| format!("reading the password from {shown}"))?;
    let line = text.lines().next().unwrap_or_default().trim();
    anyhow::ensure!(!line.is_empty(), "the first line of {shown} is empty: it should be a password");
    anyhow::ensure!(line.len() >= MIN_BYTES, "the password in {shown} is short: {MIN_BYTES} characters at least");
    Ok(line.to_owned())
}
