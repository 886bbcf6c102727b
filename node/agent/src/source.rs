//! Owns where the agent's tables come from at its start, and what it does when the store cannot be
//! used as it should: a damaged one is set aside, one that cannot be written is served as it is. In
//! either case the agent reports it and goes on.

use record::unix_now_ns;
use store::{REPLICATED_TABLES, ServedDb, Source, Store, StoreConfig, StoreError, replace_damaged};

use super::config::{AgentConfig, SourceConfig};

/// Open the source that `config` names. The text, when there is one, says why nothing can be
/// recorded into it.
///
/// # Errors
/// The file cannot be used at all.
pub(super) fn open(config: &AgentConfig) -> Result<(Source, Option<String>), StoreError> {
    match &config.source {
        SourceConfig::Store { path, limits } => store(path, limits),
        SourceConfig::Served { path, replicated } => {
            Ok((Source::Served(ServedDb::open(path, replicated.clone())?), None))
        }
    }
}

fn store(path: &std::path::Path, limits: &StoreConfig) -> Result<(Source, Option<String>), StoreError> {
    let error = match Store::open(path, limits.clone()) {
        Ok(store) => return Ok((Source::Store(store), None)),
        Err(error) => error,
    };
    match &error {
        StoreError::Damaged { path, reason } => {
            let aside = replace_damaged(path, limits.mode, unix_now_ns())?;
            tracing::error!(
                "{} was damaged ({reason}): it lies whole in {} now, from where `sqlite3 {1} .recover` may rescue rows; a new store begins",
                path.display(),
                aside.display()
            );
            Ok((Source::Store(Store::open(path, limits.clone())?), None))
        }
        StoreError::DiskFull { .. } | StoreError::NotWritable { .. } if path.exists() => {
            let replicated = REPLICATED_TABLES.iter().map(|table| (*table).to_owned()).collect();
            // If reading fails, too, the first error is more useful.
            let Ok(served) = ServedDb::open(path, replicated) else { return Err(error) };
            tracing::error!("{error}");
            tracing::error!("until this agent is started again it answers from what is stored, and records nothing");
            let why = format!("the store cannot be written, so nothing is recorded now: {error}");
            Ok((Source::Served(served.with_note(why.clone())), Some(why)))
        }
        _ => Err(error),
    }
}
