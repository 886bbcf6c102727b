//! Draws jobs: a case, a shape, a mode of calling, noise, and faults of observation. The same
//! number of the same seed gives the same job.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use verdicts::Input;

use super::class::Class;
use crate::simulate::{self, Clocks, Grid, Job, Noise, Slow, SlowLink, Stop};

pub(super) const MS: i64 = 1_000_000;

/// What is the matter with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Case {
    /// Nothing.
    Healthy,
    /// One rank needs longer, by 10 % of a step up to ten steps.
    SlowRank,
    /// One rank needs longer, by 5 to 10 % of a step.
    SlightlySlowRank,
    /// All ranks of a host need longer.
    SlowHost,
    /// A link between two hosts, or of one host to all others, is slow.
    SlowLink,
    /// One stage has more to do on every replica.
    StageImbalance,
    /// In each step another replica has more to do.
    DataImbalance,
    /// A rank stops.
    Hang,
    /// A rank's process ends.
    Crash,
    /// One rank needs longer, and its host is not heard.
    Unheard,
    /// A rank or host of a pipeline needs longer, and nobody was heard that does the same work: a
    /// stage that has more to do looks alike.
    Alone,
    /// A rank or host needs longer; recorders came late, and calls that enqueue show nothing by
    /// which to match them.
    Unmatched,
    /// A rank stops or ends; calls enqueue, nothing shows where hosts wait, and all that is seen is
    /// silence.
    Silent,
}

impl Case {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 13] = [
        Self::Healthy,
        Self::SlowRank,
        Self::SlightlySlowRank,
        Self::SlowHost,
        Self::SlowLink,
        Self::StageImbalance,
        Self::DataImbalance,
        Self::Hang,
        Self::Crash,
        Self::Unheard,
        Self::Alone,
        Self::Unmatched,
        Self::Silent,
    ];

    /// As the table names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::SlowRank => "slow rank",
            Self::SlightlySlowRank => "slow rank, < 10 %",
            Self::SlowHost => "slow host",
            Self::SlowLink => "slow link",
            Self::StageImbalance => "stage imbalance",
            Self::DataImbalance => "data imbalance",
            Self::Hang => "hang",
            Self::Crash => "crash",
            Self::Unheard => "slow, not heard",
            Self::Alone => "slow, none heard with the same work",
            Self::Unmatched => "slow, calls not to be matched",
            Self::Silent => "hang or crash, only silence seen",
        }
    }

    fn of(number: u64) -> Self {
        match number % 20 {
            0..4 => Self::Healthy,
            4..10 => Self::SlowRank,
            10 => Self::SlightlySlowRank,
            11 | 12 => Self::SlowHost,
            13 => Self::SlowLink,
            14 => Self::StageImbalance,
            15 | 16 => Self::DataImbalance,
            17 => Self::Hang,
            18 => Self::Crash,
            _ => Self::Unheard,
        }
    }
}

/// How the job's calls behave, and what is recorded of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum Mode {
    /// Calls return when the ranks have met.
    Blocking,
    /// Calls enqueue, and the host synchronises after each; that is recorded.
    Synced,
    /// Calls enqueue, and the host synchronises at the end of a step; that is recorded.
    SyncedOnce,
    /// Calls enqueue, and when the host waits is not recorded.
    Enqueueing,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Blocking, Self::Synced, Self::SyncedOnce, Self::Enqueueing];

    /// As the table names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking (tier 1)",
            Self::Synced => "enqueues, synchronise seen after each call",
            Self::SyncedOnce => "enqueues, synchronise seen once a step",
            Self::Enqueueing => "enqueues, nothing else seen (tier 0)",
        }
    }
}

/// A job and its truth.
#[derive(Debug, Clone)]
pub struct Drawn {
    /// Its number.
    pub number: u64,
    /// What is the matter.
    pub case: Case,
    /// How it calls.
    pub mode: Mode,
    /// How much longer a step takes for the culprit, in steps; 0 where there is none.
    pub effect: f64,
    /// The ranks to be named.
    pub culprits: Vec<i32>,
    /// The job.
    pub grid: Grid,
    /// Another job on the same hosts, with which nothing is the matter.
    pub other: Option<Grid>,
    /// What is hard about it, where it was drawn for that.
    pub class: Option<Class>,
    /// It has a culprit, and that it is late shows in what the others of its kind do.
    pub shown: bool,
    seed: u64,
}

/// What is added to the process ids of the other job.
const OTHER_PIDS: i64 = 100_000;
/// And to its communicators' hashes.
const OTHER_COMMS: u64 = 1 << 60;

impl Drawn {
    pub(super) fn new(number: u64, case: Case, mode: Mode, grid: Grid, seed: u64) -> Self {
        let (culprits, other, class) = (Vec::new(), None, None);
        Self { number, case, mode, effect: 0.0, culprits, grid, other, class, shown: false, seed }
    }

    /// What the mesh would have recorded.
    #[must_use]
    pub fn observe(&self) -> Input {
        let mut all = self.grid.observe(self.seed);
        // The same seed gives the same clocks.
        if let Some(mut other) = self.other.as_ref().map(|other| other.observe(self.seed)) {
            let calls = other.observations.iter_mut().chain(&mut other.unnumbered);
            calls.for_each(|seen| (seen.pid, seen.comm_hash) = (seen.pid + OTHER_PIDS, seen.comm_hash | OTHER_COMMS));
            let of = other.progress.iter_mut();
            of.for_each(|p| (p.pid, p.comm_hash) = (p.pid + OTHER_PIDS, p.comm_hash | OTHER_COMMS));
            other.syncs.iter_mut().chain(&mut other.syncing).for_each(|sync| sync.pid += OTHER_PIDS);
            all.observations.append(&mut other.observations);
            all.unnumbered.append(&mut other.unnumbered);
            let open = other.in_calls.iter_mut();
            open.for_each(|call| {
                (call.pid, call.comm_hash) = (call.pid + OTHER_PIDS, call.comm_hash.map(|comm| comm | OTHER_COMMS));
            });
            all.in_calls.append(&mut other.in_calls);
            all.progress.append(&mut other.progress);
            all.syncs.append(&mut other.syncs);
            all.syncing.append(&mut other.syncing);
            all.until_ns = all.until_ns.max(other.until_ns);
        }
        all
    }

    /// The seed that it runs with.
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// The processes of the ranks to be named.
    #[must_use]
    pub fn culprit_pids(&self) -> BTreeSet<i64> {
        self.culprits.iter().filter_map(|rank| usize::try_from(*rank).ok()).map(simulate::pid).collect()
    }

    /// Its hosts' clocks.
    #[must_use]
    pub fn clocks(&self) -> Clocks {
        Clocks::of(&self.grid.job, self.seed)
    }

    /// In few words: case, shape, faults.
    #[must_use]
    pub fn title(&self) -> String {
        let Grid { tensor, data, pipeline, job, .. } = &self.grid;
        format!(
            "job {}: {}{}, {tensor}x{data}x{pipeline} (tensor, data, pipeline), {} a host, {} steps of {} ms, {:?}, {:?}, effect {:.2}, \
             truth {:?}, missing {:?}, late {:?}, loss {}",
            self.number,
            self.case.name(),
            self.class.map(|class| format!(" ({})", class.name())).unwrap_or_default(),
            job.ranks_per_node,
            job.steps,
            self.grid.step_ns() / MS,
            self.mode,
            job.noise,
            self.effect,
            self.culprits,
            job.missing_nodes,
            job.late_nodes,
            job.loss,
        )
    }
}

/// Tensor, data and pipeline parallel sizes; the small ones come more often than the large.
const SMALL: [(usize, usize, usize); 12] = [
    (1, 2, 1),
    (1, 3, 1),
    (1, 4, 1),
    (1, 8, 1),
    (2, 1, 1),
    (4, 1, 1),
    (2, 2, 1),
    (2, 4, 1),
    (1, 2, 2),
    (1, 2, 4),
    (2, 2, 2),
    (1, 4, 2),
];
const MIDDLE: [(usize, usize, usize); 10] =
    [(1, 16, 1), (1, 32, 1), (1, 64, 1), (2, 8, 1), (4, 8, 1), (8, 4, 1), (2, 4, 4), (1, 8, 4), (4, 4, 2), (8, 2, 4)];
const LARGE: [(usize, usize, usize); 6] = [(1, 128, 1), (8, 16, 1), (4, 8, 4), (8, 8, 4), (1, 256, 1), (8, 16, 2)];
const LARGEST: [(usize, usize, usize); 3] = [(1, 512, 1), (8, 64, 1), (8, 16, 4)];

/// The job of this number.
#[must_use]
pub fn draw(seed: u64, number: u64) -> Drawn {
    let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number);
    let case = Case::of(number);
    let mode = match rng.random_range(0..10) {
        0..5 => Mode::Blocking,
        5 | 6 => Mode::Synced,
        7 => Mode::SyncedOnce,
        _ => Mode::Enqueueing,
    };
    let mut grid = shape(&mut rng, case);
    grid.job.enqueues = mode != Mode::Blocking;
    grid.job.runs_ahead = mode == Mode::SyncedOnce;
    grid.job.syncs = matches!(mode, Mode::Synced | Mode::SyncedOnce);
    let mut drawn = Drawn::new(number, case, mode, grid, rng.random());
    matter(&mut drawn, &mut rng);
    blur(&mut drawn, &mut rng);
    if matches!(case, Case::SlowRank | Case::SlightlySlowRank | Case::SlowHost) && alone(&drawn) {
        drawn.case = Case::Alone;
    }
    // What cannot be told at this tier: right is to name the rank, or to name nobody and say that
    // it is not known.
    if mode == Mode::Enqueueing {
        drawn.case = match case {
            Case::SlowRank | Case::SlightlySlowRank | Case::SlowHost if !drawn.grid.job.late_nodes.is_empty() => {
                Case::Unmatched
            }
            Case::Hang | Case::Crash => Case::Silent,
            other => other,
        };
    }
    drawn
}

/// A rank is slow against those that do the same work, in a pipeline the ranks of its stage. Where
/// none of those that was heard is not slow as well, what was observed is the same as of a stage
/// that has more to do.
pub(super) fn alone(drawn: &Drawn) -> bool {
    let Grid { tensor, data, pipeline, job, .. } = &drawn.grid;
    let stage = |rank: usize| rank / (tensor * data);
    let heard = |rank: usize| !job.missing_nodes.contains(&(rank / job.ranks_per_node));
    let slow: Vec<usize> = drawn.culprits.iter().filter_map(|rank| usize::try_from(*rank).ok()).collect();
    let peer = |of: usize| (0..job.ranks).any(|r| stage(r) == stage(of) && heard(r) && !slow.contains(&r));
    *pipeline > 1 && slow.iter().any(|rank| !peer(*rank))
}

pub(super) fn pick<T: Copy>(rng: &mut impl Rng, from: &[T]) -> T {
    from[rng.random_range(0..from.len())]
}

fn shape(rng: &mut StdRng, case: Case) -> Grid {
    shape_of(rng, |shape| match case {
        Case::StageImbalance => shape.2 > 1 && shape.1 > 1,
        Case::DataImbalance => shape.1 > 3,
        Case::SlowLink | Case::SlowHost | Case::Unheard => shape.0 * shape.1 * shape.2 > 3,
        _ => true,
    })
}

/// A healthy job of a shape that fits: tensor, data and pipeline parallel sizes.
pub(super) fn shape_of(rng: &mut StdRng, fits: impl Fn((usize, usize, usize)) -> bool) -> Grid {
    let (tensor, data, pipeline) = loop {
        let shape = match rng.random_range(0..100) {
            0..50 => pick(rng, &SMALL),
            50..90 => pick(rng, &MIDDLE),
            90..98 => pick(rng, &LARGE),
            _ => pick(rng, &LARGEST),
        };
        if fits(shape) {
            break shape;
        }
    };
    let ranks = tensor * data * pipeline;
    let ranks_per_node = match ranks {
        2..4 => 1,
        4..8 => pick(rng, &[1, 2]),
        8..17 => pick(rng, &[2, 4]),
        _ => pick(rng, &[4, 8]),
    };
    let own_ns = pick(rng, &[20, 100, 300, 1_000]) * MS;
    let seconds = if ranks > 64 { 6 } else { 12 };
    let most = (60_000 / (ranks * if pipeline > 1 { 4 } else { 1 })).clamp(20, 200) as i64;
    let steps = (seconds * 1_000 * MS / own_ns).clamp(15, most) as usize;
    let noise = match rng.random_range(0..6) {
        0 => Noise::Gaussian(0.01),
        1 => Noise::Gaussian(0.03),
        2 => Noise::LogNormal(0.05),
        3 => Noise::Spikes { sigma: 0.02, chance: 0.01, most: 1.0 },
        4 => Noise::Heavy { sigma: 0.01, alpha: 1.5 },
        _ => Noise::LogNormal(0.1),
    };
    let job = Job { ranks, ranks_per_node, steps, own_ns, noise, transfer_ns: own_ns / 50, ..Job::default() };
    Grid {
        tensor,
        data,
        pipeline,
        microbatches: if pipeline > 1 { 4 } else { 2 },
        heavy_stage: None,
        job,
        ..Grid::default()
    }
}

/// Bring in what is the matter.
fn matter(drawn: &mut Drawn, rng: &mut StdRng) {
    let grid = &mut drawn.grid;
    let step_ns = grid.step_ns() as f64;
    let nodes = grid.job.ranks.div_ceil(grid.job.ranks_per_node);
    let rank = rng.random_range(0..grid.job.ranks);
    let node = rng.random_range(0..nodes);
    // Most begin before the span, some in it.
    let from_step = if rng.random_bool(0.2) { grid.job.steps * 2 / 5 } else { 0 };
    let effect = 0.1 * 100f64.powf(rng.random::<f64>());
    match drawn.case {
        Case::Healthy => {
            // Hard: broad noise, or frequent spikes as on an oversubscribed host.
            match rng.random_range(0..4) {
                0 => grid.job.noise = Noise::Spikes { sigma: 0.1, chance: 0.05, most: 3.0 },
                1 => grid.job.noise = Noise::LogNormal(0.3),
                2 => grid.job.noise = Noise::Heavy { sigma: 0.1, alpha: 1.5 },
                _ => {}
            }
        }
        Case::SlowRank | Case::Unheard => {
            drawn.effect = effect;
            grid.job.slow = vec![Slow { rank, extra_ns: (effect * step_ns) as i64, from_step }];
            if drawn.case == Case::Unheard {
                grid.job.missing_nodes = vec![rank / grid.job.ranks_per_node];
            } else {
                drawn.culprits = vec![rank as i32];
            }
        }
        Case::SlightlySlowRank => {
            drawn.effect = rng.random_range(0.05..0.1);
            grid.job.slow = vec![Slow { rank, extra_ns: (drawn.effect * step_ns) as i64, from_step }];
            drawn.culprits = vec![rank as i32];
        }
        Case::SlowHost => {
            drawn.effect = effect;
            // A host that holds a whole stage is not to be told from a stage that has more to do.
            let stage = grid.tensor * grid.data;
            let per = grid.job.ranks_per_node;
            let whole =
                |node: usize| grid.pipeline > 1 && (node * per).div_ceil(stage) * stage + stage <= (node + 1) * per;
            if whole(node) {
                grid.job.ranks_per_node = (stage / 2).max(1);
            }
            grid.job = std::mem::take(&mut grid.job).with_slow_host(node, (effect * step_ns) as i64);
            drawn.culprits = grid.job.slow.iter().map(|slow| slow.rank as i32).collect();
        }
        Case::SlowLink => {
            drawn.effect = 0.1 * 10f64.powf(rng.random::<f64>());
            let to = rng.random_bool(0.5).then(|| (node + rng.random_range(1..nodes)) % nodes);
            grid.job.slow_link = Some(SlowLink { node, to, extra_ns: (drawn.effect * step_ns / 4.0) as i64 });
        }
        Case::StageImbalance => {
            drawn.effect = rng.random_range(0.2..1.0);
            let stage = rng.random_range(0..grid.pipeline);
            grid.heavy_stage = Some((stage, 1.0 + drawn.effect));
        }
        Case::DataImbalance => {
            drawn.effect = rng.random_range(0.2..0.4);
            grid.job.uneven = drawn.effect;
        }
        Case::Alone | Case::Unmatched | Case::Silent => {}
        Case::Hang | Case::Crash => {
            let step = rng.random_range(grid.job.steps / 2..grid.job.steps);
            grid.job.stop = Some(Stop { rank, step, gone: drawn.case == Case::Crash });
            drawn.culprits = vec![rank as i32];
        }
    }
}

/// Bring in what observation does to it.
pub(super) fn blur(drawn: &mut Drawn, rng: &mut StdRng) {
    let job = &mut drawn.grid.job;
    job.clock_bound_ns = pick(rng, &[100_000, 200_000, 400_000]);
    job.clock_drift_ppb = 50_000;
    if rng.random_bool(0.3) {
        job.loss = 0.01;
    }
    let per = job.ranks_per_node;
    let nodes = job.ranks.div_ceil(per);
    let culprit = drawn.culprits.first().map(|rank| *rank as usize / per);
    if nodes > 2 && job.missing_nodes.is_empty() && rng.random_bool(0.15) {
        let node = rng.random_range(0..nodes);
        // The culprit not heard is a case of its own.
        if culprit != Some(node) {
            job.missing_nodes = vec![node];
        }
    }
    if rng.random_bool(0.15) {
        let from = job.steps / 10;
        let all = rng.random_bool(0.5);
        job.late_nodes = (0..nodes).filter(|_| all || rng.random_bool(0.5)).map(|node| (node, from)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_is_the_same_job() {
        let (a, b) = (draw(1, 7), draw(1, 7));
        assert_eq!((&a.grid, &a.culprits), (&b.grid, &b.culprits));
        assert_ne!(draw(2, 7).seed, a.seed);
    }

    #[test]
    fn every_case_and_every_size_is_drawn() {
        let all: Vec<Drawn> = (0..2_000).map(|number| draw(1, number)).collect();
        for case in Case::ALL {
            // A pipeline with a stage's only other ranks on the one host that is missing is rare.
            let least = if case == Case::Alone { 3 } else { 10 };
            assert!(all.iter().filter(|d| d.case == case).count() >= least, "{case:?}");
        }
        for mode in Mode::ALL {
            assert!(all.iter().filter(|d| d.mode == mode).count() >= 100, "{mode:?}");
        }
        let ranks = |d: &Drawn| d.grid.job.ranks;
        assert_eq!((all.iter().map(ranks).min(), all.iter().map(ranks).max()), (Some(2), Some(512)));
    }
}
