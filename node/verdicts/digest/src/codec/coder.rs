//! Values to bytes and back: one pass either writes what it is given, or reads and bounds it.
//!
//! Each method takes the value to write and returns the value in the bytes, so that a
//! layout is described once for both ways. What a reader would refuse a writer refuses as well.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock};

use super::{DecodeError, LARGEST, LONGEST_NAME, NAMES, fold, unfold};

/// [`NAMES`], shared by all digests.
static KNOWN: LazyLock<[Arc<str>; NAMES.len()]> = LazyLock::new(|| NAMES.map(Arc::from));

pub(super) type Coded<T> = Result<T, DecodeError>;

/// A pass over a digest.
pub(super) struct Coder<'a> {
    /// What is left to read; none where it writes.
    rest: Option<&'a [u8]>,
    written: Vec<u8>,
}

impl<'a> Coder<'a> {
    pub(super) fn writing() -> Self {
        Self { rest: None, written: Vec::new() }
    }

    pub(super) fn reading(bytes: &'a [u8]) -> Self {
        Self { rest: Some(bytes), written: Vec::new() }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.written
    }

    /// Everything was read.
    pub(super) fn finish(&self) -> Coded<()> {
        if self.rest.is_none_or(<[u8]>::is_empty) { Ok(()) } else { Err(DecodeError::Length) }
    }

    /// So many bytes as they are; gives those that were read.
    fn raw(&mut self, bytes: &[u8], length: usize) -> Coded<&'a [u8]> {
        let Some(rest) = &mut self.rest else {
            self.written.extend(bytes);
            return Ok(&[]);
        };
        let (head, tail) = rest.split_at_checked(length).ok_or(DecodeError::Length)?;
        *rest = tail;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self, bytes: [u8; N]) -> Coded<[u8; N]> {
        let read = self.raw(&bytes, N)?;
        Ok(read.try_into().unwrap_or(bytes))
    }

    pub(super) fn byte(&mut self, byte: u8) -> Coded<u8> {
        self.array([byte]).map(|[byte]| byte)
    }

    /// Flags in a byte, the first lowest.
    pub(super) fn flags(&mut self, flags: [bool; 8]) -> Coded<[bool; 8]> {
        let bits = self.byte(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)))?;
        Ok(std::array::from_fn(|place| bits >> place & 1 != 0))
    }

    /// Seven bits a byte, lowest first.
    pub(super) fn unsigned(&mut self, value: u64) -> Coded<u64> {
        if self.rest.is_none() {
            let mut left = value;
            while left >= 0x80 {
                self.written.push(left as u8 | 0x80);
                left >>= 7;
            }
            self.written.push(left as u8);
            return Ok(value);
        }
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(0)?;
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Value("number"))
    }

    pub(super) fn small(&mut self, what: &'static str, value: u32) -> Coded<u32> {
        u32::try_from(self.unsigned(value.into())?).map_err(|_| DecodeError::Value(what))
    }

    /// A place in a list.
    pub(super) fn place(&mut self, what: &'static str, place: usize) -> Coded<usize> {
        Ok(self.small(what, u32::try_from(place).unwrap_or(u32::MAX))? as usize)
    }

    /// A signed number of bounded magnitude.
    pub(super) fn time(&mut self, what: &'static str, value: i64) -> Coded<i64> {
        let value = unfold(self.unsigned(fold(value))?);
        if value.unsigned_abs() <= 2 * LARGEST { Ok(value) } else { Err(DecodeError::Value(what)) }
    }

    /// The same as the difference to another.
    pub(super) fn time_to(&mut self, what: &'static str, value: i64, to: i64) -> Coded<i64> {
        let value = self.time(what, value.wrapping_sub(to))?.wrapping_add(to);
        if value.unsigned_abs() <= LARGEST { Ok(value) } else { Err(DecodeError::Value("time")) }
    }

    /// A length of time, as the difference to another.
    pub(super) fn length_to(&mut self, value: u64, to: i64) -> Coded<u64> {
        let length = self.time_to("duration", value.cast_signed(), to)?;
        u64::try_from(length).map_err(|_| DecodeError::Value("duration"))
    }

    /// A sequence number, as the difference to another.
    pub(super) fn number_to(&mut self, value: u64, to: u64) -> Coded<u64> {
        let value = to.wrapping_add_signed(unfold(self.unsigned(fold(value.wrapping_sub(to).cast_signed()))?));
        if value <= LARGEST { Ok(value) } else { Err(DecodeError::Value("number of a call")) }
    }

    /// The entries of a list, each of which takes at least so many bytes.
    pub(super) fn list<T: Default>(
        &mut self,
        list: &mut Vec<T>,
        least: u64,
        item: impl FnMut(&mut Self, &mut [T], usize) -> Coded<()>,
    ) -> Coded<()> {
        let count = self.unsigned(list.len() as u64)?;
        self.items(list, count, least, item)
    }

    /// The same of a list whose length is known. `item` has the entries so far and the place of the
    /// next.
    pub(super) fn items<T: Default>(
        &mut self,
        list: &mut Vec<T>,
        count: u64,
        least: u64,
        mut item: impl FnMut(&mut Self, &mut [T], usize) -> Coded<()>,
    ) -> Coded<()> {
        if self.rest.is_some_and(|rest| count.saturating_mul(least) > rest.len() as u64) {
            return Err(DecodeError::Length);
        }
        for place in 0..usize::try_from(count).unwrap_or(0) {
            if self.rest.is_some() {
                list.push(T::default());
            }
            item(self, list, place)?;
        }
        Ok(())
    }

    pub(super) fn address(&mut self, address: IpAddr) -> Coded<IpAddr> {
        let (length, octets) = match address {
            IpAddr::V4(v4) => (4, [v4.octets(); 4].concat()),
            IpAddr::V6(v6) => (16, v6.octets().to_vec()),
        };
        let length = self.byte(length)?;
        let read = match length {
            4 | 16 => self.raw(&octets[..usize::from(length)], length.into())?,
            _ => return Err(DecodeError::Value("address")),
        };
        let v4 = <[u8; 4]>::try_from(read).map(|octets| Ipv4Addr::from(octets).into());
        let v6 = <[u8; 16]>::try_from(read).map(IpAddr::from);
        Ok(v4.or(v6).unwrap_or(address))
    }

    /// A name: 0 none, 1 a text, else its place in the table.
    pub(super) fn name(&mut self, name: Option<&Arc<str>>) -> Coded<Option<Arc<str>>> {
        let place = |name: &Arc<str>| NAMES.iter().position(|func| *func == &**name).map_or(1, |place| place as u8 + 2);
        Ok(match self.byte(name.map_or(0, place))? {
            0 => None,
            1 => Some(self.text(name.map_or("", |name| name))?),
            code => Some(Arc::clone(KNOWN.get(usize::from(code) - 2).ok_or(DecodeError::Value("function"))?)),
        })
    }

    /// A text; one that is too long is cut.
    pub(super) fn text(&mut self, text: &str) -> Coded<Arc<str>> {
        let end = (0..=text.len().min(LONGEST_NAME)).rfind(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let text = &text[..end];
        let length = self.unsigned(text.len() as u64)?;
        let length = usize::try_from(length).ok().filter(|length| *length <= LONGEST_NAME);
        let read = self.raw(text.as_bytes(), length.ok_or(DecodeError::Value("name"))?)?;
        let read = std::str::from_utf8(read).map_err(|_| DecodeError::Value("name"))?;
        Ok(if self.rest.is_some() { read } else { text }.into())
    }
}
