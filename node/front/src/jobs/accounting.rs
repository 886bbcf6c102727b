//! What Slurm's accounting has on jobs: one call of `sacct`, where a host has it.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Serialize;

/// Longest wait for a database that does not answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Jobs in one call: their numbers are arguments.
const AT_ONCE: usize = 500;
/// Bytes of an answer that are read.
const MOST_BYTES: u64 = 16 << 20;
/// The columns asked for. A name may contain anything, so it comes last.
const FORMAT: &str = "JobIDRaw,JobID,User,Account,Partition,State,ElapsedRaw,AllocNodes,AllocTRES,JobName";

/// A job's record in the accounting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Accounting {
    /// As users write it: `4711`, `4700_3`.
    pub(super) id: String,
    /// Whose it is.
    pub(super) user: String,
    /// Whose account it is charged to.
    pub(super) account: String,
    /// Partition.
    pub(super) partition: String,
    /// `RUNNING`, `COMPLETED`, `CANCELLED by 1000`, …
    pub(super) state: String,
    /// Seconds that it ran, or has run.
    pub(super) elapsed_s: Option<i64>,
    /// Nodes that it was given.
    pub(super) nodes: Option<i64>,
    /// GPUs that it was given, where the site counts them.
    pub(super) gpus: Option<i64>,
    /// Its name.
    pub(super) name: String,
}

/// The records of these jobs, by their numbers; none where this host has no `sacct`.
///
/// # Errors
/// `sacct` failed, or took too long.
pub(super) fn of<'a>(jobs: impl IntoIterator<Item = &'a str>) -> anyhow::Result<Option<BTreeMap<String, Accounting>>> {
    // Names that are no job numbers come from other launchers, or from somebody who wants to pass
    // an option.
    let is_number = |job: &&str| !job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit());
    let jobs: Vec<&str> = jobs.into_iter().filter(is_number).collect();
    let mut known = BTreeMap::new();
    for some in jobs.chunks(AT_ONCE) {
        let Some(text) = ask(&some.join(","))? else { return Ok(None) };
        known.extend(read(&text));
    }
    Ok(Some(known))
}

fn ask(jobs: &str) -> anyhow::Result<Option<String>> {
    let mut command = crate::slurm_command::plain("sacct");
    command.args(["--noheader", "--parsable2", "--allocations", "--format", FORMAT, "--jobs", jobs]);
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("running sacct"),
    };
    let read = |from: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = from.map(|from| from.take(MOST_BYTES).read_to_end(&mut bytes));
            read.transpose().map(|_| String::from_utf8_lossy(&bytes).into_owned())
        })
    };
    let out = read(child.stdout.take().map(|from| Box::new(from) as Box<dyn Read + Send>));
    let err = read(child.stderr.take().map(|from| Box::new(from) as Box<dyn Read + Send>));
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().context("waiting for sacct")? {
            break status;
        }
        if began.elapsed() > PATIENCE {
            // Processes that it started may keep its pipes open: the readers are not waited for.
            let _ = child.kill();
            let _ = child.wait();
            bail!("sacct did not answer within {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let text = |reader: std::thread::JoinHandle<std::io::Result<String>>| {
        reader.join().map_err(|_| anyhow::anyhow!("reading sacct"))?.context("reading sacct")
    };
    let out = text(out)?;
    if !status.success() {
        let why = text(err)?;
        bail!("sacct: {status}: {}", why.lines().next().unwrap_or_default());
    }
    Ok(Some(out))
}

/// The lines of an answer; the parts of a het job and the tasks of an array have numbers of their
/// own.
fn read(text: &str) -> impl Iterator<Item = (String, Accounting)> {
    text.lines().filter_map(|line| {
        let mut fields = line.splitn(10, '|').map(|field| field.trim().to_owned());
        let mut next = || fields.next();
        let (raw, id, user, account, partition, state) = (next()?, next()?, next()?, next()?, next()?, next()?);
        let (elapsed, nodes, tres, name) = (next()?, next()?, next()?, next()?);
        let gpus = tres.split(',').find_map(|part| part.strip_prefix("gres/gpu=")?.parse().ok());
        let (elapsed_s, nodes) = (elapsed.parse().ok(), nodes.parse().ok());
        Some((raw, Accounting { id, user, account, partition, state, elapsed_s, nodes, gpus, name }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_sacct_are_read() {
        let text = "4711|4711|ada|physics|h100|COMPLETED|3600|2|billing=8,cpu=8,gres/gpu:h100=8,gres/gpu=8,node=2|train|me\n\
                    4713|4712_1|bob||cpu|CANCELLED by 1000|0|0||\nno line\n";
        let known: BTreeMap<String, Accounting> = read(text).collect();
        assert_eq!(known.len(), 2);
        let job = &known["4711"];
        assert_eq!((job.gpus, job.elapsed_s, job.name.as_str()), (Some(8), Some(3600), "train|me"));
        assert_eq!((known["4713"].id.as_str(), known["4713"].gpus), ("4712_1", None));
    }

    #[test]
    fn what_is_no_number_is_not_asked_for() {
        assert_eq!(of(["--help", "run-7", ""]).unwrap(), Some(BTreeMap::new()));
    }
}
