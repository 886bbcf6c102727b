//! `rankmesh up --replace`: ends the agent that listens on our socket, so that this one can take
//! over.
//!
//! The predecessor closes its store and sends its farewell; only then this agent opens the same
//! store and port. The gap in the recording is between two rows of `sessions`, and is in the
//! coverage of every answer over that time.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use ask::{SocketBackend, Target};
use model::LocalRequest;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::Pid;

/// An agent closes its store within milliseconds; a large one that is being written, in seconds.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Ends the agent that listens at `path`, if one does, and waits until it is gone. Returns how long
/// that took.
///
/// # Errors
/// The process that listens there is no agent, cannot be ended by this user, or does not end.
pub(super) fn predecessor(path: &Path) -> anyhow::Result<Option<Duration>> {
    let Ok(stream) = UnixStream::connect(path) else { return Ok(None) };
    let peer = getsockopt(&stream, sockopt::PeerCredentials).context("who listens on the socket")?;
    drop(stream);
    let pid = Pid::from_raw(peer.pid());
    if pid.as_raw() <= 1 || pid == Pid::this() {
        bail!("--replace: whoever listens on {} is in another pid namespace; end it there", path.display());
    }
    // Whatever it is: it is ended only if it answers as an agent does.
    Target::of(Arc::new(SocketBackend::at(Some(path.to_owned()))))
        .document(LocalRequest::Nodes)
        .with_context(|| format!("--replace: what listens on {} does not answer as an agent", path.display()))?;
    let born = born(pid).ok_or_else(|| anyhow!("--replace: process {pid} is gone; try again"))?;
    let began = Instant::now();
    kill(pid, Signal::SIGTERM).map_err(|error| match error {
        Errno::EPERM => anyhow!("--replace: process {pid} belongs to another user: run this as that user or as root"),
        other => anyhow!("--replace: ending process {pid}: {other}"),
    })?;
    while self::born(pid) == Some(born) {
        if began.elapsed() > PATIENCE {
            bail!(
                "--replace: process {pid} was told to end and has not within {} s; nothing else was done",
                PATIENCE.as_secs()
            );
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(Some(began.elapsed()))
}

/// When a process started, in the kernel's ticks; none where it has ended. Distinguishes it from a
/// later one with the same number.
fn born(pid: Pid) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything; after it, the state is field 3.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn nobody_to_replace_is_no_error_and_a_stranger_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("agent.sock");
        assert!(predecessor(&path).expect("nobody").is_none());
        let _listener = UnixListener::bind(&path).expect("a socket");
        let error = predecessor(&path).expect_err("this process is not ended");
        assert!(error.to_string().contains("pid namespace"), "{error}");
    }

    #[test]
    fn a_process_is_known_by_its_start() {
        let own = born(Pid::this()).expect("it runs");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
        assert!(born(pid).expect("it runs") >= own);
        child.kill().expect("killed");
        // A zombie has ended, even if its parent has not collected it.
        while born(pid).is_some() {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().expect("reaped");
    }
}
