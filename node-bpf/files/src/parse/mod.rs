//! Reads the answers out of the bytes of a file: pure, and run on any bytes. Everything here runs
//! in the confined process (`child`), where too much memory or time ends it.

mod demangle;
mod entry;
mod exits;
mod exports;
mod frames;
mod interpreter;
mod layout;
mod matching;
mod names;
mod nccl;
mod place;
mod sections;
mod usdt;

use crate::question::{Answer, Question};
use sections::Object;

/// The answer to a question about a file with these bytes.
///
/// # Errors
/// Why there is none, for people.
pub(crate) fn answer(question: &Question, bytes: &[u8]) -> Result<Answer, String> {
    let object = Object::parse(bytes)?;
    Ok(match question {
        Question::Exports { prefixes } => Answer::Exports(exports::read(&object, prefixes)?),
        Question::DefaultVersion { symbol } => Answer::DefaultVersion(exports::default_version(&object, symbol)?),
        Question::NcclBuild => Answer::NcclBuild(nccl::build(&object)),
        Question::NcclVersion => Answer::NcclVersion(nccl::version(&object)),
        Question::CommLayout => Answer::CommLayout(layout::read(&object)?),
        Question::Function { name } => Answer::Function(names::find(&object, name)?),
        Question::Matching { name } => Answer::Matching(matching::find(&object, name)?),
        Question::Ends { names } => Answer::Ends(names::ends_of(&object, names)),
        Question::Points { provider, name } => Answer::Points(usdt::find(&object, provider, name)?),
        Question::Place { file_offset } => Answer::Place(place::of(&object, *file_offset)),
        Question::Interpreter { deep } => Answer::Interpreter(interpreter::read(&object, *deep)),
        Question::Functions { addresses } => Answer::Functions(place::functions(&object, addresses)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn own() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn what_is_no_elf_file_is_refused() {
        for bytes in [&b""[..], b"\x7fELF", b"#!/bin/sh\n"] {
            assert!(answer(&Question::NcclBuild, bytes).unwrap_err().contains("not a 64-bit ELF file"));
        }
    }

    #[test]
    fn our_own_file_answers_every_question() {
        let own = own();
        let mut questions = vec![
            Question::Exports { prefixes: vec![String::new()] },
            Question::NcclBuild,
            Question::NcclVersion,
            Question::Place { file_offset: 0x1000 },
            Question::Interpreter { deep: true },
            Question::Functions { addresses: vec![1, 0x10_0000] },
            Question::DefaultVersion { symbol: "main".to_owned() },
            Question::Matching { name: "files::parse::answer".to_owned() },
        ];
        for question in questions.drain(..) {
            assert!(answer(&question, &own).is_ok(), "{question:?}");
        }
        assert!(answer(&Question::CommLayout, &own).is_err());
        let points = Question::Points { provider: "no".to_owned(), name: "such".to_owned() };
        assert!(answer(&points, &own).unwrap_err().contains("USDT"));
    }
}
