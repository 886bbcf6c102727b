//! `rankmesh export`: a store's rows into a plain SQLite, CSV or Parquet file. `perfetto` makes a
//! trace for Perfetto.

use std::path::Path;

use ask::args::SpanArgs;
use ask::times::When;
use ask::{Connector, Exit, UsageError};
use front::args::ExportArgs;
use store::exchange::{ExchangeError, Export, export};

pub(super) fn run(args: ExportArgs, connector: &dyn Connector) -> anyhow::Result<Exit> {
    if let Some(out) = args.perfetto.clone() {
        return front::perfetto::run(args, &out, connector);
    }
    let wrong = |what: &str| UsageError(what.to_owned());
    let [db] = <[_; 1]>::try_from(args.target.db).map_err(|_| wrong("--out takes the rows of one --db"))?;
    let since = match args.span {
        SpanArgs { since: None, until: None, between } if between.is_empty() => None,
        SpanArgs { since: Some(When::Ago(back)), until: None, .. } => Some(back),
        _ => return Err(wrong("with --out only --since, and a stretch, such as 10m").into()),
    };
    let out = args.out.ok_or_else(|| wrong("--out FILE or --perfetto FILE"))?;
    let wanted = Export { db, out, tables: args.table, since };
    let done = export(&wanted).map_err(failed)?;
    say_rows(&done.tables, &wanted.out);
    if !done.left_out.is_empty() {
        eprintln!("left out (give --table, or --out a .db file): {}", done.left_out.join(", "));
    }
    Ok(Exit::Complete)
}

/// The command's error for an export or import that cannot be done.
pub(super) fn failed(error: ExchangeError) -> anyhow::Error {
    if error.is_usage() { UsageError(error.to_string()).into() } else { error.into() }
}

/// Prints how many rows of which tables went into the new file.
pub(super) fn say_rows(tables: &[(String, u64)], out: &Path) {
    let rows: u64 = tables.iter().map(|(_, rows)| rows).sum();
    eprintln!("{rows} rows into {}", out.display());
    for (table, rows) in tables.iter().filter(|(_, rows)| *rows > 0) {
        eprintln!("  {table}: {rows}");
    }
}
