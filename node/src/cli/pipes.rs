//! Output whose reader went away (`rankmesh demo 2>&1 | head`): the work ends there, and that is no
//! fault. What writes by `println!` and `eprintln!` panics then, with a message of the standard
//! library's (`library/std/src/io/stdio.rs`, `print_to`).

use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};

use ask::Exit;

/// Does work until it is done, or nobody reads what it prints.
pub(super) fn while_read(work: impl FnOnce() -> anyhow::Result<Exit>) -> anyhow::Result<Exit> {
    let of_others = take_hook();
    set_hook(Box::new(move |info| {
        if !is_unread(info.payload()) {
            of_others(info);
        }
    }));
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => outcome,
        Err(payload) if is_unread(&*payload) => Ok(Exit::Complete),
        Err(payload) => resume_unwind(payload),
    }
}

/// Writes to standard error what the exit code says as well: who closed it misses nothing.
pub(super) fn say(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn is_unread(payload: &(dyn Any + Send)) -> bool {
    let is = |words: &String| words.starts_with("failed printing to std") && words.contains("Broken pipe");
    payload.downcast_ref::<String>().is_some_and(is)
}
