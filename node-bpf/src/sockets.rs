//! The owner of a socket: from a socket's inode number to the followed process that has it open.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// Looks take at most one part in so many of the time: where an inode is missing, the next one
/// comes after as many times as long as the last one took.
const LOOKS_ONE_IN: u32 = 100;
/// The shortest time between two looks.
const SHORTEST: Duration = Duration::from_millis(20);

/// The open sockets of the followed processes, as of the last look.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    /// The processes that have a socket open: those that a process begins inherit its sockets, and
    /// end before it as a rule.
    holders: HashMap<u64, Vec<u32>>,
    next_look: Option<Instant>,
}

impl Sockets {
    /// The first of `pids` (in their order) that has the socket open and is still `known`.
    pub(crate) fn owner<P>(
        &mut self,
        inode: u64,
        pids: impl FnOnce() -> Vec<u32>,
        known: impl Fn(u32) -> Option<P>,
    ) -> Option<P> {
        if inode == 0 {
            return None;
        }
        let owner = self.holder(inode, &known);
        if owner.is_some() || self.next_look.is_some_and(|at| Instant::now() < at) {
            return owner;
        }
        self.look(pids());
        self.holder(inode, &known)
    }

    fn holder<P>(&self, inode: u64, known: impl Fn(u32) -> Option<P>) -> Option<P> {
        self.holders.get(&inode)?.iter().find_map(|pid| known(*pid))
    }

    fn look(&mut self, pids: Vec<u32>) {
        let from = Instant::now();
        self.holders.clear();
        for pid in pids {
            for inode in sockets_of(pid) {
                self.holders.entry(inode).or_default().push(pid);
            }
        }
        self.next_look = Some(Instant::now() + (from.elapsed() * LOOKS_ONE_IN).max(SHORTEST));
    }
}

/// The inodes of the sockets that a process has open.
pub(crate) fn sockets_of(pid: u32) -> Vec<u64> {
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
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn inode_of(socket: &impl AsRawFd) -> u64 {
        fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap().ino()
    }

    #[test]
    fn our_own_socket_is_ours() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let inode = inode_of(&socket);
        let own = std::process::id();
        let mut sockets = Sockets::default();
        assert_eq!(sockets.owner(inode, || vec![own], Some), Some(own));
        assert_eq!(sockets.owner(inode + 1_000_000, Vec::new, Some), None);
    }

    #[test]
    fn a_socket_stays_its_process_s_when_one_that_inherited_it_has_ended() {
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let inode = inode_of(&socket);
        let input = std::os::fd::OwnedFd::from(socket.try_clone().unwrap());
        let mut heir = std::process::Command::new("sleep").arg("60").stdin(input).spawn().unwrap();
        let [own, heir_pid] = [std::process::id(), heir.id()];
        let mut sockets = Sockets::default();
        let both = || vec![heir_pid, own];
        assert_eq!(sockets.owner(inode, both, Some), Some(heir_pid));
        assert_eq!(sockets.owner(inode, both, |pid| (pid == own).then_some(pid)), Some(own));
        heir.kill().unwrap();
        heir.wait().unwrap();
    }

    #[test]
    fn a_socket_of_a_process_that_is_not_known_yet_is_found_a_few_milliseconds_later() {
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let inode = inode_of(&socket);
        let own = std::process::id();
        let mut sockets = Sockets::default();
        assert_eq!(sockets.owner(inode, Vec::new, Some), None);
        let from = Instant::now();
        while sockets.owner(inode, || vec![own], Some).is_none() {
            assert!(from.elapsed() < Duration::from_secs(10), "it is never looked for again");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(from.elapsed() >= Duration::from_millis(10), "a look at most every 20 ms: {:?}", from.elapsed());
    }
}
