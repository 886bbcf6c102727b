//! How commands end: exit codes and the errors that decide them.

use model::{Failure, FailureKind};

use crate::backend::NoAnswer;

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

/// An error of the person who typed, not of the machine: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// An error of a caller who may not ask for what was asked: exit code 2, too.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Forbidden(pub String);

/// The error for a question that is wrong, or not for this caller.
pub fn wrong(failure: Failure) -> anyhow::Error {
    match failure.kind {
        FailureKind::Forbidden => Forbidden(failure.message).into(),
        _ => UsageError(failure.message).into(),
    }
}

/// Whether an error is of the person who asked.
pub fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<UsageError>() || error.is::<Forbidden>()
}

/// Not an error: the command ran on a node of a Slurm job, and ended so there.
#[derive(Debug, thiserror::Error)]
#[error("the command ran on a node of the job")]
pub struct RanOnNode(pub Exit);

/// Whether the caller may not ask for what was asked, or may not ask at all.
pub fn is_forbidden(error: &anyhow::Error) -> bool {
    let of_agent = |none: &NoAnswer| none.failure.kind == FailureKind::Forbidden;
    error.is::<Forbidden>() || error.downcast_ref().is_some_and(of_agent)
}

/// Whether a reader that went away (`… | head`) ended the work.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
