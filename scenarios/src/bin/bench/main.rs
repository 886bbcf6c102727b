//! `bench NAME [options]`: everything that is measured here, and what runs for hours. Each prints
//! what it sees and ends with lines `figure NAME VALUE UNIT aim OP NUMBER`.
//!
//! Processes of rankmesh are those of the program beside this one, or of RANKMESH_BINARY. Some of
//! these run themselves again as a process of its own: an agent that is handed rows, a recorder, a
//! store that is killed.

mod adhoc;
mod capture;
mod chaos;
mod crowd;
mod day;
mod flow;
mod gossip;
mod history;
mod load;
mod mesh;
mod slt;
mod standing;
mod store;
mod trust;
mod verdicts;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use tempfile::TempDir;

/// Measures rankmesh
#[derive(Debug, Parser)]
#[command(name = "bench")]
enum Bench {
    Adhoc(adhoc::Arguments),
    Capture(capture::Arguments),
    Chaos(chaos::Arguments),
    Crowd(crowd::Arguments),
    Day(day::Arguments),
    Flow(flow::Arguments),
    Gossip(gossip::Arguments),
    History(history::Arguments),
    Load(load::Arguments),
    Mesh(mesh::Arguments),
    Slt(slt::Arguments),
    Standing(standing::Arguments),
    Store(store::Arguments),
    Trust(trust::Arguments),
    Verdicts(verdicts::Arguments),
}

fn main() -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new;
    match Bench::parse() {
        Bench::Adhoc(arguments) => adhoc::run(&arguments)?,
        Bench::Capture(arguments) => capture::run(&arguments)?,
        Bench::Chaos(arguments) => return chaos::run(&arguments),
        Bench::Crowd(arguments) => runtime()?.block_on(crowd::run(&arguments))?,
        Bench::Day(arguments) => day::run(&arguments)?,
        Bench::Flow(arguments) => flow::run(&arguments)?,
        Bench::Gossip(arguments) => gossip::run(&arguments)?,
        Bench::History(arguments) => history::run(&arguments)?,
        Bench::Load(arguments) => load::run(&arguments)?,
        Bench::Mesh(arguments) => mesh::run(&arguments)?,
        Bench::Slt(arguments) => return Ok(slt::run(&arguments)),
        Bench::Standing(arguments) => runtime()?.block_on(standing::run(&arguments))?,
        Bench::Store(arguments) => store::run(&arguments)?,
        Bench::Trust(arguments) => runtime()?.block_on(trust::run(&arguments))?,
        Bench::Verdicts(arguments) => verdicts::run(&arguments),
    }
    Ok(ExitCode::SUCCESS)
}

/// The folder that was asked for, made where it is not there, or a temporary one that ends with
/// what is returned beside it.
fn folder(named: Option<&Path>) -> anyhow::Result<(PathBuf, Option<TempDir>)> {
    let temporary = if named.is_none() { Some(tempfile::tempdir()?) } else { None };
    let dir = named.or(temporary.as_ref().map(TempDir::path)).unwrap_or(Path::new(".")).to_path_buf();
    std::fs::create_dir_all(&dir)?;
    Ok((dir, temporary))
}
