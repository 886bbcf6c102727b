//! A communication call, as far as where time goes is concerned.

use observed::Coupling;

/// A communication call that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Thread.
    pub tid: u32,
    /// Entry, nanoseconds of the node's clock.
    pub start_ns: i64,
    /// Return.
    pub end_ns: i64,
    /// It is compared call by call across ranks.
    pub scored: bool,
    /// The one rank of the job that it waits for, where it says.
    pub peer: Option<i32>,
}

impl Call {
    /// A call by what was recorded of it. `rank`: the caller's rank in the communicator, none where
    /// the communicator is not known.
    #[must_use]
    pub fn new(func: &str, tid: u32, entry_ns: i64, duration_ns: i64, rank: Option<i32>, root: Option<i32>) -> Self {
        let coupling = Coupling::of(func);
        // At the root itself, and where all meet, it is not one rank that is waited for.
        let one = matches!(coupling, Coupling::Pair | Coupling::RootSends);
        Self {
            tid,
            start_ns: entry_ns,
            end_ns: entry_ns.saturating_add(duration_ns.max(0)),
            scored: rank.is_some() && coupling == Coupling::All,
            peer: root.filter(|root| one && rank.is_some_and(|rank| rank != *root)),
        }
    }
}

/// Whether a call starts or ends the library: time in it is neither the program's own nor spent
/// waiting for a message.
#[must_use]
pub fn starts_or_ends(func: &str) -> bool {
    matches!(func, "init" | "finalize")
}

/// Whether a call names no communicator: it waits for what others began. Names as the `collectives`
/// table has them.
#[must_use]
pub fn names_no_communicator(func: &str) -> bool {
    func.starts_with("wait") && func != "wait_signal" || func.starts_with("win_")
}
