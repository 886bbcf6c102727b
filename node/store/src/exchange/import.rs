//! Owns the import of a trace that another program recorded: recognised by its tables, copied into
//! a new trace store by the statements of `ingero.sql`, with a count of what does not fit into a
//! store. The recording is only read.

use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::ExchangeError;
use crate::{APPLICATION_ID, ServedDb, quoted};

/// What to import.
#[derive(Debug, Clone)]
pub struct Import {
    /// The recording.
    pub file: PathBuf,
    /// The new trace store.
    pub out: PathBuf,
    /// The node whose rows are wanted; needed when the recording has several.
    pub node: Option<String>,
}

/// What was imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Table of the new store and rows.
    pub tables: Vec<(String, u64)>,
    /// What of the recording was not taken, and how many rows: "HOST sched_wakeup events", "table
    /// stack_traces".
    pub left_out: Vec<(String, u64)>,
}

/// Columns of `events` that every known form has.
const EVENT_COLUMNS: [&str; 9] = ["timestamp", "pid", "tid", "source", "op", "duration", "arg0", "arg1", "ret_code"];
/// Columns of `events` that later forms have, and what stands for them in earlier ones.
const LATER_COLUMNS: [(&str, &str); 4] =
    [("cgroup_id", "0"), ("rank", "NULL"), ("local_rank", "NULL"), ("world_size", "NULL")];
/// Tables that every known form has.
const TABLES: [&str; 7] =
    ["sources", "ops", "sessions", "process_names", "system_snapshots", "event_aggregates", "cgroup_metadata"];
/// Tables that have no counterpart here.
const NOT_TAKEN: [&str; 3] = ["stack_traces", "causal_chains", "cgroup_schedstat"];
/// Events that `ingero.sql` takes: source and its operations.
const TAKEN: &str = "(source = 1 AND op BETWEEN 1 AND 8) OR (source = 4 AND op BETWEEN 1 AND 6) \
                     OR (source = 3 AND op IN (1, 4, 5, 6, 7)) OR (source = 5 AND op IN (1, 2, 3)) \
                     OR (source = 6 AND op = 1)";

/// Make `wanted.file` into the new trace store `wanted.out`, which appears under its name only when
/// it is complete.
///
/// # Errors
/// [`ExchangeError`] with what is wrong and what to do; then no new store is left.
pub fn import(wanted: &Import) -> Result<Imported, ExchangeError> {
    if wanted.out.exists() {
        return Err(ExchangeError::Exists(wanted.out.clone()));
    }
    // Refuses what cannot be read without writing a file next to it.
    let served = ServedDb::open(&wanted.file, Vec::new())?;
    let form = Form::of(wanted, &served.reader()?)?;
    let failed = |source| ExchangeError::Write { path: wanted.out.clone(), source };
    super::write_complete(&wanted.out, failed, |part| copy(wanted, &served, &form, part))
}

/// The form of a recording.
struct Form {
    /// The SELECT of the wanted events with the columns of every form.
    events: String,
    /// The host's name, where it is in the recording.
    host: String,
}

impl Form {
    fn of(wanted: &Import, source: &Connection) -> Result<Self, ExchangeError> {
        let sqlite = |error| ExchangeError::Sqlite { path: wanted.file.clone(), source: error };
        let ours: i32 = source.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(sqlite)?;
        if ours == APPLICATION_ID {
            return Err(ExchangeError::Ours(wanted.file.clone()));
        }
        let unknown = |lacks: String| ExchangeError::Unknown { file: wanted.file.clone(), lacks };
        let columns = columns(source, "events").map_err(sqlite)?;
        let has = |column: &str| columns.iter().any(|c| c == column);
        if let Some(lacking) = EVENT_COLUMNS.iter().find(|column| !has(column)) {
            return Err(unknown(format!("no column events.{lacking}")));
        }
        for table in TABLES {
            if self::columns(source, table).map_err(sqlite)?.is_empty() {
                return Err(unknown(format!("no table {table}")));
            }
        }
        let later = LATER_COLUMNS
            .iter()
            .map(|(column, other)| if has(column) { (*column).to_owned() } else { format!("{other} AS {column}") });
        let list: Vec<String> = EVENT_COLUMNS.iter().map(|c| (*c).to_owned()).chain(later).collect();
        let mut events = format!("SELECT {} FROM src.events", list.join(", "));
        let mut host = "unknown".to_owned();
        if has("node") {
            let mut statement = source.prepare("SELECT DISTINCT node FROM events ORDER BY node").map_err(sqlite)?;
            let nodes: Vec<String> =
                statement.query_map([], |row| row.get(0)).and_then(Iterator::collect).map_err(sqlite)?;
            let chosen = match (&wanted.node, nodes.as_slice()) {
                (Some(node), _) if nodes.contains(node) => Some(node.clone()),
                (Some(node), _) => {
                    return Err(ExchangeError::NoNode { file: wanted.file.clone(), node: node.clone(), nodes });
                }
                (None, []) => None,
                (None, [only]) => Some(only.clone()),
                (None, _) => return Err(ExchangeError::Nodes { file: wanted.file.clone(), nodes }),
            };
            if let Some(node) = chosen {
                events.push_str(&format!(" WHERE node = '{}'", node.replace('\'', "''")));
                if !node.is_empty() {
                    host = node;
                }
            }
        } else if let Some(node) = &wanted.node {
            host.clone_from(node);
        }
        Ok(Self { events, host })
    }
}

fn columns(conn: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    conn.prepare("SELECT name FROM pragma_table_info(?1)")?.query_map([table], |row| row.get(0))?.collect()
}

fn copy(wanted: &Import, served: &ServedDb, form: &Form, part: &Path) -> Result<Imported, ExchangeError> {
    let to = |source| ExchangeError::Sqlite { path: wanted.out.clone(), source };
    let from = |source| ExchangeError::Sqlite { path: wanted.file.clone(), source };
    drop(super::new_file(part).map_err(|source| ExchangeError::Write { path: wanted.out.clone(), source })?);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let conn = Connection::open_with_flags(part, flags).map_err(to)?;
    conn.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;").map_err(to)?;
    // The recording is another program's: nothing in its schema may do more than store rows.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false).map_err(to)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true).map_err(to)?;
    crate::write_plain_schema(&conn).map_err(to)?;
    conn.execute("ATTACH ?1 AS src", [served.uri()?]).map_err(from)?;
    conn.execute_batch(&format!(
        "CREATE TEMP VIEW picked AS {}; CREATE TEMP TABLE recorded (host TEXT); BEGIN",
        form.events
    ))
    .map_err(from)?;
    conn.execute("INSERT INTO temp.recorded VALUES (?1)", [&form.host]).map_err(to)?;
    let mut tables = Vec::new();
    for section in include_str!("ingero.sql").split("\n--> ").skip(1) {
        let (table, sql) = section.split_once('\n').unwrap_or((section, ""));
        let rows = conn.execute(sql, []).map_err(|source| ExchangeError::Rows {
            file: wanted.file.clone(),
            table: table.to_owned(),
            source,
        })?;
        tables.push((table.to_owned(), rows as u64));
    }
    let left_out = left_out(&conn).map_err(from)?;
    conn.execute_batch("COMMIT; DETACH src").map_err(to)?;
    conn.close().map_err(|(_, source)| to(source))?;
    let synced = std::fs::File::open(part).and_then(|file| file.sync_all());
    synced.map_err(|source| ExchangeError::Write { path: wanted.out.clone(), source })?;
    Ok(Imported { tables, left_out })
}

fn left_out(conn: &Connection) -> rusqlite::Result<Vec<(String, u64)>> {
    let mut statement = conn.prepare(&format!(
        "SELECT ifnull(s.name, 'source ' || e.source) || ' ' || ifnull(o.name, 'op ' || e.op) || ' events', e.n
         FROM (SELECT source, op, count(*) AS n FROM temp.picked WHERE NOT ({TAKEN}) GROUP BY 1, 2) e
         LEFT JOIN src.sources s ON s.id = e.source LEFT JOIN src.ops o ON o.source_id = e.source AND o.op_id = e.op
         ORDER BY e.source, e.op"
    ))?;
    let mut out: Vec<(String, u64)> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.cast_unsigned())))?
        .collect::<rusqlite::Result<_>>()?;
    for table in NOT_TAKEN {
        let known: bool =
            conn.query_row("SELECT count(*) FROM src.sqlite_schema WHERE name = ?1", [table], |row| row.get(0))?;
        if known {
            let rows: i64 =
                conn.query_row(&format!("SELECT count(*) FROM src.{}", quoted(table)), [], |row| row.get(0))?;
            let rows = rows.cast_unsigned();
            if rows > 0 {
                out.push((format!("table {table}"), rows));
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recording of v0.8 with one event of each operation, two CUDA copies and an operation that
    /// is not known.
    fn recording(dir: &Path, later: bool) -> PathBuf {
        let path = dir.join("trace.db");
        let conn = Connection::open(&path).unwrap();
        let (id, more) = match later {
            false => ("INTEGER PRIMARY KEY", ""),
            true => (
                "TEXT PRIMARY KEY",
                ", node TEXT NOT NULL DEFAULT '', rank INTEGER, local_rank INTEGER, world_size INTEGER",
            ),
        };
        conn.execute_batch(&format!(
            "CREATE TABLE events (id {id}, timestamp INTEGER NOT NULL, pid INTEGER NOT NULL, tid INTEGER NOT NULL,
                 source INTEGER NOT NULL, op INTEGER NOT NULL, duration INTEGER NOT NULL, gpu_id INTEGER DEFAULT 0,
                 arg0 INTEGER NOT NULL DEFAULT 0, arg1 INTEGER NOT NULL DEFAULT 0, ret_code INTEGER NOT NULL DEFAULT 0,
                 stack_hash INTEGER DEFAULT 0, cgroup_id INTEGER NOT NULL DEFAULT 0{more});
             CREATE TABLE sources (id INTEGER, name TEXT); INSERT INTO sources VALUES (3, 'HOST');
             CREATE TABLE ops (source_id INTEGER, op_id INTEGER, name TEXT); INSERT INTO ops VALUES (3, 2, 'sched_wakeup');
             CREATE TABLE sessions (started_at INTEGER, stopped_at INTEGER DEFAULT 0, kernel TEXT, ingero_ver TEXT);
             INSERT INTO sessions VALUES (5, 0, '6.1', 'dev');
             CREATE TABLE process_names (pid INTEGER, name TEXT, seen_at INTEGER); INSERT INTO process_names VALUES (7, 'python3', 9);
             CREATE TABLE system_snapshots (timestamp INTEGER, cpu_pct REAL, mem_avail INTEGER, swap_mb INTEGER, load_avg REAL);
             INSERT INTO system_snapshots VALUES (8, 12.5, 100, 1, 0.5);
             CREATE TABLE event_aggregates (bucket INTEGER, source INTEGER, op INTEGER, count INTEGER, stored INTEGER);
             INSERT INTO event_aggregates VALUES (0, 3, 2, 10, 1), (0, 3, 1, 4, 4);
             CREATE TABLE cgroup_metadata (cgroup_id INTEGER, container_id TEXT, cgroup_path TEXT, pod_name TEXT);
             INSERT INTO cgroup_metadata VALUES (77, 'c0ffee', '/x', '');
             CREATE TABLE stack_traces (hash INTEGER); INSERT INTO stack_traces VALUES (1), (2);
             INSERT INTO events (id, timestamp, pid, tid, source, op, duration, arg0, arg1, cgroup_id) VALUES
                 ('1', 10, 7, 7, 1, 7, 100, 4096, 1, 77), ('2', 11, 7, 7, 4, 1, 50, 140291364079808, 0, 77),
                 ('3', 12, 7, 7, 3, 1, 900, 0, 7, 77), ('4', 13, 7, 7, 3, 6, 0, 0, 0, 77), ('5', 14, 7, 7, 5, 1, 30, 8, 99, 77),
                 ('6', 15, 7, 7, 6, 1, 0, 0, 0, 77), ('7', 16, 7, 7, 3, 2, 0, 0, 0, 77);"
        ))
        .unwrap();
        path
    }

    fn row(path: &Path, sql: &str) -> Vec<rusqlite::types::Value> {
        let conn = ServedDb::open(path, Vec::new()).unwrap().reader().unwrap();
        let mut statement = conn.prepare(sql).unwrap();
        let width = statement.column_count();
        statement.query_row([], |row| (0..width).map(|i| row.get(i)).collect()).unwrap()
    }

    #[test]
    fn both_forms_become_our_tables_and_what_has_no_place_is_counted() {
        for later in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let file = recording(dir.path(), later);
            let before = std::fs::read(&file).unwrap();
            let out = dir.path().join("out.db");
            let done = import(&Import { file: file.clone(), out: out.clone(), node: None }).unwrap();
            assert_eq!(
                done.left_out,
                [("HOST sched_wakeup events".to_owned(), 1), ("table stack_traces".to_owned(), 2)]
            );
            assert_eq!(done.tables.iter().map(|(_, rows)| rows).sum::<u64>(), 6 + 4, "{done:?}");
            use rusqlite::types::Value::{Integer, Null, Real, Text};
            let copies = "SELECT api, func, bytes, kind FROM cuda_calls WHERE bytes NOT NULL";
            let text = |s: &str| Text(s.to_owned());
            assert_eq!(
                row(&out, copies),
                [text("runtime"), text("cudaMemcpyAsync"), Integer(4096), text("host_to_device")]
            );
            assert_eq!(
                row(&out, "SELECT func, bytes FROM cuda_calls WHERE api = 'driver'"),
                [text("cuLaunchKernel"), Null]
            );
            assert_eq!(row(&out, "SELECT duration_ns, next_pid, cpu FROM offcpu"), [Integer(900), Null, Null]);
            assert_eq!(row(&out, "SELECT bytes, op, device FROM block_io"), [Integer(4096), text("read"), Null]);
            assert_eq!(row(&out, "SELECT comm, container_id FROM processes"), [text("python3"), text("c0ffee")]);
            assert_eq!(
                row(&out, "SELECT memory_available_bytes, load_1m FROM host_samples"),
                [Integer(100 << 20), Real(0.5)]
            );
            assert_eq!(
                row(&out, "SELECT probe, reason, lost FROM capture_loss"),
                [text("sched_wakeup"), text("sampled"), Integer(9)]
            );
            assert_eq!(std::fs::read(&file).unwrap(), before, "the recording stays as it is");
            // An agent takes it up as its own.
            drop(crate::Store::open(&out, crate::StoreConfig::default()).unwrap());
            assert!(matches!(
                import(&Import { file: out, out: dir.path().join("x.db"), node: None }),
                Err(ExchangeError::Ours(_))
            ));
        }
    }

    #[test]
    fn a_trace_of_several_nodes_wants_one_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = recording(dir.path(), true);
        Connection::open(&file).unwrap().execute("UPDATE events SET node = 'n' || (id % 2)", []).unwrap();
        let wanted = |node: Option<&str>| Import {
            file: file.clone(),
            out: dir.path().join("out.db"),
            node: node.map(str::to_owned),
        };
        assert!(matches!(import(&wanted(None)), Err(ExchangeError::Nodes { nodes, .. }) if nodes == ["n0", "n1"]));
        assert!(matches!(import(&wanted(Some("n7"))), Err(ExchangeError::NoNode { .. })));
        import(&wanted(Some("n1"))).unwrap();
        let out = dir.path().join("out.db");
        assert_eq!(
            row(
                &out,
                "SELECT (SELECT count(*) FROM cuda_calls) + (SELECT count(*) FROM offcpu) + (SELECT count(*) FROM block_io), (SELECT host FROM sessions)"
            ),
            [3.into(), "n1".to_owned().into()]
        );
    }

    #[test]
    fn what_is_no_known_trace_is_refused_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.db");
        Connection::open(&file).unwrap().execute_batch("CREATE TABLE events (timestamp INTEGER)").unwrap();
        let wanted = Import { file, out: dir.path().join("out.db"), node: None };
        let error = import(&wanted).unwrap_err();
        assert!(
            error.to_string().contains("no column events.pid") && error.to_string().contains("--serve-db"),
            "{error}"
        );
        // A value of the wrong kind: all of the import is refused.
        std::fs::remove_file(&wanted.file).unwrap();
        let file = recording(dir.path(), false);
        Connection::open(&file).unwrap().execute("UPDATE events SET duration = 'long' WHERE source = 5", []).unwrap();
        let error = import(&Import { file, ..wanted.clone() }).unwrap_err();
        assert!(matches!(&error, ExchangeError::Rows { table, .. } if table == "block_io"), "{error}");
        assert!(!wanted.out.exists() && !dir.path().join("out.db.part").exists());
    }
}
