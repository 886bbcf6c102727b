//! The functions that are probed: their symbols, the positions of their arguments, and the cookie
//! for the BPF programs. The index in [`FUNCTIONS`] is the statistics slot. `nccl` and `mpi` have
//! the functions of each; `symbols` finds the symbols in a file.

mod mpi;
mod nccl;

pub(crate) use nccl::{datatype as nccl_datatype, reduction as nccl_op};

/// The effect of a function on the state in the kernel (`enum rm_role`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Call = 0,
    InitRank = 1,
    InitScalable = 2,
    InitAll = 3,
    Split = 4,
    Destroy = 5,
    UniqueId = 6,
    MpiInit = 7,
    Child = 8,
    GroupStart = 9,
    GroupEnd = 10,
    MpiMakes = 11,
    MpiFree = 12,
    MpiGroup = 13,
    MpiBegins = 14,
}

impl Role {
    /// Whether its calls become records.
    pub(crate) fn is_recorded(self) -> bool {
        matches!(self, Role::Call | Role::MpiInit | Role::MpiMakes | Role::MpiFree | Role::MpiBegins)
    }
}

/// Whose API a function belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Nccl,
    Mpi,
}

/// One probed function. Argument positions count from 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Function {
    pub(crate) api: Api,
    /// Its names; those that share an address are attached once.
    pub(crate) symbols: &'static [&'static str],
    /// `Collective::func`; of functions that make no records, a name for the statistics.
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    /// How many arguments are recorded.
    pub(crate) args: u8,
    pub(crate) comm: Comm,
    pub(crate) count: Option<u8>,
    pub(crate) datatype: Option<u8>,
    pub(crate) op: Option<u8>,
    pub(crate) root: Option<u8>,
    pub(crate) stream: Option<u8>,
    /// Whether every rank of the communicator makes the call, or its calls are matched otherwise.
    pub(crate) numbered: Numbered,
    /// Byte 6 of an MPI function's cookie: `enum rm_makes`, `enum rm_groups`, or how requests are
    /// passed.
    pub(crate) kind: Option<u8>,
    /// The argument with the address of what the call makes.
    pub(crate) made_at: Option<u8>,
}

/// On which communicator a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comm {
    None,
    /// That of this argument.
    At(u8),
    /// MPI_COMM_WORLD.
    World,
}

impl Comm {
    pub(crate) fn at(self) -> Option<u8> {
        if let Comm::At(position) = self { Some(position) } else { None }
    }
}

/// Which numbers a function's calls have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbered {
    /// By function, and their position among all collectives of the communicator.
    Collective,
    /// By function.
    PointToPoint,
    /// None.
    No,
}

const NONE: Function = Function {
    api: Api::Nccl,
    symbols: &[],
    name: "",
    role: Role::Call,
    args: 0,
    comm: Comm::None,
    count: None,
    datatype: None,
    op: None,
    root: None,
    stream: None,
    numbered: Numbered::Collective,
    kind: None,
    made_at: None,
};

const fn state(symbols: &'static [&'static str], name: &'static str, role: Role, args: u8) -> Function {
    Function { symbols, name, role, args, ..NONE }
}

const fn op(at: u8, function: Function) -> Function {
    Function { op: Some(at), ..function }
}

const fn root(at: u8, function: Function) -> Function {
    Function { root: Some(at), ..function }
}

const fn point_to_point(function: Function) -> Function {
    Function { numbered: Numbered::PointToPoint, ..function }
}

/// All of them. At most `RM_SLOT_OFFCPU`. Those of one name in one API count their calls together.
pub(crate) static FUNCTIONS: &[Function] = &{
    let mut all = [NONE; nccl::FUNCTIONS.len() + mpi::FUNCTIONS.len()];
    let mut at = 0;
    while at < all.len() {
        let of_mpi = at >= nccl::FUNCTIONS.len();
        all[at] = if of_mpi { mpi::FUNCTIONS[at - nccl::FUNCTIONS.len()] } else { nccl::FUNCTIONS[at] };
        at += 1;
    }
    all
};

/// Flags of the cookie (`RM_COOKIE_…`).
pub(crate) const COOKIE_HASH_MIX: u8 = 1;
pub(crate) const COOKIE_MPI: u8 = 2;
pub(crate) const COOKIE_RCCL: u8 = 4;
pub(crate) const COOKIE_SPLIT_TEXT: u8 = 8;
pub(crate) const COOKIE_INT_HANDLES: u8 = 0x10;
pub(crate) const COOKIE_UNNUMBERED: u8 = 0x20;
pub(crate) const COOKIE_P2P: u8 = 0x40;

const NO_ARG: u8 = 0xff;
/// `RM_WORLD_ARG`.
const WORLD_ARG: u8 = 0xfe;

/// The cookie of a function's probe for the BPF programs.
pub(crate) fn cookie(index: usize, file_flags: u8) -> u64 {
    let Some(function) = FUNCTIONS.get(index) else {
        return 0;
    };
    let mut flags = file_flags | if function.api == Api::Mpi { COOKIE_MPI } else { 0 };
    match function.numbered {
        Numbered::Collective => {}
        // waits, too, are left out under load
        Numbered::PointToPoint => flags |= COOKIE_P2P,
        Numbered::No => flags |= COOKIE_UNNUMBERED,
    }
    let comm = match function.comm {
        Comm::None => NO_ARG,
        Comm::At(position) => position,
        Comm::World => WORLD_ARG,
    };
    let kind = function.kind.or(function.stream).unwrap_or(NO_ARG);
    let made_at = function.made_at.unwrap_or(NO_ARG);
    u64::from_le_bytes([index as u8, function.role as u8, function.args, comm, flags, counter(function), kind, made_at])
}

/// Which of a communicator's counters counts a function: those of one name share one. Calls without
/// a communicator, and those that are not numbered, have none.
fn counter(function: &Function) -> u8 {
    let counted = |f: &&Function| {
        f.api == function.api && f.role.is_recorded() && f.comm != Comm::None && f.numbered != Numbered::No
    };
    let mut names: Vec<&str> = vec![];
    for other in FUNCTIONS.iter().filter(counted) {
        if !names.contains(&other.name) {
            names.push(other.name);
        }
    }
    names.iter().position(|name| *name == function.name).map_or(NO_ARG, |at| at as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{COUNTERS, MAX_ARGS, SLOT_OFFCPU};

    fn index_of(symbol: &str) -> usize {
        FUNCTIONS.iter().position(|f| f.symbols.contains(&symbol)).unwrap()
    }

    #[test]
    fn every_position_is_among_the_recorded_arguments() {
        assert!(FUNCTIONS.len() <= usize::from(SLOT_OFFCPU));
        for f in FUNCTIONS {
            assert!(!f.symbols.is_empty() && usize::from(f.args) <= MAX_ARGS, "{}", f.name);
            let positions = [f.comm.at(), f.count, f.datatype, f.op, f.root, f.stream, f.made_at];
            for at in positions.into_iter().flatten() {
                assert!(at < f.args, "{}: argument {at} of {}", f.name, f.args);
            }
        }
    }

    #[test]
    fn the_cookie_of_nccl_all_reduce() {
        assert_eq!(cookie(0, COOKIE_HASH_MIX), 0xff_06_00_01_05_07_00_00);
    }

    #[test]
    fn the_cookie_of_a_call_that_makes_a_communicator() {
        let split = index_of("MPI_Comm_split");
        let [func, role, args, comm, flags, counter, kind, made_at] = cookie(split, 0).to_le_bytes();
        assert_eq!((usize::from(func), role, args, comm), (split, Role::MpiMakes as u8, 4, 0));
        assert_eq!((flags, kind, made_at), (COOKIE_MPI, mpi::BY_COLOUR, 3));
        assert!(counter < COUNTERS);
    }

    #[test]
    fn names_of_one_operation_count_together() {
        let counts_as = |symbol: &str| cookie(index_of(symbol), 0).to_le_bytes()[5];
        assert_eq!(counts_as("ncclBcast"), counts_as("ncclBroadcast"));
        assert_eq!(counts_as("ncclAllReduceConfig"), counts_as("ncclAllReduce"));
        assert_ne!(counts_as("MPI_Allreduce"), counts_as("MPI_Bcast"));
        assert_eq!(counts_as("ncclCommDestroy"), NO_ARG);
        assert_eq!(counts_as("MPI_Wait"), NO_ARG, "it has no communicator that could count it");
        assert_eq!(counts_as("MPI_Comm_create_group"), NO_ARG, "only some of the ranks make it");
        let counters = |api: Api| FUNCTIONS.iter().filter(move |f| f.api == api).map(counter);
        for api in [Api::Nccl, Api::Mpi] {
            assert!(counters(api).all(|counter| counter < COUNTERS || counter == NO_ARG));
        }
    }

    #[test]
    fn no_symbol_twice() {
        let mut all: Vec<&str> = FUNCTIONS.iter().flat_map(|f| f.symbols).copied().collect();
        let n = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n);
    }
}
