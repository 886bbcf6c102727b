//! Whose entries the programs' maps hold (`bpf/users.bpf.h`, `rooms.bpf.h`): what user space adds to the count and
//! takes from it. The programs count what they make and remove, user space what it makes and
//! removes, in a map that only it writes; what a user holds is the sum of both. She holds at most as
//! much of a kind as all users together leave free.

use std::collections::HashMap;

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, Object};

use crate::lookup;
use crate::wire::EVERYBODY;

/// `RM_ROOM_KINDS`, and of these those that user space knows by name.
const KINDS: usize = 16;
const PROCESS: usize = 0;
const CHILD: usize = 1;
/// `RM_ROOM_TALLY_0`, and then that of the other epoch.
const TALLY: usize = 7;
const CONNECTION: usize = 9;
const STREAM: usize = 10;
const CALLER: usize = 11;
/// `RM_FURTHER_USERS`: for whom there is no count of their own.
const FURTHER_USERS: u32 = u32::MAX - 1;
/// `RM_MOST_PROCESSES`.
const MOST_PROCESSES: i64 = 16_384;

/// What a user holds, by kind (`struct rm_user`).
type Held = [i64; KINDS];

/// The counts by user of an object's programs, and our own.
#[derive(Debug)]
pub(crate) struct Users {
    users: MapHandle,
    by_agent: MapHandle,
    /// As `users_by_agent` has them.
    counts: Counts,
}

impl Users {
    /// # Errors
    /// The object has no such maps, or they take no entries.
    pub(crate) fn new(object: &Object) -> libbpf_rs::Result<Self> {
        let map = |name| lookup::map(object, name);
        let users = Users { users: map("users")?, by_agent: map("users_by_agent")?, counts: Counts::default() };
        for user in [EVERYBODY, FURTHER_USERS] {
            users.users.update(&user.to_ne_bytes(), &to_bytes(&[0; KINDS]), MapFlags::ANY)?;
        }
        Ok(users)
    }

    /// The user that she is counted as.
    pub(crate) fn counted_as(&self, user: u32) -> u32 {
        let made = self.users.update(&user.to_ne_bytes(), &to_bytes(&[0; KINDS]), MapFlags::NO_EXIST);
        match made {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => FURTHER_USERS,
            _ => user,
        }
    }

    /// A connection was removed that the programs had made.
    pub(crate) fn connection_left(&mut self, user: u32) {
        self.add(user, CONNECTION, -1);
    }

    /// A process is no child any more that the programs had taken for one.
    pub(crate) fn child_left(&mut self, user: u32) {
        self.add(user, CHILD, -1);
    }

    /// A stream was removed that the programs had made.
    pub(crate) fn stream_left(&mut self, user: u32) {
        self.add(user, STREAM, -1);
    }

    /// A thread was removed whose calls are requests, which the programs had made.
    pub(crate) fn caller_left(&mut self, user: u32) {
        self.add(user, CALLER, -1);
    }

    fn held(&self, user: u32, kind: usize) -> i64 {
        self.counts.held(user)[kind] + read(&self.users, user)[kind]
    }

    fn add(&mut self, user: u32, kind: usize, count: i64) {
        self.counts.add(user, kind, count);
        self.write(user);
    }

    /// Tells the programs what is counted here of a user and of all.
    fn write(&self, user: u32) {
        for user in [user, EVERYBODY] {
            let bytes = to_bytes(&self.counts.held(user));
            if let Err(error) = self.by_agent.update(&user.to_ne_bytes(), &bytes, MapFlags::ANY) {
                tracing::debug!(user, %error, "what this user's processes hold is not counted");
            }
        }
    }
}

/// The programs' map of what each process holds.
#[derive(Debug)]
pub(crate) struct Rooms {
    rooms: MapHandle,
    users: Users,
}

/// A process is not followed: its user has as many as there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom {
    /// So many are followed of hers.
    pub(crate) held: i64,
}

impl Rooms {
    /// # Errors
    /// As of [`Users::new`].
    pub(crate) fn new(object: &Object) -> libbpf_rs::Result<Self> {
        Ok(Rooms { rooms: lookup::map(object, "rooms")?, users: Users::new(object)? })
    }

    /// Makes room for a process of a user that is to be followed; it may have one.
    pub(crate) fn enter(&mut self, pid: u32, user: u32) -> Result<(), NoRoom> {
        if has(&self.rooms, pid) {
            return Ok(());
        }
        let user = self.users.counted_as(user);
        let held = self.users.held(user, PROCESS);
        if !fits(held, self.users.held(EVERYBODY, PROCESS), MOST_PROCESSES) {
            return Err(NoRoom { held });
        }
        let mut room = [0; 4 + KINDS * 4];
        room[..4].copy_from_slice(&user.to_ne_bytes());
        // else the programs have been quicker
        if self.rooms.update(&pid.to_ne_bytes(), &room, MapFlags::NO_EXIST).is_ok() {
            self.users.add(user, PROCESS, 1);
        }
        Ok(())
    }

    /// A process's entries in the maps are removed.
    pub(crate) fn leave(&mut self, pid: u32) {
        let key = pid.to_ne_bytes();
        let room = self.rooms.lookup(&key, MapFlags::ANY).ok().flatten();
        if let Some((user, held)) = room.as_deref().and_then(parse_room)
            && self.rooms.delete(&key).is_ok()
        {
            self.users.counts.gives(user, &held);
            self.users.write(user);
        }
    }

    /// An entry of `children` was removed, its value (`struct rm_child`) being this.
    pub(crate) fn child_left(&mut self, value: &[u8]) {
        if let Some(user) = word(value, 4) {
            self.users.add(user, CHILD, -1);
        }
    }

    /// The counts of an epoch's calls were taken out, and the programs write to it no more.
    pub(crate) fn tallies_left(&mut self, epoch: usize) {
        let Users { users, counts, .. } = &mut self.users;
        let mut changed = vec![];
        for user in users.keys().filter_map(|key| word(&key, 0)) {
            let held = -read(users, user)[TALLY + epoch];
            if counts.held(user)[TALLY + epoch] != held {
                counts.by_user.entry(user).or_default()[TALLY + epoch] = held;
                changed.push(user);
            }
        }
        changed.into_iter().for_each(|user| self.users.write(user));
    }
}

/// Room in what user space alone fills, by the same rule.
#[derive(Debug)]
pub(crate) struct Share {
    most: i64,
    all: i64,
    by_user: HashMap<u32, i64>,
}

impl Share {
    pub(crate) fn of(most: usize) -> Share {
        Share { most: most as i64, all: 0, by_user: HashMap::new() }
    }

    /// Room for one more of a user's; false where there is none.
    pub(crate) fn take(&mut self, user: u32) -> bool {
        let hers = self.by_user.entry(user).or_default();
        let fits = fits(*hers, self.all, self.most);
        if fits {
            *hers += 1;
            self.all += 1;
        }
        fits
    }

    pub(crate) fn give(&mut self, user: u32, count: i64) {
        if let Some(hers) = self.by_user.get_mut(&user) {
            *hers -= count;
            self.all -= count;
            if *hers == 0 {
                self.by_user.remove(&user);
            }
        }
    }
}

/// What is counted here: below 0 where the programs have made what was removed here.
#[derive(Debug, Default)]
struct Counts {
    by_user: HashMap<u32, Held>,
}

impl Counts {
    fn held(&self, user: u32) -> Held {
        self.by_user.get(&user).copied().unwrap_or_default()
    }

    /// Of a user, and of all.
    fn add(&mut self, user: u32, kind: usize, count: i64) {
        for user in [user, EVERYBODY] {
            self.by_user.entry(user).or_default()[kind] += count;
        }
    }

    /// A process has left, which held these.
    fn gives(&mut self, user: u32, held: &Held) {
        self.add(user, PROCESS, -1);
        for (kind, held) in held.iter().enumerate().filter(|(_, held)| **held != 0) {
            self.add(user, kind, -held);
        }
    }
}

/// Whether a user who holds `hers` may have one more, of `most`, of which all hold `all`.
fn fits(hers: i64, all: i64, most: i64) -> bool {
    hers < most - all
}

fn has(rooms: &MapHandle, pid: u32) -> bool {
    rooms.lookup(&pid.to_ne_bytes(), MapFlags::ANY).ok().flatten().is_some()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// `struct rm_room`.
fn parse_room(bytes: &[u8]) -> Option<(u32, Held)> {
    let mut held = [0; KINDS];
    for (kind, held) in held.iter_mut().enumerate() {
        *held = i64::from(word(bytes, 4 + kind * 4)?);
    }
    Some((word(bytes, 0)?, held))
}

/// `struct rm_user` of a user; she holds nothing where there is none.
fn read(users: &MapHandle, user: u32) -> Held {
    let bytes = users.lookup(&user.to_ne_bytes(), MapFlags::ANY).ok().flatten().unwrap_or_default();
    let mut held = [0; KINDS];
    for (held, word) in held.iter_mut().zip(bytes.chunks_exact(8)) {
        *held = word.try_into().map_or(0, i64::from_ne_bytes);
    }
    held
}

fn to_bytes(held: &Held) -> Vec<u8> {
    held.iter().flat_map(|held| held.to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a user enter processes until she is refused.
    fn fill(counts: &mut Counts, user: u32) -> i64 {
        let before = counts.held(user)[PROCESS];
        while fits(counts.held(user)[PROCESS], counts.held(EVERYBODY)[PROCESS], MOST_PROCESSES) {
            counts.add(user, PROCESS, 1);
        }
        counts.held(user)[PROCESS] - before
    }

    #[test]
    fn one_user_alone_gets_half_and_the_next_always_finds_room() {
        let mut counts = Counts::default();
        let got: Vec<i64> = (1000..1006).map(|user| fill(&mut counts, user)).collect();
        assert_eq!(got, [8192, 4096, 2048, 1024, 512, 256]);
        assert_eq!(fill(&mut counts, 1000), 0, "she has her share");
    }

    #[test]
    fn what_ends_is_given_back_to_whose_it_was() {
        let mut counts = Counts::default();
        assert_eq!((fill(&mut counts, 1), fill(&mut counts, 2)), (8192, 4096));
        let mut held = [0; KINDS];
        held[2] = 1000;
        for _ in 0..8192 {
            counts.gives(1, &held);
        }
        assert_eq!((counts.held(1)[PROCESS], counts.held(EVERYBODY)[PROCESS]), (0, 4096));
        assert_eq!(counts.held(1)[2], -8_192_000, "the programs have counted these");
        assert_eq!(fill(&mut counts, 2), 4096);
        assert_eq!(fill(&mut counts, 1), 4096, "as much as the other leaves");
    }

    #[test]
    fn what_is_given_back_of_a_share_can_be_taken_again() {
        let mut share = Share::of(16);
        assert_eq!((0..20).filter(|_| share.take(1)).count(), 8);
        assert_eq!((0..20).filter(|_| share.take(2)).count(), 4);
        share.give(1, 8);
        share.give(3, 5);
        assert_eq!((0..20).filter(|_| share.take(3)).count(), 6, "as many as are left free");
        assert!(!share.by_user.contains_key(&1), "nobody is kept who holds nothing");
    }

    #[test]
    fn a_room_reads_back_and_bytes_of_another_size_are_none() {
        let mut bytes = vec![];
        bytes.extend(65_534u32.to_ne_bytes());
        (0..16u32).for_each(|kind| bytes.extend((kind * 3).to_ne_bytes()));
        let (user, held) = parse_room(&bytes).unwrap();
        assert_eq!((user, held[PROCESS], held[15]), (65_534, 0, 45));
        assert_eq!(parse_room(&bytes[..67]), None);
    }
}
