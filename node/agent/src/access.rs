//! Who may ask this agent what, on the local socket.
//!
//! On the socket the kernel identifies the caller (SO_PEERCRED). The agent's own user and root are
//! owners and may ask everything. Users and groups that the agent was configured with are readers:
//! they may ask, but neither for what reveals other users' processes nor for the audit. Everybody
//! else may ask about her own processes, where the agent's owner wants that ([`Access::Own`]).
//! `query::access` knows what each role may not ask; over the mesh `mesh::serve` handles roles.
//! Environments and command lines are not stored at all, so nobody can ask for them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use nix::unistd::{Gid, Group, Uid, User, chown};
use query::access::Access;
use tokio::net::unix::UCred;

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

/// The same with names resolved to numbers.
#[derive(Debug)]
pub(super) struct Readers {
    own: Uid,
    users: Vec<Uid>,
    groups: Vec<Gid>,
    see_processes: bool,
    see_own: bool,
}

impl Readers {
    /// Resolves names to numbers.
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

    /// The mode of the socket file: other users can connect only where somebody besides the owner
    /// may ask.
    pub(super) fn open_socket(&self, path: &Path) -> anyhow::Result<()> {
        let mode = match (self.users.is_empty(), self.groups.as_slice()) {
            _ if self.see_own => 0o666,
            (true, []) => 0o600,
            (true, [group]) if chown(path, None, Some(*group)).is_ok() => 0o660,
            // Every connection is judged by the credentials that the kernel reports.
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

    /// By its own group or by the group database. (The kernel does not give the other groups of a
    /// peer.)
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
