//! Owns what a column's pages say of themselves, read before the Parquet reader believes it: it
//! makes room for as many bytes and values as a page's header claims. The headers are Thrift's
//! compact protocol (<https://parquet.apache.org/docs/file-format/>).

use parquet::errors::ParquetError;

/// Structures in structures that a header may have.
const DEPTH: u8 = 8;

/// Encodings of values that archives of ours have: PLAIN, PLAIN_DICTIONARY, RLE,
/// DELTA_BINARY_PACKED, RLE_DICTIONARY. Others make room for what their own bytes claim.
const ENCODINGS: [i64; 5] = [0, 2, 3, 5, 8];

/// What a column says that its pages have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claimed {
    /// Rows of its row group.
    pub(super) rows: usize,
    /// Bytes of all pages, not compressed.
    pub(super) bytes: u64,
}

/// Whether the pages of a column have no more than it says.
///
/// # Errors
/// They have, or a header cannot be read.
pub(super) fn check(column: &[u8], claimed: Claimed) -> Result<(), ParquetError> {
    let wrong = |what: &str| Err(ParquetError::General(format!("damaged: {what}")));
    let (mut at, mut bytes, mut rows) = (0, 0_u64, 0_u64);
    while at < column.len() {
        let mut from = Thrift { bytes: &column[at..], at: 0 };
        let Some(page) = Page::read(&mut from) else { return wrong("a page's header cannot be read") };
        let next = at.checked_add(from.at).and_then(|at| at.checked_add(page.compressed as usize));
        let Some(next) = next.filter(|next| *next <= column.len()) else {
            return wrong("a page is longer than its column");
        };
        bytes = bytes.saturating_add(from.at as u64).saturating_add(u64::from(page.uncompressed));
        if bytes > claimed.bytes {
            return wrong("its pages claim more bytes than their column");
        }
        if !ENCODINGS.contains(&page.encoding) {
            return wrong("an encoding that no archive of ours has");
        }
        match page.kind {
            // Each entry of a dictionary has a byte at least.
            DICTIONARY if page.values > page.uncompressed => {
                return wrong("a dictionary claims more values than bytes");
            }
            DICTIONARY => {}
            DATA | DATA_2 => rows += u64::from(page.values),
            _ => return wrong("a page of a kind that no archive of ours has"),
        }
        if rows > claimed.rows as u64 {
            return wrong("its pages claim more rows than their group");
        }
        at = next;
    }
    Ok(())
}

const DATA: i64 = 0;
const DICTIONARY: i64 = 2;
const DATA_2: i64 = 3;

/// A page's header.
#[derive(Debug, Default)]
struct Page {
    kind: i64,
    uncompressed: u32,
    compressed: u32,
    values: u32,
    encoding: i64,
}

impl Page {
    fn read(from: &mut Thrift<'_>) -> Option<Self> {
        let mut page = Self { kind: -1, encoding: -1, ..Self::default() };
        from.fields(DEPTH, &mut |from, field, kind| {
            match (field, kind) {
                (1, I32) => page.kind = from.integer()?,
                (2, I32) => page.uncompressed = u32::try_from(from.integer()?).ok()?,
                (3, I32) => page.compressed = u32::try_from(from.integer()?).ok()?,
                (5 | 7 | 8, STRUCT) => {
                    // Data pages of the second kind have the encoding in another place.
                    let encoding = if field == 8 { 4 } else { 2 };
                    from.fields(DEPTH - 1, &mut |from, field, kind| {
                        match (field, kind) {
                            (1, I32) => page.values = u32::try_from(from.integer()?).ok()?,
                            (field, I32) if field == encoding => page.encoding = from.integer()?,
                            _ => from.skip(kind, DEPTH - 2)?,
                        }
                        Some(())
                    })?;
                }
                _ => from.skip(kind, DEPTH - 1)?,
            }
            Some(())
        })?;
        Some(page)
    }
}

const I32: u8 = 5;
const STRUCT: u8 = 12;

/// Bytes of the compact protocol, and how far they are read. Nothing is kept of them.
struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Thrift<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn integer(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    fn pass(&mut self, bytes: u64) -> Option<()> {
        let end = self.at.checked_add(usize::try_from(bytes).ok()?)?;
        self.at = end;
        (end <= self.bytes.len()).then_some(())
    }

    /// Calls `each` with the number and kind of every field of a structure; it reads the value.
    fn fields(&mut self, depth: u8, each: &mut dyn FnMut(&mut Self, i64, u8) -> Option<()>) -> Option<()> {
        if depth == 0 {
            return None;
        }
        let mut field = 0_i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            field = match head >> 4 {
                0 => self.integer()?,
                more => field.checked_add(i64::from(more))?,
            };
            each(self, field, head & 0x0f)?;
        }
    }

    fn skip(&mut self, kind: u8, depth: u8) -> Option<()> {
        match kind {
            1 | 2 => Some(()),
            3 => self.pass(1),
            4..=6 => self.number().map(drop),
            7 => self.pass(8),
            8 => {
                let length = self.number()?;
                self.pass(length)
            }
            9 | 10 => {
                let head = self.byte()?;
                let length = if head >> 4 == 0x0f { self.number()? } else { u64::from(head >> 4) };
                // In a list a truth has a byte of its own.
                let kind = if matches!(head & 0x0f, 1 | 2) { 3 } else { head & 0x0f };
                (0..length).try_for_each(|_| depth.checked_sub(1).and_then(|depth| self.skip(kind, depth)))
            }
            STRUCT => self.fields(depth, &mut |from, _, kind| from.skip(kind, depth.checked_sub(1)?)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data page's header: sizes, values, encoding.
    fn page(uncompressed: i32, compressed: i32, values: i32, encoding: i32) -> Vec<u8> {
        let zigzag = |number: i32| {
            let mut number = (number << 1 ^ number >> 31).cast_unsigned();
            let mut bytes = Vec::new();
            while number >= 0x80 {
                bytes.push(number as u8 | 0x80);
                number >>= 7;
            }
            bytes.push(number as u8);
            bytes
        };
        let field = |number: i32| [vec![0x15], zigzag(number)].concat();
        let inner = [field(values), field(encoding), field(3), field(3), vec![0]].concat();
        [field(0), field(uncompressed), field(compressed), vec![0x2c], inner, vec![0]].concat()
    }

    #[test]
    fn pages_that_claim_too_much_are_refused() {
        let claimed = Claimed { rows: 10, bytes: 200 };
        let column = |header: Vec<u8>| [header, vec![7; 20]].concat();
        assert!(check(&column(page(80, 20, 10, 0)), claimed).is_ok());
        let twice = [column(page(80, 20, 5, 0)), column(page(80, 20, 5, 8))].concat();
        assert!(check(&twice, claimed).is_ok());
        for (wrong, header) in [
            ("more bytes", page(i32::MAX, 20, 10, 0)),
            ("more rows", page(80, 20, 11, 0)),
            ("cannot be read", page(-1, 20, 10, 0)),
            ("cannot be read", page(80, -20, 10, 0)),
            ("longer than its column", page(80, 21, 10, 0)),
            ("an encoding", page(80, 20, 10, 7)),
        ] {
            let error = check(&column(header), claimed).unwrap_err().to_string();
            assert!(error.contains(wrong), "{wrong}: {error}");
        }
        assert!(check(&[twice.clone(), twice].concat(), claimed).unwrap_err().to_string().contains("more"));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = check(&bytes, Claimed { rows: 1_000, bytes: 1_000_000 });
        }
    }
}
