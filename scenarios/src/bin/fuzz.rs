//! Feeds changed inputs to everything that reads bytes from outside, for some minutes each, and says how many it fed. An
//! input that does harm is saved in the corpus, and the exit status is 1.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use scenarios::fuzz::{self, Mutator, Target};

/// Flags.
#[derive(Debug, Parser)]
struct Flags {
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only this target
    #[arg(long)]
    target: Option<String>,
    /// First seed; another one gives other inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> anyhow::Result<ExitCode> {
    query_planner::memory::install();
    let flags = Flags::parse();
    let mut code = ExitCode::SUCCESS;
    for target in Target::ALL {
        if flags.target.as_ref().is_some_and(|only| only != target.name()) {
            continue;
        }
        let seeds = target.seeds().with_context(|| format!("seeds of {}", target.name()))?;
        let mut mutator = Mutator::new(flags.seed);
        let (began, mut fed) = (Instant::now(), 0_u64);
        let until = began + Duration::from_secs(flags.seconds);
        let mut findings = 0;
        while Instant::now() < until && findings == 0 {
            let input = mutator.input(&seeds);
            fed += 1;
            if let Err(finding) = fuzz::feed(target, &input) {
                findings += 1;
                let file = target.corpus().join(format!("found-{}-{fed}", flags.seed));
                std::fs::create_dir_all(target.corpus())?;
                std::fs::write(&file, &finding.input)?;
                eprintln!("{}: {}; saved as {}", target.name(), finding.what, file.display());
                code = ExitCode::FAILURE;
            }
        }
        println!(
            "fuzz {} inputs {fed} seconds {:.0} findings {findings}",
            target.name(),
            began.elapsed().as_secs_f64()
        );
    }
    Ok(code)
}
