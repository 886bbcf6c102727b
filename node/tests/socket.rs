//! The socket and another user: nothing without leave, a reader's part with it, her own rows where
//! every user may ask, and all of it in the audit. Needs root.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::{Lab, stderr, stdout, wait_for};
use node_bpf::{Collective, Library, ProcessSeen, Record};
use serde_json::json;
use store::{Store, StoreConfig};

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
    stranger(binary, socket, "query", &["--", sql])
}

fn stranger(binary: &Path, socket: &Path, command: &str, arguments: &[&str]) -> Output {
    Command::new(binary)
        .args([command, "--format", "json", "--socket"])
        .arg(socket)
        .args(arguments)
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

/// What one user's rank did on a host just now: 60 calls of her communicator, and a stretch off the
/// CPU.
fn record(store: &Store, now_ns: i64, uid: u32, rank: i32, late_ns: i64) {
    let pid = 4_000_000 + 10 * uid + rank.cast_unsigned();
    let start_ns = now_ns - 60_000_000_000;
    let job_id = Some(uid.to_string());
    let ingest = store.ingest();
    ingest.record(Record::Process(ProcessSeen {
        pid,
        start_ns,
        uid: Some(uid),
        rank: Some(rank),
        comm: format!("rank-of-{uid}"),
        job_id: job_id.clone(),
        ..ProcessSeen::default()
    }));
    for call in 0..60 {
        let ts_ns = now_ns - 12_000_000_000 + call * 200_000_000;
        ingest.record(Record::Collective(Collective {
            ts_ns: ts_ns + late_ns,
            duration_ns: 50_000_000 - late_ns,
            pid,
            tid: pid,
            rank: Some(rank),
            local_rank: Some(0),
            nranks: Some(2),
            comm_hash: Some(0xABCD_0000_0000_0000 + u64::from(uid)),
            func: "all_reduce",
            seq: u64::try_from(call).ok(),
            count: Some(1),
            datatype: Some("float32"),
            bytes: Some(4),
            reduce_op: Some("sum"),
            library: Library::Mpi,
            ret: Some(0),
            cgroup_id: 1,
            job_id: job_id.as_deref().map(Into::into),
            ..Collective::default()
        }));
    }
}

#[test]
fn every_user_sees_her_own_rows_from_every_node() {
    const OTHER: u32 = 1_001;
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: every_user_sees_her_own_rows_from_every_node: needs root");
        return;
    }
    let mut lab = Lab::new();
    let binary = for_everybody(&lab);
    let now_ns =
        i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_nanos()).expect("a time");
    for (rank, node) in ["n1", "n2"].into_iter().enumerate() {
        let store = Store::open(lab.path(&format!("{node}.db")), StoreConfig::default()).expect("a store");
        let rank = i32::try_from(rank).expect("a rank");
        record(&store, now_ns, STRANGER, rank, i64::from(rank) * 40_000_000);
        record(&store, now_ns, OTHER, rank, 0);
        store.flush(Duration::from_secs(60)).expect("stored");
        store.close();
    }
    lab.start("n1", &["--users-see-own"]);
    lab.start("n2", &[]);
    lab.wait_for_members(&["n1", "n2"]);
    let socket = lab.socket("n1");
    let ask = |sql: &str| -> serde_json::Value {
        let asked = as_stranger(&binary, &socket, sql);
        assert_eq!(asked.status.code(), Some(0), "{sql}: {}", stderr(&asked));
        serde_json::from_str(&stdout(&asked)).expect("JSON")
    };
    let own = json!([["n1", 60, STRANGER.to_string()], ["n2", 60, STRANGER.to_string()]]);
    for sql in [
        "SELECT node, count(*), group_concat(DISTINCT job_id) FROM collectives GROUP BY node ORDER BY node",
        "SELECT c.node, count(*), max(p.job_id) FROM collectives c JOIN processes p ON p.node = c.node AND p.pid = c.pid GROUP BY c.node ORDER BY 1",
        "WITH x AS (SELECT node AS n, job_id AS j FROM collectives WHERE seq >= 0) SELECT n, count(*), min(j) FROM x GROUP BY n ORDER BY n",
        "SELECT node, (SELECT count(*) FROM collectives c WHERE c.node = p.node), job_id FROM processes p ORDER BY node",
    ] {
        assert_eq!(ask(sql)["rows"], own, "{sql}");
    }
    for (sql, wanted) in [
        ("SELECT count(*), sum(bytes) FROM collectives", json!([[120, 480]])),
        ("SELECT count(*) FROM events WHERE source = 102", json!([[120]])),
        (
            "SELECT count(*) FROM call_rollups",
            json!([[ask("SELECT count(*) FROM call_rollups WHERE comm_hash IS NOT NULL")["rows"][0][0]]]),
        ),
        ("SELECT group_concat(DISTINCT comm) FROM processes", json!([[format!("rank-of-{STRANGER}")]])),
        ("SELECT count(DISTINCT comm_hash) FROM call_rollups WHERE source = 'mpi'", json!([[1]])),
    ] {
        assert_eq!(ask(sql)["rows"], wanted, "{sql}");
    }
    let (all, _) = lab.query("n1", "SELECT count(*), count(DISTINCT job_id) FROM collectives", &[]);
    assert_eq!(all["rows"], json!([[240, 2]]), "root sees everybody's");
    // What is nobody's, and the packed form of everybody's.
    for sql in ["SELECT count(*) FROM audit", "SELECT count(*) FROM segments", "SELECT max(data) FROM segment_columns"]
    {
        let asked = as_stranger(&binary, &socket, sql);
        assert_eq!((asked.status.code(), stdout(&asked).as_str()), (Some(2), ""), "{sql}: {}", stderr(&asked));
    }
    for sql in [
        "SELECT count(*) FROM main.collectives",
        "SELECT sql FROM sqlite_temp_schema",
        "EXPLAIN SELECT * FROM collectives",
    ] {
        let asked = as_stranger(&binary, &socket, sql);
        let answer: serde_json::Value = serde_json::from_str(&stdout(&asked)).unwrap_or_default();
        // Of the answer's rows: its notes have times.
        let has_all = answer["rows"].to_string().contains("240");
        assert!(!has_all && !stdout(&asked).contains("CREATE"), "{sql}: {}", stdout(&asked));
    }
    // The verdict is one of her job; nothing in it tells of the other.
    let asked = stranger(&binary, &socket, "stragglers", &["--since", "5m", "--show-sql"]);
    let report = stdout(&asked);
    assert!(report.contains(&format!("abcd00000000{STRANGER:04x}")), "{report}{}", stderr(&asked));
    for word in [format!("abcd00000000{OTHER:04x}"), format!("rank-of-{OTHER}")] {
        assert!(!report.contains(&word), "{word}: {report}");
    }
    // The other node's audit names the user for whom it was asked.
    wait_for("the audit of n2 has it", || {
        let sql = format!("SELECT count(*) > 0 FROM audit WHERE via = 'mesh' AND who LIKE 'n1 for uid {STRANGER}'");
        let (answer, _) = lab.query("n2", &sql, &["--nodes", "n2"]);
        if answer["rows"] == json!([[1]]) { Ok(()) } else { Err(answer.to_string()) }
    });
    // Over the mesh: n2 lets nobody else ask on its own socket.
    std::fs::set_permissions(lab.socket("n2"), std::fs::Permissions::from_mode(0o666)).expect("a mode");
    let asked = as_stranger(&binary, &lab.socket("n2"), "SELECT 1");
    assert!(stderr(&asked).contains("not allowed"), "{}", stderr(&asked));
}

#[test]
fn a_reader_who_asks_too_much_at_once_keeps_neither_owner_nor_agent_busy() {
    use std::os::unix::net::UnixStream;

    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: a_reader_who_asks_too_much_at_once_keeps_neither_owner_nor_agent_busy: needs root");
        return;
    }
    let mut lab = Lab::new();
    let binary = for_everybody(&lab);
    lab.start("n", &["--allow-user", &STRANGER.to_string()]);
    lab.wait_for_members(&["n"]);
    let socket = lab.socket("n");
    // Connects again and again and sends nothing. Peer credentials are those of the thread that
    // connects: it becomes the stranger's, by the system call, which is for one thread alone.
    let flood = || {
        let path = socket.clone();
        let flooder = std::thread::spawn(move || -> Vec<UnixStream> {
            let stranger = libc::uid_t::from(STRANGER);
            // SAFETY: changes the credentials of this thread alone, which ends after it.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, stranger, stranger, stranger) }, 0);
            (0..200).filter_map(|_| UnixStream::connect(&path).ok()).collect()
        });
        flooder.join().expect("a thread")
    };
    // A silent client is dropped after a while: a slow machine needs more than one flood.
    let silent = wait_for("its next question is turned away", || {
        let silent = flood();
        let asked = as_stranger(&binary, &socket, "SELECT 1");
        if stderr(&asked).contains("questions of uid") { Ok(silent) } else { Err(stderr(&asked)) }
    });
    assert_eq!(lab.query("n", "SELECT 1", &[]).1, 0, "the owner has a place");
    drop(silent);
    wait_for("there is a place again", || {
        let asked = as_stranger(&binary, &socket, "SELECT 1");
        if asked.status.success() { Ok(()) } else { Err(stderr(&asked)) }
    });
}

#[tokio::test]
async fn who_takes_dead_sockets_away_never_takes_one_that_is_being_opened() {
    use std::io::ErrorKind;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("agent.sock");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if UnixStream::connect(&path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
                    let _ = std::fs::remove_file(&path);
                }
            }
        });
        let opened = (0..2_000).try_for_each(|turn| {
            let listener = model::local_socket::bind(&path).map_err(|error| format!("turn {turn}: {error}"))?;
            let opened = UnixStream::connect(&path);
            // An agent that ends takes its socket away before it stops to listen.
            let removed = std::fs::remove_file(&path);
            drop(listener);
            opened.map_err(|error| format!("turn {turn}: {error}"))?;
            removed.map_err(|error| format!("turn {turn}: {error}"))
        });
        over.store(true, Ordering::Relaxed);
        assert_eq!(opened, Ok(()), "it was taken away");
    });
    assert_eq!(std::fs::read_dir(directory.path()).expect("the directory").count(), 0, "nothing is left");
}
