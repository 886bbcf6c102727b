//! Moves the ranks of a simulated job through their calls, and records what the stores of the mesh
//! would hold of it.
//!
//! Each rank has a host time and a device time. A blocking call moves the host to its end; a call
//! that only enqueues moves the device, and the host follows in a synchronise call. What the job
//! does is said by `Job` and `Grid`.

use std::collections::HashMap;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verdicts::{ClockOffset, Coupling, Gone, InCall, Input, Observation, Payload, SyncCall, progress_of};

use super::{Job, Noise, START_NS, Stop, factor, normal, within};

/// How long after the last call a hanging job is looked at.
const HANGS_FOR_NS: i64 = 10_000_000_000;
/// How fast a clock may drift by what its agent states: parts in a billion, as data sheets of
/// server oscillators have it.
const STATED_DRIFT_PPB: i64 = 50_000;
/// Time in which a host enqueues work for its device.
const LAUNCH_NS: i64 = 50_000;
/// A send returns when its data are on their way.
const SEND_NS: i64 = 20_000;

/// The ranks of a communicator.
pub(super) struct Group {
    pub(super) hash: u64,
    pub(super) ranks: Vec<usize>,
}

impl Group {
    /// A rank of the job in this communicator.
    fn place(&self, rank: usize) -> Option<i32> {
        self.ranks.iter().position(|r| *r == rank).and_then(|place| i32::try_from(place).ok())
    }
}

/// One call of one rank.
struct Call<'a> {
    rank: usize,
    group: &'a Group,
    func: &'static str,
    /// The rank that it sends to or receives from.
    peer: Option<usize>,
    entry: i64,
    /// None: it never leaves.
    left: Option<i64>,
}

/// A job in motion.
pub(super) struct Machine<'a> {
    job: &'a Job,
    rng: StdRng,
    names: Vec<Arc<str>>,
    /// How far each node's clock is ahead at the start, and how fast it gets further ahead.
    pub(super) clocks: Vec<(i64, i64)>,
    /// Next number by rank, communicator and function.
    sequence: HashMap<(usize, u64, &'static str), u64>,
    /// Collectives of a rank on a communicator, over all functions.
    places: HashMap<(usize, u64), u64>,
    step: usize,
    /// When each rank's host is free.
    free_at: Vec<i64>,
    /// When each rank's device is done; none: never.
    done_at: Vec<Option<i64>>,
    /// Ranks that come no further: they stopped, or wait for one that did.
    stuck: Vec<bool>,
    open_syncs: Vec<SyncCall>,
    input: Input,
}

impl<'a> Machine<'a> {
    pub(super) fn new(job: &'a Job, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let nodes = job.ranks.div_ceil(job.ranks_per_node.max(1));
        let mut input = Input { since_ns: START_NS, ..Input::default() };
        input.coverage.asked = nodes;
        input.coverage.answered = nodes - job.missing_nodes.len();
        let mut clocks = Vec::with_capacity(nodes);
        for node in 0..nodes {
            // The first node asks.
            let offset = if node == 0 { 0 } else { within(&mut rng, job.clock_offset_ns) };
            let drift = if node == 0 { 0 } else { within(&mut rng, job.clock_drift_ppb) };
            clocks.push((offset, drift));
            if job.missing_nodes.contains(&node) {
                input.coverage.missing.push((format!("n{node}"), "timeout".to_owned()));
            }
        }
        let names = (0..job.ranks).map(|r| job.node_of(r).into()).collect();
        Self {
            job,
            rng,
            names,
            clocks,
            sequence: HashMap::new(),
            places: HashMap::new(),
            step: 0,
            free_at: vec![START_NS; job.ranks],
            done_at: vec![Some(START_NS); job.ranks],
            stuck: vec![false; job.ranks],
            open_syncs: Vec::new(),
            input,
        }
    }

    pub(super) fn factor(&mut self, noise: Noise) -> f64 {
        factor(&mut self.rng, noise)
    }

    /// A step begins: a rank may stop here.
    pub(super) fn begin(&mut self, step: usize) {
        self.step = step;
        if let Some(stop) = self.job.stop.filter(|stop| stop.step == step) {
            self.stuck[stop.rank] = true;
        }
    }

    /// Own work of a rank.
    pub(super) fn compute(&mut self, rank: usize, length_ns: i64) {
        if !(self.job.enqueues && self.job.on_device) {
            self.free_at[rank] += length_ns.max(0);
            return;
        }
        self.free_at[rank] += LAUNCH_NS;
        if let Some(done) = &mut self.done_at[rank] {
            *done = self.free_at[rank].max(*done) + length_ns.max(0);
        }
    }

    /// All ranks of a group meet: each enters when it is free, and it ends when all have entered.
    pub(super) fn meet(&mut self, group: &Group, func: &'static str, transfer_ns: i64) {
        let transfer_ns = transfer_ns + self.detour_ns(&group.ranks);
        let comes = |m: &Self, rank: usize| !m.stuck[rank] && m.done_at[rank].is_some();
        let all = group.ranks.iter().all(|&r| comes(self, r));
        if self.job.enqueues {
            let starts = group.ranks.iter().map(|&r| self.free_at[r].max(self.done_at[r].unwrap_or(START_NS)));
            let done = starts.max().unwrap_or(START_NS) + transfer_ns;
            for &rank in &group.ranks {
                self.enqueue(rank, group, (func, None), all.then_some(done));
            }
            return;
        }
        let done = group.ranks.iter().map(|&r| self.free_at[r]).max().unwrap_or(START_NS) + transfer_ns;
        for &rank in &group.ranks {
            if self.stuck[rank] {
                continue;
            }
            let entry = self.free_at[rank];
            // Waking up after the wait takes its time, too.
            let left = all.then(|| done + (20_000.0 * normal(&mut self.rng).abs()) as i64);
            self.call(Call { rank, group, func, peer: None, entry, left });
            match left {
                Some(left) => self.free_at[rank] = left,
                None => self.stuck[rank] = true,
            }
        }
    }

    /// Send to a rank of the group; gives when the data are on their way, none when they never are.
    pub(super) fn send(&mut self, rank: usize, to: usize, group: &Group) -> Option<i64> {
        if self.stuck[rank] {
            return None;
        }
        let detour_ns = self.detour_ns(&[rank, to]);
        if self.job.enqueues {
            let done = self.done_at[rank].map(|done| done.max(self.free_at[rank]) + SEND_NS);
            self.enqueue(rank, group, ("send", Some(to)), done);
            return done.map(|done| done + detour_ns);
        }
        let entry = self.free_at[rank];
        self.call(Call { rank, group, func: "send", peer: Some(to), entry, left: Some(entry + SEND_NS) });
        self.free_at[rank] = entry + SEND_NS;
        Some(entry + SEND_NS + detour_ns)
    }

    /// Receive what is ready at that time; none: never.
    pub(super) fn receive(&mut self, rank: usize, from: usize, group: &Group, ready: Option<i64>) {
        if self.stuck[rank] {
            return;
        }
        if self.job.enqueues {
            let start = self.done_at[rank].map(|done| done.max(self.free_at[rank]));
            let done = start.zip(ready).map(|(start, ready)| start.max(ready) + 10_000);
            self.enqueue(rank, group, ("recv", Some(from)), done);
            return;
        }
        let entry = self.free_at[rank];
        let left = ready.map(|ready| entry.max(ready) + 10_000);
        self.call(Call { rank, group, func: "recv", peer: Some(from), entry, left });
        match left {
            Some(left) => self.free_at[rank] = left,
            None => self.stuck[rank] = true,
        }
    }

    /// A call that returns at once; the device is done with it at `done`.
    fn enqueue(&mut self, rank: usize, group: &Group, (func, peer): (&'static str, Option<usize>), done: Option<i64>) {
        if self.stuck[rank] {
            return;
        }
        let entry = self.free_at[rank];
        let left = entry + self.rng.random_range(8_000..20_000);
        self.call(Call { rank, group, func, peer, entry, left: Some(left) });
        self.free_at[rank] = left;
        self.done_at[rank] = done;
        if !self.job.runs_ahead {
            self.sync(rank);
        }
    }

    /// The host waits for its device.
    fn sync(&mut self, rank: usize) {
        let start = self.free_at[rank];
        let end = self.done_at[rank].map(|done| start.max(done) + (20_000.0 * normal(&mut self.rng).abs()) as i64);
        if (self.job.syncs || self.job.syncs_seen) && self.is_recorded(rank) {
            let node = rank / self.job.ranks_per_node.max(1);
            let call = SyncCall {
                node: Arc::clone(&self.names[rank]),
                pid: pid(rank),
                start_ns: self.on_clock(node, start),
                duration_ns: end.map_or(0, |end| end - start),
            };
            if end.is_none() {
                self.open_syncs.push(call);
            } else if !self.job.syncs || !self.rng.random_bool(self.job.loss) {
                self.input.syncs.push(call);
            }
        }
        match end {
            Some(end) => self.free_at[rank] = end,
            None => self.stuck[rank] = true,
        }
    }

    pub(super) fn end_step(&mut self) {
        if self.job.enqueues && self.job.runs_ahead && (self.step + 1).is_multiple_of(self.job.steps_ahead.max(1)) {
            for rank in 0..self.job.ranks {
                if !self.stuck[rank] {
                    self.sync(rank);
                }
            }
        }
    }

    /// How much longer a transfer among these ranks takes because of a slow link.
    fn detour_ns(&self, ranks: &[usize]) -> i64 {
        let Some(link) = self.job.slow_link else { return 0 };
        let node = |rank: &usize| rank / self.job.ranks_per_node.max(1);
        let here = ranks.iter().any(|r| node(r) == link.node);
        let there = ranks.iter().any(|r| link.to.map_or(node(r) != link.node, |to| node(r) == to));
        if here && there { link.extra_ns } else { 0 }
    }

    fn is_recorded(&self, rank: usize) -> bool {
        let node = rank / self.job.ranks_per_node.max(1);
        let late = self.job.late_nodes.iter().find(|(n, _)| *n == node);
        !self.job.missing_nodes.contains(&node) && late.is_none_or(|(_, from)| self.step >= *from)
    }

    /// What a node's clock shows.
    fn on_clock(&self, node: usize, at_ns: i64) -> i64 {
        let (offset, drift_ppb) = self.clocks[node];
        at_ns + offset + drifted(drift_ppb, at_ns - START_NS)
    }

    fn call(&mut self, call: Call<'_>) {
        let Call { rank, group, func, peer, entry, left } = call;
        let next = self.sequence.entry((rank, group.hash, func)).or_default();
        let seq = *next;
        *next += 1;
        let meets = Coupling::of(func) != Coupling::Pair;
        let place = meets.then(|| {
            let next = self.places.entry((rank, group.hash)).or_default();
            *next += 1;
            *next - 1
        });
        if !self.is_recorded(rank) || (left.is_some() && self.rng.random_bool(self.job.loss)) {
            return;
        }
        let node = rank / self.job.ranks_per_node.max(1);
        let numbered = !self.job.late_nodes.iter().any(|(late, _)| *late == node);
        let seen = Observation {
            node: Arc::clone(&self.names[rank]),
            pid: pid(rank),
            rank: group.place(rank).unwrap_or(-1),
            nranks: i32::try_from(group.ranks.len()).ok(),
            comm_hash: group.hash,
            func: func.into(),
            seq: if numbered { seq } else { 0 },
            entry_ns: self.on_clock(node, entry),
            duration_ns: left.map_or(0, |left| left - entry),
            halted_ns: 0,
            held_ns: 0,
            tier: u8::from(!self.job.enqueues),
            library: if self.job.enqueues { "nccl" } else { "mpi" }.into(),
            root: peer.and_then(|peer| group.place(peer)),
            comm_seq: place.filter(|_| numbered),
            payload: Payload::default(),
        };
        match left {
            None => self.input.in_calls.push(InCall::of(&seen)),
            Some(_) if numbered => self.input.observations.push(seen),
            Some(_) => self.input.unnumbered.push(seen),
        }
    }

    pub(super) fn finish(mut self) -> Input {
        let last = self.free_at.iter().copied().max().unwrap_or(START_NS);
        let hangs = self.job.stop.is_some_and(|stop| stop.step <= self.step);
        let until = if hangs { last + HANGS_FOR_NS } else { last + 1 };
        self.input.until_ns = until;
        for node in 0..self.clocks.len() {
            if self.job.missing_nodes.contains(&node) {
                continue;
            }
            let wrong = if node == 0 { 0 } else { within(&mut self.rng, self.job.offset_error_ns()) };
            let clock = ClockOffset {
                offset_ns: self.on_clock(node, until) - until + wrong,
                bound_ns: if node == 0 { 0 } else { self.job.clock_bound_ns },
                at_ns: until,
                drift_ppb: 0,
                drift_bound_ppb: if node == 0 || self.job.clock_drift_ppb == 0 { 0 } else { STATED_DRIFT_PPB },
            };
            self.input.clocks.insert(format!("n{node}"), clock);
        }
        // How far ranks got is told by agents from what they recorded: that part is not simulated.
        let made = self.input.observations.iter().chain(&self.input.unnumbered);
        self.input.progress = progress_of(made, &self.input.in_calls);
        self.input.syncing = std::mem::take(&mut self.open_syncs);
        if let Some(Stop { rank, gone: true, .. }) = self.job.stop.filter(|stop| hangs && self.is_recorded(stop.rank)) {
            let node = rank / self.job.ranks_per_node.max(1);
            self.input.gone.push(Gone {
                node: Arc::clone(&self.names[rank]),
                pid: pid(rank),
                at_ns: self.on_clock(node, self.free_at[rank]),
                how: "signal 9".to_owned(),
            });
        }
        self.input
    }
}

/// The process of a rank.
#[must_use]
pub fn pid(rank: usize) -> i64 {
    1_000 + rank as i64
}

pub(super) fn drifted(ppb: i64, length_ns: i64) -> i64 {
    (i128::from(length_ns) * i128::from(ppb) / 1_000_000_000) as i64
}
