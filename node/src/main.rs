//! The `rankmesh` binary; everything lives in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    rankmesh::cli::run()
}
