//! Owns the processes that archive this host's hours, or push its rows into ClickHouse: a child,
//! `rankmesh archive`, without the agent's privileges, since it opens connections to directories
//! and buckets and this process does not. A failure of that child is a finding here and has no
//! other effect.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use record::{printable, shortened, unix_now_ns};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{ArchiveBacklog, Finding, Source, Store};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio_util::sync::CancellationToken;

use super::Shared;

/// Time between two checks which hours are due, and which rows are new.
const EVERY: &str = "15m";
const EVERY_PUSH: &str = "10s";
/// Time before a process that ended is started again.
const AGAIN: Duration = Duration::from_secs(60);
/// Time between two checks whether retention waits for the archive.
const LOOK: Duration = Duration::from_secs(1);
/// Shortest time between two requests to the process because retention waits.
const WISHED_AGAIN: Duration = Duration::from_secs(60);
/// Time without such rows after which a gap is over: more than an hour.
const GAP_IS_OVER: Duration = Duration::from_secs(2 * 3600);
/// Bytes of a line that the process may send: a report is some hundred.
const LINE: usize = 64 << 10;
/// Characters of its reasons that go into the log and into findings: what a bucket or server said
/// is in them.
pub const REASON_CHARS: usize = 600;

/// What of this host is kept elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Hours as files.
    Hours,
    /// Rows, in a ClickHouse server.
    Rows,
}

/// Where this host's hours or rows go.
#[derive(Debug, Clone)]
pub struct ArchiveChoice {
    /// Which.
    pub kept: Kept,
    /// Directory, `s3://BUCKET/PREFIX`, or a server's URL.
    pub to: String,
    /// File with the bucket's settings, in place of the environment.
    pub settings: Option<PathBuf>,
}

/// What the process sends the agent, a line of JSON each.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub enum ToAgent {
    /// A pass has ended.
    Pass(PassReport),
    /// Rows before this time are in the archive, Unix nanoseconds.
    Archived(i64),
}

/// What the agent learns of a pass.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct PassReport {
    /// Hours written, or inserts.
    pub hours: usize,
    /// Rows in them.
    pub rows: u64,
    /// Why it did not get to its end.
    pub failed: Option<String>,
    /// What was lost before it could be pushed.
    pub lost: Option<String>,
}

/// The agent's message to the process: archive the hours that are over now.
pub const AT_ONCE: &str = "at once";

/// Archives until `stop`. An agent without a trace store of its own has nothing to archive.
pub async fn keep(shared: Arc<Shared>, choice: ArchiveChoice, stop: CancellationToken) {
    let Source::Store(store) = shared.source.as_ref() else {
        tracing::warn!("--archive, --clickhouse: this agent records into no store, so there is nothing to archive");
        return;
    };
    let mut findings = Findings::default();
    loop {
        let ended = tokio::select! {
            ended = run(&shared, store, &choice, &mut findings) => ended,
            () = stop.cancelled() => return,
        };
        findings.failed(&shared, choice.kept, Some(ended));
        let again = tokio::time::sleep(AGAIN);
        tokio::pin!(again);
        loop {
            tokio::select! {
                () = &mut again => break,
                () = tokio::time::sleep(LOOK) => findings.not_archived(&shared, store.archive_backlog()),
                () = stop.cancelled() => return,
            }
        }
    }
}

/// Runs the process until it ends; returns why it ended.
async fn run(shared: &Shared, store: &Store, choice: &ArchiveChoice, findings: &mut Findings) -> String {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return format!("this program is not to be found: {error}"),
    };
    let (flag, every) = match choice.kept {
        Kept::Hours => ("--to", EVERY),
        Kept::Rows => ("--clickhouse", EVERY_PUSH),
    };
    let mut command = tokio::process::Command::new(program);
    command
        .args(["archive", "--every", every, "--for-agent", flag, &choice.to, "--node"])
        .arg(shared.identity.node().as_str())
        .arg("--db")
        .arg(store.path())
        .env_remove("RANKMESH_TOKEN")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if let Some(settings) = &choice.settings {
        command.arg("--settings").arg(settings);
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return format!("its process cannot be started: {error}"),
    };
    let mut wishes = child.stdin.take();
    let mut wished: Option<Instant> = None;
    if let Some(out) = child.stdout.take() {
        let mut lines = Lines::of(out);
        loop {
            let line = tokio::select! {
                line = lines.next() => line,
                () = tokio::time::sleep(LOOK) => {
                    let retention = store.archive_backlog();
                    findings.not_archived(shared, retention);
                    let is_due = wished.is_none_or(|wished| wished.elapsed() >= WISHED_AGAIN);
                    if let Some(wishes) = wishes.as_mut().filter(|_| retention.wants_archive && is_due) {
                        wished = Some(Instant::now());
                        // (A process that has ended is seen by its output.)
                        let _ = wishes.write_all(format!("{AT_ONCE}\n").as_bytes()).await;
                    }
                    continue;
                }
            };
            match line {
                Ok(Line::Text(line)) => match serde_json::from_slice(&line) {
                    Ok(ToAgent::Archived(until_ns)) => store.archived(until_ns),
                    Ok(ToAgent::Pass(pass)) => findings.pass(shared, choice.kept, pass),
                    Err(_) => {}
                },
                Ok(Line::TooLong) => {
                    let why = format!("its process sent a line of more than {LINE} bytes, which was not read");
                    findings.failed(shared, choice.kept, Some(why));
                }
                Ok(Line::End) | Err(_) => break,
            }
        }
    }
    match child.wait().await {
        Ok(status) => format!("its process ended ({status})"),
        Err(error) => format!("its process is lost: {error}"),
    }
}

/// What a process sent.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Text(Vec<u8>),
    /// It was longer than [`LINE`], and was skipped.
    TooLong,
    End,
}

/// Lines of a process, of bounded length.
struct Lines<R> {
    from: BufReader<R>,
    /// The beginning of a line that has not come whole.
    begun: Vec<u8>,
    is_too_long: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn of(from: R) -> Self {
        Self { from: BufReader::new(from), begun: Vec::new(), is_too_long: false }
    }

    /// The next line. Nothing is lost when this is dropped while it waits.
    async fn next(&mut self) -> io::Result<Line> {
        loop {
            let came = self.from.fill_buf().await?;
            if came.is_empty() {
                return Ok(Line::End);
            }
            let end = came.iter().position(|byte| *byte == b'\n');
            let (text, taken) = (&came[..end.unwrap_or(came.len())], end.map_or(came.len(), |end| end + 1));
            if self.begun.len() + text.len() > LINE {
                self.is_too_long = true;
                self.begun = Vec::new();
            }
            if !self.is_too_long {
                self.begun.extend_from_slice(text);
            }
            self.from.consume(taken);
            if end.is_some() {
                let text = std::mem::take(&mut self.begun);
                return Ok(if std::mem::take(&mut self.is_too_long) { Line::TooLong } else { Line::Text(text) });
            }
        }
    }
}

/// The last report of each kind: a condition that goes on is one finding.
#[derive(Debug, Default)]
struct Findings {
    /// Why hours are not archived.
    failed: Option<String>,
    /// Rows that retention had to drop, as far as that was seen, and since when.
    not_archived: u64,
    gap: Option<Gap>,
}

/// A time in which retention drops rows that are not archived.
#[derive(Debug)]
struct Gap {
    /// Rows before it.
    before: u64,
    grew: Instant,
}

impl Findings {
    fn pass(&mut self, shared: &Shared, kept: Kept, pass: PassReport) {
        if pass.hours > 0 && kept == Kept::Hours {
            tracing::info!("archived {} hours, {} rows", pass.hours, pass.rows);
        }
        let short = |text: String| shortened(&text, REASON_CHARS);
        if let Some(lost) = pass.lost {
            write(shared, &short(lost));
        }
        self.failed(shared, kept, pass.failed.map(short));
    }

    fn failed(&mut self, shared: &Shared, kept: Kept, why: Option<String>) {
        if self.failed == why {
            return;
        }
        let text = match (&why, kept) {
            (Some(why), Kept::Hours) => format!("hours are not archived: {why}"),
            (None, Kept::Hours) => "hours are archived again".to_owned(),
            (Some(why), Kept::Rows) => format!("rows are not pushed into ClickHouse: {why}"),
            (None, Kept::Rows) => "rows are pushed into ClickHouse again".to_owned(),
        };
        write(shared, &text);
        self.failed = why;
    }

    /// Writes a finding when retention begins to drop rows that are not archived, and when it no
    /// longer does.
    fn not_archived(&mut self, shared: &Shared, retention: ArchiveBacklog) {
        if retention.not_archived > self.not_archived {
            let before = std::mem::replace(&mut self.not_archived, retention.not_archived);
            let now = Instant::now();
            match &mut self.gap {
                Some(gap) => gap.grew = now,
                None => {
                    self.gap = Some(Gap { before, grew: now });
                    let why = self.failed.as_ref().map_or_else(
                        || "the store holds less than it takes until an hour is over and written".to_owned(),
                        |why| format!("hours are not archived: {why}"),
                    );
                    write(shared, &format!("retention drops rows that are not archived ({why})"));
                }
            }
        }
        if let Some(gap) = self.gap.take_if(|gap| gap.grew.elapsed() >= GAP_IS_OVER) {
            let rows = self.not_archived - gap.before;
            write(
                shared,
                &format!("retention has dropped {rows} rows that were not archived; manifests say of which hours"),
            );
        }
    }
}

fn write(shared: &Shared, text: &str) {
    tracing::warn!("{}", printable(text));
    if let Source::Store(store) = shared.source.as_ref() {
        store.ingest().finding(finding(shared.identity.node().as_str(), text));
    }
}

fn finding(node: &str, text: &str) -> Finding {
    let ts_ns = unix_now_ns();
    Finding {
        ts_ns,
        since_ns: ts_ns,
        until_ns: ts_ns,
        verdict: "archive".to_owned(),
        culprit_node: Some(node.to_owned()),
        detail: json!({ "text": text }).to_string(),
        ..Finding::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_without_end_is_not_read() {
        let (mut process, out) = tokio::io::duplex(4 << 10);
        let mut lines = Lines::of(out);
        let sent = tokio::spawn(async move {
            process.write_all(b"first\n").await.unwrap();
            for _ in 0..(32 << 20) / (64 << 10) {
                process.write_all(&[b'x'; 64 << 10]).await.unwrap();
            }
            process.write_all(b"\n").await.unwrap();
            process.write_all(&[b'y'; LINE]).await.unwrap();
            process.write_all(b"\nlast\nwithout an end").await.unwrap();
        });
        assert_eq!(lines.next().await.unwrap(), Line::Text(b"first".to_vec()));
        let mut most = 0;
        // It waits a moment at a time, as beside other work.
        let too_long = loop {
            match tokio::time::timeout(Duration::from_micros(50), lines.next()).await {
                Ok(line) => break line.unwrap(),
                Err(_) => most = most.max(lines.begun.capacity()),
            }
        };
        assert_eq!((too_long, lines.begun.capacity()), (Line::TooLong, 0));
        assert!(most <= 2 * LINE, "{most}");
        assert_eq!(lines.next().await.unwrap(), Line::Text(vec![b'y'; LINE]));
        assert_eq!(lines.next().await.unwrap(), Line::Text(b"last".to_vec()));
        assert_eq!(lines.next().await.unwrap(), Line::End);
        sent.await.unwrap();
    }
}
