//! The inputs that a fuzzing run goes on from: its seeds, and each that took a branch that none had
//! taken before.

use std::collections::HashSet;

use super::coverage;

/// More are not kept: what is new by then are rare counts.
const MOST: usize = 4_000;

/// Inputs and the branches that they took together.
#[derive(Debug, Default)]
pub struct Pool {
    inputs: Vec<Vec<u8>>,
    /// What each took, as [`coverage::taken`] tells it.
    took: Vec<Vec<u32>>,
    seen: HashSet<u32>,
}

impl Pool {
    /// The inputs, seeds first.
    #[must_use]
    pub fn inputs(&self) -> &[Vec<u8>] {
        &self.inputs
    }

    /// Branches taken so far, counted by how often (about eight classes each).
    #[must_use]
    pub fn branches(&self) -> usize {
        self.seen.len()
    }

    /// Notes an input that has just been fed; keeps it when it took something new, or when
    /// `always`.
    pub fn fed(&mut self, input: Vec<u8>, always: bool) {
        let took = coverage::taken();
        let new = took.iter().any(|branch| !self.seen.contains(branch));
        if always || (new && self.inputs.len() < MOST) {
            self.seen.extend(&took);
            self.inputs.push(input);
            self.took.push(took);
        }
    }

    /// At most `most` inputs, of `bytes` at most each, that take as many of the branches as so many
    /// can: the one that adds most first.
    #[must_use]
    pub fn best(&self, most: usize, bytes: usize) -> Vec<&[u8]> {
        let mut left: Vec<usize> = (0..self.inputs.len()).filter(|&input| self.inputs[input].len() <= bytes).collect();
        let (mut seen, mut best) = (HashSet::new(), Vec::new());
        while best.len() < most {
            let adds = |input: &usize| self.took[*input].iter().filter(|branch| !seen.contains(*branch)).count();
            left.retain(|input| adds(input) > 0);
            let Some(&next) =
                left.iter().max_by_key(|input| (adds(input), std::cmp::Reverse(self.inputs[**input].len())))
            else {
                break;
            };
            seen.extend(self.took[next].iter().copied());
            best.push(self.inputs[next].as_slice());
        }
        best
    }
}
