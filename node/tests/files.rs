//! Files that are not a complete store of this version: every command prints one clear sentence
//! about them, ends with the same code, and loses nothing; the agent's own store is set aside where
//! it cannot be used, and never overwritten.

mod common;

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Lab, PATIENCE, rankmesh, stderr, stdout, wait_for};
use rusqlite::Connection;
use store::{Store, StoreConfig};

/// Rows of the good store, and one more that lies in the log of those which have one.
const ROWS: i64 = 3000;
const COUNT: &str = "SELECT count(*) FROM self_stats WHERE name = 'test'";
/// Another user, where root runs the test.
const NOBODY: u32 = 65_534;

/// What an agent does with such a file as its store.
enum Up {
    /// It does not start, and prints this.
    Refuses(&'static str),
    /// It starts and prints this; then its store has so many of the rows.
    Begins(&'static str, i64),
}

struct Case {
    name: &'static str,
    /// Makes the file at the second path from the good store at the first.
    make: fn(&Path, &Path),
    /// Exit code of a read, and a part of its message.
    read: (i32, &'static str),
    up: Up,
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("written");
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("read")
}

/// The good store with a row more in its log; with or without the log's index.
fn with_log(good: &Path, path: &Path, index: bool) {
    let busy = with_suffix(path, ".busy");
    std::fs::copy(good, &busy).expect("a copy");
    let conn = Connection::open(&busy).expect("opens");
    let row = "INSERT INTO self_stats VALUES (unixepoch() * 1000000000, 'test', 1, 'rows')";
    conn.execute_batch(&format!("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; {row}")).expect("a row");
    for suffix in ["", "-wal", "-shm"].into_iter().filter(|suffix| index || *suffix != "-shm") {
        std::fs::copy(with_suffix(&busy, suffix), with_suffix(path, suffix)).expect("a copy");
    }
    drop(conn);
    std::fs::remove_file(busy).expect("removed");
}

const DAMAGED: (i32, &str) = (1, "is damaged (");
const ASIDE: Up = Up::Begins("it lies whole in", 0);

const CASES: &[Case] = &[
    Case { name: "whole", make: |good, path| write(path, &read(good)), read: (0, ""), up: Up::Begins("", ROWS) },
    Case { name: "missing", make: |_, _| (), read: (1, "does not exist: check the path"), up: Up::Begins("", 0) },
    Case {
        name: "ends in the middle",
        make: |good, path| write(path, &read(good)[..read(good).len() / 2 + 777]),
        read: DAMAGED,
        up: ASIDE,
    },
    Case {
        name: "ends after its header",
        make: |good, path| write(path, &read(good)[..100]),
        read: DAMAGED,
        up: ASIDE,
    },
    Case {
        name: "ends in its header",
        make: |good, path| write(path, &read(good)[..50]),
        read: (1, "is not an SQLite database"),
        up: Up::Refuses("is not an SQLite database"),
    },
    Case {
        name: "begins with rubbish",
        make: |good, path| write(path, &[&[0x5a; 100], &read(good)[100..]].concat()),
        read: (1, "is not an SQLite database"),
        up: Up::Refuses("is not an SQLite database"),
    },
    Case {
        name: "bad header",
        // Offset 16: the size of a page, which must be a power of two.
        make: |good, path| write(path, &[&read(good)[..16], &[0, 3], &read(good)[18..]].concat()),
        read: (1, "its header makes no sense"),
        up: ASIDE,
    },
    Case {
        name: "empty",
        make: |_, path| write(path, b""),
        read: (1, "is empty: it holds no database"),
        up: Up::Begins("", 0),
    },
    Case {
        name: "newer",
        make: |good, path| {
            std::fs::copy(good, path).expect("a copy");
            let conn = Connection::open(path).expect("opens");
            conn.execute_batch("PRAGMA user_version = 99; PRAGMA journal_mode = DELETE").expect("newer");
        },
        read: (1, "has schema version 99, this rankmesh knows versions up to "),
        up: Up::Refuses("has schema version 99, this rankmesh knows versions up to "),
    },
    Case {
        name: "no trace store",
        make: |_, path| {
            let conn = Connection::open(path).expect("opens");
            conn.execute_batch("CREATE TABLE self_stats (name TEXT); INSERT INTO self_stats VALUES ('test')")
                .expect("made");
        },
        read: (0, ""),
        up: Up::Refuses("is a database, but not a rankmesh store: to serve it as it is, give it to --serve-db"),
    },
    Case {
        name: "directory",
        make: |_, path| std::fs::create_dir(path).expect("made"),
        read: (1, "is a directory, not a file"),
        up: Up::Refuses("is a directory, not a file"),
    },
    Case {
        name: "pipe",
        make: |_, path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("made"),
        read: (1, "is a pipe, not a file"),
        up: Up::Refuses("is a pipe, not a file"),
    },
    Case {
        name: "link to nothing",
        make: |_, path| std::os::unix::fs::symlink("nowhere.db", path).expect("made"),
        read: (1, "does not exist: check the path"),
        up: Up::Refuses("it is a link to a file that does not exist"),
    },
    Case {
        name: "link to itself",
        make: |_, path| std::os::unix::fs::symlink(path, path).expect("made"),
        read: (1, "symbolic links"),
        up: Up::Refuses("symbolic links"),
    },
    Case {
        name: "log without its index",
        make: |good, path| with_log(good, path, false),
        read: (1, "was not closed cleanly (a -wal file without its -shm lies beside it)"),
        up: Up::Begins("", ROWS + 1),
    },
    Case { name: "log", make: |good, path| with_log(good, path, true), read: (0, ""), up: Up::Begins("", ROWS + 1) },
    Case {
        name: "rubbish for a log",
        make: |good, path| {
            with_log(good, path, false);
            write(&with_suffix(path, "-wal"), &[0x5a; 9000]);
        },
        read: (1, "was not closed cleanly (a -wal file without its -shm lies beside it)"),
        up: Up::Begins("was no write-ahead log", ROWS),
    },
];

/// A closed store with rows.
fn good(dir: &Path) -> PathBuf {
    let path = dir.join("good.db");
    Store::open(&path, StoreConfig::default()).expect("a store").close();
    let conn = Connection::open(&path).expect("opens");
    conn.execute(
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < ?1)
         INSERT INTO self_stats SELECT unixepoch() * 1000000000 + n, 'test', n, 'rows' FROM r",
        [ROWS],
    )
    .expect("rows");
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("in the file");
    path
}

/// Every regular file of a directory with its bytes, without the files that SQLite and the lock
/// leave next to a store.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let files = paths.filter(|path| path.symlink_metadata().expect("there").is_file());
    let kept = files.filter(|path| !["-shm", ".lock"].iter().any(|end| path.display().to_string().ends_with(end)));
    kept.map(|path| (path.clone(), read(&path))).collect()
}

/// Runs a command to its end; one that waits for ever has failed.
fn ends(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    let until = Instant::now() + PATIENCE;
    while child.try_wait().expect("waits").is_none() {
        if Instant::now() >= until {
            let _ = child.kill();
            panic!("it does not end: {command:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("its output")
}

fn with(arguments: &[&str]) -> Command {
    let mut command = rankmesh();
    command.args(arguments);
    command
}

/// `rankmesh up` with a store or a served file.
fn up(lab: &Lab, dir: &Path, flag: &str, file: &Path) -> Command {
    let mut command = with(&["up", "--name", "x", "--listen", "127.0.0.1:0", "--capture", "off", "--identity"]);
    command.arg(lab.issue("x")).arg("--socket").arg(dir.join("socket")).arg(flag).arg(file);
    command
}

/// Asserts one sentence on standard error, besides the usual lines of an agent's start.
fn fails_with(output: &Output, (code, sentence): (i32, &str), what: &str) {
    let printed = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{what}: {printed}{}", stdout(output));
    if code != 0 {
        assert_eq!(printed.lines().filter(|line| !line.contains(" INFO ")).count(), 1, "{what}: {printed}");
        assert!(printed.contains(sentence), "{what}: {printed}");
    }
}

#[test]
fn whoever_reads_a_file_says_what_is_wrong_with_it_and_changes_nothing() {
    let mut lab = Lab::new();
    let good = good(lab.dir.path());
    for case in CASES {
        let dir = lab.path(&case.name.replace(' ', "-"));
        std::fs::create_dir(&dir).expect("a directory");
        let file = dir.join("trace.db");
        (case.make)(&good, &file);
        let (path, out) = (file.display().to_string(), dir.join("out.db").display().to_string());
        let before = contents(&dir);
        for command in [
            vec!["query", "--db", &path, COUNT],
            vec!["query", "--explain", "--db", &path, COUNT],
            vec!["check", "--db", &path],
            vec!["export", "--db", &path, "--out", &out],
        ] {
            let what = format!("{}: {command:?}", case.name);
            fails_with(&ends(with(&command)), case.read, &what);
            if case.read.0 == 0 {
                let _ = std::fs::remove_file(&out);
            }
            assert_eq!(contents(&dir), before, "{what}");
        }
        // No store is a trace that could be imported.
        let what = format!("{}: import", case.name);
        let imported = ends(with(&["import", &path, "--out", &out]));
        match case.read.0 {
            0 => assert!(matches!(imported.status.code(), Some(1 | 2)), "{what}: {}", stderr(&imported)),
            _ => fails_with(&imported, case.read, &what),
        }
        assert_eq!(contents(&dir), before, "{what}");
        if case.read.0 != 0 {
            let what = format!("{}: --serve-db", case.name);
            fails_with(&ends(up(&lab, &dir, "--serve-db", &file)), case.read, &what);
            assert_eq!(contents(&dir), before, "{what}");
        } else {
            let name = format!("x-{}", case.name.replace(' ', "-"));
            lab.start(&name, &["--serve-db", &path]);
            wait_for("the agent is up", || lab.nodes(&name));
            assert_eq!(lab.query(&name, "SELECT count(*) > 0 FROM self_stats", &["--nodes", &name]).0["rows"][0][0], 1);
            lab.terminate(&name);
            assert_eq!(contents(&dir), before, "{name}");
        }
    }
}

#[test]
fn an_agent_starts_with_such_a_store_or_says_why_not_and_nothing_is_lost() {
    let lab = Lab::new();
    let good = good(lab.dir.path());
    for case in CASES {
        let dir = lab.path(&case.name.replace(' ', "-"));
        std::fs::create_dir(&dir).expect("a directory");
        let file = dir.join("trace.db");
        (case.make)(&good, &file);
        let before = contents(&dir);
        let mut command = up(&lab, &dir, "--store", &file);
        let (sentence, rows) = match case.up {
            Up::Refuses(sentence) => {
                fails_with(&ends(command), (1, sentence), case.name);
                assert_eq!(contents(&dir), before, "{}", case.name);
                continue;
            }
            Up::Begins(sentence, rows) => (sentence, rows),
        };
        let log = dir.join("log");
        let mut agent = command.stderr(std::fs::File::create(&log).expect("a log")).spawn().expect("starts");
        let socket = dir.join("socket").display().to_string();
        let answer = wait_for(case.name, || {
            let asked = common::run(&["query", "--format", "json", "--socket", &socket, COUNT]);
            let ended = agent.try_wait().expect("waits");
            assert!(ended.is_none(), "{}: {}", case.name, String::from_utf8_lossy(&read(&log)));
            serde_json::from_slice::<serde_json::Value>(&asked.stdout).map_err(|error| error.to_string())
        });
        assert_eq!(answer["rows"][0][0], rows, "{}: {answer}", case.name);
        let pid = nix::unistd::Pid::from_raw(agent.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("kill");
        assert_eq!(agent.wait().expect("waits").code(), Some(0), "{}", case.name);
        let printed = String::from_utf8_lossy(&read(&log)).into_owned();
        let errors: Vec<&str> = printed.lines().filter(|line| line.contains("ERROR")).collect();
        match sentence {
            "" => assert!(errors.is_empty(), "{}: {printed}", case.name),
            _ => assert!(errors.len() == 1 && errors[0].contains(sentence), "{}: {printed}", case.name),
        }
        // What was not taken in lies there, not a byte of it changed.
        let after: Vec<Vec<u8>> = contents(&dir).into_values().collect();
        if rows == 0 && case.name != "empty" {
            assert!(before.values().all(|bytes| after.contains(bytes)), "{}", case.name);
        }
        if case.name == "rubbish for a log" {
            assert!(after.contains(&vec![0x5a; 9000]), "the log is kept");
        }
    }
}

#[test]
fn a_file_that_may_not_be_read_is_left_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let lab = Lab::new();
    let dir = lab.path("secret");
    std::fs::create_dir(&dir).expect("a directory");
    let file = dir.join("trace.db");
    std::fs::rename(good(lab.dir.path()), &file).expect("moved");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).expect("closed");
    let path = file.display().to_string();
    let identity = lab.issue("x");
    let root = nix::unistd::geteuid().is_root();
    if root {
        let given = Command::new("chown").args(["-R", &NOBODY.to_string()]).args([&dir, &identity]).status();
        assert!(given.expect("runs").success());
        let opened = std::fs::set_permissions(lab.dir.path(), std::fs::Permissions::from_mode(0o755));
        opened.expect("others may pass");
    }
    let as_other = |mut command: Command| {
        if root {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    };
    // Where the tests' own binary lies in a directory that others may not enter.
    if as_other(with(&["--version"])).output().is_ok_and(|output| output.status.success()) {
        let denied = (1, "Permission denied");
        for command in [["query", "--db", &path, COUNT].as_slice(), &["check", "--db", &path]] {
            fails_with(&ends(as_other(with(command))), denied, &format!("{command:?}"));
        }
        for flag in ["--store", "--serve-db"] {
            fails_with(&ends(as_other(up(&lab, &dir, flag, &file))), denied, flag);
        }
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("opened");
        let count: i64 = Connection::open(&file).expect("opens").query_row(COUNT, [], |row| row.get(0)).expect("rows");
        assert_eq!(count, ROWS);
    } else {
        eprintln!("skipped: a_file_that_may_not_be_read_is_left_alone: another user cannot run {:?}", rankmesh());
    }
}

#[test]
fn files_are_asked_as_nodes_and_one_that_cannot_be_read_is_missing() {
    let lab = Lab::new();
    let dir = lab.path("job");
    std::fs::create_dir(&dir).expect("a directory");
    let good = good(lab.dir.path());
    for node in ["gpu1", "gpu2"] {
        std::fs::copy(&good, dir.join(format!("{node}.db"))).expect("a copy");
    }
    let path = dir.display().to_string();
    let sql = "SELECT node, count(*) FROM self_stats WHERE name = 'test' GROUP BY node ORDER BY node";
    let complete = ends(with(&["query", "--format", "csv", "--db", &path, sql]));
    assert_eq!(stdout(&complete), format!("node,count(*)\ngpu1,{ROWS}\ngpu2,{ROWS}\n"), "{}", stderr(&complete));
    assert_eq!((complete.status.code(), stderr(&complete).contains("2 of 2 nodes answered")), (Some(0), true));

    write(&dir.join("gpu3.db"), b"no database");
    let before = contents(&dir);
    let partial = ends(with(&["query", "--format", "csv", "--db", &path, sql]));
    assert_eq!(stdout(&partial), stdout(&complete));
    let printed = stderr(&partial);
    assert_eq!(partial.status.code(), Some(3), "{printed}");
    assert!(printed.contains("missing gpu3: failed: ") && printed.contains("is not an SQLite database"), "{printed}");
    let refused = ends(with(&["query", "--require-all", "--db", &path, sql]));
    assert_eq!((refused.status.code(), stdout(&refused).as_str()), (Some(1), ""));
    let one = ends(with(&["query", "--format", "csv", "--nodes", "gpu2", "--db", &path, sql]));
    assert_eq!((one.status.code(), stdout(&one)), (Some(0), format!("node,count(*)\ngpu2,{ROWS}\n")));
    let wrong = ends(with(&["query", "--db", &path, "SELECT nothing FROM self_stats"]));
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr(&wrong));
    let plan = ends(with(&["query", "--explain", "--db", &path, sql]));
    assert_eq!((plan.status.code(), stdout(&plan).contains("fragment 0")), (Some(0), true), "{}", stdout(&plan));
    assert_eq!(contents(&dir), before);
}
