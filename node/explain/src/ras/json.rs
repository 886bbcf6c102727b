//! The answer as JSON: all ranks of all communicators, with what each has launched. Unknown fields
//! are passed over, missing ones are an error.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Absent, Communicator, Launched, MOST_RANKS, RasError, Status, function, version};

#[derive(Deserialize)]
struct Answer {
    nccl_version: String,
    communicators: Vec<Of>,
}

#[derive(Deserialize)]
struct Of {
    hash: String,
    size: u32,
    ranks: Vec<Rank>,
    missing_ranks: Vec<Missing>,
}

#[derive(Deserialize)]
struct Rank {
    rank: u32,
    collective_counts: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct Missing {
    rank: u32,
    pid: i64,
    status: MissingStatus,
}

#[derive(Deserialize)]
struct MissingStatus {
    unresponsive: bool,
    considered_dead: bool,
}

/// Functions of a rank.
const MOST_FUNCTIONS: usize = 64;

pub(super) fn parse(text: &str) -> Result<Status, RasError> {
    let answer: Answer = serde_json::from_str(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Eof => RasError::Cut,
        _ => RasError::Form(format!("line {}, column {}", error.line(), error.column())),
    })?;
    let communicators = answer.communicators.iter().map(communicator).collect::<Result<_, _>>()?;
    Ok(Status { version: version(&answer.nccl_version), communicators, ..Status::default() })
}

fn communicator(of: &Of) -> Result<Communicator, RasError> {
    let wrong = |what: &str| RasError::Form(what.to_owned());
    let digits = of.hash.strip_prefix("0x").filter(|digits| !digits.starts_with('+'));
    let hash = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).ok_or_else(|| wrong("a hash"))?;
    let is_rank = |rank: u32| of.size <= MOST_RANKS && rank < of.size;
    if !of.ranks.iter().map(|r| r.rank).chain(of.missing_ranks.iter().map(|m| m.rank)).all(is_rank) {
        return Err(wrong("a rank beyond its communicator"));
    }
    let mut by_function: BTreeMap<&str, BTreeMap<u64, Vec<u32>>> = BTreeMap::new();
    for rank in &of.ranks {
        if rank.collective_counts.len() > MOST_FUNCTIONS {
            return Err(RasError::TooLong);
        }
        for (name, operations) in &rank.collective_counts {
            let name = function(name).ok_or_else(|| wrong("a function's name"))?;
            by_function.entry(name).or_default().entry(*operations).or_default().push(rank.rank);
        }
    }
    let launched = by_function.into_iter().map(|(name, groups)| {
        let group = |(operations, listed): (u64, Vec<u32>)| Launched { operations, ranks: listed.len() as u32, listed };
        (name.to_owned(), groups.into_iter().map(group).collect())
    });
    let absent = |missing: &Missing| Absent {
        rank: missing.rank,
        pid: u32::try_from(missing.pid).ok().filter(|pid| *pid > 0),
        has_left: !missing.status.unresponsive && !missing.status.considered_dead,
    };
    let absent: Vec<Absent> = of.missing_ranks.iter().map(absent).collect();
    Ok(Communicator { hash, launched: launched.collect(), absent_ranks: absent.len() as u32, absent })
}
