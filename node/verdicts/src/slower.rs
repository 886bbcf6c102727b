//! Whether the whole job became slower in the span: that is no rank's doing, and still worth
//! saying.

use super::rules::Rules;
use super::score::Scored;
use super::stats::quantile;
use super::windows::Window;

/// A remark where collectives of the largest communicator come clearly less often from some window
/// on: of the windows from there on three quarters take [`Rules::JOB_SLOWER`] times as long for each
/// as three quarters of those before. None where there are fewer than [`Rules::JOB_SLOWER_WINDOWS`]
/// on either side.
pub(crate) fn slower(scored: &[Scored]) -> Option<String> {
    let s = scored.iter().max_by_key(|s| (s.comm.nranks, s.comm.members.len()))?;
    let each = |w: &Window| w.wall_ns / s.comm.stands_for(w.met.clone()).max(1.0);
    let lengths: Vec<f64> = s.windows.iter().map(each).collect();
    let least = Rules::JOB_SLOWER_WINDOWS;
    let last = lengths.len().checked_sub(least)?;
    // By how many times at least the later ones are longer, where that is most.
    let times = |from: usize| {
        let before = quantile(lengths[..from].iter().copied(), 0.75).filter(|length| *length > 0.0)?;
        Some((quantile(lengths[from..].iter().copied(), 0.25)? / before, from))
    };
    let (most, from) = (least..=last).filter_map(times).max_by(|a, b| a.0.total_cmp(&b.0))?;
    let middle = |lengths: &[f64]| Some(quantile(lengths.iter().copied(), 0.5)? / 1e6);
    let (before_ms, after_ms) = (middle(&lengths[..from])?, middle(&lengths[from..])?);
    let for_s = (s.windows.last()?.end_ns - s.windows[from].start_ns) as f64 / 1e9;
    (most >= Rules::JOB_SLOWER).then(|| {
        format!(
            "the whole job is slower for the last {for_s:.0} s, and no rank stands out: a collective every {after_ms:.3} ms instead of \
             {before_ms:.3} ms"
        )
    })
}
