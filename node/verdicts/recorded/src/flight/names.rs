//! Names of calls as PyTorch's back ends give them, and what the calls move.

use observed::Payload;

use super::dump::Entry;

/// The name of a batch of calls that are made at once.
pub(super) const BATCH: &str = "coalesced";
/// Endings that say how the tensors are given, and not what the call does.
const ENDINGS: [&str; 8] = [
    "_into_tensor_coalesced",
    "_tensor_coalesced",
    "_coalesced",
    "_into_tensor",
    "_tensor",
    "_base",
    "_oop",
    "_single",
];

/// Whether a library's calls of one group are over in the order in which they were made: those that
/// devices run are.
pub(super) fn is_ordered(library: &str) -> bool {
    matches!(library, "nccl" | "rccl" | "xccl" | "hccl" | "ncclx")
}

/// What a call does: "_all_gather_base" and "allgather" are "all_gather".
pub(super) fn canonical(called: &str) -> String {
    let lower = called.to_ascii_lowercase();
    let mut name = lower.split_whitespace().next().unwrap_or_default().trim_start_matches('_');
    while let Some(stem) = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).filter(|stem| !stem.is_empty()) {
        name = stem;
    }
    match name {
        "allreduce" | "all_reduce_sparse" | "allreduce_sparse" => "all_reduce",
        "allgather" => "all_gather",
        "alltoall" => "all_to_all",
        "all_to_all_v" | "alltoall_v" => "all_to_all",
        "all_reduce_barrier" | "monitored_barrier" => "barrier",
        other => other,
    }
    .to_owned()
}

/// Whether a call is a send, and the rank of the group at its other end: "send 0->3", "recv 0<-3".
pub(super) fn peer(called: &str) -> Option<(bool, i32)> {
    let (name, ranks) = called.split_once(' ')?;
    let of = |mark: &str| ranks.split_once(mark)?.1.trim().parse().ok();
    match name {
        "send" => Some((true, of("->")?)),
        "recv" => Some((false, of("<-")?)),
        _ => None,
    }
}

/// What a call moves, where that has to be equal on all ranks: what each gives to a gathering call,
/// gets of a scattering one.
pub(super) fn payload(entry: &Entry) -> Payload {
    let (given, got) = entry.elements();
    let called = entry.called();
    let elements = match &*canonical(called) {
        // Parts of calls with uneven sizes.
        _ if called.ends_with("_oop") => None,
        "all_reduce" | "all_gather" | "broadcast" | "reduce" | "gather" => Some(given),
        "reduce_scatter" | "scatter" => Some(got),
        _ => None,
    };
    let datatype = entry.datatype();
    let bytes = elements.zip(datatype.and_then(width)).map(|(elements, width)| elements.saturating_mul(width));
    Payload {
        bytes: bytes.filter(|bytes| *bytes > 0),
        datatype: datatype.filter(|_| elements.is_some()).map(Into::into),
        reduce_op: None,
    }
}

/// Bytes of an element, by PyTorch's name of its type.
fn width(datatype: &str) -> Option<u64> {
    Some(match datatype {
        "Byte" | "Char" | "Bool" | "Float8_e5m2" | "Float8_e4m3fn" | "Float8_e5m2fnuz" | "Float8_e4m3fnuz"
        | "Float8_e8m0fnu" => 1,
        "Short" | "Half" | "BFloat16" | "UInt16" => 2,
        "Int" | "Float" | "ComplexHalf" | "UInt32" => 4,
        "Long" | "Double" | "ComplexFloat" | "UInt64" => 8,
        "ComplexDouble" => 16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_back_ends_mean_the_same_calls() {
        for (called, is) in [
            ("all_reduce", "all_reduce"),
            ("allreduce_coalesced", "all_reduce"),
            ("_all_gather_base", "all_gather"),
            ("ALLGATHER_coalesced", "all_gather"),
            ("all_gather_into_tensor_coalesced", "all_gather"),
            ("_reduce_scatter_base", "reduce_scatter"),
            ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
            ("_broadcast_oop", "broadcast"),
            ("all_to_all_single", "all_to_all"),
            ("alltoall_base", "all_to_all"),
            ("all_reduce_barrier", "barrier"),
            ("send 0->3", "send"),
            ("coalesced", "coalesced"),
        ] {
            assert_eq!(canonical(called), is, "{called}");
        }
        assert_eq!((peer("send 0->3"), peer("recv 12<-4"), peer("barrier")), (Some((true, 3)), Some((false, 4)), None));
    }
}
