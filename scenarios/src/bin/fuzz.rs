//! Feeds changed inputs to everything that reads bytes from outside, for some minutes each, and
//! says how many it fed. An input that does harm is saved in the corpus, and the exit status is 1.
//! Each input is written to a file before it is fed, so that one that kills the process is not lost
//! either.

use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use scenarios::fuzz::{self, Mutator, Pool, Target, coverage};

/// Inputs that a run adds to the corpus at most, and the longest of them.
const SAVED: usize = 24;
const SAVED_BYTES: usize = 8 << 10;

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
    /// Save the few inputs that take the most branches in DIR/TARGET
    #[arg(long, value_name = "DIR")]
    save: Option<std::path::PathBuf>,
}

fn main() -> anyhow::Result<ExitCode> {
    query_planner::memory::install();
    let flags = Flags::parse();
    let mut code = ExitCode::SUCCESS;
    for target in Target::ALL {
        if flags.target.as_ref().is_none_or(|only| only == target.name()) && !run(target, &flags)? {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

/// Whether nothing was found.
fn run(target: Target, flags: &Flags) -> anyhow::Result<bool> {
    // Stays behind when the process is killed by its input.
    let at_hand = tempfile::Builder::new().prefix(&format!("rankmesh-fuzz-{}-", target.name())).tempfile()?;
    let feed = |input: &[u8]| {
        at_hand.as_file().set_len(input.len() as u64)?;
        at_hand.as_file().write_all_at(input, 0)?;
        // What making the input took does not count.
        coverage::taken();
        anyhow::Ok(fuzz::feed(target, input))
    };
    let mut pool = Pool::default();
    let mut finding = None;
    let (began, mut fed) = (Instant::now(), 0_u64);
    let until = began + Duration::from_secs(flags.seconds);
    for seed in target.seeds().with_context(|| format!("seeds of {}", target.name()))? {
        finding = finding.or(feed(&seed)?.err());
        pool.fed(seed, true);
        fed += 1;
    }
    let mut mutator = Mutator::new(flags.seed);
    while Instant::now() < until && finding.is_none() {
        let input = mutator.input(pool.inputs());
        finding = feed(&input)?.err();
        pool.fed(input, false);
        fed += 1;
    }
    if let Some(finding) = &finding {
        let file = target.corpus().join(format!("found-{}-{fed}", flags.seed));
        std::fs::create_dir_all(target.corpus())?;
        std::fs::write(&file, &finding.input)?;
        eprintln!("{}: {}; saved as {}", target.name(), finding.what, file.display());
    }
    if let Some(directory) = &flags.save {
        save(&pool, &directory.join(target.name()))?;
    }
    println!(
        "fuzz {} inputs {fed} seconds {:.0} findings {} edges {} branches {} kept {} peak_mib {}",
        target.name(),
        began.elapsed().as_secs_f64(),
        usize::from(finding.is_some()),
        coverage::edges(),
        pool.branches(),
        pool.inputs().len(),
        peak_mib()
    );
    Ok(finding.is_none())
}

fn save(pool: &Pool, directory: &std::path::Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)?;
    for input in pool.best(SAVED, SAVED_BYTES) {
        let mut hash = DefaultHasher::new();
        hash.write(input);
        std::fs::write(directory.join(format!("{:016x}", hash.finish())), input)?;
    }
    Ok(())
}

/// The most memory this process ever had.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).map_or(0, |kib| kib >> 10)
}
