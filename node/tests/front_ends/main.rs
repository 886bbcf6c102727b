//! Tests of all front ends of `rankmesh serve` together: they open no connection except to the
//! agent and to receivers that the user names, they use TLS beyond this host, and they report an
//! agent of an earlier release. Here is a server of all of them, and its HTTP client.
#![cfg(all(feature = "mcp", feature = "otlp", feature = "postgres"))]

#[path = "../common/mod.rs"]
mod common;

mod answers;
mod connections;
mod otlp;
mod tls;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use common::http::{Answer, read};
use common::{Killed, PATIENCE, wait_for};
use serde_json::json;

/// A `rankmesh serve` and its output.
struct Served {
    child: Killed,
    output: Arc<Mutex<String>>,
}

impl Served {
    fn start(mut command: Command) -> Self {
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

    fn output(&self) -> String {
        self.output.lock().expect("not poisoned").clone()
    }

    /// The rest of the first line that begins so.
    fn line(&mut self, begins: &str) -> String {
        wait_for(begins, || {
            let output = self.output();
            assert!(self.child.0.try_wait().expect("asked").is_none(), "it ended: {output}");
            output.lines().find_map(|line| line.strip_prefix(begins)).map(str::to_owned).ok_or(output)
        })
    }

    /// Where HTTP is served.
    fn place(&mut self) -> String {
        let line = self.line("serving ");
        line.rsplit_once(" on ").expect("a place").1.to_owned()
    }
}

fn request(method: &str, path: &str, host: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
    head.push_str(&format!("content-length: {}\r\n", body.len()));
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    format!("{head}\r\n{body}")
}

fn send(place: &str, request: &str) -> Answer {
    let mut stream = TcpStream::connect(place).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    stream.write_all(request.as_bytes()).expect("sent");
    read(stream, |_| false)
}

/// Signs in with the link that it printed: the header of a session.
fn signed_in(served: &mut Served, place: &str) -> String {
    let secret = served.line("open ").split("#k=").nth(1).expect("a secret").to_owned();
    let session = json!({ "secret": secret }).to_string();
    let signed = request("POST", "/api/v1/session", place, &[("content-type", "application/json")], &session);
    format!("Bearer {}", send(place, &signed).json()["token"].as_str().expect("a token"))
}
