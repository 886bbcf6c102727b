//! Draws programs that hang, by what people get wrong: one fault in a program that is right
//! without it.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::machine::{Run, run};
use super::program::{Collective, Comm, Func, Op, Program, Stay};

/// What is wrong with a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Nothing: it comes to its end.
    Healthy,
    /// One rank makes two calls in the other order.
    Order,
    /// One rank calls another function.
    Function,
    /// One rank gives another size.
    Size,
    /// One rank gives another root.
    Root,
    /// One rank makes a call twice.
    Extra,
    /// One rank leaves a call out.
    Skip,
    /// One or two ranks go no further: asleep, computing, in I/O.
    Branch,
    /// Likewise before a function that nobody has called.
    FirstCall,
    /// Likewise before a call on a part of the ranks.
    SubComm,
    /// Likewise where the others make a communicator.
    Making,
    /// One rank goes to the end.
    Finalize,
    /// Ranks use two communicators in different order.
    TwoComms,
    /// A receive of what nobody sends.
    NobodySends,
    /// A send that nobody receives.
    NobodyReceives,
    /// Everybody sends around a ring, and waits.
    Ring,
    /// One process ends.
    Ended,
    /// One process is stopped.
    Stopped,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Healthy,
        Self::Order,
        Self::Function,
        Self::Size,
        Self::Root,
        Self::Extra,
        Self::Skip,
        Self::Branch,
        Self::FirstCall,
        Self::SubComm,
        Self::Making,
        Self::Finalize,
        Self::TwoComms,
        Self::NobodySends,
        Self::NobodyReceives,
        Self::Ring,
        Self::Ended,
        Self::Stopped,
    ];
}

/// How a job is seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    /// Ranks on each host.
    pub ranks_per_node: usize,
    /// Hosts before this one began to record late, when half of the job was over.
    pub late_nodes: usize,
    /// Probability that the record of a call that ended is lost.
    pub loss: f64,
}

/// A job that was drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// Its number.
    pub number: u64,
    /// What is wrong.
    pub kind: Kind,
    /// What its ranks do.
    pub program: Program,
    /// How that ends up.
    pub run: Run,
    /// How it is seen.
    pub seen: Seen,
}

/// Longest own work between two calls, nanoseconds.
const WORK_NS: i64 = 30_000_000;

/// Draws a job: its kind goes by its number. Faults that do not make it hang are drawn again.
#[must_use]
pub fn draw(seed: u64, number: u64) -> Drawn {
    let kind = Kind::ALL[(number % Kind::ALL.len() as u64) as usize];
    let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number);
    loop {
        let program = program(&mut rng, kind);
        let run = run(&program);
        if run.is_through() == (kind == Kind::Healthy) {
            let late = rng.random_bool(0.1);
            let seen = Seen {
                ranks_per_node: rng.random_range(1..5),
                late_nodes: usize::from(late) * rng.random_range(1..3),
                loss: if rng.random_bool(0.1) { 0.02 } else { 0.0 },
            };
            return Drawn { number, kind, program, run, seen };
        }
    }
}

/// Parts of a job that are drawn together.
struct Shape {
    comms: Vec<Comm>,
    size: usize,
    /// A step, by rank.
    step: Vec<Vec<Op>>,
}

fn comms(rng: &mut StdRng, size: usize) -> Vec<Comm> {
    let mut hash = || rng.random::<u64>() | 1;
    let mut comms = vec![Comm { hash: hash(), members: (0..size).collect() }];
    comms.push(Comm { hash: hash(), members: (0..size).collect() });
    let columns = [2, 3, 4].into_iter().filter(|n| size.is_multiple_of(*n) && size > *n).max().unwrap_or(1);
    if columns > 1 {
        for row in 0..size / columns {
            comms.push(Comm { hash: hash(), members: (row * columns..(row + 1) * columns).collect() });
        }
        for column in 0..columns {
            comms.push(Comm { hash: hash(), members: (column..size).step_by(columns).collect() });
        }
    }
    // An odd set, in an order of its own.
    let mut some: Vec<usize> = (0..size).filter(|_| rng.random_bool(0.6)).collect();
    if rng.random_bool(0.5) {
        some.reverse();
    }
    if some.len() > 1 {
        comms.push(Comm { hash: rng.random::<u64>() | 1, members: some });
    }
    comms
}

fn collective(rng: &mut StdRng, comms: &[Comm], comm: usize) -> Collective {
    let func = Func::MOVING[rng.random_range(0..Func::MOVING.len())];
    let root = if func.is_rooted() { rng.random_range(0..comms[comm].members.len()) } else { 0 };
    let bytes = if func == Func::Barrier { 0 } else { 8 << rng.random_range(0..18) };
    Collective { comm, func, root, bytes }
}

fn shape(rng: &mut StdRng) -> Shape {
    let size = rng.random_range(3..13);
    let comms = comms(rng, size);
    let mut step = vec![Vec::new(); size];
    for _ in 0..rng.random_range(2..6) {
        if rng.random_bool(0.2) {
            // Around a ring, in an order that comes to its end.
            let tag = rng.random_range(0..5);
            for (rank, ops) in step.iter_mut().enumerate() {
                let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
                let send = Op::Send { comm: 0, to, tag, waits: true };
                let receive = Op::Receive { comm: 0, from, tag };
                ops.extend(if rank == 0 { [receive, send] } else { [send, receive] });
            }
            continue;
        }
        // Rows meet all at the same time, as do columns: whoever is in one of several.
        let comm = rng.random_range(0..comms.len());
        let call = collective(rng, &comms, comm);
        for rank in &comms[comm].members {
            step[*rank].push(Op::Collective(call));
        }
    }
    // All meet in each step.
    let call = collective(rng, &comms, 0);
    step.iter_mut().for_each(|ops| ops.push(Op::Collective(call)));
    Shape { comms, size, step }
}

fn program(rng: &mut StdRng, kind: Kind) -> Program {
    let Shape { comms, size, step } = shape(rng);
    let steps = rng.random_range(3..25);
    let mut ranks: Vec<Vec<Op>> = vec![Vec::new(); size];
    let wrong_at = rng.random_range(1..steps);
    let mut fault = Fault { rng, kind, comms: &comms, size };
    for at in 0..steps {
        let mut this = step.clone();
        if at == wrong_at {
            fault.put(&mut this);
        }
        for (rank, ops) in this.into_iter().enumerate() {
            for op in ops {
                ranks[rank].push(Op::Compute(fault.rng.random_range(WORK_NS / 3..WORK_NS)));
                ranks[rank].push(op);
            }
        }
    }
    ranks.iter_mut().for_each(|ops| ops.push(Op::Finalize));
    let (eager, tree) = (rng.random_bool(0.7), rng.random_bool(0.5));
    Program { comms, ranks, eager, tree }
}

struct Fault<'a> {
    rng: &'a mut StdRng,
    kind: Kind,
    comms: &'a [Comm],
    size: usize,
}

impl Fault<'_> {
    fn rank(&mut self) -> usize {
        self.rng.random_range(0..self.size)
    }

    /// Places of a rank's collectives.
    fn collectives(ops: &[Op]) -> Vec<usize> {
        (0..ops.len()).filter(|at| matches!(ops[*at], Op::Collective(_))).collect()
    }

    fn pick(&mut self, of: &[usize]) -> Option<usize> {
        (!of.is_empty()).then(|| of[self.rng.random_range(0..of.len())])
    }

    /// Puts the fault into a step.
    fn put(&mut self, step: &mut [Vec<Op>]) {
        let rank = self.rank();
        let places = Self::collectives(&step[rank]);
        let Some(place) = self.pick(&places) else { return };
        let ops = &mut step[rank];
        let Op::Collective(call) = ops[place].clone() else { return };
        match self.kind {
            Kind::Healthy => {}
            Kind::Order => ops.swap(place, (place + 1) % places.len().max(1)),
            Kind::Function => ops[place] = Op::Collective(collective(self.rng, self.comms, call.comm)),
            Kind::Size => ops[place] = Op::Collective(Collective { bytes: call.bytes * 2 + 8, ..call }),
            Kind::Root if call.func.is_rooted() => {
                let root = (call.root + 1) % self.comms[call.comm].members.len();
                ops[place] = Op::Collective(Collective { root, ..call });
            }
            Kind::Root => {}
            Kind::Extra => ops.insert(place, Op::Collective(call)),
            Kind::Skip => drop(ops.remove(place)),
            Kind::Branch | Kind::Ended | Kind::Stopped | Kind::Finalize => self.stay(step, rank, place),
            Kind::FirstCall => {
                // None of the healthy steps makes it.
                let call = Collective { comm: 0, func: Func::AllToAll, root: 0, bytes: 123 };
                step.iter_mut().for_each(|ops| ops.insert(0, Op::Collective(call)));
                self.stay(step, rank, 0);
            }
            Kind::SubComm => {
                let small: Vec<usize> = (0..self.comms.len())
                    .filter(|comm| {
                        self.comms[*comm].members.len() < self.size && self.comms[*comm].members.contains(&rank)
                    })
                    .collect();
                let Some(comm) = self.pick(&small) else { return };
                let call = collective(self.rng, self.comms, comm);
                for member in &self.comms[comm].members {
                    step[*member].insert(0, Op::Collective(call));
                }
                self.stay(step, rank, 0);
            }
            Kind::Making => {
                let call = Collective { comm: 0, func: Func::Split, root: 0, bytes: 0 };
                step.iter_mut().for_each(|ops| ops.insert(0, Op::Collective(call)));
                self.stay(step, rank, 0);
            }
            Kind::TwoComms => {
                let call = |comm| Op::Collective(Collective { comm, func: Func::AllReduce, root: 0, bytes: 64 });
                let first = self.rng.random_range(1..self.size);
                for (rank, ops) in step.iter_mut().enumerate() {
                    let order = if rank < first { [call(0), call(1)] } else { [call(1), call(0)] };
                    ops.splice(0..0, order);
                }
            }
            Kind::NobodySends => {
                let from = (rank + self.rng.random_range(1..self.size)) % self.size;
                ops.insert(place, Op::Receive { comm: 0, from, tag: 77 });
                if self.rng.random_bool(0.5) {
                    // It sends with another tag.
                    step[from].insert(0, Op::Send { comm: 0, to: rank, tag: 78, waits: false });
                }
            }
            Kind::NobodyReceives => {
                let to = (rank + self.rng.random_range(1..self.size)) % self.size;
                ops.insert(place, Op::Send { comm: 0, to, tag: 77, waits: true });
            }
            Kind::Ring => {
                for (rank, ops) in step.iter_mut().enumerate() {
                    let (to, from) = ((rank + 1) % self.size, (rank + self.size - 1) % self.size);
                    ops.splice(
                        0..0,
                        [Op::Send { comm: 0, to, tag: 9, waits: true }, Op::Receive { comm: 0, from, tag: 9 }],
                    );
                }
            }
        }
    }

    /// A rank goes no further, and sometimes another one neither.
    fn stay(&mut self, step: &mut [Vec<Op>], rank: usize, place: usize) {
        let how = match self.kind {
            Kind::Ended => Op::Stay(Stay::Ended),
            Kind::Stopped => Op::Stay(Stay::Stopped),
            Kind::Finalize => Op::Finalize,
            _ => Op::Stay([Stay::Asleep, Stay::Running, Stay::Io][self.rng.random_range(0..3)]),
        };
        step[rank].insert(place, how.clone());
        if self.size > 4 && self.rng.random_bool(0.2) {
            let other = self.rank();
            let at = self.rng.random_range(0..=step[other].len());
            step[other].insert(at, how);
        }
    }
}
