//! What tables a store has, and what the union of several stores has: the planner's only knowledge
//! of data.
//!
//! A catalogue is a value (serde): every node makes its own with [`Catalog::of`], the coordinator
//! unites them with [`Catalog::union`]. Rows, statistics and nodes' names are not here.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::hash::{Hash, Hasher};

use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use crate::ast::{self, Core, Output, Query, Select, Source, Visit, walk};
use crate::expressions::means_now;
use crate::names::affinity;

/// Tables and columns of one node's catalogue.
pub(crate) const MOST_TABLES: usize = 10_000;
pub(crate) const MOST_COLUMNS: usize = 100_000;
/// Columns of a table that several nodes make together; SQLite allows 2,000.
pub(crate) const MOST_COLUMNS_OF_ONE: usize = 1_900;
/// The module of a trace store's column tables: their values are integers and texts, by the
/// declared types of their columns.
pub const COLUMN_MODULE: &CStr = c"rankmesh_columns";
/// What SQLite itself collates by.
pub(crate) const COLLATIONS: [&str; 3] = ["BINARY", "NOCASE", "RTRIM"];

/// Tables and views that can be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Catalog {
    /// By lower-case name.
    pub tables: BTreeMap<String, Table>,
}

/// One table or view.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Table {
    /// Name as created.
    pub name: String,
    /// The CREATE statement.
    pub sql: String,
    /// Visible columns, in order.
    pub columns: Vec<Column>,
    /// Equal on every node: read once, never multiplied.
    pub replicated: bool,
    /// Table or view.
    pub kind: Kind,
    /// Nodes differ in the columns they have or in their order, so that `*` is not the same
    /// everywhere.
    pub varies: bool,
    /// Name of the column that is the rowid (`INTEGER PRIMARY KEY`), if any.
    pub rowid_column: Option<String>,
}

/// What kind of table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Rows in a store.
    Table,
    /// A view whose rows over the union are the rows of each node put together: it is treated as a
    /// table.
    RowView,
    /// Any other view: it is computed at the coordinator from the tables below it.
    View,
}

/// One column.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Column {
    /// Name as created.
    pub name: String,
    /// Declared type, empty when none.
    pub decl_type: String,
    /// Collating sequence, `BINARY` by default.
    pub collation: String,
    /// False for a view's column that is an expression (it has no affinity).
    pub plain: bool,
}

/// Two nodes disagree about a table, so a union of their rows would not be SQL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("table {table} differs between nodes {a} and {b}: {what}")]
pub struct Conflict {
    /// Table name.
    pub table: String,
    /// The first node.
    pub a: String,
    /// The other node.
    pub b: String,
    /// What differs.
    pub what: String,
}

/// A store's schema could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the schema: {0}")]
pub struct CatalogError(#[from] rusqlite::Error);

impl Catalog {
    /// Read the schema of a connection: every table and view of `main` and of attached databases
    /// (`temp` excepted). Views that do not compile here, virtual tables whose module is unknown
    /// and `sqlite_…` tables are left out.
    ///
    /// # Errors
    /// When the schema cannot be read at all.
    pub fn of(conn: &Connection, replicated: &[String]) -> Result<Catalog, CatalogError> {
        let mut tables = BTreeMap::new();
        let schemas: Vec<String> = conn
            .prepare("SELECT name FROM pragma_database_list WHERE name <> 'temp' ORDER BY seq")?
            .query_map([], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        for schema in schemas {
            let quoted = format!("\"{}\"", schema.replace('"', "\"\""));
            let objects: Vec<(String, String, String)> = conn
                .prepare(&format!(
                    "SELECT type, name, sql FROM {quoted}.sqlite_schema WHERE type IN ('table', 'view') \
                     AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND sql IS NOT NULL ORDER BY rowid"
                ))?
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
                .collect::<Result<_, _>>()?;
            for (kind, name, sql) in objects {
                let key = name.to_ascii_lowercase();
                if tables.contains_key(&key) {
                    continue;
                }
                let Ok(columns) = read_columns(conn, &quoted, &name) else {
                    continue;
                };
                let is_view = kind == "view";
                let rowid_column = if is_view { None } else { rowid_column(conn, &schema, &name)? };
                tables.insert(
                    key,
                    Table {
                        replicated: replicated.iter().any(|other| other.eq_ignore_ascii_case(&name)),
                        kind: if is_view { Kind::View } else { Kind::Table },
                        name,
                        sql,
                        columns,
                        varies: false,
                        rowid_column,
                    },
                );
            }
        }
        let mut catalog = Catalog { tables };
        catalog.classify_views();
        Ok(catalog)
    }

    /// The catalogue of several nodes' stores as one. A table that only some nodes have is in it.
    ///
    /// # Errors
    /// Every pair of nodes that disagree about a column's type or collation, a table's kind or its
    /// replication.
    pub fn union(parts: &[(String, Catalog)]) -> Result<Catalog, Vec<Conflict>> {
        match Catalog::union_of_most(parts) {
            (catalog, conflicts) if conflicts.is_empty() => Ok(catalog),
            (_, conflicts) => Err(conflicts),
        }
    }

    /// As [`Catalog::union`], where those that disagree about a table with one before them do not
    /// count for that table: each with why, as the `b` of a conflict. They must not be asked for
    /// it.
    pub fn union_of_most(parts: &[(String, Catalog)]) -> (Catalog, Vec<Conflict>) {
        let mut all: BTreeMap<String, (String, Table)> = BTreeMap::new();
        let mut conflicts = Vec::new();
        for (node, part) in parts {
            for (key, table) in &part.tables {
                match all.get_mut(key) {
                    None => {
                        all.insert(key.clone(), (node.clone(), table.clone()));
                    }
                    Some((first, united)) => {
                        // In a copy: what disagrees in the end must leave nothing behind.
                        let mut with_it = united.clone();
                        match unite(&mut with_it, table) {
                            Ok(()) => *united = with_it,
                            Err(what) => {
                                let (a, b) = (first.clone(), node.clone());
                                conflicts.push(Conflict { table: table.name.clone(), a, b, what });
                            }
                        }
                    }
                }
            }
        }
        let mut catalog = Catalog { tables: all.into_iter().map(|(key, (_, table))| (key, table)).collect() };
        catalog.classify_views();
        (catalog, conflicts)
    }

    /// A fingerprint of the whole catalogue. Equal catalogues have equal fingerprints within one
    /// version of the program.
    pub fn hash(&self) -> u64 {
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        Hash::hash(self, &mut hasher);
        hasher.finish()
    }

    /// A table by its name as typed.
    pub(crate) fn find(&self, name: &str) -> Option<&Table> {
        self.tables.get(&ast::unquote(name).to_ascii_lowercase())
    }

    /// Views may stand on views: go round until nothing changes.
    fn classify_views(&mut self) {
        loop {
            let found: Vec<String> = self
                .tables
                .iter()
                .filter(|(_, table)| table.kind == Kind::View)
                .filter(|(_, table)| ast::parse_view(&table.sql).is_ok_and(|select| self.is_row_view(table, &select)))
                .map(|(key, _)| key.clone())
                .collect();
            if found.is_empty() {
                return;
            }
            for key in found {
                if let Some(table) = self.tables.get_mut(&key) {
                    table.kind = Kind::RowView;
                    if ast::parse_view(&table.sql).is_ok_and(|select| !select.compounds.is_empty()) {
                        // SQLite reports the origin of one arm only; what counts is whether the
                        // whole has an affinity.
                        table.columns.iter_mut().for_each(|column| column.plain = !column.decl_type.is_empty());
                    }
                }
            }
        }
    }

    /// Filter and projection of one partitioned table, or UNION ALL of such: then the view of the
    /// union is the union of the views. Its values must also survive in columns of the affinities
    /// that SQLite gives the view's.
    fn is_row_view(&self, view: &Table, select: &Select) -> bool {
        let arms: Vec<&Core> =
            std::iter::once(&select.first).chain(select.compounds.iter().map(|(_, core)| core)).collect();
        select.with.is_none()
            && select.limit.is_none()
            && select.compounds.iter().all(|(operator, _)| *operator == ast::Compound::UnionAll)
            && arms.iter().all(|core| matches!(core, Core::Query(query) if self.is_row_query(query)))
            && (arms.len() > 1
                || view.columns.iter().all(|column| column.plain || matches!(affinity(&column.decl_type), "" | "TEXT")))
            && (arms.len() == 1
                || arms.iter().all(|core| matches!(core, Core::Query(query) if self.conforms(query, &view.columns))))
    }

    /// Whether an arm of UNION ALL gives values that a column of the view's affinity keeps as they
    /// are: SQLite takes the affinity from the arms together, and converts nothing.
    fn conforms(&self, query: &Query, columns: &[Column]) -> bool {
        let Some(Source::Table { name, .. }) = query.from.as_ref().map(|from| &from.first) else { return false };
        let Some(table) = self.find(name) else { return false };
        query.columns.len() == columns.len()
            && query.columns.iter().zip(columns).all(|(output, column)| {
                matches!(output, Output::Expr(expr, _) if keeps(expr, affinity(&column.decl_type), table)
                    && collates(expr, &column.collation, table))
            })
    }

    fn is_row_query(&self, query: &Query) -> bool {
        let Some(from) = &query.from else {
            return false;
        };
        let one_table = from.joins.is_empty()
            && matches!(&from.first, Source::Table { name, .. }
                if self.find(name).is_some_and(|table| table.kind != Kind::View && !table.replicated));
        let mut plain = RowExpressions(true);
        plain.query(query);
        one_table
            && plain.0
            && !query.distinct
            && query.group_by.is_empty()
            && query.having.is_none()
            && query.columns.iter().all(|column| !matches!(column, Output::Expr(ast::Expr::Variable(_), _)))
    }
}

/// Whether an expression over `table` collates by `wanted`: arms that differ leave open by which of
/// them SQLite goes.
fn collates(expr: &ast::Expr, wanted: &str, table: &Table) -> bool {
    let own = match expr.peeled() {
        ast::Expr::Column { name, .. } => table
            .columns
            .iter()
            .find(|column| ast::same_name(&ast::quote_name(&column.name), name))
            .map_or("", |column| column.collation.as_str()),
        ast::Expr::Collate(_, name) => name.as_str(),
        _ => "BINARY",
    };
    own.eq_ignore_ascii_case(wanted)
}

/// Whether every value of an expression over `table` stays as it is in a column of the affinity
/// `wanted`.
fn keeps(expr: &ast::Expr, wanted: &str, table: &Table) -> bool {
    use ast::Expr;
    match expr.peeled() {
        _ if wanted.is_empty() => true,
        Expr::Column { name, .. } => table.columns.iter().any(|column| {
            ast::same_name(&ast::quote_name(&column.name), name) && affinity(&column.decl_type) == wanted
        }),
        Expr::Cast(_, type_name) => affinity(type_name) == wanted && wanted != "NUM",
        Expr::Literal(text) => {
            text.eq_ignore_ascii_case("NULL")
                || (text.starts_with('\'') && wanted == "TEXT")
                || (text.parse::<i64>().is_ok() && matches!(wanted, "INT" | "NUM"))
        }
        Expr::Case { arms, otherwise, .. } => {
            arms.iter().map(|(_, then)| then).chain(otherwise.as_deref()).all(|then| keeps(then, wanted, table))
        }
        Expr::Call(call) if ["ifnull", "coalesce"].iter().any(|name| call.name.eq_ignore_ascii_case(name)) => {
            call.args.iter().all(|arg| keeps(arg, wanted, table))
        }
        _ => false,
    }
}

/// False once a subquery, an aggregate or a window is met.
struct RowExpressions(bool);

impl Visit for RowExpressions {
    fn expr(&mut self, node: &ast::Expr) {
        use ast::Expr;
        match node {
            Expr::Exists(_) | Expr::Subquery(_) | Expr::InSelect { .. } | Expr::InTable { .. } => self.0 = false,
            Expr::Call(call) if call.over.is_some() || crate::functions::is_aggregate(call) => self.0 = false,
            Expr::Call(call) if crate::functions::is_volatile(&call.name) => self.0 = false,
            // A view is not rewritten at the nodes, where 'now' would be each one's own.
            Expr::Literal(_) | Expr::Call(_) if means_now(node) => self.0 = false,
            _ => walk::expr(self, node),
        }
    }
}

struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

fn read_columns(conn: &Connection, schema: &str, name: &str) -> Result<Vec<Column>, rusqlite::Error> {
    let quoted = name.replace('"', "\"\"");
    let strict: bool = conn
        .prepare("SELECT strict FROM pragma_table_list WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .unwrap_or(false);
    let types: BTreeMap<String, String> = conn
        .prepare(&format!("PRAGMA {schema}.table_xinfo(\"{quoted}\")"))?
        .query_map([], |row| Ok((row.get::<_, String>(1)?, row.get::<_, String>(2)?)))?
        .collect::<Result<_, _>>()?;
    let statement = conn.prepare(&format!("SELECT * FROM {schema}.\"{quoted}\""))?;
    (0..statement.column_count())
        .map(|i| {
            let name = statement.column_name(i)?.to_owned();
            let origin = statement.column_metadata(i)?;
            Ok(Column {
                // ANY keeps what it is given in a STRICT table, and is NUMERIC elsewhere.
                decl_type: types
                    .get(&name)
                    .filter(|decl_type| !(strict && decl_type.eq_ignore_ascii_case("ANY")))
                    .cloned()
                    .unwrap_or_default(),
                collation: origin
                    .as_ref()
                    .and_then(|origin| origin.4)
                    .map_or_else(|| "BINARY".to_owned(), |collation| collation.to_string_lossy().into_owned()),
                plain: origin.is_some(),
                name,
            })
        })
        .collect()
}

/// SQLite makes `INTEGER PRIMARY KEY` (that very type, a single column, not WITHOUT ROWID) the
/// rowid.
fn rowid_column(conn: &Connection, schema: &str, name: &str) -> Result<Option<String>, rusqlite::Error> {
    let without_rowid: bool = conn
        .prepare("SELECT wr FROM pragma_table_list WHERE schema = ?1 AND name = ?2")?
        .query_row([schema, name], |row| row.get(0))
        .unwrap_or(false);
    if without_rowid {
        return Ok(None);
    }
    let keys: Vec<(String, String)> = conn
        .prepare("SELECT name, type FROM pragma_table_xinfo(?2, ?1) WHERE pk > 0")?
        .query_map([schema, name], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    Ok(match keys.as_slice() {
        [(column, decl_type)] if decl_type.eq_ignore_ascii_case("INTEGER") => Some(column.clone()),
        _ => None,
    })
}

/// Bring what `other` knows into `united`.
fn unite(united: &mut Table, other: &Table) -> Result<(), String> {
    if united.replicated != other.replicated {
        return Err("it is replicated on one of them only".to_owned());
    }
    if (united.kind == Kind::Table) != (other.kind == Kind::Table) {
        return Err("it is a table on one and a view on the other".to_owned());
    }
    if united.kind != Kind::Table {
        // Two versions of a view cannot be put together column by column.
        return if united.sql == other.sql && united.columns == other.columns {
            Ok(())
        } else {
            Err("the view's definitions or columns differ".to_owned())
        };
    }
    let names = |table: &Table| -> Vec<String> {
        table.columns.iter().map(|column| column.name.to_ascii_lowercase()).collect()
    };
    united.varies |= names(united) != names(other);
    for column in &other.columns {
        match united.columns.iter().find(|mine| mine.name.eq_ignore_ascii_case(&column.name)) {
            Some(mine) if !mine.decl_type.eq_ignore_ascii_case(&column.decl_type) => {
                return Err(format!(
                    "column {} is declared {:?} on one and {:?} on the other",
                    column.name, mine.decl_type, column.decl_type
                ));
            }
            Some(mine) if !mine.collation.eq_ignore_ascii_case(&column.collation) => {
                return Err(format!(
                    "column {} collates by {} on one and {} on the other",
                    column.name, mine.collation, column.collation
                ));
            }
            Some(_) => {}
            None => united.columns.push(column.clone()),
        }
    }
    if united.columns.len() > MOST_COLUMNS_OF_ONE {
        return Err(format!("together they have more than {MOST_COLUMNS_OF_ONE} columns"));
    }
    if united.rowid_column != other.rowid_column {
        united.rowid_column = None;
    }
    Ok(())
}

/// The name of the hidden column: `node`, or `mesh_node` where the table has a column `node` of its
/// own.
pub(crate) fn node_column(table: &Table) -> &'static str {
    if table.columns.iter().any(|column| column.name.eq_ignore_ascii_case("node")) { "mesh_node" } else { "node" }
}

/// Whether rows of this table belong to one node.
pub(crate) fn has_node(table: &Table) -> bool {
    !table.replicated && table.kind != Kind::View
}
