//! The `rankmesh` binary; everything lives in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything opens a database.
    query_planner::memory::install();
    rankmesh::cli::run()
}
