//! Simulated jobs with tensor, data and pipeline parallel groups.

use verdicts::Input;

use super::{Group, Job, Machine, Noise};

/// A job of `tensor * data * pipeline` ranks: ranks count through the tensor group first, then the
/// replicas, then the stages. In each step micro-batches pass forward through the stages and back,
/// then the replicas of a stage reduce their gradients, then all ranks meet once.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// Ranks in a tensor parallel group; they meet after every phase.
    pub tensor: usize,
    /// Replicas.
    pub data: usize,
    /// Stages of the pipeline.
    pub pipeline: usize,
    /// Micro-batches in a step.
    pub microbatches: usize,
    /// One stage that has more to do: which, and how many times the work of the others.
    pub heavy_stage: Option<(usize, f64)>,
    /// The rest; `ranks` must be the product, `own_ns` is a rank's own time in a step,
    /// `collectives` is not used, `uneven` is drawn per replica (its ranks work on the same data).
    pub job: Job,
}

impl Grid {
    /// Run it: the same seed gives the same job.
    #[must_use]
    pub fn observe(&self, seed: u64) -> Input {
        let mut machine = Machine::new(&self.job, seed);
        let at = |stage: usize, replica: usize, tensor: usize| (stage * self.data + replica) * self.tensor + tensor;
        let group = |kind: u64, number: usize, ranks: Vec<usize>| Group { hash: kind << 32 | number as u64, ranks };
        let tensor_groups: Vec<Vec<Group>> = (0..self.pipeline)
            .map(|s| {
                let ranks = |d| (0..self.tensor).map(|t| at(s, d, t)).collect();
                (0..self.data).map(|d| group(1, s * self.data + d, ranks(d))).collect()
            })
            .collect();
        let data_groups: Vec<Group> = (0..self.pipeline * self.tensor)
            .map(|i| group(2, i, (0..self.data).map(|d| at(i / self.tensor, d, i % self.tensor)).collect()))
            .collect();
        let pipelines: Vec<Vec<Group>> = (0..self.data)
            .map(|d| {
                let ranks = |t| (0..self.pipeline).map(|s| at(s, d, t)).collect();
                (0..self.tensor).map(|t| group(3, d * self.tensor + t, ranks(t))).collect()
            })
            .collect();
        let world = group(4, 0, (0..self.job.ranks).collect());
        let phases = 3 * self.microbatches.max(1) as i64;
        for step in 0..self.job.steps {
            machine.begin(step);
            let share: Vec<f64> = (0..self.data).map(|_| machine.factor(Noise::LogNormal(self.job.uneven))).collect();
            for back in [false, true] {
                for _ in 0..self.microbatches.max(1) {
                    // When each pipeline's hand-over to the next stage is ready.
                    let mut ready: Vec<Option<i64>> = vec![None; self.data * self.tensor];
                    for turn in 0..self.pipeline {
                        let place = |turn: usize| if back { self.pipeline - 1 - turn } else { turn };
                        let stage = place(turn);
                        for d in 0..self.data {
                            for t in 0..self.tensor {
                                let rank = at(stage, d, t);
                                if turn > 0 {
                                    let from = at(place(turn - 1), d, t);
                                    machine.receive(rank, from, &pipelines[d][t], ready[d * self.tensor + t]);
                                }
                                let heavy = self.heavy_stage.filter(|(s, _)| *s == stage).map_or(1.0, |(_, f)| f);
                                let part = self.job.own_ns * if back { 2 } else { 1 } / phases;
                                let own = part as f64 * heavy * share[d] * machine.factor(self.job.noise);
                                let extra_ns = self.job.extra_ns(rank, step) / (2 * phases / 3);
                                machine.compute(rank, own as i64 + extra_ns);
                            }
                            if self.tensor > 1 {
                                machine.meet(&tensor_groups[stage][d], "all_reduce", 50_000);
                            }
                            for t in 0..self.tensor {
                                if turn + 1 < self.pipeline {
                                    let (rank, to) = (at(stage, d, t), at(place(turn + 1), d, t));
                                    ready[d * self.tensor + t] = machine.send(rank, to, &pipelines[d][t]);
                                }
                            }
                        }
                    }
                }
            }
            for members in data_groups.iter().filter(|g| g.ranks.len() > 1) {
                machine.meet(members, "reduce_scatter", self.job.transfer_ns);
            }
            machine.meet(&world, "all_reduce", 50_000);
            machine.end_step();
        }
        machine.finish()
    }

    /// About how long a step takes when nobody is late: the pipeline fills, works and empties;
    /// without noise.
    #[must_use]
    pub fn step_ns(&self) -> i64 {
        let batches = self.microbatches.max(1) as i64;
        let heavy = self.heavy_stage.map_or(1.0, |(_, factor)| factor.max(1.0));
        let own_ns = (self.job.own_ns as f64 * heavy) as i64;
        own_ns * (batches + self.pipeline as i64 - 1) / batches + self.job.transfer_ns
    }
}
