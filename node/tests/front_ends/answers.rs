//! One question to HTTP, MCP and PostgreSQL's protocol: of an agent of an earlier release, of full
//! stores and of a damaged one.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use model::frame::{self, FrameReader};
use model::{LocalRequest, LocalResponse};
use serde_json::{Value, json};

use crate::common::http::Server;
use crate::common::{Killed, Lab, has, rankmesh, stderr, stdout};

/// An agent of a release before front ends: it answers a client's own requests, and cannot read a
/// request for somebody else, so that it closes the connection.
fn earlier_agent(socket: &Path) {
    let listener = std::os::unix::net::UnixListener::bind(socket).expect("a socket");
    listener.set_nonblocking(true).expect("set");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let listener = tokio::net::UnixListener::from_std(listener).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                let (reader, mut writer) = stream.into_split();
                let mut reader = FrameReader::new(reader);
                if let Ok(Some(LocalRequest::Nodes)) = reader.read::<LocalRequest>().await {
                    let _ = frame::write(&mut writer, &LocalResponse::Text("[]".to_owned())).await;
                }
            }
        });
    });
}

/// What an assistant over standard input and output gets from one tool.
fn assistant(flags: &[&str], tool: &str, arguments: &Value) -> Value {
    let mut mcp = rankmesh()
        .arg("mcp")
        .args(flags)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut to = mcp.stdin.take().expect("a pipe");
    let from = BufReader::new(mcp.stdout.take().expect("a pipe"));
    let _mcp = Killed(mcp);
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } } });
    let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
                       "params": { "name": tool, "arguments": arguments } });
    for message in [hello, ready, call] {
        writeln!(to, "{message}").expect("sent");
    }
    from.lines()
        .map_while(Result::ok)
        .map(|line| serde_json::from_str::<Value>(&line).expect("JSON"))
        .find(|answer| answer["id"] == 1)
        .expect("an answer")
}

#[test]
fn an_agent_of_an_earlier_release_is_named_as_the_cause() {
    const TEST: &str = "an_agent_of_an_earlier_release_is_named_as_the_cause";
    let lab = Lab::new();
    let socket = lab.path("earlier.sock");
    earlier_agent(&socket);
    let socket = socket.display().to_string();
    let (expected, what) = ("of an earlier release", "upgrade the agent and start it again");
    let mut command = rankmesh();
    command.args(["serve", "--listen", "127.0.0.1:0", "--postgres", "127.0.0.1:0", "--socket", &socket]);
    let mut server = Server::of(command);
    let problem = server.sql("", "SELECT 1");
    let detail = problem.json()["detail"].as_str().expect("a detail").to_owned();
    assert!(problem.status == 502 && detail.contains(expected) && detail.contains(what), "{detail}");
    let metrics = server.get("/metrics");
    assert!(metrics.status == 502 && metrics.text().contains(expected), "{}", metrics.text());
    if has("psql", TEST) {
        let url = server.served.line("psql ");
        let asked = Command::new("psql").args(["-X", "-At", &url, "-c", "SELECT count(*) FROM collectives"]).output();
        let asked = asked.expect("psql runs");
        assert!(stderr(&asked).contains(expected) && stderr(&asked).contains(what), "{}", stderr(&asked));
    }
    let answer = assistant(&["--socket", &socket], "schema", &json!({}));
    assert!(answer.to_string().contains(expected) && answer.to_string().contains(what), "{answer}");
}

#[test]
fn full_stores_and_a_damaged_one_are_answered_by_each_front_end() {
    const TEST: &str = "full_stores_and_a_damaged_one_are_answered_by_each_front_end";
    const SEGMENTS: u64 = 300;
    const ROWS: u64 = 16;
    let lab = Lab::new();
    let dir = lab.path("stores");
    std::fs::create_dir(&dir).expect("a directory");
    for name in ["n0", "n1"] {
        store::testing::store_of_segments(&dir.join(format!("{name}.db")), SEGMENTS, ROWS).close();
    }
    std::fs::write(dir.join("n2.db"), b"no database").expect("written");
    let db = dir.display().to_string();
    let all = 2 * SEGMENTS * ROWS;
    let sql = "SELECT node, count(*), count(DISTINCT seq) FROM collectives GROUP BY node ORDER BY node";
    let mut command = rankmesh();
    command.args(["serve", "--listen", "127.0.0.1:0", "--postgres", "127.0.0.1:0", "--db", &db]);
    let mut server = Server::of(command);
    let answer = server.sql("?timeout=60s", sql);
    let each = SEGMENTS * ROWS;
    assert_eq!(answer.json()["rows"], json!([["n0", each, each], ["n1", each, each]]));
    let covered = &answer.json()["coverage"];
    assert_eq!((answer.status, &covered["answered"], &covered["missing"][0]["node"]), (206, &2.into(), &"n2".into()));
    assert!(
        covered["missing"][0]["reason"].as_str().is_some_and(|why| why.contains("is not an SQLite database")),
        "{covered}"
    );
    let lines = server.sql("?timeout=60s&format=ndjson", "SELECT * FROM collectives").text();
    assert_eq!(lines.lines().count() as u64, all + 1);
    assert_eq!(server.sql("?timeout=60s&require_all=true", sql).status, 503);

    let answer = assistant(&["--db", &db, "--timeout", "60s"], "query", &json!({ "sql": sql })).to_string();
    assert!(answer.contains("Coverage: 2 of 3 nodes answered. PARTIAL") && answer.contains("missing n2: "), "{answer}");
    assert!(answer.contains(&format!("n0,{each},{each}")) && answer.contains(&format!("n1,{each},{each}")), "{answer}");

    if has("psql", TEST) {
        let url = server.served.line("psql ");
        let psql = |sql: &str| {
            let mut command = Command::new("psql");
            command.args(["-X", "-At", "-v", "ON_ERROR_STOP=1", &url, "-c", sql]).stdin(Stdio::null());
            command.output().expect("psql runs")
        };
        let asked = psql(sql);
        assert_eq!(stdout(&asked), format!("n0|{each}|{each}\nn1|{each}|{each}\n"), "{}", stderr(&asked));
        assert!(stderr(&asked).contains("WARNING:  PARTIAL: 2 of 3 nodes answered"), "{}", stderr(&asked));
        assert_eq!(stdout(&psql("SELECT * FROM collectives")).lines().count() as u64, all);
        let refused = psql(&format!("SET require_all = on; {sql}"));
        assert!(!refused.status.success() && stderr(&refused).contains("require_all is on"), "{}", stderr(&refused));
    }
}
