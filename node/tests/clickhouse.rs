//! Rows pushed into ClickHouse: its real engine (chDB) behind a small HTTP front, which fails in
//! every way that a server can; nothing is lost and nothing is counted twice.
#![cfg(feature = "archive")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use common::job_stores::{EndedJob, T0};
use common::{Lab, rankmesh, run, stderr, stdout, wait_for};
use serde_json::Value;
use store::{Finding, Store, StoreConfig};

/// The front, with a directory of its own; ended with the test.
struct Server {
    child: Child,
    python: PathBuf,
    dir: PathBuf,
    port: u16,
}

impl Server {
    fn start(test: &str, dir: &Path) -> Option<Self> {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/history/bin/python");
        let python = if own.exists() { own } else { PathBuf::from("python3") };
        let has = Command::new(&python).args(["-c", "import chdb"]).stderr(Stdio::null()).status();
        if !has.is_ok_and(|status| status.success()) {
            eprintln!("skipped: {test}: {} has no chdb (make check NAME=history installs it)", python.display());
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").and_then(|found| found.local_addr()).expect("a port").port();
        let child = Self::spawn(&python, dir, port);
        let server = Self { child, python, dir: dir.to_owned(), port };
        server.wait();
        let script = stdout(&run(&["archive", "--clickhouse-schema"]));
        for statement in
            script.split(";\n").filter(|part| part.lines().any(|line| !line.starts_with("--") && !line.is_empty()))
        {
            server.sql(statement);
        }
        Some(server)
    }

    fn spawn(python: &Path, dir: &Path, port: u16) -> Child {
        let front = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/history/clickhouse_server.py");
        let log = std::fs::File::create(dir.join("server.log")).expect("a file");
        let mut command = Command::new(python);
        command.arg(front).arg(port.to_string()).arg(dir).stdout(Stdio::null()).stderr(log);
        command.spawn().expect("a server")
    }

    fn wait(&self) {
        wait_for("the server", || TcpStream::connect(("127.0.0.1", self.port)).map_err(|error| error.to_string()));
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn start_again(&mut self) {
        self.child = Self::spawn(&self.python, &self.dir, self.port);
        self.wait();
    }

    fn fault(&self, fault: &str) {
        std::fs::write(self.dir.join("FAULT"), fault).expect("written");
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Rows of an answer.
    fn sql(&self, sql: &str) -> Vec<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        write!(
            stream,
            "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-ClickHouse-User: pusher\r\nX-ClickHouse-Key: hush-hush\r\n\
             Content-Length: {}\r\n\r\n{sql}",
            sql.len()
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{sql}: {answer}");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    fn push(&self, db: &Path) -> Output {
        let mut command = rankmesh();
        command.args(["archive", "--full-speed", "--db", db.to_str().expect("a path"), "--clickhouse", &self.url()]);
        command.env("CLICKHOUSE_USER", "pusher").env("CLICKHOUSE_PASSWORD", "hush-hush");
        command.output().expect("it runs")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What stores and server must agree on.
const SAME: [&str; 4] = [
    "SELECT node, rank, count(*) AS n, sum(duration_ns) AS ns, min(ts_ns) AS first, max(ts_ns) AS last FROM collectives GROUP BY node, rank ORDER BY node, rank",
    "SELECT node, pid, rank, job_id FROM processes ORDER BY node, pid",
    "SELECT node, count(*) AS n FROM offcpu GROUP BY node ORDER BY node",
    "SELECT verdict, culprit_node, count(*) AS n FROM findings GROUP BY verdict, culprit_node ORDER BY verdict, coalesce(culprit_node, '')",
];

fn assert_same(server: &Server, stores: &Path) {
    for sql in SAME {
        let asked = run(&["query", "--format", "json", "--db", stores.to_str().expect("a path"), sql]);
        let expected: Value = serde_json::from_slice(&asked.stdout).unwrap_or_else(|_| panic!("{}", stderr(&asked)));
        let theirs = sql.replace("FROM processes", "FROM rankmesh.processes FINAL").replace("FROM ", "FROM rankmesh.");
        let theirs = theirs.replace("rankmesh.rankmesh.", "rankmesh.");
        let theirs = server.sql(&format!("{theirs} SETTINGS output_format_json_quote_64bit_integers = 0"));
        assert_eq!(Value::from(theirs), expected["rows"], "{sql}");
    }
}

#[test]
fn what_is_pushed_is_there_once_whatever_fails() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(mut server) = Server::start("what_is_pushed_is_there_once_whatever_fails", dir.path()) else { return };
    let stores = dir.path().join("stores");
    std::fs::create_dir(&stores).expect("a directory");
    EndedJob::small().write(&stores);
    let forever = StoreConfig { max_age: Duration::from_secs(100 * 365 * 86_400), ..StoreConfig::default() };
    let store = Store::open(stores.join("n0.db"), forever).expect("a store");
    let (verdict, culprit_node, job_id) = ("rank".to_owned(), Some("n1".to_owned()), Some("4711".to_owned()));
    store.ingest().finding(Finding { ts_ns: T0 + 1, verdict, culprit_node, job_id, ..Finding::default() });
    store.close();
    // Each fault meets a push that goes on where it stopped.
    for fault in ["refuse", "taken", "half"] {
        server.fault(fault);
        let failed = server.push(&stores);
        assert_eq!(failed.status.code(), Some(1), "{fault}: {}", stderr(&failed));
        assert!(stderr(&failed).contains("127.0.0.1") && !stderr(&failed).contains("hush"), "{}", stderr(&failed));
    }
    server.stop();
    let failed = server.push(&stores);
    assert!(stderr(&failed).contains("is not reached"), "{}", stderr(&failed));
    server.start_again();
    server.fault("slow");
    let mut killed = rankmesh()
        .args(["archive", "--db", stores.to_str().expect("a path"), "--clickhouse", &server.url()])
        .env("CLICKHOUSE_USER", "pusher")
        .env("CLICKHOUSE_PASSWORD", "hush-hush")
        .spawn()
        .expect("it runs");
    wait_for("an insert is under way", || {
        let cursors = std::fs::read_to_string(stores.join("n0.db.clickhouse")).unwrap_or_default();
        if cursors.contains("\"pending\":[") { Ok(()) } else { Err(cursors) }
    });
    let _ = killed.kill();
    let _ = killed.wait();
    server.fault("");
    // Processes are pushed when nothing was found out of them for five seconds.
    wait_for("everything is pushed", || {
        let done = server.push(&stores);
        assert!(done.status.success(), "{}", stderr(&done));
        let processes = server.sql("SELECT toString(count()) FROM rankmesh.processes FINAL");
        if processes[0][0] == "8" { Ok(()) } else { Err(format!("{processes:?}")) }
    });
    assert_same(&server, &stores);
    let again = server.push(&stores);
    assert!(stderr(&again).starts_with("0 rows, 0 bytes in 0 inserts"), "{}", stderr(&again));
    assert_same(&server, &stores);
    let wrong = run(&["archive", "--db", stores.to_str().expect("a path"), "--clickhouse", "http://a:b@host"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr(&wrong));
    // The dashboard's questions are this server's, too.
    let dashboard = include_str!("../../packaging/grafana/rankmesh-clickhouse.json");
    let dashboard: Value = serde_json::from_str(dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(panels.len() >= 6);
    for panel in panels {
        let sql = panel["targets"][0]["rawSql"].as_str().expect("a question");
        let sql = sql.replace("$__fromTime", "toDateTime(1767225600)").replace("$__toTime", "toDateTime(1767229200)");
        let sql = ["collectives", "host_samples", "findings"]
            .iter()
            .fold(sql, |sql, table| sql.replace(&format!("FROM {table}"), &format!("FROM rankmesh.{table}")));
        let rows = server.sql(&sql.replace("${job:singlequote}", "'4711'"));
        assert!(!rows.is_empty(), "{}", panel["title"]);
    }
}

#[test]
fn an_agent_pushes_its_rows_and_says_when_it_cannot() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(mut server) = Server::start("an_agent_pushes_its_rows_and_says_when_it_cannot", dir.path()) else {
        return;
    };
    server.stop();
    let stores = dir.path().join("stores");
    std::fs::create_dir(&stores).expect("a directory");
    EndedJob::small().write(&stores);
    let (store, settings) = (stores.join("n0.db"), dir.path().join("settings"));
    std::fs::write(&settings, "CLICKHOUSE_USER=pusher\nCLICKHOUSE_PASSWORD=hush-hush\n").expect("written");
    std::fs::set_permissions(&settings, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("chmod");
    let mut lab = Lab::new();
    let (store, settings, url) = (store.to_str().expect("a path"), settings.to_str().expect("a path"), server.url());
    let push = ["--clickhouse", &url, "--clickhouse-settings", settings];
    lab.start("n0", &[&["--store", store, "--store-max-age", "36500d"], &push[..]].concat());
    let found = wait_for("the finding", || {
        let (answer, _) = lab.query("n0", "SELECT detail FROM findings WHERE verdict = 'archive'", &[]);
        answer["rows"][0][0].as_str().map(str::to_owned).ok_or_else(|| answer.to_string())
    });
    assert!(found.contains("rows are not pushed into ClickHouse") && found.contains("is not reached"), "{found}");
    server.start_again();
    let count = |server: &Server| server.sql("SELECT toString(count()) FROM rankmesh.collectives")[0][0].clone();
    wait_for("the rows", || match count(&server) {
        Value::String(rows) if rows == "400" => Ok(()),
        other => Err(other.to_string()),
    });
    assert!(!lab.log("n0").contains("hush-hush"));
}

/// A server that gives every request an answer and reports the requests' heads.
fn answers(answer: String) -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (tell, heads) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(&stream);
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let before = head.len();
                if reader.read_line(&mut head).is_err() || head.len() <= before + 2 {
                    break;
                }
                let line = head[before..].to_ascii_lowercase();
                length = line.strip_prefix("content-length:").map_or(length, |n| n.trim().parse().expect("a length"));
            }
            let _ = std::io::copy(&mut reader.take(length), &mut std::io::sink());
            let _ = tell.send(head);
            let _ = (&stream).write_all(answer.as_bytes());
        }
    });
    (port, heads)
}

#[test]
fn a_redirect_is_refused_and_nothing_is_sent_there() {
    let dir = tempfile::tempdir().expect("a directory");
    EndedJob::small().write(dir.path());
    let (other, sent_there) = answers("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned());
    for status in [301, 302, 303, 307, 308] {
        let (port, heads) = answers(format!(
            "HTTP/1.1 {status} Elsewhere\r\nLocation: http://127.0.0.1:{other}/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ));
        let mut command = rankmesh();
        command.args(["archive", "--full-speed", "--db", dir.path().to_str().expect("a path")]);
        command.args(["--clickhouse", &format!("http://127.0.0.1:{port}")]);
        command.env("CLICKHOUSE_USER", "pusher").env("CLICKHOUSE_PASSWORD", "hush-hush");
        let refused = command.output().expect("it runs");
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(1), "{status}: {said}");
        assert!(said.contains(&format!("127.0.0.1:{other}")) && said.contains("Give the address"), "{said}");
        assert!(!said.contains("hush"), "{said}");
        let head = heads.try_recv().expect("it was asked");
        assert!(head.starts_with("POST ") && head.contains("hush-hush"), "{head}");
    }
    assert_eq!(sent_there.try_recv(), Err(mpsc::TryRecvError::Empty), "nothing goes there");
    let cursor = std::fs::read_to_string(dir.path().join("n0.db.clickhouse")).expect("a cursor");
    assert!(cursor.contains("\"pending\":[") && cursor.contains("\"until\":null"), "no row counts as pushed: {cursor}");
}
