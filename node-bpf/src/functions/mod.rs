//! The functions that are probed: their symbols, the positions of their arguments, and the cookie
//! for the BPF programs. The index in [`FUNCTIONS`] is the statistics slot. `nccl`, `mpi` and
//! `gloo` have the functions of each; `symbols` finds the symbols in a file.

mod function;
mod gloo;
mod mpi;
mod nccl;

pub(crate) use function::{Api, Comm, Function, Numbered, Role};
pub(crate) use mpi::{REQUEST, REQUESTS, REQUESTS_SOME};
pub(crate) use nccl::{datatype as nccl_datatype, reduction as nccl_op};

/// All of them. At most `RM_SLOT_OFFCPU`. Those of one name in one API count their calls together.
pub(crate) static FUNCTIONS: &[Function] = &{
    let mut all = [function::NONE; nccl::FUNCTIONS.len() + mpi::FUNCTIONS.len() + gloo::FUNCTIONS.len()];
    let (of_mpi, of_gloo) = (nccl::FUNCTIONS.len(), nccl::FUNCTIONS.len() + mpi::FUNCTIONS.len());
    let mut at = 0;
    while at < all.len() {
        all[at] = if at < of_mpi {
            nccl::FUNCTIONS[at]
        } else if at < of_gloo {
            mpi::FUNCTIONS[at - of_mpi]
        } else {
            gloo::FUNCTIONS[at - of_gloo]
        };
        at += 1;
    }
    all
};

/// The index of the entry for what is said of a communicator that was just made.
pub(crate) fn comm_begin() -> u8 {
    index_of(mpi::COMM_BEGIN)
}

/// The index of the entry for a message that a request is for.
pub(crate) fn message_of_request(sends: bool) -> u8 {
    index_of(if sends { mpi::ISEND } else { mpi::IRECV })
}

fn index_of(name: &str) -> u8 {
    FUNCTIONS.iter().position(|function| function.name == name).map_or(u8::MAX, |at| at as u8)
}

/// The name that the `collectives` table has for calls of a library's function, by its symbol: where
/// a stack has it, the thread is in such a call.
#[must_use]
pub fn call_name(symbol: &str) -> Option<&'static str> {
    let function = FUNCTIONS.iter().find(|function| function.symbols.contains(&symbol))?;
    function.role.is_recorded().then_some(function.name)
}

/// Flags of the cookie (`RM_COOKIE_…`).
pub(crate) const COOKIE_HASH_MIX: u8 = 1;
pub(crate) const COOKIE_MPI: u8 = 2;
pub(crate) const COOKIE_RCCL: u8 = 4;
/// Of MPI: its counts are words of 64 bits.
pub(crate) const COOKIE_LARGE_COUNTS: u8 = 4;
pub(crate) const COOKIE_SPLIT_TEXT: u8 = 8;
pub(crate) const COOKIE_INT_HANDLES: u8 = 0x10;
pub(crate) const COOKIE_UNNUMBERED: u8 = 0x20;
pub(crate) const COOKIE_P2P: u8 = 0x40;
pub(crate) const COOKIE_GLOO: u8 = 0x80;

pub(crate) const NO_ARG: u8 = 0xff;
/// `RM_WORLD_ARG`.
const WORLD_ARG: u8 = 0xfe;

/// The cookie of a function's probe for the BPF programs.
pub(crate) fn cookie(index: usize, file_flags: u8) -> u64 {
    let Some(function) = FUNCTIONS.get(index) else {
        return 0;
    };
    let mut flags = file_flags
        | match function.api {
            Api::Nccl => 0,
            Api::Mpi => COOKIE_MPI,
            Api::Gloo => COOKIE_GLOO,
        };
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
    let starts = function.starts.map(index_of);
    let kind = function.kind.or(function.stream).or(starts).unwrap_or(NO_ARG);
    let made_at = function.made_at.unwrap_or(NO_ARG);
    u64::from_le_bytes([index as u8, function.role as u8, function.args, comm, flags, counter(function), kind, made_at])
}

/// Whether programs may call a function often: not those that make or free communicators, which are
/// few, and without which the others' calls have no place.
pub(crate) fn is_frequent(cookie: u64) -> bool {
    let role = cookie.to_le_bytes()[1];
    [Role::Call, Role::MpiBegins, Role::MpiStarts].iter().any(|frequent| role == *frequent as u8)
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

    fn index_of_symbol(symbol: &str) -> usize {
        FUNCTIONS.iter().position(|f| f.symbols.contains(&symbol)).unwrap()
    }

    #[test]
    fn every_position_is_among_the_recorded_arguments() {
        assert!(FUNCTIONS.len() <= usize::from(SLOT_OFFCPU));
        for f in FUNCTIONS {
            assert!(!f.symbols.is_empty() || [mpi::COMM_BEGIN, mpi::IRECV, mpi::ISEND].contains(&f.name), "{}", f.name);
            assert!(usize::from(f.args) <= MAX_ARGS, "{}", f.name);
            let positions = [f.comm.at(), f.count, f.datatype, f.op, f.root, f.tag, f.stream, f.made_at];
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
        let split = index_of_symbol("MPI_Comm_split");
        let [func, role, args, comm, flags, counter, kind, made_at] = cookie(split, 0).to_le_bytes();
        assert_eq!((usize::from(func), role, args, comm), (split, Role::MpiMakes as u8, 4, 0));
        assert_eq!((flags, kind, made_at), (COOKIE_MPI, mpi::BY_COLOUR, 3));
        assert!(counter < COUNTERS);
    }

    #[test]
    fn names_of_one_operation_count_together() {
        let counts_as = |symbol: &str| cookie(index_of_symbol(symbol), 0).to_le_bytes()[5];
        assert_eq!(counts_as("ncclBcast"), counts_as("ncclBroadcast"));
        assert_eq!(counts_as("ncclAllReduceConfig"), counts_as("ncclAllReduce"));
        assert_ne!(counts_as("MPI_Allreduce"), counts_as("MPI_Bcast"));
        assert_eq!(counts_as("ncclCommDestroy"), NO_ARG);
        assert_eq!(counts_as("MPI_Wait"), NO_ARG, "it has no communicator that could count it");
        assert_eq!(counts_as("MPI_Comm_create_group"), NO_ARG, "only some of the ranks make it");
        let counters = |api: Api| FUNCTIONS.iter().filter(move |f| f.api == api).map(counter);
        for api in [Api::Nccl, Api::Mpi, Api::Gloo] {
            assert!(counters(api).all(|counter| counter < COUNTERS || counter == NO_ARG));
        }
    }

    #[test]
    fn calls_are_known_by_their_symbols() {
        let names = ["MPI_Barrier", "PMPI_Allreduce", "ncclBcast", "MPI_Waitall"].map(call_name);
        assert_eq!(names, [Some("barrier"), Some("all_reduce"), Some("broadcast"), Some("wait_all")]);
        assert_eq!(["main", "MPI_Comm_group", "ncclGetUniqueId"].map(call_name), [None; 3]);
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
