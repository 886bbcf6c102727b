//! Reads ELF files of other users (libraries, programs): symbols, notes, debug information.
//!
//! Such a file may be made to harm whoever reads it. So nothing of it is read in the process that
//! asks, which may have rights over the whole host: [`Files`] hands the open file to a process that
//! has given up everything but to read it and to answer (`confine`), within a time and a size, in a
//! message of fixed form. A file that ends that process, or is too much for it, is refused.
//!
//! Owns the questions and answers (`question`), the reading itself (`parse`), the process (`child`),
//! its parent's side (`reader`), whose turn it is (`files`) and how a file is opened that its user
//! can exchange (`regular`). Knows neither eBPF nor what answers
//! are for.

mod child;
mod confine;
mod files;
mod parse;
mod question;
mod reader;
mod regular;
pub mod seccomp;
mod wire;

pub use files::{Files, Outcome, Ticket};
pub use question::{
    Answer, CommLayout, Elf, Ends, EntryAndEnds, FileId, Found, Function, Interpreter, NcclBuild, NoEnds, Place, Point,
    Question, Segment, Symbol, Table,
};
pub use reader::Refusal;
pub use regular::{MappedFile, Regular};

/// Reads an answer out of bytes, in this process. For fuzzing: what others wrote is for [`Files`].
#[must_use]
pub fn reads_in_this_process(question: &Question, bytes: &[u8]) -> bool {
    parse::answer(question, bytes).is_ok()
}
