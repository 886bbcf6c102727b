//! The in-memory databases of the merge: made for a plan's tables, kept for the next question with
//! the same ones.
//!
//! Making one costs more than merging a small answer does. A kept database is emptied first, so
//! nothing of one question is seen by the next; large ones are not kept, so that no memory stays
//! with them.

use parking_lot::Mutex;
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, ffi};

use crate::names::quoted;
use crate::plan::MergeTable;
use crate::stop::Stop;

/// Databases kept.
const KEPT: usize = 8;
/// A database that had more rows, or has more memory, is not kept.
const MOST_ROWS: u64 = 10_000;
const MOST_BYTES: i32 = 4 << 20;

/// SQLite's steps between two looks at the stop.
const STEPS_BETWEEN_LOOKS: i32 = 4096;

/// Merge databases between questions.
#[derive(Debug, Default)]
pub struct MergePool {
    idle: Mutex<Vec<Idle>>,
}

#[derive(Debug)]
struct Idle {
    tables: Vec<MergeTable>,
    setup: Vec<String>,
    conn: Connection,
}

impl MergePool {
    /// An empty database with these tables and views; it stops when `stop` does.
    pub(crate) fn take(&self, tables: &[MergeTable], setup: &[String], stop: &Stop) -> rusqlite::Result<Connection> {
        let found = {
            let mut idle = self.idle.lock();
            let same = idle.iter().position(|kept| kept.tables == tables && kept.setup == setup);
            same.map(|index| idle.swap_remove(index).conn)
        };
        let mut conn = found.map_or_else(|| database(tables, setup), Ok)?;
        let looks = stop.clone();
        conn.progress_handler(STEPS_BETWEEN_LOOKS, Some(move || looks.is_stopped()))?;
        crate::harden::bound_values(&conn, stop.is_short())?;
        Ok(conn)
    }

    /// Keeps a database that had `rows` rows for the next question. One that cannot be emptied is
    /// dropped.
    pub(crate) fn release(&self, conn: Connection, tables: &[MergeTable], setup: &[String], rows: u64) {
        let emptied = |table: &MergeTable| {
            conn.prepare_cached(&format!("DELETE FROM {}", quoted(&table.name)))?.execute([]).map(|_| ())
        };
        if rows > MOST_ROWS || cache_bytes(&conn) > MOST_BYTES || tables.iter().try_for_each(emptied).is_err() {
            return;
        }
        let mut idle = self.idle.lock();
        if idle.len() >= KEPT {
            idle.remove(0);
        }
        idle.push(Idle { tables: tables.to_vec(), setup: setup.to_vec(), conn });
    }
}

/// Memory of the pages of a connection's databases, bytes; those of a database in memory are all
/// that it has.
fn cache_bytes(conn: &Connection) -> i32 {
    let (mut bytes, mut highest) = (i32::MAX, 0);
    // SAFETY: the handle is the connection's, which is open, and the call fills the two numbers;
    // where it fails they stay.
    unsafe {
        ffi::sqlite3_db_status(conn.handle(), ffi::SQLITE_DBSTATUS_CACHE_USED, &raw mut bytes, &raw mut highest, 0);
    }
    bytes
}

/// From now on statements on the connection may make views and tables, and read; no file can be
/// reached by them.
pub(crate) fn only_views(conn: &mut Connection) -> rusqlite::Result<()> {
    conn.authorizer(Some(|context: AuthContext<'_>| match context.action {
        AuthAction::CreateView { .. }
        | AuthAction::CreateTable { .. }
        | AuthAction::Select
        | AuthAction::Recursive
        | AuthAction::Read { .. }
        | AuthAction::Function { .. } => Authorization::Allow,
        // The schema's own table, by which SQLite makes them.
        AuthAction::Insert { table_name } | AuthAction::Update { table_name, .. }
            if matches!(table_name, "sqlite_master" | "sqlite_schema") =>
        {
            Authorization::Allow
        }
        _ => Authorization::Deny,
    }))
}

/// An empty in-memory database with the merge's tables and views.
fn database(tables: &[MergeTable], setup: &[String]) -> rusqlite::Result<Connection> {
    let mut conn = Connection::open_in_memory()?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
    conn.execute_batch("PRAGMA temp_store = MEMORY; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")?;
    crate::harden::bound(&conn)?;
    crate::functions::register(&conn)?;
    for table in tables {
        let columns: Vec<String> = table
            .columns
            .iter()
            .map(|column| format!("{} {} COLLATE {}", quoted(&column.name), column.affinity, quoted(&column.collation)))
            .collect();
        conn.execute_batch(&format!("CREATE TABLE {}({})", quoted(&table.name), columns.join(", ")))?;
    }
    // A view's text is a node's: it may make that view, and nothing else.
    only_views(&mut conn)?;
    for statement in setup {
        conn.execute(statement, [])?;
    }
    conn.authorizer(None::<fn(AuthContext<'_>) -> Authorization>)?;
    Ok(conn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::MergeColumn;

    #[test]
    fn a_view_s_text_makes_that_view_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("rankmesh-views-{}", std::process::id()));
        let file = dir.display();
        for text in [
            format!("CREATE VIEW v AS SELECT 1; ATTACH '{file}' AS f"),
            format!("ATTACH '{file}' AS f"),
            format!("VACUUM INTO '{file}'"),
            "DROP TABLE t".to_owned(),
            "PRAGMA writable_schema = ON".to_owned(),
            "CREATE TRIGGER r AFTER INSERT ON t BEGIN DELETE FROM t; END".to_owned(),
        ] {
            let (affinity, collation) = (String::new(), "BINARY".to_owned());
            let column = MergeColumn { name: "x".to_owned(), affinity, collation, filled: true };
            let tables = [MergeTable { name: "t".to_owned(), columns: vec![column] }];
            assert!(database(&tables, std::slice::from_ref(&text)).is_err(), "{text}");
            assert!(!dir.exists(), "{text} wrote a file");
            let view =
                "CREATE VIEW v AS WITH RECURSIVE r(i) AS (SELECT 1 UNION SELECT i FROM r) SELECT abs(x) FROM t, r";
            let conn = database(&tables, &[view.to_owned()]).unwrap();
            conn.execute_batch("INSERT INTO t VALUES (-1); DELETE FROM t; DROP VIEW v").unwrap();
        }
    }

    #[test]
    fn a_kept_database_is_empty_again() {
        let pool = MergePool::default();
        let setup = ["CREATE TABLE t(x)".to_owned()];
        let conn = pool.take(&[], &setup, &Stop::default()).unwrap();
        pool.release(conn, &[], &setup, 1);
        assert_eq!(pool.idle.lock().len(), 1);
        // The same tables: the kept one (its table is there, no second CREATE TABLE failed).
        let conn = pool.take(&[], &setup, &Stop::default()).unwrap();
        assert_eq!(pool.idle.lock().len(), 0);
        pool.release(conn, &[], &setup, MOST_ROWS + 1);
        assert_eq!(pool.idle.lock().len(), 0, "a large database was kept");
        let conn = pool.take(&[], &setup, &Stop::default()).unwrap();
        conn.execute("INSERT INTO t VALUES (zeroblob(?1))", [MOST_BYTES]).unwrap();
        pool.release(conn, &[], &setup, 1);
        assert_eq!(pool.idle.lock().len(), 0, "the pages of a long value were kept");
    }
}
