//! `rankmesh shell` as people use it: on a real terminal (`script` makes one) and with statements
//! from standard input; and `rankmesh schema`.

mod common;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::terminal::Terminal;
use common::{rankmesh, run, stderr, stdout, wait_for};
use rusqlite::Connection;

/// Two databases of a job that has ended, and a file that is none.
fn stores(dir: &Path) -> PathBuf {
    let stores = dir.join("job");
    std::fs::create_dir(&stores).expect("a directory");
    for (node, ms) in [("gpu1", 4), ("gpu2", 9)] {
        let conn = Connection::open(stores.join(format!("{node}.db"))).expect("a file");
        conn.execute_batch(&format!(
            "CREATE TABLE steps (rank INTEGER, ms INTEGER); INSERT INTO steps VALUES (0, {ms})"
        ))
        .expect("made");
    }
    stores
}

/// A shell on a terminal of its own.
fn shell(dir: &Path, arguments: &str) -> Terminal {
    let mut script = Command::new("script");
    script.env("XDG_STATE_HOME", dir);
    Terminal::open(script, &format!("{} {arguments}", env!("CARGO_BIN_EXE_rankmesh")))
}

/// Whether a process or a descendant of it has a thread for a question.
fn asks(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return false };
    threads.flatten().any(|thread| {
        let read = |file| std::fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        read("comm").trim() == "question"
            || read("children").split_whitespace().any(|child| child.parse().is_ok_and(asks))
    })
}

#[test]
fn on_a_terminal_questions_are_typed_completed_stopped_and_remembered() {
    let dir = tempfile::tempdir().expect("a directory");
    let stores = stores(dir.path());
    std::fs::write(stores.join("gpu3.db"), b"no database").expect("written");
    // Without a question `query` is the same.
    let mut terminal = shell(dir.path(), &format!("query --timeout 60s --db {}", stores.display()));
    terminal.see("rankmesh> ");
    // Over two lines; the table's name is completed.
    terminal.press("SELECT sum(ms) AS total\n");
    terminal.see("...> ");
    terminal.press("FROM ste\t;\n");
    terminal.see("total");
    terminal.see("13");
    terminal.see("PARTIAL: 2 of 3 nodes answered, 1 row in");
    terminal.see("missing gpu3: failed: ");
    terminal.see("rankmesh> ");
    terminal.press(".schema steps\n");
    terminal.see("ms");
    terminal.see("INTEGER");
    terminal.see("rankmesh> ");
    // Ctrl-C drops a line that is being typed, and stops a question that has no end.
    terminal.press("SELECT nonsense\n");
    terminal.see("...> ");
    terminal.press("\x03");
    terminal.see("rankmesh> ");
    terminal.press("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n, steps;\n");
    wait_for("a question is asked", || asks(terminal.id()).then_some(()).ok_or_else(|| terminal.shown()));
    terminal.press("\x03");
    terminal.see("stopped");
    terminal.see("rankmesh> ");
    terminal.press(".mode line\nSELECT 6 * 7 AS answer;\n");
    terminal.see("answer = 42");
    terminal.press("SELECT 1 FROM nowhere;\n");
    terminal.see("no such table: nowhere");
    terminal.press(".quit\n");
    assert_eq!(terminal.ends(), Some(0));

    let history = dir.path().join("rankmesh/history");
    let mode = std::fs::metadata(&history).expect("a history").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert!(std::fs::read_to_string(&history).expect("text").contains("SELECT 6 * 7 AS answer;"));
    let mut again = shell(dir.path(), &format!("shell --db {}", stores.display()));
    again.see("rankmesh> ");
    // Up: .quit, then the question before.
    again.press("\x1b[A\x1b[A\x1b[A\n");
    again.see("answer");
    again.see("42");
    again.press("\x04");
    assert_eq!(again.ends(), Some(0));
}

#[test]
fn long_answers_go_to_the_pager_and_notes_stand_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let stores = dir.path().join("job");
    std::fs::create_dir(&stores).expect("a directory");
    common::job_stores::EndedJob { steps: 40, ..common::job_stores::EndedJob::small() }.write(&stores);
    let mut script = Command::new("script");
    script.env("XDG_STATE_HOME", dir.path()).env("PAGER", "sed s/^/paged:/");
    let shell = format!("{} shell --db {}", env!("CARGO_BIN_EXE_rankmesh"), stores.display());
    let mut terminal = Terminal::open(script, &format!("sh -c 'stty rows 24 cols 80; exec {shell}'"));
    terminal.see("rankmesh> ");
    terminal.press("SELECT 6 * 7 AS answer;\n");
    terminal.see("42");
    terminal.press("SELECT ts_ns FROM collectives LIMIT 30;\n");
    terminal.see("paged:");
    terminal.see("answered, 30 rows in");
    terminal.press("\\d collectives\n");
    terminal.see("paged:");
    terminal.see("duration_ns");
    terminal.see("rankmesh> ");
    terminal.press("\\pset pager off\nSELECT 'plain' || rank FROM collectives LIMIT 30;\n");
    terminal.see("answered, 30 rows in");
    // Rows that are wider than the terminal are a line a value, unless a table is asked for; others
    // where that is asked for.
    let of = |terminal: &mut Terminal, typed: &str, last: &str| {
        terminal.see("rankmesh> ");
        let before = terminal.shown().len();
        terminal.press(typed);
        terminal.see(last);
        terminal.shown()[before..].to_owned()
    };
    let wide = "SELECT ts_ns, func, 'a value' AS words, * FROM collectives LIMIT 2;\n";
    let answered = "answered, 2 rows in";
    let shown_wide = of(&mut terminal, wide, answered);
    assert_eq!(shown_wide.matches("words = a value").count(), 2, "{shown_wide}");
    let table = of(&mut terminal, &format!("\\x off\n{wide}"), answered);
    assert!(table.contains("a value") && !table.contains("words = a value"), "{table}");
    let narrow = "SELECT 7 AS narrow FROM collectives LIMIT 2;\n";
    let as_table = of(&mut terminal, &format!("\\x auto\n{narrow}"), answered);
    assert!(!as_table.contains("narrow = 7"), "{as_table}");
    let lines = of(&mut terminal, &format!("\\x\n{narrow}"), answered);
    assert_eq!(lines.matches("narrow = 7").count(), 2, "{lines}");
    assert!(!lines.contains("Run time"), "{lines}");
    of(&mut terminal, &format!("\\timing\n{narrow}"), "Run time: ");
    let shown = terminal.shown();
    terminal.press("\\q\n");
    assert_eq!(terminal.ends(), Some(0));
    // A note stands once in a session.
    let other = Connection::open(stores.join("other.db")).expect("a file");
    other.execute_batch("CREATE TABLE other (x INTEGER)").expect("made");
    let noted = piped(
        &["--db", &stores.display().to_string()],
        "SELECT min(rank) FROM collectives;\nSELECT max(rank) FROM collectives;\n",
    );
    let said = stderr(&noted);
    assert_eq!(
        (said.matches("3 of 3 nodes answered").count(), said.matches("has no table collectives").count()),
        (2, 1),
        "{said}"
    );
    assert!(shown.contains("plain") && !shown.contains("paged:plain") && !shown.contains("paged:42"), "{shown}");
}

/// Statements on standard input.
fn piped(arguments: &[&str], statements: &str) -> std::process::Output {
    let mut child = rankmesh()
        .arg("shell")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    child.stdin.take().expect("its input").write_all(statements.as_bytes()).expect("it reads");
    child.wait_with_output().expect("ends")
}

#[test]
fn statements_from_standard_input_are_answered_in_order_and_the_worst_outcome_counts() {
    let dir = tempfile::tempdir().expect("a directory");
    let stores = stores(dir.path());
    let path = stores.display().to_string();
    let once = dir.path().join("out.csv");
    let all = piped(
        &["--db", &path, "--format", "csv"],
        &format!(
            "-- what the job did\nSELECT node, ms FROM steps\n ORDER BY ms; SELECT ';' AS text;\n.once {}\nSELECT ms FROM steps \
             WHERE node = 'gpu2';\n.mode json\nSELECT 1 AS last",
            once.display()
        ),
    );
    assert_eq!(all.status.code(), Some(0), "{}", stderr(&all));
    let printed = stdout(&all);
    assert!(printed.starts_with("node,ms\ngpu1,4\ngpu2,9\ntext\n;\n{\"columns\""), "{printed}");
    assert_eq!(std::fs::read_to_string(&once).expect("written"), "ms\n9\n");
    assert_eq!(stderr(&all).matches("2 of 2 nodes answered").count(), 1, "{}", stderr(&all));

    let wrong = piped(&["--db", &path], "SELECT nothing;\nSELECT 2 AS two;\n");
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr(&wrong));
    assert!(stdout(&wrong).contains("two"), "{}", stdout(&wrong));
    let bail = piped(&["--db", &path, "--bail"], "SELECT nothing;\nSELECT 2 AS two;\n");
    assert_eq!((bail.status.code(), stdout(&bail)), (Some(2), String::new()));
    assert_eq!(piped(&["--db", &path], "SELECT 'open").status.code(), Some(2));
    assert_eq!(piped(&["--db", &path], ".nosuch\n").status.code(), Some(2));
    let quit = piped(&["--db", &path], ".quit\nSELECT nothing;\n");
    assert_eq!(quit.status.code(), Some(0), "{}", stderr(&quit));

    std::fs::write(stores.join("gpu3.db"), b"no database").expect("written");
    let partial = piped(&["--db", &path], "SELECT count(*) FROM steps;\n");
    assert_eq!(partial.status.code(), Some(3), "{}", stderr(&partial));
    let plan = piped(&["--db", &path], ".explain SELECT sum(ms) FROM steps\n.tables\n");
    assert!(stdout(&plan).contains("fragment 0") && stdout(&plan).ends_with("\nsteps\n"), "{}", stdout(&plan));
}

#[test]
fn the_schema_says_what_columns_hold() {
    let list = run(&["schema"]);
    assert!(stdout(&list).contains("collectives"), "{}", stdout(&list));
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&run(&["schema", "clock_offsets", "--format", "json"]))).expect("JSON");
    assert_eq!(json[0]["columns"][0]["name"], "ts_ns");
    assert_eq!(json[0]["columns"][0]["type"], "INTEGER");
    let unknown = run(&["schema", "nothing"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", stderr(&unknown));
}
