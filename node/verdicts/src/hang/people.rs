//! Who is there: processes, the communicators that they are members of, and what they do.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use observed::{Activity, InCall, Input, Progress, RankRef, Ranks};

/// Which process, by place in a table.
pub(super) type Who = usize;

/// A process that left a call so shortly before the end of the span moves.
const MOVING_NS: i64 = 2_000_000_000;

/// A member of a communicator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member<'a> {
    pub(super) who: Who,
    pub(super) rank: i32,
    /// Collectives that it has entered; none where that is not known.
    pub(super) entered: Option<u64>,
    /// Of one whose process has ended: collectives of which it is known that it has left them.
    pub(super) left: u64,
    /// What is known of it there; none where it made no call on the communicator.
    pub(super) progress: Option<&'a Progress>,
}

/// A communicator.
#[derive(Debug, Default)]
pub(super) struct Comm<'a> {
    /// Its size, or as many as are known.
    pub(super) size: i32,
    pub(super) members: Vec<Member<'a>>,
    /// Their places in it.
    places: HashMap<Who, usize>,
    /// Ranks that are no process in the data, and, where all processes of the job are known, the
    /// ranks of the job that they are among.
    pub(super) absent: Ranks,
    pub(super) among: Option<Ranks>,
}

impl<'a> Comm<'a> {
    fn add(&mut self, member: Member<'a>) {
        self.places.insert(member.who, self.members.len());
        self.members.push(member);
    }

    fn member_mut(&mut self, who: Who) -> Option<&mut Member<'a>> {
        self.members.get_mut(*self.places.get(&who)?)
    }

    pub(super) fn member(&self, who: Who) -> Option<&Member<'a>> {
        self.members.get(*self.places.get(&who)?)
    }
}

/// All of them.
pub(super) struct People<'a> {
    pub(super) refs: Vec<RankRef>,
    pub(super) comms: BTreeMap<u64, Comm<'a>>,
    /// By process: the communicators on which it made calls.
    pub(super) comms_of: BTreeMap<Who, Vec<u64>>,
    /// By communicator and rank in it.
    pub(super) at: HashMap<(u64, i32), Who>,
    /// Whose process has ended.
    pub(super) gone: BTreeSet<Who>,
    /// Whose host waits for its device, and since when on the coordinator's clock.
    pub(super) syncing: BTreeMap<Who, i64>,
    /// What they do, where their hosts say so.
    pub(super) doing: BTreeMap<Who, Activity>,
    /// The calls that they are in.
    pub(super) calls: BTreeMap<Who, Vec<&'a InCall>>,
    /// Who made calls up to the end.
    pub(super) moving: BTreeSet<Who>,
    jobs: BTreeMap<u64, Job>,
    job_of: BTreeMap<Who, u64>,
}

/// The processes of a job that are known.
#[derive(Debug, Default)]
struct Job {
    nranks: i32,
    by_rank: BTreeMap<i32, Who>,
}

/// Numbers processes.
#[derive(Default)]
struct Register<'a> {
    known: HashMap<(&'a str, i64), Who>,
    refs: Vec<RankRef>,
    /// Size of the communicator that their rank is of.
    largest: Vec<i32>,
}

impl<'a> Register<'a> {
    fn who(&mut self, node: &'a str, pid: i64) -> Who {
        *self.known.entry((node, pid)).or_insert_with(|| {
            self.refs.push(RankRef { rank: 0, node: node.to_owned(), pid });
            self.largest.push(-1);
            self.refs.len() - 1
        })
    }

    /// The rank of the job is that of the largest communicator, unless it is known otherwise.
    fn is_rank(&mut self, who: Who, rank: i32, of: i32) {
        if of > self.largest[who] {
            (self.largest[who], self.refs[who].rank) = (of, rank);
        }
    }
}

impl<'a> People<'a> {
    pub(super) fn of(input: &'a Input) -> Self {
        let mut register = Register::default();
        let mut comms: BTreeMap<u64, Comm<'a>> = BTreeMap::new();
        let mut at = HashMap::new();
        let mut comms_of: BTreeMap<Who, Vec<u64>> = BTreeMap::new();
        for p in &input.progress {
            let who = register.who(&p.node, p.pid);
            register.is_rank(who, p.rank, p.nranks.unwrap_or(0));
            at.insert((p.comm_hash, p.rank), who);
            let comm = comms.entry(p.comm_hash).or_default();
            comm.size = comm.size.max(p.nranks.unwrap_or(0));
            let entered = (!p.uncounted).then(|| p.entered.map_or(0, |last| last.saturating_add(1)));
            comm.add(Member { who, rank: p.rank, entered, left: 0, progress: Some(p) });
            comms_of.entry(who).or_default().push(p.comm_hash);
        }
        let mut calls: BTreeMap<Who, Vec<&InCall>> = BTreeMap::new();
        for call in &input.in_calls {
            let who = register.who(&call.node, call.pid);
            calls.entry(who).or_default().push(call);
            // What it enqueued after the call that it is in has not begun.
            if let Some((comm, position)) = call.comm_hash.zip(call.comm_seq)
                && let Some(member) = comms.get_mut(&comm).and_then(|comm| comm.member_mut(who))
            {
                member.entered = member.entered.map(|entered| entered.min(position + 1));
            }
        }
        let (mut jobs, mut job_of) = (BTreeMap::<u64, Job>::new(), BTreeMap::new());
        for of in &input.ranks {
            let who = register.who(&of.node, of.pid);
            register.is_rank(who, of.rank, i32::MAX);
            let job = jobs.entry(of.job).or_default();
            job.nranks = job.nranks.max(of.nranks);
            job.by_rank.insert(of.rank, who);
            job_of.insert(who, of.job);
        }
        let Register { known, refs, .. } = register;
        let find = |node: &str, pid: i64| known.get(&(node, pid)).copied();
        let mut gone: BTreeSet<Who> = input.gone.iter().filter_map(|g| find(&g.node, g.pid)).collect();
        let mut doing = BTreeMap::new();
        for of in &input.doing {
            let Some(who) = find(&of.node, of.pid) else { continue };
            doing.insert(who, of.activity);
            if of.activity == Activity::Ended {
                gone.insert(who);
            }
        }
        for call in input.observations.iter().filter(|call| !gone.is_empty() && call.tier > 0) {
            let who = find(&call.node, call.pid).filter(|who| gone.contains(who));
            if let (Some(who), Some(position)) = (who, call.comm_seq)
                && let Some(member) = comms.get_mut(&call.comm_hash).and_then(|comm| comm.member_mut(who))
            {
                member.left = member.left.max(position.saturating_add(1));
            }
        }
        let align = |node: &str, at_ns: i64| input.clocks.get(node).map_or(at_ns, |clock| clock.align(at_ns));
        let syncing = input.syncing.iter().filter_map(|s| Some((find(&s.node, s.pid)?, align(&s.node, s.start_ns))));
        let syncing = syncing.collect();
        let lately = input.until_ns.saturating_sub(MOVING_NS);
        let ended = |o: &observed::Observation| align(&o.node, o.entry_ns.saturating_add(o.duration_ns));
        let moves = input.observations.iter().chain(&input.unnumbered).filter(|o| ended(o) > lately);
        let moves = moves.map(|o| (&o.node, o.pid)).chain(input.moving.iter().map(|(node, pid)| (node, *pid)));
        let moving = moves.filter_map(|(node, pid)| find(node, pid)).collect();
        Self { refs, comms, comms_of, at, gone, syncing, doing, calls, moving, jobs, job_of }
    }

    /// The known processes of a process's job.
    pub(super) fn job_of(&self, who: Who) -> impl Iterator<Item = Who> {
        let job = self.job_of.get(&who).and_then(|job| self.jobs.get(job));
        job.into_iter().flat_map(|job| job.by_rank.values().copied())
    }

    /// Whether its process is stopped or has ended: it waits for nobody, wherever it is.
    pub(super) fn is_out(&self, who: Who) -> bool {
        self.gone.contains(&who) || self.is_halted(who)
    }

    /// By a signal: tools that read a process's stacks trace it for a moment.
    pub(super) fn is_stopped(&self, who: Who) -> bool {
        self.doing.get(&who) == Some(&Activity::Stopped)
    }

    pub(super) fn is_halted(&self, who: Who) -> bool {
        self.doing.get(&who).is_some_and(|activity| activity.is_halted())
    }

    /// Finds out which processes the ranks of a communicator are that made no call on it: those of
    /// the job that are no others of its ranks.
    pub(super) fn complete(&mut self, hash: u64) {
        let Some(comm) = self.comms.get_mut(&hash) else { return };
        let known: BTreeSet<i32> = comm.members.iter().map(|m| m.rank).collect();
        comm.absent = Ranks::all_but(&known, comm.size);
        if comm.absent.is_empty() {
            return;
        }
        let members: BTreeSet<Who> = comm.members.iter().map(|m| m.who).collect();
        let Some(job) = members.iter().find_map(|who| self.jobs.get(self.job_of.get(who)?)) else { return };
        let others = || job.by_rank.iter().filter(|(_, who)| !members.contains(who));
        let all_known = usize::try_from(job.nranks) == Ok(job.by_rank.len());
        let is_world = comm.size == job.nranks && comm.members.iter().all(|m| self.refs[m.who].rank == m.rank);
        let found: Vec<(i32, Who)> = if is_world {
            others().map(|(rank, who)| (*rank, *who)).filter(|(rank, _)| !known.contains(rank)).collect()
        } else if all_known && others().count() as u64 == comm.absent.count() {
            // Splits keep the order of the job's ranks, unless the program asks for another.
            let ranks = comm.absent.ranges().iter().flat_map(|(first, last)| *first..=*last);
            ranks.zip(others()).map(|(rank, (_, who))| (rank, *who)).collect()
        } else {
            comm.among = all_known.then(|| others().map(|(rank, _)| *rank).collect());
            return;
        };
        for (rank, who) in found {
            self.at.insert((hash, rank), who);
            comm.add(Member { who, rank, entered: Some(0), left: 0, progress: None });
        }
        let known: BTreeSet<i32> = comm.members.iter().map(|m| m.rank).collect();
        comm.absent = Ranks::all_but(&known, comm.size);
    }
}
