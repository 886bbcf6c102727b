//! The stacks of many ranks as one tree and a few classes, as LLNL's STAT does it for debugging at
//! scale.
//!
//! Pure: profiles in, a tree with the set of ranks at each function out, and for each rank the
//! place where it mostly is.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::sampler::{CountedStack, ProcessProfile, ThreadProfile};
use super::types::Frame;
use verdicts::hostlist::{fold_names, fold_ranges};

/// Most functions of one stack that are merged; profiles come from other hosts, and may contain
/// anything.
const MAX_DEPTH: usize = 512;

/// The owner of a stack.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    /// Its rank, where it has one.
    pub rank: Option<u32>,
    /// The host.
    pub node: String,
    /// Process id on that host.
    pub pid: u32,
    /// Thread id on that host.
    pub tid: u32,
}

/// The counted stacks of one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStacks {
    /// Their owner.
    pub member: Member,
    /// Samples with a stack that are not in `stacks`.
    pub other_stacks: u32,
    /// Its different stacks.
    pub stacks: Vec<CountedStack>,
}

impl MemberStacks {
    /// The stacks of those threads of a profile for which `wanted` is true: the first thread only,
    /// all of them, …
    pub fn of(
        profile: ProcessProfile,
        rank: Option<u32>,
        node: &str,
        wanted: impl Fn(&ThreadProfile) -> bool,
    ) -> Vec<MemberStacks> {
        let pid = profile.pid;
        let threads = profile.threads.into_iter().filter(|thread| wanted(thread));
        threads
            .map(|thread| MemberStacks {
                member: Member { rank, node: node.to_owned(), pid, tid: thread.tid },
                other_stacks: thread.other_stacks,
                stacks: thread.stacks,
            })
            .collect()
    }
}

/// A step from the outermost function inwards.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Step {
    /// A function.
    Function(Frame),
    /// The caller of the next function is not known.
    OuterMissing,
    /// The callee of the last function is not known: the thread ran while it was read.
    InnerMissing,
    /// No function that could be read.
    NoFunction,
}

/// A set of members, to be shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// Ranks, and threads of processes without a rank.
    pub count: u32,
    /// The ranks: `0-4,6-63`.
    pub ranks: String,
    /// The hosts: `node-[1-3]`.
    pub nodes: String,
    /// Threads of processes without a rank: `node-3 pid 1234 thread 1240`.
    pub others: Vec<String>,
}

/// A function in the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Position of the calling function's node in the list; `None` for an outermost one. It comes
    /// before this one.
    pub parent: Option<u32>,
    /// The function.
    pub step: Step,
    /// Members that were in it in at least one sample.
    pub members: Members,
    /// Samples in it.
    pub samples: u64,
    /// Samples in it and in no function that it called.
    pub own_samples: u64,
}

/// Members that are in the same place most of the time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// From the outermost function on, as far inwards as each member was in more than half of its
    /// samples. A line is given where more than half of the samples have it.
    pub path: Vec<Step>,
    /// The members.
    pub members: Members,
    /// Their samples in this place.
    pub samples: u64,
    /// All of their samples.
    pub of_samples: u64,
}

/// All stacks together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merged {
    /// The largest class first.
    pub classes: Vec<Class>,
    /// The tree; each node comes after its parent.
    pub tree: Vec<Node>,
    /// All members with at least one sample.
    pub members: Members,
    /// Members without a sample.
    pub without_stacks: Members,
}

/// Merges the stacks of many ranks. The order of the members does not matter.
pub fn merge(all: &[MemberStacks]) -> Merged {
    let mut tree = Tree::default();
    let mut classes: BTreeMap<Vec<Step>, (Vec<usize>, u64, u64)> = BTreeMap::new();
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for (index, member) in all.iter().enumerate() {
        let own = tree.add(index, member);
        let total =
            member.stacks.iter().map(|stack| u64::from(stack.count)).sum::<u64>() + u64::from(member.other_stacks);
        if total == 0 {
            without.push(index);
            continue;
        }
        with.push(index);
        let (path, samples) = tree.place(&own, total);
        let class = classes.entry(path).or_default();
        class.0.push(index);
        class.1 += samples;
        class.2 += total;
    }
    let mut classes: Vec<Class> = classes
        .into_iter()
        .map(|(path, (members, samples, of_samples))| Class {
            path,
            members: describe(all, &members),
            samples,
            of_samples,
        })
        .collect();
    classes.sort_by(|one, other| other.members.count.cmp(&one.members.count).then_with(|| one.path.cmp(&other.path)));
    let tree = tree.ordered(all);
    Merged { classes, tree, members: describe(all, &with), without_stacks: describe(all, &without) }
}

fn describe(all: &[MemberStacks], members: &[usize]) -> Members {
    let members: BTreeSet<&Member> = members.iter().filter_map(|index| Some(&all.get(*index)?.member)).collect();
    let ranks: BTreeSet<u32> = members.iter().filter_map(|member| member.rank).collect();
    let others: Vec<String> = members
        .iter()
        .filter(|member| member.rank.is_none())
        .map(|member| format!("{} pid {} thread {}", member.node, member.pid, member.tid))
        .collect();
    Members {
        count: u32::try_from(ranks.len() + others.len()).unwrap_or(u32::MAX),
        ranks: fold_ranges(ranks.into_iter().map(u64::from)),
        nodes: fold_names(members.iter().map(|member| member.node.as_str())),
        others,
    }
}

#[derive(Debug, Default)]
struct Tree {
    nodes: Vec<Growing>,
    roots: HashMap<Step, usize>,
}

#[derive(Debug)]
struct Growing {
    parent: Option<usize>,
    step: Step,
    children: HashMap<Step, usize>,
    members: Vec<usize>,
    samples: u64,
    own_samples: u64,
}

impl Tree {
    /// Adds a member's stacks; returns its own samples by node.
    fn add(&mut self, member: usize, stacks: &MemberStacks) -> HashMap<usize, u64> {
        let mut own: HashMap<usize, u64> = HashMap::new();
        for stack in &stacks.stacks {
            let count = u64::from(stack.count);
            let mut at: Option<usize> = None;
            for step in steps(stack) {
                let known = match at {
                    None => &self.roots,
                    Some(parent) => &self.nodes[parent].children,
                };
                let node = match known.get(&step) {
                    Some(node) => *node,
                    None => self.grow(at, step),
                };
                self.nodes[node].samples += count;
                if self.nodes[node].members.last() != Some(&member) {
                    self.nodes[node].members.push(member);
                }
                *own.entry(node).or_default() += count;
                at = Some(node);
            }
            if let Some(node) = at {
                self.nodes[node].own_samples += count;
            }
        }
        own
    }

    fn grow(&mut self, parent: Option<usize>, step: Step) -> usize {
        let node = self.nodes.len();
        self.nodes.push(Growing {
            parent,
            step: step.clone(),
            children: HashMap::new(),
            members: Vec::new(),
            samples: 0,
            own_samples: 0,
        });
        let siblings = match parent {
            None => &mut self.roots,
            Some(parent) => &mut self.nodes[parent].children,
        };
        siblings.insert(step, node);
        node
    }

    /// How far inwards a member was in the same function in more than half of its `total` samples,
    /// and in how many.
    fn place(&self, own: &HashMap<usize, u64>, total: u64) -> (Vec<Step>, u64) {
        let mut path = Vec::new();
        let mut samples = total;
        let mut children: Vec<usize> = self.roots.values().copied().collect();
        loop {
            // Compares functions first: a loop over two lines is still one place.
            let mut functions: BTreeMap<Step, Vec<(usize, u64)>> = BTreeMap::new();
            for child in children {
                if let Some(count) = own.get(&child) {
                    functions.entry(without_line(&self.nodes[child].step)).or_default().push((child, *count));
                }
            }
            let sum = |nodes: &[(usize, u64)]| nodes.iter().map(|(_, count)| count).sum::<u64>();
            let Some((function, nodes)) = functions.into_iter().find(|(_, nodes)| sum(nodes) * 2 > total) else {
                return (path, samples);
            };
            let mut lines: BTreeMap<&Step, Vec<(usize, u64)>> = BTreeMap::new();
            for (node, count) in &nodes {
                lines.entry(&self.nodes[*node].step).or_default().push((*node, *count));
            }
            let one_line = lines.into_iter().find(|(_, nodes)| sum(nodes) * 2 > total);
            let (step, nodes) = one_line.map_or((function, nodes), |(step, nodes)| (step.clone(), nodes));
            samples = sum(&nodes);
            path.push(step);
            children = nodes.iter().flat_map(|(node, _)| self.nodes[*node].children.values().copied()).collect();
        }
    }

    /// As a list in a fixed order: callers first, and of siblings the one with most samples.
    fn ordered(&self, all: &[MemberStacks]) -> Vec<Node> {
        let mut list = Vec::with_capacity(self.nodes.len());
        let sorted = |children: &HashMap<Step, usize>| {
            let mut children: Vec<usize> = children.values().copied().collect();
            children.sort_by(|one, other| {
                let (one, other) = (&self.nodes[*one], &self.nodes[*other]);
                one.samples.cmp(&other.samples).then_with(|| other.step.cmp(&one.step))
            });
            children
        };
        let mut waiting: Vec<(Option<u32>, usize)> = sorted(&self.roots).into_iter().map(|root| (None, root)).collect();
        while let Some((parent, node)) = waiting.pop() {
            let growing = &self.nodes[node];
            debug_assert_eq!(growing.parent.is_none(), parent.is_none());
            let at = u32::try_from(list.len()).unwrap_or(u32::MAX);
            list.push(Node {
                parent,
                step: growing.step.clone(),
                members: describe(all, &growing.members),
                samples: growing.samples,
                own_samples: growing.own_samples,
            });
            waiting.extend(sorted(&growing.children).into_iter().map(|child| (Some(at), child)));
        }
        list
    }
}

fn steps(stack: &CountedStack) -> impl Iterator<Item = Step> {
    let cut = stack.frames.len().saturating_sub(MAX_DEPTH);
    let outer = (stack.outer_missing || cut > 0).then_some(Step::OuterMissing);
    let functions = stack.frames.iter().skip(cut).cloned().map(Step::Function);
    let end = match (stack.inner_missing, stack.frames.is_empty()) {
        (true, _) => Some(Step::InnerMissing),
        (false, true) => Some(Step::NoFunction),
        (false, false) => None,
    };
    outer.into_iter().chain(functions).chain(end)
}

fn without_line(step: &Step) -> Step {
    match step {
        Step::Function(Frame::Python { function, file, .. }) => {
            Step::Function(Frame::Python { function: function.clone(), file: file.clone(), line: None })
        }
        other => other.clone(),
    }
}
