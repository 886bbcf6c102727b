//! One question over several SQLite files, as if their rows lay in one database:
//!
//! ```text
//! cargo run -p query-planner --example question_over_files -- "SELECT rank, avg(ms) FROM steps GROUP BY rank" a.db b.db
//! ```
//!
//! Each file is a node. The planner says what every node has to do, [`Files`] has the nodes do it,
//! and the merge makes one answer of what comes back. Without arguments it makes two small files
//! and asks them.

use std::borrow::Cow;
use std::error::Error;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use query_planner::{
    AskOptions, Budget, Catalog, Fanout, NodeStats, NodeTask, RunError, Sink, Stop, Targets, execute_task, explain,
    harden, plan, run,
};
use rusqlite::{Connection, OpenFlags};

/// The nodes: a name and an open file each.
struct Files(Vec<(String, Connection)>);

impl Fanout for Files {
    fn ask(&mut self, task: &NodeTask, _: &Targets, sink: Sink<'_>) -> Result<Vec<(String, NodeStats)>, RunError> {
        let mut answered = Vec::new();
        for (name, conn) in &self.0 {
            let mut batches = Vec::new();
            let stats = execute_task(conn, name, task, &mut |fragment, batch| {
                batches.push((fragment, batch));
                Ok(())
            });
            // A file that cannot answer ends the question here; a mesh would name it as missing.
            let stats = stats.map_err(|error| RunError::Internal(format!("{name}: {error}")))?;
            for (fragment, batch) in batches {
                sink(name, fragment, Cow::Owned(batch))?;
            }
            answered.push((name.clone(), stats));
        }
        Ok(answered)
    }
}

/// The answer as lines of text, fields separated by tabs.
fn ask(sql: &str, paths: &[String]) -> Result<Vec<String>, Box<dyn Error>> {
    let mut files = Vec::new();
    let mut catalogs = Vec::new();
    for path in paths {
        let mut conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        catalogs.push((path.clone(), Catalog::of(&conn, &[])?));
        harden(&mut conn)?;
        files.push((path.clone(), conn));
    }
    let catalog = Catalog::union(&catalogs).map_err(|conflicts| format!("{conflicts:?}"))?;
    let plan = plan(sql, &catalog, &AskOptions::default()).map_err(|error| error.render(sql))?;
    println!("{}", explain(&plan));

    let now_unix_ns = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?;
    let answer = run(&plan, &mut Files(files), &Budget::default(), now_unix_ns, &Stop::default())?;
    let names = answer.columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>().join("\t");
    let rows =
        answer.rows.iter().map(|row| row.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>().join("\t"));
    Ok(std::iter::once(names).chain(rows).collect())
}

/// Two files with two ranks' steps each.
fn sample(dir: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let mut paths = Vec::new();
    for (file, ranks) in [("a.db", [0, 1]), ("b.db", [2, 3])] {
        let path = dir.join(file);
        let conn = Connection::open(&path)?;
        conn.execute_batch("CREATE TABLE steps (rank INTEGER, ms REAL)")?;
        for rank in ranks {
            let ms = if rank == 2 { 9.0 } else { 4.0 };
            conn.execute("INSERT INTO steps VALUES (?1, ?2), (?1, ?2 + 1)", (rank, ms))?;
        }
        paths.push(path.display().to_string());
    }
    Ok(paths)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let lines = match (arguments.next(), arguments.collect::<Vec<_>>()) {
        (Some(sql), paths) if !paths.is_empty() => ask(&sql, &paths)?,
        (None, _) => {
            let dir = tempfile::tempdir()?;
            ask("SELECT rank, avg(ms) AS ms FROM steps GROUP BY rank ORDER BY ms DESC", &sample(dir.path())?)?
        }
        _ => return Err("usage: question_over_files [SQL FILE…]".into()),
    };
    lines.iter().for_each(|line| println!("{line}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_answer_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let lines = ask(
            "SELECT rank, avg(ms) FROM steps GROUP BY rank ORDER BY 2 DESC, 1 LIMIT 2",
            &sample(dir.path()).unwrap(),
        );
        assert_eq!(lines.unwrap(), ["rank\tavg(ms)", "Integer(2)\tReal(9.5)", "Integer(0)\tReal(4.5)"]);
    }
}
