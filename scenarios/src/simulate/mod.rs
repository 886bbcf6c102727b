//! Simulated jobs: what the stores of a mesh would hold after a job whose truth is known. Pure and
//! seeded, for the tests of the verdicts and for their benchmark.
//!
//! Shares the types of an observation with the analysis, and no constant or rule: what it assumes
//! of clocks and delays is its own.
//!
//! A job is coupled: each step every rank computes (compute time with noise), enters the
//! collective, and leaves when the last rank has entered. What is recorded then passes through the
//! faults of observation: clocks that are off and drift, lost records, recorders that came late,
//! hosts that are not heard.
//!
//! [`Job`] is flat, one communicator; [`Grid`] has tensor, data and pipeline parallel groups.
//! `schedule` says in which order the stages of a pipeline work, `machine` moves the ranks through
//! their calls and records them.

use rand::{Rng, RngExt};

use verdicts::Input;

mod clocks;
mod grid;
mod machine;
mod schedule;

pub use clocks::Clocks;
pub use grid::Grid;
pub use machine::pid;
use machine::{Group, Machine};
pub use schedule::Schedule;

/// How a rank's compute time scatters, beside its mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Noise {
    /// Normal, standard deviation as a share of the compute time.
    Gaussian(f64),
    /// Log-normal with this sigma (median 1).
    LogNormal(f64),
    /// Normal with `sigma`, and with probability `chance` a stretch without CPU of up to `most` own
    /// times.
    Spikes {
        /// Standard deviation as a share of the compute time.
        sigma: f64,
        /// Probability of a spike in one step of one rank.
        chance: f64,
        /// Longest spike, in compute times.
        most: f64,
    },
    /// Mostly near its usual length, with a power-law tail of delays: `sigma` times a Pareto
    /// deviate less its least value. With `alpha` of 2 and below the variance is infinite.
    Heavy {
        /// Size of the tail as a share of the compute time.
        sigma: f64,
        /// Exponent of the tail.
        alpha: f64,
    },
}

/// A rank that needs longer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slow {
    /// Which rank.
    pub rank: usize,
    /// How much longer its compute time is, per step.
    pub extra_ns: i64,
    /// From this step on.
    pub from_step: usize,
}

/// A network that is slow between two hosts, or of one host towards all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowLink {
    /// One end.
    pub node: usize,
    /// The other end; none: everything that leaves the host.
    pub to: Option<usize>,
    /// How much longer a transfer over it takes.
    pub extra_ns: i64,
}

/// A rank that comes no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// Which rank.
    pub rank: usize,
    /// In this step, before its first call.
    pub step: usize,
    /// Its process ends. Otherwise it is there and does nothing.
    pub gone: bool,
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
    /// Collectives in a step; the compute time is spread evenly over them.
    pub collectives: usize,
    /// Own time of a step.
    pub own_ns: i64,
    /// Time of the collective itself, once everybody is there.
    pub transfer_ns: i64,
    /// Scatter of the compute time.
    pub noise: Noise,
    /// Uneven data: in each step each rank's work is multiplied by a log-normal factor of this
    /// sigma.
    pub uneven: f64,
    /// Late ranks.
    pub slow: Vec<Slow>,
    /// Late ranks are so in so many steps and then not in so many others, in turns: a device that
    /// gets too warm and cools down again.
    pub rests: Option<(usize, usize)>,
    /// From a step on every rank's own work takes so many times as long: a shared file system, a
    /// longer input.
    pub all_slower: Option<(usize, f64)>,
    /// A slow link.
    pub slow_link: Option<SlowLink>,
    /// A rank that stops; the job then hangs, and is looked at ten seconds later.
    pub stop: Option<Stop>,
    /// Calls return at once and the wait happens on the device; the host waits for it in a
    /// synchronise call after each call, or at the end of the step.
    pub enqueues: bool,
    /// With `enqueues`: the host synchronises only at the end of a step, and runs ahead of the
    /// device until then.
    pub runs_ahead: bool,
    /// With `runs_ahead`: the host synchronises once in so many steps.
    pub steps_ahead: usize,
    /// With `enqueues`: own work is the device's, and the host only enqueues it.
    pub on_device: bool,
    /// With `enqueues`: the synchronise calls are recorded.
    pub syncs: bool,
    /// The synchronise calls are recorded without it, too, of the same job: for an oracle.
    pub syncs_seen: bool,
    /// Node clocks are off by up to this.
    pub clock_offset_ns: i64,
    /// The measured offset is off by up to this, and says so.
    pub clock_bound_ns: i64,
    /// So much is it off where that is not true: the way there and the way back take more
    /// differently long than was thought.
    pub clock_error_ns: Option<i64>,
    /// Node clocks drift by up to this many parts in a billion. They are measured at the end of the
    /// span.
    pub clock_drift_ppb: i64,
    /// Recorders that came late: node and the step at which. Of those, calls have no number.
    pub late_nodes: Vec<(usize, usize)>,
    /// Probability that a record is lost.
    pub loss: f64,
    /// Hosts that did not answer.
    pub missing_nodes: Vec<usize>,
}

impl Default for Job {
    /// Eight ranks on four hosts, 100 steps of 100 ms with one collective, 2 % noise, nobody late,
    /// good clocks.
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
            rests: None,
            all_slower: None,
            slow_link: None,
            stop: None,
            enqueues: false,
            runs_ahead: false,
            steps_ahead: 1,
            on_device: false,
            syncs: false,
            syncs_seen: false,
            clock_offset_ns: 50_000_000,
            clock_bound_ns: 200_000,
            clock_error_ns: None,
            clock_drift_ppb: 0,
            late_nodes: Vec::new(),
            loss: 0.0,
            missing_nodes: Vec::new(),
        }
    }
}

/// When simulated jobs begin, Unix nanoseconds.
const START_NS: i64 = 1_700_000_000_000_000_000;

impl Job {
    /// Slow down every rank of a host alike.
    #[must_use]
    pub fn with_slow_host(mut self, node: usize, extra_ns: i64) -> Self {
        let per = self.ranks_per_node.max(1);
        let ranks = node * per..((node + 1) * per).min(self.ranks);
        self.slow.extend(ranks.map(|rank| Slow { rank, extra_ns, from_step: 0 }));
        self
    }

    /// The host of a rank.
    #[must_use]
    pub fn node_of(&self, rank: usize) -> String {
        format!("n{}", rank / self.ranks_per_node.max(1))
    }

    /// Run it: the same seed gives the same job.
    #[must_use]
    pub fn observe(&self, seed: u64) -> Input {
        let mut machine = Machine::new(self, seed);
        let world = Group { hash: 0xC0FFEE, ranks: (0..self.ranks).collect() };
        let part_ns = self.own_ns / self.collectives.max(1) as i64;
        for step in 0..self.steps {
            machine.begin(step);
            let share: Vec<f64> = (0..self.ranks).map(|_| machine.factor(Noise::LogNormal(self.uneven))).collect();
            for part in 0..self.collectives.max(1) {
                for (rank, share) in share.iter().enumerate() {
                    let own = (part_ns as f64 * self.pace(step) * share * machine.factor(self.noise)) as i64;
                    machine.compute(rank, own + if part == 0 { self.extra_ns(rank, step) } else { 0 });
                }
                machine.meet(&world, "all_reduce", self.transfer_ns);
            }
            machine.end_step();
        }
        machine.finish()
    }

    /// How many times as long as usual everybody's work takes in a step.
    fn pace(&self, step: usize) -> f64 {
        self.all_slower.filter(|(from, _)| step >= *from).map_or(1.0, |(_, times)| times)
    }

    /// How far a measured offset may be wrong.
    fn offset_error_ns(&self) -> i64 {
        self.clock_error_ns.unwrap_or(self.clock_bound_ns)
    }

    /// How much longer a rank needs in a step.
    pub(crate) fn extra_ns(&self, rank: usize, step: usize) -> i64 {
        if self.rests.is_some_and(|(slow, not)| step % (slow + not) >= slow) {
            return 0;
        }
        self.slow.iter().filter(|s| s.rank == rank && step >= s.from_step).map(|s| s.extra_ns).sum()
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
        Noise::Heavy { sigma, alpha } => {
            let u: f64 = 1.0 - rng.random::<f64>();
            1.0 + sigma * (u.powf(-1.0 / alpha) - 1.0)
        }
    }
}
