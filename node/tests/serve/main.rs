//! `rankmesh serve` for its clients: every path of its own description, who is admitted, how
//! incomplete answers are marked, and how it handles wrong requests.
#![cfg(feature = "serve")]

#[path = "../common/mod.rs"]
mod common;

mod access;
mod answers;
mod metrics;
mod page;
mod tail;

use std::path::{Path, PathBuf};

use common::http::Server;
use common::job_stores::EndedJob;
use common::{Lab, run, stderr, stdout};

/// Stores of a job that has ended.
fn stores(lab: &Lab) -> PathBuf {
    stores_of(lab, EndedJob { steps: 60, ..EndedJob::small() })
}

fn stores_of(lab: &Lab, job: EndedJob) -> PathBuf {
    let dir = lab.path("job");
    std::fs::create_dir(&dir).expect("a directory");
    job.write(&dir);
    dir
}

/// The same of hosts that serve requests, too.
fn stores_that_serve(lab: &Lab) -> PathBuf {
    stores_of(lab, EndedJob { steps: 60, serves: true, ..EndedJob::small() })
}

fn of_stores(dir: &Path) -> Server {
    Server::start(&["--db", &dir.display().to_string()])
}

/// A file of tokens, and the token in it, a reader's.
fn reader_token(lab: &Lab) -> (String, String) {
    let file = lab.path("tokens.json").display().to_string();
    let made = run(&["identity", "token", "--for", "serve", "--tokens", &file, "--name", "olga"]);
    assert!(made.status.success(), "{}", stderr(&made));
    (file, stdout(&made).trim().to_owned())
}
