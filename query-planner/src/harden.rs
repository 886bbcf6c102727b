//! What makes a connection safe to run a question on: it can only read, cannot reach files or
//! extensions, and has the functions that plans call. Deadlines and cancelling (progress handler,
//! interrupt handle) are the caller's.

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;

use crate::functions;
use crate::limits::MAX_FRAGMENT_BYTES;

/// Prepare a connection for questions: defensive, no double-quoted strings, bounded, an authorizer
/// that allows SELECT, READ and listed functions only (no PRAGMA but `schema_version` and
/// `data_version`, ATTACH, load_extension, writes). The connection should also be opened read-only.
///
/// The authorizer stays: what else the connection is for must be done before.
///
/// # Errors
/// When SQLite refuses a setting.
pub fn harden(conn: &mut Connection) -> Result<(), rusqlite::Error> {
    harden_with(conn, |_| true)
}

/// As [`harden`], where only some columns may be read: `readable` judges each `Read` that SQLite's
/// compiler meets.
///
/// # Errors
/// As [`harden`].
pub fn harden_with(
    conn: &mut Connection,
    readable: impl Fn(&AuthContext<'_>) -> bool + Send + 'static,
) -> Result<(), rusqlite::Error> {
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    let length = i32::try_from(MAX_FRAGMENT_BYTES).unwrap_or(i32::MAX);
    conn.set_limit(Limit::SQLITE_LIMIT_SQL_LENGTH, length)?;
    conn.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0).or_else(|error| {
        // Stores attached before stay; the limit only forbids more.
        tracing::debug!(%error, "attach limit");
        Ok::<i32, rusqlite::Error>(0)
    })?;
    bound(conn)?;
    refuse_local_time();
    functions::register(conn)?;
    conn.authorizer(Some(move |context: AuthContext<'_>| match context.action {
        AuthAction::Select | AuthAction::Recursive => Authorization::Allow,
        AuthAction::Read { .. } if readable(&context) => Authorization::Allow,
        // By these a reader sees whether the schema, or the committed rows, have changed.
        AuthAction::Pragma { pragma_name: "schema_version" | "data_version", pragma_value: None } => {
            Authorization::Allow
        }
        // BEGIN and COMMIT around a task; nothing can be written in between.
        AuthAction::Transaction { .. } => Authorization::Allow,
        AuthAction::Function { function_name } if functions::is_allowed(function_name) => Authorization::Allow,
        _ => Authorization::Deny,
    }))
}

/// Local time is an error ("local time unavailable") in this process from now on: it is each host's
/// own, and an answer is what one database would give.
fn refuse_local_time() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let refuse: std::ffi::c_int = 1;
        // SAFETY: this control takes one int and sets a flag that SQLite reads before it asks the
        // C library for local time.
        unsafe { rusqlite::ffi::sqlite3_test_control(rusqlite::ffi::SQLITE_TESTCTRL_LOCALTIME_FAULT, refuse) };
    });
}

/// The longest text or blob that a question may make; nothing longer could be sent, either.
const MAX_VALUE_BYTES: i32 = 16 << 20;
/// The longest one where only little work is done (`Stop::or_after`): what takes long within one
/// instruction takes so in proportion to its values.
const SHORT_VALUE_BYTES: i32 = 64 << 10;
/// The longest pattern of LIKE and GLOB: a match takes time in proportion to pattern and text.
const MAX_PATTERN_BYTES: i32 = 500;
/// Instructions of one statement.
const MAX_INSTRUCTIONS: i32 = 1_000_000;

/// Bounds the values that the next statements may make: as questions may, or as `little` work may
/// (`Stop::or_after`).
///
/// # Errors
/// SQLite's.
pub fn bound_values(conn: &Connection, little: bool) -> Result<(), rusqlite::Error> {
    let bytes = if little { SHORT_VALUE_BYTES } else { MAX_VALUE_BYTES };
    conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, bytes).map(|_| ())
}

/// Bounds what one statement may be and make on this connection. Depth of expressions (1,000),
/// columns (2,000) and terms of a compound SELECT (500) are SQLite's own bounds.
///
/// # Errors
/// SQLite's.
pub(crate) fn bound(conn: &Connection) -> Result<(), rusqlite::Error> {
    conn.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)?;
    conn.set_limit(Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN_BYTES)?;
    conn.set_limit(Limit::SQLITE_LIMIT_VDBE_OP, MAX_INSTRUCTIONS)?;
    conn.set_limit(Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 1)?;
    conn.set_limit(Limit::SQLITE_LIMIT_WORKER_THREADS, 0)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also where the modifier is a value, and where it is an old function's.
    #[test]
    fn nobody_gets_the_time_of_a_hosts_zone() {
        let mut conn = Connection::open_in_memory().expect("opens");
        harden(&mut conn).expect("hardens");
        for sql in [
            "SELECT datetime(0, 'unixepoch', ?1)",
            "SELECT strftime('%H', '2026-07-01', ?1)",
            "SELECT julianday('2026-07-01', ?1)",
        ] {
            let one = |modifier: &str| conn.query_row(sql, [modifier], |row| row.get::<_, rusqlite::types::Value>(0));
            let refused = one("LocalTime").expect_err(sql).to_string();
            assert!(refused.contains("local time"), "{sql}: {refused}");
            one("+02:00").expect("an offset is everybody's");
        }
        assert!(conn.query_row("SELECT datetime('2026-07-01', 'utc')", [], |_| Ok(())).is_err());
    }
}
