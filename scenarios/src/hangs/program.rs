//! Programs of ranks: what each calls, one call after the other, on communicators of their own
//! making.

/// A communicator: which ranks of the job are in it, in its own order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comm {
    /// What tells it from others.
    pub hash: u64,
    /// Ranks of the job, by their rank in the communicator.
    pub members: Vec<usize>,
}

impl Comm {
    /// The rank in the communicator of a rank of the job.
    #[must_use]
    pub fn place(&self, rank: usize) -> Option<usize> {
        self.members.iter().position(|member| *member == rank)
    }
}

/// A collective function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Func {
    /// Nobody leaves before all have come.
    Barrier,
    /// Likewise.
    AllReduce,
    /// Likewise.
    AllGather,
    /// Likewise.
    AllToAll,
    /// From the root to all.
    Broadcast,
    /// From all to the root.
    Reduce,
    /// Likewise.
    Gather,
    /// Makes a communicator of parts of another: as a barrier of that one.
    Split,
    /// The end of MPI, which is a call of all: as an operation of its own ([`Op::Finalize`]) it
    /// meets others wherever they come to it.
    Finalize,
}

impl Func {
    /// Those that move data.
    pub const MOVING: [Self; 7] =
        [Self::Barrier, Self::AllReduce, Self::AllGather, Self::AllToAll, Self::Broadcast, Self::Reduce, Self::Gather];

    /// As the `collectives` table has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::AllToAll => "all_to_all",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Split => "comm_split",
            Self::Finalize => "finalize",
        }
    }

    /// It has a root.
    #[must_use]
    pub fn is_rooted(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather)
    }
}

/// A collective call of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Collective {
    /// Which communicator.
    pub comm: usize,
    /// Which function.
    pub func: Func,
    /// Place of the root in the communicator; 0 where the function has none.
    pub root: usize,
    /// Bytes of a rank.
    pub bytes: u64,
}

/// What a rank does instead of its next call, for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// In a sleep, or a read of a pipe.
    Asleep,
    /// Computes.
    Running,
    /// Reads from a disk that does not answer.
    Io,
    /// Its process is stopped.
    Stopped,
    /// Its process has ended.
    Ended,
}

/// One thing that a rank does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// A collective.
    Collective(Collective),
    /// A send to a rank of the job; `waits` until it is received (synchronous, or large).
    Send {
        /// Which communicator.
        comm: usize,
        /// To whom.
        to: usize,
        /// Tag.
        tag: i32,
        /// Until it is received.
        waits: bool,
    },
    /// A receive from a rank of the job.
    Receive {
        /// Which communicator.
        comm: usize,
        /// From whom.
        from: usize,
        /// Tag.
        tag: i32,
    },
    /// Own work, nanoseconds.
    Compute(i64),
    /// It goes no further.
    Stay(Stay),
    /// The end of MPI.
    Finalize,
}

/// A job: a program for each rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The communicators; the first is of all ranks.
    pub comms: Vec<Comm>,
    /// What each rank does.
    pub ranks: Vec<Vec<Op>>,
    /// Large messages of a tree wait for their receivers, small ones do not.
    pub eager: bool,
    /// Rooted functions go along a binomial tree; else each rank meets the root.
    pub tree: bool,
}
