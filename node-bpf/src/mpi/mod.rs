//! The meaning of MPI handles in a process: the predefined communicators, datatypes, reductions.
//! `identity` names communicators across ranks; `structures` finds where a library keeps rank and
//! size of one, for the BPF programs (`bpf/mpi.bpf.h`).
//!
//! Open MPI's handles are addresses of exported objects (`ompi_mpi_comm_world`, `ompi_mpi_double`
//! …), in the library or, when the executable refers to them directly, in the executable (copy
//! relocation): the executable's win. MPICH and its kin (Intel MPI, MVAPICH, Cray) use numbers,
//! fixed by their common ABI (mpi.h): a builtin datatype's size is in its second byte.

pub(crate) mod identity;
pub(crate) mod structures;

use std::collections::HashMap;
use std::fs;
use std::sync::{LazyLock, OnceLock};
use std::time::Instant;

use files::{Answer, Files, Question, Ticket};

use crate::libraries;
use crate::maps;
use crate::procfs;

/// The meaning of a handle in Open MPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    World,
    Datatype(&'static str, u64),
    Op(&'static str),
}

/// The handles of one process, as soon as its files are read.
#[derive(Debug, Default)]
pub(crate) struct MpiNames {
    /// Executable and library, the one that wins last.
    parts: Vec<Part>,
    /// By address; empty when the library is not Open MPI.
    handles: OnceLock<Handles>,
}

/// What the files say, and where the predefined objects are.
#[derive(Debug, Default)]
struct Handles {
    meanings: HashMap<u64, Meaning>,
    objects: Objects,
}

/// The addresses of Open MPI's predefined objects; 0: not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Objects {
    pub(crate) world: u64,
    /// MPI_COMM_SELF.
    pub(crate) own: u64,
    /// MPI_COMM_NULL, MPI_GROUP_NULL.
    pub(crate) none: u64,
    pub(crate) no_group: u64,
}

/// A file with handles, and where the process has it.
#[derive(Debug)]
struct Part {
    start: u64,
    offset: u64,
    ticket: Ticket,
}

/// Most files of one process that are asked for handles.
const MOST_PARTS: usize = 4;

const MPICH_COMM_WORLD: u64 = 0x4400_0000;

static OPEN_MPI: &[(&str, Meaning)] = &[
    ("ompi_mpi_comm_world", Meaning::World),
    ("ompi_mpi_char", Meaning::Datatype("char", 1)),
    ("ompi_mpi_signed_char", Meaning::Datatype("int8", 1)),
    ("ompi_mpi_unsigned_char", Meaning::Datatype("uint8", 1)),
    ("ompi_mpi_byte", Meaning::Datatype("byte", 1)),
    ("ompi_mpi_short", Meaning::Datatype("int16", 2)),
    ("ompi_mpi_unsigned_short", Meaning::Datatype("uint16", 2)),
    ("ompi_mpi_int", Meaning::Datatype("int32", 4)),
    ("ompi_mpi_unsigned", Meaning::Datatype("uint32", 4)),
    ("ompi_mpi_long", Meaning::Datatype("int64", 8)),
    ("ompi_mpi_unsigned_long", Meaning::Datatype("uint64", 8)),
    ("ompi_mpi_long_long_int", Meaning::Datatype("int64", 8)),
    ("ompi_mpi_unsigned_long_long", Meaning::Datatype("uint64", 8)),
    ("ompi_mpi_int8_t", Meaning::Datatype("int8", 1)),
    ("ompi_mpi_uint8_t", Meaning::Datatype("uint8", 1)),
    ("ompi_mpi_int16_t", Meaning::Datatype("int16", 2)),
    ("ompi_mpi_uint16_t", Meaning::Datatype("uint16", 2)),
    ("ompi_mpi_int32_t", Meaning::Datatype("int32", 4)),
    ("ompi_mpi_uint32_t", Meaning::Datatype("uint32", 4)),
    ("ompi_mpi_int64_t", Meaning::Datatype("int64", 8)),
    ("ompi_mpi_uint64_t", Meaning::Datatype("uint64", 8)),
    ("ompi_mpi_float", Meaning::Datatype("float32", 4)),
    ("ompi_mpi_double", Meaning::Datatype("float64", 8)),
    // Fortran's
    ("ompi_mpi_integer", Meaning::Datatype("int32", 4)),
    ("ompi_mpi_integer4", Meaning::Datatype("int32", 4)),
    ("ompi_mpi_integer8", Meaning::Datatype("int64", 8)),
    ("ompi_mpi_real", Meaning::Datatype("float32", 4)),
    ("ompi_mpi_real4", Meaning::Datatype("float32", 4)),
    ("ompi_mpi_real8", Meaning::Datatype("float64", 8)),
    ("ompi_mpi_dblprec", Meaning::Datatype("float64", 8)),
    ("ompi_mpi_op_sum", Meaning::Op("sum")),
    ("ompi_mpi_op_prod", Meaning::Op("prod")),
    ("ompi_mpi_op_max", Meaning::Op("max")),
    ("ompi_mpi_op_min", Meaning::Op("min")),
    ("ompi_mpi_op_land", Meaning::Op("land")),
    ("ompi_mpi_op_band", Meaning::Op("band")),
    ("ompi_mpi_op_lor", Meaning::Op("lor")),
    ("ompi_mpi_op_bor", Meaning::Op("bor")),
    ("ompi_mpi_op_lxor", Meaning::Op("lxor")),
    ("ompi_mpi_op_bxor", Meaning::Op("bxor")),
    ("ompi_mpi_op_maxloc", Meaning::Op("maxloc")),
    ("ompi_mpi_op_minloc", Meaning::Op("minloc")),
    ("ompi_mpi_op_replace", Meaning::Op("replace")),
];

/// MPICH's `MPI_Op` numbers from 0x58000001 on.
static MPICH_OPS: &[&str] =
    &["max", "min", "sum", "prod", "land", "band", "lor", "bor", "lxor", "bxor", "minloc", "maxloc", "replace"];

/// MPICH's `MPI_Datatype` numbers of the C types.
static MPICH_TYPES: &[(u64, &str)] = &[
    (0x4c00_0101, "char"),
    (0x4c00_0118, "int8"),
    (0x4c00_0102, "uint8"),
    (0x4c00_010d, "byte"),
    (0x4c00_0203, "int16"),
    (0x4c00_0204, "uint16"),
    (0x4c00_0405, "int32"),
    (0x4c00_0406, "uint32"),
    (0x4c00_0807, "int64"),
    (0x4c00_0808, "uint64"),
    (0x4c00_0809, "int64"),
    (0x4c00_0819, "uint64"),
    (0x4c00_040a, "float32"),
    (0x4c00_080b, "float64"),
];

impl MpiNames {
    /// Asks about the process's executable and MPI library. Empty when it is gone or is no Open MPI
    /// program.
    pub(crate) fn ask(pid: u32, files: &Files) -> MpiNames {
        let mut names = MpiNames::default();
        let (Ok(text), Some(user)) = (procfs::read(pid, "maps"), procfs::user_of(pid)) else {
            return names;
        };
        let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let mut seen: Vec<(Vec<u8>, u64)> = vec![];
        let mut found = vec![];
        for mapping in maps::mappings(&text) {
            let is_exe = mapping.path == exe.as_os_str().as_encoded_bytes();
            let is_library = libraries::library_of(mapping.file_name()) == Some(crate::Library::Mpi);
            let identity = mapping.key();
            if (is_exe || is_library) && !seen.contains(&identity) {
                seen.push(identity); // the first mapping of a file is its lowest
                found.push((is_exe, mapping));
            }
        }
        found.sort_by_key(|(is_exe, _)| *is_exe); // the executable last, so that its objects win
        for (_, mapping) in found.into_iter().take(MOST_PARTS) {
            let Some(file) = maps::open(pid, &mapping) else { continue };
            let question = Question::Exports { prefixes: vec!["ompi_mpi_".to_owned()] };
            let ticket = files.ask(user, &file, question);
            names.parts.push(Part { start: mapping.start, offset: mapping.offset, ticket });
        }
        names
    }

    /// Whether the files are read, or will not be.
    pub(crate) fn is_ready(&self) -> bool {
        self.parts.iter().all(|part| part.ticket.outcome().is_some())
    }

    /// Waits until the files are read, or until a time.
    pub(crate) fn wait(&self, until: Instant) {
        for part in &self.parts {
            let _ = part.ticket.wait(until); // what is not there then is not known
        }
    }

    fn handles(&self) -> &Handles {
        static UNKNOWN: LazyLock<Handles> = LazyLock::new(Handles::default);
        if self.handles.get().is_none() && !self.is_ready() {
            return &UNKNOWN;
        }
        self.handles.get_or_init(|| {
            let mut handles = Handles::default();
            self.parts.iter().for_each(|part| part.add_to(&mut handles));
            handles
        })
    }

    /// Open MPI's predefined objects; none for another library, or while the files are read.
    pub(crate) fn open_mpi(&self) -> Option<Objects> {
        let objects = self.handles().objects;
        (objects.world != 0).then_some(objects)
    }

    pub(crate) fn is_world(&self, comm: u64) -> bool {
        if self.handles().meanings.is_empty() {
            return comm & 0xffff_ffff == MPICH_COMM_WORLD;
        }
        self.handles().meanings.get(&comm) == Some(&Meaning::World)
    }

    /// Whether a peer is MPI_ANY_SOURCE: -1 in Open MPI, -2 in MPICH, where the other one is
    /// MPI_PROC_NULL.
    pub(crate) fn is_any_source(&self, peer: u64) -> bool {
        let any = if self.handles().meanings.is_empty() { -2 } else { -1 };
        peer as u32 as i32 == any
    }

    /// Name and size of a predefined datatype; the name is empty when only the size is known.
    pub(crate) fn datatype(&self, datatype: u64) -> Option<(&'static str, u64)> {
        if self.handles().meanings.is_empty() {
            let handle = datatype & 0xffff_ffff;
            let builtin = handle >> 24 == 0x4c;
            let name = MPICH_TYPES.iter().find(|(value, _)| *value == handle).map_or("", |(_, name)| name);
            return builtin.then_some((name, (handle >> 8) & 0xff));
        }
        match self.handles().meanings.get(&datatype) {
            Some(Meaning::Datatype(name, bytes)) => Some((name, *bytes)),
            _ => None,
        }
    }

    pub(crate) fn op(&self, op: u64) -> Option<&'static str> {
        if self.handles().meanings.is_empty() {
            let number = (op & 0xffff_ffff).checked_sub(0x5800_0001)?;
            return MPICH_OPS.get(usize::try_from(number).ok()?).copied();
        }
        match self.handles().meanings.get(&op) {
            Some(Meaning::Op(name)) => Some(name),
            _ => None,
        }
    }
}

impl Part {
    fn add_to(&self, handles: &mut Handles) {
        let Some(Ok(answer)) = self.ticket.outcome() else { return };
        let Answer::Exports(elf) = &**answer else { return };
        let Some(bias) = elf.load_bias(self.start, self.offset) else { return };
        for symbol in &elf.symbols {
            let meaning = OPEN_MPI.iter().find(|(name, _)| *name == symbol.name).map(|(_, meaning)| *meaning);
            let address = bias.wrapping_add(symbol.address);
            if let Some(meaning) = meaning {
                handles.meanings.insert(address, meaning);
            }
            match symbol.name.as_str() {
                "ompi_mpi_comm_world" => handles.objects.world = address,
                "ompi_mpi_comm_self" => handles.objects.own = address,
                "ompi_mpi_comm_null" => handles.objects.none = address,
                "ompi_mpi_group_null" => handles.objects.no_group = address,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpich_numbers() {
        let names = MpiNames::default();
        assert!(names.is_world(0x4400_0000) && !names.is_world(0x4400_0001));
        assert_eq!(names.datatype(0x4c00_080b), Some(("float64", 8)));
        assert_eq!(names.datatype(0x4c00_1022), Some(("", 16)));
        assert_eq!(names.datatype(0x8c00_0000), None);
        assert_eq!((names.op(0x5800_0003), names.op(0x9800_0000)), (Some("sum"), None));
    }
}
