//! Open MPI: the offsets of the fields of a communicator (`ompi_communicator_t`), its group and a
//! group's members. Told by three predefined communicators: MPI_COMM_WORLD, in which the process is
//! rank r of n; MPI_COMM_SELF, rank 0 of 1; MPI_COMM_NULL, rank -2 (MPI_PROC_NULL) of 0.

use super::place::{Known, sane};
use crate::memory::Memory;
use crate::mpi::Objects;
use crate::wire::RawMpi;

/// Bytes of a communicator, of a group, and of a member that are looked at.
const COMM_BYTES: usize = 512;
const GROUP_BYTES: usize = 64;
const MEMBER_BYTES: usize = 128;
/// Of so many members one is looked for that has been used.
const MOST_OTHERS: u32 = 64;
/// MPI_PROC_NULL.
const NOBODY: u32 = -2i32 as u32;

/// Byte offsets. `name_at` 0: not found (then `members_at` is of no use).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offsets {
    /// In a communicator: `c_my_rank`, `c_local_group`, `c_remote_group`.
    pub(super) rank_at: u32,
    pub(super) group_at: u32,
    pub(super) remote_at: u32,
    /// In a group: `grp_proc_count`, `grp_proc_pointers`.
    pub(super) size_at: u32,
    pub(super) members_at: u32,
    /// In a member: its name, job and rank.
    pub(super) name_at: u32,
}

impl Offsets {
    pub(super) fn fill(self, raw: RawMpi) -> RawMpi {
        let Offsets { rank_at, group_at, remote_at, size_at, members_at, name_at } = self;
        RawMpi { rank_at, group_at, remote_at, size_at, members_at, name_at, ..raw }
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect()
}

fn addresses(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// Where only these three have what they must have.
pub(super) fn find(memory: Memory, objects: Objects, known: Known) -> Option<Offsets> {
    let Objects { world, own, none, no_group } = objects;
    let [world, own, none] = [world, own, none].map(|at| memory.bytes(at, COMM_BYTES));
    let (world, own, none) = (world?, own?, none?);
    let is_rank = |[world, own, none]: [u32; 3]| (world, own, none) == (known.rank, 0, NOBODY);
    let rank_at = only(of_each(&words(&world), &words(&own), &words(&none)).map(is_rank))? * 4;
    let mut groups =
        addresses(&none).into_iter().enumerate().filter(|(_, address)| *address == no_group && no_group != 0);
    let (local, remote) = (groups.next()?.0, groups.next()?.0);

    let group = |comm: &[u8]| memory.bytes(*addresses(comm).get(local)?, GROUP_BYTES);
    let (of_world, of_own, of_none) = (group(&world)?, group(&own)?, group(&none)?);
    // the size, and behind it the rank in the group
    let (a, b, c) = (words(&of_world), words(&of_own), words(&of_none));
    let is_size = |at: usize| {
        let pair = |words: &[u32]| Some((*words.get(at)?, *words.get(at + 1)?));
        pair(&a) == Some((known.size, known.rank)) && pair(&b) == Some((1, 0)) && pair(&c) == Some((0, NOBODY))
    };
    let size_at = only((0..a.len()).map(is_size))? * 4;
    let (members_at, name_at) = members(memory, &addresses(&of_world), &addresses(&of_own), known).unwrap_or_default();
    let [rank_at, size_at] = [rank_at, size_at].map(|at| u32::try_from(at).ok());
    let [group_at, remote_at, members_at] = [local, remote, members_at].map(|at| u32::try_from(at * 8).ok());
    Some(Offsets {
        rank_at: rank_at?,
        group_at: group_at?,
        remote_at: remote_at?,
        size_at: size_at?,
        members_at: members_at?,
        name_at,
    })
}

/// Rank and size of a communicator.
pub(super) fn place(memory: Memory, raw: &RawMpi, comm: u64) -> Option<(i32, i32)> {
    if raw.rank_at == 0 {
        return None;
    }
    let number = |at: u64| memory.array(at).map(i32::from_ne_bytes);
    let group = memory.word(comm.checked_add(u64::from(raw.group_at))?)?;
    sane(number(comm.checked_add(u64::from(raw.rank_at))?)?, number(group.checked_add(u64::from(raw.size_at))?)?)
}

/// The members in a group, as an index of addresses, and the name in a member: this process is the
/// first of its own group and as its rank says in the world's, and its name is its job and rank.
/// Where no launcher says the job (Open MPI 5), another member has the same one before its own rank.
fn members(memory: Memory, of_world: &[u64], of_own: &[u64], known: Known) -> Option<(usize, u32)> {
    of_own.iter().zip(of_world).enumerate().find_map(|(at, (own, world))| {
        let me = memory.word(*own)?;
        let in_world = |rank: u32| memory.word(world.checked_add(u64::from(rank) * 8)?);
        if me != in_world(known.rank)? || me & 1 == 1 {
            return None;
        }
        let words = |member: u64| memory.bytes(member, MEMBER_BYTES).map(|bytes| addresses(&bytes));
        let mine = words(me)?;
        let is_named = |word: u64, rank: u32, job: u64| word == u64::from(rank) << 32 | job;
        let name_at = match known.job {
            Some(job) => mine.iter().position(|word| is_named(*word, known.rank, job.into()))?,
            None => {
                let others = (0..known.size.min(MOST_OTHERS)).filter(|rank| *rank != known.rank);
                let used = |rank: &u32| in_world(*rank).is_some_and(|member| member & 1 == 0);
                let other = others.into_iter().find(used)?;
                let theirs = words(in_world(other)?)?;
                mine.iter().zip(&theirs).position(|(mine, theirs)| {
                    let job = mine & u64::from(u32::MAX);
                    job != 0 && is_named(*mine, known.rank, job) && is_named(*theirs, other, job)
                })?
            }
        };
        Some((at, u32::try_from(name_at * 8).ok()?))
    })
}

fn of_each<'a>(a: &'a [u32], b: &'a [u32], c: &'a [u32]) -> impl Iterator<Item = [u32; 3]> + 'a {
    a.iter().zip(b).zip(c).map(|((a, b), c)| [*a, *b, *c])
}

/// The only index at which it is so.
fn only(are: impl Iterator<Item = bool>) -> Option<usize> {
    let mut found = are.enumerate().filter(|(_, is)| *is).map(|(at, _)| at);
    let first = found.next()?;
    found.next().is_none().then_some(first)
}
