//! Owns packing integers into as few bits as their block needs. Does not own which form a column
//! takes (`encode`).
//!
//! A stream of values is cut into blocks of [`BLOCK`]; each block has its own smallest value and
//! width (frame of reference; Lemire and Boytsov, "Decoding billions of integers per second through
//! vectorization", 2015, section 2). Before the packed bits lies one entry a block, so that any
//! block can be read alone:
//!
//! | bytes | plain | by differences |
//! |---|---|---|
//! | 0..8 | smallest value | first value |
//! | 8..16 | | smallest difference |
//! | then 1 | width in bits | width in bits |
//! | then 4 | where the bits begin | where the bits begin |
//!
//! Everything is little endian. [`PADDING`] bytes at the end let a value be read as one or two
//! words.

/// Values in a block.
pub(super) const BLOCK: usize = 1024;
const PADDING: usize = 16;
const PLAIN_ENTRY: usize = 13;
const DELTA_ENTRY: usize = 21;

/// Bits that `range` needs.
pub(super) fn width(range: u64) -> u32 {
    64 - range.leading_zeros()
}

fn put_bits(out: &mut Vec<u8>, values: impl Iterator<Item = u64>, width: u32) {
    if width == 0 {
        return;
    }
    let (mut word, mut used) = (0_u128, 0_u32);
    for value in values {
        word |= u128::from(value) << used;
        used += width;
        while used >= 32 {
            out.extend_from_slice(&(word as u32).to_le_bytes());
            word >>= 32;
            used -= 32;
        }
    }
    if used > 0 {
        let bytes = used.div_ceil(8) as usize;
        out.extend_from_slice(&word.to_le_bytes()[..bytes]);
    }
}

/// Values whose bits begin at a whole byte, whatever the width.
const GROUP: usize = 8;
/// The widest values of which one word holds all bits, wherever in its first byte they begin.
const ONE_WORD: usize = 57;

/// `out[i] = base + bits i` (wrapping). None when the bytes end too early.
fn take_bits(bytes: &[u8], width: u32, base: i64, out: &mut [i64]) -> Option<()> {
    if width == 0 {
        out.fill(base);
        return Some(());
    }
    if width > 64 {
        return None;
    }
    let width = width as usize;
    let bytes = bytes.get(..(out.len() * width).div_ceil(8) + PADDING)?;
    // With the width known to the compiler all shifts are constants and no bound is checked.
    macro_rules! of_width {
        ($($known:literal)*) => {
            match width {
                $($known => take_groups::<$known>(bytes, base, out)?,)*
                _ => take_wide(bytes, width, base, out)?,
            }
        };
    }
    of_width!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39
        40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57);
    Some(())
}

/// As [`take_bits`], of values of at most [`ONE_WORD`] bits.
fn take_groups<const WIDTH: usize>(bytes: &[u8], base: i64, out: &mut [i64]) -> Option<()> {
    const { assert!(WIDTH <= ONE_WORD) };
    let mask = (1_u64 << WIDTH) - 1;
    let value = |bytes: &[u8], at: usize| {
        let (from, shift) = (at * WIDTH / 8, at * WIDTH % 8);
        let word = u64::from_le_bytes(bytes.get(from..from + 8)?.try_into().ok()?);
        Some(base.wrapping_add(((word >> shift) & mask).cast_signed()))
    };
    let mut groups = out.chunks_exact_mut(GROUP);
    let mut from = 0;
    for group in &mut groups {
        let bytes = bytes.get(from..from + WIDTH + 8)?;
        for (at, slot) in group.iter_mut().enumerate() {
            *slot = value(bytes, at)?;
        }
        from += WIDTH;
    }
    let bytes = bytes.get(from..)?;
    for (at, slot) in groups.into_remainder().iter_mut().enumerate() {
        *slot = value(bytes, at)?;
    }
    Some(())
}

/// As [`take_bits`], of values of any width.
fn take_wide(bytes: &[u8], width: usize, base: i64, out: &mut [i64]) -> Option<()> {
    let mask = if width == 64 { u64::MAX } else { (1_u64 << width) - 1 };
    for (at, slot) in out.iter_mut().enumerate() {
        let (from, shift) = (at * width / 8, at * width % 8);
        let word = u128::from_le_bytes(bytes.get(from..from + 16)?.try_into().ok()?);
        *slot = base.wrapping_add((((word >> shift) as u64) & mask).cast_signed());
    }
    Some(())
}

fn range(values: &[i64]) -> (i64, u32) {
    let (mut least, mut greatest) = (i64::MAX, i64::MIN);
    for &value in values {
        least = least.min(value);
        greatest = greatest.max(value);
    }
    if values.is_empty() {
        return (0, 0);
    }
    (least, width(greatest.wrapping_sub(least).cast_unsigned()))
}

/// How the differences within a block are packed: smallest and width.
fn delta_range(values: &[i64]) -> (i64, u32) {
    let (mut least, mut greatest) = (i64::MAX, i64::MIN);
    for pair in values.windows(2) {
        let difference = pair[1].wrapping_sub(pair[0]);
        least = least.min(difference);
        greatest = greatest.max(difference);
    }
    if values.len() < 2 {
        return (0, 0);
    }
    (least, width(greatest.wrapping_sub(least).cast_unsigned()))
}

/// Bytes that [`pack`] would give, plain and by differences.
pub(super) fn packed_sizes(values: &[i64]) -> (usize, usize) {
    let bytes = |n: usize, width: u32| (n * width as usize).div_ceil(8);
    values.chunks(BLOCK).fold((PADDING, PADDING), |(plain, delta), block| {
        (
            plain + PLAIN_ENTRY + bytes(block.len(), range(block).1),
            delta + DELTA_ENTRY + bytes(block.len() - 1, delta_range(block).1),
        )
    })
}

/// Pack `values`.
pub(super) fn pack(values: &[i64], by_differences: bool) -> Vec<u8> {
    let entry = if by_differences { DELTA_ENTRY } else { PLAIN_ENTRY };
    let mut head = Vec::with_capacity(values.len().div_ceil(BLOCK) * entry);
    let mut body = Vec::new();
    for block in values.chunks(BLOCK) {
        let begins = u32::try_from(body.len()).unwrap_or(u32::MAX);
        if by_differences {
            let (least, width) = delta_range(block);
            head.extend_from_slice(&block[0].to_le_bytes());
            head.extend_from_slice(&least.to_le_bytes());
            head.push(width as u8);
            let differences =
                block.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]).wrapping_sub(least).cast_unsigned());
            put_bits(&mut body, differences, width);
        } else {
            let (least, width) = range(block);
            head.extend_from_slice(&least.to_le_bytes());
            head.push(width as u8);
            put_bits(&mut body, block.iter().map(|value| value.wrapping_sub(least).cast_unsigned()), width);
        }
        head.extend_from_slice(&begins.to_le_bytes());
    }
    head.extend_from_slice(&body);
    head.extend_from_slice(&[0; PADDING]);
    head
}

/// Read `out.len()` values of a stream of `rows`, from `start` (a multiple of [`BLOCK`]) on. None
/// when the bytes are not such a stream.
pub(super) fn unpack(bytes: &[u8], by_differences: bool, rows: usize, start: usize, out: &mut [i64]) -> Option<()> {
    let entry = if by_differences { DELTA_ENTRY } else { PLAIN_ENTRY };
    if !start.is_multiple_of(BLOCK) || start + out.len() > rows {
        return None;
    }
    let body = bytes.get(rows.div_ceil(BLOCK) * entry..)?;
    let word = |at: usize| Some(i64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    for (i, out) in out.chunks_mut(BLOCK).enumerate() {
        let at = (start / BLOCK + i) * entry;
        let base = word(at)?;
        let tail = bytes.get(at + entry - 5..at + entry)?;
        let width = u32::from(tail[0]);
        let begins = u32::from_le_bytes(tail[1..].try_into().ok()?) as usize;
        let bits = body.get(begins..)?;
        if by_differences {
            let (first, rest) = out.split_first_mut()?;
            *first = base;
            take_bits(bits, width, word(at + 8)?, rest)?;
            let mut value = base;
            for slot in rest {
                value = value.wrapping_add(*slot);
                *slot = value;
            }
        } else {
            take_bits(bits, width, base, out)?;
        }
    }
    Some(())
}

/// Between which integers the values of a block lie, by its entry alone; none where that tells
/// nothing.
pub(super) fn block_range(bytes: &[u8], by_differences: bool, rows: usize, block: usize) -> Option<(i64, i64)> {
    let entry = if by_differences { DELTA_ENTRY } else { PLAIN_ENTRY };
    let word = |at: usize| Some(i128::from(i64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?)));
    let at = block.checked_mul(entry)?;
    let len = rows.checked_sub(block * BLOCK)?.min(BLOCK) as i128;
    let base = word(at)?;
    let span = (1_i128 << (*bytes.get(at + entry - 5)?).min(64)) - 1;
    if !by_differences {
        return Some((i64::try_from(base).ok()?, i64::try_from(base + span).unwrap_or(i64::MAX)));
    }
    let (least, steps) = (word(at + 8)?, (len - 1).max(0));
    let (down, up) = ((steps * least).min(0), (steps * (least + span)).max(0));
    // Beyond 64 bits a sum may have wrapped around.
    Some((i64::try_from(base + down).ok()?, i64::try_from(base + up).ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values() -> impl Strategy<Value = Vec<i64>> {
        let any_width = (any::<i64>(), 0_u32..64).prop_map(|(value, shift)| value >> shift);
        prop_oneof![
            prop::collection::vec(any_width, 0..3000),
            prop::collection::vec(0_i64..5, 0..3000),
            (any::<i64>(), prop::collection::vec(0_i64..1 << 20, 0..3000)).prop_map(|(first, steps)| {
                steps
                    .into_iter()
                    .scan(first, |at, step| {
                        *at = at.wrapping_add(step);
                        Some(*at)
                    })
                    .collect()
            }),
        ]
    }

    proptest! {
        #[test]
        fn values_come_back_whole_and_in_part(values in values(), by_differences: bool, skip in 0_usize..3) {
            let bytes = pack(&values, by_differences);
            let sizes = packed_sizes(&values);
            prop_assert_eq!(bytes.len(), if by_differences { sizes.1 } else { sizes.0 });
            let mut out = vec![0; values.len()];
            unpack(&bytes, by_differences, values.len(), 0, &mut out).expect("own bytes");
            prop_assert_eq!(&out, &values);
            for (block, values) in values.chunks(BLOCK).enumerate() {
                if let Some((least, greatest)) = block_range(&bytes, by_differences, out.len(), block) {
                    prop_assert!(values.iter().all(|value| (least..=greatest).contains(value)));
                }
            }
            let start = (skip * BLOCK).min(values.len() / BLOCK * BLOCK);
            let mut out = vec![0; (values.len() - start) / 2];
            unpack(&bytes, by_differences, values.len(), start, &mut out).expect("own bytes");
            prop_assert_eq!(&out[..], &values[start..start + out.len()]);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), rows in 0_usize..3000, d: bool) {
            let mut out = vec![0; rows];
            let _ = unpack(&bytes, d, rows, 0, &mut out);
            let _ = block_range(&bytes, d, rows, rows / 2 / BLOCK);
        }
    }
}
