//! How questions and answers go between the two processes: one message each on a socket that keeps
//! their bounds, the file as an open descriptor beside the question.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::question::{Answer, Question};

/// Most bytes of a message: the functions of the largest API that is probed take a third of it.
pub(crate) const MOST_BYTES: usize = 128 << 10;
/// Most characters of a reason.
const MOST_OF_A_REASON: usize = 1_000;

/// A question, with what the file's length was when it was opened.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) question: Question,
    pub(crate) bytes: u64,
    /// CPU time that reading may take; the reader ends with it.
    pub(crate) cpu_ms: u32,
}

/// What comes back.
pub(crate) type Response = Result<Answer, String>;

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<MOST_BYTES>()
}

/// The bytes of a message; none when they are too many.
pub(crate) fn encode<T: Serialize>(message: &T) -> Option<Vec<u8>> {
    bincode::serde::encode_to_vec(message, config()).ok().filter(|bytes| bytes.len() <= MOST_BYTES)
}

/// A whole message and nothing after it.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (message, read) = bincode::serde::decode_from_slice(bytes, config()).ok()?;
    (read == bytes.len()).then_some(message)
}

/// A response that fits.
pub(crate) fn response(result: Response) -> Vec<u8> {
    let result = result.map_err(|reason| reason.chars().take(MOST_OF_A_REASON).collect::<String>());
    let too_large = || encode::<Response>(&Err("its answer is larger than any library's".to_owned()));
    encode(&result).or_else(too_large).unwrap_or_default()
}

/// Sends a message, with a descriptor beside it.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let descriptors: Vec<i32> = file.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [ControlMessage::ScmRights(&descriptors)];
    let control = if descriptors.is_empty() { &[][..] } else { &control[..] };
    let sent = loop {
        match sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, MsgFlags::MSG_NOSIGNAL, None) {
            Err(Errno::EINTR) => {}
            sent => break sent?,
        }
    };
    if sent == bytes.len() { Ok(()) } else { Err(Errno::EMSGSIZE.into()) }
}

/// The next message, and the descriptor beside it; empty when the other end is closed.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = cmsg_space!([i32; 1]);
    let mut into = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = loop {
        // The kernel does not go on by itself after a signal, where the socket has a time limit.
        match recvmsg::<()>(socket.as_raw_fd(), &mut into, Some(&mut control), flags) {
            Err(Errno::EINTR) => {}
            message => break message?,
        }
    };
    let mut file = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            // SAFETY: the kernel has just made them for this process, and nobody else knows them.
            file = descriptors.into_iter().map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) }).next();
        }
    }
    if message.flags.contains(MsgFlags::MSG_TRUNC) {
        return Err(Errno::EMSGSIZE.into());
    }
    Ok((message.bytes, file))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::question::{Elf, Symbol};

    #[test]
    fn what_does_not_fit_is_said() {
        let symbol = Symbol { name: "x".repeat(200), address: 7, probe: 7 };
        let many = Answer::Exports(Elf { symbols: vec![symbol.clone(); 2_000], segments: vec![] });
        let answer = decode::<Response>(&response(Ok(many))).unwrap();
        assert!(answer.unwrap_err().contains("larger"));
        let few = Answer::Exports(Elf { symbols: vec![symbol; 2], segments: vec![] });
        assert_eq!(decode::<Response>(&response(Ok(few.clone()))).unwrap(), Ok(few));
        let reason = decode::<Response>(&response(Err("y".repeat(1 << 20)))).unwrap().unwrap_err();
        assert_eq!(reason.len(), MOST_OF_A_REASON);
    }

    proptest! {
        #[test]
        fn any_bytes_decode_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode::<Response>(&bytes);
            let _ = decode::<Request>(&bytes);
        }
    }
}
