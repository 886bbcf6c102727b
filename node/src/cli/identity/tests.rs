//! Tests of command lines of `rankmesh identity`: what they print, what they leave.

use clap::Parser;
use serde_json::json;

use super::args::Uses;
use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    identity: IdentityArgs,
}

/// What a command line prints: data and notes.
fn typed(line: &[&str]) -> anyhow::Result<(String, String)> {
    let line = Line::try_parse_from(std::iter::once(&"identity").chain(line))?;
    let (mut out, mut note) = (Vec::new(), Vec::new());
    execute(line.identity.command, &mut out, &mut note)?;
    Ok((String::from_utf8(out)?, String::from_utf8(note)?))
}

fn fails(line: &[&str]) -> String {
    typed(line).unwrap_err().to_string()
}

#[test]
fn an_offline_mesh_of_two_nodes() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
    let (ca, a, b) = (path("ca"), path("a"), path("b"));
    let (out, _) = typed(&["init", "--dir", &ca, "--mesh", "m"]).unwrap();
    assert_eq!(out, "", "nothing but data goes to standard output");
    for (name, dir) in [("a", &a), ("b", &b)] {
        let (out, note) = typed(&["issue", "--dir", &ca, "--name", name, "--out", dir]).unwrap();
        assert!(out.is_empty() && note.contains(dir.as_str()), "{note}");
        // All that is needed, without the CA's key.
        let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|f| f.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files, ["ca.pem", "node.pem"]);
    }
    let (a, b) = (Identity::load(a.as_ref()).unwrap(), Identity::load(b.as_ref()).unwrap());
    assert_eq!((a.node().as_str(), b.node().as_str()), ("a", "b"));
    assert_eq!(certs::tls::peer_node(b.chain(), &a).unwrap().as_str(), "b");
}

#[test]
fn nothing_is_lost_by_typing_twice() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
    let (ca, a, b) = (path("ca"), path("a"), path("b"));
    typed(&["init", "--dir", &ca]).unwrap();
    assert!(fails(&["init", "--dir", &ca]).contains("exists already"));
    let issue = ["issue", "--dir", &ca, "--name", "a", "--out", &a];
    typed(&issue).unwrap();
    let first = Identity::load(a.as_ref()).unwrap().fingerprint();
    assert!(fails(&issue).contains("--reissue"));
    assert!(fails(&["issue", "--dir", &ca, "--name", "a", "--out", &b]).contains("taken"));
    // A refusal uses nothing up: the name that the full directory refused is free.
    assert!(fails(&["issue", "--dir", &ca, "--name", "b", "--out", &a]).contains("--reissue"));
    typed(&["issue", "--dir", &ca, "--name", "b", "--out", &b]).unwrap();
    assert_eq!(Identity::load(a.as_ref()).unwrap().fingerprint(), first);
    typed(&[issue.as_slice(), &["--reissue"]].concat()).unwrap();
    assert_ne!(Identity::load(a.as_ref()).unwrap().fingerprint(), first);
}

#[test]
fn show_tells_who_it_is() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
    let (ca, a) = (path("ca"), path("a"));
    assert!(fails(&["show", "--dir", &ca]).contains("no identity"));
    typed(&["init", "--dir", &ca, "--mesh", "m"]).unwrap();
    let of_ca: serde_json::Value =
        serde_json::from_str(&typed(&["show", "--dir", &ca, "--format", "json"]).unwrap().0).unwrap();
    assert_eq!((&of_ca["mesh"], &of_ca["node"]), (&json!("m"), &json!(null)));
    typed(&["issue", "--dir", &ca, "--name", "a", "--out", &a, "--validity", "2d"]).unwrap();
    let of_a: serde_json::Value =
        serde_json::from_str(&typed(&["show", "--dir", &a, "--format", "json"]).unwrap().0).unwrap();
    assert_eq!((&of_a["node"], &of_a["ca_fingerprint"]), (&json!("a"), &of_ca["ca_fingerprint"]));
    assert_eq!((&of_a["expired"], &of_a["issued"]), (&json!(false), &json!(null)));
    let (text, _) = typed(&["show", "--dir", &ca]).unwrap();
    let until = of_a["not_after"].as_str().unwrap();
    assert!(text.contains(&format!("issued          a until {until}")), "{text}");
    let (text, _) = typed(&["show", "--dir", &a]).unwrap();
    assert!(text.contains("node            a\n") && text.contains(until), "{text}");
}

#[test]
fn token_prints_a_token_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().to_str().unwrap();
    assert!(fails(&["token", "--dir", dir]).contains("founded the mesh"));
    typed(&["init", "--dir", dir, "--mesh", "m"]).unwrap();
    let (out, note) = typed(&["token", "--dir", dir, "--ttl", "2h", "--uses", "3"]).unwrap();
    let token: certs::JoinToken = out.strip_suffix('\n').unwrap().parse().unwrap();
    assert_eq!(token.mesh().as_str(), "m");
    let left = token.expires().duration_since(SystemTime::now()).unwrap();
    assert!(left > Duration::from_secs(7100) && left <= Duration::from_secs(7200), "{left:?}");
    assert!(note.contains("3 hosts") && !note.contains(out.trim()), "{note}");
    for wrong in ["0", "-1", "many"] {
        assert!(typed(&["token", "--dir", dir, &format!("--uses={wrong}")]).is_err(), "{wrong}");
    }
    assert_eq!("any".parse(), Ok(Uses(None)));
}

#[test]
fn what_is_revoked_and_by_which_ca_is_shown() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
    let (ca, a, b) = (path("ca"), path("a"), path("b"));
    typed(&["init", "--dir", &ca, "--mesh", "m"]).unwrap();
    typed(&["issue", "--dir", &ca, "--name", "a", "--out", &a]).unwrap();
    typed(&["issue", "--dir", &ca, "--name", "b", "--role", "reader", "--out", &b]).unwrap();
    assert!(typed(&["issue", "--dir", &ca, "--name", "c", "--role", "king", "--out", &b]).is_err());
    assert!(fails(&["revoke", "--dir", &ca, "c"]).contains("identity show"));
    let (_, note) = typed(&["revoke", "--dir", &ca, "a"]).unwrap();
    assert!(note.contains("of node a") && note.contains("trust.json"), "{note}");
    let serial = Identity::load(b.as_ref()).unwrap().serial().to_owned();
    let (_, note) = typed(&["revoke", "--dir", &ca, "--name", &serial]).unwrap();
    assert!(note.contains("of reader b"), "{note}");
    // The list reaches a directory as a file, too.
    std::fs::copy(format!("{ca}/trust.json"), format!("{a}/trust.json")).unwrap();
    assert!(typed(&["show", "--dir", &a]).unwrap().0.contains("(revoked)"));
    assert!(fails(&["rotate", "--dir", &ca, "--finish"]).contains("identity rotate"));
    typed(&["issue", "--dir", &ca, "--name", "d", "--out", &path("d")]).unwrap();
    typed(&["rotate", "--dir", &ca]).unwrap();
    let (text, _) = typed(&["show", "--dir", &ca]).unwrap();
    assert!(text.contains(", revoked)") && text.contains(", by the CA before)"), "{text}");
    assert!(fails(&["rotate", "--dir", &ca, "--finish"]).contains(": d;"));
    typed(&["rotate", "--dir", &ca, "--finish", "--force"]).unwrap();
}
