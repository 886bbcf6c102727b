//! Following processes: which of them are wanted, and their entries in the programs' maps.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use libbpf_rs::{ErrorKind, MapCore, MapFlags};

use super::Discovery;
use super::attaching::Probed;
use crate::config::AttachMode;
use crate::maps;
use crate::process::Process;
use crate::procfs::{self, cgroup_path};
use crate::rooms::NoRoom;
use crate::signals::kernel_names;
use crate::wire;

impl Discovery {
    pub(super) fn wanted(&self, pid: u32) -> bool {
        if self.only_user.is_some_and(|user| !procfs::is_all_of_user(pid, user)) {
            return false;
        }
        let Some(cgroup) = &self.cgroup else {
            return true;
        };
        let text = procfs::read(pid, "cgroup").unwrap_or_default();
        cgroup.contains(cgroup_path(&String::from_utf8_lossy(&text)))
    }

    pub(super) fn follow(&mut self, pid: u32, mpi: bool) {
        // It may have ended, or begun another program, since its mappings were read: the programs
        // have reported that already, and would not undo a later entry. From here on they do.
        match self.enter(pid) {
            Entered::Refused => return,
            Entered::New if !self.uses_library(pid) => return self.unfollow(pid),
            Entered::New | Entered::Known => {}
        }
        if let Some(process) = self.made_known(pid)
            && mpi
        {
            self.shared.meet(process, false);
        }
    }

    /// Follows a process that serves, whatever it has mapped.
    pub(crate) fn follow_server(&mut self, pid: u32) {
        // a process that has ended meanwhile is found by a sweep
        if self.wanted(pid) && self.enter(pid) != Entered::Refused {
            self.made_known(pid);
        }
    }

    /// Enters a process into the programs' maps. (Only where it is not there: the programs keep more
    /// in the value.)
    fn enter(&mut self, pid: u32) -> Entered {
        let Some(user) = procfs::answers_for(pid) else { return Entered::Refused };
        if let Err(NoRoom { held }) = self.rooms.enter(pid, user) {
            let why = format!(
                "user {user} has {held} processes that are followed, as many as all users leave free: further \
                 ones are not followed"
            );
            self.shared.problem(Some(user), &why);
            return Entered::Refused;
        }
        let new = self.tracked.update(&pid.to_ne_bytes(), &wire::TRACKED.to_ne_bytes(), MapFlags::NO_EXIST).is_ok();
        self.keep_of_main_thread(pid);
        if new { Entered::New } else { Entered::Known }
    }

    /// A followed process, reported where it is new; none where it has ended.
    fn made_known(&self, pid: u32) -> Option<Arc<Process>> {
        kernel_names::read_ahead();
        let (process, new) = self.shared.processes.look(pid)?;
        if new {
            self.shared.report(&process);
        }
        Some(process)
    }

    /// Whether a process has a library mapped that makes it one to be followed.
    fn uses_library(&self, pid: u32) -> bool {
        let text = procfs::read(pid, "maps").unwrap_or_default();
        maps::mappings(&text).filter(|mapping| mapping.executable).any(|mapping| {
            let probed = self.probed_in(Path::new(OsStr::from_bytes(mapping.path)), mapping.file_name());
            probed.into_iter().any(Probed::makes_rank)
        })
    }

    /// Undoes `follow`, unless the process has made a call since.
    fn unfollow(&mut self, pid: u32) {
        let key = pid.to_ne_bytes();
        let value = self.tracked.lookup(&key, MapFlags::ANY).ok().flatten();
        if value.is_some_and(|value| value == wire::TRACKED.to_ne_bytes()) {
            let _ = self.tracked.delete(&key); // gone already is as good
            self.rooms.leave(pid);
            if let Some(thread) = self.main_thread(pid) {
                let _ = self.threads.delete(&thread.key());
            }
        }
    }

    /// The key of a process's main thread in the map of threads.
    fn main_thread(&self, pid: u32) -> Option<MainThread> {
        if self.mode == AttachMode::Stub {
            return Some(MainThread::Number(pid));
        }
        task_of(pid).map(MainThread::Descriptor)
    }

    /// Creates the programs' state of the main thread before its first call. Otherwise they do the
    /// same, only more slowly.
    fn keep_of_main_thread(&self, pid: u32) {
        let Some(thread) = self.main_thread(pid) else { return };
        let state = wire::followed_thread(self.threads.value_size() as usize);
        let kept = self.threads.update(&thread.key(), &state, MapFlags::NO_EXIST);
        if let Err(error) = kept
            && error.kind() != ErrorKind::AlreadyExists
        {
            tracing::debug!(pid, %error, "its main thread's switches cost more");
        }
    }
}

/// What became of entering a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entered {
    New,
    Known,
    /// It has ended, or its user has too many.
    Refused,
}

/// A process's main thread, as a key of the map `threads` (`bpf/features.bpf.h`).
enum MainThread {
    /// Of task storage: a descriptor, which is open as long as the key is used.
    Descriptor(OwnedFd),
    /// Of the hash map on old kernels.
    Number(u32),
}

impl MainThread {
    fn key(&self) -> [u8; 4] {
        match self {
            MainThread::Descriptor(task) => task.as_raw_fd().to_ne_bytes(),
            MainThread::Number(tid) => tid.to_ne_bytes(),
        }
    }
}

/// A descriptor of a process's main thread.
fn task_of(pid: u32) -> Option<OwnedFd> {
    // SAFETY: takes no pointers; the result is checked.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let descriptor = i32::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0)?;
    // SAFETY: the descriptor is new and nobody else's.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
