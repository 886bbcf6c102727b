//! Asking NCCL itself in a hang: its RAS subsystem (NCCL 2.24 and later) answers on a port of the
//! loopback address in one process of each host of a job. The answer is a text of the user whose
//! process it is: `explain::ras` parses it, and what that says is kept as a note of this host
//! (`annotations`), which an explanation of the hang shows.
//!
//! Asked is only who listens on the loopback address, in this network namespace, on the port that
//! the rank itself names (NCCL_RAS_ADDR, else 28028), and is the rank's own process or another of
//! its user: the kernel's table of sockets says whose each is. Within 6 s and 16 MiB; the agent
//! sends four fixed lines.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use explain::ras::{self, Status};
use model::cells::quoted;
use record::unix_now_ns;
use serde_json::json;
use store::{Annotation, Source};
use tokio_util::sync::CancellationToken;
use verdicts::{Hang, Report, Verdict};

use super::Shared;

/// NCCL's own port.
const PORT: u16 = 28028;
/// Longest that an answer is waited for: the job's processes have two seconds of it.
const PATIENCE: Duration = Duration::from_secs(6);
/// Longest for all of it: asking and reading end by themselves within [`PATIENCE`], but for the time
/// that a machine is busy with something else.
const MOST_TIME: Duration = Duration::from_secs(12);
/// What `annotations.attributes` calls the source of these notes.
const SOURCE: &str = "nccl-ras";
/// Processes of which it is looked for a note: those that wait longest.
const MOST_ASKED: usize = 1_024;
/// Longest note, bytes.
const MOST_NOTE: usize = 4_096;

/// Asks for a hang that is judged now, where this host has the first of the ranks that wait, and
/// keeps what NCCL says.
pub(super) async fn keep(shared: &Shared, report: &Report, stop: &CancellationToken) {
    let Verdict::Hang(hang) = &report.verdict else { return };
    let Some(who) = hang.waiting.first().map(|waiting| &waiting.who) else { return };
    let (Source::Store(store), Ok(pid)) = (shared.source.as_ref(), u32::try_from(who.pid)) else { return };
    if who.node != shared.identity.node().to_string() || !shared.recording.may_ask_nccl(pid) {
        return;
    }
    let asking = tokio::task::spawn_blocking(move || ask_of(pid, Instant::now() + PATIENCE));
    let asked = tokio::select! {
        asked = tokio::time::timeout(MOST_TIME, asking) => asked,
        () = stop.cancelled() => return,
    };
    let asked = match asked {
        Ok(Ok(Some(asked))) => asked,
        Ok(_) => return,
        Err(_) => Err(ras::RasError::Late.to_string()),
    };
    let mut text = match &asked {
        Ok(status) => said(status),
        Err(why) => format!("NCCL (RAS) was asked and did not answer as it should: {why}"),
    };
    text.truncate(MOST_NOTE); // it is ASCII
    let attributes = json!({"source": SOURCE, "rank": who.rank, "pid": pid}).to_string();
    store.ingest().annotation(Annotation { ts_ns: unix_now_ns(), text, attributes, uid: None });
}

/// Asks for what was kept of a hang: when, what NCCL said, and the node and process that was asked;
/// and the nodes to ask. One of the ranks that wait was asked, perhaps before the last of them came
/// to wait. None where nobody waits.
pub(super) fn kept_sql(hang: &Hang) -> Option<(String, Vec<String>)> {
    let since_ns = hang.waiting.iter().filter_map(|of| of.since_ns).min().unwrap_or(0);
    let of = || hang.waiting.iter().take(MOST_ASKED).map(|of| &of.who);
    let nodes: BTreeSet<String> = of().map(|who| who.node.clone()).collect();
    let processes: Vec<String> = of().map(|who| quoted(&format!("{} {}", who.node, who.pid))).collect();
    // notes of people have their user
    let sql = format!(
        "SELECT ts_ns, text, node, json_extract(attributes, '$.pid') FROM annotations WHERE ts_ns >= {since_ns} \
         AND uid IS NULL AND json_extract(attributes, '$.source') = '{SOURCE}' \
         AND node || ' ' || json_extract(attributes, '$.pid') IN ({}) ORDER BY ts_ns LIMIT 1",
        processes.join(", ")
    );
    (!processes.is_empty()).then(|| (sql, nodes.into_iter().collect()))
}

fn said(status: &Status) -> String {
    let version = status.version.as_deref().unwrap_or("of an unknown version");
    let sentences = status.sentences();
    if sentences.is_empty() {
        return format!("NCCL {version} itself (RAS) says that all ranks answer and have launched the same operations");
    }
    format!("NCCL {version} itself (RAS) says: {}", sentences.join("; "))
}

/// What NCCL answers where a rank's process listens; none where there is nobody to be asked.
fn ask_of(pid: u32, deadline: Instant) -> Option<Result<Status, String>> {
    let address = addresses(pid).into_iter().find(|address| belongs_to(pid, *address))?;
    Some(
        answer_of(address, deadline)
            .and_then(|answer| ras::parse(&answer, deadline).map_err(|error| error.to_string())),
    )
}

/// Where a process's RAS listens, if it is on the loopback address.
fn addresses(pid: u32) -> Vec<SocketAddr> {
    let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let named = environ.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"NCCL_RAS_ADDR="));
    let all = match named {
        None => vec![(Ipv4Addr::LOCALHOST, PORT).into(), (Ipv6Addr::LOCALHOST, PORT).into()],
        Some(named) => named_address(std::str::from_utf8(named).unwrap_or_default()),
    };
    all.into_iter().filter(|address: &SocketAddr| address.ip().is_loopback()).collect()
}

/// `HOST:PORT`, `[ADDRESS]:PORT`; of names only localhost.
fn named_address(text: &str) -> Vec<SocketAddr> {
    let Some((host, port)) = text.trim().rsplit_once(':') else { return vec![] };
    let Ok(port) = port.parse::<u16>() else { return vec![] };
    if host == "localhost" {
        return vec![(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()];
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.parse::<IpAddr>().map(|ip| vec![(ip, port).into()]).unwrap_or_default()
}

/// Whether all that listen there are of the process's user, in the network namespace that we are
/// in too. One that NCCL shares the port with is of the same user, as the kernel demands.
fn belongs_to(pid: u32, address: SocketAddr) -> bool {
    let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/net")).ok();
    let here = namespace("self");
    if here.is_none() || namespace(&pid.to_string()) != here {
        return false;
    }
    let Ok(user) = fs::metadata(format!("/proc/{pid}")).map(|of| of.uid()) else { return false };
    let file = if address.is_ipv4() { "tcp" } else { "tcp6" };
    let table = fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
    let owners: HashSet<u32> = table.lines().filter_map(|line| listener(line, address)).collect();
    owners == HashSet::from([user])
}

/// The user of a line of /proc/net/tcp, where it is of a socket that listens there.
fn listener(line: &str, address: SocketAddr) -> Option<u32> {
    const LISTENS: &str = "0A";
    let mut words = line.split_whitespace().skip(1);
    let (local, _remote, state) = (words.next()?, words.next()?, words.next()?);
    let (ip, port) = local.split_once(':')?;
    let is_there = match address.ip() {
        // words in the host's byte order
        IpAddr::V4(_) => u32::from_str_radix(ip, 16).ok().map(|word| IpAddr::from(word.to_ne_bytes()))? == address.ip(),
        IpAddr::V6(_) => {
            let word = |at: usize| Some(u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes());
            let words: Vec<[u8; 4]> = (0..4).map_while(word).collect();
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::from(bytes) == address.ip()
        }
    };
    let is_port = u16::from_str_radix(port, 16).ok()? == address.port();
    // queues, timer, retransmissions, and then the user
    (is_there && is_port && state == LISTENS).then(|| words.nth(3)?.parse().ok()).flatten()
}

/// Asks, and reads to the end. JSON where the version has it.
fn answer_of(address: impl ToSocketAddrs, deadline: Instant) -> Result<Vec<u8>, String> {
    let left = || deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
    let late = || "it took too long".to_owned();
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => late(),
        _ => error.to_string(),
    };
    let address = address.to_socket_addrs().map_err(failed)?.next().ok_or("no address")?;
    let mut stream = TcpStream::connect_timeout(&address, left().ok_or_else(late)?).map_err(failed)?;
    stream.set_write_timeout(Some(left().ok_or_else(late)?)).map_err(failed)?;
    let line = |stream: &mut TcpStream, command: &str| -> Result<String, String> {
        stream.write_all(command.as_bytes()).map_err(failed)?;
        let mut reply = Vec::new();
        while !reply.ends_with(b"\n") {
            stream.set_read_timeout(Some(left().ok_or_else(late)?)).map_err(failed)?;
            let mut byte = [0];
            if stream.read(&mut byte).map_err(failed)? == 0 || reply.len() >= 256 {
                return Err("it does not speak the protocol of NCCL's RAS".to_owned());
            }
            reply.extend(byte);
        }
        Ok(String::from_utf8_lossy(&reply).into_owned())
    };
    if !line(&mut stream, "CLIENT PROTOCOL 2\n")?.starts_with("SERVER PROTOCOL ") {
        return Err("it does not speak the protocol of NCCL's RAS".to_owned());
    }
    // how long it waits for the job's other processes, seconds
    line(&mut stream, "TIMEOUT 2\n")?;
    line(&mut stream, "SET FORMAT json\n")?; // an error where it has none: then it answers as text
    stream.write_all(b"VERBOSE STATUS\n").map_err(failed)?;
    let (mut answer, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        stream.set_read_timeout(Some(left().ok_or_else(late)?)).map_err(failed)?;
        let read = stream.read(&mut piece).map_err(failed)?;
        if read == 0 {
            return Ok(answer);
        }
        answer.extend_from_slice(piece.get(..read).unwrap_or_default());
        if answer.len() > ras::MOST_BYTES {
            return Err(ras::RasError::TooLong.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Answers one client as NCCL's RAS does; `has_json` says of which version it is. What it was
    /// asked, in order.
    fn stand_in(
        has_json: bool,
        status: impl FnOnce(&mut TcpStream) + Send + 'static,
    ) -> (SocketAddr, thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answering = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = vec![];
            for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                let line = line.unwrap_or_default();
                asked.push(line.clone());
                let reply = match line.as_str() {
                    "CLIENT PROTOCOL 2" => "SERVER PROTOCOL 2\n".to_owned(),
                    "TIMEOUT 2" => "OK\n".to_owned(),
                    "SET FORMAT json" if has_json => "OK\n".to_owned(),
                    "VERBOSE STATUS" => break,
                    other => format!("ERROR: Unknown command {other}\n"),
                };
                stream.write_all(reply.as_bytes()).unwrap();
            }
            status(&mut stream);
            asked
        });
        (address, answering)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    const TEXT: &str = "NCCL version 2.24.3 compiled with CUDA 12.2\n\nWarnings\n========\n\n#0-0 (1f) MISMATCH\n  Communicator \
        ranks have different collective operation counts\n  3 ranks have launched up to operation 42\n  Rank 1 has launched up to \
        operation 41 -- GPU 1 managed by process 8 on node n1\n\n";

    #[test]
    fn an_older_version_is_asked_for_its_text_and_a_newer_one_for_json() {
        let (address, asked) = stand_in(false, |stream| stream.write_all(TEXT.as_bytes()).unwrap());
        let status = ras::parse(&answer_of(address, soon()).unwrap(), soon()).unwrap();
        let said = said(&status);
        assert!(
            said.starts_with("NCCL 2.24.3 itself (RAS) says: rank 1 has launched 41 collective operations"),
            "{said}"
        );
        assert_eq!(asked.join().unwrap(), ["CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json", "VERBOSE STATUS"]);
        let json = r#"{"nccl_version": "2.29.1", "communicators": []}"#;
        let (address, asked) = stand_in(true, |stream| stream.write_all(json.as_bytes()).unwrap());
        let status = ras::parse(&answer_of(address, soon()).unwrap(), soon()).unwrap();
        assert!(super::said(&status).ends_with("have launched the same operations"));
        asked.join().unwrap();
    }

    #[test]
    fn what_was_kept_is_looked_for_at_all_who_wait_and_nobody_else() {
        let waiting = |node: &str, pid: i64, since_ns: i64| {
            let who = verdicts::RankRef { rank: 0, node: node.to_owned(), pid };
            let call = verdicts::Call::default();
            verdicts::Waiting { who, call, since_ns: Some(since_ns), activity: None }
        };
        let hang = Hang { waiting: vec![waiting("b", 7, 30), waiting("a", 8, 20)], ..Hang::default() };
        let (sql, nodes) = kept_sql(&hang).unwrap();
        assert_eq!(nodes, ["a", "b"]);
        assert!(sql.contains("ts_ns >= 20 ") && sql.contains("IN ('b 7', 'a 8')"), "{sql}");
        assert_eq!(kept_sql(&Hang::default()), None, "nobody is asked for nothing");
    }

    #[test]
    fn what_never_ends_or_never_begins_is_given_up() {
        let (address, answering) = stand_in(true, |stream| while stream.write_all(&[b' '; 1 << 16]).is_ok() {});
        assert_eq!(answer_of(address, soon()), Err("the answer is too long".to_owned()));
        answering.join().unwrap();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let gave_up = answer_of(silent.local_addr().unwrap(), Instant::now() + Duration::from_millis(50));
        assert_eq!(gave_up, Err("it took too long".to_owned()));
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let says = thread::spawn(move || other.accept().unwrap().0.write_all(b"220 mail\n").unwrap());
        let refused = answer_of(address, soon()).unwrap_err();
        assert!(refused.contains("does not speak") || refused.contains("reset"), "{refused}");
        says.join().unwrap();
    }

    #[test]
    fn only_a_ranks_own_user_on_the_loopback_address_is_asked() {
        let mine = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = mine.local_addr().unwrap();
        let me = std::process::id();
        assert!(belongs_to(me, address));
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(!belongs_to(me, nobody), "nobody listens there");
        let line = |user: u32| {
            format!(
                "   0: 0100007F:{:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {user} 0 77 1",
                28028
            )
        };
        let ras: SocketAddr = "127.0.0.1:28028".parse().unwrap();
        assert_eq!(
            (listener(&line(1000), ras), listener(&line(1000), "127.0.0.2:28028".parse().unwrap())),
            (Some(1000), None)
        );
        assert_eq!(listener(&line(1000).replace(" 0A ", " 01 "), ras), None, "a connection, not a listener");
        let six =
            "   0: 00000000000000000000000001000000:6D7C 00000000000000000000000000000000:0000 0A 0:0 0:0 0 7 0 9 1";
        assert_eq!(listener(six, "[::1]:28028".parse().unwrap()), Some(7));
        assert_eq!(named_address("localhost:9"), ["127.0.0.1:9".parse().unwrap(), "[::1]:9".parse().unwrap()]);
        assert_eq!(named_address("[::1]:9"), ["[::1]:9".parse().unwrap()]);
        assert!(named_address("evil.example:80").is_empty() && named_address("127.0.0.1").is_empty());
        assert!(named_address("10.0.0.1:9").iter().all(|address| !address.ip().is_loopback()), "is left out then");
    }
}
