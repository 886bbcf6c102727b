//! The socket and another user: nothing without leave, a reader's part with it, and all of it in the audit. Needs root.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{Lab, stderr, stdout, wait_for};
use serde_json::json;

/// "nobody" on most systems; any user but ours will do.
const STRANGER: u32 = 65_534;

/// The binary where another user can run it.
fn for_everybody(lab: &Lab) -> PathBuf {
    let own = Path::new(env!("CARGO_BIN_EXE_rankmesh"));
    let copy = lab.path("rankmesh");
    if std::fs::hard_link(own, &copy).is_err() {
        std::fs::copy(own, &copy).expect("a copy of the binary");
    }
    std::fs::set_permissions(lab.dir.path(), std::fs::Permissions::from_mode(0o711)).expect("a mode");
    copy
}

fn as_stranger(binary: &Path, socket: &Path, sql: &str) -> Output {
    Command::new(binary)
        .args(["query", "--format", "json", "--socket"])
        .arg(socket)
        .args(["--", sql])
        .env_clear()
        .stdin(Stdio::null())
        .current_dir("/")
        .gid(STRANGER)
        .uid(STRANGER)
        .output()
        .expect("the binary runs")
}

#[test]
fn another_user_asks_only_with_leave_and_sees_no_processes_of_others() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: another_user_asks_only_with_leave_and_sees_no_processes_of_others: needs root");
        return;
    }
    let mut lab = Lab::new();
    let binary = for_everybody(&lab);
    lab.start("closed", &[]);
    lab.wait_for_members(&["closed"]);
    let asked = as_stranger(&binary, &lab.socket("closed"), "SELECT 1");
    assert_eq!((asked.status.code(), stdout(&asked).as_str()), (Some(1), ""));
    assert!(stderr(&asked).contains("ermission denied"), "{}", stderr(&asked));
    // Also when the socket's mode lets it connect.
    std::fs::set_permissions(lab.socket("closed"), std::fs::Permissions::from_mode(0o666)).expect("a mode");
    let asked = as_stranger(&binary, &lab.socket("closed"), "SELECT 1");
    assert_eq!((asked.status.code(), stdout(&asked).as_str()), (Some(1), ""));
    assert!(stderr(&asked).contains("not allowed") && stderr(&asked).contains("--allow-user"), "{}", stderr(&asked));

    lab.start("open", &["--allow-user", &STRANGER.to_string()]);
    lab.wait_for_members(&["closed", "open"]);
    let socket = lab.socket("open");
    let asked = as_stranger(&binary, &socket, "SELECT count(rank) AS n FROM processes WHERE node = 'open'");
    assert_eq!(asked.status.code(), Some(0), "{}", stderr(&asked));
    for hidden in [
        "SELECT exe FROM processes",
        "SELECT * FROM processes",
        "SELECT p.pid FROM processes p WHERE p.\"user\" = 'root'",
        "SELECT max(next_comm) FROM offcpu",
        "SELECT count(*) FROM audit",
        "WITH x AS (SELECT cgroup_path AS c FROM processes) SELECT c FROM x",
    ] {
        let asked = as_stranger(&binary, &socket, hidden);
        assert_eq!((asked.status.code(), stdout(&asked).as_str()), (Some(2), ""), "{hidden}");
        assert!(stderr(&asked).contains("not allowed"), "{hidden}: {}", stderr(&asked));
    }
    // The owner sees all that, and who asked.
    lab.query("open", "SELECT exe FROM processes", &["--nodes", "open"]);
    wait_for("the audit has it", || {
        let sql = format!(
            "SELECT outcome, count(*) FROM audit WHERE via = 'socket' AND who = 'uid {STRANGER}' AND role = 'reader' \
             GROUP BY outcome ORDER BY outcome"
        );
        let (answer, _) = lab.query("open", &sql, &["--nodes", "open"]);
        if answer["rows"] == json!([["answered", 1], ["refused", 6]]) { Ok(()) } else { Err(answer.to_string()) }
    });
    let sql = "SELECT kind, outcome FROM audit WHERE role = 'nobody'";
    wait_for("the audit of the closed one has it", || {
        let (answer, _) = lab.query("closed", sql, &["--nodes", "closed"]);
        if answer["rows"] == json!([["connect", "refused"]]) { Ok(()) } else { Err(answer.to_string()) }
    });
}
