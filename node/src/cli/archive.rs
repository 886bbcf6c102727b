//! `rankmesh archive`: hours of trace stores as Parquet, into a directory or bucket; or their rows
//! as they come, into ClickHouse. `asked` and `mesh_rows`: an archive that a question reads.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agent::archiver::{AT_ONCE, PassReport, REASON_CHARS, ToAgent};
use anyhow::Context;
use archive::clickhouse::{Client, ClientError, Credentials, PushError, Pushed, push};
use archive::pass::{Done, PassError, Wanted, Watch, pass};
use archive::place::{Place, Settings};
use ask::values::parse_duration;
use ask::{Exit, UsageError};
use clap::Args;
use record::{shortened, unix_now_ns};

use crate::privileges::{self, Plan};

pub(super) mod again;
pub(super) mod asked;
pub(super) mod mesh_rows;

/// Memory that an agent's archiver may have: a row group on its way to a file, the parts of an
/// upload and SQLite's pages are some hundred MiB.
const MOST_DATA_BYTES: u64 = 1 << 30;

/// Flags of `rankmesh archive`.
#[derive(Debug, Args)]
pub(super) struct ArchiveArgs {
    /// Directory (it must be there), or s3://BUCKET/PREFIX with AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, … in the environment
    #[arg(long, value_name = "DIR|URL", required_unless_present_any = ["clickhouse", "clickhouse_schema"])]
    to: Option<String>,
    /// In place of files: push all rows that were not pushed yet into the tables of this ClickHouse
    /// server, http://HOST:8123/DATABASE or https://…, as CLICKHOUSE_USER with CLICKHOUSE_PASSWORD;
    /// what was pushed is kept beside the store (NAME.db.clickhouse)
    #[arg(long, value_name = "URL", conflicts_with_all = ["to", "open_hours"])]
    clickhouse: Option<String>,
    /// Print the script that makes these tables, for an administrator to read and run
    #[arg(long, value_name = "DATABASE", num_args = 0..=1, default_missing_value = "rankmesh", exclusive = true)]
    clickhouse_schema: Option<String>,
    /// File of NAME=VALUE lines in place of the environment, which only its owner may read
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// The trace stores whose hours are written (repeatable; a directory means all its .db files);
    /// an agent may be writing to them
    #[arg(long, value_name = "PATH", required_unless_present = "clickhouse_schema")]
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

/// Set by the agent's line on standard input: retention is about to take rows that are not
/// archived.
static SOON: AtomicBool = AtomicBool::new(false);

extern "C" fn stop_soon(_: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

pub(super) fn run(args: ArchiveArgs) -> anyhow::Result<Exit> {
    if let Some(database) = &args.clickhouse_schema {
        print!("{}", archive::clickhouse::script(database)?);
        return Ok(Exit::Complete);
    }
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
        let target = args.to.iter().map(PathBuf::from).filter(|path| path.is_dir());
        let files = files.iter().cloned().chain(target);
        let plan = Plan { files: files.collect(), ..Plan::default() };
        privileges::give_up_all_but(&plan).context("giving up privileges")?;
        bound_memory().context("bounding the memory of this process")?;
        std::thread::Builder::new().name("agent's wishes".to_owned()).spawn(hear_agent)?;
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
            None => return outcome.map(|done| print_summary(&done)),
            Some(_) if args.for_agent => report_pass(&outcome)?,
            Some(_) => match &outcome {
                Ok(done) => drop(print_summary(done)),
                Err(error) => eprintln!("{}", ask::output::printable_lines(&format!("rankmesh: {error:#}"))),
            },
        }
        let every = args.every.unwrap_or_default();
        while began.elapsed() < every && !is_over() && !SOON.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(200));
        }
        if is_over() {
            return Ok(Exit::Complete);
        }
    }
}

/// Bounds what this process takes of the host's memory: what it reads comes from outside. Beyond,
/// it ends, and the agent starts another.
fn bound_memory() -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: MOST_DATA_BYTES, rlim_max: MOST_DATA_BYTES };
    // SAFETY: `limit` is initialised and only read.
    match unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads the agent's messages, until it ends.
fn hear_agent() {
    for line in std::io::stdin().lock().lines() {
        match line {
            Ok(line) if line == AT_ONCE => SOON.store(true, Ordering::Relaxed),
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

/// Stops a pass, and reports its progress to the agent.
struct ForAgent<'a> {
    is_over: &'a dyn Fn() -> bool,
    reports: bool,
}

impl Watch for ForAgent<'_> {
    fn stop(&self) -> bool {
        (self.is_over)()
    }

    fn archived(&self, until_ns: i64) {
        if self.reports {
            // (If the agent is gone, this process ends soon.)
            let _ = send(&ToAgent::Archived(until_ns));
        }
    }
}

/// The result of a pass, as text and for the agent.
struct Passed {
    report: PassReport,
    summary: String,
}

fn one_pass(args: &ArchiveArgs, files: &[PathBuf], is_over: &dyn Fn() -> bool) -> anyhow::Result<Passed> {
    let settings = match &args.settings {
        Some(file) => Settings::of_file(file)?,
        None => Settings::of_environment(),
    };
    match (&args.clickhouse, &args.to) {
        (Some(url), _) => push_all(args, url, &settings, files, is_over),
        (None, Some(to)) => write_all(args, to, &settings, files, is_over),
        (None, None) => Err(UsageError("give --to or --clickhouse".to_owned()).into()),
    }
}

/// Each store with the name of its node.
fn named<'a>(args: &'a ArchiveArgs, files: &'a [PathBuf]) -> impl Iterator<Item = (&'a PathBuf, String)> {
    let mut taken = std::collections::BTreeSet::new();
    files.iter().map(move |db| {
        let name = query::files::name_of(db, &mut taken);
        (db, args.node.clone().unwrap_or_else(|| name.to_string()))
    })
}

fn write_all(
    args: &ArchiveArgs,
    to: &str,
    settings: &Settings,
    files: &[PathBuf],
    is_over: &dyn Fn() -> bool,
) -> anyhow::Result<Passed> {
    let place = Place::open(to, settings)?;
    let mut all = Done::default();
    let watch = ForAgent { is_over, reports: args.for_agent };
    let at_once = SOON.swap(false, Ordering::Relaxed);
    for (db, node) in named(args, files) {
        let (open_hours, full_speed) = (args.open_hours, args.full_speed);
        let wanted = Wanted { db, node: &node, now_ns: unix_now_ns(), at_once, open_hours, full_speed };
        let done = pass(&place, wanted, &watch)?;
        all.hours.extend(done.hours);
        (all.rows, all.bytes, all.files) = (all.rows + done.rows, all.bytes + done.bytes, all.files + done.files);
        all.ahead_ns = all.ahead_ns.into_iter().chain(done.ahead_ns).min();
    }
    let Done { hours, rows, bytes, files, ahead_ns } = all;
    let n = hours.len();
    let ahead = ahead_ns.map_or_else(String::new, |ahead_ns| {
        let from = store::show_time(ahead_ns);
        format!("; rows from {from} on are left out: by this host's clock that is yet to come (archive them then)")
    });
    let summary = format!("{n} hours, {rows} rows, {bytes} bytes in {files} files into {to}{ahead}");
    Ok(Passed { report: PassReport { hours: n, rows, failed: None, lost: None }, summary })
}

fn push_all(
    args: &ArchiveArgs,
    url: &str,
    settings: &Settings,
    files: &[PathBuf],
    is_over: &dyn Fn() -> bool,
) -> anyhow::Result<Passed> {
    let client = Client::new(url, Credentials::of(settings.by_name())).map_err(|error| match error {
        ClientError::Url(why) => UsageError(why).into(),
        other => anyhow::Error::from(other),
    })?;
    let mut all = Pushed::default();
    for (db, node) in named(args, files) {
        let pushed = push(&client, db, &node, unix_now_ns(), args.full_speed, is_over)?;
        (all.inserts, all.rows) = (all.inserts + pushed.inserts, all.rows + pushed.rows);
        all.bytes += pushed.bytes;
        all.lost.extend(pushed.lost);
    }
    let lost: Vec<String> = all.lost.iter().map(|(table, rows)| format!("{rows} rows of {table}")).collect();
    let lost = (!lost.is_empty()).then(|| format!("retention took {} before they were pushed", lost.join(", ")));
    let also = lost.as_ref().map_or_else(String::new, |lost| format!("; {lost}"));
    let (inserts, rows, bytes) = (all.inserts, all.rows, all.bytes);
    let summary = format!("{rows} rows, {bytes} bytes in {inserts} inserts into {}{also}", client.place());
    let hours = usize::try_from(inserts).unwrap_or(usize::MAX);
    Ok(Passed { report: PassReport { hours, rows, failed: None, lost }, summary })
}

fn print_summary(passed: &Passed) -> Exit {
    eprintln!("{}", ask::output::printable(&passed.summary));
    Exit::Complete
}

fn report_pass(outcome: &anyhow::Result<Passed>) -> anyhow::Result<()> {
    send(&ToAgent::Pass(match outcome {
        Ok(passed) => passed.report.clone(),
        Err(error) if error.downcast_ref::<PassError>().is_some_and(PassError::is_stop) => return Ok(()),
        Err(error) if error.downcast_ref::<PushError>().is_some_and(PushError::is_stop) => return Ok(()),
        Err(error) => {
            // It may have in it what a bucket or server said.
            let failed = Some(shortened(&format!("{error:#}"), REASON_CHARS));
            PassReport { hours: 0, rows: 0, failed, lost: None }
        }
    }))
}

fn send(message: &ToAgent) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(message)?)?;
    Ok(out.flush()?)
}

/// Yields the CPU and the disk to the job: nice 19 and idle I/O, for this whole process.
fn yield_to_others() {
    /// IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0) of linux/ioprio.h.
    const IDLE: libc::c_long = 3 << 13;
    // SAFETY: neither call has preconditions; where the kernel refuses, the pace still bounds us.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 19);
        libc::syscall(libc::SYS_ioprio_set, 1, 0, IDLE);
    }
}
