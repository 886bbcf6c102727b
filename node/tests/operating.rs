//! Tasks of an operator: examining a mesh (`rankmesh doctor`) while packets between hosts in
//! network namespaces pass one way only or are lost; and replacing a running agent by a newer one
//! (`rankmesh up --replace`).

mod common;

use common::netns::Hosts;
use common::{Lab, rankmesh, stderr, wait_for};
use serde_json::Value;

const NAMES: [&str; 3] = ["d1", "d2", "d3"];

/// What the doctor finds, asked at a node: node and kind, and the exit code.
fn findings(lab: &Lab, at: &str) -> (Vec<(String, String)>, Value, i32) {
    let output = lab.ask(at, "doctor", &["--format", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {} {}", String::from_utf8_lossy(&output.stdout), stderr(&output)));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let found = report["findings"].as_array().expect("findings").iter();
    let found = found.map(|finding| (text(&finding["node"]), text(&finding["what"]))).collect();
    (found, report, output.status.code().unwrap_or(-1))
}

/// Examines until `wanted` is found at `at`.
fn comes_to_find(lab: &Lab, at: &str, wanted: &[(&str, &str)]) -> (Value, i32) {
    wait_for(&format!("{at} finds {wanted:?}"), || {
        let (found, report, code) = findings(lab, at);
        let all = wanted.iter().all(|(node, what)| found.iter().any(|(n, w)| n == node && w == what));
        let right = if wanted.is_empty() { found.is_empty() } else { all };
        if right { Ok((report, code)) } else { Err(report["findings"].to_string()) }
    })
}

/// Three agents on hosts of their own; none where that is not possible, which is printed.
fn mesh(test: &str, tag: &str) -> Option<(Lab, Hosts)> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: {test}: needs root");
        return None;
    }
    let hosts = Hosts::new(tag, NAMES.len()).inspect_err(|why| eprintln!("skipped: {test}: {why}")).ok()?;
    let mut lab = Lab::new();
    for (index, name) in NAMES.iter().enumerate() {
        lab.start_at(name, Some(hosts.name(index + 1)), &hosts.address(index + 1), &[]);
    }
    lab.wait_for_members(&NAMES);
    Some((lab, hosts))
}

#[test]
#[ignore = "two minutes: make check NAME=doctor"]
fn the_doctor_says_which_way_is_blocked() {
    let Some((lab, hosts)) = mesh("the_doctor_says_which_way_is_blocked", "d") else { return };
    let (report, code) = comes_to_find(&lab, "d1", &[]);
    assert_eq!(code, 0, "{report}");
    let members = report["examination"]["members"].as_array().expect("members");
    let tried = |member: &Value| member["health"]["reached"].as_array().map(Vec::len);
    assert!(members.iter().all(|member| tried(member) == Some(2)), "{report}");
    let text = lab.ask("d2", "doctor", &[]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("6 of 6 ways between nodes work.") && text.contains("Nothing is wrong."), "{text}");

    // Packets of d2 do not reach d1; d3 receives from both.
    hosts.block_from(1, 2).expect("nft");
    let (report, code) = comes_to_find(&lab, "d1", &[("d1", "blocked one way"), ("d2", "blocked one way")]);
    assert_eq!(code, 1);
    let d2 = report["examination"]["members"].as_array().expect("members").iter().find(|m| m["name"] == "d2");
    assert_eq!(d2.expect("d2")["by_way_of"], "d3", "{report}");
    let details = report["findings"].to_string();
    assert!(details.contains("the answers of d2 do not arrive at d1"), "{details}");
    assert!(details.contains("of d1 in for d2"), "what to do names the deaf end: {details}");
}

#[test]
#[ignore = "minutes: make check NAME=doctor"]
fn the_doctor_says_what_else_is_wrong_between_hosts() {
    let Some((mut lab, hosts)) = mesh("the_doctor_says_what_else_is_wrong_between_hosts", "e") else { return };
    hosts.block_from(1, 2).expect("nft");
    hosts.block_from(2, 1).expect("nft");
    comes_to_find(&lab, "d1", &[("d1", "blocked both ways")]);
    hosts.unblock(1).expect("nft");
    hosts.unblock(2).expect("nft");
    comes_to_find(&lab, "d1", &[]);

    // As the connections find it when they are made.
    hosts.mtu(3, 1_280).expect("ip link");
    lab.kill("d3");
    lab.restart("d3");
    comes_to_find(&lab, "d1", &[("d1", "MTU"), ("d3", "MTU")]);
    hosts.mtu(3, 1_500).expect("ip link");

    hosts.lose(2).expect("nft");
    comes_to_find(&lab, "d1", &[("d1", "packet loss")]);
    hosts.unblock(2).expect("nft");

    lab.kill("d3");
    comes_to_find(&lab, "d1", &[("d3", "no agent")]);
}

/// d3 is behind a router that translates its address: it joins, and receives from the others, but
/// none of them can open a connection to it.
#[test]
#[ignore = "a minute: make check NAME=doctor"]
fn the_doctor_says_who_is_behind_nat() {
    let test = "the_doctor_says_who_is_behind_nat";
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: {test}: needs root");
        return;
    }
    let hosts = Hosts::new("n", NAMES.len()).inspect_err(|why| eprintln!("skipped: {test}: {why}"));
    let Ok(mut hosts) = hosts else { return };
    let inner = match hosts.behind_nat(3) {
        Ok(inner) => inner,
        Err(why) => return eprintln!("skipped: {test}: {why}"),
    };
    let mut lab = Lab::new();
    let public = [hosts.address(1), hosts.address(2)];
    for (index, (name, address)) in NAMES.iter().zip(&public).enumerate() {
        lab.start_at(name, Some(hosts.name(index + 1)), address, &[]);
    }
    let at = format!("{inner}:7117");
    lab.start_at("d3", Some(hosts.name(3)), &at, &[]);
    for at in ["d1", "d2"] {
        let (report, code) = comes_to_find(&lab, at, &[("d3", "address")]);
        assert_eq!(code, 1, "{report}");
        let details = report["findings"].to_string();
        assert!(details.contains(&format!("calls from {}", hosts.address(3))), "{details}");
        assert!(details.contains("--advertise"), "{details}");
    }
    // From within, it is the others that do not reach it.
    let (report, code) = comes_to_find(&lab, "d3", &[("d1", "blocked one way"), ("d2", "blocked one way")]);
    assert_eq!(code, 1, "{report}");

    // The doctor's remedy.
    lab.kill("d3");
    hosts.forward(3, 7117).expect("nft");
    lab.start_at("d3", Some(hosts.name(3)), &at, &["--advertise", &format!("{}:7117", hosts.address(3))]);
    for at in NAMES {
        let (report, code) = comes_to_find(&lab, at, &[]);
        assert_eq!(code, 0, "{report}");
    }
}

#[test]
fn a_newer_agent_takes_a_running_ones_place() {
    let mut lab = Lab::new();
    lab.start("r1", &[]);
    lab.start("r2", &[]);
    lab.wait_for_members(&["r1", "r2"]);
    let before = lab.pid("r2");
    let stop = |lab: &Lab| lab.query("r1", "SELECT count(*), max(stop_ns) FROM sessions WHERE node = 'r2'", &[]).0;
    let sessions = stop(&lab)["rows"][0][0].as_i64().expect("a count");
    let mut command = rankmesh();
    command.args(["up", "--replace", "--capture", "off", "--name", "r2", "--listen", "127.0.0.1:0", "--identity"]);
    command.arg(lab.issue("r2")).arg("--socket").arg(lab.socket("r2")).arg("--store").arg(lab.path("r2.db"));
    let first = lab.nodes("r1").expect("nodes")[0]["address"].as_str().expect("an address").to_owned();
    command.args(["--join", &first]).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    lab.adopt("r2-new", command);
    wait_for("the new one answers on the old one's socket", || {
        let rows = lab.nodes("r2")?;
        let gone = std::fs::read_to_string(format!("/proc/{before}/stat")).map_or(true, |stat| stat.contains(") Z "));
        if gone && rows.len() == 2 { Ok(()) } else { Err(format!("{rows:?}")) }
    });
    wait_for("r1 lists it", || {
        let nodes = lab.nodes("r1")?;
        let live = nodes.iter().filter(|node| node["state"] == "live").count();
        if live == 2 { Ok(()) } else { Err(format!("{nodes:?}")) }
    });
    let sql = "SELECT start_ns, stop_ns FROM sessions WHERE node = 'r2' ORDER BY start_ns";
    let rows = wait_for("one session ended and one began", || {
        let (answer, _) = lab.query("r1", sql, &[]);
        let rows = answer["rows"].as_array().cloned().unwrap_or_default();
        if rows.len() as i64 == sessions + 1 { Ok(rows) } else { Err(answer.to_string()) }
    });
    let at = |row: usize, column: usize| rows[row][column].as_i64();
    let gap_ns = at(rows.len() - 1, 0).expect("a start") - at(rows.len() - 2, 1).expect("it closed its store");
    eprintln!("recording was interrupted for {:.1} ms", gap_ns as f64 / 1e6);
    assert!(gap_ns > 0, "the two never hold the store at once: {rows:?}");
    assert!(gap_ns < 20_000_000_000, "even on a busy machine: {rows:?}");
    // What is missing is in the coverage.
    let (answer, _) = lab.query("r1", "SELECT count(*) FROM collectives", &[]);
    assert!(answer["coverage"]["notes"].to_string().contains("r2"), "{answer}");
}
