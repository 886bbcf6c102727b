//! Owns the tables of a server: the script that an administrator reads and runs.

use std::fmt::Write as _;

use crate::units;

/// The table whose rows change: they are pushed again, by the time of their last change.
pub(super) const UPDATED: &str = "processes";

/// Tokens that the server remembers for each table: 64 hosts that push every ten seconds make as
/// many in four hours. An insert repeated later than that would be counted twice.
const REMEMBERED: u32 = 100_000;

/// The script that makes the database and its tables. Run again after an upgrade of rankmesh it
/// adds new columns.
///
/// # Errors
/// SQLite cannot make an empty store to read the tables from.
pub fn script(database: &str) -> Result<String, rusqlite::Error> {
    let database = quoted(database);
    let mut out = format!(
        "-- Tables for `rankmesh up --clickhouse`, of schema version {}; for ClickHouse 23.8 and later. Times are Unix\n\
         -- nanoseconds of each host's own clock. Who pushes needs INSERT on these tables, nothing else. Retries are told\n\
         -- by tokens, of which the server remembers the last {REMEMBERED} of each table. For rows to be kept for a\n\
         -- year only, add to each table: TTL toDateTime(intDiv(ts_ns, 1000000000)) + INTERVAL 1 YEAR.\n\
         CREATE DATABASE IF NOT EXISTS {database};\n",
        store::SCHEMA_VERSION
    );
    for (table, columns) in store::declared()? {
        let Some((_, time)) = store::TIMED_TABLES.iter().find(|(name, _)| *name == table) else { continue };
        let kind = |name: &str, declared: &str| {
            let kind = match declared.to_ascii_uppercase().as_str() {
                declared if declared.contains("INT") => "Int64",
                declared if declared.contains("REAL") => "Float64",
                _ => "String",
            };
            if name == *time || is_key(&table, name) { kind.to_owned() } else { format!("Nullable({kind})") }
        };
        let listed: Vec<(String, String)> =
            columns.iter().map(|(name, declared)| (quoted(name), kind(name, declared))).collect();
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "\nCREATE TABLE IF NOT EXISTS {database}.{}\n(\n    node LowCardinality(String),\n    store String",
            quoted(&table)
        );
        for ((name, kind), (plain, _)) in listed.iter().zip(&columns) {
            let unit =
                units::unit(plain).map_or_else(String::new, |unit| format!(" COMMENT '{}'", unit.replace('\'', "''")));
            let _ = write!(out, ",\n    {name} {kind}{unit}");
        }
        let (engine, order) = match is_key(&table, "pid") {
            true => (format!("ReplacingMergeTree({time})"), "node, store, pid, start_ns".to_owned()),
            false => ("MergeTree".to_owned(), format!("node, {time}")),
        };
        let partition = match is_key(&table, "pid") {
            true => String::new(),
            false => format!("\nPARTITION BY toYYYYMM(toDateTime(intDiv({time}, 1000000000), 'UTC'))"),
        };
        let _ = write!(
            out,
            "\n)\nENGINE = {engine}{partition}\nORDER BY ({order})\nSETTINGS non_replicated_deduplication_window = {REMEMBERED};\n"
        );
        let added: Vec<String> =
            listed.iter().map(|(name, kind)| format!("ADD COLUMN IF NOT EXISTS {name} {kind}")).collect();
        let _ = writeln!(out, "ALTER TABLE {database}.{} {};", quoted(&table), added.join(", "));
    }
    Ok(out)
}

/// Whether a column is part of the key of a row of `processes`: a process that is seen again is the
/// same row, with more of its columns filled.
fn is_key(table: &str, column: &str) -> bool {
    table == UPDATED && ["pid", "start_ns"].contains(&column)
}

/// A name, quoted for ClickHouse.
pub(super) fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('\\', "\\\\").replace('`', "\\`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_with_a_time_is_made_and_remembers_tokens() {
        let script = script("it's `mine`").unwrap();
        for (table, _) in store::TIMED_TABLES {
            assert!(script.contains(&format!(".`{table}`\n(")), "{table}");
        }
        assert!(script.contains("CREATE DATABASE IF NOT EXISTS `it's \\`mine\\``"), "{script}");
        assert_eq!(
            script.matches("CREATE TABLE").count(),
            script.matches("non_replicated_deduplication_window").count()
        );
        assert!(script.contains("ReplacingMergeTree(seen_ns)") && script.contains("`ts_ns` Int64"), "{script}");
    }
}
