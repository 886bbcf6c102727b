//! Finding the libraries to probe: which processes have which of them mapped, each file attached to
//! once, whatever the path it is reached by (wheels, containers, deleted files). New processes are
//! looked at several times in their first second after exec, all others whenever their mapped code
//! has grown, checked every [`CaptureConfig::rescan`].
//!
//! [`CaptureConfig::rescan`]: crate::CaptureConfig::rescan

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libbpf_rs::{ErrorKind, Link, MapCore, MapFlags, MapHandle, Object};

use crate::attach::{self, Attached};
use crate::cgroup::Cgroup;
use crate::config::AttachMode;
use crate::cuda::{self, functions::Api};
use crate::error::Error;
use crate::libraries::library_of;
use crate::lookup;
use crate::maps;
use crate::procfs::{self, cgroup_path};
use crate::shared::{AttachedFile, Shared};
use crate::signals::kernel_names;
use crate::symbol_probes::{self, ProbeSpec};
use crate::symbols;
use crate::unprobed::UnprobedLibraries;
use crate::verbs;
use crate::wire;
use record::{Library, Record};

/// A kind of probes in a file. One file may have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Probed {
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
    /// choice is followed when it makes the call; verbs alone do not make a rank.
    fn makes_rank(self) -> bool {
        !matches!(self, Probed::Named(_) | Probed::Verbs)
    }
}

/// Times after its exec at which a new program is looked at: the loader maps libraries within
/// milliseconds, `import`s later.
const AFTER_EXEC_MS: &[u64] = &[0, 2, 8, 32, 64, 128, 256, 512];
/// Least time between two looks at new programs: where many begin, they are looked at together.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
/// Most new programs waiting to be looked at; the rescan finds the rest.
const MOST_PENDING: usize = 4096;
/// Most files probed: a user could map any number of files named like a library.
const MOST_FILES: usize = 256;
/// How often attaching to one file is tried.
const MOST_ATTEMPTS: u32 = 5;

/// Owns the loaded object and all its links.
pub(crate) struct Discovery {
    object: Object,
    mode: AttachMode,
    links: Vec<Link>,
    shared: Arc<Shared>,
    cgroup: Option<Cgroup>,
    /// The only user whose processes are followed.
    only_user: Option<u32>,
    tracked: MapHandle,
    /// The programs' state of each thread.
    threads: MapHandle,
    /// By (device, inode) as in maps: finished, or the number of failures.
    mapped_files: HashMap<(Vec<u8>, u64, Probed), u32>,
    /// By (st_dev, st_ino): attached.
    attached: HashSet<(u64, u64, Probed)>,
    /// CUDA and HIP are counted.
    cuda: bool,
    /// Events of libibverbs are recorded.
    verbs: bool,
    /// The user's probes, and the outcome of each.
    probes: Vec<ProbeSpec>,
    probed: Vec<Result<(), Option<String>>>,
    /// Per process: its size of mapped code when it was last looked at.
    code_kb: HashMap<u32, u64>,
    /// Kernel threads: they have no code to be looked at, and are half of the processes of many
    /// hosts.
    kernel_threads: HashSet<u32>,
    pending: Vec<(Instant, u32, usize)>,
    /// When new programs were last looked at.
    looked: Option<Instant>,
    /// Files whose communicators cannot be read: reported once each.
    unreadable: HashSet<(u64, u64)>,
    unprobed: UnprobedLibraries,
    /// Known to the programs or to us, and not running at the last sweep.
    gone: HashSet<u32>,
}

/// Maps whose keys begin with a process's number. Maps that only user space fills and empties are
/// not among them.
const OF_PROCESSES: &[&str] = &["tracked", "children", "comms", "learnt", "capturing", "enqueued", "pending"];

impl Discovery {
    /// Attaches the programs of the classes that are on (but for those at library calls), too. One
    /// that cannot be is turned off.
    pub(crate) fn new(
        object: Object,
        mode: AttachMode,
        shared: Arc<Shared>,
        (cgroup, only_user): (Option<Cgroup>, Option<u32>),
        probes: Vec<ProbeSpec>,
    ) -> Result<Self, Error> {
        let failed = |error: libbpf_rs::Error| Error::Load { reason: error.to_string() };
        let tracked = lookup::map(&object, "tracked").map_err(failed)?;
        let threads = lookup::map(&object, "threads").map_err(failed)?;
        let mut links = vec![];
        for class in shared.classes_on() {
            match attach::attach_class(&object, class) {
                Ok(attached) => links.extend(attached),
                Err(error) if class.essential => return Err(failed(error)),
                Err(error) => {
                    let (why, remedy) = attach::refusal(&error);
                    shared.class_off(class.name, why, remedy);
                }
            }
        }
        let is_on = |name: &str| shared.classes_on().iter().any(|class| class.name == name);
        let (cuda, verbs) = (is_on("cuda"), is_on("fabric-events"));
        Ok(Discovery {
            object,
            mode,
            links,
            shared,
            cuda,
            verbs,
            probed: vec![Err(None); probes.len()],
            probes,
            cgroup,
            only_user,
            tracked,
            threads,
            mapped_files: HashMap::new(),
            attached: HashSet::new(),
            code_kb: HashMap::new(),
            kernel_threads: HashSet::new(),
            pending: vec![],
            looked: None,
            unreadable: HashSet::new(),
            unprobed: UnprobedLibraries::default(),
            gone: HashSet::new(),
        })
    }

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
    fn probed_in(&self, path: &Path, file_name: &[u8]) -> Vec<Probed> {
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

    /// A new program runs in `pid`.
    pub(crate) fn on_exec(&mut self, pid: u32) {
        self.code_kb.remove(&pid);
        self.kernel_threads.remove(&pid);
        self.pending.retain(|(_, of, _)| *of != pid); // looks at the program before it
        if self.pending.len() < MOST_PENDING {
            self.pending.push((Instant::now(), pid, 0));
        }
    }

    /// A followed process has ended: frees its entries in the kernel maps.
    pub(crate) fn on_exit(&mut self, pid: u32) {
        self.code_kb.remove(&pid);
        self.delete_keys(|of| of == pid);
    }

    /// Removes the entries of some processes from the programs' maps.
    fn delete_keys(&self, of: impl Fn(u32) -> bool) {
        for name in OF_PROCESSES {
            let Ok(map) = lookup::map(&self.object, name) else {
                continue;
            };
            let keys: Vec<Vec<u8>> = map.keys().filter(|key| wire::pid_of_key(key).is_some_and(&of)).collect();
            for key in keys {
                let _ = map.delete(&key); // gone already is as good
            }
        }
    }

    /// Removes the entries of processes whose end was not reported: the record found no room, or
    /// they ended while they were added to the followed ones. Returns those that were known to us.
    /// To be called now and then: only processes that were gone at the last call, too, are removed,
    /// since records of one that has just ended may still be on their way.
    pub(crate) fn sweep(&mut self) -> Vec<u32> {
        let mut pids: HashSet<u32> = self.shared.processes.pids().into_iter().collect();
        for name in OF_PROCESSES {
            let Ok(map) = lookup::map(&self.object, name) else { continue };
            pids.extend(map.keys().filter_map(|key| wire::pid_of_key(&key)));
        }
        let gone: HashSet<u32> = pids.into_iter().filter(|pid| !procfs::runs(*pid)).collect();
        let still: HashSet<u32> = gone.intersection(&self.gone).copied().collect();
        if !still.is_empty() {
            self.delete_keys(|pid| still.contains(&pid));
            self.code_kb.retain(|pid, _| !still.contains(pid));
        }
        self.gone = gone;
        still.into_iter().filter(|pid| self.shared.processes.known(*pid).is_some()).collect()
    }

    /// When something is next due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let due = self.pending.iter().map(|(at, ..)| *at).min()?;
        Some(self.looked.map_or(due, |looked| due.max(looked + BETWEEN_LOOKS)))
    }

    /// Looks at the new programs that are due, again until they have ended or are no longer new.
    pub(crate) fn look_at_new(&mut self) {
        let now = Instant::now();
        if self.next_due().is_none_or(|due| now < due) {
            return;
        }
        self.looked = Some(now);
        let due: Vec<_> = self.pending.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, pid, step) in due {
            // also when it was found: the loader may map another library a little later
            if self.inspect_if_grown(pid)
                && let (Some(next), Some(this)) = (AFTER_EXEC_MS.get(step + 1), AFTER_EXEC_MS.get(step))
            {
                self.pending.push((now + Duration::from_millis(next - this), pid, step + 1));
            }
        }
    }

    /// Looks at every process whose mapped code has changed since the last time.
    pub(crate) fn rescan(&mut self) {
        let Ok(entries) = fs::read_dir("/proc") else {
            return;
        };
        let mut alive = HashSet::new();
        for entry in entries.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            if self.kernel_threads.contains(&pid) {
                alive.insert(pid);
                continue;
            }
            if !self.shared.processes.is_same(pid) {
                self.on_exit(pid); // its end was lost
            }
            if self.inspect_if_grown(pid) {
                alive.insert(pid);
            } else if procfs::is_kernel_thread(pid) {
                alive.insert(pid);
                self.kernel_threads.insert(pid);
            }
        }
        let unprobed = self.unprobed.look_at_threads(&self.probes);
        unprobed.into_iter().for_each(|problem| self.shared.problem(problem));
        self.code_kb.retain(|pid, _| alive.contains(pid));
        self.kernel_threads.retain(|pid| alive.contains(pid));
    }

    /// Looks at a process when its mapped code has changed since the last time: detecting that
    /// costs a tenth of reading all its mappings. False when there is no such process, or it has no
    /// code.
    fn inspect_if_grown(&mut self, pid: u32) -> bool {
        let Some(now_kb) = procfs::code_kb(pid) else { return false };
        if self.code_kb.get(&pid) != Some(&now_kb) && self.inspect(pid) {
            self.code_kb.insert(pid, now_kb); // as of before: what came meanwhile is seen the next time
        }
        true
    }

    /// Attaches to what `pid` has mapped and follows it when it has any of it. False when it is to
    /// be looked at again.
    fn inspect(&mut self, pid: u32) -> bool {
        if pid == std::process::id() {
            return true;
        }
        let Ok(text) = procfs::read(pid, "maps") else { return true };
        let (mut found, mut mpi, mut done) = (false, false, true);
        let mut nccl = vec![];
        let mappings: Vec<maps::Mapping<'_>> = maps::mappings(&text).filter(|m| m.executable).collect();
        if self.unprobed.concern(&mappings) && self.wanted(pid) {
            let unprobed = self.unprobed.look(pid, &mappings, &self.probes);
            unprobed.into_iter().for_each(|problem| self.shared.problem(problem));
        }
        for mapping in mappings {
            for probed in self.probed_in(Path::new(OsStr::from_bytes(mapping.path)), mapping.file_name()) {
                found |= probed.makes_rank();
                match probed {
                    Probed::Collectives(Library::Mpi) => mpi = true,
                    Probed::Collectives(_) => nccl.push(mapping.clone()),
                    Probed::Cuda(_) | Probed::Verbs | Probed::Named(_) => {}
                }
                done &= self.attach_mapped(pid, &mapping, probed);
            }
        }
        if found && self.wanted(pid) {
            self.follow(pid, mpi);
            for mapping in nccl {
                self.learn_layout(pid, &mapping);
            }
        }
        done
    }

    /// False when it is to be tried again.
    fn attach_mapped(&mut self, pid: u32, mapping: &maps::Mapping<'_>, probed: Probed) -> bool {
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
    fn learn_layout(&mut self, pid: u32, mapping: &maps::Mapping<'_>) {
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

    fn wanted(&self, pid: u32) -> bool {
        if self.only_user.is_some_and(|user| !procfs::is_all_of_user(pid, user)) {
            return false;
        }
        let Some(cgroup) = &self.cgroup else {
            return true;
        };
        let text = procfs::read(pid, "cgroup").unwrap_or_default();
        cgroup.contains(cgroup_path(&String::from_utf8_lossy(&text)))
    }

    fn follow(&self, pid: u32, mpi: bool) {
        // only when it is not there: the programs keep more in the value
        let follows = self.tracked.update(&pid.to_ne_bytes(), &wire::TRACKED.to_ne_bytes(), MapFlags::NO_EXIST).is_ok();
        self.keep_of_main_thread(pid);
        // It may have ended, or begun another program, since its mappings were read: the programs
        // have reported that already, and would not undo a later entry. From here on they do.
        if follows && !self.uses_library(pid) {
            return self.unfollow(pid);
        }
        kernel_names::read_ahead();
        let Some((process, new)) = self.shared.processes.look(pid) else { return };
        if mpi {
            process.mpi();
        }
        if new {
            self.shared.deliver(Record::Process(process.seen.clone()));
        }
    }

    /// Whether a process has a library mapped that makes it one to be followed.
    fn uses_library(&self, pid: u32) -> bool {
        let text = procfs::read(pid, "maps").unwrap_or_default();
        maps::mappings(&text).filter(|mapping| mapping.executable).any(|mapping| {
            let probed = self.probed_in(Path::new(OsStr::from_bytes(mapping.path)), mapping.file_name());
            probed.into_iter().any(Probed::makes_rank)
        })
    }

    /// Undoes `follow`, unless the process has made a call since.
    fn unfollow(&self, pid: u32) {
        let key = pid.to_ne_bytes();
        let value = self.tracked.lookup(&key, MapFlags::ANY).ok().flatten();
        if value.is_some_and(|value| value == wire::TRACKED.to_ne_bytes()) {
            let _ = self.tracked.delete(&key); // gone already is as good
            if let Some(thread) = self.main_thread(pid) {
                let _ = self.threads.delete(&thread.key());
            }
        }
    }

    /// The key of a process's main thread in the map of threads.
    fn main_thread(&self, pid: u32) -> Option<MainThread> {
        if self.mode == AttachMode::Stub {
            return Some(MainThread::Number(pid));
        }
        task_of(pid).map(MainThread::Descriptor)
    }

    /// Creates the programs' state of the main thread before its first call. Otherwise they do the
    /// same, only more slowly.
    fn keep_of_main_thread(&self, pid: u32) {
        let Some(thread) = self.main_thread(pid) else { return };
        let state = wire::followed_thread(self.threads.value_size() as usize);
        let kept = self.threads.update(&thread.key(), &state, MapFlags::NO_EXIST);
        if let Err(error) = kept
            && error.kind() != ErrorKind::AlreadyExists
        {
            tracing::debug!(pid, %error, "its main thread's switches cost more");
        }
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

    pub(crate) fn detach(&mut self) {
        self.links.clear();
    }
}

/// A process's main thread, as a key of the map `threads` (`bpf/features.bpf.h`).
enum MainThread {
    /// Of task storage: a descriptor, which is open as long as the key is used.
    Descriptor(OwnedFd),
    /// Of the hash map on old kernels.
    Number(u32),
}

impl MainThread {
    fn key(&self) -> [u8; 4] {
        match self {
            MainThread::Descriptor(task) => task.as_raw_fd().to_ne_bytes(),
            MainThread::Number(tid) => tid.to_ne_bytes(),
        }
    }
}

/// A descriptor of a process's main thread.
fn task_of(pid: u32) -> Option<OwnedFd> {
    // SAFETY: takes no pointers; the result is checked.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let descriptor = i32::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0)?;
    // SAFETY: the descriptor is new and nobody else's.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
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
