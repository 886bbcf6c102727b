//! What this process holds: file handles, threads, memory.

use std::fs;

/// What a process holds at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Open file handles.
    pub files: usize,
    /// Threads.
    pub threads: usize,
    /// Resident memory, bytes.
    pub memory_bytes: u64,
}

impl Held {
    /// What this process holds now.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn now() -> anyhow::Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
        };
        Ok(Self {
            files: fs::read_dir("/proc/self/fd")?.count(),
            threads: usize::try_from(field("Threads:"))?,
            memory_bytes: field("VmRSS:") * 1024,
        })
    }
}

/// What this process's file handles lead to.
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
