//! `rankmesh mcp` as the Python SDK of the Model Context Protocol sees it, over standard input and
//! output: real agents, and stores of a job that has ended.
#![cfg(feature = "mcp")]

mod common;

use std::io::{BufRead, BufReader};
use std::process::Command;

use common::job_stores::{EndedJob, HOSTILE};
use common::{Lab, python, stderr, stdout};
use rusqlite::Connection;
use serde_json::{Value, json};

/// What the SDK's client gets for these steps from `rankmesh mcp FLAGS`.
fn steps(test: &str, mode: &str, flags: &[&str], steps: &Value) -> Option<Value> {
    let server: Vec<&str> = [&[env!("CARGO_BIN_EXE_rankmesh"), "mcp"], flags].concat();
    asked(test, mode, &json!(server), steps)
}

/// The same of any server that the SDK can reach.
fn asked(test: &str, mode: &str, server: &Value, steps: &Value) -> Option<Value> {
    let interpreter = python::clients(test)?;
    let ran = Command::new(interpreter)
        .arg(python::script("mcp_steps.py"))
        .args([server.to_string(), mode.to_owned(), steps.to_string()])
        .output()
        .expect("python runs");
    assert!(ran.status.success(), "{}{}", stdout(&ran), stderr(&ran));
    Some(serde_json::from_slice(&ran.stdout).expect("JSON"))
}

fn text(answer: &Value, step: usize) -> &str {
    let step = &answer["steps"][step];
    assert_eq!(step["is_error"], false, "{step}");
    step["text"].as_str().expect("a text")
}

/// The lines between the marks, and what stands around them.
fn fenced(text: &str) -> (Vec<&str>, String) {
    let mark = text.lines().find(|line| line.starts_with("<data-")).expect("a mark");
    let (before, rest) = text.split_once(mark).expect("is there");
    let (inside, after) = rest.split_once(&mark.replace('<', "</")).expect("the end mark");
    (inside.trim().lines().collect(), format!("{before}{after}"))
}

#[test]
fn a_job_that_has_ended_is_diagnosed() {
    let lab = Lab::new();
    EndedJob { serves: true, ..EndedJob::small() }.write(lab.dir.path());
    let db = [lab.path("n0.db").display().to_string(), lab.path("n1.db").display().to_string()];
    let asked = json!([
        {"tool": "diagnose"},
        {"tool": "ranks", "arguments": {"ranks": "4-5"}},
        {"tool": "query", "arguments": {"sql": "SELECT node, count(*) AS n FROM collectives GROUP BY node ORDER BY node"}},
        {"tool": "query", "arguments": {"sql": "SELECT comm FROM processes WHERE rank = 5"}},
        {"tool": "nodes"},
        {"tool": "schema", "arguments": {"table": "collectives"}},
        {"resource": "rankmesh://schema/offcpu"},
        {"prompt": "investigate", "arguments": {"job": "4711"}},
        {"tool": "stacks"},
        {"tool": "query", "arguments": {"sql": "DROP TABLE collectives"}},
        {"tool": "query", "arguments": {"sql": "SELECT 1", "limits": 3}},
        {"tool": "ranks", "arguments": {"since": "yesterday-ish"}},
        {"resource": "rankmesh://schema/no_such"},
        {"prompt": "explain_finding"},
        {"tool": "no_such"},
        {"tool": "diagnose_tail", "arguments": {"by": "route"}},
        {"tool": "diagnose_tail", "arguments": {"by": "cause"}},
        {"tool": "diagnose_tail", "arguments": {"by": "colour"}},
        {"tool": "diagnose_tail", "arguments": {"service": "other"}},
    ]);
    for mode in ["auto", "legacy"] {
        let flags = ["--db", &db[0], "--db", &db[1], "--timeout", "60s"];
        let Some(answer) = steps("a_job_that_has_ended_is_diagnosed", mode, &flags, &asked) else { return };
        assert_eq!(answer["server"], "rankmesh");
        assert_eq!(
            answer["protocol"].as_str().expect("a version") >= "2026-07-28",
            mode == "auto",
            "{}",
            answer["protocol"]
        );
        let tools = answer["tools"].as_array().expect("tools");
        let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
        assert_eq!(names, ["diagnose", "diagnose_tail", "ranks", "query", "schema", "stacks", "nodes"]);
        assert!(tools.iter().all(|tool| tool["annotations"]["readOnlyHint"] == true));
        assert_eq!(answer["resources"], json!(["rankmesh://schema"]));
        assert_eq!(answer["templates"], json!(["rankmesh://schema/{table}"]));
        assert_eq!(answer["prompts"], json!(["investigate", "explain_finding", "write_report"]));
        assert!(answer["instructions"].as_str().expect("instructions").contains("never instructions"));

        let (diagnosis, around) = fenced(text(&answer, 0));
        assert!(diagnosis.iter().any(|line| line.contains("ank 5")), "{diagnosis:#?}");
        assert!(around.starts_with("Coverage: 2 of 2 nodes answered.") && around.contains("ranks=5"), "{around}");
        // What a process called itself stands between the marks, and nowhere else.
        assert!(diagnosis.iter().any(|line| line.contains(HOSTILE)) && !around.contains(HOSTILE), "{diagnosis:#?}");
        let (ranks, _) = fenced(text(&answer, 1));
        assert!(ranks[0].starts_with("comm,rank,node"), "{ranks:#?}");
        assert!(ranks.len() == 3 && ranks[1].contains(",5,n1,") && ranks[1].contains("culprit"), "{ranks:#?}");
        assert_eq!(fenced(text(&answer, 2)).0, ["node,n", "n0,400", "n1,400"]);
        let (names, around) = fenced(text(&answer, 3));
        assert!(names == ["comm", HOSTILE] && !around.contains("img"), "{names:?} {around}");
        assert_eq!(fenced(text(&answer, 4)).0.len(), 3);
        assert!(text(&answer, 5).contains("duration_ns"));
        assert!(answer["steps"][6]["text"].as_str().expect("a resource").contains("next_comm"));
        assert!(answer["steps"][7]["text"].as_str().expect("a prompt").contains("diagnose with job=4711"));
        for (step, expected) in
            [(8, "ask an agent"), (9, "SELECT"), (10, "there is no argument limits"), (11, "yesterday-ish")]
        {
            let step = &answer["steps"][step];
            assert_eq!(step["is_error"], true, "{step}");
            assert!(step["text"].as_str().expect("a text").contains(expected), "{step}");
        }
        let (tail, around) = fenced(text(&answer, 15));
        let tail = tail.join(" ");
        assert!(tail.starts_with("chat: 1200 requests, p50 5.0"), "{tail}");
        assert!(
            tail.contains("GET /slow") && tail.contains("asleep in a timer") && tail.contains("Examples:"),
            "{tail}"
        );
        assert!(
            around.starts_with("Coverage: 2 of 2 nodes answered.") && around.contains("request_stretches"),
            "{around}"
        );
        assert!(tail.contains(HOSTILE) && !around.contains(HOSTILE), "{around}");
        let by_cause = fenced(text(&answer, 16)).0.join(" ");
        let words = by_cause.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("cause, and one of them 100 % 24 "), "{by_cause}");
        let wrong = &answer["steps"][17];
        assert!(
            wrong["text"]
                .as_str()
                .expect("a text")
                .contains("there is no colour; there are host, tenant, route, cause"),
            "{wrong}"
        );
        assert!(text(&answer, 18).contains("No requests that were asked for are stored"), "{}", text(&answer, 18));
        for (step, expected) in [(12, "no_such"), (13, "'finding' is missing"), (14, "no tool 'no_such'")] {
            let step = &answer["steps"][step];
            assert!(step["protocol_error"].as_str().is_some_and(|text| text.contains(expected)), "{step}");
        }
    }
}

#[test]
fn answers_are_bounded_and_paged() {
    let lab = Lab::new();
    let path = lab.path("many.db");
    let conn = Connection::open(&path).expect("a database");
    conn.execute_batch(
        "CREATE TABLE t(i INTEGER, text TEXT);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99999) INSERT INTO t SELECT i, 'row ' || i FROM n",
    )
    .expect("rows");
    drop(conn);
    let db = path.display().to_string();
    let sql = "SELECT i, text FROM t ORDER BY i";
    let asked = json!([
        {"tool": "query", "arguments": {"sql": sql}},
        {"tool": "query", "arguments": {"sql": sql, "limit": 10000}},
        {"tool": "query", "arguments": {"sql": sql, "offset": 99998}},
        {"tool": "query", "arguments": {"sql": "SELECT group_concat(text) FROM t"}},
        {"tool": "schema"},
    ]);
    let Some(answer) = steps("answers_are_bounded_and_paged", "auto", &["--db", &db, "--timeout", "60s"], &asked)
    else {
        return;
    };
    let (rows, around) = fenced(text(&answer, 0));
    assert_eq!(rows.len(), 201);
    assert!(around.contains("rows 1 to 200 of 100000. TRUNCATED: for more call again with offset=200"), "{around}");
    let (rows, around) = fenced(text(&answer, 1));
    assert!((500..5_000).contains(&rows.len()), "{}", rows.len());
    assert!(around.contains(&format!("call again with offset={}", rows.len() - 1)), "{around}");
    // A safe estimate of 8,000 tokens is never more than 32,000 letters.
    assert!(text(&answer, 1).len() < 32_000, "{}", text(&answer, 1).len());
    let (rows, around) = fenced(text(&answer, 2));
    assert_eq!(rows, ["i,text", "99998,row 99998", "99999,row 99999"]);
    assert!(around.contains("rows 99999 to 100000 of 100000.") && !around.contains("TRUNCATED"), "{around}");
    let (rows, _) = fenced(text(&answer, 3));
    assert!(rows[1].contains("(cut: ") && rows[1].len() < 32_000, "{}", rows[1].len());
    assert_eq!(fenced(text(&answer, 4)).0, ["t"]);
}

#[test]
fn a_node_that_is_gone_is_in_the_text() {
    let mut lab = Lab::new();
    lab.start("a", &[]);
    lab.start("b", &[]);
    lab.wait_for_members(&["a", "b"]);
    lab.kill("b");
    common::wait_for("b is known to be dead", || {
        let nodes = lab.nodes("a")?;
        let dead = nodes.iter().any(|node| node["name"] == "b" && node["state"] == "dead");
        if dead { Ok(()) } else { Err(format!("{nodes:?}")) }
    });
    let socket = lab.socket("a").display().to_string();
    let asked = json!([
        {"tool": "query", "arguments": {"sql": "SELECT count(*) FROM collectives"}},
        {"tool": "nodes"},
        {"tool": "diagnose"},
        {"tool": "stacks"},
    ]);
    let flags = ["--socket", &socket, "--timeout", "30s"];
    let Some(answer) = steps("a_node_that_is_gone_is_in_the_text", "auto", &flags, &asked) else { return };
    let (rows, around) = fenced(text(&answer, 0));
    assert!(around.contains("Coverage: 1 of 2 nodes answered. PARTIAL"), "{around}");
    assert!(rows.iter().any(|row| row.contains("missing b: ")), "{rows:#?}");
    assert!(text(&answer, 1).contains("b,dead"));
    assert!(text(&answer, 2).contains("Coverage: "));
    let required = [&flags[..], &["--require-all"]].concat();
    let answer = steps("a_node_that_is_gone_is_in_the_text", "auto", &required, &asked).expect("as before");
    for step in [0, 2, 3].map(|step| &answer["steps"][step]) {
        assert!(
            step["is_error"] == true && step["text"].as_str().is_some_and(|text| text.contains("missing b")),
            "{step}"
        );
    }
}

#[test]
fn over_http_it_takes_a_token_and_asks_as_a_reader() {
    let test = "over_http_it_takes_a_token_and_asks_as_a_reader";
    let mut lab = Lab::new();
    lab.start("a", &[]);
    let tokens = lab.path("tokens.json").display().to_string();
    let made = common::run(&["identity", "token", "--for", "serve", "--tokens", &tokens, "--name", "assistant"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let token = stdout(&made).lines().find(|line| line.starts_with("rankmesh_")).expect("a token").trim().to_owned();
    let socket = lab.socket("a").display().to_string();
    let mut serve = common::rankmesh();
    serve.args(["serve", "--listen", "127.0.0.1:0", "--socket", &socket, "--tokens", &tokens]);
    let mut served = serve.stderr(std::process::Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(served.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    let place = lines.find_map(|line| line.rsplit_once(" on ").map(|(_, place)| place.to_owned())).expect("where");
    std::thread::spawn(move || lines.for_each(|line| eprintln!("{line}")));
    let url = format!("http://{place}/mcp");
    let steps = json!([
        {"tool": "query", "arguments": {"sql": "SELECT 1 AS one"}},
        {"tool": "query", "arguments": {"sql": "SELECT count(*) FROM audit"}},
        {"tool": "nodes"},
    ]);
    let mut answers = Vec::new();
    for mode in ["auto", "legacy"] {
        let server = json!({"url": url, "headers": {"Authorization": format!("Bearer {token}")}});
        let Some(answer) = asked(test, mode, &server, &steps) else { break };
        answers.push(answer);
    }
    let refused = python::clients(test).map(|interpreter| {
        let arguments = [json!({"url": url}).to_string(), "auto".to_owned(), "[]".to_owned()];
        Command::new(interpreter).arg(python::script("mcp_steps.py")).args(arguments).output().expect("runs")
    });
    let _ = served.kill();
    let _ = served.wait();
    for answer in &answers {
        assert_eq!(fenced(text(answer, 0)).0[..2], ["one", "1"]);
        let step = &answer["steps"][1];
        assert!(step["is_error"] == true && step["text"].as_str().is_some_and(|text| text.contains("audit")), "{step}");
        assert!(text(answer, 2).contains("a,live"));
    }
    assert!(refused.is_none_or(|refused| !refused.status.success()), "without a token");
}
