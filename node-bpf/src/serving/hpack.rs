//! HPACK (RFC 7541): what blocks of header fields say, as far as it is asked for, where some blocks
//! of a connection may be missing.
//!
//! A block refers to fields of blocks before it by how many fields were added since: so after a gap
//! those that are added from there on can be referred to exactly, and what refers to fields before
//! them is not known. The same holds where more is added than is kept here. Nothing is guessed.

mod huffman;

use std::collections::VecDeque;

/// A table's size where nothing was said of it, and the most that is kept of one, as HPACK counts.
const FIRST_SIZE: usize = 4_096;
const MOST_SIZE: usize = 16_384;
/// What HPACK counts of a field beside its name and value.
const FIELD_SIZE: usize = 32;
/// Bytes kept of a value.
const MOST_VALUE: usize = 256;
/// Fields that everybody knows.
const STATIC_FIELDS: usize = 61;

/// Names that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    Method,
    Path,
    Status,
    ContentType,
    GrpcStatus,
    Other,
}

impl Name {
    fn of(name: &[u8]) -> Name {
        match name {
            b":method" => Name::Method,
            b":path" => Name::Path,
            b":status" => Name::Status,
            b"content-type" => Name::ContentType,
            b"grpc-status" => Name::GrpcStatus,
            _ => Name::Other,
        }
    }
}

/// A value's beginning; of [`Name::Other`] nothing is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value<T> {
    pub(super) bytes: T,
    /// Nothing is cut off.
    pub(super) is_whole: bool,
}

/// Its bytes lie in the table, or in the block.
pub(super) type ValueRef<'a> = Value<&'a [u8]>;

impl ValueRef<'_> {
    pub(super) fn kept(self) -> Value<Box<[u8]>> {
        Value { bytes: self.bytes.into(), is_whole: self.is_whole }
    }
}

impl Value<Box<[u8]>> {
    fn read(&self) -> ValueRef<'_> {
        Value { bytes: &self.bytes, is_whole: self.is_whole }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    name: Name,
    name_bytes: usize,
    value: Value<Box<[u8]>>,
    /// As HPACK counts.
    size: usize,
}

/// What one direction of a connection has said up to now.
#[derive(Debug)]
pub(super) struct Decoder {
    /// The newest first.
    table: VecDeque<Entry>,
    size: usize,
    most: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder { table: VecDeque::new(), size: 0, most: FIRST_SIZE }
    }
}

/// A string as it lies in a block.
#[derive(Debug, Clone, Copy)]
struct Text<'a> {
    bytes: &'a [u8],
    is_coded: bool,
}

impl Text<'_> {
    /// Its length, and its beginning, of `most` bytes.
    fn read(&self, most: usize) -> Option<(usize, Vec<u8>)> {
        if !self.is_coded {
            return Some((self.bytes.len(), self.bytes.iter().take(most).copied().collect()));
        }
        let (mut length, mut text) = (0, vec![]);
        huffman::decode(self.bytes, |byte| {
            if length < most {
                text.push(byte);
            }
            length += 1;
        })?;
        Some((length, text))
    }
}

/// What is left of a block.
struct Block<'a>(&'a [u8]);

impl<'a> Block<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    /// A number, which begins in the lower bits of `first`.
    fn number(&mut self, first: u8, bits: u32) -> Option<usize> {
        let most = (1_u32 << bits) - 1;
        let mut number = u32::from(first) & most;
        if number < most {
            return Some(number as usize);
        }
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            number = number.checked_add(u32::from(byte & 0x7f) << shift)?;
            if byte & 0x80 == 0 {
                return Some(number as usize);
            }
        }
        None
    }

    fn text(&mut self) -> Option<Text<'a>> {
        let first = self.byte()?;
        let length = self.number(first, 7)?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(Text { bytes, is_coded: first & 0x80 != 0 })
    }
}

impl Decoder {
    /// Passes the fields that are known to `take`. None where the block is none: then nothing is
    /// known any more of blocks before the next one.
    pub(super) fn decode(&mut self, block: &[u8], mut take: impl FnMut(Name, ValueRef<'_>)) -> Option<()> {
        let read = self.read(Block(block), &mut take);
        if read.is_none() {
            self.forget();
        }
        read
    }

    /// A block is missing.
    pub(super) fn forget(&mut self) {
        self.table = VecDeque::new();
        self.size = 0;
    }

    /// Fields that are kept.
    pub(super) fn kept(&self) -> usize {
        self.table.len()
    }

    fn read(&mut self, mut block: Block<'_>, take: &mut impl FnMut(Name, ValueRef<'_>)) -> Option<()> {
        while let Some(first) = block.byte() {
            if first & 0x80 != 0 {
                let index = block.number(first, 7)?;
                if let Some((name, value)) = self.field(index)? {
                    take(name, value);
                }
            } else if first & 0xe0 == 0x20 {
                self.most = block.number(first, 5)?.min(MOST_SIZE);
                self.evict(0);
            } else {
                let is_added = first & 0x40 != 0;
                let index = block.number(first, if is_added { 6 } else { 4 })?;
                self.literal(&mut block, index, is_added, take)?;
            }
        }
        Some(())
    }

    /// A field with its value, and perhaps its name.
    fn literal(
        &mut self,
        block: &mut Block<'_>,
        index: usize,
        is_added: bool,
        take: &mut impl FnMut(Name, ValueRef<'_>),
    ) -> Option<()> {
        let (name, name_bytes) = if index > 0 {
            // Of a name that is not known the length is neither: what is added is counted too small,
            // and kept longer than anybody refers to it.
            self.name(index).unwrap_or((Name::Other, 0))
        } else {
            let (length, name) = block.text()?.read(MOST_VALUE)?;
            (Name::of(&name), length)
        };
        let most = if name == Name::Other { 0 } else { MOST_VALUE };
        let (value_bytes, bytes) = block.text()?.read(most)?;
        let value = Value { bytes: &bytes[..], is_whole: bytes.len() == value_bytes };
        take(name, value);
        if is_added {
            let value = value.kept();
            self.add(Entry { name, name_bytes, value, size: name_bytes + value_bytes + FIELD_SIZE });
        }
        Some(())
    }

    fn add(&mut self, entry: Entry) {
        self.evict(entry.size);
        if entry.size <= self.most {
            self.size += entry.size;
            self.table.push_front(entry);
        }
    }

    /// Makes room.
    fn evict(&mut self, size: usize) {
        while self.size + size > self.most
            && let Some(oldest) = self.table.pop_back()
        {
            self.size -= oldest.size;
        }
    }

    /// The field of an index: none within where it is not known, none at all where there is no such
    /// index.
    #[expect(clippy::option_option, reason = "not known is not the same as no index")]
    fn field(&self, index: usize) -> Option<Option<(Name, ValueRef<'_>)>> {
        let at = index.checked_sub(1)?;
        if let Some((name, value)) = STATIC.get(at) {
            return Some(Some((Name::of(name), Value { bytes: *value, is_whole: true })));
        }
        Some(self.table.get(at - STATIC_FIELDS).map(|entry| (entry.name, entry.value.read())))
    }

    /// The name of an index, and its length; none where it is not known.
    fn name(&self, index: usize) -> Option<(Name, usize)> {
        let at = index.checked_sub(1)?;
        if let Some((name, _)) = STATIC.get(at) {
            return Some((Name::of(name), name.len()));
        }
        self.table.get(at - STATIC_FIELDS).map(|entry| (entry.name, entry.name_bytes))
    }
}

/// RFC 7541, appendix A.
const STATIC: [(&[u8], &[u8]); STATIC_FIELDS] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

#[cfg(test)]
mod tests;
