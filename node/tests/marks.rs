//! Notes that people and programs make (`rankmesh mark`), asked for over the mesh.

mod common;

use std::process::Command;

use common::{Lab, stderr, stdout, wait_for};

const NOTES: &str = "SELECT node, text, json_extract(attributes, '$.n') AS n, uid FROM annotations ORDER BY text, node";

#[test]
fn notes_of_every_host_are_rows_of_the_mesh_and_a_missing_hosts_are_missed() {
    let mut lab = Lab::new();
    lab.start("a", &[]);
    lab.start("b", &[]);
    lab.wait_for_members(&["a", "b"]);
    for (node, note) in [("a", "epoch"), ("b", "deploy")] {
        let marked = lab.ask(node, "mark", &[note, "n=3"]);
        assert!(marked.status.success(), "{}", stderr(&marked));
        let answer: serde_json::Value = serde_json::from_slice(&marked.stdout).expect("JSON");
        assert_eq!(answer["node"], node);
    }
    let own = nix::unistd::geteuid().as_raw();
    wait_for("both notes", || {
        let (answer, code) = lab.query("a", NOTES, &[]);
        let expected = serde_json::json!([["b", "deploy", "3", own], ["a", "epoch", "3", own]]);
        if code == 0 && answer["rows"] == expected { Ok(()) } else { Err(answer.to_string()) }
    });
    let wrong = lab.ask("a", "mark", &[&"x".repeat(1025)]);
    assert_eq!(wrong.status.code(), Some(2), "{}", stderr(&wrong));
    lab.kill("b");
    wait_for("the notes without b's", || {
        let (answer, code) = lab.query("a", NOTES, &[]);
        let partial = code == 3 && answer["rows"] == serde_json::json!([["a", "epoch", "3", own]]);
        if partial { Ok(()) } else { Err(format!("{code} {answer}")) }
    });
}

#[test]
fn a_python_program_notes_without_any_library() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: a_python_program_notes_without_any_library: there is no python3");
        return;
    }
    let mut lab = Lab::new();
    lab.start("a", &[]);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
    let socket = lab.socket("a");
    let python = |code: &str| {
        let program = format!("import sys; sys.path.insert(0, {page:?}); from rankmesh_mark import mark; {code}");
        Command::new("python3")
            .args(["-B", "-c", &program])
            .env("RANKMESH_SOCKET", &socket)
            .output()
            .expect("python3 runs")
    };
    let long = "print(mark('step', n=7), mark('x' * 300, phase='warm up', n=8))";
    assert_eq!(stdout(&python(long)).trim(), "True True");
    wait_for("the program's notes", || {
        let (answer, _) = lab.query("a", "SELECT text, attributes FROM annotations ORDER BY length(text)", &[]);
        let expected =
            serde_json::json!([["step", r#"{"n":"7"}"#], ["x".repeat(300), r#"{"n":"8","phase":"warm up"}"#]]);
        if answer["rows"] == expected { Ok(()) } else { Err(answer.to_string()) }
    });
    assert_eq!(stdout(&python("print(mark('x' * 5000, **{'': 1}))")).trim(), "False", "what the agent refuses");
    lab.kill("a");
    assert_eq!(stdout(&python("print(mark('nobody listens'))")).trim(), "False");
}
