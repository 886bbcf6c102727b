//! What hosts record of a job, as agents hand it to an analysis.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verdicts::{
    Activity, ClockOffset, Doing, Gone, InCall, Input, JobRank, Observation, Payload, Progress, progress_of,
};

use super::draw::Drawn;
use super::machine::Made;
use super::oracle::name;
use super::program::{Func, Op, Program, Stay};

/// When jobs begin, Unix nanoseconds.
const START_NS: i64 = 1_700_000_000_000_000_000;
/// How long after the last call a job is looked at.
const LATER_NS: i64 = 10_000_000_000;

/// The process of a rank.
#[must_use]
pub fn pid(rank: usize) -> i64 {
    5_000 + 7 * rank as i64
}

struct Recorder<'a> {
    drawn: &'a Drawn,
    rng: StdRng,
    /// By rank, communicator and function: how many. Without a function: collectives that have a
    /// place in the communicator's order.
    counts: HashMap<(usize, usize, &'static str), u64>,
    input: Input,
}

/// What is known of a job that was drawn with this seed.
#[must_use]
pub fn observe(drawn: &Drawn, seed: u64) -> Input {
    let until_ns = START_NS + drawn.run.last_ns + LATER_NS;
    let input = Input { since_ns: START_NS - 1, until_ns, ..Input::default() };
    let rng = StdRng::seed_from_u64(seed ^ drawn.number << 20);
    let mut recorder = Recorder { drawn, rng, counts: HashMap::new(), input };
    let nodes = drawn.program.ranks.len().div_ceil(drawn.seen.ranks_per_node);
    let ahead_ns: Vec<i64> =
        (0..nodes).map(|node| if node == 0 { 0 } else { recorder.rng.random_range(-40_000_000..40_000_000) }).collect();
    (recorder.input.coverage.asked, recorder.input.coverage.answered) = (nodes, nodes);
    for (node, offset_ns) in ahead_ns.iter().enumerate() {
        let bound_ns = if node == 0 { 0 } else { 200_000 };
        let clock = ClockOffset { offset_ns: *offset_ns, bound_ns, at_ns: until_ns, ..ClockOffset::default() };
        recorder.input.clocks.insert(format!("n{node}"), clock);
    }
    let mut known: Vec<Observation> = Vec::new();
    for rank in 0..drawn.program.ranks.len() {
        let ahead_ns = ahead_ns[rank / drawn.seen.ranks_per_node];
        for made in &drawn.run.made[rank] {
            recorder.call(rank, made, START_NS + ahead_ns, &mut known);
        }
        recorder.process(rank, ahead_ns);
    }
    let Recorder { mut input, .. } = recorder;
    input.progress = progress_of(&known, &input.in_calls);
    members(&drawn.program, drawn, &mut input.progress);
    input
}

/// Who is a member of what is known by the making of communicators, too, where that was seen.
fn members(program: &Program, drawn: &Drawn, progress: &mut Vec<Progress>) {
    let mut known: BTreeMap<(i64, u64), ()> = progress.iter().map(|p| ((p.pid, p.comm_hash), ())).collect();
    for (comm, rank) in program.comms.iter().flat_map(|comm| comm.members.iter().map(move |rank| (comm, *rank))) {
        if is_late(drawn, rank) || known.insert((pid(rank), comm.hash), ()).is_some() {
            continue;
        }
        progress.push(Progress {
            node: node(drawn, rank),
            pid: pid(rank),
            rank: place(comm.place(rank)),
            nranks: i32::try_from(comm.members.len()).ok(),
            comm_hash: comm.hash,
            ..Progress::default()
        });
    }
}

fn node(drawn: &Drawn, rank: usize) -> Arc<str> {
    format!("n{}", rank / drawn.seen.ranks_per_node).into()
}

fn place(of: Option<usize>) -> i32 {
    of.and_then(|place| i32::try_from(place).ok()).unwrap_or(-1)
}

/// Its host began to record when half of the job was over.
fn is_late(drawn: &Drawn, rank: usize) -> bool {
    rank / drawn.seen.ranks_per_node < drawn.seen.late_nodes
}

impl Recorder<'_> {
    fn number(&mut self, rank: usize, comm: usize, of: &'static str) -> u64 {
        let count = self.counts.entry((rank, comm, of)).or_default();
        *count += 1;
        *count - 1
    }

    fn call(&mut self, rank: usize, made: &Made, start_ns: i64, known: &mut Vec<Observation>) {
        let Some(func) = name(&made.op) else { return };
        let (comm, peer, payload, tag) = match &made.op {
            Op::Collective(call) => {
                let root = call.func.is_rooted().then_some(call.root);
                let moves = call.func != Func::Barrier && call.func != Func::Split;
                let bytes = moves.then_some(call.bytes);
                let datatype = moves.then(|| Arc::from("float64"));
                (Some(call.comm), root, Payload { bytes, datatype, ..Payload::default() }, None)
            }
            Op::Send { comm, to: peer, tag, .. } | Op::Receive { comm, from: peer, tag } => {
                let peer = self.drawn.program.comms[*comm].place(*peer);
                (Some(*comm), peer, Payload { bytes: Some(512), ..Payload::default() }, Some(*tag))
            }
            Op::Finalize => (Some(0), None, Payload::default(), None),
            Op::Compute(_) | Op::Stay(_) => (None, None, Payload::default(), None),
        };
        let has_place = match &made.op {
            Op::Collective(call) => call.func != Func::Split,
            op => *op == Op::Finalize,
        };
        let numbers = comm.map(|comm| (self.number(rank, comm, func), has_place.then(|| self.number(rank, comm, ""))));
        let of = comm.map(|comm| &self.drawn.program.comms[comm]);
        let late = is_late(self.drawn, rank);
        let entry_ns = start_ns + made.entry_ns;
        let Some(left_ns) = made.left_ns else {
            self.input.in_calls.push(InCall {
                node: node(self.drawn, rank),
                pid: pid(rank),
                func: func.into(),
                comm_hash: of.map(|comm| comm.hash),
                rank: of.map(|comm| place(comm.place(rank))),
                nranks: of.and_then(|comm| i32::try_from(comm.members.len()).ok()),
                comm_seq: numbers.and_then(|(_, position)| position).filter(|_| !late),
                root: peer.map(|peer| place(Some(peer))),
                tag,
                payload,
                since_ns: entry_ns,
            });
            return;
        };
        // What is only made is no call that is stored; nobody sees what came before the recorder.
        let (Some(comm), Some((seq, position))) = (of, numbers) else { return };
        let is_stored = has_place == matches!(made.op, Op::Collective(_)) && made.op != Op::Finalize;
        if !is_stored || late && made.entry_ns < self.drawn.run.last_ns / 2 {
            return;
        }
        let seen = Observation {
            node: node(self.drawn, rank),
            pid: pid(rank),
            rank: place(comm.place(rank)),
            nranks: i32::try_from(comm.members.len()).ok(),
            comm_hash: comm.hash,
            func: func.into(),
            seq: if late { 0 } else { seq },
            comm_seq: position.filter(|_| !late),
            entry_ns,
            duration_ns: left_ns - made.entry_ns,
            halted_ns: 0,
            held_ns: 0,
            tier: 1,
            library: "mpi".into(),
            root: peer.map(|peer| place(Some(peer))),
            payload,
        };
        // Agents know how far a process got also where a record of it was lost.
        known.push(seen.clone());
        if self.rng.random_bool(self.drawn.seen.loss) {
            let until_ns = self.input.lost_until_ns.entry(Arc::clone(&seen.node)).or_insert(seen.entry_ns);
            *until_ns = seen.entry_ns.max(*until_ns);
            return;
        }
        if late { self.input.unnumbered.push(seen) } else { self.input.observations.push(seen) }
    }

    /// What is known of the process itself.
    fn process(&mut self, rank: usize, ahead_ns: i64) {
        let (node, pid) = (node(self.drawn, rank), pid(rank));
        let last = self.drawn.run.stays_in(rank);
        let activity = match last.map(|made| &made.op) {
            Some(Op::Stay(Stay::Ended)) => {
                let at_ns = START_NS + ahead_ns + last.map_or(0, |made| made.entry_ns);
                self.input.gone.push(Gone { node: Arc::clone(&node), pid, at_ns, how: "signal 9".to_owned() });
                // Its row among the processes stays.
                return self.ranks(node, pid, rank);
            }
            None => return self.ranks(node, pid, rank),
            Some(Op::Stay(Stay::Asleep)) => Activity::Sleeping,
            Some(Op::Stay(Stay::Io)) => Activity::BlockIo,
            Some(Op::Stay(Stay::Stopped)) => Activity::Stopped,
            // Calls poll, or sleep.
            Some(Op::Stay(Stay::Running)) => Activity::Running,
            Some(_) if self.rng.random_bool(0.3) => Activity::Sleeping,
            Some(_) => Activity::Running,
        };
        self.input.doing.push(Doing { node: Arc::clone(&node), pid, activity });
        self.ranks(node, pid, rank);
    }

    fn ranks(&mut self, node: Arc<str>, pid: i64, rank: usize) {
        let nranks = place(Some(self.drawn.program.ranks.len()));
        self.input.ranks.push(JobRank { node, pid, job: 99, rank: place(Some(rank)), nranks });
    }
}
