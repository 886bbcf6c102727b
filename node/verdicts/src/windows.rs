//! Cuts a communicator's collectives into windows: of time where they are frequent, of so many
//! collectives where they are rare or the span is short.

use std::ops::Range;

use observed::Rules;
use serde::{Deserialize, Serialize};

use super::comm::Comm;

/// How windows were cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum WindowKind {
    /// Equal stretches of time.
    Time {
        /// Length.
        length_ns: i64,
    },
    /// Equal numbers of collectives: they come too rarely, or the span is too short, for windows of
    /// time.
    Collectives {
        /// How many to a window.
        each: usize,
    },
}

/// One window: consecutive collectives of one communicator.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Window {
    /// Into `Comm::met`.
    pub(crate) met: Range<usize>,
    /// Wall time that its collectives stand for: the sum of the distances to the collective before
    /// each.
    pub(crate) wall_ns: f64,
    /// Its first collective.
    pub(crate) start_ns: i64,
    /// Its last collective.
    pub(crate) end_ns: i64,
}

/// Cut. Empty with fewer than three collectives.
pub(crate) fn cut(comm: &Comm, rules: &Rules) -> Option<(WindowKind, Vec<Window>)> {
    let met = &comm.met;
    if met.len() < rules.persistence {
        return None;
    }
    let first = met.first()?.at_ns;
    let span = met.last()?.at_ns - first;
    let length_ns =
        if span >= Rules::FEWEST_WINDOWS as i64 * rules.window_ns { rules.window_ns } else { rules.short_window_ns };
    // A grid of absolute time: any two coordinators cut alike.
    let slot = |at_ns: i64| at_ns.div_euclid(length_ns);
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (i, m) in met.iter().enumerate() {
        match ranges.last_mut() {
            Some(range) if slot(met[range.start].at_ns) == slot(m.at_ns) => range.end = i + 1,
            _ => ranges.push(i..i + 1),
        }
    }
    let full = |r: &&Range<usize>| comm.stands_for((*r).clone()) >= rules.window_collectives as f64;
    let full = ranges.iter().filter(full).count();
    let kind = if full >= Rules::FEWEST_WINDOWS && full * 2 >= ranges.len() {
        WindowKind::Time { length_ns }
    } else {
        let each = (met.len() / Rules::COUNTED_WINDOWS).max(1);
        ranges = (0..met.len() / each).map(|i| i * each..(i + 1) * each).collect();
        if let Some(last) = ranges.last_mut() {
            last.end = met.len();
        }
        WindowKind::Collectives { each }
    };
    let period = comm.period_ns().unwrap_or(0.0);
    let windows = ranges
        .into_iter()
        .map(|range| {
            let wall_ns = range
                .clone()
                .map(|i| i.checked_sub(1).map_or(period, |before| (met[i].at_ns - met[before].at_ns) as f64))
                .sum();
            Window { wall_ns, start_ns: met[range.start].at_ns, end_ns: met[range.end - 1].at_ns, met: range }
        })
        .collect();
    Some((kind, windows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Met;

    fn comm(times: impl IntoIterator<Item = i64>) -> Comm {
        let met = times
            .into_iter()
            .map(|at_ns| Met { at_ns, func: "all_reduce".into(), seq: 0, weight: 1, cells: Vec::new() })
            .collect();
        Comm { met, ..Comm::default() }
    }

    const MS: i64 = 1_000_000;

    #[test]
    fn frequent_collectives_give_windows_of_time_and_rare_ones_of_collectives() {
        let rules = Rules::default();
        let (kind, windows) = cut(&comm((0..300).map(|i| i * 100 * MS)), &rules).unwrap();
        assert_eq!((kind, windows.len()), (WindowKind::Time { length_ns: 1_000 * MS }, 30));
        // Ten seconds of steps of 300 ms: three or four a second.
        let (kind, windows) = cut(&comm((0..33).map(|i| i * 300 * MS)), &rules).unwrap();
        assert_eq!(kind, WindowKind::Time { length_ns: 1_000 * MS });
        assert!(windows.len() >= 9);
        // A minute of steps of 3 s.
        let (kind, windows) = cut(&comm((0..20).map(|i| i * 3_000 * MS)), &rules).unwrap();
        assert_eq!((kind, windows.len()), (WindowKind::Collectives { each: 2 }, 10));
        // Much in a moment: windows of 37, what is left over joins the last.
        let (kind, windows) = cut(&comm((0..300).map(|i| i * MS)), &rules).unwrap();
        assert_eq!(kind, WindowKind::Collectives { each: 37 });
        assert_eq!(windows.last().unwrap().met, 259..300);
        // Four of them: one each. Two are too few.
        let (kind, windows) = cut(&comm((0..4).map(|i| i * 300 * MS)), &rules).unwrap();
        assert_eq!((kind, windows.len()), (WindowKind::Collectives { each: 1 }, 4));
        assert_eq!(cut(&comm([0, 1]), &rules), None);
    }

    #[test]
    fn the_walls_of_all_windows_add_up_to_the_span() {
        let (_, windows) = cut(&comm((0..300).map(|i| i * 70 * MS)), &Rules::default()).unwrap();
        let walls: f64 = windows.iter().map(|w| w.wall_ns).sum();
        assert!((walls - 300.0 * 70.0 * MS as f64).abs() < 1.0);
    }
}
