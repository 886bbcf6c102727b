//! The data of one file: a union database that runs every statement, and N node databases among
//! which its rows are dealt.
//!
//! Statements run on the union only. Afterwards the nodes are brought to its state: tables, views
//! and indexes exist on every node, each row on exactly one, chosen by the seed when the row first
//! appears; a changed row changes where it lies. That holds for any statement (INSERT … SELECT,
//! UPDATE with a subquery, REPLACE, triggers), which running it on every node would not. Asking is
//! not here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use query_planner::quoted;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, params_from_iter};
use tempfile::TempDir;

/// A union and its nodes.
#[derive(Debug)]
pub struct Dealer {
    union: Connection,
    nodes: Vec<NodeStore>,
    changes: Arc<Mutex<Vec<(String, i64)>>>,
    tables: BTreeMap<String, DealtTable>,
    schema: Vec<SchemaObject>,
    schema_changes: u64,
    statements: u64,
    rng: StdRng,
    sparse: bool,
    dir: TempDir,
}

/// One node's database.
#[derive(Debug)]
pub struct NodeStore {
    /// Its name in the mesh.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    writer: Connection,
}

/// How a table's rows lie.
#[derive(Debug)]
struct DealtTable {
    columns: Vec<String>,
    has_rowid: bool,
    /// Chances of the nodes; zero for those that stay empty.
    weights: Vec<u32>,
    /// From the union's rowid to the node and the rowid there.
    places: BTreeMap<i64, (usize, i64)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SchemaObject {
    kind: String,
    name: String,
    table: String,
    sql: String,
}

impl Dealer {
    /// Empty databases: the union in memory, the nodes as files of a temporary directory.
    ///
    /// # Errors
    /// A file cannot be made.
    pub fn new(nodes: usize, seed: u64) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let mut union = Connection::open_in_memory()?;
        let changes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&changes);
        union.update_hook(Some(move |_, _: &str, table: &str, rowid: i64| {
            seen.lock().unwrap_or_else(PoisonError::into_inner).push((table.to_owned(), rowid));
        }))?;
        let nodes = (0..nodes)
            .map(|index| {
                let name = format!("n{index}");
                let path = dir.path().join(format!("{name}.db"));
                let writer = Connection::open(&path)?;
                // The last writes a header: an agent serves no empty file.
                writer
                    .execute_batch("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF; PRAGMA user_version = 1")?;
                Ok(NodeStore { name, path, writer })
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Dealer {
            union,
            nodes,
            changes,
            tables: BTreeMap::new(),
            schema: Vec::new(),
            schema_changes: 0,
            statements: 0,
            rng: StdRng::seed_from_u64(seed),
            sparse: false,
            dir,
        })
    }

    /// From now on nodes that get no rows of a table lack the table itself, as agents of different
    /// ages may.
    #[must_use]
    pub fn sparse(mut self) -> Self {
        self.sparse = true;
        self
    }

    /// The database that holds all rows.
    pub fn union(&self) -> &Connection {
        &self.union
    }

    /// The same, to set its authorizer.
    pub fn union_mut(&mut self) -> &mut Connection {
        &mut self.union
    }

    /// The nodes.
    pub fn nodes(&self) -> &[NodeStore] {
        &self.nodes
    }

    /// The directory of the nodes' files.
    pub fn directory(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Counts changes of the schema: what was derived from it is stale when this moves.
    pub fn schema_changes(&self) -> u64 {
        self.schema_changes
    }

    /// Counts statements: what was derived from the rows may be stale when this moves.
    pub fn statements(&self) -> u64 {
        self.statements
    }

    /// Whether the schema has a view of this name.
    pub fn is_view(&self, name: &str) -> bool {
        self.schema.iter().any(|object| object.kind == "view" && object.name.eq_ignore_ascii_case(name))
    }

    /// Run a statement and bring the nodes to the new state. The inner result is SQLite's answer to
    /// the statement.
    ///
    /// # Errors
    /// The nodes cannot follow.
    pub fn apply(&mut self, sql: &str) -> anyhow::Result<Result<(), String>> {
        self.statements += 1;
        let outcome = self.union.execute_batch(sql).map_err(|error| error.to_string());
        // Even a failed statement may have done part of its work (INSERT OR FAIL).
        let changed = std::mem::take(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner));
        self.on_every_node("BEGIN")?;
        self.follow(sql, changed.into_iter().collect())?;
        self.on_every_node("COMMIT")?;
        Ok(outcome)
    }

    fn on_every_node(&self, sql: &str) -> rusqlite::Result<()> {
        self.nodes.iter().try_for_each(|node| node.writer.execute_batch(sql))
    }

    fn follow(&mut self, sql: &str, changed: BTreeSet<(String, i64)>) -> anyhow::Result<()> {
        let schema = self.union_schema()?;
        let new_schema = schema != self.schema;
        if new_schema {
            let mut tables = self.follow_schema(schema)?;
            tables.extend(changed.iter().map(|(table, _)| table.clone()));
            for table in tables {
                self.follow_table(&table, &changed)?;
            }
        } else if !is_plain_insert(sql) || self.has_triggers()? {
            // The hook sees neither a DELETE of all rows nor what REPLACE removes.
            let tables: Vec<String> = self.tables.keys().cloned().collect();
            for table in tables {
                self.follow_table(&table, &changed)?;
            }
        } else {
            for (table, rowid) in &changed {
                let node = self.forget_row(table, *rowid)?;
                self.place_row(table, *rowid, node)?;
            }
            // The hook does not see tables without rowid.
            let unseen: Vec<String> =
                self.tables.iter().filter(|(_, table)| !table.has_rowid).map(|(name, _)| name.clone()).collect();
            for table in &unseen {
                self.deal_again(table)?;
            }
        }
        Ok(())
    }

    fn has_triggers(&self) -> rusqlite::Result<bool> {
        self.union
            .prepare_cached("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'trigger')")?
            .query_row([], |row| row.get(0))
    }

    /// Tables, indexes and views in order of creation. Temporary ones count as others: a mesh knows
    /// no sessions.
    fn union_schema(&self) -> rusqlite::Result<Vec<SchemaObject>> {
        self.union
            .prepare_cached(
                "SELECT type, name, tbl_name, sql FROM (SELECT 0 AS part, rowid AS place, * FROM sqlite_schema \
                 UNION ALL SELECT 1, rowid, * FROM sqlite_temp_schema) \
                 WHERE sql IS NOT NULL AND type <> 'trigger' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' \
                 ORDER BY part, place",
            )?
            .query_map([], |row| {
                Ok(SchemaObject { kind: row.get(0)?, name: row.get(1)?, table: row.get(2)?, sql: row.get(3)? })
            })?
            .collect()
    }

    /// Make the nodes' tables, indexes and views those of the union. Returns the tables that are
    /// new or changed: they are empty.
    fn follow_schema(&mut self, schema: Vec<SchemaObject>) -> anyhow::Result<BTreeSet<String>> {
        let gone: Vec<SchemaObject> = self.schema.iter().filter(|old| !schema.contains(old)).cloned().collect();
        let mut statements = Vec::new();
        for object in gone.iter().rev() {
            // An index goes with its table.
            statements.push(format!("DROP {} IF EXISTS {}", object.kind, quoted(&object.name)));
            if object.kind == "table" {
                self.tables.remove(&object.name);
            }
        }
        self.on_every_node(&statements.join(";\n"))?;
        let dropped: Vec<&str> =
            gone.iter().filter(|object| object.kind == "table").map(|object| object.name.as_str()).collect();
        let mut new = BTreeSet::new();
        for object in schema.iter().filter(|object| object.kind == "table") {
            if !self.tables.contains_key(&object.name) {
                let table = self.new_table(&object.name)?;
                self.tables.insert(object.name.clone(), table);
                new.insert(object.name.clone());
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            for object in &schema {
                let went_along = object.kind == "index" && dropped.contains(&object.table.as_str());
                let is_due = went_along || !self.schema.contains(object);
                if is_due && (object.kind == "view" || self.has_table(index, &object.table)) {
                    node.writer.execute_batch(&object.sql)?;
                }
            }
        }
        self.schema = schema;
        self.schema_changes += 1;
        Ok(new)
    }

    fn has_table(&self, node: usize, table: &str) -> bool {
        !self.sparse || self.tables.get(table).is_some_and(|table| table.weights.get(node).is_some_and(|w| *w > 0))
    }

    fn new_table(&mut self, name: &str) -> rusqlite::Result<DealtTable> {
        let columns: Vec<String> = self
            .union
            .prepare_cached("SELECT name FROM pragma_table_xinfo(?1) WHERE hidden = 0")?
            .query_map([name], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        let has_rowid: bool = self
            .union
            .prepare_cached("SELECT NOT wr FROM pragma_table_list WHERE name = ?1")?
            .query_row([name], |row| row.get(0))?;
        let weights = skewed_weights(&mut self.rng, self.nodes.len());
        Ok(DealtTable { columns, has_rowid, weights, places: BTreeMap::new() })
    }

    /// Bring one table's rows to the nodes. `changed` names rows whose values may have changed.
    fn follow_table(&mut self, name: &str, changed: &BTreeSet<(String, i64)>) -> anyhow::Result<()> {
        let Some(table) = self.tables.get(name) else { return Ok(()) };
        if !table.has_rowid {
            return self.deal_again(name);
        }
        let rowids: BTreeSet<i64> = self
            .union
            .prepare_cached(&format!("SELECT rowid FROM {}", quoted(name)))?
            .query_map([], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        let mut follow: Vec<i64> = rowids
            .iter()
            .filter(|rowid| !table.places.contains_key(rowid) || changed.contains(&(name.to_owned(), **rowid)))
            .copied()
            .collect();
        // Rows that went first, so that a unique key they held is free.
        follow.splice(0..0, table.places.keys().filter(|rowid| !rowids.contains(rowid)).copied());
        let mut places = Vec::with_capacity(follow.len());
        for rowid in follow {
            places.push((rowid, self.forget_row(name, rowid)?));
        }
        for (rowid, node) in places {
            self.place_row(name, rowid, node)?;
        }
        Ok(())
    }

    /// A table without rowid: rows cannot be told apart, so all are dealt anew.
    fn deal_again(&mut self, name: &str) -> anyhow::Result<()> {
        let Some(table) = self.tables.get(name) else { return Ok(()) };
        let columns: Vec<String> = table.columns.iter().map(|column| quoted(column)).collect();
        let select = format!("SELECT {} FROM {}", columns.join(", "), quoted(name));
        let insert = insert_sql(name, &table.columns);
        for (_, node) in self.nodes.iter().enumerate().filter(|(index, _)| self.has_table(*index, name)) {
            node.writer.execute_batch(&format!("DELETE FROM {}", quoted(name)))?;
        }
        let rows: Vec<Vec<SqlValue>> = self
            .union
            .prepare(&select)?
            .query_map([], |row| (0..columns.len()).map(|i| row.get(i)).collect())?
            .collect::<Result<_, _>>()?;
        for row in rows {
            let node = pick(&mut self.rng, &table.weights);
            self.nodes[node].writer.prepare_cached(&insert)?.execute(params_from_iter(row))?;
        }
        Ok(())
    }

    /// Take a row from the node where it lies, and say which that was.
    fn forget_row(&mut self, name: &str, rowid: i64) -> rusqlite::Result<Option<usize>> {
        let Some(table) = self.tables.get_mut(name) else { return Ok(None) };
        let Some((node, there)) = table.places.remove(&rowid) else { return Ok(None) };
        let sql = format!("DELETE FROM {} WHERE rowid = ?1", quoted(name));
        self.nodes[node].writer.prepare_cached(&sql)?.execute([there])?;
        Ok(Some(node))
    }

    /// Copy one row of the union, if it is still there, to `node`, or to a node of the seed's
    /// choice.
    fn place_row(&mut self, name: &str, rowid: i64, node: Option<usize>) -> rusqlite::Result<()> {
        let Some(table) = self.tables.get_mut(name) else { return Ok(()) };
        let columns: Vec<String> = table.columns.iter().map(|column| quoted(column)).collect();
        let select = format!("SELECT {} FROM {} WHERE rowid = ?1", columns.join(", "), quoted(name));
        let mut statement = self.union.prepare_cached(&select)?;
        let mut rows = statement.query([rowid])?;
        let Some(row) = rows.next()? else { return Ok(()) };
        let values: Vec<SqlValue> = (0..columns.len()).map(|i| row.get(i)).collect::<Result<_, _>>()?;
        let node = node.unwrap_or_else(|| pick(&mut self.rng, &table.weights));
        let writer = &self.nodes[node].writer;
        writer.prepare_cached(&insert_sql(name, &table.columns))?.execute(params_from_iter(values))?;
        table.places.insert(rowid, (node, writer.last_insert_rowid()));
        Ok(())
    }

    /// The schema and each node's rows as SQL, to show beside a wrong answer.
    ///
    /// # Errors
    /// A node cannot be read.
    pub fn dump(&self, tables: &BTreeSet<String>) -> rusqlite::Result<String> {
        let mut out = String::new();
        let shown = |name: &str| tables.iter().any(|table| table.eq_ignore_ascii_case(name));
        for object in self.schema.iter().filter(|object| shown(&object.name)) {
            out.push_str(&object.sql);
            out.push_str(";\n");
        }
        for (index, node) in self.nodes.iter().enumerate() {
            for (name, table) in self.tables.iter().filter(|(name, _)| shown(name) && self.has_table(index, name)) {
                let list: Vec<String> =
                    table.columns.iter().map(|column| format!("quote({})", quoted(column))).collect();
                let sql = format!("SELECT {} FROM {}", list.join(" || ',' || "), quoted(name));
                let rows: Vec<String> = node
                    .writer
                    .prepare(&sql)?
                    .query_map([], |row| row.get::<_, String>(0))?
                    .collect::<Result<_, _>>()?;
                let rows: Vec<String> = rows.into_iter().map(|row| format!("({row})")).collect();
                out.push_str(&format!("{} {}: {}\n", node.name, name, rows.join(" ")));
            }
        }
        Ok(out)
    }
}

/// Chances of the nodes to get a row: a third of three or more nodes stay empty, of two perhaps
/// one; the others differ by powers of two.
fn skewed_weights(rng: &mut StdRng, nodes: usize) -> Vec<u32> {
    let empty = if nodes == 2 { rng.random_range(0..2) } else { nodes / 3 };
    let mut weights: Vec<u32> =
        (0..nodes).map(|index| if index < empty { 0 } else { 1 << rng.random_range(0..4) }).collect();
    weights.shuffle(rng);
    weights
}

fn pick(rng: &mut StdRng, weights: &[u32]) -> usize {
    let mut left = rng.random_range(0..weights.iter().sum::<u32>().max(1));
    for (index, weight) in weights.iter().enumerate() {
        if left < *weight {
            return index;
        }
        left -= weight;
    }
    0
}

fn insert_sql(name: &str, columns: &[String]) -> String {
    let quoted_columns: Vec<String> = columns.iter().map(|column| quoted(column)).collect();
    format!(
        "INSERT INTO {} ({}) VALUES ({})",
        quoted(name),
        quoted_columns.join(", "),
        vec!["?"; columns.len()].join(", ")
    )
}

/// INSERT without a conflict clause can only add rows.
fn is_plain_insert(sql: &str) -> bool {
    let mut words = sql.split_whitespace().map(str::to_ascii_uppercase);
    words.next().as_deref() == Some("INSERT") && words.next().as_deref() == Some("INTO") && !sql.contains(';')
}

#[cfg(test)]
mod tests;
