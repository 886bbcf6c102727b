//! Who is admitted, and from where; what else is refused, and in which time.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::json;

use crate::common::http::{Server, read};
use crate::common::{Killed, Lab, PATIENCE, rankmesh, run, stderr, stdout, wait_for};
use crate::{of_stores, reader_token, stores};

#[test]
fn who_is_not_known_or_comes_from_elsewhere_gets_nothing() {
    let lab = Lab::new();
    let server = of_stores(&stores(&lab));
    let bearer = format!("Bearer {}", server.token);
    let nodes = |headers: &[(&str, &str)]| {
        let mut all = vec![("authorization", bearer.as_str())];
        all.extend_from_slice(headers);
        server.send("GET", "/api/v1/nodes", &all, b"").status
    };
    let own = format!("http://{}", server.address);
    assert_eq!(nodes(&[("origin", &own)]), 200);
    assert_eq!(nodes(&[("origin", "http://localhost:9")]), 403, "another port is another user's");
    assert_eq!(nodes(&[("origin", "null")]), 403);
    assert_eq!(nodes(&[("sec-fetch-site", "cross-site")]), 403);
    assert_eq!(nodes(&[("host", "evil.example")]), 421);
    assert_eq!(nodes(&[("host", "localhost:8088")]), 200, "a tunnel");
    for path in ["/api/v1/nodes", "/metrics"] {
        assert_eq!(server.send("GET", path, &[], b"").status, 401);
        let wrong = server.send("GET", path, &[("authorization", "Bearer x")], b"");
        assert_eq!(wrong.status, 401);
        assert_eq!(wrong.header("www-authenticate"), Some("Bearer"));
    }
    // No cookie, nothing that another site's page may read, and nothing that it may frame.
    let answer = server.get("/api/v1/nodes");
    assert_eq!(answer.header("set-cookie"), None);
    assert_eq!(answer.header("access-control-allow-origin"), None);
    assert_eq!(answer.header("x-frame-options"), Some("DENY"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    assert_eq!(answer.header("x-request-id").map(str::len), Some(16));
    // A link is good once, and who guesses is made to wait.
    let sign_in = |secret: &str| {
        let body = json!({ "secret": secret }).to_string();
        server.send("POST", "/api/v1/session", &[("content-type", "application/json")], body.as_bytes()).status
    };
    let unread = server.send("POST", "/api/v1/session", &[("content-type", "application/json")], b"{\"key\":1}");
    assert_eq!((unread.status, unread.header("content-type")), (422, Some("application/problem+json")));
    assert!(unread.text().contains("secret") && !unread.text().contains("deserialize"), "{}", unread.text());
    let secret = server.link.split("#k=").nth(1).expect("a secret").to_owned();
    assert_eq!(sign_in(&secret), 200);
    let statuses: Vec<u16> = (0..12).map(|_| sign_in(&secret)).collect();
    assert_eq!((statuses[0], statuses[11]), (401, 429), "{statuses:?}");
}

#[test]
fn what_should_not_come_is_refused_in_bounded_time() {
    let lab = Lab::new();
    let server = of_stores(&stores(&lab));
    let large = server.sql("", &"x".repeat(700 << 10));
    assert_eq!(large.status, 413, "{}", large.text());
    let mut stream = server.connect();
    stream
        .write_all(
            format!("GET / HTTP/1.1\r\nhost: {}\r\nx: {}\r\n\r\n", server.address, "y".repeat(64 << 10)).as_bytes(),
        )
        .expect("sent");
    assert_eq!(read(stream, |_| true).status, 431);
    let longest = server.sql("?timeout=1h", "SELECT 1");
    assert_eq!(longest.status, 400, "{}", longest.text());
    let slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
    let late = server.sql("?timeout=300ms", slow);
    assert!([504, 502].contains(&late.status), "{}", late.text());
    // A client that sends nothing is dropped.
    let mut idle = server.connect();
    idle.write_all(b"GET / HTT").expect("sent");
    let mut rest = Vec::new();
    idle.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
    let _ = idle.read_to_end(&mut rest);
    // More than may be asked at once: some are refused, with the time to come again.
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..24).map(|_| scope.spawn(|| server.sql("?timeout=3s", slow).status)).collect();
        asked.into_iter().map(|asked| asked.join().expect("answered")).collect()
    });
    assert!(statuses.contains(&429), "{statuses:?}");
    assert_eq!(server.sql("", "SELECT 1").status, 200, "and it still answers");
}

#[test]
fn beyond_loopback_only_with_tls_and_tokens_and_a_reader_reads() {
    let lab = Lab::new();
    let refused = run(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--tls-cert"), "{}", stderr(&refused));
    let dir = stores(&lab);
    let (file, token) = reader_token(&lab);
    let server = Server::start(&["--db", &dir.display().to_string(), "--tokens", &file]);
    let asked = |sql: &str| {
        server.send("POST", "/api/v1/query", &[("authorization", &format!("Bearer {token}"))], sql.as_bytes())
    };
    assert_eq!(asked("SELECT count(*) FROM collectives").status, 200);
    let hidden = asked("SELECT comm FROM processes");
    assert_eq!(hidden.status, 403, "{}", hidden.text());
    assert!(hidden.text().contains("not allowed"), "{}", hidden.text());
    assert_eq!(server.sql("", "SELECT comm FROM processes").status, 200, "who started it sees it");
}

#[test]
fn an_agent_keeps_who_asked_and_a_reader_has_less_than_the_server() {
    let mut lab = Lab::new();
    lab.start("a", &["--capture", "off"]);
    lab.wait_for_members(&["a"]);
    let file = lab.path("tokens.json");
    let made = run(&["identity", "token", "--for", "serve", "--tokens", &file.display().to_string(), "--name", "olga"]);
    let token = stdout(&made).trim().to_owned();
    let socket = lab.socket("a").display().to_string();
    let server = Server::start(&["--socket", &socket, "--tokens", &file.display().to_string()]);
    let answer = server.sql("", "SELECT count(*) FROM collectives");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let number = answer.header("x-request-id").expect("a number").to_owned();
    let audit =
        server.send("POST", "/api/v1/query", &[("authorization", &format!("Bearer {token}"))], b"SELECT * FROM audit");
    assert!(audit.text().contains("not allowed"), "{}", audit.text());
    wait_for("the audit has the request", || {
        let sql = "SELECT who, role, kind, question FROM audit ORDER BY ts_ns";
        let (rows, _) = lab.query("a", sql, &[]);
        let text = rows["rows"].to_string();
        let kept = text.contains(&format!("/* request {number} of page-1 */ SELECT count(*) FROM collectives"))
            && text.contains("of token-olga */");
        kept.then_some(()).ok_or(text)
    });
    // It goes, and is missed.
    lab.kill("a");
    let gone = server.get("/api/v1/nodes");
    assert_eq!(gone.status, 503, "{}", gone.text());
    assert_eq!(gone.json()["type"], "urn:rankmesh:problem:unreachable");
    assert!(!server.printed().contains("panicked"), "{}", server.printed());
}

#[test]
fn on_a_socket_file_the_kernel_says_who_asks() {
    let lab = Lab::new();
    let path = lab.path("serve.sock");
    let dir = stores(&lab).display().to_string();
    let listen = format!("unix:{}", path.display());
    let serve = ["serve", "--db", &dir, "--listen", &listen];
    let _serving = Killed(rankmesh().args(serve).spawn().expect("it starts"));
    wait_for("the socket", || if path.exists() { Ok(()) } else { Err("no file".to_owned()) });
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    let ask = |host: &str| {
        let mut stream = UnixStream::connect(&path).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        write!(stream, "GET /api/v1/nodes HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").expect("sent");
        read(stream, |_| false).status
    };
    assert_eq!(ask("localhost:8088"), 200);
    assert_eq!(ask("evil.example"), 421);
}

/// More connections of one address than there is room for, all of them with a head that does not end:
/// those that are asked nothing make room, and who asks waits for none of them.
#[test]
fn slow_connections_keep_nobody_out() {
    let lab = Lab::new();
    let server = of_stores(&stores(&lab));
    wait_for("an answer while slow connections are open", || {
        let begun: Vec<_> = (0..400)
            .map(|_| {
                let mut stream = server.connect();
                let _ = stream.write_all(b"GET /api/v1/nodes HTTP/1.1\r\nHost: localhost\r\nX-Slow: ");
                stream
            })
            .collect();
        assert_eq!(server.get("/api/v1/nodes").status, 200);
        // Were they not to make room, they would all have been waited for.
        let is_open = |mut stream: &std::net::TcpStream| {
            stream.set_nonblocking(true).expect("set");
            matches!(stream.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
        };
        let open = begun.iter().filter(|stream| is_open(stream)).count();
        if (100..=128).contains(&open) { Ok(()) } else { Err(format!("{open} are open")) }
    });
}
