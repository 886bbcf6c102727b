//! Draws jobs of the kinds that are hard to judge: hosts that run ahead unseen, several culprits or
//! one that comes and goes, schedules that overlap, clocks that are worse than they say.

use clap::ValueEnum;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::class::Class;
use super::draw::{Case, Drawn, MS, Mode, alone, blur, pick, shape_of};
use crate::simulate::{Grid, Schedule, Slow};

/// The hard job of this number: the classes in turn, a third of the jobs healthy.
#[must_use]
pub fn draw_hard(seed: u64, number: u64) -> Drawn {
    let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(0xD1B5_4A32_D192_ED03) ^ number);
    let classes = Class::value_variants();
    let count = classes.len() as u64;
    let class = classes[usize::try_from(number % count).unwrap_or(0)];
    let healthy = (number / count).is_multiple_of(3) || class == Class::AllSlower;
    let case = if healthy { Case::Healthy } else { Case::SlowRank };
    let mode = match class {
        Class::RunsAhead | Class::DeviceWork => Mode::Enqueueing,
        Class::Overlap => pick(&mut rng, &[Mode::SyncedOnce, Mode::Enqueueing]),
        _ => pick(&mut rng, &[Mode::Blocking, Mode::Blocking, Mode::Synced, Mode::SyncedOnce, Mode::Enqueueing]),
    };
    let mut grid = shape_of(&mut rng, |shape| class.fits(shape) && shape.0 * shape.1 * shape.2 <= 64);
    grid.job.enqueues = mode != Mode::Blocking;
    grid.job.runs_ahead = mode == Mode::SyncedOnce;
    grid.job.syncs = matches!(mode, Mode::Synced | Mode::SyncedOnce);
    let mut drawn = Drawn::new(number, case, mode, grid, rng.random());
    drawn.class = Some(class);
    structure(&mut drawn.grid, class, &mut rng);
    let effect = 0.1 * 100f64.powf(rng.random::<f64>());
    if !healthy {
        slow(&mut drawn, &mut rng, effect);
    }
    blur(&mut drawn, &mut rng);
    if mode == Mode::Enqueueing {
        // Calls that only enqueue cannot be numbered: that is a case of its own.
        drawn.grid.job.late_nodes.clear();
    }
    matter(&mut drawn, class, &mut rng);
    drawn.shown = !drawn.culprits.is_empty() && class != Class::DeviceWork && !alone(&drawn);
    drawn
}

/// How the job works, whatever is the matter with it.
fn structure(grid: &mut Grid, class: Class, rng: &mut StdRng) {
    match class {
        Class::RunsAhead => (grid.job.runs_ahead, grid.job.steps_ahead) = (true, pick(rng, &[1, 1, 4])),
        Class::DeviceWork => (grid.job.runs_ahead, grid.job.on_device) = (true, true),
        Class::Overlap => (grid.buckets, grid.microbatches, grid.job.runs_ahead) = (true, 4, true),
        Class::OneForwardOneBack => grid.schedule = Schedule::OneForwardOneBack,
        Class::Interleaved => (grid.schedule, grid.microbatches) = (Schedule::Interleaved(2), grid.pipeline),
        Class::Experts => grid.experts = pick(rng, &[0.2, 0.5, 1.0]),
        _ => {}
    }
}

/// A rank is slow by so many steps.
fn slow(drawn: &mut Drawn, rng: &mut StdRng, effect: f64) {
    let job = &drawn.grid.job;
    let from_step = if rng.random_bool(0.2) { job.steps * 2 / 5 } else { 0 };
    let rank = rng.random_range(0..job.ranks);
    let extra_ns = (effect * drawn.grid.step_ns() as f64) as i64;
    drawn.effect = effect;
    drawn.grid.job.slow = vec![Slow { rank, extra_ns, from_step }];
    drawn.culprits = vec![rank as i32];
}

fn matter(drawn: &mut Drawn, class: Class, rng: &mut StdRng) {
    let first = drawn.grid.job.slow.first().copied();
    // A second rank, recorded as well, and not the first.
    let job = &drawn.grid.job;
    let is_recorded = |rank: usize| !job.missing_nodes.contains(&(rank / job.ranks_per_node));
    let others: Vec<usize> =
        (0..job.ranks).filter(|r| is_recorded(*r) && first.is_some_and(|f| f.rank != *r)).collect();
    let second = (!others.is_empty()).then(|| pick(rng, &others));
    let Grid { tensor, data, pipeline, .. } = drawn.grid;
    let job = &mut drawn.grid.job;
    match class {
        Class::TwoCulprits => {
            if let Some((first, rank)) = first.zip(second) {
                let times = rng.random_range(0.3..1.0);
                let extra_ns = (first.extra_ns as f64 * times) as i64;
                job.slow.push(Slow { rank, extra_ns, ..first });
                drawn.culprits.push(rank as i32);
            }
        }
        Class::TwoJobs => {
            // As many ranks on the same hosts, in another shape.
            let shape = if tensor * data * pipeline > 1 && tensor == 1 { (job.ranks, 1, 1) } else { (1, job.ranks, 1) };
            let own_ns = pick(rng, &[20, 100, 300]) * MS;
            let steps = (job.own_ns * job.steps as i64 / own_ns).clamp(15, 200) as usize;
            let other = crate::simulate::Job { slow: Vec::new(), own_ns, steps, ..job.clone() };
            let other = crate::simulate::Job { late_nodes: Vec::new(), transfer_ns: own_ns / 50, ..other };
            let (tensor, data, pipeline) = shape;
            drawn.other = Some(Grid { tensor, data, pipeline, microbatches: 2, job: other, ..Grid::default() });
        }
        Class::ComesAndGoes => {
            // Three to six seconds of each, at least four steps.
            let steps = |seconds: i64| (seconds * 1_000 * MS / job.own_ns).max(4) as usize;
            job.rests = Some((steps(rng.random_range(3..6)), steps(rng.random_range(2..5))));
        }
        Class::Moves => {
            if let Some((first, rank)) = first.zip(second) {
                let from_step = job.steps / 2;
                let slow = |rank, extra_ns, from_step| Slow { rank, extra_ns, from_step };
                let (a, b) = (first.rank, first.extra_ns);
                job.slow = vec![slow(a, b, 0), slow(a, -b, from_step), slow(rank, b, from_step)];
                drawn.culprits.push(rank as i32);
            }
        }
        Class::AllSlower => job.all_slower = Some((job.steps / 2, rng.random_range(1.5..3.0))),
        Class::Drift => job.clock_drift_ppb = rng.random_range(100_000..500_000),
        Class::FalseBounds => job.clock_error_ns = Some(job.clock_bound_ns * rng.random_range(2..10)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_drawn_with_and_without_a_culprit() {
        let all: Vec<Drawn> = (0..600).map(|number| draw_hard(1, number)).collect();
        for class in Class::value_variants() {
            let of = || all.iter().filter(|drawn| drawn.class == Some(*class));
            assert!(of().count() > 40 && of().any(|drawn| drawn.culprits.is_empty()), "{class:?}");
            assert_eq!(of().any(|drawn| drawn.shown), !matches!(class, Class::AllSlower | Class::DeviceWork));
            assert!(
                of().all(|drawn| drawn.culprits.len() == drawn.grid.job.slow.iter().filter(|s| s.extra_ns > 0).count())
            );
        }
    }
}
