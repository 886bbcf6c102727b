//! Which connections the front ends open, as strace sees them.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::common::http::{Served, Server};
use crate::common::{Lab, has, stderr, stdout, wait_for};

/// What an initialize of MCP is, as one message.
fn mcp_list() -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": "query", "arguments": { "sql": "SELECT 1 AS one" } } })
    .to_string()
}

const MCP: [(&str, &str); 2] =
    [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];

/// Where a traced process wanted to connect or send to: every address of a system call.
fn addresses(trace: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(trace).expect("the trace");
    let called = |line: &&str| {
        ["connect(", "sendto(", "sendmsg(", "sendmmsg("].iter().any(|call| line.contains(call))
            && line.contains("sa_family=")
    };
    text.lines().filter(called).map(str::to_owned).collect()
}

#[test]
fn no_front_end_opens_a_connection_but_those_that_the_user_names() {
    const TEST: &str = "no_front_end_opens_a_connection_but_those_that_the_user_names";
    if !has("strace", TEST) || !has("psql", TEST) {
        return;
    }
    let mut lab = Lab::new();
    lab.start("a", &["--capture", "off"]);
    let socket = lab.socket("a").display().to_string();
    let traced = |trace: &Path, flags: &[&str]| {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-o"]).arg(trace);
        command.arg(env!("CARGO_BIN_EXE_rankmesh")).args(flags).args(["--socket", &socket]);
        command.env_remove("RANKMESH_SOCKET").env_remove("RANKMESH_LOG").stdin(Stdio::null());
        command
    };
    let probe = Command::new("strace").args(["-o", "/dev/null", "true"]).output().expect("runs");
    if !probe.status.success() {
        eprintln!("skipped: {TEST}: strace may not trace here: {}", stderr(&probe));
        return;
    }
    // All front ends but receivers that are named.
    let (trace, prom) = (lab.path("quiet.strace"), lab.path("a.prom"));
    let textfile = prom.display().to_string();
    let flags = ["serve", "--listen", "127.0.0.1:0", "--postgres", "127.0.0.1:0", "--textfile", &textfile];
    let mut server = Server::of(traced(&trace, &flags));
    let get = |path: &str| {
        let answer = server.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer
    };
    let described = get("/api/v1/openapi.json").json();
    let paths = described["paths"].as_object().expect("paths");
    for path in paths.keys().filter(|path| !path.ends_with("/events") && paths[*path].get("get").is_some()) {
        let answer = server.get(path);
        // No verdict stands: nobody keeps what ranks do.
        assert!(answer.status < 500 || path == "/api/v1/board", "{path}: {}", answer.text());
    }
    for path in ["/", "/page/main.js", "/metrics", "/healthz"] {
        get(path);
    }
    assert_eq!(server.sql("", "SELECT 1 AS one").json()["rows"], json!([[1]]));
    let bearer = format!("Bearer {}", server.token);
    let headers = [MCP[0], MCP[1], ("authorization", &bearer)];
    let answer = server.send("POST", "/mcp", &headers, mcp_list().as_bytes());
    assert!(answer.status < 500, "{}", answer.text());
    let url = server.served.line("psql ");
    let asked = Command::new("psql").args(["-X", "-At", &url, "-c", "SELECT count(*) FROM collectives"]).output();
    assert_eq!(stdout(&asked.expect("runs")), "0\n");
    wait_for("the file", || std::fs::read_to_string(&prom).map_err(|error| error.to_string()));
    drop(server);
    let own = format!("sun_path=\"{socket}\"");
    let called = addresses(&trace);
    let elsewhere: Vec<&String> = called.iter().filter(|call| !call.contains(&own)).collect();
    assert_eq!(elsewhere, Vec::<&String>::new());
    assert!(called.len() > 5, "it asked the agent: {called:?}");

    // With one that is named: that one, and nobody else.
    let receiver = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = receiver.local_addr().expect("an address").port();
    let trace = lab.path("pushing.strace");
    let url = format!("http://127.0.0.1:{port}");
    let served = Served::start(traced(&trace, &["serve", "--listen", "none", "--otlp", &url]));
    let (stream, _) = receiver.accept().expect("it pushes");
    drop((stream, served));
    let called = addresses(&trace);
    let named = format!("sin_port=htons({port}), sin_addr=inet_addr(\"127.0.0.1\")");
    assert!(called.iter().any(|call| call.contains(&named)), "{called:?}");
    let elsewhere: Vec<&String> = called.iter().filter(|call| !call.contains(&own) && !call.contains(&named)).collect();
    assert_eq!(elsewhere, Vec::<&String>::new());
}
