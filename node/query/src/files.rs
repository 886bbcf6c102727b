//! Trace stores, exports and other SQLite files as the nodes of one question, in this process: the
//! same planner, contract and coverage as over a mesh. A file that cannot be read is a missing
//! node.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use certs::NodeName;
use gossip::{Gossip, Member, MemberState, NodeFacts};
use query_planner::{NodeError, View};
use store::{Facts, ServedDb, Source};

use crate::coordinator::Coordinator;
use crate::exec::Executor;
use crate::way::{Files, Way};

/// Tasks that may run on one file at once: as many as a question has.
const CONCURRENT: usize = 4;
/// Names end in this where they are a trace store's.
const ENDING: &str = "db";

/// Why files cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A directory cannot be read.
    #[error("{path}: {reason}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// A directory has none.
    #[error("{path} is a directory, not a file, and holds no .db file")]
    Nothing {
        /// The directory.
        path: PathBuf,
    },
    /// Not one of the files can be read.
    #[error("none of the files can be read: {0}")]
    NoneReadable(String),
}

/// The files that `paths` mean: each file itself, of a directory every `*.db` in it, in order.
///
/// # Errors
/// A directory cannot be read, or has none.
pub fn expand(paths: &[PathBuf]) -> Result<Vec<PathBuf>, FilesError> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let failed = |reason| FilesError::Directory { path: path.clone(), reason };
        let entries: Vec<PathBuf> = std::fs::read_dir(path)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
            .map_err(failed)?;
        let is_store = |path: &PathBuf| path.is_file() && path.extension().is_some_and(|ending| ending == ENDING);
        let mut found: Vec<PathBuf> = entries.into_iter().filter(is_store).collect();
        if found.is_empty() {
            return Err(FilesError::Nothing { path: path.clone() });
        }
        found.sort();
        files.append(&mut found);
    }
    Ok(files)
}

/// A coordinator over `files`, each a node named after its file. To be called in a tokio runtime.
///
/// # Errors
/// None of them can be read.
pub fn coordinator(files: &[PathBuf], views: &'static [View]) -> Result<Coordinator, FilesError> {
    let mut taken = BTreeSet::new();
    let named: Vec<(NodeName, &PathBuf)> = files.iter().map(|path| (name_of(path, &mut taken), path)).collect();
    let opened = open_all(&named, |(name, path)| open(name, path));
    over(named.into_iter().map(|(name, _)| name).zip(opened).collect(), views)
}

/// A coordinator over nodes whose rows are not in files, or that cannot be read for a reason. To be
/// called in a tokio runtime.
///
/// # Errors
/// None of them can be read.
pub fn coordinator_of(
    sources: Vec<(NodeName, Result<Source, String>)>,
    views: &'static [View],
) -> Result<Coordinator, FilesError> {
    let sources: Vec<(NodeName, Result<Arc<Source>, String>)> =
        sources.into_iter().map(|(name, source)| (name, source.map(Arc::new))).collect();
    let opened = open_all(&sources, |(name, source)| match source {
        Ok(source) => facts_of(name, Arc::clone(source), &source.facts()),
        Err(why) => Err(why.clone()),
    });
    over(sources.into_iter().map(|(name, _)| name).zip(opened).collect(), views)
}

fn over(opened: Vec<(NodeName, Opened)>, views: &'static [View]) -> Result<Coordinator, FilesError> {
    let mut nodes = Files::default();
    let mut members = Vec::new();
    for (name, opened) in opened {
        let facts = match opened {
            Ok((executor, facts)) => {
                nodes.executors.insert(name.clone(), executor);
                facts
            }
            Err(why) => {
                nodes.unreadable.insert(name.clone(), why);
                NodeFacts::default()
            }
        };
        members.push(Member {
            name: name.to_string(),
            // Nobody dials it.
            address: (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
            generation: 1,
            state: MemberState::Live,
            facts: Arc::new(facts),
            is_self: false,
            double: None,
            seat: gossip::Seat::default(),
        });
    }
    if nodes.executors.is_empty() {
        let whys: Vec<&str> = nodes.unreadable.values().map(String::as_str).collect();
        return Err(FilesError::NoneReadable(whys.join("; ")));
    }
    members.sort_by(|a, b| a.name.cmp(&b.name));
    let (gossip, list) = Gossip::fixed();
    list.send_replace(Arc::new(members));
    Ok(Coordinator::new(Way::Files(Arc::new(nodes)), gossip, views))
}

/// The first and the last time in the files of a coordinator, Unix nanoseconds; none where they
/// have no rows.
#[must_use]
pub fn span_ns(coordinator: &Coordinator) -> Option<(i64, i64)> {
    let members = coordinator.gossip.members();
    let spans = members.iter().filter_map(|member| member.facts.store_span_ns);
    spans.reduce(|(first, last), (from, to)| (first.min(from), last.max(to)))
}

/// The result of opening a file: its executor and its facts, or why it cannot be read.
type Opened = Result<(Arc<Executor>, NodeFacts), String>;

/// Opens all files, as many at once as there are CPUs: the rows of each are counted, and a job has
/// many.
fn open_all<T: Sync>(files: &[T], open: impl Fn(&T) -> Opened + Sync) -> Vec<Opened> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut opened = Vec::new();
        while let Some((at, file)) = next_of(&next, files) {
            opened.push((at, open(file)));
        }
        opened
    };
    let mut all: Vec<(usize, Opened)> = std::thread::scope(|scope| {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from).min(files.len());
        let workers: Vec<_> = (1..cpus).map(|_| scope.spawn(work)).collect();
        let mut all = work();
        for worker in workers {
            match worker.join() {
                Ok(opened) => all.extend(opened),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, opened)| opened).collect()
}

fn next_of<'f, T>(next: &AtomicUsize, files: &'f [T]) -> Option<(usize, &'f T)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    files.get(at).map(|file| (at, file))
}

/// The executor of a file, and the file's facts.
fn open(name: &NodeName, path: &Path) -> Opened {
    let served = ServedDb::open_recorded(path).map_err(|error| error.to_string())?;
    let facts = served.facts();
    facts_of(name, Arc::new(Source::Served(served)), &facts).map_err(|why| format!("{}: {why}", path.display()))
}

/// The executor of a source, and the source's facts.
fn facts_of(name: &NodeName, source: Arc<Source>, facts: &Facts) -> Opened {
    let executor = Executor::new(name.to_string(), source, CONCURRENT);
    let catalog = executor.catalog().map_err(|error| match error {
        NodeError::Failed(why) => why,
        other => other.to_string(),
    })?;
    let rows = facts.tables.iter().fold(0, |rows: u64, table| rows.saturating_add(table.rows));
    let facts = NodeFacts {
        store_span_ns: facts.span(),
        store_rows: rows,
        schema_hash: catalog.hash(),
        ..NodeFacts::default()
    };
    Ok((Arc::new(executor), facts))
}

/// A node's name for a file: its own without the ending, with `-` for what no name may have, and a
/// number where another file has it.
pub fn name_of(path: &Path, taken: &mut BTreeSet<NodeName>) -> NodeName {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let mut base: String = stem.chars().map(|c| if fits(c) { c } else { '-' }).take(50).collect();
    if !base.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        base.insert(0, '_');
    }
    let mut number = 1_usize;
    loop {
        let name = if number == 1 { base.clone() } else { format!("{base}-{number}") };
        if let Some(name) = name.parse().ok().filter(|name: &NodeName| taken.insert(name.clone())) {
            return name;
        }
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use query_planner::Value;
    use rusqlite::Connection;
    use store::testing::store_of_segments;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::ask::{self, AskError, QueryOutcome, Question};

    fn question(sql: &str) -> Question {
        Question { sql: sql.to_owned(), timeout_ms: 60_000, ..Question::default() }
    }

    async fn answer(coordinator: &Coordinator, question: Question) -> (Vec<Vec<Value>>, model::Coverage) {
        match ask::ask(coordinator, question, CancellationToken::new()).await.expect("an answer") {
            QueryOutcome::Answer { answer, coverage, .. } => (answer.rows, coverage),
            other @ QueryOutcome::Plan(_) => panic!("{other:?}"),
        }
    }

    fn integers(row: &[Value]) -> Vec<i64> {
        let integer = |value: &Value| if let Value::Integer(value) = value { *value } else { panic!("{value:?}") };
        row.iter().map(integer).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn full_stores_answer_as_one_and_a_damaged_one_is_missing() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["n1", "n2"] {
            store_of_segments(&dir.path().join(format!("{name}.db")), 300, 16).close();
        }
        std::fs::write(dir.path().join("n3.db"), b"no database").expect("written");
        std::fs::write(dir.path().join("notes.txt"), b"not asked").expect("written");
        let files = expand(&[dir.path().to_path_buf()]).expect("three files");
        let coordinator = coordinator(&files, &[]).expect("two can be read");

        let by_node = question("SELECT count(*), count(DISTINCT node) FROM collectives");
        let (rows, coverage) = answer(&coordinator, by_node).await;
        assert_eq!(integers(&rows[0]), [2 * 300 * 16, 2]);
        assert_eq!((coverage.asked, coverage.answered), (3, 2));
        assert_eq!(coverage.missing[0].node, "n3");
        assert!(coverage.missing[0].reason.contains("not an SQLite database"), "{:?}", coverage.missing);

        // Two rounds, from one snapshot each.
        let joined =
            question("SELECT count(*) FROM collectives a JOIN collectives b ON a.seq = b.seq AND a.rank = b.rank");
        let (rows, _) = answer(&coordinator, joined).await;
        assert_eq!(integers(&rows[0]), [4 * 300 * 16]);

        let grouped = Question { analyze: true, ..question("SELECT rank, count(*) FROM collectives GROUP BY rank") };
        let asked = ask::ask(&coordinator, grouped, CancellationToken::new()).await.expect("an answer");
        let QueryOutcome::Answer { explained, .. } = asked else { panic!("{asked:?}") };
        let otherwise = "shipped: 16 rows; had nodes made nothing of the rows that their conditions admit: 9600\n";
        assert!(explained.contains(otherwise), "{explained}");

        let of_one = Question { nodes: vec!["n2".to_owned()], ..question("SELECT DISTINCT node FROM collectives") };
        let (rows, coverage) = answer(&coordinator, of_one).await;
        assert_eq!(rows, [[Value::Text("n2".into())]]);
        assert!(coverage.is_complete());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn foreign_files_of_one_name_get_different_names_and_stay_as_they_are() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut files = Vec::new();
        for (folder, ms) in [("a", 4), ("b", 9)] {
            std::fs::create_dir(dir.path().join(folder)).expect("made");
            let path = dir.path().join(folder).join("steps of a job.db");
            let conn = Connection::open(&path).expect("a file");
            conn.execute_batch(&format!("CREATE TABLE steps (ms INTEGER); INSERT INTO steps VALUES ({ms})"))
                .expect("made");
            files.push(path);
        }
        let before: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).expect("there")).collect();
        let coordinator = coordinator(&files, &[]).expect("both can be read");
        let (rows, _) = answer(&coordinator, question("SELECT node, ms FROM steps ORDER BY ms")).await;
        let text = |text: &str| Value::Text(text.into());
        assert_eq!(rows, [[text("steps-of-a-job"), Value::Integer(4)], [text("steps-of-a-job-2"), Value::Integer(9)]]);
        let after: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).expect("there")).collect();
        assert_eq!(before, after);
        let late = Question {
            timeout_ms: 200,
            ..question("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n, steps")
        };
        let failed = ask::ask(&coordinator, late, CancellationToken::new()).await.expect_err("it has no end");
        assert!(matches!(failed, AskError::Failed { .. }), "{failed}");
    }

    #[tokio::test]
    async fn a_small_question_in_two_rounds_wakes_no_thread() {
        let dir = tempfile::tempdir().expect("a directory");
        let numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999)";
        for name in ["n1", "n2"] {
            let path = dir.path().join(format!("{name}.db"));
            let conn = Connection::open(&path).expect("a file");
            conn.execute_batch(&format!(
                "CREATE TABLE a (k INTEGER, x INTEGER); {numbers} INSERT INTO a SELECT i, i FROM n;
                 CREATE TABLE b (k INTEGER PRIMARY KEY, t INTEGER); {numbers} INSERT INTO b SELECT i, i * 2 FROM n;"
            ))
            .expect("made");
            drop(conn);
            // Connections to a file at rest are kept.
            let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3_600);
            let file = std::fs::File::options().write(true).open(&path);
            file.and_then(|file| file.set_modified(hour_ago)).expect("times");
        }
        let files = expand(&[dir.path().to_path_buf()]).expect("two files");
        let coordinator = coordinator(&files, &[]).expect("both can be read");
        let threads = || crate::low_priority::STARTED.get();
        answer(&coordinator, question("SELECT count(*) FROM a")).await;
        // Each key is on both nodes, in both tables.
        for (most_x, starts_threads) in [(3, false), (40, false), (1_000, true)] {
            let sql = format!("SELECT sum(b.t), count(*) FROM a JOIN b ON b.k = a.k WHERE a.x < {most_x}");
            for _ in 0..2 {
                let before = threads();
                let (rows, coverage) = answer(&coordinator, question(&sql)).await;
                let known = [[4 * most_x * (most_x - 1), 4 * most_x]];
                assert_eq!(rows.iter().map(|row| integers(row)).collect::<Vec<_>>(), known);
                assert!(coverage.is_complete());
                assert_eq!(threads() > before, starts_threads, "{sql}");
            }
        }
        let kept = |name: &str| {
            coordinator.way.executor_of(&name.parse().expect("a name")).expect("it is here").kept_snapshots()
        };
        assert_eq!((kept("n1"), kept("n2")), (0, 0));
    }

    #[tokio::test]
    async fn where_nothing_can_be_read_the_files_are_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let nothing = expand(&[dir.path().to_path_buf()]).expect_err("it is empty").to_string();
        assert!(nothing.ends_with("and holds no .db file"), "{nothing}");
        let missing = coordinator(&[dir.path().join("gone.db")], &[]).err().expect("it is not there").to_string();
        assert!(missing.contains("gone.db"), "{missing}");
    }
}
