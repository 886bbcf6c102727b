//! Instructions of aarch64 (Arm Architecture Reference Manual, "Branches, Exception generating and
//! System instructions", "Loads and Stores").

use super::{Pointer, Reference, Step, Sweep};

/// How far back the instruction is looked for that has written a jump's register.
const FAR_BACK: usize = 16;
/// How far ahead instructions are looked for that go on with an address.
const FAR_AHEAD: usize = 32;

/// Reads the code from one end to the other.
///
/// # Errors
/// What in it is no code, for people.
pub(super) fn sweep(code: &[u8], address: u64) -> Result<Sweep, String> {
    let (words, rest) = code.as_chunks::<4>();
    if !rest.is_empty() || !address.is_multiple_of(4) {
        return Err("its code is not of whole instructions".to_owned());
    }
    let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let mut sweep = Sweep { begins: vec![false; code.len()], ..Sweep::default() };
    for (number, (at, word)) in (address..).step_by(4).zip(words.iter().copied()).enumerate() {
        if word >> 16 == 0 {
            return Err(format!("what is at {at:#x} is no instruction")); // UDF, which data look like
        }
        references(at, word, words.get(number + 1..).unwrap_or_default(), &mut sweep.refers);
        if word != NOP {
            sweep.is_closed = is_end(word);
        }
        sweep.begins[number * 4] = true;
        sweep.calls |= word >> 26 == 0x25 || word & 0xffff_fc1f == 0xd63f_0000; // BL, BLR
        if let Some(step) = step(at, word, &words[number.saturating_sub(FAR_BACK)..number]) {
            sweep.steps.push((at, step));
        }
    }
    Ok(sweep)
}

/// Where it may go on, but for the next instruction.
fn step(at: u64, word: u32, before: &[u32]) -> Option<Step> {
    // RET, RETAA, RETAB
    if word & 0xffff_fc1f == 0xd65f_0000 || matches!(word, 0xd65f_0bff | 0xd65f_0fff) {
        return Some(Step::Return);
    }
    // BR, and BRAA, BRAB, BRAAZ, BRABZ
    if word & 0xffff_fc1f == 0xd61f_0000 || word & 0xfeff_f800 == 0xd61f_0800 {
        return Some(Step::Through(pointer((word >> 5) & 31, before)));
    }
    let to = |bits: u32, low: u32| {
        let words = i64::from(((word >> low) << (32 - bits)).cast_signed() >> (32 - bits));
        at.wrapping_add_signed(words * 4)
    };
    match word >> 24 {
        0x14..=0x17 => Some(Step::Jump { to: to(26, 0), always: true }), // B
        0x54 | 0x34 | 0x35 | 0xb4 | 0xb5 => Some(Step::Jump { to: to(19, 5), always: false }), // B.cond, CBZ, CBNZ
        0x36 | 0x37 | 0xb6 | 0xb7 => Some(Step::Jump { to: to(14, 5), always: false }), // TBZ, TBNZ
        _ => None,
    }
}

/// Where the register comes from that is jumped to, by what was done before.
fn pointer(register: u32, before: &[u32]) -> Pointer {
    for word in before.iter().rev() {
        if word >> 26 == 0x05 || word & 0xfe00_0000 == 0xd600_0000 {
            return Pointer::Unknown; // B, BR, BLR, RET: it was written elsewhere
        }
        if writes_beside(*word, register) {
            return Pointer::Unknown;
        }
        if word & 31 != register {
            continue;
        }
        return match word {
            // ADD (shifted or extended register): a table's address and an entry
            word if matches!(word & 0xffe0_0000, 0x8b00_0000 | 0x8b20_0000) => Pointer::Table,
            // LDR (immediate), of 64 bits: unsigned offset, unscaled, before or after
            word if word & 0xffc0_0000 == 0xf940_0000 || word & 0xffe0_0000 == 0xf840_0000 && word & 0xc00 != 0x800 => {
                Pointer::Word
            }
            // LDR (register), of 64 bits
            word if word & 0xffe0_0c00 == 0xf860_0800 => Pointer::WordOfTable(None),
            // MOV (register)
            word if word & 0xffe0_ffe0 == 0xaa00_03e0 => Pointer::Word,
            // STR, STP, CMP and their like do not write it
            word if word & 0x3b20_0c00 == 0x3800_0000 || word & 0x3bc0_0000 == 0x3900_0000 => continue,
            _ => Pointer::Unknown,
        };
    }
    Pointer::Unknown
}

const NOP: u32 = 0xd503_201f;

/// Whether an instruction never goes on to the next, or is a call, which may not.
fn is_end(word: u32) -> bool {
    let is_branch = matches!(word >> 26, 0x05 | 0x25); // B, BL
    let is_through = word & 0xfe00_0000 == 0xd600_0000; // BR, BLR, RET
    is_branch || is_through || word & 0xffe0_001f == 0xd420_0000 // BRK
}

/// Whether a load writes a register that is not its first: LDP, and the address of those that change it.
fn writes_beside(word: u32, register: u32) -> bool {
    let (second, base) = ((word >> 10) & 31, (word >> 5) & 31);
    let is_pair = word & 0x3a00_0000 == 0x2800_0000;
    let changes_base = word & 0x3a80_0000 == 0x2880_0000 || word & 0x3b20_0400 == 0x3800_0400;
    is_pair && word & 0x0040_0000 != 0 && second == register || changes_base && base == register
}

/// The addresses that are made or read by an instruction, with those `after` it.
fn references(from: u64, word: u32, after: &[u32], refers: &mut Vec<Reference>) {
    let register = word & 31;
    // LDR (literal)
    if word & 0x3b00_0000 == 0x1800_0000 {
        let words = i64::from((word << 8).cast_signed() >> 13);
        return refers.push(Reference { from, to: from.wrapping_add_signed(words * 4), reads: true });
    }
    // ADR, ADRP
    if word & 0x1f00_0000 != 0x1000_0000 {
        return;
    }
    let number = i64::from(((word >> 5 & 0x7_ffff) << 13).cast_signed() >> 11 | (word >> 29 & 3).cast_signed());
    let after = after.iter().take(FAR_AHEAD);
    if word >> 31 == 0 {
        // What a distance is added to for a jump is a place in the code.
        let is_base = |word: &&u32| {
            matches!(*word & 0xffe0_0000, 0x8b00_0000 | 0x8b20_0000)
                && ((*word >> 5) & 31 == register || (*word >> 16) & 31 == register)
        };
        let is_read = |word: &&u32| *word & 0x0a00_0000 == 0x0800_0000 && (*word >> 5) & 31 == register;
        if !matches!(after.clone().find(|word| is_base(word) || is_read(word)), Some(word) if is_base(&word)) {
            refers.push(Reference { from, to: from.wrapping_add_signed(number), reads: false });
        }
        return;
    }
    let page = (from & !0xfff).wrapping_add_signed(number << 12);
    for word in after.filter(|word| (*word >> 5) & 31 == register) {
        let within = u64::from(word >> 10 & 0xfff);
        // ADD (immediate), and what loads and stores at an unsigned offset
        if word & 0xffc0_0000 == 0x9100_0000 {
            refers.push(Reference { from, to: page + within, reads: false });
        } else if word & 0x3b00_0000 == 0x3900_0000 {
            let scale = if word & 0x0480_0000 == 0x0480_0000 { 4 } else { word >> 30 };
            refers.push(Reference { from, to: page + (within << scale), reads: true });
        }
    }
}
