//! HTTP/2 as no library sends it: frames cut anywhere, answers that break off, connections that were
//! open before, bytes that are moved unseen.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;

use super::common::{Cgroup, can_capture, wait_for};
use super::{Recorder, Server, named, serve_script};

const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Reads into three small buffers at a time, and answers by the stream's number: the first of each four
/// streams as it should, from many buffers; the second's answer begins and is reset; the third has
/// none; the fourth's does not end. Closes the connection at a PING. Listens on TCP, or on a Unix
/// socket of this path.
const SERVER: &str = r#"
import socket, struct, sys
def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload
def answer(connection, stream):
    ok = frame(1, 4, stream, b"\x88")
    if stream % 8 == 1:
        all = ok + frame(0, 0, stream, b"x" * 1000) + frame(0, 1, stream)
        connection.sendmsg([all[at:at + 4] for at in range(0, len(all), 4)])
    if stream % 8 == 3: connection.sendall(ok + frame(3, 0, stream, struct.pack(">I", 2)))
    if stream % 8 == 7: connection.sendall(ok + frame(0, 0, stream, b"part"))
def serve(connection):
    connection.sendall(frame(4, 0, 0))
    got, preface = b"", True
    while True:
        parts = [bytearray(16), bytearray(1), bytearray(10)]
        count = connection.recvmsg_into(parts)[0]
        if count == 0: return
        got += b"".join(parts)[:count]
        if preface and len(got) >= 24: got, preface = got[24:], False
        while not preface and len(got) >= max(9, 9 + int.from_bytes(got[:3], "big")):
            size, kind, flags, stream = 9 + int.from_bytes(got[:3], "big"), got[3], got[4], int.from_bytes(got[5:9], "big")
            got = got[size:]
            if kind in (1, 9) and flags & 4: answer(connection, stream)
            if kind == 6: return
if len(sys.argv) > 1:
    listener = socket.create_server(sys.argv[1], family=socket.AF_UNIX)
    print(0, flush=True)
else:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    try: serve(connection)
    except OSError: pass
    connection.close()
"#;

/// Takes a connection's first bytes as one does, so many more by splice, and then the others; and answers
/// the second stream.
const SPLICER: &str = r#"
import os, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
connection.recv(33, socket.MSG_WAITALL)
left, (_, pipe) = int(sys.argv[1]), os.pipe()
while left > 0: left -= os.splice(connection.fileno(), pipe, left)
connection.recv(4096)
connection.sendall(bytes([0, 0, 1, 1, 5, 0, 0, 0, 3, 0x88]))
connection.recv(1)
"#;

/// Reads a request, and has another program answer it, which is not followed.
const HANDS_OVER: &str = r#"
import os, socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
connection.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
connection.recv(4096)
os.set_inheritable(connection.fileno(), True)
if os.fork() == 0:
    os.execvp("sh", ["sh", "-c", r"printf '\0\0\1\1\5\0\0\0\1\210' >&%d" % connection.fileno()])
os.wait()
connection.close()
listener.accept()
"#;

/// Answers a request when its client has gone: the reset comes within the send.
const LATE: &str = r#"
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
connection.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
while connection.recv(4096): pass
connection.sendall(bytes([0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88]))
connection.close()
listener.accept()
"#;

/// Says again what it is told, once.
const ECHO: &str = r#"
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
connection.sendall(connection.recv(100))
connection.recv(1)
"#;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn preface() -> Vec<u8> {
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[])].concat()
}

/// A server that is followed, and a connection to it.
fn follow(script: &str, arguments: &[&str]) -> (Cgroup, Server, Recorder, TcpStream) {
    let cgroup = Cgroup::new();
    let server = serve_script(&cgroup, script, arguments);
    let recorder = Recorder::start(named("web", "exe:*python3*", &cgroup));
    recorder.wait_for_server(server.pid);
    let connection = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    (cgroup, server, recorder, connection)
}

/// GET of a path that is added to the table, in a HEADERS and a CONTINUATION.
fn get(stream: u32, path: &str) -> Vec<u8> {
    let block = [&[0x82, 0x44, path.len() as u8], path.as_bytes()].concat();
    let (first, rest) = block.split_at(block.len() / 2);
    [frame(HEADERS, END_STREAM, stream, first), frame(CONTINUATION, END_HEADERS, stream, rest)].concat()
}

#[test]
fn streams_are_requests_wherever_their_frames_are_cut_and_however_they_end() {
    if !can_capture() {
        return;
    }
    let (_cgroup, _server, recorder, mut connection) = follow(SERVER, &[]);
    connection.set_nodelay(true).unwrap();
    let mut all = preface();
    (0..4)
        .for_each(|n| all.extend(get(2 * n + 1, &format!("/path/{}", ["whole", "reset", "none", "part"][n as usize]))));
    // The path of the first one, from the table.
    all.extend(frame(HEADERS, END_STREAM | END_HEADERS, 9, &[0x82, 0x80 | 65]));
    all.extend(frame(RESET, 0, 5, &8_u32.to_be_bytes()));
    for part in all.chunks(5) {
        connection.write_all(part).unwrap();
    }
    wait_for("those that have ended", || recorder.rows().len() == 4);
    connection.write_all(&frame(6, 0, 0, &[0; 8])).unwrap();
    wait_for("the one that broke off", || recorder.rows().len() == 5);
    let (mut rows, sums, lost) = recorder.stop();
    rows.sort_by_key(|row| row.number);
    let shown: Vec<_> = rows
        .iter()
        .map(|row| (row.number, row.of.route.as_deref().unwrap(), row.status, row.duration_ns.is_some()))
        .collect();
    assert_eq!(
        shown,
        [
            (1, "/path/whole", Some(200), true),
            (2, "/path/reset", Some(200), true),
            (3, "/path/none", None, false),
            (4, "/path/part", Some(200), true),
            (5, "/path/whole", Some(200), true),
        ]
    );
    assert!(rows.iter().all(|row| row.of.protocol == "http/2" && row.of.method == Some("GET")), "{rows:?}");
    let bytes: Vec<_> = rows.iter().map(|row| (row.bytes_in, row.bytes_out)).collect();
    assert_eq!(bytes, [(32, 1_028), (32, 10), (31, 0), (31, 23), (11, 1_028)]);
    let count = |of: fn(&super::RequestSum) -> u64| sums.iter().map(of).sum::<u64>();
    assert_eq!((count(|s| s.count), count(|s| s.errors), count(|s| s.unanswered)), (5, 3, 1));
    assert_eq!(lost, 0);
}

/// A connection is open when recording starts, on which these bytes were said after the preface; then come
/// others, of which nothing may be recorded, and the next connection's are.
fn open_before(said: &[u8], then: &[u8]) {
    let cgroup = Cgroup::new();
    let server = serve_script(&cgroup, SERVER, &[]);
    let mut connection = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    connection.write_all(&[&preface(), said].concat()).unwrap();
    connection.read_exact(&mut [0; 9]).unwrap();
    wait_for("the server to have read it", || in_receive_queues(server.port) == 0);
    let recorder = Recorder::start(named("web", "exe:*python3*", &cgroup));
    recorder.wait_for_server(server.pid);
    connection.write_all(then).unwrap();
    let status = || recorder.serving.as_ref().unwrap().status();
    wait_for("that it is said", || status().problems.iter().any(|text| text.contains("open before")));
    // And stays, also behind a restart.
    wait_for("that it is counted", || recorder.losses().iter().any(|loss| loss.reason.contains("open before")));
    drop(connection);
    let mut connection = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    connection.write_all(&[preface(), get(1, "/after")].concat()).unwrap();
    wait_for("the next connection's", || !recorder.rows().is_empty());
    let (rows, ..) = recorder.stop();
    assert_eq!(rows.iter().filter_map(|row| row.of.route.as_deref()).collect::<Vec<_>>(), ["/after"]);
    assert_eq!(rows.len(), 1, "{rows:?}");
}

/// Bytes that connections at a port have not been read yet.
fn in_receive_queues(port: u16) -> u64 {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let of = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_its = fields.get(1).is_some_and(|at| at.ends_with(&format!(":{port:04X}")));
        let is_open = fields.get(3) == Some(&"01");
        let waiting = fields.get(4).and_then(|queues| u64::from_str_radix(queues.split_once(':')?.1, 16).ok());
        waiting.filter(|_| is_its && is_open)
    };
    table.lines().filter_map(of).sum()
}

#[test]
fn a_connection_that_was_open_before_is_left_out_and_said_so() {
    if can_capture() {
        // As frames begin, in the first receive that is seen.
        open_before(&[], &get(1, "/before"));
    }
}

#[test]
fn a_connection_that_was_open_before_is_told_by_its_answer_in_the_midst_of_a_frame() {
    if can_capture() {
        let data = frame(0, 0, 1, &[b'x'; 100]);
        open_before(&data[..20], &[&data[20..], &get(7, "/before")].concat());
    }
}

#[test]
fn a_client_that_has_gone_before_its_answer_leaves_it_unanswered_and_nothing_is_lost() {
    if !can_capture() {
        return;
    }
    let (_cgroup, _server, recorder, mut connection) = follow(LATE, &[]);
    connection.write_all(&[preface(), get(1, "/late")].concat()).unwrap();
    connection.read_exact(&mut [0; 9]).unwrap();
    drop(connection);
    wait_for("the request", || !recorder.rows().is_empty());
    let (rows, _, lost) = recorder.stop();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((row.of.route.as_deref(), row.duration_ns, lost), (Some("/late"), None, 0));
}

#[test]
fn what_another_program_may_have_answered_is_lost_and_not_unanswered() {
    if !can_capture() {
        return;
    }
    let (_cgroup, _server, recorder, mut connection) = follow(HANDS_OVER, &[]);
    connection.write_all(&[preface(), get(1, "/elsewhere")].concat()).unwrap();
    connection.read_exact(&mut [0; 9 + 10]).unwrap();
    drop(connection);
    let lost = |reason: &str| recorder.losses().iter().any(|loss| loss.reason.contains(reason));
    wait_for("both to be counted", || lost("cannot be followed any more") && lost("could not be followed"));
    let (rows, sums, lost) = recorder.stop();
    assert!(rows.is_empty() && sums.is_empty(), "{rows:?}");
    assert_eq!(lost, 2, "a connection, and a request");
}

#[test]
fn what_are_no_frames_ends_the_connection_for_us_and_nothing_is_made_up() {
    if !can_capture() {
        return;
    }
    let (_cgroup, _server, recorder, mut connection) = follow(SERVER, &[]);
    // A PING of seven bytes after a request without an answer; then one that would have one.
    let odd = [preface(), get(5, "/lost"), frame(6, 0, 0, &[0; 7]), get(9, "/after")].concat();
    connection.write_all(&odd).unwrap();
    let lost = |reason: &str| recorder.losses().iter().any(|loss| loss.reason.contains(reason));
    wait_for("both to be counted", || lost("cannot be followed any more") && lost("could not be followed"));
    drop(connection);
    let (rows, sums, lost) = recorder.stop();
    assert!(rows.is_empty() && sums.is_empty(), "{rows:?}");
    assert_eq!(lost, 2, "a connection, and a request");
}

#[test]
fn bytes_that_nothing_tells_of_end_the_connection_for_us() {
    if !can_capture() {
        return;
    }
    let cgroup = Cgroup::new();
    let unseen = get(1, "/unseen");
    let server = serve_script(&cgroup, SPLICER, &[&unseen.len().to_string()]);
    let recorder = Recorder::start(named("web", "exe:*python3*", &cgroup));
    recorder.wait_for_server(server.pid);
    let mut connection = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    // The path is of the table, as the frame before has it, which was not seen.
    let refers = frame(HEADERS, END_STREAM | END_HEADERS, 3, &[0x82, 0x80 | 62]);
    connection.write_all(&[preface(), unseen, refers].concat()).unwrap();
    let lost = || recorder.losses().iter().any(|loss| loss.reason.contains("cannot be followed any more"));
    wait_for("the connection to be counted", lost);
    drop(connection);
    let (rows, sums, lost) = recorder.stop();
    assert!(rows.is_empty() && sums.is_empty(), "{rows:?}");
    assert_eq!(lost, 1, "the connection");
}

#[test]
fn a_client_that_has_said_all_is_answered_and_its_end_is_no_byte_of_a_frame() {
    if !can_capture() {
        return;
    }
    let (_cgroup, _server, recorder, mut connection) = follow(SERVER, &[]);
    connection.write_all(&[preface(), get(1, "/all")].concat()).unwrap();
    connection.shutdown(Shutdown::Write).unwrap();
    wait_for("the request", || !recorder.rows().is_empty());
    let (rows, _, lost) = recorder.stop();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((row.of.route.as_deref(), row.status, lost), (Some("/all"), Some(200), 0));
}

#[test]
fn on_a_unix_socket_the_clients_close_ends_what_is_not_answered() {
    if !can_capture() {
        return;
    }
    let (cgroup, dir) = (Cgroup::new(), tempfile::tempdir().unwrap());
    let at = dir.path().join("web.sock");
    let server = serve_script(&cgroup, SERVER, &[at.to_str().unwrap()]);
    let recorder = Recorder::start(named("web", "exe:*python3*", &cgroup));
    recorder.wait_for_server(server.pid);
    for (before, reads) in [(0, true), (2, false)] {
        let mut connection = UnixStream::connect(&at).unwrap();
        connection.write_all(&[preface(), get(1, "/whole"), get(5, "/none")].concat()).unwrap();
        wait_for("the answer", || recorder.rows().len() == before + 1);
        if reads {
            // Settings and the answer: a client that closes before it has read them is an error for the server.
            connection.read_exact(&mut [0; 9 + 1_028]).unwrap();
        }
        drop(connection);
        wait_for("the other one", || recorder.rows().len() == before + 2);
    }
    let (rows, _, lost) = recorder.stop();
    let shown: Vec<_> = rows.iter().map(|row| (row.number, row.of.route.as_deref(), row.status)).collect();
    let of_one = [(1, Some("/whole"), Some(200)), (3, Some("/none"), None)];
    assert_eq!(shown, [of_one, of_one].concat());
    assert_eq!(lost, 0);
}

#[test]
fn a_server_that_dies_leaves_its_requests_unanswered_and_not_lost() {
    if !can_capture() {
        return;
    }
    let (_cgroup, server, recorder, mut connection) = follow(SERVER, &[]);
    connection.write_all(&[preface(), get(1, "/whole"), get(5, "/none")].concat()).unwrap();
    wait_for("the answer", || recorder.rows().len() == 1);
    drop(server);
    wait_for("the other one", || recorder.rows().len() == 2);
    let (rows, _, lost) = recorder.stop();
    assert_eq!((rows[1].of.route.as_deref(), rows[1].duration_ns, lost), (Some("/none"), None, 0));
}

#[test]
fn frames_of_headers_without_bytes_are_bounded() {
    if !can_capture() {
        return;
    }
    let (_cgroup, _server, recorder, mut connection) = follow(SERVER, &[]);
    let mut all = [preface(), frame(HEADERS, END_STREAM, 1, &[0x82, 0x84])].concat();
    (0..2_000).for_each(|_| all.extend(frame(CONTINUATION, 0, 1, &[])));
    all.extend(frame(CONTINUATION, END_HEADERS, 1, &[]));
    all.extend(get(9, "/after"));
    connection.write_all(&all).unwrap();
    wait_for("both", || recorder.rows().len() == 2);
    let (rows, _, lost) = recorder.stop();
    let shown: Vec<_> = rows.iter().map(|row| (row.of.route.as_deref(), row.status)).collect();
    assert_eq!(shown, [(None, None), (Some("/after"), Some(200))]);
    assert_eq!(lost, 1, "headers that were not read");
}

#[test]
fn what_only_resembles_a_frame_is_a_request_of_another_protocol() {
    if !can_capture() {
        return;
    }
    let (_cgroup, _server, recorder, mut connection) = follow(ECHO, &[]);
    // But its first byte was seen, and it began with no preface.
    connection.write_all(&frame(0, 1, 1, b"hello")).unwrap();
    connection.read_exact(&mut [0; 14]).unwrap();
    drop(connection);
    wait_for("the request", || !recorder.rows().is_empty());
    let (rows, _, lost) = recorder.stop();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((row.of.protocol, row.bytes_in, row.bytes_out, lost), ("other", 14, 14, 0));
}
