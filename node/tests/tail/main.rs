//! `rankmesh tail` on real servers: every request is counted, and what was done to some of them is what
//! the slowest have more of, on whatever thread of whichever process. Needs root.

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod demo;
mod grown;
mod http2;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(feature = "serve")]
use common::http::Server;
use common::jobs::Cgroups;
use common::{Killed, Lab, can_capture, has, python, stdout, wait_for};
use serde_json::Value;

/// Answers after some milliseconds of computing: /MS/N; /sleep/N sleeps 60 ms besides.
const SERVER: &str = r#"
import http.server, socketserver, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def do_GET(self):
        kind = self.path.split("/")[1]
        if kind == "sleep": time.sleep(0.06)
        until = time.thread_time() + (0.0 if kind == "sleep" else int(kind) / 1000)
        while time.thread_time() < until: pass
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
server = Server(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"#;

/// A server in a host's cgroup; its port.
fn serve(cgroups: &Cgroups, host: &str, command: &[&str]) -> (Killed, u16) {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"echo $$ > "$0" && exec "$@""#]);
    shell.arg(cgroups.path(host).join("cgroup.procs")).args(command);
    let mut child = shell.stdout(Stdio::piped()).spawn().expect("a server starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    (Killed(child), line.trim().parse().expect("its port"))
}

fn ask(connection: &mut TcpStream, path: &str) {
    connection.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).expect("sent");
    let mut answer = [0; 40];
    connection.read_exact(&mut answer).expect("an answer");
    assert!(answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"ok"), "{:?}", String::from_utf8_lossy(&answer));
}

/// Agents, the cgroups of their hosts, and the servers with their ports.
type Hosts = (Lab, Cgroups, Vec<(Killed, u16)>);

/// Two hosts, each with a server of the service "chat"; `more`: flags of their agents.
fn hosts(test: &str, more: &[&str]) -> Option<Hosts> {
    if !can_capture(test) || !has("python3", test) || !has("taskset", test) {
        return None;
    }
    let mut lab = Lab::new();
    let cgroups = Cgroups::new(test, &["n1", "n2"]);
    let on_first_cpu = ["taskset", "-c", "0", "python3", "-c", SERVER];
    let servers = ["n1", "n2"].map(|host| serve(&cgroups, host, &on_first_cpu)).into();
    for host in ["n1", "n2"] {
        let cgroup = cgroups.path(host).display().to_string();
        lab.start(host, &[&["--cgroup", &cgroup, "--serve", "chat=exe:*python3*"], more].concat());
    }
    lab.wait_for_members(&["n1", "n2"]);
    wait_for("both servers to be followed", || {
        let logs = ["n1", "n2"].map(|host| lab.log(host));
        if logs.iter().all(|log| log.contains("requests of chat are recorded")) { Ok(()) } else { Err(logs.concat()) }
    });
    Some((lab, cgroups, servers))
}

/// The next whole second, when it has come, as `--since` takes it: requests are summed up by the second.
fn now() -> String {
    let since_1970 = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let next = Duration::from_secs(since_1970().as_secs() + 1);
    std::thread::sleep(next.saturating_sub(since_1970()));
    next.as_secs().to_string()
}

/// What an attempt gives, how many it took, a few at most.
fn until<T>(attempt: impl FnMut() -> Result<T, Value>) -> (u8, T) {
    let mut all = std::iter::repeat_with(attempt).take(4).enumerate();
    let mut last = Value::Null;
    let found = all.find_map(|(at, given)| match given {
        Ok(given) => Some((at as u8 + 1, given)),
        Err(why) => {
            println!("attempt {}: {why}", at + 1);
            last = why;
            None
        }
    });
    found.unwrap_or_else(|| panic!("{last}"))
}

/// What `tail` says of the one service, once all requests are in the stores.
fn tail(lab: &Lab, requests: i64, more: &[&str]) -> Value {
    wait_for("all requests", || {
        let output = lab.ask("n1", "tail", &[&["--format", "json"], more].concat());
        let answer: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
        if answer["services"][0]["count"] == requests { Ok(answer) } else { Err(answer.to_string()) }
    })
}

#[test]
fn every_request_of_both_hosts_is_counted_and_the_slowest_slept() {
    let Some((lab, _cgroups, servers)) = hosts("every_request_of_both_hosts_is_counted_and_the_slowest_slept", &[])
    else {
        return;
    };
    // Where the host's CPUs are taken, the slowest are those that waited for one: then all is done again.
    let (times, (since, answer)) = until(|| {
        let since = now();
        for (_, port) in &servers {
            let mut connection = TcpStream::connect(("127.0.0.1", *port)).expect("connected");
            // What is slow is known from the seconds before.
            for n in 0..500 {
                let kind = if n >= 250 && n % 25 == 24 { "sleep" } else { "0" };
                ask(&mut connection, &format!("/{kind}/{n}"));
                std::thread::sleep(Duration::from_millis(8));
            }
        }
        let answer = tail(&lab, 1_000, &["--since", &since]);
        let most = answer["services"][0]["slowest"]["excess"]["parts"][0]["part"]["kind"].clone();
        (most == "asleep").then_some((since, answer.clone())).ok_or(answer)
    });
    let chat = &answer["services"][0];
    assert_eq!((&chat["service"], &chat["errors"], &chat["unanswered"]), (&"chat".into(), &0.into(), &0.into()));
    let groups = chat["groups"].as_array().expect("hosts");
    assert_eq!(groups.iter().map(|group| &group["figures"]["count"]).collect::<Vec<_>>(), [500, 500]);
    assert!(chat["p99_ns"].as_i64() >= Some(59_000_000) && chat["p50_ns"].as_i64() < Some(40_000_000), "{chat}");
    let parts = chat["slowest"]["excess"]["parts"].as_array().expect("what they have more of");
    assert_eq!(parts[0]["part"]["kind"], "asleep", "{chat}");
    assert!(parts[0]["share"].as_f64() > Some(0.5), "{chat}");
    let shared = chat["slowest"]["shared"].as_array().expect("what they share");
    assert!(shared.iter().any(|shared| shared["of"] == "GET /sleep/{number}"), "{chat}");
    // One host, and by route.
    let answer = tail(&lab, 500, &["--by", "route", "--nodes", "n2", "--since", &since]);
    let routes = answer["services"][0]["groups"].as_array().expect("routes");
    let counts: Vec<(&str, i64)> = routes
        .iter()
        .map(|route| (route["of"].as_str().unwrap_or(""), route["figures"]["count"].as_i64().unwrap_or(0)))
        .collect();
    assert_eq!(counts, [("GET /{number}/{number}", 490), ("GET /sleep/{number}", 10)]);
    let text = stdout(&lab.ask("n2", "tail", &["--service", "chat", "--since", &since]));
    assert!(
        text.starts_with("chat: 1000 requests, p50 ") && text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let none = lab.ask("n1", "tail", &["--service", "other"]);
    assert_eq!(none.status.code(), Some(0), "{none:?}");
    assert!(stdout(&none).starts_with("No requests of other are stored"), "{none:?}");
    #[cfg(feature = "serve")]
    served_elsewhere(&lab, times.into());
}

/// The same by HTTP and as metrics: those of the asked agent's host, counted since its start, when all
/// was asked so many times.
#[cfg(feature = "serve")]
fn served_elsewhere(lab: &Lab, times: f64) {
    let server = Server::start(&["--socket", &lab.socket("n1").display().to_string()]);
    let served = server.get("/api/v1/tail?service=chat").json();
    let printed = lab.ask("n1", "tail", &["--service", "chat", "--format", "json"]);
    let printed: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
    assert_eq!(served["services"], printed["services"]);
    let text = server.get("/metrics").text();
    let value = |series: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no {series} in {text}"))
    };
    let labels = r#"node="n1",service="chat""#;
    assert_eq!(value(&format!("rankmesh_requests_total{{{labels}}}")), 500.0 * times);
    assert_eq!(value(&format!("rankmesh_request_errors_total{{{labels}}}")), 0.0);
    assert_eq!(value(&format!("rankmesh_request_duration_seconds_count{{{labels}}}")), 500.0 * times);
    let up_to = |le: &str| value(&format!(r#"rankmesh_request_duration_seconds_bucket{{le="{le}",{labels}}}"#));
    // Ten slept for 60 ms each time.
    assert!(up_to("0.05") <= 490.0 * times && up_to("0.05") >= up_to("0.01"), "{text}");
    assert_eq!((up_to("100.0"), up_to("+Inf")), (500.0 * times, 500.0 * times));
    assert!(value(&format!("rankmesh_request_duration_seconds_sum{{{labels}}}")) >= 0.6, "{text}");
    assert!(!text.contains(r#"node="n2",service"#), "{text}");
}

#[test]
fn a_program_on_the_servers_core_is_what_the_slowest_waited_for() {
    let Some((lab, _cgroups, servers)) = hosts("a_program_on_the_servers_core_is_what_the_slowest_waited_for", &[])
    else {
        return;
    };
    let mut connection = TcpStream::connect(("127.0.0.1", servers[0].1)).expect("connected");
    // (Others may take the CPU, too: then all is done again.)
    until(|| {
        let since = now();
        for n in 0..1_170 {
            ask(&mut connection, &format!("/4/{n}"));
        }
        let mut hog = Command::new("taskset");
        let hog = hog.args(["-c", "0", "sh", "-c", "while :; do :; done"]).env("SLURM_JOB_ID", "77").spawn();
        let hog = Killed(hog.expect("a hog starts"));
        for n in 0..30 {
            ask(&mut connection, &format!("/40/{n}"));
        }
        drop(hog);
        let answer = tail(&lab, 1_200, &["--service", "chat", "--since", &since]);
        let chat = &answer["services"][0];
        let parts = chat["slowest"]["excess"]["parts"].as_array().expect("what they have more of");
        let of = |kind: &str| -> f64 {
            let of_kind = parts.iter().filter(|more| more["part"]["kind"] == kind);
            of_kind.filter_map(|more| more["share"].as_f64()).sum()
        };
        // 40 ms of their own work in place of 4, and as much for the other program.
        let parts_are_right = of("cpu_taken") > 0.25 && of("on_cpu") > 0.1 && of("asleep") < 0.25;
        let is_named = parts.iter().any(|more| more["part"]["of"] == "sh of job:77");
        if parts_are_right && is_named { Ok(()) } else { Err(answer) }
    });
    // Who delays whom, of all requests, and who has servers.
    let saved = |name: &str| -> Vec<Value> {
        let output = lab.ask("n1", "query", &["--saved", name, "--format", "json"]);
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        answer["rows"].as_array().expect("rows").clone()
    };
    let delays = saved("delays-by-tenant");
    let by_job: Vec<&Value> = delays.iter().filter(|row| row[2] == "job:77" && row[3] == "sh").collect();
    let delayed_ns = by_job.iter().filter_map(|row| row[5].as_f64()).sum::<f64>();
    assert!(!by_job.is_empty() && delayed_ns > 30.0 * 10e6, "{delays:?}");
    let tenants = saved("tenants");
    assert!(tenants.len() == 1 && tenants[0][0] == by_job[0][0] && tenants[0][1] == "chat", "{tenants:?}");
    assert!(tenants[0][3].as_i64().is_some_and(|requests| requests % 1_200 == 0), "{tenants:?}");
}

/// Ordinary requests of a kind to `threads_server.py`, and those that are made slow: more than one in a
/// hundred, which are looked into, and fewer than two, which are kept.
const ORDINARY: usize = 1_482;
const SLOW: usize = 18;

/// A host with the server on uvicorn, which is followed.
fn on_uvicorn(test: &str) -> Option<(Lab, Cgroups, (Killed, u16), tempfile::TempDir)> {
    if !can_capture(test) || !has("taskset", test) {
        return None;
    }
    let python = python::clients(test)?;
    let scratch = tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("a folder on a disk");
    let (mut lab, cgroups) = (Lab::new(), Cgroups::new(test, &["n1"]));
    let script = python::script("threads_server.py");
    let file = scratch.path().join("scratch");
    let command = [&*python, &*script, &*file].map(|path| path.to_str().expect("a path"));
    let server = serve(&cgroups, "n1", &command);
    let cgroup = cgroups.path("n1").display().to_string();
    lab.start("n1", &["--cgroup", &cgroup, "--serve", &format!("chat=port:{}", server.1)]);
    lab.wait_for_members(&["n1"]);
    wait_for("the server to be followed", || {
        let log = lab.log("n1");
        if log.contains("requests of chat are recorded") { Ok(()) } else { Err(log) }
    });
    Some((lab, cgroups, server, scratch))
}

/// Asks for a kind; `slow` is done beside each request that is to be slow.
fn ask_kind(port: u16, kind: &str, mut slow: impl FnMut(&mut TcpStream, &str)) {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    for n in 0..ORDINARY + SLOW {
        // What is slow is known from the seconds before.
        if n > 300 && n % ((ORDINARY + SLOW - 300) / SLOW) == 0 {
            slow(&mut connection, &format!("/{kind}/{}", 100_000 + n));
        } else {
            ask(&mut connection, &format!("/{kind}/{n}"));
        }
    }
}

/// Asks for a kind, until what the slowest of that have more of is as it should be; since when it asked. Other programs
/// than ours may take the CPU of the slowest, too, and then that is true: all is done again, a few times, but only then.
fn slowest(
    lab: &Lab,
    kind: &str,
    requests: usize,
    mut ask_all: impl FnMut(),
    is_right: impl Fn(&Value) -> bool,
) -> String {
    let (_, since) = until(|| {
        let since = now();
        ask_all();
        let route = format!("/{kind}/{{number}}");
        let answer = tail(lab, requests as i64, &["--route", &route, "--since", &since]);
        let slowest = &answer["services"][0]["slowest"];
        let excess = &slowest["excess"];
        println!("{kind}: {excess}");
        assert!(slowest["told"].as_f64() > Some(0.8), "{kind}: {slowest}");
        if is_right(excess) {
            return Ok(since);
        }
        let taken_by = |of: &str| share(excess, &[("kind", "cpu_taken"), ("of", of)]);
        let by_others = taken_by("") - ["sh", "rankmesh", "capture-"].map(taken_by).iter().sum::<f64>();
        assert!(by_others > 0.1, "{kind}: {slowest}");
        Err(slowest.clone())
    });
    since
}

/// How much of it is of parts that begin with these words.
fn share(excess: &Value, words: &[(&str, &str)]) -> f64 {
    let are =
        |part: &Value| words.iter().all(|(key, begin)| part[*key].as_str().is_some_and(|text| text.starts_with(begin)));
    let parts = excess["parts"].as_array().expect("parts").iter();
    parts.filter(|more| are(&more["part"])).filter_map(|more| more["share"].as_f64()).sum()
}

/// The last CPU that this test may use, where the server's other process works.
fn last_cpu() -> String {
    let status = std::fs::read_to_string("/proc/self/status").expect("our status");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("our CPUs");
    list.trim().rsplit([',', '-']).next().expect("a CPU").to_owned()
}

#[test]
fn what_a_thread_or_another_process_did_for_a_request_is_told() {
    let Some((lab, _cgroups, (_server, port), _scratch)) =
        on_uvicorn("what_a_thread_or_another_process_did_for_a_request_is_told")
    else {
        return;
    };
    let all = ORDINARY + SLOW;

    // Nothing is done to any of these; on a busy host others may have the CPU now and then.
    let plain = || {
        let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        for n in 0..all {
            ask(&mut connection, &format!("/plain/{n}"));
            std::thread::sleep(Duration::from_millis(4));
        }
    };
    slowest(&lab, "plain", all, plain, |found| found["grown"] == false || share(found, &[("kind", "asleep")]) < 0.3);

    let slowed = |kind: &str, is_right: &dyn Fn(&Value) -> bool| {
        slowest(&lab, kind, all, || ask_kind(port, kind, ask), is_right)
    };
    slowed("sleep", &|found| share(found, &[("kind", "asleep"), ("of", "timer"), ("thread", "pool")]) > 0.7);
    let since = slowed("lock", &|found| {
        share(found, &[("kind", "asleep"), ("of", "timer"), ("thread", "holder")]) > 0.7
            && found["parts"][0]["part"]["holds_lock"] == true
    });
    let text = stdout(&lab.ask("n1", "tail", &["--route", "/lock/{number}", "--since", &since]));
    println!("{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("asleep in a timer, thread holder of python threads_server.py, while another waited"),
        "{text}"
    );

    // How much of the time is the disk's is the host's affair: the thread slept in nothing else.
    slowed("disk", &|found| {
        let of_disk = share(found, &[("kind", "asleep"), ("of", "io"), ("thread", "pool")]);
        of_disk > 0.02 && of_disk > share(found, &[("kind", "asleep")]) - of_disk
    });

    // (On a busy host it has the CPU for a part of the time that it wants it.)
    slowed("engine", &|found| {
        let of_engine = |kind: &str| share(found, &[("kind", kind), ("thread", "main"), ("process", "engine")]);
        of_engine("on_cpu") > 0.1 && of_engine("on_cpu") + of_engine("cpu_taken") > 0.5
    });

    // Another program on the core of the process that does the work.
    let cpu = last_cpu();
    let hog = |connection: &mut TcpStream, path: &str| {
        let hog = Command::new("taskset").args(["-c", &cpu, "sh", "-c", "while :; do :; done"]).spawn();
        let hog = Killed(hog.expect("a hog starts"));
        ask(connection, path);
        drop(hog);
    };
    // (On a busy host others take it, too.)
    slowest(
        &lab,
        "hog",
        all,
        || ask_kind(port, "hog", hog),
        |found| {
            let taken = share(found, &[("kind", "cpu_taken"), ("process", "engine")]);
            taken > 0.3 && share(found, &[("kind", "cpu_taken"), ("of", "sh"), ("process", "engine")]) > 0.05
        },
    );

    // Requests that come at once, and wait for the one thread of a pool.
    let burst = || {
        let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        (0..ORDINARY).for_each(|n| ask(&mut connection, &format!("/burst/{n}")));
        for _ in 0..2 {
            std::thread::scope(|scope| {
                for n in 0..SLOW {
                    let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("connected");
                    scope.spawn(move || ask(&mut connection, &format!("/burst/{n}")));
                }
            });
        }
    };
    slowest(&lab, "burst", ORDINARY + 2 * SLOW, burst, |found| {
        share(found, &[("kind", "asleep"), ("of", "timer"), ("thread", "single")]) > 0.6
    });
}
