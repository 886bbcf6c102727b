//! Whether the whole job became slower in the span: that is no rank's doing, and still worth
//! saying.

use super::comm::Met;
use super::rules::Rules;
use super::score::Scored;
use super::stats::quantile;
use super::windows::Window;

/// A remark where collectives of the largest communicator come clearly less often from some window
/// on, or in a short span from one collective on: of those from there on three quarters take
/// [`Rules::JOB_SLOWER`] times as long for each as three quarters of those before. None where there
/// are fewer than [`Rules::JOB_SLOWER_WINDOWS`] on either side.
pub(crate) fn slower(scored: &[Scored]) -> Option<String> {
    let s = scored.iter().max_by_key(|s| (s.comm.nranks, s.comm.members.len()))?;
    let each = |w: &Window| (w.start_ns, w.wall_ns / s.comm.stands_for(w.met.clone()).max(1.0));
    let mut lengths: Vec<(i64, f64)> = s.windows.iter().map(each).collect();
    let least = Rules::JOB_SLOWER_WINDOWS;
    if lengths.len() < 2 * least {
        // A short span: collective by collective.
        let apart = |m: &[Met]| (m[0].at_ns, (m[1].at_ns - m[0].at_ns) as f64 / f64::from(m[0].weight.max(1)));
        lengths = s.comm.met.windows(2).map(apart).collect();
    }
    let (starts_ns, lengths): (Vec<i64>, Vec<f64>) = lengths.into_iter().unzip();
    let last = lengths.len().checked_sub(least)?;
    // By how many times at least the later ones are longer, where that is most.
    let times = |from: usize| {
        let before = quantile(lengths[..from].iter().copied(), 0.75).filter(|length| *length > 0.0)?;
        Some((quantile(lengths[from..].iter().copied(), 0.25)? / before, from))
    };
    let (most, from) = (least..=last).filter_map(times).max_by(|a, b| a.0.total_cmp(&b.0))?;
    let middle = |lengths: &[f64]| Some(quantile(lengths.iter().copied(), 0.5)? / 1e6);
    let (before_ms, after_ms) = (middle(&lengths[..from])?, middle(&lengths[from..])?);
    let for_s = (s.windows.last()?.end_ns - starts_ns[from]) as f64 / 1e9;
    (most >= Rules::JOB_SLOWER).then(|| {
        format!(
            "the whole job is slower for the last {for_s:.0} s, and no rank stands out: a collective every {after_ms:.3} ms instead of \
             {before_ms:.3} ms"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Comm;
    use crate::tally::Waits;

    /// A communicator whose windows hold one collective each, so many milliseconds apart.
    fn windows(lengths_ms: &[i64]) -> Scored {
        let mut at_ns = 0;
        let mut comm = Comm::default();
        let windows = lengths_ms.iter().enumerate().map(|(i, length_ms)| {
            at_ns += length_ms * 1_000_000;
            comm.met.push(Met { at_ns, func: "all_reduce".into(), seq: 0, weight: 1, cells: Vec::new() });
            Window { met: i..i + 1, wall_ns: (length_ms * 1_000_000) as f64, start_ns: at_ns, end_ns: at_ns }
        });
        let windows = windows.collect();
        Scored { windows, ..Scored::test_of(comm, Waits::Seen) }
    }

    #[test]
    fn a_job_that_slows_down_is_told_and_noise_is_not() {
        let note = slower(&[windows(&[100, 110, 90, 100, 105, 200, 210, 190, 220])]).unwrap();
        assert!(note.contains("a collective every 210.000 ms instead of 100.000 ms"), "{note}");
        assert_eq!(slower(&[windows(&[100, 160, 90, 150, 105, 100, 160, 90, 150])]), None);
        assert_eq!(slower(&[windows(&[200, 200, 200, 200, 100, 100, 100, 100])]), None, "it became faster");
        assert_eq!((slower(&[windows(&[100, 100, 100, 300, 300, 300])]), slower(&[])), (None, None), "too few");
        let mut short = windows(&[20, 21, 20, 19, 20, 45, 44, 46, 45, 44]);
        short.windows = vec![Window { met: 0..10, wall_ns: 3e8, start_ns: 0, end_ns: 300_000_000 }];
        assert!(slower(&[short]).is_some_and(|note| note.contains("every 45.000 ms instead of 20.000 ms")));
    }
}
