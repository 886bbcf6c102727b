//! Drops the privileges that the agent does not need, before any of its threads start: all
//! capabilities but those that capture uses (the table is `node_bpf::privileges`), the gaining of new
//! ones, and system calls that are never needed. Root's right to write into other users' directories is dropped, too, unless the
//! agent's own files are in one.

use std::path::{Path, PathBuf};

use nix::fcntl::AtFlags;
use nix::unistd::{AccessFlags, faccessat};
use node_bpf::Host;
use node_bpf::privileges::{self, Capability, DropError};

/// What this process is going to do.
#[derive(Debug, Default)]
pub struct Plan {
    /// Record with eBPF.
    pub capture: bool,
    /// Files and directories that it reads and writes, there already or to be made.
    pub files: Vec<PathBuf>,
    /// The port it binds.
    pub port: u16,
}

/// Ports below need CAP_NET_BIND_SERVICE.
const FIRST_FREE_PORT: u16 = 1024;
/// What a root process needs to work in another user's directory: to write there, and to make its
/// files that user's (SQLite does so with the files next to a database).
const OTHERS_FILES: [Capability; 2] = [Capability::CAP_DAC_OVERRIDE, Capability::CAP_CHOWN];

/// Keeps the capabilities that the plan needs and drops the rest, for good.
///
/// # Errors
/// Threads run already, or the kernel refused.
pub fn give_up_all_but(plan: &Plan) -> Result<(), DropError> {
    if plan.capture {
        node_bpf::prepare();
    }
    let had = privileges::effective();
    let mut keep = if plan.capture { privileges::kept(Host::examine().uprobe_multi) } else { vec![] };
    if (1..FIRST_FREE_PORT).contains(&plan.port) {
        keep.push(Capability::CAP_NET_BIND_SERVICE);
    }
    let needs = OTHERS_FILES.iter().any(|capability| had.contains(capability));
    let closed =
        if needs { privileges::with_only(&keep, || plan.files.iter().find(|file| !usable(file)))? } else { None };
    if let Some(file) = closed {
        tracing::info!(
            "keeping {}: {} is another user's (`chown` it and what lies in it to let that go)",
            names(&OTHERS_FILES),
            file.display()
        );
        keep.extend(OTHERS_FILES);
    }
    let left = privileges::keep_only(&keep)?;
    if left.len() < had.len() {
        let kept = if left.is_empty() { "none".to_owned() } else { names(&left) };
        tracing::info!("capabilities: {kept}; {} others given up", had.len() - left.len());
    }
    if let Err(error) = node_bpf::system_calls::refuse_unneeded() {
        tracing::info!(%error, "system calls that are never needed are not refused: the kernel takes no filter");
    }
    Ok(())
}

/// A program whose file carries capabilities (setcap) has them in every command, whichever user
/// runs it. The rights to read or change other users' files and processes are dropped at once:
/// [`node_bpf::privileges::only_user`].
///
/// # Errors
/// Threads run already, or the kernel refused.
pub fn give_up_what_a_file_gives() -> Result<(), DropError> {
    let Some(user) = privileges::only_user() else { return Ok(()) };
    let mut keep = privileges::kept_for(true, Some(user));
    keep.push(Capability::CAP_NET_BIND_SERVICE);
    if privileges::effective().iter().any(|capability| !keep.contains(capability)) {
        privileges::keep_only(&keep)?;
    }
    Ok(())
}

fn names(capabilities: &[Capability]) -> String {
    capabilities.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Whether this thread may read and write the file, what is next to it under the same name
/// ("trace.db-wal") or in it, and create what is not there yet.
fn usable(file: &Path) -> bool {
    let may = |path: &Path, what| faccessat(nix::fcntl::AT_FDCWD, path, what, AtFlags::AT_EACCESS).is_ok();
    let read_write = AccessFlags::R_OK | AccessFlags::W_OK;
    let change_in = AccessFlags::W_OK | AccessFlags::X_OK;
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    // the nearest directory there is: what is missing below will be made in it
    let Some(directory) = absolute.ancestors().skip(1).find(|parent| parent.exists()) else { return false };
    let within = std::fs::read_dir(&absolute).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = absolute.file_name().unwrap_or_default().as_encoded_bytes();
    let siblings = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let siblings = siblings.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(name)).map(|e| e.path());
    may(directory, change_in)
        && within
            .chain(siblings)
            .all(|path| may(&path, if path.is_dir() { read_write | change_in } else { read_write }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_lies_in_our_own_directory_is_usable_there_or_not() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(usable(&dir.path().join("trace.db")));
        assert!(usable(&dir.path().join("not/there/yet/trace.db")));
        fs::write(dir.path().join("trace.db-wal"), "").expect("a file");
        assert!(usable(&dir.path().join("trace.db")));
        assert!(usable(dir.path()));
    }

    #[test]
    fn what_the_kernel_forbids_is_not_usable() {
        assert!(!usable(Path::new("/proc/self/trace.db")), "nobody makes files in /proc");
    }
}
