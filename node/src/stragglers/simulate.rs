//! Simulated jobs: what the stores of a mesh would hold after a job whose truth is known. Pure and seeded, for tests
//! of the verdicts here and for the scenarios' benchmark.
//!
//! A job is coupled: each step every rank computes (own time with noise), enters the collective, and leaves when the
//! last rank has entered. What is recorded then passes through the faults of observation: clock offsets and their
//! measured estimates, lost records, hosts that are not heard.

use std::collections::HashMap;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

use super::observation::{ClockOffset, Input, Observation};

mod grid;

pub use grid::Grid;

/// How a rank's own time scatters, beside its mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Noise {
    /// Normal, standard deviation as a share of the own time.
    Gaussian(f64),
    /// Log-normal with this sigma (median 1).
    LogNormal(f64),
    /// Normal with `sigma`, and with probability `chance` a stretch without CPU of up to `most` own times.
    Spikes {
        /// Standard deviation as a share of the own time.
        sigma: f64,
        /// Probability of a spike in one step of one rank.
        chance: f64,
        /// Longest spike, in own times.
        most: f64,
    },
}

/// A rank that needs longer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slow {
    /// Which rank.
    pub rank: usize,
    /// How much longer its own time is, per step.
    pub extra_ns: i64,
    /// From this step on.
    pub from_step: usize,
}

/// A job and how it is observed.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Ranks of the one communicator.
    pub ranks: usize,
    /// Ranks on each host.
    pub ranks_per_node: usize,
    /// Steps.
    pub steps: usize,
    /// Collectives in a step; the own time is spread evenly over them.
    pub collectives: usize,
    /// Own time of a step.
    pub own_ns: i64,
    /// Time of the collective itself, once everybody is there.
    pub transfer_ns: i64,
    /// Scatter of the own time.
    pub noise: Noise,
    /// Uneven data: in each step each rank's work is multiplied by a log-normal factor of this sigma.
    pub uneven: f64,
    /// Late ranks.
    pub slow: Vec<Slow>,
    /// Calls return at once and the wait happens on the device.
    pub enqueues: bool,
    /// Node clocks are off by up to this.
    pub clock_offset_ns: i64,
    /// The measured offset is off by up to this, and says so.
    pub clock_bound_ns: i64,
    /// Probability that a record is lost.
    pub loss: f64,
    /// Hosts that did not answer.
    pub missing_nodes: Vec<usize>,
}

impl Default for Job {
    /// Eight ranks on four hosts, 100 steps of 100 ms with one collective, 2 % noise, nobody late, good clocks.
    fn default() -> Self {
        Self {
            ranks: 8,
            ranks_per_node: 2,
            steps: 100,
            collectives: 1,
            own_ns: 100_000_000,
            transfer_ns: 1_000_000,
            noise: Noise::Gaussian(0.02),
            uneven: 0.0,
            slow: Vec::new(),
            enqueues: false,
            clock_offset_ns: 50_000_000,
            clock_bound_ns: 200_000,
            loss: 0.0,
            missing_nodes: Vec::new(),
        }
    }
}

/// When simulated jobs begin, Unix nanoseconds.
const START_NS: i64 = 1_700_000_000_000_000_000;

impl Job {
    /// The host of a rank.
    #[must_use]
    pub fn node_of(&self, rank: usize) -> String {
        format!("n{}", rank / self.ranks_per_node.max(1))
    }

    /// Run it: the same seed gives the same job.
    #[must_use]
    pub fn observe(&self, seed: u64) -> Input {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut observer = Observer::new(self, &mut rng);
        let world = Group { hash: 0xC0FFEE, ranks: (0..self.ranks).collect() };
        let part_ns = self.own_ns / self.collectives.max(1) as i64;
        let mut free_at: Vec<i64> = vec![START_NS; self.ranks];
        for step in 0..self.steps {
            let share: Vec<f64> = (0..self.ranks).map(|_| factor(&mut rng, Noise::LogNormal(self.uneven))).collect();
            for part in 0..self.collectives.max(1) {
                for (rank, free) in free_at.iter_mut().enumerate() {
                    *free += (part_ns as f64 * share[rank] * factor(&mut rng, self.noise)) as i64;
                    if part == 0 {
                        *free += self.extra_ns(rank, step);
                    }
                }
                observer.meet(&mut rng, &world, "all_reduce", self.transfer_ns, &mut free_at);
            }
        }
        observer.finish(&free_at)
    }

    /// How much longer a rank needs in a step.
    fn extra_ns(&self, rank: usize, step: usize) -> i64 {
        self.slow.iter().filter(|s| s.rank == rank && step >= s.from_step).map(|s| s.extra_ns).sum()
    }
}

/// The ranks of a communicator.
struct Group {
    hash: u64,
    ranks: Vec<usize>,
}

/// What the stores get to see of a job.
struct Observer<'a> {
    job: &'a Job,
    names: Vec<Arc<str>>,
    /// How far each node's clock is ahead.
    offsets: Vec<i64>,
    /// Next number by rank, communicator and function.
    sequence: HashMap<(usize, u64, &'static str), u64>,
    input: Input,
}

impl<'a> Observer<'a> {
    fn new(job: &'a Job, rng: &mut StdRng) -> Self {
        let nodes = job.ranks.div_ceil(job.ranks_per_node.max(1));
        let mut input = Input { since_ns: START_NS, ..Input::default() };
        input.heard.asked = nodes;
        input.heard.answered = nodes - job.missing_nodes.len();
        let mut offsets = Vec::with_capacity(nodes);
        for node in 0..nodes {
            // The first node asks.
            let (truth, wrong) =
                if node == 0 { (0, 0) } else { (within(rng, job.clock_offset_ns), within(rng, job.clock_bound_ns)) };
            offsets.push(truth);
            let name = format!("n{node}");
            if job.missing_nodes.contains(&node) {
                input.heard.missing.push((name, "timeout".to_owned()));
            } else {
                let bound_ns = if node == 0 { 0 } else { job.clock_bound_ns };
                input.clocks.insert(name, ClockOffset { offset_ns: truth + wrong, bound_ns });
            }
        }
        let names = (0..job.ranks).map(|r| job.node_of(r).into()).collect();
        Self { job, names, offsets, sequence: HashMap::new(), input }
    }

    /// All ranks of a group meet: each enters when it is free, and leaves when all have entered.
    fn meet(&mut self, rng: &mut StdRng, group: &Group, func: &'static str, transfer_ns: i64, free_at: &mut [i64]) {
        let done = group.ranks.iter().map(|&r| free_at[r]).max().unwrap_or(START_NS) + transfer_ns;
        for (place, &rank) in group.ranks.iter().enumerate() {
            // Waking up after the wait takes its time, too.
            let left = done + (20_000.0 * normal(rng).abs()) as i64;
            let entry = std::mem::replace(&mut free_at[rank], left);
            self.call(rng, rank, group, place, func, entry, left);
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one call has that many facts")]
    fn call(
        &mut self,
        rng: &mut StdRng,
        rank: usize,
        group: &Group,
        place: usize,
        func: &'static str,
        entry: i64,
        left: i64,
    ) {
        let next = self.sequence.entry((rank, group.hash, func)).or_default();
        let seq = *next;
        *next += 1;
        let duration_ns = if self.job.enqueues { rng.random_range(8_000..20_000) } else { left - entry };
        let node = rank / self.job.ranks_per_node.max(1);
        if self.job.missing_nodes.contains(&node) || rng.random_bool(self.job.loss) {
            return;
        }
        self.input.observations.push(Observation {
            node: Arc::clone(&self.names[rank]),
            pid: 1_000 + rank as i64,
            rank: place as i32,
            nranks: i32::try_from(group.ranks.len()).ok(),
            comm_hash: group.hash,
            func: func.into(),
            seq,
            entry_ns: entry + self.offsets[node],
            duration_ns,
            tier: u8::from(!self.job.enqueues),
            library: if self.job.enqueues { "nccl" } else { "mpi" }.into(),
            root: None,
        });
    }

    fn finish(mut self, free_at: &[i64]) -> Input {
        self.input.until_ns = free_at.iter().copied().max().unwrap_or(START_NS) + 1;
        self.input
    }
}

fn within(rng: &mut impl Rng, limit: i64) -> i64 {
    if limit > 0 { rng.random_range(-limit..=limit) } else { 0 }
}

/// A standard normal deviate (Box and Muller, 1958).
fn normal(rng: &mut impl Rng) -> f64 {
    let u: f64 = 1.0 - rng.random::<f64>();
    let v: f64 = rng.random();
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

fn factor(rng: &mut impl Rng, noise: Noise) -> f64 {
    match noise {
        Noise::Gaussian(sigma) => (1.0 + sigma * normal(rng)).max(0.0),
        Noise::LogNormal(sigma) => (sigma * normal(rng)).exp(),
        Noise::Spikes { sigma, chance, most } => {
            let spike = if rng.random_bool(chance) { most * rng.random::<f64>() } else { 0.0 };
            (1.0 + sigma * normal(rng)).max(0.0) + spike
        }
    }
}
