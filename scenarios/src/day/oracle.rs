//! The same rows in one plain SQLite database: every store's export under its node's name. Its
//! answers are what the mesh must answer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use query_planner::{Budget, Catalog, Clocks, Local, MergePool, NodeClock, OnlySqlite, PlanCache, Stop, Value};
use rusqlite::{Connection, OpenFlags};
use store::exchange::{Export, export};
use verdicts::VIEWS;

use super::Day;
use crate::lab::oracle::same;
use crate::plain;
use crate::slt::shape;

/// Tables that are equal on every node.
const REPLICATED: [&str; 2] = ["sources", "ops"];

/// Put the rows of `stores`, each with its node's name, into one new database file.
///
/// # Errors
/// A store cannot be exported, or the file cannot be written.
pub fn unite(stores: &[(String, PathBuf)], file: &Path) -> anyhow::Result<()> {
    let conn = Connection::open(file)?;
    conn.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;")?;
    for (at, (node, store)) in stores.iter().enumerate() {
        let plain = file.with_extension(format!("{node}.db"));
        export(&Export { db: store.clone(), out: plain.clone(), tables: Vec::new(), from_ns: None, until_ns: None })?;
        conn.execute("ATTACH ?1 AS plain", [plain.to_str().context("a path in UTF-8")?])?;
        for table in
            names(&conn, "SELECT name FROM plain.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'")?
        {
            let replicated = REPLICATED.contains(&&*table);
            if replicated && at > 0 {
                continue;
            }
            if at == 0 {
                conn.execute_batch(&declaration(&conn, &table, !replicated)?)?;
            }
            let node = if replicated { String::new() } else { format!(", '{node}'") };
            conn.execute_batch(&format!("INSERT INTO main.{table} SELECT *{node} FROM plain.{table} ORDER BY rowid"))?;
        }
        if at == 0 {
            for sql in names(&conn, "SELECT sql FROM plain.sqlite_schema WHERE type = 'view'")? {
                conn.execute_batch(&with_node(&sql))?;
            }
        }
        conn.execute_batch("DETACH plain")?;
        std::fs::remove_file(&plain)?;
    }
    // Only to be faster: the same rows come out.
    conn.execute_batch(
        "CREATE INDEX collectives_time ON collectives (ts_ns); CREATE INDEX cuda_calls_time ON cuda_calls (ts_ns); \
         CREATE INDEX net_events_time ON net_events (ts_ns, node); CREATE INDEX offcpu_time ON offcpu (ts_ns);",
    )?;
    Ok(())
}

fn names(conn: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    conn.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
}

fn declaration(conn: &Connection, table: &str, with_node: bool) -> rusqlite::Result<String> {
    let mut columns =
        names(conn, &format!("SELECT name || ' ' || type FROM pragma_table_info('{table}', 'plain') ORDER BY cid"))?;
    if with_node {
        columns.push("node TEXT".to_owned());
    }
    Ok(format!("CREATE TABLE main.{table} ({})", columns.join(", ")))
}

/// A view over one table shows its rows' node, too.
fn with_node(view: &str) -> String {
    match view.matches("FROM ").count() {
        1 => view.replacen("FROM ", ", node FROM ", 1),
        _ => view.to_owned(),
    }
}

/// Answers from the united rows.
#[derive(Debug)]
pub struct Oracle {
    conn: Connection,
    catalog: Arc<Catalog>,
    clocks: Clocks,
}

impl Oracle {
    /// Opens the file that [`unite`] wrote for nodes 0 to `hosts`.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(file: &Path, hosts: u32) -> anyhow::Result<Self> {
        let mut conn = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        conn.execute_batch("PRAGMA mmap_size = 34359738368; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -65536;")?;
        let catalog = Arc::new(Catalog::of(&conn, &[])?);
        query_planner::harden(&mut conn)?;
        // One machine, one clock.
        let clocks = (0..hosts).map(|host| (Day::node(host), NodeClock::default())).collect();
        Ok(Self { conn, catalog, clocks })
    }

    /// What SQLite says.
    ///
    /// # Errors
    /// SQLite refuses the question.
    pub fn answer(&self, sql: &str) -> anyhow::Result<Vec<Vec<Value>>> {
        let aligned = query_planner::align(sql, &self.catalog, &self.clocks, VIEWS);
        let aligned = aligned.map_err(|error| anyhow::anyhow!("{}", error.render(sql)))?;
        let sql = aligned.as_deref().unwrap_or(sql);
        if sql.contains("robust_z(") {
            return self.planned(sql);
        }
        Ok(plain::rows(&self.conn, sql)?)
    }

    /// `robust_z` is written out by the planner: then it plans, for one store, and SQLite alone
    /// answers every part.
    fn planned(&self, sql: &str) -> anyhow::Result<Vec<Vec<Value>>> {
        let local = Local {
            conn: &self.conn,
            catalog: &self.catalog,
            plans: &PlanCache::default(),
            merges: &MergePool::default(),
            node: "united",
            executor: &OnlySqlite,
            budget: Budget { node_rows: u64::MAX, node_bytes: u64::MAX, ..Budget::default() },
            now_unix_ns: 0,
            stop: Stop::default(),
        };
        Ok(local.answer(sql)?.rows)
    }
}

/// Compare an answer with the oracle's.
///
/// # Errors
/// What differs.
pub fn compare(sql: &str, ours: &[Vec<Value>], oracle: &[Vec<Value>]) -> anyhow::Result<()> {
    if query_planner::needs_clocks(sql, VIEWS) {
        return close(ours, oracle);
    }
    ensure!(ours.len() == oracle.len(), "{} rows, SQLite has {}", ours.len(), oracle.len());
    if !same(ours, oracle, false) {
        let equal = |a, b| same(std::slice::from_ref(a), std::slice::from_ref(b), true);
        let other = ours.iter().find(|row| oracle.iter().all(|known| !equal(*row, known)));
        anyhow::bail!("other rows than SQLite's, such as {:?}", other.or(ours.first()));
    }
    // Rows that are equal in what they are sorted by may come in any order.
    let sorted_by = shape::facts(sql, &|_| false).map(|facts| facts.order_by).unwrap_or_default();
    let sorted_by: Vec<usize> = sorted_by.into_iter().map_while(|place| place).collect();
    let keys = |rows: &[Vec<Value>]| -> Vec<Vec<Value>> {
        rows.iter().map(|row| sorted_by.iter().filter_map(|place| row.get(*place).cloned()).collect()).collect()
    };
    ensure!(same(&keys(ours), &keys(oracle), true), "rows in another order than SQLite's");
    Ok(())
}

/// Figures that rest on measured clocks: within a millisecond or a twentieth; counts and scores up
/// to a thousand within three.
fn close(ours: &[Vec<Value>], oracle: &[Vec<Value>]) -> anyhow::Result<()> {
    ensure!(ours.len() == oracle.len(), "{} rows, SQLite has {}", ours.len(), oracle.len());
    let number = |value: &Value| match value {
        Value::Integer(value) => Some(*value as f64),
        Value::Real(value) => Some(*value),
        _ => None,
    };
    let is_close = |a: &Value, b: &Value| match (number(a), number(b)) {
        (Some(a), Some(b)) => (a - b).abs() <= f64::max(if b.abs() < 1e3 { 3.0 } else { 1e6 }, b.abs() / 20.0),
        _ => same(&[vec![a.clone()]], &[vec![b.clone()]], true),
    };
    let mut open: Vec<&Vec<Value>> = oracle.iter().collect();
    for row in ours {
        let found = open
            .iter()
            .position(|known| row.len() == known.len() && row.iter().zip(*known).all(|(a, b)| is_close(a, b)));
        match found {
            Some(at) => drop(open.remove(at)),
            None => anyhow::bail!("no row of SQLite's is close to {row:?}; open are {:?}", open.first()),
        }
    }
    Ok(())
}

/// A cell of a JSON answer.
#[must_use]
pub fn of_json(cell: &serde_json::Value) -> Value {
    match cell {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(value) => Value::Integer(i64::from(*value)),
        serde_json::Value::Number(number) => {
            number.as_i64().map_or_else(|| Value::Real(number.as_f64().unwrap_or(f64::NAN)), Value::Integer)
        }
        serde_json::Value::String(text) => Value::Text(text.as_bytes().to_vec()),
        other => Value::Text(other.to_string().into_bytes()),
    }
}
