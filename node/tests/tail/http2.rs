//! HTTP/2 in plaintext: gRPC's own client and server, nghttp2's, and curl.

use std::net::{TcpListener, TcpStream};
use std::process::Command;

use serde_json::Value;

use crate::common::jobs::Cgroups;
use crate::common::{Lab, can_capture, has, stdout, wait_for};
use crate::{now, serve, tail, until};

/// Debian's, whose python3-grpcio is not every interpreter's.
const PYTHON: &str = "/usr/bin/python3";

/// A generic service "test.Echo": Ask answers at once, Slow after 80 ms, Missing fails, List answers
/// in four messages, 30 ms apart.
const GRPC_SERVER: &str = r#"
import grpc, time
from concurrent import futures
def ask(request, context): return request
def slow(request, context):
    time.sleep(0.08)
    return request
def missing(request, context): context.abort(grpc.StatusCode.NOT_FOUND, "there is none")
def several(request, context):
    for n in range(4):
        if n: time.sleep(0.03)
        yield request
unary = {"Ask": ask, "Slow": slow, "Missing": missing}
handlers = {name: grpc.unary_unary_rpc_method_handler(of) for name, of in unary.items()}
handlers["List"] = grpc.unary_stream_rpc_method_handler(several)
server = grpc.server(futures.ThreadPoolExecutor(16))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
"#;

/// On one connection 1,000 of Ask, ten at a time, with ten of Slow, five of Missing and three of List
/// among them. Says how long the longest of Slow took, in nanoseconds.
const GRPC_CLIENT: &str = r#"
import grpc, sys, time
longest = 0
with grpc.insecure_channel("127.0.0.1:" + sys.argv[1]) as channel:
    ask, slow, missing = (channel.unary_unary("/test.Echo/" + name) for name in ("Ask", "Slow", "Missing"))
    several = channel.unary_stream("/test.Echo/List")
    for n in range(100):
        begun, kinds = time.monotonic_ns(), [ask] * 10
        if n >= 50 and n % 5 == 0: kinds.insert(3, slow)
        if n % 20 == 7: kinds.insert(5, missing)
        streams = [several(b"x")] if n in (30, 60, 90) else []
        for kind, call in [(kind, kind.future(b"x" * 100)) for kind in kinds]:
            if kind is missing: assert call.code() == grpc.StatusCode.NOT_FOUND, call.code()
            else: assert call.result() == b"x" * 100
            if kind is slow: longest = max(longest, time.monotonic_ns() - begun)
        for stream in streams: assert len(list(stream)) == 4
        time.sleep(0.03)
print(longest)
"#;

/// A host whose agent follows the server that `command` starts, which says its port.
fn host(test: &str, rule: &str, command: &[&str]) -> (Lab, Cgroups, crate::Killed, u16) {
    let mut lab = Lab::new();
    let cgroups = Cgroups::new(test, &["n1"]);
    let (server, port) = serve(&cgroups, "n1", command);
    let cgroup = cgroups.path("n1").display().to_string();
    lab.start("n1", &["--cgroup", &cgroup, "--serve", rule]);
    wait_for("the server to be followed", || {
        let log = lab.log("n1");
        if log.contains("are recorded") { Ok(()) } else { Err(log) }
    });
    (lab, cgroups, server, port)
}

fn rows(lab: &Lab, sql: &str) -> Vec<Value> {
    lab.query("n1", sql, &[]).0["rows"].as_array().expect("rows").clone()
}

#[test]
fn grpc_requests_are_rows_each_with_path_and_status() {
    let test = "grpc_requests_are_rows_each_with_path_and_status";
    let has_grpc = Command::new(PYTHON).args(["-c", "import grpc"]).output().is_ok_and(|out| out.status.success());
    if !can_capture(test) || !has_grpc {
        eprintln!("{test}: skipped unless it can capture and there is python3-grpcio");
        return;
    }
    let (lab, _cgroups, _server, port) = host(test, "echo=exe:*python3*", &[PYTHON, "-c", GRPC_SERVER]);
    // Where the host's CPUs are taken, the slowest are those that waited for one: then all is done again.
    let (_, (since, answer, longest_ns)) = until(|| {
        let since = now();
        let client = Command::new(PYTHON).args(["-c", GRPC_CLIENT, &port.to_string()]).output().expect("a client");
        let longest_ns: i64 = stdout(&client).trim().parse().expect("its longest");
        let answer = tail(&lab, 1_018, &["--since", &since]);
        let most = answer["services"][0]["slowest"]["excess"]["parts"][0]["part"]["kind"].clone();
        (most == "asleep").then_some((since, answer.clone(), longest_ns)).ok_or(answer)
    });
    let since = format!("{since}000000000");
    let counts = rows(
        &lab,
        &format!(
            "SELECT protocol, method, route, sum(count), sum(errors), sum(unanswered) FROM request_rollups WHERE \
             bucket_ns >= {since} GROUP BY 1, 2, 3 ORDER BY 3"
        ),
    );
    let expected = serde_json::json!([
        ["grpc", "POST", "/test.Echo/Ask", 1000, 0, 0],
        ["grpc", "POST", "/test.Echo/List", 3, 0, 0],
        ["grpc", "POST", "/test.Echo/Missing", 5, 5, 0],
        ["grpc", "POST", "/test.Echo/Slow", 10, 0, 0],
    ]);
    assert_eq!(Value::from(counts), expected);
    let of = |route: &str| {
        let sql = format!(
            "SELECT status, grpc_status, duration_ns, first_byte_ns, sends, gap_ns, bytes_in, bytes_out FROM requests \
             WHERE ts_ns >= {since} AND route = '/test.Echo/{route}'"
        );
        rows(&lab, &sql)
    };
    let (asked, slow, missing, listed) = (of("Ask"), of("Slow"), of("Missing"), of("List"));
    // Failed ones all have rows, and of the others those that are slow for their seconds.
    assert!(slow.len() >= 5 && !listed.is_empty() && !asked.is_empty(), "{slow:?} {listed:?}");
    assert_eq!(missing.len(), 5, "{missing:?}");
    let number = |row: &Value, at: usize| row[at].as_i64().expect("a number");
    for row in asked.iter().chain(&slow).chain(&listed) {
        assert_eq!((number(row, 0), number(row, 1)), (200, 0), "{row}");
    }
    // What they carry, and the headers' frames around it.
    assert!(asked.iter().all(|row| number(row, 6) >= 105 && number(row, 7) >= 105), "{asked:?}");
    assert!(missing.iter().all(|row| (number(row, 0), number(row, 1)) == (200, 5)), "{missing:?}");
    // The server's own time is in the client's.
    assert!(slow.iter().all(|row| (80_000_000..=longest_ns).contains(&number(row, 2))), "{longest_ns}: {slow:?}");
    for row in &listed {
        assert!(number(row, 2) >= 90_000_000 && number(row, 2) - number(row, 3) >= 60_000_000, "{row}");
        assert!(number(row, 4) >= 3 && number(row, 5) >= 30_000_000, "{row}");
    }
    let echo = &answer["services"][0];
    let parts = echo["slowest"]["excess"]["parts"].as_array().expect("what they have more of");
    assert_eq!((&parts[0]["part"]["kind"], &parts[0]["part"]["of"]), (&"asleep".into(), &"timer".into()), "{echo}");
    assert!(echo.to_string().contains("POST /test.Echo/Slow"), "{echo}");
    let lost = rows(&lab, "SELECT reason, lost FROM capture_loss WHERE probe = 'requests'");
    assert!(lost.is_empty(), "{lost:?}");
}

#[test]
fn requests_of_h2load_and_curl_are_counted_each() {
    let test = "requests_of_h2load_and_curl_are_counted_each";
    if !can_capture(test) || !has("nghttpd", test) || !has("h2load", test) || !has("curl", test) {
        return;
    }
    let pages = tempfile::tempdir().expect("a folder");
    std::fs::write(pages.path().join("page.html"), vec![b'x'; 100_000]).expect("a page");
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let command = format!("echo {port}; exec nghttpd --no-tls -a 127.0.0.1 -d {} {port}", pages.path().display());
    let (lab, _cgroups, _server, port) = host(test, &format!("web=port:{port}"), &["sh", "-c", &command]);
    wait_for("the server", || TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string()));
    let since = now();
    let at = |path: &str| format!("http://127.0.0.1:{port}/{path}");
    let load = Command::new("h2load").args(["-n", "2000", "-c", "4", "-m", "16", &at("page.html")]).output();
    let load = stdout(&load.expect("h2load"));
    assert!(load.contains("2000 done, 2000 succeeded"), "{load}");
    for (path, said) in [("page.html", "2 200"), ("orders/4711?token=secret", "2 404")] {
        let mut curl = Command::new("curl");
        curl.args([
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{http_version} %{http_code}",
            "--http2-prior-knowledge",
            &at(path),
        ]);
        assert_eq!(stdout(&curl.output().expect("curl")), said);
    }
    tail(&lab, 2_002, &["--since", &since]);
    let sums = rows(
        &lab,
        "SELECT protocol, method, route, sum(count), sum(errors), sum(bytes_out) > 200000000 FROM request_rollups \
         GROUP BY 1, 2, 3 ORDER BY 4",
    );
    let expected = serde_json::json!([
        ["http/2", "GET", "/orders/{number}", 1, 0, 0],
        ["http/2", "GET", "/page.html", 2001, 0, 1],
    ]);
    assert_eq!(Value::from(sums), expected);
    let statuses = rows(&lab, "SELECT DISTINCT status, grpc_status FROM requests ORDER BY 1");
    assert!(statuses.iter().all(|row| row[1].is_null() && (row[0] == 200 || row[0] == 404)), "{statuses:?}");
    let lost = rows(&lab, "SELECT reason, lost FROM capture_loss WHERE probe = 'requests'");
    assert!(lost.is_empty(), "{lost:?}");
}
