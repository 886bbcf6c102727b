//! The activity of a process that makes no progress: the state of its threads, in one byte.
//!
//! Pure. The agent decides which processes are looked at, and how; `verdicts::hang` draws the
//! conclusions.

use serde::{Deserialize, Serialize};

/// The activity of a process's threads: the first of these variants that a thread is in, but
/// stopped and traced only where all threads are.
///
/// The order of variants is that of their numbers in digests and answers: add at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// All threads are stopped by a signal (SIGSTOP, SIGTSTP, a frozen job; state T).
    Stopped,
    /// All threads are stopped, by a debugger (state t).
    Traced,
    /// A thread waits uninterruptibly (state D); in what is not known, or none of those below.
    Uninterruptible,
    /// Uninterruptibly for a block device or a local file system.
    BlockIo,
    /// Uninterruptibly for a network file system.
    NetworkFs,
    /// Uninterruptibly for memory.
    Memory,
    /// Uninterruptibly for a lock in the kernel.
    KernelLock,
    /// A thread runs, or could.
    Running,
    /// All threads sleep.
    Sleeping,
    /// It has ended.
    Ended,
}

impl Activity {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Stopped,
        Self::Traced,
        Self::Uninterruptible,
        Self::BlockIo,
        Self::NetworkFs,
        Self::Memory,
        Self::KernelLock,
        Self::Running,
        Self::Sleeping,
        Self::Ended,
    ];

    /// Its number in digests.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The activity of a number; none where this version does not know it.
    #[must_use]
    pub fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Of the states of all threads of a process, as the kernel writes them (proc(5)), with the
    /// kernel function in which a thread in state D waits where that is known. None where there is
    /// no thread.
    #[must_use]
    pub fn of_threads<'a>(threads: impl IntoIterator<Item = (char, Option<&'a str>)>) -> Option<Self> {
        let (mut halted, mut moving, mut ended) = (None::<Self>, None::<Self>, false);
        for (state, channel) in threads {
            let (kind, one) = match state {
                'T' => (&mut halted, Self::Stopped),
                't' => (&mut halted, Self::Traced),
                'D' => (&mut moving, channel.map_or(Self::Uninterruptible, wait_of)),
                'R' => (&mut moving, Self::Running),
                'Z' | 'X' | 'x' => {
                    // Proves nothing about the other threads.
                    ended = true;
                    continue;
                }
                _ => (&mut moving, Self::Sleeping),
            };
            *kind = Some(kind.map_or(one, |before| before.min(one)));
        }
        moving.or(halted).or(ended.then_some(Self::Ended))
    }

    /// Whether it cannot continue by itself, whatever others do.
    #[must_use]
    pub fn is_halted(self) -> bool {
        matches!(self, Self::Stopped | Self::Traced)
    }

    /// As text, after "is".
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Stopped => "stopped (SIGSTOP or its like)",
            Self::Traced => "stopped by a debugger",
            Self::Uninterruptible => "in an uninterruptible wait (state D)",
            Self::BlockIo => "waiting for a disk (state D)",
            Self::NetworkFs => "waiting for a network file system (state D)",
            Self::Memory => "waiting for memory (state D)",
            Self::KernelLock => "waiting for a lock in the kernel (state D)",
            Self::Running => "running",
            Self::Sleeping => "asleep",
            Self::Ended => "no more",
        }
    }
}

/// What a thread waits for in a kernel function. The names are those of /proc/PID/wchan; a part of
/// the name is enough, since functions come and go with versions.
fn wait_of(channel: &str) -> Activity {
    let has = |parts: &[&str]| parts.iter().any(|part| channel.contains(part));
    if has(&["nfs", "rpc_", "cifs", "smb", "ceph", "lustre", "ptlrpc", "cl_", "osc_", "gpfs", "cxi", "fuse"]) {
        Activity::NetworkFs
    } else if has(&["reclaim", "mem_cgroup", "throttle_direct", "balance_dirty", "swap", "compact"]) {
        Activity::Memory
    } else if has(&[
        "io_schedule",
        "folio_wait",
        "wait_on_page",
        "blk_",
        "bio_",
        "submit_bio",
        "wait_on_buffer",
        "jbd2",
        "ext4",
        "xfs",
    ]) {
        Activity::BlockIo
    } else if has(&["mutex", "rwsem", "down_", "rtnl", "percpu_"]) {
        Activity::KernelLock
    } else {
        Activity::Uninterruptible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(states: &str) -> Option<Activity> {
        Activity::of_threads(states.chars().map(|state| (state, None)))
    }

    #[test]
    fn a_process_is_stopped_only_where_all_its_threads_are() {
        assert_eq!(of(""), None);
        assert_eq!(of("TTT"), Some(Activity::Stopped));
        assert_eq!(of("ttt"), Some(Activity::Traced));
        assert_eq!(of("tTt"), Some(Activity::Stopped));
        assert_eq!((of("TSR"), of("STT")), (Some(Activity::Running), Some(Activity::Sleeping)));
        assert_eq!((of("SSS"), of("SRD")), (Some(Activity::Sleeping), Some(Activity::Uninterruptible)));
        // The first thread may have ended while others go on (pthread_exit in main).
        assert_eq!(
            (of("ZS"), of("ZT"), of("Z")),
            (Some(Activity::Sleeping), Some(Activity::Stopped), Some(Activity::Ended))
        );
        assert_eq!(of("TZ"), Some(Activity::Stopped));
    }

    #[test]
    fn what_a_thread_waits_for_follows_from_where_it_waits() {
        let at = |channel| Activity::of_threads([('S', None), ('D', Some(channel))]);
        assert_eq!(at("io_schedule"), Some(Activity::BlockIo));
        assert_eq!(at("rpc_wait_bit_killable"), Some(Activity::NetworkFs));
        assert_eq!(at("try_to_free_mem_cgroup_pages"), Some(Activity::Memory));
        assert_eq!(at("rwsem_down_read_slowpath"), Some(Activity::KernelLock));
        assert_eq!(at("0"), Some(Activity::Uninterruptible));
    }

    #[test]
    fn numbers_are_those_of_the_order() {
        for (number, activity) in Activity::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(activity.number()), number);
            assert_eq!(Activity::of_number(activity.number()), Some(activity));
        }
        assert_eq!(Activity::of_number(Activity::ALL.len() as u8), None);
    }
}
