//! The exit codes of commands.

/// How a command ended. The numbers are a contract with people's scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The answer is complete.
    Complete = 0,
    /// Nothing was answered.
    Failed = 1,
    /// The command line or the SQL is wrong.
    Usage = 2,
    /// An answer, with nodes missing.
    Partial = 3,
}
