//! Who runs which job, and so who judges it, by what members say of themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gossip::{Member, MemberState};
use standing::{DeadHosts, Presence, judges};

/// The gossip key under which a host says its jobs: a version, then their keys in hexadecimal.
pub(in super::super) const JOBS: &str = "jobs";
/// The version of that.
const VERSION: &str = "1";

/// The text of [`JOBS`].
pub(super) fn jobs_text(jobs: &BTreeSet<u64>) -> String {
    jobs.iter().fold(VERSION.to_owned(), |text, job| format!("{text} {job:x}"))
}

/// The jobs that a text says; none that cannot be read.
fn read_jobs(text: &str) -> impl Iterator<Item = u64> {
    text.split(' ').skip(1).filter_map(|job| u64::from_str_radix(job, 16).ok())
}

/// The jobs that a member says it runs.
pub(super) fn jobs_of(member: &Member) -> impl Iterator<Item = u64> {
    member.facts.extra.get(JOBS).into_iter().flat_map(|text| read_jobs(text))
}

/// The members of the mesh, as far as judging is concerned.
#[derive(Debug, Clone, Default)]
pub(super) struct Roster {
    own: String,
    /// Whether each member is there.
    pub(super) presence: BTreeMap<String, Presence>,
    /// Live hosts of this host's jobs, by name.
    hosts: BTreeMap<u64, Arc<BTreeSet<String>>>,
    /// Dead hosts of this host's jobs, as long as the mesh lists them.
    dead: BTreeMap<u64, DeadHosts>,
    /// Those of the live ones whose gossip does not come here: they are in other cells.
    elsewhere: BTreeSet<String>,
    /// Hosts of cells that name not all their jobs.
    unclear: BTreeSet<String>,
    /// Those of which it is not known whether they live.
    unconfirmed: BTreeSet<String>,
}

impl Roster {
    /// By a list of members; `own_jobs` are those of this host, whose name is `own`.
    pub(super) fn update(&mut self, own: &str, own_jobs: &BTreeSet<u64>, list: &[Member]) {
        self.own = own.to_owned();
        self.presence.clear();
        self.elsewhere.clear();
        self.unclear.clear();
        self.unconfirmed.clear();
        self.hosts = own_jobs.iter().map(|job| (*job, Arc::new(BTreeSet::from([own.to_owned()])))).collect();
        self.dead = own_jobs.iter().map(|job| (*job, DeadHosts::default())).collect();
        for member in list {
            let presence = match member.state {
                // Who may live is missing where it sends nothing.
                MemberState::Live | MemberState::Unconfirmed => Presence::Live,
                MemberState::Dead => Presence::Dead,
            };
            if member.state == MemberState::Unconfirmed {
                self.unconfirmed.insert(member.name.clone());
            }
            self.presence.insert(member.name.clone(), presence);
            if member.is_self {
                continue;
            }
            if presence == Presence::Dead {
                self.miss(member);
                continue;
            }
            if member.facts.extra.contains_key(gossip::JOBS_CUT) {
                self.unclear.insert(member.name.clone());
            }
            for job in jobs_of(member) {
                if let Some(hosts) = self.hosts.get_mut(&job) {
                    Arc::make_mut(hosts).insert(member.name.clone());
                    if member.seat.elsewhere {
                        self.elsewhere.insert(member.name.clone());
                    }
                }
            }
        }
    }

    /// Takes in a dead member: by what it said last, or where that is not known (this agent was
    /// started again since) perhaps a host of any job.
    fn miss(&mut self, member: &Member) {
        let name = || member.name.clone();
        if !member.facts.extra.contains_key(JOBS) {
            self.dead.values_mut().for_each(|dead| Arc::make_mut(&mut dead.perhaps).extend([name()]));
        }
        for job in jobs_of(member) {
            if let Some(dead) = self.dead.get_mut(&job) {
                Arc::make_mut(&mut dead.of_job).insert(name());
            }
        }
    }

    /// The dead hosts of one of this host's jobs.
    pub(super) fn dead_hosts(&self, job: u64) -> DeadHosts {
        self.dead.get(&job).cloned().unwrap_or_default()
    }

    /// How many hosts may run one of this host's jobs, too, by what is known here.
    pub(super) fn unclear(&self, job: u64) -> usize {
        let hosts = self.hosts.get(&job);
        hosts.map_or(0, |hosts| self.unclear.iter().filter(|host| !hosts.contains(*host)).count())
    }

    /// Who judges one of this host's jobs, the first first; none of those that are `suspects`.
    pub(super) fn judges(&self, job: u64, suspects: &BTreeSet<String>) -> Vec<&str> {
        judges(job, self.surely_live(job).filter(|host| !suspects.contains(*host)))
    }

    /// Whether this host does.
    pub(super) fn judges_here(&self, job: u64, suspects: &BTreeSet<String>) -> bool {
        self.judges(job, suspects).contains(&self.own.as_str())
    }

    /// Whether this host is the first of them.
    pub(super) fn is_first_judge(&self, job: u64, suspects: &BTreeSet<String>) -> bool {
        self.judges(job, suspects).first() == Some(&self.own.as_str())
    }

    /// Whether a host has ranks of one of this host's jobs.
    pub(super) fn has(&self, job: u64, host: &str) -> bool {
        self.hosts.get(&job).is_some_and(|hosts| hosts.contains(host))
    }

    /// Whether a host of this host's jobs is in another cell.
    pub(super) fn is_elsewhere(&self, host: &str) -> bool {
        self.elsewhere.contains(host)
    }

    /// The live hosts of one of this host's jobs.
    pub(super) fn hosts(&self, job: u64) -> impl Iterator<Item = &str> {
        self.hosts.get(&job).into_iter().flat_map(|hosts| hosts.iter()).map(String::as_str)
    }

    /// The same by job, of all of this host's jobs.
    pub(super) fn hosts_by_job(&self) -> &BTreeMap<u64, Arc<BTreeSet<String>>> {
        &self.hosts
    }

    /// The host to whose clock those of one of this host's jobs are aligned: the first by name.
    pub(super) fn reference(&self, job: u64) -> Option<&str> {
        self.surely_live(job).next()
    }

    /// Those of a job's hosts that judge and set the clock: of others it may never be heard.
    fn surely_live(&self, job: u64) -> impl Iterator<Item = &str> {
        self.hosts(job).filter(|host| !self.unconfirmed.contains(*host))
    }
}

#[cfg(test)]
mod tests {
    use gossip::NodeFacts;

    use super::*;

    fn member(name: &str, state: MemberState, jobs: Option<&str>) -> Member {
        let extra = jobs.map(|text| (JOBS.to_owned(), text.to_owned())).into_iter().collect();
        let facts = Arc::new(NodeFacts { extra, ..NodeFacts::default() });
        let address = "127.0.0.1:1".parse().unwrap();
        let is_self = name == "me";
        let seat = gossip::Seat::default();
        Member { name: name.into(), address, generation: 1, state, facts, is_self, double: None, seat }
    }

    /// One of a cell that names not all its jobs.
    fn of_many_jobs(name: &str, text: &str) -> Member {
        let mut member = member(name, MemberState::Live, Some(text));
        Arc::make_mut(&mut member.facts).extra.insert(gossip::JOBS_CUT.to_owned(), "1".to_owned());
        member
    }

    #[test]
    fn who_may_live_and_who_may_run_the_job_are_counted() {
        let mut roster = Roster::default();
        let list = [
            member("me", MemberState::Live, None),
            member("a", MemberState::Unconfirmed, Some("1 7")),
            of_many_jobs("b", "1 7"),
            of_many_jobs("c", "1 9"),
        ];
        roster.update("me", &BTreeSet::from([7]), &list);
        assert_eq!(roster.hosts(7).collect::<Vec<_>>(), ["a", "b", "me"]);
        assert_eq!((roster.presence["a"], roster.unclear(7), roster.unclear(8)), (Presence::Live, 1, 0));
        assert_eq!(roster.reference(7), Some("b"));
        assert!(!roster.judges(7, &BTreeSet::new()).contains(&"a"), "it may be dead");
    }

    #[test]
    fn a_jobs_judges_are_live_hosts_of_it_and_this_host_is_one_of_its_own_jobs() {
        let mut roster = Roster::default();
        let jobs = BTreeSet::from([7, u64::MAX]);
        let text = jobs_text(&jobs);
        assert_eq!(text, "1 7 ffffffffffffffff");
        let list = [
            member("me", MemberState::Live, None),
            member("a", MemberState::Live, Some(&text)),
            member("b", MemberState::Dead, Some(&text)),
            member("c", MemberState::Live, Some("1")),
            member("d", MemberState::Live, Some("9 7 x")),
            member("e", MemberState::Dead, Some("1 9")),
            member("f", MemberState::Dead, None),
        ];
        roster.update("me", &jobs, &list);
        let nobody = BTreeSet::new();
        let sorted = |job| {
            let mut judges = roster.judges(job, &nobody);
            judges.sort_unstable();
            judges
        };
        assert_eq!((sorted(7), sorted(u64::MAX)), (vec!["a", "d", "me"], vec!["a", "me"]));
        assert!(roster.judges_here(7, &nobody) && roster.judges(8, &nobody).is_empty(), "no job of this host");
        assert_eq!(roster.judges(u64::MAX, &BTreeSet::from(["a".to_owned()])), ["me"]);
        assert!(roster.has(7, "d") && !roster.has(7, "c"));
        let dead = roster.dead_hosts(7);
        assert_eq!(*dead.of_job, BTreeSet::from(["b".to_owned()]), "by what it said last");
        assert_eq!(*dead.perhaps, BTreeSet::from(["f".to_owned()]), "it is not known what it ran");
        assert_eq!((roster.reference(7), roster.presence["b"]), (Some("a"), Presence::Dead));
    }
}
