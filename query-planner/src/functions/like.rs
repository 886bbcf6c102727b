//! `LIKE` and `GLOB`: SQLite's matching, step by step, with looks at the question's stop in
//! between: a pattern against a long text takes as many steps as the product of their lengths, and
//! SQLite's own looks at no deadline meanwhile.

use rusqlite::{Connection, Result};

use super::fold::Args;
use super::scalar::{self, Failure, Given, Lengths, Outcome, Poll};
use super::text::character;

pub(super) fn register(conn: &Connection) -> Result<()> {
    for arity in [2, 3] {
        scalar::register(conn, "like", arity, |args, lengths| matched(args, lengths, LIKE))?;
    }
    scalar::register(conn, "glob", 2, |args, lengths| matched(args, lengths, GLOB))
}

/// What is special in a pattern; 0 is nothing.
#[derive(Clone, Copy)]
struct Wildcards {
    any: u32,
    one: u32,
    /// Begins a set of characters.
    set: u32,
    /// Makes the next character an ordinary one.
    escape: u32,
    /// Letters of ASCII in either case are the same.
    folds: bool,
}

const LIKE: Wildcards = Wildcards { any: '%' as u32, one: '_' as u32, set: 0, escape: 0, folds: true };
const GLOB: Wildcards = Wildcards { any: '*' as u32, one: '?' as u32, set: '[' as u32, escape: 0, folds: false };

/// How a match ends.
#[derive(Clone, Copy, PartialEq)]
enum Match {
    Yes,
    No,
    /// Not even if what a wildcard before stands for were longer.
    Never,
}

fn matched<'a>(args: &Args<'a>, lengths: Lengths, mut wildcards: Wildcards) -> Outcome<'a> {
    let pattern = args.text(0);
    if pattern.is_some_and(|pattern| pattern.len() > lengths.pattern) {
        return Err(Failure::Message("LIKE or GLOB pattern too complex"));
    }
    if args.len() == 3 {
        let Some(escape) = args.text(2) else { return Ok(Given::Null) };
        wildcards.escape = match character(before_zero(escape)) {
            // SQLite counts here as it splits text: what continues a character belongs to it.
            Some((character, [])) => character,
            _ => return Err(Failure::Message("ESCAPE expression must be a single character")),
        };
        if wildcards.escape == wildcards.any {
            wildcards.any = 0;
        }
        if wildcards.escape == wildcards.one {
            wildcards.one = 0;
        }
    }
    let (Some(pattern), Some(text)) = (pattern, args.text(1)) else { return Ok(Given::Null) };
    let outcome = compare(before_zero(pattern), before_zero(text), &wildcards, &mut Poll::new())?;
    Ok(Given::Integer((outcome == Match::Yes).into()))
}

/// Both end where the first zero byte is.
fn before_zero(text: &[u8]) -> &[u8] {
    memchr::memchr(0, text).map_or(text, |at| &text[..at])
}

/// Reads a character; 0 at the end.
#[inline]
fn read(text: &mut &[u8]) -> u32 {
    match text.split_first() {
        Some((&byte, rest)) if byte < 0x80 => {
            *text = rest;
            byte.into()
        }
        Some(_) => {
            let (character, rest) = character(text).unwrap_or((0, &[]));
            *text = rest;
            character
        }
        None => 0,
    }
}

fn folded(character: u32) -> u32 {
    if (u32::from(b'A')..=u32::from(b'Z')).contains(&character) { character + 32 } else { character }
}

fn compare(
    mut pattern: &[u8],
    mut text: &[u8],
    wildcards: &Wildcards,
    poll: &mut Poll,
) -> std::result::Result<Match, Failure> {
    let Wildcards { any, one, set, escape, folds } = *wildcards;
    loop {
        poll.work(1)?;
        let mut wanted = read(&mut pattern);
        if wanted == 0 {
            return Ok(if text.is_empty() { Match::Yes } else { Match::No });
        }
        let mut is_escaped = false;
        if wanted == any {
            return after_any(pattern, text, wildcards, poll);
        } else if wanted == escape {
            wanted = read(&mut pattern);
            if wanted == 0 {
                return Ok(Match::No);
            }
            is_escaped = true;
        } else if wanted == set {
            let found = read(&mut text);
            if found == 0 || !of_set(&mut pattern, found, poll)? {
                return Ok(Match::No);
            }
            continue;
        }
        let found = read(&mut text);
        let same = wanted == found || (folds && wanted < 0x80 && found < 0x80 && folded(wanted) == folded(found));
        let is_any_one = wanted == one && !is_escaped && found != 0;
        if !(same || is_any_one) {
            return Ok(Match::No);
        }
    }
}

/// Goes on behind a wildcard for any number of characters.
fn after_any(
    mut pattern: &[u8],
    mut text: &[u8],
    wildcards: &Wildcards,
    poll: &mut Poll,
) -> std::result::Result<Match, Failure> {
    let Wildcards { any, one, set, escape, folds } = *wildcards;
    let (mut wanted, from) = loop {
        poll.work(1)?;
        let from = pattern;
        let next = read(&mut pattern);
        if next == 0 || (next != any && next != one) {
            break (next, from);
        }
        if next == one && read(&mut text) == 0 {
            return Ok(Match::Never);
        }
    };
    if wanted == 0 {
        return Ok(Match::Yes);
    }
    if wanted == escape {
        wanted = read(&mut pattern);
        if wanted == 0 {
            return Ok(Match::Never);
        }
    } else if wanted == set {
        while !text.is_empty() {
            poll.work(8)?;
            let outcome = compare(from, text, wildcards, poll)?;
            if outcome != Match::No {
                return Ok(outcome);
            }
            read(&mut text);
        }
        return Ok(Match::Never);
    }
    loop {
        let skipped = match u8::try_from(wanted) {
            Ok(byte) if byte < 0x80 && folds => {
                memchr::memchr2(byte.to_ascii_lowercase(), byte.to_ascii_uppercase(), text)
            }
            Ok(byte) if byte < 0x80 => memchr::memchr(byte, text),
            _ => {
                let start = text;
                loop {
                    poll.work(1)?;
                    let rest = text;
                    match read(&mut text) {
                        0 => break None,
                        found if found == wanted => break Some(start.len() - rest.len()),
                        _ => {}
                    }
                }
                .inspect(|_| text = start)
            }
        };
        let Some(skipped) = skipped else { return Ok(Match::Never) };
        poll.work(8 + skipped / 16)?;
        text = &text[skipped..];
        read(&mut text);
        let outcome = compare(pattern, text, wildcards, poll)?;
        if outcome != Match::No {
            return Ok(outcome);
        }
    }
}

/// Whether a character is of the set whose inside begins here; reads to its end.
fn of_set(pattern: &mut &[u8], found: u32, poll: &mut Poll) -> std::result::Result<bool, Failure> {
    const CLOSE: u32 = ']' as u32;
    let (mut seen, mut inverted, mut before) = (false, false, 0);
    let mut next = read(pattern);
    if next == u32::from(b'^') {
        inverted = true;
        next = read(pattern);
    }
    if next == CLOSE {
        seen = found == CLOSE;
        next = read(pattern);
    }
    while next != 0 && next != CLOSE {
        poll.work(1)?;
        let is_range =
            next == u32::from(b'-') && before > 0 && pattern.first().is_some_and(|byte| u32::from(*byte) != CLOSE);
        if is_range {
            next = read(pattern);
            seen |= (before..=next).contains(&found);
            before = 0;
        } else {
            seen |= found == next;
            before = next;
        }
        next = read(pattern);
    }
    Ok(next != 0 && seen != inverted)
}
