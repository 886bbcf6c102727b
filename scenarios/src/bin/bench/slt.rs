//! Runs sqllogictest files over a mesh and compares every answer.
//!
//! Exit status: 0 when nothing is wrong, 1 when an answer is wrong, a question failed or was
//! refused without a reason that is listed (with `--expect-rung` also when a plan is dearer than
//! its query's shape allows), 2 when a file cannot be run.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use scenarios::slt::{self, Options, Tally, TransportKind};

/// Run sqllogictest files over a mesh of nodes among which each file's rows are dealt.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
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
    /// Every so many files one is asked over QUIC as well.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    quic_every: Option<u16>,
    /// Tables of integers and text lie in column segments of so many rows: each file is run once
    /// more for each number.
    #[arg(long, value_name = "ROWS", value_delimiter = ',')]
    segment_rows: Vec<usize>,
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

pub(super) fn run(args: &Arguments) -> ExitCode {
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
        segment_rows: None,
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
    for (at, file) in files.iter().enumerate() {
        let mut runs = vec![(file.display().to_string(), options.clone())];
        for &rows in &args.segment_rows {
            let of = Options { segment_rows: Some(rows), transport: TransportKind::Memory, ..options.clone() };
            runs.push((format!("{} in segments of {rows}", file.display()), of));
        }
        if args.quic_every.is_some_and(|every| at % usize::from(every) == 0) {
            let of = Options { transport: TransportKind::Quic, ..options.clone() };
            runs.push((format!("{} over QUIC", file.display()), of));
        }
        for (name, options) in runs {
            match slt::run_file(file, &options) {
                Ok(tally) => {
                    println!("{}", tally.line(&name));
                    for detail in &tally.details {
                        println!("{detail}");
                    }
                    total.merge(&tally);
                }
                Err(error) => {
                    unusable += 1;
                    println!("{name}: not run: {error:#}");
                }
            }
        }
    }
    println!(
        "{}",
        total.line(&format!("total of {} files, {} nodes, seed {}", files.len(), options.nodes, options.seed))
    );
    print!("{}", total.reasons());
    if total.bad() > 0 {
        ExitCode::from(1)
    } else if unusable > 0 {
        ExitCode::from(2)
    } else {
        ExitCode::SUCCESS
    }
}
