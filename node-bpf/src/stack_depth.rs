//! How much of the kernel's BPF stack each program takes with all that it calls, read from the compiled
//! objects. Kernels from 6.13 on give functions stacks of their own, so a program that loads on one of
//! them may be refused by every older one. Theirs are the rules here (`check_max_stack_depth` in
//! kernel/bpf/verifier.c): the frames of a chain of calls, each rounded up to 32 bytes, take at most 512
//! bytes together, and there are at most eight of them.

use std::collections::{BTreeMap, BTreeSet};

use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionIndex, SectionKind, SymbolKind};

const MOST_BYTES: u64 = 512;
const MOST_FRAMES: usize = 8;
/// Of an instruction.
const BYTES: u64 = 8;
const FRAME_POINTER: u8 = 10;
const CALL: u8 = 0x85;
/// The source register of a call of another function of the object.
const OF_OBJECT: u8 = 1;
/// Loads an address.
const ADDRESS: u8 = 0x18;

/// A function: its section's index, and its offset there.
type Place = (usize, u64);

#[derive(Debug, Default)]
struct Function {
    name: String,
    frame_bytes: u64,
    calls: BTreeSet<Place>,
}

/// (Documentation/bpf/standardization/instruction-set.rst)
struct Instruction {
    code: u8,
    to: u8,
    from: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    fn of(bytes: &[u8]) -> Self {
        Self {
            code: bytes[0],
            to: bytes[1] & 15,
            from: bytes[1] >> 4,
            offset: i16::from_le_bytes([bytes[2], bytes[3]]),
            immediate: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        }
    }

    /// How far below the frame pointer it reaches. `copies`: the registers that hold the frame pointer.
    fn reaches(&self, copies: &mut BTreeSet<u8>) -> u64 {
        let below = |offset: i64| u64::try_from(-offset).unwrap_or(0);
        match (self.code, self.code & 7) {
            (0xbf, _) if self.from == FRAME_POINTER => {
                copies.insert(self.to);
                0
            }
            (0x07, _) if copies.remove(&self.to) => below(self.immediate.into()),
            (_, 1) if self.from == FRAME_POINTER => below(self.offset.into()),
            (_, 2 | 3) if self.to == FRAME_POINTER => below(self.offset.into()),
            _ => 0,
        }
    }
}

/// All functions of an object.
fn functions(bytes: &[u8]) -> BTreeMap<Place, Function> {
    let file = object::File::parse(bytes).expect("an object");
    let mut functions = BTreeMap::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0) {
        let Some(index) = symbol.section_index() else { continue };
        let section = file.section_by_index(index).expect("its section");
        let code = section.data().expect("its bytes");
        // None: a function of the kernel's.
        let targets: BTreeMap<u64, Option<Place>> = section
            .relocations()
            .filter_map(|(at, relocation)| {
                let RelocationTarget::Symbol(target) = relocation.target() else { return None };
                let target = file.symbol_by_index(target).ok()?;
                Some((at, target.section_index().map(|section| (section.0, target.address()))))
            })
            .collect();
        let mut function = Function { name: symbol.name().unwrap_or_default().to_owned(), ..Function::default() };
        let mut copies = BTreeSet::new();
        for at in (symbol.address()..symbol.address() + symbol.size()).step_by(BYTES as usize) {
            let instruction = Instruction::of(&code[at as usize..][..BYTES as usize]);
            function.frame_bytes = function.frame_bytes.max(instruction.reaches(&mut copies));
            let Some(target) = targets.get(&at).copied().unwrap_or(Some((index.0, at))) else { continue };
            // A call counts instructions from the next one, an address bytes.
            let distance = match instruction.code {
                CALL => (i64::from(instruction.immediate) + 1) * BYTES as i64,
                _ => instruction.immediate.into(),
            };
            let is_text =
                || file.section_by_index(SectionIndex(target.0)).is_ok_and(|of| of.kind() == SectionKind::Text);
            let refers = match (instruction.code, instruction.from) {
                (CALL, OF_OBJECT) => true,
                (ADDRESS, _) => targets.contains_key(&at) && is_text(),
                _ => false,
            };
            if refers {
                function.calls.insert((target.0, target.1.wrapping_add_signed(distance)));
            }
        }
        functions.insert((index.0, symbol.address()), function);
    }
    functions
}

/// The deepest chain of calls from a function on: bytes, and the functions with theirs.
fn deepest(functions: &BTreeMap<Place, Function>, from: Place) -> (u64, Vec<String>) {
    let function = functions.get(&from).unwrap_or_else(|| panic!("no function at {from:?}"));
    let frame = function.frame_bytes.max(1).next_multiple_of(32);
    let below = function.calls.iter().map(|called| deepest(functions, *called));
    let (bytes, mut chain) = below.max_by_key(|(bytes, _)| *bytes).unwrap_or_default();
    chain.insert(0, format!("{} ({frame})", function.name));
    (frame + bytes, chain)
}

/// The longest chain of calls.
fn frames(functions: &BTreeMap<Place, Function>, from: Place) -> usize {
    1 + functions[&from].calls.iter().map(|called| frames(functions, *called)).max().unwrap_or(0)
}

#[test]
fn every_program_fits_the_stack_of_kernels_before_6_13() {
    macro_rules! objects {
        ($($name:literal),*) => { [$(($name, &include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o"))[..])),*] };
    }
    let mut refused = vec![];
    for (name, bytes) in objects!["capture", "capture-basic", "stub", "empty", "python", "requests"] {
        let functions = functions(bytes);
        assert!(!functions.is_empty(), "{name}");
        for place in functions.keys() {
            let (bytes, chain) = deepest(&functions, *place);
            let frames = frames(&functions, *place);
            if bytes > MOST_BYTES || frames > MOST_FRAMES {
                refused.push(format!("{name}: {bytes} bytes, {frames} frames: {}", chain.join(", ")));
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}
