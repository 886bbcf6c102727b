//! Where sockets and state are without a flag. Agent and commands agree on these.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Directory of this user's agent state: /var/lib/rankmesh for root, else $XDG_STATE_HOME/rankmesh
/// or ~/.local/state/rankmesh.
///
/// # Errors
/// No home directory is known.
pub fn state_dir() -> anyhow::Result<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/rankmesh"));
    }
    user_state_dir().context("give --identity DIR and --store FILE")
}

/// Directory of the state of a user's commands, root's too: $XDG_STATE_HOME/rankmesh or
/// ~/.local/state/rankmesh.
///
/// # Errors
/// No home directory is known.
pub fn user_state_dir() -> anyhow::Result<PathBuf> {
    if let Some(state) = absolute_env("XDG_STATE_HOME") {
        return Ok(state.join("rankmesh"));
    }
    match absolute_env("HOME") {
        Some(home) => Ok(home.join(".local/state/rankmesh")),
        None => bail!("neither $XDG_STATE_HOME nor $HOME is set"),
    }
}

/// The socket that agent and command line agree on without a flag.
pub fn default_socket() -> PathBuf {
    match absolute_env("XDG_RUNTIME_DIR") {
        Some(runtime) if !nix::unistd::geteuid().is_root() => runtime.join("rankmesh/agent.sock"),
        _ => Path::new("/run/rankmesh/agent.sock").to_owned(),
    }
}

fn absolute_env(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}
