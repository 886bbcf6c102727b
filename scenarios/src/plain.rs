//! Rows of a question to plain SQLite, as the values that a mesh answers with.

use query_planner::Value;
use rusqlite::Connection;

/// All rows of `sql`.
///
/// # Errors
/// SQLite refuses the question, or it fails.
pub fn rows(conn: &Connection, sql: &str) -> rusqlite::Result<Vec<Vec<Value>>> {
    let mut statement = conn.prepare(sql)?;
    let width = statement.column_count();
    statement.query_map([], |row| (0..width).map(|at| row.get_ref(at).map(Value::from_sqlite)).collect())?.collect()
}
