//! Simulated jobs: what the stores of a mesh would hold after a job whose truth is known. Pure and seeded, for tests
//! of the verdicts here and for the scenarios' benchmark.
//!
//! A job is coupled: each step every rank computes (own time with noise), enters the collective, and leaves when the
//! last rank has entered. What is recorded then passes through the faults of observation: clock offsets and their
//! measured estimates, lost records, hosts that are not heard.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};

use super::observation::{ClockOffset, Input, Observation};

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
        let nodes = self.ranks.div_ceil(self.ranks_per_node.max(1));
        let mut input = Input { since_ns: START_NS, ..Input::default() };
        input.heard.asked = nodes;
        input.heard.answered = nodes - self.missing_nodes.len();
        let mut offsets = Vec::with_capacity(nodes);
        for node in 0..nodes {
            // The first node asks.
            let (truth, wrong) = if node == 0 {
                (0, 0)
            } else {
                (within(&mut rng, self.clock_offset_ns), within(&mut rng, self.clock_bound_ns))
            };
            offsets.push(truth);
            let name = format!("n{node}");
            if self.missing_nodes.contains(&node) {
                input.heard.missing.push((name, "timeout".to_owned()));
            } else {
                let bound_ns = if node == 0 { 0 } else { self.clock_bound_ns };
                input.clocks.insert(name, ClockOffset { offset_ns: truth + wrong, bound_ns });
            }
        }
        let names: Vec<Arc<str>> = (0..self.ranks).map(|r| self.node_of(r).into()).collect();
        let func: Arc<str> = "all_reduce".into();
        let library: Arc<str> = if self.enqueues { "nccl" } else { "mpi" }.into();
        let part_ns = self.own_ns / self.collectives.max(1) as i64;
        let mut free_at: Vec<i64> = vec![START_NS; self.ranks];
        let mut entries = vec![0i64; self.ranks];
        let mut seq = 0;
        for step in 0..self.steps {
            let share: Vec<f64> = (0..self.ranks).map(|_| factor(&mut rng, Noise::LogNormal(self.uneven))).collect();
            for part in 0..self.collectives.max(1) {
                for (rank, entry) in entries.iter_mut().enumerate() {
                    let mut own = part_ns as f64 * share[rank] * factor(&mut rng, self.noise);
                    if part == 0 {
                        let late = self.slow.iter().filter(|s| s.rank == rank && step >= s.from_step);
                        own += late.map(|s| s.extra_ns as f64).sum::<f64>();
                    }
                    *entry = free_at[rank] + own as i64;
                }
                let done = entries.iter().copied().max().unwrap_or(START_NS) + self.transfer_ns;
                for rank in 0..self.ranks {
                    // Waking up after the wait takes its time, too.
                    let left = done + (20_000.0 * normal(&mut rng).abs()) as i64;
                    let call_ns = if self.enqueues { rng.random_range(8_000..20_000) } else { left - entries[rank] };
                    free_at[rank] = left;
                    let node = rank / self.ranks_per_node.max(1);
                    if self.missing_nodes.contains(&node) || rng.random_bool(self.loss) {
                        continue;
                    }
                    input.observations.push(Observation {
                        node: Arc::clone(&names[rank]),
                        pid: 1_000 + rank as i64,
                        rank: rank as i32,
                        nranks: i32::try_from(self.ranks).ok(),
                        comm_hash: 0xC0FFEE,
                        func: Arc::clone(&func),
                        seq,
                        entry_ns: entries[rank] + offsets[node],
                        duration_ns: call_ns,
                        tier: u8::from(!self.enqueues),
                        library: Arc::clone(&library),
                        root: None,
                    });
                }
                seq += 1;
            }
        }
        input.until_ns = free_at.iter().copied().max().unwrap_or(START_NS) + 1;
        input
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
