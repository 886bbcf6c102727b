//! Which judge's verdict is shown where they do not agree. A judge is a host of the job, and may be
//! in somebody else's hands: it is believed as long as the others do not agree on something else.

use super::{JobVerdict, Key};

/// What was said for so long is no difference of a moment: judges come to a new verdict within a
/// window or two of each other.
const STOOD_NS: i64 = 2_000_000_000;

/// A judge's verdict as it is held.
#[derive(Debug, Clone)]
pub struct Held {
    /// It.
    pub verdict: JobVerdict,
    /// When it came or was made, on this host's steady clock.
    pub at_ns: i64,
    /// Since when the judge has said the same, whatever the window.
    since_ns: i64,
    key: Key,
}

impl Held {
    /// A verdict that came at `now_ns`, after that of `before` by the same judge.
    #[must_use]
    pub fn after(before: Option<&Self>, verdict: JobVerdict, now_ns: i64) -> Self {
        let key = Key::of(&verdict.standing.report.verdict);
        let since_ns = before.filter(|before| before.key == key).map_or(now_ns, |before| before.since_ns);
        Self { verdict, at_ns: now_ns, since_ns, key }
    }

    /// What it says.
    #[must_use]
    pub fn said(&self) -> Said<'_> {
        let standing = &self.verdict.standing;
        Said { key: &self.key, since_ns: self.since_ns, window: (standing.reference.as_deref(), standing.window) }
    }
}

/// What a judge says.
#[derive(Debug, Clone, Copy)]
pub struct Said<'a> {
    key: &'a Key,
    since_ns: i64,
    window: (Option<&'a str>, i64),
}

impl Said<'_> {
    fn stood(&self, now_ns: i64) -> bool {
        now_ns.saturating_sub(self.since_ns) >= STOOD_NS
    }
}

/// Whose verdict is shown, of judges in their order: the first's; but where at least two others
/// have been agreeing on something else, and more than agree with the first, the first of those;
/// and where this host is a judge (`own`) and nobody agrees with the first, its own.
#[must_use]
pub fn chosen(said: &[Said<'_>], own: Option<usize>, now_ns: i64) -> Option<usize> {
    let first = said.first()?;
    let with = |key: &Key| said.iter().filter(|other| other.key == key).count();
    let standing = |key: &Key| said.iter().filter(|other| other.key == key && other.stood(now_ns)).count();
    let other = said
        .iter()
        .position(|other| other.key != first.key && standing(other.key) >= 2 && standing(other.key) > with(first.key));
    let own = own.filter(|own| {
        let own = &said[*own];
        own.key != first.key && own.stood(now_ns) && with(first.key) == 1
    });
    Some(other.or(own).unwrap_or(0))
}

/// Whether a judge says something else than the one that is shown: of the same window, or for some
/// time.
#[must_use]
pub fn disagrees(shown: &Said<'_>, other: &Said<'_>, now_ns: i64) -> bool {
    other.key != shown.key && (other.window == shown.window || shown.stood(now_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_judge_of_three_decides_nothing_against_the_others() {
        let (well, other) = (Key::Quiet, Key::Stage);
        let now = 100 * STOOD_NS;
        let said = |key, ago_ns: i64, window: i64| Said { key, since_ns: now - ago_ns, window: (Some("a"), window) };
        let long = 2 * STOOD_NS;
        // All agree, or some have just come to something else: the first's.
        assert_eq!(chosen(&[said(&well, long, 9); 3], None, now), Some(0));
        let ahead = [said(&other, 0, 9), said(&well, 0, 8), said(&well, 0, 8)];
        assert_eq!(chosen(&ahead, None, now), Some(0));
        assert!(!disagrees(&ahead[0], &ahead[1], now), "another window, a moment ago");
        // A first judge against the two others, however new it makes itself look.
        for ago_ns in [0, long] {
            for window in [7, i64::MAX] {
                let lies = [said(&other, ago_ns, window), said(&well, long, 9), said(&well, long, 9)];
                assert_eq!(chosen(&lies, None, now), Some(1));
                assert!(disagrees(&lies[1], &lies[0], now));
            }
        }
        // One that is not first changes nothing, and is seen.
        let lies = [said(&well, long, 9), said(&well, long, 9), said(&other, long, 9)];
        assert_eq!(chosen(&lies, None, now), Some(0));
        assert!(disagrees(&lies[0], &lies[2], now));
        // Two judges: at one of them its own word counts, elsewhere both are seen.
        let two = [said(&other, 0, 9), said(&well, long, 9)];
        assert_eq!((chosen(&two, None, now), chosen(&two, Some(1), now)), (Some(0), Some(1)));
        assert!(disagrees(&two[0], &two[1], now));
        assert_eq!(chosen(&[], None, now), None);
    }
}
