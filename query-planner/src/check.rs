//! Checks that a question is one SELECT, and finds what it reads. SQLite itself decides: the SQL is
//! prepared, as typed, against an empty in-memory copy of the catalogue, under an authorizer that
//! allows reading and listed functions only.
//!
//! In the copy every table and view is a virtual table without rows, for one reason: virtual tables
//! can have hidden columns, and so `node` resolves exactly as it should (by name, never in `*` or
//! NATURAL joins).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_int};
use std::marker::PhantomData;
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit as SqliteLimit;
use rusqlite::vtab::{
    Context, CreateVTab, Filters, IndexInfo, Module, VTab, VTabConnection, VTabCursor, VTabKind, sqlite3_vtab,
};
use rusqlite::{Connection, Error, ErrorCode};

use crate::ast::{self, ParseFailure, Select, Visit, walk};
use crate::catalog::{COLLATIONS, Catalog, Column, MOST_COLUMNS, MOST_TABLES, Table, has_node, node_column};
use crate::error::{QueryError, Span};
use crate::expressions::each_table;
use crate::functions;
use crate::limits::MAX_SQL_BYTES;
use crate::names::{NOW_PARAMETER, affinity, quoted};
use crate::plan::ColumnMeta;
use crate::{memory, stop};

/// A question that SQLite accepts: the text, its tree and what it reads.
pub(crate) struct Question<'a> {
    pub(crate) sql: Cow<'a, str>,
    pub(crate) catalog: &'a Catalog,
    pub(crate) select: Select,
    pub(crate) columns: Vec<ColumnMeta>,
    /// Lower-case table name to the columns read of it, as the catalogue (or [`node_column`])
    /// spells them.
    pub(crate) reads: BTreeMap<String, BTreeSet<String>>,
}

impl Question<'_> {
    /// The tables read, catalogue order.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Table> {
        self.reads.keys().filter_map(|key| self.catalog.tables.get(key))
    }

    /// SQLite's authorizer does not see the columns that USING and NATURAL compare.
    fn add_join_columns(&mut self) {
        #[derive(Default)]
        struct Shared {
            names: Vec<String>,
            natural: bool,
        }
        impl Visit for Shared {
            fn query(&mut self, node: &ast::Query) {
                if let Some(source) = &node.from {
                    self.from(source);
                }
                walk::query(self, node);
            }

            fn source(&mut self, node: &ast::Source) {
                if let ast::Source::Nested { from, .. } = node {
                    self.from(from);
                }
                walk::source(self, node);
            }
        }
        impl Shared {
            fn from(&mut self, from: &ast::From) {
                self.natural |= from.joins.iter().any(|join| join.natural);
                self.names.extend(from.joins.iter().flat_map(|join| join.using.iter().map(|name| ast::unquote(name))));
            }
        }
        let mut shared = Shared::default();
        shared.select(&self.select);
        // Nor of a table that only USING touches.
        let mut tables = Vec::new();
        each_table(&mut self.select.clone(), &mut |source| {
            if let ast::Source::Table { name, .. } = source {
                tables.extend(self.catalog.find(name).map(|table| table.name.to_ascii_lowercase()));
            }
        });
        for key in tables {
            self.reads.entry(key).or_default();
        }
        for (key, columns) in &mut self.reads {
            let Some(table) = self.catalog.tables.get(key) else {
                continue;
            };
            let is_shared =
                |name: &str| shared.natural || shared.names.iter().any(|other| other.eq_ignore_ascii_case(name));
            columns.extend(table.columns.iter().map(|column| column.name.clone()).filter(|name| is_shared(name)));
            if has_node(table) && shared.names.iter().any(|name| name.eq_ignore_ascii_case(node_column(table))) {
                columns.insert(node_column(table).to_owned());
            }
        }
    }

    /// Whether the hidden node column of this table is read.
    pub(crate) fn reads_node(&self, table: &Table) -> bool {
        has_node(table)
            && self
                .reads
                .get(&table.name.to_ascii_lowercase())
                .is_some_and(|columns| columns.contains(node_column(table)))
    }
}

/// Check a question.
pub(crate) fn check<'a>(sql: &'a str, catalog: &'a Catalog) -> Result<Question<'a>, QueryError> {
    // Before SQLite sees it: what is no SELECT at all is named as such, not as a denied action.
    match ast::statement_kind(sql) {
        Ok(()) | Err(ParseFailure::Syntax(_)) => {}
        Err(failure) => return Err(failed_parse(&failure)),
    }
    let prepared = match EmptyCopy::with(catalog, |copy| prepare(copy, sql, catalog)) {
        // Which index is used is no part of an answer, and the copy has none.
        Err(error) if error.message.starts_with("no such index") => {
            let mut without = ast::parse_select(sql).map_err(|failure| failed_parse(&failure))?;
            each_table(&mut without, &mut |source| {
                if let ast::Source::Table { indexed, .. } = source {
                    *indexed = ast::Indexed::Any;
                }
            });
            let text = without.to_string();
            EmptyCopy::with(catalog, |copy| prepare(copy, &text, catalog))
        }
        prepared => prepared,
    };
    let (columns, reads) = prepared?;
    let mut select = ast::parse_select(sql).map_err(|failure| failed_parse(&failure))?;
    let expanded = functions::robust::expand(&mut select)?;
    let sql = if expanded { Cow::Owned(select.to_string()) } else { Cow::Borrowed(sql) };
    let ctes = cte_names(&select);
    let foreign = |key: &&String| !catalog.tables.contains_key(*key) && !ctes.iter().any(|name| name == *key);
    if let Some(name) = reads.keys().find(foreign) {
        return Err(QueryError::refused(format!("{name} is not a table of the mesh")));
    }
    let reads = reads.into_iter().filter(|(key, _)| catalog.tables.contains_key(key)).collect();
    let mut question = Question { sql, catalog, select, columns, reads };
    question.add_join_columns();
    Ok(question)
}

/// The names of all common table expressions, lower case.
fn cte_names(select: &Select) -> Vec<String> {
    struct Names(Vec<String>);
    impl Visit for Names {
        fn select(&mut self, node: &Select) {
            let ctes = node.with.iter().flat_map(|with| &with.ctes);
            self.0.extend(ctes.map(|cte| ast::unquote(&cte.name).to_ascii_lowercase()));
            walk::select(self, node);
        }
    }
    let mut names = Names(Vec::new());
    names.select(select);
    names.0
}

fn failed_parse(failure: &ParseFailure) -> QueryError {
    match failure {
        ParseFailure::Syntax(message) => {
            QueryError::refused(format!("SQLite accepts this, but the planner cannot parse it: {message}"))
        }
        ParseFailure::Several => QueryError::wrong("one statement at a time, please"),
        ParseFailure::Nothing => QueryError::wrong("there is no statement in this SQL"),
        ParseFailure::Explain => QueryError::wrong("use --explain to see how a question is answered"),
        ParseFailure::NotSelect => {
            QueryError::wrong("only SELECT, VALUES and WITH … SELECT can be asked: no question changes a store")
        }
        ParseFailure::TooDeep => {
            QueryError::refused("the expressions and subqueries of this SQL are nested too deeply")
        }
        ParseFailure::Unknown(what) => QueryError::refused(format!("{what} cannot be used in a question")),
    }
}

#[derive(Default)]
struct Seen {
    reads: BTreeMap<String, BTreeSet<String>>,
    denied: Option<String>,
}

type Reads = BTreeMap<String, BTreeSet<String>>;

/// The empty copy of a catalogue, kept for the next question: making it costs more than all the
/// rest of planning.
struct EmptyCopy {
    catalog: Catalog,
    conn: Connection,
    seen: Arc<Mutex<Seen>>,
}

/// Copies that are not in use, the last used first.
static COPIES: Mutex<Vec<EmptyCopy>> = Mutex::new(Vec::new());

/// Steps of SQLite's compiler between two looks at the question's time.
const STEPS_BETWEEN_LOOKS: c_int = 1_000;

/// For some questions at a time the mesh's catalogue, and the one that strategy 4 extends for what
/// remains of a question.
const COPIES_KEPT: usize = 8;

impl EmptyCopy {
    fn with<T>(catalog: &Catalog, f: impl FnOnce(&EmptyCopy) -> Result<T, QueryError>) -> Result<T, QueryError> {
        let copies = || COPIES.lock();
        let kept = {
            let mut copies = copies();
            copies.iter().position(|copy| copy.catalog == *catalog).map(|at| copies.remove(at))
        };
        let copy = match kept {
            Some(copy) => copy,
            None => EmptyCopy::make(catalog)
                .map_err(|error| QueryError::refused(format!("the catalogue is unusable: {error}")))?,
        };
        let result = f(&copy);
        let mut copies = copies();
        copies.truncate(COPIES_KEPT - 1);
        copies.insert(0, copy);
        result
    }

    fn make(catalog: &Catalog) -> rusqlite::Result<EmptyCopy> {
        let mut conn = empty_copy(catalog)?;
        conn.progress_handler(STEPS_BETWEEN_LOOKS, Some(stop::is_over_here))?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let known: BTreeSet<String> = catalog.tables.keys().cloned().collect();
        let log = Arc::clone(&seen);
        conn.authorizer(Some(move |context: AuthContext<'_>| authorize(&context, &known, &log)))?;
        Ok(EmptyCopy { catalog: catalog.clone(), conn, seen })
    }
}

fn prepare(copy: &EmptyCopy, sql: &str, catalog: &Catalog) -> Result<(Vec<ColumnMeta>, Reads), QueryError> {
    let EmptyCopy { conn, seen, .. } = copy;
    *seen.lock() = Seen::default();
    let statement = conn.prepare(sql).map_err(|error| {
        let denied = seen.lock().denied.take();
        sqlite_error(&error, denied, sql, catalog)
    })?;
    if (1..=statement.parameter_count()).any(|i| statement.parameter_name(i) != Some(NOW_PARAMETER)) {
        return Err(QueryError::wrong("parameters (?, :name) cannot be bound here: write the values into the SQL"));
    }
    let columns = statement
        .columns()
        .map(|column| ColumnMeta {
            name: column.name().to_owned(),
            decl_type: column.decl_type().unwrap_or_default().to_owned(),
        })
        .collect();
    let reads = std::mem::take(&mut seen.lock().reads);
    for (key, read) in &reads {
        if let Some(table) = catalog.tables.get(key)
            && read.contains("ROWID")
        {
            return Err(QueryError::refused(format!(
                "rowid of {} cannot be used: rowids repeat between nodes{}",
                table.name,
                table.rowid_column.as_ref().map_or_else(String::new, |name| format!("; use column {name}"))
            )));
        }
    }
    Ok((columns, reads))
}

/// Table-valued functions of SQLite that read nothing but their arguments.
const TABLE_FUNCTIONS: &[&str] = &["json_each", "json_tree", "jsonb_each", "jsonb_tree"];

fn authorize(context: &AuthContext<'_>, known: &BTreeSet<String>, seen: &Mutex<Seen>) -> Authorization {
    let mut seen = seen.lock();
    let deny = |seen: &mut Seen, message: String| {
        seen.denied.get_or_insert(message);
        Authorization::Deny
    };
    match context.action {
        AuthAction::Select | AuthAction::Recursive => Authorization::Allow,
        AuthAction::Function { function_name } if functions::is_allowed(function_name) => Authorization::Allow,
        AuthAction::Function { function_name } => {
            let hint = nearest(function_name, functions::all_names());
            deny(&mut seen, format!("function {function_name} is not available in a question{hint}"))
        }
        AuthAction::Read { table_name, column_name } => {
            let key = table_name.to_ascii_lowercase();
            if known.contains(&key) {
                let columns = seen.reads.entry(key).or_default();
                if !column_name.is_empty() {
                    columns.insert(column_name.to_owned());
                }
                Authorization::Allow
            } else if TABLE_FUNCTIONS.contains(&key.as_str()) {
                Authorization::Allow
            } else if column_name.is_empty() && !key.starts_with("sqlite_") {
                // So SQLite reports a common table expression of which no column is read; `check`
                // looks it up.
                seen.reads.entry(key).or_default();
                Authorization::Allow
            } else if key.starts_with("sqlite_") {
                deny(&mut seen, format!("{table_name} is each store's own: it has no meaning over the union"))
            } else {
                deny(&mut seen, format!("{table_name} is not a table of the mesh"))
            }
        }
        _ => deny(&mut seen, "only reading is allowed in a question".to_owned()),
    }
}

/// SQLite's words, our hint, and the place of the offending token.
fn sqlite_error(error: &Error, denied: Option<String>, sql: &str, catalog: &Catalog) -> QueryError {
    match error.sqlite_error_code() {
        Some(ErrorCode::OperationInterrupted) => return QueryError::out_of_time(),
        Some(ErrorCode::OutOfMemory) if stop::is_over_here() => return QueryError::out_of_time(),
        Some(ErrorCode::OutOfMemory) => {
            let why = memory::refused_here().unwrap_or(memory::Refused::TooMuch);
            return QueryError::refused(format!("planning: {why}"));
        }
        _ => {}
    }
    let (message, offset) = match error {
        Error::SqlInputError { msg, offset, .. } => (msg.clone(), usize::try_from(*offset).ok()),
        Error::SqliteFailure(_, Some(message)) => (message.clone(), None),
        other => (other.to_string(), None),
    };
    if let Some(denied) = denied {
        return QueryError::refused(denied);
    }
    let token_at = |start: usize| {
        let rest = sql.get(start..).unwrap_or_default();
        let length = rest
            .char_indices()
            .find(|(i, c)| *i > 0 && !(c.is_alphanumeric() || *c == '_'))
            .map_or(rest.len(), |(i, _)| i);
        Span { start, end: start + length }
    };
    let named = |prefix: &str| message.strip_prefix(prefix).map(str::to_owned);
    let mut span = offset.filter(|at| *at < sql.len()).map(token_at);
    let mut hint = String::new();
    if let Some(name) = named("no such table: ") {
        hint = nearest(&name, catalog.tables.values().map(|table| table.name.as_str()));
        span = span.or_else(|| find_word(sql, &name));
    } else if let Some(name) = named("no such column: ") {
        let bare = name.rsplit('.').next().unwrap_or(&name);
        let columns: BTreeSet<&str> = catalog
            .tables
            .values()
            .filter(|table| find_word(sql, &table.name).is_some())
            .flat_map(|table| table.columns.iter().map(|column| column.name.as_str()).chain([node_column(table)]))
            .collect();
        hint = nearest(bare, columns.into_iter());
        if bare.eq_ignore_ascii_case("node") {
            let computed = catalog.tables.values().find(|t| !has_node(t) && find_word(sql, &t.name).is_some());
            if let Some(table) = computed {
                let why = if table.replicated { "is the same on every node" } else { "is computed over all nodes" };
                hint = format!(" ({} {why}: its rows belong to no node)", table.name);
            }
        }
        span = span.or_else(|| find_word(sql, bare));
    } else if let Some(name) = named("no such function: ") {
        hint = nearest(&name, functions::all_names());
        span = span.or_else(|| find_word(sql, &name));
    }
    QueryError { message: format!("{message}{hint}"), span, refused: false }
}

/// The first place of a whole word, ASCII case aside.
fn find_word(sql: &str, word: &str) -> Option<Span> {
    let (haystack, needle) = (sql.to_ascii_lowercase(), word.to_ascii_lowercase());
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    haystack.match_indices(&needle).map(|(start, _)| Span { start, end: start + needle.len() }).find(|span| {
        !haystack[..span.start].chars().next_back().is_some_and(is_word)
            && !haystack[span.end..].chars().next().is_some_and(is_word)
    })
}

/// `; did you mean x?` when a candidate is near (edit distance at most a third of the name).
fn nearest<'n>(name: &str, candidates: impl Iterator<Item = &'n str>) -> String {
    let name = name.to_ascii_lowercase();
    let limit = name.chars().count().div_ceil(3).max(1);
    candidates
        .map(|candidate| (edit_distance(&name, &candidate.to_ascii_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map_or_else(String::new, |(_, candidate)| format!("; did you mean {candidate}?"))
}

/// Levenshtein distance, one row at a time.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substitution = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substitution.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

impl Catalog {
    /// Whether another node's catalogue can be planned against: it has no more tables and columns
    /// than files of people have, and SQLite can make tables of it. One that cannot would be in the
    /// way of everybody's questions.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        let columns: usize = self.tables.values().map(|table| table.columns.len()).sum();
        if self.tables.len() > MOST_TABLES || columns > MOST_COLUMNS {
            return Err(format!("{} tables and {columns} columns are more than can be asked for", self.tables.len()));
        }
        for (key, table) in &self.tables {
            if *key != table.name.to_ascii_lowercase() {
                return Err(format!("table {:.60?} goes by the name {key:.60?}", table.name));
            }
            if table.columns.is_empty() {
                return Err(format!("table {:.60?} has no columns", table.name));
            }
            let known = |column: &Column| COLLATIONS.iter().any(|name| name.eq_ignore_ascii_case(&column.collation));
            if let Some(column) = table.columns.iter().find(|column| !known(column)) {
                return Err(format!("column {:.60?} collates by {:.60?}", column.name, column.collation));
            }
        }
        empty_copy(self).map(drop).map_err(|error| format!("its tables cannot be made: {error:.200}"))
    }
}

/// An in-memory database with every table of the catalogue as a virtual table without rows.
fn empty_copy(catalog: &Catalog) -> rusqlite::Result<Connection> {
    let conn = Connection::open_in_memory()?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
    conn.set_limit(SqliteLimit::SQLITE_LIMIT_SQL_LENGTH, i32::try_from(MAX_SQL_BYTES).unwrap_or(i32::MAX))?;
    functions::register(&conn)?;
    let declarations: Declarations =
        catalog.tables.iter().map(|(key, table)| (key.clone(), declaration(table))).collect();
    conn.create_module(
        "mesh_table",
        const { &Module::<EmptyTable>::read_only_module() },
        Some(Arc::new(declarations)),
    )?;
    for table in catalog.tables.values() {
        conn.execute_batch(&format!("CREATE VIRTUAL TABLE {} USING mesh_table", quoted(&table.name)))?;
    }
    Ok(conn)
}

fn declaration(table: &Table) -> String {
    let mut columns: Vec<String> = table
        .columns
        .iter()
        .map(|Column { name, decl_type, .. }| format!("{} {}", quoted(name), declared(decl_type)))
        .collect();
    if has_node(table) {
        columns.push(format!("{} TEXT HIDDEN", node_column(table)));
    }
    format!("CREATE TABLE mesh_table({})", columns.join(", "))
}

/// A declared type as it can stand in a CREATE TABLE; odd ones by their affinity.
fn declared(decl_type: &str) -> &str {
    let words_only = decl_type.bytes().all(|b| b.is_ascii_alphanumeric() || b" (),_".contains(&b));
    let reserved = decl_type
        .split(|c: char| !c.is_alphanumeric())
        .any(|word| word.eq_ignore_ascii_case("hidden") || ast::is_keyword(word));
    if words_only && !reserved { decl_type } else { affinity(decl_type) }
}

type Declarations = BTreeMap<String, String>;

#[repr(C)]
struct EmptyTable {
    base: sqlite3_vtab,
}

// SAFETY: `EmptyTable` is repr(C) and starts with `sqlite3_vtab`, as the trait asks.
unsafe impl VTab<'_> for EmptyTable {
    type Aux = Arc<Declarations>;
    type Cursor = EmptyCursor;

    fn connect(
        _: &mut VTabConnection,
        aux: Option<&Arc<Declarations>>,
        _module: &[u8],
        _database: &[u8],
        table: &[u8],
        _args: &[&[u8]],
    ) -> rusqlite::Result<(Cow<'static, CStr>, Self)> {
        let key = String::from_utf8_lossy(table).to_ascii_lowercase();
        let sql = aux
            .and_then(|declarations| declarations.get(&key))
            .ok_or_else(|| Error::ModuleError(format!("{key} is not in the catalogue")))?;
        let sql = CString::new(sql.as_str())?;
        Ok((Cow::Owned(sql), EmptyTable { base: sqlite3_vtab::default() }))
    }

    fn best_index(&self, _: &mut IndexInfo) -> rusqlite::Result<bool> {
        Ok(true)
    }

    fn open(&mut self) -> rusqlite::Result<EmptyCursor> {
        Ok(EmptyCursor { base: rusqlite::vtab::sqlite3_vtab_cursor::default(), lifetime: PhantomData })
    }
}

impl CreateVTab<'_> for EmptyTable {
    const KIND: VTabKind = VTabKind::Default;
}

#[repr(C)]
struct EmptyCursor {
    base: rusqlite::vtab::sqlite3_vtab_cursor,
    lifetime: PhantomData<()>,
}

// SAFETY: `EmptyCursor` is repr(C) and starts with `sqlite3_vtab_cursor`, as the trait asks.
unsafe impl VTabCursor for EmptyCursor {
    fn filter(&mut self, _: c_int, _: Option<&str>, _: &Filters<'_>) -> rusqlite::Result<()> {
        Ok(())
    }

    fn next(&mut self) -> rusqlite::Result<()> {
        Ok(())
    }

    fn eof(&self) -> bool {
        true
    }

    fn column(&self, _: &mut Context, _: c_int) -> rusqlite::Result<()> {
        Ok(())
    }

    fn rowid(&self) -> rusqlite::Result<i64> {
        Ok(0)
    }
}
