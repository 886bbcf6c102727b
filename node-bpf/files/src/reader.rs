//! One confined process (`child`) as its parent sees it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::child::{self, ENTRY};
use crate::question::{Answer, FileId, Question};
use crate::wire::{self, MOST_BYTES, Request, Response};

/// CPU time that one question may take. The debug information of NCCL's wheels takes a second.
pub(crate) const MOST_CPU: Duration = Duration::from_secs(10);
/// Time that it may take on a machine that is busy, or from a disk that is slow.
const MOST_TIME: Duration = Duration::from_secs(60);
/// How long the end of a process is waited for that was killed.
const END: Duration = Duration::from_secs(1);

/// Why a file is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It has not what was asked for, or is damaged, or larger than such files are.
    #[error("{0}")]
    Wrong(String),
    /// It cannot be opened or looked at now.
    #[error("it cannot be read now: {0}")]
    Unreadable(String),
    /// There was no answer in time: its disk is slow, or hangs.
    #[error("its disk gives no answer within {} s", MOST_TIME.as_secs())]
    Late,
    /// Reading it took more than a library's takes.
    #[error("reading it takes longer than {} s: no library does", MOST_CPU.as_secs())]
    Slow,
    /// The process that read it ended.
    #[error("the process that read it ended ({0})")]
    Ended(String),
    /// It was written to while it was read.
    #[error("it was changed while it was read")]
    Changed,
    /// Its user has too many files that are to be read.
    #[error("too many files of its user wait to be read")]
    Busy,
    /// There is no process that could read it.
    #[error("files of others are not read: {0}")]
    NotConfined(String),
}

impl Refusal {
    /// Whether the same file will not be answered otherwise.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Refusal::Wrong(_))
    }

    /// Whether the process that read the file did not live to answer. The file may be made for that,
    /// or the process had bad luck: the kernel was short of memory, or somebody killed it.
    pub(crate) fn ended_reader(&self) -> bool {
        matches!(self, Refusal::Slow | Refusal::Ended(_))
    }
}

/// A running process that reads.
#[derive(Debug)]
pub(crate) struct Reader {
    child: Option<Child>,
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Reader {
    /// Starts one.
    pub(crate) fn start() -> Result<Reader, Refusal> {
        let failed = |error: io::Error| Refusal::NotConfined(error.to_string());
        std::hint::black_box(&ENTRY); // what is not referred to is not linked
        let kind = (AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
        let (ours, theirs) = socketpair(kind.0, kind.1, None, kind.2).map_err(|error| failed(error.into()))?;
        let most = TimeVal::seconds(i64::try_from(MOST_TIME.as_secs()).unwrap_or(i64::MAX));
        setsockopt(&ours, sockopt::ReceiveTimeout, &most).map_err(|error| failed(error.into()))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(child::NAME).env_clear().stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(failed)?;
        Ok(Reader { child: Some(child), socket: ours, buffer: vec![0; MOST_BYTES] })
    }

    /// Asks, and waits for the answer. After a refusal that is not the file's own ([`Refusal::Wrong`])
    /// the process is of no use any more.
    pub(crate) fn ask(&mut self, file: &File, id: FileId, question: Question) -> Result<Answer, Refusal> {
        let cpu_ms = u32::try_from(MOST_CPU.as_millis()).unwrap_or(u32::MAX);
        let request = Request { question, bytes: id.bytes, cpu_ms };
        let request = wire::encode(&request).ok_or_else(|| Refusal::Wrong("too long a question".to_owned()))?;
        if wire::send(self.socket.as_fd(), &request, Some(file.as_fd())).is_err() {
            return Err(self.end());
        }
        let bytes = match wire::receive(self.socket.as_fd(), &mut self.buffer) {
            Ok((bytes @ 1.., None)) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(Refusal::Late),
            _ => return Err(self.end()),
        };
        let response: Response = wire::decode(&self.buffer[..bytes])
            .ok_or_else(|| Refusal::Ended("it answered with something else".to_owned()))?;
        response.map_err(Refusal::Wrong)
    }

    /// How it ended.
    fn end(&mut self) -> Refusal {
        let Some(status) = self.child.as_mut().and_then(ended) else {
            return Refusal::Ended("how cannot be told".to_owned());
        };
        match (status.code(), status.signal()) {
            (Some(child::NOT_CONFINED), _) => Refusal::NotConfined("this kernel cannot confine a process".to_owned()),
            (_, Some(libc::SIGPROF)) => Refusal::Slow,
            (_, Some(signal)) => Refusal::Ended(format!("signal {signal}")),
            (code, _) => Refusal::Ended(format!("exit {}", code.unwrap_or(-1))),
        }
    }

    /// CPU time of the process so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        let pid = nix::unistd::Pid::from_raw(self.pid().cast_signed());
        let clock = nix::time::clock_getcpuclockid(pid);
        clock.and_then(nix::time::clock_gettime).map(Duration::from).unwrap_or_default()
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }
}

/// Waits a little for a process to end.
fn ended(child: &mut Child) -> Option<ExitStatus> {
    let until = Instant::now() + END;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            Ok(status) => return status,
            Err(_) => return None,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let _ = child.kill(); // it may have ended
        if ended(&mut child).is_none() {
            // It hangs in a file system of its user's, and ends when that lets it.
            let wait = move || drop(child.wait());
            let _ = std::thread::Builder::new().name("files-end".to_owned()).spawn(wait);
        }
    }
}
