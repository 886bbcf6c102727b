//! Threads that walk their own Python frames, or whose stack is copied while they run: the request
//! and the answer. How they are made to do
//! so is not known here, since it takes the kernel's help.

/// A thread that is to walk, and the layout of the interpreter's structures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnThread {
    /// Thread id in the reader's pid namespace.
    pub tid: u32,
    /// Address of its thread state.
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
pub struct OwnFrame {
    /// Its address.
    pub address: u64,
    /// Its code object, with any tags that the version puts there.
    pub code: u64,
    /// Position in the bytecode.
    pub instruction: u64,
    /// Which copy of the bytecode it runs.
    pub tlbc: i32,
    /// Its owner.
    pub owner: u8,
}

/// A thread's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnWalk {
    /// The thread.
    pub tid: u32,
    /// Innermost first.
    pub frames: Vec<OwnFrame>,
    /// The last of them is the outermost.
    pub complete: bool,
    /// Instead of frames: its native stack.
    pub stack: Option<OwnStack>,
}

/// Registers and the top of the stack of a thread that ran its own code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnStack {
    /// Program counter.
    pub pc: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer (`rbp`).
    pub fp: u64,
    /// The stack from its pointer on.
    pub bytes: Vec<u8>,
}

/// Makes threads walk their frames while they run.
pub trait OwnWalks: std::fmt::Debug + Send {
    /// Makes a thread do so when it next runs.
    ///
    /// # Errors
    /// Why it cannot.
    fn ask(&mut self, thread: &OwnThread) -> Result<(), String>;

    /// Copies the native stack of a thread when it next runs code of its own.
    ///
    /// # Errors
    /// Why it cannot.
    fn ask_stack(&mut self, tid: u32) -> Result<(), String>;

    /// The answers, as soon as all have come or this long has passed. Later ones are dropped.
    fn take(&mut self, patience: std::time::Duration) -> Vec<OwnWalk>;

    /// Called when no thread is asked for some time.
    fn end(&mut self);
}
