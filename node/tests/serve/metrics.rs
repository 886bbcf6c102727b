//! Metrics, the rules that alert by them, and the dashboard, as Prometheus' own tool reads them.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::http::Server;
use crate::common::{Lab, stderr, stdout, wait_for};

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
            // A histogram has three of them.
            let word = ["_bucket", "_sum", "_count"].iter().find_map(|part| word.strip_suffix(part)).unwrap_or(word);
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
    let child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: promtool {arguments:?}: it is not installed (Debian: prometheus)");
        return;
    };
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
}
