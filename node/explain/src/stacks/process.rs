//! A process by its files in `/proc`: its identity, its threads and their states, its children, the
//! rights to read it.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use super::types::{StacksError, ThreadState};

/// One process and its program, identified for good: a pid alone can be given to another process
/// later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Process id in the reader's namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Address of its stack: another after each `exec`. 0 where the reader may not see it.
    pub stack_start: u64,
}

impl Identity {
    /// Of the process that has this pid now.
    pub fn of(pid: u32) -> Result<Identity, StacksError> {
        let stat = read_text(format!("/proc/{pid}/stat")).map_err(|_| StacksError::Ended { pid })?;
        let (state, fields) = stat_fields(&stat).ok_or(StacksError::Ended { pid })?;
        if matches!(state, 'Z' | 'X') {
            return Err(StacksError::Ended { pid });
        }
        let number = |index: usize| fields.get(index)?.parse().ok();
        let start_ticks = number(18).ok_or(StacksError::Ended { pid })?;
        Ok(Identity { pid, start_ticks, stack_start: number(24).unwrap_or(0) })
    }

    /// Whether this process still runs, and not another one with its pid.
    pub fn is_current(&self) -> bool {
        Identity::of(self.pid).is_ok_and(|now| now == *self)
    }
}

/// A file of `/proc`. Names in it are cut at 15 bytes, so they need not be whole characters.
fn read_text(path: impl AsRef<Path>) -> std::io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// State letter and the fields from the parent's pid on of a `stat` line; the name in between may
/// contain anything.
fn stat_fields(stat: &str) -> Option<(char, Vec<&str>)> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.collect()))
}

/// The scheduler's counts of a thread: equal ones around a read prove that the thread did not run
/// in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schedule {
    run_times: String,
}

impl Schedule {
    /// Times on a CPU so far, by `schedstat`. `None` where the thread is gone or the kernel does
    /// not count.
    pub(crate) fn of(pid: u32, tid: u32) -> Option<Schedule> {
        let run_times = read_text(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
        // A kernel without scheduler statistics always has "0 0 0", which proves nothing.
        (run_times.trim() != "0 0 0").then_some(Schedule { run_times })
    }
}

/// The state of a thread; `None` where it is gone.
pub(crate) fn thread_state(pid: u32, tid: u32) -> Option<ThreadState> {
    let stat = read_text(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    match stat_fields(&stat)?.0 {
        'R' => Some(ThreadState::Running),
        'S' | 'I' => Some(ThreadState::Blocked),
        'D' => Some(ThreadState::Uninterruptible),
        'T' | 't' => Some(ThreadState::Stopped),
        'Z' | 'X' | 'x' => None,
        _ => Some(ThreadState::Unknown),
    }
}

/// The kernel's name of a thread, without its line end.
pub(crate) fn thread_name(pid: u32, tid: u32) -> String {
    read_text(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default().trim_end_matches('\n').to_owned()
}

/// The kernel function that a thread sleeps in.
pub(crate) fn wait_channel(pid: u32, tid: u32) -> Option<String> {
    let name = read_text(format!("/proc/{pid}/task/{tid}/wchan")).ok()?;
    (!name.is_empty() && name != "0").then_some(name)
}

/// Stack pointer and program counter of a thread that sleeps in the kernel.
pub(crate) fn blocked_registers(pid: u32, tid: u32) -> Result<Option<(u64, u64)>, StacksError> {
    let line = match read_text(format!("/proc/{pid}/task/{tid}/syscall")) {
        Ok(line) => line,
        Err(error) => return Err(refused(pid, Errno::from_raw(error.raw_os_error().unwrap_or(0)))),
    };
    // "running", or a system call's number, six arguments, stack pointer, program counter; "-1 SP
    // PC" outside of a call.
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [.., sp, pc] = fields[..] else { return Ok(None) };
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    Ok(hex(sp).zip(hex(pc)))
}

/// Ids of the threads of a process, in the reader's namespace, ascending.
pub(crate) fn thread_ids(pid: u32) -> Result<Vec<u32>, StacksError> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| StacksError::Ended { pid })?;
    let mut tids: Vec<u32> = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable();
    Ok(tids)
}

/// Thread ids in the process's own pid namespace, with the reader's id of each.
#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadIds {
    by_own_id: HashMap<u32, u32>,
}

impl ThreadIds {
    /// Of the threads that the process has now. Costs a read a thread in a container, and only a
    /// listing elsewhere.
    pub(crate) fn of(pid: u32) -> Result<ThreadIds, StacksError> {
        let nested = own_thread_id(&format!("/proc/{pid}/status")) != Some(pid);
        let by_own_id = thread_ids(pid)?
            .into_iter()
            .map(|tid| {
                let own = nested.then(|| own_thread_id(&format!("/proc/{pid}/task/{tid}/status"))).flatten();
                (own.unwrap_or(tid), tid)
            })
            .collect();
        Ok(ThreadIds { by_own_id })
    }

    /// The reader's id of a thread with this id in the process's own namespace.
    pub(crate) fn outside(&self, own_id: u32) -> Option<u32> {
        self.by_own_id.get(&own_id).copied()
    }
}

/// The innermost of the ids of a `status` file: the one in the process's own namespace.
fn own_thread_id(status: &str) -> Option<u32> {
    let status = read_text(status).ok()?;
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_ascii_whitespace().last()?.parse().ok()
}

/// All descendants of some processes, nearest first; of the processes themselves those that descend
/// from another of them. Data loaders' workers are such.
pub fn descendants(pids: &[u32]) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = read_text(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, stat_fields(&stat)?.1.first()?.parse().ok()?))
        })
        .collect();
    let mut found: Vec<u32> = Vec::new();
    let mut at = 0;
    while let Some(parent) = pids.iter().chain(&found).nth(at).copied() {
        at += 1;
        let children = parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid);
        let new: Vec<u32> = children.filter(|pid| !found.contains(pid)).collect();
        found.extend(new);
    }
    found
}

/// The meaning of a refusal of the kernel: the process ended, or a right is missing, and which.
pub(crate) fn refused(pid: u32, errno: Errno) -> StacksError {
    match errno {
        Errno::ESRCH | Errno::ENOENT => StacksError::Ended { pid },
        Errno::EPERM | Errno::EACCES => StacksError::Denied { pid, missing: missing_right(pid) },
        other if Identity::of(pid).is_err() => {
            let _ = other;
            StacksError::Ended { pid }
        }
        other => StacksError::NotReadable { pid, reason: format!("reading its memory failed: {}", other.desc()) },
    }
}

fn missing_right(pid: u32) -> String {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = read_text("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    if effective & (1 << CAP_SYS_PTRACE) != 0 {
        return "CAP_SYS_PTRACE is there, so a security module, a seccomp filter or another user namespace forbids it"
            .into();
    }
    let yama = read_text("/proc/sys/kernel/yama/ptrace_scope").ok();
    match yama.as_deref().map(str::trim) {
        Some("3") => "kernel.yama.ptrace_scope is 3: no process may be read until the host is booted again".into(),
        Some(scope @ ("1" | "2")) if same_user(pid) => format!(
            "CAP_SYS_PTRACE is missing, and kernel.yama.ptrace_scope is {scope}, so being the same user is not enough"
        ),
        _ if same_user(pid) => "CAP_SYS_PTRACE is missing, and the process has changed its user or its capabilities \
             (it is not dumpable), so being the same user is not enough"
            .into(),
        _ => "CAP_SYS_PTRACE is missing, and the process belongs to another user".into(),
    }
}

fn same_user(pid: u32) -> bool {
    let own = user_of(std::process::id());
    own.is_some() && own == user_of(pid)
}

/// CPU time for the stacks of one process, once; those of most take some milliseconds.
pub(crate) const MOST_CPU: Duration = Duration::from_secs(2);
/// Note of a thread whose turn did not come within that.
pub(crate) const NO_TIME: &str = "not read: its process's other threads took all the time";

/// CPU time of the calling thread.
pub(crate) fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// The user that a process runs as.
pub(crate) fn user_of(pid: u32) -> Option<u32> {
    let status = read_text(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let (state, fields) = stat_fields("12 (a) S (b) R 1 2 3").unwrap();
        assert_eq!((state, fields), ('R', vec!["1", "2", "3"]));
        assert!(stat_fields("12 (a").is_none());
    }

    #[test]
    fn a_name_that_is_cut_within_a_character_hides_no_thread() {
        let (name, found) = std::thread::spawn(|| {
            let tid = nix::unistd::gettid().as_raw().unsigned_abs();
            let pid = std::process::id();
            fs::write(format!("/proc/{pid}/task/{tid}/comm"), b"Thread-9 (gr\xc3\xb6\xc3").unwrap();
            (thread_name(pid, tid), thread_state(pid, tid))
        })
        .join()
        .unwrap();
        assert_eq!(name, "Thread-9 (gr\u{f6}\u{fffd}");
        assert!(found.is_some());
    }

    #[test]
    fn this_process_is_itself_and_a_pid_that_is_not_given_has_ended() {
        let pid = std::process::id();
        assert!(Identity::of(pid).unwrap().is_current());
        let other = Identity { start_ticks: 1, ..Identity::of(pid).unwrap() };
        assert!(!other.is_current());
        assert_eq!(Identity::of(u32::MAX), Err(StacksError::Ended { pid: u32::MAX }));
        assert_eq!(ThreadIds::of(pid).unwrap().outside(pid), Some(pid));
    }

    #[test]
    fn children_are_found_at_any_depth() {
        let mut shell = std::process::Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let found = (0..200).find_map(|_| {
            let found = descendants(&[shell.id()]);
            if found.is_empty() {
                std::thread::sleep(std::time::Duration::from_millis(25));
            }
            (!found.is_empty()).then_some(found)
        });
        let own = descendants(&[std::process::id()]);
        let sleeper = found.unwrap()[0];
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(sleeper as i32), nix::sys::signal::Signal::SIGKILL);
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert!(own.contains(&shell.id()) && own.contains(&sleeper));
    }
}
