//! A plain HTTP/1.1 client for tests: one request a connection, so that exactly the bytes of the
//! test are sent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use super::{Killed, PATIENCE, rankmesh, wait_for};

/// An answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The body is complete.
    pub complete: bool,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

/// Reads an answer; `enough` ends it early.
pub fn read(stream: impl Read, enough: impl Fn(&[u8]) -> bool) -> Answer {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a status");
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{line:?}"));
    let mut answer = Answer { status, headers: Vec::new(), body: Vec::new(), complete: false };
    loop {
        line.clear();
        reader.read_line(&mut line).expect("a header");
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        answer.headers.push((name.to_owned(), value.trim().to_owned()));
    }
    if answer.header("transfer-encoding") == Some("chunked") {
        loop {
            line.clear();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return answer;
            }
            let length = usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("{line:?}"));
            let mut chunk = vec![0; length + 2];
            if reader.read_exact(&mut chunk).is_err() {
                return answer;
            }
            answer.body.extend_from_slice(&chunk[..length]);
            if length == 0 {
                answer.complete = true;
                return answer;
            }
            if enough(&answer.body) {
                return answer;
            }
        }
    }
    let length = answer.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    answer.body = vec![0; length];
    answer.complete = reader.read_exact(&mut answer.body).is_ok();
    answer
}

/// A `rankmesh serve` and its output.
pub struct Served {
    child: Killed,
    output: Arc<Mutex<String>>,
}

impl Served {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let output = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&output);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut kept = kept.lock().expect("not poisoned");
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        Self { child: Killed(child), output }
    }

    pub fn output(&self) -> String {
        self.output.lock().expect("not poisoned").clone()
    }

    /// The rest of the first line that begins so.
    pub fn line(&mut self, begins: &str) -> String {
        self.nth_line(begins, 0)
    }

    fn nth_line(&mut self, begins: &str, n: usize) -> String {
        wait_for(begins, || {
            let output = self.output();
            assert!(self.child.0.try_wait().expect("asked").is_none(), "it ended: {output}");
            output.lines().filter_map(|line| line.strip_prefix(begins)).nth(n).map(str::to_owned).ok_or(output)
        })
    }

    /// Waits for its end.
    pub fn ends(&mut self) -> ExitStatus {
        wait_for("it ends", || self.child.0.try_wait().expect("asked").ok_or_else(|| self.output()))
    }

    /// Where HTTP is served.
    pub fn place(&mut self) -> String {
        let line = self.line("serving ");
        line.rsplit_once(" on ").expect("a place").1.to_owned()
    }
}

/// A `rankmesh serve` on a port of its own, and a session there.
pub struct Server {
    pub served: Served,
    pub address: String,
    pub token: String,
    /// The link that it printed last.
    pub link: String,
}

impl Server {
    /// Starts it, and signs in with its link.
    pub fn start(arguments: &[&str]) -> Self {
        let mut command = rankmesh();
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments);
        Self::of(command)
    }

    /// As [`Server::start`], by this command.
    pub fn of(command: Command) -> Self {
        let mut served = Served::start(command);
        let link = served.line("open ");
        let address = link.split('/').nth(2).expect("an address").to_owned();
        let secret = link.split("#k=").nth(1).expect("a secret").to_owned();
        let mut server = Self { served, address, token: String::new(), link };
        let body = serde_json::json!({ "secret": secret }).to_string();
        let signed = server.send("POST", "/api/v1/session", &[("content-type", "application/json")], body.as_bytes());
        assert_eq!(signed.status, 200, "{}", signed.text());
        server.token = signed.json()["token"].as_str().expect("a token").to_owned();
        server.link = server.served.nth_line("open ", 1);
        server
    }

    /// All its output so far.
    pub fn printed(&self) -> String {
        self.served.output()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        stream
    }

    /// A request with exactly these headers, and the host where none is given.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.send_until(method, path, headers, body, |_| false)
    }

    pub fn send_until(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        enough: impl Fn(&[u8]) -> bool,
    ) -> Answer {
        let mut stream = self.connect();
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).expect("sent");
        // The request of a refused client may not be read to the end.
        let _ = stream.write_all(body);
        read(stream, enough)
    }

    /// As the session that signed in.
    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[("authorization", &format!("Bearer {}", self.token))], b"")
    }

    pub fn sql(&self, parameters: &str, sql: &str) -> Answer {
        let bearer = format!("Bearer {}", self.token);
        self.send("POST", &format!("/api/v1/query{parameters}"), &[("authorization", &bearer)], sql.as_bytes())
    }
}
