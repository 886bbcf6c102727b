//! What `rankmesh tail` says, and findings on it, as programs and readers get them.

use serde_json::{Value, json};

use crate::common::http::Server;
use crate::common::{Lab, job_stores, requests, run, stdout};
use crate::{of_stores, reader_token, stores_that_serve};

#[test]
fn the_tail_is_that_of_the_command_line() {
    let lab = Lab::new();
    let dir = stores_that_serve(&lab);
    let path = dir.display().to_string();
    let server = of_stores(&dir);
    // Nothing is an answer here, where the command line says what to do.
    let none = server.get("/api/v1/tail?since=2025-01-01T00:00:00Z&until=2025-01-02T00:00:00Z");
    assert_eq!((none.status, &none.json()["services"]), (200, &json!([])), "{}", none.text());
    for (asked, flags) in [
        ("", &[][..]),
        ("?since=1h&by=route&service=chat", &["--since", "1h", "--by", "route", "--service", "chat"]),
        ("?by=cause", &["--by", "cause"]),
        ("?tenant=user:ada&route=/slow&nodes=n1", &["--tenant", "user:ada", "--route", "/slow", "--nodes", "n1"]),
    ] {
        let served = server.get(&format!("/api/v1/tail{asked}")).json();
        let printed = run(&[&["tail", "--db", &path, "--format", "json"], flags].concat());
        assert_eq!(served, serde_json::from_str::<Value>(&stdout(&printed)).expect("JSON"), "{asked}");
    }
    let all = server.get("/api/v1/tail").json();
    let chat = &all["services"][0];
    assert_eq!((&chat["service"], &chat["count"]), (&"chat".into(), &(2 * requests::OF_A_HOST).into()), "{chat}");
    let more = &chat["slowest"]["excess"]["parts"][0];
    assert_eq!(more["part"]["kind"], "asleep", "{chat}");
    assert_eq!(
        more["text"],
        format!("asleep in a timer, thread {} of python3 serve.py", job_stores::HOSTILE),
        "{chat}"
    );
    let causes = chat["slowest"]["causes"].as_array().expect("causes");
    assert_eq!((causes.len(), &causes[0]["text"], &causes[0]["count"]), (1, &more["text"], &24.into()), "{chat}");
    let example = &chat["slowest"]["examples"][0];
    assert_eq!(example["path"].as_array().map(Vec::len), Some(2), "{example}");
    // A finding on it is explained by the same.
    let findings = server.get("/api/v1/findings").json();
    let of_n1 = |row: &&Value| row[0] == "n1" && row.to_string().contains("tail_grown");
    let finding = &findings["rows"].as_array().expect("rows").iter().find(of_n1).expect("one of n1")[1];
    let explained = format!("/api/v1/explain?finding={finding}");
    let found = server.get(&explained).json();
    assert_eq!((&found["verdict"], &found["runbook"]), (&"tail_grown".into(), &"tail".into()), "{found}");
    assert!(found["what"].as_str().is_some_and(|what| what.starts_with("p99 of chat on n")), "{found}");
    let cause = format!("of what its slowest take longer, 100 %: {}", more["text"].as_str().expect("a text"));
    assert_eq!((&found["cause"], found["chain"].as_array().map(Vec::len)), (&cause.into(), Some(2)), "{found}");
    // Readers see neither paths nor tenants, programs nor threads, and may not ask by them.
    drop(server);
    let (file, token) = reader_token(&lab);
    let server = Server::start(&["--db", &path, "--tokens", &file]);
    let reader = format!("Bearer {token}");
    let asked = |path: &str| server.send("GET", path, &[("authorization", &reader)], b"");
    let seen = asked("/api/v1/tail");
    assert_eq!(seen.json()["services"][0]["count"], chat["count"], "{}", seen.text());
    for hidden in ["/slow", "python3", "ada", "img"] {
        assert!(!seen.text().contains(hidden), "{hidden}: {}", seen.text());
    }
    let found = asked(&explained);
    assert_eq!(found.json()["cause"], "of what its slowest take longer, 100 %: asleep in a timer", "{}", found.text());
    for hidden in ["/slow", "python3", "img"] {
        assert!(!found.text().contains(hidden), "{hidden}: {}", found.text());
    }
    for by in ["by=route", "by=tenant", "tenant=user:ada", "route=/slow"] {
        let refused = asked(&format!("/api/v1/tail?{by}"));
        assert_eq!(refused.status, 403, "{by}: {}", refused.text());
    }
    // A word that is none.
    let wrong = server.get("/api/v1/tail?by=colour");
    assert!(wrong.status == 400 && wrong.text().contains("host"), "{}", wrong.text());
}
