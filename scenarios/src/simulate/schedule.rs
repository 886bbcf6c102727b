//! In which order the stages of a pipeline work: which micro-batch of which part of the model next,
//! forward or back.

use std::collections::VecDeque;

/// The order of a pipeline's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Schedule {
    /// All micro-batches forward, then all back (Huang et al., "GPipe", 2019).
    #[default]
    FillAndDrain,
    /// Once a stage is full, one micro-batch forward and one back in turns (Narayanan et al.,
    /// "PipeDream", 2019).
    OneForwardOneBack,
    /// The same with so many parts of the model on each stage, passed through in turn (Narayanan et
    /// al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021). Three stages
    /// and more; the micro-batches must be a multiple of the stages.
    Interleaved(usize),
}

/// A piece of work of one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Work {
    /// Which of the parts of the model, counted through all stages.
    pub(super) part: usize,
    pub(super) microbatch: usize,
    pub(super) back: bool,
}

impl Work {
    /// Whose output it takes; none for the first part forward, and for the last part back, which
    /// goes on from its own output.
    pub(super) fn input(self, parts: usize) -> Option<Self> {
        let part = if self.back { (self.part + 1 < parts).then_some(self.part + 1) } else { self.part.checked_sub(1) };
        part.map(|part| Self { part, ..self })
    }

    /// Who takes its output.
    pub(super) fn output(self, parts: usize) -> Option<Self> {
        let turned = Self { back: !self.back, ..self };
        turned.input(parts).map(|next| Self { back: self.back, ..next })
    }
}

impl Schedule {
    /// How many parts of the model a stage has.
    pub(super) fn parts_each(self) -> usize {
        if let Self::Interleaved(parts) = self { parts.max(1) } else { 1 }
    }

    /// The work of a stage in its order.
    pub(super) fn of_stage(self, stage: usize, stages: usize, microbatches: usize) -> VecDeque<Work> {
        let each = self.parts_each();
        // Of as many micro-batches as there are stages first all through one part, then the next.
        let round = if each > 1 { stages } else { 1 };
        let order = |back: bool| {
            (0..microbatches.div_ceil(round)).flat_map(move |turn| {
                (0..each).flat_map(move |chunk| {
                    let chunk = if back { each - 1 - chunk } else { chunk };
                    let microbatches = turn * round..((turn + 1) * round).min(microbatches);
                    microbatches.map(move |microbatch| Work { part: chunk * stages + stage, microbatch, back })
                })
            })
        };
        let (mut forward, mut back) = (order(false), order(true));
        let all = microbatches * each;
        let filled = match self {
            Self::FillAndDrain => all,
            Self::OneForwardOneBack => stages - stage - 1,
            Self::Interleaved(_) => (stages - stage - 1) * 2 + (each - 1) * stages,
        };
        let mut work: VecDeque<Work> = forward.by_ref().take(filled.min(all)).collect();
        loop {
            let (next, done) = (forward.next(), back.next());
            if next.is_none() && done.is_none() {
                return work;
            }
            work.extend(next);
            work.extend(done);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_order_comes_to_its_end_and_does_all() {
        for schedule in [Schedule::FillAndDrain, Schedule::OneForwardOneBack, Schedule::Interleaved(2)] {
            for (stages, microbatches) in [(2, 4), (3, 6), (4, 8)] {
                let parts = stages * schedule.parts_each();
                let mut left: Vec<VecDeque<Work>> =
                    (0..stages).map(|stage| schedule.of_stage(stage, stages, microbatches)).collect();
                let mut done: HashSet<Work> = HashSet::new();
                while let Some(stage) = left.iter().position(|work| {
                    work.front().is_some_and(|next| next.input(parts).is_none_or(|input| done.contains(&input)))
                }) {
                    let next = left[stage].pop_front().unwrap();
                    assert!(!next.back || done.contains(&Work { back: false, ..next }), "{schedule:?}: {next:?}");
                    done.insert(next);
                }
                assert_eq!(done.len(), 2 * parts * microbatches, "{schedule:?}, {stages} stages: {left:?}");
            }
        }
        let one = Schedule::OneForwardOneBack.of_stage(0, 2, 3);
        let letters: String = one.iter().map(|work| if work.back { 'B' } else { 'F' }).collect();
        assert_eq!(letters, "FFBFBB");
    }
}
