//! Answers of every path: as the description has it, as the command line gives it, in each form,
//! and marked where they are partial.

use serde_json::{Value, json};

use crate::common::{Lab, job_stores, run, stdout};
use crate::{of_stores, stores, stores_that_serve};

#[test]
fn every_path_of_the_description_answers_as_described() {
    let lab = Lab::new();
    let server = of_stores(&stores_that_serve(&lab));
    let description = server.send("GET", "/api/v1/openapi.json", &[], b"").json();
    assert_eq!(description["openapi"], "3.1.0");
    let paths = description["paths"].as_object().expect("paths");
    assert_eq!(paths.len(), 16);
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
                    "at_ns" => format!("at_ns={}", job_stores::T0 + 1_500_000_000),
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
            let unknown = server.send_until(&method, &format!("{asked}&nonsense=1"), &headers, body, |_| true);
            assert_eq!(unknown.status, 400, "{path}: {}", unknown.text());
            assert_eq!(unknown.header("content-type"), Some("application/problem+json"));
            assert!(unknown.text().contains("no parameter nonsense"), "{path}: {}", unknown.text());
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
    // Members of a part that stand beside those of the whole.
    for part in schema["allOf"].as_array().into_iter().flatten() {
        fits(value, part, description, at);
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
        for field in ["text", "all", "evidence_text", "sql", "elapsed_ms"] {
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
    // What has no form elsewhere is what it is, or refused with what to write.
    let odd = "SELECT 9e999 AS r, -9e999 AS s, x'fffe' AS b";
    let of_texts = format!("{odd}, CAST(x'fffe' AS TEXT) AS t");
    assert_eq!(server.sql("?format=csv", &of_texts).body, b"r,s,b,t\nInf,-Inf,x'fffe',\xff\xfe\n");
    for form in ["arrow", "parquet"] {
        assert_eq!(server.sql(&format!("?format={form}"), odd).status, 200);
        let refused = server.sql(&format!("?format={form}"), &of_texts);
        assert!(refused.status == 400 && refused.text().contains("column t holds"), "{}", refused.text());
        assert!(refused.text().contains("not UTF-8: CAST it AS BLOB"), "{}", refused.text());
    }
    // Values are values.
    let body = |text: &str| asked("*/*", "application/json", text.as_bytes());
    let given = body(
        r#"{"sql":"SELECT count(*), :who FROM collectives WHERE rank = :rank","parameters":{"rank":5,"who":"'; --"}}"#,
    );
    assert_eq!(given.json()["rows"], json!([[60, "'; --"]]), "{}", given.text());
    // What JSON has no form for is what the description says, and goes in as it came out.
    let forms = server.sql("", "SELECT x'00ff', CAST(x'61ff' AS TEXT), 9e999, -9e999").json()["rows"].clone();
    let schemas = server.send("GET", "/api/v1/openapi.json", &[], b"").json()["components"]["schemas"].clone();
    for described in [&schemas["Rows"]["properties"]["rows"], &schemas["Sql"]["properties"]["parameters"]] {
        let words = described["description"].as_str().expect("a description").replace(' ', "");
        for form in forms[0].as_array().expect("a row").iter().take(3) {
            assert!(words.contains(&form.to_string()) && !words.contains("x'"), "{form}: {words}");
        }
    }
    let parameters = json!({ "a": forms[0][0], "b": forms[0][1], "c": forms[0][2], "d": forms[0][3], "e": "a\0b" });
    let again = body(&json!({ "sql": "SELECT :a, :b, :c, :d, :e", "parameters": parameters }).to_string());
    let given: Vec<&Value> = parameters.as_object().expect("an object").values().collect();
    assert_eq!(again.json()["rows"], json!([given]), "{}", again.text());
    let named = body(r#"{"sql":"SELECT count(*) FROM collectives WHERE func <> :x","parameters":{"x":{"text":"ff"}}}"#);
    assert_eq!(named.json()["rows"], json!([[480]]), "{}", named.text());
    let saved = body(r#"{"saved":"durations-by-rank","parameters":{"since":"1h","job":"4711"}}"#);
    assert_eq!(saved.json()["rows"].as_array().map(Vec::len), Some(8), "{}", saved.text());
    for (wrong, expected) in [
        (r#"{"sql":"SELECT :x"}"#, ":x has no value"),
        (r#"{"sql":"SELECT :x","parameters":{"y":1}}"#, ":x has no value"),
        (r#"{"sql":"SELECT 1","saved":"jobs"}"#, "one of them"),
        (r#"{"saved":"../jobs"}"#, "no investigation"),
        (r#"{"saved":"jobs","parameters":{"since":"yesterday-ish"}}"#, "is not a time"),
        (r#"{"sql":"SELECT :x","parameters":{"x":[1]}}"#, "a value is"),
        (r#"{"saved":"durations-by-rank","parameters":{"job":{"blob":"00"}}}"#, "is a number or a text"),
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
fn forms_are_negotiated_and_what_is_known_is_not_sent_again() {
    let lab = Lab::new();
    let server = of_stores(&stores(&lab));
    let bearer = format!("Bearer {}", server.token);
    let asked = |sql: &[u8], more: &[(&str, &str)]| {
        let headers = [&[("authorization", bearer.as_str())], more].concat();
        server.send("POST", "/api/v1/query", &headers, sql)
    };
    let kind = |accept: &str| {
        let answer = asked(b"SELECT 1", &[("accept", accept)]);
        (answer.status, answer.header("content-type").unwrap_or_default().to_owned())
    };
    assert_eq!(kind("application/json;q=0.1, text/csv").1, "text/csv; charset=utf-8");
    assert_eq!(kind("text/csv;q=0, */*;q=0.5").1, "application/json");
    assert_eq!(kind("text/html, */*;q=0.8").1, "application/json");
    assert_eq!(kind("text/html").0, 406);
    // Rows are compressed where they are many.
    let many = b"SELECT ts_ns, rank, seq FROM collectives ORDER BY 1, 2, 3";
    let (plain, gzip) = (asked(many, &[]), asked(many, &[("accept-encoding", "gzip")]));
    assert_eq!((plain.header("content-encoding"), gzip.header("content-encoding")), (None, Some("gzip")));
    assert!(gzip.body.len() * 2 < plain.body.len(), "{} of {}", gzip.body.len(), plain.body.len());
    // What does not change has a tag.
    for path in ["/", "/page/main.js", "/api/v1/openapi.json"] {
        let first = server.send("GET", path, &[], b"");
        let tag = first.header("etag").unwrap_or_else(|| panic!("{path} has no tag")).to_owned();
        let again = server.send("GET", path, &[("if-none-match", &tag)], b"");
        assert_eq!((first.status, again.status, again.body.len()), (200, 304, 0), "{path}");
    }
    // No value can be taken for another, and what goes in comes out.
    let values = asked(b"SELECT x'00ff', CAST(x'ff' AS TEXT), 'x''00ff''', 9e999, 'Inf'", &[]).json();
    let expected = json!([{"blob": "00ff"}, {"text": "ff"}, "x'00ff'", {"real": "Inf"}, "Inf"]);
    assert_eq!(values["rows"][0], expected);
    let parameters = json!({ "a": {"blob": "00ff"}, "b": {"real": "-Inf"} });
    let body = json!({ "sql": "SELECT :a, :b", "parameters": parameters }).to_string();
    let given = asked(body.as_bytes(), &[("content-type", "application/json")]).json();
    assert_eq!(given["rows"][0], json!([{"blob": "00ff"}, {"real": "-Inf"}]));
    let wrong = asked(b"[1]", &[("content-type", "application/json")]);
    assert!(wrong.status == 400 && wrong.text().contains("a list where an object is wanted"), "{}", wrong.text());
}

#[cfg(feature = "mcp")]
#[test]
fn an_assistants_protocol_is_spoken_to_whoever_accepts_anything() {
    let lab = Lab::new();
    let server = of_stores(&stores(&lab));
    let bearer = format!("Bearer {}", server.token);
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } } });
    for accept in [None, Some("*/*"), Some("application/json, text/event-stream")] {
        let mut headers = vec![("authorization", bearer.as_str()), ("content-type", "application/json")];
        headers.extend(accept.map(|accept| ("accept", accept)));
        let answer = server.send("POST", "/mcp", &headers, hello.to_string().as_bytes());
        assert_eq!(answer.status, 200, "{accept:?}: {}", answer.text());
        assert_eq!(answer.json()["result"]["serverInfo"]["name"], "rankmesh", "{accept:?}");
    }
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let unread = server.send("POST", "/mcp", &headers, b"{\"jsonrpc\":\"2.0\"}");
    assert_eq!(unread.header("content-type"), Some("application/problem+json"), "{}", unread.text());
    assert!(!unread.text().contains("deserialize"), "{}", unread.text());
}

/// The paths that the description does not have; of its own each is tried above.
#[test]
fn parameters_that_are_not_known_are_refused_everywhere() {
    let lab = Lab::new();
    let server = of_stores(&stores(&lab));
    let bearer = format!("Bearer {}", server.token);
    let mcp = if cfg!(feature = "mcp") { &["/mcp"][..] } else { &[] };
    for path in ["/", "/page/main.js", "/healthz", "/metrics"].iter().chain(mcp) {
        let asked = |path: &str| match path.starts_with("/mcp") {
            true => {
                let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
                server.send("POST", path, &headers, b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}")
            }
            false => server.get(path),
        };
        assert!(!asked(path).text().contains("no parameter"), "{path}");
        let refused = asked(&format!("{path}?nonsense=1"));
        assert_eq!((refused.status, refused.header("content-type")), (400, Some("application/problem+json")), "{path}");
        assert!(refused.text().contains("no parameter nonsense"), "{path}: {}", refused.text());
    }
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
fn of_many_findings_the_newest_are_shown_and_all_can_be_asked_for() {
    const OF_ONE_DAY: i64 = 1_200;
    let lab = Lab::new();
    let dir = stores(&lab);
    let age = std::time::Duration::from_secs(100 * 365 * 86_400);
    let config = store::StoreConfig { max_age: age, ..store::StoreConfig::default() };
    let store = store::Store::open(dir.join("n0.db"), config).expect("a store");
    for second in 1..=OF_ONE_DAY {
        let found = job_stores::T0 + second * 1_000_000_000;
        store.ingest().finding(store::Finding { ts_ns: found, verdict: "rank".to_owned(), ..Default::default() });
    }
    store.close();
    let server = of_stores(&dir);
    let found = |path: &str| {
        let answer = server.get(path).json();
        let column =
            |name: &str| answer["columns"].as_array().unwrap().iter().position(|column| column["name"] == name);
        let (rows, at) = (answer["rows"].as_array().unwrap(), column("ts_ns").unwrap());
        let second = |row: &Value| (row[at].as_i64().unwrap() - job_stores::T0) / 1_000_000_000;
        (second(&rows[0]), second(&rows[rows.len() - 1]), rows.len(), answer["more"].as_bool().unwrap())
    };
    assert_eq!(found("/api/v1/findings"), (201, OF_ONE_DAY, 1_000, true), "the newest, oldest first");
    // (The job itself has one, too.)
    assert_eq!(found("/api/v1/findings?after=0"), (1, 999, 1_000, true));
    let after = job_stores::T0 + 1_000 * 1_000_000_000;
    assert_eq!(found(&format!("/api/v1/findings?after={after}")), (1_001, OF_ONE_DAY, 200, false));
}
