//! `rankmesh archive`: hours of trace stores as Parquet, into a directory or bucket.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use archive::pass::{Done, PassError, Wanted, pass};
use archive::place::{Place, Settings};
use clap::Args;
use record::unix_now_ns;

use super::values::parse_duration;
use super::{Exit, UsageError};
use crate::agent::archiver::PassTold;
use crate::privileges::{self, Plan};

/// Flags of `rankmesh archive`.
#[derive(Debug, Args)]
pub(super) struct ArchiveArgs {
    /// Directory (it must be there), or s3://BUCKET/PREFIX with AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, … in the environment
    #[arg(long, value_name = "DIR|URL")]
    to: String,
    /// File of NAME=VALUE lines in place of the environment, which only its owner may read
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// The trace stores whose hours are written (repeatable; a directory means all its .db files);
    /// an agent may be writing to them
    #[arg(long, value_name = "PATH", required = true)]
    db: Vec<PathBuf>,
    /// The node's name, of one store [default: the file's name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Also the hours that are not over: for stores whose job has ended
    #[arg(long)]
    open_hours: bool,
    /// As fast as it goes, with no rests for the job
    #[arg(long)]
    full_speed: bool,
    /// Go on, one pass each time this long has passed: what an agent with --archive runs
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    every: Option<Duration>,
    /// End with the process that started this one, and tell it of each pass on standard output
    #[arg(long, hide = true, requires = "every")]
    for_agent: bool,
}

/// Set by SIGTERM and SIGINT.
static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn stop_soon(_: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

pub(super) fn run(args: ArchiveArgs) -> anyhow::Result<Exit> {
    let files = query::files::expand(&args.db)?;
    if args.node.is_some() && files.len() != 1 {
        return Err(UsageError(format!("--node names one store, and --db means {}", files.len())).into());
    }
    for signal in [nix::sys::signal::SIGTERM, nix::sys::signal::SIGINT] {
        // SAFETY: the handler sets an atomic, nothing else.
        unsafe { nix::sys::signal::signal(signal, nix::sys::signal::SigHandler::Handler(stop_soon))? };
    }
    if args.for_agent {
        // Root gains the agent's capabilities anew with a new program.
        let files = files.iter().cloned().chain([PathBuf::from(&args.to)].into_iter().filter(|path| path.is_dir()));
        let plan = Plan { files: files.collect(), ..Plan::default() };
        privileges::give_up_all_but(&plan).context("giving up privileges")?;
    }
    let parent = nix::unistd::getppid();
    let is_over = || STOP.load(Ordering::Relaxed) || (args.for_agent && nix::unistd::getppid() != parent);
    if !args.full_speed {
        yield_to_others();
    }
    loop {
        let began = Instant::now();
        let outcome = one_pass(&args, &files, &is_over);
        match args.every {
            None => return outcome.map(|done| say(&done, &args.to)),
            Some(_) if args.for_agent => tell(&outcome)?,
            Some(_) => match &outcome {
                Ok(done) => drop(say(done, &args.to)),
                Err(error) => eprintln!("{}", crate::output::printable_lines(&format!("rankmesh: {error:#}"))),
            },
        }
        let every = args.every.unwrap_or_default();
        while began.elapsed() < every && !is_over() {
            std::thread::sleep(Duration::from_millis(200));
        }
        if is_over() {
            return Ok(Exit::Complete);
        }
    }
}

fn one_pass(args: &ArchiveArgs, files: &[PathBuf], is_over: &dyn Fn() -> bool) -> anyhow::Result<Done> {
    let settings = match &args.settings {
        Some(file) => Settings::of_file(file)?,
        None => Settings::of_environment(),
    };
    let place = Place::open(&args.to, &settings)?;
    let mut taken = std::collections::BTreeSet::new();
    let mut all = Done::default();
    for db in files {
        let name = query::files::name_of(db, &mut taken);
        let node = args.node.as_deref().unwrap_or(name.as_str());
        let wanted =
            Wanted { db, node, now_ns: unix_now_ns(), open_hours: args.open_hours, full_speed: args.full_speed };
        let done = pass(&place, wanted, is_over)?;
        all.hours.extend(done.hours);
        (all.rows, all.bytes, all.files) = (all.rows + done.rows, all.bytes + done.bytes, all.files + done.files);
    }
    Ok(all)
}

fn say(done: &Done, to: &str) -> Exit {
    let Done { hours, rows, bytes, files } = done;
    let n = hours.len();
    eprintln!("{n} hours, {rows} rows, {bytes} bytes in {files} files into {}", crate::output::printable(to));
    Exit::Complete
}

fn tell(outcome: &anyhow::Result<Done>) -> anyhow::Result<()> {
    let told = match outcome {
        Ok(done) => PassTold { hours: done.hours.len(), rows: done.rows, failed: None },
        Err(error) if error.downcast_ref::<PassError>().is_some_and(PassError::is_stop) => return Ok(()),
        Err(error) => PassTold { hours: 0, rows: 0, failed: Some(format!("{error:#}")) },
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(&told)?)?;
    Ok(out.flush()?)
}

/// The scheduler and the disk serve the job first: nice 19 and idle I/O, for this whole process.
fn yield_to_others() {
    /// IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0) of linux/ioprio.h.
    const IDLE: libc::c_long = 3 << 13;
    // SAFETY: neither call has preconditions; where the kernel refuses, the pace still bounds us.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 19);
        libc::syscall(libc::SYS_ioprio_set, 1, 0, IDLE);
    }
}
