//! What of requests is to be recorded, and what is.

use std::path::PathBuf;

use super::calls::RequestSpec;
use super::spec::ServeRule;

/// Whose requests are recorded, and what of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServingConfig {
    /// Servers by name.
    pub rules: Vec<ServeRule>,
    /// Functions whose calls are requests, too.
    pub requests: Vec<RequestSpec>,
    /// Also those that listen and have a library for models mapped; of these HTTP only.
    pub detect: bool,
    /// Record routes.
    pub paths: bool,
    /// Only processes of this cgroup v2 directory and its descendants.
    pub cgroup: Option<PathBuf>,
}

impl Default for ServingConfig {
    fn default() -> Self {
        ServingConfig { rules: vec![], requests: vec![], detect: true, paths: true, cgroup: None }
    }
}

/// A server whose requests are recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// Its process.
    pub pid: u32,
    /// The service's name.
    pub service: String,
    /// TCP ports that it listens on.
    pub ports: Vec<u16>,
}

/// What is recorded of requests, and what cannot be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServingStatus {
    /// Servers that run now.
    pub servers: Vec<Served>,
    /// The functions and pairs of points of `--request` that are probed now, each as `FILE: NAME`.
    pub functions: Vec<String>,
    /// What is not recorded, and why; each once.
    pub problems: Vec<String>,
}
