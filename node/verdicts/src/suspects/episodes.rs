//! The windows in which a rank was flagged, put together into episodes.

use std::ops::Range;

use observed::Rules;
use stats::median;

/// The run of windows in which a rank was flagged often enough: from a flagged window to a flagged
/// one, at least `persistence` flags, at least `density` of its windows flagged. The one with most
/// flags; of equals the latest.
pub(super) fn episode(flags: &[bool], rules: &Rules) -> Option<Range<usize>> {
    let at: Vec<usize> = flags.iter().enumerate().filter_map(|(i, f)| f.then_some(i)).collect();
    let mut best: Option<(usize, Range<usize>)> = None;
    for (i, &start) in at.iter().enumerate() {
        for (j, &end) in at.iter().enumerate().skip(i + rules.persistence.max(1) - 1).rev() {
            let count = j - i + 1;
            if count as f64 >= rules.density * (end - start + 1) as f64 {
                if best.as_ref().is_none_or(|(most, _)| count >= *most) {
                    best = Some((count, start..end + 1));
                }
                break;
            }
        }
    }
    best.map(|(_, range)| range)
}

/// The runs of windows in an episode in which a rank's excess stays near what it mostly is there,
/// the longest first, at least `persistence` windows each. A rank that is slow for some seconds and
/// then not is steadily late in each of these, and far from steady over all of the episode.
pub(super) fn steady_runs(episode: &Range<usize>, excess: &[f64], rules: &Rules) -> Vec<Range<usize>> {
    let Some(usual) = median(excess[episode.clone()].iter().copied()) else { return Vec::new() };
    let stays = |window: &usize| excess[*window] >= Rules::STAYS_LATE * usual;
    let windows: Vec<usize> = episode.clone().collect();
    let runs = windows.chunk_by(|a, b| stays(a) == stays(b)).filter(|run| run.iter().all(stays));
    let mut runs: Vec<Range<usize>> = runs.map(|run| run[0]..run[0] + run.len()).collect();
    runs.retain(|run| run.len() >= rules.persistence && run != episode);
    runs.sort_by_key(|run| (std::cmp::Reverse(run.len()), std::cmp::Reverse(run.start)));
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_episode_needs_three_of_five() {
        let rules = Rules::default();
        let run = |s: &str| episode(&s.bytes().map(|b| b == b'#').collect::<Vec<_>>(), &rules);
        assert_eq!(run("#.#.#"), Some(0..5));
        assert_eq!(run("##.."), None);
        assert_eq!(run("#..#..#"), None);
        assert_eq!(run("....####"), Some(4..8));
        assert_eq!(run("#.......###.#"), Some(8..13));
        assert_eq!(run("###......###"), Some(9..12), "of equals the latest");
        assert_eq!(run(""), None);
    }

    #[test]
    fn who_comes_and_goes_is_steadily_late_in_between() {
        let runs = |excess: &[f64]| steady_runs(&(0..excess.len()), excess, &Rules::default());
        assert_eq!(runs(&[9.0, 8.0, 9.0, 1.0, 5.0, 9.0, 9.0, 9.0, 9.0]), [5..9, 0..3]);
        assert_eq!(runs(&[9.0, 8.0, 9.0, 9.0]), [], "the episode itself");
        assert_eq!(runs(&[9.0, 1.0, 9.0, 9.0, 1.0]), [], "too short");
    }
}
