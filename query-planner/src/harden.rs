//! What makes a connection safe to run a question on: it can only read, cannot reach files or extensions, and has the
//! functions that plans call. Deadlines and cancelling (progress handler, interrupt handle) are the caller's.

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;

use crate::functions;
use crate::plan::MAX_SQL_BYTES;

/// Prepare a connection for questions: defensive, no double-quoted strings, bounded, an authorizer that allows SELECT,
/// READ and listed functions only (no PRAGMA, ATTACH, load_extension, writes). Open it read-only besides.
///
/// The authorizer stays: what else the connection is for must be done before.
///
/// # Errors
/// When SQLite refuses a setting.
pub fn harden(conn: &mut Connection) -> Result<(), rusqlite::Error> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    let length = i32::try_from(2 * MAX_SQL_BYTES).unwrap_or(i32::MAX);
    conn.set_limit(Limit::SQLITE_LIMIT_SQL_LENGTH, length)?;
    conn.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0).or_else(|error| {
        // Stores attached before stay; the limit only forbids more.
        tracing::debug!(%error, "attach limit");
        Ok::<i32, rusqlite::Error>(0)
    })?;
    functions::register(conn)?;
    conn.authorizer(Some(|context: AuthContext<'_>| match context.action {
        AuthAction::Select | AuthAction::Recursive | AuthAction::Read { .. } => Authorization::Allow,
        // BEGIN and COMMIT around a task; nothing can be written in between.
        AuthAction::Transaction { .. } => Authorization::Allow,
        AuthAction::Function { function_name } if functions::is_allowed(function_name) => Authorization::Allow,
        _ => Authorization::Deny,
    }))
}
