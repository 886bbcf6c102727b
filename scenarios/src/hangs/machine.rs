//! Runs a program by what MPI says of blocking, matching and order, until nobody comes further.
//!
//! A collective of a rank is its n-th on the communicator. It ends by what it needs of others that
//! make the same call as their n-th: of all, of the root, of a parent in a tree. Who makes another
//! call there gives nothing. Messages match by communicator, pair and tag, in order.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::program::{Collective, Func, Op, Program};

/// A call, or what a rank does instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// What.
    pub op: Op,
    /// Place in the order of its communicator, of collectives.
    pub position: Option<u64>,
    /// When it began, nanoseconds from the job's start.
    pub entry_ns: i64,
    /// When it ended; none: never.
    pub left_ns: Option<i64>,
}

/// How a job ended up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// By rank, what it did. The last may be what it stays in.
    pub made: Vec<Vec<Made>>,
    /// By rank, whom it waits for; empty of those that are in no call.
    pub waits_for: Vec<BTreeSet<usize>>,
    /// Until when anything moved.
    pub last_ns: i64,
}

impl Run {
    /// What a rank stays in; none: it came to its end.
    #[must_use]
    pub fn stays_in(&self, rank: usize) -> Option<&Made> {
        self.made[rank].last().filter(|made| made.left_ns.is_none())
    }

    /// All ranks came to their end.
    #[must_use]
    pub fn is_through(&self) -> bool {
        (0..self.made.len()).all(|rank| self.stays_in(rank).is_none())
    }
}

/// Time of a call beyond its waiting.
const CALL_NS: i64 = 40_000;

/// Sends of a pair with a tag on a communicator: (communicator, from, to, tag).
type Lane = (usize, usize, usize, i32);

struct Machine<'a> {
    program: &'a Program,
    next: Vec<usize>,
    clock_ns: Vec<i64>,
    made: Vec<Vec<Made>>,
    /// By communicator and position, who has entered with what and when.
    entered: HashMap<(usize, u64), BTreeMap<usize, (Collective, i64)>>,
    /// By rank and communicator, how many it has entered.
    count: HashMap<(usize, usize), u64>,
    /// When the n-th of a lane was sent, and received.
    sent: HashMap<Lane, Vec<i64>>,
    received: HashMap<Lane, Vec<i64>>,
    finalizing: BTreeMap<usize, i64>,
}

/// Runs it.
#[must_use]
pub fn run(program: &Program) -> Run {
    let ranks = program.ranks.len();
    let mut machine = Machine {
        program,
        next: vec![0; ranks],
        clock_ns: vec![0; ranks],
        made: vec![Vec::new(); ranks],
        entered: HashMap::new(),
        count: HashMap::new(),
        sent: HashMap::new(),
        received: HashMap::new(),
        finalizing: BTreeMap::new(),
    };
    // (Each is to step, whatever the others do.)
    while (0..ranks).filter(|rank| machine.step(*rank)).count() > 0 {}
    let waits_for = (0..ranks).map(|rank| machine.needs(rank).err().unwrap_or_default()).collect();
    let last_ns = machine.made.iter().flatten().map(|made| made.left_ns.unwrap_or(made.entry_ns)).max().unwrap_or(0);
    Run { made: machine.made, waits_for, last_ns }
}

impl Machine<'_> {
    /// Moves a rank on by one operation, or into one; false where it stays.
    fn step(&mut self, rank: usize) -> bool {
        let Some(op) = self.program.ranks[rank].get(self.next[rank]) else { return false };
        let inside = self.made[rank].last().is_some_and(|made| made.left_ns.is_none());
        if let Op::Compute(length_ns) = op {
            self.clock_ns[rank] += length_ns;
            self.next[rank] += 1;
            return true;
        }
        if !inside {
            self.enter(rank, op.clone());
        }
        match self.needs(rank) {
            Ok(ready_ns) => {
                let left_ns = ready_ns.max(self.clock_ns[rank]) + CALL_NS;
                if let Some(made) = self.made[rank].last_mut() {
                    made.left_ns = Some(left_ns);
                }
                self.clock_ns[rank] = left_ns;
                self.next[rank] += 1;
                true
            }
            Err(_) => !inside,
        }
    }

    fn enter(&mut self, rank: usize, op: Op) {
        let now = self.clock_ns[rank];
        let mut position = None;
        match &op {
            Op::Collective(call) => {
                let count = self.count.entry((rank, call.comm)).or_default();
                position = Some(*count);
                self.entered.entry((call.comm, *count)).or_default().insert(rank, (*call, now));
                *count += 1;
            }
            Op::Send { comm, to, tag, .. } => self.sent.entry((*comm, rank, *to, *tag)).or_default().push(now),
            Op::Receive { comm, from, tag } => self.received.entry((*comm, *from, rank, *tag)).or_default().push(now),
            Op::Finalize => {
                position = Some(self.count.get(&(rank, 0)).copied().unwrap_or_default());
                self.finalizing.insert(rank, now);
            }
            Op::Compute(_) | Op::Stay(_) => {}
        }
        self.made[rank].push(Made { op, position, entry_ns: now, left_ns: None });
    }

    /// When what a rank is in has all that it needs, or of whom it lacks it.
    fn needs(&self, rank: usize) -> Result<i64, BTreeSet<usize>> {
        let Some(made) = self.made[rank].last().filter(|made| made.left_ns.is_none()) else { return Ok(0) };
        match &made.op {
            Op::Collective(call) => self.needs_of(rank, *call, made.position.unwrap_or_default()),
            Op::Send { comm, to, tag, waits } => {
                let lane = (*comm, rank, *to, *tag);
                if *waits { nth(&self.received, lane, &self.sent, *to) } else { Ok(made.entry_ns) }
            }
            Op::Receive { comm, from, tag } => nth(&self.sent, (*comm, *from, rank, *tag), &self.received, *from),
            Op::Finalize => {
                let missing: BTreeSet<usize> =
                    (0..self.next.len()).filter(|other| !self.finalizing.contains_key(other)).collect();
                if missing.is_empty() { Ok(self.finalizing.values().copied().max().unwrap_or(0)) } else { Err(missing) }
            }
            Op::Stay(_) => Err(BTreeSet::new()),
            Op::Compute(_) => Ok(0),
        }
    }

    fn needs_of(&self, rank: usize, call: Collective, position: u64) -> Result<i64, BTreeSet<usize>> {
        let comm = &self.program.comms[call.comm];
        let here = &self.entered[&(call.comm, position)];
        let gives = |other: &usize| here.get(other).filter(|(theirs, _)| *theirs == call).map(|(_, at)| *at);
        let size = comm.members.len();
        // Places count from the root.
        let place = (comm.place(rank).unwrap_or_default() + size - call.root) % size;
        let rank_at = |place: usize| comm.members[(place + call.root) % size];
        // In a binomial tree the parent of a place is it without its lowest bit.
        let above = |place: usize| -> Vec<usize> {
            let parent = |at: usize| (at > 0).then(|| if self.program.tree { at & (at - 1) } else { 0 });
            std::iter::successors(parent(place), |at| parent(*at)).collect()
        };
        let below = || (0..size).filter(|other| above(*other).contains(&place));
        let needed: Vec<usize> = match call.func {
            Func::Barrier | Func::AllReduce | Func::AllGather | Func::AllToAll | Func::Split | Func::Finalize => {
                (0..size).collect()
            }
            // A large message is handed over once its receiver is there.
            Func::Broadcast if self.program.eager => above(place),
            Func::Broadcast => above(place).into_iter().chain(below()).collect(),
            Func::Reduce | Func::Gather if self.program.eager => below().collect(),
            Func::Reduce | Func::Gather => above(place).into_iter().chain(below()).collect(),
        };
        let needed: Vec<usize> = needed.into_iter().map(rank_at).collect();
        let missing: BTreeSet<usize> = needed.iter().copied().filter(|other| gives(other).is_none()).collect();
        if missing.is_empty() {
            return Ok(needed.iter().filter_map(gives).max().unwrap_or(0));
        }
        Err(missing)
    }
}

/// What matches the last of a lane on the other side.
fn nth(
    theirs: &HashMap<Lane, Vec<i64>>,
    lane: Lane,
    mine: &HashMap<Lane, Vec<i64>>,
    peer: usize,
) -> Result<i64, BTreeSet<usize>> {
    let number = mine.get(&lane).map_or(0, Vec::len);
    let found = number.checked_sub(1).and_then(|last| theirs.get(&lane)?.get(last).copied());
    found.ok_or_else(|| BTreeSet::from([peer]))
}
