//! Tests of all front ends of `rankmesh serve` together: they open no connection except to the
//! agent and to receivers that the user names, they use TLS beyond this host, and they report an
//! agent of an earlier release.
#![cfg(all(feature = "mcp", feature = "otlp", feature = "postgres"))]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use common::http::{Answer, read};
use common::job_stores::EndedJob;
use common::{Lab, PATIENCE, rankmesh, run, stderr, stdout, wait_for};
use model::frame::{self, FrameReader};
use model::{LocalRequest, LocalResponse};
use serde_json::{Value, json};

/// A `rankmesh serve` and its output.
struct Served {
    child: Child,
    output: Arc<Mutex<String>>,
}

impl Served {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let output = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&output);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut kept = kept.lock().expect("not poisoned");
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        Self { child, output }
    }

    fn output(&self) -> String {
        self.output.lock().expect("not poisoned").clone()
    }

    /// The rest of the first line that begins so.
    fn line(&mut self, begins: &str) -> String {
        wait_for(begins, || {
            let output = self.output();
            assert!(self.child.try_wait().expect("asked").is_none(), "it ended: {output}");
            output.lines().find_map(|line| line.strip_prefix(begins)).map(str::to_owned).ok_or(output)
        })
    }

    /// Where HTTP is served.
    fn place(&mut self) -> String {
        let line = self.line("serving ");
        line.rsplit_once(" on ").expect("a place").1.to_owned()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn request(method: &str, path: &str, host: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
    head.push_str(&format!("content-length: {}\r\n", body.len()));
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    format!("{head}\r\n{body}")
}

fn send(place: &str, request: &str) -> Answer {
    let mut stream = TcpStream::connect(place).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    stream.write_all(request.as_bytes()).expect("sent");
    read(stream, |_| false)
}

/// What an initialize of MCP is, as one message.
fn mcp_list() -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": "query", "arguments": { "sql": "SELECT 1 AS one" } } })
    .to_string()
}

const MCP: [(&str, &str); 2] =
    [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];

fn has(program: &str, test: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: {test}: there is no {program}");
    }
    found
}

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
    let mut served = Served::start(traced(&trace, &flags));
    let place = served.place();
    let bearer = signed_in(&mut served, &place);
    let get = |path: &str| {
        let answer = send(&place, &request("GET", path, &place, &[("authorization", &bearer)], ""));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer
    };
    let described = get("/api/v1/openapi.json").json();
    let paths = described["paths"].as_object().expect("paths");
    for path in paths.keys().filter(|path| !path.ends_with("/events") && paths[*path].get("get").is_some()) {
        let answer = send(&place, &request("GET", path, &place, &[("authorization", &bearer)], ""));
        // No verdict stands: nobody keeps what ranks do.
        assert!(answer.status < 500 || path == "/api/v1/board", "{path}: {}", answer.text());
    }
    for path in ["/", "/page/main.js", "/metrics", "/healthz"] {
        get(path);
    }
    let sql = request("POST", "/api/v1/query", &place, &[("authorization", &bearer)], "SELECT 1 AS one");
    assert_eq!(send(&place, &sql).json()["rows"], json!([[1]]));
    let headers = [MCP[0], MCP[1], ("authorization", &bearer)];
    let answer = send(&place, &request("POST", "/mcp", &place, &headers, &mcp_list()));
    assert!(answer.status < 500, "{}", answer.text());
    let url = served.line("psql ");
    let asked = Command::new("psql").args(["-X", "-At", &url, "-c", "SELECT count(*) FROM collectives"]).output();
    assert_eq!(stdout(&asked.expect("runs")), "0\n");
    wait_for("the file", || std::fs::read_to_string(&prom).map_err(|error| error.to_string()));
    drop(served);
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

/// A CA, and a certificate of it with its key, as files.
struct Certificates {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
    roots: rustls::RootCertStore,
}

fn certificates(lab: &Lab, name: &str) -> Certificates {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let ca_key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::<String>::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, format!("{name} CA"));
    let ca = params.self_signed(&ca_key).expect("signed");
    let issuer = Issuer::new(params, ca_key);
    let key = KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let cert = CertificateParams::new(names).expect("parameters").signed_by(&key, &issuer).expect("signed");
    let write = |kind: &str, pem: String| {
        let path = lab.path(&format!("{name}-{kind}.pem"));
        std::fs::write(&path, pem).expect("written");
        path
    };
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.der().clone()).expect("a root");
    Certificates {
        ca: write("ca", ca.pem()),
        cert: write("cert", cert.pem()),
        key: write("key", key.serialize_pem()),
        roots,
    }
}

/// An answer over TLS, by a client that trusts `roots` only.
fn tls(place: &str, roots: &rustls::RootCertStore, request: &str) -> Result<Answer, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots.clone())
        .with_no_client_auth();
    let name = "localhost".try_into().expect("a name");
    let client = rustls::ClientConnection::new(Arc::new(config), name).expect("a client");
    let stream = TcpStream::connect(place).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    let mut stream = rustls::StreamOwned::new(client, stream);
    stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
    Ok(read(stream, |_| false))
}

#[test]
fn beyond_this_host_there_are_tls_and_tokens() {
    const TEST: &str = "beyond_this_host_there_are_tls_and_tokens";
    let lab = Lab::new();
    let dir = lab.path("job");
    std::fs::create_dir(&dir).expect("a directory");
    EndedJob { steps: 60, ..EndedJob::small() }.write(&dir);
    let (ours, theirs) = (certificates(&lab, "ours"), certificates(&lab, "theirs"));
    let tokens = lab.path("tokens.json").display().to_string();
    let token = |name: &str, ttl: &str| {
        let of = [
            "identity", "token", "--role", "reader", "--for", "serve", "--tokens", &tokens, "--name", name, "--ttl",
            ttl,
        ];
        let made = run(&of);
        assert!(made.status.success(), "{}", stderr(&made));
        stdout(&made).trim().to_owned()
    };
    let (short, good) = (token("short", "1s"), token("olga", "1h"));
    let expired = std::time::Instant::now() + std::time::Duration::from_secs(2);
    let (db, text) = (dir.display().to_string(), |path: &Path| path.display().to_string());
    let (cert, key, other_key) = (text(&ours.cert), text(&ours.key), text(&theirs.key));
    let flags = ["serve", "--db", &db, "--listen", "0.0.0.0:0", "--postgres", "0.0.0.0:0", "--host", "localhost"];
    // A key of another certificate is no key; none of the three may be left out.
    for (more, expected) in [
        (&["--tls-cert", &cert, "--tls-key", &other_key, "--tokens", &tokens][..], "using "),
        (&["--tls-cert", &cert, "--tls-key", &key], "only with TLS and tokens"),
        (&["--tokens", &tokens], "only with TLS and tokens"),
        (&["--tls-cert", &cert, "--tokens", &tokens], "--tls-key"),
        (&["--tls-cert", "/nowhere", "--tls-key", &key, "--tokens", &tokens], "/nowhere"),
    ] {
        let refused = run(&[&flags[..], more].concat());
        assert!(!refused.status.success() && stderr(&refused).contains(expected), "{more:?}: {}", stderr(&refused));
    }
    let mut command = rankmesh();
    command.args(flags).args(["--tls-cert", &cert, "--tls-key", &key, "--tokens", &tokens]);
    let mut served = Served::start(command);
    let place = served.place().replace("0.0.0.0", "127.0.0.1");
    let host = format!("localhost:{}", place.rsplit_once(':').expect("a port").1);
    let ask = |token: &str, host: &str, more: &[(&str, &str)], sql: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [&[("authorization", bearer.as_str())][..], more].concat();
        tls(&place, &ours.roots, &request("POST", "/api/v1/query", host, &headers, sql)).expect("TLS")
    };
    assert_eq!(ask(&good, &host, &[], "SELECT count(*) FROM collectives").json()["rows"], json!([[480]]));
    assert_eq!(ask(&good, &host, &[], "SELECT comm FROM processes").status, 403, "a reader reads what readers may");
    // Who trusts another CA speaks to nobody; without TLS nothing is answered.
    let wrong = tls(&place, &theirs.roots, &request("GET", "/healthz", &host, &[], "")).expect_err("another CA");
    assert!(wrong.contains("UnknownIssuer"), "{wrong}");
    let mut plain = TcpStream::connect(&place).expect("it listens");
    plain.set_read_timeout(Some(PATIENCE)).expect("a time");
    plain.write_all(request("GET", "/healthz", &host, &[], "").as_bytes()).expect("sent");
    let mut answer = Vec::new();
    let _ = std::io::Read::read_to_end(&mut plain, &mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    // The page, from its own origin and under its own name only.
    let page = tls(&place, &ours.roots, &request("GET", "/", &host, &[], "")).expect("TLS");
    assert!(page.status == 200 && page.text().contains("<html"), "{}", page.status);
    let elsewhere = |host: &str, more: &[(&str, &str)]| ask(&good, host, more, "SELECT 1").status;
    let own = format!("https://{host}");
    assert_eq!(elsewhere(&host, &[("origin", &own)]), 200);
    assert_eq!(elsewhere(&host, &[("origin", &format!("http://{host}"))]), 403, "another scheme is another origin");
    assert_eq!(elsewhere(&host, &[("origin", "https://evil.example")]), 403);
    assert_eq!(elsewhere("evil.example", &[]), 421);
    assert_eq!(elsewhere(&format!("127.0.0.2:{}", &host[10..]), &[]), 421, "only names that were given");
    assert_eq!(ask(&good, &host, &[], &"x".repeat(700 << 10)).status, 413);
    assert_eq!(ask("rankmesh_wrong", &host, &[], "SELECT 1").status, 401);
    std::thread::sleep(expired.saturating_duration_since(std::time::Instant::now()));
    assert_eq!(ask(&short, &host, &[], "SELECT 1").status, 401, "it has ended");
    assert!(!served.output().contains("#k="), "nobody signs in by a link: {}", served.output());

    // PostgreSQL's protocol likewise: the user is the token's name.
    if has("psql", TEST) {
        let line = served.line("PostgreSQL's protocol on ");
        let port = line.split_once(',').expect("more").0.rsplit_once(':').expect("a port").1.to_owned();
        let psql = |user: &str, password: &str, more: &str| {
            let place = format!("host=localhost hostaddr=127.0.0.1 port={port} dbname=rankmesh user={user} {more}");
            let mut command = Command::new("psql");
            command.args(["-X", "-At", &place, "-c", "SELECT count(*) FROM collectives"]).env("PGPASSWORD", password);
            command.stdin(Stdio::null()).output().expect("psql runs")
        };
        let trusted = format!("sslmode=verify-full sslrootcert={}", ours.ca.display());
        let asked = psql("olga", &good, &trusted);
        assert_eq!(stdout(&asked), "480\n", "{}", stderr(&asked));
        for (user, password, more, expected) in [
            ("olga", "rankmesh_wrong", trusted.as_str(), "authentication failed"),
            ("short", &short, &trusted, "authentication failed"),
            ("rankmesh", &good, &trusted, "authentication failed"),
            (
                "olga",
                &good,
                &format!("sslmode=verify-full sslrootcert={}", theirs.ca.display()),
                "certificate verify failed",
            ),
            ("olga", &good, "sslmode=disable", "TLS"),
        ] {
            let refused = psql(user, password, more);
            assert!(
                !refused.status.success() && stderr(&refused).contains(expected),
                "{user} {more}: {}",
                stderr(&refused)
            );
        }
    }

    // More than a client may ask in a while: it gets the time to come again. (Last, as its bucket
    // is empty then.)
    let statuses: Vec<u16> = (0..400)
        .map(|_| {
            tls(
                &place,
                &ours.roots,
                &request("GET", "/healthz", &host, &[("authorization", &format!("Bearer {good}"))], ""),
            )
        })
        .map(|answer| answer.expect("TLS").status)
        .take_while(|status| *status == 200)
        .collect();
    assert!(statuses.len() < 400, "the rate of requests is bounded");
}

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
    let mut served = Served::start(command);
    let place = served.place();
    let bearer = signed_in(&mut served, &place);
    let problem = send(&place, &request("POST", "/api/v1/query", &place, &[("authorization", &bearer)], "SELECT 1"));
    let detail = problem.json()["detail"].as_str().expect("a detail").to_owned();
    assert!(problem.status == 502 && detail.contains(expected) && detail.contains(what), "{detail}");
    let metrics = send(&place, &request("GET", "/metrics", &place, &[("authorization", &bearer)], ""));
    assert!(metrics.status == 502 && metrics.text().contains(expected), "{}", metrics.text());
    if has("psql", TEST) {
        let url = served.line("psql ");
        let asked = Command::new("psql").args(["-X", "-At", &url, "-c", "SELECT count(*) FROM collectives"]).output();
        let asked = asked.expect("psql runs");
        assert!(stderr(&asked).contains(expected) && stderr(&asked).contains(what), "{}", stderr(&asked));
    }
    let answer = assistant(&["--socket", &socket], "schema", &json!({}));
    assert!(answer.to_string().contains(expected) && answer.to_string().contains(what), "{answer}");
}

/// An attribute of one of OpenTelemetry's messages, as in JSON.
fn attribute<'v>(of: &'v Value, key: &str) -> &'v Value {
    let all = of["attributes"].as_array().expect("attributes");
    let found = all.iter().find(|attribute| attribute["key"] == key);
    found.and_then(|found| found["value"].as_object()?.values().next()).unwrap_or(&Value::Null)
}

#[test]
fn a_collector_of_opentelemetry_gets_metrics_and_findings() {
    let test = "a_collector_of_opentelemetry_gets_metrics_and_findings";
    let Some(interpreter) = common::python::clients(test) else { return };
    let mut collector = Command::new(interpreter)
        .arg(common::python::script("otlp_receiver.py"))
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
    common::make_db(
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
    let mut served = Served::start(command);
    let place = served.place();

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
            Err(error) => assert!(written < 40, "{error}: {}", served.output()),
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
    assert_eq!(send(&place, &request("GET", "/healthz", &place, &[], "")).status, 200);
    collector.0.kill().expect("killed");
    wait_for("it is reported", || {
        let output = served.output();
        if output.contains("for the OpenTelemetry collector at 127.0.0.1: ") { Ok(()) } else { Err(output) }
    });
    assert_eq!(send(&place, &request("GET", "/healthz", &place, &[], "")).status, 200);
}

/// Ended with this.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Signs in with the link that it printed: the header of a session.
fn signed_in(served: &mut Served, place: &str) -> String {
    let secret = served.line("open ").split("#k=").nth(1).expect("a secret").to_owned();
    let session = json!({ "secret": secret }).to_string();
    let signed = request("POST", "/api/v1/session", place, &[("content-type", "application/json")], &session);
    format!("Bearer {}", send(place, &signed).json()["token"].as_str().expect("a token"))
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
    let mut served = Served::start(command);
    let place = served.place();
    let bearer = signed_in(&mut served, &place);
    let ask = |path: &str, sql: &str| send(&place, &request("POST", path, &place, &[("authorization", &bearer)], sql));
    let answer = ask("/api/v1/query?timeout=60s", sql);
    let each = SEGMENTS * ROWS;
    assert_eq!(answer.json()["rows"], json!([["n0", each, each], ["n1", each, each]]));
    let covered = &answer.json()["coverage"];
    assert_eq!((answer.status, &covered["answered"], &covered["missing"][0]["node"]), (206, &2.into(), &"n2".into()));
    assert!(
        covered["missing"][0]["reason"].as_str().is_some_and(|why| why.contains("is not an SQLite database")),
        "{covered}"
    );
    let lines = ask("/api/v1/query?timeout=60s&format=ndjson", "SELECT * FROM collectives").text();
    assert_eq!(lines.lines().count() as u64, all + 1);
    assert_eq!(ask("/api/v1/query?timeout=60s&require_all=true", sql).status, 503);

    let answer = assistant(&["--db", &db, "--timeout", "60s"], "query", &json!({ "sql": sql })).to_string();
    assert!(answer.contains("Coverage: 2 of 3 nodes answered. PARTIAL") && answer.contains("missing n2: "), "{answer}");
    assert!(answer.contains(&format!("n0,{each},{each}")) && answer.contains(&format!("n1,{each},{each}")), "{answer}");

    if has("psql", TEST) {
        let url = served.line("psql ");
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
