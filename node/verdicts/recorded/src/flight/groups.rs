//! Which groups of several ranks' dumps are one: those of one name with the same ranks.
//!
//! A name alone does not tell: groups that are split off one and the same have one name. Where a
//! dump does not say who is in a group (Gloo's do not), those are that called on it; the default
//! group has all ranks.

use std::collections::{BTreeMap, BTreeSet};

use super::dump::{Config, Dump};
use super::lanes::{self, Lane};

/// The default group's description, and its name where it has that.
const DEFAULT: &str = "default_pg";
const DEFAULT_NAME: &str = "0";

/// A group and how far its ranks got.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) desc: String,
    /// Its ranks in the job, ascending: a rank's place is its rank in the group.
    pub(super) members: Vec<i32>,
    /// Of members with a dump; empty where a rank has not called on it.
    pub(super) lanes: BTreeMap<i32, Lane>,
    /// The ranks whose dumps say that it is.
    by: Vec<i32>,
}

/// The groups of a job.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) all: Vec<Group>,
    /// Ranks that have to be there, by what the dumps say.
    pub(super) ranks: BTreeSet<i32>,
    /// What cannot be told, or does not fit.
    pub(super) notes: Vec<String>,
}

/// Tells groups apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Ranks(String, Vec<i32>),
    /// The ranks are those of the group itself, which has so many.
    Own(String, String, usize),
    /// Nothing says who is in it.
    Named(String, String),
    Default(String),
}

impl Groups {
    pub(super) fn of(dumps: &BTreeMap<i32, Dump>) -> Self {
        let mut found = Self { ranks: dumps.keys().copied().collect(), ..Self::default() };
        let mut by_key: BTreeMap<Key, Group> = BTreeMap::new();
        for (&rank, dump) in dumps {
            let of_job = configured(dump).filter(|group| group.ranks.contains(&rank));
            found.ranks.extend(of_job.flat_map(|group| group.ranks.iter().copied()));
            // A group without a name is the last that Gloo made, by the ranks of the group.
            let own = dump.pg_config.values().filter(|group| group.name.is_empty());
            found.ranks.extend(own.flat_map(|group| group.ranks.iter().copied()));
            let mut lanes = lanes::of(dump);
            let mut add = |key: Key, name: &str, desc: &str, lane: Lane| {
                let group = by_key.entry(key).or_default();
                (group.name, group.desc) = (name.to_owned(), desc.to_owned());
                group.lanes.insert(rank, lane);
                group.by.push(rank);
            };
            for group in configured(dump) {
                let lane = lanes.remove(&group.name).unwrap_or_default();
                let mut ranks = group.ranks.clone();
                ranks.sort_unstable();
                ranks.dedup();
                let key = match ranks.contains(&rank) {
                    true => Key::Ranks(group.name.clone(), ranks),
                    false => Key::Own(group.name.clone(), group.desc.clone(), ranks.len()),
                };
                add(key, &group.name, &group.desc, lane);
            }
            for (name, lane) in lanes {
                let desc = lane.desc.clone();
                let key = if is_default(&name, &desc) {
                    Key::Default(name.clone())
                } else {
                    Key::Named(name.clone(), desc.clone())
                };
                add(key, &name, &desc, lane);
            }
        }
        found.settle(by_key, dumps);
        found
    }

    /// Gives each group its members.
    fn settle(&mut self, mut by_key: BTreeMap<Key, Group>, dumps: &BTreeMap<i32, Dump>) {
        let loose: Vec<Key> =
            by_key.keys().filter(|key| matches!(key, Key::Named(..) | Key::Default(_))).cloned().collect();
        for key in loose {
            // Another rank's dump may say who is in it.
            let (Key::Named(name, _) | Key::Default(name)) = &key else { continue };
            let known = |other: &&Key| {
                matches!(other, Key::Ranks(of, ranks) if of == name
                && by_key[&key].lanes.keys().all(|rank| ranks.contains(rank)))
            };
            let same: Vec<Key> = by_key.keys().filter(known).cloned().collect();
            if let [same] = same.as_slice()
                && let Some(group) = by_key.remove(&key)
                && let Some(into) = by_key.get_mut(same)
            {
                into.lanes.extend(group.lanes);
            }
        }
        for (key, mut group) in by_key {
            group.members = match &key {
                Key::Ranks(_, ranks) => ranks.clone(),
                Key::Default(_) => self.ranks.iter().copied().collect(),
                Key::Own(name, _, size) if group.lanes.len() > *size => {
                    self.notes.push(format!(
                        "group {name} is several of {size} ranks each, and the dumps do not say who is in which: left out"
                    ));
                    continue;
                }
                Key::Own(..) | Key::Named(..) => group.lanes.keys().copied().collect(),
            };
            // Who has a dump and no call on it has not entered its first.
            for rank in group.members.iter().filter(|rank| dumps.contains_key(rank)) {
                group.lanes.entry(*rank).or_default();
            }
            if group.members.len() > 1 {
                self.all.push(group);
            }
        }
        self.compare_members();
    }

    /// Groups of one name that share a rank, but not all: one of them was made by mistake.
    fn compare_members(&mut self) {
        for (at, one) in self.all.iter().enumerate() {
            for other in self.all[at + 1..].iter().filter(|other| other.name == one.name) {
                if one.members.iter().any(|rank| other.members.contains(rank)) {
                    let of = |group: &Group| (list(&group.by), list(&group.members));
                    let ((by, has), (by_other, has_other)) = (of(one), of(other));
                    self.notes.push(format!(
                        "group {} has other members by its ranks' own account: {has} of ranks {by}, {has_other} of ranks \
                         {by_other}",
                        one.label()
                    ));
                }
            }
        }
    }
}

impl Group {
    /// What a reader knows it by.
    pub(super) fn label(&self) -> String {
        match self.desc.as_str() {
            "" | "undefined" => self.name.clone(),
            desc if self.name.is_empty() => desc.to_owned(),
            desc => format!("{} ({desc})", self.name),
        }
    }

    /// A number that differs for different groups, and is the same whenever the same dumps are read.
    pub(super) fn hash(&self) -> u64 {
        let ranks = self.members.iter().flat_map(|rank| rank.to_le_bytes());
        let bytes = self.name.bytes().chain([0]).chain(self.desc.bytes()).chain([0]).chain(ranks);
        // FNV-1a.
        bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// A rank's number in the group.
    pub(super) fn place(&self, rank: i32) -> i32 {
        self.members.binary_search(&rank).ok().and_then(|at| i32::try_from(at).ok()).unwrap_or(rank)
    }
}

/// The groups of which a dump says who is in them.
pub(super) fn configured(dump: &Dump) -> impl Iterator<Item = &Config> {
    dump.pg_config.values().filter(|group| !group.name.is_empty() && !group.ranks.is_empty())
}

/// Whether a group of this name and description has all ranks.
pub(super) fn is_default(name: &str, desc: &str) -> bool {
    desc == DEFAULT || (name == DEFAULT_NAME && desc.is_empty())
}

/// "[0, 1, 2]", of many the first ones.
pub(super) fn list(ranks: &[i32]) -> String {
    const MOST: usize = 16;
    let shown: Vec<String> = ranks.iter().take(MOST).map(i32::to_string).collect();
    let more = if ranks.len() > MOST { format!(", … {} in all", ranks.len()) } else { String::new() };
    format!("[{}{more}]", shown.join(", "))
}
