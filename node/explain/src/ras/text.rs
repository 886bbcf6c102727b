//! The answer as text: a summary, and sections of what is wrong with a communicator. Lines of a
//! form that is not known here are passed over, so that a newer version's are no harm.

use std::collections::HashMap;
use std::time::Instant;

use super::{Absent, Communicator, Launched, MOST_RANKS, RasError, Status, function, version};

/// Linux's largest process number.
const PID_MAX: u32 = 1 << 22;
/// Listed ranks that are kept of an answer.
const MOST_LISTED: usize = 65_536;

/// The heading under which a line stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Under {
    Nothing,
    Processes,
    Dead,
    /// Of the communicator of the last heading.
    Absent,
    Counts,
    Other,
}

/// Lines between two looks at the time.
const LINES_A_LOOK: usize = 1_024;

/// Which of the communicators a hash is of, and which the last heading names.
#[derive(Debug, Default)]
struct Places {
    by_hash: HashMap<u64, usize>,
    last: Option<usize>,
}

impl Places {
    fn last<'s>(&self, status: &'s mut Status) -> Option<&'s mut Communicator> {
        status.communicators.get_mut(self.last?)
    }
}

pub(super) fn parse(text: &str, deadline: Instant) -> Result<Status, RasError> {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let Some(rest) = first.strip_prefix("NCCL version ") else {
        return Err(RasError::Form("it does not begin with NCCL's version".to_owned()));
    };
    let mut status = Status { version: version(rest), ..Status::default() };
    let (mut under, mut func, mut listed, mut complete) = (Under::Nothing, None::<String>, 0, false);
    let mut places = Places::default();
    for (at, line) in lines.enumerate() {
        if at % LINES_A_LOOK == 0 && Instant::now() > deadline {
            return Err(RasError::Late);
        }
        if !line.starts_with(' ') {
            // the last heading; what follows it is part of it
            complete |= line.trim_end() == "Warnings";
            under = heading(line, &mut status, &mut places)?;
            func = None;
            continue;
        }
        let line = line.trim();
        if let Some(name) = between(line, "Communicator ranks have different ", " operation counts") {
            (under, func) = (Under::Counts, function(name).map(str::to_owned));
            continue;
        }
        if line.starts_with("Communicator ranks have different ") {
            (under, func) = (Under::Other, None);
            continue;
        }
        match under {
            Under::Processes => {
                status.silent_processes =
                    number(line, "Missing communicator data from ").unwrap_or(status.silent_processes)
            }
            Under::Dead if line.contains(" considered dead") => status.dead_processes = leading(line).unwrap_or(0),
            Under::Absent => {
                let Some(last) = places.last(&mut status) else { continue };
                if let Some(ranks) = number(line, "Missing communicator data from ") {
                    last.absent_ranks = ranks;
                } else if let Some(rank) = number(line, "Rank ")
                    && listed < MOST_LISTED
                {
                    listed += 1;
                    let pid = line.split_once("managed by process ").and_then(|(_, rest)| leading(rest));
                    last.absent.push(Absent { rank, pid, has_left: false });
                }
            }
            Under::Counts => {
                let (Some(last), Some(func)) = (places.last(&mut status), &func) else { continue };
                let groups = last.launched.entry(func.clone()).or_default();
                listed += usize::from(count(line, groups, listed < MOST_LISTED));
            }
            Under::Nothing | Under::Dead | Under::Other => {}
        }
    }
    if complete { Ok(status) } else { Err(RasError::Cut) }
}

/// A line that begins at the left: of the whole job, or of a communicator, as
/// `#0-0 (00b6c1aeba2b2fd7) MISMATCH`.
fn heading(line: &str, status: &mut Status, places: &mut Places) -> Result<Under, RasError> {
    let line = line.trim_end();
    match line {
        "INCOMPLETE" => return Ok(Under::Processes),
        "DEAD" => return Ok(Under::Dead),
        _ => {}
    }
    let Some((_, rest)) = line.strip_prefix('#').and_then(|rest| rest.split_once(" (")) else {
        return Ok(Under::Nothing);
    };
    let Some((hash, kind)) = rest.split_once(") ") else { return Ok(Under::Nothing) };
    let is_hash = hash.len() <= 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    let hash = u64::from_str_radix(hash, 16).ok().filter(|_| is_hash);
    let hash = hash.ok_or_else(|| RasError::Form("a communicator's hash".to_owned()))?;
    // The sections of a communicator are its errors and, later, its warnings.
    let next = status.communicators.len();
    let at = *places.by_hash.entry(hash).or_insert(next);
    if at == next {
        if next >= super::MOST_COMMUNICATORS {
            return Err(RasError::TooLong);
        }
        status.communicators.push(Communicator { hash, ..Communicator::default() });
    }
    places.last = Some(at);
    Ok(if kind == "INCOMPLETE" { Under::Absent } else { Under::Other })
}

/// A line with how many operations ranks have launched; true where it lists a rank.
fn count(line: &str, groups: &mut Vec<Launched>, may_list: bool) -> bool {
    let operations = line.split_once("launched up to operation ").and_then(|(_, rest)| leading_u64(rest));
    let operations = operations.or_else(|| line.contains("not launched any operations").then_some(0));
    match (number(line, "Rank "), operations) {
        (Some(rank), Some(operations)) => {
            groups.push(Launched { operations, ranks: 1, listed: vec![rank] });
            true
        }
        (Some(rank), None) if may_list => {
            let Some(last) = groups.last_mut() else { return false };
            last.listed.push(rank);
            true
        }
        (None, Some(operations)) => {
            groups.extend(leading(line).map(|ranks| Launched { operations, ranks, listed: vec![] }));
            false
        }
        _ => false,
    }
}

fn between<'t>(line: &'t str, before: &str, after: &str) -> Option<&'t str> {
    line.strip_prefix(before)?.strip_suffix(after)
}

/// The number of ranks or processes, or the rank, behind these words.
fn number(line: &str, words: &str) -> Option<u32> {
    leading(line.strip_prefix(words)?)
}

fn leading(text: &str) -> Option<u32> {
    u32::try_from(leading_u64(text)?).ok().filter(|number| *number <= MOST_RANKS.max(PID_MAX))
}

/// The decimal number that a text begins with.
fn leading_u64(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end)?.parse().ok()
}
