//! Real agents on hosts of their own (network namespaces): a cable that is pulled, packets that are
//! lost, a host that no longer receives from another, agents that are killed and stopped. Every
//! answer is judged: it is the sum over exactly the nodes that answered by its coverage, in time,
//! with the right exit code; every intact node is in it; and after each fault the mesh recovers by
//! itself.
//!
//! Links here have no delay (that needs a kernel with netem); the lab's relay delays
//! (`scenarios/tests/chaos.rs`).

mod common;

use std::time::{Duration, Instant};

use common::netns::Hosts;
use common::{Lab, make_db, stderr, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const NAMES: [&str; 4] = ["h1", "h2", "h3", "h4"];
const SQL: &str = "SELECT sum(x), count(*) FROM t";
const DEADLINE: Duration = Duration::from_secs(3);
/// How long after its deadline a question is given up as one that never ends.
const SLACK: Duration = Duration::from_secs(300);

/// Whose rows are in a sum: host N has one row, 10 to the power of N.
fn in_sum(sum: i64) -> Vec<usize> {
    (1..=NAMES.len()).filter(|host| sum / 10_i64.pow(u32::try_from(*host).expect("small")) % 10 == 1).collect()
}

/// Asks at a host and judges the answer; returns the hosts in it: none where the deadline passed
/// before any answered, which the message states.
fn ask(lab: &Lab, at: usize) -> Vec<usize> {
    let began = Instant::now();
    let output = lab.ask(NAMES[at - 1], "query", &["--format", "json", "--timeout", "3s", SQL]);
    let took = began.elapsed();
    let (printed, code) = (stderr(&output), output.status.code());
    assert!(took < DEADLINE + SLACK, "an answer after {took:?}: {printed}");
    if output.stdout.is_empty() {
        // A machine that stood still for as long.
        assert!(code == Some(1) && printed.contains("timeout: no answer within 3000 ms"), "{code:?}: {printed}");
        return Vec::new();
    }
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let coverage = &answer["coverage"];
    let missing: Vec<usize> = coverage["missing"]
        .as_array()
        .expect("who is missing")
        .iter()
        .map(|missing| {
            assert!(missing["reason"].as_str().is_some_and(|why| !why.is_empty()), "{coverage}");
            1 + NAMES.iter().position(|name| missing["node"] == *name).expect("a node of the mesh")
        })
        .collect();
    let answered: Vec<usize> = (1..=NAMES.len()).filter(|host| !missing.contains(host)).collect();
    let sum: i64 = answered.iter().map(|host| 10_i64.pow(u32::try_from(*host).expect("small"))).sum();
    assert_eq!(answer["rows"], serde_json::json!([[sum, answered.len()]]), "asked at h{at}: {coverage}");
    assert_eq!(in_sum(answer["rows"][0][0].as_i64().expect("a sum")), answered);
    assert_eq!((&coverage["asked"], &coverage["answered"]), (&NAMES.len().into(), &answered.len().into()));
    assert_eq!(code, Some(if missing.is_empty() { 0 } else { 3 }), "{coverage}");
    answered
}

/// A host's answers are right from the first on, and come to be of exactly these: on a busy machine
/// one that is well may need longer than the deadline at first.
fn comes_to(lab: &Lab, at: usize, wanted: &[usize]) {
    wait_for(&format!("h{at} has an answer of {wanted:?}"), || {
        let answered = ask(lab, at);
        assert!(answered.is_empty() || answered.contains(&at), "a host reaches itself: {answered:?}");
        if answered == wanted { Ok(()) } else { Err(format!("of {answered:?}")) }
    });
}

/// Every host has an answer of all, at last.
fn heals(lab: &Lab) {
    for at in 1..=NAMES.len() {
        comes_to(lab, at, &[1, 2, 3, 4]);
    }
}

fn signal(lab: &Lab, name: &str, signal: Signal) {
    kill(Pid::from_raw(lab.pid(name).cast_signed()), signal).expect("a running agent");
}

#[test]
fn every_answer_is_right_while_hosts_and_links_fail() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: every_answer_is_right_while_hosts_and_links_fail: needs root");
        return;
    }
    let hosts = match Hosts::new("h", NAMES.len()) {
        Ok(hosts) => hosts,
        Err(why) => {
            eprintln!("skipped: every_answer_is_right_while_hosts_and_links_fail: {why}");
            return;
        }
    };
    let mut lab = Lab::new();
    for (index, name) in NAMES.iter().enumerate() {
        let file = lab.path(&format!("{name}-rows.db"));
        let x = 10_i64.pow(u32::try_from(index + 1).expect("small"));
        make_db(&file, &format!("CREATE TABLE t(x INTEGER NOT NULL); INSERT INTO t VALUES ({x});"));
        let more = ["--serve-db", &file.display().to_string()];
        lab.start_at(name, Some(hosts.name(index + 1)), &hosts.address(index + 1), &more);
    }
    lab.wait_for_members(&NAMES);
    comes_to(&lab, 1, &[1, 2, 3, 4]);

    // A cable: the host answers for itself alone, the others for themselves.
    hosts.link(4, false).expect("the cable");
    comes_to(&lab, 1, &[1, 2, 3]);
    comes_to(&lab, 4, &[4]);
    hosts.link(4, true).expect("the cable");
    heals(&lab);

    // Ten of a hundred packets: QUIC sends them again, and nothing is missing for long.
    if let Err(why) = hosts.lose(3) {
        eprintln!("skipped: packets that are lost: {why}");
    } else {
        heals(&lab);
        hosts.unblock(3).expect("nft");

        // One that no longer receives from another: a node that reaches both has them both.
        hosts.block_from(2, 3).expect("nft");
        for at in [1, 4] {
            comes_to(&lab, at, &[1, 2, 3, 4]);
        }
        comes_to(&lab, 2, &[1, 2, 4]);
        comes_to(&lab, 3, &[1, 3, 4]);
        hosts.unblock(2).expect("nft");
        heals(&lab);
    }

    // Half of the cables: the other half goes on.
    for host in [3, 4] {
        hosts.link(host, false).expect("the cable");
    }
    comes_to(&lab, 1, &[1, 2]);
    comes_to(&lab, 2, &[1, 2]);
    for host in [3, 4] {
        hosts.link(host, true).expect("the cable");
    }

    // Stopped, killed, and both back.
    signal(&lab, "h2", Signal::SIGSTOP);
    lab.kill("h4");
    let answered = wait_for("h1 answers", || match ask(&lab, 1) {
        answered if answered.is_empty() => Err("nobody in time".to_owned()),
        answered => Ok(answered),
    });
    assert!(answered.contains(&1) && !answered.contains(&2) && !answered.contains(&4), "{answered:?}");
    signal(&lab, "h2", Signal::SIGCONT);
    lab.restart("h4");
    heals(&lab);
}
