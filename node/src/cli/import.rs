//! `rankmesh import`: a trace recorded by another program becomes a trace store.

use std::path::PathBuf;

use ask::{Exit, UsageError};
use store::exchange::{Import, import};

use super::args::ImportArgs;
use super::export::{failed, say_rows};

pub(super) fn run(args: ImportArgs) -> anyhow::Result<Exit> {
    let out = match args.out {
        Some(out) => out,
        None => {
            let Some(stem) = args.file.file_stem() else {
                return Err(UsageError(format!("{} is not a file", args.file.display())).into());
            };
            let mut name = stem.to_owned();
            name.push(".rankmesh.db");
            PathBuf::from(name)
        }
    };
    let wanted = Import { file: args.file, out, node: args.node };
    let done = import(&wanted).map_err(failed)?;
    say_rows(&done.tables, &wanted.out);
    if !done.left_out.is_empty() {
        eprintln!("left out, for want of a table that means the same:");
        for (what, rows) in &done.left_out {
            eprintln!("  {what}: {rows}");
        }
    }
    eprintln!("ask it: rankmesh query --db {} 'SELECT …'", wanted.out.display());
    Ok(Exit::Complete)
}
