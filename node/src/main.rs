//! The `rankmesh` binary; everything lives in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything opens a database.
    query_planner::memory::install();
    // Before any thread.
    if let Err(error) = rankmesh::privileges::give_up_what_a_file_gives() {
        eprintln!("rankmesh: giving up privileges: {error}");
        return ExitCode::FAILURE;
    }
    rankmesh::cli::run()
}
