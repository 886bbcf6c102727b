//! Finding the libraries to probe: which processes have which of them mapped, each file attached to
//! once, whatever the path it is reached by (wheels, containers, deleted files). A process is looked
//! at when the kernel says that it has mapped code (`changes`), soon after its exec or at the next
//! [`CaptureConfig::rescan`]. `attaching` attaches to files, `following` keeps the programs' entries of
//! processes.
//!
//! [`CaptureConfig::rescan`]: crate::CaptureConfig::rescan

mod attaching;
mod following;
mod mapped;
mod probes;

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object};

use crate::attach;
use crate::cgroup::Cgroup;
use crate::changes::ChangedCode;
use crate::config::AttachMode;
use crate::error::Error;
use crate::hits::Hits;
use crate::lookup;
use crate::maps;
use crate::procfs;
use crate::rooms::Rooms;
use crate::shared::Shared;
use crate::symbol_probes::ProbeSpec;
use crate::unprobed::UnprobedLibraries;
use crate::wire;
use attaching::{Asked, AskedLayout, Held, Probed, Probes};
use files::Files;
use mapped::MappedFiles;
use record::Library;

/// Times after its exec at which a new program is looked at: the loader maps libraries within
/// milliseconds, `import`s later.
const AFTER_EXEC_MS: &[u64] = &[0, 2, 8, 32, 64, 128, 256, 512];
/// Least time between two looks at new programs: where many begin, they are looked at together.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);
/// Most new programs waiting to be looked at; the rescan finds the rest.
const MOST_PENDING: usize = 4096;

/// A file by (st_dev, st_ino), and a kind of probes.
type Ahead = (u64, u64, Probed);

/// Owns the loaded object and all its links.
pub(crate) struct Discovery {
    object: Object,
    mode: AttachMode,
    /// Of classes.
    links: Vec<Link>,
    /// Of files that were attached ahead.
    held: Vec<Held>,
    /// Probes at frequent functions come and go …
    slices: bool,
    /// … and are away.
    frequent_away: bool,
    shared: Arc<Shared>,
    cgroup: Option<Cgroup>,
    /// The only user whose processes are followed.
    only_user: Option<u32>,
    tracked: MapHandle,
    /// Who has how much room in the programs' maps.
    rooms: Rooms,
    /// The programs' state of each thread.
    threads: MapHandle,
    /// What processes have mapped.
    mapped: MappedFiles<Probed, Probes>,
    /// What the files are asked, and not answered yet.
    asked: Vec<Asked>,
    layouts: Vec<AskedLayout>,
    files: Files,
    /// Attached before anybody had them mapped, and for good.
    ahead: HashSet<Ahead>,
    /// CUDA and HIP are counted.
    cuda: bool,
    /// Events of libibverbs are recorded.
    verbs: bool,
    /// Of the user's probes.
    hits: Hits,
    /// The user's probes, and the outcome of each.
    probes: Vec<ProbeSpec>,
    probed: Vec<Result<(), Option<String>>>,
    changed: ChangedCode,
    /// Per process: its size of mapped code when it was last looked at.
    code_kb: HashMap<u32, u64>,
    /// Processes that are to be looked at again: a file of theirs was not attached to, or there is
    /// room now.
    again: HashSet<u32>,
    /// Kernel threads: they have no code to be looked at, and are half of the processes of many
    /// hosts.
    kernel_threads: HashSet<u32>,
    pending: Vec<(Instant, u32, usize)>,
    /// When new programs were last looked at.
    looked: Option<Instant>,
    unprobed: UnprobedLibraries,
    /// Files named like one with gloo, by (st_dev, st_ino), that export none of its functions.
    without_gloo: HashSet<(u64, u64)>,
    /// Known to the programs or to us, and not running at the last sweep.
    gone: HashSet<u32>,
}

/// Maps whose keys begin with a process's number. Maps that only user space fills and empties are
/// not among them. The last is `rooms`: a process holds its room until its entries are gone.
const OF_PROCESSES: &[&str] = &[
    "tracked",
    "children",
    "comms",
    "learnt",
    "capturing",
    "enqueued",
    "pending",
    "mpi_processes",
    "mpi_groups",
    "mpi_grids",
    "mpi_begun",
    "mpi_persistent",
    "mpi_unnamed",
    "rooms",
];

impl Discovery {
    /// Attaches the programs of the classes that are on (but for those at library calls), too. One
    /// that cannot be is turned off.
    pub(crate) fn new(
        object: Object,
        mode: AttachMode,
        shared: Arc<Shared>,
        (cgroup, only_user): (Option<Cgroup>, Option<u32>),
        probes: Vec<ProbeSpec>,
        files: Files,
        slices: bool,
    ) -> Result<Self, Error> {
        let failed = |error: libbpf_rs::Error| Error::Load { reason: error.to_string() };
        let tracked = lookup::map(&object, "tracked").map_err(failed)?;
        let threads = lookup::map(&object, "threads").map_err(failed)?;
        let rooms = Rooms::new(&object).map_err(failed)?;
        let hits = Hits::new(lookup::map(&object, "symbol_hits").map_err(failed)?);
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
            held: vec![],
            slices,
            frequent_away: false,
            shared,
            cuda,
            verbs,
            hits,
            probed: vec![Err(None); probes.len()],
            probes,
            cgroup,
            only_user,
            tracked,
            rooms,
            threads,
            mapped: MappedFiles::default(),
            asked: vec![],
            layouts: vec![],
            files,
            ahead: HashSet::new(),
            changed: ChangedCode::watch(),
            code_kb: HashMap::new(),
            again: HashSet::new(),
            kernel_threads: HashSet::new(),
            pending: vec![],
            looked: None,
            unprobed: UnprobedLibraries::default(),
            without_gloo: HashSet::new(),
            gone: HashSet::new(),
        })
    }

    /// A new program runs in `pid`.
    pub(crate) fn on_exec(&mut self, pid: u32) {
        self.code_kb.remove(&pid);
        self.kernel_threads.remove(&pid);
        self.mapped.ended(pid, Instant::now());
        self.pending.retain(|(_, of, _)| *of != pid); // looks at the program before it
        if self.pending.len() < MOST_PENDING {
            self.pending.push((Instant::now(), pid, 0));
        }
    }

    /// Followed processes have ended: frees their entries in the kernel maps.
    pub(crate) fn on_exit(&mut self, pids: &HashSet<u32>) {
        for pid in pids {
            self.code_kb.remove(pid);
            self.mapped.ended(*pid, Instant::now());
        }
        self.delete_keys(|pid| pids.contains(&pid));
    }

    /// The counts of an epoch's calls were taken out.
    pub(crate) fn tallies_left(&mut self, epoch: usize) {
        self.rooms.tallies_left(epoch);
    }

    /// Removes the entries of some processes from the programs' maps.
    fn delete_keys(&mut self, of: impl Fn(u32) -> bool) {
        for name in OF_PROCESSES {
            let Ok(map) = lookup::map(&self.object, name) else {
                continue;
            };
            let keys: Vec<Vec<u8>> = map.keys().filter(|key| wire::pid_of_key(key).is_some_and(&of)).collect();
            for key in keys {
                match (*name, wire::pid_of_key(&key)) {
                    ("rooms", Some(pid)) => self.rooms.leave(pid),
                    ("children", _) => {
                        let child = map.lookup(&key, MapFlags::ANY).ok().flatten();
                        if let (Some(child), Ok(())) = (child, map.delete(&key)) {
                            self.rooms.child_left(&child);
                        }
                    }
                    _ => drop(map.delete(&key)), // gone already is as good
                }
            }
        }
        self.shared.late.left(of);
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
        self.shared.processes.sweep();
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
        let changed = self.changed.take();
        let mut pids = std::mem::take(&mut self.again);
        pids.extend(changed.pids);
        for pid in &pids {
            self.code_kb.remove(pid); // it has other code, or is another process
        }
        if changed.all {
            self.look_at_all();
        } else {
            pids.extend(changed.ended);
            for pid in pids {
                self.look_at(pid);
            }
        }
        let unprobed = self.unprobed.look_at_threads(&self.probes);
        unprobed.into_iter().for_each(|problem| self.shared.problem(None, &problem));
        self.give_back();
        self.look_at_files();
    }

    fn look_at_all(&mut self) {
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
            if self.look_at(pid) {
                alive.insert(pid);
            } else if procfs::is_kernel_thread(pid) {
                alive.insert(pid);
                self.kernel_threads.insert(pid);
            }
        }
        self.code_kb.retain(|pid, _| alive.contains(pid));
        for pid in self.mapped.known_pids().into_iter().filter(|pid| !alive.contains(pid)) {
            self.mapped.ended(pid, Instant::now());
        }
        self.kernel_threads.retain(|pid| alive.contains(pid));
    }

    /// Looks at a process that may have ended, and be another now. False when there is none, or it has
    /// no code.
    fn look_at(&mut self, pid: u32) -> bool {
        if !self.shared.processes.is_same(pid) {
            self.on_exit(&HashSet::from([pid])); // its end was lost
        }
        let runs = self.inspect_if_grown(pid);
        if !runs {
            self.code_kb.remove(&pid);
            self.mapped.ended(pid, Instant::now());
        }
        runs
    }

    /// A process is looked at again at the next rescan.
    fn look_again(&mut self, pids: impl IntoIterator<Item = u32>) {
        self.again.extend(pids);
    }

    /// Looks at a process when its mapped code has changed since the last time: detecting that
    /// costs a tenth of reading all its mappings. False when there is no such process, or it has no
    /// code.
    fn inspect_if_grown(&mut self, pid: u32) -> bool {
        let Some(now_kb) = procfs::code_kb(pid) else { return false };
        if self.code_kb.get(&pid) == Some(&now_kb) {
            return true;
        }
        self.code_kb.insert(pid, now_kb); // as of before: what came meanwhile is seen the next time
        self.inspect(pid);
        true
    }

    /// Attaches to what `pid` has mapped and follows it when it has any of it.
    fn inspect(&mut self, pid: u32) {
        if pid == std::process::id() {
            return;
        }
        let Ok(text) = procfs::read(pid, "maps") else { return };
        let user = procfs::user_of(pid);
        let (mut found, mut mpi) = (false, false);
        let (mut nccl, mut gloo) = (vec![], vec![]);
        let mappings: Vec<maps::Mapping<'_>> = maps::mappings(&text).filter(|m| m.executable).collect();
        if self.unprobed.concern(&mappings) && self.wanted(pid) {
            let unprobed = self.unprobed.look(pid, &mappings, &self.probes);
            unprobed.into_iter().for_each(|problem| self.shared.problem(user, &problem));
        }
        let mut seen = HashSet::new();
        for mapping in mappings {
            for probed in self.probed_in(Path::new(OsStr::from_bytes(mapping.path)), mapping.file_name()) {
                found |= probed.makes_rank();
                match probed {
                    Probed::Collectives(Library::Mpi) => mpi = true,
                    Probed::Collectives(Library::Nccl | Library::Rccl) => nccl.push(mapping.clone()),
                    Probed::Collectives(Library::Gloo) => gloo.push(mapping.clone()),
                    Probed::Cuda(_) | Probed::Verbs | Probed::Named(_) => {}
                }
                seen.insert(mapping.key());
                if let Some(user) = user {
                    self.attach_mapped(pid, user, &mapping, probed);
                }
            }
        }
        for mapping in gloo {
            self.look_for_gloo(pid, &mapping);
        }
        self.mapped.maps_only(pid, &seen, Instant::now());
        if found && self.wanted(pid) {
            self.follow(pid, mpi);
            for mapping in nccl {
                self.learn_layout(pid, user, &mapping);
            }
        }
    }

    pub(crate) fn detach(&mut self) {
        self.links.clear();
        self.held.clear();
        self.mapped.clear();
    }
}
