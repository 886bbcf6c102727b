//! Lines that a child writes: of a job's hosts, over srun, of which any may be of another user's
//! making.

use std::io::{BufRead, BufReader, Read};

/// Bytes of a line: the longest message has some KiB.
const MOST_BYTES: u64 = 64 << 10;

/// Hands on each line, without its end, until there are no more or `take` returns false. One that is
/// too long, or no text, is none: it is passed over, and takes no memory.
pub(super) fn each(from: impl Read, mut take: impl FnMut(&str) -> bool) {
    let mut from = BufReader::new(from);
    let (mut line, mut is_rest) = (Vec::new(), false);
    loop {
        line.clear();
        match from.by_ref().take(MOST_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let was_rest = is_rest;
        is_rest = line.last() != Some(&b'\n') && line.len() as u64 == MOST_BYTES;
        if is_rest && !was_rest {
            tracing::warn!("a line of more than {MOST_BYTES} bytes came from a host of the job: it is passed over");
        }
        if is_rest || was_rest {
            continue;
        }
        let Ok(text) = std::str::from_utf8(&line) else { continue };
        if !take(text.trim_end_matches(['\n', '\r'])) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_an_end_takes_no_memory_and_hides_no_other() {
        let endless = std::io::repeat(b'x').take(1 << 30);
        let lines = b"one\r\ntwo\n".chain(endless).chain(&b"\n\xff\nthree\nlast"[..]);
        let mut found = Vec::new();
        each(lines, |line| {
            found.push(line.to_owned());
            true
        });
        assert_eq!(found, ["one", "two", "three", "last"]);
        let exact = "y".repeat(usize::try_from(MOST_BYTES).unwrap() - 1) + "\n";
        let mut lengths = Vec::new();
        each(exact.repeat(3).as_bytes(), |line| {
            lengths.push(line.len());
            lengths.len() < 2
        });
        assert_eq!(lengths, [exact.len() - 1; 2]);
    }
}
