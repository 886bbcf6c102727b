//! The files that processes have mapped and that are probed: who maps each, whose they are counted
//! to, and which nobody maps any more. Knows neither probes nor `/proc`: `attaching` fills it.
//!
//! A file is counted to the user of the first process that was found to map it. Each user may have
//! so many; what is not mapped any more is given back, and its probes are taken away, since a probe
//! pins the file's whole file system.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::{Duration, Instant};

use crate::maps::FileKey;

/// Files of one user, and of root, whose containers and libraries all are counted to it.
pub(super) const MOST_OF_USER: usize = 64;
pub(super) const MOST_OF_ROOT: usize = 512;
/// How long a file stays probed that nobody maps: one program begins where another ends.
const UNUSED: Duration = Duration::from_secs(2);

/// A file, with what was done to it for each kind of probes.
#[derive(Debug)]
pub(super) struct MappedFile<K, S> {
    pub(super) user: u32,
    pids: HashSet<u32>,
    unused: Option<Instant>,
    pub(super) kinds: HashMap<K, S>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct MappedFiles<K, S> {
    files: HashMap<FileKey, MappedFile<K, S>>,
    by_pid: HashMap<u32, HashSet<FileKey>>,
    /// Processes with files for which there was no room.
    turned_away: HashSet<(u32, u32)>,
}

/// A file with what it is known by.
pub(super) type KeyedFile<K, S> = (FileKey, MappedFile<K, S>);

impl<K, S> Default for MappedFiles<K, S> {
    fn default() -> Self {
        Self { files: HashMap::new(), by_pid: HashMap::new(), turned_away: HashSet::new() }
    }
}

impl<K: Eq + Hash, S> MappedFiles<K, S> {
    /// The file, which this process of this user maps; none where the user has too many.
    pub(super) fn mapped(&mut self, key: &FileKey, pid: u32, user: u32) -> Option<&mut MappedFile<K, S>> {
        let most = if user == 0 { MOST_OF_ROOT } else { MOST_OF_USER };
        let known = self.files.contains_key(key);
        if !known && self.files.values().filter(|file| file.user == user).count() >= most {
            self.turned_away.insert((user, pid));
            return None;
        }
        self.by_pid.entry(pid).or_default().insert(key.clone());
        let new = || MappedFile { user, pids: HashSet::new(), unused: None, kinds: HashMap::new() };
        let file = self.files.entry(key.clone()).or_insert_with(new);
        file.pids.insert(pid);
        file.unused = None;
        Some(file)
    }

    pub(super) fn file(&mut self, key: &FileKey) -> Option<&mut MappedFile<K, S>> {
        self.files.get_mut(key)
    }

    /// Forgets what was done, where `of` says so. Returns these files, and the processes that map them.
    pub(super) fn forget_kinds(&mut self, of: impl Fn(&K, &S) -> bool) -> (Vec<FileKey>, Vec<u32>) {
        let (mut keys, mut pids) = (vec![], vec![]);
        for (key, file) in &mut self.files {
            let before = file.kinds.len();
            file.kinds.retain(|kind, state| !of(kind, state));
            if file.kinds.len() < before {
                keys.push(key.clone());
                pids.extend(&file.pids);
            }
        }
        (keys, pids)
    }

    /// What was done, of all files.
    pub(super) fn kinds_mut(&mut self) -> impl Iterator<Item = &mut S> {
        self.files.values_mut().flat_map(|file| file.kinds.values_mut())
    }

    /// The same, each with its file.
    pub(super) fn states_mut(&mut self) -> impl Iterator<Item = (&FileKey, &mut S)> {
        self.files.iter_mut().flat_map(|(key, file)| file.kinds.values_mut().map(move |state| (key, state)))
    }

    /// The processes that map a file.
    pub(super) fn pids(&self, key: &FileKey) -> Vec<u32> {
        self.files.get(key).map(|file| file.pids.iter().copied().collect()).unwrap_or_default()
    }

    /// A process maps these files now, and of those known no others.
    pub(super) fn maps_only(&mut self, pid: u32, keys: &HashSet<FileKey>, now: Instant) {
        let Some(of_pid) = self.by_pid.get_mut(&pid) else { return };
        let left: Vec<FileKey> = of_pid.extract_if(|key| !keys.contains(key)).collect();
        if of_pid.is_empty() {
            self.by_pid.remove(&pid);
        }
        for key in left {
            let Some(file) = self.files.get_mut(&key) else { continue };
            file.pids.remove(&pid);
            if file.pids.is_empty() {
                file.unused = Some(now);
            }
        }
    }

    /// A process has ended, or runs another program.
    pub(super) fn ended(&mut self, pid: u32, now: Instant) {
        self.maps_only(pid, &HashSet::new(), now);
        self.turned_away.retain(|(_, of)| *of != pid);
    }

    /// The processes of which files are known.
    pub(super) fn known_pids(&self) -> Vec<u32> {
        self.by_pid.keys().copied().collect()
    }

    /// Takes out the files that nobody has mapped for a while, and the processes for whose files
    /// there may be room now.
    pub(super) fn take_unused(&mut self, now: Instant) -> (Vec<KeyedFile<K, S>>, Vec<u32>) {
        let is_over = |file: &MappedFile<K, S>| file.unused.is_some_and(|since| now.duration_since(since) >= UNUSED);
        let unused: Vec<_> = self.files.extract_if(|_, file| is_over(file)).collect();
        let users: HashSet<u32> = unused.iter().map(|(_, file)| file.user).collect();
        let again = self.turned_away.extract_if(|(user, _)| users.contains(user)).map(|(_, pid)| pid).collect();
        (unused, again)
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> FileKey {
        (b"08:01".to_vec(), n as u64)
    }

    #[test]
    fn one_user_takes_no_others_room_and_gets_hers_back() {
        let (mut files, now) = (MappedFiles::<u8, ()>::default(), Instant::now());
        let taken = (0..300).filter(|n| files.mapped(&key(*n), 7, 65_534).is_some()).count();
        assert_eq!(taken, MOST_OF_USER);
        assert!(files.mapped(&key(900), 8, 1_000).is_some(), "another user");
        assert!(files.mapped(&key(0), 9, 1_001).is_some(), "one that is probed, for whoever maps it");
        files.ended(7, now);
        assert!(files.mapped(&key(800), 10, 65_534).is_none(), "not yet");
        let (unused, again) = files.take_unused(now + UNUSED);
        assert_eq!((unused.len(), again), (MOST_OF_USER - 1, vec![10]), "one is mapped by somebody else");
        assert!(files.mapped(&key(800), 10, 65_534).is_some());
    }

    #[test]
    fn a_file_is_kept_as_long_as_anybody_maps_it() {
        let (mut files, now) = (MappedFiles::<u8, ()>::default(), Instant::now());
        for pid in [1, 2] {
            files.mapped(&key(1), pid, 5).unwrap();
        }
        files.mapped(&key(2), 1, 5).unwrap();
        files.maps_only(1, &HashSet::from([key(2)]), now);
        assert!(files.take_unused(now + 2 * UNUSED).0.is_empty());
        assert_eq!(files.pids(&key(1)), [2]);
        files.ended(2, now);
        assert!(files.take_unused(now).0.is_empty(), "for a while");
        files.mapped(&key(1), 3, 6).unwrap();
        assert!(files.take_unused(now + 2 * UNUSED).0.is_empty(), "mapped again");
        files.ended(3, now);
        let (unused, _) = files.take_unused(now + UNUSED);
        assert_eq!(unused.iter().map(|(key, _)| key.1).collect::<Vec<_>>(), [1]);
        assert_eq!(files.known_pids(), [1]);
    }
}
