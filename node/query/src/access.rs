//! Roles of callers, and what each of them may not ask for.
//!
//! An owner may ask everything. A reader may ask, but not for what shows other users' processes
//! (`HIDDEN`) nor for the audit. Somebody who may see her own processes only ([`Access::Own`]) is
//! shown nothing else by the nodes (`store`'s `own_rows`). Does not own how a role is found: on the
//! local socket, or from a certificate, by the agent.

use model::{Failure, FailureKind};
use query_planner::Plan;

use crate::admission::Requester;

/// Columns that show other users' processes: table or view, column (`*`: all of them).
const HIDDEN: [(&str, &str); 30] = [
    ("processes", "exe"),
    ("processes", "comm"),
    ("processes", "container_id"),
    ("processes", "cgroup_path"),
    ("processes", "user"),
    ("processes", "uid"),
    ("processes", "pod"),
    ("processes", "tenant"),
    ("process_events", "comm"),
    ("offcpu", "next_comm"),
    ("offcpu", "next_pid"),
    ("events", "comm"),
    ("events", "details"),
    ("block_io", "comm"),
    ("requests", "route"),
    ("requests", "peer"),
    ("requests", "tenant"),
    ("request_stretches", "process"),
    ("request_stretches", "thread"),
    ("request_stretches", "taken_by_pid"),
    ("request_stretches", "taken_by"),
    ("request_stretches", "taken_by_tenant"),
    ("request_stretches", "tenant"),
    ("request_rollups", "route"),
    ("request_rollups", "tenant"),
    ("annotations", "uid"),
    ("stacks", "*"),
    ("audit", "*"),
    ("segments", "*"),
    ("segment_columns", "*"),
];

/// What is no user's: who asked what, and the packed form of all rows.
const INTERNAL: [(&str, &str); 3] = [("audit", "*"), ("segments", "*"), ("segment_columns", "*")];

/// What somebody may do here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    Owner,
    /// Ask, but not for other users' processes.
    Reader,
    /// Ask, and see only what processes of this user did, on every node.
    Own(u32),
}

impl Access {
    /// In one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Reader => "reader",
            Self::Own(_) => "own",
        }
    }

    /// The user to whose rows the answer is limited.
    #[must_use]
    pub fn viewer(self) -> Option<u32> {
        match self {
            Self::Own(uid) => Some(uid),
            Self::Owner | Self::Reader => None,
        }
    }

    /// Whether such a plan may be run.
    ///
    /// # Errors
    /// Names the column that is not allowed.
    pub fn allows(self, plan: &Plan) -> Result<(), Failure> {
        self.allow_reads(plan.fragments.iter().flat_map(|fragment| &fragment.reads))
    }

    fn allow_reads<'a>(self, reads: impl Iterator<Item = &'a (String, Vec<String>)>) -> Result<(), Failure> {
        let hidden: &[(&str, &str)] = match self {
            Self::Owner => return Ok(()),
            Self::Reader => &HIDDEN,
            // The nodes leave out others' rows.
            Self::Own(_) => &INTERNAL,
        };
        for (table, columns) in reads {
            for (hidden, column) in hidden.iter().filter(|(hidden, _)| table.eq_ignore_ascii_case(hidden)) {
                if *column == "*" || columns.iter().any(|read| read.eq_ignore_ascii_case(column)) {
                    let who = if self == Self::Reader { "readers" } else { "users" };
                    let why = format!(
                        "not allowed: {hidden}.{column} tells on other users; {who} may not ask for it (the agent's owner \
                         and root may, or let readers with `rankmesh up --readers-see-processes`)"
                    );
                    return Err(Failure::new(FailureKind::Forbidden, why));
                }
            }
        }
        Ok(())
    }
}

/// A caller of this agent.
#[derive(Debug, Clone)]
pub struct Caller {
    /// What may be asked.
    pub access: Access,
    /// The requester for admission.
    pub requester: Requester,
}

impl Caller {
    /// The agent itself, for its own work.
    #[must_use]
    pub fn agent() -> Self {
        Self { access: Access::Owner, requester: Requester::trusted("agent") }
    }

    /// The agent's own user, or root.
    #[must_use]
    pub fn owner() -> Self {
        Self { access: Access::Owner, requester: Requester::trusted("owner") }
    }

    /// Another person who is allowed to ask, by a name.
    #[must_use]
    pub fn guest(access: Access, name: impl Into<std::sync::Arc<str>>) -> Self {
        Self { access, requester: Requester::guest(name) }
    }

    /// For what the analysis of her question reads: she sees only its report.
    #[must_use]
    pub fn for_analysis(&self) -> Self {
        let access = match self.access {
            Access::Own(uid) => Access::Own(uid),
            Access::Owner | Access::Reader => Access::Owner,
        };
        Self { access, requester: self.requester.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(table: &str, columns: &[&str]) -> Vec<(String, Vec<String>)> {
        vec![(table.to_owned(), columns.iter().map(|column| (*column).to_owned()).collect())]
    }

    #[test]
    fn readers_do_not_see_other_users_processes_and_owners_do() {
        let hidden = [("processes", "exe"), ("Processes", "USER"), ("audit", "who"), ("offcpu", "next_comm")];
        for (table, column) in hidden {
            let reads = reads(table, &["pid", column]);
            let error = Access::Reader.allow_reads(reads.iter()).unwrap_err();
            assert!(error.kind == FailureKind::Forbidden && error.message.contains(&table.to_lowercase()), "{error}");
            Access::Owner.allow_reads(reads.iter()).unwrap();
        }
        for (table, column) in [("processes", "rank"), ("collectives", "pid"), ("offcpu", "duration_ns")] {
            Access::Reader.allow_reads(reads(table, &[column]).iter()).unwrap();
        }
        // Counting rows of the audit reads no column.
        assert!(Access::Reader.allow_reads(reads("audit", &[]).iter()).is_err());
    }
}
