//! The environment of a process as its libc keeps it now: what a program has set for itself, and
//! what `setproctitle` has moved away before it wrote over the block that /proc shows. `process`
//! makes a rank and a job of it.

use std::fs;

use files::{Answer, Files, Question, Ticket};

use crate::maps;
use crate::memory::Memory;
use crate::procfs;

/// Most variables and bytes that are read of one process; of one variable.
const MOST_VARIABLES: usize = 4_096;
const MOST_BYTES: usize = 256 << 10;
const MOST_OF_A_VARIABLE: usize = 4_096;

/// Whether the block of /proc/PID/environ has been written over: a program is started with
/// `NAME=value` and nothing between.
pub(crate) fn is_overwritten(block: &[u8]) -> bool {
    let Some(entries) = block.strip_suffix(b"\0") else { return !block.is_empty() };
    entries.split(|&b| b == 0).any(|entry| !entry.contains(&b'='))
}

/// Where `environ` may be: the files that can define it are being read.
#[derive(Debug, Default)]
pub(crate) struct OfLibc {
    places: Vec<Place>,
}

/// A file with `environ`, and where the process has it.
#[derive(Debug)]
struct Place {
    start: u64,
    offset: u64,
    ticket: Ticket,
}

impl OfLibc {
    /// Asks the process's program and its libc. The program's `environ` wins, as in the process
    /// (copy relocation).
    pub(crate) fn ask(pid: u32, user: u32, files: &Files) -> OfLibc {
        let text = procfs::read(pid, "maps").unwrap_or_default();
        let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let is_exe = |mapping: &maps::Mapping<'_>| mapping.path == exe.as_os_str().as_encoded_bytes();
        let is_libc = |mapping: &maps::Mapping<'_>| {
            let name = mapping.file_name();
            name.starts_with(b"libc.so") || name.starts_with(b"libc-") || name.starts_with(b"ld-musl-")
        };
        // the first mapping of a file is its lowest
        let found = [maps::mappings(&text).find(is_exe), maps::mappings(&text).find(is_libc)];
        let ask = |mapping: maps::Mapping<'_>| {
            let file = maps::open(pid, &mapping)?;
            let ticket = files.ask(user, &file, Question::Exports { prefixes: vec!["environ".to_owned()] });
            Some(Place { start: mapping.start, offset: mapping.offset, ticket })
        };
        OfLibc { places: found.into_iter().flatten().filter_map(ask).collect() }
    }

    /// Whether the files are read, or will not be.
    pub(crate) fn is_ready(&self) -> bool {
        self.places.iter().all(|place| place.ticket.outcome().is_some())
    }

    /// The variables in the form of /proc/PID/environ; none where they are not found.
    pub(crate) fn block(&self, pid: u32) -> Option<Vec<u8>> {
        let memory = Memory::of(pid);
        let environ = self.places.iter().find_map(Place::address)?;
        let mut at = memory.word(environ)?;
        let mut block = vec![];
        for _ in 0..MOST_VARIABLES {
            let variable = memory.word(at)?;
            if variable == 0 || block.len() >= MOST_BYTES {
                break;
            }
            block.extend(text(memory, variable));
            block.push(0);
            at = at.checked_add(8)?;
        }
        Some(block)
    }
}

impl Place {
    /// Where `environ` is in the process.
    fn address(&self) -> Option<u64> {
        let Some(Ok(answer)) = self.ticket.outcome() else { return None };
        let Answer::Exports(elf) = &**answer else { return None };
        let symbol = elf.symbols.iter().find(|symbol| symbol.name == "environ")?;
        Some(elf.load_bias(self.start, self.offset)?.wrapping_add(symbol.address))
    }
}

/// The text at an address, without its zero byte; nothing of one that is longer than any of ours.
fn text(memory: Memory, address: u64) -> Vec<u8> {
    let mut text = vec![];
    while text.len() < MOST_OF_A_VARIABLE {
        let at = address.wrapping_add(text.len() as u64);
        // up to the end of a memory page: the next may not be there
        let count = 256.min(4_096 - usize::try_from(at % 4_096).unwrap_or(0));
        let Some(part) = memory.bytes(at, count) else { break };
        let end = part.iter().position(|&b| b == 0);
        text.extend_from_slice(part.get(..end.unwrap_or(count)).unwrap_or_default());
        if end.is_some() {
            return text;
        }
    }
    vec![]
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_setproctitle_leaves_is_no_environment() {
        assert!(!is_overwritten(b"") && !is_overwritten(b"A=1\0") && !is_overwritten(b"A=1\0B=\0"));
        assert!(is_overwritten(b"\0") && is_overwritten(b"\0\0\0\0"));
        assert!(is_overwritten(b"ray::train rank=3\0\0\0\0\0"), "the rest of a title, then zeros");
        assert!(is_overwritten(b"A=1\0B=2"), "cut");
    }

    #[test]
    fn variables_that_the_program_has_set_itself_are_found() {
        let pid = std::process::id();
        // SAFETY: the tests of this crate that read or set variables do so through std's lock.
        unsafe { std::env::set_var("RANKMESH_SET_LATER", "7") };
        assert!(!procfs::read(pid, "environ").unwrap().windows(18).any(|part| part == b"RANKMESH_SET_LATER"));
        let files = Files::new(|| {});
        let user = procfs::user_of(pid).unwrap();
        let ours = OfLibc::ask(pid, user, &files);
        for place in &ours.places {
            let _ = place.ticket.wait(Instant::now() + Duration::from_secs(60)).unwrap();
        }
        let block = ours.block(pid).unwrap();
        assert!(block.split(|&b| b == 0).any(|entry| entry == b"RANKMESH_SET_LATER=7"));
        assert_eq!(ours.block(u32::MAX), None);
    }

    #[test]
    fn a_variable_without_an_end_is_none() {
        let long = vec![b'x'; 3 * MOST_OF_A_VARIABLE];
        let memory = Memory::of(std::process::id());
        assert_eq!(text(memory, long.as_ptr() as u64), b"");
        assert_eq!(text(memory, 8), b"");
        assert_eq!(text(memory, c"RANK=3".as_ptr() as u64), b"RANK=3");
    }
}
