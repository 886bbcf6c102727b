//! Where a rank is in its code and its peer is not: the difference of the shares of samples.
//!
//! Pure. Both are sampled at the same time in the same way, so what both do (waiting for each
//! other, the step itself) cancels out.

use std::collections::{BTreeMap, BTreeSet};

use crate::stacks::{CountedStack, Frame, Member, MemberStacks};

/// Part of the samples by which the culprit must be in a place more often than its peer.
const CLEAR: f64 = 0.3;

/// A place that contains the clearest one is as good where its gap is smaller by at most this.
const AS_CLEAR: f64 = 0.1;

/// Most such places that are shown.
const OUTER: usize = 2;

/// A place with the samples of both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The innermost: `queue.py:171 get`.
    pub place: String,
    /// The equally good places that contain it, outermost first: `train.py:40 step`, `data.py:88
    /// collate`. People know their own lines; the innermost is often a library's.
    pub outer: Vec<String>,
    /// The culprit's samples in it.
    pub culprit: u32,
    /// Of how many.
    pub culprit_samples: u32,
    /// The peer's.
    pub peer: u32,
    /// Of how many.
    pub peer_samples: u32,
}

impl Difference {
    /// The difference of the shares of samples.
    fn clearness(&self) -> f64 {
        let share = |count: u32, samples: u32| f64::from(count) / f64::from(samples.max(1));
        share(self.culprit, self.culprit_samples) - share(self.peer, self.peer_samples)
    }

    /// In words.
    #[must_use]
    pub fn text(&self) -> String {
        format!(
            "{} in {} of {} samples; its peer {} of {}",
            self.outer.iter().chain([&self.place]).map(String::as_str).collect::<Vec<_>>().join(" > "),
            self.culprit,
            self.culprit_samples,
            self.peer,
            self.peer_samples
        )
    }
}

/// The innermost of the places in which the culprit is most clearly more often than its peer; none
/// where no difference is clear.
#[must_use]
pub fn difference(culprit: &[MemberStacks], peer: &[MemberStacks]) -> Option<Difference> {
    let (mine, theirs) = (Shares::of(culprit), Shares::of(peer));
    if mine.samples == 0 || theirs.samples == 0 {
        return None;
    }
    let share = |count: u32, samples: u32| f64::from(count) / f64::from(samples);
    let gap = |place: &str, count: u32| {
        share(count, mine.samples) - share(theirs.places.get(place).map_or(0, |found| found.0), theirs.samples)
    };
    let (place, (count, _)) = mine
        .places
        .iter()
        .max_by(|(a, (n, deep)), (b, (m, deeper))| gap(a, *n).total_cmp(&gap(b, *m)).then(deep.cmp(deeper)))?;
    let clearest = gap(place, *count);
    let as_clear =
        mine.places.iter().filter(|(other, (n, _))| *other != place && gap(other, *n) >= clearest - AS_CLEAR);
    let mut outer: Vec<(usize, &String)> = as_clear.map(|(other, (_, deep))| (*deep, other)).collect();
    outer.sort();
    (clearest >= CLEAR).then(|| Difference {
        place: place.clone(),
        outer: outer.into_iter().take(OUTER).map(|(_, other)| other.clone()).collect(),
        culprit: *count,
        culprit_samples: mine.samples,
        peer: theirs.places.get(place).map_or(0, |found| found.0),
        peer_samples: theirs.samples,
    })
}

/// The same for child processes, such as a data loader's workers: the difference of the one child
/// in which it is clearest, with its process id. A peer without children is in no place.
#[must_use]
pub fn of_children(culprit: &[MemberStacks], peer: &[MemberStacks]) -> Option<(u32, Difference)> {
    let nowhere = [MemberStacks {
        member: Member { rank: None, node: String::new(), pid: 0, tid: 0 },
        other_stacks: 1,
        stacks: Vec::new(),
    }];
    let peer = if peer.is_empty() { &nowhere } else { peer };
    let each = culprit.iter().filter_map(|child| {
        // The outermost functions are the same in every child.
        let found = Difference { outer: Vec::new(), ..difference(std::slice::from_ref(child), peer)? };
        Some((child.member.pid, found))
    });
    each.max_by(|(_, a), (_, b)| a.clearness().total_cmp(&b.clearness()))
}

#[derive(Default)]
struct Shares {
    samples: u32,
    /// By place: samples in it, and how deep it lies at most.
    places: BTreeMap<String, (u32, usize)>,
}

impl Shares {
    fn of(all: &[MemberStacks]) -> Self {
        let mut shares = Self::default();
        for member in all {
            shares.samples += member.other_stacks;
            for CountedStack { frames, count, .. } in &member.stacks {
                shares.samples += count;
                // Lines identify a program; its interpreter's native functions do not.
                let python = frames.iter().any(|frame| matches!(frame, Frame::Python { .. }));
                let mut seen = BTreeSet::new();
                for (deep, frame) in frames.iter().enumerate() {
                    if let Some(place) = place(frame, python).filter(|place| seen.insert(place.clone())) {
                        let sum = shares.places.entry(place).or_default();
                        *sum = (sum.0 + count, sum.1.max(deep));
                    }
                }
            }
        }
        shares
    }
}

/// A frame in few words.
#[must_use]
pub fn place(frame: &Frame, only_python: bool) -> Option<String> {
    match frame {
        Frame::Python { function, file, line } => {
            let file = file.rsplit('/').next().unwrap_or(file);
            let line = line.map_or_else(String::new, |line| format!(":{line}"));
            Some(format!("{file}{line} {function}"))
        }
        Frame::Native { function, module } if !only_python => Some(format!("{function} ({module})")),
        Frame::Native { .. } | Frame::ReturnProbe => None,
    }
}

/// Where a program is, by a stack: its innermost Python function, else the innermost that is of no
/// library.
#[must_use]
pub fn program_place(frames: &[Frame]) -> Option<String> {
    let inner = || frames.iter().rev();
    let is_library = |module: &str| module.contains(".so");
    let python = inner().find(|frame| matches!(frame, Frame::Python { .. }));
    let own = inner().find(|frame| matches!(frame, Frame::Native { module, .. } if !is_library(module)));
    place(python.or(own)?, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_where_its_own_code_is() {
        let native = |function: &str, module: &str| Frame::Native { function: function.into(), module: module.into() };
        let wait = native("ompi_request_default_wait", "libmpi.so.40");
        let frames = [native("main", "halo"), native("exchange", "halo"), wait.clone()];
        assert_eq!(program_place(&frames).as_deref(), Some("exchange (halo)"));
        let script = [native("main", "python3"), python("step", 12), wait.clone()];
        assert_eq!(program_place(&script).as_deref(), Some("data.py:12 step"));
        assert_eq!(program_place(&[wait]), None);
    }

    fn python(function: &str, line: u32) -> Frame {
        Frame::Python { function: function.into(), file: "/job/data.py".into(), line: Some(line) }
    }

    fn stacks(all: &[(&[Frame], u32)]) -> Vec<MemberStacks> {
        let member = Member { rank: Some(1), node: "a".into(), pid: 1, tid: 1 };
        let one = |(frames, count): &(&[Frame], u32)| CountedStack {
            frames: frames.to_vec(),
            count: *count,
            inner_missing: false,
            outer_missing: false,
        };
        vec![MemberStacks { member, other_stacks: 0, stacks: all.iter().map(one).collect() }]
    }

    #[test]
    fn the_line_that_the_peer_is_not_in_is_the_place() {
        let (main, step, collate) = (python("<module>", 3), python("step", 19), python("collate", 88));
        let wait = python("all_reduce", 7);
        let native = Frame::Native { function: "clock_nanosleep".into(), module: "libc.so.6".into() };
        let culprit = stacks(&[
            (&[main.clone(), step.clone(), collate, native], 19),
            (&[main.clone(), step.clone(), wait.clone()], 1),
        ]);
        let peer = stacks(&[(&[main.clone(), step, wait.clone()], 20)]);
        let found = difference(&culprit, &peer).unwrap();
        assert_eq!(found.text(), "data.py:88 collate in 19 of 20 samples; its peer 0 of 20");
        assert_eq!(difference(&peer, &peer), None, "nothing differs");
        assert_eq!(difference(&culprit, &[]), None, "no peer");
        assert_eq!(difference(&stacks(&[(&[main], 20)]), &culprit), None, "what both are in");
        assert_eq!(difference(&peer, &culprit).unwrap().place, "data.py:7 all_reduce", "{wait:?}");
    }

    #[test]
    fn the_child_that_is_slow_is_distinguished_from_those_that_wait() {
        let (queue, decode) = (python("get", 12), python("decode", 40));
        let child = |pid, place: &Frame| {
            let mut child = stacks(&[(std::slice::from_ref(place), 20)]).remove(0);
            child.member.pid = pid;
            child
        };
        let waiting = [child(7, &queue), child(8, &queue)];
        let (pid, found) = of_children(&[child(3, &queue), child(4, &decode), child(5, &queue)], &waiting).unwrap();
        assert_eq!((pid, found.place.as_str()), (4, "data.py:40 decode"));
        assert_eq!(of_children(&waiting, &waiting), None);
        assert_eq!(of_children(&[], &waiting), None);
        assert_eq!(of_children(&[child(4, &decode)], &[]).unwrap().1.culprit, 20, "its peer has no children");
    }

    #[test]
    fn programs_without_lines_are_described_by_their_functions() {
        let native = |function: &str| Frame::Native { function: function.into(), module: "lmp".into() };
        let culprit = stacks(&[(&[native("main"), native("write_dump"), Frame::ReturnProbe], 4)]);
        let peer = stacks(&[(&[native("main"), native("MPI_Wait")], 4)]);
        assert_eq!(difference(&culprit, &peer).unwrap().place, "write_dump (lmp)");
    }
}
