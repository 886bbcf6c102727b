//! `rankmesh serve --postgres` as psql, psycopg, SQLAlchemy and Grafana's own source see it.
#![cfg(feature = "postgres")]

mod common;

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::http::Served;
use common::job_stores::EndedJob;
use common::{Lab, has, python, rankmesh, stderr, stdout, wait_for};

/// A server of PostgreSQL's protocol.
struct Postgres {
    _served: Served,
    /// With the password.
    url: String,
}

impl Postgres {
    fn start(flags: &[&str]) -> Self {
        let mut command = rankmesh();
        // Alone, without HTTP.
        command.args(["serve", "--listen", "none", "--postgres", "127.0.0.1:0"]).args(flags);
        let mut served = Served::start(command);
        let url = served.line("psql ");
        Self { _served: served, url }
    }

    fn psql(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("psql");
        command.args(["-X", "-v", "ON_ERROR_STOP=1", &self.url]).args(arguments).env_remove("PGPASSWORD");
        command.stdin(Stdio::null()).output().expect("psql runs")
    }

    /// Rows without anything around them.
    fn rows(&self, sql: &str) -> String {
        let output = self.psql(&["-At", "-c", sql]);
        assert!(output.status.success(), "{sql}: {}", stderr(&output));
        stdout(&output)
    }
}

/// The stores of a job that has ended, and a server of them.
fn ended_job() -> (Lab, Postgres) {
    let lab = Lab::new();
    EndedJob::small().write(lab.dir.path());
    let db = [lab.path("n0.db").display().to_string(), lab.path("n1.db").display().to_string()];
    let served = Postgres::start(&["--db", &db[0], "--db", &db[1]]);
    (lab, served)
}

#[test]
fn psql_asks_describes_and_reads_errors() {
    if !has("psql", "psql_asks_describes_and_reads_errors") {
        return;
    }
    let (lab, served) = ended_job();
    assert_eq!(served.rows("SELECT node, count(*) FROM collectives GROUP BY node ORDER BY node"), "n0|400\nn1|400\n");
    assert_eq!(served.rows("SELECT 1, 2.5, 'a''b', NULL, x'00ff'"), "1|2.5|a'b||\\x00ff\n");
    assert_eq!(
        served.rows("SELECT 9223372036854775807, -9223372036854775807 - 1"),
        "9223372036854775807|-9223372036854775808\n"
    );
    assert_eq!(served.rows("SELECT count(*) FROM public.collectives"), "800\n");
    // A keyword of SQLite as a name, as DuckDB has it where it lists tables.
    assert_eq!(served.rows("SELECT count(*) AS notnull FROM pg_class WHERE relname = 'collectives'"), "1\n");
    // Two statements of one text, and what psql sets at the beginning of scripts.
    assert_eq!(
        served.rows("SET application_name = 'x'; SHOW require_all; SELECT 2; BEGIN; COMMIT"),
        "SET\noff\n2\nBEGIN\nCOMMIT\n"
    );

    let listed = stdout(&served.psql(&["-c", "\\dt"]));
    assert!(listed.contains("public | collectives") && !listed.contains("pg_class"), "{listed}");
    assert!(stdout(&served.psql(&["-c", "\\dv"])).contains("nccl_events"));
    let described = served.psql(&["-c", "\\d collectives"]);
    assert!(described.status.success(), "{}", stderr(&described));
    for column in ["ts_ns", "bigint", "func", "text", "node"] {
        assert!(stdout(&described).contains(column), "{}", stdout(&described));
    }
    assert!(stdout(&served.psql(&["-c", "\\d+ collectives"])).contains("not part of *"));
    for meta in ["\\l", "\\dn", "\\du", "\\df", "\\di", "\\dT"] {
        let output = served.psql(&["-c", meta]);
        assert!(output.status.success(), "{meta}: {}", stderr(&output));
    }
    let script = lab.path("columns.sql");
    std::fs::write(&script, "SELECT node, count(*) AS n, avg(seq) FROM collectives GROUP BY node \\gdesc\n")
        .expect("written");
    let columns = served.psql(&["-At", "-f", &script.display().to_string()]);
    assert_eq!(stdout(&columns), "node|text\nn|bigint\navg|double precision\n", "{}", stderr(&columns));
    let names = |sql: &str| stdout(&served.psql(&["-A", "-c", sql])).lines().next().unwrap_or_default().to_owned();
    assert_eq!(names("SELECT 1 + 1, current_user, version(), 'x' AS \"1 + 1\""), "?column?|current_user|version|1 + 1");
    let some = "SELECT rank, count(*), max(seq) AS most, 'x', current_date, * FROM collectives GROUP BY rank";
    assert!(names(some).starts_with("rank|count|most|?column?|current_date|ts_ns|"), "{}", names(some));
    assert!(served.rows("EXPLAIN SELECT count(*) FROM collectives").contains("count"));

    // psql's own cursor.
    let fetched = served.psql(&["-At", "-v", "FETCH_COUNT=7", "-c", "SELECT rank FROM collectives ORDER BY rank"]);
    assert_eq!(stdout(&fetched).lines().count(), 800, "{}", stderr(&fetched));
    assert_eq!(served.rows("SELECT 9e999, -9e999, x'fffe'"), "Infinity|-Infinity|\\xfffe\n");
    assert_eq!(served.rows("COPY (SELECT 9e999, -9e999, x'fffe') TO STDOUT CSV"), "Infinity,-Infinity,\\xfffe\n");

    let failed = |sql: &str| {
        let output = served.psql(&["-v", "VERBOSITY=verbose", "-c", sql]);
        assert!(!output.status.success(), "{sql}: {}", stdout(&output));
        stderr(&output)
    };
    let wrong = failed("SELECT ts_ns::timestamp FROM collectives");
    assert!(wrong.contains("42601") && wrong.contains("The dialect is SQLite's"), "{wrong}");
    assert!(failed("SELECT no_such FROM collectives").contains("no_such"));
    // It reads no table of the catalogue: no rows would be taken for an answer.
    assert!(failed("SELECT version(), no_such(1)").contains("no such function: no_such"));
    for sql in ["SELECT CAST(x'fffe' AS TEXT) AS t", "COPY (SELECT CAST(x'fffe' AS TEXT) AS t) TO STDOUT"] {
        assert!(failed(sql).contains("a value of column t is not UTF-8: ask for hex() of it"), "{}", failed(sql));
    }
    assert!(failed("INSERT INTO collectives VALUES (1)").contains("ERROR"));
    assert!(failed("COPY collectives FROM STDIN").contains("0A000"));
    assert_eq!(served.rows("COPY (SELECT 1, NULL, 'a b') TO STDOUT"), "1\t\\N\ta b\n");
    assert_eq!(served.rows("SELECT count(*) FROM \"public\".\"collectives\""), "800\n");
    assert_eq!(
        served.rows(
            "BEGIN; DECLARE c CURSOR FOR SELECT rank FROM collectives ORDER BY rank; FETCH 2 FROM c; CLOSE ALL; COMMIT"
        ),
        "BEGIN\nDECLARE CURSOR\n0\n0\nCLOSE CURSOR ALL\nCOMMIT\n"
    );
    let all = served.psql(&["-At", "-c", "SET application_name = 'mine'; SHOW ALL"]);
    let all = stdout(&all);
    let has = |line: &str| all.lines().any(|of| of == line);
    assert!(has("application_name|mine|") && has("require_all|off|") && has("timezone|UTC|"), "{all}");
    // More than the server gives: the most, and a warning.
    let longest = served.psql(&["-At", "-c", "SET statement_timeout = '1h'; SHOW statement_timeout"]);
    assert_eq!(stdout(&longest), "SET\n120000ms\n");
    assert!(stderr(&longest).contains("WARNING"), "{}", stderr(&longest));
    assert!(failed("SELECT * FROM pg_class, collectives").contains("in one statement"));

    let mut other = Command::new("psql");
    let refused =
        other.args(["-X", &served.url.replace("rankmesh:", "rankmesh:x"), "-c", "SELECT 1"]).output().expect("runs");
    let refused = stderr(&refused);
    assert!(refused.contains("authentication failed for user \"rankmesh\""), "{refused}");
    let refused =
        Command::new("psql").args(["-X", &served.url.replace("//rankmesh:", "//root:"), "-c", "SELECT 1"]).output();
    assert!(stderr(&refused.expect("runs")).contains("authentication failed"));
}

/// Asks for one row where a node is missing: prints the warning, and the error with `require_all`.
const FETCHROW: &str = "
import asyncio, sys, asyncpg
async def main():
    conn = await asyncpg.connect(sys.argv[1])
    conn.add_log_listener(lambda _, message: print(message.message))
    assert tuple(await conn.fetchrow('SELECT count(*) FROM collectives')) == (0,)
    await conn.execute('SET require_all = on')
    try:
        print(await conn.fetchrow('SELECT count(*) FROM collectives'))
    except asyncpg.PostgresError as error:
        print(str(error).splitlines()[0])
asyncio.run(main())
";

#[test]
fn a_missing_node_is_a_warning_or_an_error() {
    if !has("psql", "a_missing_node_is_a_warning_or_an_error") {
        return;
    }
    let mut lab = Lab::new();
    lab.start("a", &[]);
    lab.start("b", &[]);
    lab.wait_for_members(&["a", "b"]);
    let socket = lab.socket("a").display().to_string();
    let served = Postgres::start(&["--socket", &socket]);
    assert_eq!(served.rows("SELECT count(*) FROM collectives"), "0\n");
    lab.kill("b");
    let output = wait_for("b is missing", || {
        let output = served.psql(&["-At", "-c", "SELECT count(*) FROM collectives"]);
        if stderr(&output).contains("missing b") { Ok(output) } else { Err(stderr(&output)) }
    });
    assert!(output.status.success() && stdout(&output) == "0\n", "{}", stdout(&output));
    assert!(stderr(&output).contains("WARNING:  PARTIAL: 1 of 2 nodes answered"), "{}", stderr(&output));
    let output = served.psql(&["-At", "-c", "SET require_all = on; SELECT count(*) FROM collectives"]);
    assert!(!output.status.success() && stderr(&output).contains("require_all is on"), "{}", stderr(&output));
    // Of a cursor it is said where its end is, by each statement that comes there.
    let declare = "DECLARE c CURSOR WITH HOLD FOR SELECT count(*) FROM collectives";
    let warnings = |output: &Output| stderr(output).matches("WARNING:  PARTIAL: 1 of 2 nodes answered").count();
    let all = |sql: &[&str]| {
        let arguments: Vec<&str> = sql.iter().flat_map(|sql| ["-c", *sql]).collect();
        served.psql(&[&["-At"][..], &arguments].concat())
    };
    for (statements, rows, told) in [
        (&["FETCH 0 FROM c", "CLOSE c"][..], "CLOSE CURSOR\n", 0),
        (&["FETCH 1 FROM c", "CLOSE c"], "0\nCLOSE CURSOR\n", 1),
        (&["FETCH 100 FROM c", "FETCH ALL FROM c"], "0\n", 2),
        (&["FETCH ALL FROM c", "FETCH 100 FROM c"], "0\n", 2),
        (&["FETCH 1 FROM c", "FETCH 1 FROM c"], "0\n", 2),
        (&["MOVE 1 FROM c", "MOVE ALL FROM c"], "MOVE 1\nMOVE 0\n", 2),
    ] {
        for inside in [false, true] {
            let (begin, commit) = if inside { (&["BEGIN"][..], &["COMMIT"][..]) } else { (&[][..], &[][..]) };
            let output = all(&[begin, &[declare], statements, commit].concat());
            assert!(output.status.success(), "{statements:?}: {}", stderr(&output));
            let expected = format!("DECLARE CURSOR\n{rows}");
            let expected = if inside { format!("BEGIN\n{expected}COMMIT\n") } else { expected };
            assert_eq!(stdout(&output), expected, "{statements:?}");
            assert_eq!(warnings(&output), told, "{statements:?}: {}", stderr(&output));
        }
        let output = all(&[&["SET require_all = on", declare], statements].concat());
        assert_eq!(output.status.success(), told == 0, "{statements:?}: {}", stderr(&output));
        assert_eq!(stderr(&output).contains("require_all is on"), told > 0, "{statements:?}: {}", stderr(&output));
    }
    let in_one = format!("BEGIN; {declare}; FETCH 100 FROM c; FETCH ALL FROM c; COMMIT");
    let output = all(&[&in_one]);
    assert!(output.status.success() && warnings(&output) == 2, "{}", stderr(&output));
    let output = all(&["SET require_all = on", &in_one]);
    assert!(!output.status.success() && stderr(&output).contains("require_all is on"), "{}", stderr(&output));
    // asyncpg takes one row of an answer and closes it.
    if let Some(interpreter) = python::clients("asyncpg at a missing node") {
        let ran = Command::new(interpreter).args(["-c", FETCHROW, &served.url]).output().expect("runs");
        assert!(ran.status.success(), "{}{}", stdout(&ran), stderr(&ran));
        assert_eq!(stdout(&ran), "PARTIAL: 1 of 2 nodes answered\n1 of 2 nodes answered, and require_all is on\n");
    }
    // The audit knows for whom it was asked.
    wait_for("the audit has it", || {
        let (found, _) = lab.query("a", "SELECT count(*) FROM audit WHERE question LIKE '% of postgres */%'", &[]);
        if found["rows"][0][0] != 0 { Ok(()) } else { Err(found.to_string()) }
    });
}

#[test]
fn drivers_ask_with_parameters_stream_and_cancel() {
    let test = "drivers_ask_with_parameters_stream_and_cancel";
    let Some(interpreter) = python::clients(test) else { return };
    let (_lab, served) = ended_job();
    let ran =
        Command::new(interpreter).arg(python::script("postgres_clients.py")).arg(&served.url).output().expect("runs");
    assert!(ran.status.success(), "{}{}", stdout(&ran), stderr(&ran));
    assert_eq!(stdout(&ran).trim(), "psycopg asyncpg pg8000 sqlalchemy pandas");
}

/// Clients that are large, or whose files are not at every hand: `make check NAME=clients` fetches them.
#[test]
#[ignore = "make check NAME=clients"]
fn adbc_pgcli_and_duckdb_read_tables() {
    let interpreter = std::env::var_os("RANKMESH_CLIENTS").expect("the Python of scripts/other-clients.sh");
    let (_lab, served) = ended_job();
    let script = python::script("other_clients.py");
    let ran = Command::new(interpreter).arg(script).arg(&served.url).output().expect("runs");
    assert!(ran.status.success(), "{}{}", stdout(&ran), stderr(&ran));
    eprint!("{}", stderr(&ran));
    // (DuckDB's own extension cannot be fetched everywhere, and then says so on standard error.)
    let went_well = stdout(&ran);
    assert!(went_well.starts_with("adbc pgcli"), "{went_well}");
    assert_eq!(went_well.contains("duckdb"), !stderr(&ran).contains("skipped: duckdb"), "{went_well}");
}

#[test]
fn node_postgres_sends_values_without_types() {
    let test = "node_postgres_sends_values_without_types";
    if !has("node", test) {
        return;
    }
    let Some(folder) = python::node_clients(test) else { return };
    let (_lab, served) = ended_job();
    let script = python::script("../node/postgres.mjs");
    let ran = Command::new("node").arg(script).arg(&served.url).current_dir(folder).output().expect("runs");
    assert!(ran.status.success(), "{}{}", stdout(&ran), stderr(&ran));
    assert_eq!(stdout(&ran).trim(), "node-postgres");
}

#[test]
fn jdbc_prepares_describes_and_streams() {
    let test = "jdbc_prepares_describes_and_streams";
    const DRIVER: &str = "/usr/share/java/postgresql.jar";
    if !has("javac", test) {
        return;
    }
    if !std::path::Path::new(DRIVER).exists() {
        eprintln!("skipped: {test}: no {DRIVER} (Debian's libpostgresql-jdbc-java)");
        return;
    }
    let (_lab, served) = ended_job();
    let (user, place) = served.url.strip_prefix("postgresql://").and_then(|url| url.split_once('@')).expect("a URL");
    let password = user.split_once(':').expect("a password").1;
    let mut java = Command::new("java");
    java.args(["-cp", DRIVER]).arg(python::script("../java/Postgres.java"));
    let ran = java.args([&format!("jdbc:postgresql://{place}"), password]).output().expect("runs");
    assert!(ran.status.success(), "{}{}", stdout(&ran), stderr(&ran));
    assert_eq!(stdout(&ran).trim(), "JDBC");
}

#[test]
fn postgresqls_forms_are_rewritten() {
    if !has("psql", "postgresqls_forms_are_rewritten") {
        return;
    }
    let (_lab, served) = ended_job();
    let first = served.rows("SELECT min(ts_ns) FROM collectives");
    let first: i64 = first.trim().parse().expect("a time");
    for (sql, expected) in [
        ("SELECT count(*)::text, (avg(rank) * 1.0)::int, 7::float8 / 2 FROM collectives", "800|4|3.5"),
        ("SELECT rank::text FROM collectives WHERE func ILIKE 'ALL%' ORDER BY 1 LIMIT 1", "0"),
        ("SELECT count(*) FROM collectives WHERE rank = ANY('{0,7}') AND ts_ns < now()", "200"),
        ("SELECT count(*) FROM collectives WHERE ts_ns > now() - interval '5 minutes'", "0"),
        (
            "SELECT count(*) FROM collectives WHERE ts_ns BETWEEN '2020-01-01T00:00:00Z' AND '2200-01-01T00:00:00Z'",
            "800",
        ),
        ("SELECT count(*) FROM collectives WHERE ts_ns < '2020-01-01'", "0"),
        ("SELECT sum(i) FROM generate_series(1, 100) AS i", "5050"),
        (
            "SELECT count(*), count(c.seq) FROM generate_series(0, 9) AS g(r) LEFT JOIN collectives c ON c.rank = g.r",
            "802|800",
        ),
        ("SELECT rank FROM collectives GROUP BY rank ORDER BY rank OFFSET 6 ROWS FETCH NEXT 1 ROW ONLY", "6"),
        ("SELECT pg_sleep(0.01)", ""),
        ("SELECT length(now()::text)", "19"),
    ] {
        assert_eq!(served.rows(sql).trim(), expected, "{sql}");
    }
    let minute = first / 60_000_000_000 * 60_000_000_000;
    assert_eq!(served.rows("SELECT min(date_trunc('minute', ts_ns)) FROM collectives").trim(), minute.to_string());
    // As $__timeGroup(ts_ns, '5m') of Grafana.
    let group = "SELECT floor(extract(epoch from ts_ns)/300)*300 AS \"time\", count(*) FROM collectives GROUP BY 1";
    assert_eq!(served.rows(group).trim(), format!("{}.0|800", first / 300_000_000_000 * 300));
    let named = served.psql(&["-A", "-c", "SELECT ts_ns::bigint, date_trunc('hour', ts_ns) FROM collectives LIMIT 1"]);
    assert!(stdout(&named).starts_with("ts_ns|date_trunc\n"), "{}", stdout(&named));
    let slept = served.psql(&["-c", "SET statement_timeout = '50ms'; SELECT pg_sleep(600)"]);
    assert!(stderr(&slept).contains("statement timeout"), "{}", stderr(&slept));
}

#[test]
fn grafanas_statements_are_answered() {
    if !has("psql", "grafanas_statements_are_answered") {
        return;
    }
    let (_lab, served) = ended_job();
    let fixtures = std::fs::read_to_string(python::script("grafana.sql")).expect("the fixtures");
    for fixture in fixtures.split("-- name: ").skip(1) {
        let (name, rest) = fixture.split_once('\n').expect("a name");
        let (sql, expected) = rest.split_once("-- gives: ").expect("what it gives");
        let rows = served.rows(sql);
        let expected: Vec<&str> = expected.trim().split(" / ").filter(|line| !line.is_empty()).collect();
        assert_eq!(expected.is_empty(), rows.is_empty(), "{name}: {rows}");
        for line in expected {
            assert!(rows.lines().any(|row| row == line), "{name}: no {line} in {rows}");
        }
    }
}

/// What libpq 18 and later may send: a version and an option that nobody knows.
#[test]
fn unknown_options_of_the_protocol_are_named_and_left_out() {
    let (_lab, served) = ended_job();
    let place = served.url.rsplit('@').next().and_then(|rest| rest.split('/').next()).expect("an address").to_owned();
    let mut startup = ((3_u32 << 16) | 9_999).to_be_bytes().to_vec();
    startup.extend(b"user\0rankmesh\0_pq_.test_protocol_negotiation\0\0\0");
    let mut bytes = u32::try_from(startup.len() + 4).expect("short").to_be_bytes().to_vec();
    bytes.extend(startup);
    let mut stream = std::net::TcpStream::connect(&place).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    stream.write_all(&bytes).expect("sent");
    let mut message = || {
        let mut head = [0; 5];
        std::io::Read::read_exact(&mut stream, &mut head).expect("a message");
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; usize::try_from(length).expect("short") - 4];
        std::io::Read::read_exact(&mut stream, &mut body).expect("all of it");
        (head[0], body)
    };
    let (kind, body) = message();
    assert_eq!(kind, b'v', "{body:?}");
    assert_eq!(&body[..8], [0, 3, 0, 2, 0, 0, 0, 1], "version 3.2, one option");
    assert_eq!(&body[8..], b"_pq_.test_protocol_negotiation\0");
    // and then it asks for a password
    assert_eq!(message().0, b'R');
}

/// A connection as anybody can open one.
fn stranger(served: &Postgres) -> std::net::TcpStream {
    let place = served.url.rsplit('@').next().and_then(|rest| rest.split('/').next()).expect("an address").to_owned();
    let stream = std::net::TcpStream::connect(place).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    stream.set_write_timeout(Some(Duration::from_secs(30))).expect("set");
    stream
}

/// Begins a session as the user, up to the question for her password.
fn unfinished(served: &Postgres) -> std::net::TcpStream {
    let mut stream = stranger(served);
    let mut startup = (3_u32 << 16).to_be_bytes().to_vec();
    startup.extend(b"user\0rankmesh\0\0");
    stream.write_all(&u32::try_from(startup.len() + 4).expect("short").to_be_bytes()).expect("sent");
    stream.write_all(&startup).expect("sent");
    let mut kind = [0];
    std::io::Read::read_exact(&mut stream, &mut kind).expect("a message");
    assert_eq!(kind[0], b'R');
    stream
}

#[test]
fn a_stranger_sends_no_more_than_a_password() {
    let (lab, served) = ended_job();
    for kind in [b'Q', b'P', b'B', b'd', b'p'] {
        let mut stream = unfinished(&served);
        // A message of 512 MiB, as its head says.
        let mut sent = stream.write_all(&[&[kind][..], &0x2000_0000_u32.to_be_bytes()].concat()).map(|()| 5);
        while let Ok(bytes) = sent {
            assert!(bytes < 16 << 20, "{bytes} bytes were taken of who has shown no password");
            sent = stream.write_all(&[b'x'; 64 << 10]).map(|()| bytes + (64 << 10));
        }
    }
    if has("psql", "a_stranger_sends_no_more_than_a_password") {
        assert_eq!(served.rows("SELECT 1"), "1\n");
        let long = lab.path("long.sql");
        std::fs::write(&long, format!("SELECT '{}'", "x".repeat(1_000_001))).expect("written");
        let long = served.psql(&["-f", &long.display().to_string()]);
        assert!(stderr(&long).contains("at most 1000000 bytes"), "{}", stderr(&long));
    }
}

#[test]
fn who_does_not_log_in_makes_room() {
    if !has("psql", "who_does_not_log_in_makes_room") {
        return;
    }
    let (_lab, served) = ended_job();
    let silent: Vec<std::net::TcpStream> = (0..100).map(|_| stranger(&served)).collect();
    let begun: Vec<std::net::TcpStream> = (0..40).map(|_| unfinished(&served)).collect();
    assert_eq!(served.rows("SELECT 1"), "1\n");
    drop((silent, begun));
}

#[test]
fn a_catalogue_statement_stops_nobody_else() {
    if !has("psql", "a_catalogue_statement_stops_nobody_else") {
        return;
    }
    let (_lab, served) = ended_job();
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n, pg_class";
    let greedy = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
                  SELECT i, printf('%.*c', 60000, 'x') AS t FROM n, pg_class ORDER BY t, i";
    let large = "SELECT printf('%.*c', 60000, 'x') FROM pg_attribute";
    std::thread::scope(|scope| {
        let slow: Vec<_> = (0..4).map(|_| scope.spawn(|| served.psql(&["-c", endless]))).collect();
        // Meanwhile others are answered from theirs, and from the nodes.
        let listed = stdout(&served.psql(&["-c", "\\dt"]));
        assert!(listed.contains("collectives"), "{listed}");
        assert_eq!(served.rows("SELECT count(*) FROM collectives"), "800\n");
        for slow in slow {
            let output = slow.join().expect("it ends");
            assert!(stderr(&output).contains("a statement on PostgreSQL's catalogue has"), "{}", stderr(&output));
        }
    });
    for sql in [greedy, large] {
        let output = served.psql(&["-c", sql]);
        assert!(stderr(&output).contains("a statement on PostgreSQL's catalogue has"), "{sql}: {}", stderr(&output));
    }
}

#[test]
fn rubbish_ends_its_connection_only() {
    let (_lab, served) = ended_job();
    let place = served.url.rsplit('@').next().and_then(|rest| rest.split('/').next()).expect("an address").to_owned();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f], &[0, 0, 0, 4], b""] {
        let mut stream = std::net::TcpStream::connect(&place).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
    }
    if has("psql", "rubbish_ends_its_connection_only") {
        assert_eq!(served.rows("SELECT 1"), "1\n");
    }
}

#[test]
fn it_is_not_served_beyond_this_host_without_tls() {
    let output =
        rankmesh().args(["serve", "--listen", "127.0.0.1:0", "--postgres", "0.0.0.0:0"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("only with TLS and tokens"), "{}", stderr(&output));
}
