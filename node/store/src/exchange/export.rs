//! Owns an export as a whole: which tables, of which time, from one snapshot, into one new file. The
//! forms have modules of their own.

mod csv;
pub(super) mod parquet;
mod plain;

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::ExchangeError;
use super::tables::{self, Table};
use crate::{ServedDb, quoted};

/// What to export.
#[derive(Debug, Clone)]
pub struct Export {
    /// A trace store, or any SQLite file. It may be in use by a running agent: the export reads one
    /// snapshot.
    pub db: PathBuf,
    /// The new file; its ending chooses the form: `.db`, `.csv` or `.parquet`.
    pub out: PathBuf,
    /// Only these tables; empty means all for `.db`, and `collectives` for the forms with one
    /// table.
    pub tables: Vec<String>,
    /// Only rows from this time on, Unix nanoseconds.
    pub from_ns: Option<i64>,
    /// Only rows before this time, Unix nanoseconds.
    pub until_ns: Option<i64>,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Table and number of rows.
    pub tables: Vec<(String, u64)>,
    /// Tables of the file that have rows and were not asked for.
    pub left_out: Vec<String>,
}

/// One form of output. Rows of a table follow its `begin`.
pub(crate) trait Sink {
    /// A table begins.
    fn begin(&mut self, table: &Table) -> Result<(), ExchangeError>;
    /// One row of it, in the order of its columns.
    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<(), ExchangeError>;
    /// Everything was handed over: complete the file and make it durable.
    fn finish(self: Box<Self>) -> Result<(), ExchangeError>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Db,
    Csv,
    Parquet,
}

impl Form {
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "db" | "sqlite" | "sqlite3" => Some(Self::Db),
            "csv" => Some(Self::Csv),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }
}

/// Export rows of `wanted.db` into the new file `wanted.out`, all from one snapshot. The file
/// appears under its name only when it is complete.
///
/// # Errors
/// [`ExchangeError`] with what is wrong and what to do; then no new file is left.
pub fn export(wanted: &Export) -> Result<Exported, ExchangeError> {
    let form = Form::of(&wanted.out).ok_or_else(|| ExchangeError::Form(wanted.out.clone()))?;
    if wanted.out.exists() {
        return Err(ExchangeError::Exists(wanted.out.clone()));
    }
    let served = ServedDb::open(&wanted.db, Vec::new())?;
    let mut conn = served.reader()?;
    let sqlite = |source| ExchangeError::Sqlite { path: wanted.db.clone(), source };
    let snapshot = conn.transaction().map_err(sqlite)?;
    let all = tables::tables(&snapshot).map_err(sqlite)?;
    let chosen = chosen(wanted, form, &all)?;

    let failed = |source| ExchangeError::Write { path: wanted.out.clone(), source };
    let counts = super::write_complete(&wanted.out, failed, |part| write_all(&snapshot, wanted, form, &chosen, part))?;
    let left_out = all
        .iter()
        .filter(|table| !chosen.contains(table))
        .filter(|table| has_rows(&snapshot, &table.name))
        .map(|table| table.name.clone())
        .collect();
    Ok(Exported { tables: counts, left_out })
}

fn chosen<'t>(wanted: &Export, form: Form, all: &'t [Table]) -> Result<Vec<&'t Table>, ExchangeError> {
    let find = |name: &String| {
        all.iter().find(|table| table.name.eq_ignore_ascii_case(name)).ok_or_else(|| ExchangeError::NoTable {
            db: wanted.db.clone(),
            table: name.clone(),
            have: all.iter().map(|table| table.name.clone()).collect(),
        })
    };
    let names = match (form, wanted.tables.as_slice()) {
        (Form::Db, []) => return Ok(all.iter().collect()),
        (_, []) => &["collectives".to_owned()][..],
        (_, names) => names,
    };
    let mut chosen: Vec<&Table> = Vec::new();
    for table in names.iter().map(find) {
        let table = table?;
        if !chosen.contains(&table) {
            chosen.push(table);
        }
    }
    let form = match form {
        Form::Csv => "csv",
        Form::Parquet => "parquet",
        Form::Db => return Ok(chosen),
    };
    match chosen.len() {
        1 => Ok(chosen),
        n => Err(ExchangeError::OneTable { form, n }),
    }
}

fn write_all(
    snapshot: &Connection,
    wanted: &Export,
    form: Form,
    chosen: &[&Table],
    part: &Path,
) -> Result<Vec<(String, u64)>, ExchangeError> {
    let sqlite = |source| ExchangeError::Sqlite { path: wanted.db.clone(), source };
    let mut sink: Box<dyn Sink> = match form {
        Form::Db => Box::new(plain::PlainFile::create(part, snapshot, chosen, wanted)?),
        Form::Csv => Box::new(csv::CsvFile::create(part)?),
        Form::Parquet => Box::new(parquet::ParquetFile::create(part)?),
    };
    let mut counts = Vec::new();
    for table in chosen {
        sink.begin(table)?;
        let within = if table.is_kept_whole { (None, None) } else { (wanted.from_ns, wanted.until_ns) };
        let mut statement = snapshot.prepare(&table.select(within.0, within.1)).map_err(sqlite)?;
        let mut rows = statement.query([]).map_err(sqlite)?;
        let mut count = 0;
        while let Some(row) = rows.next().map_err(sqlite)? {
            let values: Vec<ValueRef<'_>> =
                (0..table.columns.len()).map(|column| row.get_ref(column)).collect::<Result<_, _>>().map_err(sqlite)?;
            sink.row(&values)?;
            count += 1;
        }
        counts.push((table.name.clone(), count));
    }
    sink.finish()?;
    Ok(counts)
}

fn has_rows(conn: &Connection, table: &str) -> bool {
    conn.query_row(&format!("SELECT EXISTS (SELECT 1 FROM {})", quoted(table)), [], |row| row.get(0)).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ::parquet::file::reader::{FileReader, SerializedFileReader};
    use ::parquet::record::RowAccessor;

    use super::*;
    use crate::testing::{PATIENCE, collective};
    use crate::{Store, StoreConfig};
    use record::{Collective, Record};

    /// A store as an agent would leave it, with collectives at 0, 1, … 9 seconds.
    fn recorded(dir: &Path) -> PathBuf {
        let path = dir.join("store.db");
        let forever = StoreConfig { max_age: Duration::MAX, ..StoreConfig::default() };
        let store = Store::open(&path, forever).unwrap();
        for second in 0..10_i64 {
            store.ingest().record(Record::Collective(Collective {
                ts_ns: second * 1_000_000_000,
                rank: (second % 2 == 0).then_some(second as i32),
                comm_hash: Some((i64::MIN + second).cast_unsigned()),
                ..collective(0)
            }));
        }
        store.flush(PATIENCE).unwrap();
        path
    }

    fn wanted(db: &Path, out: PathBuf) -> Export {
        Export { db: db.to_owned(), out, tables: Vec::new(), from_ns: None, until_ns: None }
    }

    fn all(path: &Path, sql: &str) -> Vec<Vec<rusqlite::types::Value>> {
        let conn = ServedDb::open(path, Vec::new()).unwrap().reader().unwrap();
        let mut statement = conn.prepare(sql).unwrap();
        let width = statement.column_count();
        let rows = statement.query_map([], |row| (0..width).map(|i| row.get(i)).collect()).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn a_store_becomes_a_store_that_answers_the_same_and_can_be_exported_again() {
        let dir = tempfile::tempdir().unwrap();
        let db = recorded(dir.path());
        let copy = dir.path().join("copy.db");
        export(&wanted(&db, copy.clone())).unwrap();
        let again = dir.path().join("again.db");
        export(&wanted(&copy, again.clone())).unwrap();
        for sql in [
            "SELECT * FROM collectives ORDER BY ts_ns",
            "SELECT * FROM ops ORDER BY 1, 2",
            "SELECT op, rank FROM nccl_events",
        ] {
            assert_eq!(all(&db, sql), all(&copy, sql));
            assert_eq!(all(&db, sql), all(&again, sql));
        }
        // Any SQLite reads it, without us.
        let bare = Connection::open(&copy).unwrap();
        assert_eq!(bare.query_row("SELECT count(*) FROM nccl_events", [], |row| row.get::<_, i64>(0)).unwrap(), 10);
        drop(bare);
        // An agent takes it up as its own.
        let forever = StoreConfig { max_age: Duration::MAX, ..StoreConfig::default() };
        drop(Store::open(&copy, forever).unwrap());
        assert_eq!(
            all(&db, "SELECT * FROM collectives ORDER BY ts_ns"),
            all(&copy, "SELECT * FROM collectives ORDER BY ts_ns")
        );
    }

    #[test]
    fn a_copy_of_a_span_says_which_and_was_recorded_no_longer() {
        const SECOND: i64 = 1_000_000_000;
        let dir = tempfile::tempdir().unwrap();
        let db = recorded(dir.path());
        let out = dir.path().join("tail.db");
        export(&Export { from_ns: Some(6 * SECOND), ..wanted(&db, out.clone()) }).unwrap();
        assert_eq!(all(&out, "SELECT count(*), min(ts_ns) FROM collectives")[0], [4.into(), 6_000_000_000_i64.into()]);
        let cut = all(&out, "SELECT cutoff_ns FROM retention WHERE table_name = 'collectives'");
        assert_eq!(cut, [[5_999_999_999_i64.into()]]);

        let out = dir.path().join("middle.db");
        let (from_ns, until_ns) = (Some(2 * SECOND), Some(5 * SECOND));
        export(&Export { from_ns, until_ns, ..wanted(&db, out.clone()) }).unwrap();
        let rows = all(&out, "SELECT count(*), min(ts_ns), max(ts_ns) FROM collectives");
        assert_eq!(rows, [[3.into(), (2 * SECOND).into(), (4 * SECOND).into()]]);
        let later = "SELECT count(*) FROM sessions WHERE start_ns >= 5000000000 OR max(alive_ns, stop_ns) > 5000000000";
        assert_eq!(all(&out, later), [[0.into()]]);
        let out = dir.path().join("middle.csv");
        let done = export(&Export { from_ns, until_ns, ..wanted(&db, out) }).unwrap();
        assert_eq!(done.tables, [("collectives".to_owned(), 3)]);
    }

    #[test]
    fn csv_and_parquet_hold_one_table_bit_for_bit() {
        let dir = tempfile::tempdir().unwrap();
        let db = recorded(dir.path());
        let csv = dir.path().join("x.csv");
        let done = export(&wanted(&db, csv.clone())).unwrap();
        assert_eq!(done.tables, [("collectives".to_owned(), 10)]);
        assert!(done.left_out.contains(&"ops".to_owned()) && !done.left_out.contains(&"offcpu".to_owned()), "{done:?}");
        let text = std::fs::read_to_string(&csv).unwrap();
        assert!(text.starts_with("ts_ns,duration_ns,pid,tid,rank,"), "{text}");
        assert_eq!(text.lines().count(), 11);
        assert!(text.contains(",-9223372036854775807,all_reduce,"), "{text}");

        let out = dir.path().join("x.parquet");
        export(&wanted(&db, out.clone())).unwrap();
        let reader = SerializedFileReader::new(std::fs::File::open(&out).unwrap()).unwrap();
        let names: Vec<String> =
            reader.metadata().file_metadata().schema().get_fields().iter().map(|f| f.name().to_owned()).collect();
        let comm = names.iter().position(|name| name == "comm_hash").unwrap();
        let rank = names.iter().position(|name| name == "rank").unwrap();
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 10);
        for (second, row) in rows.iter().enumerate() {
            assert_eq!(row.get_long(comm).unwrap(), i64::MIN + second as i64);
            assert_eq!(row.get_long(rank).is_ok(), second % 2 == 0, "NULL stays NULL");
        }
    }

    #[test]
    fn a_foreign_file_keeps_its_tables_and_a_value_that_does_not_fit_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("foreign.db");
        Connection::open(&db)
            .unwrap()
            .execute_batch(
                "CREATE TABLE events (timestamp INTEGER, what); CREATE INDEX i ON events (what);
                 CREATE VIEW v AS SELECT what FROM events;
                 INSERT INTO events VALUES (1, 'a'), (2, x'00ff'), (3, 1.5), (4, NULL);",
            )
            .unwrap();
        let before = std::fs::read(&db).unwrap();
        let out = dir.path().join("copy.db");
        export(&wanted(&db, out.clone())).unwrap();
        for sql in ["SELECT * FROM events", "SELECT * FROM v", "SELECT type, name FROM sqlite_schema"] {
            assert_eq!(all(&db, sql), all(&out, sql));
        }
        let parquet = Export { tables: vec!["events".into()], ..wanted(&db, dir.path().join("x.parquet")) };
        let error = export(&parquet).unwrap_err();
        assert!(matches!(error, ExchangeError::Value { .. }), "{error}");
        assert!(!parquet.out.exists() && !dir.path().join("x.parquet.part").exists());
        let error = export(&wanted(&db, dir.path().join("y.csv"))).unwrap_err();
        assert!(error.to_string().contains("no table collectives; it has events"), "{error}");
        assert_eq!(std::fs::read(&db).unwrap(), before, "the source stays as it is");
    }

    #[test]
    fn what_is_there_is_not_overwritten_and_an_unknown_form_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let db = recorded(dir.path());
        assert!(matches!(export(&wanted(&db, db.clone())), Err(ExchangeError::Exists(_))));
        assert!(matches!(export(&wanted(&db, dir.path().join("x.xlsx"))), Err(ExchangeError::Form(_))));
        let two = Export { tables: vec!["ops".into(), "sources".into()], ..wanted(&db, dir.path().join("x.csv")) };
        assert!(matches!(export(&two), Err(ExchangeError::OneTable { n: 2, .. })));
    }
}
