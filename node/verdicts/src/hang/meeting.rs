//! Whom a call waits for, by its name.

use observed::Coupling;

/// Whom a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meeting {
    /// For every rank of the communicator.
    All,
    /// For its root; the root may wait for the others.
    RootSends,
    /// The root for every other; another may wait for any.
    RootReceives,
    /// For the ranks below its own.
    Below,
    /// For the rank that it sends to.
    Send,
    /// For the rank that it receives from.
    Receive,
    /// For whom it began to send to or receive from before.
    Wait,
    /// Begun, and waited for later.
    Pending,
    /// For somebody.
    Unknown,
}

impl Meeting {
    /// Of a call, by its name in lower snake case.
    pub(super) fn of(func: &str) -> Self {
        let func = blocking(func);
        match Coupling::of(func) {
            Coupling::All => return Self::All,
            Coupling::RootSends => return Self::RootSends,
            Coupling::RootReceives => return Self::RootReceives,
            Coupling::Pair | Coupling::Other => {}
        }
        match func {
            "isend" | "issend" | "ibsend" | "irsend" | "irecv" | "imrecv" => Self::Pending,
            "send" | "ssend" | "bsend" | "rsend" => Self::Send,
            "recv" | "mrecv" | "probe" | "mprobe" | "sendrecv" | "send_recv" | "send_recv_replace" => Self::Receive,
            "scan" | "exscan" => Self::Below,
            "finalize" => Self::All,
            // Only the group's ranks make one of these.
            "comm_create_group" | "comm_create_from_group" | "intercomm_create" => Self::Unknown,
            _ if func.starts_with("comm_") || func.starts_with("cart_") || func.starts_with("graph_") => Self::All,
            _ if func.starts_with("wait") => Self::Wait,
            _ => Self::Unknown,
        }
    }
}

/// The function of which a nonblocking collective is a form, or the name itself.
fn blocking(func: &str) -> &str {
    let of = func.strip_prefix('i').filter(|of| {
        matches!(Coupling::of(of), Coupling::All | Coupling::RootSends | Coupling::RootReceives)
            || matches!(*of, "scan" | "exscan" | "comm_dup")
    });
    of.unwrap_or(func)
}

/// Whether a collective of this name returns before it is over.
pub(super) fn is_nonblocking(func: &str) -> bool {
    blocking(func) != func
}
