//! Asking from a machine without an agent, with a certificate of one's own: operators may ask
//! everything, readers what readers may, checked for every request; a certificate of another mesh
//! or a revoked one gets nothing.

mod common;

use std::path::{Path, PathBuf};
use std::process::Output;

use common::{Lab, rankmesh, stderr, stdout, wait_for};
use serde_json::{Value, json};

/// Two agents with stores, and where the second listens.
fn mesh() -> (Lab, String) {
    let mut lab = Lab::new();
    lab.start("a", &[]);
    lab.start("b", &[]);
    lab.wait_for_members(&["a", "b"]);
    let nodes = lab.nodes("a").expect("a list");
    let b = nodes.iter().find(|node| node["name"] == "b").expect("b is listed");
    let address = b["address"].as_str().expect("an address").to_owned();
    (lab, address)
}

/// A certificate of the CA in `ca` for a person.
fn person(lab: &Lab, ca: &str, name: &str, role: &str) -> PathBuf {
    let out = lab.path(&format!("{name}.person"));
    lab.issue_into(&out, ca, &["--name", name, "--role", role]);
    out
}

fn via(command: &str, address: &str, identity: &Path, more: &[&str]) -> Output {
    rankmesh()
        .args([command, "--format", "json", "--via", address, "--identity"])
        .arg(identity)
        .args(more)
        .output()
        .expect("runs")
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", stderr(output)))
}

#[test]
fn roles_are_enforced_for_every_request_of_who_asks_without_an_agent() {
    let (lab, b) = mesh();
    let operator = person(&lab, "ca", "olga", "operator");
    let reader = person(&lab, "ca", "rita", "reader");
    let everything = "SELECT count(exe) FROM processes";
    let asked = via("query", &b, &operator, &[everything]);
    assert_eq!((asked.status.code(), json_of(&asked)["rows"].clone()), (Some(0), json!([[0]])), "{}", stderr(&asked));
    assert_eq!(json_of(&asked)["coverage"]["answered"], 2, "the whole mesh is asked, not that agent alone");
    let asked = via("query", &b, &operator, &["SELECT count(*) > 0 FROM audit WHERE node = 'b'"]);
    assert_eq!(asked.status.code(), Some(0), "{}", stderr(&asked));

    let asked = via("query", &b, &reader, &["SELECT count(rank) FROM processes"]);
    assert_eq!((asked.status.code(), json_of(&asked)["rows"].clone()), (Some(0), json!([[0]])), "{}", stderr(&asked));
    for hidden in [everything, "SELECT count(*) FROM audit", "SELECT max(next_comm) FROM offcpu"] {
        let asked = via("query", &b, &reader, &[hidden]);
        assert_eq!((asked.status.code(), stdout(&asked).as_str()), (Some(2), ""), "{hidden}");
        assert!(stderr(&asked).contains("not allowed"), "{hidden}: {}", stderr(&asked));
    }
    assert_eq!(json_of(&via("nodes", &b, &reader, &[])).as_array().map(Vec::len), Some(2));
    // Stacks tell on processes, too.
    let stacks = via("stacks", &b, &reader, &["--samples", "1"]);
    assert_eq!((stacks.status.code(), stdout(&stacks).as_str()), (Some(2), ""), "{}", stderr(&stacks));
    assert!(stderr(&stacks).contains("not allowed"), "{}", stderr(&stacks));
    let stacks = via("stacks", &b, &operator, &["--samples", "1"]);
    assert_eq!(json_of(&stacks)["coverage"]["answered"], 2, "{}", stderr(&stacks));
    let verdict = via("stragglers", &b, &reader, &["--since", "10s"]);
    assert_eq!(json_of(&verdict)["coverage"]["asked"], 2, "{}", stderr(&verdict));
    let top = via("top", &b, &reader, &["--once"]);
    assert_eq!(json_of(&top)["nodes"].as_array().map(Vec::len), Some(2), "{}", stderr(&top));

    // Who asked what is known where they asked.
    wait_for("the audit has it", || {
        let sql = "SELECT who, role, outcome, count(*) FROM audit WHERE via = 'mesh' AND kind = 'query' \
                   AND who IN ('olga', 'rita') GROUP BY who, outcome ORDER BY who, outcome";
        let (answer, _) = lab.query("b", sql, &["--nodes", "b"]);
        // (stragglers --since first asks which jobs there were.)
        let expected = json!([
            ["olga", "operator", "answered", 2],
            ["rita", "reader", "answered", 2],
            ["rita", "reader", "refused", 3]
        ]);
        if answer["rows"] == expected { Ok(()) } else { Err(answer.to_string()) }
    });
    let members = lab.nodes("b").expect("a list");
    assert_eq!(members.len(), 2, "people are no members: {members:?}");
}

#[test]
fn who_is_of_another_mesh_or_revoked_is_told_nothing() {
    let (lab, b) = mesh();
    let made = rankmesh().args(["identity", "init", "--dir"]).arg(lab.path("their-ca")).output().expect("runs");
    assert!(made.status.success(), "{}", stderr(&made));
    let stranger = person(&lab, "their-ca", "stan", "operator");
    let asked = via("query", &b, &stranger, &["SELECT 1"]);
    assert_eq!((asked.status.code(), stdout(&asked).as_str()), (Some(1), ""));
    assert!(stderr(&asked).contains("refused"), "{}", stderr(&asked));

    let reader = person(&lab, "ca", "rita", "reader");
    assert_eq!(via("query", &b, &reader, &["SELECT 1"]).status.code(), Some(0));
    let revoked = rankmesh().args(["identity", "revoke", "rita", "--dir"]).arg(lab.path("ca")).output().expect("runs");
    assert!(revoked.status.success(), "{}", stderr(&revoked));
    // The CA is offline: its list is brought to one agent, the other learns it from that.
    std::fs::copy(lab.path("ca").join("trust.json"), lab.path("a.id").join("trust.json")).expect("a copy");
    wait_for("the other agent refuses her", || {
        let asked = via("query", &b, &reader, &["SELECT 1"]);
        let refused = asked.status.code() == Some(1) && stdout(&asked).is_empty() && stderr(&asked).contains("revoked");
        if refused { Ok(()) } else { Err(stderr(&asked)) }
    });

    let nobody_there = via("query", "127.0.0.1:1", &reader, &["SELECT 1"]);
    assert!(stderr(&nobody_there).contains("unreachable"), "{}", stderr(&nobody_there));
    let no_identity = rankmesh().args(["query", "--via", &b, "SELECT 1"]).output().expect("runs");
    assert_eq!(no_identity.status.code(), Some(2), "{}", stderr(&no_identity));
}

/// The serial number of a person's certificate, as in `identity show`.
fn serial(identity: &Path) -> String {
    let shown =
        rankmesh().args(["identity", "show", "--format", "json", "--dir"]).arg(identity).output().expect("runs");
    json_of(&shown)["serial"].as_str().unwrap_or_else(|| panic!("{}", stderr(&shown))).to_owned()
}

#[test]
fn a_persons_certificate_ends_and_says_what_to_do_or_renews_as_long_as_was_said() {
    let mut lab = Lab::new();
    // The first agent holds the CA, the second, who is asked, does not.
    let identity = lab.issue("a");
    std::fs::create_dir(identity.join("ca")).expect("a directory");
    for file in std::fs::read_dir(lab.path("ca").join("ca")).expect("the CA").flatten() {
        std::fs::copy(file.path(), identity.join("ca").join(file.file_name())).expect("a copy");
    }
    lab.issue("b");
    std::fs::copy(lab.path("ca/ca/issued.json"), identity.join("ca/issued.json")).expect("a copy");
    lab.start("a", &[]);
    lab.start("b", &[]);
    lab.wait_for_members(&["a", "b"]);
    let nodes = lab.nodes("a").expect("a list");
    let b = nodes.iter().find(|node| node["name"] == "b").expect("b is listed");
    let b = b["address"].as_str().expect("an address").to_owned();
    let issue = |name: &str, more: &[&str]| {
        let out = lab.path(&format!("{name}.person"));
        let made = rankmesh()
            .args(["identity", "issue", "--role", "reader", "--name", name, "--dir"])
            .arg(&identity)
            .arg("--out")
            .arg(&out)
            .args(more)
            .output()
            .expect("runs");
        assert!(made.status.success(), "{}", stderr(&made));
        out
    };
    let renew = |identity: &Path| {
        rankmesh().args(["identity", "renew", "--via", &b, "--dir"]).arg(identity).output().expect("runs")
    };

    // On request, at the agent with the CA, whose address the asked one knows.
    let long = issue("long", &["--validity", "1h", "--renew-for", "2h"]);
    let before = serial(&long);
    wait_for("it renews", || {
        let renewed = renew(&long);
        if renewed.status.success() { Ok(()) } else { Err(stderr(&renewed)) }
    });
    assert_ne!(serial(&long), before);
    assert_eq!(via("query", &b, &long, &["SELECT 1"]).status.code(), Some(0));

    // By itself, in use.
    let short = issue("short", &["--validity", "45s", "--renew-for", "1h"]);
    let before = serial(&short);
    wait_for("it has renewed", || {
        let asked = via("query", &b, &short, &["SELECT 1"]);
        assert_eq!(asked.status.code(), Some(0), "{}", stderr(&asked));
        if serial(&short) == before { Err("not yet".to_owned()) } else { Ok(()) }
    });
    assert_eq!(via("query", &b, &short, &["SELECT 1"]).status.code(), Some(0));

    // Renewed for no longer than it lasts anyway: a slip.
    let (ca, out) = (lab.path("ca"), lab.path("slip.id"));
    let mut slip = rankmesh();
    slip.args(["identity", "issue", "--role", "reader", "--name", "slip", "--renew-for", "1h", "--dir"]).arg(ca);
    let refused = slip.arg("--out").arg(&out).output().expect("runs");
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(!out.exists() && stderr(&refused).contains("give a longer one"), "{}", stderr(&refused));

    // A certificate issued without that is not renewed, and once ended the command prints what to
    // do, before any agent is asked.
    let fixed = issue("fixed", &["--validity", "1h"]);
    let refused = renew(&fixed);
    assert!(!refused.status.success() && stderr(&refused).contains("identity issue --role reader --name fixed"));
    let brief = issue("brief", &["--validity", "1s"]);
    wait_for("it has ended", || {
        let asked = via("query", "127.0.0.1:1", &brief, &["SELECT 1"]);
        let message = stderr(&asked);
        assert_eq!((asked.status.code(), stdout(&asked).as_str()), (Some(1), ""));
        let helps =
            message.contains("ended at") && message.contains("identity issue --role reader --name brief --reissue");
        if helps { Ok(()) } else { Err(message) }
    });
}
