//! The ends of a function: its return instructions and the jumps to another function in tail
//! position. Probes there measure durations without a return probe, whose changed return address
//! would stop an exception on its way through the function and end the program.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use object::Architecture;

/// The ends of a piece of code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ends {
    /// Addresses of instructions that return, or jump to a function through a pointer.
    pub(super) returns: Vec<u64>,
    /// Jumps out of it: where each is, and where it goes.
    pub(super) jumps: Vec<(u64, u64)>,
}

/// Finds the ends of the code at `address`.
///
/// A jump through a register is a `switch` where the register was last written by an addition, of
/// its table's address and an entry; else it is a call in tail position, as of a virtual function.
pub(super) fn ends(architecture: Architecture, code: &[u8], address: u64) -> Ends {
    let inside = address..address.saturating_add(code.len() as u64);
    let mut ends = Ends::default();
    let mut jump = |at: u64, target: u64| {
        if !inside.contains(&target) {
            ends.jumps.push((at, target));
        }
    };
    match architecture {
        Architecture::X86_64 => {
            let code = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
            let mut returns = vec![];
            // the register that was last written by an addition
            let mut added = Register::None;
            for instruction in code.into_iter().take_while(|instruction| !instruction.is_invalid()) {
                let register = instruction.op0_register();
                match (instruction.mnemonic(), instruction.op0_kind()) {
                    (Mnemonic::Ret, _) => returns.push(instruction.ip()),
                    (Mnemonic::Jmp, OpKind::NearBranch64) => jump(instruction.ip(), instruction.near_branch_target()),
                    (Mnemonic::Jmp, OpKind::Memory) if through_a_pointer(&instruction) => {
                        returns.push(instruction.ip())
                    }
                    (Mnemonic::Jmp, OpKind::Register) if register != added => returns.push(instruction.ip()),
                    (Mnemonic::Add, OpKind::Register) => added = register,
                    (mnemonic, OpKind::Register) if register == added && !only_reads(mnemonic) => {
                        added = Register::None;
                    }
                    _ => {}
                }
            }
            ends.returns = returns;
        }
        Architecture::Aarch64 => {
            let mut returns = vec![];
            let mut before = 0;
            for (at, bytes) in (address..).step_by(4).zip(code.chunks_exact(4)) {
                let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                if is_aarch64_return(word) || is_aarch64_tail_jump(before, word) {
                    returns.push(at);
                } else if let Some(target) = aarch64_jump(at, word) {
                    jump(at, target);
                }
                before = word;
            }
            ends.returns = returns;
        }
        _ => {}
    }
    ends
}

/// Most pieces of code that one function is followed into, and most ends it has.
const MOST_PIECES: usize = 16;
const MOST_ENDS: usize = 256;

/// The ends of a function that begins as `first`. If it goes on by a jump, the ends of the target
/// are its own (the stack is as at its entry): a function that only calls another in tail position
/// has no others. `piece` returns the address and code of the function, or the part of one, around
/// an address, where that is known; otherwise `is_function` decides whether a function begins
/// there, and then the jump itself is the end.
pub(super) fn follow<'d>(
    architecture: Architecture,
    first: (u64, &'d [u8]),
    piece: impl Fn(u64) -> Option<(u64, &'d [u8])>,
    is_function: impl Fn(u64) -> bool,
) -> Vec<u64> {
    let (mut pieces, mut at, mut found) = (vec![first], 0, vec![]);
    while let Some(&(address, code)) = pieces.get(at) {
        at += 1;
        let Ends { returns, jumps } = ends(architecture, code, address);
        found.extend(returns);
        for (from, target) in jumps {
            let within = |(address, code): &(u64, &[u8])| {
                (*address..address.saturating_add(code.len() as u64)).contains(&target)
            };
            if pieces.iter().any(within) {
                continue;
            }
            match piece(target).filter(|_| pieces.len() < MOST_PIECES) {
                Some(piece) => pieces.push(piece),
                None if is_function(target) => found.push(from),
                None => {}
            }
        }
    }
    if found.len() <= MOST_ENDS {
        found.sort_unstable();
        found.dedup();
        return found;
    }
    let Ends { mut returns, jumps } = ends(architecture, first.1, first.0);
    returns.extend(jumps.iter().filter(|(_, target)| is_function(*target)).map(|(at, _)| *at));
    returns
}

/// `jmp [rip+…]` or `jmp [reg+…]`: a function's address in memory. A table of a `switch` has an
/// index.
fn through_a_pointer(instruction: &Instruction) -> bool {
    instruction.memory_base() != Register::None && instruction.memory_index() == Register::None
}

/// Instructions that leave their first operand as it is.
fn only_reads(mnemonic: Mnemonic) -> bool {
    matches!(mnemonic, Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Call | Mnemonic::Jmp)
}

/// BR, but for one whose register the instruction before it has added up: ADD (extended or shifted
/// register), as a `switch` does.
fn is_aarch64_tail_jump(before: u32, word: u32) -> bool {
    let adds = matches!(before & 0xffe0_0000, 0x8b00_0000 | 0x8b20_0000);
    word & 0xffff_fc1f == 0xd61f_0000 && !(adds && before & 31 == (word >> 5) & 31)
}

/// RET, RETAA, RETAB (Arm Architecture Reference Manual, "Unconditional branch (register)").
fn is_aarch64_return(word: u32) -> bool {
    word & 0xffff_fc1f == 0xd65f_0000 || matches!(word, 0xd65f_0bff | 0xd65f_0fff)
}

/// The target of B: a signed offset of 26 bits, in words.
fn aarch64_jump(at: u64, word: u32) -> Option<u64> {
    (word >> 26 == 0x05).then(|| {
        let words = i64::from((word << 6).cast_signed() >> 6);
        at.wrapping_add_signed(words * 4)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_and_jumps_to_other_functions() {
        // test edi,edi; je +1; ret; jmp 0x2000; jmp 0x1000; jmp [rip+0x10]; jmp [rax+8]; jmp
        // [rax*8+0x100]; jmp rax; ret 8
        let code = [
            0x85, 0xff, 0x74, 0x01, 0xc3, 0xe9, 0xf6, 0x0f, 0, 0, 0xe9, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x25, 0x10, 0, 0,
            0, 0xff, 0x60, 0x08, 0xff, 0x24, 0xc5, 0, 1, 0, 0, 0xff, 0xe0, 0xc2, 0x08, 0,
        ];
        let is_function = |target| target == 0x2000;
        let at = follow(Architecture::X86_64, (0x1000, &code), |_| None, is_function);
        assert_eq!(at, [0x1004, 0x1005, 0x100f, 0x1015, 0x101f, 0x1021]);
        let at = follow(Architecture::X86_64, (0x1000, &code), |_| None, |_| false);
        assert_eq!(at, [0x1004, 0x100f, 0x1015, 0x101f, 0x1021], "a jump to who knows where is no end");
        // nop; ret; jmp 0x1000
        let other = [0x90, 0xc3, 0xe9, 0xfa, 0xef, 0xff, 0xff];
        let piece = |target| (target == 0x2000).then_some((0x1fff, other.as_slice()));
        let at = follow(Architecture::X86_64, (0x1000, &code), piece, is_function);
        assert_eq!(at, [0x1004, 0x100f, 0x1015, 0x101f, 0x1021, 0x2000], "it ends where that ends");
    }

    #[test]
    fn a_switch_is_no_end_and_a_virtual_function_in_tail_position_is_one() {
        let at = |code: &[u8]| follow(Architecture::X86_64, (0x1000, code), |_| None, |_| false);
        // movsxd rax,[rdx+rax*4]; add rax,rdx; jmp rax
        assert_eq!(at(&[0x48, 0x63, 0x04, 0x82, 0x48, 0x01, 0xd0, 0xff, 0xe0]), [0u64; 0]);
        // add rax,rdx; mov rax,[rax+0x18]; add rsp,0x48; pop rbx; jmp rax
        let code = [0x48, 0x01, 0xd0, 0x48, 0x8b, 0x40, 0x18, 0x48, 0x83, 0xc4, 0x48, 0x5b, 0xff, 0xe0];
        assert_eq!(at(&code), [0x100c]);
        let at = |words: [u32; 2]| {
            let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            follow(Architecture::Aarch64, (0x8000, &code), |_| None, |_| false)
        };
        assert_eq!(at([0x8b20_c823, 0xd61f_0060]), [0u64; 0], "add x3, x1, w0, sxtw #2; br x3");
        assert_eq!(at([0xf940_0c61, 0xd61f_0020]), [0x8004], "ldr x1, [x3, #24]; br x1");
    }

    #[test]
    fn a_function_that_only_hands_over_has_the_ends_of_the_other() {
        let hands_over = [0xe9, 0xfb, 0x0f, 0, 0]; // jmp 0x2000
        let other = [0x74, 0x01, 0xc3, 0xc3]; // je +1; ret; ret
        let piece = |target| (target == 0x2000).then_some((0x2000, other.as_slice()));
        assert_eq!(follow(Architecture::X86_64, (0x1000, &hands_over), piece, |_| true), [0x2002, 0x2003]);
        assert_eq!(follow(Architecture::X86_64, (0x1000, &hands_over), |_| None, |_| true), [0x1000]);
        let many = vec![0xc3; MOST_ENDS + 1];
        let piece = |target| (target == 0x2000).then_some((0x2000, many.as_slice()));
        assert_eq!(follow(Architecture::X86_64, (0x1000, &hands_over), piece, |_| true), [0x1000]);
    }

    #[test]
    fn on_aarch64() {
        // b +8; ret; b -0x1000; retaa; nop
        let words = [0x1400_0002u32, 0xd65f_03c0, 0x17ff_fc00, 0xd65f_0bff, 0xd503_201f];
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at: Vec<u64> = follow(Architecture::Aarch64, (0x8000, &code), |_| None, |target| target == 0x7008);
        assert_eq!(at, [0x8004, 0x8008, 0x800c]);
    }
}
