//! Requests that real servers answer: Python's threaded server on TCP and on a Unix socket.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

#[path = "requests/calls.rs"]
mod calls;
mod common;
#[path = "requests/fuse.rs"]
mod fuse;
#[path = "requests/http2.rs"]
mod http2;
#[path = "requests/processes.rs"]
mod processes;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Cgroup, Job, can_capture, wait_for};
use node_bpf::{Record, ServeRule, Serving, ServingConfig};
use record::{LossCount, RequestSeen, RequestStretch, RequestSum};

/// Answers by the path: /slow sleeps, /burn computes, /missing is 404, /stream sends in pieces,
/// /ask asks another server. Says its port (or that it listens) on its first line.
const SERVER: &str = r#"
import http.server, socketserver, sys, time, urllib.request, os
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def address_string(self): return ""
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()
    def do_GET(self):
        body, status = b"x" * 100, 200
        if self.path.startswith("/slow"): time.sleep(0.08)
        if self.path.startswith("/burn"):
            until = time.thread_time() + 0.06
            while time.thread_time() < until: pass
        if self.path.startswith("/missing"): status = 404
        if self.path.startswith("/broken"): status = 503
        if self.path.startswith("/ask"): body = urllib.request.urlopen(sys.argv[2]).read()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.path.startswith("/stream"):
            for at in range(4):
                self.wfile.write(body[at * 25:at * 25 + 25])
                time.sleep(0.03)
        else:
            self.wfile.write(body)
class Tcp(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
class Unix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
if sys.argv[1].startswith("/"):
    server = Unix(sys.argv[1], Handler)
    Handler.client_address = ("", 0)
    print(0, flush=True)
else:
    server = Tcp(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
server.serve_forever()
"#;

struct Server {
    _job: Job,
    pid: u32,
    port: u16,
}

/// Starts the server in a cgroup; `at` is the path of its Unix socket, or "tcp".
fn serve(cgroup: &Cgroup, at: &str, upstream: &str) -> Server {
    serve_script(cgroup, SERVER, &[at, upstream])
}

/// Starts a server in Python, which says its port.
fn serve_script(cgroup: &Cgroup, script: &str, arguments: &[&str]) -> Server {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(r#"echo $$ > "$0" && exec "$@""#).arg(cgroup.0.join("cgroup.procs"));
    shell.args(["python3", "-c", script]).args(arguments);
    let mut child = shell.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let (pid, port) = (child.id(), line.trim().parse().unwrap());
    Server { _job: Job(child), pid, port }
}

struct Recorder {
    serving: Option<Serving>,
    records: Arc<Mutex<Vec<Record>>>,
}

impl Recorder {
    fn start(config: ServingConfig) -> Recorder {
        let records = Arc::new(Mutex::new(vec![]));
        let sink = Arc::clone(&records);
        let sink = Box::new(move |record| sink.lock().unwrap().push(record));
        Recorder { serving: Some(Serving::start(config, sink, Box::new(|_| {})).unwrap()), records }
    }

    fn wait_for_server(&self, pid: u32) {
        let serving = self.serving.as_ref().unwrap();
        wait_for("the server to be found", || serving.status().servers.iter().any(|server| server.pid == pid));
    }

    fn losses(&self) -> Vec<LossCount> {
        let records = self.records.lock().unwrap();
        records.iter().filter_map(|r| if let Record::Loss(loss) = r { Some(loss.clone()) } else { None }).collect()
    }

    fn rows(&self) -> Vec<RequestSeen> {
        let records = self.records.lock().unwrap();
        records.iter().filter_map(|r| if let Record::Request(r) = r { Some((**r).clone()) } else { None }).collect()
    }

    /// The parts of a request's time.
    fn path(&self, row: &RequestSeen) -> Vec<RequestStretch> {
        let records = self.records.lock().unwrap();
        let stretches =
            records.iter().filter_map(|r| if let Record::RequestStretch(s) = r { Some((**s).clone()) } else { None });
        stretches.filter(|s| (s.connection, s.number) == (row.connection, row.number)).collect()
    }

    fn stop(mut self) -> (Vec<RequestSeen>, Vec<RequestSum>, u64) {
        drop(self.serving.take());
        let rows = self.rows();
        let records = self.records.lock().unwrap();
        let sums =
            records.iter().filter_map(|r| if let Record::RequestSum(s) = r { Some((**s).clone()) } else { None });
        let lost = records.iter().map(|r| if let Record::Loss(loss) = r { loss.lost } else { 0 }).sum();
        (rows, sums.collect(), lost)
    }
}

/// One request on an open connection; the client's own time for it.
fn ask(connection: &mut (impl Read + Write), line: &str, body: &[u8]) -> Duration {
    let began = Instant::now();
    let head = format!("{line} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    connection.write_all(&[head.as_bytes(), body].concat()).unwrap();
    let (mut got, mut buffer) = (vec![], [0; 4096]);
    loop {
        let read = connection.read(&mut buffer).unwrap();
        assert!(read > 0, "the server has closed");
        got.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&got);
        let Some((head, rest)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        if rest.len() >= length.parse().unwrap() {
            return began.elapsed();
        }
    }
}

fn named(name: &str, rule: &str, cgroup: &Cgroup) -> ServingConfig {
    let rules = vec![ServeRule::parse(&format!("{name}={rule}")).unwrap()];
    ServingConfig { rules, detect: false, cgroup: Some(cgroup.0.clone()), ..ServingConfig::default() }
}

#[test]
fn every_request_is_seen_once_with_its_times_and_its_route() {
    if !can_capture() {
        return;
    }
    let cgroup = Cgroup::new();
    let server = serve(&cgroup, "tcp", "");
    let recorder = Recorder::start(named("web", "exe:*python3*", &cgroup));
    recorder.wait_for_server(server.pid);
    let mut asked: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    let mut connections: Vec<TcpStream> =
        (0..4).map(|_| TcpStream::connect(("127.0.0.1", server.port)).unwrap()).collect();
    for n in 0..400 {
        let (route, path) = match n % 40 {
            7 => ("/slow/{number}", format!("/slow/{n}?user=secret")),
            13 => ("/missing", "/missing".to_owned()),
            19 => ("/burn", "/burn".to_owned()),
            _ => ("/users/{number}", format!("/users/{n}")),
        };
        let took = ask(&mut connections[n % 4], &format!("GET {path}"), b"");
        asked.entry(route).or_default().push(took);
    }
    // The connections stay open: the last answer of each is over when nothing follows it.
    wait_for("the last requests", || recorder.rows().iter().filter(|row| row.number == 100).count() == 4);
    let large = vec![b'y'; 300_000];
    let posted = ask(&mut connections[0], "POST /upload", &large);
    // The client has its answer before the server's call has returned.
    for row in recorder.rows() {
        let path = recorder.path(&row);
        let sum = |of: &str| path.iter().filter(|s| of.is_empty() || s.kind == of).map(|s| s.duration_ns).sum::<i64>();
        assert_eq!(Some(sum("")), row.duration_ns, "{path:?}");
        assert!(
            path.iter().all(|s| s.kind == "unread" || s.kind == "unknown" || s.of_pid == Some(server.pid)),
            "{path:?}"
        );
        if row.of.route.as_deref() == Some("/slow/{number}") {
            let timers = path.iter().filter(|s| s.reason == Some("timer")).map(|s| s.duration_ns).sum::<i64>();
            assert!(timers + sum("unknown") >= 79_000_000, "{path:?}");
        }
    }
    let uploaded = |row: &RequestSeen| row.of.route.as_deref() == Some("/upload");
    wait_for("the upload", || recorder.rows().iter().any(uploaded));
    drop(connections);
    let (rows, sums, lost) = recorder.stop();
    assert_eq!(sums.iter().map(|sum| sum.count).sum::<u64>(), 401, "every request, and once");
    assert_eq!(lost, 0);
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for sum in &sums {
        *counts.entry(sum.of.route.as_deref().unwrap().to_owned()).or_default() += sum.count;
        assert_eq!((&*sum.of.service, sum.of.pid, sum.of.protocol), ("web", server.pid, "http/1"));
    }
    for (route, times) in &asked {
        assert_eq!(counts.get(*route), Some(&(times.len() as u64)), "{route}: {counts:?}");
    }
    let of = |route: &str| rows.iter().filter(|row| row.of.route.as_deref() == Some(route)).collect::<Vec<_>>();
    for row in of("/slow/{number}") {
        assert!((79_000_000..1_000_000_000).contains(&row.first_byte_ns.unwrap()), "{row:?}");
        assert!(row.cpu_ns.is_none_or(|ns| ns < 50_000_000), "it sleeps: {row:?}");
        assert_eq!((row.status, row.port, row.peer.as_deref()), (Some(200), Some(server.port), Some("127.0.0.1")));
    }
    for row in of("/burn") {
        // Where the hypervisor takes the CPU, more than the program sees.
        assert!(row.cpu_ns.is_none_or(|ns| ns >= 55_000_000), "it computes: {row:?}");
    }
    assert!(of("/missing").iter().all(|row| row.status == Some(404)));
    assert!(rows.iter().filter(|row| row.cpu_ns.is_some()).count() * 10 > rows.len() * 9, "paths are known");
    // A server's own time is no more than its client's.
    let longest = |times: &[Duration]| times.iter().max().unwrap().as_nanos() as i64;
    for (route, times) in &asked {
        assert!(of(route).iter().all(|row| row.duration_ns.unwrap() <= longest(times) + 1_000_000), "{route}");
    }
    let upload = of("/upload");
    let [upload] = &upload[..] else { panic!("{upload:?}") };
    assert!(upload.bytes_in > 300_000 && upload.duration_ns.unwrap() <= posted.as_nanos() as i64 + 1_000_000);
    assert_eq!((upload.of.method, upload.number), (Some("POST"), 101));
}

#[test]
fn an_answer_in_pieces_has_its_first_byte_and_its_gaps() {
    if !can_capture() {
        return;
    }
    let cgroup = Cgroup::new();
    let server = serve(&cgroup, "tcp", "");
    let recorder = Recorder::start(named("web", &format!("port:{}", server.port), &cgroup));
    recorder.wait_for_server(server.pid);
    let mut connection = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    ask(&mut connection, "GET /stream", b"");
    drop(connection);
    wait_for("the request", || !recorder.rows().is_empty());
    let (rows, ..) = recorder.stop();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert!(row.sends >= 5 && row.gap_ns.unwrap() >= 29_000_000, "{row:?}");
    assert!(row.duration_ns.unwrap() >= 89_000_000 && row.first_byte_ns.unwrap() < row.duration_ns.unwrap(), "{row:?}");
}

#[test]
fn what_a_server_asks_others_is_no_request_of_its_own() {
    if !can_capture() {
        return;
    }
    let (cgroup, other) = (Cgroup::new(), Cgroup::new());
    let upstream = serve(&other, "tcp", "");
    let server = serve(&cgroup, "tcp", &format!("http://127.0.0.1:{}/", upstream.port));
    let recorder = Recorder::start(ServingConfig { paths: false, ..named("web", "exe:*python3*", &cgroup) });
    recorder.wait_for_server(server.pid);
    let mut connection = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    for _ in 0..5 {
        ask(&mut connection, "GET /ask", b"");
    }
    drop(connection);
    wait_for("the requests", || recorder.rows().len() >= 5);
    let (rows, sums, _) = recorder.stop();
    assert_eq!(sums.iter().map(|sum| sum.count).sum::<u64>(), 5);
    assert!(rows.iter().all(|row| row.of.pid == server.pid && row.of.route.is_none()), "no paths: {rows:?}");
}

#[test]
fn a_unix_socket_serves_as_well() {
    if !can_capture() {
        return;
    }
    let (cgroup, dir) = (Cgroup::new(), tempfile::tempdir().unwrap());
    let at = dir.path().join("web.sock");
    let server = serve(&cgroup, at.to_str().unwrap(), "");
    let recorder = Recorder::start(named("web", "exe:*python3*", &cgroup));
    recorder.wait_for_server(server.pid);
    let mut connection = UnixStream::connect(&at).unwrap();
    for n in 0..7 {
        ask(&mut connection, &format!("GET /items/{n}"), b"");
    }
    drop(connection);
    wait_for("the requests", || recorder.rows().len() >= 7);
    let (rows, ..) = recorder.stop();
    assert_eq!(rows.iter().map(|row| row.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    assert!(rows.iter().all(|row| row.of.route.as_deref() == Some("/items/{number}") && row.port.is_none()));
}

#[test]
fn a_process_that_is_not_named_and_computes_no_models_is_not_followed() {
    if !can_capture() {
        return;
    }
    let cgroup = Cgroup::new();
    let server = serve(&cgroup, "tcp", "");
    let config = ServingConfig { detect: true, ..named("web", "port:1", &cgroup) };
    let recorder = Recorder::start(config);
    let mut connection = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    for _ in 0..30 {
        ask(&mut connection, "GET /", b"");
        std::thread::sleep(Duration::from_millis(100));
    }
    let (rows, sums, _) = recorder.stop();
    assert!(rows.is_empty() && sums.is_empty(), "{rows:?}");
}
