//! Instructions of x86-64.

use std::collections::HashMap;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use super::{Pointer, Reference, Step, Sweep};

/// What a register holds, by the last instruction that wrote it on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Held {
    /// It was written before the last jump or label, or by an instruction that is not looked at.
    #[default]
    Unknown,
    /// A sum: of a table's address and an entry.
    Sum,
    /// A word of memory, or another register.
    Word,
    /// A word of a table.
    WordOfTable(Option<u64>),
}

/// Of RAX to R15.
#[derive(Default)]
struct Registers {
    held: [Held; 16],
    /// What they hold where is jumped to further on.
    at: HashMap<u64, [Held; 16]>,
    /// The next instruction is come to by jumps alone.
    is_behind_jump: bool,
    was_behind_jump: bool,
    /// Ever.
    written: [bool; 16],
}

/// Reads the code from one end to the other.
///
/// # Errors
/// What in it is no code, for people.
pub(super) fn sweep(code: &[u8], address: u64) -> Result<Sweep, String> {
    let mut sweep = Sweep { begins: vec![false; code.len()], ..Sweep::default() };
    let mut registers = Registers::default();
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        let into = decoder.position();
        decoder.decode_out(&mut instruction);
        let at = instruction.ip();
        if instruction.is_invalid() {
            return Err(format!("what is at {at:#x} is no instruction"));
        }
        if matches!(instruction.mnemonic(), Mnemonic::Retf | Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq) {
            return Err(format!("what is at {at:#x} is no instruction of a program"));
        }
        sweep.refers.extend(reference(&instruction));
        sweep.is_closed = match instruction.mnemonic() {
            Mnemonic::Nop => sweep.is_closed, // between functions
            Mnemonic::Jmp | Mnemonic::Ret | Mnemonic::Call | Mnemonic::Ud2 | Mnemonic::Hlt | Mnemonic::Int3 => true,
            _ => false,
        };
        if let Some(begins) = sweep.begins.get_mut(into) {
            *begins = true;
        }
        registers.come_to(at);
        if let Some(step) = step(&instruction, &registers) {
            sweep.steps.push((at, step));
        }
        sweep.calls |= instruction.mnemonic() == Mnemonic::Call;
        registers.after(&instruction);
    }
    Ok(sweep)
}

/// Where it may go on, but for the next instruction.
fn step(instruction: &Instruction, registers: &Registers) -> Option<Step> {
    match (instruction.mnemonic(), instruction.op0_kind()) {
        (Mnemonic::Ret, _) => Some(Step::Return),
        (Mnemonic::Call, _) => None,
        (mnemonic, OpKind::NearBranch64) => {
            Some(Step::Jump { to: instruction.near_branch_target(), always: mnemonic == Mnemonic::Jmp })
        }
        // NOTRACK: compilers mark tables of a `switch` by it (-fcf-protection).
        (Mnemonic::Jmp, _) if instruction.segment_prefix() == Register::DS => Some(Step::Through(Pointer::Table)),
        (Mnemonic::Jmp, OpKind::Memory) => Some(Step::Through(match word(instruction) {
            Held::WordOfTable(table) => Pointer::WordOfTable(table),
            _ => Pointer::Word,
        })),
        (Mnemonic::Jmp, OpKind::Register) => Some(Step::Through(registers.pointer(instruction.op0_register()))),
        (Mnemonic::Jmp, _) => Some(Step::Through(Pointer::Unknown)), // far
        _ => None,
    }
}

/// What a load takes from memory.
fn word(instruction: &Instruction) -> Held {
    if instruction.memory_index() == Register::None || instruction.memory_index_scale() != 8 {
        return Held::Word;
    }
    let is_fixed = instruction.memory_base() == Register::None;
    Held::WordOfTable(is_fixed.then(|| instruction.memory_displacement64()))
}

/// Programs that are not moved when they are loaded lie above it: what is less is a number, and no address.
const LEAST_FIXED_ADDRESS: u64 = 0x1_0000;

/// The address that an instruction has in it, as far as it may be one.
fn reference(instruction: &Instruction) -> Option<Reference> {
    let (from, mnemonic) = (instruction.ip(), instruction.mnemonic());
    let reads = mnemonic != Mnemonic::Lea;
    if mnemonic == Mnemonic::Nop {
        return None;
    }
    if instruction.is_ip_rel_memory_operand() {
        return Some(Reference { from, to: instruction.ip_rel_memory_address(), reads });
    }
    let is_fixed = |to: &u64| *to >= LEAST_FIXED_ADDRESS;
    if (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory) {
        let is_of_thread = matches!(instruction.memory_segment(), Register::FS | Register::GS);
        let to = Some(instruction.memory_displacement64()).filter(|to| !is_of_thread && is_fixed(to))?;
        return Some(Reference { from, to, reads });
    }
    let is_number =
        matches!(instruction.op1_kind(), OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64);
    let to = (mnemonic == Mnemonic::Mov && is_number).then(|| instruction.immediate(1)).filter(is_fixed)?;
    Some(Reference { from, to, reads: false })
}

/// The number of a register of 64 or 32 bits.
fn number(register: Register) -> Option<usize> {
    let from = |first: Register| (register as usize).checked_sub(first as usize).filter(|number| *number < 16);
    from(Register::RAX).or_else(|| from(Register::EAX))
}

impl Registers {
    fn pointer(&self, register: Register) -> Pointer {
        let Some(number) = number(register) else { return Pointer::Unknown };
        match self.held[number] {
            Held::Sum => Pointer::Table,
            Held::Word => Pointer::Word,
            Held::WordOfTable(table) => Pointer::WordOfTable(table),
            Held::Unknown if !self.written[number] => Pointer::Word, // an argument
            Held::Unknown => Pointer::Unknown,
        }
    }

    fn after(&mut self, instruction: &Instruction) {
        if instruction.op0_kind() == OpKind::NearBranch64 && instruction.mnemonic() != Mnemonic::Call {
            self.go_to(instruction.near_branch_target(), instruction.ip());
        }
        match instruction.mnemonic() {
            Mnemonic::Jmp | Mnemonic::Ret | Mnemonic::Ud2 | Mnemonic::Hlt => self.is_behind_jump = true,
            Mnemonic::Call => {
                // What it returns. (Where another register is used after it, it is known to leave that as it was.)
                self.write(0, Held::Word);
            }
            // Their results lie in registers that are no operands.
            Mnemonic::Mul
            | Mnemonic::Div
            | Mnemonic::Idiv
            | Mnemonic::Cpuid
            | Mnemonic::Syscall
            | Mnemonic::Cmpxchg => {
                [0, 1, 2, 3].into_iter().for_each(|number| self.write(number, Held::Unknown));
            }
            Mnemonic::Imul if instruction.op_count() == 1 => {
                [0, 2].into_iter().for_each(|number| self.write(number, Held::Unknown));
            }
            Mnemonic::Nop | Mnemonic::Int3 => self.is_behind_jump = self.was_behind_jump, // between functions' parts
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Bt => {}
            Mnemonic::Xchg => {
                let both = [instruction.op0_register(), instruction.op1_register()];
                both.into_iter().filter_map(number).for_each(|number| self.write(number, Held::Unknown));
            }
            mnemonic if instruction.op0_kind() == OpKind::Register => {
                let Some(to) = number(instruction.op0_register()) else { return };
                let held = match (mnemonic, instruction.op1_kind()) {
                    (Mnemonic::Add, OpKind::Register | OpKind::Memory) => Held::Sum,
                    (Mnemonic::Mov, OpKind::Memory) => word(instruction),
                    (Mnemonic::Mov, OpKind::Register) => {
                        number(instruction.op1_register()).map_or(Held::Unknown, |from| match self.held[from] {
                            Held::Unknown if self.written[from] => Held::Unknown,
                            Held::Unknown => Held::Word, // an argument
                            known => known,
                        })
                    }
                    (Mnemonic::Lea, _) if instruction.memory_index() != Register::None => Held::Unknown,
                    (Mnemonic::Pop | Mnemonic::Lea, _) | (Mnemonic::Mov, _) => Held::Word,
                    _ => Held::Unknown,
                };
                self.write(to, held);
            }
            _ => {}
        }
    }

    /// Notes a jump to a later instruction.
    fn go_to(&mut self, to: u64, from: u64) {
        if to > from {
            let held = self.held;
            self.at.entry(to).and_modify(|known| merge(known, &held)).or_insert(held);
        }
    }

    /// An instruction is come to, from the one before it and by jumps.
    fn come_to(&mut self, at: u64) {
        let held = self.at.remove(&at);
        let is_behind_jump = std::mem::take(&mut self.is_behind_jump);
        self.was_behind_jump = is_behind_jump && held.is_none();
        match (held, is_behind_jump) {
            (Some(held), true) => self.held = held,
            (Some(held), false) => merge(&mut self.held, &held),
            (None, true) => self.held = [Held::Unknown; 16], // by jumps back, or a table
            (None, false) => {}
        }
    }

    fn write(&mut self, number: usize, held: Held) {
        self.held[number] = held;
        self.written[number] = true;
    }
}

/// What is the same in both.
fn merge(held: &mut [Held; 16], other: &[Held; 16]) {
    for (held, other) in held.iter_mut().zip(other) {
        if held != other {
            *held = Held::Unknown;
        }
    }
}
