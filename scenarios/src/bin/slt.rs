//! Runs sqllogictest files over a mesh and compares every answer: `slt [OPTIONS] FILE…`.
//!
//! Exit status: 0 when nothing is wrong, 1 when an answer is wrong or a question failed (with
//! `--expect-rung` also when a plan is dearer than its query's shape allows), 2 when a file cannot
//! be run.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use scenarios::slt::{self, Options, Tally, TransportKind};

/// Run sqllogictest files over a mesh of nodes among which each file's rows are dealt.
#[derive(Debug, Parser)]
#[command(name = "slt")]
struct Args {
    /// Nodes of the mesh.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=128))]
    nodes: u16,
    /// Chooses where rows lie, who is asked and in which order nodes answer.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Stop each file after so many queries.
    #[arg(long, value_name = "N")]
    max_queries: Option<usize>,
    /// How nodes are reached.
    #[arg(long, value_enum, default_value_t = Transport::Memory)]
    transport: Transport,
    /// Also fail where a strategy is dearer than the query's shape allows.
    #[arg(long)]
    expect_rung: bool,
    /// Nodes that get no rows of a table lack the table itself, as agents of different ages may.
    #[arg(long)]
    sparse: bool,
    /// Wrong, failed or too dear questions of each file to show in full.
    #[arg(long, default_value_t = 3, value_name = "N")]
    details: usize,
    /// sqllogictest files, or directories of `.test` files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Transport {
    /// Function calls instead of a network.
    Memory,
    /// Agents in this process over loopback QUIC.
    Quic,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let options = Options {
        nodes: usize::from(args.nodes),
        seed: args.seed,
        max_queries: args.max_queries,
        expect_rung: args.expect_rung,
        details: args.details,
        sparse: args.sparse,
        transport: match args.transport {
            Transport::Memory => TransportKind::Memory,
            Transport::Quic => TransportKind::Quic,
        },
    };
    let files = match slt::expand(&args.files) {
        Ok(files) => files,
        Err(error) => {
            eprintln!("slt: {error:#}");
            return ExitCode::from(2);
        }
    };
    let mut total = Tally::default();
    let mut unusable = 0;
    for file in &files {
        match slt::run_file(file, &options) {
            Ok(tally) => {
                println!("{}", tally.line(&file.display().to_string()));
                for detail in &tally.details {
                    println!("{detail}");
                }
                total.merge(&tally);
            }
            Err(error) => {
                unusable += 1;
                println!("{}: not run: {error:#}", file.display());
            }
        }
    }
    println!(
        "{}",
        total.line(&format!("total of {} files, {} nodes, seed {}", files.len(), options.nodes, options.seed))
    );
    print!("{}", total.reasons());
    let bad = total.wrong + total.failed.total() + if args.expect_rung { total.dear.total() } else { 0 };
    if bad > 0 {
        ExitCode::from(1)
    } else if unusable > 0 {
        ExitCode::from(2)
    } else {
        ExitCode::SUCCESS
    }
}
