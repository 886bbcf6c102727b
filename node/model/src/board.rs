//! What each rank of a job did in each window: how late it entered collectives, how long it waited
//! in them, how long it computed. Front ends draw heat maps and sparklines of it. A job's judges
//! keep the last ten minutes in memory; of earlier times it is made from the stores.
//!
//! Six bytes a rank and window, in memory as on the wire ([`Time`]).

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::coverage::Coverage;

/// The version of the JSON form: raised when a field changes its meaning or goes.
pub const BOARD_VERSION: u32 = 1;

/// What is asked of a board.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoardQuestion {
    /// Only this job, by `job_id` or `job_id.step_id`; none: that of the first standing verdict.
    pub job: Option<String>,
    /// Windows that end after this, Unix nanoseconds; none: all that are kept.
    pub since_ns: Option<i64>,
    /// Make it from the stores up to here, not from what judges keep.
    pub until_ns: Option<i64>,
    /// Length of windows, nanoseconds; only of what is made from the stores.
    pub window_ns: Option<i64>,
    /// What the requester has of it already, from the answer before.
    pub known: Option<Known>,
    /// Deadline.
    pub timeout_ms: u64,
}

/// What a requester has of a board: ranks are sent once, and windows by their end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// [`Board::epoch`].
    pub epoch: u64,
    /// Ranks that it knows.
    pub ranks: u32,
}

/// What ranks did, window by window; or a part of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Board {
    /// See [`BOARD_VERSION`].
    pub version: u32,
    /// What the job is called; empty where rows of all jobs are in it.
    pub job: String,
    /// Who kept it: the judge that was asked; none where it is made from the stores.
    pub judge: Option<String>,
    /// Positions of ranks are valid within one epoch. If it is another than the requester's, this
    /// answer starts over.
    pub epoch: u64,
    /// Windows' times are on this node's wall clock.
    pub clock_of: Option<String>,
    /// How far entries on different hosts may be wrong against each other, nanoseconds; none where
    /// a clock is not known.
    pub clock_bound_ns: Option<i64>,
    /// Length of a window, nanoseconds.
    pub window_ns: i64,
    /// Position of the first of `ranks`: the requester has those before it.
    pub first_rank: u32,
    /// The ranks; cells are in this order, and never move within an epoch.
    pub ranks: Vec<BoardRank>,
    /// In order of time; windows in which nothing ended are left out.
    pub windows: Vec<BoardWindow>,
    /// There is more: ask again for what ends after the last of these.
    pub more: bool,
    /// Who is in it.
    pub coverage: Coverage,
}

/// A rank of a board.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoardRank {
    /// Its rank in the largest communicator in which it was seen.
    pub rank: i32,
    /// Its host.
    pub node: String,
    /// Its process there.
    pub pid: i64,
}

/// One window of a board.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoardWindow {
    /// Its end, Unix nanoseconds.
    pub end_ns: i64,
    /// Collectives that ended in it: the most of any rank.
    pub collectives: u32,
    /// By place of the rank: sum over the collectives of its entry minus the first entry. May be
    /// shorter than the list of ranks; what is missing is not known.
    pub late: Vec<Time>,
    /// Likewise: time in calls beyond what the rank took that waited least; of ranks that meet in
    /// calls to single ranks, time in communication calls.
    pub wait: Vec<Time>,
    /// Likewise: time outside communication calls.
    pub compute: Vec<Time>,
}

impl BoardWindow {
    /// Bytes that it takes in memory, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + size_of::<Time>() * (self.late.capacity() + self.wait.capacity() + self.compute.capacity())
    }
}

/// A length of time in two bytes: microseconds as a floating-point number with 11 bits of fraction
/// and 5 of exponent. Exact up to 4 ms, then within 0.03 %; up to 50 days. In JSON it is the
/// number of microseconds, null where it is not known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Time(u16);

const FRACTION_BITS: u32 = 11;
const UNKNOWN: u16 = u16::MAX;
const LONGEST: u16 = u16::MAX - 1;

impl Time {
    /// It is not known.
    pub const UNKNOWN: Self = Self(UNKNOWN);

    /// Of nanoseconds; what is below zero counts as zero.
    #[must_use]
    pub fn of_ns(ns: Option<i64>) -> Self {
        ns.map_or(Self::UNKNOWN, |ns| Self::of_us(ns.max(0).unsigned_abs().saturating_add(500) / 1_000))
    }

    fn of_us(us: u64) -> Self {
        let bits = u64::BITS - us.leading_zeros();
        let Some(shift) = bits.checked_sub(FRACTION_BITS + 1) else {
            return Self(u16::try_from(us).unwrap_or(LONGEST));
        };
        // Rounded to the nearest; that may carry into the next power of two.
        let half = if shift > 0 { us >> (shift - 1) & 1 } else { 0 };
        let mut fraction = (us >> shift) + half;
        let mut exponent = u64::from(shift) + 1;
        if fraction >> (FRACTION_BITS + 1) > 0 {
            (fraction, exponent) = (fraction >> 1, exponent + 1);
        }
        let packed = exponent << FRACTION_BITS | fraction & ((1 << FRACTION_BITS) - 1);
        Self(u16::try_from(packed).unwrap_or(LONGEST).min(LONGEST))
    }

    /// Microseconds; none where it is not known.
    #[must_use]
    pub fn us(self) -> Option<u64> {
        if self.0 == UNKNOWN {
            return None;
        }
        let (exponent, fraction) = (u32::from(self.0 >> FRACTION_BITS), u64::from(self.0 & ((1 << FRACTION_BITS) - 1)));
        Some(match exponent.checked_sub(1) {
            Some(shift) => (fraction | 1 << FRACTION_BITS) << shift,
            None => fraction,
        })
    }

    /// As it is kept: exponent above 11 bits of fraction, all ones where it is not known.
    #[must_use]
    pub fn bits(self) -> u16 {
        self.0
    }

    /// Nanoseconds.
    #[must_use]
    pub fn ns(self) -> Option<i64> {
        self.us().map(|us| i64::try_from(us).unwrap_or(i64::MAX).saturating_mul(1_000))
    }
}

impl Default for Time {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

impl std::fmt::Debug for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.us() {
            Some(us) => write!(f, "{us}us"),
            None => f.write_str("unknown"),
        }
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() { self.us().serialize(to) } else { self.0.serialize(to) }
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if !from.is_human_readable() {
            return u16::deserialize(from).map(Self);
        }
        match Option::<i64>::deserialize(from)? {
            None => Ok(Self::UNKNOWN),
            Some(us) => u64::try_from(us).map(Self::of_us).map_err(|_| D::Error::custom("a time below zero")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_time_is_kept_within_three_parts_in_ten_thousand(us in 0u64..2_000_000_000_000) {
            let kept = Time::of_us(us).us().unwrap();
            let off = kept.abs_diff(us) as f64;
            prop_assert!(off <= us as f64 * 0.0003, "{us} is kept as {kept}");
            prop_assert!(us > 4_000 || kept == us);
        }

        #[test]
        fn longer_times_are_kept_as_longer_ones(a in any::<u64>(), b in any::<u64>()) {
            let (a, b) = (a.min(b), a.max(b));
            prop_assert!(Time::of_us(a).0 <= Time::of_us(b).0);
        }
    }

    #[test]
    fn what_is_not_known_stays_so_and_json_has_microseconds() {
        assert_eq!(Time::of_ns(None).us(), None);
        assert_eq!(Time::of_ns(Some(-5)).us(), Some(0));
        assert!(Time::of_ns(Some(i64::MAX)).us().is_some(), "the longest is no unknown");
        let window = BoardWindow { late: vec![Time::of_us(7), Time::UNKNOWN], ..BoardWindow::default() };
        let bytes = crate::frame::encode(&window).unwrap();
        let back: BoardWindow = crate::frame::decode_frame(&bytes).unwrap();
        assert_eq!(back, window);
    }
}
