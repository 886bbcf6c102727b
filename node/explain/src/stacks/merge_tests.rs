//! Tests of `merge` and `render` on stacks whose classes are known.

use proptest::prelude::*;

use super::merge::{Member, MemberStacks, merge};
use super::render::{escape, folded, text};
use super::sampler::CountedStack;
use super::types::Frame;

fn frame(label: &str) -> Frame {
    let (place, function) = label.split_once(' ').unwrap();
    let (file, line) = place.split_once(':').unwrap();
    Frame::Python { function: function.into(), file: format!("/job/{file}"), line: Some(line.parse().unwrap()) }
}

fn stack(count: u32, labels: &[&str]) -> CountedStack {
    let frames = labels.iter().map(|label| frame(label)).collect();
    CountedStack { frames, count, inner_missing: false, outer_missing: false }
}

fn rank(rank: u32, stacks: Vec<CountedStack>) -> MemberStacks {
    let member = Member { rank: Some(rank), node: format!("node-{}", rank / 2), pid: 100 + rank, tid: 100 + rank };
    MemberStacks { member, other_stacks: 0, stacks }
}

fn job() -> Vec<MemberStacks> {
    (0..64)
        .map(|number| match number {
            5 => rank(
                5,
                vec![
                    stack(19, &["train.py:9 main", "train.py:40 epoch", "data.py:88 __next__", "queue.py:171 get"]),
                    stack(1, &["train.py:9 main", "train.py:40 epoch", "data.py:90 __next__"]),
                ],
            ),
            _ => rank(number, vec![stack(20, &["train.py:9 main", "train.py:142 step", "dist.py:7 all_reduce"])]),
        })
        .collect()
}

#[test]
fn a_rank_that_is_elsewhere_is_a_class_of_its_own() {
    let merged = merge(&job());
    assert_eq!(
        text(&merged),
        "63 ranks (0-4,6-63 on node-[0-31]): train.py:9 main > train.py:142 step > dist.py:7 all_reduce\n    \
         in 1260 of 1260 samples\n\
         1 rank (5 on node-2): train.py:9 main > train.py:40 epoch > data.py:88 __next__ > queue.py:171 get\n    \
         in 19 of 20 samples\n\
         \n\
         64 ranks (0-63 on node-[0-31]): train.py:9 main\n  \
         63 ranks (0-4,6-63 on node-[0-31]): train.py:142 step > dist.py:7 all_reduce\n  \
         1 rank (5 on node-2): train.py:40 epoch\n    \
         1 rank (5 on node-2): data.py:88 __next__ > queue.py:171 get\n    \
         1 rank (5 on node-2): data.py:90 __next__\n"
    );
    assert_eq!(
        folded(&merged),
        "main (/job/train.py:9);step (/job/train.py:142);all_reduce (/job/dist.py:7) 1260\n\
         main (/job/train.py:9);epoch (/job/train.py:40);__next__ (/job/data.py:88);get (/job/queue.py:171) 19\n\
         main (/job/train.py:9);epoch (/job/train.py:40);__next__ (/job/data.py:90) 1\n"
    );
}

#[test]
fn a_function_without_a_main_line_is_still_the_place() {
    let lines = [70, 71, 72, 73].map(|line| stack(5, &["train.py:9 main", &format!("data.py:{line} collate")]));
    let merged = merge(&[rank(3, lines.to_vec())]);
    assert_eq!(text(&merged), "1 rank (3 on node-1): train.py:9 main > data.py collate\n    in 20 of 20 samples\n");
}

#[test]
fn torn_and_empty_stacks_and_processes_without_a_rank_are_shown_as_such() {
    let torn = CountedStack { inner_missing: true, ..stack(3, &["a.py:1 main"]) };
    let cut = CountedStack { outer_missing: true, ..stack(2, &["a.py:2 deep"]) };
    let empty = stack(4, &[]);
    let other = |pid, stacks| MemberStacks {
        member: Member { rank: None, node: "login".into(), pid, tid: pid },
        other_stacks: 0,
        stacks,
    };
    let merged = merge(&[other(1, vec![torn]), other(2, vec![cut]), other(3, vec![empty]), other(4, vec![])]);
    let text = text(&merged);
    for line in [
        "1 thread (login pid 1 thread 1): a.py:1 main > (ran on while it was read)\n",
        "1 thread (login pid 2 thread 2): (outer functions not known) > a.py:2 deep\n",
        "1 thread (login pid 3 thread 3): (no function that could be read)\n",
        "1 thread (login pid 4 thread 4): no stack\n",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn stacks_that_do_not_fit_the_list_are_not_taken_for_one_place() {
    let mut scattered = rank(1, vec![stack(4, &["a.py:1 main"])]);
    scattered.other_stacks = 16;
    let merged = merge(&[scattered]);
    assert_eq!(merged.classes[0].path, []);
    assert_eq!(merged.classes[0].of_samples, 20);
}

#[test]
fn hostile_names_steer_neither_a_terminal_nor_a_format() {
    assert_eq!(escape("a\u{1b}[2Jb\n\u{202e}c\u{9b}é"), "a\\u{1b}[2Jb\\n\\u{202e}c\\u{9b}é");
    let hostile = Frame::Python { function: "f;g\n1 2".into(), file: "x\u{1b};y".into(), line: Some(1) };
    let stacks = vec![CountedStack { frames: vec![hostile], count: 2, inner_missing: false, outer_missing: false }];
    let merged = merge(&[rank(0, stacks)]);
    assert_eq!(folded(&merged), "f,g\\n1 2 (x\\u{1b},y:1) 2\n");
    assert!(!text(&merged).contains('\u{1b}'));
}

#[test]
fn merged_stacks_survive_json() {
    let merged = merge(&job());
    let json = serde_json::to_string(&merged).unwrap();
    assert_eq!(serde_json::from_str::<super::merge::Merged>(&json).unwrap(), merged);
}

fn any_job() -> impl Strategy<Value = Vec<MemberStacks>> {
    let label = (0_u32..3, 1_u32..4).prop_map(|(name, line)| format!("f.py:{line} f{name}"));
    let stack_of = (1_u32..9, proptest::collection::vec(label, 0..5), any::<bool>());
    let stacks = proptest::collection::vec(stack_of, 0..5);
    proptest::collection::vec(stacks, 0..12).prop_map(|ranks| {
        ranks
            .into_iter()
            .enumerate()
            .map(|(number, stacks)| {
                let stacks = stacks
                    .into_iter()
                    .map(|(count, labels, inner_missing)| {
                        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
                        CountedStack { inner_missing, ..stack(count, &labels) }
                    })
                    .collect();
                rank(number as u32, stacks)
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn no_sample_and_no_rank_is_lost_and_order_does_not_matter(job in any_job()) {
        let merged = merge(&job);
        let samples: u64 = job.iter().flat_map(|rank| &rank.stacks).map(|stack| u64::from(stack.count)).sum();
        prop_assert_eq!(merged.tree.iter().map(|node| node.own_samples).sum::<u64>(), samples);
        prop_assert_eq!(merged.classes.iter().map(|class| class.of_samples).sum::<u64>(), samples);
        let members: u32 = merged.classes.iter().map(|class| class.members.count).sum();
        prop_assert_eq!(members + merged.without_stacks.count, job.len() as u32);
        for (at, node) in merged.tree.iter().enumerate() {
            prop_assert!(node.parent.is_none_or(|parent| (parent as usize) < at));
        }
        let counted: u64 = folded(&merged)
            .lines()
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
            .sum();
        prop_assert_eq!(counted, samples);
        let mut reversed = job.clone();
        reversed.reverse();
        prop_assert_eq!(merge(&reversed), merged);
    }
}
