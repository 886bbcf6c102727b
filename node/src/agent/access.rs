//! Who may ask this agent what, on the local socket.
//!
//! On the socket the kernel says who is there (SO_PEERCRED). The agent's own user and root are owners and may ask
//! everything. Users and groups that the agent was told of are readers: they may ask, but not for what tells on other users'
//! processes ([`HIDDEN`]) nor for the audit. Everybody else may ask about her own processes, where the agent's owner wants that
//! ([`Access::Own`]): the nodes then show nothing else (`store::own_rows`). Over the mesh roles are `mesh::serve`'s.
//! Environments and command lines are not stored at all, so nobody can ask for them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use nix::unistd::{Gid, Group, Uid, User, chown};
use query_planner::Plan;
use tokio::net::unix::UCred;

use crate::query::admission::Asker;

/// Columns that tell on other users' processes: table or view, column (`*`: all of them).
const HIDDEN: [(&str, &str); 16] = [
    ("processes", "exe"),
    ("processes", "comm"),
    ("processes", "container_id"),
    ("processes", "cgroup_path"),
    ("processes", "user"),
    ("processes", "uid"),
    ("processes", "pod"),
    ("process_events", "comm"),
    ("offcpu", "next_comm"),
    ("offcpu", "next_pid"),
    ("events", "comm"),
    ("events", "details"),
    ("block_io", "comm"),
    ("audit", "*"),
    ("segments", "*"),
    ("segment_columns", "*"),
];

/// What is no user's: who asked what, and the packed form of all rows.
const NOBODYS: [(&str, &str); 3] = [("audit", "*"), ("segments", "*"), ("segment_columns", "*")];

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

    /// The user whose rows alone count.
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
    /// Which column is not to be asked for.
    pub fn allows(self, plan: &Plan) -> Result<(), String> {
        self.allow_reads(plan.parts.iter().flat_map(|part| &part.reads))
    }

    fn allow_reads<'a>(self, reads: impl Iterator<Item = &'a (String, Vec<String>)>) -> Result<(), String> {
        let hidden: &[(&str, &str)] = match self {
            Self::Owner => return Ok(()),
            Self::Reader => &HIDDEN,
            // The nodes leave out others' rows.
            Self::Own(_) => &NOBODYS,
        };
        for (table, columns) in reads {
            for (hidden, column) in hidden.iter().filter(|(hidden, _)| table.eq_ignore_ascii_case(hidden)) {
                if *column == "*" || columns.iter().any(|read| read.eq_ignore_ascii_case(column)) {
                    return Err(format!(
                        "not allowed: {hidden}.{column} tells on other users; {} may not ask for it (the agent's owner \
                         and root may, or let readers with `rankmesh up --readers-see-processes`)",
                        if self == Self::Reader { "readers" } else { "users" }
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Somebody who asks this agent.
#[derive(Debug, Clone)]
pub struct Caller {
    /// What may be asked.
    pub access: Access,
    /// Who waits for a turn.
    pub asker: Asker,
}

impl Caller {
    /// The agent itself, for its own work.
    #[must_use]
    pub fn agent() -> Self {
        Self { access: Access::Owner, asker: Asker::of_the_house("agent") }
    }

    /// The agent's own user, or root.
    #[must_use]
    pub fn owner() -> Self {
        Self { access: Access::Owner, asker: Asker::of_the_house("owner") }
    }

    /// Somebody else whom it lets ask, by a name of her own.
    #[must_use]
    pub fn guest(access: Access, name: impl Into<String>) -> Self {
        Self { access, asker: Asker::guest(name) }
    }

    /// What the analysis of her question reads: it shows of it what its report says.
    #[must_use]
    pub(crate) fn of_analysis(&self) -> Self {
        let access = match self.access {
            Access::Own(uid) => Access::Own(uid),
            Access::Owner | Access::Reader => Access::Owner,
        };
        Self { access, asker: self.asker.clone() }
    }
}

/// Who may use the socket.
#[derive(Debug, Clone, Default)]
pub struct SocketAccess {
    /// Readers by name or number.
    pub users: Vec<String>,
    /// Their groups, by name or number.
    pub groups: Vec<String>,
    /// Readers see what owners see, the audit included.
    pub readers_see_processes: bool,
    /// Every other user may ask, and sees the rows of her own processes.
    pub users_see_own: bool,
}

/// The same, looked up.
#[derive(Debug)]
pub(super) struct Readers {
    own: Uid,
    users: Vec<Uid>,
    groups: Vec<Gid>,
    see_processes: bool,
    see_own: bool,
}

impl Readers {
    /// Looks names up.
    pub(super) fn of(access: &SocketAccess) -> anyhow::Result<Self> {
        let user = |name: &String| match name.parse() {
            Ok(number) => Ok(Uid::from_raw(number)),
            Err(_) => User::from_name(name)?.map(|user| user.uid).with_context(|| format!("there is no user '{name}'")),
        };
        let group = |name: &String| match name.parse() {
            Ok(number) => Ok(Gid::from_raw(number)),
            Err(_) => {
                Group::from_name(name)?.map(|group| group.gid).with_context(|| format!("there is no group '{name}'"))
            }
        };
        Ok(Self {
            own: Uid::effective(),
            users: access.users.iter().map(user).collect::<anyhow::Result<_>>().context("--allow-user")?,
            groups: access.groups.iter().map(group).collect::<anyhow::Result<_>>().context("--allow-group")?,
            see_processes: access.readers_see_processes,
            see_own: access.users_see_own,
        })
    }

    /// The mode of the socket: others can only connect to what is open to more than its owner.
    pub(super) fn open_socket(&self, path: &Path) -> anyhow::Result<()> {
        let mode = match (self.users.is_empty(), self.groups.as_slice()) {
            _ if self.see_own => 0o666,
            (true, []) => 0o600,
            (true, [group]) if chown(path, None, Some(*group)).is_ok() => 0o660,
            // Whoever connects is judged by the kernel's word for who it is.
            _ => 0o666,
        };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        if mode != 0o600
            && let Some(directory) = path.parent()
        {
            let private = std::fs::metadata(directory).is_ok_and(|found| found.permissions().mode() & 0o011 == 0);
            if private {
                tracing::warn!(
                    "{} is closed to other users: readers cannot reach the socket in it (`chmod 711` it, or give --socket)",
                    directory.display()
                );
            }
        }
        Ok(())
    }

    /// Whether the process at the other end is the agent's own user's, or root's.
    pub(super) fn owns(&self, peer: &UCred) -> bool {
        let uid = Uid::from_raw(peer.uid());
        uid == self.own || uid.is_root()
    }

    /// What the process at the other end may do; `None`: nothing.
    pub(super) fn access(&self, peer: &UCred) -> Option<Access> {
        if self.owns(peer) {
            return Some(Access::Owner);
        }
        let uid = Uid::from_raw(peer.uid());
        let reads = self.users.contains(&uid) || (!self.groups.is_empty() && self.in_group(uid, peer.gid()));
        match (reads, self.see_processes) {
            (true, true) => Some(Access::Owner),
            (true, false) => Some(Access::Reader),
            (false, _) => self.see_own.then_some(Access::Own(peer.uid())),
        }
    }

    /// By its own group or by the group database. (The kernel does not tell the other groups of a peer.)
    fn in_group(&self, uid: Uid, gid: u32) -> bool {
        if self.groups.contains(&Gid::from_raw(gid)) {
            return true;
        }
        let Ok(Some(user)) = User::from_uid(uid) else { return false };
        self.groups.contains(&user.gid)
            || self
                .groups
                .iter()
                .any(|group| Group::from_gid(*group).ok().flatten().is_some_and(|group| group.mem.contains(&user.name)))
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
            assert!(error.contains("not allowed") && error.contains(&table.to_lowercase()), "{error}");
            Access::Owner.allow_reads(reads.iter()).unwrap();
        }
        for (table, column) in [("processes", "rank"), ("collectives", "pid"), ("offcpu", "duration_ns")] {
            Access::Reader.allow_reads(reads(table, &[column]).iter()).unwrap();
        }
        // Counting rows of the audit reads no column.
        assert!(Access::Reader.allow_reads(reads("audit", &[]).iter()).is_err());
    }

    #[test]
    fn names_are_looked_up() {
        let access = |user: &str, group: &str| SocketAccess {
            users: vec![user.to_owned()],
            groups: vec![group.to_owned()],
            ..SocketAccess::default()
        };
        Readers::of(&access("root", "0")).unwrap();
        let error = Readers::of(&access("nobody-of-this-name", "0")).unwrap_err();
        assert!(format!("{error:#}").contains("no user"), "{error:#}");
        assert!(Readers::of(&access("0", "no-group-of-this-name")).is_err());
    }
}
