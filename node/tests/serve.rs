//! `rankmesh serve` for its clients: every path of its own description, who is admitted, how
//! incomplete answers are marked, and how it handles wrong requests.
#![cfg(feature = "serve")]

mod common;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use common::chromium::Chromium;
use common::http::{Server, read};
use common::job_stores::EndedJob;
use common::{Lab, run, stderr, stdout, wait_for};
use serde_json::{Value, json};

/// Stores of a job that has ended.
fn stores(lab: &Lab) -> PathBuf {
    let dir = lab.path("job");
    std::fs::create_dir(&dir).expect("a directory");
    EndedJob { steps: 60, ..EndedJob::small() }.write(&dir);
    dir
}

fn of_stores(dir: &std::path::Path) -> Server {
    Server::start(&["--db", &dir.display().to_string()])
}

#[test]
fn every_path_of_the_description_answers_as_described() {
    let lab = Lab::new();
    let server = of_stores(&stores(&lab));
    let description = server.send("GET", "/api/v1/openapi.json", &[], b"").json();
    assert_eq!(description["openapi"], "3.1.0");
    let paths = description["paths"].as_object().expect("paths");
    assert_eq!(paths.len(), 15);
    let text = description.to_string();
    for name in text.split("\"$ref\":\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(description.pointer(name).is_some(), "there is no {name}");
    }
    let bearer = format!("Bearer {}", server.token);
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().expect("methods") {
            let method = method.to_uppercase();
            let body: &[u8] = if method == "POST" { b"SELECT 1 AS one" } else { b"" };
            let headers = [("authorization", bearer.as_str())];
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let required: Vec<String> = parameters
                .iter()
                .filter(|parameter| parameter["required"] == true)
                .map(|parameter| match parameter["name"].as_str().expect("a name") {
                    "comm" => "comm=fedc000000000001".to_owned(),
                    "func" => "func=all_reduce".to_owned(),
                    "seq" => "seq=7".to_owned(),
                    "at_ns" => format!("at_ns={}", common::job_stores::T0 + 1_500_000_000),
                    other => panic!("{path} needs {other}"),
                })
                .collect();
            let asked = format!("{path}?{}", required.join("&"));
            // Events go on: the first is enough. The verdict on stores is of their last minute.
            let answer = server.send_until(&method, &asked, &headers, body, |_| true);
            // Requests that only an agent can answer are refused with that reason.
            let needs_agent = path == "/api/v1/stacks";
            assert_eq!(answer.status, if needs_agent { 400 } else { 200 }, "{path}: {}", answer.text());
            let described =
                if needs_agent { &operation["responses"]["default"] } else { &operation["responses"]["200"] };
            let kind = answer.header("content-type").expect("a type").split(';').next().expect("a part").to_owned();
            assert!(described["content"].get(&kind).is_some(), "{path} gives {kind}: {described}");
            if kind == "application/json" {
                fits(&answer.json(), &described["content"][&kind]["schema"], &description, path);
            }
            assert_eq!(operation["responses"]["429"].is_object(), operation["security"] != json!([{}]), "{path}");
            // No parameter but those described; and each of those is known.
            if !parameters.is_empty() {
                let unknown = server.send_until(&method, &format!("{asked}&nonsense=1"), &headers, body, |_| true);
                assert_eq!(unknown.status, 400, "{path}: {}", unknown.text());
                assert_eq!(unknown.header("content-type"), Some("application/problem+json"));
            }
            for parameter in &parameters {
                let name = parameter["name"].as_str().expect("a name");
                let given = server.send_until(&method, &format!("{asked}&{name}=%00"), &headers, body, |_| true);
                assert!(!given.text().contains("unknown field"), "{path}?{name}: {}", given.text());
                assert!(given.status < 500 || given.status == 502, "{path}?{name}: {}", given.text());
            }
            // Without a token nothing but what is open.
            let open = operation["security"] == json!([{}]);
            let unknown = server.send(&method, path, &[], body);
            assert_eq!(unknown.status, if open { 200 } else { 401 }, "{path}");
        }
    }
}

/// Whether a document fits a schema of the description.
fn fits(value: &Value, schema: &Value, description: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let pointer = name.strip_prefix('#').expect("within the description");
        return fits(value, description.pointer(pointer).expect("a schema"), description, at);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let choice = choices.iter().find(|choice| (choice["type"] == "null") == value.is_null()).expect("a choice");
        return fits(value, choice, description, at);
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        kinds => kinds.as_array().into_iter().flatten().filter_map(Value::as_str).collect(),
    };
    let is = |kind: &&str| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("{at}: type {other}"),
    };
    assert!(kinds.is_empty() || kinds.iter().any(is), "{at}: {value} is none of {kinds:?}");
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        assert!(value.get(name).is_some(), "{at} lacks {name}: {value}");
    }
    for (name, part) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(value) = value.get(name) {
            fits(value, part, description, &format!("{at}.{name}"));
        }
    }
    for item in value.as_array().into_iter().flatten().take(20) {
        fits(item, &schema["items"], description, &format!("{at}[]"));
    }
}

#[test]
fn a_verdict_is_that_of_the_command_line() {
    let lab = Lab::new();
    let dir = stores(&lab);
    let server = of_stores(&dir);
    let answer = server.get("/api/v1/stragglers?since=1h");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let printed = run(&["stragglers", "--db", &dir.display().to_string(), "--since", "1h", "--format", "json"]);
    let mut printed: Value = serde_json::from_str(&stdout(&printed)).expect("JSON");
    let mut served = answer.json();
    assert!(served["text"].as_str().expect("text").contains("Rank 5 on host n1"), "{served}");
    for document in [&mut printed, &mut served] {
        for field in ["text", "all", "sql", "elapsed_ms"] {
            document.as_object_mut().expect("an object").remove(field);
        }
    }
    assert_eq!(served, printed);
    let explained = server.get("/api/v1/explain?since=1h").json();
    assert!(explained["text"].as_str().expect("text").contains("rank 5"), "{explained}");
    let bill = server.get("/api/v1/cost?timeout=60s").json();
    let printed = run(&["cost", "--db", &dir.display().to_string(), "--timeout", "60s", "--format", "json"]);
    assert_eq!(bill, serde_json::from_str::<Value>(&stdout(&printed)).expect("JSON"));
    let dearest = &bill["culprits"][0];
    assert_eq!((&dearest["rank"], &dearest["node"]), (&5.into(), &"n1".into()), "{bill}");
    let board = server.get("/api/v1/board").json();
    assert_eq!(board["ranks"].as_array().expect("ranks").len(), 8);
}

#[test]
fn rows_come_in_each_form_and_say_who_is_in_them() {
    let lab = Lab::new();
    let dir = stores(&lab);
    let server = of_stores(&dir);
    let sql = "SELECT rank, count(*) AS calls FROM collectives GROUP BY rank ORDER BY rank LIMIT 2";
    let json = server.sql("", sql);
    assert_eq!(json.status, 200, "{}", json.text());
    assert_eq!(json.json()["rows"], json!([[0, 60], [1, 60]]));
    assert_eq!(json.json()["coverage"]["answered"], 2);
    let lines = server.sql("?format=ndjson", sql).text();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines[0], json!({ "rank": 0, "calls": 60 }));
    assert_eq!(lines[2]["coverage"]["answered"], 2);
    let csv = server.sql("?format=csv", sql);
    assert_eq!(csv.text(), "rank,calls\n0,60\n1,60\n");
    let header: Value = serde_json::from_str(csv.header("rankmesh-coverage").expect("it")).expect("JSON");
    assert_eq!(header["asked"], 2);
    let bearer = format!("Bearer {}", server.token);
    let asked = |accept: &str, kind: &str, body: &[u8]| {
        server.send(
            "POST",
            "/api/v1/query",
            &[("authorization", &bearer), ("accept", accept), ("content-type", kind)],
            body,
        )
    };
    assert_eq!(asked("text/csv", "application/json", br#"{"sql":"SELECT 1 AS a"}"#).text(), "a\n1\n");
    assert_eq!(asked("image/png", "application/sql", b"SELECT 1").status, 406);
    let wrong = asked("*/*", "application/sql", b"SELECT nothing FROM collectives");
    assert_eq!((wrong.status, wrong.header("content-type")), (400, Some("application/problem+json")));
    assert!(wrong.json()["detail"].as_str().expect("text").contains("nothing"), "{}", wrong.text());
    assert!(server.sql("?explain=plan", sql).text().contains("strategy"));
    let arrow = server.sql("?format=arrow", sql);
    assert_eq!(arrow.header("content-type"), Some("application/vnd.apache.arrow.stream"));
    let parquet = server.sql("?format=parquet", sql);
    assert_eq!(parquet.header("content-type"), Some("application/vnd.apache.parquet"));
    assert!(parquet.body.starts_with(b"PAR1") && parquet.body.ends_with(b"PAR1"), "{} bytes", parquet.body.len());
    let mixed = server.sql("?format=arrow", "SELECT 1 AS a UNION ALL SELECT 'x'");
    assert_eq!(mixed.status, 400, "{}", mixed.text());
    // Values are values.
    let body = |text: &str| asked("*/*", "application/json", text.as_bytes());
    let given = body(
        r#"{"sql":"SELECT count(*), :who FROM collectives WHERE rank = :rank","parameters":{"rank":5,"who":"'; --"}}"#,
    );
    assert_eq!(given.json()["rows"], json!([[60, "'; --"]]), "{}", given.text());
    let saved = body(r#"{"saved":"durations-by-rank","parameters":{"since":"1h","job":"4711"}}"#);
    assert_eq!(saved.json()["rows"].as_array().map(Vec::len), Some(8), "{}", saved.text());
    for (wrong, expected) in [
        (r#"{"sql":"SELECT :x"}"#, "cannot be bound"),
        (r#"{"sql":"SELECT :x","parameters":{"y":1}}"#, ":x has no value"),
        (r#"{"sql":"SELECT 1","saved":"jobs"}"#, "one of them"),
        (r#"{"saved":"../jobs"}"#, "no investigation"),
        (r#"{"saved":"jobs","parameters":{"since":"yesterday-ish"}}"#, "is not a time"),
        (r#"{"sql":"SELECT :x","parameters":{"x":[1]}}"#, "a value is"),
    ] {
        let answer = body(wrong);
        assert!(answer.status == 400 && answer.text().contains(expected), "{wrong}: {}", answer.text());
    }
    // More than is buffered: it is sent as it comes, and its end has the coverage.
    let many = "SELECT a.ts_ns, hex(zeroblob(300)) AS wide FROM collectives a, collectives b LIMIT 40000";
    let long = server.sql("?format=ndjson&timeout=60s", many);
    assert_eq!((long.status, long.header("rankmesh-coverage"), long.complete), (200, Some("at-end"), true));
    assert_eq!(long.text().lines().count(), 40_001);
    assert!(long.text().lines().last().expect("a line").contains("\"answered\":2"));
}

#[test]
fn what_is_partial_is_206_or_nothing() {
    let lab = Lab::new();
    let dir = stores(&lab);
    std::fs::write(dir.join("n2.db"), b"no database").expect("written");
    let server = of_stores(&dir);
    let answer = server.sql("", "SELECT count(*) FROM collectives");
    assert_eq!(answer.status, 206, "{}", answer.text());
    assert_eq!(answer.json()["coverage"]["missing"][0]["node"], "n2");
    let none = server.sql("?require_all=true", "SELECT count(*) FROM collectives");
    assert_eq!(none.status, 503, "{}", none.text());
    assert_eq!(none.json()["type"], "urn:rankmesh:problem:partial");
    assert_eq!(none.json()["coverage"]["missing"][0]["node"], "n2");
    assert_eq!(server.get("/api/v1/stragglers?since=1h").status, 206);
    assert_eq!(server.get("/api/v1/stragglers?since=1h&require_all=true").status, 503);
    assert_eq!(server.get("/api/v1/findings").status, 206);
    // A format without a place for the coverage is broken off, so that it is not taken for
    // complete.
    let many = "SELECT a.ts_ns, hex(zeroblob(300)) AS wide FROM collectives a, collectives b LIMIT 40000";
    let cut = server.sql("?format=csv&timeout=60s", many);
    assert!(!cut.complete, "it must not look complete");
    // Parquet has it at its end.
    let parquet = server.sql("?format=parquet&timeout=60s", many);
    let end = String::from_utf8_lossy(&parquet.body[parquet.body.len().saturating_sub(4096)..]).into_owned();
    assert!(parquet.complete && end.contains("rankmesh.coverage") && end.contains("\"node\":\"n2\""), "{end}");
}

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
    let file = lab.path("tokens.json");
    let made = run(&["identity", "token", "--for", "serve", "--tokens", &file.display().to_string(), "--name", "olga"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let token = stdout(&made).trim().to_owned();
    let server = Server::start(&["--db", &dir.display().to_string(), "--tokens", &file.display().to_string()]);
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
    lab_adopt(&lab, &["serve", "--db", &dir, "--listen", &listen], |_| {
        assert!(common::http::there(&path));
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        let ask = |host: &str| {
            let mut stream = std::os::unix::net::UnixStream::connect(&path).expect("it listens");
            stream.set_read_timeout(Some(common::PATIENCE)).expect("a time");
            write!(stream, "GET /api/v1/nodes HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").expect("sent");
            read(stream, |_| false).status
        };
        assert_eq!(ask("localhost:8088"), 200);
        assert_eq!(ask("evil.example"), 421);
    });
}

/// Runs a command while `during` looks at it.
fn lab_adopt(_lab: &Lab, arguments: &[&str], during: impl FnOnce(u32)) {
    struct Kill(std::process::Child);
    impl Drop for Kill {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let child = Kill(common::rankmesh().args(arguments).spawn().expect("it starts"));
    during(child.0.id());
}

#[test]
fn the_page_signs_in_by_its_link_shows_the_verdict_and_answers_sql() {
    const TEST: &str = "the_page_signs_in_by_its_link_shows_the_verdict_and_answers_sql";
    let lab = Lab::new();
    let server = of_stores(&stores(&lab));
    for path in ["/", "/page/main.js"] {
        let file = server.send("GET", path, &[], b"");
        assert_eq!(file.status, 200);
        let policy = file.header("content-security-policy").expect("a policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }
    let mut browser = match Chromium::open_url(&server.link, 1200, false) {
        Ok(browser) => browser,
        Err(why) => {
            eprintln!("skipped: {TEST}: {why}");
            return;
        }
    };
    browser.wait_until("document.getElementById('headline').textContent.includes('Rank 5 on host n1')");
    assert_eq!(browser.evaluate("location.hash + document.cookie + localStorage.length"), "0", "no secret stays");
    browser.wait_until("document.querySelector('#rank-table tbody td')?.textContent === '5'");
    // Others' words are text: a process called itself markup, and so does an answer.
    browser.evaluate("document.getElementById('tab-sql').click()");
    browser.evaluate(
        "(() => { const box = document.getElementById('question'); box.focus(); \
         box.value = \"SELECT rank, count(*) AS calls, '<img src=x onerror=alert(1)>' AS words FROM collectives GROUP BY rank ORDER BY rank\"; \
         box.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', ctrlKey: true, cancelable: true })); })()",
    );
    browser.wait_until("document.getElementById('answer').textContent.includes('<img src=x onerror=alert(1)>')");
    browser.wait_until("document.getElementById('coverage').textContent.startsWith('2 of 2 nodes answered')");
    assert_eq!(browser.evaluate("document.querySelectorAll('img').length"), 0);
    browser.evaluate("(() => { const kind = document.getElementById('chart-kind'); kind.value = 'bar'; kind.dispatchEvent(new Event('change')); })()");
    browser.wait_until("document.querySelector('#chart canvas') !== null");
    // A wrong question is reported as wrong.
    browser.evaluate("(() => { document.getElementById('question').value = 'SELECT nothing FROM collectives'; document.getElementById('ask').requestSubmit(); })()");
    browser.wait_until("document.getElementById('planned').textContent.includes('nothing')");
    // Words are completed from the schema.
    browser.wait_until("document.querySelectorAll('#schema details').length > 10");
    let completed = "(() => { const box = document.getElementById('question'); box.value = 'SELECT * FROM collec'; box.selectionStart = box.value.length; \
        box.dispatchEvent(new Event('input')); box.dispatchEvent(new KeyboardEvent('keydown', { key: 'Tab', cancelable: true })); return box.value; })()";
    assert_eq!(browser.evaluate(completed), "SELECT * FROM collectives");
    // The map has pixels, and the culprit's row another colour at its end than at its beginning.
    browser.evaluate("document.getElementById('tab-ranks').click()");
    browser.wait_until("document.getElementById('map-note').textContent.startsWith('8 ranks')");
    let colours = "(() => { const map = document.getElementById('map'), of = map.getContext('2d'); \
        return [0.05, 0.95].map((x) => [...of.getImageData(Math.floor(map.width * x), Math.floor(map.height / 16), 1, 1).data].join()); })()";
    browser.wait_until(&format!("(() => {{ const [a, b] = {colours}; return a !== b; }})()"));
    if let Some(dir) = std::env::var_os("RANKMESH_REPORT_OUT") {
        browser.screenshot(&PathBuf::from(dir).join("serve.png"));
    }
    // Nothing from elsewhere; refused requests of above are logged by the browser as errors of the
    // network.
    let own = format!("http://{}/", server.address);
    let wrong: Vec<String> = browser
        .complaints()
        .into_iter()
        .filter(|complaint| !complaint.contains(&own) && !complaint.contains("400 (Bad Request)"))
        .collect();
    assert_eq!(wrong, Vec::<String>::new());
    let refused = "new Promise((done) => { document.addEventListener('securitypolicyviolation', (event) => done(event.effectiveDirective)); \
        fetch('http://127.0.0.1:9/').catch(() => {}); })";
    assert_eq!(browser.evaluate(refused), "connect-src");
    // Without a network it reports that and goes on.
    browser.go_offline();
    browser.evaluate("(() => { document.getElementById('question').value = 'SELECT 1'; document.getElementById('ask').requestSubmit(); })()");
    browser.wait_until("document.getElementById('planned').textContent.length > 0");
}

#[test]
fn metrics_are_of_what_goes_on_and_prometheus_reads_them() {
    let mut lab = Lab::new();
    lab.start("a", &["--capture", "off"]);
    lab.start("b", &["--capture", "off"]);
    lab.wait_for_members(&["a", "b"]);
    let socket = lab.socket("a").display().to_string();
    let file = lab.path("rankmesh.prom");
    let server = Server::start(&["--socket", &socket, "--textfile", &file.display().to_string()]);
    let answer = server.get("/metrics");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.header("content-type").expect("a type").starts_with("application/openmetrics-text"));
    let text = answer.text();
    for line in
        ["rankmesh_up{} 1.0", "rankmesh_nodes{state=\"live\"} 2.0", "rankmesh_node_ranks{node=\"b\"} 0.0", "# EOF"]
    {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    let written = wait_for("the file", || std::fs::read_to_string(&file).map_err(|error| error.to_string()));
    assert!(written.contains("rankmesh_up{} 1.0") && written.contains("node=\"a\""), "{written}");
    assert!(!written.contains("node=\"b\""), "another host writes its own: {written}");
    assert!(!server.get("/metrics?own=true").text().contains("node=\"b\""));
    promtool(&["check", "metrics"], &written);
}

#[test]
fn alert_rules_do_what_they_say() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../packaging/prometheus");
    let path = |name: &str| dir.join(name).display().to_string();
    promtool(&["check", "rules", &path("rankmesh.rules.yml")], "");
    promtool(&["test", "rules", &path("rankmesh.rules.test.yml")], "");
    // What rules and dashboard ask for is there.
    let metrics = std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("front/serve/src/series.rs"))
        .expect("read");
    for file in ["rankmesh.rules.yml", "grafana-dashboard.json"] {
        let text = std::fs::read_to_string(dir.join(file)).expect("read");
        let words =
            text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("rankmesh_"));
        let mut count = 0;
        for word in words {
            assert!(metrics.contains(&format!("(\"{word}\", ")), "{file} asks for {word}");
            count += 1;
        }
        assert!(count > 5, "{file}");
    }
    let board: Value =
        serde_json::from_str(&std::fs::read_to_string(dir.join("grafana-dashboard.json")).expect("read"))
            .expect("JSON");
    assert!(board["panels"].as_array().expect("panels").len() >= 10);
}

/// Runs Prometheus' own tool, where it is.
fn promtool(arguments: &[&str], input: &str) {
    let child = std::process::Command::new("promtool")
        .args(arguments)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: promtool {arguments:?}: it is not installed (Debian: prometheus)");
        return;
    };
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
}
