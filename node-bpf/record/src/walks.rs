//! Threads that walk their own Python frames, or whose stack is copied while they run: the request
//! and the answer. Does not own how they are made to do so (`node-bpf`), nor what the frames mean.

/// A request for a walk: the start, and offsets in the interpreter's structures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WalkRequest {
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Address of its `PyThreadState`.
    pub state: u64,
    /// In the thread state: the innermost frame.
    pub frame_at: u32,
    /// If set, the value there points to a structure that has the frame at this offset.
    pub inner_at: Option<u32>,
    /// In a frame: its code object.
    pub code_at: u32,
    /// In a frame: the calling frame.
    pub previous_at: u32,
    /// In a frame: the position in the bytecode.
    pub instruction_at: u32,
    /// 4 for an index, 8 for a pointer.
    pub instruction_bytes: u32,
    /// In a frame: its owner; 0 where the version has none.
    pub owner_at: u32,
    /// In a frame: which copy of the bytecode it runs; 0 where the version has none.
    pub tlbc_at: u32,
}

/// A frame as it was in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkedFrame {
    /// Its address.
    pub address: u64,
    /// Its code object, with any tags that the version puts there.
    pub code: u64,
    /// Position in the bytecode: a pointer, or an index in the lower half.
    pub instruction: u64,
    /// Which copy of the bytecode it runs; means nothing where the version has none.
    pub tlbc: i32,
    /// Its owner; means nothing where the version has none.
    pub owner: u8,
}

/// Registers and the top of the stack of a thread that ran its own code (x86-64).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackCopy {
    /// Program counter.
    pub pc: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer (`rbp`).
    pub fp: u64,
    /// The stack from its pointer on: 16 KiB, or less where less is mapped.
    pub bytes: Vec<u8>,
}

/// A thread's answer: its Python frames, all of one moment, or its native stack.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ThreadWalk {
    /// The thread.
    pub tid: u32,
    /// Innermost first.
    pub frames: Vec<WalkedFrame>,
    /// The last of them is the outermost.
    pub complete: bool,
    /// Instead of frames: its native stack.
    pub stack: Option<StackCopy>,
}
