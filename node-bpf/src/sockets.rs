//! The owner of a socket: from a socket's inode number to the followed process that has it open.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// A snapshot older than this may be taken anew when an inode is missing from it.
const REFRESH: Duration = Duration::from_secs(1);

/// The open sockets of the followed processes, as of the last look.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    owner: HashMap<u64, u32>,
    looked: Option<Instant>,
}

impl Sockets {
    /// The process among `pids` that has the socket open.
    pub(crate) fn owner(&mut self, inode: u64, pids: impl FnOnce() -> Vec<u32>) -> Option<u32> {
        if inode == 0 {
            return None;
        }
        if !self.owner.contains_key(&inode) && self.looked.is_none_or(|at| at.elapsed() >= REFRESH) {
            self.owner =
                pids().into_iter().flat_map(|pid| sockets_of(pid).into_iter().map(move |i| (i, pid))).collect();
            self.looked = Some(Instant::now());
        }
        self.owner.get(&inode).copied()
    }
}

fn sockets_of(pid: u32) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return vec![];
    };
    entries
        .filter_map(|entry| {
            let target = fs::read_link(entry.ok()?.path()).ok()?;
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn our_own_socket_is_ours() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
        let inode = fs::metadata(format!("/proc/self/fd/{fd}")).unwrap().ino();
        let mut sockets = Sockets::default();
        assert_eq!(sockets.owner(inode, || vec![std::process::id()]), Some(std::process::id()));
        assert_eq!(sockets.owner(inode + 1_000_000, Vec::new), None);
    }
}
