//! Requests that are calls of a function, of a C++ program that listens to nobody.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::jobs::Cgroups;
use crate::common::{Killed, Lab, can_capture, has, stdout, wait_for};
use crate::{now, share, tail, until};

const CALLS: usize = 1_500;

#[test]
fn what_a_slow_call_waited_for_is_told() {
    let test = "what_a_slow_call_waited_for_is_told";
    if !can_capture(test) || !has("c++", test) {
        return;
    }
    let mut lab = Lab::new();
    let (cgroups, program) = (Cgroups::new(test, &["n1"]), lab.path("engine"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tail/calls.cc");
    let made = Command::new("c++").args(["-O2", "-pthread", "-o"]).arg(&program).arg(source).output().expect("c++");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let cgroup = cgroups.path("n1").display().to_string();
    lab.start("n1", &["--cgroup", &cgroup, "--request", "engine:ns::Engine::answer"]);
    lab.wait_for_members(&["n1"]);

    // It begins when the agent is there already.
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"echo $$ > "$0" && exec "$1""#]).arg(cgroups.path("n1").join("cgroup.procs")).arg(&program);
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the engine starts");
    let (mut input, output) = (child.stdin.take().expect("its input"), child.stdout.take().expect("its output"));
    let (mut output, _engine) = (BufReader::new(output), Killed(child));
    wait_for("its function to be probed", || {
        let log = lab.log("n1");
        let is_there = log.contains("calls in engine are requests: ns::Engine::answer");
        if is_there && log.contains("requests of engine are recorded") { Ok(()) } else { Err(log) }
    });
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");

    // Where others have the CPU, the slowest may be those that waited for it: then all is done again.
    let (_, since) = until(|| {
        let since = now();
        writeln!(input, "{CALLS} 66").expect("it is told");
        output.read_line(&mut line).expect("a line");
        let answer = tail(&lab, CALLS as i64, &["--since", &since]);
        let engine = &answer["services"][0];
        assert_eq!((&engine["service"], &engine["errors"]), (&"engine".into(), &0.into()), "{answer}");
        let excess = &engine["slowest"]["excess"];
        println!("{excess}");
        let by_holder = share(excess, &[("kind", "asleep"), ("of", "timer"), ("thread", "holder")]);
        let is_lock = excess["parts"][0]["part"]["holds_lock"] == true;
        if by_holder > 0.7 && is_lock { Ok(since) } else { Err(answer) }
    });
    let text = stdout(&lab.ask("n1", "tail", &["--by", "route", "--since", &since]));
    println!("{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("\nns::Engine::answer "), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("asleep in a timer, thread holder of engine, while another waited in a lock"), "{text}");
    let sql = "SELECT protocol, route, status IS NULL, first_byte_ns = duration_ns, count(*) > 20 FROM requests \
               GROUP BY 1, 2, 3, 4";
    let (rows, _) = lab.query("n1", sql, &[]);
    assert_eq!(rows["rows"], Value::from(vec![serde_json::json!(["call", "ns::Engine::answer", 1, 1, 1])]), "{rows}");
}
