//! Owns the settings of buckets and servers: names and values from the environment or from a file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::PlaceError;

/// Settings of a bucket: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`,
/// `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP` and the others that the S3 client knows. Their values are
/// printed nowhere.
#[derive(Clone, Default)]
pub struct Settings(pub(super) BTreeMap<String, String>);

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Settings {
    /// From this process's environment.
    #[must_use]
    pub fn of_environment() -> Self {
        let is_ours = |name: &str| name.starts_with("AWS_") || name.starts_with("CLICKHOUSE_");
        Self(std::env::vars().filter(|(name, _)| is_ours(name)).collect())
    }

    /// All of them, by name.
    #[must_use]
    pub fn by_name(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// From a file of `NAME=VALUE` lines, which only its owner may read; they override the
    /// environment.
    ///
    /// # Errors
    /// It cannot be read, others may read it, or a line is no `NAME=VALUE`.
    pub fn of_file(path: &Path) -> Result<Self, PlaceError> {
        use std::os::unix::fs::PermissionsExt as _;
        let wrong = |reason: String| PlaceError::Settings { path: path.to_owned(), reason };
        let found = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
        if found.permissions().mode() & 0o077 != 0 {
            return Err(wrong("others than its owner may read it: chmod 600".to_owned()));
        }
        if found.len() > 64 << 10 {
            return Err(wrong("it is larger than 64 KiB".to_owned()));
        }
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let mut settings = Self::of_environment();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let pair = line.strip_prefix("export ").unwrap_or(line).split_once('=');
            let (name, value) = pair.ok_or_else(|| wrong(format!("line {} is no NAME=VALUE", at + 1)))?;
            settings.0.insert(name.trim().to_owned(), value.trim().trim_matches('"').to_owned());
        }
        Ok(settings)
    }
}
