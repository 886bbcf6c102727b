//! Sets of numbers and of names, written the way that host lists are: `0-4,6-63`, `node-[1-3,7]`.

use std::collections::{BTreeMap, BTreeSet};

/// Numbers as ascending ranges: `0-4,6,8-9`. Equal ones count once.
pub fn fold_ranges(numbers: impl IntoIterator<Item = u64>) -> String {
    runs(numbers.into_iter().collect(), 0)
}

/// Host names with their numbers folded: `node-[1-3,7],login`. Padded numbers of another width stay
/// apart: `n01` is not `n1`.
pub(crate) fn fold_names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut groups: BTreeMap<(&str, usize), Vec<u64>> = BTreeMap::new();
    let mut whole: BTreeSet<&str> = BTreeSet::new();
    for name in names {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &name[stem.len()..];
        match digits.parse::<u64>() {
            Ok(number) => {
                let padded = if digits.starts_with('0') && digits.len() > 1 { digits.len() } else { 0 };
                groups.entry((stem, padded)).or_default().push(number);
            }
            Err(_) => {
                whole.insert(name);
            }
        }
    }
    let folded = groups.into_iter().map(|((stem, width), numbers)| {
        let runs = runs(numbers, width);
        if runs.contains([',', '-']) { format!("{stem}[{runs}]") } else { format!("{stem}{runs}") }
    });
    folded.chain(whole.into_iter().map(str::to_owned)).collect::<Vec<_>>().join(",")
}

fn runs(mut numbers: Vec<u64>, width: usize) -> String {
    numbers.sort_unstable();
    numbers.dedup();
    let runs = numbers.chunk_by(|one, next| one.checked_add(1) == Some(*next)).map(|run| match run {
        [first, .., last] => format!("{first:0width$}-{last:0width$}"),
        [one] => format!("{one:0width$}"),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(",")
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
        assert_eq!(fold_names(["node-3", "node-1", "node-2", "login", "node-9", "node-10"]), "node-[1-3,9-10],login");
        assert_eq!(fold_names(["n01", "n02", "n1", "gpu7"]), "gpu7,n1,n[01-02]");
        assert_eq!(fold_names(["rack5-b"]), "rack5-b");
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
                    let (first, last) = part.split_once('-').unwrap_or((part, part));
                    first.parse().unwrap()..=last.parse().unwrap()
                })
                .collect();
            prop_assert_eq!(unfolded, numbers);
        }
    }
}
