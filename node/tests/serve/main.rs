//! `rankmesh serve` for its clients: every path of its own description, who is admitted, how
//! incomplete answers are marked, and how it handles wrong requests.
#![cfg(feature = "serve")]

#[path = "../common/mod.rs"]
mod common;

mod access;
mod answers;
mod metrics;
mod page;

use std::path::{Path, PathBuf};

use common::Lab;
use common::http::Server;
use common::job_stores::EndedJob;

/// Stores of a job that has ended.
fn stores(lab: &Lab) -> PathBuf {
    let dir = lab.path("job");
    std::fs::create_dir(&dir).expect("a directory");
    EndedJob { steps: 60, ..EndedJob::small() }.write(&dir);
    dir
}

fn of_stores(dir: &Path) -> Server {
    Server::start(&["--db", &dir.display().to_string()])
}
