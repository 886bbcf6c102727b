//! Where an MPI library keeps a process's rank in a communicator and the communicator's size. Both
//! differ between versions and builds, and libraries are stripped, so the places are found in a
//! process after its MPI_Init: by what its predefined communicators must hold there. What was found
//! is known of the library file from then on. The BPF programs read with it (`bpf/mpi.bpf.h`); the
//! map `mpi_processes` has it for each process.
//!
//! Open MPI: a handle is the address of a structure with the rank and the address of the group,
//! which has the size (`open_mpi`). MPICH and its kin: a handle leads into tables of structures
//! (`mpich`).

mod mpich;
mod open_mpi;
mod place;
mod requests;

use std::collections::HashMap;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use parking_lot::Mutex;

use super::{Objects, identity};
use crate::functions;
use crate::libraries;
use crate::maps;
use crate::memory::Memory;
use crate::procfs;
use crate::wire::{self, HAVE_HASH, HAVE_RANK, RawCall, RawMpi};
use mpich::Tables;
use open_mpi::Offsets;
use place::Known;
use requests::Message;

/// A process of an MPI job, as far as its environment and its handles tell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) pid: u32,
    /// Rank in the world and its size.
    pub(crate) place: Option<(u32, u32)>,
    /// The number that Open MPI's launcher has given the job.
    pub(crate) job: Option<u32>,
    /// Open MPI's predefined objects; none for another library.
    pub(crate) objects: Option<Objects>,
}

/// What is known of library files and processes, and the programs' maps of processes and of
/// communicators.
#[derive(Debug)]
pub(crate) struct MpiStructures {
    processes: MapHandle,
    comms: MapHandle,
    files: Mutex<Files>,
    /// What the map of processes has.
    known: Mutex<HashMap<u32, RawMpi>>,
}

/// By user, and device and inode as maps show them: a process can have the system's library mapped,
/// and in its memory what it likes, so what is found in one user's is not believed of another's.
#[derive(Debug, Default)]
struct Files {
    open_mpi: HashMap<File, Offsets>,
    mpich: HashMap<File, Tables>,
}

type File = (u32, Vec<u8>, u64);

/// So long a wait for requests has to last before these are looked at.
const LASTED_NS: u64 = 500_000_000;
/// Most requests of one wait that are looked at.
const MOST_REQUESTS: usize = 64;
/// Open MPI's MPI_ANY_SOURCE, as an argument.
const ANY_SOURCE: u64 = -1i32 as u32 as u64;

/// The mapped MPI library of a process.
struct Mapped {
    file: File,
    shown: String,
    /// Its writable data, with what follows it without a file.
    data: (u64, u64),
}

impl MpiStructures {
    pub(crate) fn new(processes: MapHandle, comms: MapHandle) -> Self {
        MpiStructures { processes, comms, files: Mutex::default(), known: Mutex::default() }
    }

    pub(crate) fn forget(&self, pid: u32) {
        self.known.lock().remove(&pid);
    }

    /// Completes a call whose communicator has an identity and no rank: one that was made before
    /// the library's structures were known, which takes a moment after the first MPI_Init with it.
    /// Nothing is added when another communicator has its handle by now.
    pub(crate) fn complete(&self, call: &mut RawCall, handle: u64) {
        if call.flags & (HAVE_HASH | HAVE_RANK) != HAVE_HASH {
            return;
        }
        let Some(raw) = self.known.lock().get(&call.pid).copied() else { return };
        let is_int = raw.world == 0;
        let handle = if is_int { handle & 0xffff_ffff } else { handle };
        let Ok(Some(entry)) = self.comms.lookup(&wire::comm_key(call.pid, handle), MapFlags::ANY) else { return };
        if wire::comm_hash(&entry) != Some(call.comm_hash) {
            return;
        }
        let memory = Memory::of(call.pid);
        let place = if is_int { mpich::place(memory, &raw, handle) } else { open_mpi::place(memory, &raw, handle) };
        if let Some((rank, nranks)) = place {
            (call.rank, call.nranks) = (rank, nranks);
            call.flags |= HAVE_RANK;
        }
    }

    /// The messages that the `count` requests at an address are for, by the memory of a process that
    /// has waited for them for a while in `wait`: calls of the functions `irecv` and `isend`, entered
    /// when the wait was. None of another library than Open MPI.
    pub(crate) fn awaited(&self, wait: &RawCall, (first, count): (u64, usize)) -> Vec<RawCall> {
        if wait.exit_ns.saturating_sub(wait.enter_ns) < LASTED_NS {
            return vec![];
        }
        let Some(raw) = self.known.lock().get(&wait.pid).copied().filter(|raw| raw.world != 0) else { return vec![] };
        let memory = Memory::of(wait.pid);
        let place_of = |comm| open_mpi::place(memory, &raw, comm);
        let requests = (0..count.min(MOST_REQUESTS) as u64).map_while(|at| memory.word(first.checked_add(at * 8)?));
        let messages = requests.filter_map(|request| requests::message(memory, request, place_of));
        messages.map(|message| self.call_of(wait, message)).collect()
    }

    fn call_of(&self, wait: &RawCall, message: Message) -> RawCall {
        let Message { sends, comm, place: (rank, nranks), buffer, count, datatype, peer, tag } = message;
        let func = functions::message_of_request(sends);
        let mut call = RawCall {
            func,
            flags: HAVE_RANK,
            rank,
            nranks,
            comm_seq: wire::NO_POSITION,
            args: [0; wire::MAX_ARGS],
            ..wait.clone()
        };
        let peer = if peer < 0 { ANY_SOURCE } else { u64::from(peer.unsigned_abs()) };
        let tag = u64::from(tag.cast_unsigned());
        call.args[..6].copy_from_slice(&[buffer, count, datatype, peer, tag, comm]);
        let entry = self.comms.lookup(&wire::comm_key(wait.pid, comm), MapFlags::ANY).ok().flatten();
        if let Some(hash) = entry.as_deref().and_then(wire::comm_hash).filter(|hash| *hash != 0) {
            call.comm_hash = hash;
            call.flags |= HAVE_HASH;
        }
        call
    }

    /// A process has an MPI library: the programs get what is known of it by now.
    pub(crate) fn meet(&self, member: Member) {
        let _ = self.look(member); // before MPI_Init nothing can be found
    }

    /// Its MPI_Init has returned. The error says what is not known of its communicators.
    pub(crate) fn began(&self, member: Member) -> Result<(), String> {
        self.look(member)
    }

    fn look(&self, member: Member) -> Result<(), String> {
        let Member { pid, place, job, objects } = member;
        let Some(mapped) = mapped(pid) else { return Ok(()) };
        let memory = Memory::of(pid);
        let known = place.filter(|(rank, size)| rank < size).map(|(rank, size)| Known { rank, size, job });
        let host = host(pid);
        let (raw, found) = match objects {
            Some(objects) => self.open_mpi(&mapped, memory, objects, known, host),
            None => self.mpich(&mapped, memory, known, host),
        };
        self.known.lock().insert(pid, raw);
        let key = pid.to_ne_bytes();
        if let Err(error) = self.processes.update(&key, &raw.to_bytes(), MapFlags::ANY) {
            tracing::debug!(pid, %error, "its communicators are not told apart");
        }
        // where there is but one rank, nothing can be told from anything else
        if found || known.is_none_or(|known| known.size == 1) {
            return Ok(());
        }
        Err(format!(
            "{}: it keeps rank and size of communicators where they are not found, so those of others than \
             MPI_COMM_WORLD are not known",
            mapped.shown
        ))
    }

    fn open_mpi(
        &self,
        mapped: &Mapped,
        memory: Memory,
        objects: Objects,
        known: Option<Known>,
        host: u64,
    ) -> (RawMpi, bool) {
        let mut files = self.files.lock();
        let mut offsets = files.open_mpi.get(&mapped.file).copied();
        if offsets.is_none_or(|offsets| offsets.name_at == 0)
            && let Some(found) = known.and_then(|known| open_mpi::find(memory, objects, known))
        {
            files.open_mpi.insert(mapped.file.clone(), found);
            offsets = Some(found);
        }
        let Objects { world, own, none, .. } = objects;
        let raw = RawMpi { world, own, none, host, ..RawMpi::default() };
        (offsets.map_or(raw, |offsets| offsets.fill(raw)), offsets.is_some())
    }

    fn mpich(&self, mapped: &Mapped, memory: Memory, known: Option<Known>, host: u64) -> (RawMpi, bool) {
        let mut files = self.files.lock();
        let mut tables = files.mpich.get(&mapped.file).copied();
        if tables.is_none()
            && let Some(found) = known.and_then(|known| mpich::find(memory, mapped.data, known))
        {
            files.mpich.insert(mapped.file.clone(), found);
            tables = Some(found);
        }
        let raw = RawMpi { host, ..RawMpi::default() };
        (tables.map_or(raw, |tables| tables.fill(raw, mapped.data.0)), tables.is_some())
    }
}

/// The MPI library that a process has mapped; none when it has none or is gone.
fn mapped(pid: u32) -> Option<Mapped> {
    let text = procfs::read(pid, "maps").ok()?;
    let is_mpi = |m: &maps::Mapping<'_>| libraries::library_of(m.file_name()) == Some(record::Library::Mpi);
    let library = maps::mappings(&text).find(is_mpi)?;
    let data = maps::data_of(&text, &library).unwrap_or_default();
    let shown = String::from_utf8_lossy(library.path).into_owned();
    let file = (procfs::user_of(pid)?, library.device.to_vec(), library.inode);
    Some(Mapped { file, shown, data })
}

/// Names the host as MPI sees it: ranks in other namespaces of host names are on another one.
fn host(pid: u32) -> u64 {
    let file = |path: &str| std::fs::read(path).unwrap_or_default();
    let names = std::fs::read_link(format!("/proc/{pid}/ns/uts")).unwrap_or_default();
    let mut all = file("/proc/sys/kernel/random/boot_id");
    all.extend(file("/proc/sys/kernel/hostname"));
    all.extend(names.as_os_str().as_encoded_bytes());
    identity::fnv(all).max(1)
}
