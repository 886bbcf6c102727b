//! The mesh of real agent processes, asked through the command line: union answers, coverage,
//! faults, trust.

mod common;

use std::time::{Duration, Instant};

use common::{Killed, Lab, make_db, rankmesh, run, stderr, stdout, wait_for};
use serde_json::json;

/// Three nodes whose tables differ in size; one has a dictionary that is equal everywhere.
fn three_databases(lab: &mut Lab) {
    let sources = [("n1", vec![(3, 10_i64), (3, 30), (4, 5)]), ("n2", vec![(3, 20), (5, 7), (5, 9)]), ("n3", vec![])];
    for (name, rows) in sources {
        let file = lab.path(&format!("{name}-trace.db"));
        let mut sql = String::from(
            "CREATE TABLE events(source INTEGER NOT NULL, duration INTEGER NOT NULL);
             CREATE TABLE sources(id INTEGER PRIMARY KEY, name TEXT NOT NULL);
             INSERT INTO sources VALUES (3,'cuda'),(4,'driver'),(5,'host');",
        );
        for (source, duration) in rows {
            sql.push_str(&format!("INSERT INTO events VALUES ({source},{duration});"));
        }
        make_db(&file, &sql);
        lab.start(name, &["--serve-db", &file.display().to_string(), "--replicated", "sources"]);
    }
    lab.wait_for_members(&["n1", "n2", "n3"]);
}

#[test]
fn any_agent_answers_for_all_of_them() {
    let mut lab = Lab::new();
    three_databases(&mut lab);
    for coordinator in ["n1", "n2", "n3"] {
        let (answer, code) =
            lab.query(coordinator, "SELECT source, count(*) FROM events GROUP BY source ORDER BY source", &[]);
        assert_eq!(answer["rows"], json!([[3, 3], [4, 1], [5, 2]]), "asked at {coordinator}");
        assert_eq!(answer["coverage"], json!({"asked": 3, "answered": 3, "missing": [], "notes": []}));
        assert_eq!(code, 0);
        let (answer, _) = lab.query(coordinator, "SELECT avg(duration) FROM events WHERE source = 3", &[]);
        assert_eq!(answer["rows"], json!([[20.0]]));
        // A replicated table is read once.
        let (answer, _) = lab.query(
            coordinator,
            "SELECT s.name, sum(e.duration) FROM events e JOIN sources s ON s.id = e.source GROUP BY s.name ORDER BY 1",
            &[],
        );
        assert_eq!(answer["rows"], json!([["cuda", 60], ["driver", 5], ["host", 16]]));
        let (answer, _) = lab.query(coordinator, "SELECT count(*) FROM sources", &[]);
        assert_eq!((&answer["rows"], &answer["coverage"]["asked"]), (&json!([[3]]), &json!(1)));
        // A question without a table needs no node.
        let (answer, code) = lab.query(coordinator, "SELECT 1 + 1", &[]);
        assert_eq!((code, &answer["rows"], &answer["coverage"]["asked"]), (0, &json!([[2]]), &json!(0)));
        // Top-k, the hidden column, and a choice of nodes.
        let (answer, _) =
            lab.query(coordinator, "SELECT node, duration FROM events ORDER BY duration DESC LIMIT 2", &[]);
        assert_eq!(answer["rows"], json!([["n1", 30], ["n2", 20]]));
        let (answer, _) = lab.query(coordinator, "SELECT count(*) FROM events", &["--nodes", "n2,n3"]);
        assert_eq!(answer["rows"], json!([[3]]));
        assert_eq!(answer["coverage"]["asked"], 2);
        let (answer, _) = lab.query(coordinator, "SELECT count(*) FROM events WHERE node = 'n1'", &[]);
        assert_eq!((&answer["rows"], &answer["coverage"]["asked"]), (&json!([[3]]), &json!(1)));
        let (answer, _) = lab.query(coordinator, "SELECT count(*) AS c FROM events", &["--per-node"]);
        assert_eq!(answer["columns"][0]["name"], "node");
        let mut rows = answer["rows"].as_array().expect("rows").clone();
        rows.sort_by_key(ToString::to_string);
        assert_eq!(json!(rows), json!([["n1", 3], ["n2", 3], ["n3", 0]]));
    }
}

#[test]
fn a_killed_agent_is_named_and_comes_back() {
    let mut lab = Lab::new();
    for name in ["k1", "k2", "k3", "k4"] {
        let file = lab.path(&format!("{name}-trace.db"));
        make_db(&file, "CREATE TABLE t(x INTEGER); INSERT INTO t VALUES (1),(2);");
        lab.start(name, &["--serve-db", &file.display().to_string()]);
    }
    lab.wait_for_members(&["k1", "k2", "k3", "k4"]);
    assert_eq!(lab.query("k1", "SELECT sum(x) FROM t", &[]).0["rows"], json!([[12]]));

    lab.kill("k3");
    // At once, while the others still believe it alive, and later, when they know it is dead.
    let (answer, code) = lab.query("k1", "SELECT sum(x) FROM t", &["--timeout", "15s"]);
    assert_eq!((code, &answer["rows"]), (3, &json!([[9]])));
    assert_eq!(answer["coverage"]["missing"][0]["node"], "k3");
    let refused = lab.ask("k1", "query", &["--timeout", "3s", "--require-all", "SELECT sum(x) FROM t"]);
    assert_eq!((refused.status.code(), stdout(&refused).as_str()), (Some(1), ""));
    assert!(stderr(&refused).contains("k3"), "{}", stderr(&refused));
    wait_for("k2 lists k3 as dead", || {
        let nodes = lab.nodes("k2")?;
        let dead = nodes.iter().any(|node| node["name"] == "k3" && node["state"] == "dead");
        if dead { Ok(()) } else { Err(format!("{nodes:?}")) }
    });
    let (answer, code) = lab.query("k2", "SELECT sum(x) FROM t", &[]);
    assert_eq!((code, &answer["rows"]), (3, &json!([[9]])));
    let reason = answer["coverage"]["missing"][0]["reason"].as_str().expect("a reason");
    assert!(reason.contains("unreachable"), "{reason}");

    lab.restart("k3");
    lab.wait_for_members(&["k1", "k2", "k3", "k4"]);
    let (answer, code) = lab.query("k2", "SELECT sum(x) FROM t", &[]);
    assert_eq!((code, &answer["rows"]), (0, &json!([[12]])));
}

#[test]
fn a_restarted_agent_knows_who_is_missing_and_finds_the_mesh_without_its_seed() {
    let mut lab = Lab::new();
    let names = ["r1", "r2", "r3"];
    for name in names {
        let file = lab.path(&format!("{name}-trace.db"));
        make_db(&file, "CREATE TABLE t(x INTEGER); INSERT INTO t VALUES (1);");
        lab.start(name, &["--serve-db", &file.display().to_string()]);
    }
    lab.wait_for_members(&names);
    let kept = lab.path("r3.id").join("members.json");
    wait_for("r3 keeps whom it knows", || {
        let kept = std::fs::read_to_string(&kept).map_err(|error| error.to_string())?;
        if ["r1", "r2"].iter().all(|name| kept.contains(&format!("\"{name}\""))) { Ok(()) } else { Err(kept) }
    });
    // The first one, which the others joined.
    lab.kill("r1");
    lab.kill("r3");
    lab.restart("r3");
    wait_for("r3 answers", || lab.nodes("r3"));
    // From its first answer on, whoever it has found by then.
    let coverage = wait_for("r3 has found r2", || {
        let (answer, _) = lab.query("r3", "SELECT count(*) FROM t", &[]);
        let coverage = answer["coverage"].clone();
        assert_eq!(coverage["asked"], 3, "{coverage}");
        if coverage["answered"] == 2 { Ok(coverage) } else { Err(coverage.to_string()) }
    });
    assert_eq!(coverage["missing"][0]["node"], "r1", "{coverage}");
    lab.wait_for_members(&["r2", "r3"]);
}

#[test]
fn a_stranger_gets_nothing_and_is_seen_nowhere() {
    let mut lab = Lab::new();
    lab.start("home", &[]);
    let home = lab.nodes("home").expect("nodes")[0]["address"].as_str().expect("an address").to_owned();
    let mut strangers = Lab::new();
    strangers.start("first-stranger", &[]);
    strangers.start("stranger", &["--join", &home]);
    strangers.wait_for_members(&["first-stranger", "stranger"]);
    // Someone without any certificate cannot join without a token, nor with a made-up one.
    let no_token = rankmesh()
        .args(["up", "--name", "nobody", "--listen", "127.0.0.1:0", "--join", &home, "--identity"])
        .arg(lab.path("nobody.id"))
        .arg("--store")
        .arg(lab.path("nobody.db"))
        .output()
        .expect("runs");
    assert_eq!(no_token.status.code(), Some(1));
    assert!(stderr(&no_token).contains("--token"), "{}", stderr(&no_token));
    // The stranger dials home again and again; home never lists it, nor the stranger home.
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        let names = |nodes: Vec<serde_json::Value>| {
            nodes.iter().filter_map(|node| node["name"].as_str().map(str::to_owned)).collect::<Vec<_>>()
        };
        assert_eq!(names(lab.nodes("home").expect("nodes")), ["home"]);
        assert!(!names(strangers.nodes("stranger").expect("nodes")).contains(&"home".to_owned()));
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn founding_and_joining_by_the_printed_line() {
    let lab = Lab::new();
    let mut founder = rankmesh();
    founder
        .args(["up", "--name", "f", "--listen", "127.0.0.1:0", "--capture", "off", "--identity"])
        .arg(lab.path("f.id"))
        .arg("--store")
        .arg(lab.path("f.db"))
        .arg("--socket")
        .arg(lab.socket("f"))
        .stdout(std::fs::File::create(lab.path("f.out")).expect("a file"))
        .stderr(std::fs::File::create(lab.path("f.log")).expect("a file"));
    let mut founder = Killed(founder.spawn().expect("starts"));
    let line = wait_for("the founder prints the line for the next host", || {
        let text = std::fs::read_to_string(lab.path("f.out")).map_err(|error| error.to_string())?;
        text.lines().next().map(str::to_owned).filter(|_| text.ends_with('\n')).ok_or_else(|| lab.log("f"))
    });
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!((words[0], words[1], words[2], words[4]), ("rankmesh", "up", "--join", "--token"), "{line}");
    let join = |name: &str, token: &str| {
        rankmesh()
            .args([
                "up",
                "--name",
                name,
                "--listen",
                "127.0.0.1:0",
                "--capture",
                "off",
                "--join",
                words[3],
                "--token",
                token,
            ])
            .arg("--identity")
            .arg(lab.path(&format!("{name}.jid")))
            .arg("--store")
            .arg(lab.path(&format!("{name}.db")))
            .arg("--socket")
            .arg(lab.socket(name))
            .stderr(std::fs::File::create(lab.path(&format!("{name}.log"))).expect("a file"))
            .spawn()
            .expect("starts")
    };
    let _joiner = Killed(join("j", words[5]));
    lab.wait_for_members(&["f", "j"]);
    // A token that was tampered with admits nobody.
    let mut bad: Vec<char> = words[5].chars().collect();
    let middle = bad.len() / 2;
    bad[middle] = if bad[middle] == 'A' { 'B' } else { 'A' };
    let mut refused = join("x", &bad.iter().collect::<String>());
    let status = wait_for("the tampered token is refused", || {
        refused.try_wait().map_err(|error| error.to_string())?.ok_or_else(|| lab.log("x"))
    });
    assert_eq!(status.code(), Some(1), "{}", lab.log("x"));
    founder.0.kill().expect("kill");
}

/// `rankmesh up` with an identity, a store and a socket of its own in `lab`; its log is `NAME.log`.
fn up(lab: &Lab, name: &str, listen: &str, more: &[&str]) -> Killed {
    let mut command = rankmesh();
    command.args(["up", "--name", name, "--listen", listen, "--capture", "off"]).args(more);
    command.arg("--identity").arg(lab.path(&format!("{name}.id"))).arg("--store").arg(lab.path(&format!("{name}.db")));
    command.arg("--socket").arg(lab.socket(name));
    command.stdout(std::fs::File::create(lab.path(&format!("{name}.out"))).expect("a file"));
    command.stderr(std::fs::File::create(lab.path(&format!("{name}.log"))).expect("a file"));
    Killed(command.spawn().expect("starts"))
}

/// A mesh's CA in the identity directory of a node that is not started yet, and a token.
fn token_of(lab: &Lab, name: &str) -> String {
    let directory = lab.path(&format!("{name}.id")).display().to_string();
    assert!(run(&["identity", "init", "--dir", &directory]).status.success());
    let made = run(&["identity", "token", "--dir", &directory]);
    stdout(&made).split_whitespace().next().expect("a token").to_owned()
}

#[test]
fn hosts_join_by_names_and_wait_until_one_answers() {
    for (any, loopback) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "[::1]")] {
        let Ok(free) = std::net::UdpSocket::bind(any) else {
            eprintln!("skipped: hosts_join_by_names_and_wait_until_one_answers: no {loopback} on this host");
            continue;
        };
        let port = free.local_addr().expect("its address").port();
        drop(free);
        let lab = Lab::new();
        let token = token_of(&lab, "f");
        // As long as a host's name may be on Linux; it starts before whom it is to join.
        let long = "j".repeat(64);
        let by_name = if loopback == "[::1]" { "[::1]" } else { "localhost" };
        let join = format!("nowhere.invalid,{by_name}:{port}");
        let _joiner = up(&lab, &long, any, &["--join", &join, "--token", &token]);
        wait_for("it waits, and says for whom", || {
            let log = lab.log(&long);
            let waits =
                log.contains("trying again") && log.contains("nowhere.invalid") && log.contains(&port.to_string());
            if waits { Ok(()) } else { Err(log) }
        });
        let _founder = up(&lab, "f", &format!("{loopback}:{port}"), &[]);
        lab.wait_for_members(&["f", &long]);
    }
}

#[test]
fn a_place_or_name_that_cannot_be_says_what_to_write() {
    let refused = |flags: &[&str], words: &str| {
        let output = run(&[&["up", "--socket", "/nonexistent/s"], flags].concat());
        let text = stderr(&output).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {text}");
        assert!(text.contains(words), "{flags:?}: {text}");
    };
    refused(&["--join", "10.0.0"], "an IPv4 address has four numbers up to 255");
    refused(&["--join", "gpu-1,fd00::7:port"], "an IPv6 address with a port is written [ADDRESS]:PORT");
    refused(&["--join", "https://gpu-1"], "write HOST or HOST:PORT");
    refused(&["--join", "gpu-1:70000"], "a port is a number from 1 to 65535");
    refused(&["--name", &"n".repeat(65)], "a name has 1 to 64 characters");
    refused(&["--request", "libx.so"], "not LIBRARY:FUNCTION, for example libserver.so:ns::Engine::step");
    refused(&["--request", "libx.so:prov:begin"], "not LIBRARY:PROVIDER:BEGIN:END, two USDT points");
    refused(&["--request", "./libx.so:f"], "give the library's whole path");
    refused(&["--request", "libx.so:f", "--capture", "off"], "--request records: it does not go with --capture off");
    // A mesh that is reached by the other kind of address alone.
    let lab = Lab::new();
    let token = token_of(&lab, "f");
    let _joiner = up(&lab, "j", "127.0.0.1:0", &["--join", "[::1]:7", "--token", &token]);
    wait_for("it says which address to listen at", || {
        let log = lab.log("j");
        if log.contains("give --listen '[::]:0'") { Ok(()) } else { Err(log) }
    });
}

/// So the start after it is the founding one, which prints the line for the next host.
#[test]
fn a_start_that_cannot_listen_founds_no_mesh() {
    let lab = Lab::new();
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let identity = lab.path("t.id");
    let output = rankmesh()
        .args(["up", "--name", "t", "--capture", "off", "--listen"])
        .arg(taken.local_addr().expect("its address").to_string())
        .arg("--identity")
        .arg(&identity)
        .arg("--store")
        .arg(lab.path("t.db"))
        .arg("--socket")
        .arg(lab.socket("t"))
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(1), "{}", common::stderr(&output));
    assert!(common::stderr(&output).contains("in use"), "{}", common::stderr(&output));
    let left: Vec<_> = std::fs::read_dir(&identity).into_iter().flatten().flatten().map(|file| file.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn wrong_questions_get_clear_errors() {
    let mut lab = Lab::new();
    lab.start("w1", &[]);
    for (sql, expected) in [
        ("SELEC 1", "SELEC"),
        ("SELECT nosuch FROM collectives", "nosuch"),
        ("SELECT * FROM colectives", "collectives"),
        ("DELETE FROM collectives", "SELECT"),
        ("SELECT 1; SELECT 2", "one"),
        ("PRAGMA user_version", "SELECT"),
        ("ATTACH 'x' AS y", "SELECT"),
        ("", "no statement"),
    ] {
        let output = lab.ask("w1", "query", &[sql]);
        assert_eq!(output.status.code(), Some(2), "{sql}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{sql}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{sql}");
    }
    let (answer, code) = lab.query("w1", "SELECT count(*) FROM collectives", &[]);
    assert_eq!((code, &answer["rows"]), (0, &json!([[0]])));
    let unknown = lab.ask("w1", "query", &["--nodes", "w1,nosuch", "SELECT 1 FROM collectives"]);
    assert_eq!(unknown.status.code(), Some(3), "{}", stderr(&unknown));
    assert!(stderr(&unknown).contains("nosuch"), "{}", stderr(&unknown));
}

#[test]
fn the_command_line_explains_itself() {
    assert_eq!(run(&["query"]).status.code(), Some(2));
    assert_eq!(run(&["nosuch"]).status.code(), Some(2));
    assert_eq!(run(&["up", "--label", "x"]).status.code(), Some(2));
    let nothing = run(&[]);
    assert_eq!(nothing.status.code(), Some(2));
    let said = stdout(&nothing) + &stderr(&nothing);
    assert!(said.contains("Two ways to begin") || said.contains("An agent runs on this host"), "{said}");
    let no_agent = run(&["nodes", "--socket", "/nonexistent/agent.sock"]);
    assert_eq!(no_agent.status.code(), Some(1));
    assert!(stderr(&no_agent).contains("rankmesh up"), "{}", stderr(&no_agent));
    for command in ["up", "query", "stragglers", "stacks", "nodes", "check", "demo", "trace", "identity"] {
        let help = run(&[command, "--help"]);
        assert!(help.status.success());
        insta::assert_snapshot!(format!("help-{command}"), stdout(&help));
    }
}

#[test]
fn one_file_without_a_mesh() {
    let lab = Lab::new();
    let file = lab.path("one.db");
    make_db(&file, "CREATE TABLE t(x INTEGER); INSERT INTO t VALUES (1),(9223372036854775807);");
    let before = std::fs::read(&file).expect("the file");
    let path = file.display().to_string();
    let output = run(&["query", "--db", &path, "--format", "csv", "SELECT max(x) AS m FROM t"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "m\n9223372036854775807\n"));
    let overflow = run(&["query", "--db", &path, "SELECT sum(x) FROM t"]);
    assert_ne!(overflow.status.code(), Some(0));
    assert!(stderr(&overflow).contains("overflow"), "{}", stderr(&overflow));
    assert_ne!(run(&["query", "--db", &path, "DROP TABLE t"]).status.code(), Some(0));
    assert_eq!(std::fs::read(&file).expect("the file"), before, "a question changed the file");
    let plan = run(&["query", "--db", &path, "--explain", "SELECT max(x) AS m FROM t"]);
    assert!(stdout(&plan).starts_with("strategy: "), "{}", stdout(&plan));
    assert!(!stdout(&plan).contains("9223372036854775807"), "{}", stdout(&plan));
    let ran = run(&["query", "--db", &path, "--explain=analyze", "SELECT max(x) AS m FROM t"]);
    assert!(stdout(&ran).contains("ran on local: 1 rows"), "{}", stdout(&ran));
    let torn = lab.path("torn.db");
    make_db(&torn, "CREATE TABLE t(x TEXT)");
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400) INSERT INTO t SELECT printf('%02000d', i) FROM n";
    make_db(&torn, sql);
    let mut bytes = std::fs::read(&torn).expect("the file");
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 8192].fill(0xa5);
    std::fs::write(&torn, bytes).expect("written");
    let torn = torn.display().to_string();
    let damaged = run(&["query", "--db", &torn, "SELECT sum(length(x)) FROM t"]);
    assert_eq!((damaged.status.code(), stdout(&damaged).as_str()), (Some(1), ""));
    assert!(stderr(&damaged).contains(&format!("rankmesh check --db {torn} says where")), "{}", stderr(&damaged));
    let missing = run(&["query", "--db", "/nonexistent.db", "SELECT 1"]);
    assert_eq!(missing.status.code(), Some(1));
    let garbage = lab.path("garbage.db");
    std::fs::write(&garbage, vec![7_u8; 8192]).expect("written");
    let refused = run(&["query", "--db", &garbage.display().to_string(), "SELECT 1"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("not a"), "{}", stderr(&refused));
}

/// Recorded traces of another tool, if the folder with them is next to the project: its three
/// sample nodes.
#[test]
fn recorded_foreign_traces_merge_to_their_known_figures() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/ingero");
    if !folder.is_dir() {
        eprintln!(
            "skipped: recorded_foreign_traces_merge_to_their_known_figures: no recorded traces beside the project"
        );
        return;
    }
    let mut lab = Lab::new();
    let names = ["gpu-node-01", "gpu-node-02", "gpu-node-03"];
    for name in names {
        let file = folder.join(format!("sample-{name}.db")).display().to_string();
        lab.start(name, &["--serve-db", &file, "--replicated", "sources,ops"]);
    }
    lab.wait_for_members(&names);
    for coordinator in names {
        let (answer, code) = lab.query(coordinator, "SELECT source, count(*) FROM events GROUP BY source", &[]);
        let mut rows = answer["rows"].as_array().expect("rows").clone();
        rows.sort_by_key(ToString::to_string);
        assert_eq!((code, json!(rows)), (0, json!([[3, 219], [4, 76], [5, 305]])), "asked at {coordinator}");
        let (answer, _) = lab.query(coordinator, "SELECT avg(duration)/1000 FROM events WHERE source=3", &[]);
        let mean = answer["rows"][0][0].as_f64().expect("a number");
        assert!((mean - 27775.5517).abs() < 1e-4, "{mean}");
        // Investigations as people publish them: by node and source, joined with the replicated
        // dictionary.
        let sql = "SELECT node, source, count(*) AS n FROM events GROUP BY node, source ORDER BY n DESC, node LIMIT 3";
        let (answer, _) = lab.query(coordinator, sql, &[]);
        assert_eq!(answer["rows"].as_array().map(Vec::len), Some(3));
        let sql = "SELECT s.name, count(*) FROM events e JOIN sources s ON s.id = e.source GROUP BY 1 ORDER BY 2 DESC";
        let (answer, _) = lab.query(coordinator, sql, &[]);
        assert_eq!(answer["rows"].as_array().map(Vec::len), Some(3), "{answer}");
    }
}
