//! Attaching probes to files: ahead of time by path or the loader's cache, or when a process has
//! one mapped. Each file once; what cannot be attached is reported and tried a few times.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::Link;

use super::Discovery;
use crate::attach::{self, Attached};
use crate::cuda;
use crate::cuda::functions::Api;
use crate::error::Error;
use crate::gloo;
use crate::libraries::library_of;
use crate::maps;
use crate::shared::AttachedFile;
use crate::symbol_probes;
use crate::symbols;
use crate::verbs;
use record::Library;

/// A kind of probes in a file. One file may have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Probed {
    Collectives(Library),
    Cuda(Api),
    Verbs,
    /// The user's probe of this index.
    Named(usize),
}

impl Probed {
    fn name(self) -> &'static str {
        match self {
            Probed::Collectives(library) => library.name(),
            Probed::Cuda(api) => api.source(),
            Probed::Verbs => "verbs",
            Probed::Named(_) => "symbol",
        }
    }

    /// Whether a process that has it mapped is followed at once. One with a library of the user's
    /// choice is followed when it makes the call, and one with PyTorch, which has gloo, when it
    /// makes a communicator; verbs alone do not make a rank.
    pub(super) fn makes_rank(self) -> bool {
        !matches!(self, Probed::Named(_) | Probed::Verbs | Probed::Collectives(Library::Gloo))
    }
}

/// Most files probed: a user could map any number of files named like a library.
const MOST_FILES: usize = 256;
/// How often attaching to one file is tried.
const MOST_ATTEMPTS: u32 = 5;

impl Discovery {
    /// Attaches to a file before anybody has it mapped.
    pub(crate) fn attach_ahead(&mut self, path: &Path) -> Result<(), Error> {
        let fail = |reason: String| Error::Library { path: path.to_owned(), reason };
        let name = path.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
        let probed = self.probed_in(path, name);
        if probed.is_empty() {
            return Err(fail("it is named like no library known here".to_owned()));
        }
        probed.into_iter().try_for_each(|probed| self.attach_file(path, path, probed)).map_err(fail)
    }

    /// Probes the user's functions in the files that can be found without a process: by path, or in
    /// the loader's cache. What is wrong with a path is an error at once.
    pub(crate) fn attach_probes_ahead(&mut self) -> Result<(), Error> {
        let cache = fs::read("/etc/ld.so.cache").unwrap_or_default();
        for (index, spec) in self.probes.clone().iter().enumerate() {
            if let Some(path) = spec.path() {
                self.attach_file(path, path, Probed::Named(index))
                    .map_err(|reason| Error::Probe { spec: spec.to_string(), reason })?;
                continue;
            }
            let means = |name: &[u8], path: &[u8]| spec.means(Path::new(OsStr::from_bytes(path)), name);
            for path in paths_in_loader_cache(&cache, means) {
                if let Err(error) = self.attach_file(&path, &path, Probed::Named(index)) {
                    tracing::debug!(%error, path = %path.display(), "not probed ahead");
                }
            }
        }
        Ok(())
    }

    /// Called once every running process has been looked at: a name that was found in no file is
    /// refused, one whose library no process has is waited for.
    pub(crate) fn check_probes(&self) -> Result<(), Error> {
        for (spec, state) in self.probes.iter().zip(&self.probed) {
            match state {
                Ok(()) => {}
                Err(Some(reason)) => {
                    return Err(Error::Probe { spec: spec.to_string(), reason: reason.clone() });
                }
                Err(None) => tracing::info!("no process uses the library of {spec}: it is probed when one does"),
            }
        }
        Ok(())
    }

    /// The kinds of probes in a file that processes see under this path.
    pub(super) fn probed_in(&self, path: &Path, file_name: &[u8]) -> Vec<Probed> {
        let collectives = library_of(file_name).map(Probed::Collectives);
        let cuda = cuda::api_of(file_name).filter(|_| self.cuda).map(Probed::Cuda);
        let named = self.probes.iter().enumerate().filter(|(_, spec)| spec.means(path, file_name));
        let verbs = (self.verbs && verbs::is_verbs(file_name)).then_some(Probed::Verbs);
        collectives.into_iter().chain(cuda).chain(verbs).chain(named.map(|(index, _)| Probed::Named(index))).collect()
    }

    /// Attaches to the libraries in the dynamic loader's cache, so that the first process to use
    /// one is seen from its first call on. A file that cannot be probed now is tried again when a
    /// process has it mapped.
    pub(crate) fn attach_system_libraries(&mut self) {
        let cache = fs::read("/etc/ld.so.cache").unwrap_or_default();
        for path in libraries_in_loader_cache(&cache) {
            if let Err(error) = self.attach_ahead(&path) {
                tracing::debug!(%error, "not probed ahead");
            }
        }
    }

    /// False when it is to be tried again.
    pub(super) fn attach_mapped(&mut self, pid: u32, mapping: &maps::Mapping<'_>, probed: Probed) -> bool {
        let identity = (mapping.device.to_vec(), mapping.inode, probed);
        let attempts = self.mapped_files.get(&identity).copied().unwrap_or(0);
        if attempts >= MOST_ATTEMPTS {
            return true;
        }
        let shown = PathBuf::from(std::ffi::OsStr::from_bytes(mapping.path));
        let Some(path) = maps::path_to(pid, mapping) else { return true };
        match self.attach_file(&path, &shown, probed) {
            Ok(()) => {
                self.mapped_files.insert(identity, MOST_ATTEMPTS);
                true
            }
            Err(reason) => {
                tracing::debug!(pid, path = %shown.display(), reason, "cannot probe a library yet");
                self.mapped_files.insert(identity, attempts + 1);
                if attempts + 1 == MOST_ATTEMPTS {
                    self.shared.problem(format!("cannot probe {}: {reason}", shown.display()));
                }
                false
            }
        }
    }

    /// So that communicators made before we came can be read.
    pub(super) fn learn_layout(&mut self, pid: u32, mapping: &maps::Mapping<'_>) {
        let Some(path) = maps::path_to(pid, mapping) else { return };
        let Ok(file) = fs::metadata(&path) else { return };
        let Err(reason) = self.shared.late.maps(pid, (file.dev(), file.ino()), &path) else { return };
        let shown = String::from_utf8_lossy(mapping.path);
        tracing::debug!(pid, %shown, reason, "communicators cannot be read from memory");
        // no error for the many files that only might contain NCCL
        if mapping.file_name().starts_with(b"libtorch") || !self.unreadable.insert((file.dev(), file.ino())) {
            return;
        }
        self.shared.problem(format!(
            "{shown}: {reason}, so rank, size and hash of communicators that were made before the recorder came, and the \
             rank in those made by a split, stay unknown"
        ));
    }

    fn attach_file(&mut self, path: &Path, shown: &Path, probed: Probed) -> Result<(), String> {
        // Kept open: the process that leads to it may end before everything is attached.
        let file = fs::File::open(path).map_err(|e| e.to_string())?;
        let opened = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let path = opened.as_path();
        let metadata = file.metadata().map_err(|e| e.to_string())?;
        let identity = (metadata.dev(), metadata.ino(), probed);
        if self.attached.contains(&identity) {
            return Ok(());
        }
        if self.attached.len() >= MOST_FILES {
            return Err(format!("{MOST_FILES} library files are probed already"));
        }
        let (family, targets) = match probed {
            Probed::Collectives(Library::Gloo) => {
                if !self.attach_gloo(path, shown)? {
                    self.without_gloo.insert((metadata.dev(), metadata.ino()));
                }
                self.attached.insert(identity);
                return Ok(());
            }
            Probed::Collectives(library) => (attach::CALL, symbols::targets(path, library)?),
            Probed::Cuda(api) => (attach::CUDA, cuda::targets(path, api)?),
            Probed::Verbs => (attach::VERBS, verbs::targets(path)?),
            Probed::Named(index) => {
                self.attach_named(path, shown, index)?;
                self.attached.insert(identity);
                return Ok(());
            }
        };
        if !targets.is_empty() {
            let attached = attach::attach(&self.object, family, self.mode, path, &targets);
            let Attached { links, refused } = attached.map_err(|e| format!("{e:#}"))?;
            self.links.extend(links);
            for (symbol, reason) in &refused {
                let shown = shown.display();
                self.shared
                    .problem(format!("{shown}: {symbol} cannot be probed ({reason}): its calls are not recorded"));
            }
            let names = targets.iter().map(|t| t.symbol.clone().into_owned());
            let symbols: Vec<String> = names.filter(|name| refused.iter().all(|(other, _)| other != name)).collect();
            let library = probed.name();
            tracing::info!(path = %shown.display(), library, probes = symbols.len(), "probing a library");
            self.shared.attached(AttachedFile { path: shown.to_owned(), library, symbols });
        }
        self.attached.insert(identity);
        Ok(())
    }

    /// Probes gloo's functions in a file; false when it exports none.
    fn attach_gloo(&mut self, path: &Path, shown: &Path) -> Result<bool, String> {
        let places = gloo::places(path)?;
        if places.entries.is_empty() {
            return Ok(false);
        }
        self.links.extend(attach::attach_gloo(&self.object, self.mode, path, &places).map_err(|e| format!("{e:#}"))?);
        let symbols: Vec<String> = places.entries.iter().map(|target| target.symbol.clone().into_owned()).collect();
        tracing::info!(path = %shown.display(), library = "gloo", probes = symbols.len(), "probing a library");
        self.shared.attached(AttachedFile { path: shown.to_owned(), library: Library::Gloo.name(), symbols });
        Ok(true)
    }

    /// Has the threads of a process looked at whose library may hide gloo's functions.
    pub(super) fn look_for_gloo(&mut self, pid: u32, mapping: &maps::Mapping<'_>) {
        let file = maps::path_to(pid, mapping).and_then(|path| fs::metadata(path).ok());
        let hides = file.is_some_and(|file| self.without_gloo.contains(&(file.dev(), file.ino())));
        if hides && self.wanted(pid) {
            self.unprobed.hides_gloo(pid);
        }
    }

    /// Probes the matches of one of the user's probes in a file, and records the outcome.
    fn attach_named(&mut self, path: &Path, shown: &Path, index: usize) -> Result<(), String> {
        let Some(spec) = self.probes.get(index) else { return Ok(()) };
        let name = shown.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
        let attached = symbol_probes::places(path, name, spec, &self.shared.counted).and_then(|places| {
            let links = attach::attach_places(&self.object, self.mode, path, &places).map_err(|e| e.to_string())?;
            Ok((links, places.count()))
        });
        let result = match attached {
            Ok((links, probes)) => {
                self.links.extend(links);
                tracing::info!(path = %shown.display(), %spec, probes, "probing a function");
                let (path, symbols) = (shown.to_owned(), vec![spec.to_string()]);
                self.shared.attached(AttachedFile { path, library: "symbol", symbols });
                Ok(())
            }
            Err(reason) => Err(format!("{}: {reason}", shown.display())),
        };
        if let Some(kept) = self.probed.get_mut(index).filter(|kept| kept.is_err()) {
            *kept = result.clone().map_err(Some);
        }
        result
    }

    /// Takes every probe away.
    pub(crate) fn attach_fault_begins(&self) -> libbpf_rs::Result<Vec<Link>> {
        attach::attach_fault_begins(&self.object)
    }
}

/// The cache has its paths as strings ended by zero bytes; the version of its format does not
/// matter.
fn libraries_in_loader_cache(cache: &[u8]) -> Vec<PathBuf> {
    paths_in_loader_cache(cache, |name, _| {
        library_of(name).is_some() || cuda::api_of(name).is_some() || verbs::is_verbs(name)
    })
}

/// The paths whose (file name, path) are `wanted`.
fn paths_in_loader_cache(cache: &[u8], wanted: impl Fn(&[u8], &[u8]) -> bool) -> Vec<PathBuf> {
    cache
        .split(|&b| b == 0)
        .filter(|text| text.first() == Some(&b'/'))
        .filter(|path| wanted(path.rsplit(|&b| b == b'/').next().unwrap_or_default(), path))
        .map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(path)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_in_the_loaders_cache() {
        let cache = b"glibc-ld.so.cache1.1\x01\0\0\x02libmpi.so.40\0/usr/lib/libmpi.so.40\0/usr/lib/libm.so.6\0\xff";
        assert_eq!(libraries_in_loader_cache(cache), [PathBuf::from("/usr/lib/libmpi.so.40")]);
    }
}
