//! Simulated jobs with tensor, data and pipeline parallel groups.

use std::collections::{HashMap, HashSet, VecDeque};

use verdicts::Input;

use super::schedule::{Schedule, Work};
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
    /// In which order stages work.
    pub schedule: Schedule,
    /// Experts, whose load differs by a log-normal factor of this sigma from micro-batch to
    /// micro-batch: the replicas meet before and after. 0: there are none.
    pub experts: f64,
    /// The replicas reduce their gradients part by part while they compute the next, not at the
    /// end.
    pub buckets: bool,
    /// The rest; `ranks` must be the product, `own_ns` is a rank's compute time in a step,
    /// `collectives` is not used, `uneven` is drawn per replica (its ranks work on the same data).
    pub job: Job,
}

impl Default for Grid {
    /// One rank, and nothing the matter.
    fn default() -> Self {
        Self {
            tensor: 1,
            data: 1,
            pipeline: 1,
            microbatches: 1,
            heavy_stage: None,
            schedule: Schedule::default(),
            experts: 0.0,
            buckets: false,
            job: Job::default(),
        }
    }
}

/// The communicators of a grid.
struct Groups {
    /// By stage, then replica.
    tensor: Vec<Vec<Group>>,
    /// By stage, then rank of the tensor group.
    data: Vec<Vec<Group>>,
    /// The same ranks, where experts meet.
    experts: Vec<Vec<Group>>,
    /// By replica, then rank of the tensor group.
    pipelines: Vec<Vec<Group>>,
    world: Group,
}

/// When what a stage hands over is ready, by who takes it, replica and rank of the tensor group;
/// none: never.
type Ready = HashMap<(Work, usize, usize), Option<i64>>;

/// A step in motion.
struct Step<'a, 'm> {
    grid: &'a Grid,
    groups: &'a Groups,
    machine: &'a mut Machine<'m>,
    number: usize,
    /// By replica: how much its data have to do.
    share: Vec<f64>,
    ready: Ready,
}

impl Grid {
    fn at(&self, stage: usize, replica: usize, tensor: usize) -> usize {
        (stage * self.data + replica) * self.tensor + tensor
    }

    fn groups(&self) -> Groups {
        let group = |kind: u64, number: usize, ranks: Vec<usize>| Group { hash: kind << 32 | number as u64, ranks };
        let tensor = |s: usize, d: usize| (0..self.tensor).map(|t| self.at(s, d, t)).collect();
        let data = |s: usize, t: usize| (0..self.data).map(|d| self.at(s, d, t)).collect();
        let pipeline = |d: usize, t: usize| (0..self.pipeline).map(|s| self.at(s, d, t)).collect();
        let of_stages = |kind| {
            let one = move |s: usize, t: usize| group(kind, s * self.tensor + t, data(s, t));
            (0..self.pipeline).map(|s| (0..self.tensor).map(|t| one(s, t)).collect()).collect()
        };
        Groups {
            tensor: (0..self.pipeline)
                .map(|s| (0..self.data).map(|d| group(1, s * self.data + d, tensor(s, d))).collect())
                .collect(),
            data: of_stages(2),
            experts: of_stages(5),
            pipelines: (0..self.data)
                .map(|d| (0..self.tensor).map(|t| group(3, d * self.tensor + t, pipeline(d, t))).collect())
                .collect(),
            world: group(4, 0, (0..self.job.ranks).collect()),
        }
    }

    /// Run it: the same seed gives the same job.
    #[must_use]
    pub fn observe(&self, seed: u64) -> Input {
        let mut machine = Machine::new(&self.job, seed);
        let groups = self.groups();
        for number in 0..self.job.steps {
            machine.begin(number);
            let share: Vec<f64> = (0..self.data).map(|_| machine.factor(Noise::LogNormal(self.job.uneven))).collect();
            let ready = Ready::new();
            Step { grid: self, groups: &groups, machine: &mut machine, number, share, ready }.run();
            if !self.buckets {
                for members in groups.data.iter().flatten().filter(|g| g.ranks.len() > 1) {
                    machine.meet(members, "reduce_scatter", self.job.transfer_ns);
                }
            }
            machine.meet(&groups.world, "all_reduce", 50_000);
            machine.end_step();
        }
        machine.finish()
    }

    /// About how long a step takes when nobody is late: the pipeline fills, works and empties;
    /// without noise, but with the wait for the expert that has most to do (of n log-normal factors
    /// about exp(sigma sqrt(2 ln n))).
    #[must_use]
    pub fn step_ns(&self) -> i64 {
        let batches = self.microbatches.max(1) as i64;
        let heavy = self.heavy_stage.map_or(1.0, |(_, factor)| factor.max(1.0));
        let own_ns = (self.job.own_ns as f64 * heavy) as i64;
        let most_load = (self.experts * (2.0 * (self.data.max(1) as f64).ln()).sqrt()).exp();
        let load = if self.experts > 0.0 { 1.0 + most_load / 2.0 } else { 1.0 };
        let own_ns = (own_ns as f64 * load) as i64;
        own_ns * (batches + self.pipeline as i64 - 1) / batches + self.job.transfer_ns
    }
}

impl Step<'_, '_> {
    fn run(&mut self) {
        let (stages, microbatches) = (self.grid.pipeline, self.grid.microbatches.max(1));
        let schedule = self.grid.schedule;
        let mut left: Vec<VecDeque<Work>> =
            (0..stages).map(|stage| schedule.of_stage(stage, stages, microbatches)).collect();
        let parts = stages * schedule.parts_each();
        // Whoever has its input works: micro-batch after micro-batch passes through the stages.
        let mut done: HashSet<Work> = HashSet::new();
        while left.iter().any(|work| !work.is_empty()) {
            let can = |work: &VecDeque<Work>| {
                let ready = |next: &Work| next.input(parts).is_none_or(|input| done.contains(&input));
                work.front().filter(|next| ready(next)).map(|next| (next.back, next.microbatch, next.part))
            };
            // Back, what is further on in the model comes first.
            let first = |work: &VecDeque<Work>| {
                can(work).map(|(back, microbatch, part)| (back, microbatch, if back { parts - part } else { part }))
            };
            let next = (0..stages).filter_map(|stage| Some((first(&left[stage])?, stage))).min();
            let Some((work, stage)) = next.and_then(|(_, stage)| Some((left[stage].pop_front()?, stage))) else {
                unreachable!("a schedule comes to its end")
            };
            self.work(work, stage, parts);
            done.insert(work);
        }
    }

    /// A piece of work of a stage, on all replicas.
    fn work(&mut self, work: Work, stage: usize, parts: usize) {
        let Grid { tensor, data, pipeline, .. } = *self.grid;
        let apart = self.grid.experts > 0.0;
        for d in 0..data {
            for t in 0..tensor {
                if let Some(from) = work.input(parts) {
                    let from = self.grid.at(from.part % pipeline, d, t);
                    let ready = self.ready.remove(&(work, d, t)).flatten();
                    self.machine.receive(self.grid.at(stage, d, t), from, &self.groups.pipelines[d][t], ready);
                }
                self.compute(work, stage, (d, t));
            }
            if tensor > 1 {
                self.machine.meet(&self.groups.tensor[stage][d], "all_reduce", 50_000);
            }
            if !apart {
                self.hand_over(work, stage, d, parts);
            }
        }
        if apart {
            self.experts(work, stage);
            (0..data).for_each(|d| self.hand_over(work, stage, d, parts));
        }
        if self.grid.buckets && work.back {
            for members in self.groups.data[stage].iter().filter(|g| g.ranks.len() > 1) {
                self.machine.meet(members, "reduce_scatter", self.grid.job.transfer_ns / 2);
            }
        }
    }

    /// Own work of a piece, nanoseconds: the way back takes twice as long as the way there.
    fn part_ns(&self, work: Work) -> i64 {
        let phases = (3 * self.grid.microbatches.max(1) * self.grid.schedule.parts_each()) as i64;
        self.grid.job.own_ns * if work.back { 2 } else { 1 } / phases
    }

    fn compute(&mut self, work: Work, stage: usize, (d, t): (usize, usize)) {
        let rank = self.grid.at(stage, d, t);
        let heavy = self.grid.heavy_stage.filter(|(s, _)| *s == stage).map_or(1.0, |(_, f)| f);
        let pieces = (2 * self.grid.microbatches.max(1) * self.grid.schedule.parts_each()) as i64;
        let pace = self.grid.job.pace(self.number);
        let own = self.part_ns(work) as f64 * pace * heavy * self.share[d] * self.machine.factor(self.grid.job.noise);
        let extra_ns = self.grid.job.extra_ns(rank, self.number) / pieces;
        self.machine.compute(rank, own as i64 + extra_ns);
    }

    /// Tokens go to their experts and back: which has how many is another matter each time.
    fn experts(&mut self, work: Work, stage: usize) {
        for (t, members) in self.groups.experts[stage].iter().enumerate() {
            self.machine.meet(members, "all_to_all", 50_000);
            for d in 0..self.grid.data {
                let load = self.machine.factor(Noise::LogNormal(self.grid.experts));
                let own_ns = self.part_ns(work) as f64 / 2.0 * load;
                self.machine.compute(self.grid.at(stage, d, t), own_ns as i64);
            }
            self.machine.meet(members, "all_to_all", 50_000);
        }
    }

    fn hand_over(&mut self, work: Work, stage: usize, d: usize, parts: usize) {
        let Some(next) = work.output(parts) else { return };
        for t in 0..self.grid.tensor {
            let to = self.grid.at(next.part % self.grid.pipeline, d, t);
            let ready = self.machine.send(self.grid.at(stage, d, t), to, &self.groups.pipelines[d][t]);
            self.ready.insert((next, d, t), ready);
        }
    }
}
