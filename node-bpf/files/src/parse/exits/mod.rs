//! The ends of a function: its return instructions and the jumps to another function in tail
//! position. Probes there measure durations without a return probe, whose changed return address
//! would stop an exception on its way through the function and end the program.
//!
//! A probe replaces an instruction. One that is put between two instructions, or into data, breaks the
//! program: a function whose code is not understood as a whole has no ends, but a reason. `x86` and
//! `aarch64` read instructions; which code belongs to a function is known to `names`.

mod aarch64;
mod x86;

use std::collections::HashSet;
use std::ops::Range;

use object::Architecture;

use crate::question::{Ends, NoEnds};

/// What matters of a piece of code.
#[derive(Debug, Default)]
struct Sweep {
    /// For each byte whether an instruction begins there.
    begins: Vec<bool>,
    /// Where it may go on elsewhere, or end, by address.
    steps: Vec<(u64, Step)>,
    /// It calls something.
    calls: bool,
    /// What it reads, or takes the address of.
    refers: Vec<Reference>,
    /// Its last instruction never goes on behind it.
    is_closed: bool,
}

/// An instruction has an address in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reference {
    from: u64,
    to: u64,
    /// It reads there, and does not only take the address.
    reads: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Return,
    /// A jump, if a condition holds or always.
    Jump {
        to: u64,
        always: bool,
    },
    /// A jump through a register or memory.
    Through(Pointer),
}

/// Where a jump's target comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pointer {
    /// A table of a `switch`: distances from the table.
    Table,
    /// A word of its own: a function, in C or virtual.
    Word,
    /// A word of a table: labels of a `switch`, or functions. Where that is, if the code says it.
    WordOfTable(Option<u64>),
    Unknown,
}

/// The code at an address that a function jumps to, outside of what is known to be its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target<'d> {
    /// Another function begins there.
    Function,
    /// A part of this function, and whether its symbol says so: else it may be another function without one,
    /// if it is jumped to at its beginning.
    Part { address: u64, code: &'d [u8], is_certain: bool },
    /// That cannot be told.
    Unknown,
}

/// What is known of a file beyond a function's own code.
pub(super) trait Around<'d> {
    fn target(&self, address: u64) -> Target<'d>;
    /// Functions begin there, by symbols; within a range, ascending.
    fn starts(&self, within: &Range<u64>) -> &[u64];
    /// Symbols say that data begin there; the first one within a range.
    fn data(&self, within: &Range<u64>) -> Option<u64>;
    /// Whether the stack at an instruction is as at the function's entry; none where unwind tables do not
    /// say it.
    fn stack_is_as_at_entry(&self, address: u64) -> Option<bool>;
    /// The word of data at an address.
    fn word(&self, address: u64) -> Option<u64>;
}

/// Most pieces of code that one function has, and most ends.
const MOST_PIECES: usize = 16;
const MOST_ENDS: usize = 256;

struct Piece {
    range: Range<u64>,
    sweep: Sweep,
}

impl Piece {
    fn read(architecture: Architecture, address: u64, code: &[u8]) -> Result<Piece, String> {
        let range = address..address.saturating_add(code.len() as u64);
        let sweep = match architecture {
            Architecture::X86_64 => x86::sweep(code, address),
            Architecture::Aarch64 => aarch64::sweep(code, address),
            _ => Err("code of this architecture is not read".to_owned()),
        }?;
        if !sweep.is_closed {
            return Err(format!("its code goes on behind its end at {:#x}", range.end));
        }
        if sweep.steps.iter().filter(|(_, step)| *step == Step::Return).count() > MOST_ENDS {
            return Err(format!("it has more than {MOST_ENDS} ends"));
        }
        Ok(Piece { range, sweep })
    }

    fn begins_at(&self, address: u64) -> bool {
        let into = address.checked_sub(self.range.start).and_then(|into| usize::try_from(into).ok());
        into.and_then(|into| self.sweep.begins.get(into)).copied().unwrap_or_default()
    }
}

/// The ends of a function with this code, whose entry is probed at `probed` (its first address, or a
/// little later).
///
/// # Errors
/// Why it is not certain which they are, for people.
pub(super) fn of<'d>(
    architecture: Architecture,
    (address, code): (u64, &'d [u8]),
    probed: u64,
    around: &impl Around<'d>,
) -> Result<Ends, NoEnds> {
    if code.is_empty() {
        return Err("its size is not known, so its code cannot be followed".to_owned().into());
    }
    let mut pieces = vec![Piece::read(architecture, address, code)?];
    let (mut at, mut returns, mut jumps, mut over) = (0, vec![], vec![], vec![]);
    // Jumps to code that is a part of it only if another jump says so, and where that begins.
    let mut perhaps: Vec<(u64, u64)> = vec![];
    let mut perhaps_parts: HashSet<u64> = HashSet::new();
    let mut through: Vec<(u64, Pointer)> = vec![];
    while at < pieces.len() {
        for (from, step) in pieces[at].sweep.steps.clone() {
            if let Step::Jump { to, always: true } = step {
                over.push((from, to));
            }
            match step {
                Step::Return => returns.push(from),
                Step::Through(pointer) => through.push((from, pointer)),
                Step::Jump { to, .. } if pieces.iter().any(|piece| piece.range.contains(&to)) => {}
                Step::Jump { to, always } => match around.target(to) {
                    Target::Function if always => jumps.push(from),
                    Target::Function => {
                        return Err(format!("at {from:#x} it goes on in another function if a condition holds").into());
                    }
                    Target::Part { address, is_certain: false, .. }
                        if always && to == address && perhaps_parts.contains(&address) =>
                    {
                        perhaps.push((from, address));
                    }
                    Target::Part { address, code, is_certain } => {
                        let must_be = is_certain || !always || to != address;
                        match Piece::read(architecture, address, code) {
                            Ok(piece) if must_be || goes_back(&piece, &pieces) => pieces.push(piece),
                            Err(reason) if must_be => return Err(reason.into()),
                            _ => {
                                perhaps_parts.insert(address);
                                perhaps.push((from, address));
                            }
                        }
                    }
                    Target::Unknown => return Err(format!("where it jumps to at {from:#x} is not known").into()),
                },
            }
            if pieces.len() + perhaps_parts.len() > MOST_PIECES {
                return Err(format!("its code is in more than {MOST_PIECES} pieces").into());
            }
        }
        at += 1;
    }
    for (from, to) in perhaps {
        if !pieces.iter().any(|piece| piece.range.contains(&to)) {
            jumps.push(from); // another function
        }
    }
    // Some compilers' tables do not say that a stack is given back.
    let is_said = |at: u64| around.stack_is_as_at_entry(at) != Some(false);
    let stacks_are_known = returns.iter().all(|at| is_said(*at));
    for (from, pointer) in through {
        if leaves(from, pointer, &pieces, around, stacks_are_known)? {
            jumps.push(from);
        }
    }
    check(&pieces, address..=probed, around)?;
    if returns.is_empty() && jumps.is_empty() {
        return Err("no end is found in its code".to_owned().into());
    }
    if returns.len() + jumps.len() > MOST_ENDS {
        return Err(format!("it has {} ends; {MOST_ENDS} can be probed", returns.len() + jumps.len()).into());
    }
    if returns.is_empty() && !pieces.iter().any(|piece| piece.sweep.calls) {
        return Err("it only hands over to another function: name that".to_owned().into());
    }
    for ends in [&mut returns, &mut jumps] {
        ends.sort_unstable();
        ends.dedup();
    }
    over.retain(|(from, _)| jumps.binary_search(from).is_ok());
    Ok(Ends { returns, jumps, over })
}

/// Whether a jump through a pointer leaves the function.
fn leaves<'d>(
    from: u64,
    pointer: Pointer,
    pieces: &[Piece],
    around: &impl Around<'d>,
    stacks_are_known: bool,
) -> Result<bool, String> {
    // A call in tail position takes what its caller has put on the stack.
    if pointer == Pointer::Table || stacks_are_known && around.stack_is_as_at_entry(from) == Some(false) {
        return Ok(false);
    }
    match pointer {
        Pointer::Table => Ok(false),
        Pointer::Word => Ok(true),
        Pointer::WordOfTable(Some(table))
            if around.word(table).is_some_and(|word| pieces.iter().any(|piece| piece.begins_at(word))) =>
        {
            Ok(false)
        }
        Pointer::WordOfTable(Some(table))
            if around.word(table).is_some_and(|word| matches!(around.target(word), Target::Function)) =>
        {
            Ok(true)
        }
        Pointer::WordOfTable(_) | Pointer::Unknown => {
            Err(format!("whether the jump at {from:#x} leaves it is not known"))
        }
    }
}

/// Whether a piece of code jumps back into others, as parts of a function do.
fn goes_back(piece: &Piece, pieces: &[Piece]) -> bool {
    let is_back = |to: u64| pieces.iter().any(|known| known.range.contains(&to) && known.range.start != to);
    piece.sweep.steps.iter().any(|(_, step)| matches!(step, Step::Jump { to, .. } if is_back(*to)))
}

/// That instructions are where they seem to be, and the entry is passed once in a call.
fn check<'d>(pieces: &[Piece], entry: std::ops::RangeInclusive<u64>, around: &impl Around<'d>) -> Result<(), NoEnds> {
    for piece in pieces {
        let data = |at: u64| format!("data may lie within its code at {at:#x}");
        if let Some(at) = around.data(&piece.range) {
            return Err(data(at).into());
        }
        for Reference { to, reads, .. } in &piece.sweep.refers {
            let is_itself = to == entry.start() && !reads;
            if !is_itself && pieces.iter().any(|piece| piece.range.contains(to)) {
                return Err(data(*to).into());
            }
        }
        let between = |to: u64| format!("at {to:#x} its code is not read as the processor reads it");
        for start in around.starts(&piece.range) {
            if !piece.begins_at(*start) {
                return Err(between(*start).into());
            }
        }
        for (_, step) in &piece.sweep.steps {
            let Step::Jump { to, .. } = step else { continue };
            if entry.contains(to) {
                let reason = "it jumps to its own beginning, so that not each entry is a call".to_owned();
                return Err(NoEnds { reason, entries_are_calls: false });
            }
            if pieces.iter().any(|piece| piece.range.contains(to) && !piece.begins_at(*to)) {
                return Err(between(*to).into());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
