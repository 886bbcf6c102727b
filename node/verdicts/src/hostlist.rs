//! Sets of numbers and of host names, written as host lists are: `0-4,6-63`, `64-126/2`,
//! `gpu[033-064]`.
//!
//! The notation is that of Slurm's and ClusterShell's node sets: inclusive ranges, a step after `/`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Members that a range with a step needs at least: two numbers say nothing of a step.
const STEPPED: usize = 3;

/// Numbers as ascending ranges: `0-4,6,8-9`, those at equal distances with their step: `0-62/2`.
/// Equal ones count once.
pub fn fold_ranges(numbers: impl IntoIterator<Item = u64>) -> String {
    runs(numbers.into_iter().collect(), 0)
}

/// Host names with their numbers folded: `node-[1-3,7],login`. Numbers padded with zeros stay apart
/// from others: `n01` is not `n1`.
pub fn fold_names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    // By what stands before the number and how many digits it has: the numbers, and whether one
    // begins with a zero.
    let mut groups: BTreeMap<(&str, usize), (Vec<u64>, bool)> = BTreeMap::new();
    let mut unnumbered: BTreeSet<&str> = BTreeSet::new();
    for name in names {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &name[stem.len()..];
        match digits.parse::<u64>() {
            Ok(number) => {
                let (numbers, padded) = groups.entry((stem, digits.len())).or_default();
                numbers.push(number);
                *padded |= digits.len() > 1 && digits.starts_with('0');
            }
            Err(_) => {
                unnumbered.insert(name);
            }
        }
    }
    let mut by_width: BTreeMap<(&str, usize), Vec<u64>> = BTreeMap::new();
    for ((stem, digits), (numbers, padded)) in groups {
        by_width.entry((stem, if padded { digits } else { 0 })).or_default().extend(numbers);
    }
    let folded = by_width.into_iter().map(|((stem, width), numbers)| {
        let runs = runs(numbers, width);
        if runs.contains([',', '-']) { format!("{stem}[{runs}]") } else { format!("{stem}{runs}") }
    });
    folded.chain(unnumbered.into_iter().map(str::to_owned)).collect::<Vec<_>>().join(",")
}

/// The first parts of a folded list, for a line that people read: what is left out is marked.
pub fn first_parts(folded: &str, most: usize) -> String {
    let Some((end, _)) = folded.match_indices(',').nth(most.saturating_sub(1)) else { return folded.to_owned() };
    let first = &folded[..end];
    let open = first.matches('[').count() > first.matches(']').count();
    format!("{first},…{}", if open { "]" } else { "" })
}

/// Runs of a sorted set, each number padded to `width` digits.
fn runs(mut numbers: Vec<u64>, width: usize) -> String {
    numbers.sort_unstable();
    numbers.dedup();
    let mut out = String::new();
    let mut rest = &numbers[..];
    while let [first, ..] = *rest {
        let (step, length) = run(rest);
        let comma = if out.is_empty() { "" } else { "," };
        let last = rest[length - 1];
        // Writing to a string cannot fail.
        let _ = match (length, step) {
            (1, _) => write!(out, "{comma}{first:0width$}"),
            (_, 1) => write!(out, "{comma}{first:0width$}-{last:0width$}"),
            (_, step) => write!(out, "{comma}{first:0width$}-{last:0width$}/{step}"),
        };
        rest = &rest[length..];
    }
    out
}

/// The step and the length of the run with which a sorted set begins.
fn run(numbers: &[u64]) -> (u64, usize) {
    let steps = || numbers.windows(2).map(|pair| pair[1] - pair[0]);
    let Some(step) = steps().next() else { return (1, 1) };
    let length = 1 + steps().take_while(|next| *next == step).count();
    // The last of a run with a step belongs to the neighbours that follow it, if they do.
    let joins = step > 1 && steps().nth(length - 1) == Some(1);
    match length - usize::from(joins) {
        length if step == 1 || length >= STEPPED => (step, length),
        _ => (1, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_and_names_fold() {
        assert_eq!(fold_ranges([5, 0, 1, 2, 63, 62, 5]), "0-2,5,62-63");
        assert_eq!(fold_ranges([]), "");
        assert_eq!(fold_ranges([u64::MAX]), u64::MAX.to_string());
        assert_eq!(fold_ranges((64..128).step_by(2)), "64-126/2");
        assert_eq!(fold_ranges([0, 2, 4, 5, 6, 7]), "0,2,4-7");
        assert_eq!(fold_ranges([0, 8, 9, 17]), "0,8-9,17");
        assert_eq!(fold_names(["node-3", "node-1", "node-2", "login", "node-9", "node-10"]), "node-[1-3,9-10],login");
        assert_eq!(fold_names(["n01", "n02", "n1", "gpu7"]), "gpu7,n1,n[01-02]");
        let hosts: Vec<String> = (33..=128).map(|n| format!("gpu{n:03}")).collect();
        assert_eq!(fold_names(hosts.iter().map(String::as_str)), "gpu[033-128]");
        assert_eq!(fold_names(["rack5-b"]), "rack5-b");
        assert_eq!(first_parts("1,3-4,7", 3), "1,3-4,7");
        assert_eq!(first_parts("1,3-4,7", 2), "1,3-4,…");
        assert_eq!(first_parts("n[1,3-4,7],m", 2), "n[1,3-4,…]");
    }

    proptest! {
        #[test]
        fn unfolding_a_range_gives_the_numbers_back(mut numbers in proptest::collection::vec(0_u64..200, 0..80)) {
            let folded = fold_ranges(numbers.iter().copied());
            numbers.sort_unstable();
            numbers.dedup();
            let unfolded: Vec<u64> = folded
                .split(',')
                .filter(|part| !part.is_empty())
                .flat_map(|part| {
                    let (range, step) = part.split_once('/').unwrap_or((part, "1"));
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    (first.parse().unwrap()..=last.parse().unwrap()).step_by(step.parse().unwrap())
                })
                .collect();
            prop_assert_eq!(unfolded, numbers);
        }
    }
}
