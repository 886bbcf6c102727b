//! An agent whose disk or file fails: it reports that, answers what it can, and starts again
//! afterwards.

mod common;

use std::path::Path;
use std::process::Command;

use common::{Lab, wait_for};
use serde_json::json;

/// Puts a file system of `kib` KiB under `at`; false (and a word on stderr) where this test may
/// not.
fn mount(test: &str, at: &Path, kib: u32) -> bool {
    std::fs::create_dir_all(at).expect("a directory");
    let size = format!("size={kib}k");
    let done = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output();
    let mounted = done.as_ref().is_ok_and(|output| output.status.success());
    if !mounted {
        eprintln!("skipped: {test}: cannot mount a small file system here: {done:?}");
    }
    mounted
}

/// Taken away when the test ends, however it ends.
struct Mounted<'p>(&'p Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).output();
    }
}

/// Puts rows into the store of an agent that is not running.
fn fill(store: &Path, rows: i64) {
    let conn = rusqlite::Connection::open(store).expect("the store");
    conn.execute(
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < ?1)
         INSERT INTO self_stats SELECT unixepoch() * 1000000000 + n, 'test', n, 'rows' FROM r",
        [rows],
    )
    .expect("rows");
}

fn count(lab: &Lab, name: &str) -> (serde_json::Value, serde_json::Value, i32) {
    let (answer, code) = lab.query(name, "SELECT count(*) FROM self_stats WHERE name = 'test'", &[]);
    (answer["rows"][0][0].clone(), answer["coverage"]["notes"].clone(), code)
}

#[test]
fn on_a_read_only_disk_the_agent_answers_from_what_is_stored_and_says_so() {
    let mut lab = Lab::new();
    let disk = lab.path("disk");
    if !mount("read-only disk", &disk, 8192) {
        return;
    }
    let _mounted = Mounted(&disk);
    let store = disk.join("trace.db");
    let path = store.display().to_string();
    lab.start("r1", &["--store", &path]);
    lab.terminate("r1");
    fill(&store, 1000);
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(&disk).status().expect("mount runs");
    assert!(remounted.success());
    lab.restart("r1");
    wait_for("the agent is up", || lab.nodes("r1"));
    let (rows, notes, code) = count(&lab, "r1");
    assert_eq!((rows, code), (json!(1000), 0));
    assert!(notes[0].as_str().is_some_and(|note| note.contains("nothing is recorded now")), "{notes}");
    assert!(lab.log("r1").contains("records nothing"), "{}", lab.log("r1"));
    // Repaired and started again, it records as before.
    lab.terminate("r1");
    assert!(Command::new("mount").args(["-o", "remount,rw"]).arg(&disk).status().expect("mount runs").success());
    lab.restart("r1");
    wait_for("the agent is up", || lab.nodes("r1"));
    assert_eq!(count(&lab, "r1").0, json!(1000));
    assert!(!count(&lab, "r1").1.to_string().contains("nothing is recorded"));
}

#[test]
fn on_a_full_disk_the_agent_starts_and_answers() {
    let mut lab = Lab::new();
    let disk = lab.path("disk");
    if !mount("full disk", &disk, 2048) {
        return;
    }
    let _mounted = Mounted(&disk);
    let store = disk.join("trace.db");
    let path = store.display().to_string();
    lab.start("f1", &["--store", &path]);
    lab.terminate("f1");
    fill(&store, 100);
    // Not a byte is left.
    let _ = std::fs::write(disk.join("ballast"), vec![0_u8; 4 << 20]);
    lab.restart("f1");
    wait_for("the agent is up", || lab.nodes("f1"));
    assert_eq!(count(&lab, "f1").0, json!(100));
    assert!(lab.log("f1").contains("full"), "{}", lab.log("f1"));
}

#[test]
fn a_damaged_store_is_set_aside_and_the_agent_comes_up() {
    let mut lab = Lab::new();
    lab.start("d1", &[]);
    lab.terminate("d1");
    let store = lab.path("d1.db");
    let mut bytes = std::fs::read(&store).expect("the store");
    bytes[100..4096].fill(0x5a);
    std::fs::write(&store, &bytes).expect("written");
    lab.restart("d1");
    wait_for("the agent is up", || lab.nodes("d1"));
    let (answer, code) = lab.query("d1", "SELECT count(*) FROM collectives", &[]);
    assert_eq!((&answer["rows"], code), (&json!([[0]]), 0));
    assert!(answer["coverage"]["notes"].to_string().contains("collectives: rows up to"), "{answer}");
    assert!(lab.log("d1").contains("d1.db.damaged-1"), "{}", lab.log("d1"));
    assert_eq!(std::fs::read(lab.path("d1.db.damaged-1")).expect("kept"), bytes);
}
