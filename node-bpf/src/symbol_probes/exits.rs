//! Where a function ends: its return instructions and the jumps by which it hands over to another function. Probes there
//! measure durations without a return probe, whose changed return address would stop an exception on its way through
//! the function and end the program.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use object::Architecture;

/// Addresses of the ends of the function whose code lies at `address`. `is_function`: another one begins there.
///
/// A jump through a register may be a `switch` as well as a call in tail position: it is taken for the former, and calls
/// that end by one are found to have ended by the thread's next call (counted as `unmatched`).
pub(super) fn exits(
    architecture: Architecture,
    code: &[u8],
    address: u64,
    is_function: impl Fn(u64) -> bool,
) -> Vec<u64> {
    let inside = address..address.saturating_add(code.len() as u64);
    let leaves = |target: u64| !inside.contains(&target) && is_function(target);
    match architecture {
        Architecture::X86_64 => Decoder::with_ip(64, code, address, DecoderOptions::NONE)
            .iter()
            .take_while(|instruction| !instruction.is_invalid())
            .filter(|instruction| match (instruction.mnemonic(), instruction.op0_kind()) {
                (Mnemonic::Ret, _) => true,
                (Mnemonic::Jmp, OpKind::NearBranch64) => leaves(instruction.near_branch_target()),
                (Mnemonic::Jmp, OpKind::Memory) => through_a_pointer(instruction),
                _ => false,
            })
            .map(|instruction| instruction.ip())
            .collect(),
        Architecture::Aarch64 => (address..)
            .step_by(4)
            .zip(code.chunks_exact(4))
            .filter(|(at, bytes)| {
                let word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                is_aarch64_return(word) || aarch64_jump(*at, word).is_some_and(&leaves)
            })
            .map(|(at, _)| at)
            .collect(),
        _ => vec![],
    }
}

/// `jmp [rip+…]` or `jmp [reg+…]`: a function's address in memory. A table of a `switch` has an index.
fn through_a_pointer(instruction: &Instruction) -> bool {
    instruction.memory_base() != Register::None && instruction.memory_index() == Register::None
}

/// RET, RETAA, RETAB (Arm Architecture Reference Manual, "Unconditional branch (register)").
fn is_aarch64_return(word: u32) -> bool {
    word & 0xffff_fc1f == 0xd65f_0000 || matches!(word, 0xd65f_0bff | 0xd65f_0fff)
}

/// Where B goes: a signed offset of 26 bits, in words.
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
        // test edi,edi; je +1; ret; jmp 0x2000; jmp 0x1000; jmp [rip+0x10]; jmp [rax+8]; jmp [rax*8+0x100]; jmp rax; ret 8
        let code = [
            0x85, 0xff, 0x74, 0x01, 0xc3, 0xe9, 0xf6, 0x0f, 0, 0, 0xe9, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x25, 0x10, 0, 0,
            0, 0xff, 0x60, 0x08, 0xff, 0x24, 0xc5, 0, 1, 0, 0, 0xff, 0xe0, 0xc2, 0x08, 0,
        ];
        let at: Vec<u64> = exits(Architecture::X86_64, &code, 0x1000, |target| target == 0x2000);
        assert_eq!(at, [0x1004, 0x1005, 0x100f, 0x1015, 0x1021]);
        let at: Vec<u64> = exits(Architecture::X86_64, &code, 0x1000, |_| false);
        assert_eq!(at, [0x1004, 0x100f, 0x1015, 0x1021], "a jump to a cold part of itself is no end");
    }

    #[test]
    fn on_aarch64() {
        // b +8; ret; b -0x1000; retaa; nop
        let words = [0x1400_0002u32, 0xd65f_03c0, 0x17ff_fc00, 0xd65f_0bff, 0xd503_201f];
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at: Vec<u64> = exits(Architecture::Aarch64, &code, 0x8000, |target| target == 0x7008);
        assert_eq!(at, [0x8004, 0x8008, 0x800c]);
    }
}
