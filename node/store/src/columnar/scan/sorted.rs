//! Owns putting gathered rows in the order of a window. What rows are sorted by is packed into one
//! number a row, with the row's own number at the end: so equal rows stay in the order in which
//! they came, and sorting compares numbers.

use std::ops::Range;

use query_planner::scan::Window;

use super::StepAside;
use super::compute::Vector;
use super::gather::Pool;
use crate::FastMap;

/// Different values up to which wide ones are replaced by their places in order.
const MOST_PLACES: usize = 1 << 16;
/// Bits of a value from which on that is tried.
const WIDE: u32 = 20;

/// Rows in the order of a window.
pub(super) struct Sorted {
    pub(super) rows: Vec<u32>,
    /// Where partitions and, within them, equal rows end.
    partition_ends: Vec<usize>,
    peer_ends: Vec<usize>,
}

impl Sorted {
    /// The partitions, as ranges of places.
    pub(super) fn partitions(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        ranges(0, &self.partition_ends)
    }

    /// The equal rows of a partition.
    pub(super) fn peers(&self, part: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let from = self.peer_ends.partition_point(|end| *end <= part.start);
        let to = self.peer_ends.partition_point(|end| *end <= part.end);
        ranges(part.start, &self.peer_ends[from..to])
    }
}

fn ranges(start: usize, ends: &[usize]) -> impl Iterator<Item = Range<usize>> + '_ {
    let starts = std::iter::once(start).chain(ends.iter().copied());
    starts.zip(ends).map(|(start, end)| start..*end)
}

/// What rows are sorted by: numbers in ascending order, of so many bits.
struct Key {
    numbers: Vec<u64>,
    bits: u32,
}

impl Key {
    /// Of values that are only to be told apart, and wide, the places among the different ones.
    fn of(vector: &Vector, desc: bool, nulls_first: bool) -> Self {
        let mut range: Option<(i64, i64)> = None;
        for row in 0..vector.values.len() {
            if let Some(value) = vector.at(row) {
                range = Some(range.map_or((value, value), |(least, greatest)| (least.min(value), greatest.max(value))));
            }
        }
        let (least, greatest) = range.unwrap_or((0, 0));
        let span = greatest.wrapping_sub(least).cast_unsigned();
        if u64::BITS - span.leading_zeros() > WIDE
            && let Some(places) = places(vector)
        {
            return Self::of(&places, desc, nulls_first);
        }
        // One more on either side, for NULL. (A span of all 64 bits has no room for it; nor has the
        // packed number for such a key and others.)
        let number = |row: usize| match vector.at(row) {
            None if nulls_first => 0,
            None => span.saturating_add(2),
            Some(value) if desc => greatest.wrapping_sub(value).cast_unsigned().saturating_add(1),
            Some(value) => value.wrapping_sub(least).cast_unsigned().saturating_add(1),
        };
        let bits = u64::BITS - span.saturating_add(2).leading_zeros();
        Self {
            numbers: (0..vector.values.len()).map(number).collect(),
            bits: if span > u64::MAX - 2 { 128 } else { bits },
        }
    }
}

/// Values replaced by their places among the different ones, where those are few.
fn places(vector: &Vector) -> Option<Vector> {
    let mut place: FastMap<i64, i64> = FastMap::default();
    for row in 0..vector.values.len() {
        if let Some(value) = vector.at(row) {
            place.insert(value, 0);
            if place.len() > MOST_PLACES {
                return None;
            }
        }
    }
    let mut different: Vec<i64> = place.keys().copied().collect();
    different.sort_unstable();
    (0_i64..).zip(&different).for_each(|(at, value)| {
        place.insert(*value, at);
    });
    let values = vector.values.iter().map(|value| place.get(value).copied().unwrap_or(0)).collect();
    Some(Vector { values, nulls: vector.nulls.clone() })
}

/// `rows` rows in a window's order. Where what they are sorted by takes more than 128 bits, SQLite
/// does it.
pub(super) fn sorted(window: &Window, rows: usize, pool: Pool<'_>) -> Result<Sorted, StepAside> {
    let mut keys = Vec::new();
    for operand in &window.partition {
        keys.push(Key::of(pool.vector(operand)?, false, true));
    }
    let partition_keys = keys.len();
    for order in &window.order {
        keys.push(Key::of(pool.vector(&order.by)?, order.desc, order.nulls_first));
    }
    let row_bits = usize::BITS - rows.leading_zeros();
    let order_bits: u32 = keys[partition_keys..].iter().map(|key| key.bits).sum();
    let bits = keys.iter().map(|key| key.bits).sum::<u32>() + row_bits;
    if bits > u128::BITS || row_bits > u32::BITS {
        return Err(StepAside);
    }
    let mut packed: Vec<u128> = vec![0; rows];
    for key in &keys {
        for (packed, number) in packed.iter_mut().zip(&key.numbers) {
            *packed = *packed << key.bits | u128::from(*number);
        }
    }
    (0_u128..).zip(&mut packed).for_each(|(row, packed)| *packed = *packed << row_bits | row);
    packed.sort_unstable();
    // (Nothing is left of a number that is moved by all its bits.)
    let ends = |cut: u32| -> Vec<usize> {
        let differ = |pair: &[u128]| pair[0].checked_shr(cut).unwrap_or(0) != pair[1].checked_shr(cut).unwrap_or(0);
        let within = packed.windows(2).enumerate().filter(|(_, pair)| differ(pair)).map(|(at, _)| at + 1);
        within.chain((rows > 0).then_some(rows)).collect()
    };
    let (partition_ends, peer_ends) = (ends(order_bits + row_bits), ends(row_bits));
    let mask = (1_u128 << row_bits) - 1;
    let rows = packed.into_iter().map(|packed| (packed & mask) as u32).collect();
    Ok(Sorted { rows, partition_ends, peer_ends })
}
