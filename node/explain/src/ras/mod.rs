//! What NCCL says of its own communicators: the answer of its RAS subsystem (reliability,
//! availability, serviceability; NCCL 2.24 and later), a thread in each process of a job that
//! answers on a port of the loopback address. `text` reads the answer that people read, `json` that
//! of newer versions; [`sentences`](Status::sentences) says what it shows. Who asks is the agent.
//!
//! The answer is a text of the user whose process it is. It is parsed, never copied: numbers,
//! names of functions by their letters, addresses by theirs, all bounded; what is of another form
//! is passed over (`text`) or refused (`json`).

mod json;
mod text;

use std::collections::BTreeMap;
use std::time::Instant;

use thiserror::Error;

/// Longest answer that is read, bytes: a job of 4,000 ranks in 16 communicators each has fewer.
pub const MOST_BYTES: usize = 16 << 20;
/// Communicators of an answer, and sentences made of it.
const MOST_COMMUNICATORS: usize = 16_384;
const MOST_SENTENCES: usize = 16;
/// Ranks that a sentence lists.
const MOST_LISTED: usize = 8;
/// No communicator is larger.
const MOST_RANKS: u32 = 1 << 20;

/// Why an answer is not one.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RasError {
    /// It is longer than [`MOST_BYTES`], or has more communicators than any job.
    #[error("the answer is too long")]
    TooLong,
    /// It is not of the published form.
    #[error("not an answer of NCCL's RAS: {0}")]
    Form(String),
    /// Reading it took too long.
    #[error("the answer takes too long to read")]
    Late,
    /// It ends before the end.
    #[error("the answer ends early")]
    Cut,
}

/// A job's communicators as its RAS network knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Of NCCL: "2.28.3".
    pub version: Option<String>,
    /// Those with something to say.
    pub communicators: Vec<Communicator>,
    /// Processes that did not answer.
    pub silent_processes: u32,
    /// Processes that cannot be reached any more.
    pub dead_processes: u32,
}

/// One communicator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Communicator {
    /// NCCL's own hash of it: `collectives.comm_hash`.
    pub hash: u64,
    /// By function in NCCL's spelling ("AllReduce"): how many operations ranks have launched.
    pub launched: BTreeMap<String, Vec<Launched>>,
    /// Ranks of which nothing was heard.
    pub absent: Vec<Absent>,
    /// Ranks of which nothing was heard, where they are not listed one by one.
    pub absent_ranks: u32,
}

/// Ranks that have launched the same number of operations of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Launched {
    /// That number.
    pub operations: u64,
    /// How many ranks.
    pub ranks: u32,
    /// Which; may be fewer, where the answer does not list them.
    pub listed: Vec<u32>,
}

/// A rank of which nothing was heard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Absent {
    /// Rank in the communicator.
    pub rank: u32,
    /// Its process on its host, where known.
    pub pid: Option<u32>,
    /// It answered, but is no longer a member: it has destroyed the communicator.
    pub has_left: bool,
}

/// Reads an answer to `VERBOSE STATUS`, in either form, until a time.
///
/// # Errors
/// [`RasError`].
pub fn parse(answer: &[u8], deadline: Instant) -> Result<Status, RasError> {
    if answer.len() > MOST_BYTES {
        return Err(RasError::TooLong);
    }
    let text = std::str::from_utf8(answer).map_err(|_| RasError::Form("it is not text".to_owned()))?;
    let status = if text.trim_start().starts_with('{') { json::parse(text)? } else { text::parse(text, deadline)? };
    if status.communicators.len() > MOST_COMMUNICATORS {
        return Err(RasError::TooLong);
    }
    Ok(status)
}

impl Status {
    /// What it shows of what differs between ranks, the communicators with the most ranks that are
    /// behind first; empty where all have launched the same and answer. At most 16.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let mut said: Vec<String> = Vec::new();
        if self.dead_processes > 0 {
            said.push(format!("{} of the job cannot be reached any more", count(self.dead_processes, "process")));
        }
        if self.silent_processes > 0 {
            said.push(format!("{} of the job did not answer", count(self.silent_processes, "process")));
        }
        for communicator in &self.communicators {
            said.extend(communicator.sentences());
        }
        let more = said.len().saturating_sub(MOST_SENTENCES);
        if more > 0 {
            said.truncate(MOST_SENTENCES - 1);
            said.push(format!("and {} more differences", more + 1));
        }
        said
    }
}

impl Communicator {
    fn sentences(&self) -> Vec<String> {
        let on = format!("communicator {:016x}", self.hash);
        let mut said = Vec::new();
        for (func, groups) in &self.launched {
            let Some(most) = groups.iter().max_by_key(|group| group.operations) else { continue };
            let mut behind: Vec<&Launched> = groups.iter().filter(|g| g.operations < most.operations).collect();
            behind.sort_by_key(|group| group.operations);
            for group in behind {
                said.push(format!(
                    "{} launched {} {func} operations on {on}, {} {}",
                    has(group),
                    group.operations,
                    if most.ranks == 1 { has(most) } else { count(most.ranks, "rank") + " have launched" },
                    most.operations
                ));
            }
        }
        let (left, silent): (Vec<&Absent>, Vec<&Absent>) = self.absent.iter().partition(|absent| absent.has_left);
        for (who, what) in [(silent, ["does not answer", "do not answer"]), (left, ["has left it", "have left it"])] {
            if let Some(first) = who.first() {
                let ranks: Vec<u32> = who.iter().map(|absent| absent.rank).collect();
                let process =
                    first.pid.filter(|_| who.len() == 1).map_or(String::new(), |pid| format!(" (process {pid})"));
                said.push(format!(
                    "of {on} {}{process} {}",
                    listed(&ranks, ranks.len()),
                    what[usize::from(who.len() > 1)]
                ));
            }
        }
        let unlisted = (self.absent_ranks as usize).saturating_sub(self.absent.len());
        if unlisted > 0 {
            said.push(format!("of {on} {} did not answer", count(unlisted as u32, "rank")));
        }
        said
    }
}

fn has(group: &Launched) -> String {
    match group.ranks {
        1 => format!("{} has", listed(&group.listed, 1)),
        ranks => format!("{} have", listed(&group.listed, ranks as usize)),
    }
}

fn count(number: u32, what: &str) -> String {
    let plural = if what.ends_with('s') { "es" } else { "s" };
    format!("{number} {what}{}", if number == 1 { "" } else { plural })
}

/// "rank 5", "ranks 1, 2 and 7 more", "9 ranks".
fn listed(ranks: &[u32], all: usize) -> String {
    let shown: Vec<String> = ranks.iter().take(MOST_LISTED).map(u32::to_string).collect();
    let more = all.saturating_sub(shown.len());
    match (shown.len(), more) {
        (0, 1) => "a rank".to_owned(),
        (0, _) => format!("{all} ranks"),
        (1, 0) => format!("rank {}", shown.concat()),
        (_, 0) => format!("ranks {}", shown.join(", ")),
        (_, more) => format!("ranks {} and {more} more", shown.join(", ")),
    }
}

/// A function's name: letters, as NCCL spells them.
fn function(name: &str) -> Option<&str> {
    let is_name = (1..=32).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_name.then_some(name)
}

/// A version: digits and dots.
fn version(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let version = text.get(..end)?.trim_end_matches('.');
    (1..=16).contains(&version.len()).then(|| version.to_owned())
}

#[cfg(test)]
mod tests;
