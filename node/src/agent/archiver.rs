//! Owns the processes that archive this host's hours, or push its rows into ClickHouse: a child, `rankmesh archive`, without the
//! agent's privileges, since it speaks to directories and buckets and this process does not. What
//! fails there is a finding here and costs nothing else.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use record::{printable, unix_now_ns};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{Finding, Source};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio_util::sync::CancellationToken;

use super::Shared;

/// How often it is looked which hours are due, and which rows are new.
const EVERY: &str = "15m";
const EVERY_PUSH: &str = "10s";
/// Time before a process that ended is started again.
const AGAIN: Duration = Duration::from_secs(60);
/// Bytes of a line that the process may tell.
const LINE: usize = 64 << 10;

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

/// What the agent is told of a pass, a line of JSON each.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct PassTold {
    /// Hours written, or inserts.
    pub(crate) hours: usize,
    /// Rows in them.
    pub(crate) rows: u64,
    /// Why it did not get to its end.
    pub(crate) failed: Option<String>,
    /// What was lost before it could be pushed.
    pub(crate) lost: Option<String>,
}

/// Archives until `stop`. An agent without a trace store of its own has nothing to archive.
pub async fn keep(shared: Arc<Shared>, choice: ArchiveChoice, stop: CancellationToken) {
    let Source::Store(store) = shared.source.as_ref() else {
        tracing::warn!("--archive, --clickhouse: this agent records into no store, so there is nothing to archive");
        return;
    };
    let mut told = Told::default();
    loop {
        let ended = tokio::select! {
            ended = run(&shared, store.path(), &choice, &mut told) => ended,
            () = stop.cancelled() => return,
        };
        told.failed(&shared, choice.kept, Some(ended));
        tokio::select! {
            () = tokio::time::sleep(AGAIN) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Runs the process until it ends; says why.
async fn run(shared: &Shared, db: &std::path::Path, choice: &ArchiveChoice, told: &mut Told) -> String {
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
        .arg(db)
        .env_remove("RANKMESH_TOKEN")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if let Some(settings) = &choice.settings {
        command.arg("--settings").arg(settings);
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return format!("its process cannot be started: {error}"),
    };
    if let Some(out) = child.stdout.take() {
        let mut lines = BufReader::with_capacity(LINE, out).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let Ok(pass) = serde_json::from_str::<PassTold>(&line) else { continue };
            if pass.hours > 0 && choice.kept == Kept::Hours {
                tracing::info!("archived {} hours, {} rows", pass.hours, pass.rows);
            }
            if let Some(lost) = &pass.lost {
                told.lost(shared, lost);
            }
            told.failed(shared, choice.kept, pass.failed);
        }
    }
    match child.wait().await {
        Ok(status) => format!("its process ended ({status})"),
        Err(error) => format!("its process is lost: {error}"),
    }
}

/// What was told last: a failure that goes on is one finding.
#[derive(Debug, Default)]
struct Told(Option<String>);

impl Told {
    fn failed(&mut self, shared: &Shared, kept: Kept, why: Option<String>) {
        if self.0 == why {
            return;
        }
        let text = match (&why, kept) {
            (Some(why), Kept::Hours) => format!("hours are not archived: {why}"),
            (None, Kept::Hours) => "hours are archived again".to_owned(),
            (Some(why), Kept::Rows) => format!("rows are not pushed into ClickHouse: {why}"),
            (None, Kept::Rows) => "rows are pushed into ClickHouse again".to_owned(),
        };
        self.write(shared, &text);
        self.0 = why;
    }

    fn lost(&self, shared: &Shared, lost: &str) {
        self.write(shared, lost);
    }

    fn write(&self, shared: &Shared, text: &str) {
        tracing::warn!("{}", printable(text));
        if let Source::Store(store) = shared.source.as_ref() {
            store.ingest().finding(finding(shared.identity.node().as_str(), text));
        }
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
