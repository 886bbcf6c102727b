//! Resources of this process: file handles, threads, memory.

use std::fs;

use crate::figures::memory_bytes;

/// The resources of a process at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resources {
    /// Open file handles.
    pub files: usize,
    /// Threads.
    pub threads: usize,
    /// Resident memory, bytes: including freed memory that the allocator keeps.
    pub memory_bytes: u64,
    /// Memory that is allocated and not freed, bytes: glibc's `uordblks` and `hblkhd`
    /// (mallinfo2(3)).
    pub live_bytes: u64,
}

impl Resources {
    /// The present resources of this process.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn now() -> anyhow::Result<Self> {
        Ok(Self {
            files: fs::read_dir("/proc/self/fd")?.count(),
            threads: fs::read_dir("/proc/self/task")?.count(),
            memory_bytes: memory_bytes("self", "VmRSS:")?,
            live_bytes: live_bytes(),
        })
    }
}

fn live_bytes() -> u64 {
    // SAFETY: it takes no arguments and returns a structure of numbers by value.
    let heap = unsafe { libc::mallinfo2() };
    (heap.uordblks + heap.hblkhd) as u64
}

/// The targets of this process's file handles.
///
/// # Errors
/// `/proc` cannot be read.
pub fn handles() -> anyhow::Result<Vec<String>> {
    let mut handles: Vec<String> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .map(|target| target.display().to_string())
        .collect();
    handles.sort_unstable();
    Ok(handles)
}
