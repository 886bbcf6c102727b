//! Finds ranks that wait for each other in a circle.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::graph::Vertex;
use super::people::Who;
use super::waits::Wait;

/// Circles that are given, at most.
const MOST_CIRCLES: usize = 4;

/// A step of a circle: which wait, and for whom.
pub(super) type Step = (usize, Who);

/// Looks for circles.
pub(super) struct Circles<'a> {
    waits: &'a [Wait<'a>],
    /// Places of each process's waits in `waits`.
    of: BTreeMap<Who, Vec<usize>>,
    leads_to: &'a [Vec<Vertex>],
    people: usize,
}

impl<'a> Circles<'a> {
    pub(super) fn new(waits: &'a [Wait<'a>], leads_to: &'a [Vec<Vertex>], people: usize) -> Self {
        let mut of: BTreeMap<Who, Vec<usize>> = BTreeMap::new();
        waits.iter().enumerate().for_each(|(at, wait)| of.entry(wait.who).or_default().push(at));
        Self { waits, of, leads_to, people }
    }

    /// The circles that these processes are in or wait for, each a shortest one through its first
    /// rank; those without a process in common.
    pub(super) fn find(&self, caught: &BTreeSet<Who>) -> Vec<Vec<Step>> {
        let mut found: Vec<Vec<Step>> = Vec::new();
        let mut done: BTreeSet<Who> = BTreeSet::new();
        for start in caught {
            if found.len() == MOST_CIRCLES {
                break;
            }
            // Everybody on the way waits for somebody, so the way comes back to where it was.
            let (mut way, mut at) = (BTreeSet::new(), *start);
            while !done.contains(&at) && way.insert(at) {
                let Some((_, next)) = self.steps(at).into_iter().next() else { break };
                at = next;
            }
            if done.contains(&at) {
                done.extend(way);
                continue;
            }
            let circle = self.shortest(at);
            done.extend(way);
            done.extend(circle.iter().map(|(_, to)| *to));
            if !circle.is_empty() {
                found.push(circle);
            }
        }
        found
    }

    /// Whom a process waits for, and in which call.
    fn steps(&self, who: Who) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for &at in self.of.get(&who).into_iter().flatten() {
            let mut seen: BTreeSet<Vertex> = BTreeSet::new();
            let mut next = self.waits[at].leads_to.clone();
            while let Some(vertex) = next.pop() {
                if !seen.insert(vertex) {
                    continue;
                }
                if vertex >= self.people {
                    next.extend(&self.leads_to[vertex]);
                } else if vertex != who || self.waits[at].leads_to.contains(&who) {
                    steps.push((at, vertex));
                }
            }
        }
        steps.sort_unstable_by_key(|(at, to)| (*to, *at));
        steps
    }

    /// A shortest circle through a process; empty where there is none.
    fn shortest(&self, start: Who) -> Vec<Step> {
        let mut came: BTreeMap<Who, (Who, usize)> = BTreeMap::new();
        let mut next = VecDeque::from([start]);
        while let Some(who) = next.pop_front() {
            for (at, to) in self.steps(who) {
                if to == start {
                    let mut circle = vec![(at, to)];
                    let mut from = who;
                    while let Some((before, at)) = came.get(&from) {
                        circle.push((*at, from));
                        from = *before;
                    }
                    circle.reverse();
                    return circle;
                }
                if let std::collections::btree_map::Entry::Vacant(new) = came.entry(to) {
                    new.insert((who, at));
                    next.push_back(to);
                }
            }
        }
        Vec::new()
    }
}
