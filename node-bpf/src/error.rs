//! What can keep capture from starting, each with what to do about it.

use std::path::PathBuf;

use crate::privileges::Capability;

/// Why capture could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not allowed to load BPF programs.
    #[error(
        "not allowed to load BPF programs ({} missing): run as root, or grant the binary its capabilities \
         (`rankmesh check` says how)",
        list(missing)
    )]
    NotPermitted {
        /// The capabilities that are missing.
        missing: Vec<Capability>,
    },
    /// The kernel carries no type information.
    #[error(
        "this kernel has no BTF (/sys/kernel/btf/vmlinux is missing): capture needs a kernel built with \
         CONFIG_DEBUG_INFO_BTF, as the distributions' kernels from 5.10 on are"
    )]
    NoBtf,
    /// Each program, map and link is an open file.
    #[error(
        "this process may have {limit} files open, and capture needs more: `ulimit -n 4096` before it starts (systemd: \
         LimitNOFILE=4096)"
    )]
    OpenFiles {
        /// RLIMIT_NOFILE as far as it could be raised.
        limit: u64,
    },
    /// The kernel refused the programs.
    #[error("the kernel refused the capture programs ({reason}); capture needs Linux 5.8 or later")]
    Load {
        /// libbpf's last words.
        reason: String,
    },
    /// The cgroup to capture cannot be used.
    #[error("cannot capture only cgroup {}: {reason}", path.display())]
    Cgroup {
        /// The directory asked for.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A library named in the configuration cannot be probed.
    #[error("cannot probe {}: {reason}", path.display())]
    Library {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A function or point that the user named cannot be probed.
    #[error("cannot probe {spec}: {reason}")]
    Probe {
        /// As typed.
        spec: String,
        /// Why, and what to do.
        reason: String,
    },
    /// Anything the operating system refused on the way.
    #[error("{doing}: {source}")]
    Os {
        /// What was attempted.
        doing: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

fn list(capabilities: &[Capability]) -> String {
    capabilities.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
