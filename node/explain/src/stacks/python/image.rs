//! An interpreter's memory made of bytes, for tests and for fuzzing: the reader reads it from this
//! very process. A pointer in it is [`BASE`] plus an offset into the bytes.

use std::sync::Mutex;

use super::layout::offsets;
use super::{Instruction, Interpreter, Layout, PythonReader, Version};
use crate::stacks::types::{Frame, Limits};

/// What a pointer into the image has in its upper half.
const BASE: u64 = 2 << 32;
/// Bytes of the image: input that is longer is cut.
const IMAGE_BYTES: usize = 64 << 10;
/// Where the parts of a made image lie.
const RUNTIME: u64 = 0;
const INTERPRETER: u64 = 0x2000;
const THREAD: u64 = 0x4000;
const C_FRAME: u64 = 0x6000;
const FRAMES: [u64; 2] = [0x7000, 0x9000];
const CODE: u64 = 0xB000;
const NAME: u64 = 0xC800;
const LINES: u64 = 0xE000;

/// Reads the stacks of an image, whose first byte says which version it is of if it does not
/// publish its layout; the names of all functions found.
///
/// # Panics
/// Where the reader does: that is what is looked for.
pub fn read_image(input: &[u8]) -> Vec<String> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some((minor, bytes)) = input.split_first() else { return vec![] };
    let mut image = bytes.get(..IMAGE_BYTES).unwrap_or(bytes).to_vec();
    image.resize(IMAGE_BYTES, 0);
    let Some(layout) = Layout::published(&image).or_else(|| Layout::known(version(8 + minor % 5))) else {
        return vec![];
    };
    let address = image.as_ptr() as u64;
    for word in image.chunks_exact_mut(8) {
        let value = u64::from_le_bytes(word.try_into().unwrap_or_default());
        if value >> 32 == BASE >> 32 {
            word.copy_from_slice(&address.wrapping_add(value - BASE).to_le_bytes());
        }
    }
    let interpreter = Interpreter { runtime: address, code_type: None, layout };
    let mut reader = PythonReader::new(std::process::id(), interpreter);
    let limits = Limits { frames: 32, threads: 8, ..Limits::default() };
    let mut found = vec![];
    // twice: the second time by what is remembered of the first
    for _ in 0..2 {
        let stacks = reader.read(&limits, &mut None).map_or_else(|_| vec![], |(stacks, _)| stacks);
        for frame in stacks.into_iter().flat_map(|stack| stack.frames) {
            if let Frame::Python { function, .. } = frame {
                found.push(function);
            }
        }
    }
    found
}

/// Valid images, one a version.
pub fn images() -> Vec<Vec<u8>> {
    let known = (8..=12).filter_map(|minor| Some((minor - 8, vec![], Layout::known(version(minor))?)));
    let published = (13..=15).filter_map(|minor| {
        let table = published(minor);
        let layout = Layout::published(&table)?;
        Some((0, table, layout))
    });
    known.chain(published).map(|(first, table, layout)| [&[first][..], &image(&layout, &table)].concat()).collect()
}

fn version(minor: u8) -> Version {
    Version { major: 3, minor, patch: None, unstable: false, free_threaded: false }
}

/// A table of offsets, each field at a place of its own behind the table.
fn published(minor: u8) -> Vec<u8> {
    let mut table = b"xdebugpy".to_vec();
    table.extend((u64::from(minor) << 16 | 3 << 24 | 0xF0).to_le_bytes());
    table.extend(0u64.to_le_bytes());
    let fields: usize =
        offsets::of(minor).unwrap_or_default().iter().map(|(_, fields)| fields.split(' ').count()).sum();
    table.extend((0..fields as u64).flat_map(|field| (0x400 + 8 * field).to_le_bytes()));
    table
}

/// One interpreter with one thread in two frames of one function, `f`.
fn image(layout: &Layout, table: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; IMAGE_BYTES - 1];
    bytes[..table.len()].copy_from_slice(table);
    let mut put = |at: u64, value: &[u8]| bytes[at as usize..at as usize + value.len()].copy_from_slice(value);
    let pointer = |to: u64| (BASE + to).to_le_bytes();
    put(RUNTIME + layout.interpreters_head, &pointer(INTERPRETER));
    put(INTERPRETER + layout.threads_head, &pointer(THREAD));
    put(THREAD + layout.thread_interpreter, &pointer(INTERPRETER));
    match layout.frame {
        super::layout::FramePointer::Direct(at) => put(THREAD + at, &pointer(FRAMES[0])),
        super::layout::FramePointer::CFrame { outer, inner } => {
            put(THREAD + outer, &pointer(C_FRAME));
            put(C_FRAME + inner, &pointer(FRAMES[0]));
        }
    }
    put(FRAMES[0] + layout.frame_previous, &pointer(FRAMES[1]));
    for frame in FRAMES {
        put(frame + layout.frame_code, &pointer(CODE));
        if let Instruction::Pointer(at) = layout.instruction {
            put(frame + at, &pointer(CODE + layout.code_bytecode.unwrap_or(0) + 2));
        }
    }
    put(CODE + layout.code_first_line, &7i32.to_le_bytes());
    put(CODE + layout.code_file, &pointer(NAME));
    put(CODE + layout.code_name, &pointer(NAME));
    put(CODE + layout.code_lines, &pointer(LINES));
    put(NAME + layout.string_length, &1u64.to_le_bytes());
    put(NAME + layout.string_state, &(25u32 << layout.string_kind_bit).to_le_bytes());
    put(NAME + layout.ascii_head, b"f");
    put(LINES + layout.bytes_length, &3u64.to_le_bytes());
    put(LINES + layout.bytes_data, &[0xE8, 1, 0]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_all_versions_are_read() {
        let found: Vec<_> = images().iter().map(|image| read_image(image)).collect();
        assert_eq!(found, vec![vec!["f"; 4]; 8], "two frames, read twice");
    }

    #[test]
    fn threads_without_end_and_in_circles_end_the_read() {
        let layout = Layout::known(version(9)).unwrap();
        let mut circle = [&[1][..], &image(&layout, &[])].concat();
        let mut put = |at: u64, value: u64| {
            circle[1 + at as usize..9 + at as usize].copy_from_slice(&(BASE + value).to_le_bytes());
        };
        put(THREAD + layout.thread_next, THREAD);
        put(INTERPRETER + layout.interpreter_next, INTERPRETER);
        put(FRAMES[1] + layout.frame_previous, FRAMES[0]);
        assert!(!read_image(&circle).is_empty());
    }

    #[test]
    fn code_objects_with_one_large_line_table_take_a_bounded_amount() {
        const TABLE: usize = 1 << 20;
        const MOST: usize = 8 << 20;
        let layout = Layout::known(version(11)).unwrap();
        let mut memory = image(&layout, &[]);
        memory.resize(2 * TABLE, 0);
        let address = memory.as_ptr() as u64;
        let mut put = |at: u64, value: u64| memory[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes());
        // code objects of which each has the same table, then one that begins a little later in it
        let (codes, tables) = (0x1_0000, 0x8_0000);
        let code = |n: u64| codes + n * 256;
        for n in 0..1000 {
            put(code(n) + layout.code_file, address + NAME);
            put(code(n) + layout.code_name, address + NAME);
            put(code(n) + layout.code_lines, address + tables + if n < 500 { 0 } else { n * 64 });
            put(tables + n * 64 + layout.bytes_length, TABLE as u64 - 0x1_0000);
        }
        let interpreter = Interpreter { runtime: address, code_type: None, layout };
        let mut known = super::super::code::Codes::default();
        let mut look_up = |from: u64, to: u64| {
            let addresses: Vec<u64> = (from..to).map(|n| address + code(n)).collect();
            let own = crate::stacks::memory::Memory::of(std::process::id());
            let found = known.look_up(&own, &interpreter, &addresses, 256).unwrap();
            let named = found.values().filter(|found| found.code.function == "f").count();
            (named, known.kept_bytes())
        };
        let (named, kept) = look_up(0, 500);
        assert_eq!(named, 500);
        assert!(kept < TABLE + 500 * 600, "the same table is kept once: {kept}");
        for from in [500, 600, 700, 800, 900] {
            let (named, kept) = look_up(from, from + 100);
            assert_eq!(named, 100, "all have their names");
            assert!(kept <= MOST, "{kept}");
        }
    }
}
