//! Servers of several processes and ports: a process for each connection, workers that are replaced, a
//! service for each port.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

use node_bpf::{Record, ServeRule, ServingConfig};

use super::common::{Cgroup, can_capture, wait_for};
use super::{Recorder, named, serve_script};

/// "fork": a process answers each connection. "workers": a worker is replaced after three requests.
/// "ports": one process listens on two ports.
const SERVER: &str = r#"
import ctypes, os, select, socket, sys
libc = ctypes.CDLL(None)
def answer(connection):
    got = b""
    while b"\r\n\r\n" not in got: got += connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
    connection.close()
listener = socket.create_server(("127.0.0.1", 0))
all = [listener]
if sys.argv[1] == "ports": all.append(socket.create_server(("127.0.0.1", listener.getsockname()[1] + 1)))
print(listener.getsockname()[1], flush=True)
if sys.argv[1] == "ports":
    while True:
        for one in select.select(all, [], [])[0]: answer(one.accept()[0])
if sys.argv[1] == "fork":
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            answer(connection)
            os._exit(0)
        connection.close()
        os.wait()
while True:
    if os.fork() == 0:
        libc.prctl(1, 9)  # PR_SET_PDEATHSIG
        for _ in range(3): answer(listener.accept()[0])
        os._exit(0)
    os.wait()
"#;

fn ask(port: u16) {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).unwrap();
    connection.write_all(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = vec![];
    connection.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(b"ok"), "{answer:?}");
}

/// Counted requests by service.
fn counted(recorder: &Recorder) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for record in recorder.records.lock().unwrap().iter() {
        if let Record::RequestSum(sum) = record {
            *all.entry(sum.of.service.to_string()).or_default() += sum.count;
        }
    }
    all
}

/// Asks so often, one after the other; each has to be counted, without a loss, by several processes.
fn all_are_counted(how: &str, processes: usize) {
    let cgroup = Cgroup::new();
    let server = serve_script(&cgroup, SERVER, &[how]);
    let recorder = Recorder::start(named("web", "exe:*python3*", &cgroup));
    recorder.wait_for_server(server.pid);
    // A worker that was forked between the look for processes and their being followed is found by the next.
    let served = || recorder.serving.as_ref().unwrap().status().servers.len();
    wait_for("its first processes to be found", || served() >= processes);
    (0..30).for_each(|_| ask(server.port));
    wait_for("all to be counted", || counted(&recorder).get("web") == Some(&30));
    let (rows, sums, lost) = recorder.stop();
    let errors: u64 = sums.iter().map(|sum| sum.errors).sum();
    assert_eq!((errors, lost), (0, 0));
    let pids: BTreeSet<u32> = sums.iter().map(|sum| sum.of.pid).collect();
    assert!(pids.len() >= 10, "{pids:?}");
    assert!(rows.iter().all(|row| row.of.route.as_deref() == Some("/x") && row.status == Some(200)), "{rows:?}");
}

#[test]
fn a_process_for_each_connection_is_its_servers() {
    if can_capture() {
        all_are_counted("fork", 1);
    }
}

#[test]
fn workers_are_followed_from_their_first_request_on() {
    if can_capture() {
        all_are_counted("workers", 2);
    }
}

#[test]
fn each_named_port_of_a_process_is_a_service() {
    if !can_capture() {
        return;
    }
    let cgroup = Cgroup::new();
    let server = serve_script(&cgroup, SERVER, &["ports"]);
    let rule = |name: &str, port: u16| ServeRule::parse(&format!("{name}=port:{port}")).unwrap();
    let rules = vec![rule("b", server.port + 1), rule("a", server.port)];
    let recorder = Recorder::start(ServingConfig { rules, ..named("none", "exe:none", &cgroup) });
    let served = || recorder.serving.as_ref().unwrap().status().servers;
    wait_for("both services", || served().len() == 2);
    let mut shown: Vec<_> = served().into_iter().map(|of| (of.service, of.ports)).collect();
    shown.sort();
    assert_eq!(shown, [("a".to_owned(), vec![server.port]), ("b".to_owned(), vec![server.port + 1])]);
    (0..3).for_each(|_| ask(server.port));
    (0..2).for_each(|_| ask(server.port + 1));
    let expected = BTreeMap::from([("a".to_owned(), 3), ("b".to_owned(), 2)]);
    wait_for("all to be counted", || counted(&recorder) == expected);
    let (.., lost) = recorder.stop();
    assert_eq!(lost, 0);
}
