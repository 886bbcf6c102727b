//! `instr`, `replace`, `trim`, `ltrim`, `rtrim` and `unhex` with two arguments: SQLite's answers,
//! in time that grows with the length of the arguments. SQLite's own compare at each place of the
//! one with all of the other and look at no deadline meanwhile: 4 MB against 2 MB take minutes. The
//! tests hold them against SQLite's own.

use std::collections::{HashMap, HashSet};

use memchr::memmem;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Result};

use super::fold::Args;
use super::scalar::{self, Failure, Given, Lengths, Outcome, Poll, reserve};
use crate::memory::Reservation;

pub(super) fn register(conn: &Connection) -> Result<()> {
    scalar::register(conn, "instr", 2, instr)?;
    scalar::register(conn, "replace", 3, replace)?;
    for arity in [1, 2] {
        scalar::register(conn, "trim", arity, |args, _| trim(args, true, true))?;
        scalar::register(conn, "ltrim", arity, |args, _| trim(args, true, false))?;
        scalar::register(conn, "rtrim", arity, |args, _| trim(args, false, true))?;
    }
    scalar::register(conn, "unhex", 2, unhex)
}

/// A byte of a UTF-8 character behind its first.
fn continues(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// The place of the first occurrence, from 1, in characters, of blobs in bytes; 0 where there is
/// none.
#[allow(clippy::cast_possible_wrap)]
fn instr<'a>(args: &Args<'a>, _: Lengths) -> Outcome<'a> {
    let (haystack, needle) = (args.value(0), args.value(1));
    let at = match (haystack, needle) {
        (ValueRef::Null, _) | (_, ValueRef::Null) => return Ok(Given::Null),
        (ValueRef::Blob(haystack), ValueRef::Blob(needle)) => memmem::find(haystack, needle).map(|at| at + 1),
        _ => {
            let (Some(haystack), Some(needle)) = (args.text(0), args.text(1)) else { return Err(Failure::NoMemory) };
            // An occurrence within a character does not count, but at the start everything does.
            let at = match needle.first() {
                Some(first) if continues(*first) => haystack.starts_with(needle).then_some(0),
                _ => memmem::find(haystack, needle),
            };
            at.map(|at| match at {
                0 => 1,
                at => 1 + haystack[1..=at].iter().filter(|byte| !continues(**byte)).count(),
            })
        }
    };
    Ok(Given::Integer(at.unwrap_or(0) as i64))
}

fn replace<'a>(args: &Args<'a>, lengths: Lengths) -> Outcome<'a> {
    let (Some(text), Some(pattern)) = (args.text(0), args.text(1)) else { return Ok(Given::Null) };
    if pattern.first().is_none_or(|first| *first == 0) {
        return Ok(Given::Text(text));
    }
    let Some(by) = args.text(2) else { return Ok(Given::Null) };
    let finder = memmem::Finder::new(pattern);
    let Some(first) = finder.find(text) else { return Ok(Given::Text(text)) };
    let longest = text.len().max(lengths.value);
    let mut reservation = Reservation::default();
    let mut out = Vec::new();
    let mut copied = 0;
    let mut add = |piece: &[u8]| {
        if out.len() + piece.len() > longest {
            return Err(Failure::TooBig);
        }
        out.extend_from_slice(piece);
        Ok(())
    };
    let mut poll = Poll::new();
    reserve(&mut reservation, longest.min(text.len().saturating_mul(2)))?;
    let others = finder.find_iter(&text[first + pattern.len()..]).map(|at| at + first + pattern.len());
    for at in std::iter::once(first).chain(others) {
        poll.work(1 + by.len())?;
        add(&text[copied..at])?;
        add(by)?;
        copied = at + pattern.len();
    }
    add(&text[copied..])?;
    Ok(Given::Made(out))
}

/// The characters of a set as SQLite splits it: a byte, from 0xc0 on with all bytes behind it that
/// continue it. The set ends at a zero byte. Of two that fit at a place the one that comes first in
/// the set does.
struct Characters<'a> {
    /// The place in the set of each character of one byte.
    single: [Option<u32>; 256],
    longer: HashMap<&'a [u8], u32>,
    /// The lengths among them.
    lengths: Vec<usize>,
    reservation: Reservation,
}

impl<'a> Characters<'a> {
    fn of(set: &'a [u8]) -> std::result::Result<Self, Failure> {
        let mut characters = Self {
            single: [None; 256],
            longer: HashMap::new(),
            lengths: Vec::new(),
            reservation: Reservation::default(),
        };
        let mut poll = Poll::new();
        let mut rest = set;
        for place in 0.. {
            let Some(&first) = rest.first().filter(|first| **first != 0) else { break };
            let more = if first < 0xc0 { 0 } else { rest[1..].iter().take_while(|byte| continues(**byte)).count() };
            let (character, others) = rest.split_at(1 + more);
            rest = others;
            poll.work(8 + more)?;
            if more == 0 {
                characters.single[usize::from(first)].get_or_insert(place);
                continue;
            }
            characters.longer.entry(character).or_insert(place);
            if !characters.lengths.contains(&character.len()) {
                characters.lengths.push(character.len());
            }
            if characters.longer.len().is_power_of_two() {
                reserve(&mut characters.reservation, characters.longer.len() * 64)?;
            }
        }
        Ok(characters)
    }

    /// The length of the character that `take` finds at a place (`take` gives so many bytes there,
    /// if there are so many).
    fn fitting<'t>(
        &self,
        poll: &mut Poll,
        take: impl Fn(usize) -> Option<&'t [u8]>,
    ) -> std::result::Result<Option<usize>, Failure> {
        let one = take(1).and_then(|one| self.single[usize::from(*one.first()?)]);
        let mut best = one.map(|place| (place, 1));
        poll.work(1)?;
        for &length in &self.lengths {
            poll.work(length)?;
            if let Some(place) = take(length).and_then(|bytes| self.longer.get(bytes))
                && best.is_none_or(|(before, _)| *place < before)
            {
                best = Some((*place, length));
            }
        }
        Ok(best.map(|(_, length)| length))
    }
}

fn trim<'a>(args: &Args<'a>, left: bool, right: bool) -> Outcome<'a> {
    let Some(mut text) = args.text(0) else { return Ok(Given::Null) };
    let set = if args.len() == 1 { Some(&b" "[..]) } else { args.text(1) };
    let Some(set) = set else { return Ok(Given::Null) };
    let (characters, mut poll) = (Characters::of(set)?, Poll::new());
    while left && let Some(length) = characters.fitting(&mut poll, |length| text.get(..length))? {
        text = &text[length..];
    }
    while right
        && let Some(length) = characters.fitting(&mut poll, |length| text.get(text.len().checked_sub(length)?..))?
    {
        text = &text[..text.len() - length];
    }
    Ok(Given::Text(text))
}

/// The character at the start of `bytes`, as SQLite reads UTF-8, and what follows it.
pub(super) fn character(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (&first, mut rest) = bytes.split_first()?;
    if first < 0xc0 {
        return Some((first.into(), rest));
    }
    let mut character = u32::from(match first {
        0xc0..0xe0 => first & 0x1f,
        0xe0..0xf0 => first & 0x0f,
        0xf0..0xf8 => first & 0x07,
        0xf8..0xfc => first & 0x03,
        0xfc..0xfe => first & 0x01,
        _ => 0,
    });
    while let Some((&byte, others)) = rest.split_first().filter(|(byte, _)| continues(**byte)) {
        character = character << 6 | u32::from(byte & 0x3f);
        rest = others;
    }
    let is_wrong = character < 0x80 || character & 0xffff_f800 == 0xd800;
    Some((if is_wrong { 0xfffd } else { character }, rest))
}

/// The bytes that hexadecimal digits mean; between the pairs there may be characters of a set.
fn unhex<'a>(args: &Args<'a>, _: Lengths) -> Outcome<'a> {
    let (Some(text), Some(set)) = (args.text(0), args.text(1)) else { return Ok(Given::Null) };
    let (mut passed, mut poll, mut reservation) = (HashSet::new(), Poll::new(), Reservation::default());
    let mut rest = set;
    while let Some((character, others)) = character(rest) {
        poll.work(8)?;
        if passed.insert(character) && passed.len().is_power_of_two() {
            reserve(&mut reservation, passed.len() * 16)?;
        }
        rest = others;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(&first) = rest.first().filter(|first| **first != 0) {
        poll.work(8)?;
        if let Some(high) = digit(first) {
            let Some(low) = rest.get(1).copied().and_then(digit) else { return Ok(Given::Null) };
            out.push(high << 4 | low);
            rest = &rest[2..];
        } else {
            match character(rest) {
                Some((character, others)) if passed.contains(&character) => rest = others,
                _ => return Ok(Given::Null),
            }
        }
    }
    Ok(Given::Blob(out))
}
