//! A client of PostgreSQL's protocol that does not read: the nodes wait for it, and others do not.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use model::frame::{self, FrameReader};
use model::{Coverage, LocalRequest, LocalResponse};
use query_planner::{ColumnMeta, Value};
use tokio::io::AsyncWrite;

use crate::common::http::Served;
use crate::common::{Killed, Lab, has, rankmesh, wait_for};

/// An answer's pieces, and rows of one: together more than all buffers on the way hold.
const PIECES: usize = 4_096;
const ROWS: usize = 16;
const ROW_BYTES: usize = 1_000;
/// For who reads it all, on a busy host.
const PATIENT: &str = "SET statement_timeout = 60000";

/// What an agent gave of each question, by the text that is selected.
#[derive(Debug, Default, Clone)]
struct Given(Arc<Mutex<HashMap<String, Pieces>>>);

#[derive(Debug, Default, Clone, Copy)]
struct Pieces {
    given: usize,
    has_ended: bool,
}

impl Given {
    fn of(&self, question: &str) -> Pieces {
        self.0.lock().expect("not poisoned").get(question).copied().unwrap_or_default()
    }

    fn update(&self, question: &str, update: impl FnOnce(&mut Pieces)) {
        update(self.0.lock().expect("not poisoned").entry(question.to_owned()).or_default());
    }
}

/// Gives pieces until nobody takes them.
async fn give<W: AsyncWrite + Unpin>(to: &mut W, question: &str, given: &Given) -> Option<()> {
    let columns = vec![ColumnMeta { name: "x".to_owned(), decl_type: "TEXT".to_owned() }];
    frame::write(to, &LocalResponse::Columns(columns)).await.ok()?;
    let rows = LocalResponse::Rows(vec![vec![Value::Text(vec![b'x'; ROW_BYTES])]; ROWS]);
    for _ in 0..PIECES {
        frame::write(to, &rows).await.ok()?;
        given.update(question, |pieces| pieces.given += 1);
    }
    let coverage = Coverage { asked: 1, answered: 1, ..Coverage::default() };
    frame::write(to, &LocalResponse::End { coverage, elapsed_ns: 1, explained: String::new() }).await.ok()
}

/// An agent that answers each question `SELECT 'NAME'` with as many rows, and counts them.
fn agent(socket: &Path) -> Given {
    let listener = UnixListener::bind(socket).expect("a socket");
    listener.set_nonblocking(true).expect("set");
    let given = Given::default();
    let counted = given.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let listener = tokio::net::UnixListener::from_std(listener).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                let given = counted.clone();
                tokio::spawn(async move {
                    let (reader, mut writer) = stream.into_split();
                    let mut reader = FrameReader::new(reader);
                    while let Ok(Some(request)) = reader.read::<LocalRequest>().await {
                        if let LocalRequest::Query(question) = request {
                            let name = question.sql.split('\'').nth(1).unwrap_or_default().to_owned();
                            let _ = give(&mut writer, &name, &given).await;
                            given.update(&name, |pieces| pieces.has_ended = true);
                        }
                    }
                });
            }
        });
    });
    given
}

#[test]
fn nodes_wait_for_who_does_not_read() {
    if !has("psql", "nodes_wait_for_who_does_not_read") {
        return;
    }
    let lab = Lab::new();
    let socket = lab.path("agent.sock");
    let given = agent(&socket);
    let mut command = rankmesh();
    command.args(["serve", "--listen", "none", "--postgres", "127.0.0.1:0", "--socket"]).arg(&socket);
    let mut served = Served::start(command);
    let url = served.line("psql ");
    let psql = |arguments: &[&str]| {
        let mut command = Command::new("psql");
        command.args(["-X", "-At", &url]).args(arguments).env_remove("PGPASSWORD");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("psql runs")
    };
    let begun = |name: &str| {
        wait_for(name, || if given.of(name).given > 0 { Ok(()) } else { Err("nothing is given".to_owned()) });
    };
    let ended = |name: &str| {
        wait_for(name, || {
            let pieces = given.of(name);
            if pieces.has_ended { Ok(pieces.given) } else { Err(format!("{pieces:?}")) }
        })
    };
    // Who reads has all of it, while others do not read: by then nodes that do not wait would have given
    // those all, too.
    let read = |name: &str| {
        let mut reader = Killed(psql(&["-c", PATIENT, "-c", &format!("\\copy (SELECT '{name}') TO '/dev/null'")]));
        let status = wait_for("it is read to its end", || match reader.0.try_wait().expect("asked") {
            Some(status) => Ok(status),
            None => Err(format!("{:?}", given.of(name))),
        });
        let mut printed = String::new();
        reader.0.stdout.take().expect("a pipe").read_to_string(&mut printed).expect("text");
        assert!(status.success());
        assert_eq!(printed, format!("SET\nCOPY {}\n", PIECES * ROWS));
        assert_eq!(ended(name), PIECES);
    };

    let unread = Killed(psql(&["-c", "COPY (SELECT 'copied') TO STDOUT"]));
    begun("copied");
    read("read");
    // The kernel's buffers of three connections, and a pipe, hold some MiB.
    let pieces = given.of("copied");
    assert!(pieces.given < PIECES / 2 && !pieces.has_ended, "{pieces:?}");
    drop(unread);
    assert!(ended("copied") < PIECES / 2, "{:?}", given.of("copied"));

    // A cursor is read no further than it is asked for, but for a few pieces.
    let mut cursor = Killed(psql(&[]));
    let mut typed = cursor.0.stdin.take().expect("a pipe");
    let statements = "BEGIN;\nDECLARE c CURSOR FOR SELECT 'cursor';\nFETCH 3 FROM c;\n";
    typed.write_all(statements.as_bytes()).expect("sent");
    begun("cursor");
    read("read again");
    let pieces = given.of("cursor");
    assert!(pieces.given < 128 && !pieces.has_ended, "{pieces:?}");
    typed.write_all(b"FETCH 50 FROM c;\nCLOSE c;\n").expect("sent");
    let pieces = ended("cursor");
    assert!((4..128).contains(&pieces), "{pieces}");
    drop(typed);
    let mut printed = String::new();
    cursor.0.stdout.take().expect("a pipe").read_to_string(&mut printed).expect("text");
    assert_eq!(printed.lines().filter(|line| line.len() == ROW_BYTES).count(), 53);
}
