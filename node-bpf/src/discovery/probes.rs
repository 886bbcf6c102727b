//! The probes in one file. Where a budget is to be kept, those at functions that are called often
//! are links of their own, which come and go together.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use libbpf_rs::{Link, Object};

use crate::attach;
use crate::config::AttachMode;
use crate::symbols::Target;

/// They last as long as it.
#[derive(Debug, Default)]
pub(super) struct FileProbes {
    links: Vec<Link>,
    frequent: Option<Frequent>,
}

/// Probes at functions that are called often.
#[derive(Debug)]
struct Frequent {
    /// Kept open: by its path it may be another file later.
    file: fs::File,
    targets: Vec<Target>,
    links: Vec<Link>,
}

impl From<Vec<Link>> for FileProbes {
    fn from(links: Vec<Link>) -> Self {
        Self { links, frequent: None }
    }
}

impl FileProbes {
    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty() && self.frequent.is_none()
    }

    /// Adds probes that come and go, attached to these targets.
    pub(super) fn come_and_go(&mut self, file: fs::File, targets: Vec<Target>, links: Vec<Link>) {
        self.frequent = Some(Frequent { file, targets, links });
    }

    /// Takes those away that come and go.
    pub(super) fn go(&mut self) {
        self.frequent.iter_mut().for_each(|frequent| frequent.links.clear());
    }

    /// Puts them back.
    pub(super) fn come(&mut self, object: &Object, mode: AttachMode) -> libbpf_rs::Result<()> {
        let Some(Frequent { file, targets, links }) = &mut self.frequent else { return Ok(()) };
        if links.is_empty() {
            let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            *links = attach::attach(object, attach::CALL, mode, &path, targets)?.links;
        }
        Ok(())
    }
}
