//! `rankmesh tail` on real servers of two hosts: every request is counted, and what was done to some
//! of them is what the slowest have more of. Needs root.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::jobs::Cgroups;
use common::{Killed, Lab, can_capture, has, stdout, wait_for};
use serde_json::Value;

/// Answers after some milliseconds of computing: /MS/N; /sleep/N sleeps 60 ms besides.
const SERVER: &str = r#"
import http.server, socketserver, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def do_GET(self):
        kind = self.path.split("/")[1]
        if kind == "sleep": time.sleep(0.06)
        until = time.thread_time() + (0.0 if kind == "sleep" else int(kind) / 1000)
        while time.thread_time() < until: pass
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
server = Server(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"#;

/// A server in a host's cgroup, on the first CPU; its port.
fn serve(cgroups: &Cgroups, host: &str) -> (Killed, u16) {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"echo $$ > "$0" && exec taskset -c 0 python3 -c "$1""#]);
    shell.arg(cgroups.path(host).join("cgroup.procs")).arg(SERVER);
    let mut child = shell.stdout(Stdio::piped()).spawn().expect("a server starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    (Killed(child), line.trim().parse().expect("its port"))
}

fn ask(connection: &mut TcpStream, path: &str) {
    connection.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).expect("sent");
    let mut answer = [0; 40];
    connection.read_exact(&mut answer).expect("an answer");
    assert!(answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"ok"), "{:?}", String::from_utf8_lossy(&answer));
}

/// Agents, the cgroups of their hosts, and the servers with their ports.
type Hosts = (Lab, Cgroups, Vec<(Killed, u16)>);

/// Two hosts, each with a server of the service "chat".
fn hosts(test: &str) -> Option<Hosts> {
    if !can_capture(test) || !has("python3", test) || !has("taskset", test) {
        return None;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new(test, &["n1", "n2"]);
    let servers = ["n1", "n2"].map(|host| serve(&cgroups, host)).into();
    for host in ["n1", "n2"] {
        let cgroup = cgroups.path(host).display().to_string();
        lab.start(host, &["--cgroup", &cgroup, "--serve", "chat=exe:*python3*"]);
    }
    lab.wait_for_members(&["n1", "n2"]);
    wait_for("both servers to be followed", || {
        let logs = ["n1", "n2"].map(|host| lab.log(host));
        if logs.iter().all(|log| log.contains("requests of chat are recorded")) { Ok(()) } else { Err(logs.concat()) }
    });
    Some((lab, cgroups, servers))
}

/// What `tail` says of the one service, once all requests are in the stores.
fn tail(lab: &Lab, requests: i64, more: &[&str]) -> Value {
    wait_for("all requests", || {
        let output = lab.ask("n1", "tail", &[&["--format", "json"], more].concat());
        let answer: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
        if answer["services"][0]["count"] == requests { Ok(answer) } else { Err(answer.to_string()) }
    })
}

#[test]
fn every_request_of_both_hosts_is_counted_and_the_slowest_slept() {
    let Some((lab, _cgroups, servers)) = hosts("every_request_of_both_hosts_is_counted_and_the_slowest_slept") else {
        return;
    };
    for (_, port) in &servers {
        let mut connection = TcpStream::connect(("127.0.0.1", *port)).expect("connected");
        // What is slow is known from the seconds before.
        for n in 0..500 {
            let kind = if n >= 250 && n % 25 == 24 { "sleep" } else { "0" };
            ask(&mut connection, &format!("/{kind}/{n}"));
            std::thread::sleep(Duration::from_millis(8));
        }
    }
    let answer = tail(&lab, 1_000, &[]);
    let chat = &answer["services"][0];
    assert_eq!((&chat["service"], &chat["errors"], &chat["unanswered"]), (&"chat".into(), &0.into(), &0.into()));
    let groups = chat["groups"].as_array().expect("hosts");
    assert_eq!(groups.iter().map(|group| &group["figures"]["count"]).collect::<Vec<_>>(), [500, 500]);
    assert!(chat["p99_ns"].as_i64() >= Some(59_000_000) && chat["p50_ns"].as_i64() < Some(40_000_000), "{chat}");
    let parts = chat["slowest"]["excess"]["parts"].as_array().expect("what they have more of");
    assert_eq!(parts[0]["part"]["kind"], "asleep", "{chat}");
    assert!(parts[0]["share"].as_f64() > Some(0.5), "{chat}");
    let shared = chat["slowest"]["shared"].as_array().expect("what they share");
    assert!(shared.iter().any(|shared| shared["of"] == "GET /sleep/{number}"), "{chat}");
    // One host, and by route.
    let answer = tail(&lab, 500, &["--by", "route", "--nodes", "n2"]);
    let routes = answer["services"][0]["groups"].as_array().expect("routes");
    let counts: Vec<(&str, i64)> = routes
        .iter()
        .map(|route| (route["of"].as_str().unwrap_or(""), route["figures"]["count"].as_i64().unwrap_or(0)))
        .collect();
    assert_eq!(counts, [("GET /{number}/{number}", 490), ("GET /sleep/{number}", 10)]);
    let text = stdout(&lab.ask("n2", "tail", &["--service", "chat"]));
    assert!(
        text.starts_with("chat: 1000 requests, p50 ") && text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let none = lab.ask("n1", "tail", &["--service", "other"]);
    assert_eq!(none.status.code(), Some(2), "{none:?}");
}

#[test]
fn a_program_on_the_servers_core_is_what_the_slowest_waited_for() {
    let Some((lab, _cgroups, servers)) = hosts("a_program_on_the_servers_core_is_what_the_slowest_waited_for") else {
        return;
    };
    let mut connection = TcpStream::connect(("127.0.0.1", servers[0].1)).expect("connected");
    for n in 0..1_170 {
        ask(&mut connection, &format!("/4/{n}"));
    }
    let hog =
        Command::new("taskset").args(["-c", "0", "sh", "-c", "while :; do :; done"]).spawn().expect("a hog starts");
    let hog = Killed(hog);
    for n in 0..30 {
        ask(&mut connection, &format!("/40/{n}"));
    }
    drop(hog);
    let answer = tail(&lab, 1_200, &["--service", "chat"]);
    let chat = &answer["services"][0];
    let parts = chat["slowest"]["excess"]["parts"].as_array().expect("what they have more of");
    let of = |kind: &str| -> f64 {
        let of_kind = parts.iter().filter(|more| more["part"]["kind"] == kind);
        of_kind.filter_map(|more| more["share"].as_f64()).sum()
    };
    // 40 ms of their own work in place of 4, and as much for the other program.
    assert!(of("cpu_taken") > 0.25 && of("on_cpu") > 0.1 && of("asleep") < 0.25, "{chat}");
    assert!(parts.iter().any(|more| more["part"]["of"] == "sh"), "it is not named: {chat}");
}
