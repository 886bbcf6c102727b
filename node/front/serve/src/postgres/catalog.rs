//! PostgreSQL's catalogue, which its clients read before they ask anything: an SQLite database in
//! memory, with the tables of the nodes in the schema `public`.
//!
//! A statement that SQLite cannot run there is answered with no rows, and logged: clients also look
//! for indexes, constraints and types of their own, of which there are none here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use front::schema;
use model::TableSeen;
use query_planner::{ColumnMeta, Value, memory};
use rusqlite::functions::{Context as Arguments, FunctionFlags};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, params};

use super::infer;
use super::rewrite::rewritten;
use super::tokens::Token;
use super::types::{self, PgType};
use super::views;

const DDL: &str = include_str!("catalog.sql");
/// The version that clients are given: one whose catalogue they know.
pub(super) const VERSION: &str = "16.6";
const VERSION_NUM: &str = "160006";
/// The database and its owner.
pub(super) const DATABASE: &str = "rankmesh";
/// The number of the first table; those below are PostgreSQL's own.
const FIRST_OID: i64 = 16_384;
const PUBLIC: i64 = 2_200;
/// Time limit and row limit of a statement on the catalogue.
const LONGEST: Duration = Duration::from_secs(3);
const MOST_ROWS: usize = 100_000;
/// Characters of a statement, or of SQLite's message on it, in the log.
const LOGGED: usize = 300;
/// Bytes of one value, of SQLite's memory for a statement, and of the rows of an answer. A single
/// call of a function cannot be stopped, and takes up to the square of its value's bytes.
const LONGEST_VALUE: i32 = 256 << 10;
const MOST_MEMORY: u64 = 64 << 20;
const MOST_BYTES: usize = 8 << 20;
/// Bytes of a regular expression, compiled, and of a pattern of LIKE.
const LONGEST_PATTERN: usize = 64 << 10;
const LONGEST_LIKE: i32 = 500;

/// Settings that clients ask for.
pub(super) const SETTINGS: &[(&str, &str)] = &[
    ("server_version", VERSION),
    ("server_version_num", VERSION_NUM),
    ("search_path", "public"),
    ("server_encoding", "UTF8"),
    ("client_encoding", "UTF8"),
    ("standard_conforming_strings", "on"),
    ("transaction_isolation", "read committed"),
    ("default_transaction_isolation", "read committed"),
    ("transaction_read_only", "on"),
    ("default_transaction_read_only", "on"),
    ("timezone", "UTC"),
    ("datestyle", "ISO, MDY"),
    ("intervalstyle", "postgres"),
    ("integer_datetimes", "on"),
    ("max_identifier_length", "63"),
    ("max_index_keys", "32"),
    ("bytea_output", "hex"),
    ("lc_collate", "C"),
    ("is_superuser", "off"),
    ("in_hot_standby", "off"),
];

/// The value of a setting that never changes.
pub(super) fn setting(name: &str) -> Option<&'static str> {
    SETTINGS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
}

/// The result of a statement.
pub(super) enum Found {
    Rows(Vec<ColumnMeta>, Vec<Vec<Value>>),
    /// It is wrong, or mixes the catalogue with the nodes' tables.
    Wrong(String),
}

/// The catalogue of some tables.
pub(super) struct Catalog {
    conn: Connection,
    of: Arc<Vec<TableSeen>>,
    names: BTreeSet<String>,
}

impl Catalog {
    /// With these tables.
    ///
    /// # Errors
    /// SQLite fails.
    pub(super) fn new(tables: Arc<Vec<TableSeen>>) -> anyhow::Result<Self> {
        let conn = Connection::open_in_memory()?;
        conn.execute_batch("ATTACH ':memory:' AS pg_catalog; ATTACH ':memory:' AS information_schema")?;
        conn.execute_batch(DDL).context("the catalogue")?;
        let mut made = Self { conn, of: Arc::clone(&tables), names: BTreeSet::new() };
        made.fill()?;
        for (oid, table) in (FIRST_OID..).zip(tables.iter()) {
            made.table(oid, table)?;
        }
        functions(&made.conn)?;
        made.conn.execute_batch("PRAGMA query_only = ON; PRAGMA max_page_count = 4096")?;
        made.conn.set_limit(rusqlite::limits::Limit::SQLITE_LIMIT_LENGTH, LONGEST_VALUE)?;
        made.conn.set_limit(rusqlite::limits::Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, LONGEST_LIKE)?;
        made.conn.set_limit(rusqlite::limits::Limit::SQLITE_LIMIT_ATTACHED, 2)?;
        Ok(made)
    }

    /// Whether it is the catalogue of these tables.
    pub(super) fn is_of(&self, tables: &Arc<Vec<TableSeen>>) -> bool {
        Arc::ptr_eq(&self.of, tables) || self.of == *tables
    }

    fn fill(&self) -> anyhow::Result<()> {
        let conn = &self.conn;
        for (oid, name) in [(11, "pg_catalog"), (PUBLIC, "public"), (13_000, "information_schema")] {
            conn.execute("INSERT INTO pg_catalog.pg_namespace VALUES (?, ?, 10, NULL)", params![oid, name])?;
            conn.execute(
                "INSERT INTO information_schema.schemata VALUES (?, ?, ?)",
                params![DATABASE, name, DATABASE],
            )?;
        }
        for kind in types::ALL {
            let PgType { oid, name, len, category, array, .. } = *kind;
            conn.execute(
                "INSERT INTO pg_catalog.pg_type(oid, typname, typlen, typcategory, typarray, typinput, typoutput, typreceive, typsend)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?2 || 'in', ?2 || 'out', ?2 || 'recv', ?2 || 'send')",
                params![oid, name, len, category, array],
            )?;
            if array != 0 {
                conn.execute(
                    "INSERT INTO pg_catalog.pg_type(oid, typname, typlen, typcategory, typelem, typinput, typoutput, typreceive, typsend)
                     VALUES (?, '_' || ?, -1, 'A', ?, 'array_in', 'array_out', 'array_recv', 'array_send')",
                    params![array, name, oid],
                )?;
            }
        }
        conn.execute(
            "INSERT INTO pg_catalog.pg_database VALUES (5, ?, 10, 6, 'c', 0, 1, -1, 'C', 'C', 1663, NULL, NULL, NULL, NULL, NULL)",
            [DATABASE],
        )?;
        conn.execute(
            "INSERT INTO pg_catalog.pg_roles VALUES (10, ?, 0, 1, 0, 0, 1, 0, -1, NULL, NULL, 0, NULL)",
            [DATABASE],
        )?;
        for (name, value) in SETTINGS {
            let row = "INSERT INTO pg_catalog.pg_settings(name, setting, context, vartype) VALUES (?, ?, 'internal', 'string')";
            conn.execute(row, [name, value])?;
        }
        Ok(())
    }

    fn table(&mut self, oid: i64, table: &TableSeen) -> anyhow::Result<()> {
        let known = schema::of(&table.name);
        let is_view = views::is_one(&table.name);
        let conn = &self.conn;
        let (kind, long) = if is_view { ("v", "VIEW") } else { ("r", "BASE TABLE") };
        // The hidden column can be named, and selected.
        let mut columns = table.columns.clone();
        if !columns.iter().any(|column| column.name.eq_ignore_ascii_case("node")) {
            columns.push(ColumnMeta { name: "node".to_owned(), decl_type: "TEXT".to_owned() });
        }
        let count = i64::try_from(columns.len()).unwrap_or(i64::MAX);
        let row =
            "INSERT INTO pg_catalog.pg_class(oid, relname, relnamespace, relkind, relnatts) VALUES (?, ?, ?, ?, ?)";
        conn.execute(row, params![oid, table.name, PUBLIC, kind, count])?;
        let row = "INSERT INTO information_schema.tables(table_catalog, table_schema, table_name, table_type) VALUES (?, 'public', ?, ?)";
        conn.execute(row, params![DATABASE, table.name, long])?;
        let described = "INSERT INTO pg_catalog.pg_description VALUES (?, 1259, ?, ?)";
        if let Some(known) = known {
            conn.execute(described, params![oid, 0, known.about])?;
        }
        for (number, column) in (1_i64..).zip(&columns) {
            let kind = types::declared(&column.decl_type);
            let row = "INSERT INTO pg_catalog.pg_attribute(attrelid, attname, atttypid, attlen, attnum) VALUES (?, ?, ?, ?, ?)";
            conn.execute(row, params![oid, column.name, kind.oid, kind.len, number])?;
            let row = "INSERT INTO information_schema.columns(table_catalog, table_schema, table_name, column_name, ordinal_position,
                data_type, udt_catalog, udt_name) VALUES (?1, 'public', ?2, ?3, ?4, ?5, ?1, ?6)";
            conn.execute(row, params![DATABASE, table.name, column.name, number, kind.long, kind.name])?;
            let meaning = known.and_then(|known| known.columns.iter().find(|meant| meant.name == column.name));
            let meaning = meaning
                .map(|meant| meant.meaning.as_str())
                .or_else(|| (column.name == "node").then_some("The node that the row is from; not part of *"));
            if let Some(meaning) = meaning {
                conn.execute(described, params![oid, number, meaning])?;
            }
        }
        self.names.insert(table.name.to_ascii_lowercase());
        Ok(())
    }

    /// Answers a statement.
    pub(super) fn ask(&mut self, tokens: &[Token]) -> Found {
        let sql = rewritten(tokens);
        let until = Instant::now() + LONGEST;
        let _ = self.conn.progress_handler(1_000, Some(move || Instant::now() >= until));
        let capped = memory::cap(MOST_MEMORY);
        let found = self.run(&sql);
        drop(capped);
        match found {
            Ok((columns, rows)) => Found::Rows(columns, rows),
            Err(error) if is_limit(&error) => Found::Wrong(format!(
                "a statement on PostgreSQL's catalogue has {} s, {} MiB and {MOST_ROWS} rows here: {error}",
                LONGEST.as_secs(),
                MOST_MEMORY >> 20
            )),
            Err(error) => {
                let words: String = error.to_string().chars().take(LOGGED).collect();
                let of_nodes = words.strip_prefix("no such table: ").and_then(|rest| rest.split([' ', ';']).next());
                let of_nodes = of_nodes.map(|name| name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase());
                if of_nodes.is_some_and(|name| self.names.contains(&name)) {
                    return Found::Wrong(
                        "the tables of the nodes and PostgreSQL's catalogue cannot be asked in one statement"
                            .to_owned(),
                    );
                }
                // No table of the catalogue is read: who asks wants the value, and has to know. (PostgreSQL's own
                // functions, as those that give locks back, change nothing here.)
                let is_own = words.strip_prefix("no such function: ").is_some_and(|name| name.starts_with("pg_"));
                if !is_own && !tokens.iter().any(|token| token.is("from")) {
                    return Found::Wrong(words.split(" in ").next().unwrap_or_default().to_owned());
                }
                let sql: String = sql.chars().take(LOGGED).collect();
                tracing::warn!(%words, sql, "a question to PostgreSQL's catalogue is not understood: answered with no rows");
                let columns =
                    infer::names(tokens).into_iter().map(|name| ColumnMeta { name, decl_type: String::new() });
                Found::Rows(columns.collect(), Vec::new())
            }
        }
    }

    fn run(&self, sql: &str) -> rusqlite::Result<(Vec<ColumnMeta>, Vec<Vec<Value>>)> {
        let mut statement = self.conn.prepare(sql)?;
        let columns: Vec<ColumnMeta> = statement
            .columns()
            .map(|column| ColumnMeta {
                name: column.name().to_owned(),
                decl_type: column.decl_type().unwrap_or_default().to_owned(),
            })
            .collect();
        let mut found = statement.query([])?;
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while let Some(row) = found.next()? {
            let cells = (0..columns.len()).map(|at| {
                Ok(match row.get_ref(at)? {
                    ValueRef::Null => Value::Null,
                    ValueRef::Integer(integer) => Value::Integer(integer),
                    ValueRef::Real(real) => Value::Real(real),
                    ValueRef::Text(text) => Value::Text(text.into()),
                    ValueRef::Blob(bytes) => Value::Blob(bytes.into()),
                })
            });
            let cells: Vec<Value> = cells.collect::<rusqlite::Result<_>>()?;
            bytes += cells.iter().map(|cell| size_of::<Value>() + length(cell)).sum::<usize>();
            rows.push(cells);
            if rows.len() >= MOST_ROWS || bytes >= MOST_BYTES {
                return Err(rusqlite::Error::QueryReturnedMoreThanOneRow);
            }
        }
        Ok((columns, rows))
    }
}

/// Whether a statement ended at one of the limits here.
fn is_limit(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{OperationInterrupted, OutOfMemory, TooBig};
    matches!(error, rusqlite::Error::QueryReturnedMoreThanOneRow)
        || error.sqlite_error_code().is_some_and(|code| [OperationInterrupted, OutOfMemory, TooBig].contains(&code))
}

fn length(value: &Value) -> usize {
    match value {
        Value::Text(bytes) | Value::Blob(bytes) => bytes.len(),
        Value::Null | Value::Integer(_) | Value::Real(_) => 0,
    }
}

fn text(arguments: &Arguments<'_>, at: usize) -> rusqlite::Result<Option<String>> {
    Ok(match arguments.get_raw(at) {
        ValueRef::Null => None,
        ValueRef::Integer(integer) => Some(integer.to_string()),
        ValueRef::Real(real) => Some(real.to_string()),
        ValueRef::Text(text) | ValueRef::Blob(text) => Some(String::from_utf8_lossy(text).into_owned()),
    })
}

fn unquoted(name: &str) -> String {
    let name = name.rsplit('.').next().unwrap_or(name);
    name.trim_matches('"').to_owned()
}

/// `{a,b}` or `a` as JSON.
fn as_json(array: &str) -> String {
    if array.starts_with('[') {
        return array.to_owned();
    }
    let inner = array.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(array);
    let parts: Vec<&str> =
        inner.split(',').map(|part| part.trim_matches('"')).filter(|part| !part.is_empty()).collect();
    serde_json::Value::from(parts).to_string()
}

/// PostgreSQL's functions that clients call.
fn functions(conn: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8;
    let constant = |name: &str, value: rusqlite::types::Value| {
        conn.create_scalar_function(name, -1, flags, move |_| Ok(value.clone()))
    };
    let as_text = |text: &str| rusqlite::types::Value::Text(text.to_owned());
    let version = format!("PostgreSQL {VERSION} (rankmesh {}; the dialect is SQLite's)", env!("CARGO_PKG_VERSION"));
    constant("version", as_text(&version))?;
    for (name, value) in [
        ("current_schema", "public"),
        ("current_database", DATABASE),
        ("pg_user", DATABASE),
        ("pg_get_userbyid", DATABASE),
        ("pg_encoding_to_char", "UTF8"),
        ("current_schemas", r#"["pg_catalog","public"]"#),
        ("pg_get_viewdef", ""),
        ("pg_size_pretty", ""),
    ] {
        constant(name, as_text(value))?;
    }
    for name in [
        "pg_table_is_visible",
        "pg_type_is_visible",
        "pg_function_is_visible",
        "pg_collation_is_visible",
        "pg_opclass_is_visible",
        "pg_operator_is_visible",
        "pg_relation_is_publishable",
        "has_table_privilege",
        "has_any_column_privilege",
        "has_column_privilege",
        "has_schema_privilege",
        "has_database_privilege",
    ] {
        constant(name, rusqlite::types::Value::Integer(1))?;
    }
    for name in [
        "pg_is_in_recovery",
        "pg_backend_pid",
        "pg_my_temp_schema",
        "pg_is_other_temp_schema",
        "pg_relation_size",
        "pg_total_relation_size",
        "pg_table_size",
        "pg_relation_is_updatable",
        "txid_current",
    ] {
        constant(name, rusqlite::types::Value::Integer(0))?;
    }
    for name in [
        "pg_get_expr",
        "pg_get_constraintdef",
        "pg_get_indexdef",
        "pg_get_partkeydef",
        "pg_get_ruledef",
        "pg_get_serial_sequence",
        "pg_get_statisticsobjdef_columns",
        "shobj_description",
        "inet_server_addr",
        "inet_client_addr",
        "pg_tablespace_location",
        "pg_get_function_result",
        "pg_get_function_arguments",
        "pg_get_function_identity_arguments",
        "pg_get_functiondef",
        "pg_get_triggerdef",
    ] {
        constant(name, rusqlite::types::Value::Null)?;
    }
    let expression = |name: &'static str, ask: &'static str| {
        // A question to the catalogue itself, on the connection that runs this one.
        conn.create_scalar_function(name, -1, flags, move |arguments| {
            let connection = unsafe { arguments.get_connection()? };
            let given: Vec<Option<String>> =
                (0..arguments.len()).map(|at| text(arguments, at)).collect::<rusqlite::Result<_>>()?;
            let one = given.first().cloned().flatten().map(|name| unquoted(&name));
            let two = given.get(1).cloned().flatten();
            let wanted = connection.prepare(ask)?.parameter_count();
            let found = match wanted {
                1 => connection.query_row(ask, [one], |row| row.get::<_, rusqlite::types::Value>(0)),
                _ => connection.query_row(ask, [one, two], |row| row.get(0)),
            };
            match found {
                Err(rusqlite::Error::QueryReturnedNoRows) => Ok(rusqlite::types::Value::Null),
                found => found,
            }
        })
    };
    // A name becomes a number, and a number a name.
    expression(
        "regclass",
        // 1259 is PostgreSQL's own number of pg_class, to which descriptions of tables belong.
        "SELECT 1259 WHERE ?1 = 'pg_class' UNION ALL
         SELECT CASE WHEN ?1 = CAST(oid AS TEXT) THEN relname ELSE oid END FROM pg_catalog.pg_class WHERE relname = ?1 OR oid = CAST(?1 AS INTEGER)",
    )?;
    expression(
        "regtype",
        "SELECT CASE WHEN ?1 = CAST(oid AS TEXT) THEN typname ELSE oid END FROM pg_catalog.pg_type WHERE typname = ?1 OR oid = CAST(?1 AS INTEGER)",
    )?;
    expression(
        "regnamespace",
        "SELECT CASE WHEN ?1 = CAST(oid AS TEXT) THEN nspname ELSE oid END FROM pg_catalog.pg_namespace WHERE nspname = ?1 OR oid = CAST(?1 AS INTEGER)",
    )?;
    expression("to_regclass", "SELECT oid FROM pg_catalog.pg_class WHERE relname = ?1")?;
    expression("to_regtype", "SELECT oid FROM pg_catalog.pg_type WHERE typname = ?1")?;
    expression(
        "col_description",
        "SELECT description FROM pg_catalog.pg_description WHERE objoid = CAST(?1 AS INTEGER) AND objsubid = CAST(?2 AS INTEGER) AND objsubid > 0",
    )?;
    expression(
        "obj_description",
        "SELECT description FROM pg_catalog.pg_description WHERE objoid = CAST(?1 AS INTEGER) AND objsubid = 0",
    )?;
    conn.create_scalar_function("format_type", -1, flags, |arguments| {
        let oid = text(arguments, 0)?.and_then(|oid| oid.parse::<i64>().ok());
        Ok(oid.map(|oid| match types::ALL.iter().find(|kind| kind.oid == oid || kind.array == oid) {
            Some(kind) if kind.oid == oid => kind.long.to_owned(),
            Some(kind) => format!("{}[]", kind.long),
            None => "???".to_owned(),
        }))
    })?;
    conn.create_scalar_function("current_setting", -1, flags, |arguments| {
        Ok(text(arguments, 0)?.and_then(|name| setting(&name).map(str::to_owned)))
    })?;
    conn.create_scalar_function("set_config", -1, flags, |arguments| text(arguments, 1))?;
    for (name, is_quoted) in [("quote_ident", '"'), ("quote_literal", '\'')] {
        conn.create_scalar_function(name, 1, flags, move |arguments| {
            Ok(text(arguments, 0)?.map(|name| {
                let is_plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
                let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
                if is_quoted == '"' && is_plain && begins {
                    return name;
                }
                format!("{is_quoted}{}{is_quoted}", name.replace(is_quoted, &format!("{is_quoted}{is_quoted}")))
            }))
        })?;
    }
    for name in ["regexp", "match"] {
        // `a REGEXP b` is regexp(b, a); the rewriting makes MATCH of operators that ignore case.
        conn.create_scalar_function(name, 2, flags, move |arguments| {
            let (Some(pattern), Some(text)) = (text(arguments, 0)?, text(arguments, 1)?) else { return Ok(None) };
            let pattern = if name == "match" { format!("(?i){pattern}") } else { pattern };
            let regex = regex_lite::RegexBuilder::new(&pattern).size_limit(LONGEST_PATTERN).build();
            let regex = regex.map_err(|error| rusqlite::Error::UserFunctionError(Box::new(error)))?;
            Ok(Some(regex.is_match(&text)))
        })?;
    }
    conn.create_scalar_function(
        "pg_array",
        1,
        flags,
        |arguments| Ok(text(arguments, 0)?.map(|array| as_json(&array))),
    )?;
    conn.create_scalar_function("pg_literal", 1, flags, |arguments| {
        let parts: Vec<serde_json::Value> =
            serde_json::from_str(&text(arguments, 0)?.unwrap_or_default()).unwrap_or_default();
        let parts: Vec<String> =
            parts.iter().map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned)).collect();
        Ok(format!("{{{}}}", parts.join(",")))
    })?;
    conn.create_scalar_function("parse_ident", -1, flags, |arguments| {
        Ok(text(arguments, 0)?.map(|name| {
            let parts: Vec<&str> = name.split('.').map(|part| part.trim_matches('"')).collect();
            serde_json::Value::from(parts).to_string()
        }))
    })?;
    conn.create_scalar_function("string_to_array", 2, flags, |arguments| {
        let (Some(all), Some(between)) = (text(arguments, 0)?, text(arguments, 1)?) else { return Ok(None) };
        Ok(Some(serde_json::Value::from(all.split(&between).collect::<Vec<_>>()).to_string()))
    })?;
    conn.create_scalar_function("array_to_string", -1, flags, |arguments| {
        let (Some(all), Some(between)) = (text(arguments, 0)?, text(arguments, 1)?) else { return Ok(None) };
        let parts: Vec<serde_json::Value> = serde_json::from_str(&as_json(&all)).unwrap_or_default();
        let parts: Vec<String> =
            parts.iter().map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned)).collect();
        Ok(Some(parts.join(&between)))
    })?;
    for (name, is_lower) in
        [("array_length", false), ("array_upper", false), ("array_lower", true), ("cardinality", false)]
    {
        conn.create_scalar_function(name, -1, flags, move |arguments| {
            let Some(array) = text(arguments, 0)? else { return Ok(None) };
            let parts: Vec<serde_json::Value> = serde_json::from_str(&as_json(&array)).unwrap_or_default();
            let length = i64::try_from(parts.len()).unwrap_or(i64::MAX);
            Ok((length > 0).then_some(if is_lower { 1 } else { length }))
        })?;
    }
    conn.create_scalar_function("pg_at", 2, flags, |arguments| {
        let (Some(array), Some(place)) = (text(arguments, 0)?, text(arguments, 1)?) else { return Ok(None) };
        let parts: Vec<serde_json::Value> = serde_json::from_str(&as_json(&array)).unwrap_or_default();
        let part = place.parse::<usize>().ok().and_then(|place| parts.get(place.checked_sub(1)?));
        Ok(part.map(|part| part.as_str().map_or_else(|| part.to_string(), str::to_owned)))
    })
}
