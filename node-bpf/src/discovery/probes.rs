//! The probes in one file. Where a budget is to be kept, those at functions that are called often
//! are links of their own, which come and go together.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Instant;

use libbpf_rs::{Link, Object};

use crate::attach::{self, Links};
use crate::config::AttachMode;
use crate::content::Content;
use crate::hits::Slot;
use crate::symbols::Target;

/// They last as long as it.
#[derive(Debug, Default)]
pub(super) struct FileProbes {
    links: Links,
    frequent: Option<Frequent>,
    /// Where a user named the functions: the file, with what it was when it was read.
    read: Option<(fs::File, Content)>,
    /// Functions that the user named, as told, and where their hits are counted.
    hits: Option<(String, Slot)>,
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
        Self { links: links.into(), ..Self::default() }
    }
}

impl FileProbes {
    /// They were attached by what was read of this file, and last as long as it is not written to.
    pub(super) fn by(mut self, file: &fs::File, read: Option<Content>) -> Self {
        let file = file.try_clone().ok().filter(|_| !self.is_empty());
        self.read = file.zip(read);
        self
    }

    /// Whether the file was written to since it was read: code may have moved under the probes.
    pub(super) fn is_outdated(&self) -> bool {
        self.read.as_ref().is_some_and(|(file, read)| read.has_changed(file))
    }

    /// Its hits are counted there.
    pub(super) fn counted_at(mut self, shown: String, slot: Slot) -> Self {
        self.hits = Some((shown, slot));
        self
    }

    /// Takes them away, if they are hit too often; which, and how often that is in a second.
    pub(super) fn brake(&mut self, now: Instant) -> Option<(String, u64)> {
        let often = self.hits.as_mut()?.1.too_often(now)?;
        let (shown, _) = std::mem::take(self).hits?;
        Some((shown, often))
    }

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
