//! Open MPI: what a request of a point-to-point message is for (`mca_pml_base_request_t` of its own
//! message layer, ob1; other layers keep it elsewhere). Where its fields lie differs between versions
//! and builds, so they are found in each request by what must hold there:
//!
//! - the communicator twice, at the end of `ompi_request_t` and behind the request's type
//!   (`req_mpi_object`, `req_type`, `req_comm`); before the first, `req_complete` and `req_state`;
//! - the buffer and the count of elements twice, in the convertor (`pBaseBuf`, `count`) and behind it
//!   (`req_addr`, `req_count`); behind these, `req_peer` and `req_tag`.
//!
//! Source: `ompi/request/request.h`, `ompi/mca/pml/base/pml_base_request.h` and
//! `opal/datatype/opal_convertor.h`, releases 3.0 to 5.0.

use crate::memory::Memory;

/// Bytes of a request that are looked at.
const BYTES: usize = 640;
/// Words of `ompi_request_t` before its communicator: `req_complete`, `req_state`.
const COMPLETE_BEFORE: usize = 8;
const STATE_BEFORE: usize = 7;
/// `OMPI_REQUEST_ACTIVE`; `REQUEST_COMPLETED`.
const ACTIVE: u32 = 2;
const COMPLETED: u64 = 1;
/// `MCA_PML_REQUEST_SEND`, `MCA_PML_REQUEST_RECV`.
const SEND: u32 = 1;
const RECV: u32 = 2;
/// `MPI_ANY_SOURCE`, `MPI_ANY_TAG`.
const ANY: i32 = -1;

/// A message that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) sends: bool,
    /// Handle of the communicator, and this process's rank in it and its size.
    pub(super) comm: u64,
    pub(super) place: (i32, i32),
    pub(super) buffer: u64,
    pub(super) count: u64,
    /// Handle of the datatype.
    pub(super) datatype: u64,
    /// Rank in the communicator, or [`ANY`]; and tag.
    pub(super) peer: i32,
    pub(super) tag: i32,
}

/// What a request is for, where it is under way. `place_of`: rank and size in a communicator by its
/// handle, where it is one.
pub(super) fn message(memory: Memory, request: u64, place_of: impl Fn(u64) -> Option<(i32, i32)>) -> Option<Message> {
    let bytes = memory.bytes(request, BYTES)?;
    let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let word = |at: usize| words.get(at).copied().unwrap_or_default();
    let (low, high) = (|at: usize| word(at) as u32, |at: usize| (word(at) >> 32) as u32);
    // Behind the first one are two flags, of a byte or of four each.
    let form = |at: usize| match word(at) {
        0 => None,
        comm if comm == word(at + 3) => Some((low(at + 2), at + 3)),
        comm if comm == word(at + 2) => Some((high(at + 1), at + 2)),
        _ => None,
    };
    let (at, (kind, comm_at)) = (COMPLETE_BEFORE..words.len() / 2).find_map(|at| Some((at, form(at)?)))?;
    let is_active = low(at - STATE_BEFORE) == ACTIVE && word(at - COMPLETE_BEFORE) != COMPLETED;
    if !is_active || ![SEND, RECV].contains(&kind) {
        return None;
    }
    let comm = word(comm_at);
    let place = place_of(comm)?;
    let is_twice = |at: &usize| {
        let (buffer, count) = (word(*at), word(at + 1));
        let convertor = comm_at + 4..at.saturating_sub(1);
        buffer != 0 && convertor.into_iter().any(|of| word(of) == buffer && word(of - 2) == count)
    };
    let buffer_at = (comm_at + 4..words.len().saturating_sub(2)).find(is_twice)?;
    let (peer, tag) = (low(buffer_at + 2).cast_signed(), high(buffer_at + 2).cast_signed());
    let is_sane = (0..place.1).contains(&peer) || peer == ANY && kind == RECV;
    (is_sane && tag >= ANY).then_some(Message {
        sends: kind == SEND,
        comm,
        place,
        buffer: word(buffer_at),
        count: word(buffer_at + 1),
        datatype: word(comm_at + 1),
        peer,
        tag,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMM: u64 = 0x5581_50a8_7260;

    /// As Open MPI 4.1.4 fills it for `MPI_Irecv(buffer, 7, MPI_DOUBLE, 1, 4242, …)`.
    fn request() -> Vec<u64> {
        let mut words = vec![0; BYTES / 8];
        let own = 0x7ffc_ec00_0e90;
        for (at, word) in [
            (12, 2),
            (19, COMM),
            (21, 2),
            (22, COMM),
            (23, 0x5581_50a8_7060),
            (31, 7),
            (32, 5),
            (33, own),
            (57, own),
            (58, 7),
            (59, 0x1092_0000_0001),
        ] {
            words[at] = word;
        }
        words
    }

    fn read(words: &[u64]) -> Option<Message> {
        let place_of = |comm| (comm == COMM).then_some((0, 4));
        message(Memory::of(std::process::id()), words.as_ptr() as u64, place_of)
    }

    #[test]
    fn a_receive_under_way() {
        let found = read(&request()).expect("a message");
        assert_eq!((found.sends, found.comm, found.peer, found.tag, found.count), (false, COMM, 1, 4242, 7));
        let mut any = request();
        any[59] = u64::MAX;
        assert_eq!(read(&any).map(|found| (found.peer, found.tag)), Some((ANY, ANY)));
        let mut send = request();
        (send[21], send[59]) = (u64::from(SEND), 3);
        assert_eq!(read(&send).map(|found| (found.sends, found.peer, found.tag)), Some((true, 3, 0)));
    }

    #[test]
    fn what_is_over_or_is_no_message_is_none() {
        let with = |at: usize, word: u64| {
            let mut words = request();
            words[at] = word;
            read(&words)
        };
        assert_eq!(with(11, COMPLETED), None, "it is complete");
        assert_eq!(with(12, 1), None, "it was not started");
        assert_eq!(with(21, 3), None, "a probe");
        assert_eq!(with(59, 4), None, "no such rank");
        assert_eq!(with(58, 8), None, "another count than the convertor's");
        assert_eq!(with(22, COMM + 8), None, "another communicator");
        assert_eq!(read(&vec![0; BYTES / 8]), None);
        assert_eq!(read(&vec![u64::MAX; BYTES / 8]), None);
    }
}
