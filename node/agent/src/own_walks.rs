//! Loads the eBPF program that makes Python threads of this host walk their own frames while they
//! run, and copies the stacks of other threads, where the kernel permits it: `node_bpf` does it for
//! `explain`, which does not depend on it.

use std::time::Duration;

use explain::stacks::OwnWalks;
use node_bpf::PythonWalks;
use record::{ThreadWalk, WalkRequest};

/// Loaded when it is first needed.
#[derive(Debug, Default)]
pub(super) enum Walks {
    #[default]
    New,
    Loaded(Box<PythonWalks>),
    /// Why it cannot be.
    Not(String),
}

impl Walks {
    /// Loads the program where it is not.
    pub(super) fn load(&mut self) {
        if let Walks::New = self {
            *self = match PythonWalks::load() {
                Ok(walks) => Walks::Loaded(Box::new(walks)),
                Err(error) => Walks::Not(error.to_string()),
            };
        }
    }

    fn loaded(&mut self) -> Result<&mut PythonWalks, String> {
        self.load();
        match self {
            Walks::Loaded(walks) => Ok(walks),
            Walks::New => Err("not loaded".to_owned()),
            Walks::Not(why) => Err(why.clone()),
        }
    }
}

/// Why a thread cannot be asked.
fn refused(error: std::io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            format!("the kernel gives this agent no clock of a thread ({error}; sysctl kernel.perf_event_paranoid=2)")
        }
        _ => error.to_string(),
    }
}

impl OwnWalks for Walks {
    fn ask(&mut self, thread: &WalkRequest) -> Result<(), String> {
        self.loaded()?.ask(thread).map_err(refused)
    }

    fn ask_stack(&mut self, tid: u32) -> Result<(), String> {
        self.loaded()?.ask_stack(tid).map_err(refused)
    }

    fn take(&mut self, patience: Duration) -> Vec<ThreadWalk> {
        match self {
            Walks::Loaded(walks) => walks.take(patience),
            Walks::New | Walks::Not(_) => Vec::new(),
        }
    }

    fn end(&mut self) {
        if let Walks::Loaded(walks) = self {
            walks.end();
        }
    }
}

#[cfg(test)]
mod tests;
