//! Tables as a plain SQLite file. A trace store becomes a trace store of this version's schema (so
//! it can be asked, served and exported again); a foreign file keeps its own tables, indexes and
//! views.

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::types::{ToSqlOutput, ValueRef};

use super::super::tables::{self, Table};
use super::{Export, Sink};
use crate::exchange::ExchangeError;
use crate::{REPLICATED_TABLES, quoted};

/// Rows in one transaction.
const ROWS_PER_COMMIT: u64 = 500_000;

pub(crate) struct PlainFile {
    path: PathBuf,
    conn: Connection,
    ours: bool,
    insert: String,
    rows: u64,
    /// What is done when the rows are in: indexes, views and triggers of a foreign file.
    afterwards: Vec<String>,
    /// Table and the time before which rows were left out on purpose.
    cut: Vec<(String, i64)>,
}

impl PlainFile {
    pub(crate) fn create(
        path: &Path,
        source: &Connection,
        tables: &[&Table],
        wanted: &Export,
    ) -> Result<Self, ExchangeError> {
        let from = |error| ExchangeError::Sqlite { path: wanted.db.clone(), source: error };
        let to = |error| ExchangeError::Sqlite { path: path.to_owned(), source: error };
        let ours = tables::is_ours(source).map_err(from)?;
        drop(super::super::new_file(path).map_err(|source| ExchangeError::Write { path: path.to_owned(), source })?);
        let conn = Connection::open(path).map_err(to)?;
        // The file gets its name only once it is complete, so nothing is lost by not syncing on the
        // way.
        conn.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -16384;")
            .map_err(to)?;
        let mut afterwards = Vec::new();
        let mut cut = Vec::new();
        if ours {
            crate::write_plain_schema(&conn).map_err(to)?;
            // Nothing was recorded for this file after its end.
            afterwards.extend(wanted.until_ns.map(|ns| {
                format!(
                    "DELETE FROM sessions WHERE start_ns >= {ns};
                     UPDATE sessions SET alive_ns = min(alive_ns, {ns}), stop_ns = min(stop_ns, {ns})
                     WHERE max(alive_ns, coalesce(stop_ns, 0)) > {ns}"
                )
            }));
            let timed = |table: &&&Table| table.time.is_some() && !table.is_kept_whole;
            cut = wanted
                .from_ns
                .map(|ns| tables.iter().filter(timed).map(|table| (table.name.clone(), ns)).collect())
                .unwrap_or_default();
        } else {
            let mut statement = source
                .prepare("SELECT type, tbl_name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'")
                .map_err(from)?;
            let mut rows = statement.query([]).map_err(from)?;
            while let Some(row) = rows.next().map_err(from)? {
                let (kind, table, sql): (String, String, String) =
                    (row.get(0).map_err(from)?, row.get(1).map_err(from)?, row.get(2).map_err(from)?);
                let wanted = tables.iter().any(|t| t.name.eq_ignore_ascii_case(&table));
                match kind.as_str() {
                    "table" if wanted => conn.execute_batch(&sql).map_err(to)?,
                    "view" => afterwards.push(sql),
                    "index" | "trigger" if wanted => afterwards.push(sql),
                    _ => {}
                }
            }
        }
        conn.execute_batch("BEGIN").map_err(to)?;
        Ok(Self { path: path.to_owned(), conn, ours, insert: String::new(), rows: 0, afterwards, cut })
    }

    fn failed(&self, source: rusqlite::Error) -> ExchangeError {
        ExchangeError::Sqlite { path: self.path.clone(), source }
    }
}

impl Sink for PlainFile {
    fn begin(&mut self, table: &Table) -> Result<(), ExchangeError> {
        let names: Vec<String> = table.columns.iter().map(|column| quoted(&column.name)).collect();
        let marks: Vec<String> = (1..=names.len()).map(|n| format!("?{n}")).collect();
        // The schema fills its dictionaries itself.
        let or = if self.ours && REPLICATED_TABLES.contains(&table.name.as_str()) { "OR IGNORE " } else { "" };
        self.insert =
            format!("INSERT {or}INTO {} ({}) VALUES ({})", quoted(&table.name), names.join(", "), marks.join(", "));
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<(), ExchangeError> {
        let mut statement = self.conn.prepare_cached(&self.insert).map_err(|error| self.failed(error))?;
        statement
            .execute(rusqlite::params_from_iter(row.iter().map(|value| ToSqlOutput::Borrowed(*value))))
            .map_err(|error| self.failed(error))?;
        drop(statement);
        self.rows += 1;
        if self.rows.is_multiple_of(ROWS_PER_COMMIT) {
            self.conn.execute_batch("COMMIT; BEGIN").map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), ExchangeError> {
        for sql in &self.afterwards {
            self.conn.execute_batch(sql).map_err(|error| self.failed(error))?;
        }
        for (table, from_ns) in &self.cut {
            // For questions to this file the export's cut is the same as retention's: rows before
            // it are gone.
            self.conn
                .execute(
                    "INSERT INTO retention (table_name, cutoff_ns, rows_dropped) VALUES (?1, ?2, 0)
                     ON CONFLICT (table_name) DO UPDATE SET cutoff_ns = max(cutoff_ns, excluded.cutoff_ns)",
                    (table, from_ns.saturating_sub(1)),
                )
                .map_err(|error| self.failed(error))?;
        }
        self.conn.execute_batch("COMMIT").map_err(|error| self.failed(error))?;
        let path = self.path;
        self.conn.close().map_err(|(_, source)| ExchangeError::Sqlite { path: path.clone(), source })?;
        let file = std::fs::File::open(&path).map_err(|source| ExchangeError::Write { path: path.clone(), source })?;
        file.sync_all().map_err(|source| ExchangeError::Write { path, source })
    }
}
