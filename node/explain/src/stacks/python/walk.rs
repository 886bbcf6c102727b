//! Walks from a thread state to its frames, in few reads, and compares two walks.

use nix::errno::Errno;
use record::{ThreadWalk, WalkRequest};

use super::super::memory::{Memory, Piece, int_at, word_at};
use super::layout::{FIRST_FOREIGN_OWNER, FramePointer, Instruction, Layout};

/// Chunks of the data stack have 16 KiB, or more where a single call needs more.
const CHUNK_BYTES: usize = 16 << 10;
/// Object pointers are at least 8-byte aligned; 3.14 keeps tags in the lowest bits.
const TAG_MASK: u64 = !7;
/// Most frames from C into the interpreter between two Python frames, and foreign ones in a torn
/// walk.
const SKIPPED_PER_FRAME: usize = 2;

/// A frame in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawFrame {
    /// Its address.
    pub address: u64,
    /// Its code object.
    pub code: u64,
    /// Position in the bytecode: a pointer, or an index.
    pub instruction: u64,
    /// Which of the per-thread copies of the bytecode it runs.
    pub tlbc_index: i32,
}

/// One walk over the frames of a thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Walk {
    /// Innermost first.
    pub frames: Vec<RawFrame>,
    /// Every visited frame, those from C included.
    visited: Vec<u64>,
    /// Address of the thread's current chunk of the data stack.
    chunk: u64,
    /// The walk reached the outermost frame.
    pub complete: bool,
    /// There are more frames than asked for.
    pub truncated: bool,
}

/// Reads the frames of the thread whose thread state lies at `thread`. `hint` is an earlier walk of
/// the same thread: the addresses in it are read in the same call, since most of them are still
/// frames.
pub(crate) fn walk(memory: &Memory, layout: &Layout, thread: u64, hint: &Walk, limit: usize) -> Result<Walk, Errno> {
    let shape = Shape::of(layout);
    let mut wanted = vec![(thread, shape.thread_bytes)];
    if hint.chunk != 0 {
        wanted.push((hint.chunk, CHUNK_BYTES));
    }
    let in_chunk = |address: u64| address.checked_sub(hint.chunk).is_some_and(|at| at < CHUNK_BYTES as u64);
    wanted.extend(
        hint.visited.iter().filter(|address| !in_chunk(**address)).map(|address| (*address, shape.frame_bytes)),
    );
    let mut pieces = memory.read_pieces(&wanted)?;
    if pieces.is_empty() {
        return Err(Errno::EFAULT);
    }
    let head = std::mem::take(&mut pieces[0].bytes);
    let mut walk =
        Walk { chunk: layout.data_stack_chunk.map_or(0, |offset| word_at(&head, offset)), ..Walk::default() };
    if walk.chunk != 0 && walk.chunk != hint.chunk {
        match memory.read_up_to(walk.chunk, CHUNK_BYTES) {
            Ok(bytes) => pieces.push(Piece { address: walk.chunk, bytes }),
            Err(Errno::EFAULT) => {}
            Err(error) => return Err(error),
        }
    }
    let mut next = match layout.frame {
        FramePointer::Direct(offset) => word_at(&head, offset),
        FramePointer::CFrame { outer, inner } => match word_at(&head, outer) {
            0 => 0,
            address => match memory.word(address.wrapping_add(inner)) {
                Ok(frame) => frame,
                Err(Errno::EFAULT) => return Ok(walk),
                Err(error) => return Err(error),
            },
        },
    };
    while next != 0 {
        if walk.frames.len() >= limit {
            walk.truncated = true;
            return Ok(walk);
        }
        if walk.visited.len() > limit * (1 + SKIPPED_PER_FRAME) {
            // More than any stack has: a circle, which only a torn read shows.
            return Ok(walk);
        }
        let read;
        let bytes = match pieces.iter().find_map(|piece| piece.at(next, shape.frame_bytes)) {
            Some(bytes) => bytes,
            None => match memory.read(next, shape.frame_bytes) {
                Ok(bytes) => {
                    read = bytes;
                    &read
                }
                Err(Errno::EFAULT) => return Ok(walk),
                Err(error) => return Err(error),
            },
        };
        walk.visited.push(next);
        if !is_foreign(layout, bytes) {
            walk.frames.push(RawFrame {
                address: next,
                code: word_at(bytes, layout.frame_code) & TAG_MASK,
                instruction: match layout.instruction {
                    Instruction::Index { offset, .. } => i64::from(int_at(bytes, offset)).cast_unsigned(),
                    Instruction::Pointer(offset) => word_at(bytes, offset),
                },
                tlbc_index: layout.frame_tlbc_index.map_or(0, |offset| int_at(bytes, offset)),
            });
        }
        next = word_at(bytes, layout.frame_previous);
    }
    walk.complete = true;
    Ok(walk)
}

/// The walk of a thread over its own frames.
pub(crate) fn of_own(layout: &Layout, own: &ThreadWalk, limit: usize) -> Walk {
    let shown = own.frames.iter().filter(|frame| layout.version.minor < 12 || frame.owner < FIRST_FOREIGN_OWNER);
    let raw = shown.map(|frame| RawFrame {
        address: frame.address,
        code: frame.code & TAG_MASK,
        instruction: match layout.instruction {
            Instruction::Index { .. } => i64::from(frame.instruction as u32 as i32).cast_unsigned(),
            Instruction::Pointer(_) => frame.instruction,
        },
        tlbc_index: if layout.frame_tlbc_index.is_some() { frame.tlbc } else { 0 },
    });
    let mut frames: Vec<RawFrame> = raw.collect();
    let truncated = frames.len() > limit;
    frames.truncate(limit);
    Walk { frames, complete: own.complete, truncated, ..Walk::default() }
}

/// Where a thread has to look for its frames.
pub(crate) fn to_walk(layout: &Layout, tid: u32, state: u64) -> Option<WalkRequest> {
    let at = |offset: u64| u32::try_from(offset).ok();
    let (frame, inner) = match layout.frame {
        FramePointer::Direct(frame) => (frame, None),
        FramePointer::CFrame { outer, inner } => (outer, Some(at(inner)?)),
    };
    let (instruction, instruction_bytes) = match layout.instruction {
        Instruction::Index { offset, .. } => (offset, 4),
        Instruction::Pointer(offset) => (offset, 8),
    };
    Some(WalkRequest {
        tid,
        state,
        frame_at: at(frame)?,
        inner_at: inner,
        code_at: at(layout.frame_code)?,
        previous_at: at(layout.frame_previous)?,
        instruction_at: at(instruction)?,
        instruction_bytes,
        owner_at: at(layout.frame_owner.unwrap_or(0))?,
        tlbc_at: at(layout.frame_tlbc_index.unwrap_or(0))?,
    })
}

/// Entries from C into the interpreter have an owner of their own from 3.12 on; in 3.11 they cannot
/// be recognised.
fn is_foreign(layout: &Layout, frame: &[u8]) -> bool {
    let Some(offset) = layout.frame_owner.filter(|_| layout.version.minor >= 12) else { return false };
    usize::try_from(offset).ok().and_then(|at| frame.get(at)).is_none_or(|owner| *owner >= FIRST_FOREIGN_OWNER)
}

/// Bytes to read of a thread state and of a frame.
struct Shape {
    thread_bytes: usize,
    frame_bytes: usize,
}

impl Shape {
    fn of(layout: &Layout) -> Shape {
        let (FramePointer::Direct(frame) | FramePointer::CFrame { outer: frame, .. }) = layout.frame;
        let thread = frame.max(layout.data_stack_chunk.unwrap_or(0)) + 8;
        let (Instruction::Index { offset: instruction, .. } | Instruction::Pointer(instruction)) = layout.instruction;
        let others = [layout.frame_code, layout.frame_previous, instruction];
        let others = others.into_iter().max().unwrap_or(0) + 8;
        let small = layout.frame_owner.unwrap_or(0).max(layout.frame_tlbc_index.map_or(0, |offset| offset + 3)) + 1;
        Shape {
            thread_bytes: usize::try_from(thread).unwrap_or(0),
            frame_bytes: usize::try_from(others.max(small)).unwrap_or(0),
        }
    }
}

/// The frames on which two walks of one thread agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// Number of frames, counted from the outermost one.
    pub frames: usize,
    /// Both walks found the same functions from end to end.
    pub complete: bool,
}

/// Compares two walks from the outermost frame on. Where only the position of the innermost
/// function moved, the functions still agree: it ran on between the reads.
pub(crate) fn agreement(first: &Walk, second: &Walk) -> Agreement {
    if !first.complete || !second.complete {
        // The outermost frame is the start of a comparison. A walk that did not reach it may have
        // left the stack.
        let same = first.truncated && second.truncated && first.frames == second.frames;
        return Agreement { frames: if same { first.frames.len() } else { 0 }, complete: same };
    }
    let pairs = || first.frames.iter().rev().zip(second.frames.iter().rev());
    let equal = pairs().take_while(|(one, other)| one == other).count();
    let lengths_agree = first.frames.len() == second.frames.len();
    let only_moved = pairs().nth(equal).is_some_and(|(one, other)| {
        one.address == other.address && one.code == other.code && one.tlbc_index == other.tlbc_index
    });
    let innermost = equal + 1 == first.frames.len();
    match lengths_agree {
        true if equal == first.frames.len() => Agreement { frames: equal, complete: true },
        true if innermost && only_moved => Agreement { frames: equal + 1, complete: true },
        _ => Agreement { frames: equal, complete: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(frames: &[(u64, u64, u64)]) -> Walk {
        let frames = frames
            .iter()
            .map(|(address, code, instruction)| RawFrame {
                address: *address,
                code: *code,
                instruction: *instruction,
                tlbc_index: 0,
            })
            .collect();
        Walk { frames, complete: true, ..Walk::default() }
    }

    #[test]
    fn equal_walks_agree_and_a_moving_innermost_function_still_does() {
        let first = frames(&[(30, 3, 7), (20, 2, 5), (10, 1, 1)]);
        assert_eq!(agreement(&first, &first), Agreement { frames: 3, complete: true });
        let moved = frames(&[(30, 3, 9), (20, 2, 5), (10, 1, 1)]);
        assert_eq!(agreement(&first, &moved), Agreement { frames: 3, complete: true });
    }

    #[test]
    fn where_an_outer_function_moved_on_only_what_is_outside_of_it_holds() {
        let first = frames(&[(30, 3, 7), (20, 2, 5), (10, 1, 1)]);
        let moved = frames(&[(30, 3, 7), (20, 2, 6), (10, 1, 1)]);
        assert_eq!(agreement(&first, &moved), Agreement { frames: 1, complete: false });
        let other_function = frames(&[(30, 4, 7), (20, 2, 5), (10, 1, 1)]);
        assert_eq!(agreement(&first, &other_function), Agreement { frames: 2, complete: false });
        let returned = frames(&[(20, 2, 5), (10, 1, 1)]);
        assert_eq!(agreement(&first, &returned), Agreement { frames: 2, complete: false });
    }

    #[test]
    fn a_walk_that_did_not_reach_the_outermost_frame_holds_nothing() {
        let complete = frames(&[(20, 2, 5), (10, 1, 1)]);
        let lost = Walk { complete: false, ..complete.clone() };
        assert_eq!(agreement(&complete, &lost), Agreement { frames: 0, complete: false });
        let long = Walk { truncated: true, ..lost };
        assert_eq!(agreement(&long, &long), Agreement { frames: 2, complete: true });
    }
}
