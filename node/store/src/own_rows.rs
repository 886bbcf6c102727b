//! A connection that shows one user's rows and nothing else of the store: for a user who may ask an
//! agent that records everybody, but see only her own processes.
//!
//! The store is attached under a name that nobody can guess, to a connection whose own database is
//! empty. What questions name are temporary views of the tables' names, which SQLite finds first;
//! each leaves the rows of the user's processes. The authorizer lets the store be read from within
//! these views alone, so no other name, no schema table and no way of writing the question leads
//! past them. Tables that are not listed here show nothing. The user of a row is that of its
//! process: a process id belongs to the user from the start of her process to its recorded end, and at
//! most to the start of the next one with that number. Rows without a process belong to no user; those of the host as a whole to
//! everybody ([`HOST_WIDE`]).

use std::path::Path;

use rand::RngExt;
use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext};

use super::columnar;
use super::error::StoreError;
use super::reader::{attach_own, settle};
use super::rows::TICK_NS;
use crate::quoted;

/// Tables with rows of processes, in addition to the frequent ones ([`columnar::COLUMNAR`], all of
/// processes), and the column of their time.
const BY_PROCESS: [(&str, &str); 3] = [("memory_events", "ts_ns"), ("process_events", "ts_ns"), ("stacks", "ts_ns")];
/// Tables about the host as a whole, about what is recorded, or of names: everybody may see them.
const HOST_WIDE: [&str; 11] = [
    "host_samples",
    "gpu_samples",
    "fabric_counters",
    "self_stats",
    "clock_offsets",
    "capture_loss",
    "sessions",
    "retention",
    "archive_gaps",
    "sources",
    "ops",
];
/// The rows of a rollup begin so much before their first call.
const BUCKET_NS: i64 = 1_000_000_000;

/// A connection to the store at `path` for a question of the user `uid`, as
/// [`query_planner::harden`] would leave it.
///
/// # Errors
/// The store cannot be opened or read.
pub(super) fn open(path: &Path, node: &str, uid: u32) -> Result<Connection, StoreError> {
    made(path, node, uid).map_err(|error| StoreError::from_sqlite_read(path, error))
}

fn made(path: &Path, node: &str, uid: u32) -> rusqlite::Result<Connection> {
    let unguessable = |what: &str| format!("{what}_{:032x}", rand::rng().random::<u128>());
    let behind = Behind { store: unguessable("store"), own: unguessable("own"), others: unguessable("others"), uid };
    let mut conn = attach_own(path, &behind.store)?;
    // Before anything temporary is made: SQLite drops what there is when this changes.
    settle(&conn)?;
    conn.execute_batch("PRAGMA query_only = OFF")?;
    let schema = quoted(&behind.store);
    conn.execute_batch(&behind.processes())?;
    let objects: Vec<(String, String, String)> = conn
        .prepare(&format!(
            "SELECT type, name, sql FROM {schema}.sqlite_schema WHERE type IN ('table', 'view') \
             AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND sql IS NOT NULL ORDER BY rowid"
        ))?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let tables: Vec<&str> = objects
        .iter()
        .filter(|(kind, name, _)| kind == "table" && !super::OWN_TABLES.contains(&&**name))
        .map(|(_, name, _)| &**name)
        .collect();
    for table in &tables {
        let columns: Vec<String> = conn
            .prepare("SELECT name FROM pragma_table_info(?1, ?2) ORDER BY cid")?
            .query_map([table, &&*behind.store], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let shown = columns.iter().map(|column| behind.shown(table, column)).collect::<Vec<_>>().join(", ");
        let from = format!("FROM {schema}.{} AS t WHERE {}", quoted(table), behind.condition(table, node));
        // Views of the schema name rows by their id, which a view has not.
        conn.execute_batch(&format!(
            "CREATE TEMP VIEW {} AS SELECT {shown} {from}; CREATE TEMP VIEW {} AS SELECT t.rowid AS rowid, {shown} {from}",
            quoted(table),
            quoted(&numbered(table)),
        ))?;
    }
    let views: Vec<&String> = objects.iter().filter(|(kind, ..)| kind == "view").map(|(.., sql)| sql).collect();
    for sql in &views {
        conn.execute_batch(&over_these(sql, &tables))?;
    }
    conn.execute_batch("PRAGMA query_only = ON")?;
    let made: u32 =
        conn.query_row("SELECT count(*) FROM temp.sqlite_schema WHERE type = 'view'", [], |row| row.get(0))?;
    if made as usize != 2 * tables.len() + views.len() {
        return Err(rusqlite::Error::InvalidQuery);
    }
    query_planner::harden_with(&mut conn, move |context| is_readable(context, &behind.store))?;
    Ok(conn)
}

/// Names that no question can know: of the store, and of the tables of the user's processes.
struct Behind {
    store: String,
    own: String,
    others: String,
    uid: u32,
}

impl Behind {
    /// The user's processes, with the times in which their ids were theirs; and the jobs that other
    /// users' processes claim to belong to.
    fn processes(&self) -> String {
        let Self { store, own, others, uid } = self;
        format!(
            "CREATE TEMP TABLE {own} (pid INTEGER, from_ns INTEGER, until_ns INTEGER, PRIMARY KEY (pid, from_ns)) WITHOUT ROWID; \
             INSERT OR IGNORE INTO {own} SELECT pid, from_ns, until_ns FROM ( \
                 SELECT pid, uid, at_ns AS from_ns, \
                     ifnull(lead(at_ns) OVER (PARTITION BY pid ORDER BY at_ns), 0x7fffffffffffffff) AS until_ns \
                 FROM (SELECT pid, uid, start_ns - {TICK_NS} AS at_ns FROM {store}.processes \
                     UNION ALL SELECT pid, NULL, ts_ns + {TICK_NS} FROM {store}.process_events \
                     WHERE event IN ('exit', 'oom_killed') AND pid IN (SELECT pid FROM {store}.processes WHERE uid = {uid}) \
                     AND ts_ns >= (SELECT min(start_ns) FROM {store}.processes WHERE uid = {uid})) \
                 ) WHERE uid = {uid}; \
             CREATE TEMP TABLE {others} (job_id TEXT PRIMARY KEY) WITHOUT ROWID; \
             INSERT OR IGNORE INTO {others} SELECT job_id FROM {store}.processes \
                 WHERE job_id IS NOT NULL AND uid IS NOT {uid}"
        )
    }

    /// Whether a process, by its number and a time at which it ran, is the user's.
    fn is_own(&self, pid: &str, first_ns: &str, last_ns: &str) -> String {
        let own = &self.own;
        format!(
            "EXISTS (SELECT 1 FROM temp.{own} AS own WHERE own.pid = {pid} AND own.from_ns <= {last_ns} AND own.until_ns > {first_ns})"
        )
    }

    /// Which rows of a table are shown.
    fn condition(&self, table: &str, node: &str) -> String {
        if HOST_WIDE.contains(&table) {
            return "1".to_owned();
        }
        if let Some((_, time)) = BY_PROCESS.iter().chain(columnar::COLUMNAR).find(|(name, _)| *name == table) {
            let time = format!("t.{time}");
            return if time == "t.bucket_ns" {
                self.is_own("t.pid", &time, &format!("{time} + {BUCKET_NS}"))
            } else {
                self.is_own("t.pid", &time, &time)
            };
        }
        match table {
            "processes" => self.is_own("t.pid", "t.start_ns", "t.start_ns"),
            // A job's number comes from its processes: believed where no other user's process
            // claims the same, on the host of the rank that is named, where the job's own processes
            // were.
            "findings" => format!(
                "t.culprit_node = '{}' AND t.job_id IN (SELECT p.job_id FROM temp.processes AS p) \
                 AND t.job_id NOT IN (SELECT o.job_id FROM temp.{} AS o)",
                node.replace('\'', "''"),
                self.others
            ),
            "annotations" => format!("t.uid = {}", self.uid),
            _ => "0".to_owned(),
        }
    }

    /// What is shown of a column: what shows another process than the row's is left out.
    fn shown(&self, table: &str, column: &str) -> String {
        let name = quoted(column);
        match (table, column) {
            ("offcpu", "next_pid" | "next_comm") => {
                format!("CASE WHEN {} THEN t.{name} END AS {name}", self.is_own("t.next_pid", "t.ts_ns", "t.ts_ns"))
            }
            ("request_stretches", "taken_by_pid" | "taken_by" | "taken_by_tenant") => {
                format!("CASE WHEN {} THEN t.{name} END AS {name}", self.is_own("t.taken_by_pid", "t.ts_ns", "t.ts_ns"))
            }
            ("findings", "cause") => format!("NULL AS {name}"),
            ("findings", "detail") => format!("'{{}}' AS {name}"),
            _ => format!("t.{name} AS {name}"),
        }
    }
}

/// The view of a table that also has its rows' ids.
fn numbered(table: &str) -> String {
    format!("{table} with ids")
}

/// A view of the schema, over the views made here.
fn over_these(sql: &str, tables: &[&str]) -> String {
    let mut words = sql.split_whitespace();
    let mut made: Vec<String> = vec!["CREATE TEMP".to_owned()];
    words.next();
    let mut after_from = false;
    for word in words {
        let table = word.trim_end_matches([',', ')']);
        if after_from && tables.contains(&table) {
            made.push(format!("{}{}", quoted(&numbered(table)), &word[table.len()..]));
        } else {
            made.push(word.to_owned());
        }
        after_from = ["FROM", "JOIN"].iter().any(|keyword| word.eq_ignore_ascii_case(keyword));
    }
    made.join(" ")
}

/// Whether SQLite may read a column while it compiles a question.
fn is_readable(context: &AuthContext<'_>, store: &str) -> bool {
    let AuthAction::Read { table_name, column_name } = context.action else { return false };
    // The packed rows have no view over them; nor has the schema.
    if super::OWN_TABLES.contains(&table_name) {
        return columnar::compiles_ours();
    }
    if table_name.to_ascii_lowercase().starts_with("sqlite_") {
        return false;
    }
    // Only a view reads the store. Where no column of a view's table is read, SQLite asks after it
    // has put the view's text into the question.
    context.database_name != Some(store) || context.accessor.is_some() || column_name.is_empty()
}

#[cfg(test)]
mod tests {
    use record::{HostRecord, ProcessEvent, ProcessSeen, Record, RequestOf, RequestSeen, RequestStretch, RequestSum};

    use super::super::testing::{PATIENCE, T0, collective, connect, int, offcpu};
    use super::super::{Store, StoreConfig};
    use super::*;

    const ADA: u32 = 1_001;
    const BOB: u32 = 1_002;

    fn process(pid: u32, start_ns: i64, uid: u32, job: &str) -> Record {
        let job_id = Some(job.to_owned());
        Record::Process(ProcessSeen {
            pid,
            start_ns,
            uid: Some(uid),
            job_id,
            comm: "rank".into(),
            ..ProcessSeen::default()
        })
    }

    /// A request to a server, a part of it in which 9 had the CPU, and the sum of its second.
    fn request(pid: u32, ts_ns: i64) -> [Record; 3] {
        let of = RequestOf {
            pid,
            service: "chat".into(),
            tenant: "job:7".into(),
            protocol: "http/1",
            method: Some("GET"),
            route: Some("/secret".into()),
            cgroup_id: 1,
        };
        let seen = RequestSeen {
            ts_ns,
            duration_ns: Some(1_000),
            first_byte_ns: Some(900),
            queued_ns: None,
            of: of.clone(),
            tid: pid,
            sent_tid: Some(pid),
            status: Some(200),
            grpc_status: None,
            port: Some(80),
            peer: Some("10.0.0.1".to_owned()),
            connection: 1,
            number: 1,
            bytes_in: 1,
            bytes_out: 1,
            sends: 1,
            gap_ns: None,
            cpu_ns: Some(1),
            run_delay_ns: Some(0),
            kept: "all",
            stands_for: 1,
        };
        let sum = RequestSum {
            ts_ns: ts_ns / 1_000_000_000 * 1_000_000_000,
            of,
            count: 1,
            errors: 0,
            unanswered: 0,
            sum_ns: 1_000,
            min_ns: 1_000,
            max_ns: 1_000,
            queued_ns: 0,
            bytes_in: 1,
            bytes_out: 1,
            durations: vec![(1_000, 1)],
            first_bytes: vec![(900, 1)],
        };
        let stretch = RequestStretch {
            ts_ns,
            pid,
            kind: "ready",
            taken_by_pid: Some(9),
            taken_by: Some("bob-s-miner".to_owned()),
            taken_by_tenant: Some("user:bob".to_owned()),
            ..RequestStretch::default()
        };
        let stretch = Record::RequestStretch(Box::new(stretch));
        [Record::Request(Box::new(seen)), stretch, Record::RequestSum(Box::new(sum))]
    }

    /// Pid 100 is Ada's for a second, then Bob's; 9 is Bob's; 8 Ada's.
    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        // The records are old.
        let config =
            StoreConfig { max_age: std::time::Duration::from_secs(100 * 365 * 86_400), ..StoreConfig::default() };
        let store = Store::open(dir.path().join("t.db"), config).unwrap();
        let ingest = store.ingest();
        let later = T0 + 1_000_000_000;
        for (pid, start_ns, uid, job) in
            [(100, T0, ADA, "7"), (100, later, BOB, "8"), (9, T0, BOB, "8"), (8, T0, ADA, "7"), (5, T0, BOB, "9")]
        {
            ingest.record(process(pid, start_ns, uid, job));
        }
        ingest.record(process(6, T0, ADA, "9")); // says that it is of Bob's job
        for i in 0..2_000 {
            ingest.record(Record::Collective(collective(i)));
        }
        ingest.record(offcpu(T0 + 5, 10)); // Ada's, pushed off by Bob's 9
        ingest.record(offcpu(later + 5, 10)); // Bob's
        for pid in [8, 9, 77] {
            request(pid, T0 + 5).into_iter().for_each(|record| ingest.record(record)); // Ada's, Bob's, nobody's
        }
        store.flush(PATIENCE).unwrap();
        let plain = connect(store.path());
        for job in ["7", "8", "9"] {
            plain
                .execute(
                    "INSERT INTO findings (ts_ns, since_ns, until_ns, verdict, culprit_node, job_id, cause, detail) \
                     VALUES (1, 0, 1, 'rank', 'n1', ?1, 'bob-s-miner took the CPU', '{\"x\": 1}')",
                    [job],
                )
                .unwrap();
        }
        plain
            .execute_batch(
                "INSERT INTO audit (ts_ns, via, who, role, kind, outcome, duration_ns) VALUES (1, 's', 'u', 'r', 'q', 'a', 1)",
            )
            .unwrap();
        (dir, store)
    }

    #[test]
    fn every_table_and_view_shows_the_users_rows_alone() {
        let (_dir, store) = store();
        let [ada, bob, nobody] = [ADA, BOB, 4_242].map(|uid| open(store.path(), "n1", uid).unwrap());
        // A process begins up to a tick before its recorded start.
        let hers = (1_000_000_000 - TICK_NS) / 1_000_000;
        for (sql, of_ada) in [
            ("SELECT count(*) FROM collectives", hers),
            ("SELECT count(*) FROM nccl_events", hers),
            ("SELECT count(*) FROM events WHERE source = 100", hers),
            ("SELECT count(DISTINCT id) FROM events WHERE id LIKE 'collectives:%'", hers),
            ("SELECT count(*) FROM offcpu", 1),
            ("SELECT count(*) FROM processes", 3),
            ("SELECT count(*) FROM requests WHERE pid = 8 OR route = '/secret'", 1),
            ("SELECT count(*) FROM request_stretches", 1),
            ("SELECT ifnull(sum(count), 0) FROM request_rollups WHERE sketch IS NOT NULL", 1),
            ("SELECT count(*) FROM findings", 1),
            ("SELECT count(*) FROM audit", 0),
            ("SELECT count(*) FROM collectives c JOIN processes p ON p.pid = c.pid AND p.start_ns <= c.ts_ns", hers),
            ("WITH x AS (SELECT * FROM temp.collectives) SELECT count(*) FROM x", hers),
        ] {
            assert_eq!(int(&ada, sql), of_ada, "{sql}");
            assert_eq!(int(&nobody, sql), 0, "{sql}");
        }
        let both: i64 = [&ada, &bob].iter().map(|conn| int(conn, "SELECT count(*) FROM collectives")).sum();
        assert_eq!(both, 2_000, "each row is somebody's, and one's only");
        let sources = "SELECT count(*) FROM sources";
        assert_eq!(int(&nobody, sources), int(&connect(store.path()), sources), "names are everybody's");
        // What one's own rows show of others is left out.
        assert_eq!(int(&ada, "SELECT next_pid IS NULL AND next_comm IS NULL FROM offcpu"), 1);
        let taken =
            "SELECT taken_by_pid IS NULL AND taken_by IS NULL AND taken_by_tenant IS NULL FROM request_stretches";
        assert_eq!((int(&ada, taken), int(&bob, taken)), (1, 0));
        assert_eq!(int(&ada, "SELECT cause IS NULL AND detail = '{}' AND job_id = '7' FROM findings"), 1);
        // A job's number that others claim, too, counts for nobody.
        assert_eq!(int(&bob, "SELECT group_concat(job_id) = '8' FROM findings"), 1);
    }

    #[test]
    fn a_process_that_has_ended_has_no_rows_of_the_next_with_its_number() {
        let (_dir, store) = store();
        let count = |uid: u32| {
            let conn = open(store.path(), "n1", uid).unwrap();
            int(&conn, "SELECT count(*) FROM collectives WHERE pid = 100")
        };
        let (before, of_bob) = (count(ADA), count(BOB));
        // It ends after half a second; what has its number then is in no row of `processes`.
        store.ingest().record(Record::Host(HostRecord::Life(ProcessEvent {
            ts_ns: T0 + 500_000_000,
            event: "exit",
            pid: 100,
            parent_pid: None,
            comm: "rank".to_owned(),
            exit_code: Some(0),
            signal: None,
            rank: None,
            cgroup_id: 0,
        })));
        store.flush(PATIENCE).unwrap();
        assert_eq!(count(ADA), 500 + TICK_NS / 1_000_000, "of {before}");
        assert_eq!(count(BOB), of_bob);
    }

    #[test]
    fn no_way_of_writing_a_question_leads_past_the_views() {
        let (_dir, store) = store();
        let ada = open(store.path(), "n1", ADA).unwrap();
        for sql in [
            "SELECT count(*) FROM main.collectives",
            "SELECT count(*) FROM store.collectives",
            "SELECT count(*) FROM segments",
            "SELECT count(data) FROM segment_columns",
            "SELECT sql FROM sqlite_schema",
            "SELECT sql FROM sqlite_temp_schema",
            "SELECT sql FROM temp.sqlite_master",
            "SELECT name FROM pragma_database_list",
            "PRAGMA database_list",
            "WITH x AS (SELECT data FROM segment_columns) SELECT count(data) FROM x",
            "WITH collectives AS (SELECT header FROM segments) SELECT header FROM collectives",
            "WITH x AS (SELECT sql FROM sqlite_temp_schema) SELECT sql FROM x",
            "SELECT (SELECT max(data) FROM segment_columns) FROM processes",
            "SELECT seq FROM sqlite_sequence",
            "CREATE TEMP VIEW x AS SELECT 1",
            "INSERT INTO temp.processes (pid) VALUES (9)",
            "DROP VIEW temp.collectives",
            "ATTACH ':memory:' AS other",
        ] {
            let asked = ada.prepare(sql).and_then(|mut statement| statement.query([])?.next().map(|row| row.is_some()));
            assert!(asked.is_err(), "{sql}");
        }
        // Names of one's own do not reach into the views.
        let shadows = "WITH processes(pid, uid) AS (VALUES (9, 1001), (100, 1001)) SELECT count(*) FROM offcpu";
        assert_eq!(int(&ada, shadows), 1);
        // Each connection has another name for the store, so none can be learnt from another.
        let name = |conn: &Connection| conn.db_name(2).unwrap();
        assert_ne!(name(&ada), name(&open(store.path(), "n1", ADA).unwrap()));
    }
}
