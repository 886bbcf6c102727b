//! Where the probe at a function's entry costs least. The kernel replaces the probed instruction by
//! a trap and has to execute it elsewhere. Some it emulates within that trap; any other it steps
//! over with a second trap, which costs several times as much as the first.
//!
//! A compiler may load something before it saves registers (`mov …(%rip),%rax; push %r12`). As long
//! as arguments and stack pointer are as at the entry, a probe at the `push` sees the same.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use object::{Architecture, Object as _, ObjectSection};

use super::sections::Object;

/// Most instructions that a probe is moved by.
const MOST_PASSED: usize = 4;
/// Most bytes of a function that are searched for jumps to its beginning.
const MOST_BYTES: u64 = 64 << 10;

/// The address for the entry probe of the function of `bytes` bytes at `address`.
pub(super) fn probe_at(object: &Object<'_>, address: u64, bytes: u64) -> u64 {
    if object.file.architecture() != Architecture::X86_64 || bytes == 0 || bytes > MOST_BYTES {
        return address;
    }
    let code = object.section_at(address).and_then(|section| section.data_range(address, bytes).ok()?);
    code.map_or(address, |code| cheapest(code, address))
}

/// The first instruction that is emulated, if those before it leave arguments and stack as they are
/// and nothing jumps to it or between; else the first instruction.
fn cheapest(code: &[u8], address: u64) -> u64 {
    let decoder = || Decoder::with_ip(64, code, address, DecoderOptions::NONE).into_iter();
    let Some(at) = decoder().take(MOST_PASSED + 1).find(|instruction| !may_be_passed(instruction)) else {
        return address;
    };
    let jumps_here = |instruction: Instruction| {
        instruction.op0_kind() == OpKind::NearBranch64
            && instruction.mnemonic() != Mnemonic::Call
            && (address + 1..=at.ip()).contains(&instruction.near_branch_target())
    };
    if saves_register(&at) && !decoder().any(jumps_here) { at.ip() } else { address }
}

/// `push` of a register: emulated by every kernel from 5.0 on.
fn saves_register(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Push && instruction.op0_kind() == OpKind::Register
}

/// Whether it changes neither arguments nor stack, goes nowhere, and is not emulated itself.
fn may_be_passed(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Endbr64 => true,
        Mnemonic::Nop => instruction.len() > 1,
        Mnemonic::Mov | Mnemonic::Lea | Mnemonic::Movzx | Mnemonic::Movsxd => {
            instruction.op0_kind() == OpKind::Register && holds_no_argument(instruction.op0_register())
        }
        Mnemonic::Xor => {
            // mostly of a register with itself, which makes it zero
            instruction.op0_kind() == OpKind::Register
                && instruction.op1_kind() == OpKind::Register
                && holds_no_argument(instruction.op0_register())
        }
        _ => false,
    }
}

/// Registers in which no function of C gets anything that probes read.
fn holds_no_argument(register: Register) -> bool {
    use Register as R;
    matches!(
        register,
        R::RAX
            | R::EAX
            | R::RBX
            | R::EBX
            | R::RBP
            | R::EBP
            | R::R10
            | R::R10D
            | R::R11
            | R::R11D
            | R::R12
            | R::R12D
            | R::R13
            | R::R13D
            | R::R14
            | R::R14D
            | R::R15
            | R::R15D
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_moves_to_the_first_saved_register() {
        // Open MPI's MPI_Waitall: mov rax,[rip+0x84e61]; push r12; mov r12,rdx; ret
        let waits = [0x48, 0x8b, 0x05, 0x61, 0x4e, 0x08, 0x00, 0x41, 0x54, 0x49, 0x89, 0xd4, 0xc3];
        assert_eq!(cheapest(&waits, 0x1000), 0x1007);
        // endbr64; push rbp; ret
        assert_eq!(cheapest(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0xc3], 0x1000), 0x1004);
        // push rbx: is where it should be
        assert_eq!(cheapest(&[0x53, 0xc3], 0x1000), 0x1000);
    }

    #[test]
    fn it_stays_where_arguments_stack_or_way_change_before() {
        for (what, code) in [
            ("mov edi,1; push rbx", &[0xbf, 1, 0, 0, 0, 0x53, 0xc3][..]),
            ("mov rdx,rsi; push rbx", &[0x48, 0x89, 0xf2, 0x53, 0xc3]),
            ("sub rsp,8; push rbx", &[0x48, 0x83, 0xec, 8, 0x53, 0xc3]),
            (
                "mov eax,[rip+0x1000]; test eax,eax; je +1; push rbx",
                &[0x8b, 0x05, 0, 0x10, 0, 0, 0x85, 0xc0, 0x74, 1, 0x53, 0xc3],
            ),
            ("nop; push rbx: emulated, too", &[0x90, 0x53, 0xc3]),
            ("jmp +0x10; push rbx", &[0xe9, 0x10, 0, 0, 0, 0x53, 0xc3]),
            ("mov rax,rdi; ret", &[0x48, 0x89, 0xf8, 0xc3]),
            ("xor eax,eax; push rbx; pop rbx; jmp to the push", &[0x31, 0xc0, 0x53, 0x5b, 0xeb, 0xfc]),
            ("nothing", &[]),
        ] {
            assert_eq!(cheapest(code, 0x1000), 0x1000, "{what}");
        }
        // a loop over the whole function enters it anew, as the first instruction's probe would see
        assert_eq!(cheapest(&[0x31, 0xc0, 0x53, 0x5b, 0xeb, 0xfa], 0x1000), 0x1002);
    }
}
