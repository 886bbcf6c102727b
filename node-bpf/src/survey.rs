//! What could be captured here and now, for `rankmesh check`: the features of the host, the
//! libraries that running processes use, and, where it is allowed, a trial of every class of
//! probes. Nothing stays attached.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use files::{Answer, Files, Question};

use crate::attach;
use crate::classes::{self, CLASSES, ClassStatus};
use crate::config::{AttachMode, CaptureConfig};
use crate::error::Error;
use crate::gloo;
use crate::host::Host;
use crate::loader;
use crate::maps;
use crate::privileges;
use crate::procfs;

/// The findings.
#[derive(Debug)]
pub struct Survey {
    /// The kernel and this process.
    pub host: Host,
    /// The way of attaching that works, or why capture cannot start.
    pub attach: Result<AttachMode, Error>,
    /// The only user whose processes would be recorded; none: everybody's would.
    pub only_user: Option<u32>,
    /// Every class; tried where capture can start, else judged by the kernel's features.
    pub classes: Vec<ClassStatus>,
    /// Libraries that running processes have mapped, each file once.
    pub libraries: Vec<LibraryInUse>,
    /// Processes whose libraries this user may not see.
    pub hidden_processes: usize,
}

/// A library file that processes have mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryInUse {
    /// "NCCL", "MPI", "CUDA runtime", …
    pub kind: &'static str,
    /// Its path as a process that uses it sees it.
    pub path: PathBuf,
    /// Its version: from its text (NCCL, RCCL), else from its file name.
    pub version: Option<String>,
    /// How many processes use it.
    pub processes: usize,
    /// The class that records its calls; none when none does.
    pub class: Option<&'static str>,
}

const GLOO: &str = "gloo";
const GLOO_IN_TORCH: &str = "PyTorch (gloo)";

/// The libraries looked for: the beginning of the file name and what it is.
const KINDS: &[(&str, &str)] = &[
    ("libnccl.so", "NCCL"),
    ("librccl.so", "RCCL"),
    ("libtorch_cuda.so", "PyTorch for CUDA"),
    ("libtorch_hip.so", "PyTorch for HIP"),
    ("libgloo.so", GLOO),
    ("libtorch_cpu.so", GLOO_IN_TORCH),
    ("libucc.so", "UCC"),
    ("libmpi.so", "MPI"),
    ("libmpich.so", "MPI (MPICH)"),
    ("libmpi_cray.so", "MPI (Cray)"),
    ("libmpi_gnu", "MPI (Cray)"),
    ("libmpi_intel", "MPI (Cray)"),
    ("libcudart.so", "CUDA runtime"),
    ("libcuda.so", "CUDA driver"),
    ("libamdhip64.so", "HIP"),
    ("libibverbs.so", "InfiniBand verbs"),
];

/// Collects everything.
pub fn survey(config: &CaptureConfig) -> Survey {
    let (attach, classes) = match trial(config) {
        Ok((mode, classes)) => (Ok(mode), classes),
        Err(error) => (Err(error), classes::examine(config)),
    };
    let (libraries, hidden_processes) = libraries_in_use();
    Survey { host: Host::examine(), only_user: privileges::only_user(), attach, classes, libraries, hidden_processes }
}

/// Loads everything and attaches all programs except those at library calls, once.
fn trial(config: &CaptureConfig) -> Result<(AttachMode, Vec<ClassStatus>), Error> {
    let config = CaptureConfig { cgroup: None, ring_bytes: 1, ..config.clone() };
    let mut loaded = loader::load(&config, None)?;
    for class in CLASSES {
        if !classes::is_on(&loaded.classes, class.name) {
            continue;
        }
        if let Err(error) = attach::attach_class(&loaded.object, class) {
            if class.essential {
                return Err(Error::Load { reason: error.to_string() });
            }
            let (why, remedy) = attach::refusal(&error);
            classes::turn_off(&mut loaded.classes, class.name, why, remedy);
        }
    }
    Ok((loaded.mode, loaded.classes))
}

/// All libraries of [`KINDS`] that processes have mapped, and how many processes may not be looked
/// at.
fn libraries_in_use() -> (Vec<LibraryInUse>, usize) {
    let mut found: BTreeMap<(Vec<u8>, u64), LibraryInUse> = BTreeMap::new();
    let (mut hidden, files) = (0, Files::new(|| {}));
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        let text = match procfs::read(pid, "maps") {
            Ok(text) => text,
            Err(error) => {
                hidden += usize::from(error.kind() == ErrorKind::PermissionDenied);
                continue;
            }
        };
        let mut counted: Vec<(Vec<u8>, u64)> = vec![];
        for mapping in maps::mappings(&text).filter(|mapping| mapping.executable) {
            let Some((kind, class)) = kind_of(mapping.file_name()) else { continue };
            let identity = mapping.key();
            if counted.contains(&identity) {
                continue;
            }
            let library = found.entry(identity.clone()).or_insert_with(|| {
                let path = PathBuf::from(OsStr::from_bytes(mapping.path));
                let is_gloo = [GLOO, GLOO_IN_TORCH].contains(&kind);
                let class = class.filter(|_| !is_gloo || exports_gloo(&files, pid, &mapping));
                LibraryInUse { kind, version: version_of(&files, pid, &mapping, kind), path, processes: 0, class }
            });
            library.processes += 1;
            counted.push(identity);
        }
    }
    let mut libraries: Vec<_> = found.into_values().collect();
    libraries.sort_by(|a, b| (a.kind, &a.path).cmp(&(b.kind, &b.path)));
    (libraries, hidden)
}

/// Whether a library with gloo exports its functions: some builds hide them.
fn exports_gloo(files: &Files, pid: u32, mapping: &maps::Mapping<'_>) -> bool {
    let Some((user, file)) = procfs::user_of(pid).zip(maps::open(pid, mapping)) else { return false };
    let ask = |question| files.answer(user, &file, question, Instant::now() + MOST_OF_A_FILE).ok();
    let answers: Option<Vec<Arc<Answer>>> = gloo::questions().into_iter().map(ask).collect();
    answers.and_then(|answers| gloo::places(&answers).ok()).is_some_and(|places| !places.entries.is_empty())
}

fn kind_of(file_name: &[u8]) -> Option<(&'static str, Option<&'static str>)> {
    let (_, kind) = KINDS.iter().find(|(prefix, _)| file_name.starts_with(prefix.as_bytes()))?;
    let class = CLASSES.iter().find(|c| c.libraries.iter().any(|prefix| file_name.starts_with(prefix.as_bytes())));
    Some((kind, class.map(|class| class.name)))
}

fn version_of(files: &Files, pid: u32, mapping: &maps::Mapping<'_>, kind: &str) -> Option<String> {
    let from_text = || {
        let (user, file) = procfs::user_of(pid).zip(maps::open(pid, mapping))?;
        let answer = files.answer(user, &file, Question::NcclVersion, Instant::now() + MOST_OF_A_FILE).ok()?;
        if let Answer::NcclVersion(version) = &*answer { version.clone() } else { None }
    };
    let has_text = ["NCCL", "RCCL"].contains(&kind);
    has_text.then(from_text).flatten().or_else(|| version_in_name(mapping.file_name()))
}

/// How long the text of one file is waited for.
const MOST_OF_A_FILE: Duration = Duration::from_secs(10);

/// "40.30.4" of "libmpi.so.40.30.4"; none of "libmpi.so".
fn version_in_name(file_name: &[u8]) -> Option<String> {
    let name = String::from_utf8_lossy(file_name);
    let version = name.split_once(".so.")?.1;
    (!version.is_empty() && version.bytes().all(|b| b.is_ascii_digit() || b == b'.')).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_file_names() {
        assert_eq!(version_in_name(b"libmpi.so.40.30.4").as_deref(), Some("40.30.4"));
        assert_eq!(version_in_name(b"libcuda.so.550.54.15").as_deref(), Some("550.54.15"));
        assert_eq!(version_in_name(b"libnccl.so"), None);
        assert_eq!(version_in_name(b"libx.so.1a"), None);
    }

    #[test]
    fn every_library_that_a_class_waits_for_is_looked_for() {
        for prefix in CLASSES.iter().flat_map(|class| class.libraries) {
            assert!(KINDS.iter().any(|(known, _)| known.starts_with(*prefix)), "{prefix} is not in KINDS");
        }
    }

    #[test]
    fn a_survey_leaves_nothing_undecided() {
        let survey = survey(&CaptureConfig::default());
        assert_eq!(survey.classes.len(), CLASSES.len());
        if let Err(error) = &survey.attach {
            eprintln!("SKIPPED the trial: {error}");
        }
    }
}
