//! What a collector of OpenTelemetry gets.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::http::{Served, Server};
use crate::common::{Killed, Lab, PATIENCE, make_db, python, rankmesh, wait_for};

/// An attribute of one of OpenTelemetry's messages, as in JSON.
fn attribute<'v>(of: &'v Value, key: &str) -> &'v Value {
    let all = of["attributes"].as_array().expect("attributes");
    let found = all.iter().find(|attribute| attribute["key"] == key);
    found.and_then(|found| found["value"].as_object()?.values().next()).unwrap_or(&Value::Null)
}

#[test]
fn a_collector_of_opentelemetry_gets_metrics_and_findings() {
    let test = "a_collector_of_opentelemetry_gets_metrics_and_findings";
    let Some(interpreter) = python::clients(test) else { return };
    let mut collector = Command::new(interpreter)
        .arg(python::script("otlp_receiver.py"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("python runs");
    let mut lines = BufReader::new(collector.stdout.take().expect("a pipe")).lines();
    let port = lines.next().expect("a port").expect("text");
    let (to, requests) = std::sync::mpsc::channel::<Value>();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let _ = to.send(serde_json::from_str(&line).expect("JSON"));
        }
    });
    let mut collector = Killed(collector);

    let mut lab = Lab::new();
    let rows = lab.path("rows.db");
    make_db(
        &rows,
        "CREATE TABLE findings (ts_ns INTEGER, since_ns INTEGER, until_ns INTEGER, verdict TEXT, rank INTEGER, \
         culprit_node TEXT, job_id TEXT, lateness_ns INTEGER, score REAL, cause TEXT, detail TEXT);",
    );
    lab.start("a", &["--serve-db", &rows.display().to_string()]);
    lab.wait_for_members(&["a"]);
    let headers = lab.path("headers");
    std::fs::write(&headers, "Authorization: Bearer of-the-collector\n").expect("written");
    let (socket, headers) = (lab.socket("a").display().to_string(), headers.display().to_string());
    let url = format!("http://127.0.0.1:{port}");
    let mut command = rankmesh();
    command.args(["serve", "--listen", "127.0.0.1:0", "--socket", &socket, "--otlp", &url, "--otlp-headers", &headers]);
    let server = Server::of(command);

    let first = requests.recv_timeout(PATIENCE).expect("metrics come");
    assert_eq!((&first["path"], &first["authorization"]), (&"/v1/metrics".into(), &"Bearer of-the-collector".into()));
    let of = &first["message"]["resourceMetrics"][0];
    assert_eq!(attribute(&of["resource"], "service.name"), "rankmesh");
    assert_eq!(attribute(&of["resource"], "service.instance.id"), "a");
    let metrics = of["scopeMetrics"][0]["metrics"].as_array().expect("metrics");
    let metric =
        |name: &str| metrics.iter().find(|metric| metric["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(metric("rankmesh_up")["gauge"]["dataPoints"][0]["asDouble"], 1.0);
    let cpu = &metric("rankmesh_agent_cpu_seconds_total")["sum"];
    assert!(
        cpu["isMonotonic"] == true && cpu["aggregationTemporality"] == "AGGREGATION_TEMPORALITY_CUMULATIVE",
        "{cpu}"
    );
    assert!(cpu["dataPoints"][0]["asDouble"].as_f64().is_some_and(|seconds| seconds > 0.0), "{cpu}");
    assert_eq!(attribute(&cpu["dataPoints"][0], "node"), "a");

    // A finding comes; the collector is busy at first, and gets it again. Findings are looked for
    // from the first look on, so that one is written until one arrives.
    let conn = rusqlite::Connection::open(&rows).expect("the rows");
    let mut logs = Vec::new();
    let mut written = 0;
    while logs.len() < 2 {
        if logs.is_empty() {
            written += 1;
            conn.execute(
                "INSERT INTO findings VALUES (unixepoch('subsec') * 1000000000, 1, 2, 'rank', 5, 'n1', '4711', 9, 3.5, \
                 'preempted by ' || char(27) || '[2Jevil', '{}')",
                [],
            )
            .expect("written");
        }
        let wait = std::time::Duration::from_secs(3);
        match requests.recv_timeout(if logs.is_empty() { wait } else { PATIENCE }) {
            Ok(request) if request["path"] == "/v1/logs" => logs.push(request),
            Ok(_) => {}
            Err(error) => assert!(written < 40, "{error}: {}", server.printed()),
        }
    }
    assert_eq!((&logs[0]["status"], &logs[1]["status"]), (&503.into(), &200.into()));
    assert_eq!(logs[0]["message"], logs[1]["message"], "the same again");
    let record = &logs[0]["message"]["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
    assert_eq!((&record["severityText"], &record["eventName"]), (&"WARN".into(), &"rankmesh.finding".into()));
    let body = record["body"]["stringValue"].as_str().expect("a body");
    assert!(body.starts_with("rank, rank 5 on n1: preempted by ") && !body.contains('\u{1b}'), "{body}");
    assert_eq!((attribute(record, "rankmesh.rank"), attribute(record, "rankmesh.score")), (&"5".into(), &json!(3.5)));
    assert_eq!(attribute(record, "rankmesh.job_id"), "4711");

    // It is suspended, and then ends: that delays nobody else, and it is reported.
    let pid = nix::unistd::Pid::from_raw(collector.0.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).expect("stopped");
    assert_eq!(server.send("GET", "/healthz", &[], b"").status, 200);
    collector.0.kill().expect("killed");
    wait_for("it is reported", || {
        let output = server.printed();
        if output.contains("for the OpenTelemetry collector at 127.0.0.1: ") { Ok(()) } else { Err(output) }
    });
    assert_eq!(server.send("GET", "/healthz", &[], b"").status, 200);
}

#[test]
fn who_only_pushes_ends_when_its_agent_is_gone() {
    // A collector that takes connections and never answers.
    let collector = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    collector.set_nonblocking(true).expect("set");
    let url = format!("http://{}", collector.local_addr().expect("an address"));
    let mut lab = Lab::new();
    lab.start("a", &[]);
    lab.wait_for_members(&["a"]);
    let socket = lab.socket("a").display().to_string();
    let mut command = rankmesh();
    command.args(["serve", "--listen", "none", "--otlp", &url, "--without-agent", "1s", "--socket", &socket]);
    let mut served = Served::start(command);
    let _pushed = wait_for("it pushes", || collector.accept().map_err(|error| format!("{error}: {}", served.output())));
    lab.kill("a");
    let status = served.ends();
    assert_eq!(status.code(), Some(1), "{}", served.output());
    let expected = "has not answered for 1 s and no client can connect: ended (start it again with the agent)";
    wait_for("it says why", || {
        let output = served.output();
        if output.contains(expected) { Ok(()) } else { Err(output) }
    });
}
