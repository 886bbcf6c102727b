//! Findings that p99 of a service has grown, on real servers.

use std::net::TcpStream;
use std::time::Duration;

#[cfg(feature = "serve")]
use crate::common::http::Server;
use crate::common::{Lab, stdout, wait_for};
use crate::{ask, hosts, until};

/// Seconds of requests that are a past, with looks every two seconds: twelve windows.
const PAST_SECONDS: i64 = 26;

/// A number that a question answers.
fn count(lab: &Lab, sql: &str) -> i64 {
    lab.query("n1", sql, &[]).0["rows"][0][0].as_i64().expect("a number")
}

/// Asks a server, every 25th of them for what is slow, until something is so.
fn ask_until(port: u16, slow: bool, what: &str, mut is_so: impl FnMut() -> bool) -> bool {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(60) {
        for n in 0..500 {
            let kind = if slow && n % 25 == 24 { "sleep" } else { "0" };
            ask(&mut connection, &format!("/{kind}/{n}"));
            std::thread::sleep(Duration::from_millis(1));
        }
        if is_so() {
            return true;
        }
    }
    println!("{what}: not within a minute");
    false
}

#[test]
fn p99_that_grows_is_a_finding_and_a_healthy_span_has_none() {
    let test = "p99_that_grows_is_a_finding_and_a_healthy_span_has_none";
    let handed_over = tempfile::NamedTempFile::new().expect("a file");
    let on_finding = format!("cat >> {}", handed_over.path().display());
    let Some((mut lab, _cgroups, servers)) = hosts(test, &["--tail-every", "2s", "--on-finding", &on_finding]) else {
        return;
    };
    let port = servers[0].1;
    // Another program on the CPUs makes p99 grow, too, and then that is true.
    let of_n1 = "FROM findings WHERE verdict = 'tail_grown' AND culprit_node = 'n1'";
    let grown = format!("SELECT count(*) {of_n1} AND detail NOT LIKE '%without a CPU%'");
    let of_timer = format!("{of_n1} AND cause LIKE '%asleep in a timer%'");
    let asleep = format!("SELECT count(*) {of_timer}");
    let (_, ()) = until(|| {
        let seconds = "SELECT count(DISTINCT bucket_ns) FROM request_rollups WHERE node = 'n1' AND max_ns < 50000000";
        let before = count(&lab, seconds);
        let is_past = ask_until(port, false, "a past", || count(&lab, seconds) >= before + PAST_SECONDS);
        // (Also findings on what other programs do: then it is no healthy span, and tried again.)
        let is_well = is_past && count(&lab, &grown) == 0;
        let is_found = is_well && ask_until(port, true, "a finding", || count(&lab, &asleep) > 0);
        let found = || lab.query("n1", "SELECT verdict, cause, detail FROM findings", &[]).0["rows"].clone();
        if is_found { Ok(()) } else { Err(serde_json::json!([found(), lab.log("n1")])) }
    });
    let (row, _) = lab.query("n1", &format!("SELECT ts_ns, lateness_ns, cause, detail {of_timer}"), &[]);
    let row = &row["rows"][0];
    let cause = row[2].as_str().expect("a cause");
    assert!(cause.starts_with("chat: p99 ") && cause.contains("asleep in a timer"), "{row}");
    assert!(row[1].as_i64() > Some(20_000_000), "{row}");
    // Who did it is not in the row, which readers may read, and in the explanation.
    assert!(!row.to_string().contains("python"), "{row}");
    let id = row[0].to_string();
    let explained = stdout(&lab.ask("n1", "explain", &[&id]));
    println!("{explained}");
    let words = explained.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.starts_with("p99 of chat on n1 is ") && words.contains("asleep in a timer, "), "{explained}");
    assert!(words.contains("of python3") && words.contains("rankmesh tail --service"), "{explained}");
    assert!(explained.lines().all(|line| line.chars().count() <= 80), "{explained}");
    #[cfg(feature = "serve")]
    {
        let server = Server::start(&["--socket", &lab.socket("n1").display().to_string()]);
        let metrics = server.get("/metrics").text();
        assert!(metrics.contains(r#"rankmesh_service_tail_grown{node="n1",service="chat"} 1.0"#), "{metrics}");
        assert!(server.get("/api/v1/findings").text().contains("tail_grown"));
    }
    let handed_over = std::fs::read_to_string(handed_over.path()).expect("what the command was handed");
    assert!(
        handed_over.contains(r#""kind":"tail_grown""#) && handed_over.contains("p99 of chat on n1"),
        "{handed_over}"
    );
    // An agent that is started again goes on: it is one finding, until it is over.
    lab.terminate("n1");
    lab.restart("n1");
    wait_for("the server to be followed again", || {
        let log = lab.log("n1");
        if log.matches("requests of chat are recorded").count() > 1 { Ok(()) } else { Err(log) }
    });
    let since = "SELECT count(*) FROM request_rollups WHERE node = 'n1' AND max_ns > 50000000";
    let before = count(&lab, since);
    assert!(ask_until(port, true, "slow seconds", || count(&lab, since) >= before + 8));
    assert_eq!(count(&lab, &asleep), 1, "{}", lab.log("n1"));
    let over = "SELECT count(*) FROM findings WHERE verdict = 'tail_over' AND culprit_node = 'n1'";
    assert!(ask_until(port, false, "the end", || count(&lab, over) > 0), "{}", lab.log("n1"));
}
