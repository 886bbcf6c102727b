//! What a probed function is: whose, which of its arguments are what, and how its calls are counted.
//! `nccl`, `mpi` and `gloo` make them.

/// The effect of a function on the state in the kernel (`enum rm_role`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Call = 0,
    InitRank = 1,
    InitScalable = 2,
    InitAll = 3,
    Split = 4,
    Destroy = 5,
    UniqueId = 6,
    MpiInit = 7,
    Child = 8,
    GroupStart = 9,
    GroupEnd = 10,
    MpiMakes = 11,
    MpiFree = 12,
    MpiGroup = 13,
    MpiBegins = 14,
    MpiPersists = 15,
    MpiStarts = 16,
    MpiRequestFree = 17,
    GlooConnect = 20,
    GlooGone = 21,
}

impl Role {
    /// Whether its calls become records.
    pub(crate) fn is_recorded(self) -> bool {
        matches!(
            self,
            Role::Call | Role::MpiInit | Role::MpiMakes | Role::MpiFree | Role::MpiBegins | Role::MpiPersists
        )
    }
}

/// Whose API a function belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Nccl,
    Mpi,
    /// Its functions' arguments are the words of their options (`crate::gloo`).
    Gloo,
}

/// One probed function. Argument positions count from 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Function {
    pub(crate) api: Api,
    /// Its names; those that share an address are attached once.
    pub(crate) symbols: &'static [&'static str],
    /// `Collective::func`; of functions that make no records, a name for the statistics.
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    /// How many arguments are recorded.
    pub(crate) args: u8,
    pub(crate) comm: Comm,
    pub(crate) count: Option<u8>,
    pub(crate) datatype: Option<u8>,
    pub(crate) op: Option<u8>,
    /// Root, or peer: of a call that sends and receives, whom it receives from.
    pub(crate) root: Option<u8>,
    /// The tag; where it sends and receives, that of what it receives.
    pub(crate) tag: Option<u8>,
    pub(crate) stream: Option<u8>,
    /// Whether every rank of the communicator makes the call, or its calls are matched otherwise.
    pub(crate) numbered: Numbered,
    /// Byte 6 of an MPI function's cookie: `enum rm_makes`, `enum rm_groups`, or how requests are
    /// passed.
    pub(crate) kind: Option<u8>,
    /// Of what makes a persistent collective, in place of a kind: the name of the nonblocking one that
    /// each start is.
    pub(crate) starts: Option<&'static str>,
    /// The argument with the address of what the call makes.
    pub(crate) made_at: Option<u8>,
}

/// On which communicator a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comm {
    None,
    /// That of this argument.
    At(u8),
    /// MPI_COMM_WORLD.
    World,
}

impl Comm {
    pub(crate) fn at(self) -> Option<u8> {
        if let Comm::At(position) = self { Some(position) } else { None }
    }
}

/// Which numbers a function's calls have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbered {
    /// By function, and their position among all collectives of the communicator.
    Collective,
    /// By function.
    PointToPoint,
    /// None.
    No,
}

pub(super) const NONE: Function = Function {
    api: Api::Nccl,
    symbols: &[],
    name: "",
    role: Role::Call,
    args: 0,
    comm: Comm::None,
    count: None,
    datatype: None,
    op: None,
    root: None,
    tag: None,
    stream: None,
    numbered: Numbered::Collective,
    kind: None,
    starts: None,
    made_at: None,
};

pub(super) const fn state(symbols: &'static [&'static str], name: &'static str, role: Role, args: u8) -> Function {
    Function { symbols, name, role, args, ..NONE }
}

pub(super) const fn op(at: u8, function: Function) -> Function {
    Function { op: Some(at), ..function }
}

pub(super) const fn root(at: u8, function: Function) -> Function {
    Function { root: Some(at), ..function }
}

pub(super) const fn point_to_point(function: Function) -> Function {
    Function { numbered: Numbered::PointToPoint, ..function }
}
