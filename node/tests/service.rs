//! An agent as a service manager runs it: what it prints goes to the journal, and its flags stay
//! the same for every start.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use common::{Lab, run, stderr, stdout, wait_for};

#[test]
fn a_founder_prints_no_token_into_the_journal() {
    let mut lab = Lab::new();
    // Neither identity nor CA yet: it founds.
    let own = lab.path("own");
    let journal = std::fs::File::create(lab.path("journal")).expect("a file");
    let of_journal = journal.metadata().expect("its inode");
    let stream = format!("{}:{}", of_journal.dev(), of_journal.ino());
    let mut founder = common::rankmesh();
    founder.args(["up", "--name", "f", "--listen", "127.0.0.1:0", "--capture", "off", "--identity"]).arg(&own);
    founder.arg("--store").arg(lab.path("f.db")).arg("--socket").arg(lab.socket("f"));
    founder.env("JOURNAL_STREAM", stream).stdout(journal.try_clone().expect("clone")).stderr(journal);
    lab.adopt("f", founder);
    let printed = wait_for("it says how to get a token", || {
        let printed = std::fs::read_to_string(lab.path("journal")).map_err(|error| error.to_string())?;
        if printed.contains("rankmesh identity token --dir") { Ok(printed) } else { Err(printed) }
    });
    lab.wait_for_members(&["f"]);
    assert!(!printed.contains("--token"), "{printed}");
    let issued = run(&["identity", "token", "--dir", &own.display().to_string()]);
    assert!(issued.status.success(), "{}", stderr(&issued));
    assert!(!printed.contains(stdout(&issued).trim()), "{printed}");
}

#[test]
fn an_agent_goes_on_where_nobody_reads_what_it_says() {
    let lab = Lab::new();
    let (reader, closed) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut founder = common::rankmesh();
    founder.args(["up", "--name", "f", "--listen", "127.0.0.1:0", "--capture", "off", "--identity"]);
    founder.arg(lab.path("own")).arg("--store").arg(lab.path("f.db")).arg("--socket").arg(lab.socket("f"));
    let mut founder = common::Killed(founder.stdout(Stdio::piped()).stderr(closed).spawn().expect("starts"));
    // The line for the next host comes after the greeting, which nobody can read.
    let mut line = String::new();
    BufReader::new(founder.0.stdout.take().expect("its output")).read_line(&mut line).expect("readable");
    assert!(line.starts_with("rankmesh up --join "), "{line}");
    lab.wait_for_members(&["f"]);
}

#[test]
fn who_has_joined_starts_again_without_the_tokens_file() {
    let mut lab = Lab::new();
    lab.start("first", &[]);
    lab.wait_for_members(&["first"]);
    let missing = lab.path("taken-away");
    lab.start("member", &["--token-file", &missing.display().to_string()]);
    lab.wait_for_members(&["first", "member"]);
    // Who has not joined needs it.
    let address = lab.nodes("first").expect("nodes")[0]["address"].as_str().expect("an address").to_owned();
    let stranger = lab.path("stranger.id").display().to_string();
    let refused = run(&[
        "up",
        "--name",
        "stranger",
        "--listen",
        "127.0.0.1:0",
        "--capture",
        "off",
        "--identity",
        &stranger,
        "--join",
        &address,
        "--token-file",
        &missing.display().to_string(),
    ]);
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("reading the token from"), "{}", stderr(&refused));
}
