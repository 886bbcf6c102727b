//! Who may ask this agent what, on the local socket.
//!
//! On the socket the kernel says who is there (SO_PEERCRED). The agent's own user and root are owners and may ask
//! everything. Users and groups that the agent was told of are readers: they may ask, but not for what tells on other users'
//! processes ([`HIDDEN`]) nor for the audit. Over the mesh roles are `mesh::serve`'s.
//! Environments and command lines are not stored at all, so nobody can ask for them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use nix::unistd::{Gid, Group, Uid, User, chown};
use query_planner::Plan;
use tokio::net::unix::UCred;

/// Columns that tell on other users' processes: table or view, column (`*`: all of them).
const HIDDEN: [(&str, &str); 14] = [
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
];

/// What somebody may do here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    Owner,
    /// Ask, but not for other users' processes.
    Reader,
}

impl Access {
    /// In one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Reader => "reader",
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
        if self == Self::Owner {
            return Ok(());
        }
        for (table, columns) in reads {
            for (hidden, column) in HIDDEN.iter().filter(|(hidden, _)| table.eq_ignore_ascii_case(hidden)) {
                if *column == "*" || columns.iter().any(|read| read.eq_ignore_ascii_case(column)) {
                    return Err(format!(
                        "not allowed: {hidden}.{column} tells on other users; readers may not ask for it (the agent's owner \
                         and root may, or let readers with `rankmesh up --readers-see-processes`)"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Who may use the socket.
#[derive(Debug, Clone, Default)]
pub struct SocketAccess {
    /// Readers by name or number.
    pub users: Vec<String>,
    /// Their groups, by name or number.
    pub groups: Vec<String>,
    /// Readers see what owners see, except the audit's table.
    pub readers_see_processes: bool,
}

/// The same, looked up.
#[derive(Debug)]
pub(super) struct Readers {
    own: Uid,
    users: Vec<Uid>,
    groups: Vec<Gid>,
    see_processes: bool,
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
        })
    }

    /// The mode of the socket: others can only connect to what is open to more than its owner.
    pub(super) fn open_socket(&self, path: &Path) -> anyhow::Result<()> {
        let mode = match (self.users.is_empty(), self.groups.as_slice()) {
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

    /// What the process at the other end may do; `None`: nothing.
    pub(super) fn access(&self, peer: &UCred) -> Option<Access> {
        let uid = Uid::from_raw(peer.uid());
        if uid == self.own || uid.is_root() {
            return Some(Access::Owner);
        }
        let reads = self.users.contains(&uid) || (!self.groups.is_empty() && self.in_group(uid, peer.gid()));
        reads.then_some(if self.see_processes { Access::Owner } else { Access::Reader })
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
            readers_see_processes: false,
        };
        Readers::of(&access("root", "0")).unwrap();
        let error = Readers::of(&access("nobody-of-this-name", "0")).unwrap_err();
        assert!(format!("{error:#}").contains("no user"), "{error:#}");
        assert!(Readers::of(&access("0", "no-group-of-this-name")).is_err());
    }
}
