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
    let [db] = <&[_; 1]>::try_from(args.target.db.as_slice()).map_err(|_| wrong("--out takes the rows of one --db"))?;
    let out = args.out.clone().ok_or_else(|| wrong("--out FILE or --perfetto FILE"))?;
    let (from_ns, until_ns) = span(&args, connector)?;
    let wanted = Export { db: db.clone(), out, tables: args.table.clone(), from_ns, until_ns };
    let done = export(&wanted).map_err(failed)?;
    say_rows(&done.tables, &wanted.out);
    if !done.left_out.is_empty() {
        eprintln!("left out (give --table, or --out a .db file): {}", done.left_out.join(", "));
    }
    Ok(Exit::Complete)
}

/// The span's beginning and end, Unix nanoseconds, as far as the flags give them; lengths of time are
/// counted back from the newest row.
fn span(args: &ExportArgs, connector: &dyn Connector) -> anyhow::Result<(Option<i64>, Option<i64>)> {
    let SpanArgs { since, until, between } = &args.span;
    if since.is_none() && between.is_empty() {
        return Ok((None, None));
    }
    let target = args.target.target(connector)?;
    let is_length = |when: &When| matches!(when, When::Ago(_));
    if target.stored_ns().is_none() && since.iter().chain(until).chain(between).any(is_length) {
        let why = "no newest row is known of it, from which a length of time could be counted back: give times, such as \
                   --between 2026-11-22T03:00 2026-11-22T04:00";
        return Err(UsageError(why.to_owned()).into());
    }
    let ends = until.is_some() || !between.is_empty();
    Ok(match args.span.resolved_ns(&target)? {
        Some((from_ns, until_ns)) => (Some(from_ns), ends.then_some(until_ns)),
        None => (None, None),
    })
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
