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

/// Appends the lowest `width` bits of each value; none has more.
fn put_bits(out: &mut Vec<u8>, values: impl ExactSizeIterator<Item = u64>, width: u32) {
    if width == 0 {
        return;
    }
    out.reserve(packed_bytes(values.len(), width) + 8);
    let (mut word, mut used) = (0_u64, 0_u32);
    for value in values {
        word |= value << used;
        used += width;
        if used >= u64::BITS {
            out.extend_from_slice(&word.to_le_bytes());
            used -= u64::BITS;
            // What of the value has not gone out yet.
            word = if used == 0 { 0 } else { value >> (width - used) };
        }
    }
    out.extend_from_slice(&word.to_le_bytes()[..used.div_ceil(8) as usize]);
}

fn packed_bytes(values: usize, width: u32) -> usize {
    (values * width as usize).div_ceil(8)
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

/// How a block is packed: plain and by differences the smallest and the width.
#[derive(Debug, Clone, Copy)]
struct BlockShape {
    least: i64,
    greatest: i64,
    delta_least: i64,
    delta_width: u32,
}

impl BlockShape {
    fn of(block: &[i64]) -> Self {
        let first = block.first().copied().unwrap_or_default();
        let (mut least, mut greatest) = (first, first);
        let (mut delta_least, mut delta_greatest) = (i64::MAX, i64::MIN);
        let mut before = first;
        for &value in block.iter().skip(1) {
            let delta = value.wrapping_sub(before);
            (least, greatest) = (least.min(value), greatest.max(value));
            (delta_least, delta_greatest) = (delta_least.min(delta), delta_greatest.max(delta));
            before = value;
        }
        if block.len() < 2 {
            (delta_least, delta_greatest) = (0, 0);
        }
        let delta_width = width(delta_greatest.wrapping_sub(delta_least).cast_unsigned());
        Self { least, greatest, delta_least, delta_width }
    }

    fn width(&self) -> u32 {
        width(self.greatest.wrapping_sub(self.least).cast_unsigned())
    }
}

/// Values with what packing needs to know of them, found in one pass.
pub(super) struct ToPack<'v> {
    values: &'v [i64],
    blocks: Vec<BlockShape>,
}

impl<'v> ToPack<'v> {
    pub(super) fn of(values: &'v [i64]) -> Self {
        Self { values, blocks: values.chunks(BLOCK).map(BlockShape::of).collect() }
    }

    /// The smallest and the greatest value.
    pub(super) fn range(&self) -> Option<(i64, i64)> {
        let ranges = self.blocks.iter().map(|block| (block.least, block.greatest));
        ranges.reduce(|(a, b), (least, greatest)| (a.min(least), b.max(greatest)))
    }

    /// Bytes that [`ToPack::pack`] would give, plain and by differences.
    pub(super) fn sizes(&self) -> (usize, usize) {
        let blocks = self.values.chunks(BLOCK).zip(&self.blocks);
        blocks.fold((PADDING, PADDING), |(plain, delta), (values, block)| {
            (
                plain + PLAIN_ENTRY + packed_bytes(values.len(), block.width()),
                delta + DELTA_ENTRY + packed_bytes(values.len() - 1, block.delta_width),
            )
        })
    }

    /// The packed bytes, after those of `bytes`.
    pub(super) fn pack(&self, by_differences: bool, mut bytes: Vec<u8>) -> Vec<u8> {
        let (plain, by_delta) = self.sizes();
        bytes.reserve(if by_differences { by_delta } else { plain });
        let mut begins = 0;
        for (values, block) in self.values.chunks(BLOCK).zip(&self.blocks) {
            let (base, width, of_values) = match by_differences {
                true => (values[0], block.delta_width, values.len() - 1),
                false => (block.least, block.width(), values.len()),
            };
            bytes.extend_from_slice(&base.to_le_bytes());
            if by_differences {
                bytes.extend_from_slice(&block.delta_least.to_le_bytes());
            }
            bytes.push(width as u8);
            bytes.extend_from_slice(&u32::try_from(begins).unwrap_or(u32::MAX).to_le_bytes());
            begins += packed_bytes(of_values, width);
        }
        for (values, block) in self.values.chunks(BLOCK).zip(&self.blocks) {
            if by_differences {
                let least = block.delta_least;
                let differences =
                    values.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]).wrapping_sub(least).cast_unsigned());
                put_bits(&mut bytes, differences, block.delta_width);
            } else {
                let least = block.least;
                put_bits(
                    &mut bytes,
                    values.iter().map(|value| value.wrapping_sub(least).cast_unsigned()),
                    block.width(),
                );
            }
        }
        bytes.extend_from_slice(&[0; PADDING]);
        bytes
    }
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
            let to_pack = ToPack::of(&values);
            let (bytes, sizes) = (to_pack.pack(by_differences, Vec::new()), to_pack.sizes());
            let range = values.iter().min().copied().zip(values.iter().max().copied());
            prop_assert_eq!(to_pack.range(), range);
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
