//! Owns the description of a file's tables, made before their rows are read: columns, declared
//! types, the column with the time.

use rusqlite::Connection;

use crate::{APPLICATION_ID, OWN_TABLES, TIME_COLUMNS, TIMED_TABLES, quoted};

/// The kind of a column's values by its declared type
/// (<https://sqlite.org/datatype3.html#determination_of_column_affinity>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// 64-bit integers.
    Integer,
    /// 64-bit floats (integers are converted when they are exact).
    Real,
    /// UTF-8 text.
    Text,
    /// Bytes.
    Blob,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

/// Tables that a copy of a span has whole.
const DESCRIBE: &[&str] = &["processes", "clock_offsets"];

/// A table that can be exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) columns: Vec<Column>,
    /// Its time in Unix nanoseconds, where it has one.
    pub(crate) time: Option<String>,
    /// A copy of a span has all of it: its rows describe those of other tables, and were written at other
    /// times than these.
    pub(crate) is_kept_whole: bool,
}

impl Table {
    /// The SELECT of its rows; where the table has a time, from `from_ns` on and before `until_ns`.
    pub(crate) fn select(&self, from_ns: Option<i64>, until_ns: Option<i64>) -> String {
        let columns: Vec<String> = self.columns.iter().map(|column| quoted(&column.name)).collect();
        let mut sql = format!("SELECT {} FROM {}", columns.join(", "), quoted(&self.name));
        let Some(time) = self.time.as_deref().map(quoted) else { return sql };
        let from = from_ns.map(|ns| format!("{time} >= {ns}"));
        let until = until_ns.map(|ns| format!("{time} < {ns}"));
        let within: Vec<String> = from.into_iter().chain(until).collect();
        if !within.is_empty() {
            sql.push_str(&format!(" WHERE {}", within.join(" AND ")));
        }
        sql
    }
}

/// True when the file is a trace store.
pub(crate) fn is_ours(conn: &Connection) -> rusqlite::Result<bool> {
    conn.pragma_query_value(None, "application_id", |row| row.get::<_, i32>(0)).map(|id| id == APPLICATION_ID)
}

/// The tables of the file, in the order of their names.
pub(crate) fn tables(conn: &Connection) -> rusqlite::Result<Vec<Table>> {
    let ours = is_ours(conn)?;
    let mut statement = conn.prepare(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name",
    )?;
    let names: Vec<String> = statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let asked = |name: &String| !(ours && OWN_TABLES.contains(&name.as_str()));
    names.into_iter().filter(asked).map(|name| table(conn, name, ours)).collect()
}

fn table(conn: &Connection, name: String, ours: bool) -> rusqlite::Result<Table> {
    let mut statement = conn.prepare("SELECT name, type FROM pragma_table_info(?1) ORDER BY cid")?;
    let columns: Vec<Column> = statement
        .query_map([&name], |row| {
            let declared: String = row.get(1)?;
            Ok(Column { name: row.get(0)?, kind: kind(&declared) })
        })?
        .collect::<rusqlite::Result<_>>()?;
    let time = if ours {
        TIMED_TABLES.iter().find(|(table, _)| *table == name).map(|(_, column)| (*column).to_owned())
    } else {
        TIME_COLUMNS.iter().find(|time| columns.iter().any(|column| column.name == **time)).map(|c| (*c).to_owned())
    };
    let is_kept_whole = ours && DESCRIBE.contains(&name.as_str());
    Ok(Table { name, columns, time, is_kept_whole })
}

/// The affinity rules, with NUMERIC and undeclared columns taken as text: the form that fits any
/// value.
fn kind(declared: &str) -> Kind {
    let declared = declared.to_ascii_uppercase();
    let has = |part: &str| declared.contains(part);
    match () {
        () if has("INT") => Kind::Integer,
        () if has("CHAR") || has("CLOB") || has("TEXT") => Kind::Text,
        () if has("BLOB") => Kind::Blob,
        () if has("REAL") || has("FLOA") || has("DOUB") => Kind::Real,
        () => Kind::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declared_types_follow_sqlites_rules() {
        let all = ["INTEGER", "bigint", "VARCHAR(3)", "Text", "BLOB", "REAL", "double", "", "NUMERIC"].map(kind);
        use Kind::{Blob, Integer, Real, Text};
        assert_eq!(all, [Integer, Integer, Text, Text, Blob, Real, Real, Text, Text]);
    }

    #[test]
    fn tables_know_their_columns_and_times() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(
            "CREATE TABLE \"odd \"\"name\" (timestamp INTEGER, x); INSERT INTO \"odd \"\"name\" VALUES (5, 1), (9, 2);
             CREATE TABLE dictionary (id INTEGER PRIMARY KEY, name TEXT);",
        )
        .unwrap();
        let tables = tables(&conn).unwrap();
        assert_eq!(tables.len(), 2);
        assert_eq!(tables[0].time, None);
        assert_eq!(
            tables[1].select(Some(7), Some(9)),
            "SELECT \"timestamp\", \"x\" FROM \"odd \"\"name\" WHERE \"timestamp\" >= 7 AND \"timestamp\" < 9"
        );
        assert_eq!(tables[1].select(None, None), "SELECT \"timestamp\", \"x\" FROM \"odd \"\"name\"");
        assert_eq!(tables[0].select(Some(7), None), "SELECT \"id\", \"name\" FROM \"dictionary\"");
    }
}
