//! Whether the whole job became slower in the span: that is no rank's doing, and still worth
//! saying.

use observed::Rules;
use stats::quantile;

use super::comm::Met;
use super::score::Scored;

/// How the remark begins.
const SAYS: &str = "the whole job is slower";

/// Whether a note is this remark.
#[must_use]
pub fn is_slower(note: &str) -> bool {
    note.starts_with(SAYS)
}

/// A remark where collectives of a largest communicator come clearly less often from some time on: of
/// the stretches of so many collectives each three quarters take [`Rules::JOB_SLOWER`] times as long
/// from there on as three quarters of those before. None where there are fewer than
/// [`Rules::JOB_SLOWER_STRETCHES`] on either side.
pub(crate) fn slower(scored: &[Scored]) -> Option<String> {
    let size = |s: &Scored| (s.comm.nranks, s.comm.members.len());
    let largest = scored.iter().map(size).max();
    scored.iter().filter(|s| Some(size(s)) == largest).find_map(|s| slower_in(&s.comm.met))
}

fn slower_in(met: &[Met]) -> Option<String> {
    let least = Rules::JOB_SLOWER_STRETCHES;
    let many = (met.len() / (4 * least)).clamp(1, Rules::JOB_SLOWER_COLLECTIVES);
    let length = |stretch: &[Met]| {
        let (first, last) = stretch.first().zip(stretch.last())?;
        // The time of a run of collectives is its middle.
        let weight = |m: &Met| f64::from(m.weight.max(1));
        let apart = stretch.iter().map(weight).sum::<f64>() - f64::midpoint(weight(first), weight(last));
        (apart > 0.0).then(|| (first.at_ns, (last.at_ns - first.at_ns) as f64 / apart))
    };
    let from = (0..met.len()).step_by(many);
    let (starts_ns, lengths): (Vec<i64>, Vec<f64>) =
        from.filter_map(|from| length(met.get(from..=from + many)?)).unzip();
    let last = lengths.len().checked_sub(least)?;
    let part = |of: &[f64], q: f64| quantile(of.iter().copied(), q).filter(|length| *length > 0.0);
    // By how many times at least the later ones are longer, where that is most.
    let times = |from: usize| Some((part(&lengths[from..], 0.25)? / part(&lengths[..from], 0.75)?, from));
    let (_, from) = (least..=last)
        .filter_map(times)
        .filter(|(times, _)| *times >= Rules::JOB_SLOWER)
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    let (before_ms, after_ms) = (part(&lengths[..from], 0.5)? / 1e6, part(&lengths[from..], 0.5)? / 1e6);
    let for_s = (met.last()?.at_ns - starts_ns[from]) as f64 / 1e9;
    Some(format!(
        "{SAYS} for the last {for_s:.0} s, and no rank stands out: a collective every {after_ms:.3} ms instead of {before_ms:.3} ms"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Comm;
    use crate::tally::Waits;

    /// A communicator whose collectives are so many milliseconds apart.
    fn apart(lengths_ms: &[i64]) -> Scored {
        let mut at_ns = 0;
        let mut comm = Comm::default();
        for length_ms in [0].iter().chain(lengths_ms) {
            at_ns += length_ms * 1_000_000;
            comm.met.push(Met { at_ns, func: "all_reduce".into(), seq: 0, weight: 1, cells: Vec::new() });
        }
        Scored::test_of(comm, Waits::Seen)
    }

    #[test]
    fn a_job_that_slows_down_is_told_and_noise_is_not() {
        let note = slower(&[apart(&[100, 110, 90, 100, 105, 200, 210, 190, 220])]).unwrap();
        assert!(note.contains("a collective every 210.000 ms instead of 100.000 ms"), "{note}");
        assert_eq!(slower(&[apart(&[100, 160, 90, 150, 105, 100, 160, 90, 150])]), None);
        assert_eq!(slower(&[apart(&[200, 200, 200, 200, 100, 100, 100, 100])]), None, "it became faster");
        assert_eq!((slower(&[apart(&[100, 100, 100, 300, 300, 300])]), slower(&[])), (None, None), "too few");
        // Five collectives a step, four of them at once after the first.
        let steps = |ms: i64, many: usize| [ms, 1, 1, 1, 1].repeat(many);
        let note = slower(&[apart(&[steps(20, 100), steps(45, 100)].concat())]).unwrap();
        assert!(note.contains("instead of 4.984 ms"), "{note}");
        assert_eq!(slower(&[apart(&steps(20, 200))]), None);
    }
}
